"""The main figure's runs carried on to 1,000 steps, with bands over seeds."""

from __future__ import annotations

import statistics

from acefl.reproduce import cifar10_main as main
from acefl.reproduce.plan import QUICK, Claim, Planned, Recipe, Request, contestants, entry
from acefl.reproduce.records import Results

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


def _steadiness(results: Results) -> str | None:
    """The mean over settings of the standard deviation over seeds at the end."""
    deviation: dict[str, list[float]] = {}
    for method in main.METHODS:
        for labels in main.panels(results, "tick").values():
            values = results.values("accuracy", form="printed", method=method, **labels)
            if len(values) > 1:
                deviation.setdefault(method, []).append(statistics.stdev(values))
    if len(deviation) < len(main.METHODS):
        return None
    mean = {method: statistics.mean(values) for method, values in deviation.items()}
    single = min(mean["ASGD"], mean["DelayAdaptiveASGD"])
    several = max(mean["ACE"], mean["FedBuff"], mean["CA2FL"])
    told = ", ".join(f"{method} {value:.3f}" for method, value in sorted(mean.items(), key=lambda pair: -pair[1]))
    return f"{'agrees' if single > several else 'does not agree'}: standard deviation over seeds {told}"


RECIPE = Recipe(
    NAME,
    "CIFAR-10 carried on to 1,000 steps",
    "extended figure of the appendix (1,000 iterations, bands)",
    plan,
    main.report,
    data="cifar10",
    claims=(
        Claim("Single-client methods have the widest bands; ACE, FedBuff and CA2FL are steadier", _steadiness),
        *main.CLAIMS[:3],
    ),
    notes=(*main.READINGS, "The learning rate is that of the 500-step runs, which these carry on."),
    quick={**QUICK, "steps": 30},
)
