"""Half an hour of 1,000 clients, churn, bad input, checkpoints and kills: memory stays flat and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
def test_memory_stays_flat_and_nothing_is_lost() -> None:
    """ACEFL_SOAK_MINUTES sets how long, and the result is recorded."""
    minutes = os.environ.get("ACEFL_SOAK_MINUTES", "30")
    command = [sys.executable, "-m", "tests.soak.soaking", "--minutes", minutes]
    here = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["different"] == []
    assert set(found["refused"]) == {"non-finite", "norm-out-of-line"}
    assert found["runs killed and compared with runs never killed"]
    memory = found["memory MB"]
    assert memory["runs in the longest life"] >= 5, "too short to tell"
    assert memory["second half"] <= 1.05 * memory["first half"]
    (ROOT / "tests" / "records" / "soak.json").write_text(json.dumps(found, indent=2) + "\n")
