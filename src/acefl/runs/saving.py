"""Training to the end, with the state saved on the way, so that a run survives being killed.

A state holds everything that decides how a run goes on: model, rule, table, clock, tasks in flight with their models
or finished updates, metrics and events. Random numbers need no saving: they are functions of (seed, client, visit).
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from acefl.core.errors import Interrupted, require
from acefl.core.files import CHECKPOINT, check_replaceable
from acefl.core.progress import Progress
from acefl.core.settings import plain
from acefl.core.state import without_copies
from acefl.core.types import State, Step
from acefl.runs.checkpoint import Every
from acefl.runs.directory import RunDirectory, reopen, start
from acefl.runs.observers import check_savable, names
from acefl.runs.record import Run, machine
from acefl.runs.training import AfterTurn, Training
from acefl.tasks.own import difference

log = logging.getLogger("acefl")


def run_to_end(
    training: Training,
    *,
    out: str | os.PathLike[str] | None = None,
    checkpoint: Every | None = None,
    progress: Progress | None = None,
    after_turn: AfterTurn | None = None,
    before_last: Callable[[], None] | None = None,
) -> Run:
    """Train to the end and record it in `out`, letting the clients go whatever happens.

    With `checkpoint` the state is saved in `out` now and then, and a run that was interrupted there is resumed.
    """
    try:
        if checkpoint is None:
            if out is not None:
                check_replaceable(Path(out))
            run = training.complete(progress, after_turn, before_last)
            if out is not None:
                run.save(out)
            return run
        out = checked(checkpoint, out)
        check_savable(training.observers)
        settings = settings_of_run(training, checkpoint)
        with _claimed(Path(out)) as (directory, interrupted), directory.send_log() as sent:
            training.fleet.on_send = sent.note
            if interrupted:
                saved = directory.load()
                _check_same(settings, saved["run"], out)
                if saved["training"] is not None:
                    training.load_state_dict(saved["training"])
                training.fleet.already_sent(sent.counts)
                _note(f"found a checkpoint in {out}: resumed", "resumed", training)
            else:
                directory.begin({"run": settings, "training": None})
            return train(training, settings, checkpoint, directory, progress, after_turn, before_last)
    finally:
        training.close()


def checked(checkpoint: Any, out: str | os.PathLike[str] | None) -> str | os.PathLike[str]:
    """Where to save the state, if it can be told when and where."""
    allowed = "an acefl.Every such as Every(arrivals=1000)"
    require(isinstance(checkpoint, Every), f"checkpoint is {checkpoint!r}; allowed: {allowed}")
    require(out is not None, "checkpoint needs a directory to write to; pass out=")
    assert out is not None
    return out


def run_from_start(
    begin: Callable[[], Training], every: Every, out: str | os.PathLike[str], progress: Progress | None
) -> Run:
    """Run a simulation from its beginning, with checkpoints in `out` until its record is there."""
    with start(out) as directory:
        training = begin()
        check_savable(training.observers)
        settings = settings_of_run(training, every)
        directory.begin({"run": settings, "training": None})
        return train(training, settings, every, directory, progress)


def train(
    training: Training,
    settings: State,
    every: Every,
    directory: RunDirectory,
    progress: Progress | None,
    after_turn: AfterTurn | None = None,
    before_last: Callable[[], None] | None = None,
) -> Run:
    """The one loop with checkpoints. Where `after_turn` raises Interrupted, one is left behind."""
    saved = training.server.accepted

    def save() -> None:
        with without_copies():
            written = directory.save({"run": settings, "training": training.state_dict()})
        if written:
            _note("a checkpoint", "checkpoint", training)

    def save_when_due(step: Step, spent: float) -> None:
        nonlocal saved
        try:
            if after_turn is not None:
                after_turn(step, spent)
        except Interrupted:
            save()
            raise
        if step.arrivals - saved >= every.arrivals and spent < 1.0:
            saved = step.arrivals
            save()

    pause = None if after_turn is not None else lambda: saved + every.arrivals
    finished = training.complete(progress, save_when_due, before_last, pause)
    directory.finish(finished)
    return finished


def _note(what: str, event: str, training: Training) -> None:
    arrivals, steps = training.server.accepted, training.server.version
    facts = {"event": event, "arrivals": arrivals, "steps": steps}
    log.info("%s at %d arrivals and %d steps", what, arrivals, steps, extra={"facts": facts})


def recorded_lr(out: Path) -> float | None:
    """The learning rate of the run that was interrupted in `out`; None: there is none."""
    with _claimed(out) as (directory, interrupted):
        return float(directory.load()["run"]["config"]["lr"]) if interrupted else None


@contextmanager
def _claimed(out: Path) -> Iterator[tuple[RunDirectory, bool]]:
    """The run's directory, and whether it holds a run that was interrupted."""
    interrupted = any((out / CHECKPOINT).glob("*.safetensors"))
    with reopen(out) if interrupted else start(out) as directory:
        assert directory is not None
        yield directory, interrupted


def _check_same(given: State, saved: State, out: str | os.PathLike[str]) -> None:
    """Refuse to resume a run with other settings than it was started with."""
    here, there = given["config"], saved["config"]
    for what in ("method", "rule", "lr", "seed", "dim", "optimizer", "schedule", "norm_limit"):
        mine, its = here.get(what), there.get(what)
        require(mine == its, f"{what} is {mine}; that of the run in {out} was {its}")
    if here.get("scenario", {}).get("fleet") == "ray":  # on Flower the task's description is the caller's own words
        other = difference(here["task"], there["task"])
        require(not other, f"the task is not that of the run in {out}: {other}")
    require(
        given["observers"] == saved["observers"],
        f"observers are {given['observers']}; the run's were {saved['observers']}",
    )


def settings_of_run(training: Training, every: Every) -> State:
    """What it takes to build the run again, or to know that it is this one."""
    settings: State = plain(
        {
            "config": training.config,
            "evaluations": training.evaluator.evaluations,
            "every": dataclasses.asdict(every),
            "observers": names(training.observers),
            "machine": this_machine(),
        }
    )
    return settings


def this_machine() -> dict[str, Any]:
    """What rounding may depend on."""
    here = machine()
    return {**{name: here[name] for name in ("cpu", "gpu", "torch")}, "threads": torch.get_num_threads()}
