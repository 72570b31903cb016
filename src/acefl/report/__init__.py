"""What was recorded as one self-contained page, and as a table.

Everything here reads files that were recorded, never live objects, so a report can be rebuilt years later on another
machine. Pages are templates (`templates/`), figures are plain data that a script in the page draws, and nothing here
imports what makes the records. Heavy imports (pandas, jinja2) wait until a function is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["build", "compares", "summary_table"]


def build(directory: Path, out: Path | None = None) -> Path:
    """Write the page for a recorded directory and return where it is (`DIRECTORY/report.html` by default).

    The page of a comparison in its own directory links to those of its runs, which are written too.
    """
    from acefl.report import boards, comparison, diagnosis_page, page, recorded, search, sweeps

    kinds = {
        "diagnose.json": diagnosis_page.render,
        "tuning.json": search.render,
        "leaderboard.json": boards.render,
        "sweep.json": sweeps.render,
    }
    directory = Path(directory)
    render = next((own for name, own in kinds.items() if (directory / name).exists()), comparison.render)
    if out is None and render is comparison.render:
        html = comparison.render(directory, linked=True)
        for run in comparison.pages(recorded.load(directory)):
            page.write(comparison.render(run), run / page.PAGE)
    else:
        html = render(directory)
    return page.write(html, Path(out) if out is not None else directory / page.PAGE)


def compares(directory: Path) -> bool:
    """Whether the directory holds a comparison, or a lone run: what has a summary table."""
    return any((Path(directory) / name).exists() for name in ("compare.json", "config.json"))


def summary_table(directory: Path) -> pd.DataFrame:
    """One row per method with mean and std over seeds; see `acefl.report.tables`."""
    from acefl.report import tables

    return tables.summary_table(directory)
