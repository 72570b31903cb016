"""Which contributions make up an update, and with which weights: read off a shadow of the rule.

Every rule is linear in the updates it is given: u = sum over contributions of weight * update. A second instance of the
same rule that is given unit vectors, one coordinate per contribution, therefore has the weights themselves as its
direction. No rule needs to know of this, a user's own neither.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from acefl.core import rng as keyed
from acefl.core.errors import AceflError, InvalidInput
from acefl.core.rule import Method, Rule, Upload
from acefl.core.settings import settings_of
from acefl.core.types import Arrival, State, Vector

_NOTHING = 1e-7  # a coefficient below this is what rounding left of a contribution that is no longer there
_EXACT = 1e-3  # how far weights times updates may be from the update, as a share of how long they are ...
_ROUNDED = {"fp32": _EXACT, "bf16": 0.2, "int8": 0.2, "int4": 1.0}  # ... and from what a table stored of them


class Contribution(NamedTuple):
    """One accepted update: whose, and computed on which model version."""

    client: int
    trained_on: int


class Weighed(NamedTuple):
    """A contribution and its weight in an update; `fresh`: it came since the step before."""

    client: int
    trained_on: int
    weight: float
    fresh: bool


def shadow_rule(settings: Method, clients: int, like: Vector, samples: list[int] | None) -> Rule:
    """The rule that these settings build, with an exact table in memory whatever they say: weights are not rounded.

    Of a method that clips, the rule of the method within: weights are those of what clipping left.
    """
    settings = settings.inner
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
        self, settings: Method, clients: int, samples: list[int], like: Vector, slots: int | None = None
    ) -> None:
        self._slots = slots or 2 * clients + 1024
        self._rule = shadow_rule(settings, clients, torch.zeros(self._slots + 1), samples)
        self._differences = settings.uploads is Upload.CHANGE
        self._tolerance = _ROUNDED.get(settings_of(settings).get("table", "fp32"), _EXACT)
        signs = torch.randint(0, 2, (like.numel(),), generator=keyed.generator(0x5AD0), dtype=torch.int8)
        self._ray = (2.0 * signs - 1.0).to(device=like.device, dtype=like.dtype)
        self._free = list(range(self._slots))
        self._in_slot: dict[int, Contribution] = {}
        self._projections: dict[int, float] = {}
        self._latest: dict[int, int] = {}  # client -> slot: what a client that sends differences subtracted
        self._since_step: set[int] = set()  # slots of what came since the last step
        self._fresh: set[int] = set()  # the same when that step was made

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
        self._since_step.add(slot)
        self._rule.absorb(
            Arrival(arrival.client, unit, arrival.trained_on, arrival.version, arrival.task),
        )

    def dispatched(self, clients: Sequence[int], version: int) -> None:
        """Whom a model was sent to, for rules that want to know."""
        self._rule.dispatched(clients, version)

    def lost(self, client: int) -> None:
        """Nobody waits for this client any more."""
        self._rule.lost(client)

    def step(self) -> None:
        """The model has stepped."""
        self._fresh, self._since_step = self._since_step, set()
        self._direction = self._rule.direction()
        self._rule.clear()

    def weights(self, update: Vector) -> list[Weighed]:
        """What the last step was made of; `update` is what the model stepped on, to check the answer by."""
        direction = self._direction
        made_of = {slot: weight for slot, weight in enumerate(direction.tolist()) if weight and slot in self._in_slot}
        parts = [weight * self._projections[slot] for slot, weight in made_of.items()]
        scale = sum(map(abs, parts)) + 1e-12
        # Beside the size of the parts the update's length, since projections of few rows may be next to nothing.
        length = float(torch.linalg.vector_norm(update, dtype=torch.float64))
        rounded = self._tolerance * (scale + length)
        for told, room in ((float(direction[-1]), _EXACT * scale), (float(update @ self._ray), rounded)):
            if math.isfinite(told) and abs(sum(parts) - told) > room:
                raise AceflError(
                    "the weights of the contributions do not explain the update: the rule is not linear in what it is "
                    "given, or holds part of its state outside of state_dict()"
                )
        return [Weighed(*self._in_slot[slot], weight, slot in self._fresh) for slot, weight in made_of.items()]

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
            "since_step": sorted(self._since_step),
            "fresh": sorted(self._fresh),
        }

    def load_state_dict(self, state: State) -> None:
        self._rule.load_state_dict(state["rule"])
        self._free = list(state["free"])
        self._in_slot = {slot: Contribution(client, version) for slot, client, version in state["slots"]}
        self._projections = dict(zip(self._in_slot, state["projections"], strict=True))
        self._latest = {client: slot for client, slot in state["latest"]}
        self._since_step, self._fresh = set(state["since_step"]), set(state["fresh"])


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
