"""Many clients' adapters on one frozen base: together they give what each gives alone, within 1e-5 of the largest."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from acefl import ACE, Scenario, Stop, simulate
from acefl.core.errors import InvalidInput
from acefl.tasks import TorchTask, language_model

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

CLOSE = 1e-5  # of the largest entry, in float32
WORDS = [f"w{number}" for number in range(30)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: number for number, word in enumerate(["<end>", *WORDS])}
    made = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", unk_token="<end>")


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=31,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    return transformers.LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    """Its linear layers are transformers' Conv1D, which has its weights the other way round."""
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=31, n_embd=32, n_layer=2, n_head=4, n_positions=32, **drops)
    )


def texts(clients: int = 8) -> list[list[str]]:
    """Of very different lengths, and words of their own for each client."""
    draw = torch.Generator().manual_seed(0)

    def text(client: int) -> str:
        words = torch.randint(3, 20, (1,), generator=draw).item()
        return " ".join(WORDS[(client * 3 + int(i)) % 30] for i in torch.randint(0, 12, (int(words),), generator=draw))

    return [[text(client) for _ in range(4 + client)] for client in range(clients)]


def task(tokenizer: Any, make: Any = llama, **settings: Any) -> TorchTask:
    torch.manual_seed(0)
    target = {gpt2: ["c_attn", "c_fc"], llama: ["q_proj", "v_proj", "down_proj"]}[make]
    lora = peft.LoraConfig(r=3, lora_alpha=5, target_modules=target, task_type="CAUSAL_LM", fan_in_fan_out=make is gpt2)
    usual = {"lora": lora, "length": 12, "batch": 3}
    return language_model(make(), texts(), tokenizer=tokenizer, **{**usual, **settings})


def moved(task: TorchTask, count: int) -> torch.Tensor:
    noise = torch.randn(count, len(task.initial()), generator=torch.Generator().manual_seed(1))
    return task.initial() + 0.1 * noise


def assert_close(found: torch.Tensor, expected: torch.Tensor, close: float = CLOSE) -> None:
    """Row by row, by the largest entry of each."""
    size = expected.abs().amax(1, keepdim=True)
    assert bool((size > 0).all())
    assert float(((found - expected).abs() / size).max()) < close


@pytest.mark.parametrize("pack", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("freeze_a", [False, True])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_together_is_one_by_one(tokenizer: Any, make: Any, freeze_a: bool, pack: bool) -> None:
    """For any number of clients, also where one of them has several tasks at different models."""
    several = task(tokenizer, make, freeze_a=freeze_a, pack=pack)
    alone = task(tokenizer, make, freeze_a=freeze_a, pack=pack, compute="one-by-one")
    assert (several.compute.name, alone.compute.name) == ("adapters", "one-by-one")
    models, clients, keys = moved(alone, 8), [0, 1, 2, 3, 3, 5, 6, 7], list(range(10, 18))
    expected = alone.updates(models, clients, keys)
    for count in range(1, 9):
        assert_close(several.updates(models[:count], clients[:count], keys[:count]), expected[:count])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_whichever_way_attention_is_computed(tokenizer: Any, attention: str) -> None:
    def build(compute: str) -> TorchTask:
        model = llama()
        model.set_attn_implementation(attention)  # type: ignore[operator]
        return language_model(model, texts(), tokenizer=tokenizer, rank=2, length=12, batch=2, compute=compute)

    torch.manual_seed(0)
    several = build("auto")
    torch.manual_seed(0)
    alone = build("one-by-one")
    assert several.compute.name == "adapters"
    models = moved(alone, 5)
    assert_close(several.updates(models, [0, 1, 2, 3, 4], [0] * 5), alone.updates(models, [0, 1, 2, 3, 4], [0] * 5))


def test_in_bfloat16_they_agree_as_far_as_it_reaches(tokenizer: Any) -> None:
    several, alone = task(tokenizer, bf16=True), task(tokenizer, bf16=True, compute="one-by-one")
    assert several.compute.name == "adapters"
    models = moved(alone, 4)
    assert_close(several.updates(models, [0, 1, 2, 3], [0] * 4), alone.updates(models, [0, 1, 2, 3], [0] * 4), 0.05)


def test_local_steps_of_several_clients_are_those_of_each(tokenizer: Any) -> None:
    """Also where some take more steps than others."""
    local = "sgd(lr=0.1, momentum=0.5, epochs=1)"
    several, alone = task(tokenizer, local=local), task(tokenizer, local=local, compute="one-by-one")
    assert several.compute.name == "adapters"
    models, who = moved(alone, 8), list(range(8))
    assert len(set(alone.samples)) > 1
    assert_close(several.updates(models, who, who), alone.updates(models, who, who))


@pytest.mark.parametrize("local", [None, "adamw(lr=0.01, steps=2)"])
def test_a_run_is_the_same_whatever_is_computed_at_once(tokenizer: Any, local: str | None) -> None:
    """AdamW divides by the size of a gradient, and with it by the rounding of one that is nearly zero: 1e-3 there."""
    models = []
    for limit in (1, 3, 16):
        built = task(tokenizer, local=local)
        built.batch_limit = limit
        run = simulate(built, ACE(), lr=0.5, scenario=Scenario(spread=5.0), stop=Stop(arrivals=40), evaluations=1)
        assert run.config["compute"] == {"strategy": "adapters", "at_once": limit}
        models.append(run.model)
    way = (models[0] - built.initial()).unsqueeze(0)
    for model in models[1:]:
        assert_close((model - built.initial()).unsqueeze(0), way, CLOSE if local is None else 1e-3)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_client_with_broken_numbers_spoils_nobody_elses(tokenizer: Any, wrong: float) -> None:
    built = task(tokenizer)
    models, who = moved(built, 4), [0, 1, 2, 3]
    expected = built.updates(models, who, who)
    broken = models.clone()
    broken[2] = wrong
    found = built.updates(broken, who, who)
    assert bool(found[2].isnan().any())
    assert torch.equal(found[[0, 1, 3]], expected[[0, 1, 3]])


class Head(nn.Module):
    """A frozen base, and layers that are trained."""

    def __init__(self, width: int = 600) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.between, self.last = nn.Linear(width, 6), nn.Linear(6, 3)
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.between(self.base(x))))


class MixesSamples(Head):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.base(x)
        return self.last(torch.tanh(self.between(hidden - hidden.mean(0))))


class UsesItsWeightTwice(Head):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.between.weight.sum()


class SamplesSecond(Head):
    """As recurrent networks have it: another dimension first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.stack((x, 2 * x))).sum(0)


class OwnLoss(Head):
    """A loss that nobody else knows."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = super().forward(x)
        loss = None if labels is None else F.cross_entropy(logits, labels).sqrt()
        return type("Given", (), {"logits": logits, "loss": loss})()


def heads(model: nn.Module, compute: str = "auto", **settings: Any) -> TorchTask:
    draw = torch.Generator().manual_seed(0)
    own = {"loss": nn.CrossEntropyLoss(), "batch": 4, **settings}
    data = [(torch.randn(9, 5, generator=draw), torch.randint(0, 3, (9,), generator=draw)) for _ in range(3)]
    return TorchTask(model, own.pop("loss"), data, compute=compute, **own)


def trained(model: nn.Module, *names: str) -> nn.Module:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
    return model


@pytest.mark.parametrize(
    "names",
    [("between.weight", "between.bias", "last.weight", "last.bias"), ("between.bias", "last.bias"), ("last.weight",)],
)
def test_any_linear_layers_may_be_trained_weights_and_biases(names: tuple[str, ...]) -> None:
    model = trained(Head(), *names)
    several, alone = heads(model), heads(model, "one-by-one")
    assert several.compute.name == "adapters"
    models = moved(alone, 3)
    assert_close(several.updates(models, [0, 1, 2], [5, 6, 7]), alone.updates(models, [0, 1, 2], [5, 6, 7]))


@pytest.mark.parametrize("model", [MixesSamples, UsesItsWeightTwice, SamplesSecond])
def test_a_module_that_cannot_be_stacked_is_found_out(model: type[Head]) -> None:
    assert heads(model()).compute.name == "one-by-one"


def test_on_a_cpu_a_large_base_is_shared_if_that_is_asked_for() -> None:
    """One gradient of it fills the processor."""
    model = Head(width=800)
    assert heads(model).compute.name == "one-by-one"
    assert heads(model, "adapters").compute.name == "adapters"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Head().requires_grad_(True), "the model does not fit; allowed: nothing trained but linear layers"),
        (MixesSamples(), "does not work here .*differ by .*; allowed: auto"),
        (UsesItsWeightTwice(), "does not work here .*a trained weight is used by sum, not by linear layers alone"),
    ],
    ids=["whole", "mixing", "twice"],
)
def test_where_it_is_asked_for_and_cannot_be_one_line_says_why(model: nn.Module, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        heads(model, "adapters")
    assert "\n" not in str(refused.value)


def test_a_loss_that_only_the_model_knows_is_of_one_client() -> None:
    assert heads(OwnLoss(), loss=None).compute.name == "one-by-one"


def test_a_model_that_is_trained_whole_has_no_base_to_share() -> None:
    assert heads(Head().requires_grad_(True)).compute.name == "one-by-one"


@pytest.mark.parametrize(
    "settings",
    [{"lora_dropout": 0.1}, {"use_dora": True}, {"modules_to_save": ["norm"]}, {"target_modules": ["embed_tokens"]}],
    ids=str,
)
def test_other_adapters_are_computed_one_by_one(tokenizer: Any, settings: dict[str, Any]) -> None:
    lora = peft.LoraConfig(**{"r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM", **settings})
    built = task(tokenizer, lora=lora)
    assert (built.compute.name, built.batch_limit) == ("one-by-one", 1)
    built.updates(moved(built, 2), [0, 1], [0, 1])
