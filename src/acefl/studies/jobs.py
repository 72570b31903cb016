"""The job runner: independent jobs in this process, in worker processes or on Ray, each heard of as it ends.

What a job returns is the same wherever it runs. Jobs that are recorded are not run again. Whatever ends the caller,
Ctrl-C or a failure, ends the jobs too: none is running or writing any more when the exception goes on its way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from acefl.core.progress import Progress
from acefl.studies.pools import Pool, open_pool


@dataclass(frozen=True, eq=False)
class Job:
    """One call to make: `work(argument)`. Both are sent to where it runs."""

    work: Callable[[Any], Any]
    argument: Any
    key: Any = None  # what it is to whoever asked for it
    words: str = ""  # what it is to whoever watches


@dataclass(frozen=True)
class Ended:
    """A job that is over."""

    job: Job
    future: Future[Any]

    def result(self) -> Any:
        """What it returned; raises what it raised."""
        return self.future.result()

    @property
    def error(self) -> BaseException | None:
        return self.future.exception()

    @property
    def problem(self) -> str:
        """Why it failed, in a line."""
        return f"{type(self.error).__name__}: {self.error}"


class Jobs:
    """Jobs on a pool. Made by `open_jobs`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._pending: dict[Future[Any], Job] = {}

    def __len__(self) -> int:
        """Jobs that have not ended."""
        return len(self._pending)

    def add(self, *jobs: Job) -> None:
        for job in jobs:
            self._pending[self._pool.submit(job.work, job.argument)] = job

    def ended(self) -> Iterator[Ended]:
        """Jobs as they end, until none is left; more may be added meanwhile."""
        while self._pending:
            for future in self._pool.finished(self._pending):
                yield Ended(self._pending.pop(future), future)

    def run(
        self,
        jobs: Sequence[Job],
        *,
        recorded: Callable[[Job], Any | None] = lambda job: None,
        ended: Callable[[Job, Any], None] = lambda job, result: None,
        failed: Callable[[Job, str], None] | None = None,
        first: Callable[[Job], Any] | None = None,
        progress: Progress | None = None,
    ) -> list[Any]:
        """Run all of them and return what each returned, in the order of the jobs.

        recorded: what a job returned an earlier time, or None; such a job is not run. ended: called with each job that
        was run, to record it. failed: called with a job that failed and why in a line; without it the first failure
        ends everything. first: a key by which to sort, so that long jobs start before short ones.
        """
        known = [recorded(job) for job in jobs]
        results = {job: result for job, result in zip(jobs, known, strict=True) if result is not None}
        waiting = [job for job in jobs if job not in results]
        done = len(jobs) - len(waiting)
        if progress is not None:
            progress(done, len(jobs), "")
        self.add(*(waiting if first is None else sorted(waiting, key=first)))
        for end in self.ended():
            if failed is not None and end.error is not None:
                failed(end.job, end.problem)
            else:
                results[end.job] = end.result()
                ended(end.job, results[end.job])
            done += 1
            if progress is not None:
                progress(done, len(jobs), end.job.words)
        return [results.get(job) for job in jobs]


@contextlib.contextmanager
def open_jobs(workers: int | None = None, *, here: bool = False, ray: str | None = None) -> Iterator[Jobs]:
    """A runner whose jobs end with this block; see `open_pool` for where they run."""
    with open_pool(workers, here=here, ray=ray) as pool:
        yield Jobs(pool)
