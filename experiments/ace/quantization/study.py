"""Does a smaller table learn as well? ACE and ACED with fp32, bf16, int8 and int4 tables, on digits and the quadratic.

The counterpart of the paper's 8-bit figure that runs on a laptop. Learning rates are tuned once per method and task
with the fp32 table and used for every encoding. Writes results.jsonl (one line per run), curves.parquet, README.md and
figure.svg beside this file; `--figure` only draws the figure again from the recorded curves.

    python experiments/ace/quantization/study.py [--workers N | --figure]
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import acefl
from acefl import ACE, ACED, Stop
from acefl.rules import label
from acefl.runs.record import machine
from acefl.studies.compare import search_rate
from acefl.studies.jobs import Job, open_jobs
from acefl.studies.spec import DEFAULT_SCENARIO, RunSpec

HERE = Path(__file__).parent
TASKS: dict[str, dict[str, Any]] = {
    "digits": {"name": "digits", "clients": 100, "alpha": 0.1, "model": "softmax"},
    "quadratic": {"name": "quadratic", "clients": 100, "dim": 50, "heterogeneity": 1.0, "noise": 0.5},
}
METRICS = {"digits": ("client_loss", "accuracy", "slow_accuracy"), "quadratic": ("gap",)}
TABLES = ("fp32", "bf16", "int8", "int4")
SEEDS = (0, 1, 2, 3, 4)
STOP = Stop(arrivals=10_000)


def study(workers: int | None) -> tuple[list[dict[str, Any]], Any]:
    import pandas as pd

    rows, curves = [], []
    with tempfile.TemporaryDirectory() as folder, open_jobs(workers) as runner:
        jobs = []
        for task, source in TASKS.items():
            for base in (ACE(), ACED(tau=300)):
                lr = search_rate(source, base, scenario=DEFAULT_SCENARIO, stop=STOP, workers=workers).best
                for table, seed in itertools.product(TABLES, SEEDS):
                    rule = dataclasses.replace(base, table=table)
                    out = Path(folder) / f"{task}-{label(base)}-{table}-{seed}"
                    spec = RunSpec(source, rule, lr, DEFAULT_SCENARIO, STOP, seed, out=out)
                    jobs.append(Job(RunSpec.save, spec, (task, base, table)))
        runner.run(jobs)
        for job in jobs:
            task, base, table = job.key
            run = acefl.load(job.argument.out)
            what = {"task": task, "method": type(base).__name__, "table": table, "seed": job.argument.seed}
            final = {name: run.final[name] for name in METRICS[task]}
            rows.append({**what, "lr": run.config["lr"], **final, "diverged": run.diverged})
            curve = run.history[["arrival", METRICS[task][0]]].rename(columns={METRICS[task][0]: "value"})
            curves.append(curve.assign(**what))
    key = [(r["task"], r["method"], TABLES.index(r["table"]), r["seed"]) for r in rows]
    rows = [row for _, row in sorted(zip(key, rows, strict=True), key=lambda pair: pair[0])]
    return rows, pd.concat(curves).sort_values(["task", "method", "table", "seed", "arrival"])


def draw() -> None:
    import matplotlib
    import pandas as pd

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    curves = pd.read_parquet(HERE / "curves.parquet")
    plots, axes = plt.subplots(2, 2, figsize=(11, 7), constrained_layout=True)
    colours = {"fp32": "#0072B2", "bf16": "#009E73", "int8": "#E69F00", "int4": "#D55E00"}
    for ax, (task, method) in zip(axes.flat, itertools.product(TASKS, ("ACE", "ACED")), strict=True):
        for table in TABLES:
            part = curves[(curves.task == task) & (curves.method == method) & (curves.table == table)]
            seeds = part.groupby("arrival")["value"]
            ax.plot(seeds.mean().index, seeds.mean(), color=colours[table], label=table)
            ax.fill_between(seeds.min().index, seeds.min(), seeds.max(), color=colours[table], alpha=0.15, lw=0)
        ax.set(title=f"{method} on {task}", xlabel="arrivals", ylabel=METRICS[task][0], yscale="log")
        ax.legend(frameon=False)
    plots.savefig(HERE / "figure.svg")


def write_readme(rows: list[dict[str, Any]], seconds: float) -> None:
    lines = [
        "# Smaller tables: fp32, bf16, int8, int4",
        "",
        "Made by `python experiments/ace/quantization/study.py`: 100 clients, spread 30 tied to the data, event clock, "
        f"{STOP.arrivals:,} arrivals, {len(SEEDS)} seeds, learning rate tuned per method and task with the fp32 table.",
        "",
    ]
    for task, metrics in METRICS.items():
        lines += [
            f"## {task}",
            "",
            "| method | table | " + " | ".join(metrics) + " |",
            "|---|---|" + "---|" * len(metrics),
        ]
        for method in ("ACE", "ACED"):
            for table in TABLES:
                own = [r for r in rows if (r["task"], r["method"], r["table"]) == (task, method, table)]
                cells = [
                    f"{statistics.mean(r[m] for r in own):.4g} ± {statistics.stdev(r[m] for r in own):.2g}"
                    for m in metrics
                ]
                lines.append(f"| {method} | {table} | " + " | ".join(cells) + " |")
        lines.append("")
    described = ", ".join(f"{key} {value}" for key, value in machine().items() if value is not None)
    lines += ["![curves](figure.svg)", "", f"Machine: {described}. Took {seconds:.0f} s.", ""]
    (HERE / "README.md").write_text("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description="ACE and ACED with smaller tables")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--figure", action="store_true", help="only draw the figure again")
    arguments = parser.parse_args()
    if not arguments.figure:
        began = time.perf_counter()
        rows, curves = study(arguments.workers)
        (HERE / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        curves.to_parquet(HERE / "curves.parquet", index=False)
        write_readme(rows, time.perf_counter() - began)
    draw()


if __name__ == "__main__":
    main()
