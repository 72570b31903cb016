"""CIFAR-10, four settings of heterogeneity and delay, six methods, 500 server steps: the paper's main figure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from acefl.paper.differences import Difference, leading, paired, verdict
from acefl.paper.page import Page, curves
from acefl.paper.plan import Claim, Contestant, Planned, Recipe, Request, contestants, entry
from acefl.paper.records import Results
from acefl.report.statistics import same_seed

NAME = "cifar10-main"
CLIENTS, STEPS, BATCH, TAU = 100, 500, 50, 50
ALPHAS, BETAS = (0.1, 0.3), (5.0, 30.0)
CLOCKS = {"tick": BETAS, "event": BETAS[:1], "sampled": BETAS}  # under event, beta only sets the unit of time
METHODS = ("ACE", "ACED", "CA2FL", "FedBuff", "DelayAdaptiveASGD", "ASGD")
EVERYBODY = ("ACE", "CA2FL")  # those that remember every client, which the paper has ahead of the others
PARTIAL = ("FedBuff", "DelayAdaptiveASGD", "ASGD")  # the paper's methods with partial participation

READINGS = (
    "The paper's figures are pictures without printed values, so its sentences are what results are held against.",
    "Three readings of the delay (see the design, section 4): `tick`, at most one step per unit of time, on whatever "
    "arrived in it (a full buffer, for FedBuff and CA2FL); `event`, one step per arrival, where beta cannot matter; "
    "`sampled`, one client per step with a staleness drawn from the delay law.",
    "As printed: lr 0.2 sqrt(n/T), which FedBuff and CA2FL multiply by their local 0.05; concurrency 20 for these two "
    "and 1 for vanilla ASGD. Delay-adaptive ASGD is not in the paper's table and keeps all clients busy. ACED: tau 50. "
    "The local momentum of 0.9 starts afresh at every visit and adds nothing to a single step.",
    "Tuned: a method's rate is chosen at α = 0.1 for every α, and all clients are busy for every method.",
    "ResNet-18's BatchNorm normalises by batch statistics, in training and evaluation; the small network has "
    "GroupNorm. Of each client's own images 20 are judged.",
    "On a GPU ResNet-18 computes gradients in bf16, for a model and a step in fp32; the small network is all fp32.",
)


def settings(request: Request, clocks: dict[str, tuple[float, ...]]) -> Iterator[tuple[str, float, float]]:
    alphas = ALPHAS[:1] if request.quick else ALPHAS
    for clock, betas in clocks.items():
        for alpha in alphas:
            for beta in betas:
                yield clock, alpha, beta


def image_task(request: Request, alpha: float, name: str = "cifar10") -> dict[str, object]:
    model = "cnn" if request.quick else "resnet18"
    norm = "batch" if (request.model or model) == "resnet18" else "group"
    return request.task(name, model, BATCH, alpha=alpha, norm=norm)


def image_runs(
    request: Request,
    recipe: str,
    places: Iterable[tuple[str, float, float]],
    field: Sequence[Contestant],
    *,
    name: str = "cifar10",
    steps: int = STEPS,
    rate_steps: int | None = None,
) -> list[Planned]:
    """Every contestant at every place (clock, alpha, beta); a tuned rate is chosen at the smallest alpha."""
    clients, steps = request.size(CLIENTS, steps)
    return [
        entry(
            request,
            recipe,
            {"clock": clock, "alpha": alpha, "beta": beta},
            contestant,
            task=image_task(request, alpha, name),
            scenario={"clock": clock, "delay": beta, "spread": 1.0},
            clients=clients,
            steps=steps,
            rate_steps=rate_steps,
            tune_changes={"task.alpha": ALPHAS[0]},
        )
        for clock, alpha, beta in places
        for contestant in field
    ]


def plan(request: Request) -> list[Planned]:
    clocks = {"tick": BETAS, "event": BETAS[:1]} if request.quick or request.form == "tuned" else CLOCKS
    return image_runs(request, NAME, settings(request, clocks), contestants(request, TAU))


def panels(results: Results, clock: str) -> dict[str, dict[str, object]]:
    own = results.where(clock=clock)
    return {
        f"α = {alpha:g}, β = {beta:g}": {"clock": clock, "alpha": alpha, "beta": beta}
        for beta in own.having("beta")
        for alpha in own.having("alpha")
    }


def report(results: Results, page: Page) -> None:
    for form in ("printed", "tuned"):
        of_form = results.where(form=form)
        if not of_form.records:
            continue
        words = {
            "printed": "As printed",
            "tuned": "Tuned fairly: lr by the same search of the paper's grid, equal uploads",
        }
        page.text(f"## {words[form]}")
        for clock in of_form.having("clock"):
            columns = panels(of_form, clock)
            page.text(f"### Clock `{clock}`: final test accuracy")
            page.grid(of_form, columns)
            page.against(of_form, "ACE", columns)
            if form == "printed" and clock == "tick":
                page.text(_EQUAL_TIME)
                parts = [of_form.where(**labels).at_equal_time() for labels in columns.values()]
                equal = Results(record for part in parts for record in part.records)
                page.grid(equal, columns)
                page.against(equal, "ACE", columns)
            page.rates(of_form, columns)
            page.text("Uploads, and mean staleness in steps, of the first seed:")
            page.table(["method", *columns], _costs(of_form, columns))
            curves(page, f"{form}-{clock}", f"Accuracy, {form}, clock {clock}", of_form, columns)


_EQUAL_TIME = (
    "The same at equal virtual time: when the first method has made its steps (delay-adaptive ASGD: one per unit of "
    "time, if anything arrives), read from the curves between evaluations."
)


def _costs(results: Results, columns: dict[str, dict[str, object]]) -> list[list[str]]:
    rows = []
    for method in results.having("method"):
        cells = []
        for labels in columns.values():
            own = results.where(method=method, **labels).records
            cells.append(f"{own[0]['arrivals']:,} ({own[0]['staleness']:.1f})" if own else "")
        rows.append([method, *cells])
    return rows


def judged(results: Results) -> Results:
    """What the paper's sentences are held against: runs as printed where there are any, the same seeds of each."""
    form = "printed" if "printed" in results.having("form") else "tuned"
    return results.where(form=form, clock="tick").balanced()


def _ranking(results: Results) -> str | None:
    own = judged(results)
    found = {beta: leading(own.where(alpha=0.1, beta=beta), EVERYBODY, PARTIAL) for beta in BETAS}
    return ". ".join(f"β = {beta:g} {said}" for beta, said in found.items() if said) or None


Setting = tuple[float, float]  # alpha, beta


def compare_settings(results: Results, *pairs: tuple[Setting, Setting]) -> str | None:
    """How many of the methods do better in the first setting of a pair, where the paper says they do.

    Vanilla ASGD, one client at a time as printed, makes the same run at every β: it is counted once, or not at all.
    """
    own = judged(results)
    found: dict[tuple[str, Difference], str] = {}
    for better, worse in pairs:
        for method in METHODS:
            more, less = ({"method": method, "alpha": alpha, "beta": beta} for alpha, beta in (better, worse))
            gap = paired(own, more, less)
            if gap is not None and not gap.nil:
                found.setdefault((method, gap), f"{method} at α = {worse[0]:g}, β = {worse[1]:g}")
    return verdict({name: gap for (_, gap), name in found.items()})


def _amplified(results: Results) -> str | None:
    """The drop by delay at α = 0.1 less that at α = 0.3, seed by seed."""
    own, gaps = judged(results), {}
    for method in PARTIAL:
        settings = [own.by_seed("accuracy", method=method, alpha=a, beta=b) for a in ALPHAS for b in BETAS]
        values = same_seed(*settings)
        if not values:
            return None
        gap = Difference.of([(a - c) - (b - d) for a, c, b, d in values])
        if not gap.nil:
            gaps[f"{method} {gap}"] = gap
    return verdict(gaps)


def _steadiness(results: Results) -> str | None:
    """How far a seed ends from the mean of all, on average over settings: that of two methods, seed by seed."""
    own = judged(results)
    seeds = same_seed(*(_distances(own.where(method=method)) for method in METHODS))
    if not seeds:
        return None
    distance = dict(zip(METHODS, zip(*seeds, strict=True), strict=True))
    gaps = {
        f"{wide} minus {steady}": Difference.of([a - b for a, b in zip(distance[wide], distance[steady], strict=True)])
        for wide in ("DelayAdaptiveASGD", "ASGD")
        for steady in ("ACE", "FedBuff", "CA2FL")
    }
    means = {method: statistics.fmean(values) for method, values in distance.items()}
    told = ", ".join(f"{method} {value:.3f}" for method, value in sorted(means.items(), key=lambda pair: -pair[1]))
    return f"{verdict(gaps)}. Mean distance of a seed from the mean of all: {told}"


def _distances(results: Results) -> dict[int, float]:
    """By seed; nothing where there is but one."""
    found: dict[int, list[float]] = {}
    for labels in panels(results, "tick").values():
        values = results.by_seed("accuracy", **labels)
        for seed, value in values.items() if len(values) > 1 else ():
            found.setdefault(seed, []).append(abs(value - statistics.fmean(values.values())))
    return {seed: statistics.fmean(own) for seed, own in found.items()}


CLAIMS = (
    Claim(
        "Increasing data heterogeneity (lower α) typically degrades performance",
        lambda r: compare_settings(r, *(((0.3, beta), (0.1, beta)) for beta in BETAS)),
    ),
    Claim("ACE and CA2FL consistently achieve higher final accuracy, especially at α = 0.1", _ranking),
    Claim(
        "Increased delay generally leads to a decline in accuracy for all methods",
        lambda r: compare_settings(r, *(((alpha, 5.0), (alpha, 30.0)) for alpha in ALPHAS)),
    ),
    Claim("For partial participation the drop by delay is larger where heterogeneity is high", _amplified),
    Claim("Single-client methods have the widest bands; ACE, FedBuff and CA2FL are steadier", _steadiness),
)

RECIPE = Recipe(
    NAME,
    "CIFAR-10: heterogeneity and delay",
    "main figure of results (α × β on CIFAR-10)",
    plan,
    report,
    data="cifar10",
    claims=CLAIMS,
    notes=READINGS,
)
