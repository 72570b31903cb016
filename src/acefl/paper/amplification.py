"""Beyond the paper: speed correlated with data, the case it argues from and never isolates."""

from __future__ import annotations

import math
from dataclasses import replace

from acefl.paper import cifar10_main as main
from acefl.paper import news20_table as news
from acefl.paper.differences import leading, paired, standing, verdict
from acefl.paper.page import Page, lines
from acefl.paper.plan import QUICK, Claim, Contestant, Planned, Recipe, Request, contestants, entry
from acefl.paper.records import Results
from acefl.paper.records import spread as spread_of

NAME = "amplification"
SPREADS = (30.0, 1.0, 10.0)  # slowest over fastest; most wanted first
ALPHA, TAU = 0.1, 300
ARRIVALS = {"cifar10": 5000, "news20": 2000}
NEWS_CLIENTS, NEWS_BATCH = 20, 32
METHODS = ("ACE", "ACED", "CA2FL", "FedBuff", "DelayAdaptiveASGD", "ASGD")
PROBES = {"cifar10": 4, "news20": 10}  # measurements of the error terms in a run of its own; a text's cost little
PROBED_SEEDS = 3
_APART, _EQUAL = {"spread": SPREADS[0]}, {"spread": SPREADS[1]}
TERMS = {"noise": "noise A", "bias": "bias B", "delay": "delay C"}


def plan(request: Request) -> list[Planned]:
    """On CIFAR-10, or on 20 Newsgroups where the model is a text model."""
    spreads, probed = (SPREADS[:2], SPREADS[:1]) if request.quick else (SPREADS, SPREADS[:2])
    field = contestants(request, 3 * NEWS_CLIENTS if _data(request) == "news20" else TAU)
    probe = _uploads(request) // PROBES[_data(request)]
    runs = [setting(request, NAME, contestant, spread) for spread in spreads for contestant in field]
    if _local(request) is not None:
        return runs  # error terms are those of gradients
    return runs + [setting(request, NAME, one, spread, probe) for spread in probed for one in field]


def _data(request: Request) -> str:
    return "cifar10" if request.model in (None, "cnn", "resnet18") else "news20"


def _local(request: Request) -> str | None:
    """What a client does in place of one gradient."""
    return news.UPDATES[news.update_of(request.model)] if _data(request) == "news20" else None


def _uploads(request: Request) -> int:
    if request.quick:
        return 10 * request.size(0, main.STEPS)[1]
    return ARRIVALS[_data(request)]


def setting(
    request: Request,
    recipe: str,
    contestant: Contestant,
    spread: float,
    probe: int | None = None,
    arrivals: int | None = None,
) -> Planned:
    """A contestant where speed and data are one; with `probe`, runs that measure the error terms."""
    data = _data(request)
    text = data == "news20"
    clients, steps = request.size(NEWS_CLIENTS if text else main.CLIENTS, main.STEPS)
    if text:
        task = request.task("news20", "", NEWS_BATCH, alpha=ALPHA, local=_local(request))
    else:
        task = request.task("cifar10", "cnn", main.BATCH, alpha=ALPHA, norm="group")
    return entry(
        request if probe is None else replace(request, seeds=request.seeds[:PROBED_SEEDS], evaluations=PROBES[data]),
        recipe,
        {"data": data, "spread": spread, "probed": probe is not None},
        contestant,
        task=task,
        scenario={"clock": "event", "delay": 1.0, "spread": spread, "slow": "last"},
        clients=clients,
        steps=steps,
        score="client_loss",
        arrivals=arrivals or _uploads(request),
        probe=probe,
    )


def report(results: Results, page: Page) -> None:
    for data in results.having("data"):
        own, probed = results.where(data=data, probed=False), results.where(data=data, probed=True)
        columns = {f"spread {spread:g}": {"spread": spread} for spread in own.having("spread")}
        for metric, words in (
            ("slow_accuracy", "Accuracy of the slowest fifth of clients on their own data"),
            ("fast_accuracy", "Accuracy of the fastest fifth of clients on their own data"),
            ("accuracy", "Test accuracy"),
            ("client_loss", "Mean over clients of their own loss"),
        ):
            page.text(f"## {data}: {words}")
            page.grid(own, columns, metric=metric)
            page.against(own, "ACE", columns, metric=metric)
        page.rates(own, columns)
        lines(page, f"{data}-slow", "Accuracy of the slowest fifth", own, "spread", metric="slow_accuracy", by="method")
        page.text(f"## {data}: where ACE and ACED stand", *_standing(own))
        if probed.records:
            page.text(f"## {data}: why, by the measured error terms of a step", _EXPLAINED)
            page.table(["method", *_term_columns(probed)], _terms(probed))
            if any("influence_slow" in record["final"] for record in probed.records):
                page.text(_SHARES)
                measured = {name: labels for name, labels in columns.items() if probed.where(**labels).records}
                page.grid(probed, measured, metric="influence_slow")


_EXPLAINED = (
    "Mean squared norms of noise A, participation bias B and delay C over the measured steps of a run, as multiples of "
    "the mean squared true gradient there: what is far above 1 hides the direction of descent."
)


_SHARES = (
    "B of a single step does not tell a bias that averages out, as with equal speeds, from one that stays. The part "
    "that the updates of the slowest fifth of clients had in all steps does (0.2 would be their due):"
)


def _term_columns(results: Results) -> list[str]:
    return [f"{words}, spread {spread:g}" for spread in results.having("spread") for words in TERMS.values()]


def _terms(results: Results) -> list[list[str]]:
    rows = []
    for method in results.having("method"):
        cells = []
        for spread in results.having("spread"):
            own = results.where(method=method, spread=spread)
            cells += [_over_squared_gradient(own, term) for term in TERMS]
        rows.append([method, *cells])
    return rows


def _over_squared_gradient(results: Results, term: str) -> str:
    """The mean over a run's measured steps of a term, over that of the squared gradient; its spread over seeds."""
    shares = []
    for record in results.records:
        steps = [row for row in record["history"] if row.get(term) is not None]
        scale = math.fsum(row["squared_gradient"] for row in steps)
        if scale:
            shares.append(math.fsum(row[term] for row in steps) / scale)
    return spread_of(shares)


def _standing(results: Results) -> list[str]:
    """By slow-fifth accuracy and by the loss that everybody was tuned by, seed by seed."""
    said = []
    for spread in results.having("spread"):
        own = results.where(spread=spread)
        for method in ("ACE", "ACED"):
            others = [other for other in METHODS if other != method]
            slow = standing(own, method, others, metric="slow_accuracy")
            loss = standing(own, method, others, metric="client_loss", larger=False)
            if slow is not None and loss is not None:
                said.append(
                    f"- Spread {spread:g}, {method}: for the slowest fifth {slow}; by the clients' loss {loss}."
                )
    return said


def _forgotten(results: Results) -> str | None:
    """By the fall of the slowest fifth's accuracy from equal speeds to the most different, seed by seed."""
    said = []
    for data in results.having("data"):
        own = results.where(data=data, probed=False)
        found = {m: paired(own.where(method=m), _EQUAL, _APART, metric="slow_accuracy") for m in METHODS}
        falls = {method: fall for method, fall in found.items() if fall is not None}
        partial = verdict({method: falls[method] for method in main.PARTIAL if method in falls})
        if partial is not None:
            told = ", ".join(f"{method} {fall}" for method, fall in falls.items())
            said.append(f"{data} {partial}. Fall from spread {SPREADS[1]:g} to {SPREADS[0]:g}: {told}")
    return ". ".join(said) or None


def _spared(results: Results) -> str | None:
    own = results.where(probed=False, **_APART)
    found = {
        data: leading(own.where(data=data), main.EVERYBODY, main.PARTIAL, metric="slow_accuracy")
        for data in own.having("data")
    }
    return ". ".join(f"{data} {said}" for data, said in found.items() if said) or None


RECIPE = Recipe(
    NAME,
    "Heterogeneity amplification, isolated",
    "argument on participation imbalance, which it never isolates",
    plan,
    report,
    data="cifar10",
    forms=("tuned",),
    seeds=(0, 1, 2),
    claims=(
        Claim("With partial participation, clients that are slow are forgotten (slowest fifth)", _forgotten),
        Claim("ACE and CA2FL, which remember every client, serve the slowest better (spread 30)", _spared),
    ),
    notes=(
        "Clients are ordered by their most common label and the last are the slowest, by a factor of `spread` over the "
        "first: speed and data are one. Event clock, all clients busy, equal uploads, α = 0.1.",
        "Every method's lr is tuned at every spread by the mean over clients of their own loss, on a seed that is not "
        "reported.",
        "ACED: tau of three times as many steps as there are clients.",
        "A client's own accuracy and loss are those on the data that it trains on: all of it with words, 20 samples "
        "with another model.",
    ),
    quick={**QUICK, "form": "tuned", "steps": 10},
)
