"""The main figure's runs carried on to 1,000 steps, with bands over seeds."""

from __future__ import annotations

from acefl.paper import cifar10_main as main
from acefl.paper.plan import QUICK, Planned, Recipe, Request, contestants

NAME = "cifar10-extended"
STEPS = 1000


def plan(request: Request) -> list[Planned]:
    places, field = main.settings(request, {"tick": main.BETAS}), contestants(request, main.TAU)
    # the same experiments carried on, so the same learning rate
    return main.image_runs(request, NAME, places, field, steps=STEPS, rate_steps=main.STEPS)


RECIPE = Recipe(
    NAME,
    "CIFAR-10 carried on to 1,000 steps",
    "extended figure of the appendix (1,000 iterations, bands)",
    plan,
    main.report,
    data="cifar10",
    claims=(
        main.CLAIMS[-1],
        *main.CLAIMS[:3],
    ),
    notes=(*main.READINGS, "The learning rate is that of the 500-step runs, which these carry on."),
    quick={**QUICK, "steps": 30},
)
