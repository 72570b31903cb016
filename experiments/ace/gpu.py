"""The recorded GPU runs, in stages, the most wanted first; goes on where it stopped.

    PYTHONPATH=src:. python3 experiments/ace/gpu.py --out DIR --limit SECONDS [--workers N] [--stages main0,quant0]
    PYTHONPATH=src:. python3 experiments/ace/gpu.py --merge DIR   # add DIR's records to recorded/, write the pages

Stages whose data are not there are left out. `gpu.sh` beside this file calls it on the lent machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from acefl import reproduce
from acefl.record import FORMAT, write_json
from acefl.reproduce import runner
from acefl.reproduce.plan import Planned

HERE = Path(__file__).parent
DATA = {"cifar10": "carry/cifar10", "cifar100": "carry/cifar100", "news20": "carry/news"}
ENCODER = "carry/encoder"
CORNERS = ((0.1, 30.0), (10.0, 30.0), (0.3, 5.0), (10.0, 1.0), (0.1, 1.0))
COMMAND = "bash experiments/ace/gpu.sh SECONDS"
SMALLER = (
    "Made with 20,000 of the 50,000 training images and all 10,000 test images: what travels to the GPU. A client has "
    "200 images on average, where the paper's have 500."
)
REMARKS = {"cifar10": [SMALLER], "cifar100": [SMALLER]}

Wanted = Callable[[dict[str, Any]], bool]  # by an entry's labels
EVERYTHING: Wanted = lambda labels: True  # noqa: E731


def _on(clock: str) -> Wanted:
    return lambda labels: labels["clock"] == clock


def _small_news(update: str, clock: str) -> Wanted:
    return lambda labels: (labels["size"], labels["update"], labels["clock"]) == ("n = 20, T = 100", update, clock)


def _corner(labels: dict[str, Any]) -> bool:
    return (labels["alpha"], labels["beta"]) in CORNERS


# stage -> recipe, what to ask of it, which of its entries
STAGES: dict[str, tuple[str, dict[str, Any], Wanted]] = {
    "main0": ("cifar10-main", {"seeds": (0,)}, lambda labels: labels["clock"] != "sampled"),
    "quant0": ("quantization", {"seeds": (0,)}, EVERYTHING),
    "news": ("news20-table", {"seeds": (0, 1, 2, 3, 4), "evaluations": 4}, _small_news("adamw", "tick")),
    "dropout0": ("dropout", {"seeds": (0,)}, EVERYTHING),
    "heat-cnn": ("cifar100-heatmap", {"seeds": (0,), "model": "cnn"}, _corner),
    "amp": ("amplification", {"form": "tuned", "seeds": (0, 1, 2), "model": "cnn"}, EVERYTHING),
    "readings": ("readings", {"seeds": (0,)}, EVERYTHING),
    "seeds12": ("cifar10-main", {"seeds": (1, 2)}, _on("tick")),
    "tuned": ("cifar10-main", {"form": "tuned", "seeds": (0, 1, 2), "model": "cnn"}, EVERYTHING),
    "sampled": ("cifar10-main", {"seeds": (0,)}, _on("sampled")),
    "heat0": ("cifar100-heatmap", {"seeds": (0,)}, lambda labels: _corner(labels) and labels["beta"] > 1),
    "news-event": ("news20-table", {"seeds": (0,), "evaluations": 4}, _small_news("adamw", "event")),
    "news-gradient": ("news20-table", {"seeds": (0,), "evaluations": 4}, _small_news("gradient", "tick")),
    "quant": ("quantization", {"seeds": (1, 2, 3, 4)}, EVERYTHING),
    "seeds34": ("cifar10-main", {"seeds": (3, 4)}, _on("tick")),
    "dropout": ("dropout", {"seeds": (1, 2, 3, 4)}, EVERYTHING),
    "main-cnn": ("cifar10-main", {"seeds": (0, 1, 2, 3, 4), "model": "cnn"}, _on("tick")),
    "dropout-cnn": ("dropout", {"seeds": (0, 1, 2, 3, 4), "model": "cnn"}, EVERYTHING),
    "news100": (
        "news20-table",
        {"seeds": (0,), "evaluations": 4},
        lambda labels: labels["size"] == "n = 100, T = 500" and labels["alpha"] == 0.1,
    ),
    "amp-news": ("amplification", {"form": "tuned", "seeds": (0,), "model": ENCODER, "evaluations": 4}, EVERYTHING),
    "extended-cnn": ("cifar10-extended", {"seeds": (0, 1, 2), "model": "cnn"}, EVERYTHING),
}


def plan(stages: Sequence[str], device: str, sizes: dict[str, Any]) -> list[Planned]:
    """The runs of the stages in order; then those of all other stages, while time lasts."""
    planned: list[Planned] = []
    for stage in [*stages, *(stage for stage in STAGES if stage not in stages)]:
        name, settings, wanted = STAGES[stage]
        recipe = reproduce.recipe(name)
        data = "news20" if "news" in stage else str(recipe.data)
        if not Path(DATA[data]).exists() or (data == "news20" and not Path(ENCODER).exists()):
            print(f"left out {stage}: no {DATA[data]}", flush=True)
            continue
        model = {"model": ENCODER} if data == "news20" else {}
        request = recipe.request(folder=DATA[data], device=device, **{**model, **settings, **sizes})
        planned += [entry for entry in recipe.plan(request) if wanted(dict(entry.labels))]
    return planned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=float, default=540.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--stages", default="")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", type=json.loads, default={}, help="JSON in place of the recipes' sizes, for a trial")
    parser.add_argument("--merge", type=Path)
    arguments = parser.parse_args()
    if arguments.merge is not None:
        merge(arguments.merge)
        return
    began = time.monotonic()
    _decode()
    stages = [stage for stage in arguments.stages.split(",") if stage]
    planned = plan(stages, arguments.device, arguments.sizes)
    folders = {entry.recipe: arguments.out / entry.recipe for entry in planned}

    def progress(done: int, known: int, last: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {done} of {known}  {last}", flush=True)

    left = arguments.limit - (time.monotonic() - began)
    outcome = runner.run(planned, folders, workers=arguments.workers, limit=left, progress=progress)
    print(f"{time.monotonic() - began:.1f} s, {outcome.done} runs, {outcome.left} left", flush=True)
    for cell, problem in list(outcome.failed.items())[:5]:
        print(f"failed: {cell}: {problem}", flush=True)


def _decode() -> None:
    """Packed images are decoded once, before several processes ask for them."""
    from acefl.tasks.image_files import load

    for name in ("cifar10", "cifar100"):
        if Path(DATA[name]).exists():
            load(name, DATA[name])


def merge(records: Path) -> None:
    for folder in sorted(path for path in records.iterdir() if (path / "results.jsonl").exists()):
        out = HERE / "recorded" / folder.name
        out.mkdir(parents=True, exist_ok=True)
        data = str(reproduce.recipe(folder.name).data)
        note = {"format": FORMAT, "recipe": folder.name, "commands": [COMMAND], "remarks": REMARKS.get(data, [])}
        write_json(out / "reproduce.json", note)
        print(folder.name, reproduce.merge([folder / "results.jsonl"], out), "new records")
        reproduce.write_page(out)


if __name__ == "__main__":
    main()
