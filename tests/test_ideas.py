"""Our own ideas are rules like any other: they keep the laws, and are ACE where their idea is switched off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.ideas import auto_study, cifar, study
from experiments.ideas.auto import AutoCalibrated
from experiments.ideas.ideas import DampedACE, FadingACED, MomentumACE
from experiments.leaderboard.publish import filled

from acefl import ACE, Arrival, Scenario, Stop, simulate, tasks
from acefl.core.files import read_json
from acefl.paper.records import Ledger, Results
from acefl.report.standings import Board
from acefl.testing import LAWS

IDEAS = [DampedACE(), FadingACED(tau=3), MomentumACE(blend=0.3), AutoCalibrated()]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("rule", IDEAS, ids=lambda rule: type(rule).__name__)
def test_an_idea_keeps_the_laws(rule: Any, law: str) -> None:
    LAWS[law](rule)


def _gap(rule: Any) -> float:
    task = tasks.quadratic(clients=6, dim=4, seed=0)
    scenario = Scenario(spread=8.0, dropout=0.5)
    return simulate(task, rule, lr=0.05, scenario=scenario, stop=Stop(arrivals=200)).final["gap"]


def test_without_its_idea_each_is_ace() -> None:
    ace = _gap(ACE())
    for off in (MomentumACE(blend=1.0), FadingACED(tau=10_000)):
        assert _gap(off) == pytest.approx(ace, rel=1e-4)
    for on in (MomentumACE(blend=0.3), FadingACED(tau=3), DampedACE()):
        assert _gap(on) != pytest.approx(ace, rel=1e-4)


def test_the_readme_shows_what_is_recorded() -> None:
    text = (study.HERE / "README.md").read_text(encoding="utf-8")
    said = study.tables(Board.read(study.HERE)) if (study.HERE / "leaderboard.json").exists() else "Not recorded yet."
    assert filled(text, "results", said) == text


def test_the_readme_shows_what_is_recorded_of_a_c_chosen_by_itself() -> None:
    text = (study.HERE / "README.md").read_text(encoding="utf-8")
    assert filled(text, "auto", auto_study.table(read_json(auto_study.RESULTS))) == text


def test_a_c_chosen_by_itself_is_judged_by_the_best_corner() -> None:
    corners = {name: [3.0 + place, 5.0 + place, 4.0 + place] for place, name in enumerate(auto_study.CORNERS)}
    ahead, behind, level = ([value + by for value in corners["ACE"]] for by in (-0.5, 0.5, 0.0))
    said = [auto_study.verdict({**corners, auto_study.AUTO: own}) for own in (ahead, behind, level)]
    assert said == ["better than all", "worse than the best", "cannot be told"]


def test_a_c_chosen_by_itself_is_large_while_the_table_is_behind_and_small_when_all_is_noise() -> None:
    like, random = torch.zeros(50), torch.Generator().manual_seed(0)

    def chosen(drift: float) -> float:
        rule = AutoCalibrated().build(10, like)
        for task in range(300):
            update = drift * task * torch.ones(50) + torch.randn(50, generator=random)
            if rule.absorb(Arrival(task % 10, update, 0, 0, task)):
                rule.direction()
                rule.clear()
        return float(rule._c)  # type: ignore[attr-defined]

    assert chosen(1.0) > 0.9
    assert 0.1 <= chosen(0.0) < 0.3


def test_an_idea_wins_only_where_it_is_ahead_of_all_three_on_seed_after_seed() -> None:
    base = [1.0, 5.0, 9.0, 2.0, 7.0]
    steady, two_of_three = [v - 0.5 + 0.01 * v for v in base], [v - 0.1 for v in base]
    finals = {"ACE": base, "ACED": base, "CA2FL": [v - 0.2 for v in base], "DampedACE": steady}
    finals |= {"FadingACED": two_of_three, "MomentumACE": [None] * 5}
    rows = [
        {"task": "digits", "scenario": "equal", "method": name, "finals": {"client_loss": values}}
        for name, values in finals.items()
    ]
    board = Board({"tasks": {"digits": {}}, "scenarios": {"equal": {}}, "rows": rows})
    [win] = study._wins(board, "digits")
    assert win.startswith("- DampedACE, digits, equal: by 0.2")


def test_on_cifar_seeds_are_paired_in_whatever_order_they_were_made() -> None:
    order = [3, 0, 4, 1, 2]
    losses = {"ACE": 2.0, "ACED": 2.1, "CA2FL": 2.2, "DampedACE": 1.9, "FadingACED": 2.05, "MomentumACE": 3.0}
    records = [
        {
            "kind": "run",
            "labels": {"method": method},
            "settings": {"seed": seed, "lr": 0.1},
            "final": {"client_loss": loss + 10.0 * seed, "slow_accuracy": 0.5},
        }
        for turn, (method, loss) in enumerate(losses.items())
        for seed in order[turn % 5 :] + order[: turn % 5]
    ]
    [win] = cifar.wins(Results(records))
    assert win.startswith("- DampedACE, mean over clients of their own loss: by 0.1")


def test_the_cifar_page_shows_what_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = (cifar.OUT / "README.md").read_text(encoding="utf-8")
    results = Results(Ledger(cifar.OUT / "results.jsonl").records.values())
    monkeypatch.setattr(cifar, "OUT", tmp_path)
    cifar.write_page(results)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == written
