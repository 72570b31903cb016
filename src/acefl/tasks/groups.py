"""Clients that exist: rows of one table, given to the hospitals, schools or users they came from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_leaves, tree_map

from acefl.core import rng as keyed
from acefl.core.errors import InvalidInput, one_of, require
from acefl.core.names import client_name, in_order, listed

ORDERS = ("name", "target")
_SPLIT_STREAM = 71

Array = npt.NDArray[Any]
Pair = tuple[Any, torch.Tensor]  # inputs (a tensor, or a dict of them) and targets


class NamedClients(Sequence[Pair]):
    """Every client's data, its name, and what it holds out: `TorchTask` takes it as its `clients`.

    Args:
        names: What clients are called.
        train: Inputs and targets of each, to train on.
        tests: The same to be judged by; None: nothing is held out.
    """

    def __init__(self, names: Sequence[str], train: Sequence[Pair], tests: Sequence[Pair] | None = None) -> None:
        self.names, self._train, self.tests = list(names), list(train), None if tests is None else list(tests)

    def __len__(self) -> int:
        return len(self._train)

    def __getitem__(self, client: Any) -> Any:
        return self._train[client]

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._train)

    def __repr__(self) -> str:
        rows = sum(len(targets) for _, targets in self._train)
        held = "" if self.tests is None else f", {sum(len(targets) for _, targets in self.tests):,} held out"
        return f"NamedClients({len(self):,} clients: {listed(self.names)}; {rows:,} samples{held})"

    def pooled(self) -> tuple[Pair, Pair | None]:
        """All samples to train on as one client's, and all that are held out: for a centralised reference."""
        return _together(self._train), None if self.tests is None else _together(self.tests)


def by_group(
    data: Any,
    group: Any,
    *,
    target: str | Sequence[str] | None = None,
    inputs: str | Sequence[str] | None = None,
    test: float = 0.0,
    at_least: int = 1,
    order: str = "name",
    seed: int = 0,
) -> NamedClients:
    """Data by the group each row came from: a client per hospital, school or user, called by its name.

    A DataFrame or a `datasets.Dataset` names its columns: `by_group(frame, "hospital", target="died", test=0.2)`.
    Columns of numbers and booleans become one matrix of float32; columns of arrays (of a Dataset) are given to the
    model by name, or as they are where `inputs` names one. Arrays and tensors come as `(inputs, targets)`, with
    `group` an array of one label per row; inputs may be a dict of them. Targets that are whole numbers are classes.

    Clients are in the order of their names (numbers as numbers), or of their mean target: then `slow="last"` ties
    speed to data. `test` holds out that share of each client's rows, at least one, and leaves at least one. Which ones
    is a function of the seed, the client's name and the row's place among its own: the same whoever else is there.

    Args:
        data: A DataFrame, a `datasets.Dataset`, or `(inputs, targets)`.
        group: The column, or the labels, that say whose a row is.
        target: The column, or columns, to predict.
        inputs: The columns to predict from; None: all others.
        test: Share of each client's rows that it holds out.
        at_least: Clients with fewer rows are left out.
        order: `name` or `target`.
        seed: Draws what is held out.
    """
    one_of("order", order, ORDERS)
    require(0 <= test < 1, f"test is {test}; allowed: from 0 to below 1")
    require(at_least >= 1, f"at_least is {at_least}; allowed: at least 1")
    labels, values, targets = _read(data, group, target, inputs)
    rows = {name: own for name, own in _rows_by_name(labels).items() if len(own) >= at_least}
    require(bool(rows), f"no client has {at_least} rows (at_least); allowed: a number that some reach")
    small = [name for name, own in rows.items() if len(own) < 2]
    told = f"test={test} needs two rows of each client; one alone have {listed(small)} (at_least=2 leaves them out)"
    require(test == 0 or not small, told)
    if order == "target":
        rows = dict(sorted(rows.items(), key=lambda entry: float(targets[entry[1]].double().mean())))
    held = {name: _held_out(name, len(own), test, seed) for name, own in rows.items()}
    take: Callable[[Array], Pair] = lambda own: (tree_map(lambda t: t[own], values), targets[own])  # noqa: E731
    train = [take(own[~held[name]]) for name, own in rows.items()]
    return NamedClients(list(rows), train, [take(own[held[name]]) for name, own in rows.items()] if test else None)


def named(
    clients: Sequence[Any], names: Sequence[str] | None, tests: Sequence[Any] | None
) -> tuple[list[str] | None, Sequence[Any] | None]:
    """The clients' names and held-out data: what was given, or what the data bring along."""
    if isinstance(clients, NamedClients):
        names = clients.names if names is None else names
        tests = clients.tests if tests is None else tests
    if names is None:
        return None, tests
    names = [client_name(name) for name in names]
    require(
        len(names) == len(clients), f"names has {len(names)} entries; allowed: one for each of {len(clients)} clients"
    )
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    require(not twice, f"names has {listed(twice)} more than once; allowed: a name of its own for each client")
    if isinstance(tests, NamedClients):
        tests = in_order("client_tests", dict(zip(tests.names, tests, strict=True)), len(clients), names)
    return names, tests


def _together(pairs: Sequence[Pair]) -> Pair:
    inputs = tree_map(lambda *parts: torch.cat(parts), *[inputs for inputs, _ in pairs])
    return inputs, torch.cat([targets for _, targets in pairs])


def _rows_by_name(labels: Array) -> dict[str, Array]:
    """Every client's rows, clients in the order of their labels."""
    try:
        found, places = np.unique(labels, return_inverse=True)
    except TypeError:
        kinds = sorted({type(label).__name__ for label in labels.tolist()})
        raise InvalidInput(f"groups are of several kinds ({', '.join(kinds)}); allowed: one kind of label") from None
    order = np.argsort(places, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(places))[:-1])
    return {client_name(label): own for label, own in zip(found.tolist(), parts, strict=True)}


def _held_out(name: str, count: int, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Which of a client's rows are held out."""
    mask = np.zeros(count, dtype=bool)
    if share:
        word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        order = sorted(range(count), key=lambda place: keyed.key(seed, _SPLIT_STREAM, word, place))
        mask[order[: min(max(1, round(share * count)), count - 1)]] = True
    return mask


def _read(data: Any, group: Any, target: Any, inputs: Any) -> tuple[Array, Any, torch.Tensor]:
    """Labels, inputs and targets, a row each."""
    if isinstance(data, tuple):
        wrong = "target and inputs name columns; allowed with (inputs, targets): neither"
        require(target is None and inputs is None, wrong)
        labels, values, targets = _of_arrays(data, group)
    else:
        labels, values, targets = _of_columns(_table(data), group, target, inputs)
    values = tree_map(lambda leaf: leaf.float() if leaf.is_floating_point() else leaf, values)
    return labels, values, targets.float() if targets.is_floating_point() else targets.long()


def _of_arrays(data: tuple[Any, ...], group: Any) -> tuple[Array, Any, torch.Tensor]:
    require(len(data) == 2, f"data is a tuple of {len(data)}; allowed: (inputs, targets)")
    require(not isinstance(group, str), f"group is {group!r}; allowed with (inputs, targets): a label per row")
    values, targets = tree_map(lambda leaf: _tensor("data", leaf), data)
    labels = np.asarray(group.cpu() if isinstance(group, torch.Tensor) else group)
    sizes = {len(leaf) for leaf in tree_leaves(values)} | {len(targets), len(labels)}
    require(len(sizes) == 1, f"inputs, targets and groups differ in length: {sorted(sizes)}")
    return _labels("group", labels), values, targets


def _of_columns(table: _Table, group: Any, target: Any, inputs: Any) -> tuple[Array, Any, torch.Tensor]:
    require(isinstance(group, str), "group is no name; allowed: the column that says whose a row is")
    require(target is not None, "target is missing; allowed: the column to predict, as in target='died'")
    wanted = [target] if isinstance(target, str) else list(target)
    chosen = [inputs] if isinstance(inputs, str) else list(inputs or ())
    if inputs is None:
        chosen = [name for name in table.columns if name != group and name not in wanted]
    require(bool(chosen), "inputs names no column; allowed: at least one")
    missing = [name for name in (group, *wanted, *chosen) if name not in table.columns]
    require(not missing, f"the data have no column {listed(missing)}; they have {listed(map(str, table.columns))}")
    labels = _labels(group, table.column(group))
    columns = {name: table.numbers(name) for name in chosen}
    targets = [table.numbers(name) for name in wanted]
    values: Any = columns[inputs] if isinstance(inputs, str) else columns
    if all(column.dim() == 1 for column in columns.values()):
        values = torch.stack([column.float() for column in columns.values()], dim=1)
    return labels, values, targets[0] if isinstance(target, str) else torch.stack(targets, dim=1)


@dataclass(frozen=True)
class _Table:
    """The columns of a DataFrame or a Dataset."""

    columns: list[Any]
    column: Callable[[str], Array]

    def numbers(self, name: str) -> torch.Tensor:
        return _tensor(f"column {name!r}", self.column(name))


def _table(data: Any) -> _Table:
    if hasattr(data, "iloc") and hasattr(data, "columns"):
        return _Table(list(data.columns), lambda name: _of_series(name, data[name]))
    if hasattr(data, "column_names") and hasattr(data, "with_format"):
        read = lambda name: np.asarray(data.select_columns([name]).with_format("numpy")[:][name])  # noqa: E731
        return _Table(list(data.column_names), read)
    if isinstance(data, Mapping):
        raise InvalidInput("data is a dict; allowed: (inputs, targets), where inputs may be a dict, or a DataFrame")
    raise InvalidInput(
        f"data is a {type(data).__name__}; allowed: a DataFrame, a datasets.Dataset or (inputs, targets)"
    )


def _of_series(name: str, series: Any) -> Array:
    require(series.ndim == 1, f"column {name!r} is there twice; allowed: columns with names of their own")
    missing = int(series.isna().sum())
    require(not missing, f"column {name!r} has {missing:,} missing values; allowed: none (see DataFrame.dropna)")
    return np.asarray(series)


def _labels(name: str, labels: Array) -> Array:
    require(labels.ndim == 1, f"{name} has shape {labels.shape}; allowed: one label per row")
    gaps = sum(label is None or label != label for label in labels.tolist())
    require(not gaps, f"{name} is missing in {gaps:,} rows; allowed: a label in each")
    return labels


def _tensor(what: str, given: Any) -> torch.Tensor:
    """Numbers as a tensor of their own; text and NaN are refused."""
    if isinstance(given, torch.Tensor):
        numbers = given
    else:
        array = np.asarray(given)
        allowed = "numbers and booleans, all of one shape (pandas.get_dummies encodes categories)"
        require(array.dtype.kind in "biuf", f"{what} is of dtype {array.dtype}; allowed: {allowed}")
        numbers = torch.tensor(array)
    if numbers.is_floating_point():
        broken = int((~numbers.isfinite()).reshape(len(numbers), -1).any(1).sum())
        require(not broken, f"{what} has NaN or infinity in {broken:,} rows; allowed: finite numbers")
    return numbers
