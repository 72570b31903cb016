"""When models are evaluated."""

from __future__ import annotations

import torch

from acefl.core.types import Step
from acefl.runs.evaluation import Evaluator
from acefl.tasks.base import Evaluation


def test_what_clients_tell_of_the_last_model_does_not_stand_for_its_evaluation() -> None:
    evaluator = Evaluator(lambda model, version: Evaluation({"loss": 1.0}), 1, lambda: [1.0], background=False)
    step = Step(12, 8, 20.0, True)
    evaluator.add(step, Evaluation({"client_loss": 2.0}))
    evaluator.last(step, torch.zeros(1))
    assert evaluator.rows == [{"step": 8, "arrival": 12, "time": 20.0, "client_loss": 2.0, "loss": 1.0}]
