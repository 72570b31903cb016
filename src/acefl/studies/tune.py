"""Successive halving: a learning rate, and tau or buffer where a method has them, within a budget known beforehand.

Or all settings that the method says matter (`Method.searched`), within the same budget.

Trials start with a quarter of a run; about half of them go on to half a run, and about half of these to a whole one. A
first generation of trials is spread evenly over wide ranges, the next ones over a quarter of the range around the best
so far. What is tried depends on earlier scores and on nothing else, so one worker and many give the same answer, and a
search that was killed resumes where it was. Every method gets the same budget, whatever it has to tune.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from acefl import report
from acefl.core.errors import require
from acefl.core.files import is_new, write_json
from acefl.core.progress import Progress, shown
from acefl.core.ranges import Choice, Range, written
from acefl.core.rule import Method
from acefl.core.settings import label, settings_of
from acefl.core.stop import Stop
from acefl.fleets.scenario import Scenario
from acefl.rules import ACE, imported_from
from acefl.runs.record import FORMAT, command_line, machine
from acefl.runs.training import never
from acefl.studies import cost
from acefl.studies.jobs import Job, Jobs, open_jobs
from acefl.studies.ledger import Ledger
from acefl.studies.objective import Objective
from acefl.studies.spec import DEFAULT_SCENARIO, DEFAULT_STOP, DEFAULT_TASK, TUNING_SEED, RunSpec
from acefl.tasks.base import client_names
from acefl.tasks.sources import TaskSource, build_task, built_once, describe

QUARTERS = (1, 2, 4)  # of a run's budget: where a trial may end
WHOLE = QUARTERS[-1]
BUDGET = 12.0  # whole runs that a search may cost
GENERATION = 8
_ROUND_TRIP = sum(QUARTERS) / WHOLE  # what a trial costs that goes all the way: each stage runs from the start
_OCTAVES = 14.0  # of learning rates, around the centre
_LOG = "tuning.jsonl"
ALL = "all"  # settings that matter to a method


@dataclasses.dataclass
class Trial:
    """One combination of settings and how far it was taken."""

    settings: dict[str, Any]
    quarters: int = 0  # of a run
    score: float = math.inf  # what the search goes by there; infinite if it diverged
    arrivals: int = 0  # uploads spent on it, all stages together


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What a search found and what it cost."""

    rule: Method  # with the best settings
    lr: float
    objective: str
    trials: list[Trial]
    budget: float  # whole runs it was allowed to cost
    spent: float  # whole runs it cost, counting a run that diverged as if it had not
    larger: bool = False  # whether a larger score is better

    @property
    def best(self) -> Trial:
        return _best(self.trials, Objective(self.objective, self.larger))

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
    rule: Method | None = None,
    *,
    scenario: Scenario = DEFAULT_SCENARIO,
    stop: Stop = DEFAULT_STOP,
    over: Sequence[str] | str | None = None,
    budget: float = BUDGET,
    lr_centre: float = 0.25,
    by: str | None = None,
    out: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    progress: Progress | bool | None = True,
) -> Tuning:
    """Find a method's settings on the tuning seed, whose data split and schedule no result is reported on.

    over: what is searched beside the learning rate; None: `tau` or `buffer` where the method has them; `"all"`: these
    and what else the method says matters (`Method.searched`), each if it was left at its default. budget: how many
    whole runs the search may cost. With `out` every score is written down as it comes, in `out/tuning.jsonl`, and a
    call with the same settings goes on from there; the end is in `out/tuning.json` and `out/report.html`.

    Args:
        task: A task by name, `"digits(clients=50)"` or your own as `"mymodule:make_task(batch=8)"`; its arguments; or
            a function that makes the task of a seed, which runs in this process alone.
        rule: Settings of the method; None: ACE.
        scenario: Speeds, clock and dropouts.
        stop: Budget of a whole run.
        over: What to search beside the rate: names of settings, or `"all"` that matter to the method.
        budget: Whole runs the search may cost.
        lr_centre: Middle of the searched rates.
        by: The metric to search by, such as `heldout_client_loss`; None: the task's objective.
        out: Directory for scores and report.
        workers: Processes; None: one per core, at most 8.
        progress: True: what it will cost on stderr, and a bar on a terminal or in a notebook; False: nothing; or a
            function that is called with jobs done, jobs known and the last one's name.
    """
    rule = ACE() if rule is None else rule
    check_budget(budget)
    task = built_once(task)
    built = build_task(task, TUNING_SEED)
    scenario.check(built.clients, client_names(built))
    ranges = search_ranges(rule, built.clients, lr_centre, over)
    objective = Objective.of(built, by, stop)
    plan = RunSpec(task, rule, math.nan, scenario, stop, TUNING_SEED, by=objective)
    described = {
        "format": FORMAT,
        "task": describe(task, built),
        "method": label(rule),
        "rule": settings_of(rule),
        **imported_from(rule),
        "objective": objective.metric,
        **({"larger": True} if objective.larger else {}),
        "scenario": scenario.record(),
        **({"trace": scenario.matched(built.clients, client_names(built)).trace} if scenario.trace is not None else {}),
        "stop": stop.record(),
        "ranges": {name: one.record() for name, one in ranges.items()},
        "budget": budget,
    }
    ledger = _ledger(None if out is None else Path(out), described)
    if progress is True:
        cost.say(cost.of_search(plan, budget, workers))
    with shown(progress, "starting workers") as told, open_jobs(workers, here=callable(task)) as jobs:
        tuning = _Search(plan, ranges, objective, budget, ledger, jobs, told).run()
    if out is not None:
        found = {"lr": tuning.lr, "method": label(tuning.rule), "spent": tuning.spent, "arrivals": tuning.arrivals}
        trials = [dataclasses.asdict(trial) for trial in tuning.trials]
        ending = {"command": command_line("acefl.tune(...)"), "machine": machine()}
        write_json(Path(out) / "tuning.json", {**described, "found": found, "trials": trials, **ending})
        report.build(Path(out))
    return tuning


def check_budget(budget: float) -> None:
    good = math.isfinite(budget) and budget >= _ROUND_TRIP
    require(good, f"budget is {budget}; allowed: at least {_ROUND_TRIP} runs, the cost of one trial")


def search_ranges(
    rule: Method, clients: int, lr_centre: float = 0.25, over: Sequence[str] | str | None = None
) -> dict[str, Range | Choice]:
    """Where to look: rates a factor of 128 either way, tau around the steps of one round trip, buffers up to 64.

    The rest is what the method says of itself.
    """
    require(math.isfinite(lr_centre) and lr_centre > 0, f"lr_centre is {lr_centre}; allowed: a finite number above 0")
    settings = settings_of(rule)
    usual = {
        "tau": Range(max(1.0, clients / 4), 16.0 * clients, whole=True),
        "buffer": Range(1.0, float(min(64, max(2, clients))), whole=True),
    }
    usual = {name: one for name, one in usual.items() if isinstance(settings.get(name), int)}
    known: dict[str, Range | Choice] = {**usual, **rule.searched(clients)}
    for name in known:
        require(name in settings, f"{label(rule)} has no setting {name!r}, which it says is worth a search")
    if over == ALL:
        chosen = [name for name in known if settings[name] == _default(rule, name)]
    else:
        require(not isinstance(over, str), f"over is {over!r}; allowed: names of settings, {ALL!r} or None")
        chosen = [*usual] if over is None else [*over]
    for name in chosen:
        require(name in known, f"{label(rule)} has no {name!r} to tune; allowed: {', '.join(known) or 'lr alone'}")
    far = 2.0 ** (_OCTAVES / 2)
    rates = {"lr": Range(lr_centre / far, lr_centre * far)}
    return {**rates, **{name: one for name, one in known.items() if name in chosen}}


def _default(rule: Method, setting: str) -> Any:
    [field] = [one for one in dataclasses.fields(cast(Any, rule)) if one.name == setting]
    return field.default


def spread_evenly(count: int, dimensions: int, first: int = 0) -> list[list[float]]:
    """Points of the unit cube that fill it evenly however many are taken, the middle being number 0 (Roberts' R_d)."""
    ratio = 2.0
    for _ in range(60):
        ratio = (1.0 + ratio) ** (1.0 / (dimensions + 1))
    steps = [ratio ** -(place + 1) for place in range(dimensions)]
    return [[(0.5 + number * step) % 1.0 for step in steps] for number in range(first, first + count)]


Scored = tuple[float, int]  # a score, and the uploads it took


def _ledger(folder: Path | None, described: dict[str, Any]) -> Ledger:
    """Scores as they come; in memory only without a directory."""
    path = None if folder is None else folder / _LOG
    if folder is not None and path is not None and not path.exists():
        require(is_new(folder), f"{folder} is not empty and holds no search; allowed: a new directory")
    return Ledger(path, described, keys=("settings", "quarters"), what="search")


@dataclasses.dataclass
class _Search:
    plan: RunSpec
    ranges: dict[str, Range | Choice]
    objective: Objective
    budget: float
    ledger: Ledger
    jobs: Jobs
    progress: Progress | None
    spent: float = 0.0
    trials: list[Trial] = dataclasses.field(default_factory=list)

    def run(self) -> Tuning:
        self._tell_progress("")
        generation = 0
        while self._left >= _ROUND_TRIP:
            each = _ROUND_TRIP if generation else len(QUARTERS) / WHOLE  # those near the best may all go the whole way
            count = max(1, min(GENERATION, int(self._left / each)))
            self._race(self._ask(count, generation))
            generation += 1
        best, by = _best(self.trials, self.objective).settings, self.objective
        by.check_found(label(self.plan.rule), (trial.score for trial in self.trials))
        return Tuning(self._rule(best), best["lr"], by.metric, self.trials, self.budget, self.spent, by.larger)

    @property
    def _left(self) -> float:
        return self.budget - self.spent

    def _ask(self, count: int, generation: int) -> list[Trial]:
        """The next trials: over the whole ranges at first, then over ever smaller parts around the best so far."""
        ranges = self.ranges
        if generation:
            best = _best(self.trials, self.objective).settings
            ranges = {name: own.around(best[name], 0.25**generation) for name, own in ranges.items()}
        points = spread_evenly(count, len(ranges), first=1 if generation else 0)
        asked = [
            Trial(
                {name: own.at(share) for (name, own), share in zip(ranges.items(), point, strict=True)},
                score=self.objective.worst,
            )
            for point in points
        ]
        self.trials += asked
        return asked

    def _race(self, running: list[Trial]) -> None:
        """Take a generation from stage to stage, as far as the budget goes."""
        for quarters in QUARTERS:
            best = sorted(running, key=self._cost)[: int(self._left * WHOLE / quarters)]
            affordable = sorted(best, key=running.index)
            self._score(affordable, quarters)
            passed = promoted([self._cost(one) for one in affordable])
            running = [one for one, good in zip(affordable, passed, strict=True) if good]

    def _cost(self, trial: Trial) -> float:
        return self.objective.cost(trial.score)

    def _score(self, trials: list[Trial], quarters: int) -> None:
        """Run them this far from the start: runs that keep no state between stages can be made anywhere."""
        self.spent += len(trials) * quarters / WHOLE
        jobs = [Job(_score_until, (self._spec(one.settings), quarters), one) for one in trials]

        def recorded(job: Job) -> Scored | None:
            row = self.ledger.find(settings=job.key.settings, quarters=quarters)
            if row is None:
                return None
            score = self.objective.worst if row["score"] is None else float(row["score"])
            known = score, int(row["arrivals"])
            self._collect(job.key, quarters, known)
            return known

        def ended(job: Job, scored: Scored) -> None:
            score, arrivals = scored
            self.ledger.add(settings=job.key.settings, quarters=quarters, score=score, arrivals=arrivals)
            self._collect(job.key, quarters, scored)

        self.jobs.run(jobs, recorded=recorded, ended=ended)

    def _spec(self, settings: dict[str, Any]) -> RunSpec:
        trial = self.plan.as_trial(evaluations=WHOLE)
        return dataclasses.replace(trial, rule=self._rule(settings), lr=settings["lr"])

    def _rule(self, settings: dict[str, Any]) -> Method:
        rest = {name: value for name, value in settings.items() if name != "lr"}
        rule: Method = dataclasses.replace(cast(Any, self.plan.rule), **rest) if rest else self.plan.rule
        return rule

    def _collect(self, one: Trial, quarters: int, scored: Scored) -> None:
        score, arrivals = scored
        one.quarters, one.score, one.arrivals = quarters, score, one.arrivals + arrivals
        words = ", ".join(f"{name} {written(value, 3)}" for name, value in one.settings.items())
        self._tell_progress(f"{words}: {quarters}/{WHOLE} of a run")

    def _tell_progress(self, last: str) -> None:
        """In quarters of a run, which is what the budget is made of."""
        if self.progress is not None:
            self.progress(round(self.spent * WHOLE) if last else 0, round(self.budget * WHOLE), last)


def promoted(scores: Sequence[float]) -> list[bool]:
    """Which trials go on to the next stage: each that is in the better half of itself and those before it.

    Asynchronous successive halving (Li et al. 2020, arXiv 1810.05934), taken in the order of the trials whichever was
    computed first, so that one worker and many give the same answer. What diverged never goes on.
    """
    halves = [sorted(scores[: place + 1])[max(place + 1, 2) // 2 - 1] for place in range(len(scores))]
    return [math.isfinite(score) and score <= half for score, half in zip(scores, halves, strict=True)]


def _best(trials: Sequence[Trial], by: Objective) -> Trial:
    """Of those that did not diverge, the best score among those that went furthest; of equals, the smaller rate."""
    return min(trials, key=lambda one: (math.isinf(one.score), -one.quarters, by.cost(one.score), one.settings["lr"]))


def _score_until(part: tuple[RunSpec, int]) -> Scored:
    """The objective after so many quarters of a run, and the uploads it took."""
    spec, quarters = part
    training = spec.training()
    for _, spent in training.advance(never):  # evaluations are at the quarters
        if spent >= quarters / WHOLE:
            break
    run = training.result()
    return spec.score_of(run), len(run.events)
