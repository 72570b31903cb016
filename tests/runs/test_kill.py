"""Runs killed with SIGKILL at any moment end, once resumed, in exactly the model and history of runs never killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.resumable import RULES, SCENARIOS

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests" / "records" / "kill-500.json"

pytestmark = pytest.mark.kill


def killing(*arguments: str) -> dict[str, Any]:
    """In a process of its own: it forks, and pytest's libraries have threads."""
    command = [sys.executable, "-m", "tests.killing", *arguments]
    here = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_kill_before_any_change_of_a_file_loses_nothing() -> None:
    found = killing("--every-change", "CA2FL-int8-file", "event-churn")
    assert found["different"] == []
    assert found["kills"] > 30


def test_fifty_kills_at_random_moments_lose_nothing() -> None:
    found = killing("--kills", "50")
    assert found["different"] == []
    assert found["kills"] == 50
    assert_resumed_half_way(found)


@pytest.mark.slow
def test_five_hundred_kills_lose_nothing() -> None:
    found = killing("--kills", "500")
    assert found["different"] == []
    assert found["cases"] == len(RULES) * len(SCENARIOS)
    assert_resumed_half_way(found)
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(found, indent=2) + "\n")


def assert_resumed_half_way(found: dict[str, Any]) -> None:
    """A test in which every life started from nothing would prove nothing."""
    at = found["resumed after arrivals"]
    half_way = found["kills"] - at["no checkpoint"] - at["0"]
    assert half_way > found["kills"] / 4, at


def test_the_recorded_long_run_lost_nothing() -> None:
    found = json.loads(RECORD.read_text())
    assert found["kills"] >= 500
    assert found["different"] == []
    assert found["cases"] == found["of cases"]
