"""Our own ideas are rules like any other: they keep the laws, and are ACE where their idea is switched off."""

from __future__ import annotations

from typing import Any

import pytest
from experiments.ideas.ideas import DampedACE, FadingACED, MomentumACE

from acefl import ACE, Scenario, Stop, simulate, tasks
from acefl.testing import LAWS

IDEAS = [DampedACE(), FadingACED(tau=3), MomentumACE(blend=0.3)]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("rule", IDEAS, ids=lambda rule: type(rule).__name__)
def test_an_idea_keeps_the_laws(rule: Any, law: str) -> None:
    LAWS[law](rule)


def _gap(rule: Any) -> float:
    task = tasks.quadratic(clients=6, dim=4, seed=0)
    scenario = Scenario(spread=8.0, dropout=0.5)
    return simulate(task, rule, lr=0.05, scenario=scenario, stop=Stop(arrivals=200)).final["gap"]


def test_without_its_idea_each_is_ace() -> None:
    ace = _gap(ACE())
    for off in (MomentumACE(blend=1.0), FadingACED(tau=10_000)):
        assert _gap(off) == pytest.approx(ace, rel=1e-4)
    for on in (MomentumACE(blend=0.3), FadingACED(tau=3), DampedACE()):
        assert _gap(on) != pytest.approx(ace, rel=1e-4)
