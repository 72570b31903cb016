"""CIFAR-10, four settings of heterogeneity and delay, six methods, 500 server steps: the paper's main figure."""

from __future__ import annotations

from collections.abc import Iterator

from acefl.reproduce.page import Page, curves
from acefl.reproduce.plan import Claim, Planned, Recipe, Request, contestants, entry
from acefl.reproduce.records import Results

NAME = "cifar10-main"
CLIENTS, STEPS, BATCH, TAU = 100, 500, 50, 50
ALPHAS, BETAS = (0.1, 0.3), (5.0, 30.0)
CLOCKS = {"tick": BETAS, "event": BETAS[:1], "sampled": BETAS}  # under event, beta only sets the unit of time
METHODS = ("ACE", "ACED", "CA2FL", "FedBuff", "DelayAdaptiveASGD", "ASGD")
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


def plan(request: Request) -> list[Planned]:
    clients, steps = request.size(CLIENTS, STEPS)
    clocks = {"tick": BETAS, "event": BETAS[:1]} if request.quick or request.form == "tuned" else CLOCKS
    return [
        entry(
            request,
            NAME,
            {"clock": clock, "alpha": alpha, "beta": beta},
            contestant,
            task=image_task(request, alpha),
            scenario={"clock": clock, "delay": beta, "spread": 1.0},
            clients=clients,
            steps=steps,
            tune_changes={"task.alpha": ALPHAS[0]},
        )
        for clock, alpha, beta in settings(request, clocks)
        for contestant in contestants(request, TAU)
    ]


def panels(results: Results, clock: str) -> dict[str, dict[str, object]]:
    own = results.where(clock=clock)
    return {
        f"α = {alpha:g}, β = {beta:g}": {"clock": clock, "alpha": alpha, "beta": beta}
        for beta in sorted(own.having("beta"))
        for alpha in sorted(own.having("alpha"))
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
            page.text("Uploads, and mean staleness in steps, of the first seed:")
            page.table(["method", *columns], _costs(of_form, columns))
            curves(page, f"{form}-{clock}", f"Accuracy, {form}, clock {clock}", of_form, columns)


def _costs(results: Results, columns: dict[str, dict[str, object]]) -> list[list[str]]:
    rows = []
    for method in results.having("method"):
        cells = []
        for labels in columns.values():
            own = results.where(method=method, **labels).records
            cells.append(f"{own[0]['arrivals']:,} ({own[0]['staleness']:.1f})" if own else "")
        rows.append([method, *cells])
    return rows


def printed(results: Results) -> Results:
    """What the paper's sentences are held against: the same seeds of everything."""
    return results.where(form="printed", clock="tick").balanced()


def _accuracy(results: Results, method: str, alpha: float, beta: float) -> float | None:
    return results.mean("accuracy", method=method, alpha=alpha, beta=beta)


def _ranking(results: Results) -> str | None:
    said, own = [], printed(results)
    for beta in BETAS:
        found = {method: _accuracy(own, method, 0.1, beta) for method in METHODS}
        known = {method: value for method, value in found.items() if value is not None}
        if len(known) < len(METHODS):
            continue
        order = sorted(known, key=lambda method: -known[method])
        ahead = len({"ACE", "CA2FL"} & set(order[:2]))
        word = {2: "agrees", 1: "agrees in part", 0: "does not agree"}[ahead]
        said.append(f"β = {beta:g}: {word} ({_ordered(known)})")
    return "; ".join(said) or None


def _ordered(values: dict[str, float]) -> str:
    return " > ".join(f"{method} {values[method]:.3f}" for method in sorted(values, key=lambda method: -values[method]))


Setting = tuple[float, float]  # alpha, beta


def compare_settings(results: Results, *pairs: tuple[Setting, Setting]) -> str | None:
    """How many of the methods do better in the first setting of a pair, where the paper says they do."""
    own, so, known = printed(results), [], 0
    for better, worse in pairs:
        for method in METHODS:
            good, bad = _accuracy(own, method, *better), _accuracy(own, method, *worse)
            if good is None or bad is None:
                continue
            known += 1
            if good > bad:
                so.append(f"{method} at α = {worse[0]:g}, β = {worse[1]:g}")
    if not known:
        return None
    word = "agrees" if len(so) == known else ("agrees in part" if so else "does not agree")
    return f"{word}: {len(so)} of {known}" + (f" ({'; '.join(so)})" if 0 < len(so) < known else "")


def _amplified(results: Results) -> str | None:
    drops, own = [], printed(results)
    for method in PARTIAL:
        values = [_accuracy(own, method, alpha, beta) for alpha in ALPHAS for beta in BETAS]
        if any(value is None for value in values):
            return None
        a, c, b, d = (value or 0.0 for value in values)  # the paper's panels: (a), (c) at 0.1, (b), (d) at 0.3
        drops.append((method, a - c, b - d))
    so = [method for method, uneven, even in drops if uneven > even]
    told = "; ".join(f"{method} {uneven:+.3f} against {even:+.3f}" for method, uneven, even in drops)
    word = "agrees" if len(so) == len(drops) else ("agrees in part" if so else "does not agree")
    return f"{word}: drop from β = 5 to 30 at α = 0.1 against α = 0.3: {told}"


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
