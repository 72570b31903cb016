"""ACE and ACED with 8-bit tables on CIFAR-10."""

from __future__ import annotations

from itertools import product
from statistics import fmean

from acefl.paper import cifar10_main as main
from acefl.paper.differences import Difference, paired
from acefl.paper.page import Page, curves
from acefl.paper.plan import Claim, Contestant, Planned, Recipe, Request
from acefl.paper.records import Record, Results

NAME = "quantization"
BETA = 5.0
TOLERANCE = 0.02  # of accuracy: what we call comparable
PAIRS = {"ACE": "ACE-8bit", "ACED": "ACED-8bit"}


def plan(request: Request) -> list[Planned]:
    home = f"home={request.home!r}"
    field = [
        Contestant("ACE", f"ACE({home})"),
        Contestant("ACED", f"ACED(tau={main.TAU}, {home})"),
        Contestant("ACE-8bit", f"ACE(table='int8', {home})"),
        Contestant("ACED-8bit", f"ACED(tau={main.TAU}, table='int8', {home})"),
    ]
    return main.image_runs(request, NAME, main.settings(request, {"tick": (BETA,)}), field)


def report(results: Results, page: Page) -> None:
    for form in results.having("form"):
        own = results.where(form=form)
        columns = main.panels(own, "tick")
        page.text(f"## Final test accuracy, {form}")
        page.grid(own, columns)
        page.rates(own, columns)
        curves(page, f"{form}-curves", f"Accuracy with fp32 and 8-bit tables, {form}", own, columns)
        page.text(
            "8-bit minus fp32 by another measure, the mean of all evaluations in the second half of a run. It was "
            "added after results were seen, because curves rise and fall between evaluations; the verdict below goes "
            "by the final accuracy, as it did before:"
        )
        gaps = _gaps(_second_half(own))
        page.table(("method", "difference"), [(name, str(gap)) for name, gap in gaps.items()])


def _second_half(results: Results) -> Results:
    """The same runs with the mean accuracy of their evaluations after half of the steps in place of the final one."""

    def of(record: Record) -> Record:
        late = [row["accuracy"] for row in record["history"] if 2 * row["step"] >= record["steps"]]
        return {**record, "final": {"accuracy": None if None in late else fmean(late)}}

    return Results([of(record) for record in results.records])


def _gaps(results: Results) -> dict[str, Difference]:
    """8-bit minus fp32, of runs of the same seed."""
    gaps: dict[str, Difference] = {}
    for (full, small), alpha in product(PAIRS.items(), main.ALPHAS):
        gap = paired(results.where(alpha=alpha), {"method": small}, {"method": full})
        if gap is not None:
            gaps[f"{full} at α = {alpha:g}"] = gap
    return gaps


def _comparable(results: Results) -> str | None:
    """By the differences of runs of the same seed. One seed tells nothing."""
    gaps = _gaps(results.where(form="printed"))
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
