"""The ideas on CIFAR-10, beside ACE, ACED and CA2FL: clients whose speed and data are one, spread 30, tuned fairly.

Made on the GPU by `experiments/ace/gpu.sh` (stage `ideas`); the setting is `acefl reproduce amplification`'s.
"""

from __future__ import annotations

from experiments.ideas.study import IDEAS, KNOWN, surely_ahead

from acefl.reproduce import amplification
from acefl.reproduce.page import Page
from acefl.reproduce.plan import Contestant, Planned, Recipe, Request, contestants
from acefl.reproduce.records import Results

NAME = "ideas-cifar10"
SPREAD = 30.0
METRICS = {
    "client_loss": "Mean over clients of their own loss (what is tuned for)",
    "slow_accuracy": "Accuracy of the slowest fifth of clients on their own data",
    "accuracy": "Test accuracy",
}


def plan(request: Request) -> list[Planned]:
    known = [one for one in contestants(request, amplification.TAU) if one.label in KNOWN]
    ours = [Contestant(name, f"experiments.ideas.ideas:{name}{_settings(name)}") for name in IDEAS]
    return [amplification.setting(request, NAME, contestant, SPREAD) for contestant in (*known, *ours)]


def _settings(name: str) -> str:
    return f"(tau={amplification.TAU})" if name == "FadingACED" else ""


def report(results: Results, page: Page) -> None:
    for metric, words in METRICS.items():
        page.text(f"## {words}")
        page.grid(results, {f"spread {SPREAD:g}": {}}, metric=metric)
    page.text("## Where an idea beats all three", *(wins(results) or ["Nowhere."]))


def wins(results: Results) -> list[str]:
    """Ideas whose paired 95 % interval is on the better side of ACE's, ACED's and CA2FL's."""
    said = []
    for metric, better in (("client_loss", -1.0), ("slow_accuracy", 1.0)):
        scores = {m: [-better * value for value in results.values(metric, method=m)] for m in (*KNOWN, *IDEAS)}
        if len({len(own) for own in scores.values()}) > 1:
            continue
        for idea in IDEAS:
            lead = min(surely_ahead(scores[idea], scores[known]) for known in KNOWN)
            if lead > 0:
                said.append(f"- {idea}, {metric.replace('_', ' ')}: by {lead:.3g} or more.")
    return said


RECIPE = Recipe(
    NAME,
    "Ideas of our own on CIFAR-10",
    "setting is none of its own: speed correlated with data, which it argues from",
    plan,
    report,
    data="cifar10",
    forms=("tuned",),
    seeds=(0, 1, 2, 3, 4),
    notes=amplification.RECIPE.notes,
)
