"""Clients that exist: whose rows are whose, what is held out, in which order, by which names; and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from acefl import ACE, Scenario, Stop, simulate, tasks
from acefl.core.errors import InvalidInput
from acefl.tasks.attacks import attacked
from acefl.tasks.base import client_names


def frame(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    where = draw.choice(["Mercy", "St. Ann", "Charité"], size=rows)
    return pd.DataFrame(
        {"age": draw.normal(size=rows), "old": draw.random(rows) < 0.5, "hospital": where, "sick": np.arange(rows) % 2}
    )


def rows_of(pair: tuple[Any, torch.Tensor]) -> set[float]:
    return {round(float(value), 5) for value in pair[0][:, 0]}


def test_every_row_goes_to_its_own_client_once() -> None:
    data = frame()
    clients = tasks.by_group(data, "hospital", target="sick", test=0.3)
    assert clients.names == ["Charité", "Mercy", "St. Ann"] == sorted(data["hospital"].unique())
    assert clients.tests is not None
    for name, train, held in zip(clients.names, clients, clients.tests, strict=True):
        own = data[data["hospital"] == name]
        assert train[0].dtype == torch.float32
        assert train[1].dtype == torch.int64
        assert train[0].shape[1] == 2  # all columns but group and target
        assert len(held[1]) == round(0.3 * len(own))
        assert rows_of(train) | rows_of(held) == {round(float(np.float32(age)), 5) for age in own["age"]}
        assert not rows_of(train) & rows_of(held)


def test_dataframes_datasets_and_arrays_give_the_same_clients() -> None:
    datasets = pytest.importorskip("datasets")
    data = frame()
    inputs, targets = data[["age", "old"]].to_numpy(float), data["sick"].to_numpy()
    forms = [
        tasks.by_group(data, "hospital", target="sick", test=0.2, seed=3),
        tasks.by_group(datasets.Dataset.from_pandas(data), "hospital", target="sick", test=0.2, seed=3),
        tasks.by_group((inputs, targets), data["hospital"], test=0.2, seed=3),
        tasks.by_group((torch.tensor(inputs), torch.tensor(targets)), data["hospital"].tolist(), test=0.2, seed=3),
    ]
    for other in forms[1:]:
        assert other.names == forms[0].names
        for one, same in ((forms[0], other), (forms[0].tests, other.tests)):
            assert one is not None
            assert same is not None
            assert all(a[0].equal(b[0]) and a[1].equal(b[1]) for a, b in zip(one, same, strict=True))


def test_columns_of_arrays_are_given_by_name() -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"ids": [[1, 2, 3], [4, 5, 6]], "mask": [[1, 1, 0], [1, 1, 1]], "who": ["a", "b"], "label": [0, 1]}
    data = datasets.Dataset.from_dict(rows)
    both = tasks.by_group(data, "who", target="label", inputs=["ids", "mask"])
    assert {name: values.tolist() for name, values in both[0][0].items()} == {"ids": [[1, 2, 3]], "mask": [[1, 1, 0]]}
    alone = tasks.by_group(data, "who", target="label", inputs="ids")
    assert alone[1][0].tolist() == [[4, 5, 6]]


def test_what_a_client_holds_out_does_not_depend_on_who_else_is_there() -> None:
    data = frame()
    everybody = tasks.by_group(data, "hospital", target="sick", test=0.3)
    some = tasks.by_group(data[data["hospital"] != "Charité"], "hospital", target="sick", test=0.3)
    assert some.names == everybody.names[1:]
    for one, same in zip(everybody[1:], some, strict=True):
        assert one[0].equal(same[0])
    other = tasks.by_group(data, "hospital", target="sick", test=0.3, seed=1)
    assert any(not one[0].equal(another[0]) for one, another in zip(everybody, other, strict=True))


def test_clients_of_the_same_size_hold_out_rows_at_different_places() -> None:
    data = pd.DataFrame({"x": [*range(40)] * 2, "y": 0, "who": ["a"] * 40 + ["b"] * 40})
    one, other = tasks.by_group(data, "who", target="y", test=0.5)
    assert rows_of(one) != rows_of(other)


@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_every_client_keeps_one_sample_of_each(share: float) -> None:
    data = pd.DataFrame({"x": range(9), "y": [0] * 9, "who": [1, 1, 2, 2, 2, 10, 10, 10, 10]})
    clients = tasks.by_group(data, "who", target="y", test=share)
    assert clients.names == ["1", "2", "10"]  # numbers in the order of numbers
    assert clients.tests is not None
    assert min(len(own[1]) for own in (*clients, *clients.tests)) >= 1


def test_clients_may_be_in_the_order_of_what_they_have() -> None:
    data = pd.DataFrame({"x": range(6), "y": [5.0, 5.0, 1.0, 1.0, 3.0, 3.0], "who": list("aabbcc")})
    assert tasks.by_group(data, "who", target="y", order="target").names == ["b", "c", "a"]


def test_a_floating_group_with_whole_numbers_is_called_by_them() -> None:
    data = pd.DataFrame({"x": [1, 2], "y": [0, 1], "who": [3.0, 12.0]})
    assert tasks.by_group(data, "who", target="y").names == ["3", "12"]


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"group": "ward"}, "the data have no column 'ward'"),
    ({"target": None}, "target is missing"),
    ({"target": "died"}, "the data have no column 'died'"),
    ({"inputs": ["age", "bmi"]}, "the data have no column 'bmi'; they have 'age', 'old', 'hospital', 'sick'"),
    ({"inputs": ["age", "hospital"]}, "column 'hospital' is of dtype .*; allowed: numbers and booleans"),
    ({"test": 1.0}, "test is 1.0; allowed: from 0 to below 1"),
    ({"at_least": 1000}, "no client has 1000 rows"),
    ({"order": "size"}, "order is 'size'; allowed: name, target"),
]


@pytest.mark.parametrize(("settings", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_bad_settings_are_one_clear_line(settings: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"group": "hospital", "target": "sick", **settings}
    with pytest.raises(InvalidInput, match=message) as refusal:
        tasks.by_group(frame(), given.pop("group"), **given)
    assert "\n" not in str(refusal.value)


def test_gaps_and_small_clients_are_one_clear_line() -> None:
    holes = frame().assign(age=lambda data: data["age"].where(data.index > 3))
    with pytest.raises(InvalidInput, match="column 'age' has 4 missing values"):
        tasks.by_group(holes, "hospital", target="sick")
    nobody = frame().assign(hospital=lambda data: data["hospital"].where(data.index > 1))
    with pytest.raises(InvalidInput, match="column 'hospital' has 2 missing values"):
        tasks.by_group(nobody, "hospital", target="sick")
    with pytest.raises(InvalidInput, match="NaN or infinity in 1 rows"):
        tasks.by_group((np.array([[1.0], [np.inf]]), np.array([0, 1])), ["a", "b"])
    with pytest.raises(InvalidInput, match="several kinds"):
        tasks.by_group((np.zeros((2, 1)), np.array([0, 1])), np.array(["a", 1], dtype=object))
    with pytest.raises(InvalidInput, match="differ in length"):
        tasks.by_group((np.zeros((2, 1)), np.array([0, 1])), ["a"])
    with pytest.raises(InvalidInput, match="data is a list"):
        tasks.by_group([1, 2], "who", target="y")
    lone = pd.concat([frame(), frame(1).assign(hospital="Tiny")])
    with pytest.raises(InvalidInput, match=r"two rows of each client; one alone have 'Tiny' \(at_least=2"):
        tasks.by_group(lone, "hospital", target="sick", test=0.2)
    assert "Tiny" not in tasks.by_group(lone, "hospital", target="sick", test=0.2, at_least=2).names


def hospitals(**settings: Any) -> tasks.TorchTask:
    clients = tasks.by_group(frame(), "hospital", target="sick", test=0.25)
    return tasks.TorchTask(nn.Linear(2, 2), nn.CrossEntropyLoss(), clients, batch=5, **settings)


def test_a_task_knows_its_clients_names_and_what_they_hold_out() -> None:
    task = hospitals()
    assert client_names(task) == ["Charité", "Mercy", "St. Ann"]
    assert client_names(attacked(task, "sign-flip", fraction=0.5)) == client_names(task)
    assert client_names(tasks.quadratic(3, 2)) is None
    assert "heldout_client_accuracy" in task.evaluate(task.initial()).metrics
    assert client_names(hospitals(names=["a", "b", "c"])) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("names", "message"), [(["a", "b"], "names has 2 entries"), (["a", "b", "a"], "'a' more than once")]
)
def test_names_must_fit(names: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        hospitals(names=names)


def test_names_change_no_bit() -> None:
    data = tasks.by_group(frame(), "hospital", target="sick", test=0.25)
    torch.manual_seed(0)
    model, stop = nn.Linear(2, 2), Stop(arrivals=40)
    plain = tasks.TorchTask(model, nn.CrossEntropyLoss(), list(data), client_tests=data.tests, batch=5)
    named = tasks.TorchTask(model, nn.CrossEntropyLoss(), data, batch=5)
    one, other = (simulate(task, ACE(), lr=0.1, scenario=Scenario(spread=3.0), stop=stop) for task in (plain, named))
    assert one.model.equal(other.model)
    assert one.metrics == other.metrics
    assert "names" not in one.config
    assert other.config["names"] == data.names
