"""The main figure's runs carried on to 1,000 steps, with bands over seeds."""

from __future__ import annotations

from acefl.paper import cifar10_main as main
from acefl.paper.plan import QUICK, Planned, Recipe, Request, contestants, entry

NAME = "cifar10-extended"
STEPS = 1000


def plan(request: Request) -> list[Planned]:
    clients, steps = request.size(main.CLIENTS, STEPS)
    return [
        entry(
            request,
            NAME,
            {"clock": clock, "alpha": alpha, "beta": beta},
            contestant,
            task=main.image_task(request, alpha),
            scenario={"clock": clock, "delay": beta, "spread": 1.0},
            clients=clients,
            steps=steps,
            rate_steps=main.STEPS,  # the same experiments carried on, so the same learning rate
            tune_changes={"task.alpha": main.ALPHAS[0]},
        )
        for clock, alpha, beta in main.settings(request, {"tick": main.BETAS})
        for contestant in contestants(request, main.TAU)
    ]


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
