"""The library's methods by name: a new one is a file beside this one and a line here.

A method that works on another one (`Clipped`) reads this list, so it is added to it in `acefl.rules`.
"""

from __future__ import annotations

from typing import Any

from acefl.core.rule import Method
from acefl.core.settings import Registry
from acefl.rules.ace import ACE
from acefl.rules.aced import ACED
from acefl.rules.area import AREA
from acefl.rules.asgd import ASGD
from acefl.rules.ca2fl import CA2FL
from acefl.rules.calibrated import Calibrated
from acefl.rules.delay_adaptive import DelayAdaptiveASGD
from acefl.rules.delayed_nesterov import DelayedNesterov
from acefl.rules.fadas import FADAS
from acefl.rules.fedasync import FedAsync
from acefl.rules.fedavg import FedAdam, FedAvg
from acefl.rules.fedbuff import FedBuff
from acefl.rules.fedfa import FedFa
from acefl.rules.malenia import MaleniaSGD
from acefl.rules.mifa import MIFA
from acefl.rules.rescaled import RescaledASGD
from acefl.rules.ringleader import RingleaderASGD
from acefl.rules.ringmaster import RingmasterASGD
from acefl.rules.robust import RobustACE
from acefl.rules.stale_weight import FedStaleWeight

_ALL = (
    *(ACE, ACED, CA2FL, FedBuff, ASGD, DelayAdaptiveASGD, RobustACE),
    *(RingmasterASGD, RingleaderASGD, MaleniaSGD, MIFA, FedStaleWeight),
    *(FedAsync, FedFa, AREA, FADAS, FedAvg, FedAdam),
    *(Calibrated, RescaledASGD, DelayedNesterov),
)
PLAIN: dict[str, type[Any]] = {method.__name__: method for method in _ALL}


def registry_of(methods: dict[str, type[Any]]) -> Registry[Method]:
    """What reads these methods by name."""
    return Registry("method", methods, "ACED(tau=300)")
