"""Settings and plain values: there and back again gives the same settings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acefl import rules
from acefl.core import optimizers, schedules
from acefl.core.errors import InvalidInput
from acefl.core.settings import build, label, plain, settings_of, to_record
from acefl.core.stop import Stop
from acefl.fleets.scenario import Scenario
from acefl.tasks import LocalWork

CHANGED: list[Any] = [
    rules.ACED(tau=300, table="int8"),
    rules.FedBuff(buffer=3, staleness="sqrt"),
    optimizers.Adam(beta2=0.9),
    schedules.Cosine(warmup=0.1),
]
DEFAULT: list[Any] = [kind() for kind in {**rules.METHODS, **optimizers.OPTIMIZERS, **schedules.SCHEDULES}.values()]


def read(thing: Any, text: str) -> Any:
    [module] = [m for m in (rules, optimizers, schedules) if type(thing) in vars(m).values()]
    return module.parse(text)


@pytest.mark.parametrize("thing", [*DEFAULT, *CHANGED], ids=label)
def test_a_label_is_what_a_person_would_type(thing: Any) -> None:
    assert read(thing, label(thing)) == thing
    assert read(thing, label(thing).replace(type(thing).__name__, type(thing).__name__.lower(), 1)) == thing


@pytest.mark.parametrize("thing", [*DEFAULT, *CHANGED], ids=label)
def test_a_record_builds_the_same_settings_again(thing: Any) -> None:
    record = json.loads(json.dumps(plain(to_record(thing))))
    if type(thing) in rules.METHODS.values():
        assert rules.from_settings(record.pop("name"), record) == thing
    else:
        module = optimizers if type(thing) in optimizers.OPTIMIZERS.values() else schedules
        assert module.from_record(record) == thing


@pytest.mark.parametrize("thing", [Scenario(spread=30.0), Stop(steps=7), LocalWork("sgd", lr=0.5)])
def test_fields_build_the_same_settings_again(thing: Any) -> None:
    assert build(type(thing), json.loads(json.dumps(plain(settings_of(thing))))) == thing
    with pytest.raises(InvalidInput, match=f"{type(thing).__name__} has no setting 'colour'; allowed: "):
        build(type(thing), {"colour": 1})


def test_local_work_names_its_optimizer_once() -> None:
    assert LocalWork.parse("sgd(steps=5, lr=0.05)") == LocalWork("sgd", lr=0.05, steps=5)
    with pytest.raises(InvalidInput, match="local sgd has no setting 'optimizer'; allowed: lr, steps"):
        LocalWork.parse("sgd(optimizer='adamw')")
