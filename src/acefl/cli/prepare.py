"""What a person asked for, checked as a whole and expected before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from acefl.cli.options import ScenarioOptions, StopOptions, TaskOptions

if TYPE_CHECKING:
    from acefl.core.rule import Method
    from acefl.core.stop import Stop
    from acefl.fleets.scenario import Scenario
    from acefl.tasks import Task


@dataclass(frozen=True)
class Prepared:
    """A task, a scenario and a budget that fit each other."""

    settings: dict[str, Any]  # of the task, for `acefl.studies`
    task: Task  # the same, built for one of the seeds
    scenario: Scenario
    stop: Stop
    expectation: list[str]  # the staleness to expect
    warnings: list[str]  # settings that cannot matter

    def expecting(self, line: str) -> Prepared:
        """The same with one thing more to expect, such as what it will cost."""
        return replace(self, expectation=[*self.expectation, line])


def compute_on_one_thread() -> None:
    """As in the workers of a comparison: every command gives the same bits, and small models gain nothing from more."""
    import torch

    torch.set_num_threads(1)


def prepare(
    task: TaskOptions, scenario: ScenarioOptions, stop: StopOptions, rules: Sequence[Method], seed: int
) -> Prepared:
    """Build everything that can be wrong, so that what is wrong is said before work begins.

    From here on torch uses one thread.
    """
    from acefl.tasks.base import client_names
    from acefl.tasks.sources import build_task

    compute_on_one_thread()
    budget, setting, settings = stop.build(), scenario.build(), task.build()
    built = build_task(settings, seed)
    setting.check(built.clients)
    expectation = _expectation(setting.matched(built.clients, client_names(built)), built.clients, rules)
    return Prepared(settings, built, setting, budget, expectation, setting.warnings(by_time=budget.time is not None))


def _expectation(scenario: Scenario, clients: int, rules: Sequence[Method]) -> list[str]:
    """One sentence, or one per group of methods that step after different numbers of arrivals."""
    from acefl.rules import label
    from acefl.studies.rehearsal import expectation

    groups: dict[str, list[str]] = {}
    for rule in rules:
        expected = expectation(rule, scenario, clients)
        groups.setdefault(expected, []).append(label(rule))
    if len(groups) == 1:
        return list(groups)
    return [f"{sentence}: {', '.join(names)}" for sentence, names in groups.items()]
