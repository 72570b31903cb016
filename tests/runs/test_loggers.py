"""What a logger shows is what the run's history has, and nothing needs a network or a package that is not there."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import acefl
from acefl import ACE, InvalidInput, Scenario, Stop, simulate, tasks
from acefl.cli import main
from acefl.probes import ErrorTerms, Participation
from acefl.runs.loggers import Logger, MLflow, TensorBoard, WandB
from acefl.runs.observers import Observer
from acefl.runs.record import Run

AXES = ("step", "arrival", "time")


def run(*observers: Any) -> Run:
    task = tasks.quadratic(clients=5, dim=4)
    stop = Stop(arrivals=60)
    return simulate(task, ACE(), lr=0.1, scenario=Scenario(spread=5.0), stop=stop, evaluations=3, observers=observers)


def known(row: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if name not in AXES and math.isfinite(value)}


def test_tensorboard_has_every_number_of_the_history_while_the_run_goes_on(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen_live: list[int] = []

    class Reader(Logger):
        def evaluated(self, row: dict[str, float]) -> None:
            reader = EventAccumulator(str(tmp_path))
            reader.Reload()
            seen_live.append(len(reader.Scalars("model/gap")))

    with TensorBoard(tmp_path) as log:
        finished = run(Participation(), ErrorTerms(every=10), log, Reader())
    assert seen_live == list(range(1, len(finished.metrics) + 1))
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    tags = reader.Tags()["scalars"]
    for tag in ("model/gap", "error/bias", "participation/influence_gini", "clients/worst_loss", "progress/time"):
        assert tag in tags
    for tag in tags:
        name = tag.partition("/")[2]
        expected = [(row["arrival"], row[name]) for row in finished.metrics if math.isfinite(row.get(name, math.nan))]
        shown = [(event.step, event.value) for event in reader.Scalars(tag)]
        assert [step for step, _ in shown] == [arrival for arrival, _ in expected]
        assert [value for _, value in shown] == pytest.approx([value for _, value in expected], rel=1e-6)
    names = {tag.partition("/")[2] for tag in tags}
    assert names == set().union(*map(known, finished.metrics)) | {"step", "time"}
    for name in ("influence", "staleness", "staleness_p90", "participation", "loss"):
        last = reader.Histograms(f"each client/{name}")[-1]
        values = [row[name] for row in finished.clients]
        assert last.step == finished.arrivals
        assert last.histogram_value.num == len(values)
        assert last.histogram_value.sum == pytest.approx(sum(values))


def test_weights_and_biases_gets_settings_numbers_and_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []
    fake = SimpleNamespace(
        config=SimpleNamespace(update=lambda config: calls.append(("config", config))),
        define_metric=lambda name, step_metric: calls.append(("axis", (name, step_metric))),
        log=lambda metrics: calls.append(("log", metrics)),  # with a step, W&B ignores what comes for an earlier one
        finish=lambda: calls.append(("finish", None)),
    )
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **s: calls.append(("init", s)) or fake))
    with WandB(project="p", mode="offline") as log:
        finished = run(log)
    assert calls[0] == ("init", {"project": "p", "mode": "offline"})
    assert calls[1] == ("axis", ("*", "arrival"))
    assert calls[2][1]["task.clients"] == 5
    assert calls[2][1]["method"] == "ACE"
    logged = [value for name, value in calls if name == "log"]
    for metrics, row in zip(logged, finished.metrics, strict=True):
        assert {name.rpartition("/")[2]: value for name, value in metrics.items()} == {
            **known(row),
            **{axis: row[axis] for axis in AXES},
        }
    assert calls[-1] == ("finish", None)


def test_mlflow_gets_settings_numbers_and_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []
    fake = SimpleNamespace(
        start_run=lambda **s: calls.append(("start", s)),
        log_params=lambda p: calls.append(("params", p)),
        log_metrics=lambda m, step: calls.append(("metrics", (m, step))),
        end_run=lambda: calls.append(("end", None)),
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    with MLflow(run_name="ace") as log:
        finished = run(log)
    assert [name for name, _ in calls] == ["start", "params", *["metrics"] * len(finished.metrics), "end"]
    assert calls[1][1]["scenario.spread"] == 5.0
    assert calls[-2][1][0]["model/gap"] == finished.final["gap"]


@pytest.mark.parametrize(
    ("logger", "package", "module"),
    [(WandB, "wandb", "wandb"), (MLflow, "mlflow", "mlflow"), (TensorBoard, "tensorboard", "torch.utils.tensorboard")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    logger: type[Logger], package: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    arguments: tuple[str, ...] = ("somewhere",) if logger is TensorBoard else ()
    with pytest.raises(InvalidInput, match=f"{package} is not installed; to log there: pip install"):
        logger(*arguments)


def test_logging_does_not_change_the_run(tmp_path: Path) -> None:
    with TensorBoard(tmp_path) as log:
        assert torch.equal(run().model, run(log).model)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_comparison_logs_every_reported_run_wherever_it_is_made(workers: int, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the tensorboard extra is not installed")
    settings: dict[str, Any] = {"stop": Stop(arrivals=20), "seeds": (0, 1), "workers": workers, "lr": 0.1}
    logger = f"TensorBoard(directory={str(tmp_path / 'logs')!r})"
    acefl.compare("quadratic(clients=4, dim=2)", [ACE()], logger=logger, out=tmp_path / "out", **settings)
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["ACE-seed0", "ACE-seed1"]
    assert all(list(path.glob("events.*")) for path in (tmp_path / "logs").iterdir())


def test_a_function_makes_an_observer_for_each_method_and_seed(tmp_path: Path) -> None:
    made: list[tuple[str, int]] = []

    class Counting(Observer):
        rows = 0

        def evaluated(self, row: dict[str, float]) -> None:
            Counting.rows += 1

    def watch(label: str, seed: int) -> Observer:
        made.append((label, seed))
        return Counting()

    how: dict[str, Any] = {"stop": Stop(arrivals=20), "seeds": (3, 4), "workers": 2, "evaluations": 2}
    acefl.compare("quadratic(clients=4, dim=2)", [ACE()], logger=watch, out=tmp_path / "out", **how)
    assert made == [("ACE", 3), ("ACE", 4)]  # and not for the rates that were tried
    assert Counting.rows == 2 * 3


def test_a_logger_is_named_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard", reason="the tensorboard extra is not installed")
    monkeypatch.chdir(tmp_path)
    small = ["--task", "quadratic", "--clients", "4", "--dim", "2", "--arrivals", "20", "--lr", "0.1"]
    assert main(["run", *small, "--logger", "tensorboard", "--out", "mine"]) == 0
    assert list(Path("acefl-logs/mine").glob("events.*"))
    assert main(["run", *small, "--logger", "tensorbord"]) == 2
    assert "logger is 'tensorbord'; allowed: tensorboard, wandb, mlflow" in capsys.readouterr().err
    assert main(["compare", *small, "--logger", "wandb(colour=1", "--out", "no"]) == 2
    assert not Path("no").exists()
