"""20 Newsgroups from a folder, in the layouts people have it in, or through `datasets` where there is internet.

Allowed: `news20_bydate.jsonl.xz` (one JSON object a line: split, label, text); `train.jsonl` and `test.jsonl`, or
parquet files whose names say train and test, as the Hugging Face hub ships them (text, label); or the original
`20news-bydate-train` and `20news-bydate-test`, a folder of messages per group.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from acefl.core.errors import InvalidInput
from acefl.tasks.hub import download_command, load_from_hub

Labels = npt.NDArray[np.int64]
HUB = "SetFit/20_newsgroups"


@dataclass(frozen=True)
class Texts:
    """Documents and their labels, split as their authors split them."""

    train: list[str]
    train_labels: Labels
    test: list[str]
    test_labels: Labels


def load(folder: str | Path | None, strip: bool = True) -> Texts:
    """The documents in a folder (None: from the hub); `strip` removes headers, signatures and quoted lines."""
    rows = _from_hub() if folder is None else _from_folder(Path(folder))
    clean = stripped if strip else str
    parts = {split: [(clean(text), label) for text, label in own] for split, own in rows.items()}
    for split, own in parts.items():
        if not own:
            raise InvalidInput(f"20 Newsgroups in {folder or HUB}: no documents for {split}")
    return Texts(
        [text for text, _ in parts["train"]],
        np.array([label for _, label in parts["train"]], np.int64),
        [text for text, _ in parts["test"]],
        np.array([label for _, label in parts["test"]], np.int64),
    )


Rows = dict[str, list[tuple[str, int]]]


def _from_folder(root: Path) -> Rows:
    for place in (root, root / "news20"):
        if (place / "news20_bydate.jsonl.xz").exists():
            return _packed(place / "news20_bydate.jsonl.xz")
        if (place / "20news-bydate-train").is_dir():
            return {split: _messages(place / f"20news-bydate-{split}") for split in ("train", "test")}
        if (place / "train.jsonl").exists():
            return {split: _lines(place / f"{split}.jsonl") for split in ("train", "test")}
        if any(place.glob("*.parquet")):
            return {split: _parquet(place, split) for split in ("train", "test")}
    raise InvalidInput(
        f"no 20 Newsgroups in {root}; allowed: a folder with news20_bydate.jsonl.xz, 20news-bydate-train, train.jsonl "
        f"or parquet files (get one by: {download_command(HUB, root)})"
    )


def _packed(path: Path) -> Rows:
    rows: Rows = {"train": [], "test": []}
    try:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                rows[row["split"]].append((str(row["text"]), int(row["label"])))
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"cannot read {path}: {error}; allowed: lines with split, label and text") from None
    return rows


def _lines(path: Path) -> list[tuple[str, int]]:
    try:
        with open(path, encoding="utf-8") as file:
            return _columns(path, [json.loads(line) for line in file])
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from None


def _parquet(folder: Path, split: str) -> list[tuple[str, int]]:
    import pandas as pd

    files = sorted(path for path in folder.glob("*.parquet") if split in path.name)
    if not files:
        raise InvalidInput(f"{folder} has no parquet file whose name says {split!r}")
    return _columns(folder, pd.concat([pd.read_parquet(path) for path in files]).to_dict("records"))


def _messages(folder: Path) -> list[tuple[str, int]]:
    groups = sorted(path for path in folder.iterdir() if path.is_dir())
    return [
        (message.read_text(encoding="latin-1"), label)
        for label, group in enumerate(groups)
        for message in sorted(group.iterdir())
    ]


def _from_hub() -> Rows:
    content = load_from_hub("20 Newsgroups", HUB, task="news20")
    return {split: _columns(HUB, content[split]) for split in ("train", "test")}


def _columns(source: object, rows: Iterable[Any]) -> list[tuple[str, int]]:
    try:
        return [(str(row["text"]), int(row["label"])) for row in rows]
    except (KeyError, TypeError, ValueError):
        raise InvalidInput(f"{source}: allowed are rows with text and label") from None


_QUOTED = re.compile(r"(writes in|writes:|wrote:|says:|said:|^In article|^Quoted from|^\||^>)")


def stripped(text: str) -> str:
    """A message without its header, signature and quoted lines, by scikit-learn's rules: what is said, not by whom."""
    head, _, body = text.partition("\n\n")
    text = body if re.match(r"[\w-]+:", head) else text  # the hub's version comes without headers already
    text = "\n".join(line for line in text.split("\n") if not _QUOTED.search(line))
    lines = text.strip().split("\n")
    end = next((k for k in reversed(range(len(lines))) if not lines[k].strip().strip("-")), 0)
    return "\n".join(lines[:end]) if end > 0 else text
