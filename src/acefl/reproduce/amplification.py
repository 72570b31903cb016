"""Beyond the paper: speed correlated with data, the case it argues from and never isolates."""

from __future__ import annotations

from dataclasses import replace

from acefl.reproduce import cifar10_main as main
from acefl.reproduce import news20_table as news
from acefl.reproduce.page import Page, lines
from acefl.reproduce.plan import QUICK, Contestant, Planned, Recipe, Request, contestants, entry
from acefl.reproduce.records import Results

NAME = "amplification"
SPREADS = (30.0, 1.0, 10.0)  # slowest over fastest; most wanted first
ALPHA, TAU = 0.1, 300
ARRIVALS = {"cifar10": 5000, "news20": 2000}
NEWS_CLIENTS, NEWS_BATCH = 20, 32
METHODS = ("ACE", "ACED", "CA2FL", "FedBuff", "DelayAdaptiveASGD", "ASGD")
PROBES = 4  # measurements of the error terms in a run of its own
TERMS = {"noise": "noise A", "bias": "bias B", "delay": "delay C"}


def plan(request: Request) -> list[Planned]:
    """On CIFAR-10, or on 20 Newsgroups where the model is a text model."""
    spreads, probed = (SPREADS[:2], SPREADS[:1]) if request.quick else (SPREADS, SPREADS[:2])
    field = contestants(request, 3 * NEWS_CLIENTS if _is_text(request) else TAU)
    probe = _uploads(request) // PROBES
    runs = [setting(request, NAME, contestant, spread) for spread in spreads for contestant in field]
    if _local(request) is not None:
        return runs  # error terms are those of gradients
    return runs + [setting(request, NAME, one, spread, probe) for spread in probed for one in field]


def _is_text(request: Request) -> bool:
    return request.model is not None and request.model not in ("cnn", "resnet18")


def _local(request: Request) -> str | None:
    """What a client does in place of one gradient."""
    return news.UPDATES[news.update_of(request.model)] if _is_text(request) else None


def _uploads(request: Request) -> int:
    if request.quick:
        return 10 * request.size(0, main.STEPS)[1]
    return ARRIVALS["news20" if _is_text(request) else "cifar10"]


def setting(
    request: Request,
    recipe: str,
    contestant: Contestant,
    spread: float,
    probe: int | None = None,
    arrivals: int | None = None,
) -> Planned:
    """A contestant where speed and data are one; with `probe`, one seed that measures the error terms."""
    text = _is_text(request)
    clients, steps = request.size(NEWS_CLIENTS if text else main.CLIENTS, main.STEPS)
    if text:
        task = request.task("news20", "", NEWS_BATCH, alpha=ALPHA, local=_local(request))
    else:
        task = request.task("cifar10", "cnn", main.BATCH, alpha=ALPHA, norm="group")
    return entry(
        request if probe is None else replace(request, seeds=request.seeds[:1], evaluations=PROBES),
        recipe,
        {"data": "news20" if text else "cifar10", "spread": spread, "probed": probe is not None},
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
        columns = {f"spread {spread:g}": {"spread": spread} for spread in sorted(own.having("spread"))}
        for metric, words in (
            ("slow_accuracy", "Accuracy of the slowest fifth of clients on their own data"),
            ("accuracy", "Test accuracy"),
            ("client_loss", "Mean over clients of their own loss"),
        ):
            page.text(f"## {data}: {words}")
            page.grid(own, columns, metric=metric)
        lines(page, f"{data}-slow", "Accuracy of the slowest fifth", own, "spread", metric="slow_accuracy", by="method")
        page.text(f"## {data}: where ACE and ACED stand", _standing(own))
        if probed.records:
            page.text(f"## {data}: why, by the measured error terms of a step", _EXPLAINED)
            page.table(["method", *_term_columns(probed)], _terms(probed))


_EXPLAINED = (
    "Squared norms of noise A, participation bias B and delay C at the last measured steps, over the squared norm of "
    "the true gradient there: what is far above 1 hides the direction of descent. One seed."
)


def _term_columns(results: Results) -> list[str]:
    return [f"{words}, spread {spread:g}" for spread in sorted(results.having("spread")) for words in TERMS.values()]


def _terms(results: Results) -> list[list[str]]:
    rows = []
    for method in results.having("method"):
        cells = []
        for spread in sorted(results.having("spread")):
            last = [record["final"] for record in results.where(method=method, spread=spread).records]
            scale = (last[0].get("squared_gradient") or None) if last else None
            for term in TERMS:
                value = last[0].get(term) if last else None
                cells.append("" if value is None or scale is None else f"{value / scale:.3g}")
        rows.append([method, *cells])
    return rows


def _standing(results: Results) -> str:
    said = []
    for spread in sorted(results.having("spread")):
        found = {m: results.mean("slow_accuracy", method=m, spread=spread) for m in METHODS}
        known = {method: value for method, value in found.items() if value is not None}
        if len(known) < 2:
            continue
        order = sorted(known, key=lambda method: -known[method])
        places = ", ".join(f"{order.index(m) + 1} ({m})" for m in ("ACE", "ACED") if m in known)
        told = " > ".join(f"{method} {known[method]:.3f}" for method in order)
        said.append(f"Spread {spread:g}: " + (f"places {places}, of {told}." if places else f"not run, of {told}."))
    return " ".join(said)


RECIPE = Recipe(
    NAME,
    "Heterogeneity amplification, isolated",
    "argument on participation imbalance, which it never isolates",
    plan,
    report,
    data="cifar10",
    forms=("tuned",),
    seeds=(0, 1, 2),
    notes=(
        "Clients are ordered by their most common label and the last are the slowest, by a factor of `spread` over the "
        "first: speed and data are one. Event clock, all clients busy, equal uploads, α = 0.1.",
        "Every method's lr is tuned at every spread by the mean over clients of their own loss, on a seed that is not "
        "reported.",
        "ACED: tau of three times as many steps as there are clients.",
    ),
    quick={**QUICK, "form": "tuned", "steps": 10},
)
