"""Every recipe in miniature, end to end: synthetic data of the real layouts, a page with our values and the paper's."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from experiments.ace import summary
from hypothesis import given
from hypothesis import strategies as st

from acefl import paper as reproduce
from acefl import tasks
from acefl.cli import main
from acefl.cli import reproduce as command
from acefl.core.errors import InvalidInput
from acefl.paper import cifar10_main, news20_table, quantization, rates, runner
from acefl.paper.page import Page, heatmaps, lines
from acefl.paper.plan import FORMS, Planned, Request, Tuning, contestants
from acefl.paper.records import Ledger, Results, spread
from acefl.studies.sweep import Cell

WORDS = ("goal puck ice", "orbit moon launch", "engine car wheel", "graphics pixel image")


def write_pictures(folder: Path, name: str, label_bytes: int, classes: int) -> None:
    """CIFAR's binary layout; a picture's brightness tells its label."""
    rng = np.random.default_rng(0)
    folder = folder / name
    folder.mkdir(parents=True)
    parts = (
        {f"data_batch_{k}": 16 for k in range(1, 6)} | {"test_batch": 20}
        if label_bytes == 1
        else {"train": 80, "test": 20}
    )
    for part, count in parts.items():
        labels = np.arange(count) % classes
        pixels = rng.integers(0, 120, (count, 3072)) + (labels % 10)[:, None] * 13
        head = np.repeat(labels[:, None], label_bytes, axis=1)
        np.concatenate([head, pixels], axis=1).astype(np.uint8).tofile(folder / f"{part}.bin")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_pictures(root, "cifar-10-batches-bin", 1, 10)
    write_pictures(root, "cifar-100-binary", 2, 20)
    for split, count in (("train", 80), ("test", 20)):
        rows = [{"text": f"{WORDS[k % 4]} number {k}", "label": k % 4} for k in range(count)]
        (root / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def tiny(name: str, data: Path, form: str) -> Request:
    """Smaller than --quick: what is tested is that it runs, resumes and reports, not what it learns."""
    sizes = {"clients": 4, "steps": 1, "batch": 2, "samples": 40, "test_samples": 10, "evaluations": 1}
    sizes |= {"seeds": (0, 1)} if name == "quantization" else {}
    return reproduce.recipe(name).request(quick=True, form=form, folder=str(data), **sizes)


EVERY = [(name, reproduce.recipe(name).forms[0]) for name in reproduce.NAMES] + [("quantization", "tuned")]
LONG = ("amplification",)  # tunes six methods in three scenarios


@pytest.mark.parametrize(
    ("name", "form"),
    [pytest.param(*one, id="-".join(one), marks=[pytest.mark.slow] if one[0] in LONG else []) for one in EVERY],
)
def test_every_recipe_runs_records_and_reports(name: str, form: str, data: Path, tmp_path: Path) -> None:
    request = tiny(name, data, form)
    outcome = reproduce.reproduce(name, request, tmp_path, command="acefl reproduce", workers=1)
    assert (outcome.failed, outcome.left) == ({}, 0)
    lines = (tmp_path / "results.jsonl").read_text()
    records = [json.loads(line) for line in lines.splitlines()]
    planned = reproduce.recipe(name).plan(request)
    assert sum(r["kind"] == "run" for r in records) == sum(len(p.seeds) for p in planned) or not planned
    for record in records:  # where error terms are measured, also whose updates made the steps
        assert ("influence_slow" in record["final"]) == record["labels"].get("probed", False)
    page = (tmp_path / "README.md").read_text()
    assert ("0.2 would be their due" in page) == (name == "amplification")
    assert ("as the search chose them" in page) == any(record["kind"] == "trial" for record in records)
    for text in ("# ", "acefl reproduce", "Hardware: ", "|---|"):
        assert text in page
    for figure in (line.partition("(")[2].partition(")")[0] for line in page.splitlines() if line.startswith("![")):
        assert (tmp_path / figure).read_text().lstrip().startswith("<?xml")
    again = reproduce.reproduce(name, request, tmp_path, command="acefl reproduce", workers=1)
    assert again.done == 0
    assert (tmp_path / "results.jsonl").read_text() == lines
    assert (tmp_path / "README.md").read_text() == page


def test_the_command_names_every_recipe() -> None:
    assert (command.NAMES, command.FORMS) == (reproduce.NAMES, FORMS)


# --- as printed -------------------------------------------------------------------------------------------------------


def test_printed_settings_are_the_papers() -> None:
    planned = reproduce.recipe("cifar10-main").plan(Request(folder="data"))
    by = {(*[p.labels[k] for k in ("clock", "alpha", "beta")], p.labels["method"]): p.settings for p in planned}
    assert len(by) == len(planned) == (4 + 2 + 4) * 6
    base = 0.2 * math.sqrt(100 / 500)
    ace, buffered, alone = (by["tick", 0.1, 30.0, name] for name in ("ACE", "FedBuff", "ASGD"))
    assert ace["lr"] == alone["lr"] == pytest.approx(base)
    assert buffered["lr"] == pytest.approx(base * 0.05)
    assert (ace.get("scenario.concurrency"), buffered["scenario.concurrency"]) == (None, 20)
    assert alone["scenario.concurrency"] == 1
    for settings in by.values():
        assert (settings["task.clients"], settings["stop.steps"], settings["task.batch"]) == (100, 500, 50)
        assert (settings["task.model"], settings["task.norm"]) == ("resnet18", "batch")


def test_longer_runs_keep_the_learning_rate_of_the_shorter() -> None:
    def rates_of(name: str) -> dict[str, float]:
        return {p.labels["method"]: p.settings["lr"] for p in reproduce.recipe(name).plan(Request(folder="data"))}

    assert rates_of("cifar10-extended") == rates_of("cifar10-main")


def test_both_readings_of_20_newsgroups_have_one_rate() -> None:
    planned = reproduce.recipe("news20-table").plan(Request(folder="data"))
    sizes = {(p.settings["task.clients"], p.settings["stop.steps"]) for p in planned}
    assert sizes == {(20, 100), (100, 500)}
    steps = {p.settings["lr"] for p in planned if p.labels["update"] == "adamw"}
    assert steps == {0.2 * math.sqrt(20 / 100)}


def test_a_classifier_of_words_sends_gradients() -> None:
    planned = reproduce.recipe("news20-table").plan(Request(folder="data", model="words"))
    assert {(p.labels["update"], p.settings.get("task.local")) for p in planned} == {("gradient", None)}


# --- tuned ------------------------------------------------------------------------------------------------------------


def test_tuning_never_sees_the_test_set_or_a_reported_seed() -> None:
    request = Request(form="tuned", folder="data")
    for name in reproduce.NAMES:
        recipe = reproduce.recipe(name)
        for planned in recipe.plan(request) if "tuned" in recipe.forms else []:
            trial = planned.trial(0.1).settings
            assert trial["task.validation"] is True
            assert trial["seed"] not in planned.seeds
            assert all("task.validation" not in cell.settings for cell in planned.cells(0.1))
            assert "stop.steps" not in planned.settings  # equal uploads for everybody
            assert "scenario.concurrency" not in planned.settings


def test_the_series_holds_the_papers_grid() -> None:
    series = [rates.c_of(place) for place in range(-6, rates.LARGEST + 1)]
    assert series == [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]


def found(score: Callable[[int], float], first: tuple[int, ...] = rates.DECADES) -> tuple[int, set[int]]:
    """Where the search ends, and where it looked."""
    place_of = {rates.c_of(place): place for place in range(rates.SMALLEST, rates.LARGEST + 1)}
    search = rates.search(1.0, first)
    while wanted := search.ask():
        for rate in wanted:
            search.tell(rate, score(place_of[rate]))
    assert search.done
    return place_of[search.best], {place_of[rate] for rate in search.scores}


@pytest.mark.parametrize("best", [-13, -9, -4, -2, 0, 2, 3])
@pytest.mark.parametrize("first", [rates.DECADES, (-3,)])
def test_the_search_ends_at_the_best_with_worse_neighbours(best: int, first: tuple[int, ...]) -> None:
    end, seen = found(lambda place: math.inf if place > max(best, -3) + 2 else abs(place - best), first)
    assert end == best
    assert {best - 1, min(best + 1, rates.LARGEST)} <= seen


@given(noise=st.lists(st.floats(1.9, 2.4), min_size=30, max_size=30), best=st.integers(-13, 0))
def test_dips_of_what_hardly_learns_do_not_end_the_search(noise: list[float], best: int) -> None:
    """Rates far too large leave a loss near chance that goes up and down by noise; where it trains is found anyway."""
    assert found(lambda place: noise[place] if place > best + 2 else 1.2 + 0.1 * (place - best) ** 2)[0] == best


def test_a_method_that_never_trains_ends_the_search() -> None:
    assert found(lambda place: math.nan)[0] == rates.SMALLEST


@pytest.mark.parametrize(("end", "diverged"), [(None, False), (1.0, True)])
def test_a_trial_that_diverged_has_no_score(end: float | None, diverged: bool) -> None:
    assert runner._score({"final": {"loss": end}, "diverged": diverged}, Tuning(unit=1.0, changes={})) == math.inf


# --- records ----------------------------------------------------------------------------------------------------------


def planned_digits(recipe: str, method: str, seeds: tuple[int, ...] = (0,), **more: Any) -> Planned:
    settings = {"method": method, "lr": 0.1, "evaluations": 1, "task.name": "digits", "task.clients": 5}
    return Planned(recipe, {"method": method}, {**settings, "stop.arrivals": 20, **more}, seeds)


def test_a_rate_chosen_again_supersedes_the_runs_of_the_earlier_choice() -> None:
    def run(lr: float, seed: int, method: str = "ACE") -> dict[str, Any]:
        return {"kind": "run", "labels": {"method": method}, "settings": {"lr": lr, "seed": seed}}

    kept = Results([run(0.1, 0), run(0.1, 1), run(0.3, 0, "ASGD"), run(0.2, 0)]).records
    assert kept == [run(0.3, 0, "ASGD"), run(0.2, 0)]


def test_the_rate_that_counts_is_the_one_chosen_last(tmp_path: Path) -> None:
    """Also where the last choice has all its runs from the first time, and makes none."""
    entry, made = planned_digits("a", "ACE", seeds=(0, 1), **{"task.name": "quadratic"}), []
    for unit in (1.0, 1.0, 3.0, 3.0, 1.0, 3.0):  # no rate of one series is one of the other's
        plan = [dataclasses.replace(entry, tuning=Tuning(unit, {}, "gap", first=(-3,)))]
        made.append(runner.run(plan, {"a": tmp_path}, workers=1).done)
        shown = Results(Ledger(tmp_path / "results.jsonl").records.values()).records
        assert [record["settings"]["seed"] for record in shown] == [0, 1]
        series = {rates.c_of(place) * unit for place in range(rates.SMALLEST, rates.LARGEST + 1)}
        assert {record["settings"]["lr"] for record in shown} <= series
    assert [done > 0 for done in made] == [True, False, True, False, False, False]


def test_what_is_recorded_is_not_made_again(tmp_path: Path) -> None:
    first = runner.run([planned_digits("a", "ACE")], {"a": tmp_path}, workers=1)
    second = runner.run([planned_digits("a", "ACE", seeds=(0, 1))], {"a": tmp_path}, workers=1)
    assert (first.done, second.done) == (1, 1)
    assert {r["settings"]["seed"] for r in Ledger(tmp_path / "results.jsonl").records.values()} == {0, 1}


def test_a_line_cut_off_by_a_crash_is_made_again(tmp_path: Path) -> None:
    plan = [planned_digits("a", "ACE", seeds=(0, 1))]
    runner.run(plan, {"a": tmp_path}, workers=1)
    path = tmp_path / "results.jsonl"
    whole = path.read_text()
    path.write_text(whole[:-40])
    assert runner.run(plan, {"a": tmp_path}, workers=1).done == 1
    records = Ledger(path).records
    assert {name: r["final"] for name, r in records.items()} == {
        r["cell"]: r["final"] for r in map(json.loads, whole.splitlines())
    }


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"task": "digits", "accuracy": 0.9}\n')
    with pytest.raises(InvalidInput, match="line 1: not a record of a run"):
        Ledger(tmp_path / "results.jsonl")


def test_a_run_that_two_recipes_share_is_made_once(tmp_path: Path) -> None:
    plan = [planned_digits("a", "ACE"), planned_digits("b", "ACE")]
    outcome = runner.run(plan, {"a": tmp_path / "a", "b": tmp_path / "b"}, workers=1)
    assert outcome.done == 1
    [mine] = Ledger(tmp_path / "a" / "results.jsonl").records.values()
    [other] = Ledger(tmp_path / "b" / "results.jsonl").records.values()
    assert (other["recipe"], other["final"]) == ("b", mine["final"])


def test_nothing_is_started_after_the_limit(tmp_path: Path) -> None:
    outcome = runner.run([planned_digits("a", "ACE")], {"a": tmp_path}, workers=1, limit=0.0)
    assert (outcome.done, outcome.left) == (0, 1)


def test_no_run_waits_for_a_worker_until_the_limit_is_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With workers for every core, and fewer cores than runs."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    plan = [planned_digits("a", "ACE", seeds=(0, 1, 2))]
    limit = 0.5  # seconds, which are past when the first run is recorded
    outcome = runner.run(plan, {"a": tmp_path}, limit=limit, begin=lambda: time.sleep(limit))
    assert (outcome.done, outcome.left) in [(1, 2), (0, 3)]  # none: planning took that long


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(**settings: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setitem(tasks.TASKS, "large", out_of_memory)
    plan = [planned_digits("a", "ACE", **{"task.name": "large"}), planned_digits("a", "ASGD")]
    outcome = runner.run(plan, {"a": tmp_path}, workers=1)
    assert (outcome.done, list(outcome.failed.values())) == (1, ["RuntimeError: out of memory"])


def test_settings_that_cannot_work_end_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="unknown task"):
        runner.run([planned_digits("a", "ACE", **{"task.name": "digit"})], {"a": tmp_path}, workers=1)


def test_records_made_elsewhere_are_added_once(tmp_path: Path) -> None:
    runner.run([planned_digits("a", "ACE", seeds=(0, 1))], {"a": tmp_path / "there"}, workers=1)
    lines = [tmp_path / "there" / "results.jsonl"]
    assert [reproduce.merge(lines, tmp_path / "here") for _ in range(2)] == [2, 0]


def test_runs_on_another_number_of_samples_are_not_added_to_those_there(tmp_path: Path) -> None:
    """Two folders of one name may hold different parts of a data set, and the runs then have one name."""
    runner.run([planned_digits("a", "ACE", seeds=(0, 1))], {"a": tmp_path / "here"}, workers=1)
    here = Ledger(tmp_path / "here" / "results.jsonl")
    first, second = here.records.values()
    assert first["samples"] == second["samples"] > 1000
    fewer = Ledger(tmp_path / "fewer" / "results.jsonl")
    fewer.add({**first, "cell": "another", "samples": 1000})
    path = [tmp_path / "fewer" / "results.jsonl"]
    with pytest.raises(InvalidInput, match=r"holds runs on 1,\d\d\d samples, not 1,000; give another folder"):
        reproduce.merge(path, tmp_path / "here")
    assert [*Ledger(tmp_path / "here" / "results.jsonl").records] == [first["cell"], second["cell"]]
    older = {key: value for key, value in first.items() if key != "samples"}
    fewer.add({**older, "cell": "older"})  # what nothing is known of is as the page says
    fewer.add({**first, "cell": "trial", "settings": {**first["settings"], "task.validation": True}, "samples": 900})


def test_comparisons_are_over_the_seeds_that_everybody_has() -> None:
    made = {"ACE": (0, 1, 2), "ASGD": (0, 2), "FedBuff": (2, 0, 7)}
    records = [
        {"kind": "run", "labels": {"method": method}, "settings": {"seed": seed}}
        for method, seeds in made.items()
        for seed in seeds
    ]
    kept = Results(records).balanced().records
    assert {method: {r["settings"]["seed"] for r in kept if r["labels"]["method"] == method} for method in made} == {
        method: {0, 2} for method in made
    }


def test_a_measured_run_is_another_run_than_the_same_without() -> None:
    request = reproduce.recipe("amplification").request(quick=True, folder="x")
    names = [cell.name for planned in reproduce.recipe("amplification").plan(request) for cell in planned.cells(0.1)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("order", "word"),
    [
        (("ACE", "CA2FL", "FedBuff"), "agrees: "),
        (("CA2FL", "ACED", "ACE"), "agrees: "),
        (("CA2FL", "FedBuff", "ACE"), "agrees for CA2FL alone"),
        (("ASGD", "FedBuff", "CA2FL", "ACE"), "does not agree"),
    ],
)
def test_the_paper_is_right_only_where_both_it_names_are_ahead(order: tuple[str, ...], word: str) -> None:
    rest = [method for method in cifar10_main.METHODS if method not in order]
    records = [
        {
            "kind": "run",
            "labels": {"form": "printed", "clock": "tick", "method": method, "alpha": 0.1, "beta": 5.0},
            "settings": {"seed": 0},
            "final": {"accuracy": 0.9 - 0.1 * place},
            "diverged": False,
        }
        for place, method in enumerate((*order, *rest))
    ]
    assert cifar10_main._ranking(Results(records)).startswith(f"β = 5 {word}")


@pytest.mark.parametrize("change", [{"quick": False}, {"model": "resnet18"}, {"folder": "elsewhere"}])
def test_runs_of_another_kind_want_a_directory_of_their_own(change: dict[str, Any], tmp_path: Path) -> None:
    recipe = reproduce.recipe("overheads-table")
    request = recipe.request(quick=True)
    reproduce.reproduce("overheads-table", request, tmp_path / "out", command="")
    [key] = change
    with pytest.raises(InvalidInput, match=f"holds runs with {key} .*, not .*; give another --out"):
        reproduce.reproduce("overheads-table", dataclasses.replace(request, **change), tmp_path / "out", command="")


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ([0.005, -0.005, 0.0], "agrees within 0.02; 8-bit minus fp32: ACE at α = 0.1 +0.000 ± 0.012 (3)"),
        ([0.01], "cannot be told within 0.02; 8-bit minus fp32: ACE at α = 0.1 +0.010 (1)"),
        ([0.05, 0.06, 0.05], "does not agree within 0.02"),
        ([0.2, -0.2], "cannot be told"),
        ([0.10, -0.04], "cannot be told"),
    ],
)
def test_whether_8_bits_are_comparable_goes_by_the_error_over_seeds(gaps: list[float], verdict: str) -> None:
    def run(method: str, seed: int, accuracy: float) -> dict[str, Any]:
        labels = {"form": "printed", "method": method, "alpha": 0.1}
        return {"kind": "run", "labels": labels, "settings": {"seed": seed}, "final": {"accuracy": accuracy}}

    runs = [run("ACE", seed, 0.3 + 0.1 * seed) for seed in range(5)]
    runs += [run("ACE-8bit", seed, 0.3 + 0.1 * seed + gap) for seed, gap in enumerate(gaps)]
    said = quantization._comparable(Results(runs))
    assert said is not None
    assert said.startswith(verdict)


def test_the_second_half_of_a_run_is_all_its_evaluations_from_half_of_the_steps_on() -> None:
    curve = [(0, 0.9), (49, 0.9), (50, 0.2), (80, 0.3), (100, 0.7)]
    history = [{"step": step, "accuracy": accuracy} for step, accuracy in curve]
    whole = {"kind": "run", "labels": {}, "settings": {"seed": 0}, "steps": 100, "history": history, "final": {}}
    lost = {**whole, "settings": {"seed": 1}, "history": [*history, {"step": 100, "accuracy": None}]}
    assert quantization._second_half(Results([whole, lost])).by_seed("accuracy") == {0: pytest.approx(0.4)}


def test_the_order_on_20_newsgroups_is_that_of_common_seeds() -> None:
    """Seed 1 is an easy one that only one method has: it says nothing about the method."""
    labels = {"form": "printed", "size": "n = 20, T = 100", "update": "adamw", "clock": "tick", "alpha": 0.1}

    def run(method: str, seed: int, accuracy: float) -> dict[str, Any]:
        own = {**labels, "method": method}
        return {"kind": "run", "labels": own, "settings": {"seed": seed}, "final": {"accuracy": accuracy}}

    runs = [run(method, 0, 0.5 + 0.01 * place) for place, method in enumerate(news20_table.PRINTED)]
    backwards = [run(method, 0, 0.5 - 0.01 * place) for place, method in enumerate(news20_table.PRINTED)]
    easy = [run("ASGD", 1, 0.99)]
    assert "ACE ahead of all (one seed)" in str(news20_table._order(Results(runs + easy)))
    assert "ACE behind all (one seed)" in str(news20_table._order(Results(backwards)))


def test_error_terms_are_measured_where_clients_send_gradients() -> None:
    for model, probed in (("cnn", True), ("words", True), ("tiny", False)):
        planned = reproduce.recipe("amplification").plan(Request(form="tuned", folder="data", model=model))
        assert any(one.probe is not None for one in planned) == probed


def test_a_point_stands_above_its_own_mark_though_others_have_more(tmp_path: Path) -> None:
    """A method that was not run at 10 % has its 30 % where everybody's 30 % is."""
    made = {"ACE": (0.0, 0.3), "ASGD": (0.0, 0.1, 0.3)}
    records = [
        {"kind": "run", "labels": {"method": m, "dropout": x}, "settings": {}}
        | {"final": {"accuracy": x}, "diverged": False}
        for m, places in made.items()
        for x in places
    ]
    page = Page(tmp_path)
    drawn: dict[str, list[int]] = {}
    marks: list[str] = []

    class Axes(MagicMock):
        def errorbar(self, x: Any, *rest: Any, label: str, **looks: Any) -> None:
            drawn[label] = [round(place) for place in x]

        def set_xticks(self, at: Any, names: list[str]) -> None:
            marks[:] = names

    plt = MagicMock()
    plt.subplots.return_value = (MagicMock(), Axes())
    page.figure = lambda name, caption, draw: draw(plt)  # type: ignore[method-assign]
    lines(page, "f", "c", Results(records), "dropout", by="method")
    assert marks == ["0", "0.1", "0.3"]
    assert drawn == {"ACE": [0, 2], "ASGD": [0, 1, 2]}


@pytest.mark.parametrize(("accuracy", "shown"), [(0.25, "0.250"), (0.0, "0.000"), (None, None)])
def test_a_map_tells_an_accuracy_of_zero_from_none(accuracy: float | None, shown: str | None, tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    plt = pytest.importorskip("matplotlib.pyplot")
    labels = {"method": "ACE", "alpha": 0.1, "beta": 1.0}
    record = {"kind": "run", "labels": labels, "settings": {"seed": 0}, "final": {"accuracy": accuracy}}
    page = Page(tmp_path)
    page.figure = lambda name, caption, draw: draw(plt)  # type: ignore[method-assign]
    heatmaps(page, "f", "c", Results([{**record, "diverged": accuracy is None}]), "alpha", "beta")
    texts = [text.get_text() for text in plt.gcf().axes[0].texts]
    plt.close("all")
    assert texts == ([] if shown is None else [shown])


def test_means_leave_out_what_diverged_and_say_so() -> None:
    def record(seed: int, accuracy: float | None) -> dict[str, Any]:
        own = {"labels": {"method": "ACE"}, "settings": {"seed": seed}, "final": {"accuracy": accuracy}}
        return {"kind": "run", "diverged": accuracy is None or accuracy == 0.1, **own}

    results = Results([record(0, 0.5), record(1, None), record(2, 0.7)])
    assert results.mean("accuracy", method="ACE") == pytest.approx(0.6)
    judged_before = Results([record(0, 0.5), record(1, 0.1)])
    assert spread(judged_before.values("accuracy")) == "0.500 (mean of 1 of 2 seeds, 1 diverged)"
    assert judged_before.mean("accuracy") == pytest.approx(0.3)  # what it was last judged at counts in a comparison
    assert results.mean("accuracy", method="ASGD") is None
    assert spread(results.values("accuracy", method="ACE")) == "0.600 ± 0.141 (mean of 2 of 3 seeds, 1 diverged)"
    assert spread([math.nan]) == "diverged"


# --- what is recorded in this repository ------------------------------------------------------------------------------


def test_the_page_to_cite_shows_what_is_recorded() -> None:
    text = (summary.HERE / "README.md").read_text(encoding="utf-8")
    assert summary.page(text) == text


@pytest.mark.parametrize("folder", sorted((summary.HERE / "recorded").iterdir()), ids=lambda path: path.name)
def test_a_recorded_page_is_what_its_records_give(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: set[str] = set()
    monkeypatch.setattr(Page, "_draw", lambda page, name, draw: drawn.add(f"{name}.svg"))  # drawing takes seconds
    for name in ("results.jsonl", "reproduce.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    written = reproduce.write_page(tmp_path).read_text(encoding="utf-8")
    assert written == (folder / "README.md").read_text(encoding="utf-8")
    assert drawn == {path.name for path in folder.glob("*.svg")}


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cifar"], "unknown recipe 'cifar'; allowed: cifar10-main, "),
        (["cifar10-main", "--quick", "--workers", "1"], "cifar10 is not to be had from the hub (ConnectionError)"),
        (
            ["cifar10-main", "--data", "nowhere", "--quick", "--workers", "1"],
            "no cifar10 in nowhere; allowed: a",
        ),
        (["news20-table", "--data", "nowhere", "--quick", "--workers", "1"], "no 20 Newsgroups in nowhere; allowed: a"),
        (["rates-table", "--start", "x"], "start is given for rates-table; allowed for readings alone"),
        (["rates-table", "--form", "tuned"], "form is 'tuned'; allowed for rates-table: printed"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", ["nothing", "an empty directory", "runs"])
def test_a_refused_request_leaves_the_directory_as_it_was(there: str, data: Path, tmp_path: Path) -> None:
    """Refused when its first task is built, after everything that can be told from the words alone."""

    def files() -> dict[Path, bytes | None]:
        return {path: path.read_bytes() if path.is_file() else None for path in tmp_path.rglob("*")}

    out, request = tmp_path / "new" / "out", dataclasses.replace(tiny("news20-table", data, "printed"), model="words")
    if there == "an empty directory":
        out.mkdir(parents=True)
    if there == "runs":
        reproduce.reproduce("news20-table", request, out, command="first", workers=1)
    before = files()
    refused = dataclasses.replace(request, seeds=(7,), samples=10**6)
    with pytest.raises(InvalidInput, match="samples is 1000000; allowed"):
        reproduce.reproduce("news20-table", refused, out, command="second", workers=1)
    assert files() == before


def test_where_nothing_can_be_written_no_run_is_made(tmp_path: Path) -> None:
    made: list[int] = []
    (tmp_path / "file").touch()
    request = tiny("rates-table", tmp_path, "printed")
    with pytest.raises(InvalidInput, match="nothing can be written to .*file; give another --out"):
        reproduce.reproduce(
            "rates-table", request, tmp_path / "file" / "out", command="", progress=lambda *said: made.append(said[0])
        )
    assert made == []


def test_who_comes_second_to_a_directory_is_refused_though_both_found_it_empty(tmp_path: Path) -> None:
    def other(*said: Any) -> None:
        if not (tmp_path / "out").exists():
            reproduce.reproduce("overheads-table", recipe.request(quick=True), tmp_path / "out", command="")

    recipe = reproduce.recipe("overheads-table")
    with pytest.raises(InvalidInput, match="holds recipe overheads-table"):
        reproduce.reproduce(
            "rates-table",
            tiny("rates-table", tmp_path, "printed"),
            tmp_path / "out",
            command="",
            workers=1,
            progress=other,
        )
    assert not any(
        record["recipe"] == "rates-table" for record in Ledger(tmp_path / "out" / "results.jsonl").records.values()
    )


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter one")
    request = reproduce.recipe("overheads-table").request(quick=True)
    with pytest.raises(InvalidInput, match="is not empty and holds no recipe"):
        reproduce.reproduce("overheads-table", request, tmp_path, command="")


def test_measured_memory_has_the_printed_orders(tmp_path: Path) -> None:
    code = main(["reproduce", "overheads-table", "--out", str(tmp_path / "out"), "--workers", "1", "--json"])
    assert code == 0
    rows = [line for line in (tmp_path / "out" / "README.md").read_text().splitlines() if line.startswith("| ")]
    said = {row.split("|")[1].strip(): row.rstrip(" |").rpartition("| ")[2] for row in rows[1:]}
    assert all(said[name] == "agrees" for name in ("CA2FL", "ACE, direct", "ACE, client-held", "ACED")), said
    assert said["FedBuff"] == "less than printed"  # a running sum in place of a buffer


def test_contestants_are_methods_that_can_be_built() -> None:
    for contestant in contestants(Request(), 50):
        spec = Cell({"method": contestant.method, "lr": 1.0}).spec(Path())
        assert dataclasses.is_dataclass(spec.rule)
