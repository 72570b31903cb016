"""The model: any causal one of transformers with a LoRA adapter, or a tiny random one that needs no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    ByT5Tokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

TINY = "tiny"


def get_tokenizer(name: str) -> Any:
    """The model's; that of the tiny one takes every byte for a token."""
    if name == TINY:
        return ByT5Tokenizer(extra_ids=0)
    place, settings = _place(name)
    return AutoTokenizer.from_pretrained(place, **settings)


def get_base(name: str) -> PreTrainedModel:
    """The model without an adapter: the same on the server and on every node."""
    if name == TINY:
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
        torch.manual_seed(0)
        return LlamaForCausalLM(LlamaConfig(vocab_size=259, max_position_embeddings=512, use_cache=False, **sizes))
    place, settings = _place(name)
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, **settings)
    model.config.use_cache = False
    if settings:
        model.is_quantized = False  # unpacked to float32: a Trainer refuses it otherwise
    return model


def get_model(config: dict[str, Any]) -> PeftModel:
    """With an adapter. Its seed is fixed: with `freeze-a` the factors A do not travel, and must be equal everywhere."""
    base, lora = get_base(config["name"]), config["lora"]
    torch.manual_seed(0)
    settings = LoraConfig(r=lora["peft-lora-r"], lora_alpha=lora["peft-lora-alpha"], task_type="CAUSAL_LM")
    model = get_peft_model(base, settings)
    for name, parameter in model.named_parameters():
        if lora["freeze-a"] and "lora_A" in name:
            parameter.requires_grad_(False)
    return model


def _place(name: str) -> tuple[str, dict[str, Any]]:
    """Where transformers finds it: a GGUF file by its folder and name."""
    path = Path(name)
    return (str(path.parent), {"gguf_file": path.name}) if path.suffix == ".gguf" else (name, {})
