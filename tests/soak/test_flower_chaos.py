"""Chaos on a real SuperLink, for `ACEFL_CHAOS_MINUTES` (3): the same as `python -m benchmarks.flower_chaos`.

Networks are cut and disks fill up only in that command, which makes namespaces for it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from benchmarks.flower_chaos import chaos

pytestmark = [pytest.mark.soak, pytest.mark.flower, pytest.mark.kill]


@pytest.mark.parametrize("method", ["ACED(tau=12, warmup='seen')", "ACE(warmup='seen')"])
def test_nothing_is_accepted_twice_or_lost_and_the_model_is_the_replay_of_its_record(
    method: str, tmp_path: Path
) -> None:
    found = chaos(tmp_path, float(os.environ.get("ACEFL_CHAOS_MINUTES", "3")), 1, method)
    assert found["faults"] > 0
    assert found["refused"] > 0
    assert found["refused without a reason"] == 0
    assert found["accepted twice"] == 0
    assert found["books of what was accepted differ by"] == 0
    assert found["in a checkpoint, and gone when resumed"] == 0
    assert found["model equals the replay, bit for bit"]
