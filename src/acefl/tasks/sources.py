"""A task for every seed: from settings, from the name of a function of one's own, or from the function itself."""

from __future__ import annotations

import gc
import inspect
import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, cast

import torch

from acefl import tasks
from acefl.core.errors import InvalidInput, require
from acefl.core.own import is_own, parse_own
from acefl.core.settings import parse_call, plain
from acefl.tasks import own
from acefl.tasks.base import Task

# What a person types, settings with a `name`, or what builds the task for a seed
TaskSource = str | Mapping[str, Any] | Callable[..., Task]


def parse_task(text: str) -> dict[str, Any]:
    """Settings from what a person types: `digits(clients=50)`, or `mypkg.mymodule:make_task(batch=8)` for one's own."""
    if is_own(text):
        name, settings = parse_own(text, "task")
    else:
        called = parse_call(text)
        if called is None:
            raise InvalidInput(f"unknown task {text!r}; allowed: {', '.join(tasks.TASKS)}, or your own as module:name")
        name, settings = called
    require("name" not in settings, f"task {text!r} has a setting 'name'; allowed: other ones")
    return {"name": name, **settings}


def build_task(source: TaskSource, seed: int) -> Task:
    """The task for a seed; one that is described by settings is built once per process.

    Settings come from a person, so a name with a colon is imported. For those of a record there is `tasks.build`,
    which imports nothing.
    """
    if isinstance(source, str):
        source = parse_task(source)
    if callable(source):
        return _call(source, seed)
    require(
        isinstance(source, Mapping), f"task is {type(source).__name__}; allowed: settings, or what builds one by seed"
    )
    for key, value in source.items():
        good = not isinstance(value, float) or math.isfinite(value)
        require(good, f"{key} is {value}; allowed: a finite number")
    on_gpu = str(source.get("device", "cpu")).startswith("cuda")
    return (_build_on_gpu if on_gpu else _build)(json.dumps(plain(dict(source)), sort_keys=True), seed)


def task_for(given: Task | TaskSource, seed: int) -> Task:
    """What is a task already, as it is; the rest built for the seed."""
    return cast(Task, given) if hasattr(given, "updates") else build_task(given, seed)


def built_once(source: TaskSource) -> Mapping[str, Any] | Callable[..., Task]:
    """The source with a memory, so that each seed's task is built once: loading a user's data may take long."""
    if isinstance(source, str):
        return parse_task(source)
    return lru_cache(maxsize=8)(source) if callable(source) else source


def describe(source: TaskSource, built: Task) -> dict[str, Any]:
    """What a study records of its task: the settings, which hold for every seed; of one's own, what it says itself."""
    if callable(source) or isinstance(source, str) or is_own(str(source.get("name"))):
        return built.describe()
    return dict(source)


def check_task(settings: Mapping[str, Any]) -> None:
    """Refuse a name or settings that no such task has, without loading any data."""
    name = str(settings.get("name"))
    if is_own(name):
        own.check(*_place(settings))
        return
    require(name in tasks.TASKS, f"unknown task {name!r}; allowed: {', '.join(tasks.TASKS)}")
    allowed = [key for key in inspect.signature(tasks.TASKS[name]).parameters if key != "seed"]
    for key in settings:
        good = key in (*allowed, "name", "attack")
        require(good, f"task {name} has no setting {key!r}; allowed: {', '.join(allowed)}")


def _call(source: Callable[..., Task], seed: int) -> Task:
    try:
        parameters = inspect.signature(source).parameters
    except ValueError:  # a callable that says nothing of itself
        return source(seed)
    if "seed" in parameters:
        return source(seed=seed)
    return source(seed) if parameters else source()


@lru_cache(maxsize=8)
def _build(description: str, seed: int) -> Task:
    return _made(json.loads(description), seed)


_on_gpu: dict[tuple[str, int], Task] = {}


def _build_on_gpu(description: str, seed: int) -> Task:
    """One at a time: the graphs a task has captured hold gigabytes of the device's memory."""
    key = description, seed
    if key not in _on_gpu:
        _on_gpu.clear()
        gc.collect()
        torch.cuda.empty_cache()
        _on_gpu[key] = _made(json.loads(description), seed)
    return _on_gpu[key]


def _made(settings: dict[str, Any], seed: int) -> Task:
    if not is_own(str(settings.get("name"))):
        return tasks.build({**settings, "seed": seed})
    place, given = _place(settings)
    made = tasks.with_attack(own.make(place, given, seed), settings.get("attack"))
    return own.OwnTask(made, own.as_typed(place, given))


def _place(settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Where the function is, and what it is called with."""
    place, _ = parse_own(str(settings["name"]), "task")
    return place, {key: value for key, value in settings.items() if key not in ("name", "attack")}
