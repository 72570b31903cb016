"""What every benchmark shares: interleaved timing, a table on the screen, a JSON record with the machine beside it."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from acefl.runs.record import machine

RESULTS = Path(__file__).parent / "results"


def interleaved(jobs: Mapping[str, Callable[[], Any]], repeats: int = 5) -> dict[str, list[float]]:
    """Seconds of each job, taken in turns so that a noisy moment hits all of them; one untimed turn first."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(repeats + 1):
        for name, job in jobs.items():
            began = time.perf_counter()
            job()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of per-turn ratios: what one machine's mood cannot change."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def report(
    name: str,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    targets: Sequence[Mapping[str, Any]] = (),
    *,
    variant: str = "",
) -> None:
    """Print the rows and the targets, and keep both as benchmarks/results/<name><variant>.json."""
    print(f"\n{title}")
    _print(rows)
    for target in targets:
        verdict = "met" if target["met"] else "NOT MET"
        print(f"  target: {target['what']}: {target['measured']:.3g} (asked: {target['asked']}) -> {verdict}")
    RESULTS.mkdir(exist_ok=True)
    content = {
        "benchmark": name,
        "command": " ".join([f"python -m benchmarks.{name}", *map(portable, sys.argv[1:])]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "rows": list(rows),
        "targets": list(targets),
    }
    path = RESULTS / f"{name}{variant}.json"
    path.write_text(json.dumps(content, indent=2) + "\n")
    print(f"  recorded in {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def portable(argument: str) -> str:
    """An argument as it is recorded: a path outside the working directory says nothing to a reader."""
    return "PATH" if argument.startswith(("/", "..", "~")) else argument


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    columns = list(rows[0])
    cells = [[_text(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(column), *(len(line[i]) for line in cells)) for i, column in enumerate(columns)]
    for line in [columns, *cells]:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)))


def _text(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
