"""20 Newsgroups, classified by a transformer that clients fine-tune together."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn

from acefl.core.errors import require
from acefl.tasks import hub
from acefl.tasks.local_work import LocalSteps, LocalWork, local_text
from acefl.tasks.partition import partition as split
from acefl.tasks.text_files import Texts, load
from acefl.tasks.torch_task import TorchTask

TINY = "tiny"  # a random transformer with a tokenizer of its own: for tests, and for a look without any download
WORDS = "words"  # no transformer: a linear classifier of a document's words, which a CPU trains in seconds
CLASSES = 20
EVALUATE_ON = 20  # of each client's own documents, by a transformer; a classifier of words judges by all of them
_EVALUATION_BATCH = 512
_VOCABULARY = {TINY: 2000, WORDS: 8192}
_GAIN = 10.0  # of words: learning rates below 1 then suit them
_NOWHERE = -1e9  # added to an attention score: no weight at all


def news20(
    folder: str | None = None,
    clients: int = 20,
    alpha: float = 0.1,
    model: str = "distilbert-base-uncased",
    seed: int = 0,
    *,
    length: int = 128,
    strip: bool = True,
    batch: int = 32,
    local: str | LocalWork | LocalSteps | None = None,
    dropout: bool = False,
    partition: str = "dirichlet",
    classes_per_client: int = 2,
    samples: int | None = None,
    test_samples: int | None = None,
    validation: bool = False,
    device: str = "cpu",
    bf16: bool = False,
) -> TorchTask:
    """20 Newsgroups from `folder` (see `acefl.tasks.text_files` for its layouts; None downloads it).

    `model` is any sequence classifier of transformers: a name on the hub (distilbert-base-uncased, bert-base-uncased)
    or a local folder; `tiny` is a small random one, and `words` a linear classifier of words without any transformer.
    Documents are cut to `length` tokens. A client sends one minibatch gradient, or with `local="adamw(lr=5e-4)"` the
    w_start - w_end of a local AdamW step, see `acefl.tasks.LocalWork`. `dropout=False` leaves the model's dropout out,
    which lets a GPU replay its gradients. `samples` and `test_samples` keep only so many documents. `validation`
    evaluates on a tenth of the training documents, which no client then has, instead of the test set: for choosing
    settings.

    Args:
        folder: See above.
        clients: How many clients the data are split over.
        alpha: Dirichlet parameter of the split by label; smaller is more uneven.
        model: See above.
        seed: Of the split and the last layer.
        length: Tokens per document.
        strip: Remove headers, signatures and quoted lines.
        batch: Documents per minibatch.
        local, dropout: See above.
        partition: `dirichlet`, `shards`, `pathological` or `iid`: see `partition`.
        classes_per_client: Labels per client, for `shards` and `pathological`.
        samples, test_samples, validation: See above.
        device: Where to compute.
        bf16: Compute gradients in bfloat16.
    """
    require(length >= 4, f"length is {length}; allowed: at least 4 tokens")
    data = _tokens(folder, model, length, strip)
    order = np.random.default_rng(seed).permutation(len(data.labels))
    held_out, used = np.split(order, [len(order) // 10 if validation else 0])
    if samples is not None:
        require(1 <= samples <= len(used), f"samples is {samples}; allowed: from 1 to {len(used)}")
        used = used[:samples]
    options: dict[str, Any] = {"alpha": alpha, "classes_per_client": classes_per_client, "seed": seed}
    rows = [used[own] for own in split(data.labels.numpy()[used], clients, how=partition, **options)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = Words(data.padding) if model == WORDS else Classifier(_network(model), data.padding)
    if not dropout:
        for part in module.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
    test = (data.ids[held_out], data.labels[held_out]) if validation else (data.test_ids, data.test_labels)
    return TorchTask(
        module,
        nn.CrossEntropyLoss(),
        [(data.ids[own], data.labels[own]) for own in rows],
        test=(test[0][:test_samples], test[1][:test_samples]),
        batch=batch,
        local=local,
        device=device,
        evaluate_on=None if model == WORDS else EVALUATE_ON,
        evaluation_batch=_EVALUATION_BATCH,
        bf16=bf16,
        description={
            "name": "news20",
            "folder": folder,
            "clients": clients,
            "alpha": alpha,
            "model": model,
            "seed": seed,
            "length": length,
            "strip": strip,
            "batch": batch,
            "local": local_text(local),
            "dropout": dropout,
            "partition": partition,
            "classes_per_client": classes_per_client,
            "samples": samples,
            "test_samples": test_samples,
            "validation": validation,
            "device": device,
            "bf16": bf16,
        },
    )


class Classifier(nn.Module):
    """Token ids in, logits out: a transformers classifier that attends to everything but padding.

    The mask is given ready to be added to attention scores: of one that is not, transformers looks at the values, which
    neither a traced nor a captured gradient allows.
    """

    def __init__(self, network: nn.Module, padding: int) -> None:
        super().__init__()
        self.network, self.padding = network, padding

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        padding = ids.eq(self.padding).view(len(ids), 1, 1, -1)
        mask = torch.zeros(padding.shape, device=ids.device).masked_fill(padding, _NOWHERE)
        logits: torch.Tensor = self.network(input_ids=ids.long(), attention_mask=mask).logits
        return logits


class Words(nn.Module):
    """Token ids in, logits out: the sum of what each word says for each group, over the root of how many there are."""

    def __init__(self, padding: int, vocabulary: int = _VOCABULARY[WORDS]) -> None:
        super().__init__()
        self.says, self.padding = nn.Embedding(vocabulary, CLASSES), padding
        nn.init.zeros_(self.says.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        there = ids.ne(self.padding).float().unsqueeze(2)
        said: torch.Tensor = (self.says(ids.long()) * there).sum(1)
        return _GAIN * said / there.sum(1).clamp(min=1.0).sqrt()


class Tokens:
    """Both splits as token ids, cut and padded to one length."""

    def __init__(self, ids: torch.Tensor, test_ids: torch.Tensor, padding: int, texts: Texts) -> None:
        self.ids, self.test_ids, self.padding = ids, test_ids, padding
        self.labels, self.test_labels = torch.from_numpy(texts.train_labels), torch.from_numpy(texts.test_labels)


@lru_cache(maxsize=2)
def _tokens(folder: str | None, model: str, length: int, strip: bool) -> Tokens:
    """Tokenised once per process, however many tasks are made of it."""
    texts = load(folder, strip)
    if model in _VOCABULARY:
        train, test = (checksums(documents, length, _VOCABULARY[model]) for documents in (texts.train, texts.test))
        return Tokens(train, test, 0, texts)
    tokenizer = _pretrained(_transformers().AutoTokenizer, model)
    require(tokenizer.pad_token_id is not None, f"model {model} has no padding token; allowed: models that have one")

    def ids(documents: Sequence[str]) -> torch.Tensor:
        encoded = tokenizer(list(documents), truncation=True, max_length=length, padding="max_length")
        return torch.tensor(encoded["input_ids"], dtype=torch.int32)

    return Tokens(ids(texts.train), ids(texts.test), int(tokenizer.pad_token_id), texts)


def checksums(documents: Sequence[str], length: int, words: int) -> torch.Tensor:
    """Words by their checksum: no vocabulary to keep, and the same on every machine."""
    ids = torch.zeros(len(documents), length, dtype=torch.int32)
    for row, text in enumerate(documents):
        found = re.findall(r"\w+", text.lower())[: length - 1]
        own = [1, *(2 + zlib.crc32(word.encode()) % (words - 2) for word in found)]
        ids[row, : len(own)] = torch.tensor(own, dtype=torch.int32)
    return ids


def _network(model: str) -> nn.Module:
    """In float32, with attention written out: what the fused kernels do with a mask cannot be replayed on a GPU."""
    library = _transformers()
    settings = {"num_labels": CLASSES, "attn_implementation": "eager"}
    network: nn.Module
    if model == TINY:
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
        network = library.BertForSequenceClassification(
            library.BertConfig(vocab_size=_VOCABULARY[TINY], **sizes, **settings)
        )
    else:
        settings["use_safetensors"] = True  # the older weights are pickles
        network = _pretrained(library.AutoModelForSequenceClassification, model, **settings)
    return network.float()


def _transformers() -> Any:
    return hub.needed("transformers", "task news20", "text")


def _pretrained(kind: Any, model: str, **settings: Any) -> Any:
    allowed = "words, tiny, " + hub.folder_or_name("distilbert-base-uncased")
    return hub.pretrained(kind, model, allowed=allowed, **settings)
