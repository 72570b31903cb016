"""The client's side, in a line or in five.

A ClientApp that trains and replies with its model's arrays, as for Flower's strategies, needs one line:
`ClientApp(mods=[acefl.flower.send_update])`. One that computes a gradient replies with `answer(...)` itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from acefl.core import rng as keyed
from acefl.core.errors import require
from acefl.core.types import Vector
from acefl.fleets.flower.held import Held
from acefl.fleets.flower.records import (
    INLINE,
    MODEL,
    NO_BASE,
    ORDER,
    UPDATE,
    ModelLayout,
    Order,
    packed,
    unpacked,
)

Gradient = Vector | Mapping[str, torch.Tensor] | torch.nn.Module


def send_update(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod: hands the model to the ClientApp as usual, and turns the trained arrays it replies with into an update.

    Args:
        message: The incoming message.
        context: Flower's context of the client.
        call_next: The next mod, or the ClientApp.
    """
    if ORDER not in message.content:
        return call_next(message, context)
    layout, start = _open(message)
    if not message.metadata.message_type.startswith("train"):
        return call_next(message, context)
    reply = call_next(message, context)
    if reply.has_error() or ORDER in reply.content:
        return reply
    records = list(reply.content.array_records.values())
    require(len(records) == 1, f"the reply has {len(records)} array records; allowed: one, the trained model's")
    update = start - layout.flat(records[0])
    kept = RecordDict()
    for name, record in reply.content.items():
        if not isinstance(record, ArrayRecord):
            kept[name] = record
    return _reply(message, context, update, kept, trained=True)


def answer(
    message: Message, context: Context, gradient: Gradient, metrics: Mapping[str, float] | None = None
) -> Message:
    """The reply to a train message that carries a gradient.

    gradient: a flat vector, a mapping from array names to tensors, or a module after `backward()`. metrics: numbers to
    send along; `num-examples` is the client's number of samples.

    Args:
        message: The train message.
        context: Flower's context of the client.
        gradient: See above.
        metrics: See above.
    """
    layout, _ = _open(message)
    if isinstance(gradient, torch.nn.Module):
        gradient = {name: p.grad for name, p in gradient.named_parameters() if p.grad is not None}
    if isinstance(gradient, torch.Tensor):
        shape = tuple(gradient.shape)
        require(shape == (layout.dim,), f"the gradient has shape {shape}; allowed: one vector of {layout.dim}")
        update = gradient.detach().cpu().float()
    else:
        update = layout.flat_gradient(dict(gradient))
    content = RecordDict({"metrics": MetricRecord(dict(metrics))}) if metrics else RecordDict()
    return _reply(message, context, update, content)


def _open(message: Message) -> tuple[ModelLayout, Vector]:
    """The model of a message; one that came packed is put there as the user's arrays."""
    order, told = Order.read(message.content), message.content[ORDER]
    record = message.content[MODEL] if MODEL in message.content else told[MODEL]
    assert isinstance(record, ArrayRecord | bytes)
    if isinstance(record, ArrayRecord) and ORDER not in record:
        layout = ModelLayout.of(record)
        return layout, layout.flat(record)
    layout, model = ModelLayout.unpack(record, order.downlink, str(told["layout"]))
    message.content[MODEL] = layout.arrays(model)
    return layout, model


def _reply(
    message: Message, context: Context, update: Vector, content: RecordDict, *, trained: bool = False
) -> Message:
    order = Order.read(message.content)
    require(bool(torch.isfinite(update).all()), "the update is not finite: the model diverged on this client")
    draw = keyed.key(*order.run.encode(), order.task)
    base = NO_BASE
    if order.differences:
        held = Held(context.state, order.run)
        base, before = held.before(order.base, update.numel())
        array = packed((update.double() - before).float(), order.uplink, draw)
        held.keep(base, before, order.task, unpacked(array, order.uplink, update.numel()))
    else:
        array = packed(update, order.uplink, draw)
    told: dict[str, ConfigRecordValues] = {
        "run": order.run,
        "task": order.task,
        "version": order.version,
        "base": base,
        "trained": trained,
    }
    if order.inline and len(array.data) <= INLINE:
        told[UPDATE] = array.data
    else:
        content[UPDATE] = ArrayRecord({UPDATE: array})
    content[ORDER] = ConfigRecord(told)
    return Message(content, reply_to=message)
