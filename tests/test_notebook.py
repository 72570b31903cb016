"""The notebook runs from top to bottom in a kernel of its own, and shows what it promises."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


@pytest.mark.filterwarnings("ignore")  # what the client's own libraries deprecate
def test_the_notebook_runs_and_shows_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: pip install nbclient ipykernel")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install nbclient ipykernel")
    import nbformat

    kernels = tmp_path / "kernels" / "python3"
    kernels.mkdir(parents=True)
    start = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernels / "kernel.json").write_text(
        json.dumps({"argv": start, "display_name": "Python 3", "language": "python"}), encoding="utf-8"
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [_html(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert "task digits" in shown[0]
    assert "ACE on digits" in shown[1]
    assert "FedBuff(buffer=5)" in shown[3]
    assert (tmp_path / "acefl-quickstart" / "report.html").exists()
    last = notebook.cells[-1].outputs[-1]["data"]["text/plain"]
    assert last in ("'ACE'", "'FedBuff(buffer=5)'")


def _html(cell: Any) -> str:
    return "".join(out["data"].get("text/html", "") for out in cell.outputs if "data" in out)


def test_it_is_committed_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
