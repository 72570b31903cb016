"""Clients that start from the same model: one copy of its weights for the whole batch, or one for each client.

`python -m benchmarks.shared_version`

Both compute every client's own gradient in one traced call, by `vmap` over clients: with the model stacked as often as
there are clients, as the simulator computes them, and with one model for all, whose forward pass is one large batch.
Stacking is not timed. One thread.
"""

from __future__ import annotations

import statistics

import torch
from torch.func import grad, vmap

from acefl.tasks import tracing
from benchmarks.common import interleaved, median_ratio, report
from benchmarks.simulate_speed import task_of

CASES = (("mlp", 8, 400), ("mlp", 64, 100), ("softmax", 8, 400), ("softmax", 64, 100), ("large", 8, 3))  # and calls


def measured(model: str, clients: int, calls: int) -> dict[str, object]:
    task = task_of(model)

    def loss(flat: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return task._model.functional(flat, inputs, targets)

    one = task.initial()
    stacked = one.repeat(clients, 1)
    drawn = task._data.draw(list(range(clients)), list(range(clients)))
    with torch.no_grad():
        each = tracing.traced(vmap(grad(loss)), stacked, *drawn)
        together = tracing.traced(vmap(grad(loss), in_dims=(None, 0, 0)), one, *drawn)
        expected, found = each(stacked, *drawn), together(one, *drawn)
        seconds = interleaved(
            {
                "own": lambda: [each(stacked, *drawn) for _ in range(calls)],
                "shared": lambda: [together(one, *drawn) for _ in range(calls)],
            }
        )
    per_client = {name: 1e6 * statistics.median(turns) / calls / clients for name, turns in seconds.items()}
    return {
        "model": model,
        "clients": clients,
        "us each, own weights": per_client["own"],
        "us each, shared weights": per_client["shared"],
        "gain": median_ratio(seconds["own"], seconds["shared"]),
        "largest difference": float((found - expected).abs().max() / expected.abs().max()),
    }


def main() -> None:
    torch.set_num_threads(1)
    report("shared_version", __doc__ or "", [measured(*case) for case in CASES])


if __name__ == "__main__":
    main()
