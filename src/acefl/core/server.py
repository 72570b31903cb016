"""The server: model, version, rule, step, and the gate in front of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from acefl.core.errors import require
from acefl.core.gate import Gate
from acefl.core.journal import ARRIVED, GAVE_UP, JOINED, LOST, NOBODY, RESTARTED, SENT, Journal
from acefl.core.optimizers import Optimizer
from acefl.core.rule import Audience, Rule, Upload
from acefl.core.schedules import Factor
from acefl.core.state import snapshot
from acefl.core.turns import Sent, Turns
from acefl.core.types import Arrival, Event, GaveUp, Joined, Restarted, State, Vector

LARGEST = torch.finfo(torch.float32).max  # learning rate, since the model is float32


class Server:
    """Owns the model vector and turns arrivals into steps by its rule.

    `on_arrival(arrival, reason)` hears of every arrival, refused (with the reason) or accepted (with the empty string);
    `on_dispatch(clients, version)` of models sent out, `on_lost(client)` of work that will not come. Of turns that are
    taken in one go `on_turns(turns, before, after)` hears in place of the first two, with the version before each and
    the one that its client was sent; where it is missing and the others are not, none are.
    `schedule` gives the factor of the learning rate for a share of the budget; `optimizer` makes the step of a rule's
    direction. A rule may bring its own (`rule.optimizer`).

    Where clients upload models (`rule.uploads`) the rule is given how far a client's own model lies from the
    current one, to subtract: the client started from the model it was sent and went `lr` times its update, so `lr` is
    the clients' learning rate, and the server takes the rule's direction as it is.

    Args:
        model: The first model, a flat vector.
        rule: What turns arrivals into directions.
        lr: Learning rate of a step.
        clients: How many there are at the start.
        gate: What refuses arrivals; None: the usual checks.
        on_arrival, on_dispatch, on_lost, on_turns: Called as described above.
        optimizer: Makes the step of a direction; None: plain descent.
        schedule: Factor of `lr` by share of the budget.
        journal: Where everything is noted, in order, that may decide the model; None: nowhere.
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
        on_dispatch: Callable[[Sequence[int], int], None] | None = None,
        on_lost: Callable[[int], None] | None = None,
        on_turns: Callable[[Turns, Sequence[int], Sequence[int]], None] | None = None,
        optimizer: Optimizer | None = None,
        schedule: Factor | None = None,
        journal: Journal | None = None,
    ) -> None:
        number = hasattr(lr, "__float__") and math.isfinite(lr) and lr > 0
        require(number, f"lr is {lr!r}; allowed: a finite number above 0")
        require(lr <= LARGEST, f"lr is {lr}; allowed: at most {LARGEST:.2g}, the largest float32")
        kind = type(rule).__name__
        require(isinstance(rule, Rule), f"rule is a {kind}; allowed: an acefl.Rule (class {kind}(acefl.Rule): ...)")
        self.model = model.clone()
        self.version = 0
        self.accepted = 0
        self.stepped_at = 0  # what was accepted when the model last moved
        self.refused: Counter[str] = Counter()
        self.refused_by_client: dict[int, Counter[str]] = {}  # those of unknown clients together as -1
        self.participation = [0] * clients
        self.last_sent: dict[int, int] = {}  # client -> the version of the model it was last sent
        self.rule = rule
        self.lr = lr
        self._gate = gate or Gate(clients, self.model)
        self._on_arrival, self._on_dispatch, self._on_lost = on_arrival, on_dispatch, on_lost
        self._on_turns = on_turns
        self._schedule = schedule
        self.journal = journal
        self._note(JOINED, (clients,))
        own = rule.optimizer
        require(own is None or optimizer is None, f"optimizer is {optimizer}; the method brings its own, {own}")
        chosen = own or optimizer
        self._optimizer = chosen.build(self.model) if chosen is not None else None
        self._due = False  # whether a step is due although nobody came: the last one that was awaited will not
        self._direction: Vector | None = None  # what the last step was made of; None: absorbed and stepped in one pass
        self._sent: dict[int, Vector] | None = None  # models that clients may have, by version
        self._room = 16  # how many of them before somebody looks which are still out
        if rule.uploads is Upload.MODEL:
            require(chosen is None, f"optimizer is {chosen}; allowed for a method that mixes models: none")
            self._sent = {0: self.model.clone()}

    @property
    def audience(self) -> Audience:
        """Who may be sent the current model."""
        return self.rule.audience

    @property
    def direction(self) -> Vector:
        """What the model last stepped on, before the learning rate. Borrowed until the next `handle`."""
        return self.rule.direction() if self._direction is None else self._direction

    def handle(self, events: Sequence[Event], spent: float = 0.0) -> bool:
        """Take in what came and step at most once; True if the model changed. `spent`: the share of the budget so far.

        What is lost or refused leaves no trace, not even in the last bit: the step depends on the admitted alone.
        """
        if self.journal is not None:
            self.journal.turn += 1
        if len(events) == 1 and isinstance(events[0], Arrival):
            alone = self._admit(events[0])
            admitted = [] if alone is None else [alone]
        else:
            admitted = [arrival for event in events if (arrival := self._take(event)) is not None]
        lr = self.lr if self._schedule is None else self.lr * self._schedule(spent)
        if self._sent is not None:
            admitted = [self._as_model_difference(arrival, lr) for arrival in admitted]
        stepped = self._turn(admitted, lr)
        if stepped and self._sent is not None:
            self._sent[self.version] = self.model.clone()
        return stepped

    def _turn(self, admitted: Sequence[Arrival], lr: float) -> bool:
        """Let the rule have these, and step if it says so."""
        stepped = self._advance(admitted[0], lr) if len(admitted) == 1 else None
        if stepped is None:
            stepped = any([self.rule.absorb(arrival) for arrival in admitted]) or self._due
            if stepped:
                self._step(lr)
        if stepped:
            self.version += 1
            self.stepped_at = self.accepted
            self._due = False
            self.rule.clear()
        return stepped

    @property
    def takes_turns(self) -> bool:
        """Whether turns may be taken in one go now: where every client is sent the model as soon as it has arrived, and
        nothing but the rule and the step looks at an arrival."""
        plain = self._schedule is None and self.journal is None and self._sent is None and self._gate.trusts
        heard = self._on_turns is not None or (self._on_arrival is None and self._on_dispatch is None)
        return plain and heard and self.audience is Audience.EVERYBODY

    def take(self, turns: Turns) -> Sent:
        """`handle` and `dispatched` for one turn after another, up to one after which the rule makes a client wait."""
        first = self.version
        models = self.model.new_empty(len(turns), self.model.numel())
        after, held = self._take_together(turns, models), False
        if after is None:
            after, held = self._take_each(turns, models)
        if len(after) < len(turns):
            turns = turns.first(len(after))
        for client in turns.clients:
            self.participation[client] += 1
        sent = after[:-1] if held else after
        self.last_sent.update(zip(turns.clients, sent, strict=not held))
        self._gate.trust(turns)
        if self._on_turns is not None:
            self._on_turns(turns, [first, *after[:-1]], sent)
        return Sent(sent, models[: 1 + sent[-1] - sent[0]] if sent else models[:0], held)

    def _take_together(self, turns: Turns, models: torch.Tensor) -> list[int] | None:
        """The version after each, where the step is a plain one and the rule has a pass for all of them."""
        if self._optimizer is not None or self._due:
            return None
        passed = self.rule.advance_many(turns, self.version, self.model, self.lr, models)
        if passed is None:
            return None
        after, direction = passed
        if after[-1] > self.version:
            self.stepped_at = self.accepted + after.index(after[-1]) + 1
            self._direction = direction
        self.accepted += len(after)
        self.version = after[-1]
        return after

    def _take_each(self, turns: Turns, models: torch.Tensor) -> tuple[list[int], bool]:
        """The version after each, and whether the last one's client is to wait."""
        after: list[int] = []
        for client, update, trained_on, task in zip(
            turns.clients, turns.updates, turns.trained_on, turns.tasks, strict=True
        ):
            self.accepted += 1
            stepped = self._turn([Arrival(client, update, trained_on, self.version, task)], self.lr)
            after.append(self.version)
            if self.audience is not Audience.EVERYBODY:
                return after, True
            if stepped or len(after) == 1:
                models[self.version - after[0]].copy_(self.model)
            self.rule.dispatched((client,), self.version)
        return after, False

    def _advance(self, arrival: Arrival, lr: float) -> bool | None:
        """Absorb and step in one pass over memory, where the step is a plain one and the rule has such a pass."""
        if self._optimizer is not None or self._sent is not None or self._due:
            return None
        stepped = self.rule.advance(arrival, self.model, lr)
        if stepped:
            self._direction = None
        return stepped

    def _as_model_difference(self, arrival: Arrival, lr: float) -> Arrival:
        assert self._sent is not None
        moved = self.model - self._sent[arrival.trained_on]
        return replace(arrival, update=moved.add_(arrival.update, alpha=lr))

    def _step(self, lr: float) -> None:
        lr = self.rule.rate(lr)
        self._direction = self.rule.direction()
        if self._optimizer is not None:
            self._optimizer.step(self.model, self._direction, lr)
        else:
            self.model.sub_(self._direction, alpha=1.0 if self._sent is not None else lr)

    def tidy(self, versions_out: Callable[[], set[int]]) -> None:
        """Drop the models that no client has any more, now and then."""
        if self._sent is not None and len(self._sent) > self._room:
            out = versions_out() | {self.version}
            self._sent = {version: model for version, model in self._sent.items() if version in out}
            self._room = 2 * len(self._sent) + 16

    def dispatched(self, clients: Sequence[int]) -> None:
        """These clients have been sent the current model."""
        for client in clients:
            self.last_sent[client] = self.version
        self._note(SENT, clients)
        self.rule.dispatched(clients, self.version)
        if self._on_dispatch is not None:
            self._on_dispatch(clients, self.version)

    def leave(self, client: int) -> None:
        """A client has left for good: it no longer counts in the mean, and nobody waits for it."""
        known = len(self.participation)
        require(0 <= client < known, f"client is {client}; allowed: one of the {known} known, 0 to {known - 1}")
        self._due = self.rule.leave(client) or self._due

    def give_up(self) -> None:
        """End the round without those who have not reported; they count once they do."""
        if self.journal is not None:
            self.journal.turn += 1
        self._note(GAVE_UP, (NOBODY,))
        self._due = self.rule.give_up() or self._due

    def join(self, clients: int, weight: float = 1.0) -> None:
        """The federation now has this many clients: those beyond the ones known so far may arrive from now on."""
        known = len(self.participation)
        require(clients >= known, f"clients is {clients}; allowed: at least the {known} known already")
        self.participation.extend([0] * (clients - known))
        self._gate.clients = clients
        self._note(JOINED, (clients,))
        self.rule.join(clients, weight)

    def _take(self, event: Event) -> Arrival | None:
        if isinstance(event, Arrival):
            return self._admit(event)
        if isinstance(event, Joined):
            self.join(event.clients)
            return None
        if isinstance(event, Restarted):
            self._note(RESTARTED, (NOBODY,))
            self.rule.restart()
            return None
        if isinstance(event, GaveUp):
            self.give_up()
            return None
        if not 0 <= event.client < len(self.participation):
            self.count_refusal(event.client, "unknown-client")
            return None
        self._note(LOST, (event.client,))
        self._due = self.rule.lost(event.client) or self._due
        if self._on_lost is not None:
            self._on_lost(event.client)
        return None

    def _admit(self, arrival: Arrival) -> Arrival | None:
        """The arrival as the rule may see it (the gate may have shortened its update), or None: refused."""
        reason = self._gate.refusal(arrival, self.version)
        if reason:
            self.count_refusal(arrival.client, reason)
        else:
            self.accepted += 1
            self.participation[arrival.client] += 1
            self._note(ARRIVED, (arrival.client,))
            arrival = self._gate.shortened(arrival)
        if self._on_arrival is not None:
            self._on_arrival(arrival, reason)
        return None if reason else arrival

    def _note(self, kind: str, clients: Sequence[int]) -> None:
        if self.journal is not None:
            self.journal.note(kind, clients, self.version)

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
            "last_sent": [[client, version] for client, version in self.last_sent.items()],
            "rule": self.rule.state_dict(),
            "due": self._due,
            "gate": self._gate.state_dict(),
            "optimizer": self._optimizer.state_dict() if self._optimizer is not None else {},
            "sent": snapshot(map(str, self._sent), self._sent_model) if self._sent is not None else {},
        }

    def load_state_dict(self, state: State) -> None:
        self.model.copy_(state["model"])
        self.version, self.accepted = int(state["version"]), int(state["accepted"])
        self.refused = Counter(state["refused"]["reasons"])
        self.refused_by_client = {client: Counter(reasons) for client, reasons in state["refused"]["clients"]}
        self.participation = list(state["participation"])
        self.last_sent = {int(client): int(version) for client, version in state["last_sent"]}
        self._gate.clients = len(self.participation)
        self.rule.load_state_dict(state["rule"])
        self._due, self._direction = bool(state["due"]), None
        self._gate.load_state_dict(state["gate"])
        if self._optimizer is not None:
            self._optimizer.load_state_dict(state["optimizer"])
        if self._sent is not None:
            self._sent = {int(version): model.clone() for version, model in state["sent"].items()}

    def _sent_model(self, version: str) -> Vector:
        assert self._sent is not None
        return self._sent[int(version)]
