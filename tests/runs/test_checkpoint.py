"""Resume is bit for bit, the last good checkpoint survives, and a checkpoint writes what is new."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import logging
import math
import os
import pickle
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from tests import resumable
from tests.resumable import RULES, SCENARIOS, fingerprint

import acefl
from acefl import ACE, Every, InvalidInput, Scenario, Stop, simulate, tasks
from acefl.cli import main
from acefl.core.gate import NormLimit
from acefl.core.state import Named, Parts, blocks, without_copies
from acefl.core.types import Arrival
from acefl.rules import METHODS, RingmasterASGD
from acefl.runs.checkpoint import MOST_FILES, Checkpoints
from acefl.runs.record import Events
from acefl.runs.simulate import simulation
from acefl.runs.training import Training
from acefl.table import Accumulator, Table


class Interrupted(Exception):
    """What ends a run half-way, short of killing the process."""


def interrupt_at(share: float) -> Callable[[float, float, str], None]:
    def progress(spent: float, whole: float, last: str) -> None:
        if spent >= share:
            raise Interrupted

    return progress


def saved_and_rebuilt(rule: str, scenario: str, room: Path, turns: list[int]) -> acefl.Run:
    """Save after each of these turns, throw everything away at the last, rebuild it from the disk and go on."""
    simulation = resumable.build(rule, scenario, room)
    folder = room / "checkpoints"
    folder.mkdir()
    checkpoints = Checkpoints(folder)
    for turn, _ in enumerate(simulation.advance()):
        if turn in turns:
            with without_copies():
                checkpoints.save({"simulation": simulation.state_dict()})
        if turn == turns[-1]:
            break
    del simulation
    rebuilt = resumable.build(rule, scenario, room)
    rebuilt.load_state_dict(Checkpoints(folder).load()["simulation"])
    return rebuilt.complete()


def test_every_method_is_held_to_the_laws_below() -> None:
    assert {type(rule).__name__ for rule in RULES.values()} == set(METHODS)


CLOCKS = ("event-churn", "tick-churn", "sampled-churn")
CASES = [
    (rule, scenario)
    for rule, chosen in RULES.items()
    for scenario in CLOCKS
    if not (scenario == "sampled-churn" and chosen.rounds)
] + [
    (rule, scenario)
    for rule in ("ACE-int8-file", "ACED-model", "CA2FL-fp32-memory", "FedBuff")
    for scenario in SCENARIOS
]


@pytest.mark.parametrize(("rule", "scenario"), dict.fromkeys(CASES))
def test_a_run_goes_on_from_the_disk_as_if_it_had_not_been_interrupted(
    rule: str, scenario: str, tmp_path: Path
) -> None:
    turns = 0
    simulation = resumable.build(rule, scenario, tmp_path)
    for _ in simulation.advance():
        turns += 1
    expected = fingerprint(simulation.result())
    del simulation
    draw = random.Random(f"{rule} {scenario}")
    cuts = sorted(draw.sample(range(turns), 4))
    assert fingerprint(saved_and_rebuilt(rule, scenario, tmp_path, cuts)) == expected


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_there_is_no_moment_at_which_a_run_cannot_be_saved(scenario: str, tmp_path: Path) -> None:
    """After every single turn, those included in which clients leave and come back."""

    def build() -> Training:
        return simulation(task, **resumable.settings("ACED-model", scenario, tmp_path, arrivals=30))

    task = tasks.build(resumable.TASK)
    expected = fingerprint(build().complete())
    checkpoints, running = Checkpoints(tmp_path), build()
    for _ in running.advance():
        with without_copies():
            checkpoints.save(running.state_dict())
        rebuilt = build()
        rebuilt.load_state_dict(Checkpoints(tmp_path).load())
        assert fingerprint(rebuilt.complete()) == expected


def test_lazy_batches_are_not_computed_again_in_another_composition(tmp_path: Path) -> None:
    task = tasks.digits(clients=4, alpha=0.5, model="mlp", seed=1)
    how: dict[str, Any] = {"lr": 0.1, "stop": Stop(arrivals=80), "evaluations": 2}
    expected = fingerprint(simulate(task, ACE(table="int8"), **how))
    with pytest.raises(Interrupted):
        simulate(
            task,
            ACE(table="int8"),
            **how,
            out=tmp_path / "run",
            checkpoint=Every(arrivals=17),
            progress=interrupt_at(0.7),
        )
    assert fingerprint(acefl.resume(tmp_path / "run", task=task)) == expected


def interrupted(where: Path, share: float = 0.6, every: int = 10, rule: str = "ACE-fp32-memory", **more: Any) -> str:
    """Leave an interrupted run; returns the fingerprint an uninterrupted one has."""
    how = resumable.settings(rule, "event-churn", where.parent)
    expected = fingerprint(simulate(tasks.build(resumable.TASK), **how))
    with pytest.raises(Interrupted):
        simulate(
            tasks.build(resumable.TASK),
            **how,
            out=where,
            checkpoint=Every(arrivals=every),
            progress=interrupt_at(share),
            **more,
        )
    return json.dumps(expected)


def resumed(where: Path, **more: Any) -> str:
    return json.dumps(fingerprint(acefl.resume(where, **more)))


def files(where: Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    return sorted((where / "checkpoint").glob("*.safetensors"), reverse=True)


def accepted(file: Path) -> int:
    """How far the run was at a checkpoint."""
    content = json.loads(safe_open(file, "pt").metadata()["checkpoint"])
    simulation = content["state"]["training"]
    return simulation["server"]["accepted"] if simulation else 0


class TestRunDirectory:
    def test_checkpoints_change_nothing_and_are_gone_when_the_run_is_complete(self, tmp_path: Path) -> None:
        how = resumable.settings("ACE-int8-memory", "event", tmp_path)
        plain = simulate(tasks.build(resumable.TASK), **how, out=tmp_path / "plain")
        saved = simulate(tasks.build(resumable.TASK), **how, out=tmp_path / "saved", checkpoint=Every(arrivals=10))
        assert fingerprint(saved) == fingerprint(plain)
        assert sorted(os.listdir(tmp_path / "saved")) == sorted(os.listdir(tmp_path / "plain"))
        assert fingerprint(acefl.load(tmp_path / "saved")) == fingerprint(acefl.load(tmp_path / "plain"))

    def test_a_finished_run_is_loaded_and_not_run_again(self, tmp_path: Path) -> None:
        expected = interrupted(tmp_path / "run")
        assert resumed(tmp_path / "run") == expected
        before = (tmp_path / "run" / "summary.json").stat().st_mtime_ns
        assert torch.equal(acefl.resume(tmp_path / "run").model, acefl.load(tmp_path / "run").model)
        assert (tmp_path / "run" / "summary.json").stat().st_mtime_ns == before

    def test_it_really_goes_on_from_the_checkpoint(self, tmp_path: Path) -> None:
        interrupted(tmp_path / "run")
        shares: list[float] = []
        acefl.resume(tmp_path / "run", progress=lambda spent, *_: shares.append(spent))
        assert min(shares) >= 0.5

    def test_an_earlier_record_stays_until_the_new_one_is_complete(self, tmp_path: Path) -> None:
        where = tmp_path / "run"
        simulate(tasks.build(resumable.TASK), ACE(), lr=0.01, stop=Stop(arrivals=30), out=where)
        (where / "report.html").write_text("of the earlier run")
        earlier = fingerprint(acefl.load(where))
        expected = interrupted(where)
        assert fingerprint(acefl.load(where)) == earlier
        assert resumed(where) == expected
        assert torch.equal(acefl.load(where).model, acefl.resume(where).model)
        assert not (where / "report.html").exists()

    def test_a_table_in_the_run_directory_survives(self, tmp_path: Path) -> None:
        where = tmp_path / "run"
        rule = ACE(table="bf16", home=str(where / "table.bin"))
        how: dict[str, Any] = {"lr": 0.05, "stop": Stop(arrivals=100)}
        where.mkdir()
        with pytest.raises(Interrupted):
            simulate(
                tasks.build(resumable.TASK),
                rule,
                **how,
                out=where,
                checkpoint=Every(arrivals=10),
                progress=interrupt_at(0.5),
            )
        expected = simulate(tasks.build(resumable.TASK), dataclasses.replace(rule, home="memory"), **how)
        assert torch.equal(acefl.resume(where).model, expected.model)

    def test_two_runs_cannot_write_one_directory(self, tmp_path: Path) -> None:
        where = tmp_path / "run"
        refusals: list[str] = []

        def try_too(spent: float, *_: object) -> None:
            for other in (lambda: acefl.resume(where), lambda: interrupted(where), lambda: plain_run(where)):
                with pytest.raises(InvalidInput) as refusal:
                    other()
                refusals.append(str(refusal.value))
            raise Interrupted

        how = resumable.settings("ACE-fp32-memory", "event", tmp_path)
        with pytest.raises(Interrupted):
            simulate(tasks.build(resumable.TASK), **how, out=where, checkpoint=Every(arrivals=10), progress=try_too)
        being_written = f"{where} is being written by another run (process {os.getpid()})"
        assert refusals[0] == refusals[1] == being_written
        assert "interrupted run" in refusals[2]

    def test_an_interrupted_run_is_not_overwritten(self, tmp_path: Path) -> None:
        where = tmp_path / "run"
        expected = interrupted(where)
        for again in (lambda: interrupted(where), lambda: plain_run(where)):
            with pytest.raises(InvalidInput, match="holds an interrupted run; resume it, or remove"):
                again()
        assert resumed(where) == expected

    def test_somebody_elses_checkpoint_folder_is_left_alone(self, tmp_path: Path) -> None:
        theirs = tmp_path / "run" / "checkpoint" / "epoch-3.pt"
        theirs.parent.mkdir(parents=True)
        theirs.write_text("theirs")
        for run in (interrupted, plain_run):
            with pytest.raises(InvalidInput, match="checkpoint exists and is not acefl's"):
                run(tmp_path / "run")
        assert theirs.read_text() == "theirs"
        assert os.listdir(theirs.parent) == [theirs.name]

    def test_what_cannot_be_resumed_is_said_in_one_line(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="holds no run, neither an interrupted nor a finished one"):
            acefl.resume(tmp_path)
        (tmp_path / "checkpoint").mkdir()
        (tmp_path / "checkpoint" / "lock").touch()
        with pytest.raises(InvalidInput, match="was interrupted before it began; start it again"):
            acefl.resume(tmp_path)

    def test_checkpoints_need_a_directory_and_a_period(self) -> None:
        with pytest.raises(InvalidInput, match="pass out="):
            simulate(tasks.build(resumable.TASK), ACE(), lr=0.1, checkpoint=Every(arrivals=5))
        for wrong in (0, -1, 2.5, True):
            with pytest.raises(InvalidInput, match="arrivals is"):
                Every(arrivals=wrong)  # type: ignore[arg-type]


def plain_run(where: Path) -> None:
    simulate(tasks.build(resumable.TASK), ACE(), lr=0.01, stop=Stop(arrivals=10), out=where)


class TestOwnParts:
    def test_a_task_and_a_method_of_ones_own_are_passed_again(self, tmp_path: Path) -> None:
        class Mine(tasks.Quadratic):
            def describe(self) -> dict[str, Any]:
                return {**super().describe(), "name": "mine"}

        @dataclasses.dataclass(frozen=True)
        class Slowly(acefl.Method):
            factor: float = 0.5

            def build(self, clients: int, like: torch.Tensor, samples: Sequence[int] | None = None) -> acefl.Rule:
                return ACE(warmup="seen").build(clients, like, samples)

        def task(seed: int = 1) -> Mine:
            return Mine(resumable.CLIENTS, resumable.DIM, 1.0, 0.5, seed)

        where = tmp_path / "run"
        how: dict[str, Any] = {"lr": 0.05, "stop": Stop(arrivals=100)}
        expected = fingerprint(simulate(task(), Slowly(), **how))
        with pytest.raises(Interrupted):
            simulate(task(), Slowly(), **how, out=where, checkpoint=Every(10), progress=interrupt_at(0.5))
        with pytest.raises(InvalidInput, match=r"a task of your own \(mine\); pass it as task="):
            acefl.resume(where)
        with pytest.raises(InvalidInput, match=r"by Slowly, your own \(.*Slowly\); pass it as rule="):
            acefl.resume(where, task=task())
        with pytest.raises(InvalidInput, match="task is .*; the run's was"):
            acefl.resume(where, task=task(seed=2), rule=Slowly())
        with pytest.raises(InvalidInput, match="rule is .*; the run's was"):
            acefl.resume(where, task=task(), rule=Slowly(factor=2))
        assert fingerprint(acefl.resume(where, task=task(), rule=Slowly())) == expected

    def test_the_gate_remembers_whose_norm_was_what(self, tmp_path: Path) -> None:
        how = {**resumable.settings("ACED-int8-memory", "event", tmp_path), "norm_limit": NormLimit(1.05)}
        expected = simulate(tasks.build(resumable.TASK), **how)
        assert expected.refused["norm-out-of-line"] > 5
        with pytest.raises(Interrupted):
            simulate(
                tasks.build(resumable.TASK),
                **how,
                out=tmp_path / "run",
                checkpoint=Every(arrivals=10),
                progress=interrupt_at(0.5),
            )
        assert fingerprint(acefl.resume(tmp_path / "run")) == fingerprint(expected)

    def test_observers_remember(self, tmp_path: Path) -> None:
        class Counter:
            def __init__(self) -> None:
                self.arrivals = 0

            def arrived(self, arrival: Arrival, reason: str) -> None:
                self.arrivals += 1

            def stepped(self, step: Any, server: Any) -> None: ...

            def evaluated(self, row: dict[str, float]) -> None:
                row["counted"] = self.arrivals

            def state_dict(self) -> dict[str, Any]:
                return {"arrivals": self.arrivals}

            def load_state_dict(self, state: dict[str, Any]) -> None:
                self.arrivals = state["arrivals"]

        where = tmp_path / "run"
        interrupted(where, observers=[Counter()])
        with pytest.raises(InvalidInput, match=r"observers are \[\]; the run's were \['Counter'\]"):
            acefl.resume(where)
        run = acefl.resume(where, observers=[Counter()])
        assert [row["counted"] for row in run.metrics] == [row["arrival"] for row in run.metrics]

        class Forgetful(Counter):
            state_dict = property()  # type: ignore[assignment]

        with pytest.raises(InvalidInput, match="Forgetful cannot be saved"):
            interrupted(tmp_path / "other", observers=[Forgetful()])


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size * 2 // 3)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def flip(file: Path, where: float = 0.5, bit: int = 3) -> None:
    content = bytearray(file.read_bytes())
    content[int(where * len(content))] ^= 1 << bit
    file.write_bytes(content)


def cut_header(file: Path) -> None:
    flip(file, where=0.0, bit=7)


class TestDamage:
    @pytest.mark.parametrize("damage", [truncate, empty, flip, cut_header, Path.unlink])
    def test_the_last_good_one_is_used(
        self, damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        where = tmp_path / "run"
        expected = interrupted(where)
        newest, before, *_ = files(where)
        assert 0 < accepted(before) < accepted(newest)
        damage(newest)
        start = accepted(before) / resumable.ARRIVALS
        shares: list[float] = []
        assert resumed(where, progress=lambda spent, *_: shares.append(spent)) == expected
        assert start < min(shares) < start + 0.1
        assert len(caplog.records) == (0 if damage is Path.unlink else 1)

    @settings(max_examples=40)
    @given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
    def test_no_flipped_bit_goes_unseen(self, where: float, bit: int, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = tmp_path_factory.mktemp("checkpoints")
        checkpoints = Checkpoints(folder)
        checkpoints.save({"value": 1, "tensor": torch.arange(5.0)})
        checkpoints.save({"value": 2, "tensor": torch.arange(9.0)})
        flip(max(folder.iterdir()), where, bit)
        assert Checkpoints(folder).load()["value"] == 1

    def test_damage_to_a_shared_file_leads_back_to_the_first(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        where = tmp_path / "run"
        expected = interrupted(where)
        for file in files(where)[:-1]:
            flip(file)
        assert resumed(where) == expected
        assert "damaged" in caplog.text

    def test_leftovers_of_a_killed_writer_are_ignored_and_cleaned_up(self, tmp_path: Path) -> None:
        where = tmp_path / "run"
        expected = interrupted(where)
        (where / "checkpoint" / "writing.tmp").write_bytes(b"half a checkpoint")
        (where / "checkpoint" / "record").mkdir()
        (where / "checkpoint" / "record" / "config.json").write_text("half a record")
        (where / ".checkpoint-done").mkdir()
        assert resumed(where) == expected
        assert not [name for name in os.listdir(where) if "checkpoint" in name]

    def test_a_file_that_vanished_is_written_again(self, tmp_path: Path) -> None:
        table, checkpoints = Table(20, torch.zeros(100)), Checkpoints(tmp_path)
        arrive(table, range(20))
        save(checkpoints, table)
        for file in tmp_path.iterdir():
            file.unlink()
        arrive(table, [3])
        save(checkpoints, table)
        assert torch.equal(reloaded(tmp_path).total(), table.total())

    def test_another_format_is_refused_and_not_passed_over(self, tmp_path: Path) -> None:
        checkpoints = Checkpoints(tmp_path)
        checkpoints.save({"value": 1})
        checkpoints.save({"value": 2})
        newest = max(tmp_path.iterdir())
        content = newest.read_bytes().replace(b'"format":"2"', b'"format":"9"')
        renamed(newest, content)
        with pytest.raises(InvalidInput, match="has format 9; this acefl reads 2"):
            Checkpoints(tmp_path).load()

    def test_loading_never_executes_code(self, tmp_path: Path) -> None:
        class Evil:
            def __reduce__(self) -> tuple[Any, ...]:
                return os.mkdir, (str(tmp_path / "executed"),)

        folder = tmp_path / "checkpoints"
        folder.mkdir()
        Checkpoints(folder).save({"value": 1})
        renamed(folder / "00000009-x.safetensors", pickle.dumps(Evil()))
        assert Checkpoints(folder).load()["value"] == 1
        assert not (tmp_path / "executed").exists()

    def test_a_checkpoint_of_another_shape_is_one_clear_line(self, tmp_path: Path) -> None:
        where = tmp_path / "run"
        interrupted(where)
        newest = files(where)[0]
        renamed(newest, newest.read_bytes().replace(b'\\"accepted\\":', b'\\"ACCEPTED\\":'))
        with pytest.raises(InvalidInput, match="does not fit: KeyError"):
            acefl.resume(where)


def renamed(file: Path, content: bytes) -> None:
    """Replace a checkpoint by one with other content and the right checksum."""
    file.unlink(missing_ok=True)
    checksum = hashlib.sha256(content).hexdigest()[:32]
    file.with_name(f"{file.name[:8]}-{checksum}.safetensors").write_bytes(content)


def arrive(table: Table, clients: Any, seed: int = 0) -> None:
    into = Accumulator(torch.zeros(table.dim))
    draw = torch.Generator().manual_seed(seed)
    for client in clients:
        table.exchange(client, torch.randn(table.dim, generator=draw), into, 1.0)


def save(checkpoints: Checkpoints, table: Table) -> None:
    with without_copies():
        checkpoints.save({"table": table.state_dict()})


def reloaded(folder: Path, **how: Any) -> Table:
    table = Table(20, torch.zeros(100), **how)
    table.load_state_dict(Checkpoints(folder).load()["table"])
    return table


def names(folder: Path) -> set[str]:
    """The tensors in the newest file."""
    return set(safe_open(max(folder.glob("*.safetensors")), "pt").keys())


def tensor_bytes(file: Path) -> int:
    handle = safe_open(file, "pt")
    return sum(handle.get_tensor(name).nbytes for name in handle.keys())  # noqa: SIM118


class TestCost:
    @pytest.mark.parametrize("encoding", ["fp32", "bf16", "int8"])
    def test_only_rows_that_changed_are_written(self, encoding: str, tmp_path: Path) -> None:
        table, checkpoints = Table(20, torch.zeros(100), encoding=encoding), Checkpoints(tmp_path)
        arrive(table, range(20))
        save(checkpoints, table)
        assert len(names(tmp_path)) == 20
        arrive(table, [3, 7, 3], seed=1)
        table.forget(11)
        save(checkpoints, table)
        assert names(tmp_path) == {"state/table/rows/3@3", "state/table/rows/7@2"}
        save(checkpoints, table)
        assert names(tmp_path) == set()
        again = reloaded(tmp_path, encoding=encoding)
        assert 11 not in again
        assert torch.equal(again.total(), table.total())

    def test_in_flight_work_is_written_once(self, tmp_path: Path) -> None:
        running = simulation(tasks.quadratic(clients=50, dim=100), **resumable.settings("ASGD", "event", tmp_path))
        checkpoints = Checkpoints(tmp_path)
        written = changing = everything = 0
        distinct: dict[str, int] = {}
        for _ in running.advance():
            with without_copies():
                parts = Parts.of(running.state_dict())
                checkpoints.save(running.state_dict())
            named = {
                f"{group}/{name}": t.nbytes for group, tensors in parts.named.items() for name, t in tensors.items()
            }
            distinct |= named
            changing += sum(tensor.nbytes for tensor in parts.tensors.values())
            everything += sum(named.values())
            written += tensor_bytes(max(tmp_path.glob("*.safetensors")))
        new = changing + sum(distinct.values())
        assert new <= written <= 2 * new  # twice: what is outdated makes room for at most as much written again
        assert 4 * written < changing + everything

    @pytest.mark.parametrize(("clients", "fast"), [(100, 0), (40, 7)])
    def test_a_long_run_keeps_few_and_small_files(self, clients: int, fast: int, tmp_path: Path) -> None:
        """Each time the fast clients' rows and one other: of a file only the row of the other is needed for long."""
        row = 100 * 4
        table, checkpoints = Table(clients, torch.zeros(100)), Checkpoints(tmp_path)
        arrive(table, range(clients))
        for turn in range(120):
            save(checkpoints, table)
            arrive(table, [*range(fast), fast + turn % (clients - fast)], seed=turn)
            found = list(tmp_path.glob("*.safetensors"))
            # two checkpoints, each at most twice the table, and the newest file
            assert sum(map(tensor_bytes, found)) <= (4 * clients + fast + 1) * row
            assert len(found) <= 2 * MOST_FILES + 3
        save(checkpoints, table)
        again = Table(clients, torch.zeros(100))
        again.load_state_dict(Checkpoints(tmp_path).load()["table"])
        assert torch.equal(again.total(), table.total())

    def test_events_are_appended_and_not_written_again(self, tmp_path: Path) -> None:
        events, checkpoints = Events(), Checkpoints(tmp_path)
        written, update = 0, torch.zeros(1)
        for row in range(40_000):
            events.add(row / 7, Arrival(row % 5, update, row, row + 1, row), "duplicate" if row % 9 == 0 else "")
            if row % 500 == 0:
                with without_copies():
                    checkpoints.save(events.state_dict())
                handle = safe_open(max(tmp_path.glob("*.safetensors")), "pt")
                written += sum(handle.get_tensor(name).shape[1] for name in handle.keys())  # noqa: SIM118
        assert written <= 12 * 40_000  # log2(40,000 / 500) times, and what files that were mostly outdated held
        again = Events()
        again.load_state_dict(Checkpoints(tmp_path).load())
        rows = len(again.time)
        assert rows == 39_501
        assert again.frame().equals(events.frame()[:rows])

    @given(count=st.integers(0, 10**7))
    def test_blocks_cover_a_log_and_are_few(self, count: int) -> None:
        ranges = blocks(count)
        assert [row for pair in ranges for row in pair[:1]] == [0, *(stop for _, stop in ranges[:-1])][: len(ranges)]
        assert (ranges[-1][1] if ranges else 0) == count
        assert len(ranges) <= count.bit_length()


SIMPLE = st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(width=64) | st.text(max_size=5)
KEYS = st.text(max_size=5).filter(lambda key: not key.startswith("$") and "/" not in key)
DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int16,
    torch.uint8,
    torch.bool,
)
SHAPES = ((), (0,), (3,), (2, 3))


@st.composite
def tensor(draw: st.DrawFn) -> torch.Tensor:
    shape, dtype = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(DTYPES))
    numbers = torch.tensor(draw(st.lists(st.integers(0, 255), min_size=48, max_size=48)), dtype=torch.uint8)
    if dtype is torch.bool:
        numbers %= 2
    count = math.prod(shape)
    return numbers.view(dtype)[:count].reshape(shape)


STATES = st.dictionaries(
    KEYS,
    st.recursive(
        SIMPLE | tensor(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_size=4,
)


def bits(value: Any) -> Any:
    """A form in which == is bit for bit."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), list(value.shape), value.reshape(-1).view(torch.uint8).tolist()
    if isinstance(value, dict):
        return [(key, bits(part)) for key, part in value.items()]
    if isinstance(value, list):
        return [bits(part) for part in value]
    return type(value).__name__, repr(value)


class TestStates:
    @settings(max_examples=60)
    @given(state=STATES)
    def test_any_state_comes_back_bit_for_bit(self, state: dict[str, Any], tmp_path_factory: Any) -> None:
        folder = tmp_path_factory.mktemp("checkpoints")
        Checkpoints(folder).save(state)
        assert bits(Checkpoints(folder).load()) == bits(state)

    def test_what_files_cannot_hold_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(acefl.AceflError, match="state/a/0 is a set; allowed: tensors, numbers"):
            Checkpoints(tmp_path).save({"a": [{1, 2}]})
        for key in (3, "$x", "a/b"):
            with pytest.raises(acefl.AceflError, match="allowed: strings without /"):
                Checkpoints(tmp_path).save({"a": {key: 1}})

    def test_a_lender_may_use_one_buffer_for_all_it_lends(self, tmp_path: Path) -> None:
        buffer = torch.zeros(3)
        lent = Named(["1", "2", "5"], lambda name: buffer.fill_(float(name)))
        Checkpoints(tmp_path).save({"rows": lent})
        loaded = Checkpoints(tmp_path).load()["rows"]
        assert {name: row.tolist() for name, row in loaded.items()} == {n: [float(n)] * 3 for n in ("1", "2", "5")}

    @pytest.mark.parametrize("rule", ["ACE-int8-memory", "CA2FL-fp32-file", "ACE-client-held", "FedBuff"])
    def test_a_state_that_was_not_lent_is_a_copy(self, rule: str, tmp_path: Path) -> None:
        simulation = resumable.build(rule, "sampled-churn", tmp_path)
        turns = simulation.advance()
        for _ in range(50):
            next(turns)
        state = simulation.state_dict()
        kept = copy.deepcopy(state)
        for _ in turns:
            pass
        assert bits(state) == bits(kept)


@pytest.fixture
def in_a_child() -> Callable[[Callable[[], None]], int]:
    """Runs something in a forked process, and tells how that ended."""

    def run(job: Callable[[], None]) -> int:
        child = os.fork()
        if child == 0:
            try:
                job()
                os._exit(0)
            except BaseException:
                logging.exception("in the child")
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    return run


class TestFullDisk:
    def test_the_run_goes_on_and_the_last_good_checkpoint_stays(
        self, tmp_path: Path, in_a_child: Callable[[Callable[[], None]], int]
    ) -> None:
        """A real OSError: the kernel lets this process write no file beyond 12 kB, less than a checkpoint takes."""
        task = tasks.quadratic(clients=60, dim=60, seed=1)
        how: dict[str, Any] = {"lr": 0.05, "stop": Stop(arrivals=200), "evaluations": 3}
        expected = simulate(task, ACE(), **how).model
        where = tmp_path / "run"

        def job() -> None:
            warnings: list[str] = []
            handler = logging.Handler()
            handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
            logging.getLogger("acefl").addHandler(handler)
            first: list[str] = []

            def fill(spent: float, *_: object) -> None:
                if spent >= 0.5 and not first:
                    first.extend(sorted(os.listdir(where / "checkpoint")))
                    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))
                elif spent >= 0.9:
                    assert sorted(os.listdir(where / "checkpoint")) == first
                    if interrupt:
                        raise Interrupted

            interrupt = True
            with pytest.raises(Interrupted):
                simulate(task, ACE(), **how, out=where, checkpoint=Every(arrivals=10), progress=fill)
            [warning] = warnings
            assert "cannot write a checkpoint" in warning
            assert "File too large" in warning
            shares: list[float] = []
            run = acefl.resume(where, progress=lambda spent, *_: shares.append(spent))
            assert 0.3 < min(shares) < 0.6
            assert torch.equal(run.model, expected)

        assert in_a_child(job) == 0
        assert torch.equal(acefl.load(where).model, expected)


def test_a_run_that_diverged_at_its_checkpoint_does_not_go_on(tmp_path: Path) -> None:
    def build() -> Training:
        how = resumable.settings("ASGD", "event", tmp_path)
        return simulation(tasks.build(resumable.TASK), **{**how, "lr": 1e30})

    running = build()
    for _ in running.advance():
        pass
    expected = fingerprint(running.result())
    assert running.evaluator.diverged
    Checkpoints(tmp_path).save(running.state_dict())
    again = build()
    again.load_state_dict(Checkpoints(tmp_path).load())
    assert fingerprint(again.complete()) == expected


def test_patience_does_not_depend_on_a_checkpoint_right_after_a_step() -> None:
    """There is a step at the first arrival, and never again."""

    def build() -> Training:
        scenario = Scenario(clock="sampled", delay=2.0, law="constant")
        task = tasks.quadratic(clients=1, dim=3)
        return simulation(task, RingmasterASGD(threshold=1), lr=0.05, scenario=scenario, stop=Stop(steps=5))

    expected = build().complete()
    interrupted, again = build(), build()
    step, _ = next(interrupted.advance())
    assert step.stepped
    again.load_state_dict(interrupted.state_dict())
    run = again.complete()
    assert run.config["ended"] == expected.config["ended"]
    assert fingerprint(run) == fingerprint(expected)


def test_another_machine_is_mentioned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    where = tmp_path / "run"
    expected = interrupted(where)
    torch.set_num_threads(2)
    try:
        assert resumed(where) == expected  # 33 numbers are too few for two threads
    finally:
        torch.set_num_threads(1)
    assert "resumed on another machine (threads 1 -> 2): the result may differ in the last bits" in caplog.text


class TestCommandLine:
    SETTINGS = (
        "run",
        "--evaluations",
        "5",
        "--task",
        "quadratic",
        "--clients",
        "5",
        "--dim",
        "3",
        "--arrivals",
        "2000",
        "--lr",
        "0.1",
    )
    CTRL_C = """
import os, signal, sys
from acefl.cli import main
def hear(event, details):
    if event == "os.rename" and str(details[1]).endswith(".safetensors"):
        renamed.append(event)
        if len(renamed) == 3:
            os.kill(os.getpid(), signal.SIGINT)
renamed = []
sys.addaudithook(hear)
sys.exit(main())
"""  # at the third checkpoint, however busy the machine

    def test_an_interrupted_run_says_how_to_go_on_and_goes_on(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        where = tmp_path / "a run"
        command = [sys.executable, "-c", self.CTRL_C, *self.SETTINGS, "--out", str(where), "--checkpoint-every", "200"]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        assert process.returncode == 130
        assert process.stderr.splitlines()[-1] == f"error: interrupted; go on with: acefl run --resume '{where}'"
        assert main(["run", "--resume", str(where), "--json"]) == 0
        resumed = json.loads(capsys.readouterr().out)
        assert (where / "report.html").exists()
        assert main([*self.SETTINGS, "--json"]) == 0
        expected = json.loads(capsys.readouterr().out)
        for name in ("final", "steps", "arrivals", "uploads", "time", "participation", "rule", "task"):
            assert resumed[name] == expected[name], name
        assert resumed["directory"] == str(where)

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (
                ["--resume", "DIR", "--lr", "1"],
                "--lr is given beside --resume, which takes all settings from the record",
            ),
            (["--resume", "DIR", "--seed", "0"], "--seed is given beside --resume"),
            (["--resume", "DIR"], "DIR holds no run, neither an interrupted nor a finished one"),
            (["--lr", "1", "--checkpoint-every", "5"], "--checkpoint-every needs --out DIR"),
            (["--lr", "1", "--checkpoint-every", "0", "--out", "DIR"], "--checkpoint-every"),
            ([], "Missing option '--lr'"),
        ],
    )
    def test_what_is_wrong_is_said_in_one_line(
        self, arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["run", *arguments]) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert line in said.err


@pytest.mark.parametrize("changed", [None, "client,duration\n0,1\n1,1\n2,1\n"], ids=["gone", "changed"])
def test_a_run_goes_on_without_the_file_of_its_trace(
    changed: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record has the trace by content: neither its removal nor a change of it shows."""
    monkeypatch.chdir(tmp_path)
    trace = Path("trace.csv")
    trace.write_text("client,duration\n0,1.5\n1,0.25\n2,7\n0,0.125\n")
    task, scenario = tasks.quadratic(clients=3, dim=4), acefl.Scenario(trace="trace.csv")
    settings: dict[str, Any] = {"lr": 0.05, "scenario": scenario, "stop": Stop(arrivals=60), "evaluations": 4}
    whole = simulate(task, ACE(), **settings)
    with pytest.raises(Interrupted):
        simulate(task, ACE(), **settings, out="run", checkpoint=Every(arrivals=10), progress=interrupt_at(0.5))
    trace.unlink()
    if changed is not None:
        trace.write_text(changed)
    resumed = acefl.resume("run")
    assert fingerprint(resumed) == fingerprint(whole)
    recorded = acefl.load("run").config
    assert recorded["trace"] == [[1.5, 0.125], [0.25], [7.0]]
    assert recorded["scenario"]["trace"] == "trace.csv"
    page = acefl.report.build(Path("run")).read_text("utf-8")
    assert "speeds from a trace, the slowest client 28× the fastest" in page
    assert "4 durations of 3 clients, 0.125 to 7; mean of the fastest client 0.25, of the slowest 7" in page
    assert "spread" not in page.split("<dt>Scenario</dt>")[1].split("<dt>")[0]
