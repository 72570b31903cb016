"""scikit-learn's handwritten digits: real data without a download."""

from __future__ import annotations

import torch
from torch import nn

from acefl.core.errors import one_of, require
from acefl.tasks.local_work import LocalSteps, LocalWork, local_text
from acefl.tasks.partition import partition as split
from acefl.tasks.torch_task import TorchTask

MODELS = ("softmax", "mlp")
RIDGE = 1e-3  # of the softmax model: makes its optimum unique and finite


def digits(
    clients: int = 100,
    alpha: float = 0.1,
    model: str = "softmax",
    seed: int = 0,
    *,
    partition: str = "dirichlet",
    classes_per_client: int = 2,
    batch: int = 20,
    compile: str | bool = "auto",
    local: str | LocalWork | LocalSteps | None = None,
) -> TorchTask:
    """1,797 images of 8 x 8 pixels, 70/30 stratified, split over clients by label.

    `softmax` is multinomial logistic regression with ridge 1e-3, started from zero; `mlp` is 64-64-10.

    Args:
        clients: How many clients the data are split over.
        alpha: Dirichlet parameter of the split by label; smaller is more uneven.
        model: `softmax` or `mlp`.
        seed: Of the split and the first model.
        partition: `dirichlet`, `shards`, `pathological` or `iid`: see `partition`.
        classes_per_client: Labels per client, for `shards` and `pathological`.
        batch: Samples per minibatch.
        compile: Whether gradients are compiled: see `TorchTask`.
        local: A client's work per upload, as in "sgd(lr=0.1, epochs=2)": see `LocalWork`; None: one gradient.
    """
    one_of("model", model, MODELS)
    require(0 <= seed < 2**32, f"seed is {seed}; allowed: from 0 to 4294967295")
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    x_train, x_test, y_train, y_test = train_test_split(
        data.data / 16.0, data.target, test_size=0.3, stratify=data.target, random_state=seed
    )
    rows = split(y_train, clients, how=partition, alpha=alpha, classes_per_client=classes_per_client, seed=seed)
    x, y = torch.tensor(x_train, dtype=torch.float32), torch.tensor(y_train)
    return TorchTask(
        _softmax() if model == "softmax" else _mlp(seed),
        nn.CrossEntropyLoss(),
        [(x[own], y[own]) for own in rows],
        test=(torch.tensor(x_test, dtype=torch.float32), torch.tensor(y_test)),
        batch=batch,
        local=local,
        ridge=RIDGE if model == "softmax" else 0.0,
        compile=compile,
        description={
            "name": "digits",
            "clients": clients,
            "alpha": alpha,
            "model": model,
            "seed": seed,
            "partition": partition,
            "classes_per_client": classes_per_client,
            "batch": batch,
            **({"compile": compile} if compile != "auto" else {}),
            **({} if local is None else {"local": local_text(local)}),
        },
    )


def _softmax() -> nn.Module:
    layer = nn.Linear(64, 10)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _mlp(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
