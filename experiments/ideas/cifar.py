"""The ideas on CIFAR-10, beside ACE, ACED and CA2FL: speed and data are one, spread 30, every rate tuned alike.

    python experiments/ideas/cifar.py DATA [--workers 2] [--limit SECONDS]   # goes on where it stopped; into cifar10/
    python experiments/ideas/cifar.py --show

The setting of `acefl reproduce amplification`, small enough for a CPU: 20 clients, 5,000 images, the small network,
minibatches of 10, 1,500 uploads.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))  # so that worker processes find experiments.ideas.ideas

from experiments.ideas.study import IDEAS, KNOWN, surely_ahead  # noqa: E402

from acefl.paper import amplification, runner  # noqa: E402
from acefl.paper.page import Page  # noqa: E402
from acefl.paper.plan import Contestant, Planned, Request, contestants  # noqa: E402
from acefl.paper.records import Ledger, Results, spread  # noqa: E402

NAME, OUT = "ideas-cifar10", HERE / "cifar10"
SPREAD, CLIENTS, ARRIVALS, SEEDS = 30.0, 20, 1500, (0, 1, 2, 3, 4)
TAU = 3 * CLIENTS
SIZES: dict[str, Any] = {"clients": CLIENTS, "batch": 10, "samples": 5000, "test_samples": 1000, "evaluations": 2}
METRICS = {
    "client_loss": "mean over clients of their own loss, which rates are tuned by",
    "slow_accuracy": "accuracy of the slowest fifth of clients on their own data",
    "accuracy": "test accuracy",
}


def plan(request: Request) -> list[Planned]:
    known = [one for one in contestants(request, TAU) if one.label in KNOWN]
    ours = [Contestant(name, f"experiments.ideas.ideas:{name}{_settings(name)}") for name in IDEAS]
    return [amplification.setting(request, NAME, one, SPREAD, arrivals=ARRIVALS) for one in (*known, *ours)]


def _settings(name: str) -> str:
    return f"(tau={TAU})" if name == "FadingACED" else ""


def write_page(results: Results) -> None:
    page = Page(OUT)
    page.text("# Ideas of our own on CIFAR-10", "", __doc__.strip().rpartition("\n\n")[2].replace("\n", " "))
    page.text(
        f"{len(results.records)} runs and {len(results.trials)} trials of learning rates, on "
        + "; ".join(sorted({f"{r['machine']['cores']} cores of {r['machine']['cpu']}" for r in results.records}))
        + ". Mean ± standard deviation over seeds."
    )
    rates = {method: results.where(method=method).records[0]["settings"]["lr"] for method in results.having("method")}
    rows = [
        [method, f"{rate:.3g}", *(spread(results.values(metric, method=method)) for metric in METRICS)]
        for method, rate in rates.items()
    ]
    page.table(["method", "tuned lr", *METRICS.values()], rows)
    page.text("## Where an idea beats all three", "", *(wins(results) or ["Nowhere."]))
    page.write()


def wins(results: Results) -> list[str]:
    """Ideas whose paired 95 % interval is on the better side of ACE's, ACED's and CA2FL's."""
    said = []
    for metric, sign in (("client_loss", 1.0), ("slow_accuracy", -1.0)):
        scores = {
            method: [
                sign * float(record["final"][metric])
                for record in sorted(results.where(method=method).records, key=lambda r: r["settings"]["seed"])
            ]
            for method in (*KNOWN, *IDEAS)
        }
        if {len(own) for own in scores.values()} != {len(SEEDS)}:
            continue
        for idea in IDEAS:
            lead = min(surely_ahead(scores[idea], scores[known]) for known in KNOWN)
            if lead > 0:
                said.append(f"- {idea}, {METRICS[metric].partition(',')[0]}: by {lead:.3g} or more.")
    return said


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("data", nargs="?", type=Path, help="folder with CIFAR-10")
    options.add_argument("--workers", type=int, default=None)
    options.add_argument("--limit", type=float, default=None)
    options.add_argument("--show", action="store_true")
    chosen = options.parse_args()
    if not chosen.show:
        planned = plan(Request(form="tuned", seeds=SEEDS, folder=str(chosen.data), model="cnn", **SIZES))
        told = lambda done, known, last: print(f"{done}/{known} {last}", file=sys.stderr)  # noqa: E731
        runner.run(planned, {NAME: OUT}, workers=chosen.workers, limit=chosen.limit, progress=told)
    write_page(Results(Ledger(OUT / "results.jsonl").records.values()))
    print((OUT / "README.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
