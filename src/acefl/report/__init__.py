"""A recorded run or comparison as one self-contained page, and as a table.

Everything here reads files that `acefl.record` wrote, never live objects, so a report can be rebuilt years later on
another machine. Heavy imports (pandas, plotly) wait until a function is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["build", "summary_table"]


def build(directory: Path, out: Path | None = None) -> Path:
    """Write the page for a recorded directory and return where it is (`DIRECTORY/report.html` by default)."""
    from acefl.report import boards, diagnosis_page, halving, page, recorded

    kinds = {"diagnose.json": diagnosis_page.build, "tuning.json": halving.build, "leaderboard.json": boards.build}
    for name, own in kinds.items():
        if (Path(directory) / name).exists():
            return own(Path(directory), out)
    return page.write(recorded.load(directory), Path(out) if out is not None else Path(directory) / "report.html")


def summary_table(directory: Path) -> pd.DataFrame:
    """One row per method with mean and std over seeds; see `acefl.report.tables`."""
    from acefl.report import tables

    return tables.summary_table(directory)
