"""Heterogeneous quadratics: the task whose every quantity is known exactly."""

from __future__ import annotations

import math
from typing import Any

import torch

from acefl.core import rng as keyed
from acefl.core.errors import require
from acefl.core.types import Vector
from acefl.tasks.base import Evaluation, Shown


def quadratic(
    clients: int = 100, dim: int = 50, heterogeneity: float = 1.0, noise: float = 0.5, seed: int = 0
) -> Quadratic:
    """F_i(w) = (w - b_i)' H_i (w - b_i) / 2, with clients ordered by where their optimum lies.

    H_i is a random rotation of eigenvalues uniform in [0.1, 1]; b_i = heterogeneity * ((2 i / (n - 1) - 1) z +
    0.3 N(0, I)) with one z ~ N(0, I); gradients carry noise N(0, noise^2 / dim I); the start is w* + 3 N(0, I).

    Args:
        clients: How many.
        dim: Length of the model.
        heterogeneity: How far the clients' optima lie apart; 0: all in one place.
        noise: Standard deviation of a gradient's noise, as a norm.
        seed: Of everything drawn.
    """
    return Quadratic(clients, dim, heterogeneity, noise, seed)


class Quadratic(Shown):
    """What `quadratic` makes, with the same arguments: `clients`, `dim`, `heterogeneity`, `noise` and `seed`."""

    objective = "gap"
    batch_limit = 256

    def __init__(self, clients: int, dim: int, heterogeneity: float, noise: float, seed: int) -> None:
        require(clients >= 1, f"clients is {clients}; allowed: at least 1")
        require(dim >= 1, f"dim is {dim}; allowed: at least 1")
        for name, value in (("heterogeneity", heterogeneity), ("noise", noise)):
            require(math.isfinite(value) and value >= 0, f"{name} is {value}; allowed: a finite number of at least 0")
        self.clients = clients
        self.samples = [1] * clients
        self._arguments = {
            "clients": clients,
            "dim": dim,
            "heterogeneity": heterogeneity,
            "noise": noise,
            "seed": seed,
        }
        self.noise_scale = noise / math.sqrt(dim)
        draw = keyed.generator(seed)
        rotation = torch.linalg.qr(torch.randn(clients, dim, dim, generator=draw, dtype=torch.float64))[0]
        eigenvalues = 0.1 + 0.9 * torch.rand(clients, dim, generator=draw, dtype=torch.float64)
        self.hessians = rotation @ (eigenvalues.unsqueeze(2) * rotation.transpose(1, 2))
        z = torch.randn(dim, generator=draw, dtype=torch.float64)
        place = torch.linspace(-1, 1, clients, dtype=torch.float64) if clients > 1 else torch.zeros(1).double()
        own = torch.randn(clients, dim, generator=draw, dtype=torch.float64)
        self.optima = heterogeneity * (place.unsqueeze(1) * z + 0.3 * own)
        self.mean_hessian = self.hessians.mean(0)
        pulled = torch.einsum("nij,nj->i", self.hessians, self.optima) / clients
        self.solution = torch.linalg.solve(self.mean_hessian, pulled)
        self._start: Vector = self.solution + 3.0 * torch.randn(dim, generator=draw, dtype=torch.float64)
        self._hessians32 = self.hessians.float()
        self._pulls32 = torch.einsum("nij,nj->ni", self.hessians, self.optima).float()

    def describe(self) -> dict[str, Any]:
        """Its arguments, from which `tasks.build` makes it again, and what a client's work is."""
        work = "A client sends the gradient of its quadratic" + (", with noise." if self.noise_scale else ".")
        return {"name": "quadratic", **self._arguments, "client_work": work}

    def initial(self) -> Vector:
        """Three standard normals per number away from the solution."""
        return self._start.float()

    def updates(self, models: torch.Tensor, clients: list[int], keys: list[int]) -> torch.Tensor:
        """Row k: the gradient of clients[k] at models[k], with noise from keys[k] alone."""
        index = torch.tensor(clients)
        gradients = torch.bmm(self._hessians32[index], models.unsqueeze(2)).squeeze(2).sub_(self._pulls32[index])
        if self.noise_scale:
            gradients.add_(keyed.normal(keys, models.shape[1]), alpha=self.noise_scale)
        return gradients

    def gradients(self, model: Vector) -> torch.Tensor:
        """Every client's exact gradient at one model, in double precision: shape (clients, dim)."""
        return torch.einsum("nij,nj->ni", self.hessians, model.double() - self.optima)

    def client_gradients(self, models: torch.Tensor, clients: list[int]) -> torch.Tensor:
        """Row k: the exact gradient of clients[k] at models[k], in double precision."""
        index = torch.tensor(clients)
        away = models.double() - self.optima[index]
        return torch.bmm(self.hessians[index], away.unsqueeze(2)).squeeze(2)

    def mean_gradient(self, model: Vector) -> Vector:
        """The exact gradient of the mean over clients of their losses, in double precision."""
        gradient: Vector = self.mean_hessian @ (model.double() - self.solution)
        return gradient

    def evaluate(self, model: Vector) -> Evaluation:
        """Exact, of the losses themselves: the gap to the solution, the gradient's norm, and each client's loss."""
        away = model.double() - self.solution
        offset = model.double() - self.optima
        client_loss = 0.5 * torch.einsum("ni,nij,nj->n", offset, self.hessians, offset)
        loss = float(client_loss.mean())
        return Evaluation(
            {
                "gap": float(0.5 * away @ self.mean_hessian @ away),
                "grad_norm": float((self.mean_hessian @ away).norm()),
                "loss": loss,
                "client_loss": loss,
                "heldout_client_loss": loss,
            },
            client_loss,
            heldout_loss=client_loss,  # F_i itself and no sample of it: there is nothing to overfit
        )
