"""Every client's weights, summed over all steps: a shadow of the rule that is given one unit vector per client.

Watching must cost next to nothing, so what is known beforehand is not computed. In client space a client brings the
same vector at every visit: a rule that steps on all clients' latest updates therefore steps the same way until somebody
new comes, a buffer's weights follow from who is in it, and of an active set it is enough to know who joined and left.
Any other rule, a user's own too, is followed step by step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from acefl.core.rule import Method, Rule, Upload
from acefl.core.types import Arrival, State, Vector
from acefl.probes.shadow import shadow_rule
from acefl.rules.ace import ClientHeldACE, DirectACE, IncrementalACE
from acefl.rules.aced import ACEDRule
from acefl.rules.ca2fl import CA2FLRule
from acefl.rules.fedbuff import FedBuffRule
from acefl.table import Accumulator, Table

Numbers = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
_ALL_CLIENTS = (IncrementalACE, DirectACE, ClientHeldACE, CA2FLRule)


class Influence:
    """Follows the accepted arrivals of one run, and knows the sum of each client's weights.

    Above `most` clients neighbours in the given order share a coordinate, so that memory stays linear in the number of
    clients.
    """

    def __init__(self, settings: Method, clients: int, samples: list[int] | None, order: list[int], most: int) -> None:
        groups = min(clients, most)
        self._rule = shadow_rule(settings, clients, torch.zeros(groups), samples)
        self._sums = np.zeros(groups)
        group = np.zeros(clients, dtype=np.int64)
        group[order] = np.arange(clients) * groups // clients
        self._share_coordinates(group)
        self._nothing = torch.zeros(groups) if settings.uploads is Upload.CHANGE else None
        self._came: set[int] = set()
        self._sent: deque[tuple[int, int, int]] = deque()
        self._settled = False  # whether the last step had nobody new in it
        self._last = np.zeros(groups)  # the weights of the last step that was computed
        self._again = 0  # how many steps with the same weights came after it
        self._members: _Members | None = None
        self._follow: Callable[[Whole, Whole, Whole], None] = self._each
        if type(self._rule) is FedBuffRule:
            self._follow = self._buffers
        elif type(self._rule) is ACEDRule:
            self._members = _Members(clients, torch.zeros(groups))
            self._rule.table = self._members
        elif type(self._rule) is CA2FLRule:
            self._rule.table = _SameAgain(clients, torch.zeros(groups))
        self._repeats = type(self._rule) in _ALL_CLIENTS

    def _share_coordinates(self, group: Whole) -> None:
        groups = len(self._sums)
        self.group = group
        self.size = np.bincount(group, minlength=groups)
        units = torch.eye(groups).unbind(0)
        self._units = [units[place] for place in group.tolist()]

    @property
    def goes_by_dispatch(self) -> bool:
        """Whether the rule wants to know who was sent a model when."""
        return type(self._rule).dispatched is not Rule.dispatched

    def follow(
        self, client: Whole, trained_on: Whole, version: Whole, sent: Sequence[tuple[int, int, int]] = ()
    ) -> None:
        """Arrivals that whole steps were made of, in their order: those of one version made the step to the next.

        `sent`: (how many of these arrivals came before, client, version) of models sent out.
        """
        self._sent = deque(sent)
        self._follow(client, trained_on, version)

    @property
    def sums(self) -> Numbers:
        """The sum of weights over all steps so far, of every group."""
        sums = self._sums + self._again * self._last
        if self._members is not None:
            for client, sum_of_weights in self._members.shares():
                sums[self.group[client]] += sum_of_weights
        return sums

    def _buffers(self, client: Whole, trained_on: Whole, version: Whole) -> None:
        weigh = cast(FedBuffRule, self._rule).weigh
        counts = np.diff(_bounds(version))
        weights = np.fromiter(map(weigh, (version - trained_on).tolist()), np.float64, len(version))
        self._sums += np.bincount(self.group[client], weights / np.repeat(counts, counts), len(self._sums))

    def _each(self, client: Whole, trained_on: Whole, version: Whole) -> None:
        bounds = _bounds(version).tolist()
        clients, models, versions = client.tolist(), trained_on.tolist(), version.tolist()
        for start, stop in pairwise(bounds):
            if self._repeats:
                known = self._came.issuperset(clients[start:stop])
                if known and self._settled:
                    self._again += 1
                    continue
                self._settled = known
            for row in range(start, stop):
                while self._sent and self._sent[0][0] <= row:
                    _, whom, model = self._sent.popleft()
                    self._rule.dispatched([whom], model)
                self._absorb(clients[row], models[row], versions[row])
            if self._members is not None:
                self._members.step()
            else:
                self._sums += self._again * self._last
                self._last, self._again = self._rule.direction().numpy().astype(np.float64), 1
            self._rule.clear()

    def _absorb(self, client: int, trained_on: int, version: int) -> None:
        update = self._units[client]
        if self._nothing is not None and client in self._came:
            update = self._nothing  # the change of a unit vector since the last visit
        self._came.add(client)
        self._rule.absorb(Arrival(client, update, trained_on, version, 0))

    def state_dict(self) -> State:
        return {
            "rule": self._rule.state_dict(),
            "group": self.group.tolist(),
            "sums": self._sums.tolist(),
            "last": self._last.tolist(),
            "again": self._again,
            "came": sorted(self._came),
            "settled": self._settled,
            "members": self._members.clocks() if self._members is not None else {},
        }

    def load_state_dict(self, state: State) -> None:
        self._rule.load_state_dict(state["rule"])
        self._share_coordinates(np.asarray(state["group"], dtype=np.int64))
        self._sums[:], self._last[:] = state["sums"], state["last"]
        self._again, self._settled = int(state["again"]), bool(state["settled"])
        self._came = set(state["came"])
        if self._members is not None:
            self._members.load_clocks(state["members"])


class _SameAgain(Table):
    """A table that need not look twice at what a client brings."""

    def exchange(self, client: int, new: Vector, into: Accumulator | Vector, scale: float) -> None:
        if client not in self:
            super().exchange(client, new, into, scale)


class _Members(Table):
    """Stands in for an active set's table, and notes who is in the sum and since when.

    While nobody joins or leaves, each step gives a member its weight over the weight of all, so one clock that advances
    by 1 / weight of all serves every member, and a step costs the same whatever their number.
    """

    def __init__(self, clients: int, like: Vector) -> None:
        super().__init__(clients, like)
        self._clock = 0.0
        self._together = 0.0  # the weight of all members
        self._since: dict[int, tuple[float, float]] = {}  # member -> its weight, and the clock when it joined
        self._gained = [0.0] * clients

    def exchange(self, client: int, new: Vector, into: Accumulator | Vector, scale: float) -> None:
        pass  # the vector is the one that the client has brought before

    def add_row(self, client: int, into: Accumulator | Vector, scale: float) -> None:
        self._together += scale
        if scale > 0:
            self._since[client] = scale, self._clock
            return
        weight, joined = self._since.pop(client)
        self._gained[client] += weight * (self._clock - joined)
        if not self._since:
            self._together = 0.0

    def step(self) -> None:
        if self._since:
            self._clock += 1.0 / self._together

    def shares(self) -> list[tuple[int, float]]:
        """The sum of every client's weights over all steps."""
        sums = list(self._gained)
        for client, (weight, joined) in self._since.items():
            sums[client] += weight * (self._clock - joined)
        return list(enumerate(sums))

    def clocks(self) -> dict[str, Any]:
        return {
            "clock": self._clock,
            "together": self._together,
            "since": [[client, *entry] for client, entry in self._since.items()],
            "gained": list(self._gained),
        }

    def load_clocks(self, state: dict[str, Any]) -> None:
        self._clock, self._together = float(state["clock"]), float(state["together"])
        self._since = {int(client): (weight, joined) for client, weight, joined in state["since"]}
        self._gained = list(state["gained"])


def _bounds(version: Whole) -> Whole:
    """Where each version's arrivals begin, and the end."""
    return np.concatenate(([0], np.flatnonzero(np.diff(version)) + 1, [len(version)]))
