"""ACE and ACED with 8-bit tables on CIFAR-10."""

from __future__ import annotations

from itertools import product

from acefl.paper import cifar10_main as main
from acefl.paper.differences import Difference, paired
from acefl.paper.page import Page, curves
from acefl.paper.plan import Claim, Contestant, Planned, Recipe, Request, entry
from acefl.paper.records import Results

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
        page.rates(own, columns)
        curves(page, f"{form}-curves", f"Accuracy with fp32 and 8-bit tables, {form}", own, columns)


def _comparable(results: Results) -> str | None:
    """By the differences of runs of the same seed. One seed tells nothing."""
    gaps: dict[str, Difference] = {}
    for (full, small), alpha in product(PAIRS.items(), main.ALPHAS):
        own = results.where(form="printed", alpha=alpha)
        gap = paired(own, {"method": small}, {"method": full})
        if gap is not None:
            gaps[f"{full} at α = {alpha:g}"] = gap
    if not gaps:
        return None
    if all(abs(gap.mean) + gap.half <= TOLERANCE for gap in gaps.values()):
        word = "agrees"
    elif any(abs(gap.mean) - gap.half > TOLERANCE for gap in gaps.values()):
        word = "does not agree"
    else:
        word = "cannot be told"
    told = ", ".join(f"{name} {gap}" for name, gap in gaps.items())
    return f"{word} within {TOLERANCE:g}; 8-bit minus fp32: {told}"


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
