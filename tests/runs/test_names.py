"""Clients with names, from speeds that are given by name to records, resumed and replayed runs, and pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import acefl
from acefl import ACE, ASGD, Every, FedBuff, Scenario, Stop, simulate, tasks
from acefl.core.errors import InvalidInput
from acefl.core.stop import Stop as Budget
from acefl.fleets.scenario import Durations
from acefl.report import figures, recorded
from acefl.runs.replay import replay

NAMES = ["Mercy", "St. Ann", "Charité"]
MEASURED: dict[str, Any] = {"St. Ann": [40.0, 36.0], "Charité": [7.0], "Mercy": [3.0, 4.0, 2.0]}


def hospitals(names: list[str] | None = NAMES) -> tasks.TorchTask:
    torch.manual_seed(0)
    data = [(torch.randn(12, 4), torch.arange(12) % 2) for _ in range(3)]
    return tasks.TorchTask(nn.Linear(4, 2), nn.CrossEntropyLoss(), data, client_tests=data, batch=4, names=names)


def run_of(scenario: Scenario, task: tasks.TorchTask | None = None, **settings: Any) -> acefl.Run:
    return simulate(task or hospitals(), ACE(), lr=0.1, scenario=scenario, stop=Stop(arrivals=60), **settings)


def write(path: Path, rows: list[tuple[str, float]]) -> str:
    path.write_text("\n".join(["client,duration", *(f"{client},{duration}" for client, duration in rows)]))
    return str(path)


# --- speeds by name ---------------------------------------------------------------------------------------------


def test_all_ways_to_give_durations_are_one(tmp_path: Path) -> None:
    rows = [(name, duration) for name, own in MEASURED.items() for duration in own]
    table = pd.DataFrame(rows, columns=["client", "duration"])
    by_position = [MEASURED[name] for name in NAMES]
    ways = [
        Scenario(durations=MEASURED),
        Scenario(durations=table),
        Scenario(durations=table.groupby("client")["duration"].apply(list)),
        Scenario(durations=by_position),
        Scenario(trace=write(tmp_path / "t.csv", rows)),
        Scenario(trace=by_position),
    ]
    runs = [run_of(way) for way in ways]
    assert runs[0].participation[0] > runs[0].participation[2] > runs[0].participation[1]
    for other in runs[1:]:
        assert other.model.equal(runs[0].model)
        assert other.time == runs[0].time


def test_a_number_is_a_mean_around_which_tasks_vary_by_the_law() -> None:
    steady = Durations(Scenario(durations={"a": 3.0, "b": [40.0, 38.0]}, law="constant"), 2, 0, ["a", "b"])
    assert [steady.of(0, visit) for visit in range(3)] == [3.0, 3.0, 3.0]
    assert [steady.of(1, visit) for visit in range(3)] == [40.0, 38.0, 40.0]
    assert steady.mean == [3.0, 39.0]
    varying = Durations(Scenario(durations={"a": 3.0, "b": [40.0, 38.0]}), 2, 0, ["a", "b"])
    drawn = [varying.of(0, visit) for visit in range(4000)]
    assert len(set(drawn)) == 4000
    assert sum(drawn) / 4000 == pytest.approx(3.0, rel=0.1)


def test_means_of_a_spread_by_name_are_the_spread_itself() -> None:
    """`durations` with the means that `spread` would give draws the very same times."""
    means = Durations(Scenario(spread=9.0), 3, seed=5).mean
    run = run_of(Scenario(durations=dict(zip(NAMES, means, strict=True))))
    assert run.model.equal(run_of(Scenario(spread=9.0)).model)


def test_clients_without_names_go_by_their_numbers() -> None:
    run = run_of(Scenario(durations={2: 7.0, 0: 3.0, 1: 40.0}), hospitals(None))
    assert run.model.equal(run_of(Scenario(durations=[3.0, 40.0, 7.0])).model)


UNMATCHED: list[tuple[dict[Any, Any], str]] = [
    ({"Mercy": 3.0}, "durations has nothing for 'St. Ann', 'Charité'; every client needs"),
    (
        {**MEASURED, "Mercey": 3.0},
        "durations names 'Mercey', who is no client; the task's clients are called 'Mercy', 'St. Ann', 'Charité'",
    ),
    ({0: 3.0, 1: 4.0, 2: 5.0}, "durations names '0', '1', '2', who is no client"),
]


@pytest.mark.parametrize(("durations", "message"), UNMATCHED, ids=range(len(UNMATCHED)))
def test_names_that_do_not_match_are_one_clear_line(durations: dict[Any, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=message) as refusal:
        run_of(Scenario(durations=durations))
    assert "\n" not in str(refusal.value)
    rows = [(str(name), duration) for name in durations for duration in (1.0, 2.0)]
    with pytest.raises(InvalidInput, match=message.replace("durations", "trace .*t.csv")):
        run_of(Scenario(trace=write(tmp_path / "t.csv", rows)))


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        ({}, "durations is empty"),
        ({"a": 0.0}, "durations: that of 'a' is 0.0; allowed: a finite number above 0"),
        ({"a": []}, "durations has no duration for 'a'"),
        ({"a": "long"}, "durations of 'a' are 'long'"),
        ({"a": [1.0, None]}, "durations of 'a' are"),
        ("durations.csv", "a CSV file is given as trace="),
        (pd.DataFrame({"who": ["a"], "long": [1.0]}), r"durations has columns \['who', 'long'\]"),
        ([3.0, float("nan")], "that of client 1 is nan"),
    ],
)
def test_durations_that_are_none_are_refused(durations: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Scenario(durations=durations)
    with pytest.raises(InvalidInput, match="trace and durations are given"):
        Scenario(durations={"a": 1.0}, trace="t.csv")


def test_settings_beside_durations_that_cannot_matter_are_said() -> None:
    means = Scenario(durations={"a": 1.0}, spread=3.0, law="uniform")
    assert means.warnings() == ["spread=3.0: no effect beside durations, which say how long clients take"]
    assert "law=uniform" in Scenario(durations={"a": [1.0]}, law="uniform").warnings()[0]
    assert not Scenario(durations={"a": 1.0}, law="uniform").warnings()


def test_what_to_expect_does_not_depend_on_how_durations_are_given() -> None:
    given = Scenario(clock="tick", durations=MEASURED)
    matched = given.matched(3, NAMES)
    assert matched.expectation(3) == Scenario(clock="tick", trace=[MEASURED[name] for name in NAMES]).expectation(3)


# --- records ------------------------------------------------------------------------------------------------------


def test_a_run_records_its_clients_names(tmp_path: Path) -> None:
    run = run_of(Scenario(durations=MEASURED), out=tmp_path / "run")
    read = acefl.load(tmp_path / "run")
    for one in (run, read):
        assert [row["name"] for row in one.clients] == NAMES == one.config["names"]
        assert one.by_client.loc["St. Ann", "participation"] == one.participation[1]
    assert read.config["scenario"]["durations"] == MEASURED
    plain = run_of(Scenario(), hospitals(None))
    assert "name" not in plain.clients[0]
    assert plain.by_client.loc[1, "participation"] == plain.participation[1]


def test_a_killed_run_is_resumed_with_its_names_and_durations(tmp_path: Path) -> None:
    whole = run_of(Scenario(durations=MEASURED))

    def die(spent: float, *_: object) -> None:
        if spent > 0.6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_of(Scenario(durations=MEASURED), out=tmp_path / "run", checkpoint=Every(arrivals=20), progress=die)
    with pytest.raises(InvalidInput, match="names is .*; the run's was"):
        acefl.resume(tmp_path / "run", task=hospitals(["St. Ann", "Mercy", "Charité"]))
    resumed = acefl.resume(tmp_path / "run", task=hospitals())
    assert resumed.model.equal(whole.model)
    assert resumed.clients == whole.clients


def test_a_replay_keeps_the_names_also_of_a_stand_in() -> None:
    run = run_of(Scenario(durations=MEASURED))
    again = replay(run, ACE(), task=hospitals())
    assert again.model.equal(run.model)
    assert [row["name"] for row in again.clients] == NAMES
    stand_in = replay(run, ASGD(), task=hospitals(None))
    assert [row["name"] for row in stand_in.clients] == NAMES
    with pytest.raises(InvalidInput, match="the task's clients are 'Mercy', .*; the run's were 'Mercy', 'St. Ann'"):
        replay(run, ACE(), task=hospitals(["Mercy", "Charité", "St. Ann"]))


# --- pages --------------------------------------------------------------------------------------------------------


def test_a_page_calls_clients_by_their_names(tmp_path: Path) -> None:
    long = "The <General> Hospital of a Very Long Name"
    durations = {long if name == "Mercy" else name: own for name, own in MEASURED.items()}
    acefl.compare(
        lambda seed: hospitals([long, *NAMES[1:]]),
        [ACE(), FedBuff(buffer=2)],
        scenario=Scenario(durations=durations),
        stop=Budget(arrivals=40),
        seeds=[0],
        lr=0.1,
        out=tmp_path / "out",
    )
    comparison = recorded.load(tmp_path / "out")
    assert comparison.speeds == "speeds as given, the slowest client 12.7× the fastest"
    drawn = {figure.name: figure for figure in figures.of(comparison)}
    rows = drawn["each-client"].panels[0].layout["yaxis"]["ticktext"]
    assert len(rows) == 3
    assert rows[:2] == ["St. Ann", "Charité"]
    assert rows[2].endswith("…")
    across = drawn["participation"].panels[0].layout["xaxis"]
    assert across["tickvals"] == [1, 2, 3]
    assert across["ticktext"] == rows[::-1]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<General>" not in page
    assert "St. Ann: 2 measured, mean 38" in page
    assert json.loads((tmp_path / "out" / "compare.json").read_text())["scenario"]["durations"]["Charité"] == [7.0]
