"""README.md of the study, from its records alone: final perplexities, times to FedAvg's, curves."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from acefl.core.files import read_json
from acefl.core.metrics import Target
from acefl.paper.page import Page, curves
from acefl.paper.records import Ledger, Record, Results
from acefl.report.statistics import half_width, leaders, why_bold

if TYPE_CHECKING:
    from experiments.lora.study import Size

ALL, SLOW = "heldout_client_perplexity", "heldout_slow_perplexity"
ANCHOR = "FedAvg"
LONGER, TIMES = "longer", 2  # the kind of a run that goes on beyond the others' uploads, and to how many times as many
BETTER = {"perplexity": "smaller"}
TOY = "a tiny random model"
Ends = dict[int, Record]  # FedAvg's runs, by seed
_INTRODUCTION = """# Asynchronous LoRA of a language model{small}

SmolLM2-135M-Instruct with rank-8 adapters on 20 Newsgroups, each group over {clients}; a client's work is
`{work}` on {batch} rows of {length} tokens. Perplexity is on later messages of the same group, which nobody
trains on. Devices are those of EdgeFlowerTune: three in eight take 11 to 14 seconds per step, the others 170 to 174.
Speeds are tied to the data (the last groups have the slow devices), independent of them, or reversed. Every method has
its learning rate from {trials}, with speeds tied to the data, on a seed that is not reported. All stop at {arrivals}
uploads. For the time to {anchor}'s last perplexity others go on to {longer} with A and B and tied speeds.

    {command}
    {command_of_page}
{also}"""
_ALSO = """
The same with 20 clients and shorter texts, which two cores have finished: [small](small/README.md).
"""
_COMMAND = "python experiments/lora/study.py"


def _introduction(size: Size, small: bool, results: Results) -> str:
    kind = " --small" if small else ""
    how = "--bf16" if small else "--device cuda --bf16 --seconds 540   # until nothing is missing"
    effort = Counter((trial["labels"]["adapter"], trial["labels"]["method"]) for trial in results.trials)
    least, most = min(effort.values(), default=0), max(effort.values(), default=0)
    trials = f"{least} trials, three times apart"
    return _INTRODUCTION.format(
        trials=trials + f" (up to {most} where the best was at the edge)" * (most > least),
        small=", small enough for two cores" if small else "",
        clients="one client" if size.clients_per_group == 1 else f"{size.clients_per_group} clients",
        work=size.local,
        batch=size.batch,
        length=size.length,
        arrivals=size.arrivals,
        anchor=ANCHOR,
        longer=TIMES * size.arrivals,
        command=f"{_COMMAND} run{kind} --data DIR {how}",
        command_of_page=f"{_COMMAND} page{kind}",
        also="" if small else _ALSO,
    ).rstrip()


def write(folder: Path, cells: Sequence[tuple[str, str]], size: Size, *, small: bool = False) -> Path:
    ledger = Ledger(folder / "results.jsonl") if (folder / "results.jsonl").exists() else None
    results = Results(ledger.records.values() if ledger else ())
    longer = [record for record in ledger.records.values() if record["kind"] == LONGER] if ledger else []
    page = Page(folder)
    page.text(_introduction(size, small, results))
    if any(record["settings"]["model"] == TOY for record in results.records):
        page.text(f"*Not for citing: what follows is of {TOY} and made-up sentences, to see that the study works.*")
    if small:  # what a CPU has had no time for is not listed
        cells = [(adapter, one) for adapter, one in cells if results.where(speeds=one).records]
    for one in dict.fromkeys(speeds for _, speeds in cells):
        page.text(f"## Speeds {one}")
        adapters = [adapter for adapter, speeds in cells if speeds == one]
        for adapter in adapters:
            page.text(f"### What travels: {adapter}")
            _cell(page, results.where(adapter=adapter, speeds=one), longer)
        panels = {adapter: {"adapter": adapter, "speeds": one} for adapter in adapters}
        for metric, words in ((ALL, "all clients"), (SLOW, "the slowest fifth")):
            name = f"{one.replace(' ', '-')}-{metric.split('_')[1]}"
            caption = f"Held-out perplexity, {words}; speeds {one}."
            curves(page, name, caption, results, panels, metric=metric, words=f"perplexity, {words}")
    if results.records:
        if travels := _what_travels(results):
            page.text("## B alone against A and B")
            page.table(["speeds", "method", "perplexity"], travels)
        page.text(_at_the_edge(results))
        page.text(_made(results, longer, folder))
    return page.write()


def _cell(page: Page, results: Results, longer: Sequence[Record]) -> None:
    if not results.records:
        page.text("Not recorded yet.")
        return
    common = results.balanced()
    methods = common.having("method")
    bold = {metric: _leading(common, methods, metric) for metric in (ALL, SLOW)}
    ends = {record["settings"]["seed"]: record for record in common.where(method=ANCHOR).records}
    rows = []
    for method in methods:
        rates = {record["settings"]["lr"] for record in common.where(method=method).records}
        scores = [_interval(common.values(metric, method=method), method in bold[metric]) for metric in (ALL, SLOW)]
        took = _interval([record["time"] for record in common.where(method=method).records], False)
        row = [method, ", ".join(f"{rate:.2g}" for rate in rates), *scores, took]
        if ends:
            row += [*_against_anchor(common, method, ends), *_to_anchor(common, method, ends, longer)]
        rows.append(row)
    header = ["method", "rate", "perplexity, all", "slowest fifth", "virtual time, s"]
    if ends:
        header += [f"{ANCHOR}'s time over it", f"perplexity against {ANCHOR}'s"]
        header += [f"time to {ANCHOR}'s perplexity, s", "of its time", "uploads"]
    page.table(header, rows)
    if len(methods) > 1:
        page.text(why_bold(len(methods), common.seeds, any(bold.values())))


def _leading(results: Results, methods: Sequence[str], metric: str) -> set[str]:
    """Who may be printed in bold, by differences of logarithms on the same seed."""
    scores = {method: [_log(value) for value in results.values(metric, method=method)] for method in methods}
    return leaders(scores)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else math.inf


def _against_anchor(results: Results, method: str, ends: Ends) -> list[str]:
    """For the same uploads on the same seeds: FedAvg's time over a method's, and what its perplexity differs by."""
    if method == ANCHOR:
        return ["1", ""]
    runs = results.where(method=method).records
    times = _interval([ends[run["settings"]["seed"]]["time"] / run["time"] for run in runs], False)
    return [times, _difference(results.by_seed(ALL, method=method), results.by_seed(ALL, method=ANCHOR))]


def _to_anchor(results: Results, method: str, ends: Ends, longer: Sequence[Record]) -> list[str]:
    """When a method first has the perplexity with which FedAvg ends on the same seed: time, share of FedAvg's, uploads.

    Of longer runs, where there are any. Nothing between evaluations is guessed.
    """
    found = []
    runs = results.where(method=method).records
    runs = [record for record in longer if runs and _same_entry(record, runs[0])] or runs
    for record in runs:
        anchor = ends[record["settings"]["seed"]]
        value = anchor["final"].get(ALL)
        reached = Target(ALL, float(value)).first(record["history"], BETTER) if value is not None else None
        if reached is not None:
            found.append((reached.time, reached.time / anchor["time"], float(reached.arrivals)))
    within = f"not within {max(record['arrivals'] for record in runs)} uploads"
    if not found:
        return [within, "", ""]
    missed = f" ({len(runs) - len(found)} of {len(runs)} seeds {within})" if len(found) < len(runs) else ""
    time, share, uploads = (_interval(values, False) for values in zip(*found, strict=True))
    shares = [of_its for _, of_its, _ in found]
    by_seed = f" ({_number(min(shares), 2)} to {_number(max(shares), 2)} by seed)" if min(shares) < max(shares) else ""
    return [time + missed, share + by_seed, uploads]


def _same_entry(one: Record, other: Record) -> bool:
    """Whether they are runs of one method in one cell at one rate: an earlier search may have chosen another."""
    return bool(one["labels"] == other["labels"] and one["settings"]["lr"] == other["settings"]["lr"])


def _interval(values: Sequence[float], bold: bool) -> str:
    """The mean and half of its 95 % interval over seeds; a run that diverged has no value."""
    if not all(map(math.isfinite, values)):
        return "diverged"
    half = half_width(values)
    text = _number(statistics.fmean(values), 3) + (f" ± {_number(half, 2)}" if math.isfinite(half) else "")
    return f"**{text}**" if bold else text


def _number(value: float, digits: int) -> str:
    """With so many digits, and no powers of ten."""
    return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"


def _what_travels(results: Results) -> list[list[str]]:
    """B alone against A and B: the perplexities of a method by the same speeds, on the same seeds."""
    said = []
    for speeds in results.having("speeds"):
        for method in results.having("method"):
            entry = results.where(speeds=speeds, method=method)
            both, alone = (entry.by_seed(ALL, adapter=adapter) for adapter in ("A and B", "B alone"))
            if both and alone:
                said.append([speeds, method, _difference(alone, both)])
    return said


def _difference(ours: dict[int, float], theirs: dict[int, float]) -> str:
    """In percent of theirs, over the seeds that both have."""
    percent = [100 * (ours[seed] / theirs[seed] - 1) for seed in sorted(ours.keys() & theirs.keys())]
    text = _interval(percent, False)
    return f"{'' if text.startswith('-') else '+'}{text} %"


def _at_the_edge(results: Results) -> str:
    """For which methods a rate beyond those that were tried may be better."""
    found = []
    for record in results.records:
        who = ("adapter", "method")  # rates found by one speed are kept for others
        alike = [trial for trial in results.trials if all(trial["labels"][of] == record["labels"][of] for of in who)]
        tried = [trial["settings"]["lr"] for trial in alike]
        if tried and record["settings"]["lr"] in (min(tried), max(tried)):
            found.append(", ".join(record["labels"].values()))
    told = "; ".join(dict.fromkeys(found))
    return (
        f"The best rate was the smallest or the largest that was tried, and others may be better: {told or 'nowhere'}."
    )


def _made(results: Results, longer: Sequence[Record], folder: Path) -> str:
    """What it cost and how it was computed."""
    seconds = sum(record["seconds"] for record in (*results.records, *results.trials, *longer))
    ways = sorted({f"{r['compute']['strategy']}, {r['compute']['at_once']} at once" for r in results.records})
    where = read_json(folder / "machine.json")
    on = where.get("gpu") if where["device"] != "cpu" else where.get("cpu")
    bf16 = ", bfloat16" if where["bf16"] else ""
    return (
        f"{len(results.records)} runs, {len(longer)} longer ones and {len(results.trials)} trials, "
        f"{seconds / 60:.0f} minutes on {on} (torch {where['torch']}){bf16}, summed over runs, some beside each other. "
        f"Gradients: {'; '.join(ways)}. ± is half of the 95 % interval over seeds."
    )
