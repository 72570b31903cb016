"""When a model is evaluated, and what is kept of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from acefl.core.errors import require
from acefl.core.metrics import SMALLER, declared, direction
from acefl.core.types import State, Step, Vector
from acefl.fleets.scenario import fastest, slowest
from acefl.tasks.base import Evaluation, Task, scores_by_speed

Evaluate = Callable[[Vector, int], Evaluation | None]  # a model and its version; None: nothing was found out
Row = dict[str, float]


def by_task(task: Task) -> Evaluate:
    """Evaluation by a task that has all the data: the model, and every client by itself."""
    return lambda model, version: task.evaluate(model)


class Evaluator:
    """Evaluates the model at even shares of the budget, and keeps a row for each evaluation.

    In the background, in a thread of its own, training never waits for it: when one evaluation is not over by the time
    the next is due, the next is left out. Otherwise the run waits for each, so that two runs evaluate the same models.
    """

    def __init__(
        self,
        evaluate: Evaluate | None,
        evaluations: int,
        mean_times: Callable[[], Sequence[float]],
        *,
        objective: str | None = None,
        background: bool,
    ) -> None:
        require(evaluations >= 1, f"evaluations is {evaluations}; allowed: at least 1")
        self.evaluations = evaluations
        self._evaluate, self._mean_times, self._objective = evaluate, mean_times, objective
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="acefl-evaluate") if background else None
        self._busy: tuple[Step, Future[Evaluation | None]] | None = None
        self._done = 0
        self._rows: dict[tuple[int, int], Row] = {}  # by model version and arrivals
        self._evaluated: set[tuple[int, int]] = set()  # those that were evaluated here: clients may tell of others
        self._scores: dict[str, dict[int, float]] = {}  # each client's latest
        self.better: dict[str, str] = {}  # which way a metric is better, as evaluations say

    @property
    def rows(self) -> list[Row]:
        """One row per evaluation, in order."""
        return [self._rows[place] for place in sorted(self._rows)]

    @property
    def due(self) -> float:
        """The share of the budget at which to evaluate next."""
        return min(self._done / self.evaluations, 1.0)  # the end of the budget is never stepped over

    @property
    def diverged(self) -> bool:
        """Whether the last model that was evaluated was too far gone."""
        if not self._rows:
            return False
        row = self._rows[max(self._rows)]
        names = ("loss", "client_loss") if self._objective is None else (self._objective,)
        return not all(math.isfinite(row[name]) for name in names if name in row)

    @property
    def hopeless(self) -> bool:
        """Whether going on makes no sense: what the run is about is no number any more."""
        return self._objective is not None and self.diverged

    def wants(self, spent: float) -> bool:
        """Whether `look` would do anything now."""
        return self._busy is not None or spent >= self.due

    def look(self, step: Step, spent: float, model: Vector) -> list[Row]:
        """Evaluate if it is time to; the rows of evaluations that are over."""
        if spent < self.due:
            return self._finished()
        if self._busy is None:
            self._done = math.floor(spent * self.evaluations + 1e-9) + 1
            self._start(step, model)
        return self._finished()

    def resumed(self, spent: float) -> None:
        """The run goes on where this share of its budget is spent: it may have a larger budget than before, or other
        evaluations, and then the next one is due earlier than it was."""
        self._done = min(self._done, math.floor(spent * self.evaluations + 1e-9) + 1)

    def last(self, step: Step, model: Vector) -> list[Row]:
        """Wait for the evaluation that is going on, and evaluate the final model: training is over."""
        rows = self._finished(wait=True)
        if (step.version, step.arrivals) not in self._evaluated:
            self._start(step, model)
            rows += self._finished(wait=True)
        return rows

    def add(self, step: Step, found: Evaluation) -> Row:
        """Keep what was found out about the model of this step, beside what is known about it already."""
        place: Row = {"step": step.version, "arrival": step.arrivals, "time": step.time}
        row = self._rows.setdefault((step.version, step.arrivals), place)
        row.update(found.metrics)
        self._declare(found)
        columns = found.per_client()
        if columns:
            means = self._mean_times()
            row.update(scores_by_speed(found, torch.tensor(slowest(means)), torch.tensor(fastest(means))))
        for name, values in columns.items():
            numbers: list[float] = values.tolist()
            answered = range(len(numbers)) if found.answered is None else sorted(found.answered)
            self._scores.setdefault(name, {}).update({client: numbers[client] for client in answered})
        return row

    def _declare(self, found: Evaluation) -> None:
        """What a task has for its objective gets smaller as it gets better, unless the task says other."""
        self.better |= declared(found.better)
        if self._objective is not None and direction(self._objective, self.better) is None:
            self.better[self._objective] = SMALLER

    def scores(self, client: int) -> Row:
        """The client's latest scores: on the data that it trains on, and held out where there are such."""
        names: dict[str, dict[int, float]] = {"accuracy": {}, "loss": {}, **self._scores}
        return {name: known.get(client, math.nan) for name, known in names.items()}

    def _start(self, step: Step, model: Vector) -> None:
        self._evaluated.add((step.version, step.arrivals))
        if self._evaluate is None:
            self.add(step, Evaluation({}))
        elif self._pool is not None:
            self._busy = step, self._pool.submit(self._evaluate, model.clone(), step.version)
        else:
            self._busy = step, Future()
            self._busy[1].set_result(self._evaluate(model, step.version))

    def _finished(self, wait: bool = False) -> list[Row]:
        if self._busy is None or not (wait or self._busy[1].done()):
            return []
        (step, future), self._busy = self._busy, None
        found = future.result()
        return [self.add(step, found)] if found is not None else []

    def close(self) -> None:
        """Wait for the evaluation that is going on in the background, and start no other."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def state_dict(self) -> State:
        """What was found out so far, and when the next evaluation is due; not one that is going on."""
        return {
            "done": self._done,
            "better": dict(self.better),
            "rows": [[[name, value] for name, value in row.items()] for row in self.rows],
            "scores": {
                name: [[client, value] for client, value in known.items()] for name, known in self._scores.items()
            },
        }

    def load_state_dict(self, state: State) -> None:
        """Go on after the evaluations that were saved."""
        self._done = int(state["done"])
        self.better = dict(state.get("better", {}))  # states of earlier versions have no such metrics
        rows = [{name: value for name, value in row} for row in state["rows"]]
        self._rows = {(int(row["step"]), int(row["arrival"])): row for row in rows}
        self._evaluated = set(self._rows)
        self._scores = {name: {client: value for client, value in known} for name, known in state["scores"].items()}
