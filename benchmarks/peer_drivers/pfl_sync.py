"""pfl's synchronous federated averaging, an upper anchor: client updates per second without any asynchrony.

All clients in every round, one local step each, data in memory as torch tensors, central evaluation every second round,
no evaluation by users, no logging. There is no event order, no stale model and one server step per 100 updates.
"""

from __future__ import annotations

import math

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from work import BATCH, EVERY, LR, Answer, Digits, Mlp, Stopwatch, drive, evaluate


class Model(Mlp):
    """The model with the two methods that pfl asks for."""

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor, eval: bool = False) -> torch.Tensor:
        return nn.functional.cross_entropy(self(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Weighted]:
        scores = self(inputs)
        loss = nn.functional.cross_entropy(scores, targets, reduction="sum").item()
        right = (scores.argmax(1) == targets).sum().item()
        return {"loss": Weighted(loss, len(targets)), "accuracy": Weighted(right, len(targets))}


def run(digits: Digits, method: str, arrivals: int) -> Answer:
    clients = len(digits.clients)
    rounds = max(1, arrivals // clients)
    users = [Dataset(raw_data=list(rows), user_id=str(client)) for client, rows in enumerate(digits.clients)]
    data = FederatedDataset(lambda user: users[user], get_user_sampler("minimize_reuse", range(clients)))
    torch_model = Model()
    model = PyTorchModel(torch_model, torch.optim.SGD, torch.optim.SGD(torch_model.parameters(), lr=10.0))
    judging = CentralEvaluationCallback(
        Dataset(raw_data=list(digits.test)), NNEvalHyperParams(local_batch_size=None), frequency=EVERY // clients
    )
    watch = Stopwatch()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=math.nan, train_cohort_size=clients, val_cohort_size=0
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=None, local_num_steps=1, local_learning_rate=LR),
        callbacks=[judging],
        send_metrics_to_platform=False,
    )
    return rounds * clients, watch.stop(), evaluate(torch_model, digits)


if __name__ == "__main__":
    drive(run)
