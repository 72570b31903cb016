"""Successive halving: a learning rate, and tau or buffer where a method has them, within a budget known beforehand.

Trials start with a quarter of a run; about half of them, by optuna's SuccessiveHalvingPruner, go on to half a run, and
about half of these to a whole one. A first generation of trials is spread evenly over wide ranges, the next ones over a
quarter of the range around the best so far. What is tried depends on earlier scores and on nothing else, so one worker
and many give the same answer, and a search that was killed goes on where it was. Every method gets the same budget,
whatever it has to tune.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from acefl.errors import InvalidInput, require
from acefl.experiment import (
    DEFAULT_SCENARIO,
    DEFAULT_STOP,
    DEFAULT_TASK,
    TUNING_SEED,
    Job,
    Progress,
    TaskSource,
    as_in_a_worker,
    build_task,
    built_once,
    command_line,
)
from acefl.record import FORMAT, machine, plain, write_json
from acefl.rules import ACE, label
from acefl.simulation import Simulation, imported_from, settings_of
from acefl.stop import Stop
from acefl.timing import Scenario, read_trace
from acefl.types import RuleSettings
from acefl.workers import Pool, open_pool

if TYPE_CHECKING:
    import optuna

QUARTERS = (1, 2, 4)  # of a run's budget: where a trial may end
WHOLE = QUARTERS[-1]
BUDGET = 12.0  # whole runs that a search may cost
GENERATION = 8
_ROUND_TRIP = sum(QUARTERS) / WHOLE  # what a trial costs that goes all the way: each stage runs from the start
_OCTAVES = 14.0  # of learning rates, around the centre
_LOG = "tuning.jsonl"


@dataclasses.dataclass(frozen=True)
class Range:
    """Where a setting is looked for, on a log scale."""

    low: float
    high: float
    whole: bool = False  # a whole number of at least 1

    def at(self, share: float) -> float:
        value = self.low * (self.high / self.low) ** share
        return max(1, round(value)) if self.whole else float(f"{value:.4g}")

    def around(self, value: float, part: float) -> Range:
        """A part of the range with the value in its middle; it may reach beyond an end that turned out too tight."""
        half = (self.high / self.low) ** (part / 2)
        return Range(value / half, value * half, self.whole)


@dataclasses.dataclass(frozen=True)
class Trial:
    """One combination of settings and how far it was taken."""

    settings: dict[str, float]
    quarters: int  # of a run
    score: float  # the task's objective there; infinite if it diverged
    arrivals: int  # uploads spent on it, all stages together


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What a search found and what it cost."""

    rule: RuleSettings  # with the best tau or buffer
    lr: float
    objective: str
    trials: list[Trial]
    budget: float  # whole runs it was allowed to cost
    spent: float  # whole runs it cost, counting a run that diverged as if it had not

    @property
    def best(self) -> Trial:
        return _best(self.trials)

    @property
    def arrivals(self) -> int:
        """Uploads spent in all."""
        return sum(trial.arrivals for trial in self.trials)

    @property
    def cost(self) -> str:
        """The budget in a sentence."""
        return (
            f"{len(self.trials)} trials within a budget of {self.budget:g} whole runs: "
            f"{self.spent:g} spent, {self.arrivals:,} arrivals"
        )


def tune(
    task: TaskSource = DEFAULT_TASK,
    rule: RuleSettings | None = None,
    *,
    scenario: Scenario = DEFAULT_SCENARIO,
    stop: Stop = DEFAULT_STOP,
    over: Sequence[str] | None = None,
    budget: float = BUDGET,
    lr_centre: float = 0.25,
    out: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """Find a method's settings on the tuning seed, whose data split and schedule no result is reported on.

    over: what is searched beside the learning rate, of `tau` and `buffer`; None: those the method has. budget: how many
    whole runs the search may cost. With `out` every score is written down as it comes, in `out/tuning.jsonl`, and a
    call with the same settings goes on from there; the end is in `out/tuning.json` and `out/report.html`.
    """
    rule = ACE() if rule is None else rule
    check_budget(budget)
    task = built_once(task)
    built = build_task(task, TUNING_SEED)
    scenario.check(built.clients)
    ranges = search_ranges(rule, built.clients, lr_centre, over)
    plan = Job(task, rule, math.nan, scenario, stop, TUNING_SEED)
    described = {
        "format": FORMAT,
        "task": built.describe() if callable(task) else dict(task),
        "method": label(rule),
        "rule": settings_of(rule),
        **imported_from(rule),
        "objective": built.objective,
        "scenario": scenario.record(),
        **({"trace": read_trace(scenario.trace, built.clients)} if scenario.trace is not None else {}),
        "stop": dataclasses.asdict(stop),
        "ranges": {name: [one.low, one.high] for name, one in ranges.items()},
        "budget": budget,
    }
    log = Log(None if out is None else Path(out), described)
    here = callable(task)
    with open_pool(workers, here=here) as pool, as_in_a_worker(enabled=not here):
        tuning = _Search(plan, ranges, built.objective, budget, log, pool, progress).run()
    if out is not None:
        from acefl.report import halving

        found = {"lr": tuning.lr, "method": label(tuning.rule), "spent": tuning.spent, "arrivals": tuning.arrivals}
        trials = [dataclasses.asdict(trial) for trial in tuning.trials]
        ending = {"command": command_line("acefl.tune(...)"), "machine": machine()}
        write_json(Path(out) / "tuning.json", {**described, "found": found, "trials": trials, **ending})
        halving.build(Path(out))
    return tuning


def check_budget(budget: float) -> None:
    good = math.isfinite(budget) and budget >= _ROUND_TRIP
    require(good, f"budget is {budget}; allowed: at least {_ROUND_TRIP} runs, the cost of one trial")


def search_ranges(
    rule: RuleSettings, clients: int, lr_centre: float = 0.25, over: Sequence[str] | None = None
) -> dict[str, Range]:
    """Where to look: rates a factor of 128 either way, tau around the steps of one round trip, buffers up to 64."""
    require(math.isfinite(lr_centre) and lr_centre > 0, f"lr is {lr_centre}; allowed: a finite number above 0")
    known = {
        "tau": Range(max(1.0, clients / 4), 16.0 * clients, whole=True),
        "buffer": Range(1.0, float(min(64, max(2, clients))), whole=True),
    }
    has = [name for name in known if isinstance(settings_of(rule).get(name), int)]
    for name in over or ():
        require(name in has, f"{label(rule)} has no {name!r} to tune; allowed: {', '.join(has) or 'lr alone'}")
    far = 2.0 ** (_OCTAVES / 2)
    return {"lr": Range(lr_centre / far, lr_centre * far), **{k: known[k] for k in has if over is None or k in over}}


def spread_evenly(count: int, dimensions: int, first: int = 0) -> list[list[float]]:
    """Points of the unit cube that fill it evenly however many are taken, the middle being number 0 (Roberts' R_d)."""
    ratio = 2.0
    for _ in range(60):
        ratio = (1.0 + ratio) ** (1.0 / (dimensions + 1))
    steps = [ratio ** -(place + 1) for place in range(dimensions)]
    return [[(0.5 + number * step) % 1.0 for step in steps] for number in range(first, first + count)]


class Log:
    """Scores as they come, one JSON line each; kept in memory only without a directory."""

    def __init__(self, folder: Path | None, described: dict[str, Any]) -> None:
        self._path = None if folder is None else folder / _LOG
        self._known: dict[str, tuple[float, int]] = {}
        if folder is None or self._path is None:
            return
        header = plain(described)
        if not self._path.exists():
            empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
            require(empty, f"{folder} is not empty and holds no search; allowed: a new directory")
            folder.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(header) + "\n", encoding="utf-8")
            return
        lines = self._path.read_text(encoding="utf-8").splitlines()
        try:
            known = json.loads(lines[0])
            rows = [json.loads(line) for line in lines[1:] if line.endswith("}")]  # the last may be cut short by a kill
            self._known = {
                self._key(row["settings"], row["quarters"]): (
                    math.inf if row["score"] is None else float(row["score"]),
                    int(row["arrivals"]),
                )
                for row in rows
            }
        except (ValueError, LookupError, TypeError) as problem:
            raise InvalidInput(f"{self._path} is not the log of a search: {problem}") from None
        require(known == header, f"{folder} holds the search of other settings; allowed: a new directory, or the same")
        whole = [json.dumps(header), *(json.dumps(row) for row in rows)]
        self._path.write_text("\n".join(whole) + "\n", encoding="utf-8")

    @staticmethod
    def _key(settings: dict[str, float], quarters: int) -> str:
        return json.dumps([settings, quarters], sort_keys=True)

    def known(self, settings: dict[str, float], quarters: int) -> tuple[float, int] | None:
        return self._known.get(self._key(settings, quarters))

    def add(self, settings: dict[str, float], quarters: int, score: float, arrivals: int) -> None:
        self._known[self._key(settings, quarters)] = (score, arrivals)
        if self._path is not None:
            row = plain({"settings": settings, "quarters": quarters, "score": score, "arrivals": arrivals})
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")


@dataclasses.dataclass(eq=False)
class _Running:
    """A trial that is still in the race."""

    study: optuna.Study
    trial: optuna.Trial
    settings: dict[str, float]
    quarters: int = 0
    score: float = math.inf
    arrivals: int = 0


class _Search:
    def __init__(
        self,
        plan: Job,
        ranges: dict[str, Range],
        objective: str,
        budget: float,
        log: Log,
        pool: Pool,
        progress: Progress | None,
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._plan, self._ranges, self._objective, self._budget = plan, ranges, objective, budget
        self._log, self._pool, self._progress = log, pool, progress
        self._spent = 0.0
        self._done = 0
        self._trials: list[_Running] = []

    def run(self) -> Tuning:
        self._tell_progress("")
        generation = 0
        while self._left >= _ROUND_TRIP:
            each = _ROUND_TRIP if generation else len(QUARTERS) / WHOLE  # those near the best may all go the whole way
            count = max(1, min(GENERATION, int(self._left / each)))
            self._race(self._ask(count, generation))
            generation += 1
        trials = [Trial(one.settings, one.quarters, one.score, one.arrivals) for one in self._trials]
        best = _best(trials).settings
        return Tuning(self._rule(best), best["lr"], self._objective, trials, self._budget, self._spent)

    @property
    def _left(self) -> float:
        return self._budget - self._spent

    def _ask(self, count: int, generation: int) -> list[_Running]:
        """The next trials: over the whole ranges at first, then over ever smaller parts around the best so far.

        A generation is a study of its own, so that its trials compete with each other for the next stage.
        """
        import optuna

        study = optuna.create_study(
            sampler=optuna.samplers.RandomSampler(seed=TUNING_SEED),  # asked for nothing: what is tried is decided here
            pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=QUARTERS[0], reduction_factor=2),
        )
        ranges = self._ranges
        if generation:
            best = _best([Trial(one.settings, one.quarters, one.score, 0) for one in self._trials]).settings
            ranges = {name: own.around(best[name], 0.25**generation) for name, own in ranges.items()}
        points = spread_evenly(count, len(ranges), first=1 if generation else 0)
        asked = [
            _Running(
                study, study.ask(), {k: own.at(share) for (k, own), share in zip(ranges.items(), point, strict=True)}
            )
            for point in points
        ]
        self._trials += asked
        return asked

    def _race(self, running: list[_Running]) -> None:
        """Take trials from stage to stage; the pruner hears of them in their order, whichever was computed first."""
        from optuna.trial import TrialState

        for quarters in QUARTERS:
            best = sorted(running, key=lambda one: one.score)[: int(self._left * WHOLE / quarters)]
            affordable = [one for one in running if one in best]
            for one in running:
                if one not in best:
                    one.study.tell(one.trial, state=TrialState.PRUNED)
            self._score(affordable, quarters)
            running = []
            for one in affordable:
                one.trial.report(one.score, quarters)
                if quarters == WHOLE:
                    one.study.tell(one.trial, one.score)
                elif one.trial.should_prune() or not math.isfinite(one.score):
                    one.study.tell(one.trial, state=TrialState.PRUNED)
                else:
                    running.append(one)

    def _score(self, trials: list[_Running], quarters: int) -> None:
        """Run them this far from the start: runs that keep no state between stages can be made anywhere."""
        pending: dict[Future[float], _Running] = {}
        try:
            for one in trials:
                self._spent += quarters / WHOLE
                known = self._log.known(one.settings, quarters)
                if known is None:
                    pending[self._pool.submit(cast(Any, _score_until), (self._job(one.settings), quarters))] = one
                else:
                    self._collect(one, quarters, *known)
            while pending:
                for future in self._pool.finished(pending):
                    one = pending.pop(future)
                    score, arrivals = cast(tuple[float, int], future.result())
                    self._log.add(one.settings, quarters, score, arrivals)
                    self._collect(one, quarters, score, arrivals)
        except BaseException:
            self._pool.abandon()
            raise

    def _job(self, settings: dict[str, float]) -> Job:
        return dataclasses.replace(self._plan, rule=self._rule(settings), lr=settings["lr"], evaluations=WHOLE)

    def _rule(self, settings: dict[str, float]) -> RuleSettings:
        rest = {name: int(value) for name, value in settings.items() if name != "lr"}
        rule: RuleSettings = dataclasses.replace(cast(Any, self._plan.rule), **rest) if rest else self._plan.rule
        return rule

    def _collect(self, one: _Running, quarters: int, score: float, arrivals: int) -> None:
        one.quarters, one.score, one.arrivals = quarters, score, one.arrivals + arrivals
        self._done += 1
        words = ", ".join(f"{name} {value:.3g}" for name, value in one.settings.items())
        self._tell_progress(f"{words}: {quarters}/{WHOLE} of a run")

    def _tell_progress(self, last: str) -> None:
        """In quarters of a run, which is what the budget is made of."""
        if self._progress is not None:
            self._progress(round(self._spent * WHOLE) if last else 0, round(self._budget * WHOLE), last)


def _best(trials: Sequence[Trial]) -> Trial:
    """Of those that did not diverge, the lowest score among those that went furthest; of equals, the smaller rate."""
    return min(trials, key=lambda one: (math.isinf(one.score), -one.quarters, one.score, one.settings["lr"]))


def _score_until(part: tuple[Job, int]) -> tuple[float, int]:
    """The objective after so many quarters of a run, and the uploads it took."""
    job, quarters = part
    simulation = Simulation(
        build_task(job.task, job.seed),
        job.rule,
        lr=job.lr,
        scenario=job.scenario,
        stop=job.stop,
        seed=job.seed,
        evaluations=job.evaluations,
    )
    for spent in simulation.advance():
        if spent >= quarters / WHOLE:
            break
    run = simulation.result()
    score = math.inf if run.diverged else run.final[run.config["objective"]]
    return (score if math.isfinite(score) else math.inf), len(run.events)
