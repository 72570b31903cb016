"""Asynchronous federated learning in which every client counts.

Names are loaded when first used, so that `import acefl` and `acefl --help` stay quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from acefl import tasks, testing
    from acefl.admission import NormLimit
    from acefl.attacks import attacked
    from acefl.checkpoint import Every
    from acefl.core.rule import Method, Rule
    from acefl.errors import AceflError, InvalidInput, NothingInFlight
    from acefl.optimizers import SGD, Adam, Momentum, Yogi
    from acefl.record import Run, load
    from acefl.rules import (
        ACE,
        ACED,
        AREA,
        ASGD,
        CA2FL,
        FADAS,
        MIFA,
        DelayAdaptiveASGD,
        FedAdam,
        FedAsync,
        FedAvg,
        FedBuff,
        FedFa,
        FedStaleWeight,
        MaleniaSGD,
        RingleaderASGD,
        RingmasterASGD,
        RobustACE,
    )
    from acefl.runs.resume import resume
    from acefl.runs.simulate import simulate
    from acefl.schedules import Constant, Cosine, Sqrt, WarmUp
    from acefl.server import Server
    from acefl.stop import Stop
    from acefl.studies.compare import compare
    from acefl.studies.tune import tune
    from acefl.table import Accumulator, Table
    from acefl.timing import Scenario
    from acefl.types import Arrival, Left, Lost, Step

_HOME = {
    "ACE": "rules",
    "ACED": "rules",
    "AREA": "rules",
    "ASGD": "rules",
    "Accumulator": "table",
    "AceflError": "errors",
    "Adam": "optimizers",
    "Arrival": "types",
    "CA2FL": "rules",
    "Constant": "schedules",
    "Cosine": "schedules",
    "DelayAdaptiveASGD": "rules",
    "Every": "checkpoint",
    "FADAS": "rules",
    "FedAdam": "rules",
    "FedAsync": "rules",
    "FedAvg": "rules",
    "FedBuff": "rules",
    "FedFa": "rules",
    "FedStaleWeight": "rules",
    "InvalidInput": "errors",
    "Left": "types",
    "Lost": "types",
    "MIFA": "rules",
    "MaleniaSGD": "rules",
    "Method": "core.rule",
    "Momentum": "optimizers",
    "NormLimit": "admission",
    "NothingInFlight": "errors",
    "RingleaderASGD": "rules",
    "RingmasterASGD": "rules",
    "RobustACE": "rules",
    "Rule": "core.rule",
    "Run": "record",
    "SGD": "optimizers",
    "Scenario": "timing",
    "Server": "server",
    "Sqrt": "schedules",
    "Step": "types",
    "Stop": "stop",
    "Table": "table",
    "WarmUp": "schedules",
    "Yogi": "optimizers",
    "attacked": "attacks",
    "compare": "studies.compare",
    "load": "record",
    "resume": "runs.resume",
    "simulate": "runs.simulate",
    "tune": "studies.tune",
}


def __getattr__(name: str) -> Any:
    if name in ("tasks", "testing"):
        return import_module(f"acefl.{name}")
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
    "Constant",
    "Cosine",
    "DelayAdaptiveASGD",
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
    "NormLimit",
    "NothingInFlight",
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
