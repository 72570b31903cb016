"""Splitting one data set over clients, by flwr-datasets' partitioners."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from acefl.errors import InvalidInput, one_of, require

PARTITIONS = ("dirichlet", "shards", "pathological", "iid")
Rows = npt.NDArray[np.int64]


def partition(
    labels: npt.NDArray[Any],
    clients: int,
    *,
    how: str = "dirichlet",
    alpha: float = 0.1,
    classes_per_client: int = 2,
    seed: int = 0,
) -> list[Rows]:
    """Row numbers per client, clients ordered by their most common label.

    The order makes `slow="last"` correlate speed with data. A client that a draw leaves without any row gets one from
    the client that has most, so that every client can work.
    """
    one_of("partition", how, PARTITIONS)
    require(clients >= 1, f"clients is {clients}; allowed: at least 1")
    require(clients <= len(labels), f"clients is {clients}; allowed: at most the number of samples, {len(labels)}")
    require(alpha > 0, f"alpha is {alpha}; allowed: above 0")
    if clients == 1:
        return [np.arange(len(labels))]
    from datasets import Dataset

    partitioner = _partitioner(how, clients, alpha, classes_per_client, seed)
    partitioner.dataset = Dataset.from_dict({"label": labels, "row": np.arange(len(labels))})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = [np.asarray(partitioner.load_partition(i)["row"], dtype=np.int64) for i in range(clients)]
    except ValueError as error:
        raise InvalidInput(f"partition {how!r} over {clients} clients does not fit these data: {error}") from None
    _feed_the_empty(rows)
    return sorted(rows, key=lambda own: _most_common(labels[own]))


def _partitioner(how: str, clients: int, alpha: float, classes: int, seed: int) -> Any:
    from flwr_datasets import partitioner as kinds

    if how == "dirichlet":
        return kinds.DirichletPartitioner(
            num_partitions=clients, partition_by="label", alpha=alpha, min_partition_size=0, seed=seed
        )
    if how == "shards":
        return kinds.ShardPartitioner(
            num_partitions=clients, partition_by="label", num_shards_per_partition=classes, seed=seed
        )
    if how == "pathological":
        return kinds.PathologicalPartitioner(
            num_partitions=clients, partition_by="label", num_classes_per_partition=classes, seed=seed
        )
    return kinds.IidPartitioner(num_partitions=clients)


def _feed_the_empty(rows: list[Rows]) -> None:
    for client, own in enumerate(rows):
        if len(own) == 0:
            donor = max(range(len(rows)), key=lambda i: len(rows[i]))
            rows[client], rows[donor] = rows[donor][-1:], rows[donor][:-1]


def _most_common(labels: npt.NDArray[Any]) -> int:
    counts = Counter(labels.tolist())
    return int(min(counts, key=lambda label: (-counts[label], label)))
