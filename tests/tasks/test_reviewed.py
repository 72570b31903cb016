"""Slips in what users hand over that once went unnoticed: each is taken as meant, or refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

from acefl import ACE, InvalidInput, Scenario, Stop, rules, simulate, tasks
from acefl.fleets.measured import measured
from acefl.probes import ErrorTerms, Participation
from acefl.tasks.privacy import privatised

X = torch.arange(12.0).unsqueeze(1)
Y = (torch.arange(12) % 3).long()
ROWS = TensorDataset(X, Y)


def test_a_loaders_sampler_says_which_rows_are_the_clients() -> None:
    places = [[5, 1, 3], [0, 2, 4, 6]]
    loaders = [DataLoader(ROWS, batch_size=2, sampler=SubsetRandomSampler(own)) for own in places]
    task = tasks.TorchTask(nn.Linear(1, 3), nn.CrossEntropyLoss(), loaders)
    assert task.samples == [3, 4]
    assert task._data.inputs.flatten().tolist() == [1.0, 3.0, 5.0, 0.0, 2.0, 4.0, 6.0]


def test_a_loader_that_draws_by_weights_is_refused() -> None:
    loader = DataLoader(ROWS, sampler=WeightedRandomSampler([1.0] * 12, 4))
    with pytest.raises(InvalidInput, match="draws by WeightedRandomSampler; allowed: all rows"):
        tasks.TorchTask(nn.Linear(1, 3), nn.CrossEntropyLoss(), [loader])


class Tagger(nn.Module):
    """A label for every token, from a head of zeros, and the model's own loss."""

    def __init__(self, smoothing: float = 0.0) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(5, 4), nn.Linear(4, 3)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self._loss = nn.CrossEntropyLoss(label_smoothing=smoothing)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.head(self.words(inputs))
        loss = None if labels is None else self._loss(logits.flatten(0, 1), labels.flatten())
        return SimpleNamespace(logits=logits, loss=loss)


@pytest.mark.parametrize(("smoothing", "found"), [(0.0, "token_loss"), (0.3, "mean_of_given")])
def test_a_head_of_zeros_does_not_hide_which_loss_is_the_models_own(smoothing: float, found: str) -> None:
    torch.manual_seed(0)
    data = torch.randint(5, (20, 6)), torch.randint(3, (20, 6))
    model = Tagger(smoothing)
    task = tasks.TorchTask(model, None, [data])
    assert getattr(task._model.loss, "__name__", "") == found
    first = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert task.initial().equal(first), "trying the loss leaves the first model as it is"


def test_held_out_data_go_to_the_client_of_their_name() -> None:
    def frame(**means: float) -> pd.DataFrame:
        rows = [(who, ord(who), mean) for who, mean in means.items() for _ in range(3)]
        return pd.DataFrame(rows, columns=["who", "x", "y"])

    def clients(**means: float) -> Any:
        return tasks.by_group(frame(**means), "who", inputs=["x"], target="y", order="target")

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(outputs.squeeze(1), targets)

    train, held = clients(A=2.0, B=1.0), clients(A=1.0, B=2.0)
    assert train.names != held.names
    task = tasks.TorchTask(nn.Linear(1, 1), loss, train, client_tests=held)
    assert task._client_tests is not None
    assert task._client_tests.inputs.flatten().tolist()[::3] == [float(ord(name)) for name in train.names]
    with pytest.raises(InvalidInput, match="client_tests names 'C', who is no client"):
        tasks.TorchTask(nn.Linear(1, 1), loss, train, client_tests=clients(A=1.0, C=2.0))


def test_a_series_keeps_every_duration_of_a_client() -> None:
    frame = pd.DataFrame({"client": ["A", "B", "A"], "duration": [1.0, 3.0, 9.0]})
    assert measured(frame.set_index("client")["duration"]) == measured(frame)


def test_private_clients_keep_their_names() -> None:
    task = tasks.TorchTask(nn.Linear(1, 3), nn.CrossEntropyLoss(), [ROWS, ROWS], names=["Ann", "Bob"])
    noisy = privatised(task, clip=1.0, noise_multiplier=1.0)
    run = simulate(noisy, ACE(), lr=0.1, scenario=Scenario(durations={"Ann": 1.0, "Bob": 2.0}), stop=Stop(arrivals=6))
    assert [row["name"] for row in run.clients] == ["Ann", "Bob"]


def test_what_is_clipped_may_live_in_a_file_and_be_watched(tmp_path: Any) -> None:
    method = rules.Clipped(ACE(home=tmp_path / "rows.bin"), threshold=0.5)
    assert method == rules.Clipped(f"ACE(home='{tmp_path}/rows.bin')", threshold=0.5)
    task = tasks.quadratic(clients=4, dim=3)
    run = simulate(task, method, lr=0.1, stop=Stop(arrivals=40), observers=[Participation()])
    assert run.arrivals == 40
    with pytest.raises(InvalidInput, match="this method clips them"):
        simulate(task, method, lr=0.1, stop=Stop(arrivals=40), observers=[ErrorTerms()])


def test_a_metric_that_fails_on_one_diverged_client_says_nothing_of_the_next() -> None:
    class Strict:
        higher_is_better = True

        def reset(self) -> None:
            self._seen: list[float] = []

        def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
            self._seen += outputs.flatten().tolist()

        def compute(self) -> float:
            if any(value != value for value in self._seen):
                raise ValueError("not a number")
            return sum(self._seen) / len(self._seen)

    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs * self.scale

    given = [torch.tensor([[float("nan")], [1.0]]), torch.full((2, 1), 5.0), torch.full((2, 1), 7.0)]
    data = [(own, torch.zeros(2, 1)) for own in given]
    task = tasks.TorchTask(Same(), nn.MSELoss(), data, metrics={"m": Strict()})
    scores = task.evaluate(task.initial()).per_client()["m"].tolist()
    assert scores[0] != scores[0]
    assert scores[1:] == [5.0, 7.0]
