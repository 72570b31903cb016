"""Uploads per server step, counted: the column of the paper's table of rates that can be measured."""

from __future__ import annotations

from acefl.paper.page import Page
from acefl.paper.plan import Planned, Recipe, Request, contestants
from acefl.paper.records import Results

NAME = "rates-table"
CLIENTS, STEPS, BUFFER = 100, 500, 10
LR = 0.05  # counting does not depend on it
PRINTED = {"ASGD": "1", "DelayAdaptiveASGD": "1", "FedBuff": "M", "CA2FL": "M", "ACE": "1", "ACED": "1"}


def plan(request: Request) -> list[Planned]:
    clients, steps = request.size(CLIENTS, STEPS)
    return [
        Planned(
            NAME,
            {"form": "printed", "clock": clock, "method": contestant.label},
            {
                "method": contestant.method,
                "lr": LR,
                "evaluations": 1,
                "task.name": "digits",
                "task.clients": clients,
                "task.alpha": 0.1,
                "task.model": "softmax",
                "scenario.clock": clock,
                "scenario.delay": 5.0,
                "scenario.spread": 1.0,
                "stop.steps": steps,
            },
            request.seeds,
        )
        for clock in ("event", "tick", "sampled")
        for contestant in contestants(request, 50)
    ]


def report(results: Results, page: Page) -> None:
    page.text("## Uploads per server step")
    clocks = results.having("clock")
    rows = []
    for method, printed in PRINTED.items():
        cells = []
        for clock in clocks:
            own = results.where(method=method, clock=clock).records
            if not own:
                cells.append("not run")
                continue
            first = own[0]["settings"]["task.clients"] - 1 if method in ("ACE", "ACED") else 0
            later = sum((r["arrivals"] - first) / r["steps"] for r in own) / len(own)
            whole = sum(r["arrivals"] / r["steps"] for r in own) / len(own)
            cells.append(f"{later:.2f}" + (f" ({whole:.2f} with the first round)" if first else ""))
        measured = cells[clocks.index("event")] if "event" in clocks else ""
        expected = float(BUFFER if printed == "M" else 1)
        agrees = measured and measured != "not run" and abs(float(measured.split()[0]) - expected) < 0.05
        rows.append([method, f"{printed} ({expected:g})", *cells, "agrees" if agrees else "does not agree"])
    page.table(["method", "paper", *[f"clock {clock}" for clock in clocks], "under `event`"], rows)
    page.text(
        "Under `tick` the server steps once on whatever arrived in a unit of time: a step of ACE then costs as many "
        "uploads as clients finish in it, and 500 steps are no measure of communication. Algorithm 1 begins with one "
        "gradient of every client; these uploads count too."
    )


RECIPE = Recipe(
    NAME,
    "Uploads per server step",
    "table of convergence rates (column: client-server communications per server iteration)",
    plan,
    report,
    forms=("printed",),
    notes=("Counted on digits, softmax regression, all clients busy; M = 10.",),
    quick={"quick": True, "seeds": (0,), "clients": 10, "steps": 50},
)
