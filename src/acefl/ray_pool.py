"""Jobs on a Ray cluster, by the same interface as local worker processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from acefl.errors import InvalidInput
from acefl.workers import Pool, Work


@contextlib.contextmanager
def open_ray_pool(address: str, workers: int | None = None) -> Iterator[Pool]:
    """A pool on the cluster at `address`; "local" starts one on this machine. `workers` limits the jobs at once."""
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
        yield RayJobs(ray)
    finally:
        ray.shutdown()


class RayJobs:
    """Each job is a Ray task on one CPU."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._remote = ray.remote(num_cpus=1)(_single_threaded)
        self._references: list[Any] = []

    def submit(self, work: Work, job: Any, /) -> Future[float]:
        reference = self._remote.remote(work, job)
        self._references.append(reference)
        future: Future[float] = reference.future()
        return future

    def finished(self, pending: Iterable[Future[float]]) -> Iterable[Future[float]]:
        return wait(pending, return_when=FIRST_COMPLETED).done

    def abandon(self) -> None:
        for reference in self._references:
            self._ray.cancel(reference, force=True)


def _single_threaded(work: Work, job: Any) -> float:
    import torch

    torch.set_num_threads(1)
    return work(job)
