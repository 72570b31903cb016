"""What a recipe is made of: runs to make, and what the paper says about them.

A recipe is a file in this package with a `RECIPE`. Its `plan` lists the runs for a request, most wanted first; its
`report` turns recorded runs into the page. Neither runs anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from acefl.paper import FORMS
from acefl.paper.rates import DECADES
from acefl.studies.spec import TUNING_SEED
from acefl.studies.sweep import Cell, Settings

if TYPE_CHECKING:
    from acefl.paper.page import Page
    from acefl.paper.records import Record, Results

PRINTED_C = 0.2  # the paper's lr is c * sqrt(n / T); its tables list this c for every method
PAPER_SEEDS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Request:
    """What a person asked for. None is the paper's own value."""

    form: str = "printed"
    seeds: Sequence[int] = PAPER_SEEDS
    quick: bool = False
    folder: str | None = None
    device: str = "cpu"
    model: str | None = None
    start: str | None = None  # a safetensors file of parameters, for the recipe that tries a pre-trained start
    evaluations: int = 10
    clients: int | None = None
    steps: int | None = None
    batch: int | None = None
    samples: int | None = None
    test_samples: int | None = None

    def size(self, clients: int, steps: int) -> tuple[int, int]:
        """The paper's n and T, or what was asked for in their place."""
        return self.clients or clients, self.steps or steps

    @property
    def home(self) -> str:
        return "device" if self.device.startswith("cuda") else "memory"

    def task(self, name: str, model: str, batch: int, **settings: Any) -> Settings:
        """Settings of an image or text task, as a cell has them."""
        wanted = self.model or model
        chosen: dict[str, Any] = {
            "name": name,
            "folder": self.folder,
            "model": wanted,
            "batch": self.batch or batch,
            "samples": self.samples,
            "test_samples": self.test_samples,
            "device": self.device,
            "bf16": self.device.startswith("cuda") and wanted != "cnn",  # small models are stacked, which is in fp32
            **settings,
        }
        return {f"task.{key}": value for key, value in chosen.items() if value is not None}


QUICK = {"quick": True, "seeds": (0,), "evaluations": 4, "clients": 10, "steps": 20, "batch": 10}
QUICK |= {"samples": 1000, "test_samples": 500}
_QUICK_FIRST = (-3,)  # of the grid of learning rates: c = 0.1 and then downhill


@dataclass(frozen=True)
class Tuning:
    """How a learning rate is chosen: over c times `unit`, by `score` (smaller is better) of a run with `changes`.

    The changes keep the choice away from what is reported: a validation split in place of the test set, and a seed of
    its own. Runs that differ only in what the changes replace share one choice.
    """

    unit: float
    changes: Settings
    score: str = "loss"
    first: tuple[int, ...] = DECADES  # places of the grid to look at first


@dataclass(frozen=True)
class Planned:
    """One entry of a table or curve of a figure: a run per seed, with a learning rate given or still to be tuned."""

    recipe: str
    labels: Mapping[str, Any]  # what tells it from the recipe's other entries
    settings: Settings  # of a cell of `acefl.studies.sweep`, without seed; without lr where that is tuned
    seeds: Sequence[int]
    tuning: Tuning | None = None
    probe: int | None = None  # measure the error terms every so many arrivals

    def trial(self, rate: float) -> Cell:
        assert self.tuning is not None
        changed = {**self.settings, **self.tuning.changes}
        return Cell({**changed, "lr": rate, "seed": TUNING_SEED, "evaluations": 2})

    def cells(self, rate: float | None = None) -> list[Cell]:
        chosen = self.settings if rate is None else {**self.settings, "lr": rate}
        probed = {} if self.probe is None else {"probe": self.probe}  # else a run without would stand for it
        return [Cell({**chosen, "seed": seed, **probed}) for seed in self.seeds]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and how recorded runs speak to it: in words, or None while runs are missing."""

    text: str
    verdict: Callable[[Results], str | None]


@dataclass(frozen=True)
class Recipe:
    """One figure or table of the paper, or of ours."""

    name: str
    title: str
    source: str  # where in the paper
    plan: Callable[[Request], list[Planned]]
    report: Callable[[Results, Page], None]
    data: str | None = None  # the data set that a folder is needed for
    forms: Sequence[str] = FORMS
    seeds: Sequence[int] = PAPER_SEEDS
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()  # readings and departures that the page must own up to
    quick: Mapping[str, Any] = field(default_factory=lambda: QUICK)
    measure: Callable[[Request], list[Record]] | None = None  # what is measured without a run

    def request(self, *, quick: bool = False, **settings: Any) -> Request:
        given = {key: value for key, value in settings.items() if value is not None}
        base = Request(**self.quick) if quick else Request(seeds=self.seeds)
        return replace(base, **given)


@dataclass(frozen=True)
class Contestant:
    """A method as the paper's tables set it up."""

    label: str
    method: str  # as `acefl.rules.parse` takes it
    local_lr: float = 1.0  # FedBuff and CA2FL send local steps of this size: the effective step is lr * local_lr
    concurrency: int | None = None  # None: all clients


def contestants(request: Request, tau: int, *, local_lr: float = 0.05, at_once: int = 20) -> list[Contestant]:
    """The six methods with the paper's hyper-parameters.

    Its tables have no column for delay-adaptive ASGD: with one client at a time, as they list for vanilla ASGD, it
    would be the same run, so here all clients are busy. A client's momentum of 0.9 starts afresh at every visit and
    with a single step adds nothing.
    """
    home = f"home={request.home!r}"
    return [
        Contestant("ACE", f"ACE({home})"),
        Contestant("ACED", f"ACED(tau={tau}, {home})"),
        Contestant("CA2FL", f"CA2FL({home})", local_lr, at_once),
        Contestant("FedBuff", "FedBuff()", local_lr, at_once),
        Contestant("DelayAdaptiveASGD", "DelayAdaptiveASGD()"),
        Contestant("ASGD", "ASGD()", 1.0, 1),
    ]


def entry(
    request: Request,
    recipe: str,
    labels: Mapping[str, Any],
    contestant: Contestant,
    *,
    task: Settings,
    scenario: Mapping[str, Any],
    clients: int,
    steps: int,
    rate_steps: int | None = None,
    tune_changes: Settings | None = None,
    score: str = "loss",
    arrivals: int | None = None,
    probe: int | None = None,
) -> Planned:
    """A contestant in a setting, as printed (steps and lr of the paper) or tuned (equal uploads, everybody busy)."""
    unit = math.sqrt(clients / (rate_steps or steps))
    settings: Settings = {
        "method": contestant.method,
        "evaluations": request.evaluations,
        "task.clients": clients,
        **task,
        **{f"scenario.{key}": value for key, value in scenario.items()},
    }
    named = {"form": request.form, **labels, "method": contestant.label}
    if request.form == "tuned":
        settings["stop.arrivals"] = arrivals or 10 * steps  # what 500 steps of a buffer of ten cost
        changes = {"task.validation": True, **(tune_changes or {})}
        first = _QUICK_FIRST if request.quick else DECADES
        return Planned(recipe, named, settings, request.seeds, Tuning(unit, changes, score, first), probe)
    settings["lr"] = PRINTED_C * unit * contestant.local_lr
    settings["stop.steps"] = steps
    if contestant.concurrency is not None:
        settings["scenario.concurrency"] = min(contestant.concurrency, clients)
    return Planned(recipe, named, settings, request.seeds, None, probe)
