"""Shells complete methods, tasks and recipes, wherever they are named."""

from __future__ import annotations

import pytest

from acefl.cli import main
from acefl.cli.options import METHODS, TASKS
from acefl.cli.reproduce import NAMES


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("acefl compare --method ", METHODS),
        ("acefl diagnose --rule ", METHODS),
        ("acefl run --method ", METHODS),
        ("acefl tune --method ", METHODS),
        ("acefl replay RUN --method ", METHODS),
        ("acefl leaderboard --method ", METHODS),
        ("acefl leaderboard --task ", TASKS),
        ("acefl compare --task ", TASKS),
        ("acefl reproduce ", NAMES),
        ("acefl compare --method ACE", ("ACE", "ACED")),
    ],
)
def test_names_are_completed(
    line: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_ACEFL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - (not line.endswith(" "))))
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out.split() == list(words)
