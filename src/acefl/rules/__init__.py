"""The aggregation methods, one file each, and how a person names one."""

from __future__ import annotations

from typing import Any

from acefl.core.own import is_own, origin, own_method
from acefl.core.rule import Method
from acefl.core.settings import label
from acefl.rules.ace import ACE
from acefl.rules.aced import ACED
from acefl.rules.area import AREA
from acefl.rules.asgd import ASGD
from acefl.rules.ca2fl import CA2FL
from acefl.rules.calibrated import Calibrated
from acefl.rules.clipped import Clipped
from acefl.rules.delay_adaptive import DelayAdaptiveASGD
from acefl.rules.delayed_nesterov import DelayedNesterov
from acefl.rules.fadas import FADAS
from acefl.rules.fedasync import FedAsync
from acefl.rules.fedavg import FedAdam, FedAvg
from acefl.rules.fedbuff import FedBuff
from acefl.rules.fedfa import FedFa
from acefl.rules.malenia import MaleniaSGD
from acefl.rules.mifa import MIFA
from acefl.rules.registry import PLAIN, registry_of
from acefl.rules.rescaled import RescaledASGD
from acefl.rules.ringleader import RingleaderASGD
from acefl.rules.ringmaster import RingmasterASGD
from acefl.rules.robust import RobustACE
from acefl.rules.stale_weight import FedStaleWeight

METHODS: dict[str, type[Any]] = {**PLAIN, "Clipped": Clipped}
_REGISTRY = registry_of(METHODS)


def parse(text: str) -> Method:
    """Settings from what a person types: `ACE`, `aced(tau=300)`, `FedBuff(buffer=5, staleness="sqrt")`.

    A method of the person's own is named with its module: `mypkg.mymodule:MyRule(tau=3)`.
    """
    return own_method(text) if is_own(text) else _REGISTRY.parse(text)


def from_settings(name: str, settings: dict[str, Any]) -> Method:
    """Settings from a recorded name and dictionary, refusing what the method does not know."""
    return _REGISTRY.build(name, settings)


def imported_from(rule: Method) -> dict[str, str]:
    """For the record of a method that is not the library's: where it came from, for whoever needs it again."""
    return {} if METHODS.get(type(rule).__name__) is type(rule) else {"imported_from": origin(rule)}


__all__ = [
    "ACE",
    "ACED",
    "AREA",
    "ASGD",
    "CA2FL",
    "FADAS",
    "METHODS",
    "MIFA",
    "Calibrated",
    "Clipped",
    "DelayAdaptiveASGD",
    "DelayedNesterov",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedFa",
    "FedStaleWeight",
    "MaleniaSGD",
    "RescaledASGD",
    "RingleaderASGD",
    "RingmasterASGD",
    "RobustACE",
    "from_settings",
    "imported_from",
    "label",
    "parse",
]
