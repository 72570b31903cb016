"""The laws every aggregation method must keep, for the methods here and for a user's own.

```python
from acefl.testing import LAWS, check_rule

check_rule(MyMethod(strength=2))  # silent, or an AssertionError that names the broken law


@pytest.mark.parametrize("law", LAWS)  # or one test per law
def test_my_method(law):
    LAWS[law](MyMethod(strength=2))
```

A law takes settings (anything with `build(clients, like, samples)`), builds rules from them and leads them through one
history: a federation of six clients in which everybody reports once, then arrivals come one by one and several per
step, of every age, with a stretch in which one client is silent. If the method uploads
changes, clients send the change since their last gradient.
"""

from __future__ import annotations

import copy
import json
import logging
import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from unittest import SkipTest  # pytest, too, takes it for a skip

import torch

from acefl.core import rng as keyed
from acefl.core.errors import require
from acefl.core.rule import Audience, Method, Rule, Upload
from acefl.core.server import Server
from acefl.core.settings import settings_of
from acefl.core.state import Parts, reassemble, without_copies
from acefl.core.types import Arrival, State, Vector
from acefl.rules import label
from acefl.rules.ace import ClientMemory

CLIENTS, DIM, TURNS, LR = 6, 70, 25, 0.1
SAMPLES = [30, 10, 20, 50, 10, 40]
SILENT = 4  # heard of in the first round, and again at the end

STORED = {"bf16": 1 / 128, "int8": 1 / 100}  # how far a table's number may be off, as a share of the largest

log = logging.getLogger(__name__)

Turn = list[Arrival]
Law = Callable[[Method], None]


def check_rule(settings: Method) -> None:
    """Hold a method's settings against every law; AssertionError names the first one that is broken.

    Args:
        settings: The method to check.
    """
    kind = type(settings).__name__
    require(isinstance(settings, Method), f"{kind} is no method; allowed: settings (class {kind}(acefl.Method): ...)")
    for name, law in LAWS.items():
        try:
            law(settings)
        except SkipTest as why:
            log.info("the law %r does not apply to %s: %s", name, label(settings), why)
        except AssertionError as broken:
            raise AssertionError(f"{label(settings)} breaks the law {name!r}: {broken}") from broken
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise AssertionError(f"{label(settings)} breaks the law {name!r}: {reason}") from error


def replay(settings: Method) -> None:
    """Replaying a log of arrivals rebuilds the model exactly: no clock, random numbers or other hidden input."""
    log, server = _history(settings)
    again = _server(settings)
    for turn in log:
        again.handle(turn)
    assert again.version == server.version, f"{server.version} steps the first time, {again.version} in the replay"
    assert torch.equal(again.model, server.model), "the replayed model differs"


def independence(settings: Method) -> None:
    """Two rules of the same settings do not disturb each other: no state is shared between them."""
    log, _ = _history(settings)
    alone = _directions(_build(settings), log)
    rule, other = _build(settings), _build(settings)
    beside = []
    for turn in log:
        beside += _directions(rule, [turn])
        _directions(other, [[_with(arrival, arrival.update * -3.0) for arrival in turn]])
    _same(beside, alone, "a second rule at work changes the directions of the first")


def inputs(settings: Method) -> None:
    """Nothing handed in is ever written to: neither updates, nor the model, nor the sample counts."""
    log, _ = _history(settings)
    like, samples = torch.zeros(DIM), list(SAMPLES)
    rule = settings.build(CLIENTS, like, samples)
    given = [arrival.update for turn in log for arrival in turn]
    before = [(update.clone(), update._version) for update in given]
    _directions(rule, log)
    for update, (value, writes) in zip(given, before, strict=True):
        untouched = torch.equal(update, value) and update._version == writes
        assert untouched, "an arrival's update was written to"
    assert like._version == 0, "the model that build() was given was written to"
    assert samples == SAMPLES, "the sample counts that build() was given were written to"


def ownership(settings: Method) -> None:
    """Once `absorb` returns, the rule owns what it needs: a later change of an arrival's update changes nothing."""
    log, _ = _history(settings)
    expected = _directions(_build(settings), log)
    rule, found = _build(settings), []
    for turn in log:
        due = False
        for arrival in turn:
            update = arrival.update.clone()
            due = rule.absorb(_with(arrival, update)) or due
            update.fill_(math.nan)
        if due:
            found.append(rule.direction().clone())
            rule.clear()
    _same(found, expected, "an update that was changed after it was absorbed changes a direction")


def checkpoint(settings: Method) -> None:
    """Saving and loading the state, at any moment and into a new or a used rule, changes nothing, bit for bit."""
    log, _ = _history(settings)
    expected = _directions(_build(settings), log)
    rule, used = _build(settings), _build(settings)
    found = []
    for turn in log:
        due = False
        for arrival in turn:
            due = rule.absorb(arrival) or due
            successor = _build(settings) if arrival.task % 2 else used
            successor.load_state_dict(_through_files(rule))
            assert successor.audience is rule.audience, "a loaded rule waits for other clients than the saved one"
            rule, used = successor, rule
        if due:
            found.append(rule.direction().clone())
            rule.clear()
            used.load_state_dict(_through_files(rule))
            rule, used = used, rule
    _same(found, expected, "a run that was saved and loaded takes other steps")


def snapshot(settings: Method) -> None:
    """A state that was taken stays as it was while its rule goes on, and while a rule that loaded it does."""
    log, _ = _history(settings)
    half = len(log) // 2
    rule, loaded = _build(settings), _build(settings)
    _directions(rule, log[:half])
    for arrival in log[half]:  # taken in the middle of a turn
        rule.absorb(arrival)
    state = rule.state_dict()
    kept = copy.deepcopy(state)
    loaded.load_state_dict(state)
    for which, whose in ((rule, "it was taken from"), (loaded, "that had loaded it")):
        for arrival in log[half + 1]:
            which.absorb(arrival)
        assert _equal(state, kept), f"the state changed while the rule {whose} absorbed more"
        _directions(which, log[half + 2 :])
        assert _equal(state, kept), f"the state changed while the rule {whose} continued"


def names(settings: Method) -> None:
    """Client ids are names only: giving them out in another order permutes nothing else (within rounding)."""
    log, _ = _history(settings)
    order = [3, 0, 5, 1, 2, 4]
    samples = [SAMPLES[order.index(client)] for client in range(CLIENTS)]
    renamed = [[_with(arrival, arrival.update, order[arrival.client]) for arrival in turn] for turn in log]
    found = _directions(settings.build(CLIENTS, torch.zeros(DIM), samples), renamed)
    expected = _directions(_build(settings), log)
    _close(found, expected, _rounding(log, settings), "other client ids give another direction")


def direction(settings: Method) -> None:
    """`absorb` says True or False; a direction is finite, of the model's shape, dtype and device, and asking twice
    gives the same and changes nothing."""
    log, _ = _history(settings)
    expected = _directions(_build(settings), log)
    arrivals = sum(len(turn) for turn in log)
    assert expected, f"no step in {arrivals} arrivals; the laws need some (a smaller buffer, say)"
    rule, found = _build(settings), []
    for turn in log:
        due = [rule.absorb(arrival) for arrival in turn]
        assert all(isinstance(answer, bool) for answer in due), f"absorb returned {due}; allowed: True or False"
        if any(due):
            first = rule.direction()
            assert first.shape == (DIM,), f"a direction of shape {tuple(first.shape)} for a model of shape {(DIM,)}"
            assert first.dtype == torch.float32, f"a direction of {first.dtype} for a model of torch.float32"
            assert first.device.type == "cpu", f"a direction on {first.device} for a model on cpu"
            assert bool(torch.isfinite(first).all()), "a direction is not finite"
            found.append(first.clone())
            assert torch.equal(rule.direction(), found[-1]), "asking twice for a direction gives two answers"
            rule.clear()
    _same(found, expected, "asking twice for a direction changes later ones")


def batches(settings: Method) -> None:
    """What is absorbed before one step makes one step of it: in which order it came does not matter (within rounding).

    A busy server drains its queue: after the first True more arrivals may come before it asks for the direction.
    Settings with `order_matters` are let off: a method that keeps the last few updates has to know which came last.
    """
    if settings.order_matters:
        return
    log, _ = _history(settings)
    found = _directions(_build(settings), [turn[::-1] for turn in log])
    expected = _directions(_build(settings), log)
    _close(found, expected, _rounding(log, settings), "the order of arrivals within one step matters")


def fusion(settings: Method) -> None:
    """Where a rule has `advance`, it is absorb, then model -= lr * direction (within rounding)."""
    log, server = _history(settings)
    if type(_build(settings)).advance is Rule.advance or settings.optimizer is not None:
        return
    model = torch.zeros(DIM)
    for step in _directions(_build(settings), log):
        model.sub_(step, alpha=LR)
    _close([server.model], [model], _rounding(log), "advance moves the model elsewhere")


def joining(settings: Method) -> None:
    """Nobody waits for clients that join, and they are taken in when they come; a checkpoint knows them too."""
    log, _ = _history(settings)
    steps = len(_directions(_build(settings), log))
    rule, successor = _build(settings), _build(settings)
    rule.join(CLIENTS + 2, 1.0)
    found = len(_directions(rule, log))
    assert found == steps, f"{found} steps instead of {steps} beside two newcomers that have not come"
    successor.load_state_dict(_through_files(rule))
    whole = [_with(arrival, arrival.update, CLIENTS + arrival.client % 2) for arrival in log[-2]]
    for which in (rule, successor):
        for arrival in whole:
            which.absorb(arrival)
        _directions(which, log[-1:])
    assert _equal(rule.state_dict(), successor.state_dict()), "a loaded rule takes newcomers in differently"


def leaving(settings: Method) -> None:
    """What a client has sent stops counting once it has left: other updates of it lead to the same later steps."""
    if settings.uploads is not Upload.UPDATE:
        raise SkipTest("the server cannot take back what such clients sent")
    log, _ = _history(settings)
    half = len(log) // 2
    later = [[arrival for arrival in turn if arrival.client != SILENT] for turn in log[half:]]
    found = []
    for scale in (1.0, -3.0):
        rule = _build(settings)
        first = [
            [_with(arrival, arrival.update * scale) if arrival.client == SILENT else arrival for arrival in turn]
            for turn in log[:half]
        ]
        _directions(rule, first)
        rule.leave(SILENT)
        found.append(_directions(rule, later)[CLIENTS:])
    _close(found[0], found[1], _rounding(log, settings), "a client that has left still counts")


def losses(settings: Method) -> None:
    """Nobody waits for a client whose work is lost, nor for anybody once the rule was told to give up."""
    log, _ = _history(settings)
    for news in ("lost", "give_up"):
        rule = _build(settings)
        due = False
        for turn in log[: CLIENTS - 1]:  # everybody once, but client 3
            due = any([rule.absorb(arrival) for arrival in turn])
        due = (rule.lost(3) if news == "lost" else rule.give_up()) or due
        waits = rule.audience is not Audience.EVERYBODY
        assert due or not waits, f"after {news} the rule still waits for client 3"
        steps = int(due)
        if due:
            rule.direction()
            rule.clear()
        others = [[arrival for arrival in turn if arrival.client != 3] for turn in log[CLIENTS:-2]]
        for turn in others:
            rule.lost(3)
            steps += len(_directions(rule, [[_fresh(arrival) for arrival in turn]]))
        assert steps, f"no step without client 3 after {news}"


def rounds(settings: Method) -> None:
    """Between its first report and its step a round sends no model to who has reported; elsewhere all get one."""
    log, _ = _history(settings)
    rule = _build(settings)
    for number, turn in enumerate(log):
        due = any([rule.absorb(_fresh(arrival)) for arrival in turn])
        if settings.rounds and not due:
            assert rule.audience is not Audience.EVERYBODY, "who has reported is sent a model before the round is over"
        if due:
            rule.direction()
            rule.clear()
        if due or (number >= CLIENTS and not settings.rounds):
            assert rule.audience is Audience.EVERYBODY, "nobody is waited for, and yet not everybody may get a model"


_ALL = (
    *(direction, replay, independence, inputs, ownership, checkpoint, snapshot, names, batches, fusion),
    *(joining, leaving, losses, rounds),
)
LAWS: dict[str, Law] = {law.__name__: law for law in _ALL}


def _build(settings: Method) -> Rule:
    return settings.build(CLIENTS, torch.zeros(DIM), list(SAMPLES))


def _server(settings: Method) -> Server:
    return Server(torch.zeros(DIM), _build(settings), LR, CLIENTS)


def _history(settings: Method) -> tuple[list[Turn], Server]:
    """The log of a run on clients with different optima, and the server after it."""
    server = _server(settings)
    memory = ClientMemory() if settings.uploads is Upload.CHANGE else None
    optima, noise = _draws()
    models = [server.model.clone()]
    sent = [0] * CLIENTS
    log: list[Turn] = []
    task = 0
    for clients in _arriving():
        turn = []
        for client in clients:
            idle = keyed.key(1, task) % (server.version - sent[client] + 1) if task % 2 else 0  # before it got a model
            trained_on = sent[client] + idle
            gradient = models[trained_on] - optima[client] + noise[task]
            sends = gradient if memory is None else memory.difference(client, gradient)
            turn.append(Arrival(client, sends, trained_on, server.version, task))
            task += 1
        if server.handle(turn):
            models.append(server.model.clone())
        for client in clients:
            sent[client] = server.version
        log.append(turn)
    return log, server


@cache
def _draws() -> tuple[Vector, Vector]:
    """Every client's optimum, and the noise of every gradient."""
    tasks = sum(len(clients) for clients in _arriving())
    optima = 3.0 * keyed.normal([keyed.key(2, client) for client in range(CLIENTS)], DIM)
    return optima, keyed.normal([keyed.key(3, task) for task in range(tasks)], DIM)


def _arriving() -> Iterator[list[int]]:
    """Who arrives in each turn: everybody once, one by one; then some, mostly one; at the end everybody at once."""
    yield from ([client] for client in (2, 0, 5, 4, 1, 3))
    awake = [client for client in range(CLIENTS) if client != SILENT]
    for turn in range(TURNS):
        count = (1, 1, 2, 1, 3)[turn % 5]
        yield sorted(awake, key=lambda client: keyed.key(4, turn, client))[:count]
    yield from ([SILENT], [SILENT, 0], list(range(CLIENTS)), [1])


def _directions(rule: Rule, log: list[Turn]) -> list[Vector]:
    """A copy of every direction the log gives."""
    found = []
    for turn in log:
        if any([rule.absorb(arrival) for arrival in turn]):
            found.append(rule.direction().clone())
            rule.clear()
    return found


def _with(arrival: Arrival, update: Vector, client: int | None = None) -> Arrival:
    name = arrival.client if client is None else client
    return Arrival(name, update, arrival.trained_on, arrival.version, arrival.task)


def _fresh(arrival: Arrival) -> Arrival:
    """The same work on the current model: a round uses no other."""
    return Arrival(arrival.client, arrival.update, arrival.version, arrival.version, arrival.task)


def _same(found: list[Vector], expected: list[Vector], broken: str) -> None:
    assert len(found) == len(expected), f"{broken}: {len(found)} steps instead of {len(expected)}"
    for step, (one, two) in enumerate(zip(found, expected, strict=True)):
        assert torch.equal(one, two), f"{broken}: step {step} differs by {float((one - two).abs().max()):g}"


def _rounding(log: list[Turn], settings: Method | None = None) -> float:
    """How far rounding can carry a direction: that of float32, or of a lossy table, which may enter six times.

    Whose rows were rounded how depends on who arrived and when. CA²FL takes in most: h and two rows of each change, in
    both of the runs that are compared.
    """
    largest = max(float(arrival.update.abs().max()) for turn in log for arrival in turn)
    table = settings_of(settings.inner).get("table", "") if settings is not None else ""
    return largest * max(1e-5, 6 * STORED.get(table, 0.0))


def _close(found: list[Vector], expected: list[Vector], allowed: float, broken: str) -> None:
    assert len(found) == len(expected), f"{broken}: {len(found)} steps instead of {len(expected)}"
    for step, (one, two) in enumerate(zip(found, expected, strict=True)):
        off = float((one - two).abs().max())
        assert off <= allowed, f"{broken}: step {step} is off by {off:g}, more than rounding ({allowed:g})"


def _through_files(rule: Rule) -> State:
    """What comes back of a rule's state that was written as safetensors and JSON, as a checkpoint is."""
    from safetensors.torch import load, save

    with without_copies():
        parts = Parts.of(rule.state_dict())
        named = {f"{path}/{name}": tensor for path, own in parts.named.items() for name, tensor in own.items()}
        tensors = {path: tensor.contiguous() for path, tensor in {**parts.tensors, **named}.items()}
        written = json.dumps(parts.skeleton, allow_nan=False), save(tensors)
    names = {path: list(own) for path, own in parts.named.items()}
    back: State = reassemble(json.loads(written[0]), names, load(written[1]).__getitem__)
    return back


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_equal(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(_equal, one, two))
    return bool(one == two)


__all__ = ["LAWS", "Law", "check_rule"]
