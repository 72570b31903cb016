"""Compiled gradients: the others' but for rounding, chosen by counts, recorded, and left out where they fail."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acefl import ASGD, InvalidInput, Scenario, Stop, tasks
from acefl.core import rng as keyed
from acefl.core.settings import plain
from acefl.runs import resume
from acefl.runs.simulate import simulation
from acefl.tasks import TorchTask, inductor, tracing

TOLERANCE = 1e-5  # of the largest entry, as TorchTask says
CLIENTS = 5


def noisy(inputs: dict[str, torch.Tensor], keys: torch.Tensor) -> dict[str, torch.Tensor]:
    """An `augment` that uses its keys."""
    noise = keyed.normal(keys, inputs["x"][0].numel(), inputs["x"].device)
    return {"x": inputs["x"] + 0.1 * noise.view_as(inputs["x"])}


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.outer(torch.relu(self.inner(x)))
        return output


def small(**settings: Any) -> TorchTask:
    torch.manual_seed(0)
    sizes = range(3, 3 + CLIENTS)
    data = [({"x": torch.randn(size, 6)}, torch.randint(3, (size,))) for size in sizes]
    return TorchTask(Small(), nn.CrossEntropyLoss(), data, batch=4, ridge=0.01, **settings)


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler is not called: what would be compiled is run as it is."""
    monkeypatch.setattr(inductor, "compiled", lambda graph, examples, any_number: lambda given: graph(*given)[0])


def test_compiled_gradients_are_those_of_one_call_for_all_and_repeat_to_the_bit() -> None:
    task = small(augment=noisy)
    compiled = task.for_run(0, True)
    assert compiled.compute.name == "compiled"
    for count in (1, 4, 9, 13, 21):
        models = task.initial() + 0.3 * torch.randn(count, len(task.initial()))
        clients, keys = [k % CLIENTS for k in range(count)], [keyed.key(7, k) for k in range(count)]
        expected, found = (one.updates(models, clients, keys) for one in (task, compiled))
        assert (found - expected).abs().max() <= TOLERANCE * expected.abs().max()
        assert torch.equal(found, compiled.updates(models, clients, keys))
        alone = [compiled.updates(models[k : k + 1], clients[k : k + 1], keys[k : k + 1])[0] for k in range(count)]
        assert torch.equal(found, torch.stack(alone))


def test_what_is_compiled_is_kept_and_loaded_without_the_compiler(tmp_path: Path) -> None:
    """In another process: the same bits, and torch's inductor is not even imported."""
    program = (
        "import sys, torch; from acefl.core import rng; from tests.tasks.test_compiled import small\n"
        "task = small(); found = task.for_run(0, True)\n"
        "assert found.compute.name == 'compiled'\n"
        "models = task.initial() + torch.arange(11.0)[:, None] / 7\n"
        "found = found.updates(models, [k % 5 for k in range(11)], [rng.key(k) for k in range(11)])\n"
        "print('torch._inductor.compile_fx' in sys.modules, found.numpy().tobytes().hex())"
    )
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program]
    first, second = (
        subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.split()
        for _ in range(2)
    )
    assert [first[0], second[0]] == ["True", "False"]
    assert first[1] == second[1]


def test_a_library_is_of_these_operations_shapes_constants_and_threads() -> None:
    def traced(factor: float, frozen: float, size: int, source: str = "") -> str:
        module = torch.nn.Module()
        module.register_buffer("frozen", torch.full((3,), frozen))

        def work(x: torch.Tensor) -> tuple[torch.Tensor]:
            return (factor * x + module.frozen,)

        x = torch.ones(size, 3)
        return inductor._fingerprint(tracing.traced(work, x), [x], source)

    usual = traced(2.0, 1.0, 4)
    assert usual == traced(2.0, 1.0, 4)
    others = {traced(3.0, 1.0, 4), traced(2.0, 0.5, 4), traced(2.0, 1.0, 5), traced(2.0, 1.0, 4, "C++")}
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        others.add(traced(2.0, 1.0, 4))
    finally:
        torch.set_num_threads(threads)
    assert len(others - {usual}) == 5


def test_compiled_gradients_follow_data_that_are_exchanged(instead: None) -> None:
    task = small()
    compiled = task.for_run(0, True)
    models, true = task.initial().repeat(CLIENTS, 1), task._data.targets
    task._data.targets = 2 - true
    whom = list(range(CLIENTS)), [keyed.key(8, k) for k in range(CLIENTS)]
    torch.testing.assert_close(compiled.updates(models, *whom), task.updates(models, *whom))


def test_what_the_compiler_takes_for_one_number_alone_is_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    data = [(torch.randn(4, 1, 4, 4), torch.randint(2, (4,))) for _ in range(CLIENTS)]
    task = TorchTask(model, nn.CrossEntropyLoss(), data, batch=4)
    assert task.for_run(0, True) is task
    assert "for a fixed number of models alone, as convolutions are" in caplog.text
    assert not (tmp_path / "acefl").exists()


@pytest.mark.parametrize(
    ("setting", "arrivals", "expected"),
    [
        ("auto", 99_999, "together"),
        ("auto", 100_000, "compiled"),
        (False, 10**9, "together"),
        (True, 1, "compiled"),
    ],
)
def test_auto_goes_by_the_number_of_gradients(instead: None, setting: str | bool, arrivals: int, expected: str) -> None:
    for stop in (Stop(arrivals=arrivals), Stop(arrivals=arrivals, steps=10**10), Stop(steps=arrivals)):
        run = simulation(small(compile=setting), ASGD(), lr=0.1, scenario=Scenario(), stop=stop)
        assert run.config["compute"]["strategy"] == expected


def test_a_long_run_leaves_the_task_as_it_was_for_a_short_one(instead: None) -> None:
    task = small()
    for arrivals, expected in ((200_000, "compiled"), (100, "together")):
        run = simulation(task, ASGD(), lr=0.1, scenario=Scenario(), stop=Stop(arrivals=arrivals))
        assert run.config["compute"]["strategy"] == expected


def turned(inputs: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """An `augment` whose minibatches lie in memory otherwise."""
    return inputs.transpose(-1, -2)


def test_minibatches_may_lie_in_memory_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does what was compiled for one order serve another."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    data = [(torch.randn(6, 3, 3), torch.randint(2, (6,))) for _ in range(CLIENTS)]
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 2))
    for augment in (turned, None):
        task = TorchTask(model, nn.CrossEntropyLoss(), data, batch=4, augment=augment)
        compiled = task.for_run(0, True)
        assert compiled.compute.name == "compiled"
        models, clients, keys = task.initial().repeat(5, 1), list(range(5)), list(range(5))
        expected, found = (one.updates(models, clients, keys) for one in (task, compiled))
        assert (found - expected).abs().max() <= TOLERANCE * expected.abs().max()


@pytest.mark.parametrize("strategy", ["compiled", "compiled cuda-graph", "compiled adapters, cuda-graph"])
def test_a_run_that_was_compiled_resumes_compiled(
    instead: None, strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And where that is another strategy, a line says it."""
    began = simulation(
        tasks.digits(clients=CLIENTS), ASGD(), lr=0.1, scenario=Scenario(), stop=Stop(arrivals=9), compiled=True
    )
    config = plain(began.config)
    config["compute"]["strategy"] = strategy
    resumed = resume._build({"config": config, "observers": [], "evaluations": 1}, None, None, ())
    assert isinstance(resumed.task, TorchTask)
    assert resumed.task.compute.name == "compiled"
    assert ("resumed with gradients computed by" in caplog.text) == (strategy != "compiled")


@pytest.mark.parametrize("used", [False, True])
def test_a_resumed_run_uses_what_the_run_used(instead: None, used: bool) -> None:
    task = tasks.digits(clients=CLIENTS)
    stop = Stop(arrivals=200_000 if not used else 100)
    began = simulation(task, ASGD(), lr=0.1, scenario=Scenario(), stop=stop, compiled=used)
    settings = {"config": plain(began.config), "observers": [], "evaluations": 1}
    resumed = resume._build(settings, None, None, ())
    assert isinstance(resumed.task, TorchTask)
    assert resumed.task.compute.name == ("compiled" if used else "together")


def test_what_cannot_be_compiled_is_not_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*given: Any, any_number: bool) -> Any:
        raise RuntimeError("no C++ compiler found\nand a long story")

    monkeypatch.setattr(inductor, "compiled", broken)
    task = small(compile=True)
    with caplog.at_level(logging.WARNING):
        assert task.for_run(1) is task
    assert [record.getMessage() for record in caplog.records] == [
        "gradients are not compiled: no C++ compiler found and a long story"
    ]


def test_a_line_says_so_where_gradients_are_computed_in_a_way_that_is_not_compiled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = small(compile=True, compute="one-by-one")
    with caplog.at_level(logging.WARNING):
        assert task.for_run(1) is task
    assert [record.getMessage() for record in caplog.records] == [
        "gradients are not compiled: they are computed one-by-one"
    ]


def test_a_choice_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="compile is 'always'; allowed: auto, True, False"):
        small(compile="always")
