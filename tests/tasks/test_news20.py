"""20 Newsgroups: every layout gives the same documents, and a transformer's gradient can be traced and captured."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad

from acefl import ACE, Scenario, Stop, simulate, tasks
from acefl.core.errors import InvalidInput
from acefl.tasks import TorchTask
from acefl.tasks.news20 import _network
from acefl.tasks.text_files import load, stripped

GROUPS = ("alt.atheism", "comp.graphics")
DOCUMENTS = {
    split: [
        (f"From: a{k}@b.c\nSubject: {k}\n\nThe matter of {GROUPS[k % 2]} number {k}.\nMore.\n", k % 2) for k in range(n)
    ]
    for split, n in (("train", 24), ("test", 8))
}


def write_packed(folder: Path) -> None:
    with lzma.open(folder / "news20_bydate.jsonl.xz", "wt", encoding="utf-8") as file:
        for split, rows in DOCUMENTS.items():
            for text, label in rows:
                file.write(json.dumps({"split": split, "label": label, "group": GROUPS[label], "text": text}) + "\n")


def write_lines(folder: Path) -> None:
    for split, rows in DOCUMENTS.items():
        lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")


def write_parquet(folder: Path) -> None:
    import pandas as pd

    for split, rows in DOCUMENTS.items():
        frame = pd.DataFrame(rows, columns=["text", "label"])
        frame.to_parquet(folder / f"{split}-00000.parquet")


def write_messages(folder: Path) -> None:
    for split, rows in DOCUMENTS.items():
        for k, (text, label) in enumerate(rows):
            group = folder / f"20news-bydate-{split}" / GROUPS[label]
            group.mkdir(parents=True, exist_ok=True)
            (group / f"{k:05d}").write_text(text, encoding="latin-1")


@pytest.mark.parametrize("write", [write_packed, write_lines, write_parquet, write_messages])
def test_every_layout_gives_the_same_documents(tmp_path: Path, write: object) -> None:
    write(tmp_path)  # type: ignore[operator]
    data = load(tmp_path)
    for split, texts, labels in (
        ("train", data.train, data.train_labels),
        ("test", data.test, data.test_labels),
    ):
        expected = sorted((stripped(text), label) for text, label in DOCUMENTS[split])
        assert sorted(zip(texts, labels.tolist(), strict=True)) == expected


def test_stripping_is_scikit_learns() -> None:
    from sklearn.datasets import _twenty_newsgroups as theirs

    text = "From: me\nSubject: x\n\nIn article <1> you wrote:\n> old\nnew words\nmore\n\n--\nJoe Bloggs\n"
    expected = theirs.strip_newsgroup_footer(theirs.strip_newsgroup_quoting(theirs.strip_newsgroup_header(text)))
    assert stripped(text) == expected
    assert "Joe" not in expected
    assert "new words" in expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("news")
    write_lines(root)
    return str(root)


@pytest.fixture(scope="module")
def task(folder: str) -> TorchTask:
    return tasks.news20(folder, clients=2, alpha=1.0, model="tiny", batch=4, length=16, local="adamw(lr=0.01)")


def test_clients_train_a_transformer(task: TorchTask) -> None:
    assert task.compute.name == "together"
    run = simulate(task, ACE(), lr=1.0, scenario=Scenario(), stop=Stop(arrivals=16), evaluations=1)
    assert run.final["client_loss"] < 0.7 * run.metrics[0]["client_loss"]
    again = tasks.build(task.describe())
    assert torch.equal(again.initial(), task.initial())


def test_a_gradient_never_looks_at_values(task: TorchTask) -> None:
    """Fake tensors have none: a gradient that can be taken of them can be captured as a CUDA graph."""
    from torch._subclasses import FakeTensorMode

    inputs, targets = task._data.draw([0], [5])

    def loss(model: torch.Tensor, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return task._model.functional(model, ids, labels)

    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        parts = [fake.from_tensor(part) for part in (task.initial(), inputs[0], targets[0])]
        assert grad(loss)(*parts).shape == task.initial().shape


def test_padding_has_no_say(task: TorchTask) -> None:
    ids = task._data.draw([0], [5])[0][0]
    module = task.module(task.initial())
    with torch.no_grad():
        torch.testing.assert_close(module(F.pad(ids, (0, 24))), module(ids), rtol=1e-4, atol=1e-6)


def test_words_are_a_linear_classifier_of_their_counts(folder: str) -> None:
    """Against the plain formula: counts over the root of their number, times a matrix and the gain."""
    task = tasks.news20(folder, clients=2, alpha=1.0, model="words", batch=4, length=16)
    ids = task._data.draw([0], [5])[0][0]
    model = torch.randn(task.initial().shape, generator=torch.Generator().manual_seed(0))
    counts = torch.stack([torch.bincount(row, minlength=8192) for row in ids.long()]).float()
    counts[:, 0] = 0.0  # padding
    expected = 10.0 * (counts / counts.sum(1, keepdim=True).sqrt()) @ model.view(8192, 20)
    torch.testing.assert_close(task.module(model)(ids), expected, rtol=1e-4, atol=1e-4)
    run = simulate(task, ACE(), lr=0.2, stop=Stop(arrivals=16), evaluations=1)
    assert run.final["client_loss"] < 0.7 * run.metrics[0]["client_loss"]
    assert task.compute.name == "together"


def test_words_judge_a_client_by_all_its_documents(folder: str) -> None:
    task = tasks.news20(folder, clients=1, partition="iid", model="words", batch=4, length=16)
    model = torch.randn(task.initial().shape, generator=torch.Generator().manual_seed(0))
    expected = F.cross_entropy(task.module(model)(task._data.inputs), task._data.targets)
    assert len(task._data.targets) == 24
    assert task.evaluate(model).metrics["client_loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_validation_documents_are_nobodys(folder: str) -> None:
    held_out = tasks.news20(folder, clients=4, alpha=1.0, model="tiny", length=16, validation=True)
    assert sum(held_out.samples) == 24 - 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"folder": "nowhere"}, "no 20 Newsgroups in nowhere; allowed: a folder with"),
        ({"model": "no-such-folder"}, "model 'no-such-folder' cannot be loaded"),
        ({"length": 1}, "length is 1; allowed: at least 4 tokens"),
        ({"samples": 99}, "samples is 99; allowed: from 1 to 24"),
    ],
)
def test_what_is_wrong_is_said(folder: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        tasks.news20(**{"folder": folder, "model": "tiny", "clients": 4, **settings})  # type: ignore[arg-type]


def test_code_and_pickles_beside_a_model_are_never_run(folder: str, tmp_path: Path) -> None:
    """Neither the classes that a model folder brings, nor weights in the older format, which is a pickle."""
    model, exploded = tmp_path / "model", tmp_path / "exploded"
    model.mkdir()
    (model / "bomb.py").write_text(f"open({str(exploded)!r}, 'w')", encoding="utf-8")
    names = {name: f"bomb.{name}" for name in ("AutoConfig", "AutoModelForSequenceClassification")}
    described = {"model_type": "mine", "auto_map": {**names, "AutoTokenizer": ["bomb.Tokenizer", None]}}
    (model / "config.json").write_text(json.dumps(described), encoding="utf-8")
    with pytest.raises(InvalidInput, match="cannot be loaded"):
        tasks.news20(folder=folder, model=str(model), clients=4)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    (model / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 9, **sizes}), encoding="utf-8")
    torch.save({}, model / "pytorch_model.bin")
    with pytest.raises(InvalidInput, match="cannot be loaded"):
        _network(str(model))
    assert not exploded.exists()


def test_a_mistyped_model_without_internet_is_said_in_one_line(folder: str) -> None:
    """A hub at a port where nobody listens, asked by a process that was not told to leave it alone."""
    out = Path(folder) / "out"
    command = ["-m", "acefl", "reproduce", "news20-table", "--quick", "--model", "wrods", "--data", folder]
    done = subprocess.run(
        [sys.executable, *command, "--workers", "1", "--out", str(out)],
        env={**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: model 'wrods' cannot be loaded")
    assert done.stderr.count("\n") == 1
    assert not out.exists()
