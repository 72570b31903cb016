"""Hostile clients: who they are, what they send, and that nobody else is touched."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from acefl import ACE, InvalidInput, RobustACE, Scenario, Stop, attacked, simulate, tasks
from acefl.core import rng as keyed
from acefl.tasks import Task
from acefl.tasks.attacks import ATTACKS, STRENGTHS
from acefl.tasks.sources import build_task

DIGITS = tasks.digits(clients=10, alpha=0.5)
KEYS = [keyed.key(9, client) for client in range(10)]
every_attack = pytest.mark.parametrize("attack", ATTACKS)


def models(task: Task = DIGITS) -> torch.Tensor:
    start = task.initial()
    return start + 0.1 * keyed.normal(KEYS, start.numel())


def honest(task: Task = DIGITS) -> torch.Tensor:
    return task.updates(models(task), list(range(10)), KEYS)


def sent(attack: str, task: Task = DIGITS, **settings: Any) -> torch.Tensor:
    return attacked(task, attack, fraction=0.3, **settings).updates(models(task), list(range(10)), KEYS)


@every_attack
def test_only_what_hostile_clients_send_changes(attack: str) -> None:
    task = attacked(DIGITS, attack, fraction=0.3)
    changed = {
        row for row, (one, two) in enumerate(zip(sent(attack), honest(), strict=True)) if not torch.equal(one, two)
    }
    assert changed == task.hostile
    assert len(changed) == 3
    assert torch.equal(honest(), DIGITS.updates(models(), list(range(10)), KEYS)), "the task itself is as it was"
    assert torch.equal(task.initial(), DIGITS.initial())
    start = DIGITS.initial()
    assert task.evaluate(start).metrics == DIGITS.evaluate(start).metrics


@every_attack
def test_what_is_sent_depends_neither_on_company_nor_on_the_past(attack: str) -> None:
    task = attacked(DIGITS, attack, fraction=0.3)
    together = sent(attack)
    for client in sorted(task.hostile, reverse=True):
        alone = task.updates(models()[client : client + 1], [client], [KEYS[client]])
        torch.testing.assert_close(alone[0], together[client], rtol=1e-4, atol=1e-6)


def test_each_sends_what_its_name_says() -> None:
    rows = sorted(attacked(DIGITS, "sign-flip", fraction=0.3).hostile)
    own = honest()[rows]
    assert torch.equal(sent("sign-flip")[rows], -own)
    assert torch.equal(sent("sign-flip", strength=4.0)[rows], -4.0 * own)
    assert torch.equal(sent("scaling")[rows], 10.0 * own)
    assert not sent("free-rider")[rows].any()
    noise = sent("gaussian")[rows]
    ratio = noise.norm(dim=1) / own.norm(dim=1)  # 650 numbers: 6 standard deviations are 0.17
    assert bool(((ratio - 1).abs() < 0.17).all())
    assert float(torch.cosine_similarity(noise, own).abs().max()) < 0.25
    first = attacked(DIGITS, "stale-replay", fraction=0.3)
    replayed = first.updates(models() * 2, list(range(10)), KEYS[::-1])[rows]
    torch.testing.assert_close(replayed, sent("stale-replay")[rows])


def test_flipped_labels_are_those_of_a_task_with_flipped_labels() -> None:
    inputs, labels = torch.randn(4, 12, 3, generator=keyed.generator(1)), torch.arange(48).reshape(4, 12) % 5
    hostile = attacked(softmax(inputs, labels), "label-flip", fraction=0.5).hostile
    by_hand = torch.stack([4 - labels[c] if c in hostile else labels[c] for c in range(4)])
    start = torch.full((20,), 0.1).expand(4, -1).contiguous()
    found = attacked(softmax(inputs, labels), "label-flip", fraction=0.5).updates(start, [0, 1, 2, 3], KEYS[:4])
    assert torch.equal(found, softmax(inputs, by_hand).updates(start, [0, 1, 2, 3], KEYS[:4]))


def softmax(inputs: torch.Tensor, labels: torch.Tensor) -> tasks.TorchTask:
    data = list(zip(inputs, labels, strict=True))
    return tasks.TorchTask(torch.nn.Linear(3, 5), torch.nn.CrossEntropyLoss(), data, batch=6)


def test_who_is_hostile_is_drawn_by_the_seed_and_grows_with_the_fraction() -> None:
    few, many = (attacked(DIGITS, "scaling", fraction=share).hostile for share in (0.1, 0.6))
    assert (len(few), len(many)) == (1, 6)
    assert few < many
    assert len({attacked(DIGITS, "scaling", fraction=0.3, seed=seed).hostile for seed in range(5)}) > 1
    assert not attacked(DIGITS, "scaling", fraction=0.0).hostile


def test_a_description_builds_the_same_attack() -> None:
    task = attacked(tasks.digits(clients=10, seed=3), "gaussian", fraction=0.2, seed=5)
    again = tasks.build(task.describe())
    assert again.describe() == task.describe()
    rows = models(task), list(range(10)), KEYS
    assert torch.equal(again.updates(*rows), task.updates(*rows))
    source = {"name": "quadratic", "clients": 5, "dim": 3, "attack": {"attack": "free-rider", "fraction": 0.4}}
    assert build_task(source, 0).describe()["attack"]["strength"] == STRENGTHS["free-rider"]


def test_what_makes_no_sense_is_refused() -> None:
    quadratic = tasks.quadratic(clients=4, dim=2)
    for attack, fraction, strength in (("bribe", 0.1, 1.0), ("scaling", 1.1, 1.0), ("scaling", 0.1, float("inf"))):
        with pytest.raises(InvalidInput, match=" is .*; allowed: "):
            attacked(quadratic, attack, fraction=fraction, strength=strength)
    with pytest.raises(InvalidInput, match="label-flip needs labels"):
        attacked(quadratic, "label-flip", fraction=0.1)
    for attack_ in (3, {"attack": "scaling"}, {"attack": "scaling", "fraction": 0.1, "colour": 1}):
        with pytest.raises(InvalidInput, match="attack"):
            tasks.build({"name": "quadratic", "clients": 4, "attack": attack_})


def test_a_median_learns_where_a_mean_is_carried_away() -> None:
    """30% of 10 clients push uphill, ten times as hard as the others push down."""
    task = attacked(tasks.digits(clients=10, alpha=10.0), "sign-flip", fraction=0.3, strength=10.0)
    run = {"lr": 0.1, "scenario": Scenario(spread=3.0), "stop": Stop(arrivals=150), "evaluations": 2}
    mean, median = (simulate(task, method, **run) for method in (ACE(), RobustACE()))  # type: ignore[arg-type]
    start = mean.metrics[0]["client_loss"]
    assert median.final["client_loss"] < 0.8 * start
    assert mean.diverged or mean.final["client_loss"] > start
