"""Gradients of models with large linear layers on a CPU: as tasks compute them, over plain PyTorch.

`python -m benchmarks.linear_layers`

On AMD processors with AVX-512 tasks compute such layers by oneDNN, elsewhere as PyTorch does: there the gain is 1. Both
run the same autograd over the same module; one thread, no server. The transformer is a BERT of 6 layers of 384, as
MiniLM is, untrained.
"""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from acefl.tasks.linear_layers import OneDNN, gains
from benchmarks.common import interleaved, median_ratio, report


def mlp() -> tuple[nn.Module, torch.Tensor]:
    layers = nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1064), nn.ReLU(), nn.Linear(1064, 10)
    return nn.Sequential(*layers), torch.rand(20, 64)


def transformer(rows: int, length: int) -> tuple[nn.Module, torch.Tensor]:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=3_000, num_labels=20, **sizes, **none)
    return BertForSequenceClassification(config), torch.randint(3_000, (rows, length))


def measured(what: str, module: nn.Module, inputs: torch.Tensor, calls: int) -> dict[str, object]:
    parameters = list(module.parameters())

    def gradient() -> list[torch.Tensor]:
        outputs = module(inputs)
        outputs = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
        return list(torch.autograd.grad(outputs.square().mean(), parameters, materialize_grads=True))

    def in_a_task() -> list[torch.Tensor]:
        with OneDNN() if gains(module) else contextlib.nullcontext():
            return gradient()

    expected, found = gradient(), in_a_task()
    least = 1e-3 * max(float(own.abs().max()) for own in expected)  # less is rounding: some biases have no effect
    sizes = [max(float(own.abs().max()), least) for own in expected]
    off = [float((own - other).abs().max()) for own, other in zip(expected, found, strict=True)]
    seconds = interleaved(
        {
            "plain": lambda: [gradient() for _ in range(calls)],
            "in a task": lambda: [in_a_task() for _ in range(calls)],
        }
    )
    return {
        "what": what,
        "ms plain": 1e3 * min(seconds["plain"]) / calls,
        "ms in a task": 1e3 * min(seconds["in a task"]) / calls,
        "gain": median_ratio(seconds["plain"], seconds["in a task"]),
        "largest difference": max(wrong / size for wrong, size in zip(off, sizes, strict=True)),
    }


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [
        measured("MLP of 1.2M parameters, 20 rows", *mlp(), 20),
        measured("transformer of 6 layers of 384, 8 rows of 32 tokens", *transformer(8, 32), 2),
        measured("transformer of 6 layers of 384, 8 rows of 128 tokens", *transformer(8, 128), 1),
    ]
    report("linear_layers", __doc__ or "", rows)


if __name__ == "__main__":
    main()
