"""What a page calls a difference: laws of `acefl.paper.differences`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acefl.paper import amplification, cifar10_main, dropout
from acefl.paper.differences import Difference, leading, paired, standing, verdict
from acefl.paper.records import Results

SEEDS = 5


def run(method: str, seed: int, accuracy: float, **labels: Any) -> dict[str, Any]:
    own = {"form": "printed", "method": method, **labels}
    final = {"accuracy": accuracy}
    return {"kind": "run", "labels": own, "settings": {"seed": seed}, "final": final, "diverged": False}


def runs(values: dict[str, list[float]], **labels: Any) -> Results:
    return Results(run(m, seed, value, **labels) for m, own in values.items() for seed, value in enumerate(own))


accuracies = st.lists(st.integers(0, 64).map(lambda k: k / 64), min_size=SEEDS, max_size=SEEDS)


@given(accuracies, accuracies, accuracies)
def test_how_hard_a_seed_is_for_everybody_does_not_matter(a: list[float], b: list[float], seeds: list[float]) -> None:
    moved = {"A": [x + s for x, s in zip(a, seeds, strict=True)], "B": [x + s for x, s in zip(b, seeds, strict=True)]}
    assert standing(runs({"A": a, "B": b}), "A", ["B"]) == standing(runs(moved), "A", ["B"])


@given(accuracies, accuracies)
def test_one_is_ahead_where_the_other_is_behind(a: list[float], b: list[float]) -> None:
    results = runs({"A": a, "B": b})
    of_a, of_b = standing(results, "A", ["B"]), standing(results, "B", ["A"])
    smaller = standing(results, "A", ["B"], larger=False)
    assert of_a is not None
    assert of_b is not None
    assert smaller is not None
    assert (bool(of_a.ahead), bool(of_a.level)) == (bool(of_b.behind), bool(of_b.level))
    assert (smaller.ahead, smaller.behind) == (of_a.behind, of_a.ahead)


def test_of_differences_that_are_none_one_in_twenty_is_named() -> None:
    """4,000 draws: 5 % within 1.4 %, four standard deviations; a false alarm in about 16,000 other seeds."""
    draws = np.random.default_rng(0).normal(size=(4000, SEEDS))
    named = np.mean([Difference.of(list(row)).sign != 0 for row in draws])
    assert abs(named - 0.05) < 0.014


def test_only_seeds_that_both_have_are_compared() -> None:
    results = Results([run("A", 0, 0.5), run("A", 1, 0.9), run("B", 0, 0.4), run("B", 2, 0.0)])
    gap = paired(results, {"method": "A"}, {"method": "B"})
    assert gap is not None
    assert (round(gap.mean, 12), gap.seeds, str(gap)) == (0.1, 1, "+0.100 (1)")
    assert standing(results, "A", ["B", "C"]) is None


@pytest.mark.parametrize(
    ("gaps", "said"),
    [
        ([], None),
        ([[0.1, 0.1, 0.11]], "agrees: 1 of 1"),
        ([[0.1, 0.1, 0.11], [0.2, 0.21, 0.2], [0.3, -0.3, 0.0]], "agrees: 2 of 3 (level: 2)"),
        ([[0.1, 0.1, 0.11], [0.3, -0.3, 0.0]], "agrees in part: 1 of 2 (level: 1)"),
        ([[0.1, 0.1, 0.11], [-0.1, -0.1, -0.11]], "agrees in part: 1 of 2 (the other way round: 1)"),
        ([[-0.1, -0.1, -0.11], [0.3, -0.3, 0.0]], "does not agree: 0 of 2 (level: 1; the other way round: 0)"),
        ([[0.3, -0.3, 0.0]], "cannot be told: 0 of 1 (level: 0)"),
    ],
)
def test_a_verdict_names_what_is_level_and_what_is_the_other_way_round(
    gaps: list[list[float]], said: str | None
) -> None:
    assert verdict({str(place): Difference.of(values) for place, values in enumerate(gaps)}) == said


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"A": [0.5, 0.6, 0.7], "B": [0.4, 0.51, 0.6]}, "agrees: A (0.600) ahead of B"),
        ({"A": [0.4, 0.51, 0.6], "B": [0.5, 0.6, 0.7]}, "does not agree: A (0.503) behind B"),
        ({"A": [0.5, 0.1, 0.9], "B": [0.4, 0.5, 0.6]}, "cannot be told: A (0.500) level with B"),
    ],
)
def test_to_be_level_with_everybody_is_no_disagreement(values: dict[str, list[float]], word: str) -> None:
    assert leading(runs(values), ["A"], ["B"]) == word


def test_an_error_term_is_a_share_of_the_runs_mean_squared_gradient() -> None:
    steps = [{"bias": 1.0, "squared_gradient": 1.0}, {"bias": 3.0, "squared_gradient": 7.0}, {"loss": 2.0}]
    record = {**run("ASGD", 0, 0.5), "history": steps}
    assert amplification._over_squared_gradient(Results([record]), "bias") == "0.500"


def test_a_run_that_delay_cannot_change_is_no_evidence_about_delay() -> None:
    """Vanilla ASGD, one client at a time, is the same run at every β."""
    records = [
        run(method, seed, alpha * (0.5 if method == "ACE" and beta == 30.0 else 1.0) + 0.01 * seed, **labels)
        for method in ("ACE", "ASGD")
        for seed in range(3)
        for alpha in cifar10_main.ALPHAS
        for beta in cifar10_main.BETAS
        for labels in [{"clock": "tick", "alpha": alpha, "beta": beta}]
    ]
    by_delay = cifar10_main.compare_settings(Results(records), *(((a, 5.0), (a, 30.0)) for a in (0.1, 0.3)))
    by_alpha = cifar10_main.compare_settings(Results(records), *(((0.3, b), (0.1, b)) for b in (5.0, 30.0)))
    assert by_delay == "agrees: 2 of 2"
    assert by_alpha == "agrees: 3 of 3"


def test_bands_are_compared_seed_by_seed() -> None:
    """Bands ten times as wide are told by five seeds; bands of one width, drawn anew for each method, are not."""
    rng = np.random.default_rng(0)
    settings = [{"clock": "tick", "alpha": a, "beta": b} for a in cifar10_main.ALPHAS for b in cifar10_main.BETAS]

    def said(wide: float, seeds: int = SEEDS) -> str | None:
        return cifar10_main._steadiness(
            Results(
                run(method, seed, 0.5 + (wide if "ASGD" in method else 0.01) * rng.normal(), **labels)
                for method in cifar10_main.METHODS
                for labels in settings
                for seed in range(seeds)
            )
        )

    assert str(said(0.1)).startswith("agrees: 6 of 6. Mean distance")
    assert str(said(0.01)).startswith("cannot be told: 0 of 6 ")
    assert said(0.1, seeds=1) is None


def test_the_ablation_of_tau_has_the_usual_tau_from_among_the_methods() -> None:
    taus = [tau for tau in dropout.TAUS if tau != dropout.TAU]
    labels = {"dropout": dropout.ABLATION_AT}
    records = [run("ACED", seed, 0.4, part="methods", **labels) for seed in range(3)]
    assert dropout._moderate(Results(records)) is None
    for seed, small, large in ((0, 0.3, 0.2), (1, 0.5, 0.6)):
        accuracy = {tau: small if tau == 1 else large if tau > 50 else 0.4 for tau in taus[::-1]}
        records += [run("ACED", seed, value, part="tau", tau=tau, **labels) for tau, value in accuracy.items()]
        said = str(dropout._moderate(Results(records)))
        if seed == 0:
            gaps = "minus tau 1 +0.100 (1); minus tau 100 to 500 +0.200 (1)"
            assert said == f"agrees: 2 of 2. The mean of tau 10 to 50 {gaps}"
    assert said.startswith("cannot be told: 0 of 2 ")
    assert dropout._by_tau(Results(records)).having("tau") == list(dropout.TAUS)


def test_at_equal_time_nobody_is_judged_after_the_first_has_ended() -> None:
    def curve(method: str, *points: tuple[float, float]) -> dict[str, Any]:
        return {**run(method, 0, points[-1][1]), "history": [{"time": t, "accuracy": value} for t, value in points]}

    results = Results([curve("fast", (0.0, 0.1), (10.0, 0.5)), curve("slow", (0.0, 0.1), (20.0, 0.3), (40.0, 0.9))])
    equal = results.at_equal_time()
    assert equal.values("accuracy", method="fast") == [0.5]
    assert equal.values("accuracy", method="slow") == pytest.approx([0.2])
    assert results.values("accuracy", method="slow") == [0.9]
