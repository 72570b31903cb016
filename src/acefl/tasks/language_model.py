"""A causal language model that clients fine-tune together on their own texts, by LoRA or whole."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from acefl.core.errors import InvalidInput, require
from acefl.core.names import in_order
from acefl.core.types import Vector
from acefl.tasks import hub
from acefl.tasks.local_work import LocalSteps, LocalWork, local_text
from acefl.tasks.metrics import Metric
from acefl.tasks.own_loss import IGNORED, next_token_loss
from acefl.tasks.torch_task import TorchTask

_CAUSAL = "acefl_causal"  # an attention of transformers for which it makes no masks
_MASKED = "sdpa"
Texts = Iterable[str] | str | Path  # documents, a `datasets.Dataset` with a column `text`, or a file or folder of them


class LanguageModel(TorchTask):
    """What `language_model` makes: a `TorchTask` with a `tokenizer`, whose evaluations have perplexities."""

    tokenizer: Any

    def module(self, model: Vector) -> nn.Module:
        found: Any = super().module(model)
        if getattr(getattr(found, "config", None), "_attn_implementation", None) == _CAUSAL:
            found.set_attn_implementation(_MASKED)
        return cast(nn.Module, found)


class Perplexity:
    """exp of the mean loss of a token, over all tokens that count, however they are cut into rows."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._total, self._count = 0.0, 0

    def update(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        count = int((labels[:, 1:] != IGNORED).sum())
        if count:
            self._total += count * float(next_token_loss(logits, labels))
            self._count += count

    def compute(self) -> float:
        mean = self._total / self._count if self._count else math.nan
        return math.exp(mean) if mean < 700 else math.inf if mean > 0 else math.nan


def language_model(
    model: str | Path | nn.Module,
    clients: Sequence[Texts] | Mapping[str, Texts] | str | Path,
    *,
    client_tests: Sequence[Texts] | Mapping[str, Texts] | None = None,
    held_out: float = 0.2,
    gguf_file: str | None = None,
    tokenizer: Any = None,
    lora: Any = None,
    rank: int | None = 8,
    freeze_a: bool = False,
    length: int = 256,
    pack: bool = True,
    batch: int = 4,
    local: str | LocalWork | LocalSteps | None = None,
    seed: int = 0,
    device: str = "cpu",
    compute: str = "auto",
    compile: str | bool = "auto",
    bf16: bool = False,
    evaluate_on: int | None = None,
    evaluation_batch: int = 8,
) -> LanguageModel:
    """Any causal language model of transformers, fine-tuned on the texts of each client.

    model: a name on the hub, a folder, a `.gguf` file (or a folder with `gguf_file=`), or a module with `tokenizer=`.
    clients: the texts of each: a list of strings, a `datasets.Dataset` with a column `text`, a text file (of which
    paragraphs are texts) or a folder of text files. A folder in place of the list has one folder or text file per
    client, by their names; a dict names its clients, too. The last `held_out` of each client's texts, at least one,
    are not trained on: held-out losses and perplexities are of these. Or `client_tests` gives held-out texts.
    pack: texts follow each other in rows of `length` tokens, with the end-of-text token between. What does not fill a
    row is left out, unless it is all a client has. Without it every text is a row of its own, cut or padded.

    What travels: by default a LoRA adapter of `rank` on the query and value projections; `lora` is any
    `peft.LoraConfig` in its place; `rank=None` trains the whole model. An adapter is two factors, B·A, and the mean of
    products is not the product of means. `freeze_a=True` keeps A as it was drawn and trains B alone (FFA-LoRA): then
    what the server averages is the adapters themselves, and half as much travels or less.

    Perplexity is exp of the mean loss of a token, by client and of the slowest fifth, on its own and on held-out texts
    (`heldout_client_perplexity`, `heldout_slow_perplexity`), and over everybody's own (`perplexity`).
    `task.module(run.model).save_pretrained(folder)` writes the adapter.

    Args:
        model, clients, client_tests, held_out: See above.
        gguf_file: Name of a GGUF file in the folder or hub repository `model`; its weights are unpacked to float32.
        tokenizer: Of transformers; None: the model's.
        lora, rank, freeze_a: See above.
        length: Tokens per row.
        pack: See above.
        batch: Rows per minibatch.
        local: A client's work per upload, as in "adamw(lr=1e-3, steps=8)"; None: one gradient.
        seed: Of the adapter's first factors.
        device: Where to compute.
        compute: `auto`: clients' adapters on one base together, where that works and gains; `adapters`: always;
            `one-by-one`: never.
        compile: On a GPU, whether clients' adapters together are compiled; `auto`: in long runs.
        bf16: Compute in bfloat16.
        evaluate_on: Rows of each client that its training loss is of at most; None: all.
        evaluation_batch: Rows per call when evaluating: a row's logits are `length` times the vocabulary.
    """
    require(length >= 2, f"length is {length}; allowed: at least 2 tokens")
    require(0 <= held_out < 1, f"held_out is {held_out}; allowed: from 0 to below 1")
    network, words, name = _loaded(model, gguf_file, tokenizer)
    names, texts = _one_each(clients)
    documents = [_documents(one) for one in texts]
    tests = None if client_tests is None else [_documents(one) for one in _matched(client_tests, names)]
    if tests is None and held_out:
        documents, tests = _split(documents, held_out)
    rows = _packed if pack else _padded
    train = [_pair(rows(words, own, length), length) for own in documents]
    held = None if tests is None else [_pair(rows(words, own, length), length) for own in tests]
    with _without_masks(network, length):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = _adapted(network, lora, rank, freeze_a)
        task = LanguageModel(
            network,
            next_token_loss,
            train,
            client_tests=held,
            names=names,
            metrics={"perplexity": Metric(Perplexity(), smaller_is_better=True)},
            batch=batch,
            local=local,
            device=device,
            compute=compute,
            compile=compile,
            bf16=bf16,
            evaluate_on=evaluate_on,
            evaluation_batch=evaluation_batch,
            description={
                "name": "language_model",
                "model": name,
                "gguf_file": gguf_file,
                "clients": len(train),
                "rows": sum(len(own) for _, own in train),
                "trained": sum(p.numel() for p in network.parameters() if p.requires_grad),
                "rank": rank if lora is None else lora.r,
                "freeze_a": freeze_a,
                "length": length,
                "pack": pack,
                "held_out": held_out,
                "batch": batch,
                "local": local_text(local),
                "seed": seed,
                "device": device,
                "bf16": bf16,
            },
        )
    task.tokenizer = words
    return task


# The model


def _loaded(model: str | Path | nn.Module, gguf_file: str | None, tokenizer: Any) -> tuple[nn.Module, Any, str]:
    if isinstance(model, nn.Module):
        require(tokenizer is not None, "tokenizer is None, and model is a module; allowed: the tokenizer of that model")
        return model, tokenizer, type(model).__name__
    library = hub.needed("transformers", "task language_model", "lm")
    place = Path(model)
    if place.suffix == ".gguf":
        model, gguf_file = place.parent, place.name
    settings: dict[str, Any] = {"gguf_file": gguf_file} if gguf_file is not None else {}
    if settings:
        hub.needed("gguf", "a GGUF file", "lm")
    allowed = hub.folder_or_name("HuggingFaceTB/SmolLM2-135M-Instruct") + ", or a .gguf file"
    name = str(model)
    words = tokenizer or hub.pretrained(library.AutoTokenizer, name, allowed=allowed, **settings)
    settings["dtype"] = torch.float32
    if gguf_file is None:
        settings["use_safetensors"] = True  # the older weights are pickles
    network: nn.Module = hub.pretrained(library.AutoModelForCausalLM, name, allowed=allowed, **settings)
    return network, words, str(place)


@contextlib.contextmanager
def _without_masks(network: nn.Module, length: int) -> Iterator[None]:
    """What is made in here attends without masks where that is the same; the network itself attends as before after."""
    left_out = _leave_out_masks(network, length)
    try:
        yield
    finally:
        if left_out:
            model: Any = network
            model.set_attn_implementation(_MASKED)


def _leave_out_masks(network: nn.Module, length: int) -> bool:
    """Plain causal attention needs no mask, since padding comes last. To find that out transformers looks at position
    numbers on the host in every pass, which waits for a GPU and cannot be captured. What a model gives for rows of this
    length stays the same, which is tried: no list of models is complete. Whether masks are left out now."""
    config: Any = getattr(network, "config", None)
    if getattr(config, "_attn_implementation", None) != _MASKED:
        return False
    from transformers import AttentionInterface, PreTrainedModel
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if not isinstance(network, PreTrainedModel):
        return False
    words = config.get_text_config()
    if any(getattr(words, of, None) is not None for of in ("sliding_window", "attention_chunk_size")):
        return False
    ids = (torch.arange(length) % words.vocab_size).unsqueeze(0).to(network.device)
    AttentionInterface.register(_CAUSAL, sdpa_attention_forward)
    devices = [network.device] if network.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices):  # dropout draws
        before = network(input_ids=ids).logits
        network.set_attn_implementation(_CAUSAL)
        same = torch.equal(before, network(input_ids=ids).logits)
    if not same:
        network.set_attn_implementation(_MASKED)
    return same


def _adapted(network: nn.Module, lora: Any, rank: int | None, freeze_a: bool) -> nn.Module:
    """With an adapter, if one is asked for; everything else frozen."""
    config: Any = getattr(network, "config", None)
    if config is not None:
        config.use_cache = False  # keys and values of a text are of no use in training
    if lora is None and rank is None:
        require(not freeze_a, "freeze_a is True, and there is no adapter; allowed: with rank or lora")
        return network
    peft = hub.needed("peft", "an adapter", "lm")
    require(lora is not None or (rank is not None and rank >= 1), f"rank is {rank}; allowed: at least 1, or None")
    usual = {"r": rank, "lora_alpha": 2 * (rank or 0), "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    try:
        adapted: nn.Module = peft.get_peft_model(network, peft.LoraConfig(**usual) if lora is None else lora)
    except ValueError as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidInput(f"no adapter fits this model ({reason[:160]}); allowed: lora=peft.LoraConfig(...)") from None
    for name, parameter in adapted.named_parameters():
        if freeze_a and "lora_A" in name:
            parameter.requires_grad_(False)
    return adapted


# Texts


def _one_each(clients: Sequence[Texts] | Mapping[str, Texts] | str | Path) -> tuple[list[str] | None, list[Texts]]:
    """The names of clients, where they have some, and the texts of each."""
    if isinstance(clients, Mapping):
        return list(clients), list(clients.values())
    if not isinstance(clients, str | Path):
        return None, list(clients)
    folder = Path(clients)
    require(folder.is_dir(), f"clients is {folder}; allowed: texts, or a folder with one folder or file per client")
    found = [path for path in sorted(folder.iterdir()) if path.is_dir() or path.suffix == ".txt"]
    require(bool(found), f"{folder} is empty; allowed: one folder or text file (.txt) per client")
    return [path.name if path.is_dir() else path.stem for path in found], list(found)


def _matched(tests: Sequence[Texts] | Mapping[str, Texts] | str | Path, names: list[str] | None) -> list[Texts]:
    """Held-out texts in the order of the clients: by name where both have names."""
    own, texts = _one_each(tests)
    if own is None or names is None:
        return texts
    return in_order("client_tests", dict(zip(own, texts, strict=True)), len(names), names)


def _documents(texts: Texts) -> list[str]:
    if isinstance(texts, str | Path):
        return _files(Path(texts))
    if hasattr(texts, "column_names"):
        names = texts.column_names
        require("text" in names, f"there is no column 'text'; there are: {', '.join(names)}")
        return [str(text) for text in texts["text"]]  # type: ignore[index]
    found = list(texts)
    strange = next((one for one in found if not isinstance(one, str)), None)
    require(strange is None, f"a client's text is {type(strange).__name__}; allowed: strings")
    return found


def _files(place: Path) -> list[str]:
    try:
        if not place.is_dir():
            return [part for part in place.read_text(encoding="utf-8").split("\n\n") if part.strip()]
        return [path.read_text(encoding="utf-8") for path in sorted(place.iterdir()) if path.is_file()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {place}: {error}; allowed: a file or a folder of files in UTF-8") from None


def _split(documents: list[list[str]], held_out: float) -> tuple[list[list[str]], list[list[str]]]:
    """Each client's texts, and the last of them, which nobody trains on."""
    for client, own in enumerate(documents):
        allowed = "at least 2, of which one is held out, or held_out=0"
        require(len(own) >= 2, f"client {client} has {len(own)} texts; allowed: {allowed}")
    cuts = [len(own) - max(1, round(held_out * len(own))) for own in documents]
    cuts = [max(1, cut) for cut in cuts]
    pairs = list(zip(documents, cuts, strict=True))
    return [own[:cut] for own, cut in pairs], [own[cut:] for own, cut in pairs]


def _packed(tokenizer: Any, documents: list[str], length: int) -> list[list[int]]:
    """One stream of tokens in rows of one length."""
    end = tokenizer.eos_token_id
    stream = [token for own in _tokens(tokenizer, documents) for token in (*own, *([] if end is None else [end]))]
    rows = [stream[start : start + length] for start in range(0, len(stream), length)]
    return rows if len(rows) == 1 else [row for row in rows if len(row) == length]


def _padded(tokenizer: Any, documents: list[str], length: int) -> list[list[int]]:
    """A row per document."""
    return [own[:length] for own in _tokens(tokenizer, documents) if len(own) >= 2]


def _tokens(tokenizer: Any, documents: list[str]) -> list[list[int]]:
    if not documents:
        return []
    found: list[list[int]] = tokenizer(documents, add_special_tokens=True, verbose=False)["input_ids"]
    return found


def _pair(rows: list[list[int]], length: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Tokens, and the same as labels. Padding comes last, where no token attends to it, and does not count."""
    require(any(len(row) >= 2 for row in rows), "a client has no text; allowed: at least two tokens each")
    ids = torch.zeros(len(rows), length, dtype=torch.int64)
    labels = torch.full_like(ids, IGNORED)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = labels[number, : len(row)] = torch.tensor(row)
    return {"input_ids": ids}, labels
