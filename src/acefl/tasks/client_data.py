"""Data in the forms people have them in, as tensors: what goes into the model, and what should come out.

A group (a client's data, or a test set) is one of

- an `(inputs, targets)` tuple of tensors, arrays, lists or a pandas table and column; inputs may be a dict of them;
- a dict of columns, as a tokenizer gives it, or a `datasets.Dataset`;
- a `DataLoader`, or a data set of `(input, target)` pairs or of dicts. It is read once, in its own order: random
  transforms are drawn once, too.

Of columns, `columns=(inputs, target)` says which are meant: one name for a model that takes a tensor, a list of names
for a model that takes its inputs by name. Without it the target is `labels` or `label`, and all others that hold
numbers are inputs. Everything is stored as torch wants it: float64 becomes float32, short integers in targets int64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler, SubsetRandomSampler, default_collate

from acefl.core.errors import InvalidInput, require

ClientData = Dataset[Any] | DataLoader[Any] | Iterable[Any] | Mapping[str, Any] | tuple[Any, Any]
Columns = tuple[str | Sequence[str], str]  # inputs and target
Collate = Callable[[list[Any]], Any]  # rows to one batch of them all
Pair = tuple[Any, torch.Tensor]  # inputs and targets

_TARGETS = ("labels", "label")
_ALLOWED = "(input, target) pairs, dicts with 'labels' or 'label', or columns=(inputs, target)"
_ONE_LENGTH = "padding to one length, or collate="


def read(groups: Sequence[ClientData], columns: Columns | None = None, collate: Collate | None = None) -> list[Pair]:
    """Every group's inputs and targets. Rows of all groups are collated in one call: what pads gives all one length."""
    pairs: dict[int, Pair] = {}
    rows: dict[int, list[Any]] = {}
    for number, group in enumerate(groups):
        if isinstance(group, DataLoader) and collate is None and group.batch_size is not None:
            collate = group.collate_fn
        batch = _batch(group, collate)
        if batch is not None:
            pairs[number] = _pair(batch, columns)
        else:
            rows[number] = _rows(group)
    if rows and (collate is None or collate is default_collate):
        pairs |= {number: _pair(_collated(own), columns) for number, own in rows.items()}
    elif rows:
        assert collate is not None
        batch = collate([row for own in rows.values() for row in own])
        pairs |= _cut(_pair(batch, columns), {number: len(own) for number, own in rows.items()})
    return [pairs[number] for number in range(len(groups))]


def join(pairs: Sequence[Pair], device: torch.device) -> Pair:
    """All groups one after another, on the device."""
    try:
        inputs = tree_map(lambda *parts: torch.cat(parts).to(device), *[inputs for inputs, _ in pairs])
        return inputs, torch.cat([targets for _, targets in pairs]).to(device)
    except (RuntimeError, ValueError, TypeError) as error:
        shapes = sorted({_shape(inputs) + " -> " + _shape(targets) for inputs, targets in pairs})
        raise InvalidInput(
            f"data differ in shape: {'; '.join(shapes[:3])}; allowed: one shape for all, as padding to one length gives"
        ) from error


def _batch(group: ClientData, collate: Collate | None) -> Any:
    """Data that are columns already; None for rows."""
    if isinstance(group, tuple):
        require(len(group) == 2, f"a client's data is a tuple of {len(group)}; allowed: (inputs, targets)")
        return group
    if isinstance(group, Mapping):
        return group
    if _is_table(group) and collate is None:
        return group.with_format("torch")[:]  # type: ignore[union-attr]
    return None


def _is_table(group: object) -> bool:
    """Whether it is a `datasets.Dataset`, without importing that library."""
    return hasattr(group, "column_names") and hasattr(group, "with_format")


def _rows(group: Any) -> list[Any]:
    source: Any = group.dataset if isinstance(group, DataLoader) else group
    sized = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    chosen = _sampled(group) if sized and isinstance(group, DataLoader) else None
    rows = [source[i] for i in (range(len(source)) if chosen is None else chosen)] if sized else list(source)
    require(bool(rows), "a client has no data; allowed: at least one sample each")
    return rows


def _sampled(loader: DataLoader[Any]) -> list[int] | None:
    """The rows that a loader gives, in a fixed order; None: all of its data set."""
    sampler = loader.sampler
    if isinstance(sampler, SubsetRandomSampler):
        return sorted(int(place) for place in sampler.indices)
    own = loader.batch_size is None and loader.batch_sampler is not None  # a batch_sampler of somebody's own
    all_of_it = isinstance(sampler, SequentialSampler | RandomSampler) and not own
    drawn = type(loader.batch_sampler if own else sampler).__name__
    require(
        all_of_it, f"a DataLoader draws by {drawn}; allowed: all rows, a SubsetRandomSampler, or a Subset as its data"
    )
    return None


def _collated(rows: list[Any]) -> Any:
    usable = isinstance(rows[0], Mapping) or (isinstance(rows[0], tuple | list) and len(rows[0]) == 2)
    require(usable, f"a client's data set gives {type(rows[0]).__name__}; allowed: {_ALLOWED}")
    if isinstance(rows[0], Mapping):
        return {name: [row[name] for row in rows] for name in rows[0]}
    columns = [list(column) for column in zip(*rows, strict=True)]
    try:
        inputs, targets = (own if _is_numbers(own) else default_collate(own) for own in columns)
        return inputs, targets
    except (RuntimeError, TypeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidInput(f"rows cannot be put together ({reason}); allowed: rows of one shape, or collate=") from None


def _pair(batch: Any, columns: Columns | None) -> Pair:
    """Inputs and targets as tensors of one length."""
    if isinstance(batch, Mapping) or hasattr(batch, "keys"):
        given = _chosen(dict(batch), columns)
    else:
        pair = isinstance(batch, tuple | list) and len(batch) == 2
        require(pair, f"a batch is {type(batch).__name__}; allowed: {_ALLOWED}")
        require(columns is None, f"columns is {columns}, but the data have no names; allowed: None")
        given = batch[0], batch[1]
    inputs = tree_map(lambda leaf: _tensor(leaf, "inputs"), given[0], is_leaf=_is_numbers)
    targets = _whole(_tensor(given[1], "targets"))
    sizes = {len(leaf) for leaf in tree_leaves(inputs)} | {len(targets)}
    require(len(sizes) == 1, f"a client's inputs and targets differ in length: {sorted(sizes)}")
    return inputs, targets


def _chosen(found: dict[str, Any], columns: Columns | None) -> tuple[Any, Any]:
    if columns is None:
        target = next((name for name in _TARGETS if name in found), None)
        if target is None:
            raise InvalidInput(f"a client's data set gives dict; allowed: {_ALLOWED}; there are: {', '.join(found)}")
        return {name: values for name, values in found.items() if name != target and not _is_text(values)}, found[
            target
        ]
    good = isinstance(columns, tuple) and len(columns) == 2 and isinstance(columns[1], str)
    require(
        good, f"columns is {columns!r}; allowed: (inputs, target), as in (['input_ids', 'attention_mask'], 'label')"
    )
    inputs, target = columns
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    for name in (*names, target):
        require(name in found, f"there is no column {name!r}; allowed: {', '.join(found)}")
    return found[inputs] if isinstance(inputs, str) else {name: found[name] for name in names}, found[target]


def _is_text(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and (values[0] is None or isinstance(values[0], str | bytes))


def _is_numbers(value: Any) -> bool:
    """Whether it is a list of numbers, or of rows of them, and not of tensors: one tensor, written out."""
    while isinstance(value, list) and value:
        value = value[0]
        if isinstance(value, bool | int | float | np.generic):
            return True
    return False


def _tensor(value: Any, what: str) -> torch.Tensor:
    """Read-only and backward arrays are copied; double precision is brought to what models compute in."""
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor | np.ndarray):
        shapes = {tuple(row.shape) for row in value}
        require(len(shapes) == 1, f"{what} differ in shape from row to row; allowed: {_ONE_LENGTH}")
        value = torch.stack([torch.as_tensor(row) for row in value])
    tensor: torch.Tensor = value if isinstance(value, torch.Tensor) else torch.from_numpy(_array(value, what))
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _array(value: Any, what: str) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(value)
    except ValueError:
        raise InvalidInput(f"{what} differ in length from row to row; allowed: {_ONE_LENGTH}") from None
    numbers = array.dtype.kind in "biuf"
    require(numbers, f"{what} are {type(value).__name__} of {array.dtype}; allowed: numbers (numpy, torch or pandas)")
    plain = array.flags.writeable and all(step >= 0 for step in array.strides) and array.dtype.isnative
    return array if plain else array.astype(array.dtype.newbyteorder("="))


def _whole(targets: torch.Tensor) -> torch.Tensor:
    """Classes as torch's losses want them."""
    return targets.long() if targets.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32) else targets


def _cut(pair: Pair, sizes: dict[int, int]) -> dict[int, Pair]:
    require(len(pair[1]) == sum(sizes.values()), f"collate gives {len(pair[1])} samples for {sum(sizes.values())} rows")
    parts, start = {}, 0
    for number, size in sizes.items():
        part = slice(start, start + size)
        parts[number] = tree_map(lambda t, p=part: t[p], pair[0]), pair[1][part]
        start += size
    return parts


def _shape(values: Any) -> str:
    return str(tree_map(lambda t: list(t.shape[1:]), values))
