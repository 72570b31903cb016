"""Chaos on Ray, for `ACEFL_CHAOS_MINUTES` (1): the same as `python -m benchmarks.ray_chaos`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from benchmarks.chaos import LOST
from benchmarks.ray_chaos import chaos

pytestmark = [pytest.mark.soak, pytest.mark.ray, pytest.mark.kill]


def test_nothing_is_accepted_twice_or_lost_and_the_model_is_the_replay_of_its_record(tmp_path: Path) -> None:
    found = chaos(tmp_path, float(os.environ.get("ACEFL_CHAOS_MINUTES", "1")), seed=1)
    assert found["faults"] > 0
    assert not found["ended early"]
    assert found["accepted twice"] == 0
    assert found["books of what was accepted differ by"] == 0
    assert found[LOST] == 0
    assert found["model equals the replay, bit for bit"]
