"""Why more clients do not help the MLP: the page shows what is recorded, and F is the same for any number of them."""

from __future__ import annotations

import pytest
import torch
from experiments.ace.theory import clients
from experiments.leaderboard.publish import filled

from acefl.core.files import read_json


def test_the_page_shows_what_is_recorded() -> None:
    text = (clients.HERE / "README.md").read_text(encoding="utf-8")
    assert filled(text, "clients", clients.table(read_json(clients.RESULTS))) == text


def test_the_objective_and_its_gradient_do_not_depend_on_the_number_of_clients() -> None:
    tasks = [clients.task(count, seed=3) for count in clients.CLIENTS]
    model = tasks[0].initial()
    for task in tasks:
        assert torch.equal(task.initial(), model)
        assert len(set(task.samples)) == 1
        assert torch.allclose(task.mean_gradient(model), tasks[0].mean_gradient(model), atol=1e-6)


def test_fresh_gradients_have_no_delay_and_aces_have() -> None:
    ace, _, fresh = clients.WAYS
    assert clients.measure(fresh, 5, 0, steps=40)["delay"] == pytest.approx(0.0, abs=1e-9)
    assert clients.measure(ace, 5, 0, steps=40)["delay"] > 1e-6
