"""The quadratic task against its definition: every quantity is known exactly."""

from __future__ import annotations

import math

import pytest
import torch

from acefl import tasks
from acefl.core import rng as keyed
from acefl.core.errors import InvalidInput

CLIENTS, DIM = 40, 12


@pytest.fixture(scope="module")
def task() -> tasks.Quadratic:
    return tasks.quadratic(clients=CLIENTS, dim=DIM, heterogeneity=1.5, noise=0.0, seed=3)


def losses(task: tasks.Quadratic, model: torch.Tensor) -> torch.Tensor:
    """F_i(w) = (w - b_i)' H_i (w - b_i) / 2, one client after another."""
    rows = zip(task.hessians, task.optima, strict=True)
    return torch.stack([0.5 * (model - b) @ H @ (model - b) for H, b in rows])


def test_hessians_are_rotations_of_eigenvalues_uniform_between_a_tenth_and_one(task: tasks.Quadratic) -> None:
    torch.testing.assert_close(task.hessians, task.hessians.transpose(1, 2))
    eigenvalues = torch.linalg.eigvalsh(task.hessians)
    assert float(eigenvalues.min()) > 0.1 - 1e-12
    assert float(eigenvalues.max()) < 1.0 + 1e-12
    n = eigenvalues.numel()  # uniform: mean 0.55, variance 0.9^2 / 12; 5 standard errors, false alarm 6e-7
    assert abs(float(eigenvalues.mean()) - 0.55) < 5 * 0.9 / math.sqrt(12 * n)
    assert len({round(float(e), 9) for e in eigenvalues.flatten()}) == n  # each client its own
    assert float((task.hessians[0] - torch.diag(task.hessians[0].diag())).abs().max()) > 0.01  # rotated, not diagonal


def test_optima_lie_along_one_line_in_client_order_plus_own_noise() -> None:
    """b_i = h ((2 i / (n - 1) - 1) z + 0.3 N(0, I)): least squares on the place gives z, and what is left the noise."""
    n, dim = 200, 50
    task = tasks.quadratic(clients=n, dim=dim, heterogeneity=2.0, noise=0.0, seed=1)
    place = torch.tensor([2 * i / (n - 1) - 1 for i in range(n)], dtype=torch.float64)
    b = task.optima / 2.0
    z = (place @ b) / (place @ place)
    rest = b - place.unsqueeze(1) * z
    spread = math.sqrt(1 / (2 * n * dim))  # relative standard error of a standard deviation; 5 of them
    assert abs(float(rest.std()) / 0.3 - 1) < 5 * spread + 1 / n
    assert abs(float(z.std()) - 1) < 5 * math.sqrt(1 / (2 * dim))
    assert float((b[-1] - b[0]).norm()) > float((b[1] - b[0]).norm())


def test_heterogeneity_scales_the_optima_and_zero_makes_clients_agree() -> None:
    one, two, none = (tasks.quadratic(clients=5, dim=4, heterogeneity=h, seed=7) for h in (1.0, 2.0, 0.0))
    torch.testing.assert_close(two.optima, 2.0 * one.optima)
    assert torch.equal(one.hessians, two.hessians)
    assert float(none.optima.abs().max()) == 0.0


def test_updates_are_the_gradients_of_the_losses(task: tasks.Quadratic) -> None:
    model = task.initial().double().requires_grad_()
    exact = torch.stack([torch.autograd.grad(loss, model, retain_graph=True)[0] for loss in losses(task, model)])
    model = model.detach()
    torch.testing.assert_close(task.gradients(model), exact)
    clients = [7, 0, CLIENTS - 1, 7]
    got = task.updates(model.float().expand(4, DIM), clients, [1, 2, 3, 4])
    torch.testing.assert_close(got.double(), exact[clients], rtol=1e-4, atol=1e-4)


def test_evaluation_is_the_definition(task: tasks.Quadratic) -> None:
    model = task.initial()
    result = task.evaluate(model)
    own = losses(task, model.double())
    torch.testing.assert_close(result.client_loss, own)
    assert result.metrics["loss"] == result.metrics["client_loss"] == pytest.approx(float(own.mean()))
    floor = float(losses(task, task.solution).mean())
    assert result.metrics["gap"] == pytest.approx(float(own.mean()) - floor)
    assert result.metrics["grad_norm"] == pytest.approx(float(task.gradients(model).mean(0).norm()))


def test_gap_and_gradient_vanish_at_the_solution(task: tasks.Quadratic) -> None:
    metrics = task.evaluate(task.solution).metrics
    assert metrics["gap"] == 0.0
    assert metrics["grad_norm"] == 0.0
    assert float(task.gradients(task.solution).mean(0).norm()) < 1e-12


def test_the_start_is_three_standard_normals_from_the_solution() -> None:
    """Over 50 seeds of 12 numbers; 5 standard errors of a standard deviation."""
    away = torch.cat([t.initial().double() - t.solution for s in range(50) for t in [tasks.quadratic(3, DIM, seed=s)]])
    assert abs(float(away.std()) / 3 - 1) < 5 * math.sqrt(1 / (2 * len(away)))


def test_noise_has_total_variance_noise_squared_and_follows_the_key_alone() -> None:
    """E|noise|^2 = noise^2 whatever the dimension; 5 standard errors."""
    noisy, exact = (tasks.quadratic(clients=4, dim=25, noise=noise, seed=0) for noise in (0.5, 0.0))
    keys = [keyed.key(9, i) for i in range(4_000)]
    models = noisy.initial().expand(len(keys), 25)
    clients = [i % 4 for i in range(len(keys))]
    noise = (noisy.updates(models, clients, keys) - exact.updates(models, clients, keys)).double()
    n = noise.numel()
    assert abs(float(noise.square().sum(1).mean()) - 0.25) < 5 * 0.25 * math.sqrt(2 / n)
    assert float(noise.mean(0).abs().max()) < 5 * 0.1 / math.sqrt(len(keys))
    torch.testing.assert_close(
        noisy.updates(models[:3], [3, 2, 1], keys[5:8])[1:2], noisy.updates(models[:1], [2], [keys[6]])
    )


def test_the_same_settings_give_the_same_task_and_another_seed_another() -> None:
    one = tasks.quadratic(clients=3, dim=4, seed=5)
    again = tasks.build(one.describe())
    other = tasks.quadratic(clients=3, dim=4, seed=6)
    assert isinstance(again, tasks.Quadratic)
    assert torch.equal(one.initial(), again.initial())
    assert torch.equal(one.hessians, again.hessians)
    assert not torch.equal(one.hessians, other.hessians)


def test_one_client_alone_is_solved_by_its_own_optimum() -> None:
    alone = tasks.quadratic(clients=1, dim=3, seed=0)
    torch.testing.assert_close(alone.solution, alone.optima[0])


@pytest.mark.parametrize(
    ("setting", "value"),
    [("clients", 0), ("dim", 0), ("heterogeneity", -1.0), ("heterogeneity", math.inf), ("noise", math.nan)],
)
def test_bad_settings_are_refused_by_name(setting: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=f"{setting} is {value}; allowed"):
        tasks.quadratic(**{setting: value})  # type: ignore[arg-type]
