"""ACE and ACED with 8-bit tables on CIFAR-10."""

from __future__ import annotations

import math
import statistics
from itertools import product

from acefl.reproduce import cifar10_main as main
from acefl.reproduce.page import Page, curves
from acefl.reproduce.plan import Claim, Contestant, Planned, Recipe, Request, entry
from acefl.reproduce.records import Results

NAME = "quantization"
BETA = 5.0
TOLERANCE = 0.02  # of accuracy: what we call comparable
PAIRS = {"ACE": "ACE-8bit", "ACED": "ACED-8bit"}


def plan(request: Request) -> list[Planned]:
    clients, steps = request.size(main.CLIENTS, main.STEPS)
    home = f"home={request.home!r}"
    field = [
        Contestant("ACE", f"ACE({home})"),
        Contestant("ACED", f"ACED(tau={main.TAU}, {home})"),
        Contestant("ACE-8bit", f"ACE(table='int8', {home})"),
        Contestant("ACED-8bit", f"ACED(tau={main.TAU}, table='int8', {home})"),
    ]
    return [
        entry(
            request,
            NAME,
            {"clock": clock, "alpha": alpha, "beta": beta},
            contestant,
            task=main.image_task(request, alpha),
            scenario={"clock": clock, "delay": beta, "spread": 1.0},
            clients=clients,
            steps=steps,
            tune_changes={"task.alpha": main.ALPHAS[0]},
        )
        for clock, alpha, beta in main.settings(request, {"tick": (BETA,)})
        for contestant in field
    ]


def report(results: Results, page: Page) -> None:
    for form in results.having("form"):
        own = results.where(form=form)
        columns = main.panels(own, "tick")
        page.text(f"## Final test accuracy, {form}")
        page.grid(own, columns)
        curves(page, f"{form}-curves", f"Accuracy with fp32 and 8-bit tables, {form}", own, columns)


def _comparable(results: Results) -> str | None:
    """By the differences of runs of the same seed: their mean, and twice its standard error. One seed tells nothing."""
    gaps: dict[str, tuple[float, float]] = {}
    for (full, small), alpha in product(PAIRS.items(), main.ALPHAS):
        a, b = (results.by_seed("accuracy", form="printed", method=name, alpha=alpha) for name in (full, small))
        gap = [b[seed] - a[seed] for seed in a if seed in b]
        if gap:
            error = 2 * statistics.stdev(gap) / math.sqrt(len(gap)) if len(gap) > 1 else math.inf
            gaps[f"{full} at α = {alpha:g}"] = statistics.mean(gap), error
    if not gaps:
        return None
    if all(abs(mean) + error <= TOLERANCE for mean, error in gaps.values()):
        word = f"agrees within {TOLERANCE:g}"
    elif any(abs(mean) - error > TOLERANCE for mean, error in gaps.values()):
        word = f"does not agree within {TOLERANCE:g}"
    else:
        word = f"cannot be told within {TOLERANCE:g}, by two standard errors"
    told = (f"{name} {mean:+.3f}" + ("" if math.isinf(e) else f" ± {e:.3f}") for name, (mean, e) in gaps.items())
    return f"{word}; 8-bit minus fp32: " + ", ".join(told)


RECIPE = Recipe(
    NAME,
    "8-bit tables",
    "figure on 8-bit server-side quantization (CIFAR-10, ResNet-18)",
    plan,
    report,
    data="cifar10",
    claims=(Claim("8-bit ACE and ACED achieve a final performance comparable to full precision", _comparable),),
    notes=(*main.READINGS[:1], "Clock `tick`, β = 5. Rows of the table are rounded stochastically, without bias."),
)
