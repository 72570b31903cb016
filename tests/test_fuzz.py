"""Whatever is in a file or on the command line: it is read, or refused by one line of InvalidInput. Nothing else."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acefl import ACE, InvalidInput, Run, Stop, load, simulate, tasks
from acefl.cli.options import parse_seeds
from acefl.fleets.scenario import Scenario, read_trace
from acefl.rules import METHODS, from_settings, parse
from acefl.studies.sweep import KEYS, Grid, _check, parse_axis

examples = settings(max_examples=150)
slow_examples = settings(max_examples=60)

scalar = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["wait", "int8", "sqrt"])
)
value = st.one_of(scalar, st.lists(scalar, max_size=2), st.dictionaries(st.text(max_size=3), scalar, max_size=2))
setting = st.sampled_from(
    sorted({name for method in METHODS.values() for name in method.__dataclass_fields__} | {"colour", "__class__"})
)


def refusal(read: Callable[..., Any], *given: Any) -> str:
    """The line by which it is refused; empty if it was read."""
    try:
        read(*given)
    except InvalidInput as refused:
        return str(refused) or "?"
    return ""


def read_or_refused(read: Callable[..., Any], *given: Any) -> None:
    assert "\n" not in refusal(read, *given).strip(), "one line"


NASTY: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**70, -(2**70), 0.5, -0.0, math.inf, -math.inf, math.nan, 1e308, 5e-324),
    *("", "x", "fp32", "wait", "1", "\n", "../..", "\0", [], [1], [None, "a"], {}, {"a": 1}, (1,)),
]


def test_every_setting_of_every_method_with_every_nasty_value() -> None:
    for name, method in METHODS.items():
        for field in method.__dataclass_fields__:
            for nasty in [*NASTY, 1 + 2j, b"x", {1}]:
                read_or_refused(from_settings, name, {field: nasty})


def test_every_key_of_a_grid_with_every_nasty_value() -> None:
    keys = [key for key in KEYS if key not in ("task", "scenario", "stop")]
    keys += [f"scenario.{field}" for field in Scenario.__dataclass_fields__]
    keys += [f"stop.{field}" for field in Stop.__dataclass_fields__]
    keys += ["task.name", "task.clients", "task.alpha", "task.colour", "task", "scenario", "stop"]
    for key in keys:
        for nasty in [*NASTY, date(1979, 5, 27), [date(1979, 5, 27)]]:
            read_or_refused(lambda key=key, nasty=nasty: check_grid(Grid.of({"lr": 0.1, **{key: nasty}})))


@st.composite
def calls(draw: st.DrawFn) -> str:
    words = draw(st.dictionaries(setting, value, max_size=3))
    name = draw(st.sampled_from([*METHODS, "aced", "Ace ", "os.system"]))
    return f"{name}({', '.join(f'{key}={word!r}' for key, word in words.items())})"


@examples
@given(st.one_of(calls(), st.text(max_size=30), st.text("()[]{}=,'\"ACED tau0", max_size=30)))
def test_methods(text: str) -> None:
    read_or_refused(parse, text)


@pytest.mark.parametrize(
    "text", ["(" * 5000, "ACE(" * 3000, "-" * 20000, "ACED(tau=" + "9" * 5000 + ")", "ACE(x=" + "[" * 900]
)
def test_methods_that_are_bombs(text: str) -> None:
    read_or_refused(parse, text)


@examples
@given(st.one_of(st.text(max_size=20), st.text("0123456789,-+_ e", max_size=20)))
def test_seeds_and_axes(text: str) -> None:
    read_or_refused(parse_seeds, text)
    read_or_refused(parse_axis, text)
    read_or_refused(parse_axis, f"lr={text}")


@pytest.mark.parametrize("text", ["99999999999", "9" * 30, "9" * 5000])
def test_too_many_seeds(text: str) -> None:
    assert refusal(parse_seeds, text).startswith("seeds is ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


field = st.one_of(st.integers(-2, 5).map(str), st.floats().map(str), st.text(max_size=6))
rows = st.lists(st.lists(field, min_size=1, max_size=3).map(",".join), max_size=6)


@examples
@given(
    st.one_of(
        st.binary(max_size=60),
        rows.map(lambda lines: "\n".join(["client,duration", *lines]).encode("utf-8", "replace")),
    )
)
def test_traces(folder: Path, content: bytes) -> None:
    (folder / "trace.csv").write_bytes(content)
    read_or_refused(read_trace, folder / "trace.csv", 3)


def check_grid(grid: Grid) -> None:
    for cell in grid.cells()[:3]:
        _check(cell, Path("nowhere"))


@examples
@given(st.one_of(st.binary(max_size=80), st.text("[]{}=.,\"'#\n lr0123-:T", max_size=60).map(str.encode)))
def test_grid_files(folder: Path, content: bytes) -> None:
    (folder / "grid.toml").write_bytes(content)
    read_or_refused(lambda: check_grid(Grid.read(folder / "grid.toml")))


@pytest.mark.parametrize(
    "text", ["lr = " + "[" * 5000, "lr = " + "9" * 5000, "lr = " + "{a=" * 3000, "a." * 3000 + "b = 1"]
)
def test_grid_files_that_are_bombs(folder: Path, text: str) -> None:
    (folder / "grid.toml").write_text(text)
    read_or_refused(lambda: check_grid(Grid.read(folder / "grid.toml")))


heads = st.sampled_from([*KEYS, "colour"])
names = st.sampled_from(["name", "clients", "alpha", "delay", "spread", "clock", "arrivals", "steps", "colour"])


@examples
@given(st.dictionaries(heads, st.one_of(value, st.dictionaries(names, value, max_size=3)), max_size=4), scalar)
def test_grids(content: dict[str, Any], lr: Any) -> None:
    read_or_refused(lambda: check_grid(Grid.of({"lr": lr, **content})))


@pytest.fixture(scope="module")
def saved(folder: Path) -> Path:
    task = tasks.quadratic(clients=3, dim=2)
    return simulate(task, ACE(), lr=0.1, stop=Stop(arrivals=10), evaluations=2).save(folder / "good")


@slow_examples
@given(st.data())
def test_damaged_records(folder: Path, saved: Path, data: st.DataObject) -> None:
    """One file of a record is cut off, partly overwritten, or replaced."""
    spoilt = folder / "spoilt"
    shutil.rmtree(spoilt, ignore_errors=True)
    shutil.copytree(saved, spoilt)
    file = data.draw(st.sampled_from(sorted(path.name for path in saved.iterdir() if path.is_file())), label="file")
    content = (saved / file).read_bytes()
    place = data.draw(st.integers(0, len(content)), label="place")
    wrong = data.draw(
        st.one_of(st.binary(max_size=8), st.sampled_from([b"null", b"-1", b"[]", b"1e999"])), label="bytes"
    )
    kept = data.draw(st.sampled_from(["cut", "over", "instead"]), label="how")
    spoiled: dict[str, bytes] = {
        "cut": content[:place],
        "over": content[:place] + wrong + content[place + len(wrong) :],
        "instead": wrong,
    }
    (spoilt / file).write_bytes(spoiled[kept])
    read_or_refused(lambda: isinstance(load(spoilt), Run))


@pytest.mark.parametrize("file", ["config.json", "summary.json", "metrics.jsonl"])
def test_records_that_are_bombs(folder: Path, saved: Path, file: str) -> None:
    spoilt = folder / f"bomb-{file}"
    shutil.copytree(saved, spoilt)
    (spoilt / file).write_text("[" * 100_000)
    assert refusal(load, spoilt)
