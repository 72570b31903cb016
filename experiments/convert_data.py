"""CIFAR from packed images into its original binary layout, which acefl reads; 20 Newsgroups is copied as it is.

    python3 experiments/convert_data.py FOLDER [OUT]   # OUT: FOLDER itself, where it may be written to

FOLDER holds `cifar10_a.imgpack.npz`, `cifar100_a.imgpack.npz` (each with a part `b`, or without) or
`news20_bydate.jsonl.xz`, whichever are there, and for the images `fl_data.py`, a program that unpacks them. This script
runs that program: call it only for a folder you trust. acefl itself runs nothing that lies in a data folder.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

NEWS = "news20_bydate.jsonl.xz"


def main(folder: Path, out: Path) -> None:
    found = [name for name in ("cifar10", "cifar100") if (folder / f"{name}_a.imgpack.npz").exists()]
    if not found and not (folder / NEWS).exists():
        sys.exit(f"error: {folder} has no cifar10_a.imgpack.npz, cifar100_a.imgpack.npz or {NEWS}")
    for name in found:
        parts = "ab" if (folder / f"{name}_b.imgpack.npz").exists() else "a"
        write_binary(name, getattr(_reader(folder), name)(parts=parts, cache=None), out)
        print(f"{name}: written to {out}", flush=True)
    if (folder / NEWS).exists() and folder.resolve() != out.resolve():
        out.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / NEWS, out / NEWS)
        print(f"news20: copied to {out}", flush=True)


def write_binary(name: str, data: dict[str, Any], out: Path) -> None:
    """`cifar-10-batches-bin` (five training files, in order) or `cifar-100-binary`, of however many images."""
    if name == "cifar10":
        place, training, test, coarse = out / "cifar-10-batches-bin", 5, "test_batch", None
        names = [f"data_batch_{k}" for k in range(1, training + 1)]
    else:
        place, training, test, coarse = out / "cifar-100-binary", 1, "test", np.asarray(data["fine_to_coarse"])
        names = ["train"]
    place.mkdir(parents=True, exist_ok=True)
    rows = {split: _rows(data[f"{split}_images"], data[f"{split}_labels"], coarse) for split in ("train", "test")}
    for file, part in zip(names, np.array_split(rows["train"], training), strict=True):
        part.tofile(place / f"{file}.bin")
    rows["test"].tofile(place / f"{test}.bin")  # last: what acefl looks for


def _rows(images: Any, labels: Any, coarse: Any | None) -> Any:
    """A record per image: the coarse label where there is one, the label, then the pixels, channel by channel."""
    columns = [labels] if coarse is None else [coarse[labels], labels]
    pixels = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([np.stack(columns, axis=1).astype(np.uint8), pixels], axis=1)


def _reader(folder: Path) -> ModuleType:
    if not (folder / "fl_data.py").exists():
        sys.exit(f"error: {folder} has packed images and no fl_data.py that unpacks them")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # fl_data imports its neighbours
    import fl_data  # type: ignore[import-not-found]

    return fl_data


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python3 experiments/convert_data.py FOLDER [OUT]")
    main(Path(sys.argv[1]), Path(sys.argv[-1]))
