"""`acefl run --fleet ray`: the same run in real time, on Ray actors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from acefl.cli import options
from acefl.core.errors import InvalidInput

if TYPE_CHECKING:
    from acefl.runs.observers import Observer
    from acefl.runs.record import Run


def train(
    context: typer.Context,
    task: options.TaskOptions,
    stop: options.StopOptions,
    *,
    lr: float,
    method: str,
    seed: int,
    evaluations: int,
    out: Path | None,
    checkpoint_every: int | None,
    actors: int,
    together: int,
    gpus: float,
    address: str,
    quiet: bool,
    observers: Sequence[Observer],
    step: dict[str, Any],
) -> Run:
    """Train, and write the run and its report to `out`; a run that was interrupted there is gone on with."""
    from acefl import Every, report
    from acefl.cli import show
    from acefl.core.files import check_replaceable
    from acefl.runs.on_ray import run_on_ray

    refuse_scenario(context)
    if out is not None and checkpoint_every is None:
        check_replaceable(out)
    [rule] = options.parse_methods([method])
    settings, budget = task.build(), stop.build()
    with show.fraction_bar(f"{method} on {actors} actors", quiet=quiet) as progress:
        finished = run_on_ray(
            settings,
            rule,
            lr=lr,
            stop=budget,
            seed=seed,
            actors=actors,
            together=together,
            gpus=gpus,
            address=address,
            evaluations=evaluations,
            out=out,
            checkpoint=Every(arrivals=checkpoint_every) if checkpoint_every else None,
            progress=progress,
            observers=observers,
            **step,
        )
    if out is not None:
        report.build(out)
    return finished


def refuse_scenario(context: typer.Context) -> None:
    """Real time passes by itself: a setting of simulated time that would be ignored is a mistake."""
    names = [field.name for field in dataclasses.fields(options.ScenarioOptions)]
    for flag in options.written(context, names):
        raise InvalidInput(f"{flag} describes simulated time; allowed with --fleet ray: task, budget and output")


def refuse_ray_settings(context: typer.Context) -> None:
    """The other way round."""
    for flag in options.written(context, ["actors", "together", "gpus", "ray"]):
        raise InvalidInput(f"{flag} describes Ray's actors; allowed with --fleet ray only")
