"""Work computed late and together is the work computed at once and alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from acefl import ACE, ACED, ASGD, CA2FL, FedBuff, Stop, simulate, tasks
from acefl.core.rule import Method
from acefl.core.types import Vector
from acefl.fleets.lazy import LazyWork
from acefl.tasks.base import Evaluation


class CountingTask:
    """A quadratic that remembers how often it was asked for what."""

    objective = "gap"

    def __init__(self, batch_limit: int) -> None:
        self.inner = tasks.quadratic(clients=7, dim=5, noise=0.5, seed=0)
        self.clients, self.samples, self.batch_limit = 7, [1] * 7, batch_limit
        self.calls: list[list[tuple[int, int]]] = []

    def describe(self) -> dict[str, Any]:
        return self.inner.describe()

    def initial(self) -> Vector:
        return self.inner.initial()

    def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        self.calls.append(list(zip(clients, keys, strict=True)))
        return self.inner.updates(models, clients, keys)

    def evaluate(self, model: Vector) -> Evaluation:
        return self.inner.evaluate(model)


def filled(batch_limit: int) -> tuple[CountingTask, LazyWork, dict[int, Vector]]:
    """Ten tasks on three model versions, and what each must give."""
    task = CountingTask(batch_limit)
    work, expected = LazyWork(task), {}
    model = task.initial()
    for task_id in range(10):
        client, key, version = task_id % 7, 100 + task_id, task_id // 4
        work.add(task_id, client, key, model, version)
        expected[task_id] = task.inner.updates(model.unsqueeze(0), [client], [key])[0]
        if task_id % 4 == 3:
            model -= 0.1  # the server goes on changing its model in place
    return task, work, expected


@pytest.mark.parametrize("batch_limit", [1, 3, 64])
def test_late_is_as_good_as_at_once(batch_limit: int) -> None:
    task, work, expected = filled(batch_limit)
    for task_id in (4, 0, 9, 1, 2, 3, 8, 7, 6, 5):
        torch.testing.assert_close(work.take(task_id), expected[task_id], rtol=1e-5, atol=1e-6)
    assert max(len(call) for call in task.calls) <= batch_limit
    assert sorted(key for call in task.calls for _, key in call) == [100 + task_id for task_id in range(10)]


def test_nothing_is_computed_before_it_is_needed_and_then_everything_is() -> None:
    task, work, _ = filled(64)
    assert task.calls == []
    work.take(3)
    assert len(task.calls) == 1
    work.take(9)
    assert len(task.calls) == 1
    work.add(10, 0, 110, task.initial(), 7)
    work.take(5)
    assert len(task.calls) == 1
    work.take(10)
    assert task.calls[1] == [(0, 110)]


def test_what_nobody_will_ask_for_is_not_computed() -> None:
    task, work, expected = filled(64)
    for task_id in (0, 5, 77):
        work.drop(task_id)
    torch.testing.assert_close(work.take(1), expected[1])
    assert {key for call in task.calls for _, key in call} == {100 + k for k in range(10)} - {100, 105}
    work.drop(2)  # computed already, and forgotten
    with pytest.raises(KeyError):
        work.take(2)


def test_an_update_is_given_once() -> None:
    _, work, _ = filled(64)
    work.take(0)
    with pytest.raises(KeyError):
        work.take(0)


@pytest.mark.parametrize("taken", [(), (2,)])
def test_saved_work_goes_on_bit_for_bit(taken: tuple[int, ...]) -> None:
    """Saved before anything is computed, and with computed and waiting tasks side by side."""
    task, work, _ = filled(3)
    for task_id in taken:
        work.take(task_id)
    work.add(10, 4, 110, task.initial() + 1.0, 9)
    again = LazyWork(task)
    again.load_state_dict(work.state_dict())
    for task_id in set(range(11)) - set(taken):
        assert torch.equal(again.take(task_id), work.take(task_id))


def test_with_a_limit_what_is_due_soonest_is_computed_first() -> None:
    task = CountingTask(2)
    work = LazyWork(task)
    for task_id, due in ((20, 5.0), (21, 1.0), (22, 3.0), (23, 2.0)):
        work.add(task_id, 0, 200 + task_id, task.initial(), task_id, due)
    work.take(21)
    assert task.calls == [[(0, 221), (0, 223)]]
    work.take(20)
    assert task.calls[1] == [(0, 220), (0, 222)]


class GraphTask(CountingTask):
    """Whose updates still know how they were computed."""

    def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        return super().updates(models, clients, keys).requires_grad_()


@pytest.mark.parametrize("rule", [ACE(), ACED(), CA2FL(buffer=2), FedBuff(buffer=2), ASGD()], ids=repr)
def test_how_an_update_was_computed_goes_no_further(rule: Method) -> None:
    runs = [
        simulate(task, rule, lr=0.05, stop=Stop(arrivals=60), evaluations=2) for task in (CountingTask(7), GraphTask(7))
    ]
    assert torch.equal(runs[0].model, runs[1].model)
    assert not runs[1].model.requires_grad


class SharingTask(CountingTask):
    """One that also computes tasks on one model together."""

    shared_limit = 5

    def __init__(self, batch_limit: int) -> None:
        super().__init__(batch_limit)
        self.shared: list[list[int]] = []

    def shared_updates(self, model: Vector, clients: list[int], keys: list[int]) -> torch.Tensor:
        self.shared.append(keys)
        return self.inner.updates(model.repeat(len(clients), 1), clients, keys)


def shared(batch_limit: int, counts: tuple[int, ...]) -> tuple[SharingTask, LazyWork, dict[int, Vector]]:
    """So many tasks on each of several versions, due in their order."""
    task = SharingTask(batch_limit)
    work, expected, model = LazyWork(task), dict[int, Vector](), task.initial()
    for version, count in enumerate(counts):
        for _ in range(count):
            task_id = len(expected)
            work.add(task_id, task_id % 7, task_id, model, version, float(task_id))
            expected[task_id] = task.inner.updates(model.unsqueeze(0), [task_id % 7], [task_id])[0]
        model -= 0.1
    return task, work, expected


@pytest.mark.parametrize("batch_limit", [1, 3])
def test_tasks_on_one_version_are_computed_together_where_they_are_enough(batch_limit: int) -> None:
    task, work, expected = shared(batch_limit, (3, 8, 4))
    for task_id in (10, *(set(expected) - {10})):
        torch.testing.assert_close(work.take(task_id), expected[task_id], rtol=1e-5, atol=1e-6)
    assert [sorted(keys) for keys in task.shared] == [[3, 4, 5, 6, 10], [11, 12, 13, 14]]
    assert max(len(call) for call in task.calls) == batch_limit
    computed = [key for call in task.calls for _, key in call] + [key for keys in task.shared for key in keys]
    assert sorted(computed) == sorted(expected)


def test_saved_work_is_shared_by_the_same_tasks() -> None:
    """With some of a version computed, some dropped, and some to come."""
    task, work, _ = shared(2, (3, 8, 5))
    work.take(5)
    work.drop(11)
    again = LazyWork(task)
    again.load_state_dict(work.state_dict())
    task.calls.clear()
    task.shared.clear()
    for one in (work, again):
        for task_id in (4, 14, 0, 1, 2, 3):
            one.take(task_id)
    for calls in (task.calls, task.shared):
        assert calls[: len(calls) // 2] == calls[len(calls) // 2 :] != []


def test_a_task_around_one_that_shares_does_not_share_behind_its_back() -> None:
    """What hands on attributes it does not know hands on the work of the inner one alone."""

    class Doubling:
        def __init__(self, task: SharingTask) -> None:
            self._task, self.batch_limit = task, task.batch_limit

        def __getattr__(self, name: str) -> Any:
            return getattr(self._task, name)

        def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
            return 2 * self._task.updates(models, clients, keys)

    task = SharingTask(8)
    work = LazyWork(Doubling(task))  # type: ignore[arg-type]
    for task_id in range(5):
        work.add(task_id, task_id, task_id, task.initial(), 0)
    expected = 2 * task.inner.updates(task.initial().unsqueeze(0), [1], [1])[0]
    torch.testing.assert_close(work.take(1), expected)
    assert task.shared == []
