"""Every way to split data: each row goes to exactly one client, nobody is left empty, and the order means something."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from acefl.core.errors import InvalidInput
from acefl.tasks import partition
from acefl.tasks.partition import PARTITIONS

LABELS = np.random.default_rng(0).integers(0, 10, 503)  # a prime: nothing comes out even


def most_common(labels: np.ndarray) -> int:
    counts = Counter(labels.tolist())
    return min(counts, key=lambda label: (-counts[label], label))


@pytest.mark.parametrize("clients", [1, 10, 37])
@pytest.mark.parametrize("how", PARTITIONS)
def test_every_row_goes_to_exactly_one_client_and_nobody_is_empty(how: str, clients: int) -> None:
    rows = partition(LABELS, clients, how=how, seed=1)
    assert len(rows) == clients
    assert sorted(np.concatenate(rows).tolist()) == list(range(len(LABELS)))
    assert min(len(own) for own in rows) >= 1


@pytest.mark.parametrize("how", PARTITIONS)
def test_clients_are_ordered_by_their_most_common_label(how: str) -> None:
    order = [most_common(LABELS[own]) for own in partition(LABELS, 30, how=how, seed=2)]
    assert order == sorted(order)


@pytest.mark.parametrize("how", PARTITIONS)
def test_the_seed_decides(how: str) -> None:
    one, again, other = (partition(LABELS, 12, how=how, seed=seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_clients_a_draw_leaves_empty_are_fed() -> None:
    """With alpha 1e-3 each of two labels goes to about one client: most of 20 would have nothing."""
    rows = partition(np.arange(60) % 2, 20, alpha=1e-3, seed=0)
    sizes = sorted(len(own) for own in rows)
    assert sizes[0] == 1
    assert sizes[10] == 1
    assert sum(sizes) == 60


def test_as_many_clients_as_rows_get_one_each() -> None:
    assert sorted(len(own) for own in partition(LABELS[:25], 25, alpha=0.1)) == [1] * 25


def test_smaller_alpha_means_fewer_labels_per_client() -> None:
    def labels_each(alpha: float) -> float:
        return float(np.mean([len(set(LABELS[own])) for own in partition(LABELS, 20, alpha=alpha, seed=0)]))

    assert labels_each(0.05) + 2 < labels_each(0.5) + 1 < labels_each(100.0)


def test_pathological_clients_have_exactly_their_labels() -> None:
    for classes in (1, 3):
        rows = partition(LABELS, 20, how="pathological", classes_per_client=classes)
        assert {len(set(LABELS[own])) for own in rows} == {classes}


def test_shards_are_runs_of_the_sorted_labels() -> None:
    """Two shards each: in a sorted order of the rows a client has at most two runs; a few clients have one more."""
    labels = np.sort(LABELS)
    rows = partition(labels, 20, how="shards", classes_per_client=2, seed=0)
    runs = [1 + int((np.diff(np.sort(labels[own])) > 1).sum()) for own in rows]
    assert float(np.mean([len(set(labels[own])) for own in rows])) < 4
    assert max(runs) <= 3


def test_shards_of_an_even_cut_are_equal() -> None:
    sizes = {len(own) for own in partition(np.arange(400) % 10, 20, how="shards", classes_per_client=2)}
    assert sizes == {20}


def test_iid_is_random_even_if_the_rows_come_sorted() -> None:
    """Ten clients of 100 rows, ten labels: a client without some label has chance 10 * 0.9^100 = 3e-4, seed fixed."""
    labels = np.sort(np.arange(1_000) % 10)
    rows = partition(labels, 10, how="iid", seed=0)
    assert {len(own) for own in rows} == {100}
    assert all(len(set(labels[own])) == 10 for own in rows)


def test_labels_may_be_words_or_a_list() -> None:
    words = ["cat", "dog", "ant"] * 20
    rows = partition(words, 6, how="pathological", classes_per_client=1, seed=0)
    firsts = [words[own[0]] for own in rows]
    assert firsts == sorted(firsts)
    assert set(firsts) == {"ant", "cat", "dog"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"how": "fair"}, "partition is 'fair'; allowed: dirichlet, shards, pathological, iid"),
        ({"clients": 0}, "clients is 0; allowed: at least 1"),
        ({"clients": 504}, "clients is 504; allowed: at most the number of samples, 503"),
        ({"alpha": 0.0}, "alpha is 0.0; allowed"),
        ({"alpha": float("inf")}, "alpha is inf; allowed"),
        ({"alpha": float("nan")}, "alpha is nan; allowed"),
        ({"classes_per_client": 0}, "classes_per_client is 0; allowed"),
        ({"seed": -1}, "seed is -1; allowed"),
        ({"how": "pathological", "classes_per_client": 11}, "does not fit these data"),
        ({"how": "pathological", "clients": 4, "classes_per_client": 1}, "leaves out .* rows; allowed"),
    ],
)
def test_what_cannot_be_split_is_refused_in_one_line(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as refusal:
        partition(LABELS, **{"clients": 20, **settings})  # type: ignore[arg-type]
    assert "\n" not in str(refusal.value)
