"""Training on Ray actors: wall-clock time, one organisation's machines."""

from __future__ import annotations

import os
from collections.abc import Sequence

from acefl.core.errors import InvalidInput, require
from acefl.core.gate import NormLimit
from acefl.core.optimizers import Optimizer
from acefl.core.rule import Method, Upload
from acefl.core.schedules import Schedule
from acefl.core.stop import Stop
from acefl.fleets.ray import RayFleet
from acefl.runs.checkpoint import Every
from acefl.runs.observers import Observer
from acefl.runs.record import Run
from acefl.runs.saving import run_to_end
from acefl.runs.training import Progress, Training
from acefl.tasks.sources import TaskSource, build_task


def run_on_ray(
    source: TaskSource,
    rule: Method,
    *,
    lr: float,
    stop: Stop,
    seed: int = 0,
    actors: int = 4,
    together: int = 1,
    address: str = "local",
    gpus: float = 0.0,
    evaluations: int = 50,
    out: str | os.PathLike[str] | None = None,
    checkpoint: Every | None = None,
    observers: Sequence[Observer] = (),
    norm_limit: NormLimit | None = None,
    progress: Progress | None = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
) -> Run:
    """Train in wall-clock time on Ray actors: on this machine (`address="local"`) or on a cluster by its address.

    The task is built in every actor from `source` and `seed`, and here for evaluation; `together` clients work in one
    call of an actor, and `gpus` (a part of one will do) are kept for each. Which
    client arrives when depends on the machines, so two runs differ; what a client computes for a given model and visit
    does not. `out` is where the run is recorded; with `checkpoint` its state is saved there now and then, and the same
    call resumes a run that was interrupted.
    """
    require(
        rule.uploads is not Upload.CHANGE,
        "client-held ACE leaves gradients with the clients, which all live here on Ray; use variant='incremental'",
    )
    task = build_task(source, seed)
    opened = _open(address, actors)
    try:
        fleet = RayFleet(source, seed, clients=task.clients, actors=actors, together=together, gpus=gpus)
        fleet.ready()
        training = Training(
            rule,
            fleet,
            lr=lr,
            stop=stop,
            config={
                "seed": seed,
                "task": task.describe(),
                "scenario": {"clock": "wall", "fleet": "ray", "actors": actors, "together": together},
            },
            task=task,
            model=task.initial().cpu(),  # updates come as arrays in main memory, wherever they were computed
            evaluations=evaluations,
            observers=observers,
            norm_limit=norm_limit,
            optimizer=optimizer,
            schedule=schedule,
        )
        return run_to_end(training, out=out, checkpoint=checkpoint, progress=progress)
    finally:
        if opened:
            import ray

            ray.shutdown()


def _open(address: str, actors: int) -> bool:
    """Connect to Ray unless somebody has; True if it is ours to close."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default; without it, it warns
    try:
        import ray
    except ImportError:
        raise InvalidInput("Ray is not installed: pip install 'acefl[ray]'") from None
    if ray.is_initialized():
        return False
    here = address == "local"
    try:
        ray.init(
            address=address,
            num_cpus=max(actors, os.cpu_count() or 1) if here else None,
            include_dashboard=False if here else None,
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"cannot reach Ray at {address!r}: {error}") from None
    return True
