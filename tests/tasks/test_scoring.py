"""The reported numbers are the user's: losses against plain float64 calls, held-out scores against plain loops."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from acefl import ACE, Stop, simulate
from acefl.core.errors import InvalidInput
from acefl.tasks import TorchTask, batch_statistics, digits
from acefl.tasks.scoring import BatchLoss, LabelMix, even_pieces, regroup

SIZES, TEST, BATCH = (9, 4, 37, 1), 23, 5
CLASSES, FEATURES, TOKENS, PADDING = 4, 6, 7, 0
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def dice(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """One minus the overlap of a mask: a ratio of sums over the whole batch."""
    said = output.sigmoid()
    return 1 - 2 * (said * targets).sum() / (said.sum() + targets.sum())


def summed(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Adds up, and has no attribute that says so."""
    return (output - targets).abs().sum()


def focal(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A mean over samples that torch knows nothing of."""
    own = F.cross_entropy(output, targets, reduction="none")
    return ((1 - (-own).exp()) ** 2 * own).mean()


@dataclass(frozen=True)
class Case:
    """A loss with targets that fit it. `sums`: reported for a batch of the training size."""

    loss: Loss
    targets: Callable[[int, torch.Generator], torch.Tensor]
    outputs: tuple[int, ...] = (CLASSES,)
    sums: bool = False


def labels(count: int, draw: torch.Generator) -> torch.Tensor:
    return torch.randint(CLASSES, (count,), generator=draw)


def numbers(count: int, draw: torch.Generator) -> torch.Tensor:
    return torch.randn(count, CLASSES, generator=draw)


def masks(count: int, draw: torch.Generator) -> torch.Tensor:
    return (torch.rand(count, CLASSES, generator=draw) < 0.3).float()


def sentences(count: int, draw: torch.Generator) -> torch.Tensor:
    """Padded at the end, every fourth wholly: but the only one of a client is not."""
    tokens = torch.randint(1, CLASSES, (count, TOKENS), generator=draw)
    lengths = torch.randint(1, TOKENS + 1, (count, 1), generator=draw)
    lengths[1::4] = 0
    return torch.where(torch.arange(TOKENS) < lengths, tokens, PADDING)


def some_ignored(count: int, draw: torch.Generator) -> torch.Tensor:
    found = labels(count, draw)
    found[1::3] = -100
    return found


WEIGHTS = torch.tensor([0.1, 1.0, 3.0, 10.0])
CASES = {
    "cross-entropy": Case(nn.CrossEntropyLoss(), labels),
    "cross-entropy-as-a-function": Case(F.cross_entropy, labels),
    "cross-entropy-in-a-closure": Case(lambda output, targets: F.cross_entropy(output, targets), labels),
    "class-weights": Case(nn.CrossEntropyLoss(weight=WEIGHTS), labels),
    "class-weights-smoothed": Case(nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.2), labels),
    "label-smoothing": Case(nn.CrossEntropyLoss(label_smoothing=0.2), labels),
    "some-ignored": Case(nn.CrossEntropyLoss(), some_ignored),
    "some-ignored-function": Case(F.cross_entropy, some_ignored),
    "sum": Case(nn.CrossEntropyLoss(reduction="sum"), labels, sums=True),
    "sum-with-class-weights": Case(nn.CrossEntropyLoss(weight=WEIGHTS, reduction="sum"), labels, sums=True),
    "sum-in-a-closure": Case(summed, numbers, sums=True),
    "sum-in-a-partial": Case(functools.partial(F.mse_loss, reduction="sum"), numbers, sums=True),
    "squares": Case(nn.MSELoss(), numbers),
    "squares-as-a-function": Case(F.mse_loss, numbers),
    "squares-that-broadcast": Case(nn.MSELoss(), lambda n, draw: torch.randn(n, generator=draw), outputs=(1,)),
    "multi-label": Case(nn.BCEWithLogitsLoss(), masks),
    "multi-label-weighted": Case(nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), masks),
    "dice": Case(dice, masks),
    "focal": Case(focal, labels),
    "padded": Case(nn.CrossEntropyLoss(ignore_index=PADDING), sentences, outputs=(CLASSES, TOKENS)),
    "padded-closure": Case(
        lambda output, targets: F.cross_entropy(output, targets, ignore_index=PADDING), sentences, (CLASSES, TOKENS)
    ),
}
pytestmark = pytest.mark.filterwarnings("ignore:Using a target size")  # torch on what broadcasts
every_loss = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def network(case: Case) -> nn.Module:
    torch.manual_seed(3)
    wide = int(np.prod(case.outputs))
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, wide), nn.Unflatten(1, case.outputs))


def data_of(case: Case, seed: int = 1) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], Any]:
    draw = torch.Generator().manual_seed(seed)
    pairs = [(torch.randn(n, FEATURES, generator=draw), case.targets(n, draw)) for n in (*SIZES, TEST)]
    return pairs[:-1], pairs[-1]


def task_of(case: Case, **settings: Any) -> TorchTask:
    clients, test = data_of(case)
    return TorchTask(network(case), case.loss, clients, test=test, batch=BATCH, **settings)


def oracle(case: Case, data: tuple[torch.Tensor, torch.Tensor], module: nn.Module | None = None) -> float:
    """The loss, called once on all of it, in double precision."""
    inputs, targets = data
    loss = case.loss
    if isinstance(loss, nn.Module):
        loss = copy.deepcopy(loss).double()
    wanted = targets.double() if targets.is_floating_point() else targets
    with torch.no_grad():
        value = float(loss((module or network(case)).double()(inputs.double()), wanted))
    return value * BATCH / len(targets) if case.sums else value


@every_loss
def test_a_clients_loss_is_the_loss_called_on_its_data(case: Case) -> None:
    clients, _ = data_of(case)
    task = task_of(case)
    found = task.evaluate(task.initial())
    wanted = [oracle(case, own) for own in clients]
    np.testing.assert_allclose(found.client_loss, wanted, rtol=2e-5)
    assert found.metrics["client_loss"] == pytest.approx(np.mean(wanted), rel=2e-5)


@every_loss
def test_the_test_sets_loss_is_the_loss_called_on_it(case: Case) -> None:
    task = task_of(case)
    assert task.evaluate(task.initial()).metrics["loss"] == pytest.approx(oracle(case, data_of(case)[1]), rel=2e-5)


@every_loss
def test_how_many_samples_a_forward_pass_takes_does_not_matter_below_a_clients_data(case: Case) -> None:
    """Outputs of 51 samples in two parts, cut inside a client, against all at once."""
    whole, cut = task_of(case), task_of(case, evaluation_batch=max(SIZES))
    expected, found = whole.evaluate(whole.initial()), cut.evaluate(cut.initial())
    torch.testing.assert_close(found.client_loss, expected.client_loss, rtol=1e-5, atol=1e-6)


def test_more_data_than_a_call_takes_are_averaged_by_their_pieces() -> None:
    case = CASES["dice"]
    inputs, targets = data_of(case)[0][2]
    task = TorchTask(network(case), case.loss, [(inputs, targets)], batch=BATCH, evaluation_batch=15)
    pieces = [13, 13, 11]  # of 37: even, and none above 15
    values = [oracle(case, pair) for pair in zip(inputs.split(pieces), targets.split(pieces), strict=True)]
    wanted = np.average(values, weights=pieces)
    assert float(task.evaluate(task.initial()).client_loss[0]) == pytest.approx(wanted, rel=2e-5)


@pytest.mark.parametrize(("known", "closure"), [("cross-entropy", "cross-entropy-in-a-closure"), ("squares", None)])
def test_the_quick_way_for_means_over_samples_is_the_general_one(known: str, closure: str | None) -> None:
    quick = CASES[known]
    general = CASES[closure] if closure else Case(lambda o, t: F.mse_loss(o, t), quick.targets)
    one, other = task_of(quick), task_of(general)
    assert one._own.averages
    assert not other._own.averages
    expected, found = one.evaluate(one.initial()), other.evaluate(other.initial())
    for name in ("client_loss", "client_accuracy", "heldout_loss", "heldout_accuracy"):
        here, there = getattr(found, name), getattr(expected, name)
        assert (here is None) == (there is None)
        if here is not None:
            torch.testing.assert_close(here, there, rtol=1e-6, atol=1e-7)
    assert found.metrics == pytest.approx({name: expected.metrics[name] for name in found.metrics}, rel=1e-6)


@pytest.mark.parametrize("name", ["padded", "padded-closure", "some-ignored"])
def test_data_in_which_nothing_counts_stop_no_run(name: str) -> None:
    case = CASES[name]
    clients, test = data_of(case)
    inputs, targets = clients[0]
    ignored = torch.full_like(targets, PADDING if name.startswith("padded") else -100)
    clients[0] = inputs, ignored
    task = TorchTask(network(case), case.loss, clients, test=test, batch=BATCH)
    found = task.evaluate(task.initial())
    assert found.client_loss.isnan().tolist() == [True, False, False, False]
    wanted = np.mean([oracle(case, own) for own in clients[1:]])
    assert found.metrics["client_loss"] == pytest.approx(wanted, rel=2e-5)
    run = simulate(task, ACE(warmup="seen"), lr=0.01, stop=Stop(arrivals=20), evaluations=2)
    assert not run.diverged
    assert run.final["unscored_clients"] == 1
    assert run.final["slow_loss"] == run.clients[-1]["loss"]
    assert run.final["worst_loss"] == max(client["loss"] for client in run.clients[1:])


def test_a_piece_in_which_nothing_counts_is_left_out_of_the_mean() -> None:
    case = CASES["padded"]
    inputs, targets = data_of(case)[0][2]
    targets[:12] = PADDING
    task = TorchTask(network(case), case.loss, [(inputs, targets)], batch=BATCH, evaluation_batch=13)
    rest = [oracle(case, (inputs[13:26], targets[13:26])), oracle(case, (inputs[26:], targets[26:]))]
    targets[12] = PADDING
    task = TorchTask(network(case), case.loss, [(inputs, targets)], batch=BATCH, evaluation_batch=13)
    found = float(task.evaluate(task.initial()).client_loss[0])
    assert found == pytest.approx(np.average(rest, weights=[13, 11]), rel=2e-5)


@pytest.mark.parametrize("name", ["class-weights", "dice", "padded", "cross-entropy"])
def test_a_model_that_is_not_finite_is_never_taken_for_padding(name: str) -> None:
    task = task_of(CASES[name])
    broken = torch.full_like(task.initial(), torch.nan)
    assert not np.isfinite(task.evaluate(broken).metrics["client_loss"])


def test_targets_that_are_not_finite_are_never_taken_for_padding() -> None:
    case = CASES["squares-as-a-function"]
    clients, _ = data_of(case)
    clients[1][1][:] = torch.nan
    task = TorchTask(network(case), lambda o, t: F.mse_loss(o, t), clients)
    with pytest.raises(InvalidInput, match="clients with such data: 1"):
        simulate(task, ACE(), lr=0.1, stop=Stop(arrivals=10))


@every_loss
def test_the_exact_gradient_is_that_of_the_reported_loss(case: Case) -> None:
    """Central differences in double precision, along a random direction."""
    clients, _ = data_of(case)
    task = task_of(case, ridge=0.1)
    model = task.initial()
    direction = torch.randn(len(model), generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def loss_at(shift: float, client: int) -> float:
        flat = model.double() + shift * direction
        module = network(case).double()
        nn.utils.vector_to_parameters(flat, module.parameters())
        return oracle(case, clients[client], module) + 0.05 * float(flat @ flat)

    slopes = [(loss_at(1e-5, client) - loss_at(-1e-5, client)) / 2e-5 for client in range(len(SIZES))]
    exact = task.client_gradients(model.repeat(len(SIZES), 1), list(range(len(SIZES))))
    np.testing.assert_allclose(exact.double() @ direction, slopes, rtol=1e-3, atol=1e-4)
    assert float(task.mean_gradient(model).double() @ direction) == pytest.approx(np.mean(slopes), rel=1e-3, abs=1e-4)


def test_batch_statistics_are_still_those_of_a_forward_pass() -> None:
    case = CASES["class-weights"]
    clients, test = data_of(case)
    module = batch_statistics(nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES)))
    task = TorchTask(module, case.loss, clients, test=test, batch=BATCH)
    inputs = torch.cat([own for own, _ in clients])
    with torch.no_grad():
        outputs = task.module(task.initial()).train()(inputs).split(SIZES)
    wanted = [float(case.loss(output, targets)) for output, (_, targets) in zip(outputs, clients, strict=True)]
    np.testing.assert_allclose(task.evaluate(task.initial()).client_loss, wanted, rtol=1e-5)


@given(st.integers(1, 300), st.integers(1, 40))
def test_pieces_are_few_even_and_lose_nothing(count: int, limit: int) -> None:
    sizes = even_pieces(count, limit)
    assert sum(sizes) == count
    assert max(sizes) <= limit
    assert len(sizes) <= -(-count // limit)
    assert len(set(sizes[:-1])) <= 1


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_regrouping_keeps_the_order(parts: list[int], wanted: list[int]) -> None:
    total = sum(parts)
    while sum(wanted) > total:
        wanted.pop()
    rows = torch.arange(total)
    came = [(part, -part) for part in rows.split(parts)]
    cut = list(regroup(came, wanted))
    assert [len(outputs) for outputs, _ in cut] == wanted
    if cut:
        assert torch.cat([outputs for outputs, _ in cut]).equal(rows[: sum(wanted)])
        assert torch.cat([targets for _, targets in cut]).equal(-rows[: sum(wanted)])


# Held-out scores


def by_label_mix(case: Case, task: TorchTask) -> tuple[list[float], list[float]]:
    """Accuracy and loss of the test samples, each counted by its client's share of its class: plain loops."""
    clients, (inputs, targets) = data_of(case)
    with torch.no_grad():
        outputs = task.module(task.initial())(inputs).double()
    accuracies, losses = [], []
    for _, own in clients:
        weight = torch.zeros(len(targets), dtype=torch.float64)
        for label in targets.unique():
            weight[targets == label] = float((own == label).sum()) / int((targets == label).sum())
        right = (outputs.argmax(1) == targets).double()
        accuracies.append(float((weight * right).sum() / weight.sum()))
        each = F.cross_entropy(outputs, targets, reduction="none")
        important = weight * (WEIGHTS.double()[targets] if case is CASES["class-weights"] else 1.0)
        losses.append(float((important * each).sum() / important.sum()))
    return accuracies, losses


@pytest.mark.parametrize("name", ["cross-entropy", "class-weights", "cross-entropy-in-a-closure"])
def test_held_out_scores_are_of_the_test_set_in_the_clients_label_mix(name: str) -> None:
    case = CASES[name]
    task = task_of(case)
    found = task.evaluate(task.initial())
    accuracies, losses = by_label_mix(case, task)
    assert found.heldout_accuracy is not None
    assert found.heldout_loss is not None
    np.testing.assert_allclose(found.heldout_accuracy, accuracies, rtol=1e-6)
    np.testing.assert_allclose(found.heldout_loss, losses, rtol=2e-5)
    assert found.metrics["heldout_client_accuracy"] == pytest.approx(np.mean(accuracies))
    assert found.metrics["heldout_client_loss"] == pytest.approx(np.mean(losses), rel=2e-5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=9), min_size=1, max_size=6), st.randoms())
def test_a_client_whose_mix_is_that_of_the_test_set_has_its_scores(own: list[list[int]], random: Any) -> None:
    """A client with the test set's own labels, in any order, whatever the others have."""
    draw = torch.Generator().manual_seed(1)
    test = torch.tensor([label for labels in own for label in labels])
    mixed = test[torch.tensor(random.sample(range(len(test)), len(test)))]
    targets = [torch.tensor(labels) for labels in own] + [mixed]
    clients = [(torch.randn(len(labels), FEATURES, generator=draw), labels) for labels in targets]
    module = nn.Linear(FEATURES, 6)
    held = torch.randn(len(test), FEATURES, generator=draw), test
    task = TorchTask(module, nn.CrossEntropyLoss(), clients, test=held, ridge=1.0)
    found = task.evaluate(task.initial())
    assert found.heldout_accuracy is not None
    assert found.heldout_loss is not None
    assert float(found.heldout_accuracy[-1]) == pytest.approx(found.metrics["accuracy"], rel=1e-6)
    assert float(found.heldout_loss[-1]) == pytest.approx(found.metrics["loss"], rel=1e-5)


def test_classes_that_the_test_set_lacks_are_left_out_and_a_client_with_no_others_has_no_score() -> None:
    draw = torch.Generator().manual_seed(2)
    targets = [torch.tensor([0, 0, 0, 1, 5]), torch.tensor([5, 5]), torch.tensor([1])]
    clients = [(torch.randn(len(own), FEATURES, generator=draw), own) for own in targets]
    test = torch.randn(40, FEATURES, generator=draw), torch.arange(40) % 3
    task = TorchTask(nn.Linear(FEATURES, 6), nn.CrossEntropyLoss(), clients, test=test)
    found = task.evaluate(task.initial())
    with torch.no_grad():
        outputs = task.module(task.initial())(test[0])
    right = (outputs.argmax(1) == test[1]).float()
    zero, one = (float(right[test[1] == label].mean()) for label in (0, 1))
    assert found.heldout_accuracy is not None
    np.testing.assert_allclose(found.heldout_accuracy, [0.75 * zero + 0.25 * one, np.nan, one], rtol=1e-6)
    run = simulate(task, ACE(), lr=0.1, stop=Stop(arrivals=9), evaluations=1)
    assert run.final["heldout_unscored_clients"] == 1
    first = [run.clients[0]["heldout_accuracy"], run.clients[2]["heldout_accuracy"]]
    assert run.final["heldout_client_accuracy"] == pytest.approx(np.mean(first))
    assert run.final["heldout_worst_accuracy"] == min(first)


def test_a_clients_own_test_data_come_before_the_test_set() -> None:
    case = CASES["class-weights"]
    clients, test = data_of(case)
    own_tests, _ = data_of(case, seed=9)
    task = TorchTask(network(case), case.loss, clients, test=test, client_tests=own_tests, batch=BATCH)
    found = task.evaluate(task.initial())
    assert found.heldout_loss is not None
    np.testing.assert_allclose(found.heldout_loss, [oracle(case, own) for own in own_tests], rtol=2e-5)
    module = task.module(task.initial())
    with torch.no_grad():
        right = [float((module(x).argmax(1) == y).float().mean()) for x, y in own_tests]
    assert found.heldout_accuracy is not None
    np.testing.assert_allclose(found.heldout_accuracy, right, rtol=1e-6)
    assert found.metrics["loss"] == pytest.approx(oracle(case, test), rel=2e-5)


def test_clients_test_data_are_for_regression_too_and_must_be_complete() -> None:
    case = CASES["squares"]
    clients, test = data_of(case)
    own_tests, _ = data_of(case, seed=9)
    found = (task := TorchTask(network(case), case.loss, clients, client_tests=own_tests)).evaluate(task.initial())
    assert found.heldout_accuracy is None
    assert found.heldout_loss is not None
    np.testing.assert_allclose(found.heldout_loss, [oracle(case, own) for own in own_tests], rtol=2e-5)
    assert TorchTask(network(case), case.loss, clients, test=test).evaluate(task.initial()).heldout_loss is None
    with pytest.raises(InvalidInput, match="client_tests has 3 entries; allowed: one entry for each of the 4 clients"):
        TorchTask(network(case), case.loss, clients, client_tests=own_tests[:3])
    own_tests[2] = own_tests[2][0][:0], own_tests[2][1][:0]
    with pytest.raises(InvalidInput, match="client_tests has no data for client 2"):
        TorchTask(network(case), case.loss, clients, client_tests=own_tests)


def test_what_clients_are_judged_by_changes_no_run() -> None:
    case = CASES["cross-entropy"]
    clients, test = data_of(case)
    ways: list[dict[str, Any]] = [{}, {"test": test}, {"client_tests": clients}, {"evaluate_on": 2}]
    runs = [
        simulate(TorchTask(network(case), case.loss, clients, **way), ACE(), lr=0.1, stop=Stop(arrivals=60))
        for way in ways
    ]
    for run in runs[1:]:
        assert run.model.equal(runs[0].model)


def test_a_run_has_the_held_out_scores_of_the_slow_the_fast_and_the_worst() -> None:
    run = simulate(digits(clients=10), ACE(), lr=0.1, stop=Stop(arrivals=50), evaluations=1)
    for score, worst in (("accuracy", min), ("loss", max)):
        each = [client[f"heldout_{score}"] for client in run.clients]
        assert run.final[f"heldout_client_{score}"] == pytest.approx(np.mean(each))
        assert run.final[f"heldout_slow_{score}"] == pytest.approx(np.mean(each[-2:]))
        assert run.final[f"heldout_fast_{score}"] == pytest.approx(np.mean(each[:2]))
        assert run.final[f"heldout_worst_{score}"] == worst(each)
    assert "heldout_unscored_clients" not in run.final


def test_a_mix_is_made_of_counts() -> None:
    """Labels need not begin at zero nor be all there."""
    mix = LabelMix(torch.tensor([7, 7, -3, 9]), [2, 2], torch.tensor([9, 7, 7, 20]))
    assert mix._classes.tolist() == [7, 9, 20]
    assert mix._counts.tolist() == [[2, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.2)])
def test_losses_of_samples_are_the_loss_of_each_alone_bit_for_bit(loss: Loss) -> None:
    draw = torch.Generator().manual_seed(0)
    for count in (1, 20, 333):
        outputs = 3 * torch.randn(count, CLASSES, generator=draw)
        targets = labels(count, draw)
        batch_loss = BatchLoss(loss, batch=BATCH, limit=count, sample=(outputs, targets))
        alone = torch.stack([loss(outputs[k : k + 1], targets[k : k + 1]) for k in range(count)])
        assert torch.equal(batch_loss.of_samples(outputs, targets), alone)
