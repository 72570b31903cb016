"""The README of a recipe, written from recorded runs: our value beside the paper's, and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from acefl.core.files import atomic_write
from acefl.paper.differences import paired
from acefl.paper.records import Results, spread
from acefl.report.style import look

if TYPE_CHECKING:
    from acefl.paper.plan import Recipe

Draw = Callable[[Any], None]  # gets matplotlib's pyplot


class Page:
    """Markdown in the making. Figures land beside it as SVG."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lines: list[str] = []

    def text(self, *lines: str) -> None:
        self._lines += [*lines, ""]

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._lines += ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
        self._lines += ["| " + " | ".join(row) + " |" for row in rows]
        self._lines.append("")

    def grid(
        self,
        results: Results,
        columns: Mapping[str, Mapping[str, Any]],
        *,
        metric: str = "accuracy",
        rows: str = "method",
        printed: Mapping[tuple[Any, str], str] | None = None,
    ) -> None:
        """A metric, mean ± deviation over seeds: a row per value of a label, a column per setting.

        `printed` has the paper's value of some (row, column); it stands beside ours.
        """
        body = []
        for value in results.having(rows):
            cells = []
            for name, labels in columns.items():
                ours = spread(results.values(metric, **{rows: value, **labels})) or "not run"
                paper = (printed or {}).get((value, name))
                cells.append(ours if paper is None else f"{ours} (paper: {paper})")
            body.append([str(value), *cells])
        if body:
            self.table([rows, *columns], body)

    def against(
        self, results: Results, method: str, columns: Mapping[str, Mapping[str, Any]], *, metric: str = "accuracy"
    ) -> None:
        """A method minus each of the others, seed by seed, where there are seeds to tell by."""
        body = []
        for other in results.having("method"):
            gaps = [
                paired(results.where(**labels), {"method": method}, {"method": other}, metric=metric)
                for labels in columns.values()
            ]
            if other != method and any(gap is not None and gap.seeds > 1 for gap in gaps):
                body.append([other, *["" if gap is None else str(gap) for gap in gaps]])
        if body:
            self.text(f"{method} minus the others, seed by seed, ± half of the 95 % interval:")
            self.table(["method", *columns], body)

    def rates(self, results: Results, columns: Mapping[str, Mapping[str, Any]]) -> None:
        """The learning rates of runs that were tuned."""
        tuned = results.where(form="tuned")
        body = []
        for method in tuned.having("method"):
            found = [tuned.where(method=method, **labels).records for labels in columns.values()]
            body.append([method, *[f"{own[0]['settings']['lr']:.2g}" if own else "" for own in found]])
        if body:
            self.text("Learning rates, as the search chose them:")
            self.table(["method", *columns], body)

    def figure(self, name: str, caption: str, draw: Draw) -> None:
        """Drawn by matplotlib where there is one; the numbers do not need it."""
        if find_spec("matplotlib") is None:
            self.text(f"(no figure {name}: it needs matplotlib, pip install 'acefl[reproduce]')")
            return
        self._draw(name, draw)
        self.text(f"![{caption}]({name}.svg)", "", caption)

    def _draw(self, name: str, draw: Draw) -> None:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        plt.rcParams["svg.hashsalt"] = "acefl"  # the same figure has the same bytes
        draw(plt)
        plt.savefig(self.folder / f"{name}.svg", metadata={"Date": None})
        plt.close("all")

    def write(self) -> Path:
        path = self.folder / "README.md"
        atomic_write(path, "\n".join(self._lines).rstrip() + "\n")
        return path


def build(
    recipe: Recipe,
    folder: Path,
    records: Sequence[Mapping[str, Any]],
    commands: Sequence[str],
    remarks: Sequence[str] = (),
) -> Path:
    """The recipe's page from its records alone; remarks are about how these were made."""
    results = Results(dict(record) for record in records)
    page = Page(folder)
    models = _models(results)
    titled = f"{recipe.title} ({', '.join(models)})" if models else recipe.title
    page.text(f"# {titled}", "", f"The paper's {recipe.source}, made by `acefl reproduce {recipe.name}`.")
    if commands:
        page.text("Commands:", "", *[f"    {command}" for command in commands])
    if results.records:
        page.text(_provenance(results))
    page.text(*[f"- {note}" for note in (*recipe.notes, *remarks)])
    recipe.report(results, page)
    if recipe.claims:
        page.text("## What the paper says, and what came out")
        said = [(claim.text, claim.verdict(results) or "not run") for claim in recipe.claims]
        page.table(["the paper", "here"], said)
    page.text(_HOW_TO_READ)
    return page.write()


_HOW_TO_READ = (
    "Every number is the mean over runs in `results.jsonl`: one line per run, with its settings and curve. ± beside a "
    "mean is the standard deviation over seeds (how many: in brackets). Differences are between runs of the same seed, "
    "and their ± is half of the 95 % interval of their mean by Student's t; what it does not tell from zero is level. "
    "A single seed is told by its sign alone, and says so. Nothing is corrected for how many differences a page has: "
    "of twenty that are none, one is named by chance."
)


def _provenance(results: Results) -> str:
    machines = {
        ", ".join(f"{key} {value}" for key, value in record["machine"].items() if value is not None)
        for record in results.records
    }
    every = [*results.records, *results.trials]
    seconds = sum(record["wall_seconds"] for record in every)
    return (
        f"{len(results.records)} runs and {len(results.trials)} trials of learning rates, {seconds:,.0f} s of run time "
        f"in all. Hardware: {'; '.join(sorted(machines))}."
    )


def _models(results: Results) -> list[str]:
    return sorted({str(model) for record in results.records if (model := record["settings"].get("task.model"))})


def curves(
    page: Page,
    name: str,
    caption: str,
    results: Results,
    panels: Mapping[str, Mapping[str, Any]],
    *,
    metric: str = "accuracy",
    words: str = "test accuracy",
) -> None:
    """A metric of every method in each panel's setting, against steps, uploads and virtual time: three rows."""
    axes = {"step": "server steps", "arrival": "uploads", "time": "virtual time"}

    def draw(plt: Any) -> None:
        figure, grid = plt.subplots(
            len(axes), len(panels), figsize=(3.4 * len(panels), 8.4), squeeze=False, sharey=True, layout="constrained"
        )
        for column, (title, labels) in enumerate(panels.items()):
            for row, (axis, along) in enumerate(axes.items()):
                ax = grid[row][column]
                for method in results.having("method"):
                    seeds = results.curve(metric, axis, method=method, **labels)
                    if axis == "time":
                        seeds = [(x[1:], y[1:]) for x, y in seeds]  # a logarithmic axis has no zero
                    _line_with_band(ax, seeds, method)
                ax.set_xlabel(along)
                ax.set_title(title if row == 0 else "")
                ax.grid(alpha=0.2)
                if axis == "time":
                    ax.set_xscale("log")  # methods end far apart
        for row in range(len(axes)):
            grid[row][0].set_ylabel(words)
        figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)

    if any(results.where(**labels).records for labels in panels.values()):
        shown = [results.where(**labels) for labels in panels.values()]
        page.figure(name, caption + _diverged(shown, "their curves go on where they ended"), draw)


_DASHES = {"solid": "-", "dash": "--", "dashdot": "-.", "dot": ":"}


def _line_with_band(ax: Any, seeds: list[tuple[list[float], list[float]]], method: str) -> None:
    """The mean over seeds and one standard deviation on both sides, on the x of the first seed."""
    seeds = [(x, y) for x, y in seeds if len(x) > 1]
    if not seeds:
        return
    x = np.asarray(seeds[0][0])
    every = np.stack([np.interp(x, own_x, own_y) for own_x, own_y in seeds])
    mean, deviation = every.mean(0), every.std(0, ddof=min(1, len(seeds) - 1))
    style = look(method)
    ax.plot(x, mean, color=style.colour, linestyle=_DASHES[style.dash], label=method, linewidth=1.6)
    if len(seeds) > 1:
        ax.fill_between(x, mean - deviation, mean + deviation, color=style.colour, alpha=0.15, linewidth=0)


def lines(page: Page, name: str, caption: str, results: Results, x: str, *, metric: str = "accuracy", by: str) -> None:
    """A final metric against a label, a line per value of another, with one standard deviation."""

    def draw(plt: Any) -> None:
        figure, ax = plt.subplots(figsize=(7.5, 4), layout="constrained")
        ticks = results.having(x)
        values = results.having(by)
        for index, value in enumerate(values):
            aside = 0.05 * (index - (len(values) - 1) / 2)  # else error bars hide each other
            own = results.where(**{by: value})
            places = own.having(x)
            data = [np.asarray(own.values(metric, **{x: place})) for place in places]
            style = look(str(value))
            ax.errorbar(
                [ticks.index(place) + aside for place in places],
                [np.nanmean(d) for d in data],
                [np.nanstd(d, ddof=min(1, len(d) - 1)) for d in data],
                color=style.colour,
                linestyle=_DASHES[style.dash],
                marker="o",
                capsize=3,
                label=str(value),
            )
        ax.set_xticks(range(len(ticks)), [f"{place:g}" for place in ticks])
        ax.set(xlabel=x, ylabel=metric.replace("_", " "))
        ax.grid(alpha=0.2)
        figure.legend(loc="outside right upper", frameon=False)

    if results.records:
        page.figure(name, caption + _diverged([results], "left out of the means"), draw)


def heatmaps(page: Page, name: str, caption: str, results: Results, x: str, y: str) -> None:
    """One heatmap per method of the final accuracy, all on one scale, as the paper draws them."""

    def draw(plt: Any) -> None:
        methods = results.having("method")
        across, down = results.having(x), results.having(y)
        values = {
            method: np.array(  # of floats: None, where nothing is known, becomes NaN
                [[results.mean("accuracy", **{"method": method, x: a, y: b}) for a in across] for b in down], float
            )
            for method in methods
        }
        top = max((float(np.nanmax(v)) for v in values.values() if not np.isnan(v).all()), default=1.0)
        figure, grid = plt.subplots(
            1, len(methods), figsize=(2.6 * len(methods), 2.9), squeeze=False, layout="constrained"
        )
        for ax, method in zip(grid[0], methods, strict=True):
            image = ax.imshow(values[method], vmin=0.0, vmax=top, cmap="viridis", origin="lower", aspect="auto")
            for (row, column), value in np.ndenumerate(values[method]):
                if not np.isnan(value):
                    ink = "k" if value > 0.6 * top else "w"
                    ax.text(column, row, f"{value:.3f}", ha="center", va="center", color=ink, fontsize=8)
            ax.set(title=method, xlabel=x, xticks=range(len(across)), yticks=range(len(down)))
            ax.set_xticklabels([f"{a:g}" for a in across])
            ax.set_yticklabels([f"{b:g}" for b in down])
        grid[0][0].set_ylabel(y)
        figure.colorbar(image, ax=grid[0].tolist())

    if results.records:
        page.figure(name, caption + _diverged([results], "they count by what they were last judged at"), draw)


def _diverged(shown: Sequence[Results], how: str) -> str:
    lost, runs = sum(part.diverged for part in shown), sum(len(part.records) for part in shown)
    return f" ({lost} of {runs} runs diverged: {how})" if lost else ""
