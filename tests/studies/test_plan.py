"""Laws of the forecast: its bytes are the table's own bytes, and bad input gets one line. Times live in benchmarks/."""

from __future__ import annotations

import pytest
import torch

from acefl import Table
from acefl.core.errors import InvalidInput
from acefl.studies.plan import forecast, parse_count


@pytest.mark.parametrize("table", ["fp32", "bf16", "int8"])
def test_the_bytes_are_the_tables_own(table: str) -> None:
    plan = forecast(1000, 7, table=table)
    assert plan.table_bytes == Table(7, torch.zeros(1000), encoding=table).nbytes
    assert plan.upload_bytes == 4000
    assert plan.seconds > 0


def test_int8_takes_at_most_1_05_bytes_per_parameter_at_resnet_size() -> None:
    rows = Table(1, torch.zeros(11_173_962), encoding="int8")
    assert rows.nbytes / 11_173_962 <= 1.05


@pytest.mark.parametrize(
    ("text", "count"), [("11.2M", 11_200_000), ("500k", 500_000), ("1.1B", 1_100_000_000), (" 42 ", 42)]
)
def test_counts_read_as_people_write_them(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "M", "-3", "1.5", "eleven", "1e6"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="parameters"):
        parse_count(text)


def test_wrong_settings_are_refused(tmp_path: object) -> None:
    with pytest.raises(InvalidInput, match="clients is 0"):
        forecast(10, 0)
    with pytest.raises(InvalidInput, match="table is 'int3'"):
        forecast(10, 1, table="int3")
    with pytest.raises(InvalidInput, match="does not exist"):
        forecast(10, 1, home="/no/such/folder/table")
