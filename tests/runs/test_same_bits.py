"""The same arguments end in the same model as in the release before, bit for bit.

`same_bits.json` holds hashes of final models: every method x clock x encoding, with churn and without, and what was
recorded of the runs on the way. Bits depend on the CPU's vector instructions, so hashes are kept per kind of CPU; on a
kind that has none the test skips and says so. Write them (only when a change of bits is meant, and said in the
changelog) with

    python -m tests.runs.test_same_bits [NAME ...]
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import resumable

from acefl import ACE, ACED, InvalidInput, Scenario, Stop, simulate, tasks

RECORD = Path(__file__).parent / "same_bits.json"
KIND = f"torch {torch.__version__.split('+')[0]}, {torch.backends.cpu.get_cpu_capability()}"
TABLE_4BIT = {
    f"{name}-int4-memory": dataclasses.replace(resumable.RULES[f"{name}-int8-memory"], table="int4")  # type: ignore[type-var]
    for name in ("ACE", "ACED", "CA2FL")
}
RULES = {**resumable.RULES, **TABLE_4BIT}
SCENARIOS = {
    **resumable.SCENARIOS,
    "tick": Scenario(clock="tick", delay=2.0, spread=8.0),
    "sampled": Scenario(clock="sampled", delay=4.0, spread=8.0),
}
CASES = [f"{rule}/{scenario}" for rule in RULES for scenario in SCENARIOS]
DIGITS = {"ACE": ACE(table="int8"), "ACED": ACED(tau=30), **{n: resumable.RULES[n] for n in ("FedBuff", "FedAvg")}}


def ending(case: str) -> str:
    """A hash of the run's final model, or why there is none."""
    rule, scenario = case.split("/")
    torch.set_num_threads(1)
    try:
        if scenario == "digits":
            task = tasks.digits(clients=10, alpha=0.1, model="mlp", seed=0)
            run = simulate(task, DIGITS[rule], lr=0.1, scenario=Scenario(spread=8.0), stop=Stop(arrivals=150))
        else:
            with tempfile.TemporaryDirectory() as room:
                chosen: Any = RULES[rule]
                if getattr(chosen, "home", "") == resumable.FILE:
                    chosen = dataclasses.replace(chosen, home=str(Path(room) / "table.bin"))
                task, stop = tasks.build(resumable.TASK), Stop(arrivals=resumable.ARRIVALS)
                run = simulate(task, chosen, lr=0.05, scenario=SCENARIOS[scenario], stop=stop, seed=5, evaluations=6)
    except InvalidInput:
        return "refused"
    seen = hashlib.sha256(run.model.numpy().tobytes())
    seen.update(json.dumps([run.participation, run.steps, run.time.hex()]).encode())
    return seen.hexdigest()[:16]


CASES += [f"{rule}/digits" for rule in DIGITS]


@pytest.mark.parametrize("scenario", [*SCENARIOS, "digits"])
def test_final_models_are_those_of_the_release_before(scenario: str) -> None:
    recorded = json.loads(RECORD.read_text()).get(KIND)
    if recorded is None:
        pytest.skip(f"no hashes were recorded for this kind of CPU ({KIND})")
    threads = torch.get_num_threads()
    try:
        of = [case for case in CASES if case.endswith(f"/{scenario}")]
        differ = [case for case in of if ending(case) != recorded[case]]
    finally:
        torch.set_num_threads(threads)
    assert not differ, f"{len(differ)} of {len(of)} end in other bits"


def main() -> None:
    """Record the endings of all cases, or of those whose name contains one of the words given."""
    kinds = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    chosen = [case for case in CASES if not sys.argv[1:] or any(word in case for word in sys.argv[1:])]
    kinds.setdefault(KIND, {}).update({case: ending(case) for case in chosen})
    RECORD.write_text(json.dumps(kinds, indent=1, sort_keys=True) + "\n")
    print(f"{len(chosen)} endings recorded for {KIND}")


if __name__ == "__main__":
    main()
