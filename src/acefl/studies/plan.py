"""What a federation's table will cost on this machine, before anybody trains."""

from __future__ import annotations

import itertools
import math
import os
import re
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from acefl.core import kernels
from acefl.core.errors import InvalidInput, require
from acefl.core.kernels.layout import Layout
from acefl.core.server import Server
from acefl.core.types import Arrival
from acefl.rules.ace import ACE
from acefl.rules.settings import check_count, check_table

MEASURED_UP_TO = 1 << 24  # parameters: longer vectors are timed at this length and scaled
_BEYOND_CACHES = 256_000_000  # bytes of the table that is timed, if the federation's is not smaller
_SUFFIX = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9}


@dataclass(frozen=True)
class Forecast:
    """Bytes and seconds of ACE's server at one size."""

    params: int
    clients: int
    table: str
    home: str
    row_bytes: int  # one client's row, scales included
    table_bytes: int
    server_bytes: int  # besides the table: the model, the running sum, one arriving update
    upload_bytes: int  # one client's update as float32
    traffic_bytes: int  # read and written in memory per arrival, the model's step included
    seconds: float  # per arrival, the gate and the model's step included; timed on this machine, rows of a file cached
    kernels: str

    @property
    def bytes_per_param(self) -> float:
        """What one parameter of one client takes in the table."""
        return self.row_bytes / self.params


def forecast(params: int, clients: int, *, table: str = "int8", home: str | os.PathLike[str] = "memory") -> Forecast:
    """Sizes by arithmetic, time by running a real server with a few clients and rows of the same length."""
    check_count("params", params)
    check_count("clients", clients)
    check_table(table, home)
    row = Layout(table, params).row_bytes
    vector = 4 * params
    timed = min(params, MEASURED_UP_TO)
    seconds, kernel = _time_arrival(timed, clients, table, home)
    return Forecast(
        params=params,
        clients=clients,
        table=table,
        home=str(home),
        row_bytes=row,
        table_bytes=clients * row,
        server_bytes=3 * vector,
        upload_bytes=vector,
        traffic_bytes=vector + 2 * row + 4 * vector,
        seconds=seconds * params / timed,
        kernels=kernel,
    )


def _time_arrival(params: int, clients: int, table: str, home: str | os.PathLike[str]) -> tuple[float, str]:
    """The median time a real server takes from an update to the next model, its gate's look at the update included."""
    model = torch.zeros(params)
    updates = [torch.randn(params) for _ in range(2)]
    layout = Layout(table, params)
    rows = min(clients, max(3, _BEYOND_CACHES // layout.row_bytes))
    with tempfile.TemporaryDirectory(dir=_beside(home)) as folder:
        place = home if home in ("memory", "device") else Path(folder) / "table"
        rule = ACE(table=table, home=place, warmup="seen").build(rows, model)
        server = Server(model, rule, lr=1e-6, clients=rows)
        times = []
        deadline = math.inf
        for turn in itertools.count():
            arrival = Arrival(turn % rows, updates[turn % 2], server.version, server.version, turn)
            began = time.perf_counter()
            server.handle([arrival])
            if turn >= rows + 3:
                times.append(time.perf_counter() - began)
            if turn == rows:
                deadline = time.perf_counter() + 3.0
            if len(times) == 200 or (len(times) >= 12 and time.perf_counter() > deadline):
                break
        del server, rule
    kernel = type(kernels.choose(layout, model.device)).__name__
    return statistics.median(times), "numba" if kernel == "Compiled" else "torch"


def _beside(home: str | os.PathLike[str]) -> Path | None:
    if home in ("memory", "device"):
        return None
    folder = Path(home).parent
    require(folder.is_dir(), f"home is {home}; its folder {folder} does not exist")
    return folder


def parse_count(text: str) -> int:
    """`11.2M`, `500K`, `1.1B` or a plain whole number."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMBG]?)\s*", text, re.IGNORECASE)
    if match is None:
        raise InvalidInput(f"{text!r} is not a number of parameters; allowed: such as 11200000, 500K, 11.2M, 1.1B")
    count = float(match[1]) * _SUFFIX[match[2].upper()]
    require(count >= 1 and count == int(count), f"{text!r} is not a whole number of parameters; allowed: at least 1")
    return int(count)
