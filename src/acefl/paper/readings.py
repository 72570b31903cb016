"""Which reading of the paper comes closest to its figures: what its text leaves open, one change at a time."""

from __future__ import annotations

from acefl.paper import cifar10_main as main
from acefl.paper.page import Page
from acefl.paper.plan import PRINTED_C, Planned, Recipe, Request, contestants, entry
from acefl.paper.records import Results

NAME = "readings"
ALPHA = 0.1
METHODS = ("ACE", "CA2FL", "FedBuff", "ASGD")
AUTHORS = "sgd(epochs=2, lr=0.01, momentum=0.9, send='mean')"  # the public configuration of the paper's authors

# name -> (change of the settings, factor on the printed learning rate)
CHANGES: dict[str, tuple[dict[str, object], float]] = {
    "as printed": ({}, 1.0),
    "lr / 10": ({}, 0.1),
    "lr / 100": ({}, 0.01),
    "lr warm-up over a fifth": ({"schedule": "WarmUp(share=0.2)"}, 1.0),
    "two local epochs, mean gradient": ({"task.local": AUTHORS}, 1.0),
    "two local epochs, mean gradient, lr / 10": ({"task.local": AUTHORS}, 0.1),
    "batch 200": ({"task.batch": 200}, 1.0),
    "BatchNorm by carried statistics": ({"task.norm": "carried"}, 1.0),
    "GroupNorm": ({"task.norm": "group"}, 1.0),
    "augmentation": ({"task.augment": True}, 1.0),
}
PRETRAINED = "pre-trained start"
COSTLY = (
    "batch 200",
    "GroupNorm",
    "augmentation",
    *[name for name in CHANGES if "epochs" in name],
)  # only where nothing trains


def plan(request: Request) -> list[Planned]:
    clients, steps = request.size(main.CLIENTS, main.STEPS)
    field = {contestant.label: contestant for contestant in contestants(request, main.TAU)}
    changes = dict(list(CHANGES.items())[:4]) if request.quick else dict(CHANGES)
    if request.start is not None:
        started: dict[str, object] = {"task.start": request.start}
        changes |= {PRETRAINED: (started, 1.0), f"{PRETRAINED}, lr / 10": (started, 0.1)}
    planned = []
    for beta in main.BETAS[::-1]:
        for change, (settings, factor) in changes.items():
            if beta == main.BETAS[0] and change in COSTLY:
                continue
            for method in _tried(change, settings):
                made = entry(
                    request,
                    NAME,
                    {"change": change, "alpha": ALPHA, "beta": beta},
                    field[method],
                    task={**main.image_task(request, ALPHA), **settings},
                    scenario={"clock": "tick", "delay": beta, "spread": 1.0},
                    clients=clients,
                    steps=steps,
                )
                made.settings["lr"] *= factor
                planned.append(made)
    return planned


def _tried(change: str, settings: dict[str, object]) -> tuple[str, ...]:
    """CA2FL only as printed and from the start that comes closest; of costly local epochs, the two ends."""
    if "task.local" in settings:
        return ("ACE", "ASGD")
    return METHODS if change == "as printed" or "task.start" in settings else ("ACE", "FedBuff", "ASGD")


def report(results: Results, page: Page) -> None:
    for beta in results.having("beta"):
        own = results.where(beta=beta)
        page.text(f"## Final test accuracy, clock `tick`, α = {ALPHA:g}, β = {beta:g}")
        page.grid(own, {method: {"method": method} for method in METHODS}, rows="change")
        repeated = [change for change in own.having("change") if own.where(change=change).seeds > 1]
        page.against(own, "ACE", {change: {"change": change} for change in repeated})


RECIPE = Recipe(
    NAME,
    "Which reading comes closest",
    "figures on CIFAR-10, whose text leaves these settings open",
    plan,
    report,
    data="cifar10",
    forms=("printed",),
    seeds=(0,),
    notes=(
        f"One change at a time from the printed settings (c = {PRINTED_C:g}, batch 50, one gradient, BatchNorm by "
        "batch statistics).",
    ),
)
