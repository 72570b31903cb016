"""Asynchronous federated learning in which every client counts.

Names are loaded when first used, so that `import acefl` and `acefl --help` stay quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from acefl._moved import accept_old_paths

__version__ = "0.1.0"

if TYPE_CHECKING:
    from acefl import flower as flower
    from acefl import hf as hf
    from acefl import tasks, testing
    from acefl.core.errors import AceflError, InvalidInput, NothingInFlight
    from acefl.core.gate import NormLimit
    from acefl.core.optimizers import SGD, Adam, Momentum, Nesterov, Yogi
    from acefl.core.rule import Method, Rule
    from acefl.core.schedules import Constant, Cosine, Sqrt, WarmUp
    from acefl.core.server import Server
    from acefl.core.stop import Stop
    from acefl.core.types import Arrival, Left, Lost, Step
    from acefl.fleets.scenario import Scenario
    from acefl.rules import (
        ACE,
        ACED,
        AREA,
        ASGD,
        CA2FL,
        FADAS,
        MIFA,
        Calibrated,
        Clipped,
        DelayAdaptiveASGD,
        DelayedNesterov,
        FedAdam,
        FedAsync,
        FedAvg,
        FedBuff,
        FedFa,
        FedStaleWeight,
        MaleniaSGD,
        RescaledASGD,
        RingleaderASGD,
        RingmasterASGD,
        RobustACE,
    )
    from acefl.runs import loggers as loggers
    from acefl.runs.checkpoint import Every
    from acefl.runs.record import Run
    from acefl.runs.resume import resume
    from acefl.runs.simulate import simulate
    from acefl.studies.compare import compare
    from acefl.studies.load import load
    from acefl.studies.results import Comparison
    from acefl.studies.tune import tune
    from acefl.table import Accumulator, Table
    from acefl.tasks import privacy as privacy
    from acefl.tasks.attacks import attacked

_MODULES = {
    "flower": "flower",
    "hf": "hf",
    "loggers": "runs.loggers",
    "privacy": "tasks.privacy",
    "tasks": "tasks",
    "testing": "testing",
}
_HOME = {
    "ACE": "rules",
    "ACED": "rules",
    "AREA": "rules",
    "ASGD": "rules",
    "Accumulator": "table",
    "AceflError": "core.errors",
    "Adam": "core.optimizers",
    "Arrival": "core.types",
    "CA2FL": "rules",
    "Calibrated": "rules",
    "Clipped": "rules",
    "Comparison": "studies.results",
    "Constant": "core.schedules",
    "Cosine": "core.schedules",
    "DelayAdaptiveASGD": "rules",
    "DelayedNesterov": "rules",
    "Every": "runs.checkpoint",
    "FADAS": "rules",
    "FedAdam": "rules",
    "FedAsync": "rules",
    "FedAvg": "rules",
    "FedBuff": "rules",
    "FedFa": "rules",
    "FedStaleWeight": "rules",
    "InvalidInput": "core.errors",
    "Left": "core.types",
    "Lost": "core.types",
    "MIFA": "rules",
    "MaleniaSGD": "rules",
    "Method": "core.rule",
    "Momentum": "core.optimizers",
    "Nesterov": "core.optimizers",
    "NormLimit": "core.gate",
    "NothingInFlight": "core.errors",
    "RescaledASGD": "rules",
    "RingleaderASGD": "rules",
    "RingmasterASGD": "rules",
    "RobustACE": "rules",
    "Rule": "core.rule",
    "Run": "runs.record",
    "SGD": "core.optimizers",
    "Scenario": "fleets.scenario",
    "Server": "core.server",
    "Sqrt": "core.schedules",
    "Step": "core.types",
    "Stop": "core.stop",
    "Table": "table",
    "WarmUp": "core.schedules",
    "Yogi": "core.optimizers",
    "attacked": "tasks.attacks",
    "compare": "studies.compare",
    "load": "studies.load",
    "resume": "runs.resume",
    "simulate": "runs.simulate",
    "tune": "studies.tune",
}

accept_old_paths()


if not TYPE_CHECKING:  # to a type checker every name would exist, misspelt ones too, and be Any

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"acefl.{_MODULES[name]}")
        if name not in _HOME:
            raise AttributeError(f"module 'acefl' has no attribute {name!r}")
        value = getattr(import_module(f"acefl.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "ACE",
    "ACED",
    "AREA",
    "ASGD",
    "CA2FL",
    "FADAS",
    "MIFA",
    "SGD",
    "Accumulator",
    "AceflError",
    "Adam",
    "Arrival",
    "Calibrated",
    "Clipped",
    "Comparison",
    "Constant",
    "Cosine",
    "DelayAdaptiveASGD",
    "DelayedNesterov",
    "Every",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedFa",
    "FedStaleWeight",
    "InvalidInput",
    "Left",
    "Lost",
    "MaleniaSGD",
    "Method",
    "Momentum",
    "Nesterov",
    "NormLimit",
    "NothingInFlight",
    "RescaledASGD",
    "RingleaderASGD",
    "RingmasterASGD",
    "RobustACE",
    "Rule",
    "Run",
    "Scenario",
    "Server",
    "Sqrt",
    "Step",
    "Stop",
    "Table",
    "WarmUp",
    "Yogi",
    "attacked",
    "compare",
    "load",
    "resume",
    "simulate",
    "tasks",
    "testing",
    "tune",
]
