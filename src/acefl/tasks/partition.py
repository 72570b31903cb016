"""Splitting one data set over clients, by flwr-datasets' partitioners."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from acefl.core.errors import InvalidInput, one_of, require

PARTITIONS = ("dirichlet", "shards", "pathological", "iid")
Rows = npt.NDArray[np.int64]


def partition(
    labels: npt.ArrayLike,
    clients: int,
    *,
    how: str = "dirichlet",
    alpha: float = 0.1,
    classes_per_client: int = 2,
    seed: int = 0,
) -> list[Rows]:
    """Row numbers per client, every row once, clients ordered by their most common label.

    `dirichlet` shares out each label by Dirichlet(alpha). `shards` cuts the rows, sorted by label, into equal pieces
    and gives everybody `classes_per_client` of them (a few get one more where they do not come out even).
    `pathological` gives everybody rows of exactly `classes_per_client` labels. `iid` shares out at random.

    The order makes `slow="last"` correlate speed with data. A client that a draw leaves without any row gets one from
    the client that has most, so that every client can work.

    Args:
        labels: One whole number per row.
        clients: How many.
        how: `dirichlet`, `shards`, `pathological` or `iid`.
        alpha: Of `dirichlet`; smaller is more uneven.
        classes_per_client: Of `shards` and `pathological`.
        seed: Of the draw.
    """
    labels = np.asarray(labels)
    one_of("partition", how, PARTITIONS)
    require(clients >= 1, f"clients is {clients}; allowed: at least 1")
    require(clients <= len(labels), f"clients is {clients}; allowed: at most the number of samples, {len(labels)}")
    require(math.isfinite(alpha) and alpha > 0, f"alpha is {alpha}; allowed: a finite number above 0")
    require(classes_per_client >= 1, f"classes_per_client is {classes_per_client}; allowed: at least 1")
    require(seed >= 0, f"seed is {seed}; allowed: at least 0")
    if clients == 1:
        return [np.arange(len(labels))]
    rows = _split(labels, clients, how, alpha, classes_per_client, seed)
    left_out = len(labels) - sum(map(len, rows))
    require(left_out == 0, f"partition {how!r} leaves out {left_out} rows; allowed: at least as many clients as labels")
    _fill_empty_clients(rows)
    return sorted(rows, key=lambda own: _most_common(labels[own]))


def _split(labels: npt.NDArray[Any], clients: int, how: str, alpha: float, classes: int, seed: int) -> list[Rows]:
    from datasets import Dataset

    order = np.arange(len(labels))
    if how == "iid":  # the partitioner itself cuts the rows as they come
        np.random.default_rng(seed).shuffle(order)
    partitioner = _partitioner(how, len(labels), clients, alpha, classes, seed)
    partitioner.dataset = Dataset.from_dict({"label": labels[order], "row": order})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [np.asarray(partitioner.load_partition(i)[:]["row"], dtype=np.int64) for i in range(clients)]
    except ValueError as error:
        reason = str(error).partition(". ")[0]
        raise InvalidInput(f"partition {how!r} over {clients} clients does not fit these data: {reason}") from None


def _partitioner(how: str, rows: int, clients: int, alpha: float, classes: int, seed: int) -> Any:
    from flwr_datasets import partitioner as kinds

    if how == "dirichlet":
        return kinds.DirichletPartitioner(
            num_partitions=clients, partition_by="label", alpha=float(alpha), min_partition_size=0, seed=seed
        )
    if how == "shards":
        return kinds.ShardPartitioner(
            num_partitions=clients,
            partition_by="label",
            shard_size=_shard_size(rows, clients * classes),
            keep_incomplete_shard=True,
            seed=seed,
        )
    if how == "pathological":
        return kinds.PathologicalPartitioner(
            num_partitions=clients,
            partition_by="label",
            num_classes_per_partition=classes,
            class_assignment_mode="first-deterministic",  # at random, a label may go to nobody
            seed=seed,
        )
    return kinds.IidPartitioner(num_partitions=clients)


def _shard_size(rows: int, shards: int) -> int:
    """The size that cuts the rows into so many shards, or where none does, the largest that gives more of them."""
    even = math.ceil(rows / shards)
    return even if math.ceil(rows / even) == shards else max(1, rows // shards)


def _fill_empty_clients(rows: list[Rows]) -> None:
    for client, own in enumerate(rows):
        if len(own) == 0:
            donor = max(range(len(rows)), key=lambda i: len(rows[i]))
            rows[client], rows[donor] = rows[donor][-1:], rows[donor][:-1]


def _most_common(labels: npt.NDArray[Any]) -> Any:
    counts = Counter(labels.tolist())
    return min(counts, key=lambda label: (-counts[label], label))
