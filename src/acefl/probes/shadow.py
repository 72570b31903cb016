"""Which contributions make up an update, and with which weights: read off a shadow of the rule.

Every rule is linear in the updates it is given: u = sum over contributions of weight * update. A second instance of the
same rule that is given unit vectors, one coordinate per contribution, therefore has the weights themselves as its
direction. No rule needs to know of this, a user's own neither.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from acefl import keyed
from acefl.errors import AceflError, InvalidInput
from acefl.rules.fedbuff import BufferRule
from acefl.table import Accumulator, Table
from acefl.types import Arrival, Rule, RuleSettings, State, Vector

_NOTHING = 1e-7  # a coefficient below this is what rounding left of a contribution that is no longer there
_EXACT, _ROUNDED = 1e-3, 0.2  # how far weights times updates may be from the update; the second: of a lossy table


class Contribution(NamedTuple):
    """One accepted update: whose, and computed on which model version."""

    client: int
    trained_on: int


class Weighed(NamedTuple):
    """A contribution and its weight in an update."""

    client: int
    trained_on: int
    weight: float


def shadow_rule(settings: RuleSettings, clients: int, like: Vector, samples: list[int]) -> Rule:
    """The rule that these settings build, with an exact table in memory whatever they say: weights are not rounded."""
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        plain = {"table": "fp32", "home": "memory"}
        known = {field.name for field in dataclasses.fields(settings)}
        settings = dataclasses.replace(settings, **{name: plain[name] for name in plain.keys() & known})
    return settings.build(clients, like, samples)


class Shadow:
    """Follows one run and knows the exact weights of its last step.

    Contributions have slots, coordinates of the shadow's vectors. A slot is given to a new contribution only when no
    number in the rule's state refers to the old one any more. One more coordinate carries each update's projection on a
    fixed direction: what the weights say about it must agree with the update that the model really stepped on.
    """

    def __init__(
        self, settings: RuleSettings, clients: int, samples: list[int], like: Vector, slots: int | None = None
    ) -> None:
        self._slots = slots or 2 * clients + 1024
        self._rule = shadow_rule(settings, clients, torch.zeros(self._slots + 1), samples)
        self._differences: bool = getattr(settings, "sends_differences", False)
        self._tolerance = _EXACT if getattr(settings, "table", "fp32") == "fp32" else _ROUNDED
        signs = torch.randint(0, 2, (like.numel(),), generator=keyed.generator(0x5AD0), dtype=torch.int8)
        self._ray = (2.0 * signs - 1.0).to(device=like.device, dtype=like.dtype)
        self._free = list(range(self._slots))
        self._in_slot: dict[int, Contribution] = {}
        self._projections: dict[int, float] = {}
        self._latest: dict[int, int] = {}  # client -> slot: what a client that sends differences subtracted

    def absorb(self, arrival: Arrival) -> None:
        """Take in what the rule takes in."""
        if not self._free:
            self.sweep()
        slot = self._free.pop()
        unit = torch.zeros(self._slots + 1)
        unit[slot] = 1.0
        unit[-1] = projection = float(arrival.update @ self._ray)
        if self._differences:
            before = self._latest.get(arrival.client)
            if before is not None:
                unit[before] -= 1.0
                projection += self._projections[before]
            self._latest[arrival.client] = slot
        self._in_slot[slot] = Contribution(arrival.client, arrival.trained_on)
        self._projections[slot] = projection
        self._rule.absorb(
            Arrival(arrival.client, unit, arrival.trained_on, arrival.version, arrival.task),
        )

    def step(self) -> None:
        """The model has stepped."""
        self._rule.direction()

    def weights(self, update: Vector) -> list[Weighed]:
        """What the last step was made of; `update` is what the model stepped on, to check the answer by."""
        direction = self._rule.direction()
        made_of = {slot: weight for slot, weight in enumerate(direction.tolist()) if weight and slot in self._in_slot}
        parts = [weight * self._projections[slot] for slot, weight in made_of.items()]
        scale = sum(map(abs, parts)) + 1e-12
        for told, tolerance in ((float(direction[-1]), _EXACT), (float(update @ self._ray), self._tolerance)):
            if math.isfinite(told) and abs(sum(parts) - told) > tolerance * scale:
                raise AceflError(
                    "the weights of the contributions do not explain the update: the rule is not linear in what it is "
                    "given, or holds part of its state outside of state_dict()"
                )
        return [Weighed(*self._in_slot[slot], weight) for slot, weight in made_of.items()]

    def sweep(self) -> None:
        """Free the slots that nothing in the rule's state refers to."""
        used = torch.zeros(self._slots, dtype=torch.bool)
        for coefficients in _vectors(self._rule.state_dict(), self._slots + 1):
            used |= (coefficients[:, :-1].abs() > _NOTHING).any(0)
        used[list(self._latest.values())] = True
        for slot in [slot for slot in self._in_slot if not used[slot]]:
            del self._in_slot[slot], self._projections[slot]
            self._free.append(slot)
        if not self._free:
            raise InvalidInput(f"the rule keeps more than {self._slots} contributions; allow more by slots=")

    def versions(self) -> set[int]:
        """The model versions of the contributions that still count, or did when slots were last swept."""
        return {contribution.trained_on for contribution in self._in_slot.values()}

    def state_dict(self) -> State:
        return {
            "rule": self._rule.state_dict(),
            "free": list(self._free),
            "slots": [[slot, *contribution] for slot, contribution in self._in_slot.items()],
            "projections": [self._projections[slot] for slot in self._in_slot],
            "latest": [[client, slot] for client, slot in self._latest.items()],
        }

    def load_state_dict(self, state: State) -> None:
        self._rule.load_state_dict(state["rule"])
        self._free = list(state["free"])
        self._in_slot = {slot: Contribution(client, version) for slot, client, version in state["slots"]}
        self._projections = dict(zip(self._in_slot, state["projections"], strict=True))
        self._latest = {client: slot for client, slot in state["latest"]}


def _vectors(state: Any, dim: int) -> Iterator[torch.Tensor]:
    """Every vector of this length in a rule's state, stacked as they are found; tables hold theirs as bytes."""
    if isinstance(state, torch.Tensor):
        if state.dtype == torch.uint8 and state.dim() and state.shape[-1] == 4 * dim:
            state = state.contiguous().view(torch.float32)
        if state.dim() and state.shape[-1] == dim:
            yield state.reshape(-1, dim)
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from _vectors(value, dim)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _vectors(value, dim)


class _SameAgain(Table):
    """A table that need not look twice at a vector it has: in client space every visit brings the same one."""

    def __init__(self, clients: int, like: Vector) -> None:
        super().__init__(clients, like)
        self._given: dict[int, Vector] = {}

    def exchange(self, client: int, new: Vector, into: Accumulator | Vector, scale: float) -> None:
        if self._given.get(client) is not new:
            super().exchange(client, new, into, scale)
            self._given[client] = new

    def forget(self, client: int) -> None:
        self._given.pop(client, None)
        super().forget(client)


class InfluenceShadow:
    """Every client's weights, summed over all steps: unit vectors with one coordinate per client.

    Above `most` clients neighbours in the given order share a coordinate, so that memory stays linear in the number of
    clients. A rule that only has a buffer remembers nobody beyond it, so its weights are known without any vector.
    """

    def __init__(self, settings: RuleSettings, clients: int, samples: list[int], order: list[int], most: int) -> None:
        groups = min(clients, most)
        self._rule = shadow_rule(settings, clients, torch.zeros(groups), samples)
        self._buffer: list[tuple[int, float]] = []
        if type(getattr(self._rule, "table", None)) is Table:
            vars(self._rule)["table"] = _SameAgain(clients, torch.zeros(groups))
        self.group = [0] * clients
        for rank, client in enumerate(order):
            self.group[client] = rank * groups // clients
        self.size = np.bincount(self.group, minlength=groups)
        self._units = list(torch.eye(groups).unbind(0))
        self._nothing = torch.zeros(groups)
        self._came_before: set[int] | None = set() if getattr(settings, "sends_differences", False) else None
        self.sums = np.zeros(groups)
        self._direction: Vector | None = None

    def absorb(self, client: int, trained_on: int, version: int) -> None:
        group = self.group[client]
        if type(self._rule) is BufferRule:
            self._buffer.append((group, self._rule.weigh(version - trained_on)))
            return
        update = self._units[group]
        if self._came_before is not None:
            if client in self._came_before:
                update = self._nothing  # the change of a unit vector since the last visit
            self._came_before.add(client)
        self._rule.absorb(Arrival(client, update, trained_on, version, 0))

    def step(self) -> None:
        if type(self._rule) is BufferRule:
            for group, weight in self._buffer:
                self.sums[group] += weight / len(self._buffer)
            self._buffer.clear()
            return
        direction = self._rule.direction()
        if direction is not self._direction:  # most rules lend the same tensor every time: one view serves
            self._direction, self._view = direction, direction.numpy()
        self.sums += self._view

    def state_dict(self) -> State:
        return {
            "rule": self._rule.state_dict(),
            "sums": self.sums.tolist(),
            "buffer": [list(entry) for entry in self._buffer],
            "came_before": sorted(self._came_before or ()),
        }

    def load_state_dict(self, state: State) -> None:
        self._rule.load_state_dict(state["rule"])
        self.sums[:] = state["sums"]
        self._buffer = [(int(group), float(weight)) for group, weight in state["buffer"]]
        if self._came_before is not None:
            self._came_before = set(state["came_before"])
