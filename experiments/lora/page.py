"""README.md of the study, from its records alone: final perplexities, times to FedAvg's, curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from acefl.core.files import read_json
from acefl.core.metrics import Target
from acefl.paper.page import Page, curves
from acefl.paper.records import Ledger, Results
from acefl.report.statistics import half_width, leaders, why_bold

ALL, SLOW = "heldout_client_perplexity", "heldout_slow_perplexity"
ANCHOR = "FedAvg"
BETTER = {"perplexity": "smaller"}
TOY = "a tiny random model"
INTRODUCTION = """# Asynchronous LoRA of a language model

SmolLM2-135M-Instruct with rank-8 adapters on 20 Newsgroups, each group over five clients; perplexity is on later
messages of the same group, which nobody trains on. Devices are those of EdgeFlowerTune: three in eight take 11 to 14
seconds per step, the others 170 to 174. Speeds are tied to the data (the last groups have the slow devices),
independent of them, or reversed. Every method has its learning rate from four trials, three times apart, on a seed that
is not reported. All stop at the same number of uploads.

    python experiments/lora/study.py run --data DIR --device cuda --bf16 --seconds 540   # until nothing is missing
    python experiments/lora/study.py page
"""


def write(folder: Path, adapters: Sequence[str], speeds: Sequence[str]) -> Path:
    ledger = Ledger(folder / "results.jsonl") if (folder / "results.jsonl").exists() else None
    results = Results(ledger.records.values() if ledger else ())
    page = Page(folder)
    page.text(INTRODUCTION.rstrip())
    if any(record["settings"]["model"] == TOY for record in results.records):
        page.text(f"*Not for citing: what follows is of {TOY} and made-up sentences, to see that the study works.*")
    for one in speeds:
        page.text(f"## Speeds {one}")
        for adapter in adapters:
            page.text(f"### What travels: {adapter}")
            _cell(page, results.where(adapter=adapter, speeds=one))
        panels = {adapter: {"adapter": adapter, "speeds": one} for adapter in adapters}
        for metric, words in ((ALL, "all clients"), (SLOW, "the slowest fifth")):
            name = f"{one.replace(' ', '-')}-{metric.split('_')[1]}"
            caption = f"Held-out perplexity, {words}; speeds {one}."
            curves(page, name, caption, results, panels, metric=metric, words=f"perplexity, {words}")
    if results.records:
        page.text(_at_the_edge(results))
        page.text(_made(results, folder))
    return page.write()


def _cell(page: Page, results: Results) -> None:
    if not results.records:
        page.text("Not recorded yet.")
        return
    common = results.balanced()
    methods = common.having("method")
    bold = {metric: _leading(common, methods, metric) for metric in (ALL, SLOW)}
    rows = []
    for method in methods:
        rates = {record["settings"]["lr"] for record in common.where(method=method).records}
        scores = [_interval(common.values(metric, method=method), method in bold[metric]) for metric in (ALL, SLOW)]
        rows.append([method, ", ".join(f"{rate:.2g}" for rate in rates), *scores, *_to_anchor(common, method)])
    header = ["method", "rate", "perplexity, all", "slowest fifth", f"time to {ANCHOR}'s end", "of its time", "uploads"]
    page.table(header, rows)
    page.text(why_bold(len(methods), common.seeds, any(bold.values())))


def _leading(results: Results, methods: Sequence[str], metric: str) -> set[str]:
    """Who may be printed in bold, by differences of logarithms on the same seed."""
    scores = {method: [_log(value) for value in results.values(metric, method=method)] for method in methods}
    return leaders(scores)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else math.inf


def _to_anchor(results: Results, method: str) -> list[str]:
    """When a method first has the perplexity with which FedAvg ends on the same seed: time, share of FedAvg's, uploads.

    Nothing between evaluations is guessed.
    """
    ends = {record["settings"]["seed"]: record for record in results.where(method=ANCHOR).records}
    if not ends:
        return [f"no {ANCHOR} yet", "", ""]
    found = []
    runs = results.where(method=method).records
    for record in runs:
        anchor = ends[record["settings"]["seed"]]
        value = anchor["final"].get(ALL)
        reached = Target(ALL, float(value)).first(record["history"], BETTER) if value is not None else None
        if reached is not None:
            found.append((reached.time, reached.time / anchor["time"], float(reached.arrivals)))
    if not found:
        return ["not reached", "", ""]
    missed = f" ({len(runs) - len(found)} of {len(runs)} seeds do not)" if len(found) < len(runs) else ""
    cells = [_interval(values, False) for values in zip(*found, strict=True)]
    return [cells[0] + missed, *cells[1:]]


def _interval(values: Sequence[float], bold: bool) -> str:
    """The mean and half of its 95 % interval over seeds; a run that diverged has no value."""
    if not all(map(math.isfinite, values)):
        return "diverged"
    half = half_width(values)
    text = f"{statistics.fmean(values):.3g}" + (f" ± {half:.2g}" if math.isfinite(half) else "")
    return f"**{text}**" if bold else text


def _at_the_edge(results: Results) -> str:
    """For which methods a rate beyond those that were tried may be better."""
    found = []
    for record in results.records:
        tried = [trial["settings"]["lr"] for trial in results.trials if trial["labels"] == record["labels"]]
        if tried and record["settings"]["lr"] in (min(tried), max(tried)):
            found.append(", ".join(record["labels"].values()))
    told = "; ".join(dict.fromkeys(found))
    return (
        f"The best rate was the smallest or the largest that was tried, and others may be better: {told or 'nowhere'}."
    )


def _made(results: Results, folder: Path) -> str:
    """What it cost and how it was computed."""
    seconds = sum(record["seconds"] for record in (*results.records, *results.trials))
    ways = sorted({f"{r['compute']['strategy']}, {r['compute']['at_once']} at once" for r in results.records})
    where = read_json(folder / "machine.json")
    on = where.get("gpu") if where["device"] != "cpu" else where.get("cpu")
    bf16 = ", bfloat16" if where["bf16"] else ""
    return (
        f"{len(results.records)} runs and {len(results.trials)} trials, {seconds / 60:.0f} minutes on {on}{bf16}. "
        f"Gradients: {'; '.join(ways)}. ± is half of the 95 % interval over seeds."
    )
