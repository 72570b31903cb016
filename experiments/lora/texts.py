"""What the clients of the study have: 20 Newsgroups, each group over a few clients, or a toy for trying."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from torch import nn

from acefl.tasks.text_files import load

Texts = dict[str, list[str]]  # by client, in the order of the groups: what `slow` in a scenario goes by
GROUPS = 20
_SHORTEST, _LONGEST = 200, 2000  # characters of a message: below is hardly a text, above are listings
_TOY_WORDS = [f"w{number}" for number in range(60)]


def by_group(folder: Path | None, clients: int, documents: int, held_out: int) -> tuple[Texts, Texts]:
    """Messages of so many clients per group to train on, and later ones of the same group, which are held out."""
    if folder is None:
        return _toy(documents, 0), _toy(held_out, 1)
    found = load(folder)
    parts: list[Texts] = []
    for own, labels, most in (
        (found.train, found.train_labels, documents),
        (found.test, found.test_labels, held_out),
    ):
        texts: Texts = {}
        for group in range(GROUPS):
            written = [text[:_LONGEST] for text, label in zip(own, labels, strict=True) if label == group]
            written = [text for text in written if len(text) >= _SHORTEST]
            texts |= {f"{group:02}-{client}": written[client::clients][:most] for client in range(clients)}
        parts.append(texts)
    return parts[0], parts[1]


def _toy(count: int, seed: int) -> Texts:
    """Sentences of the words that a group has."""
    draw = random.Random(seed)
    return {
        f"{group:02}-0": [
            " ".join(draw.choice(_TOY_WORDS[2 * group : 2 * group + 20]) for _ in range(14)) for _ in range(count)
        ]
        for group in range(GROUPS)
    }


def pretrained(place: Path) -> tuple[nn.Module, Any]:
    """A model and its tokenizer, from a GGUF file or a folder of transformers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = {"gguf_file": place.name} if place.suffix == ".gguf" else {}
    folder = str(place.parent if gguf else place)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True, **gguf)
    return model, AutoTokenizer.from_pretrained(folder, local_files_only=True, **gguf)


def shaped_like_smollm2() -> tuple[nn.Module, Any]:
    """A random model of SmolLM2-135M's shape, and the toy's tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1_536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8_192,
        rms_norm_eps=9.999999747378752e-06,
        rope_parameters={"rope_theta": 100_000.0, "rope_type": "default"},
        pad_token_id=2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config), toy_tokenizer()


def tiny_model() -> tuple[nn.Module, Any]:
    """A random Llama that knows the toy's words, and its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}
    config = LlamaConfig(vocab_size=1 + len(_TOY_WORDS), hidden_size=16, intermediate_size=32, **heads)
    return LlamaForCausalLM(config), toy_tokenizer()


def toy_tokenizer() -> Any:
    """Of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["<end>", *_TOY_WORDS])}
    tokens = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="<end>", unk_token="<end>")
