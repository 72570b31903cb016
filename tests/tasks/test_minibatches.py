"""Minibatches in one compiled call: the samples that plain code draws, of whatever type and shape."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acefl import tasks
from acefl.tasks import TorchTask

CLIENTS = 4
ROWS: dict[str, torch.Tensor] = {
    "pictures": torch.randn(30, 2, 3, 3),
    "words of 64 bits": torch.randint(0, 9, (30, 5)),
    "bytes": torch.randint(0, 255, (30, 3), dtype=torch.uint8),
    "halves": torch.randn(30, 6).bfloat16(),
    "turned": torch.randn(4, 30).T,
}


def task(rows: torch.Tensor, targets: torch.Tensor, batch: int = 3) -> TorchTask:
    sizes = [1, 12, 7, 10]
    data = list(zip(rows.split(sizes), targets.split(sizes), strict=True))
    flat = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(3))
    flat(rows[:2].float())
    return TorchTask(
        flat, torch.nn.CrossEntropyLoss(), data, batch=batch, prepare=torch.Tensor.float, compute="one-by-one"
    )


@pytest.mark.parametrize("name", ROWS)
@given(keys=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=9), data=st.data())
@settings(max_examples=25, deadline=None)
def test_the_samples_are_those_of_plain_code(name: str, keys: list[int], data: st.DataObject) -> None:
    own = task(ROWS[name], torch.randint(3, (30,), generator=torch.Generator().manual_seed(0)))
    clients = [data.draw(st.integers(0, CLIENTS - 1)) for _ in keys]
    steps = data.draw(st.integers(1, 2))
    assert own._data._minibatches is not None
    for found, expected in zip(
        own._data.draw_in_one_call(clients, keys, steps), own._data.draw(clients, keys, steps), strict=True
    ):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


def test_data_that_are_exchanged_are_drawn_from() -> None:
    own = tasks.digits(clients=CLIENTS)
    before = own._data.draw_in_one_call([1, 2], [3, 4])[1]
    own._data.targets = 9 - own._data.targets
    assert torch.equal(own._data.draw_in_one_call([1, 2], [3, 4])[1], 9 - before)
