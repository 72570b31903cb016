"""What observers know of clients, in the record of a run."""

from __future__ import annotations

import math

import pytest

from acefl import InvalidInput
from acefl.runs.observers import Observer, add_columns


class Counted(Observer):
    def __init__(self, *counts: float) -> None:
        self.counts = list(counts)

    def per_client(self) -> dict[str, list[float]]:
        return {"count": self.counts}


def test_clients_that_joined_after_an_observer_counted_have_no_number() -> None:
    rows = add_columns([{"client": client} for client in range(3)], [Counted(4.0, 5.0)])
    assert [row["count"] for row in rows[:2]] == [4.0, 5.0]
    assert math.isnan(rows[2]["count"])


def test_numbers_of_clients_that_there_are_not_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"per_client\(\) gives 2 numbers of count; allowed: 1, or fewer"):
        add_columns([{"client": 0}], [Counted(4.0, 5.0)])
