"""Where jobs run: in this process, or in worker processes that end when this one does."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any, Protocol

from acefl.errors import require

Work = Callable[[Any], float]


class Pool(Protocol):
    """Takes jobs and says which are done."""

    def submit(self, work: Work, job: Any, /) -> Future[float]: ...

    def finished(self, pending: Iterable[Future[float]]) -> Iterable[Future[float]]:
        """Wait until something is done, and say what."""
        ...

    def abandon(self) -> None:
        """Stop at once: when this returns, no job is running any more, and none will write another file."""
        ...


@contextlib.contextmanager
def open_pool(workers: int | None = None, *, here: bool = False) -> Iterator[Pool]:
    """So many worker processes (None: one per core, at most 8); this process alone for one worker, or with `here`."""
    count = min(os.cpu_count() or 1, 8) if workers is None else workers
    require(count >= 1, f"workers is {workers}; allowed: at least 1")
    if count == 1 or here:
        yield ThisProcess()
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=spawn, initializer=_prepare) as pool:
        yield Processes(pool)


class ThisProcess:
    """Runs the oldest job whenever somebody waits: for one worker, and for tasks that only exist here."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Future[float], Work, Any]] = deque()

    def submit(self, work: Work, job: Any, /) -> Future[float]:
        future: Future[float] = Future()
        self._jobs.append((future, work, job))
        return future

    def finished(self, pending: Iterable[Future[float]]) -> Iterable[Future[float]]:
        future, work, job = self._jobs.popleft()
        try:
            future.set_result(work(job))
        except Exception as problem:
            future.set_exception(problem)
        return [future]

    def abandon(self) -> None:
        self._jobs.clear()


class Processes:
    """Worker processes. Ctrl-C does not reach them, so they print no tracebacks: this process ends them."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool
        self._others = set(multiprocessing.active_children())

    def submit(self, work: Work, job: Any, /) -> Future[float]:
        with _uninterrupted():
            return self._pool.submit(work, job)

    def finished(self, pending: Iterable[Future[float]]) -> Iterable[Future[float]]:
        return wait(pending, return_when=FIRST_COMPLETED).done

    def abandon(self) -> None:
        for worker in set(multiprocessing.active_children()) - self._others:
            worker.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Whoever wants to stop this process waits until the worker that is being started has got all it needs.

    That worker inherits that Ctrl-C is blocked. Here that is not enough: the signal may reach any other thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's, and so is the right to say what they do
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in came:
            signal.raise_signal(one)


def _prepare() -> None:
    """Workers share the cores by processes, not by threads within one."""
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)


def _end_with_parent() -> None:
    """A worker whose parent was killed would go on for nobody, and keep its memory, a GPU's too."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
