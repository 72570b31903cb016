"""The public laws have teeth: for each there is a rule that breaks it, and the message says which one it was."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from acefl import ACE, AceflError, Arrival, InvalidInput
from acefl.core.rule import Audience, Method, Rule, Upload
from acefl.core.types import State, Vector
from acefl.testing import LAWS, check_rule


class Mean(Rule):
    """A small correct rule: the mean of what came since the last step."""

    saved = ("total", "count")

    def __init__(self, like: Vector) -> None:
        self.total, self.count = torch.zeros_like(like), 0

    def absorb(self, arrival: Arrival) -> bool:
        self.total = self.total + arrival.update
        self.count += 1
        return True

    def direction(self) -> Vector:
        return self.total / self.count

    def clear(self) -> None:
        self.total, self.count = torch.zeros_like(self.total), 0


@dataclass(frozen=True)
class Own(Method):
    """A user's settings: they build a rule of the given kind."""

    kind: Callable[[Vector], Rule] = Mean

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        return self.kind(like)


class WrongShape(Mean):
    def direction(self) -> Vector:
        return super().direction()[:1]


class WrongDtype(Mean):
    def direction(self) -> Vector:
        return super().direction().double()


class NotFinite(Mean):
    def direction(self) -> Vector:
        return super().direction() / 0.0


class SaysNothing(Mean):
    def absorb(self, arrival: Arrival) -> Any:
        super().absorb(arrival)
        return 1


class NeverSteps(Mean):
    def absorb(self, arrival: Arrival) -> bool:
        super().absorb(arrival)
        return False


class ForgetsWhenAsked(Mean):
    def direction(self) -> Vector:
        direction = super().direction()
        self.total = torch.zeros_like(self.total)
        return direction


class Raises(Mean):
    def direction(self) -> Vector:
        raise KeyError("tau")


class Noisy(Mean):
    def absorb(self, arrival: Arrival) -> bool:
        super().absorb(arrival)
        self.total = self.total + 1e-3 * torch.rand_like(self.total)
        return True


class Counting(Mean):
    built = itertools.count()

    def __init__(self, like: Vector) -> None:
        super().__init__(like)
        self.scale = 1.0 + next(self.built) / 1000

    def direction(self) -> Vector:
        return super().direction() * self.scale


class Shared(Mean):
    """Momentum in a class attribute: reset at build, so one rule at a time looks right."""

    velocity = torch.zeros(1)

    def __init__(self, like: Vector) -> None:
        super().__init__(like)
        Shared.velocity = torch.zeros_like(like)

    def absorb(self, arrival: Arrival) -> bool:
        super().absorb(arrival)
        Shared.velocity = 0.9 * Shared.velocity + arrival.update
        return True

    def direction(self) -> Vector:
        return super().direction() + Shared.velocity


class WritesToInput(Mean):
    def absorb(self, arrival: Arrival) -> bool:
        arrival.update.mul_(1.0)
        return super().absorb(arrival)


class WritesToModel(Mean):
    def __init__(self, like: Vector) -> None:
        super().__init__(like.zero_())


class KeepsAlias(Mean):
    """Remembers the updates themselves and adds them up later."""

    saved = ("kept",)

    def __init__(self, like: Vector) -> None:
        super().__init__(like)
        self.kept: list[Vector] = []

    def absorb(self, arrival: Arrival) -> bool:
        self.kept.append(arrival.update)
        return True

    def direction(self) -> Vector:
        return torch.stack(self.kept).mean(0)

    def clear(self) -> None:
        self.kept = []


class LosesCount(Mean):
    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.count = max(self.count, 2)


class LosesTotal(Mean):
    saved = ("count",)


class RoundsInCheckpoint(Mean):
    def state_dict(self) -> State:
        return {**super().state_dict(), "total": self.total.bfloat16().float()}


class SavesSet(Mean):
    def state_dict(self) -> State:
        return {**super().state_dict(), "clients": {1, 2}}


class SavesNumberedKeys(Mean):
    def state_dict(self) -> State:
        return {**super().state_dict(), "rows": {1: 2.0}}


class LiveState(Mean):
    """Sums in place and hands out the sum itself."""

    def absorb(self, arrival: Arrival) -> bool:
        self.total.add_(arrival.update)
        self.count += 1
        return True

    def clear(self) -> None:
        self.total.zero_()
        self.count = 0

    def state_dict(self) -> State:
        return {"total": self.total, "count": self.count}


class LoadsAlias(LiveState):
    def state_dict(self) -> State:
        return Mean.state_dict(self)

    def load_state_dict(self, state: State) -> None:
        self.total, self.count = state["total"], state["count"]


class LikesClientZero(Mean):
    def absorb(self, arrival: Arrival) -> bool:
        super().absorb(arrival)
        if arrival.client == 0:
            self.total = self.total + arrival.update
        return True


class LastOneOnly(Mean):
    def absorb(self, arrival: Arrival) -> bool:
        self.total, self.count = arrival.update.clone(), 1
        return True


class FusesWrongly(Mean):
    def advance(self, arrival: Arrival, model: Vector, lr: float) -> bool:
        self.absorb(arrival)
        model.sub_(self.direction(), alpha=1.01 * lr)
        return True


class Waits(Mean):
    """Steps when everybody has come, and believes that nobody ever joins, leaves or is lost."""

    saved = ("total", "count", "came", "clients")

    def __init__(self, like: Vector) -> None:
        super().__init__(like)
        self.came, self.clients = set[int](), 6

    def absorb(self, arrival: Arrival) -> bool:
        self.came.add(arrival.client)
        return super().absorb(arrival) and len(self.came) >= self.clients

    @property
    def audience(self) -> Audience:
        return Audience.NEWCOMERS if 0 < len(self.came) < self.clients else Audience.EVERYBODY

    def clear(self) -> None:
        super().clear()
        self.came = set()


class WaitsForNewcomers(Waits):
    def join(self, clients: int, weight: float = 1.0) -> None:
        self.clients = clients


class NeverForgets(Mean):
    """The mean of every client's first update, whoever has left since."""

    saved = ("first",)

    def __init__(self, like: Vector) -> None:
        super().__init__(like)
        self.first: dict[int, Vector] = {}

    def absorb(self, arrival: Arrival) -> bool:
        self.first.setdefault(arrival.client, arrival.update.clone())
        return True

    def direction(self) -> Vector:
        return torch.stack(list(self.first.values())).mean(0)

    def clear(self) -> None:
        pass


class SendsNobodyAnything(Mean):
    @property
    def audience(self) -> Audience:
        return Audience.NOBODY


BROKEN: list[tuple[str, type[Mean]]] = [
    ("direction", WrongShape),
    ("direction", WrongDtype),
    ("direction", NotFinite),
    ("direction", SaysNothing),
    ("direction", NeverSteps),
    ("direction", ForgetsWhenAsked),
    ("direction", Raises),
    ("replay", Noisy),
    ("replay", Counting),
    ("independence", Shared),
    ("inputs", WritesToInput),
    ("inputs", WritesToModel),
    ("ownership", KeepsAlias),
    ("checkpoint", LosesCount),
    ("checkpoint", LosesTotal),
    ("checkpoint", RoundsInCheckpoint),
    ("checkpoint", SavesSet),
    ("checkpoint", SavesNumberedKeys),
    ("snapshot", LiveState),
    ("snapshot", LoadsAlias),
    ("names", LikesClientZero),
    ("batches", LastOneOnly),
    ("fusion", FusesWrongly),
    ("joining", WaitsForNewcomers),
    ("leaving", NeverForgets),
    ("losses", Waits),
    ("rounds", SendsNobodyAnything),
]


def test_a_correct_rule_passes() -> None:
    check_rule(Own())


@pytest.mark.parametrize(("law", "kind"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_each_law_catches_the_rule_that_breaks_it(law: str, kind: type[Mean]) -> None:
    with pytest.raises((AssertionError, AceflError, KeyError)):
        LAWS[law](Own(kind))
    with pytest.raises(AssertionError, match=r"^Own\(.*\) breaks the law '\w+': .+"):
        check_rule(Own(kind))


@pytest.mark.parametrize("law", LAWS)
def test_every_law_is_broken_by_some_rule(law: str) -> None:
    assert law in {name for name, _ in BROKEN}


def test_the_message_names_method_law_and_reason() -> None:
    with pytest.raises(AssertionError, match="breaks the law 'names': other client ids give another direction"):
        check_rule(Own(LikesClientZero))
    with pytest.raises(AssertionError, match=re.escape("breaks the law 'direction': KeyError: 'tau'")):
        check_rule(Own(Raises))


def test_a_built_rule_instead_of_settings_is_refused_in_one_line() -> None:
    rule: Any = Mean(torch.zeros(3))
    with pytest.raises(InvalidInput, match=r"Mean is no method; allowed: settings \(class Mean\(acefl.Method\)"):
        check_rule(rule)


class Watched(Method):
    """Settings that note what the first rule built from them absorbs."""

    def __init__(self, method: ACE) -> None:
        self.method, self.absorbed = method, list[Arrival]()
        self.built = False

    @property
    def uploads(self) -> Upload:
        return self.method.uploads

    def build(self, clients: int, like: Vector, samples: Sequence[int] | None = None) -> Rule:
        rule = self.method.build(clients, like, samples)
        if not self.built:
            absorb, self.built = rule.absorb, True

            def note(arrival: Arrival) -> bool:
                self.absorbed.append(arrival)
                return absorb(arrival)

            rule.absorb = note  # type: ignore[method-assign]
        return rule


def test_clients_send_differences_where_the_settings_say_so() -> None:
    """What a client sent so far adds up to the gradient that it sends to a rule that wants gradients."""
    gradients, changes = Watched(ACE(variant="direct")), Watched(ACE(variant="client-held"))
    LAWS["direction"](gradients)
    LAWS["direction"](changes)
    sent: dict[int, Vector] = {}
    for gradient, change in zip(gradients.absorbed, changes.absorbed, strict=True):
        sent[change.client] = sent.get(change.client, 0.0) + change.update
        torch.testing.assert_close(sent[change.client], gradient.update, rtol=0, atol=1e-4)
