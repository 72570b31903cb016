"""`experiments/convert_data.py`: what it writes is what acefl reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from acefl.tasks.image_files import load

SCRIPT = Path(__file__).parents[1] / "experiments" / "convert_data.py"

UNPACKER = """
import numpy as np

def _images(name, parts, cache):
    rng = np.random.default_rng(len(name))
    classes = 10 if name == "cifar10" else 100
    data = {"fine_to_coarse": [k // 5 for k in range(classes)]}
    for split, count in (("train", 10 * len(parts) + 3), ("test", 7)):
        data[f"{split}_images"] = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        data[f"{split}_labels"] = rng.integers(0, classes, count)
    return data

def cifar10(parts, cache):
    return _images("cifar10", parts, cache)

def cifar100(parts, cache):
    return _images("cifar100", parts, cache)
"""


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("parts", ["a", "ab"])
def test_images_come_through_bit_for_bit_in_their_order(tmp_path: Path, name: str, parts: str) -> None:
    (tmp_path / "fl_data.py").write_text(UNPACKER, encoding="utf-8")
    for part in parts:
        (tmp_path / f"{name}_{part}.imgpack.npz").touch()
    out = tmp_path / "out" if parts == "a" else tmp_path
    subprocess.run([sys.executable, SCRIPT, tmp_path, *[out] * (parts == "a")], check=True, capture_output=True)
    space: dict[str, object] = {}
    exec(UNPACKER, space)
    told = space["_images"](name, parts, None)  # type: ignore[operator]
    found = load(name, out)
    for split in ("train", "test"):
        np.testing.assert_array_equal(getattr(found, split), told[f"{split}_images"].transpose(0, 3, 1, 2))
        np.testing.assert_array_equal(getattr(found, f"{split}_labels"), told[f"{split}_labels"])


def test_a_folder_without_data_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
