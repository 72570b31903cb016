"""The job runner: the same results in the same order wherever jobs run, and nothing is run twice."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from acefl.core.errors import InvalidInput
from acefl.studies.jobs import Job, open_jobs

WORKERS = [1, pytest.param(2, marks=pytest.mark.slow)]


def squared(number: int) -> int:
    if number < 0:
        raise InvalidInput(f"{number} is below 0")
    time.sleep(0.01 * (5 - number))  # the last are done first
    return number**2


def threads(_: Any) -> int:
    return torch.get_num_threads()


def touched(path: Path) -> None:
    path.touch(exist_ok=False)


@pytest.mark.parametrize("workers", WORKERS)
def test_results_are_in_the_order_of_the_jobs(workers: int) -> None:
    seen: list[tuple[int, int, str]] = []
    with open_jobs(workers) as jobs:
        found = jobs.run(
            [Job(squared, number, words=str(number)) for number in range(5)],
            first=lambda job: -job.argument,
            progress=lambda *state: seen.append(state),
        )
    assert found == [0, 1, 4, 9, 16]
    assert [state[:2] for state in seen] == [(done, 5) for done in range(6)]
    assert {state[2] for state in seen} == {"", "0", "1", "2", "3", "4"}


def test_what_is_recorded_is_not_run_again(tmp_path: Path) -> None:
    paths, told = [tmp_path / name for name in "abc"], []
    paths[1].touch()

    def run() -> None:
        with open_jobs(1) as jobs:
            jobs.run(
                [Job(touched, path) for path in paths],
                recorded=lambda job: job.argument.exists() or None,
                ended=lambda job, _: told.append(job.argument.name),
            )

    run()
    run()
    assert told == ["a", "c"]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_failure_is_said_in_a_line_or_ends_everything(workers: int, tmp_path: Path) -> None:
    failures: dict[int, str] = {}
    with open_jobs(workers) as jobs:
        found = jobs.run(
            [Job(squared, number) for number in (2, -1, 3)],
            failed=lambda job, problem: failures.update({job.argument: problem}),
        )
    assert found == [4, None, 9]
    assert failures == {-1: "InvalidInput: -1 is below 0"}
    with pytest.raises(InvalidInput, match="-1 is below 0"), open_jobs(1) as jobs:
        jobs.run([Job(squared, -1), Job(touched, tmp_path / "never")])
    assert not (tmp_path / "never").exists()


def test_jobs_may_lead_to_others() -> None:
    counted = []
    with open_jobs(1) as jobs:
        jobs.add(Job(squared, 0))
        for end in jobs.ended():
            counted.append(end.result())
            if end.job.argument < 3:
                jobs.add(Job(squared, end.job.argument + 1))
        assert len(jobs) == 0
    assert counted == [0, 1, 4, 9]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_job_has_one_thread_wherever_it_runs(workers: int) -> None:
    """Sums are then taken in the same order. Tasks that only exist in this process have all its threads."""
    torch.set_num_threads(2)
    try:
        with open_jobs(workers) as jobs:
            assert jobs.run([Job(threads, None)]) == [1]
        with open_jobs(workers, here=True) as jobs:
            assert jobs.run([Job(threads, None)]) == [2]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
