"""Hold other frameworks' aggregators against the vectors: `python -m conformance.peers`, where they are installed.

Their own classes are called, with clients' models or updates as they want them, and with the staleness of the script
put where they keep it: what is tried is what they make of an arrival, not how they count versions. `conformance.peers`
needs no acefl, but torch; a framework that cannot be imported is left out, by one line.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import torch

from conformance.check import Arrivals, CannotDo, Driver, Tried, check

sys.modules.setdefault("piq", types.ModuleType("piq"))  # APPFL wants it for image quality reports alone


class _Peer:
    """What peers have in common: arrivals one by one, nobody joins or leaves, and clients' models by version."""

    def __init__(self, start: list[float], lr: float) -> None:
        self._models, self._lr = [torch.tensor(start)], lr

    def own_model(self, update: list[float], staleness: int) -> torch.Tensor:
        """Where a client ends that got its model so many versions ago."""
        return self._models[-1 - staleness] - self._lr * torch.tensor(update)

    def arrive(self, arrivals: Arrivals) -> list[float]:
        if len(arrivals) != 1:
            raise CannotDo("it steps, or counts, after each arrival")
        [(client, update, staleness)] = arrivals
        after, stepped = self.absorb(client, update, staleness)
        if stepped:
            self._models.append(after.clone())
        model: list[float] = self._models[-1].tolist()
        return model

    def absorb(self, client: int, update: list[float], staleness: int) -> tuple[torch.Tensor, bool]:
        raise NotImplementedError

    def join(self, clients: int) -> None:
        raise CannotDo("nobody joins")

    def leave(self, client: int) -> None:
        raise CannotDo("nobody leaves")


class _APPFL(_Peer):
    def __init__(self, kind: Any, config: dict[str, Any], start: list[float], lr: float) -> None:
        from omegaconf import DictConfig

        super().__init__(start, lr)
        self._gradients = bool(config.get("gradient_based"))
        self._server = kind(None, DictConfig({"optimize_memory": False, **config}))
        self._server.global_state = {"w": torch.tensor(start)}

    def absorb(self, client: int, update: list[float], staleness: int) -> tuple[torch.Tensor, bool]:
        before = self._server.global_step
        self._server.client_step[client] = before - staleness  # the version that it was sent
        sent = torch.tensor(update) if self._gradients else self.own_model(update, staleness)
        after = self._server.aggregate(client, {"w": sent})["w"]
        return after, self._server.global_step > before


def appfl(num_clients: Callable[[int], int], *, gradients: bool) -> Driver:
    """FedAsync and FedBuff of APPFL; it multiplies every weight by 1 / num_clients."""
    from appfl.algorithm.aggregator import FedAsyncAggregator, FedBuffAggregator

    def driver(method: str, settings: dict[str, Any], clients: int, start: list[float], lr: float) -> Tried | None:
        config: dict[str, Any] = {"num_clients": num_clients(clients)}
        if method == "FedAsync":
            law = {
                "staleness_fn": settings["staleness"],
                "staleness_fn_kwargs": {k: settings[k] for k in "ab" if k in settings},
            }
            return _APPFL(FedAsyncAggregator, {"alpha": settings["alpha"], **config, **law}, start, lr)
        if method == "FedBuff":
            law = {"staleness_fn": "polynomial", "staleness_fn_kwargs": {"a": 0.5}}
            law = law if settings["staleness"] == "sqrt" else {"staleness_fn": "constant"}
            alpha = lr / settings["buffer"] if gradients else 1.0 / settings["buffer"]
            config |= {"K": settings["buffer"], "alpha": alpha, "gradient_based": gradients, **law}
            return _APPFL(FedBuffAggregator, config, start, lr)
        return None

    return driver


class _FLGo(_Peer):
    def __init__(self, kind: Any, fields: dict[str, Any], start: list[float], lr: float, *, updates: bool) -> None:
        from flgo.utils.fmodule import FModule

        class Numbers(FModule):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.w = torch.nn.Linear(1, len(start), bias=False)

        super().__init__(start, lr)
        self._kind, self._updates = Numbers, updates
        self._server = object.__new__(kind)
        for name, value in {
            "current_round": 0,
            "buffer": [],
            "model": self._holding(self._models[0]),
            **fields,
        }.items():
            setattr(self._server, name, value)
        self._server.clients = [types.SimpleNamespace(datavol=1) for _ in range(fields["num_clients"])]
        self._server.aggregation_option = "uniform"

    def _holding(self, numbers: torch.Tensor) -> Any:
        model = self._kind()
        model.w.weight.data.copy_(numbers[:, None])
        return model

    def absorb(self, client: int, update: list[float], staleness: int) -> tuple[torch.Tensor, bool]:
        sent = self._lr * -torch.tensor(update) if self._updates else self.own_model(update, staleness)
        model = self._holding(sent)
        model._round = self._server.current_round - staleness
        self._server.received_clients = [client]
        stepped = self._server.package_handler({"model": [model], "__cid": [client]})
        self._server.current_round += int(stepped)
        return self._server.model.w.weight.data[:, 0], stepped


def flgo() -> Driver:
    """FedAsync and FedBuff of FLGo; its FedBuff always weighs by 1 / sqrt(1 + staleness)."""
    from flgo.algorithm import fedasync, fedbuff

    def driver(method: str, settings: dict[str, Any], clients: int, start: list[float], lr: float) -> Tried | None:
        if method == "FedAsync":
            a, b = settings["a"], settings.get("b", 0)
            law = {"flag": "poly", "poly_a": a} if settings["staleness"] == "polynomial" else {"flag": "hinge"}
            fields = {"alpha": settings["alpha"], "hinge_a": a, "hinge_b": b, "num_clients": clients, **law}
            return _FLGo(fedasync.Server, fields, start, lr, updates=False)
        if method == "FedBuff" and settings["staleness"] == "sqrt":
            fields = {"buffer_ratio": (settings["buffer"] + 0.5) / clients, "eta": 1.0, "num_clients": clients}
            return _FLGo(fedbuff.Server, fields, start, lr, updates=True)
        return None

    return driver


class _NVFlare(_Peer):
    """Its models have versions from 1 on, and it is told of an update's version, so staleness is put into that."""

    def __init__(self, manager: Any, start: list[float], lr: float) -> None:
        from nvflare.apis.dxo import DXO, DataKind
        from nvflare.apis.fl_context import FLContext

        super().__init__(start, lr)
        self._manager, self._context = manager, FLContext()
        self._manager.fire_event = lambda *_: None  # there is no engine to tell
        self._manager.initialize_model(DXO(DataKind.WEIGHTS, data={"w": start}), self._context)
        self._manager.generate_new_model(self._context)

    def absorb(self, client: int, update: list[float], staleness: int) -> tuple[torch.Tensor, bool]:
        from nvflare.apis.dxo import DXO, DataKind
        from nvflare.edge.mud import ModelUpdate

        before = self._manager.current_model_version
        moved = {"dict": {"w": [-self._lr * number for number in update]}, "count": 1}
        sent = DXO(DataKind.WEIGHT_DIFF, data=moved).to_shareable()
        self._manager.process_updates(
            {before - staleness: ModelUpdate(before - staleness, sent, {str(client): 0.0})}, self._context
        )
        after = torch.tensor(self._manager.current_model.data["w"])
        return after, self._manager.current_model_version > before


def nvflare() -> Driver:
    """FedBuff of NVFlare's edge package; its staleness weight is 1 / (1 + sqrt(s))."""
    from nvflare.edge.assessors.buff_model_manager import BuffModelManager

    def driver(method: str, settings: dict[str, Any], clients: int, start: list[float], lr: float) -> Tried | None:
        if method != "FedBuff":
            return None
        manager = BuffModelManager(settings["buffer"], staleness_weight=settings["staleness"] == "sqrt")
        return _NVFlare(manager, start, lr)

    return driver


def drivers() -> Iterator[tuple[str, Callable[[], Driver]]]:
    yield "appfl, num_clients=1", lambda: appfl(lambda clients: 1, gradients=False)
    yield "appfl, num_clients=1, gradient_based", lambda: appfl(lambda clients: 1, gradients=True)
    yield "appfl, num_clients as many as there are", lambda: appfl(lambda clients: clients, gradients=False)
    yield "flgo", flgo
    yield "nvflare", nvflare


def main() -> None:
    for name, build in drivers():
        package = name.partition(",")[0]
        try:
            driver = build()
        except ImportError as missing:
            print(f"{name}: not tried: {missing}")
            continue
        for verdict in check(driver):
            print(f"{package} {version(package)}{name.removeprefix(package)}: {verdict}")


if __name__ == "__main__":
    main()
