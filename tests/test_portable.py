"""Records and scripts name no place on the machine they were made on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.common import portable as portable_argument

ROOT = Path(__file__).parents[1]
_RECORDS = [
    *(ROOT / "benchmarks" / "results").glob("*.json"),
    *(path for end in ("json", "jsonl", "md", "txt") for path in (ROOT / "experiments").rglob(f"*.{end}")),
    ROOT / "src" / "acefl" / "report" / "leaderboard.json",
]
_SCRIPTS = [path for part in ("benchmarks", "experiments", "examples") for path in (ROOT / part).rglob("*.py")]
# "and/or" is not a path: a place begins after a blank or a quote
_PLACE = re.compile(
    r"""(?:^|[\s"'=`(])((?:/(?:tmp|home|root|work|mnt|opt|var|data)|\.\.|~|carry)/[^\s"'`)]*)""", re.MULTILINE
)


@pytest.mark.parametrize("path", [*_RECORDS, *_SCRIPTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_place_of_one_machine_is_named(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    links = re.sub(r"\]\([^)]*\)", "", text) if path.suffix == ".md" else text
    assert _PLACE.findall(links) == []


@pytest.mark.parametrize("text", ['"--out /tmp/w/x"', '"../shared/data"', "carry/encoder is", "~/data", '"/home/me/a"'])
def test_a_place_is_recognised(text: str) -> None:
    assert _PLACE.findall(text)


@pytest.mark.parametrize(
    ("given", "recorded"), [("/somewhere/cache", "PATH"), ("../data", "PATH"), ("--repeats", "--repeats"), ("1", "1")]
)
def test_a_benchmark_records_its_arguments_without_places(given: str, recorded: str) -> None:
    assert portable_argument(given) == recorded
