"""Our own ideas are rules like any other: they keep the laws, and are ACE where their idea is switched off."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from experiments.ideas import auto_study, cifar, old_rows_study, study
from experiments.ideas.auto import AutoCalibrated
from experiments.ideas.ideas import DampedACE, FadingACED, MomentumACE
from experiments.ideas.secant import SecantACE
from experiments.ideas.steered import SteeredACE
from experiments.leaderboard.publish import filled

from acefl import ACE, Arrival, Scenario, Stop, simulate, tasks
from acefl.core.files import read_json
from acefl.paper.records import Ledger, Results
from acefl.report.standings import Board
from acefl.testing import LAWS

IDEAS = [DampedACE(), FadingACED(tau=3), MomentumACE(blend=0.3), AutoCalibrated(), SecantACE(), SteeredACE(rank=3)]
REMEMBER = (SecantACE, SteeredACE)  # the model's path, or coordinates found beside a client that left: not taken back


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("rule", IDEAS, ids=lambda rule: type(rule).__name__)
def test_an_idea_keeps_the_laws(rule: Any, law: str) -> None:
    if law == "leaving" and isinstance(rule, REMEMBER):
        pytest.skip("what it learnt from a client that left stays")
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


class _SecantOracle:
    """All sums taken anew, every model kept: u_i + D_i (x_now - x_i) with D_i from all of the client's visits."""

    def __init__(self, decay: float, damping: float) -> None:
        self.decay, self.damping = decay, damping
        self.visits: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}  # the model, and the row there

    def direction(self, now: np.ndarray) -> np.ndarray:
        return np.mean([self.corrected(visits, now) for visits in self.visits.values()], axis=0)

    def corrected(self, visits: list[tuple[np.ndarray, np.ndarray]], now: np.ndarray) -> np.ndarray:
        above = below = np.zeros_like(now)
        for (one, before), (two, after) in itertools.pairwise(visits):
            above = self.decay * above + (two - one) * (after - before)
            below = self.decay * below + (two - one) ** 2
        below = below + self.damping * below.mean()
        curvature = np.maximum(0.0, np.divide(above, below, out=np.zeros_like(now), where=below > 0))
        model, row = visits[-1]
        return row + curvature * (now - model)


def _walk(rule: Any, lr: float, gradient: Any, told: Any, expected: Any) -> None:
    """Four clients of different speeds, each on the model it was last sent; directions against an oracle's."""
    models = [np.zeros(6)]
    sent = dict.fromkeys(range(4), 0)
    for task in range(60):
        client = task % 4 if task < 4 else (0, 1, 0, 2, 0, 1, 3)[task % 7]
        update = gradient(client, models[sent[client]], task)
        told(client, models[sent[client]], update)
        arrival = Arrival(client, torch.tensor(update, dtype=torch.float32), sent[client], len(models) - 1, task)
        if rule.absorb(arrival):
            want = expected(models[-1])
            np.testing.assert_allclose(rule.direction().numpy(), want, rtol=1e-3, atol=1e-4)
            rule.clear()
            models.append(models[-1] - lr * want)
            sent[client] = len(models) - 1


def test_secants_carry_rows_along_as_the_formula_has_it_whatever_the_learning_rate() -> None:
    random = np.random.default_rng(0)
    optima, noise = random.normal(size=(4, 6)), random.normal(size=(60, 6))
    for lr in (0.05, 0.4):
        oracle = _SecantOracle(0.8, 0.5)

        def told(client: int, model: np.ndarray, update: np.ndarray, oracle: _SecantOracle = oracle) -> None:
            oracle.visits.setdefault(client, []).append((model, update))

        def gradient(client: int, model: np.ndarray, task: int) -> np.ndarray:
            return (1.0 + client) * (model - optima[client]) + 0.1 * noise[task]

        _walk(SecantACE(0.8, 0.5).build(4, torch.zeros(6)), lr, gradient, told, oracle.direction)


def test_steered_rows_are_least_squares_on_what_the_spanning_clients_sent_last() -> None:
    random = np.random.default_rng(1)
    sends = random.normal(size=(60, 6))
    span: list[int] = []
    latest: dict[int, np.ndarray] = {}
    coordinates: dict[int, np.ndarray] = {}
    came: list[int] = []

    def told(client: int, model: np.ndarray, update: np.ndarray) -> None:
        latest[client] = update
        came.append(client)

    def expected(model: np.ndarray) -> np.ndarray:
        fresh = set(came)
        basis = np.array([before[client] for client in span]) if span else np.zeros((0, 6))
        rows = [latest[c] if c in fresh else coordinates[c] @ basis for c in latest]
        if not span:  # after the first round: whoever is farthest from the span of those chosen before
            first = max(latest, key=lambda c: np.linalg.norm(latest[c]))
            unit = latest[first] / np.linalg.norm(latest[first])
            others = [c for c in latest if c != first]
            span.extend([first, max(others, key=lambda c: np.linalg.norm(latest[c] - (latest[c] @ unit) * unit))])
        before.update({client: latest[client] for client in span})
        basis = np.array([before[client] for client in span])
        squares = basis @ basis.T
        squares = squares + 0.1 * np.diag(squares).mean() * np.eye(2)
        for c in fresh:
            coordinates[c] = np.eye(2)[span.index(c)] if c in span else np.linalg.solve(squares, basis @ latest[c])
        came.clear()
        return np.mean(rows, axis=0)

    before: dict[int, np.ndarray] = {}
    rule = SteeredACE(rank=2, ridge=0.1).build(4, torch.zeros(6))
    _walk(rule, 0.1, lambda client, model, task: sends[task], told, expected)


def test_the_readme_shows_what_is_recorded_of_old_rows() -> None:
    text = (study.HERE / "README.md").read_text(encoding="utf-8")
    assert filled(text, "old rows", old_rows_study.table(old_rows_study.rows())) == text


def test_an_idea_about_old_rows_must_be_ahead_of_all_three() -> None:
    base = [1.0, 5.0, 9.0, 2.0, 7.0]
    ahead, worse = [v - 0.5 + 0.01 * v for v in base], [v + 0.5 + 0.01 * v for v in base]
    others = [base, [v + 0.1 for v in base], [math.nan] * 5]
    said = [old_rows_study.against_all(own, others) for own in (ahead, worse, base, [math.nan] * 5)]
    assert said == ["ahead", "behind", "level", "behind"]
