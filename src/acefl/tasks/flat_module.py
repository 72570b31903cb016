"""A module whose trainable parameters are one vector, which is what travels; all else in it stays where it is."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from acefl.core.errors import InvalidInput, require
from acefl.core.types import Vector
from acefl.tasks.batch_norm import frozen_norms, refuse_running_statistics
from acefl.tasks.channels_last import ChannelsLast, convolution_weights
from acefl.tasks.compute import Batch
from acefl.tasks.linear_layers import OneDNN, gains


class FlatModule:
    """A copy of a user's module. Its trainable parameters are views of `vector`; frozen ones may be of any type.

    A BatchNorm of which all parameters are frozen is part of a frozen backbone: it goes on normalising by the
    statistics it came with, in training too.
    """

    def __init__(self, model: nn.Module, device: torch.device, *, bf16: bool, channels_last: bool) -> None:
        refuse_running_statistics(model)
        self.device, self.bf16, self.channels_last = device, bf16, channels_last
        self.module = copy.deepcopy(model).to(device)
        self.train()
        trained = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        require(bool(trained), "the model has no trainable parameters")
        for name, parameter in trained.items():
            wrong = f"parameter {name} is {parameter.dtype}; allowed: torch.float32 (model.float() converts)"
            require(parameter.dtype == torch.float32, wrong)
        for name, given in model.named_parameters():
            hooked = bool(given._backward_hooks) and name in trained
            wrong = f"parameter {name} has a hook on its gradient, which no copy of a model keeps"
            require(not hooked, f"{wrong}; allowed: hooks that forward puts on tensors")
        self.names, self.parameters = list(trained), list(trained.values())
        self.numbers = sum(p.numel() for p in self.module.parameters())  # frozen ones too: what a pass computes with
        self._large_layers = device.type == "cpu" and gains(self.module)
        self._shapes = [p.shape for p in self.parameters]
        self._sizes = [p.numel() for p in self.parameters]
        self.vector = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        for parameter, view in zip(self.parameters, self.views(self.vector), strict=True):
            parameter.data = view

    def __len__(self) -> int:
        return len(self.vector)

    def train(self) -> None:
        self.module.train()
        for norm in frozen_norms(self.module):
            norm.eval()

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        self.module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.train()

    @contextlib.contextmanager
    def in_float32(self) -> Iterator[None]:
        """Without autocast and without TF32: to compare two ways of computing the same."""
        cudnn, bf16 = torch.backends.cudnn, self.bf16
        self.bf16 = False
        kept = {"enabled": cudnn.enabled, "benchmark": cudnn.benchmark, "deterministic": cudnn.deterministic}
        try:
            with cudnn.flags(**kept, allow_tf32=False):
                yield
        finally:
            self.bf16 = bf16

    def difference(self, expected: torch.Tensor, found: torch.Tensor, norm: float = torch.inf) -> float:
        """Of gradients, the largest of any parameter, as a share of that parameter's own gradient, so that none is
        drowned by louder ones; below a thousandth of the largest of all nothing is told from rounding. By the largest
        entry, or by another norm."""
        parts = zip(self.stacked_views(expected), self.stacked_views(found), strict=True)
        sizes = [(torch.linalg.vector_norm(one - two, norm), torch.linalg.vector_norm(one, norm)) for one, two in parts]
        least = 1e-3 * torch.stack([own for _, own in sizes]).max()
        return float(torch.stack([wrong / own.maximum(least) for wrong, own in sizes]).max())

    def with_parameters(self, model: Vector) -> nn.Module:
        """A copy of the module with these parameters, apart from this one."""
        copied = copy.deepcopy(self.module).eval()
        trained = [parameter for parameter in copied.parameters() if parameter.requires_grad]
        for parameter, view in zip(trained, self.views(model), strict=True):
            parameter.data = view.detach().clone()
        return copied

    def views(self, flat: Vector) -> list[torch.Tensor]:
        return [part.view(shape) for part, shape in zip(flat.split(self._sizes), self._shapes, strict=True)]

    def stacked_views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parameters of several flat models, one below the other."""
        parts = zip(flat.split(self._sizes, dim=1), self._shapes, strict=True)
        return [part.view(-1, *shape) for part, shape in parts]

    def named(self, flat: Vector) -> dict[str, torch.Tensor]:
        """The parameters from a flat model, in the format its layers want them in."""
        if not self.channels_last:
            return dict(zip(self.names, self.views(flat), strict=True))
        precision = torch.bfloat16 if self.bf16 else torch.float32
        dtypes = tuple(precision if own else None for own in self._in_convolutions)
        parts: tuple[torch.Tensor, ...] = ChannelsLast.apply(flat, tuple(self._shapes), dtypes)  # type: ignore[no-untyped-call]
        return dict(zip(self.names, parts, strict=True))

    @functools.cached_property
    def _in_convolutions(self) -> list[bool]:
        own = convolution_weights(self.module)
        return [name in own for name in self.names]

    def __call__(self, inputs: Batch, parameters: dict[str, torch.Tensor] | None = None, **more: torch.Tensor) -> Any:
        """What the module gives, with its own parameters or others in their place; a dict is given by name."""
        inputs = tree_map(self._in_format, inputs)
        arguments = () if isinstance(inputs, dict) else (inputs,)
        keywords = {**inputs, **more} if isinstance(inputs, dict) else more
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)
        with autocast, OneDNN() if self._large_layers else contextlib.nullcontext():
            if parameters is None:
                return self.module(*arguments, **keywords)
            return functional_call(self.module, parameters, arguments, keywords)

    def _in_format(self, tensor: torch.Tensor) -> torch.Tensor:
        image = self.channels_last and tensor.dim() == 4
        return tensor.contiguous(memory_format=torch.channels_last) if image else tensor

    @contextlib.contextmanager
    def refusing_changed_buffers(self) -> Iterator[None]:
        """What a pass in training leaves in buffers would be lost on its way to the server: tried, since no list of
        layers is complete. Buffers that are not saved with a model are caches, and may change."""
        saved = set(self.module.state_dict(keep_vars=True))
        before = {name: value.clone() for name, value in self.module.named_buffers() if name in saved}
        yield
        for name, value in self.module.named_buffers():
            if name in before and not torch.equal(before[name], value):
                raise InvalidInput(
                    f"buffer {name} changes in training, and updates do not carry buffers; allowed: a model whose "
                    "state is its parameters (for BatchNorm: acefl.tasks.carried_statistics)"
                )


def output_tensor(given: Any) -> torch.Tensor:
    """The tensor in what a model gives: itself, or the `logits` of a transformers model, in float32."""
    if isinstance(given, torch.Tensor):
        found: Any = given
    else:
        found = given.get("logits") if isinstance(given, dict) else getattr(given, "logits", None)
        if not isinstance(found, torch.Tensor):
            raise InvalidInput(
                f"the model gives {type(given).__name__}; allowed: a tensor, or an output with .logits (a module of "
                "your own around it can pick one)"
            )
    output: torch.Tensor = found
    return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output
