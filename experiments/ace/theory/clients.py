"""Why the mean squared gradient of ACE does not fall with the number of clients on the digits MLP.

    python experiments/ace/theory/clients.py           # clients.json, and the table of README.md
    python experiments/ace/theory/clients.py --show    # the table of what is recorded

The theorem's bound falls as 1 / sqrt(n T) for lr = c sqrt(n / T). When n grows in `acefl diagnose`, three things change
at once: the rate, how old the rows of the table are, and F itself, since more clients each hold fewer samples. Here F
stays: the samples, sorted by label, are cut into 40 equal parts, and n clients hold 40 / n parts each, so F is the mean
over the same samples for every n. Then the rate stays, too; and last the delay goes: every step is on the mean of new
gradients of all clients (FedAvg of one gradient each), at the theorem's rate.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2]))

import torch  # noqa: E402
from experiments.leaderboard.publish import filled  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from torch import nn  # noqa: E402

from acefl import ACE, FedAvg, Scenario, Stop, simulate  # noqa: E402
from acefl.core.files import atomic_write, read_json  # noqa: E402
from acefl.core.rule import Method  # noqa: E402
from acefl.probes import ErrorTerms, TrueGradient  # noqa: E402
from acefl.report.diagnosis import fit  # noqa: E402
from acefl.studies.convergence import squared_gradient  # noqa: E402
from acefl.tasks import TorchTask  # noqa: E402

PARTS, CLIENTS = 40, (5, 10, 20, 40)
STEPS, C, SEEDS = 8_000, 0.3, (0, 1, 2, 3, 4)  # as `acefl diagnose` has them, with more seeds
SPREAD, MEASURED = 10.0, 40  # steps whose error is taken apart
RESULTS = HERE / "clients.json"


@dataclass(frozen=True)
class Way:
    """One way to let n grow."""

    name: str
    method: Method
    grows: bool  # whether the rate grows as sqrt(n), as the theorem has it; else it is that of n = 10

    def lr(self, clients: int, steps: int) -> float:
        return C * math.sqrt((clients if self.grows else 10) / steps)


WAYS = (
    Way("ACE, the theorem's rate", ACE(), True),
    Way("ACE, the rate of n = 10", ACE(), False),
    Way("fresh gradients of all, the theorem's rate", FedAvg(), True),
)


def task(clients: int, seed: int) -> TorchTask:
    """The digits by label, over so many clients; F and the first model are the same for any number of them."""
    data = load_digits()
    order = torch.argsort(torch.tensor(data.target), stable=True)
    order = order[: len(order) // PARTS * PARTS]
    x, y = torch.tensor(data.data, dtype=torch.float32)[order] / 16, torch.tensor(data.target)[order]
    held = zip(x.chunk(clients), y.chunk(clients), strict=True)
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return TorchTask(network, nn.CrossEntropyLoss(), list(held), batch=20)


def measure(way: Way, clients: int, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """The mean squared gradient of a run, and what the error of its steps is made of."""
    per_step = clients if way.method.rounds else 1
    terms = ErrorTerms(per_step * steps // MEASURED, gradients="full")
    run = simulate(
        task(clients, seed),
        way.method,
        lr=way.lr(clients, steps),
        scenario=Scenario(spread=SPREAD),
        stop=Stop(steps=steps),
        seed=seed,
        evaluations=200,
        observers=[TrueGradient(), terms],
    )
    found = {name: fmean(row[name] for row in terms.records) for name in ("noise", "delay", "squared_gradient")}
    return {"way": way.name, "n": clients, "seed": seed, **squared_gradient(run), **found}


def run(steps: int = STEPS, seeds: Sequence[int] = SEEDS, clients: Sequence[int] = CLIENTS) -> dict[str, Any]:
    began, rows = time.perf_counter(), []
    for way in WAYS:
        for count in clients:
            rows += [measure(way, count, seed, steps) for seed in seeds]
            print(f"{way.name}: n = {count}", file=sys.stderr)
    return {"steps": steps, "seeds": list(seeds), "seconds": round(time.perf_counter() - began), "rows": rows}


def table(recorded: dict[str, Any]) -> str:
    """Slopes against n, and the error of a step at the ends of the line."""
    clients = sorted({row["n"] for row in recorded["rows"]})
    head = "| | slope, whole run | slope, second half | ‖∇F‖², whole run: n = "
    head += ", ".join(map(str, clients)) + " | delay C / ‖∇F‖² | noise A / ‖∇F‖² |"
    lines = [head, "|---" + "|--:" * 5 + "|"]
    for way in WAYS:
        own = [row for row in recorded["rows"] if row["way"] == way.name]
        fits = [_slope(own, part) for part in ("whole", "second_half")]
        at = {n: [row for row in own if row["n"] == n] for n in clients}
        means = ", ".join(f"{fmean(row['whole'] for row in at[n]):.3g}" for n in clients)
        shares = [
            ", ".join(f"{_share(at[n], term):.2g}" for n in (clients[0], clients[-1])) for term in ("delay", "noise")
        ]
        lines.append(f"| {way.name} | {' | '.join([*fits, means, *shares])} |")
    cost = (
        f"{recorded['steps']:,} steps, {len(recorded['seeds'])} seeds, speeds spread {SPREAD:g}, "
        f"{recorded['seconds'] / 60:.0f} minutes of a shared machine. Slopes with 95 % intervals of the fit. The last "
        f"two columns are for n = {clients[0]} and n = {clients[-1]}: mean squared terms over {MEASURED} steps of a "
        "run, by the mean of the squared gradient at them."
    )
    return "\n".join([*lines, "", cost])


def _slope(rows: Sequence[dict[str, Any]], part: str) -> str:
    found = fit([row["n"] for row in rows], [row[part] for row in rows])
    return f"**{found.value:.2f}** ({found.low:.2f} to {found.high:.2f})".replace("-", "−")


def _share(rows: Sequence[dict[str, Any]], term: str) -> float:
    return fmean(row[term] for row in rows) / fmean(row["squared_gradient"] for row in rows)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--show", action="store_true")
    if not options.parse_args().show:
        torch.set_num_threads(1)
        atomic_write(RESULTS, json.dumps(run(), indent=1))
        readme = HERE / "README.md"
        text = filled(readme.read_text(encoding="utf-8"), "clients", table(read_json(RESULTS)))
        readme.write_text(text, encoding="utf-8")
    print(table(read_json(RESULTS)))


if __name__ == "__main__":
    main()
