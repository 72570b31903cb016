"""The server: model, version, rule, step, and the gate in front of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from acefl.admission import Gate
from acefl.errors import require
from acefl.types import Arrival, Lost, Rule, State, Vector


class Server:
    """Owns the model vector and turns arrivals into steps by its rule.

    `on_arrival(arrival, reason)` hears of every arrival, refused (with the reason) or accepted (with the empty string).
    """

    def __init__(
        self,
        model: Vector,
        rule: Rule,
        lr: float,
        clients: int,
        *,
        gate: Gate | None = None,
        on_arrival: Callable[[Arrival, str], None] | None = None,
    ) -> None:
        require(math.isfinite(lr) and lr > 0, f"lr is {lr}; allowed: a finite number above 0")
        self.model = model.clone()
        self.version = 0
        self.accepted = 0
        self.refused: Counter[str] = Counter()
        self.refused_by_client: dict[int, Counter[str]] = {}  # those of unknown clients together as -1
        self.participation = [0] * clients
        self.rule = rule
        self.lr = lr
        self._gate = gate or Gate(clients, self.model)
        self._on_arrival = on_arrival
        self._advance: Callable[[Arrival, Vector, float], bool] | None = getattr(rule, "advance", None)

    @property
    def warming(self) -> bool:
        """Whether the rule still waits for some client's first update, so that nobody gets a second model yet."""
        return bool(getattr(self.rule, "warming", False))

    def handle(self, events: Sequence[Arrival | Lost]) -> bool:
        """Take in what came and step at most once; True if the model changed.

        What is lost or refused leaves no trace, not even in the last bit: the step depends on the admitted alone.
        """
        admitted = [arrival for event in events if (arrival := self._take(event)) is not None]
        if len(admitted) == 1 and self._advance is not None:
            stepped = self._advance(admitted[0], self.model, self.lr)
        else:
            stepped = any([self.rule.absorb(arrival) for arrival in admitted])
            if stepped:
                self.model.sub_(self.rule.direction(), alpha=self.lr)
        self.version += stepped
        return stepped

    def forget(self, client: int) -> None:
        """A client has left for good: it no longer counts in the mean, and nobody waits for it."""
        known = len(self.participation)
        require(0 <= client < known, f"client is {client}; allowed: one of the {known} known, 0 to {known - 1}")
        forget = getattr(self.rule, "forget", None)
        if forget is not None:
            forget(client)

    def stop_waiting(self) -> None:
        """End the first round without those who have not reported; they count once they do."""
        for client, arrivals in enumerate(self.participation):
            if not arrivals:
                self.forget(client)

    def admit(self, clients: int, weight: float = 1.0) -> None:
        """The federation now has this many clients: those beyond the ones known so far may arrive from now on."""
        known = len(self.participation)
        require(clients >= known, f"clients is {clients}; allowed: at least the {known} known already")
        self.participation.extend([0] * (clients - known))
        self._gate.clients = clients
        grow = getattr(self.rule, "grow", None)
        if grow is not None:
            grow(clients, weight)

    def _take(self, event: Arrival | Lost) -> Arrival | None:
        if isinstance(event, Arrival):
            return self._admit(event)
        first = self.warming and self.participation[event.client] == 0
        if first or getattr(self.rule, "needs_everybody", False):
            self.forget(event.client)
        return None

    def _admit(self, arrival: Arrival) -> Arrival | None:
        """The arrival as the rule may see it (the gate may have shortened its update), or None: refused."""
        reason = self._gate.refusal(arrival, self.version)
        if reason:
            self.count_refusal(arrival.client, reason)
        else:
            self.accepted += 1
            self.participation[arrival.client] += 1
            arrival = self._gate.shortened(arrival)
        if self._on_arrival is not None:
            self._on_arrival(arrival, reason)
        return None if reason else arrival

    def count_refusal(self, client: int, reason: str) -> None:
        """Put a refusal into the books; ids nobody has share one entry, so that inventing them costs no memory."""
        self.refused[reason] += 1
        known = client if 0 <= client < len(self.participation) else -1
        self.refused_by_client.setdefault(known, Counter())[reason] += 1

    def state_dict(self) -> State:
        return {
            "model": self.model.clone(),
            "version": self.version,
            "accepted": self.accepted,
            "refused": {
                "reasons": dict(self.refused),
                "clients": [[client, dict(reasons)] for client, reasons in self.refused_by_client.items()],
            },
            "participation": list(self.participation),
            "rule": self.rule.state_dict(),
            "gate": self._gate.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.model.copy_(state["model"])
        self.version, self.accepted = int(state["version"]), int(state["accepted"])
        self.refused = Counter(state["refused"]["reasons"])
        self.refused_by_client = {client: Counter(reasons) for client, reasons in state["refused"]["clients"]}
        self.participation = list(state["participation"])
        self._gate.clients = len(self.participation)
        self.rule.load_state_dict(state["rule"])
        self._gate.load_state_dict(state["gate"])
