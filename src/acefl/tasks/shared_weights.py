"""Gradients of many clients at one model: one pass forward and back through shared weights, weight gradients per client.

Clients that were sent the same version start from the same weights. Their minibatches are then one large batch, which
fills a device better than several small ones; the rows are those of the first client, then those of the second, and so
on. Losses of clients are independent, so the gradient of their sum, by each client's own copy of a weight, is that
client's gradient. The copies are never made: layers compute with the one weight there is, and give a gradient for each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map

from acefl.core.types import Vector
from acefl.tasks import batch_norm
from acefl.tasks.compute import Batch, Draw, OneByOne
from acefl.tasks.flat_module import FlatModule

Output = Callable[[Batch, torch.Tensor], torch.Tensor]  # inputs, targets
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_aten = torch.ops.aten
_BESIDE_THE_FIRST = 0.05  # noise on the first model, when it is tried: weights of zeros hide what others do
_TRIED = 2  # samples of each of two clients; whole minibatches where statistics are of the batch
_WRONG = 1e-3  # of the largest entry: far above rounding in float32, far below what a mistake makes
_WRONG_IN_BF16 = 0.1


class SharedWeights:
    """A gradient for each client's minibatch, all at the same model. Tensor operations alone, for `tracing.traced`."""

    name = "shared"

    def __init__(self, net: FlatModule, output: Output, loss: Loss, draw: Draw) -> None:
        self._net, self._output, self._loss, self._draw = net, output, loss, draw

    def __call__(self, model: Vector, clients: list[int], keys: list[int]) -> torch.Tensor:
        return self.over(model, *self._draw(clients, keys))

    def over(self, model: Vector, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        """The same over samples that are given: (clients, samples, ...)."""
        count = len(targets)
        with torch.no_grad():
            shared = {name: Shared(value, count) for name, value in self._net.named(model.detach()).items()}
        with self._in_place(shared):
            together = self._output(tree_map(lambda t: t.flatten(0, 1), inputs), targets.flatten(0, 1))
        outputs = together.unflatten(0, (count, -1)).unbind(0)
        loss = torch.stack([self._loss(own, target) for own, target in zip(outputs, targets, strict=True)]).sum()
        gradients = torch.autograd.grad(loss, [own.copies for own in shared.values()], materialize_grads=True)
        return torch.cat([g.reshape(count, -1).float() for g in gradients], dim=1)

    @contextlib.contextmanager
    def _in_place(self, shared: dict[str, Shared]) -> Iterator[None]:
        """The module with these weights in place of its own, wherever it has them."""
        found = {id(own): shared[name] for name, own in zip(self._net.names, self._net.parameters, strict=True)}
        owners: list[dict[str, Any]] = [layer._parameters for layer in self._net.module.modules()]
        places = [(own, name, was) for own in owners for name, was in own.items() if id(was) in found]
        try:
            for own, name, was in places:
                own[name] = found[id(was)]
            yield
        finally:
            for own, name, was in places:
                own[name] = was

    def try_against(self, alone: OneByOne, first: Vector, other: int) -> None:
        """Raises where a module mixes samples, or uses its weights otherwise: tried, since no list is complete."""
        noise = torch.randn(len(first), generator=torch.Generator().manual_seed(0)).to(first.device)
        model, (inputs, targets) = first + _BESIDE_THE_FIRST * noise, self._draw([0, other], [0, 1])
        if not batch_norm.uses_batch_statistics(self._net.module):
            inputs, targets = tree_map(lambda t: t[:, :_TRIED], inputs), targets[:, :_TRIED]
        expected, found = alone.over(model.expand(2, -1), inputs, targets), self.over(model, inputs, targets)
        difference = float((expected - found).abs().max() / expected.abs().max())
        if not difference <= (_WRONG_IN_BF16 if self._net.bf16 else _WRONG):
            raise ValueError(f"gradients computed together differ by {difference:.0e} of the largest entry")


class Shared:
    """A weight of all clients. Some layers take it; any other use is an error, so that none goes unnoticed.

    `copies` stands for one per client: its gradient is theirs. It takes no more memory than the one.
    """

    def __init__(self, value: torch.Tensor, count: int) -> None:
        self.value, self.dtype, self.device = value, value.dtype, value.device
        self.copies = value.detach().expand(count, *value.shape).requires_grad_()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _LAYERS:
            raise TypeError(f"a trained weight is used by {getattr(func, '__name__', func)}, which is not known")
        return _LAYERS[func](*args, **(kwargs or {}))


Weight = torch.Tensor | Shared | None  # frozen ones are tensors


def _linear(x: torch.Tensor, weight: Weight, bias: Weight = None) -> torch.Tensor:
    y = _Linear.apply(*_in_precision(x, weight)) if isinstance(weight, Shared) else F.linear(x, weight)
    return _affine(y, None, bias, y.dim() - 1)


def _conv2d(
    x: torch.Tensor,
    weight: Weight,
    bias: Weight = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> torch.Tensor:
    if groups != 1 or x.dim() != 4 or isinstance(padding, str):
        raise TypeError("a convolution in groups, or padded by name, is not known")
    settings = [list(given) if isinstance(given, tuple) else [given] * 2 for given in (stride, padding, dilation)]
    if isinstance(weight, Shared):
        return _affine(_Convolution.apply(*_in_precision(x, weight), settings), None, bias, 1)
    return _affine(F.conv2d(x, weight, None, *settings), None, bias, 1)


def _embedding(rows: torch.Tensor, weight: Shared, padding_idx: int | None = None, *settings: Any) -> torch.Tensor:
    if any(settings[:1] + settings[2:]):
        raise TypeError("an embedding that changes its weight, or with sparse gradients, is not known")
    found: torch.Tensor = _Embedding.apply(rows, weight.copies, weight.value, -1 if padding_idx is None else padding_idx)
    return found


def _group_norm(
    x: torch.Tensor, groups: int, weight: Weight = None, bias: Weight = None, eps: float = 1e-5
) -> torch.Tensor:
    return _affine(F.group_norm(x, groups, None, None, eps), weight, bias, 1)


def _layer_norm(
    x: torch.Tensor, shape: Any, weight: Weight = None, bias: Weight = None, eps: float = 1e-5
) -> torch.Tensor:
    return _affine(F.layer_norm(x, shape, None, None, eps), weight, bias, x.dim() - len(shape))


def _batch_norm(
    x: torch.Tensor,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    weight: Weight = None,
    bias: Weight = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Each client's samples by statistics of their own."""
    if not training:
        return _affine(F.batch_norm(x, mean, variance, None, None, False, momentum, eps), weight, bias, 1)
    rows = x.unflatten(0, (_count(weight, bias), -1)).float()
    own_variance, own_mean = torch.var_mean(rows, _all_but_channels(rows), correction=0, keepdim=True)
    normalised = (rows - own_mean) * torch.rsqrt(own_variance + eps)
    return _affine(normalised.flatten(0, 1), weight, bias, 1).to(x.dtype)


def _towards_seen(y: torch.Tensor, x: torch.Tensor, mean: Weight, variance: Weight) -> torch.Tensor:
    rows = x.detach().float().unflatten(0, (_count(mean, variance), -1))
    seen_variance, seen_mean = torch.var_mean(rows, _all_but_channels(rows))
    for kept, seen in ((mean, seen_mean), (variance, seen_variance)):
        y = batch_norm.Towards.apply(y, kept.copies if isinstance(kept, Shared) else kept, seen)
    return y


_LAYERS: dict[Any, Callable[..., torch.Tensor]] = {
    F.linear: _linear,
    F.conv2d: _conv2d,
    F.embedding: _embedding,
    F.group_norm: _group_norm,
    F.layer_norm: _layer_norm,
    F.batch_norm: _batch_norm,
    batch_norm.towards_seen: _towards_seen,
}


def _count(*given: Weight) -> int:
    """Of clients, as a shared weight among these knows it."""
    return next((len(one.copies) for one in given if isinstance(one, Shared)), 1)


def _all_but_channels(rows: torch.Tensor) -> list[int]:
    """Of (clients, samples, channels, ...): what statistics of a client's batch are taken over."""
    return [dim for dim in range(1, rows.dim()) if dim != 2]


def _in_precision(x: torch.Tensor, weight: Shared) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a product is of, as autocast wants it, with the copies that get its gradients."""
    kind, value = x.device.type, weight.value
    if torch.is_autocast_enabled(kind):
        x, value = x.to(torch.get_autocast_dtype(kind)), value.to(torch.get_autocast_dtype(kind))
    return x, weight.copies, value


def _affine(y: torch.Tensor, weight: Weight, bias: Weight, first: int) -> torch.Tensor:
    """Times each client's weight, plus its bias, which are for y's dimensions from the first one on."""
    rows = y.unflatten(0, (_count(weight, bias), -1))
    if weight is not None:
        rows = rows * _beside(rows, weight, first)
    if bias is not None:
        rows = rows + _beside(rows, bias, first)
    return rows.flatten(0, 1).to(y.dtype)


def _beside(rows: torch.Tensor, given: torch.Tensor | Shared, first: int) -> torch.Tensor:
    own = given.copies if isinstance(given, Shared) else given.unsqueeze(0)
    return own.view(len(own), *[1] * first, *own.shape[1:], *[1] * (rows.dim() - first - own.dim()))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, copies: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, value)
        ctx.count = len(copies)
        return F.linear(x, value)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,), (x, value) = grads, ctx.saved_tensors
        before, after = (t.reshape(ctx.count, -1, t.shape[-1]) for t in (x, grad))
        return grad @ value if ctx.needs_input_grad[0] else None, torch.bmm(after.transpose(1, 2), before), None


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, copies: torch.Tensor, value: torch.Tensor, settings: list[list[int]]
    ) -> torch.Tensor:
        ctx.save_for_backward(x, value)
        ctx.count, ctx.settings = len(copies), settings
        return F.conv2d(x, value, None, *settings)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,), (x, value) = grads, ctx.saved_tensors
        before = _convolution_gradient(grad, x, value, ctx.settings, 0) if ctx.needs_input_grad[0] else None
        return before, _weight_gradients(grad, x, value, ctx.settings, ctx.count), None, None


def _weight_gradients(
    grad: torch.Tensor, x: torch.Tensor, value: torch.Tensor, settings: list[list[int]], count: int
) -> torch.Tensor:
    """(clients, ...): of each client's samples, one convolution after another."""
    parts = zip(grad.chunk(count), x.chunk(count), strict=True)
    return torch.stack([_convolution_gradient(own, theirs, value, settings, 1) for own, theirs in parts])


def _convolution_gradient(
    grad: torch.Tensor, x: torch.Tensor, value: torch.Tensor, settings: list[list[int]], of: int
) -> torch.Tensor:
    """By x (0) or by the weight (1)."""
    wanted = [of == 0, of == 1, False]
    found: torch.Tensor = _aten.convolution_backward(grad, x, value, None, *settings, False, [0, 0], 1, wanted)[of]
    return found


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, copies: torch.Tensor, value: torch.Tensor, padding: int
    ) -> torch.Tensor:
        ctx.save_for_backward(rows)
        ctx.count, ctx.size, ctx.padding = *copies.shape[:2], padding
        return F.embedding(rows, value)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        parts = zip(grads[0].chunk(ctx.count), ctx.saved_tensors[0].chunk(ctx.count), strict=True)
        found = [_aten.embedding_dense_backward(own, rows, ctx.size, ctx.padding, False) for own, rows in parts]
        return None, torch.stack(found), None, None
