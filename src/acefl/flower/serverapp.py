"""Asynchronous training in a ServerApp: `run_async` in place of `strategy.start`."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from acefl import report
from acefl.core.errors import Interrupted, require
from acefl.core.gate import NormLimit
from acefl.core.optimizers import Optimizer
from acefl.core.rule import Method, Upload
from acefl.core.schedules import Schedule
from acefl.core.settings import label
from acefl.core.stop import Stop
from acefl.core.types import Step, Vector
from acefl.fleets.flower.fleet import FlowerFleet, Wires
from acefl.fleets.flower.records import ModelLayout
from acefl.flower.learning_rate import default_lr
from acefl.flower.stopping import noted_signals
from acefl.flower.versions import warn_if_untested
from acefl.runs.checkpoint import Every
from acefl.runs.observers import Observer
from acefl.runs.saving import recorded_lr, run_to_end
from acefl.runs.training import Training
from acefl.tasks.base import Evaluation

log = logging.getLogger("acefl")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]  # as for Flower's strategies: a round, here a version
DRAIN = 60.0  # seconds for nodes to finish what they are at, once the run is over


def run_async(
    grid: Grid,
    rule: Method,
    initial_arrays: ArrayRecord,
    *,
    lr: float | None = None,
    stop: Stop,
    nodes: int = 1,
    wires: Wires | None = None,
    train_config: ConfigRecord | None = None,
    evaluate_fn: EvaluateFn | None = None,
    evaluations: int = 50,
    surveys: int = 0,
    out: str | os.PathLike[str] | None = None,
    checkpoint: Every | None = None,
    observers: Sequence[Observer] = (),
    norm_limit: NormLimit | None = None,
    optimizer: Optimizer | None = None,
    schedule: Schedule | None = None,
    task: Mapping[str, Any] | None = None,
    drain: float = DRAIN,
) -> Result:
    """Train by `rule` on the nodes of a grid, each at its own pace, and return Flower's own Result.

    Starts when `nodes` nodes are connected; others join as they come. Each answer is taken in at once, the model steps,
    and its node gets the new model. Without `lr` the model moves by one mean update while everybody answers once, as
    FedAvg's does; that is for ClientApps that train and reply with arrays, and answers with gradients are refused.
    `evaluate_fn(version, arrays)` judges the model on the server `evaluations` times, and the nodes judge it on their
    own data `surveys` times, at even shares of the budget; training waits for neither.
    `out` is where the run is recorded and its report written. With `checkpoint` the run's state is saved there now and
    then, and a ServerApp that is started again goes on from it. `norm_limit` refuses or clips updates that are out of
    line with those of other clients; `optimizer` makes the step of the rule's direction, `schedule` changes the
    learning rate over the budget. `task` describes the task in the record. Once the budget is spent, nodes get
    `drain` seconds to finish what they are at.

    Args:
        grid: Flower's grid, from the ServerApp's main.
        rule: Settings of a method.
        initial_arrays: The first model.
        lr: Learning rate of a server step; None: one that fits the method and the number of nodes.
        stop: The budget.
        nodes: How many must be connected at the start.
        wires: Encodings and time limits; None: `Wires()`.
        train_config: Sent along with every task.
        evaluate_fn: Judges the model on the server.
        evaluations: How often it does.
        surveys: How often the nodes do.
        out: Directory of the record.
        checkpoint: How often to save the state; needs `out`.
        observers: Probes and loggers.
        norm_limit: Limit on the length of updates.
        optimizer: Of the server.
        schedule: Of the learning rate.
        task: Describes the task in the record.
        drain: Seconds for the last answers.
    """
    require(nodes >= 1, f"nodes is {nodes}; allowed: at least 1")
    require(surveys >= 0, f"surveys is {surveys}; allowed: at least 0")
    _show_log()
    warn_if_untested()
    layout = ModelLayout.of(initial_arrays)
    fleet = FlowerFleet(
        grid, layout, wires, differences=rule.uploads is Upload.CHANGE, config=train_config, trained=lr is None
    )
    results = Results(layout, evaluate_fn)
    fleet.wait_for(nodes)
    if lr is None:
        lr = _fitting_lr(rule, len(fleet.connected), optimizer, Path(out) if checkpoint and out is not None else None)
    training = Training(
        rule,
        fleet,
        model=layout.flat(initial_arrays),
        lr=lr,
        stop=stop,
        config={
            "task": dict(task or {"name": "flower"}),
            "scenario": {"clock": "wall", "fleet": "flower", **vars(fleet.wires)},
        },
        evaluate=results.evaluate if evaluate_fn is not None else None,
        evaluations=evaluations,
        observers=observers,
        norm_limit=norm_limit,
        optimizer=optimizer,
        schedule=schedule,
    )
    rounds = _Surveys(surveys, fleet, training, results, drain)
    with noted_signals() as signals:

        def after_turn(step: Step, spent: float) -> None:
            rounds.after_turn(step, spent)
            if (signals.asked or fleet.stopped) and spent < 1.0:
                raise Interrupted(_told_to_stop(step, Path(out) if checkpoint and out is not None else None))

        made = run_to_end(training, out=out, checkpoint=checkpoint, after_turn=after_turn, before_last=rounds.last)
    if out is not None:
        log.info("the report: %s", report.build(Path(out)))
    results.result.arrays = layout.arrays(made.model)
    return results.result


def _show_log() -> None:
    """Let `flwr log` have what acefl tells, unless the app has its own mind about logging."""
    if not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("acefl: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)


def _fitting_lr(rule: Method, nodes: int, optimizer: Optimizer | None, out: Path | None) -> float:
    """The learning rate that nobody chose. A run that is resumed keeps the one it had."""
    recorded = recorded_lr(out) if out is not None else None
    if recorded is not None:
        log.info("lr is %.3g, as before the run was interrupted", recorded)
        return recorded
    lr = default_lr(rule, nodes, optimizer)
    log.info(
        "lr is %.3g: %s with %d nodes then moves by one mean update while everybody answers once",
        lr,
        label(rule),
        nodes,
    )
    return lr


def _told_to_stop(step: Step, out: Path | None) -> str:
    """What to say about a run that was ended from outside."""
    kept = (
        f"`flwr run` again goes on from the checkpoint in {out}"
        if out
        else "nothing was kept: see checkpoint= of run_async"
    )
    said = f"stopped at {step.arrivals} arrivals; {kept}"
    log.warning(said)
    return said


class _Surveys:
    """Asks the nodes to evaluate at even shares of the budget, and at the end."""

    def __init__(self, times: int, fleet: FlowerFleet, training: Training, results: Results, drain: float) -> None:
        self._times, self._done, self._drain = times, 1, drain
        self._fleet, self._training, self._results = fleet, training, results
        self._steps: dict[int, Step] = {}

    def after_turn(self, step: Step, spent: float) -> None:
        if spent < 1.0 and self._done <= spent * self._times:
            self._done = math.floor(spent * self._times + 1e-9) + 1
            self._ask(step)
        self._results.take(self._fleet, self._training, self._steps)

    def last(self) -> None:
        self._fleet.drain(self._drain)
        if self._times:
            self._ask(self._training.step)
            self._fleet.drain(self._drain)
        self._results.take(self._fleet, self._training, self._steps)
        self._training.config["nodes"] = [str(node_id) for node_id in self._fleet.node_ids]

    def _ask(self, step: Step) -> None:
        self._steps[step.version] = step
        self._fleet.survey(self._training.server.model, step.version)


class Results:
    """Fills Flower's Result as things are found out."""

    def __init__(self, layout: ModelLayout, evaluate_fn: EvaluateFn | None) -> None:
        self._layout, self._evaluate = layout, evaluate_fn
        self.result = Result()

    def evaluate(self, model: Vector, version: int) -> Evaluation | None:
        """The user's evaluation on the server; runs in the evaluation's thread."""
        assert self._evaluate is not None
        found = self._evaluate(version, self._layout.arrays(model))
        if found is None:
            return None
        self.result.evaluate_metrics_serverapp[version] = found
        return Evaluation({name: float(value) for name, value in found.items() if isinstance(value, int | float)})

    def take(self, fleet: FlowerFleet, training: Training, steps: dict[int, Step]) -> None:
        """What the nodes said since the last call."""
        training.sample_counts.update(fleet.samples)
        for survey in fleet.surveys():
            if survey.found:
                self.result.evaluate_metrics_clientapp[survey.version] = MetricRecord(dict(survey.means()))
                training.add_evaluation(steps.pop(survey.version), survey.evaluation(fleet.clients))
        if fleet.metrics:
            means = {name: sum(values) / len(values) for name, values in fleet.metrics.items()}
            self.result.train_metrics_clientapp[training.server.version] = MetricRecord(dict(means))
            fleet.metrics = {}
