"""How client gradients are computed: one after another, many models in one call, compiled, or replayed on a GPU.

The strategy never changes which computation is done: the same samples at the same models, equal within rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch.func import grad, vmap
from torch.fx import GraphModule
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from acefl.core import rng as keyed
from acefl.core.types import Vector
from acefl.tasks import group_norm, inductor, tracing

Batch = object  # a tensor or a (nested) dict, list or tuple of tensors
Loss = Callable[[Vector, Batch, torch.Tensor], torch.Tensor]  # (flat model, inputs, targets) -> scalar
Call = Callable[[torch.Tensor, Batch, torch.Tensor], torch.Tensor]  # (models, inputs, targets) -> gradients


Draw = Callable[[list[int], list[int]], tuple[Batch, torch.Tensor]]  # clients, keys -> their minibatches
Gather = Callable[[torch.Tensor, torch.Tensor], tuple[Batch, torch.Tensor]]  # the same, from tensors on the device


class Gradients(Protocol):
    """Gradients of many models, each on a minibatch of its own client's data."""

    name: str

    def __call__(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor: ...


class OneByOne:
    """Plain autograd, one model after another: works with any module."""

    name = "one-by-one"

    def __init__(self, gradient: Callable[[Vector, Batch, torch.Tensor], Vector], draw: Draw) -> None:
        self._gradient, self._draw = gradient, draw

    def __call__(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        return self.over(models, *self._draw(clients, keys))

    def over(self, models: torch.Tensor, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        """The same over samples that are given."""
        rows = [
            self._gradient(models[k], tree_map(lambda t, k=k: t[k], inputs), targets[k]) for k in range(len(models))
        ]
        return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)


class Together:
    """`vmap` over stacked models, traced once per batch size into a flat list of tensor operations.

    Tracing removes what functorch spends per call in Python, which for small models is most of the time. Batches are
    padded to powers of two by repeating their first row, so that a handful of traces serve every size.
    """

    name = "together"

    def __init__(self, loss: Loss, draw: Draw) -> None:
        self._batched, self._draw = vmap(gradient_of(loss)), draw
        self._traced: dict[int, Callable[..., torch.Tensor]] = {}

    def __call__(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        count, size = len(models), _padded(len(models))
        if size != count:
            spare = size - count
            models = torch.cat((models, models[:1].expand(spare, -1)))
            clients, keys = clients + clients[:1] * spare, keys + keys[:1] * spare
        return self.over(models, *self._draw(clients, keys))[:count]

    def over(self, models: torch.Tensor, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        """The same over samples that are given; every number of models costs a trace of its own."""
        known = self._traced.get(len(models))
        if known is None:
            known = self._traced[len(models)] = self._trace(models, inputs, targets)
        with torch.no_grad():
            return known(models, inputs, targets)

    def _trace(self, models: torch.Tensor, inputs: Batch, targets: torch.Tensor) -> GraphModule:
        return tracing.traced(self._batched, models, inputs, targets)


class Compiled(Together):
    """`Together`, compiled by torch's inductor for the CPU.

    What it computes differs from the others in the last bits, since sums are taken in another order. It is the same
    from run to run on one machine with one number of threads, and whatever else is computed in the same call.
    Minibatches are drawn outside: the compiler has no exact 64-bit integers that wrap around.
    """

    name = "compiled"

    def __init__(self, loss: Loss, draw: Draw) -> None:
        super().__init__(loss, draw)
        self._compiled: dict[int, Call] = {}  # by number of threads, which the compiler writes into its loops

    def __call__(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        if len(models) > 1:
            return self.over(models, *self._draw(clients, keys))
        return self.over(models.repeat(2, 1), *self._draw(clients * 2, keys * 2))[:1]  # one is compiled apart from many

    def prepare(self, model: Vector) -> None:
        """Compile now, when it may still fail."""
        self(model.unsqueeze(0), [0], [0])

    def over(self, models: torch.Tensor, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        threads = torch.get_num_threads()
        known = self._compiled.get(threads)
        if known is None:
            known = self._compiled[threads] = _compiled(self._batched, models, inputs, targets, any_number=True)
        return known(models, inputs, targets)


def _compiled(
    function: Call, models: torch.Tensor, inputs: Batch, targets: torch.Tensor, *, any_number: bool = False
) -> Call:
    """The function, compiled for these shapes or any number of models, without anything that looks at shapes or strides
    in each call."""
    leaves, form = tree_flatten(inputs)
    models, targets, *leaves = (given.contiguous() for given in (models, targets, *leaves))  # as in every call

    def flat(models: torch.Tensor, targets: torch.Tensor, *leaves: torch.Tensor) -> tuple[torch.Tensor]:
        return (function(models, tree_unflatten(leaves, form), targets),)

    if any_number:
        graph = tracing.traced_for_any_number(flat, models, targets, *leaves)
    else:
        instead = None if models.device.type == "cpu" else group_norm.IN_PARTS
        graph = tracing.traced(flat, models, targets, *leaves, instead=instead)
    run = inductor.compiled(graph, [models, targets, *leaves], any_number=any_number)

    def call(models: torch.Tensor, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        leaves = (inputs,) if isinstance(inputs, torch.Tensor) else tree_leaves(inputs)  # torch's way takes longer
        return run([given.contiguous() for given in (models, targets, *leaves)])

    return call


class CompiledByShape:
    """A function of models and minibatches that is compiled for every number of them it is called with."""

    def __init__(self, function: Call) -> None:
        self._function = function
        self._known: dict[tuple[torch.Size, torch.Size], Call] = {}

    def __call__(self, models: torch.Tensor, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        kind = models.shape, targets.shape
        if kind not in self._known:
            self._known[kind] = _compiled(self._function, models, inputs, targets)
        return self._known[kind](models, inputs, targets)


class Beside:
    """Gradients of several large models on a GPU, on streams of their own: the later layers of a network leave most of
    the device idle, and another client's gradient fills it."""

    def __init__(self, gradient: Call) -> None:
        self.gradient = gradient
        self._branches: list[torch.cuda.Stream] = []  # the same for every size: memory is reused within a stream

    def __call__(self, models: torch.Tensor, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        if len(models) == 1:
            return self._row(0, models, inputs, targets).unsqueeze(0)
        trunk, rows = torch.cuda.current_stream(), []
        while len(self._branches) < len(models):
            self._branches.append(torch.cuda.Stream())
        branches = self._branches[: len(models)]
        for k, branch in enumerate(branches):
            branch.wait_stream(trunk)
            with torch.cuda.stream(branch):
                rows.append(self._row(k, models, inputs, targets))
        for branch in branches:
            trunk.wait_stream(branch)
        return torch.stack(rows)

    def _row(self, k: int, models: torch.Tensor, inputs: Batch, targets: torch.Tensor) -> Vector:
        return self.gradient(models[k], tree_map(lambda t: t[k], inputs), targets[k])


class Stacked:
    """Gradients of several small models by `vmap`, and of several clients at one model."""

    def __init__(self, gradient: Call) -> None:
        self._one, self._several = gradient, vmap(gradient)
        self.at_one_model: Call = vmap(gradient, in_dims=(None, 0, 0))

    def __call__(self, models: torch.Tensor, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        if len(models) > 1:
            return self._several(models, inputs, targets)
        return self._one(models[0], tree_map(lambda t: t[0], inputs), targets[0]).unsqueeze(0)


_CAPTURED_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # padding costs a GPU real work, a capture little
_CAPTURED_SHARED = (1, 2, *range(4, 65, 2))  # the same for large calls, in which a client costs as much as a capture


def _one_call(sizes: Sequence[int], most: int | None, count: int) -> list[int]:
    size = next(size for size in sizes if size >= count)
    return [size if most is None else min(size, max(most, count))]


def _two_sizes(small: int, large: int, count: int) -> list[int]:
    whole, rest = divmod(count, large)
    return [large] * whole + [small if rest <= small else large] * (rest > 0)


class Replayed:
    """On a GPU: drawing minibatches and computing gradients, captured once per batch size as a CUDA graph and replayed.

    A replay costs the device its arithmetic and the host one launch, where eager code costs hundreds. `gradients` says
    how several are computed: small models `Stacked`, large ones `Beside` each other, adapters on the base they share.
    `most`: how many at once; None: as many as the models' size allows. `sizes`: the two that are compiled, if anything
    is, since each costs compiling anew. `shared`: all clients start from one model, the only one that is given.
    """

    def __init__(
        self,
        gradients: Call,
        gather: Gather,
        *,
        name: str = "cuda-graph",
        most: int | None = None,
        sizes: tuple[int, int] = (4, 8),
        shared: bool = False,
    ) -> None:
        self.name, self.most, self._shared = name, most, shared
        self._gradients, self._gather, self._sizes = gradients, gather, sizes
        self._fit: Callable[[int], list[int]] = partial(
            _one_call, _CAPTURED_SHARED if shared else _CAPTURED_SIZES, most
        )
        self._captured: dict[int, _Captured] = {}
        self._pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None

    def compiled(self) -> Replayed:
        """The same, compiled by torch's inductor before it is captured. Its gradients differ in the last bits."""
        own, name = self._gradients, f"compiled {self.name}"
        if isinstance(own, Beside):
            return Replayed(Beside(CompiledByShape(own.gradient)), self._gather, name=name, most=self.most)
        kept: dict[str, Any] = {"most": self.most, "sizes": self._sizes, "shared": self._shared}
        made = Replayed(CompiledByShape(own), self._gather, name=name, **kept)
        made._fit = partial(_two_sizes, *self._sizes)
        return made

    def prepare(self, model: Vector) -> None:
        """Compile all there is to compile now, when it may still fail."""
        for size in (1,) if isinstance(self._gradients, Beside) else self._sizes:
            self(model.repeat(1 if self._shared else size, 1), [0] * size, [0] * size)

    def __call__(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        found, start = [], 0
        for size in self._fit(len(clients)):
            part = slice(start, start + size)
            own = models if self._shared else models[part]
            if size not in self._captured:
                self._captured[size] = _Captured(
                    self._drawn, size, models[:1].repeat(1 if self._shared else size, 1), self._pool
                )
            found.append(self._captured[size].replay(own, clients[part], keys[part]))
            start += size
        return found[0] if len(found) == 1 else torch.cat(found)

    def _drawn(self, models: torch.Tensor, clients: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return self._gradients(models[0] if self._shared else models, *self._gather(clients, keys))


class _Captured:
    """A CUDA graph on static buffers for so many models. Rows beyond those given keep what an earlier call left.

    All graphs of a task share one pool of memory: one runs at a time, and its result is copied out before the next.
    """

    def __init__(self, compute: Callable[..., torch.Tensor], size: int, models: torch.Tensor, pool: Any) -> None:
        self._models = models  # the buffer that models are copied into
        self._who = torch.zeros(2, size, dtype=torch.int64, device=models.device)  # clients and keys
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                compute(self._models, *self._who)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._out = compute(self._models, *self._who)

    def replay(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        count = len(clients)
        self._models[: len(models)].copy_(models)
        self._who[:, :count].copy_(torch.tensor([clients, [keyed.signed(k) for k in keys]]), non_blocking=True)
        self._graph.replay()
        return self._out[:count].clone()


def _padded(count: int) -> int:
    """The next power of two: a handful of batch sizes serves every count."""
    return 1 << (count - 1).bit_length()


def gradient_of(loss: Loss) -> Call:
    """The gradient of one model's loss on one minibatch."""
    gradient: Call = grad(_plain(loss))
    return gradient


def _plain(loss: Loss) -> Loss:
    """A function of its own around the loss: fx cannot trace a bound method."""

    def plain(model: Vector, inputs: Batch, targets: torch.Tensor) -> torch.Tensor:
        return loss(model, inputs, targets)

    return plain
