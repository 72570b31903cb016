"""Successive halving: the same answer whoever computes it and however often it is stopped, within its budget."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acefl import ACE, ACED, ASGD, FedBuff, InvalidInput, Scenario, Stop, simulate, tune
from acefl.rules import METHODS
from acefl.studies import tune as halving
from acefl.studies.objective import Objective
from acefl.studies.spec import TUNING_SEED
from acefl.studies.tune import GENERATION, QUARTERS, WHOLE, Tuning, search_ranges, spread_evenly
from acefl.tasks.sources import build_task

TASK = {"name": "quadratic", "clients": 6, "dim": 3, "noise": 0.1}
SMALL: dict[str, Any] = {"scenario": Scenario(spread=5.0), "stop": Stop(arrivals=80), "workers": 1}


@pytest.fixture(scope="module")
def aced() -> Tuning:
    return tune(TASK, ACED(), **SMALL)


def test_two_workers_give_what_one_gives(aced: Tuning) -> None:
    assert tune(TASK, ACED(), **{**SMALL, "workers": 2}) == aced


def test_a_trial_is_the_beginning_of_a_run_on_the_tuning_seed(aced: Tuning) -> None:
    """The score at a quarter is what a run of the whole budget shows there, so that what ends late is not squeezed."""
    for quarters in QUARTERS:
        trial = next(one for one in aced.trials if one.quarters == quarters)
        rule = ACED(tau=int(trial.settings["tau"]))
        run = simulate(
            build_task(TASK, TUNING_SEED),
            rule,
            lr=trial.settings["lr"],
            scenario=SMALL["scenario"],
            stop=SMALL["stop"],
            seed=TUNING_SEED,
            evaluations=4,
        )
        assert run.metrics[quarters]["gap"] == trial.score
        stages = [q for q in QUARTERS if q <= quarters]
        assert trial.arrivals == sum(run.metrics[q]["arrival"] for q in stages)


def test_the_best_is_the_lowest_of_those_that_ran_to_the_end(aced: Tuning) -> None:
    ended = [one for one in aced.trials if one.quarters == WHOLE]
    assert aced.best == min(ended, key=lambda one: one.score)
    assert (aced.lr, aced.rule) == (aced.best.settings["lr"], ACED(tau=int(aced.best.settings["tau"])))


@pytest.mark.parametrize("budget", [8.0, 10.0, 12.0])
@pytest.mark.parametrize("rule", [ACE(), FedBuff(), ASGD()], ids=lambda rule: type(rule).__name__)
def test_a_closer_look_runs_to_the_end_so_that_it_can_be_chosen(rule: Any, budget: float) -> None:
    later = tune(TASK, rule, **SMALL, budget=budget).trials[GENERATION:]
    assert any(one.quarters == WHOLE for one in later)


def test_of_a_closer_look_nobody_is_cut_for_want_of_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where all of them pass, as it may do with trials that are much alike."""
    monkeypatch.setattr(halving, "promoted", lambda scores: [True] * len(scores))
    later = tune(TASK, ACE(), **SMALL, budget=30.0).trials[GENERATION:]
    assert later
    assert all(one.quarters == WHOLE for one in later)


@given(st.lists(st.one_of(st.floats(0, 1), st.just(math.inf)), max_size=12))
def test_who_is_promoted_depends_on_those_before_alone_and_is_about_half(scores: list[float]) -> None:
    passed = halving.promoted(scores)
    for place in range(len(scores)):
        assert halving.promoted(scores[:place]) == passed[:place]
    for place, (score, good) in enumerate(zip(scores, passed, strict=True)):
        so_far = scores[: place + 1]
        if score == min(so_far) and math.isfinite(score):
            assert good  # the best so far
        if good:
            assert math.isfinite(score)
            assert sum(other < score for other in so_far) < max(1, len(so_far) // 2)


def test_a_run_that_diverged_is_never_the_best() -> None:
    diverged, cut_short = halving.Trial({"lr": 0.1}, WHOLE, math.inf, 1), halving.Trial({"lr": 0.2}, 2, 0.3, 1)
    assert halving._best([diverged, cut_short], Objective("loss")) is cut_short
    lost = halving.Trial({"lr": 0.1}, WHOLE, -math.inf, 1)
    assert halving._best([lost, cut_short], Objective("f1", larger=True)) is cut_short


def test_weak_trials_end_early_and_later_generations_look_closer(aced: Tuning) -> None:
    first, later = aced.trials[:GENERATION], aced.trials[GENERATION:]
    ended_early = [one.score for one in first if one.quarters == QUARTERS[0]]
    assert 2 <= len(ended_early) < GENERATION
    assert later

    def octaves(trials: list[halving.Trial]) -> float:
        rates = [one.settings["lr"] for one in trials]
        return math.log2(max(rates) / min(rates))

    assert octaves(first) > 10
    assert octaves(later) <= 3.6


@pytest.mark.parametrize("rule", [ACE(), ACED(), FedBuff(), ASGD()], ids=lambda rule: type(rule).__name__)
def test_every_method_has_the_same_budget(rule: Any) -> None:
    found = tune(TASK, rule, **SMALL, budget=6.0)
    assert 6.0 - sum(QUARTERS) / WHOLE < found.spent <= 6.0
    assert found.arrivals <= 6.0 * 80
    if all(math.isfinite(one.score) for one in found.trials):
        assert found.arrivals == found.spent * 80
    assert "budget of 6 whole runs" in found.cost


class Killed(BaseException):
    pass


@pytest.mark.parametrize("after", [1, 9, 20])
def test_a_search_that_was_killed_goes_on_to_the_same_end(after: int, aced: Tuning, tmp_path: Path) -> None:
    heard = 0

    def kill(done: int, known: int, last: str) -> None:
        nonlocal heard
        heard += bool(last)
        if heard == after:
            raise Killed

    with pytest.raises(Killed):
        tune(TASK, ACED(), **SMALL, out=tmp_path / "search", progress=kill)
    log = tmp_path / "search" / "tuning.jsonl"
    before = log.read_text()
    assert len(before.splitlines()) == after + 1
    log.write_text(before + '{"settings": {"lr": 0.')  # the line it was killed in
    assert tune(TASK, ACED(), **SMALL, out=tmp_path / "search") == aced
    assert log.read_text().startswith(before)
    lines = log.read_text().splitlines()
    assert len(lines) == len(set(lines))
    assert tune(TASK, ACED(), **SMALL, out=tmp_path / "search") == aced
    assert log.read_text().splitlines() == lines


def test_what_it_cost_is_in_the_record_and_on_the_page(aced: Tuning, tmp_path: Path) -> None:
    tune(TASK, ACED(), **SMALL, out=tmp_path / "search")
    record = json.loads((tmp_path / "search" / "tuning.json").read_text())
    assert record["budget"] == 12.0
    assert record["found"]["arrivals"] == aced.arrivals == sum(trial["arrivals"] for trial in record["trials"])
    page = (tmp_path / "search" / "report.html").read_text()
    assert f"The budget was 12 whole runs; {aced.spent:g} were spent, {aced.arrivals:,} arrivals" in page


def test_another_search_or_directory_is_refused(tmp_path: Path) -> None:
    tune(TASK, ASGD(), **SMALL, budget=2.0, out=tmp_path / "search")
    with pytest.raises(InvalidInput, match="holds the search of other settings"):
        tune(TASK, ACE(), **SMALL, budget=2.0, out=tmp_path / "search")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(InvalidInput, match="not empty and holds no search"):
        tune(TASK, ACE(), **SMALL, out=tmp_path / "mine")
    (tmp_path / "search" / "tuning.jsonl").write_text("no log\n")
    with pytest.raises(InvalidInput, match="is not the log of a search"):
        tune(TASK, ASGD(), **SMALL, budget=2.0, out=tmp_path / "search")


def test_what_is_searched_is_what_the_method_has() -> None:
    assert list(search_ranges(ACE(), 100)) == ["lr"]
    assert list(search_ranges(ACED(), 100)) == ["lr", "tau"]
    assert list(search_ranges(ACED(), 100, over=[])) == ["lr"]
    assert list(search_ranges(FedBuff(), 100)) == ["lr", "buffer"]
    with pytest.raises(InvalidInput, match="ASGD has no 'tau' to tune; allowed: lr alone"):
        search_ranges(ASGD(), 100, over=["tau"])
    with pytest.raises(InvalidInput, match="over is 'tau'; allowed: names of settings, 'all' or None"):
        search_ranges(ACED(), 100, over="tau")
    for budget in (1, math.inf, math.nan):
        with pytest.raises(InvalidInput, match=f"budget is {budget}; allowed: at least 1.75 runs"):
            tune(TASK, ACE(), **SMALL, budget=budget)


@pytest.mark.parametrize("clients", [2, 100])
@pytest.mark.parametrize("kind", METHODS.values(), ids=lambda kind: kind.__name__)
def test_all_that_a_method_says_matters_may_be_tried_also_beyond_the_ends(kind: Any, clients: int) -> None:
    """Few settings, so that a budget goes round; every value is one that the method takes."""
    ranges = search_ranges(kind(), clients, over=halving.ALL)
    assert len(ranges) <= 4
    assert set(search_ranges(kind(), clients)) <= set(ranges)
    for share in (0.0, 0.3, 0.999):
        found = {name: one.at(share) for name, one in ranges.items() if name != "lr"}
        closer = {name: ranges[name].around(value, 0.25).at(share) for name, value in found.items()}
        for settings in (found, closer):
            assert isinstance(json.dumps(settings), str)  # of which the ledger is made
            assert kind(**settings).build(clients, torch.zeros(3), [1] * clients)


def test_what_one_sets_oneself_is_not_searched() -> None:
    assert list(search_ranges(FedBuff(), 100, over=halving.ALL)) == ["lr", "buffer", "staleness"]
    assert list(search_ranges(FedBuff(buffer=5), 100, over=halving.ALL)) == ["lr", "staleness"]
    assert list(search_ranges(FedBuff(staleness="sqrt", buffer=5), 100, over=halving.ALL)) == ["lr"]
    assert list(search_ranges(FedBuff(), 100, over=["staleness"])) == ["lr", "staleness"]


def test_words_are_searched_like_numbers_and_the_best_is_kept(tmp_path: Path) -> None:
    found = tune(TASK, FedBuff(), **SMALL, over=halving.ALL, budget=10.0, out=tmp_path / "all")
    tried = {one.settings["staleness"] for one in found.trials[:GENERATION]}
    assert tried == {"none", "sqrt"}
    best = min(found.trials[:GENERATION], key=lambda one: (-one.quarters, one.score)).settings
    assert {one.settings["staleness"] for one in found.trials[GENERATION:]} == {best["staleness"]}
    rest = {name: value for name, value in found.best.settings.items() if name != "lr"}
    assert found.rule == FedBuff(**rest)
    assert tune(TASK, FedBuff(), **SMALL, over=halving.ALL, budget=10.0, out=tmp_path / "all") == found
    assert "sqrt" in (tmp_path / "all" / "report.html").read_text()


@given(st.integers(1, 2), st.integers(4, 40))
def test_points_fill_the_cube_evenly(dimensions: int, count: int) -> None:
    """In each dimension no gap between neighbours, ends included, is more than six times the even one."""
    points = spread_evenly(count, dimensions)
    assert points[0] == [0.5] * dimensions
    for place in range(dimensions):
        along = sorted(point[place] for point in points)
        gaps = [after - before for before, after in zip([0.0, *along], [*along, 1.0], strict=True)]
        assert max(gaps) <= 6 / (count + 1)
