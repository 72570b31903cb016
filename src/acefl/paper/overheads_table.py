"""Memory beyond the model, measured on client and server, against the printed orders.

A server and its clients are built and driven at two numbers of clients and two model sizes; the order follows from how
the bytes they hold grow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from acefl.core.rule import Upload
from acefl.core.types import Arrival
from acefl.paper.page import Page
from acefl.paper.plan import Planned, Recipe, Request
from acefl.paper.records import Record, Results
from acefl.rules import parse
from acefl.rules.ace import ClientMemory
from acefl.runs.record import machine

NAME = "overheads-table"
CLIENTS, DIM = (20, 40), (20_000, 40_000)

# client, server and total, as printed
PRINTED = {
    "ASGD": ("ASGD()", "O(1)", "O(1)", "O(n)"),
    "DelayAdaptiveASGD": ("DelayAdaptiveASGD()", "O(1)", "O(1)", "O(n)"),
    "FedBuff": ("FedBuff()", "O(1)", "O(Md)", "O(n+Md)"),
    "CA2FL": ("CA2FL()", "O(1)", "O(nd)", "O(nd)"),
    "ACE, direct": ("ACE(variant='direct')", "O(1)", "O(nd)", "O(nd)"),
    "ACE, client-held": ("ACE(variant='client-held')", "O(d)", "O(d)", "O(nd)"),
    "ACE, 8 bits": ("ACE(table='int8')", "", "", ""),
    "ACED": ("ACED()", "O(1)", "O(nd)", "O(nd)"),
}


def measure(request: Request) -> list[Record]:
    records = []
    for name, (method, *_) in PRINTED.items():
        for clients, dim in ((CLIENTS[0], DIM[0]), (CLIENTS[1], DIM[0]), (CLIENTS[0], DIM[1])):
            server, client = _held(method, clients, dim)
            records.append(
                {
                    "cell": f"{name}-{clients}-{dim}",
                    "recipe": NAME,
                    "kind": "run",
                    "labels": {"form": "printed", "method": name, "clients": clients, "dim": dim},
                    "settings": {"method": method, "seed": 0, "lr": None},
                    "final": {"server_bytes": server, "client_bytes": client, "total_bytes": server + clients * client},
                    "history": [],
                    "wall_seconds": 0.0,
                    "machine": machine(),
                }
            )
    return records


def _held(method: str, clients: int, dim: int) -> tuple[int, int]:
    """Bytes of tensors that the rule, and each client, keep between arrivals, after two rounds of everybody."""
    rule_settings = parse(method)
    rule = rule_settings.build(clients, torch.zeros(dim))
    memory = ClientMemory() if rule_settings.uploads is Upload.CHANGE else None
    version = 0
    for visit in range(2):
        for client in range(clients):
            update = torch.full((dim,), float(visit + client + 1))
            if memory is not None:
                update = memory.difference(client, update)
            if rule.absorb(Arrival(client, update, version, version, visit * clients + client)):
                rule.direction()
                version += 1
    return tensor_bytes(rule), tensor_bytes(memory) // clients if memory is not None else 0


def tensor_bytes(thing: Any) -> int:
    """All memory of tensors that an object holds, each counted once."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in _tensors(thing, set())
    }
    return sum(storages.values())


def _tensors(thing: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        yield thing
        return
    parts: list[Any] = []
    if isinstance(thing, dict):
        parts = list(thing.values())
    elif isinstance(thing, list | tuple | set | frozenset):
        parts = list(thing)
    elif type(thing).__module__.startswith("acefl"):
        parts = list(getattr(thing, "__dict__", {}).values())
        parts += [getattr(thing, name) for name in getattr(type(thing), "__slots__", ()) if hasattr(thing, name)]
    for part in parts:
        yield from _tensors(part, seen)


def plan(request: Request) -> list[Planned]:
    return []


def report(results: Results, page: Page) -> None:
    page.text("## Memory beyond the model")
    rows = []
    for name, (_, *printed) in PRINTED.items():
        cells, words = [], {"agrees"}
        for where, order in zip(("client", "server", "total"), printed, strict=True):
            value = _bytes(results, name, where, 0, 0)
            if value is None:
                return
            measured = _order(results, name, where)
            cells.append(f"{value / 4 / DIM[0]:.2f} d: {measured}" + (f" (paper: {order})" if order else ""))
            if order:
                words.add(_compared(measured, order))
        word = next(word for word in ("does not agree", "less than printed", "agrees") if word in words)
        rows.append([name, *cells, word if printed[0] else ""])
    page.table(["method", "each client", "server", "all together", ""], rows)
    page.text(
        f"In float32 vectors of the model's size d, at n = {CLIENTS[0]}; the order from doubling n and doubling d. A "
        "running sum takes the place of the paper's buffer of M updates, so FedBuff's server needs O(d) where the "
        "paper says O(Md). The paper's O(1) does not count the vector an arrival is in; a rule that keeps a sum or a "
        "direction of its own holds O(d)."
    )


def _bytes(results: Results, name: str, where: str, clients: int, dim: int) -> float | None:
    return results.mean(f"{where}_bytes", method=name, clients=CLIENTS[clients], dim=DIM[dim])


def _order(results: Results, name: str, where: str) -> str:
    base, twice_n, twice_d = (_bytes(results, name, where, *at) or 0.0 for at in ((0, 0), (1, 0), (0, 1)))
    if base == 0.0:
        return "O(1)"
    in_n, in_d = math.log2(twice_n / base) > 0.5, math.log2(twice_d / base) > 0.5
    return {(True, True): "O(nd)", (False, True): "O(d)", (True, False): "O(n)", (False, False): "O(1)"}[in_n, in_d]


def _compared(measured: str, printed: str) -> str:
    needs = ("O(1)", "O(n)", "O(d)", "O(Md)", "O(n+Md)", "O(nd)")
    if measured == printed:
        return "agrees"
    return "less than printed" if needs.index(measured) < needs.index(printed) else "does not agree"


RECIPE = Recipe(
    NAME,
    "Storage overheads",
    "table of storage overheads (client, server and total)",
    plan,
    report,
    forms=("printed",),
    measure=measure,
    quick={"quick": True, "seeds": (0,)},
)
