"""Chaos on a real SuperLink, for `ACEFL_CHAOS_MINUTES` (3): the same as `python -m benchmarks.flower_chaos`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from benchmarks.flower_chaos import chaos

pytestmark = [pytest.mark.soak, pytest.mark.flower, pytest.mark.kill]


def test_nothing_is_accepted_twice_or_lost_and_the_model_is_the_replay_of_its_record(tmp_path: Path) -> None:
    found = chaos(tmp_path, float(os.environ.get("ACEFL_CHAOS_MINUTES", "3")), seed=1)
    assert found["processes killed or paused"] > 0
    assert found["answers refused"] > 0
    assert found["refused without a reason"] == 0
    assert found["accepted twice"] == 0
    assert found["accepted, said and recorded differ by"] == 0
    assert found["model equals the replay, bit for bit"]
