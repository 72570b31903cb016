"""Clients that leave for good at half time, and how long ACED should remember the ones it has."""

from __future__ import annotations

from statistics import fmean

from acefl.paper import cifar10_main as main
from acefl.paper.differences import Difference, leading, paired, verdict
from acefl.paper.page import Page, lines
from acefl.paper.plan import Claim, Contestant, Planned, Recipe, Request, contestants, entry
from acefl.paper.records import Results
from acefl.report.statistics import same_seed

NAME = "dropout"
ALPHA, BETA, TAU = 0.3, 5.0, 10
FRACTIONS = (0.0, 0.7, 0.5, 0.3, 0.1)  # most wanted first
TAUS = (1, 5, 10, 20, 50, 100, 200, 500)
MODERATE = (10, 20, 50)
ABLATION_AT = 0.5
METHODS = ("ACED", "ACE", "CA2FL", "ASGD")


def plan(request: Request) -> list[Planned]:
    clients, steps = request.size(main.CLIENTS, main.STEPS)

    def of(contestant: Contestant, part: str, fraction: float, tau: int | None = None) -> Planned:
        labels = {"part": part, "dropout": fraction} | ({} if tau is None else {"tau": tau})
        return entry(
            request,
            NAME,
            labels,
            contestant,
            task=main.image_task(request, ALPHA),
            scenario={"clock": "tick", "delay": BETA, "spread": 1.0, "dropout": fraction},
            clients=clients,
            steps=steps,
            tune_changes={"scenario.dropout": 0.0},  # nobody knows beforehand who will leave
        )

    fractions = FRACTIONS[:2] if request.quick else FRACTIONS
    taus = TAUS[::3] if request.quick else TAUS
    field = {contestant.label: contestant for contestant in contestants(request, TAU)}
    planned = [of(field[method], "methods", fraction) for fraction in fractions for method in METHODS]
    for tau in taus:
        if tau == TAU and ABLATION_AT in fractions:
            continue  # that run is ACED's among the methods
        contestant = next(c for c in contestants(request, tau) if c.label == "ACED")
        planned.append(of(contestant, "tau", ABLATION_AT, tau))
    return planned


def _by_tau(results: Results) -> Results:
    """ACED's runs of the ablation, on the seeds that every tau has; the usual tau's were made among the methods."""
    usual = results.where(part="methods", method="ACED", dropout=ABLATION_AT).records
    relabelled = [{**record, "labels": {**record["labels"], "part": "tau", "tau": TAU}} for record in usual]
    return Results([*results.where(part="tau").records, *relabelled]).balanced()


def report(results: Results, page: Page) -> None:
    for form in results.having("form"):
        own = results.where(form=form)
        words = "as printed" if form == "printed" else "tuned without dropout, equal uploads"
        methods, taus = own.where(part="methods"), _by_tau(own)
        page.text(f"## Final test accuracy by the share of clients that leave at T/2, {words}")
        columns = {f"{100 * share:g} %": {"dropout": share} for share in methods.having("dropout")}
        page.grid(methods, columns)
        page.against(methods, "ACED", columns)
        page.rates(methods, columns)
        lines(page, f"{form}-dropout", "Accuracy by dropout", methods, "dropout", by="method")
        page.text(f"## ACED by tau, {100 * ABLATION_AT:g} % leaving, {words}")
        page.grid(taus, {"accuracy": {}}, rows="tau")
        lines(page, f"{form}-tau", "ACED's accuracy by tau", taus, "tau", by="method")


def _robust(results: Results) -> str | None:
    own = results.where(form="printed", part="methods")
    said = leading(own.where(dropout=max(FRACTIONS)), ("ACED",), [method for method in METHODS if method != "ACED"])
    lost = {
        method: paired(own.where(method=method), {"dropout": 0.0}, {"dropout": max(FRACTIONS)}) for method in METHODS
    }
    if said is None or None in lost.values():
        return None
    told = ", ".join(f"{method} {gap}" for method, gap in lost.items())
    return f"at {100 * max(FRACTIONS):g} % {said}. Lost since 0 %: {told}"


def _moderate(results: Results) -> str | None:
    """The mean over moderate taus less that over smaller and over larger ones, seed by seed."""
    own = _by_tau(results.where(form="printed"))
    seeds = [dict(zip(TAUS, row, strict=True)) for row in same_seed(*(own.by_seed("accuracy", tau=t) for t in TAUS))]
    if not seeds:
        return None

    def gap(*taus: int) -> Difference:
        return Difference.of([fmean(found[t] for t in MODERATE) - fmean(found[t] for t in taus) for found in seeds])

    gaps = {"tau 1": gap(1), "tau 100 to 500": gap(100, 200, 500)}
    told = "; ".join(f"minus {name} {difference}" for name, difference in gaps.items())
    return f"{verdict(gaps)}. The mean of tau 10 to 50 {told}"


RECIPE = Recipe(
    NAME,
    "Clients that drop out, and ACED's tau",
    "figure on dropout (T = 500, α = 0.3, β = 5; 0 to 70 % from T/2; τ_algo from 1 to 500)",
    plan,
    report,
    data="cifar10",
    claims=(
        Claim("ACED (tau 10) is more robust to dropout than ACE, CA2FL and vanilla ASGD", _robust),
        Claim("tau too small or too large (100 and more) hurts; 10 to 50 is stable", _moderate),
    ),
    notes=(
        *main.READINGS[:1],
        "Clock `tick`. Who leaves is drawn at random; what they were working on is lost. The rules are not told: ACE "
        "and CA2FL keep the last update of whoever left, as the paper's do.",
        f"The paper does not say at which dropout it varies tau; here {100 * ABLATION_AT:g} % leave.",
    ),
)
