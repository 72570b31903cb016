"""A table holds what was stored, sums over it never drift, and a saved one goes on as if nothing had happened."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acefl import ACE, ACED, AREA, CA2FL, Arrival
from acefl.core import kernels
from acefl.core.errors import InvalidInput
from acefl.core.kernels.layout import ENCODINGS
from acefl.core.rule import Method
from acefl.core.state import without_copies
from acefl.rules import label
from acefl.table import Accumulator, Table

DIM = 700
HOMES = ("memory", "device", "file")


def build(tmp_path: Path, encoding: str, home: str = "memory", *, dim: int = DIM, clients: int = 5) -> Table:
    where = tmp_path / "table" if home == "file" else home
    return Table(clients, torch.zeros(dim), encoding=encoding, home=where)


def update(seed: int, dim: int = DIM) -> torch.Tensor:
    return torch.randn(dim, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["float64", "integers"])
def sums(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both kinds of running sums and their kernels, at a length that is quick to test."""
    if request.param == "integers":
        monkeypatch.setattr(kernels, "LONG", 1)
    return str(request.param)


def distance(sum_: Accumulator, expected: torch.Tensor) -> float:
    return float((sum_.value.double() - expected).norm() / expected.norm())


class TestExchange:
    @pytest.mark.parametrize("home", HOMES)
    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_the_sum_follows_the_table(self, encoding: str, home: str, sums: str, tmp_path: Path) -> None:
        table, total = build(tmp_path, encoding, home), Accumulator(torch.zeros(DIM))
        for visit in range(12):
            table.exchange(visit % 4, update(visit), total, 0.25)
            assert distance(total, 0.25 * table.total()) < 1e-6

    def test_into_a_plain_vector_and_with_a_scale_of_zero(self, tmp_path: Path) -> None:
        table, total = build(tmp_path, "fp32"), torch.ones(DIM)
        table.exchange(0, update(1), total, 0.0)
        assert torch.equal(total, torch.ones(DIM))
        table.exchange(0, update(2), total, 2.0)
        assert torch.allclose(total, 1 + 2 * (update(2) - update(1)))

    @settings(max_examples=30)
    @given(
        encoding=st.sampled_from(list(ENCODINGS)),
        long=st.booleans(),
        moves=st.lists(
            st.tuples(st.sampled_from(["exchange", "step", "leave"]), st.integers(0, 4), st.integers(0, 99)), min_size=1
        ),
    )
    def test_a_running_sum_is_the_sum_of_the_table(
        self, encoding: str, long: bool, moves: list[tuple[str, int, int]]
    ) -> None:
        weights = [1.0, 2.0, 0.5, 3.0, 7.0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "LONG", 1 if long else 1 << 16)
            table, total, model = (
                Table(5, torch.zeros(90), encoding=encoding),
                Accumulator(torch.zeros(90)),
                update(1, 90),
            )
            for move, client, seed in moves:
                if move == "exchange":
                    table.exchange(client, update(seed, 90), total, weights[client])
                elif move == "step":
                    table.exchange_and_step(client, update(seed, 90), total, weights[client], model, 0.1)
                else:
                    table.add_row(client, total, -weights[client])
                    table.forget(client)
            expected = table.total(weights)
        assert torch.allclose(total.value.double(), expected, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_a_step_in_the_same_pass_is_a_step_after_it(self, encoding: str, sums: str, tmp_path: Path) -> None:
        one, two = build(tmp_path, encoding), build(tmp_path, encoding)
        total_one, total_two = Accumulator(torch.zeros(DIM)), Accumulator(torch.zeros(DIM))
        model_one, model_two = update(98), update(98)
        for visit in range(9):
            one.exchange_and_step(visit % 3, update(visit), total_one, 1.0, model_one, 0.0137)
            two.exchange(visit % 3, update(visit), total_two, 1.0)
            model_two.sub_(total_two.value, alpha=0.0137)
            assert torch.equal(model_one, model_two)
            assert torch.equal(total_one.value, total_two.value)

    def test_models_of_other_types_are_stepped_too(self, sums: str, tmp_path: Path) -> None:
        model, total = torch.zeros(DIM, dtype=torch.float64), Accumulator(torch.zeros(DIM))
        build(tmp_path, "fp32").exchange_and_step(0, update(1), total, 1.0, model, 0.5)
        assert torch.allclose(model, -0.5 * update(1).double())

    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_the_update_is_left_alone(self, encoding: str, sums: str, tmp_path: Path) -> None:
        table, total, new = build(tmp_path, encoding), Accumulator(torch.zeros(DIM)), update(5)
        table.exchange(0, new, total, 1.0)
        table.exchange(0, update(6), total, 1.0)
        assert torch.equal(new, update(5))

    def test_updates_of_other_kinds_are_taken(self, tmp_path: Path) -> None:
        table, total = build(tmp_path, "fp32"), Accumulator(torch.zeros(DIM))
        new = update(1).double().requires_grad_()
        table.exchange(0, torch.stack([new, new], dim=1)[:, 0], total, 1.0)
        assert torch.equal(table.row(0), update(1))

    def test_a_run_that_diverges_is_no_error_here(self, sums: str, tmp_path: Path) -> None:
        table, total = build(tmp_path, "int8"), Accumulator(torch.zeros(DIM))
        for client in range(5):
            table.exchange(client, torch.full((DIM,), 3e38), total, 1e3)
        assert not torch.isnan(total.value).any()

    def test_one_of_another_length_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="an update of 3 numbers for a table of 700"):
            build(tmp_path, "fp32").exchange(0, torch.zeros(3), torch.zeros(DIM), 1.0)


class TestDrift:
    """However long the run, a running sum is the sum of the table to one part in a million."""

    @pytest.mark.parametrize("exchanges", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
    @pytest.mark.parametrize("cancelling", [False, True])
    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_there_is_none(self, encoding: str, cancelling: bool, exchanges: int, sums: str) -> None:
        dim, clients = 96, 20
        table, total = Table(clients, torch.zeros(dim), encoding=encoding), Accumulator(torch.zeros(dim))
        generator = torch.Generator().manual_seed(0)
        pool = torch.randn(64, dim, generator=generator) * torch.logspace(-1, 1, 64)[:, None]
        if cancelling:  # half the clients pull one way and half the other, a hundred times harder than their sum
            pool = 0.01 * pool + torch.randn(dim, generator=generator)
        sign = [1.0 if client % 2 and cancelling else -1.0 for client in range(clients)]
        order = torch.randint(64 * clients, (exchanges,), generator=generator).tolist()
        for number in order:
            client = number % clients
            table.exchange(client, pool[number // clients], total, sign[client] / clients)
        assert distance(total, table.total(sign) / clients) < 1e-6


class TestRows:
    @pytest.mark.parametrize("home", HOMES)
    def test_a_client_has_a_row_once_it_has_arrived(self, home: str, tmp_path: Path) -> None:
        table = build(tmp_path, "fp32", home)
        assert 2 not in table
        assert not table.row(2).any()
        table.add_row(2, total := torch.zeros(DIM), 1.0)
        assert not total.any()
        table.exchange(2, update(1), total, 1.0)
        assert 2 in table
        assert torch.equal(table.row(2), update(1))
        assert table.changed == {2}

    @pytest.mark.parametrize("home", HOMES)
    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_one_who_is_forgotten_starts_again_from_nothing(self, encoding: str, home: str, tmp_path: Path) -> None:
        table, total = build(tmp_path, encoding, home), torch.zeros(DIM)
        table.exchange(1, update(1), total, 1.0)
        table.forget(1)
        assert 1 not in table
        assert not table.row(1).any()
        table.exchange(1, update(2), again := torch.zeros(DIM), 1.0)
        assert torch.equal(again, table.row(1))

    @pytest.mark.parametrize("home", HOMES)
    def test_a_table_grows(self, home: str, tmp_path: Path) -> None:
        table = build(tmp_path, "int8", home)
        table.exchange(4, update(1), torch.zeros(DIM), 1.0)
        before = table.row(4)
        with pytest.raises(InvalidInput, match="client 7 is not in a table of 5 clients"):
            table.exchange(7, update(2), torch.zeros(DIM), 1.0)
        table.grow(8)
        table.exchange(7, update(2), torch.zeros(DIM), 1.0)
        assert table.clients == 8
        assert torch.equal(table.row(4), before)
        with pytest.raises(InvalidInput, match="a table of 8 clients cannot shrink to 5"):
            table.grow(5)

    @pytest.mark.parametrize(("encoding", "most"), [("fp32", 4.0), ("bf16", 2.0), ("int8", 1.05), ("int4", 0.6)])
    @pytest.mark.parametrize("dim", [650, 10_000, 11_173_962])
    def test_bytes_per_parameter_and_client(self, encoding: str, most: float, dim: int) -> None:
        assert Table(1000, torch.empty(dim), encoding=encoding).nbytes <= most * 1000 * dim


class TestState:
    @pytest.mark.parametrize("home", HOMES)
    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_a_loaded_table_goes_on_bit_for_bit(self, encoding: str, home: str, sums: str, tmp_path: Path) -> None:
        """Rounding included: the next visit of a client draws what it would have drawn."""
        table, total = build(tmp_path, encoding, home), Accumulator(torch.zeros(DIM))
        for visit in range(7):
            table.exchange(visit % 3, update(visit), total, 0.2)
        table.forget(1)
        saved, saved_total = table.state_dict(), total.state_dict()
        other, other_total = build(tmp_path, encoding), Accumulator(torch.zeros(DIM))
        other.exchange(4, update(50), other_total, 1.0)
        other.load_state_dict(saved)
        other_total.load_state_dict(saved_total)
        for visit in range(7, 12):
            for each, its_total in ((table, total), (other, other_total)):
                each.exchange(visit % 4, update(visit), its_total, 0.2)
        assert 4 not in other
        for client in range(5):
            assert torch.equal(table.row(client), other.row(client))
        assert torch.equal(total.value, other_total.value)

    def test_holds_tensors_and_whole_numbers_only(self, sums: str, tmp_path: Path) -> None:
        table, total = build(tmp_path, "int8"), Accumulator(torch.zeros(DIM))
        table.exchange(3, update(1), total, 1.0)
        state = table.state_dict()
        for part in [*state.pop("rows").values(), *state.values(), *total.state_dict().values()]:
            assert isinstance(part, torch.Tensor | int) or all(isinstance(entry, int) for entry in part)

    def test_increments_add_up(self, tmp_path: Path) -> None:
        table, total = build(tmp_path, "int8"), torch.zeros(DIM)
        for client in range(3):
            table.exchange(client, update(client), total, 1.0)
        base = table.state_dict()
        table.changed.clear()
        table.exchange(1, update(7), total, 1.0)
        table.exchange(4, update(8), total, 1.0)
        table.forget(2)
        increment = table.state_dict(rows=table.changed)
        assert list(increment["rows"]) == ["1@2", "4@1"]
        other = build(tmp_path, "int8")
        with pytest.raises(InvalidInput, match="an increment without rows"):
            other.load_state_dict(increment)
        other.load_state_dict(base)
        other.load_state_dict(increment)
        assert all(torch.equal(table.row(client), other.row(client)) for client in range(5))

    def test_a_table_that_grew_is_loaded_whole(self, tmp_path: Path) -> None:
        table = build(tmp_path, "bf16")
        table.grow(9)
        table.exchange(8, update(1), torch.zeros(DIM), 1.0)
        other = build(tmp_path, "bf16")
        other.load_state_dict(table.state_dict())
        assert other.clients == 9
        assert torch.equal(other.row(8), table.row(8))

    def test_of_another_kind_is_refused(self, tmp_path: Path) -> None:
        table = build(tmp_path, "int8")
        table.exchange(0, update(1), torch.zeros(DIM), 1.0)
        saved = table.state_dict()
        with pytest.raises(InvalidInput, match="another encoding or model"):
            build(tmp_path, "fp32").load_state_dict(saved)
        with pytest.raises(InvalidInput, match="the saved sum has 3 numbers, this one 700"):
            Accumulator(torch.zeros(DIM)).load_state_dict(Accumulator(torch.zeros(3)).state_dict())


class TestAccumulator:
    def test_is_empty_after_zero(self, sums: str, tmp_path: Path) -> None:
        table, total = build(tmp_path, "fp32"), Accumulator(torch.zeros(DIM))
        table.exchange(0, 1e9 * update(1), total, 1.0)
        total.zero_()
        assert not total.value.any()
        table.add_row(0, total, 1e-9)
        assert distance(total, update(1).double()) < 1e-6


class TestFile:
    def test_takes_room_only_for_clients_that_arrived(self, tmp_path: Path) -> None:
        table = build(tmp_path, "fp32", "file", dim=50_000, clients=1000)
        assert (tmp_path / "table").stat().st_size > 200e6
        assert (tmp_path / "table").stat().st_blocks * 512 < 1e6
        table.exchange(999, update(1, 50_000), torch.zeros(50_000), 1.0)
        assert (tmp_path / "table").stat().st_blocks * 512 < 1e6

    def test_resident_memory_does_not_grow_with_the_clients(self, tmp_path: Path) -> None:
        def resident() -> int:
            return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        dim, clients = 1 << 19, 60
        table, total, new = (
            build(tmp_path, "int8", "file", dim=dim, clients=clients),
            Accumulator(update(0, dim)),
            update(0, dim),
        )
        table.exchange(0, new, total, 1.0)
        before = resident()
        for client in range(clients):
            table.exchange(client, new, total, 1.0)
        assert resident() - before < table.nbytes / 3

    def test_that_holds_something_else_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "table").write_text("a thesis")
        with pytest.raises(InvalidInput, match="which holds something else than a table"):
            build(tmp_path, "fp32", "file")
        assert (tmp_path / "table").read_text() == "a thesis"

    def test_in_use_is_refused_and_later_taken_over(self, tmp_path: Path) -> None:
        table = build(tmp_path, "fp32", "file")
        with pytest.raises(InvalidInput, match="which another table is using"):
            build(tmp_path, "fp32", "file")
        del table
        assert 0 not in build(tmp_path, "fp32", "file")

    @pytest.mark.parametrize("path", [".", "missing/table"])
    def test_that_cannot_be_opened_is_one_clear_line(self, path: str, tmp_path: Path) -> None:
        with pytest.raises(
            InvalidInput, match=f"home is {tmp_path / path}, which cannot be opened as a file: .*"
        ) as caught:
            Table(2, torch.zeros(3), home=tmp_path / path)
        assert "\n" not in str(caught.value)

    def test_on_a_full_disk_says_so_before_anything_has_changed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table, total = build(tmp_path, "fp32", "file"), torch.zeros(DIM)

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="the row of client 2 cannot be written: No space left on device"):
            table.exchange(2, update(1), total, 1.0)
        assert 2 not in table
        assert not total.any()

    def test_cut_short_by_somebody_else_says_so(self, tmp_path: Path) -> None:
        table = build(tmp_path, "fp32", "file")
        table.exchange(2, update(1), torch.zeros(DIM), 1.0)
        os.truncate(tmp_path / "table", 5000)
        with pytest.raises(OSError, match="the row of client 2 is cut short"):
            table.row(2)

    def test_lends_rows_that_stay_as_they_are(self, tmp_path: Path) -> None:
        table = build(tmp_path, "fp32", "file")
        for client in range(3):
            table.exchange(client, update(client), torch.zeros(DIM), 1.0)
        with without_copies():
            rows = list(table.state_dict()["rows"].values())
        assert [torch.equal(row.view(torch.float32), update(client)) for client, row in enumerate(rows)] == [True] * 3

    @pytest.mark.parametrize("home", ["", None, 3])
    def test_home_must_be_a_word_or_a_path(self, home: object) -> None:
        with pytest.raises(InvalidInput, match="allowed: 'memory', 'device' or a path"):
            Table(2, torch.zeros(3), home=home)  # type: ignore[arg-type]


def test_short_vectors_wait_for_no_compiler() -> None:
    code = """
import sys, torch
from acefl.core.state import without_copies
from acefl.table import Accumulator, Table
table, total = Table(2, torch.zeros(5000), encoding="int8"), Accumulator(torch.zeros(5000))
table.exchange(0, torch.randn(5000), total, 1.0)
total.value
assert not {"numba", "triton", "pandas"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": "src"})


def test_one_client_at_least_none() -> None:
    with pytest.raises(InvalidInput, match="clients is -1; allowed: 0 or more"):
        Table(-1, torch.zeros(3))


class TestSpikes:
    """One huge update must not leave the sum coarse for the rest of the run."""

    CLIENTS = 5

    @pytest.fixture(autouse=True)
    def long_sums(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kernels, "LONG", 1)

    def rule(self, method: Method) -> Any:
        return method.build(self.CLIENTS, torch.zeros(DIM), [1] * self.CLIENTS)

    def arrivals(self, count: int, spike: int | None = None, falling: float = 1.0) -> Iterator[Arrival]:
        for task in range(count):
            size = 1e6 if task == spike else falling**task
            yield Arrival(task % self.CLIENTS, size * update(task), task, task, task)

    @pytest.mark.parametrize("spike", [2, 40])
    @pytest.mark.parametrize("method", [ACE(), ACED(tau=50), CA2FL(buffer=1)], ids=label)
    def test_a_spike_is_forgotten_once_it_has_left_the_table(self, method: Method, spike: int) -> None:
        """A look comes after 64 changes. The spike's unit is 2**-7; without looks the sum stays off by about that."""
        rule, off = self.rule(method), []
        for arrival in self.arrivals(200, spike):
            if rule.absorb(arrival):
                rule.direction()
            off.append(float((rule._total.value.double() - rule.table.total()).abs().max()))
        assert max(off[spike : spike + 10]) > 1e-3, "no spike, no law"
        assert max(off[150:]) < 1e-5

    @pytest.mark.parametrize("method", [ACE(), ACED(tau=50), CA2FL(buffer=3), AREA()], ids=label)
    def test_without_a_spike_no_bit_changes(self, method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nor when updates become a thousand times smaller on the way, or cancel."""
        for falling in (1.0, 0.98):
            found = []
            for settles in (True, False):
                with monkeypatch.context() as patch:
                    if not settles:
                        patch.setattr(Table, "settle", lambda *given: None)
                    rule = self.rule(method)
                    steps = [rule.absorb(arrival) and rule.direction() for arrival in self.arrivals(340, None, falling)]
                    found.append((rule._total.value.clone(), steps[-1]))
            assert torch.equal(found[0][0], found[1][0])

    def test_rows_that_cancel_are_left_as_they_are_and_looked_at_less_and_less(self) -> None:
        table, total = Table(2, torch.zeros(DIM)), Accumulator(torch.zeros(DIM))
        one, looks = update(1), []
        for visit in range(2_000):
            if total.wants_a_look:
                looks.append(visit)
            table.settle(total, range(2))
            table.exchange(visit % 2, one if visit % 2 else -one, total, 1.0)
        assert torch.equal(total.value, torch.zeros(DIM))
        assert len(looks) <= 6

    def test_a_saved_sum_goes_on_to_the_same_look(self) -> None:
        whole, rule = self.rule(ACE()), self.rule(ACE())
        for number, arrival in enumerate(self.arrivals(200, 40)):
            whole.absorb(arrival)
            rule.absorb(arrival)
            if number % 13 == 0:
                rule, old = self.rule(ACE()), rule
                rule.load_state_dict(old.state_dict())
            assert torch.equal(rule.direction(), whole.direction())
