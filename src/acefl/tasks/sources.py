"""A task for every seed: from settings, or from a function of the seed."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch

from acefl import tasks
from acefl.core.errors import require
from acefl.core.settings import plain
from acefl.tasks.base import Task

TaskSource = Mapping[str, Any] | Callable[[int], Task]  # settings, or what builds the task for a seed


def build_task(source: TaskSource, seed: int) -> Task:
    """The task for a seed; one that is described by settings is built once per process."""
    if callable(source):
        return source(seed)
    require(
        isinstance(source, Mapping), f"task is {type(source).__name__}; allowed: settings, or what builds one by seed"
    )
    on_gpu = str(source.get("device", "cpu")).startswith("cuda")
    return (_build_on_gpu if on_gpu else _build)(json.dumps(plain({**source, "seed": seed}), sort_keys=True))


def built_once(source: TaskSource) -> TaskSource:
    """The source with a memory, so that each seed's task is built once: loading a user's data may take long."""
    return lru_cache(maxsize=8)(source) if callable(source) else source


@lru_cache(maxsize=8)
def _build(description: str) -> Task:
    return tasks.build(json.loads(description))


_on_gpu: dict[str, Task] = {}


def _build_on_gpu(description: str) -> Task:
    """One at a time: the graphs a task has captured hold gigabytes of the device's memory."""
    if description not in _on_gpu:
        _on_gpu.clear()
        gc.collect()
        torch.cuda.empty_cache()
        _on_gpu[description] = tasks.build(json.loads(description))
    return _on_gpu[description]
