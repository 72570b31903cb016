"""Examples that need a model or data from elsewhere, run on small ones made here."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_minilm_lora_trains_adapters_of_any_bert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    from tokenizers import Tokenizer, models, pre_tokenizers

    names = ["[PAD]", "[UNK]", *(f"word{i}" for i in range(20))]
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(names)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.save_pretrained(tmp_path / "model")
    sizes = {"hidden_size": 8, "num_hidden_layers": 6, "num_attention_heads": 2, "intermediate_size": 8}
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=22, max_position_embeddings=48, **sizes)
    transformers.BertModel(config).save_pretrained(tmp_path / "model")
    for split, count in (("train", 10), ("test", 1)):
        lines = [{"text": f"word{k} word{k}", "label": k} for k in range(20)] * count
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    arguments = ["minilm_lora.py", str(tmp_path), "--model", str(tmp_path / "model"), "--arrivals", "20"]
    monkeypatch.setattr(sys, "argv", arguments)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(EXAMPLES / "minilm_lora.py"), run_name="__main__")
    first, *lines = printed.getvalue().splitlines()
    adapters = 2 * 2 * (8 * 8 + 8 * 8)  # query and value of two layers, both factors
    assert first.startswith(f"{adapters + 8 * 20 + 20:,} parameters travel. A client takes 2 steps of SGD")
    assert [line.split()[0] for line in lines] == ["ACE", "FedAvg"]
