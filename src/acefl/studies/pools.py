"""Where jobs run: in this process, in worker processes that end when this one does, or on a Ray cluster."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import forkserver, resource_tracker
from typing import Any, Protocol

import numpy as np
import torch

from acefl.core.errors import InvalidInput, require

_GPU = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # drivers: a fork of a process that has asked one cannot use it
_FORKS = sys.platform == "linux" and not any(map(os.path.exists, _GPU))  # nor do other systems' libraries survive it
_CONTEXT = multiprocessing.get_context("forkserver" if _FORKS else "spawn")

Work = Callable[[Any], Any]
Futures = Iterable[Future[Any]]


class Pool(Protocol):
    """Takes jobs and says which are done."""

    def submit(self, work: Work, argument: Any, /) -> Future[Any]: ...

    def finished(self, pending: Futures) -> Futures:
        """Wait until something is done, and say what."""
        ...

    def abandon(self) -> None:
        """Stop at once: when this returns, no job is running any more, and none will write another file."""
        ...


@contextlib.contextmanager
def open_pool(workers: int | None = None, *, here: bool = False, ray: str | None = None) -> Iterator[Pool]:
    """So many worker processes (None: one per core, at most 8); this process alone for one worker, or with `here`.

    ray: the address of a Ray cluster to run on instead ("local" starts one here), where `workers` limits the jobs at
    once. Every job has one thread, so that a sum is taken in the same order, and has the same bits, wherever it runs.
    With `here` jobs are calls like others in this process, with all its threads.
    """
    count = how_many(workers)
    require(count >= 1, f"workers is {workers}; allowed: at least 1")
    with contextlib.ExitStack() as until_the_end:
        pool: Pool
        if ray is not None:
            pool = RayTasks(until_the_end.enter_context(_connected(ray, workers)))
        elif here:
            pool = ThisProcess()
        elif count == 1:
            until_the_end.enter_context(single_threaded())
            pool = ThisProcess()
        else:
            get_ready(count)
            executor = ProcessPoolExecutor(count, _CONTEXT, _prepare, (dict(os.environ),))
            pool = Processes(until_the_end.enter_context(executor))
        try:
            yield pool
        except BaseException:
            pool.abandon()
            raise


def how_many(workers: int | None) -> int:
    """Worker processes where somebody asked for so many, or said nothing."""
    return min(os.cpu_count() or 1, 8) if workers is None else workers


def get_ready(workers: int | None) -> None:
    """Start importing what workers need, beside what this process does meanwhile.

    On Linux without a GPU workers are forks of one process that has done so: the first pool pays for it, later ones
    start at once. That process ends with this one. Elsewhere every worker imports for itself.
    """
    if _FORKS and how_many(workers) > 1:
        _CONTEXT.set_forkserver_preload(["acefl.studies.preloaded"])
        resource_tracker.ensure_running()  # starting it lets signals through again, so it is not started below
        with _uninterrupted():
            forkserver.ensure_running()


@contextlib.contextmanager
def single_threaded() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class ThisProcess:
    """Runs the oldest job whenever somebody waits: for one worker, and for tasks that only exist here."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Future[Any], Work, Any]] = deque()

    def submit(self, work: Work, argument: Any, /) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs.append((future, work, argument))
        return future

    def finished(self, pending: Futures) -> Futures:
        future, work, argument = self._jobs.popleft()
        try:
            future.set_result(work(argument))
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

    def submit(self, work: Work, argument: Any, /) -> Future[Any]:
        with _uninterrupted():
            return self._pool.submit(work, argument)

    def finished(self, pending: Futures) -> Futures:
        return wait(pending, return_when=FIRST_COMPLETED).done

    def abandon(self) -> None:
        for worker in set(multiprocessing.active_children()) - self._others:
            worker.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _connected(address: str, workers: int | None) -> Iterator[Any]:
    """Ray, connected to a cluster."""
    try:
        import ray
    except ImportError:
        raise InvalidInput("--ray needs Ray: pip install 'acefl[ray]'") from None
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default; without it, it warns
    try:
        # The dashboard would open a port; nothing of ours needs it.
        ray.init(
            address=address,
            num_cpus=workers if address == "local" else None,
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"cannot reach Ray at {address!r}: {error}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


class RayTasks:
    """Each job is a Ray task on one CPU."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._remote = ray.remote(num_cpus=1)(_on_one_thread)
        self._references: list[Any] = []

    def submit(self, work: Work, argument: Any, /) -> Future[Any]:
        reference = self._remote.remote(work, argument)
        self._references.append(reference)
        future: Future[Any] = reference.future()
        return future

    def finished(self, pending: Futures) -> Futures:
        return wait(pending, return_when=FIRST_COMPLETED).done

    def abandon(self) -> None:
        for reference in self._references:
            self._ray.cancel(reference, force=True)


def _on_one_thread(work: Work, argument: Any) -> Any:
    with single_threaded():
        return work(argument)


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


def _prepare(environment: dict[str, str]) -> None:
    """Workers share the cores by processes, not by threads within one. What a fork has in common with others that
    are to be processes of their own, it gets anew: the caller's environment, and numpy's own seed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    np.random.seed()
    torch.set_num_threads(1)


def _end_with_parent() -> None:
    """A worker whose parent was killed would go on for nobody, and keep its memory, a GPU's too."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
