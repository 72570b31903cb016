"""The aggregation methods, one file each, and how a person names one."""

from __future__ import annotations

import dataclasses
from typing import Any

from acefl.calls import parse_call
from acefl.errors import InvalidInput
from acefl.rules.ace import ACE
from acefl.rules.aced import ACED
from acefl.rules.asgd import ASGD
from acefl.rules.ca2fl import CA2FL
from acefl.rules.delay_adaptive import DelayAdaptiveASGD
from acefl.rules.fedbuff import FedBuff
from acefl.rules.malenia import MaleniaSGD
from acefl.rules.mifa import MIFA
from acefl.rules.ringleader import RingleaderASGD
from acefl.rules.ringmaster import RingmasterASGD
from acefl.rules.robust import RobustACE
from acefl.rules.stale_weight import FedStaleWeight
from acefl.types import RuleSettings

_ALL = (
    *(ACE, ACED, CA2FL, FedBuff, ASGD, DelayAdaptiveASGD, RobustACE),
    *(RingmasterASGD, RingleaderASGD, MaleniaSGD, MIFA, FedStaleWeight),
)
METHODS: dict[str, type[Any]] = {method.__name__: method for method in _ALL}


def parse(text: str) -> RuleSettings:
    """Settings from what a person types: `ACE`, `aced(tau=300)`, `FedBuff(buffer=5, staleness="sqrt")`."""
    called = parse_call(text)
    if called is None:
        raise _unknown(text)
    return from_settings(*called)


def from_settings(name: str, settings: dict[str, Any]) -> RuleSettings:
    """Settings from a recorded name and dictionary, refusing what the method does not know."""
    method = {known.lower(): cls for known, cls in METHODS.items()}.get(name.lower())
    if method is None:
        raise _unknown(name)
    allowed = [field.name for field in dataclasses.fields(method)]
    for setting in settings:
        if setting not in allowed:
            raise InvalidInput(f"{method.__name__} has no setting {setting!r}; allowed: {', '.join(allowed) or 'none'}")
    built: RuleSettings = method(**settings)
    return built


def label(rule: RuleSettings) -> str:
    """The method with the settings that differ from its defaults: `ACED(tau=300)`."""
    if not dataclasses.is_dataclass(rule):
        return type(rule).__name__
    changed = [
        f"{field.name}={getattr(rule, field.name)!r}"
        for field in dataclasses.fields(rule)
        if getattr(rule, field.name) != field.default
    ]
    return type(rule).__name__ + (f"({', '.join(changed)})" if changed else "")


def _unknown(text: str) -> InvalidInput:
    return InvalidInput(f"unknown method {text!r}; allowed: {', '.join(METHODS)}, with settings as in 'ACED(tau=300)'")


__all__ = [
    "ACE",
    "ACED",
    "ASGD",
    "CA2FL",
    "METHODS",
    "MIFA",
    "DelayAdaptiveASGD",
    "FedBuff",
    "FedStaleWeight",
    "MaleniaSGD",
    "RingleaderASGD",
    "RingmasterASGD",
    "RobustACE",
    "from_settings",
    "label",
    "parse",
]
