"""The aggregation methods, one file each, and how a person names one."""

from __future__ import annotations

import dataclasses
from typing import Any

from acefl.calls import make, named
from acefl.core.rule import Method
from acefl.own import is_own, own_method
from acefl.rules.ace import ACE
from acefl.rules.aced import ACED
from acefl.rules.area import AREA
from acefl.rules.asgd import ASGD
from acefl.rules.ca2fl import CA2FL
from acefl.rules.delay_adaptive import DelayAdaptiveASGD
from acefl.rules.fadas import FADAS
from acefl.rules.fedasync import FedAsync
from acefl.rules.fedavg import FedAdam, FedAvg
from acefl.rules.fedbuff import FedBuff
from acefl.rules.fedfa import FedFa
from acefl.rules.malenia import MaleniaSGD
from acefl.rules.mifa import MIFA
from acefl.rules.ringleader import RingleaderASGD
from acefl.rules.ringmaster import RingmasterASGD
from acefl.rules.robust import RobustACE
from acefl.rules.stale_weight import FedStaleWeight

_ALL = (
    *(ACE, ACED, CA2FL, FedBuff, ASGD, DelayAdaptiveASGD, RobustACE),
    *(RingmasterASGD, RingleaderASGD, MaleniaSGD, MIFA, FedStaleWeight),
    *(FedAsync, FedFa, AREA, FADAS, FedAvg, FedAdam),
)
METHODS: dict[str, type[Any]] = {method.__name__: method for method in _ALL}


_EXAMPLE = "ACED(tau=300)"


def parse(text: str) -> Method:
    """Settings from what a person types: `ACE`, `aced(tau=300)`, `FedBuff(buffer=5, staleness="sqrt")`.

    A method of the person's own is named with its module: `mypkg.mymodule:MyRule(tau=3)`.
    """
    if is_own(text):
        return own_method(text)
    built: Method = named("method", METHODS, text, _EXAMPLE)
    return built


def from_settings(name: str, settings: dict[str, Any]) -> Method:
    """Settings from a recorded name and dictionary, refusing what the method does not know."""
    built: Method = make("method", METHODS, name, settings, _EXAMPLE)
    return built


def label(rule: Method) -> str:
    """The method with the settings that differ from its defaults: `ACED(tau=300)`."""
    if not dataclasses.is_dataclass(rule):
        return type(rule).__name__
    changed = [
        f"{field.name}={getattr(rule, field.name)!r}"
        for field in dataclasses.fields(rule)
        if getattr(rule, field.name) != field.default
    ]
    return type(rule).__name__ + (f"({', '.join(changed)})" if changed else "")


__all__ = [
    "ACE",
    "ACED",
    "AREA",
    "ASGD",
    "CA2FL",
    "FADAS",
    "METHODS",
    "MIFA",
    "DelayAdaptiveASGD",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedFa",
    "FedStaleWeight",
    "MaleniaSGD",
    "RingleaderASGD",
    "RingmasterASGD",
    "RobustACE",
    "from_settings",
    "label",
    "parse",
]
