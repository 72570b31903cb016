"""CIFAR-100 over a grid of heterogeneity and delay: six heatmaps."""

from __future__ import annotations

from itertools import product

from acefl.paper import cifar10_main as main
from acefl.paper.differences import leading, paired
from acefl.paper.page import Page, heatmaps
from acefl.paper.plan import Claim, Planned, Recipe, Request, contestants
from acefl.paper.records import Results

NAME = "cifar100-heatmap"
ALPHAS, BETAS, TAU = (0.1, 0.3, 1.0, 10.0), (1.0, 5.0, 20.0, 30.0), 50
DISTINCT = 0.01  # of accuracy: less is not a difference we would name
CORNERS = ((0.1, 30.0), (10.0, 30.0), (0.3, 5.0), (10.0, 1.0), (0.1, 1.0))  # and the centre; most wanted first


def plan(request: Request) -> list[Planned]:
    rest = [pair for pair in product(ALPHAS, BETAS) if pair not in CORNERS]
    places = [("tick", *pair) for pair in (CORNERS[:2] if request.quick else (*CORNERS, *rest))]
    return main.image_runs(request, NAME, places, contestants(request, TAU), name="cifar100")


def report(results: Results, page: Page) -> None:
    for form in results.having("form"):
        own = results.where(form=form)
        pairs = sorted({(r["labels"]["alpha"], r["labels"]["beta"]) for r in own.records})
        page.text(f"## Final test accuracy, {form}")
        columns = {f"α = {a:g}, β = {b:g}": {"alpha": a, "beta": b} for a, b in pairs}
        page.grid(own, columns)
        page.rates(own, columns)
        heatmaps(page, f"{form}-heatmaps", "Accuracy by α and β, one scale for all methods", own, "alpha", "beta")


def _hard_corner(results: Results) -> str | None:
    own = results.where(form="printed", alpha=0.1, beta=30.0)
    said = leading(own, ("ACE", "ACED"), ("CA2FL", *main.PARTIAL))
    return None if said is None else f"at α = 0.1, β = 30 {said}"


def _stragglers(results: Results) -> str | None:
    own = results.where(form="printed", alpha=0.1, beta=30.0)
    gap = paired(own, {"method": "ACED"}, {"method": "ACE"})
    if gap is None:
        return None
    told = gap.sign if abs(gap.mean) >= DISTINCT else 0
    word = {1: "agrees", 0: "cannot be told", -1: "does not agree"}[told]
    return f"{word} at α = 0.1: ACED minus ACE {gap}"


RECIPE = Recipe(
    NAME,
    "CIFAR-100 by heterogeneity and delay",
    "heatmaps of the appendix (α × β × six methods)",
    plan,
    report,
    data="cifar100",
    claims=(
        Claim("ACE and ACED stay ahead under high heterogeneity and high delay together", _hard_corner),
        Claim("At β = 30 ACED gains on ACE, as it leaves stragglers out", _stragglers),
    ),
    notes=(*main.READINGS[:1], *main.READINGS[2:], "Clock `tick`. The four corners and the centre are run first."),
)
