"""The strategy by which a task computes its gradients: by the model's size and the device, not by a stopwatch.

So the same run is computed by the same strategy tomorrow. One that may not fit a user's module is tried first.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, TypeVar

import torch

from acefl.core.errors import InvalidInput, require
from acefl.core.types import Vector
from acefl.tasks.adapters import Adapters
from acefl.tasks.client_samples import ClientSamples
from acefl.tasks.compute import (
    Beside,
    Compiled,
    Gradients,
    OneByOne,
    Replayed,
    Stacked,
    Together,
    gradient_of,
)
from acefl.tasks.local_work import LocalSteps, LocalWork
from acefl.tasks.model_loss import ModelLoss
from acefl.tasks.shared_weights import SharedWeights

COMPUTE = ("auto", "one-by-one", "together", "adapters", "shared")
Strategy = TypeVar("Strategy", Together, Adapters, SharedWeights)
log = logging.getLogger(__name__)
_TOGETHER_UP_TO_ON_GPU = 2_000_000  # parameters: above this models run beside each other instead of stacked
_BESIDE = 4  # gradients of large models at once on a GPU: more gain nothing
_BESIDE_PARAMETERS = 2**26  # of these together: each needs memory for its activations
_TOGETHER_UP_TO = 200_000  # parameters, frozen ones too: above this one gradient fills a CPU core
_ADAPTERS_UP_TO = 500_000  # the same, where clients share the frozen ones: on a CPU larger bases gain nothing
_SHARED_AT_ONCE = 20  # clients on one model version
_SHARED_SIZES = (5, 10)  # that are compiled on a GPU
_SHARED_SIZES_STACKED = (10, 20)  # of small models
_COMPILE_FROM = 100_000  # gradients of a run: fewer do not save the seconds that compiling takes
_COMPILE_ABOVE_ON_GPU = 100_000  # parameters: a replay of a smaller model is as fast as it gets


class Strategies:
    """The strategies that can compute the gradients of one model on these data.

    Args:
        model: Module and loss.
        data: All clients' samples.
        first: The first model, where strategies are tried.
        local: What a client does in place of one gradient.
    """

    def __init__(
        self, model: ModelLoss, data: ClientSamples, first: Vector, local: LocalWork | LocalSteps | None
    ) -> None:
        self._model, self._data, self._first, self._local = model, data, first, local
        self._alone = OneByOne(model.gradient, data.draw)
        self._batches = not isinstance(local, LocalSteps) and not model.random
        self._compiled: Gradients | None = None  # made when a run first asks for it

    def choose(self, compute: str) -> Gradients:
        """The strategy that a setting names; `auto`: the best one that works."""
        if compute == "together":
            allowed = "neither local steps nor a random forward pass such as dropout"
            require(self._batches, f"compute='together' allows {allowed}")
            last = self._model.net.channels_last
            require(not last, "compute='together' and channels_last exclude each other; allowed: one")
            return self._or_refusal(Together(self._model.functional, self._data.draw))
        if compute == "adapters":
            return self._adapters_or_refusal()
        for candidate in self._candidates() if compute == "auto" and self._batches else ():
            try:
                self._try(candidate)
                return self._replayed(candidate) if isinstance(candidate, Adapters) else candidate
            except Exception as error:
                log.info("gradients are not computed by %s, which does not work here: %s", candidate.name, error)
        return self._alone

    def at_once(self, strategy: Gradients) -> int:
        """How many gradients to compute in one call: one, where batching gains nothing."""
        numbers = len(self._model.net)
        if isinstance(strategy, OneByOne):
            return 1
        if isinstance(strategy, Adapters):
            return strategy.most
        if isinstance(strategy, Replayed) and strategy.most is not None:
            return strategy.most
        if isinstance(strategy, Replayed) and not self._stacks:
            return max(1, min(_BESIDE, _BESIDE_PARAMETERS // numbers))
        return 1 << (max(1, min(64, 2**24 // numbers)).bit_length() - 1)

    def shared(self) -> SharedWeights | Replayed:
        """The strategy for clients that start from one model, which go through its weights as one batch."""
        fits = self._local is None and not self._model.random and self._model.of_outputs
        allowed = "one gradient per visit, no dropout, and a loss of outputs"
        require(fits, f"compute is 'shared', and the task does not fit; allowed: {allowed}")
        candidate = self._or_refusal(
            SharedWeights(self._model.net, self._model.output, self._model.loss, self._data.draw)
        )
        if not self._on_gpu:
            return candidate
        return Replayed(candidate.over, self._data.gather, name="shared, cuda-graph", shared=True, sizes=_SHARED_SIZES)

    @property
    def most_shared(self) -> int:
        """How many clients on one model version are computed in one call."""
        return max(1, min(_SHARED_AT_ONCE, 2**28 // len(self._model.net)))

    def compiles(self, strategy: Gradients) -> bool:
        """Whether it is a strategy that can be compiled."""
        return isinstance(strategy, Replayed) or (type(strategy) is Together and not self._on_gpu)

    def compiling_pays(self, strategy: Gradients, gradients: float) -> bool:
        """Whether in a run of so many it saves more time than it takes."""
        large = self._model.net.numbers >= _COMPILE_ABOVE_ON_GPU
        return gradients >= _COMPILE_FROM and (large or not isinstance(strategy, Replayed))

    def compiled(self, strategy: Gradients) -> Gradients | None:
        """The same strategy, compiled; None, and a line in the log, where that does not work."""
        try:
            if self._compiled is None:
                model, data = self._model, self._data
                if isinstance(strategy, Replayed):
                    made: Replayed | Compiled = strategy.compiled()
                else:
                    made = Compiled(model.functional, data.draw_in_one_call)
                made.prepare(self._first)
                self._compiled = made
        except Exception as error:  # no compiler, or whatever a user's module does that cannot be compiled
            log.warning("gradients are not compiled: %s", _in_a_line(error))
        return self._compiled

    @functools.cached_property
    def shared_compiled(self) -> Replayed | None:
        """The strategy for clients on one model, compiled for a GPU; None, where it is none of its own."""
        if self._local is not None or self.most_shared < _SHARED_SIZES[0]:
            return None  # calls would be padded, of models that fill a GPU
        try:
            if self._stacks:
                at_one_model = Stacked(gradient_of(self._model.functional)).at_one_model
                shared: Any = Replayed(at_one_model, self._data.gather, shared=True, sizes=_SHARED_SIZES_STACKED)
            else:
                shared = self.shared()
            made: Replayed = shared.compiled()
            made.prepare(self._first)
            return made
        except Exception as error:  # as above
            log.info("gradients at one model are not computed together: %s", _in_a_line(error))
            return None

    def _candidates(self) -> list[Gradients]:
        """Strategies that compute several gradients in one call, best first."""
        net, found = self._model.net, list[Gradients]()
        if self._on_gpu:
            gradient = gradient_of(self._model.functional)
            found.append(Replayed(Stacked(gradient) if self._stacks else Beside(gradient), self._data.gather))
        elif net.numbers <= _TOGETHER_UP_TO:
            found.append(Together(self._model.functional, self._data.draw))
        small = self._on_gpu or net.numbers <= _ADAPTERS_UP_TO
        if small and self._model.of_outputs and Adapters.apply_to(net):
            lora = any("lora_" in name for name in net.names)
            found.insert(0 if self._on_gpu and lora else 1, self._adapters())
        return found

    def _or_refusal(self, strategy: Strategy) -> Strategy:
        """The strategy, which was asked for by its name, if it works."""
        try:
            self._try(strategy)
        except Exception as error:
            wrong = f"compute is {strategy.name!r}, which does not work here ({_in_a_line(error)})"
            raise InvalidInput(f"{wrong}; allowed: auto") from error
        return strategy

    def _try(self, strategy: Gradients | SharedWeights) -> None:
        """Raises whatever a user's module does that cannot be traced, captured, stacked or shared."""
        if isinstance(strategy, Adapters | SharedWeights):
            strategy.try_against(self._alone, self._first, len(self._data.sizes) - 1)
        else:
            strategy(self._first.unsqueeze(0), [0], [0])

    def _adapters(self) -> Adapters:
        return Adapters(self._model.net, self._model.output, self._model.loss, self._data.draw)

    def _adapters_or_refusal(self) -> Gradients:
        fits = self._batches and self._model.of_outputs and Adapters.apply_to(self._model.net)
        allowed = "nothing trained but linear layers on a larger frozen base, no dropout, and a loss of outputs"
        require(fits, f"compute is 'adapters', and the model does not fit; allowed: {allowed}")
        return self._replayed(self._or_refusal(self._adapters()))

    def _replayed(self, adapters: Adapters) -> Gradients:
        """Captured on a GPU, where nothing looks at numbers on the host: that would break a capture, and a broken one
        can leave torch's generators and its allocator in a bad state."""
        if not self._on_gpu:
            return adapters
        models, zero = self._first.unsqueeze(0), torch.zeros(1, dtype=torch.int64, device=self._data.device)
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            adapters.over(models, *self._data.gather(zero, zero))
        except RuntimeError as error:
            log.info("gradients of adapters are not captured: %s", error)
            return adapters
        finally:
            torch.cuda.set_sync_debug_mode(before)
        most = adapters.most
        sizes = (-(-most // 2), most)
        return Replayed(adapters.over, self._data.gather, name="adapters, cuda-graph", most=most, sizes=sizes)

    @property
    def _stacks(self) -> bool:
        """Whether a GPU computes models stacked, and not beside each other: `vmap` knows no memory formats."""
        return len(self._model.net) <= _TOGETHER_UP_TO_ON_GPU and not self._model.net.channels_last

    @property
    def _on_gpu(self) -> bool:
        return self._data.device.type == "cuda"


def _in_a_line(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:200]
