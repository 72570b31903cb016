"""The leaderboard: the same cells whenever they are filled, read with care, and docs that agree with the record."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from experiments.leaderboard.publish import PACKAGE, PLACES, ROOT, filled

from acefl import ACE, ASGD, FedAvg, FedBuff, InvalidInput, Scenario, Stop, leaderboard, tasks
from acefl import simulate as simulated
from acefl.advise import SIGNS, advise, decision_table, simplest, symptoms_of, unbeaten
from acefl.cli import main
from acefl.leaderboard import MEANING, SCENARIOS, TASKS, scenario_of, stop_of
from acefl.report.standings import Board, half_width
from acefl.rules import parse
from acefl.tasks.sources import build_task

BOTH = (ACE(), FedBuff())


def small(out: Path, methods: Any = BOTH, **settings: Any) -> Board:
    return Board.read(leaderboard.leaderboard(methods, out=out, only=True, quick=True, workers=1, **settings))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("board") / "one"
    small(out)
    return out


def _numbers(directory: Path) -> list[dict[str, Any]]:
    rows = json.loads((directory / "leaderboard.json").read_text())["rows"]
    return sorted(({**row, "seconds": 0} for row in rows), key=lambda row: json.dumps(row))


def test_every_cell_is_a_tuned_method_on_every_seed(made: Path) -> None:
    board = Board.read(made)
    assert len(board.content["rows"]) == len(TASKS) * len(SCENARIOS) * 2
    for row in board.content["rows"]:
        rule, scenario = parse(row["tuned"]), SCENARIOS[row["scenario"]]
        built = build_task(board.content["tasks"][row["task"]], 1)
        run = simulated(built, rule, lr=row["lr"], scenario=scenario, stop=Stop(arrivals=80), seed=1)
        assert run.final[row["objective"]] == pytest.approx(row["finals"][row["objective"]][1], rel=1e-5)
        assert row["tuning"]["runs"] <= board.content["budget"]
    assert "core-minutes" in board.cost
    assert "budget of 2 whole runs" in (made / "report.html").read_text()


def test_a_board_goes_on_where_it_was_and_a_method_joins_at_its_own_cost(made: Path, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def kill(done: int, known: int, last: str) -> None:
        if done == 5:
            raise Killed

    out = tmp_path / "board"
    with pytest.raises(Killed):
        small(out, progress=kill)
    assert len(list((out / "cells").glob("*.json"))) == 5
    heard: list[int] = []
    small(out, progress=lambda done, known, last: heard.append(done))
    assert heard[0] == 5
    assert _numbers(out) == _numbers(made)
    heard.clear()
    joined = small(out, [ASGD()], progress=lambda done, known, last: heard.append(done))
    assert joined.methods == ["ACE", "ASGD", "FedBuff"]
    assert len(heard) == 1 + len(TASKS) * len(SCENARIOS)
    with pytest.raises(InvalidInput, match="holds a leaderboard with other arrivals"):
        leaderboard.leaderboard([ACE()], out=out, only=True, arrivals=7, workers=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(InvalidInput, match="holds no leaderboard"):
        small(tmp_path / "mine")


def test_rounds_get_the_virtual_time_in_which_the_others_arrive() -> None:
    """Within a fifth: 2,000 arrivals of 20 clients, whose number in a given time varies by a few percent."""
    task = tasks.quadratic(clients=20, dim=2, seed=0)
    for name in ("equal", "spread", "dropout", "tick 5"):
        scenario = SCENARIOS[name]
        assert stop_of(ASGD(), scenario, 20, 2000) == Stop(arrivals=2000)
        run = simulated(task, ASGD(), lr=1e-3, scenario=scenario, stop=Stop(arrivals=2000))
        assert stop_of(FedAvg(), scenario, 20, 2000).time == pytest.approx(run.time, rel=0.2), name


# --- reading a board --------------------------------------------------------------------------------------------------


def board_of(
    scores: dict[str, dict[str, list[float | None]]], key: str = "client_loss", task: str = "digits"
) -> dict[str, Any]:
    """Rows of a made-up board: scenario -> method -> final values."""
    rows = [
        {
            "task": task,
            "scenario": scenario,
            "method": method,
            "tuned": method,
            "rule": {"table": "fp32"} if method in ("ACE", "ACED") else {},
            "lr": 0.1 if method == "ASGD" else 0.4,
            "finals": {key: values},
            "tuning": {"arrivals": 1, "trials": 1, "runs": 1},
        }
        for scenario, methods in scores.items()
        for method, values in methods.items()
    ]
    names = dict.fromkeys(scores)
    return {"tasks": {"digits": {"clients": 10}}, "scenarios": names, "rows": rows, "seeds": [0], "arrivals": 1}


def test_half_the_interval_is_students() -> None:
    assert half_width([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.7764 * math.sqrt(2.5 / 5), rel=1e-4)
    assert half_width([1.0]) == math.inf


def test_seeds_are_paired_so_that_a_small_steady_lead_counts() -> None:
    wide = [1.0, 5.0, 9.0, 2.0, 7.0]
    ahead, behind, unsteady = wide, [v + 0.1 + 0.001 * v for v in wide], [1.3, 4.9, 9.2, 1.9, 7.1]
    column = Board(board_of({"equal": {"A": ahead, "B": behind, "C": unsteady, "D": [None] * 5}})).column(
        "digits", "equal", "client_loss"
    )
    assert [s.method for s in column] == ["A", "C", "B", "D"]
    assert [s.first for s in column] == [True, True, False, False]
    assert column[0].mean == pytest.approx(4.8)
    assert "diverged" in Board(board_of({"equal": {"A": ahead, "D": [None] * 5}})).markdown("digits", "client_loss")


def test_more_is_better_where_it_is_and_gaps_are_compared_in_orders_of_magnitude() -> None:
    accuracy = Board(board_of({"equal": {"A": [0.8] * 5, "B": [0.9] * 5}}, key="accuracy"))
    assert [s.method for s in accuracy.column("digits", "equal", "accuracy")] == ["B", "A"]
    gaps = Board(board_of({"equal": {"A": [1e-4, 1e-2], "B": [1e-3, 1.1e-3]}}, key="gap"))
    assert [round(s.mean, 6) for s in gaps.column("digits", "equal", "gap")] == [0.001, 0.001049]


# --- advice -----------------------------------------------------------------------------------------------------------


def full_board() -> Board:
    """ACED is ahead where clients leave, ACE where speeds differ, nobody elsewhere."""
    tied = {"ACE": [1.0, 1.1, 0.9], "ASGD": [1.01, 1.05, 0.93], "ACED": [1.02, 1.0, 1.0], "FedAvg": [0.1, 0.1, 0.1]}
    digits = {name: dict(tied) for name in SCENARIOS}
    digits["spread"] = {"ACE": [1.0, 1.1, 0.9], "ASGD": [2.0, 2.1, 1.9], "ACED": [2.0, 2.2, 2.1]}
    digits["dropout"] = {"ACE": [2.0, 2.1, 1.9], "ASGD": [2.0, 2.1, 1.9], "ACED": [1.0, 1.1, 0.9]}
    content, other = board_of(digits), board_of(digits, "gap", "quadratic")
    content["rows"] += other["rows"]
    content["tasks"]["quadratic"] = {"clients": 10}
    for row in content["rows"]:
        row["rule"] |= {"tau": 50} if row["method"] == "ACED" else {}
    return Board(content)


PLANTED = {
    "equal": Scenario(),
    "spread": Scenario(spread=30.0),
    "dropout": Scenario(dropout=0.5, dropout_at=0.3),
    "heavy tail": Scenario(law="pareto"),
    "tick 5": Scenario(clock="tick", delay=5.0),
    "tick 30": Scenario(clock="tick", delay=30.0),
}
TAKEN = {"equal": "ASGD", "spread": "ACE", "dropout": "ACED", "heavy tail": "ASGD", "tick 5": "ASGD", "tick 30": "ASGD"}


@pytest.mark.parametrize("scenario", PLANTED)
def test_a_planted_scenario_is_recognised_and_answered_by_the_board(scenario: str) -> None:
    task = tasks.digits(clients=20, alpha=0.3, model="softmax", seed=0)
    run = simulated(task, ASGD(), lr=0.1, scenario=PLANTED[scenario], stop=Stop(arrivals=2000))
    advice = advise(run, full_board())
    assert advice.scenario == scenario
    assert advice.method.partition("(")[0] == TAKEN[scenario]
    ratio = 1.0 if TAKEN[scenario] == "ASGD" else 4.0
    assert advice.lr == pytest.approx((0.1 * ratio / 2, 0.1 * ratio * 2))
    assert any(MEANING[scenario] in line for line in advice.evidence)
    assert advice.unknown
    if TAKEN[scenario] == "ACED":
        assert advice.method == f"ACED(tau={math.ceil(2 * symptoms_of(run).round_trip)})"


def test_a_method_that_is_not_on_the_board_gets_no_rate_and_a_short_run_no_advice() -> None:
    task = tasks.quadratic(clients=10, dim=3, seed=0)
    run = simulated(task, FedBuff(), lr=0.1, stop=Stop(arrivals=200))
    advice = advise(run, full_board())
    assert advice.lr is None
    assert any("FedBuff is not on the leaderboard" in line for line in advice.evidence)
    with pytest.raises(InvalidInput, match="too short to judge"):
        advise(simulated(task, ASGD(), lr=0.1, stop=Stop(arrivals=15)), full_board())


def test_the_simplest_of_equals_is_taken_and_rounds_are_left_out() -> None:
    among = unbeaten(full_board(), "equal")
    assert {s.method for s in among} == {"ACE", "ASGD", "ACED"}
    assert simplest(among).method == "ASGD"
    table = decision_table(full_board())
    assert [line.split("|")[2].strip() for line in table.splitlines()[2:]] == list(SIGNS)
    assert set(SIGNS) == set(SCENARIOS) == set(MEANING)


def test_quadratics_decide_among_those_that_digits_cannot_tell_apart() -> None:
    alike, behind = [1.0, 1.2, 0.9, 1.1, 1.0], [2.0, 2.2, 1.9, 2.1, 2.0]
    digits = {"ACE": alike, "ASGD": list(reversed(alike)), "CA2FL": behind}
    gaps = {"ACE": [0.01] * 5, "ASGD": [1.0, 1.1, 0.9, 1.0, 1.2], "CA2FL": [1e-6] * 5}
    content, other = board_of({"equal": digits}), board_of({"equal": gaps}, "gap", "quadratic")
    content["rows"] += other["rows"]
    content["tasks"]["quadratic"] = {"clients": 10}
    assert [standing.method for standing in unbeaten(Board(content), "equal")] == ["ACE"]


def test_advice_wants_a_board_with_asynchronous_methods() -> None:
    with pytest.raises(InvalidInput, match="no asynchronous method of the library"):
        unbeaten(Board(board_of({"equal": {"FedAvg": [1.0, 1.0]}})), "equal")


def test_who_made_no_step_is_marked() -> None:
    content = board_of({"equal": {"ACE": [1.0, 1.1, 0.9]}})
    content["rows"][0]["steps"] = [0, 5, 0]
    assert "(2 without a step)" in Board(content).markdown("digits", "client_loss")


def test_half_of_the_clients_leave_everybody_at_the_same_time() -> None:
    """By arrivals for those that count arrivals; a method with rounds is told the time at which that is, on average."""
    scenario = SCENARIOS["dropout"]
    assert scenario_of(ACE(), scenario) is scenario
    assert scenario_of(FedAvg(), SCENARIOS["spread"]) is SCENARIOS["spread"]
    rounds, arrivals, clients = scenario_of(FedAvg(), scenario), 20_000, 50
    run = simulated(
        tasks.quadratic(clients=clients, dim=2), ACE(), lr=1e-9, scenario=scenario, stop=Stop(arrivals=arrivals)
    )
    left_at = float(run.events["time"].iloc[arrivals // 2])
    whole = stop_of(FedAvg(), scenario, clients, arrivals).time
    assert whole is not None
    # Both times are sums of thousands of exponential ones: a standard deviation of about 0.7 %, so 4 % is beyond five.
    assert left_at == pytest.approx(rounds.dropout_at * whole, rel=0.04)
    assert float(run.time) == pytest.approx(whole, rel=0.04)


def test_a_method_of_ones_own_that_was_changed_gets_cells_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from acefl import ACE\n\n\nclass Mine(ACE):\n    pass\n"
    (tmp_path / "changing.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    rule = importlib.import_module("changing").Mine()
    before = leaderboard._title(rule)
    (tmp_path / "changing.py").write_text(source + "\n# another one\n")
    assert leaderboard._title(rule) != before
    assert leaderboard._title(ACE()) == "ACE"


def test_the_commands(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["leaderboard", "--show", str(made)]) == 0
    shown = capsys.readouterr().out
    assert Board.read(made).markdown("digits") in shown
    assert main(["leaderboard", "--recorded"]) == 0
    assert Board.recorded().markdown("quadratic") in capsys.readouterr().out
    task = ["--task", "quadratic", "--clients", "8", "--dim", "3"]
    assert main(["advise", *task, "--spread", "30", "--board", str(made), "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)
    assert (advice["scenario"], len(advice["lr"] or (0, 0))) == ("spread", 2)
    assert main(["run", *task, "--lr", "0.1", "--arrivals", "100", "--out", str(tmp_path / "run")]) == 0
    assert main(["advise", str(tmp_path / "run"), "--board", str(made)]) == 0
    assert "What this cannot know" in capsys.readouterr().out
    assert main(["advise", str(tmp_path / "run"), "--spread", "3"]) == 2
    assert "--spread is given beside a run" in capsys.readouterr().err


# --- docs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PLACES)
def test_the_docs_show_what_is_recorded(page: str) -> None:
    """Once there is a record in the package, the tables of the docs are the ones made from it."""
    name, content = PLACES[page]
    text = (ROOT / page).read_text(encoding="utf-8")
    said = content(Board.recorded()) if PACKAGE.exists() else "Not recorded yet."
    assert filled(text, name, said) == text
