"""A user's own metrics: of all outputs at once, overall, per client and held out, whichever way they are better."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, r2_score
from torch import nn
from torch.nn import functional as F

from acefl import ACE, InvalidInput, Scenario, Stop, simulate, tasks
from acefl.core.settings import plain
from acefl.fleets.scenario import slowest
from acefl.tasks import Metric, TorchTask
from acefl.tasks.attacks import attacked

SIZES, TESTS, FEATURES, CLASSES = (30, 7, 1, 22, 9), (8, 5, 4, 11, 6), 6, 3
Pair = tuple[torch.Tensor, torch.Tensor]


def macro_f1(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return float(f1_score(targets, outputs.argmax(1), average="macro", zero_division=0.0))


def error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(1) != targets).double().mean()


def pairs(sizes: tuple[int, ...], seed: int) -> list[Pair]:
    draw = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, FEATURES, generator=draw), torch.randint(CLASSES, (n,), generator=draw)) for n in sizes]


def classifier(metrics: Any, *, held_out: bool = True, test: bool = True, **settings: Any) -> TorchTask:
    torch.manual_seed(0)
    return TorchTask(
        nn.Linear(FEATURES, CLASSES),
        nn.CrossEntropyLoss(),
        pairs(SIZES, 1),
        test=pairs((40,), 2)[0] if test else None,
        client_tests=pairs(TESTS, 3) if held_out else None,
        batch=4,
        metrics=metrics,
        **settings,
    )


def outputs_of(task: TorchTask, data: Pair) -> Pair:
    with torch.no_grad():
        return task.module(task.initial())(data[0]), data[1]


@pytest.mark.parametrize("evaluation_batch", [1, 5, 4096])
def test_a_metric_is_of_all_outputs_whatever_the_evaluation_batch(evaluation_batch: int) -> None:
    task = classifier({"f1": macro_f1}, evaluation_batch=evaluation_batch)
    found = task.evaluate(task.initial())
    assert found.metrics["f1"] == pytest.approx(macro_f1(*outputs_of(task, pairs((40,), 2)[0])))
    own = [macro_f1(*outputs_of(task, data)) for data in pairs(SIZES, 1)]
    held = [macro_f1(*outputs_of(task, data)) for data in pairs(TESTS, 3)]
    np.testing.assert_allclose(found.client_metrics["f1"], own)
    np.testing.assert_allclose(found.client_metrics["heldout_f1"], held)
    assert found.metrics["client_f1"] == pytest.approx(np.mean(own))
    assert found.metrics["heldout_client_f1"] == pytest.approx(np.mean(held))
    assert found.better == {"f1": "larger"}


def test_without_a_test_set_it_is_of_all_clients_data_together() -> None:
    task = classifier({"f1": macro_f1}, test=False, held_out=False, evaluation_batch=7)
    together = tuple(torch.cat(parts) for parts in zip(*pairs(SIZES, 1), strict=True))
    found = task.evaluate(task.initial())
    assert found.metrics["f1"] == pytest.approx(macro_f1(*outputs_of(task, together)))
    assert set(found.client_metrics) == {"f1"}, "nothing is held out"


@pytest.mark.parametrize("evaluation_batch", [3, 4096])
def test_objects_of_torchmetrics_are_the_same_metric_and_stay_as_they_are(evaluation_batch: int) -> None:
    classification = pytest.importorskip("torchmetrics.classification")
    given = classification.MulticlassF1Score(CLASSES, average="macro")
    wrong = classification.MulticlassHammingDistance(CLASSES, average="micro")
    task = classifier({"theirs": given, "ours": macro_f1, "wrong": wrong}, evaluation_batch=evaluation_batch)
    found = task.evaluate(task.initial())
    again = task.evaluate(task.initial())
    for name in ("", "client_", "heldout_client_"):
        assert again.metrics[f"{name}theirs"] == found.metrics[f"{name}theirs"]
    assert found.metrics["wrong"] == pytest.approx(1 - found.metrics["accuracy"])
    assert found.better == {"theirs": "larger", "ours": "larger", "wrong": "smaller"}
    # torchmetrics leaves out classes that are nowhere, sklearn counts them as 0: alike where all are there
    assert found.metrics["theirs"] == pytest.approx(found.metrics["ours"], rel=1e-6)
    assert not given.update_called


def test_history_clients_and_final_have_it_for_the_slow_the_fast_and_the_worst_served() -> None:
    metrics = {"f1": macro_f1, "error": Metric(error, smaller_is_better=True)}
    run = simulate(classifier(metrics), ACE(), lr=0.2, scenario=Scenario(spread=9.0), stop=Stop(arrivals=20))
    slow = slowest([row["mean_time"] for row in run.clients])
    for held in ("", "heldout_"):
        for name, worst in (("f1", min), ("error", max)):
            own = [row[f"{held}{name}"] for row in run.clients]
            assert run.final[f"{held}slow_{name}"] == pytest.approx(np.mean([own[client] for client in slow]))
            assert run.final[f"{held}worst_{name}"] == pytest.approx(worst(own))
            assert f"{held}fast_{name}" in run.history
    assert run.config["better"] == {"f1": "larger", "error": "smaller"}
    assert plain(run.config["task"])["metrics"]["f1"].endswith("macro_f1")


def test_a_client_without_a_score_is_left_out_and_counted() -> None:
    def of_many(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float(len(targets)) if len(targets) > 8 else math.nan

    run = simulate(classifier({"many": of_many}), ACE(), lr=0.2, stop=Stop(arrivals=5), evaluations=1)
    assert run.final["client_many"] == pytest.approx(np.mean([30, 22, 9]))
    assert (run.final["unscored_many"], run.final["heldout_unscored_many"]) == (2, 4)
    assert "unscored_clients" not in run.final


def test_wrappers_of_a_task_keep_its_metrics() -> None:
    task = attacked(classifier({"f1": macro_f1}), "sign-flip", fraction=0.2)
    assert simulate(task, ACE(), lr=0.1, stop=Stop(arrivals=3)).config["better"] == {"f1": "larger"}


def test_a_model_that_diverged_is_no_fault_of_the_metric() -> None:
    """sklearn refuses numbers that are not finite."""

    def strict(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        if not outputs.isfinite().all():
            raise ValueError("Input contains NaN")
        return 1.0

    task = classifier({"strict": strict})
    found = task.evaluate(torch.full_like(task.initial(), math.nan))
    assert math.isnan(found.metrics["strict"])
    assert found.client_metrics["strict"].isnan().all()
    assert simulate(task, ACE(), lr=1e38, stop=Stop(arrivals=300), evaluations=3).diverged


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"accuracy": macro_f1}, "a metric is named 'accuracy', as columns of acefl's own are"),
        ({"slow_f1": macro_f1}, "a metric is named 'slow_f1', as columns of acefl's own are"),
        ({"participation": macro_f1}, "a metric is named 'participation', as columns"),
        ({"a=b": macro_f1}, "a metric is named 'a=b'; allowed: a word such as f1"),
        ({"f1": 3}, "metric 'f1' is 3; allowed: a function of outputs and targets"),
        ({"f1": nn.MSELoss}, "metric 'f1' is <class .*; allowed: a function"),
        ([macro_f1], "metrics is .*; allowed: metrics by name"),
    ],
)
def test_what_is_no_metric_is_refused_in_one_line(metrics: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        classifier(metrics)


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (
            lambda outputs, targets: outputs.sum(0),
            r"metric 'f1' gave a Tensor of shape \(3,\) for client 0; allowed: one",
        ),
        (lambda outputs, targets: {"f1": 1.0}, "metric 'f1' gave a dict for client 0; allowed: one number"),
        (lambda outputs, targets: None, "metric 'f1' gave a NoneType for client 0; allowed: one number"),
        (
            lambda outputs, targets: 1 / 0,
            "metric 'f1' failed on client 0 .ZeroDivisionError: division by zero.; allowed",
        ),
    ],
)
def test_a_metric_that_gives_no_number_is_named(metric: Any, said: str) -> None:
    task = classifier({"f1": metric})
    with pytest.raises(InvalidInput, match=said):
        task.evaluate(task.initial())


def test_a_metric_that_does_not_say_which_way_is_asked() -> None:
    aggregation = pytest.importorskip("torchmetrics.aggregation")
    with pytest.raises(InvalidInput, match=r"'mean' does not say which way it is better; allowed: tasks.Metric"):
        classifier({"mean": aggregation.MeanMetric()})


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.L1Loss(), F.mse_loss, F.smooth_l1_loss])
@pytest.mark.parametrize("evaluation_batch", [3, 4096])
def test_a_regression_has_rmse_and_r2_of_its_own(loss: Any, evaluation_batch: int) -> None:
    draw = torch.Generator().manual_seed(5)
    data = [(torch.randn(n, FEATURES, generator=draw), 100 + torch.randn(n, 2, generator=draw)) for n in (20, 1, 12)]
    task = TorchTask(nn.Linear(FEATURES, 2), loss, data, evaluation_batch=evaluation_batch)
    found = task.evaluate(task.initial())
    own = [outputs_of(task, one) for one in data]
    together = tuple(torch.cat(parts) for parts in zip(*own, strict=True))
    assert found.metrics["r2"] == pytest.approx(r2_score(together[1], together[0]), rel=1e-4)
    assert found.metrics["rmse"] == pytest.approx(float(F.mse_loss(*together)) ** 0.5, rel=1e-5)
    assert found.client_metrics["rmse"][2].item() == pytest.approx(float(F.mse_loss(*own[2])) ** 0.5, rel=1e-5)
    assert math.isnan(found.client_metrics["r2"][1]), "one sample has no variance to explain"
    assert found.better == {"rmse": "smaller", "r2": "larger"}
    assert "accuracy" not in found.metrics


@pytest.mark.parametrize("evaluation_batch", [3, 4096])
def test_yes_or_no_targets_have_f1_over_all_labels(evaluation_batch: int) -> None:
    draw = torch.Generator().manual_seed(5)
    data = [
        (torch.randn(n, FEATURES, generator=draw), (torch.rand(n, 4, generator=draw) < 0.4).float()) for n in (20, 12)
    ]
    task = TorchTask(nn.Linear(FEATURES, 4), nn.BCEWithLogitsLoss(), data, evaluation_batch=evaluation_batch)
    found = task.evaluate(task.initial())
    for client, one in enumerate(data):
        outputs, targets = outputs_of(task, one)
        expected = f1_score(targets, outputs > 0, average="micro")
        assert found.client_metrics["f1"][client].item() == pytest.approx(expected)
    assert "accuracy" not in found.metrics
    soft = TorchTask(nn.Linear(FEATURES, 4), nn.BCEWithLogitsLoss(), [(x, 0.5 * y) for x, y in data])
    assert soft.evaluate(soft.initial()).client_metrics == {}, "shares are neither yes nor no"


def test_given_metrics_stand_in_place_of_the_usual_ones() -> None:
    data = [(torch.randn(9, FEATURES), torch.randn(9, 1))]
    mae = Metric(lambda outputs, targets: (outputs - targets).abs().mean(), smaller_is_better=True)
    task = TorchTask(nn.Linear(FEATURES, 1), nn.MSELoss(), data, metrics={"mae": mae})
    assert task.evaluate(task.initial()).better == {"mae": "smaller"}
    none = TorchTask(nn.Linear(FEATURES, 1), nn.MSELoss(), data, metrics={})
    assert none.evaluate(none.initial()).better == {}


def test_labels_have_no_other_metric_unless_asked() -> None:
    task = tasks.digits(clients=4)
    assert task.evaluate(task.initial()).better == {}
