"""Why CA2FL is ahead of ACE on digits: the error of a step, and what is left of it over a round of arrivals.

    python experiments/ace/theory/family.py [--workers 1]    # family.json, and the tables of README.md
    python experiments/ace/theory/family.py --show           # the tables of what is recorded

ACE, CA2FL and two rules in between, each at a rate tuned on another seed, and all once more at ACE's rate.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2]))  # so that worker processes find this file

import torch  # noqa: E402
from experiments.leaderboard.publish import filled  # noqa: E402

from acefl.core.files import atomic_write, read_json  # noqa: E402
from acefl.core.settings import label  # noqa: E402
from acefl.core.stop import Stop  # noqa: E402
from acefl.core.types import Step, Vector  # noqa: E402
from acefl.fleets.scenario import Scenario  # noqa: E402
from acefl.probes import ErrorTerms  # noqa: E402
from acefl.report.statistics import half_width  # noqa: E402
from acefl.rules import ACE, CA2FL, Calibrated  # noqa: E402
from acefl.runs.observers import Observer  # noqa: E402
from acefl.studies.jobs import Job, open_jobs  # noqa: E402
from acefl.studies.spec import DEFAULT_TASK, RunSpec  # noqa: E402
from acefl.studies.tune import tune  # noqa: E402

if TYPE_CHECKING:
    from acefl.core.server import Server
    from acefl.runs.observers import RunInProgress

SCENARIOS = {"equal speeds": Scenario(), "spread 30, tied to data": Scenario(spread=30.0, slow="last")}
METHODS = (ACE(), Calibrated(c=0.3), Calibrated(c=1.0), CA2FL())
NAMES = {"Calibrated": "Calibrated(c=0.3)"}  # the default, spelt out
ARRIVALS, BUDGET, SEEDS = 3000, 8.0, (0, 1, 2, 3, 4)
WINDOW, EVERY = 100, 300  # arrivals: a round of all clients, and between two measured steps
TERMS = ("noise", "bias", "delay", "mse", "squared_gradient")
RESULTS = HERE / "family.json"


class LastingError(Observer):
    """The squared norm of the mean of u - grad F(w) over every `window` arrivals: what does not average out.

    All steps' updates are in that mean; the true gradient, which moves little from step to step, is taken ten times.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.records: list[dict[str, float]] = []

    def started(self, run: RunInProgress) -> None:
        self._task: Any = run.task
        self._model = run.server.model.clone()
        self._due = self._look = 0
        self._updates: Vector = torch.zeros_like(self._model, dtype=torch.float64)
        self._truths = self._updates.clone()
        self._begin(0)

    def _begin(self, arrivals: int) -> None:
        self._updates.zero_()
        self._truths.zero_()
        self._steps = self._looks = 0
        self._due = (arrivals // self.window + 1) * self.window

    def stepped(self, step: Step, server: Server) -> None:
        if not step.stepped:
            return
        self._updates.add_(server.direction)
        self._steps += 1
        if step.arrivals >= self._look:
            self._truths.add_(self._task.mean_gradient(self._model))
            self._looks += 1
            self._look = step.arrivals + self.window // 10
        self._model.copy_(server.model)
        if step.arrivals >= self._due:
            error = self._updates / self._steps - self._truths / max(1, self._looks)
            self.records.append({"arrival": step.arrivals, "lasting": float(error.square().sum())})
            self._begin(step.arrivals)


def measure(spec: RunSpec) -> dict[str, float]:
    """The client loss at the end, and means over the second half of the run."""
    terms, lasting = ErrorTerms(EVERY, gradients="full"), LastingError(WINDOW)
    run = spec.run([terms, lasting])
    half = ARRIVALS // 2
    rows = [row for row in terms.records if row["arrival"] > half]
    found = {name: fmean(row.get(f"{name}_all", row[name]) for row in rows) for name in TERMS}
    found["lasting"] = fmean(row["lasting"] for row in lasting.records if row["arrival"] > half)
    return {**found, "client_loss": run.final["client_loss"]}


def run(workers: int | None) -> dict[str, Any]:
    """Tune, then measure everybody at its own rate and at ACE's."""
    began, stop, rows = time.perf_counter(), Stop(arrivals=ARRIVALS), []
    for scenario, speeds in SCENARIOS.items():
        rates = {}
        for rule in METHODS:
            found = tune(
                DEFAULT_TASK, rule, scenario=speeds, stop=stop, over=(), budget=BUDGET, workers=1, progress=False
            )
            rates[label(rule)] = found.lr
        for rule in METHODS:
            for at in dict.fromkeys((rates[label(rule)], rates["ACE"])):
                specs = [RunSpec(DEFAULT_TASK, rule, at, speeds, stop, seed, 4) for seed in SEEDS]
                jobs = [Job(measure, spec, spec.seed, label(rule)) for spec in specs]
                with open_jobs(workers) as runner:
                    measured = runner.run(jobs)
                what = {"scenario": scenario, "method": NAMES.get(label(rule), label(rule)), "lr": at}
                rows.append({**what, "tuned": at == rates[label(rule)], "seeds": measured})
                print(f"{scenario}: {what['method']} at {at:g}", file=sys.stderr)
    seconds = round(time.perf_counter() - began)
    made_with = {"arrivals": ARRIVALS, "budget": BUDGET, "seeds": SEEDS, "window": WINDOW, "seconds": seconds}
    return {**made_with, "rows": rows}


def tables(recorded: dict[str, Any]) -> str:
    """A table per scenario: everybody at its own rate, then everybody at ACE's."""
    head = "| method, its rate | client loss | noise A | bias B | delay C | a step's error | lasting error | of ‖∇F‖² |"
    parts = []
    for scenario in SCENARIOS:
        own = [row for row in recorded["rows"] if row["scenario"] == scenario]
        lines = [f"**{scenario}**", "", head, "|---" + "|--:" * 7 + "|"]
        lines += [_line(row, "") for row in own if row["tuned"]]
        lines += [_line(row, " (ACE's)") for row in own if not row["tuned"]]
        parts.append("\n".join([*lines, "", *_differences(own)]))
    cost = (
        f"{recorded['arrivals']:,} arrivals, {len(recorded['seeds'])} seeds, rates tuned on another with a budget of "
        f"{recorded['budget']:g} runs, {recorded['seconds'] / 60:.0f} minutes of a shared machine. Mean squared norms "
        f"over the second half of the runs; lasting: of the error's mean over {recorded['window']} arrivals."
    )
    return "\n\n".join([*parts, cost])


def _line(row: dict[str, Any], whose: str) -> str:
    means = {name: fmean(seed[name] for seed in row["seeds"]) for name in row["seeds"][0]}
    loss = f"{means['client_loss']:.3f} ± {half_width([seed['client_loss'] for seed in row['seeds']]):.3f}"
    terms = [f"{means[name]:.2g}" for name in ("noise", "bias", "delay", "mse", "lasting")]
    share = f"{means['lasting'] / means['squared_gradient']:.2g}"
    return f"| {row['method']}, {row['lr']:g}{whose} | {' | '.join([loss, *terms, share])} |"


def _differences(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Client loss of each less ACE's, on the same seeds, everybody tuned."""
    tuned = {row["method"]: [seed["client_loss"] for seed in row["seeds"]] for row in rows if row["tuned"]}
    apart = {
        name: [one - two for one, two in zip(losses, tuned["ACE"], strict=True)]
        for name, losses in tuned.items()
        if name != "ACE"
    }
    said = [f"{name} {fmean(values):+.3f} ± {half_width(values):.3f}" for name, values in apart.items()]
    return [f"Tuned, client loss less ACE's on the same seed, with 95 % intervals: {', '.join(said)}."]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workers", type=int, default=None)
    options.add_argument("--show", action="store_true")
    chosen = options.parse_args()
    if not chosen.show:
        atomic_write(RESULTS, json.dumps(run(chosen.workers), indent=1))
        readme = HERE / "README.md"
        text = filled(readme.read_text(encoding="utf-8"), "family", tables(read_json(RESULTS)))
        readme.write_text(text, encoding="utf-8")
    print(tables(read_json(RESULTS)))


if __name__ == "__main__":
    main()
