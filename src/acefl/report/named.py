"""Clients that have names: how a page writes them, and how every one of them fares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from acefl.report import style
from acefl.report.drawing import Figure, Panel, marks, row_names
from acefl.report.recorded import Comparison, Method, Run

_MOST_TICKS = 24  # names that fit along an axis
_MOST_ROWS = 40  # clients that fit one above the other
_LONGEST = 20  # letters of a name


def shortened(name: str) -> str:
    """A long name as its beginning."""
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1].rstrip() + "…"


def names_of(run: Run) -> dict[int, str]:
    """Every client's name, as it is written; empty where clients have numbers alone."""
    if "name" not in run.clients:
        return {}
    pairs = zip(run.clients["client"], run.clients["name"], strict=True)
    return {int(client): shortened(str(name)) for client, name in pairs}


def along_speed(comparison: Comparison) -> dict[str, Any]:
    """Ticks of an axis of clients from fast to slow: their names, where these are few and the same in all runs."""
    orders = {tuple(names_of(run).values()) for run in comparison.runs}
    if len(orders) != 1 or not 0 < len(order := next(iter(orders))) <= _MOST_TICKS:
        return {}
    return row_names(order) | {"tickvals": list(range(1, len(order) + 1))}


def each_client(comparison: Comparison) -> Figure | None:
    """Every client by its name: how each method serves it. Of many clients, those that are served worst."""
    score = _score(comparison)
    if score is None:
        return None
    table = pd.DataFrame({method.label: _means(method, score) for method in comparison.methods})
    times = pd.concat([run.clients.set_index("name")["mean_time"] for run in comparison.runs]).groupby(level=0).mean()
    shown = table.dropna(how="all")
    worst_first = shown.mean(axis=1).sort_values(ascending="accuracy" in score, kind="stable").index[:_MOST_ROWS]
    order = sorted(worst_first, key=lambda name: (-float(times[name]), str(name)))
    looks = style.looks(comparison.methods)
    traces = [
        marks(
            method.label,
            shown.loc[order, method.label].to_numpy(float).tolist(),
            range(len(order)),
            "markers",
            marker={"color": looks[method.label].colour, "size": 9},
        )
        for method in comparison.methods
    ]
    rows = row_names(shortened(str(name)) for name in order)
    layout = style.layout(
        score_words(score),
        "",
        height=90 + 26 * len(order),
        yaxis=rows | {"range": [-0.6, len(order) - 0.4]},
    )
    left_out = len(shown) - len(order)
    caption = "Every client's score at the end, by its name, the fastest on top; mean over seeds."
    if left_out:
        caption = f"The {len(order)} clients that are served worst, by name, the fastest on top; mean over seeds. "
        caption += f"{left_out:,} others are left out."
    return Figure("each-client", "Every client by name", caption, [Panel("", traces, layout)])


def _score(comparison: Comparison) -> str | None:
    """The column of clients' scores that all runs have: held out where there are such, accuracy before loss."""
    columns = [set(run.clients.columns[run.clients.notna().any()]) for run in comparison.runs]
    known = set.intersection(*columns)
    order = ("heldout_accuracy", "heldout_loss", "accuracy", "loss")
    return next((name for name in order if name in known), None) if "name" in known else None


def score_words(score: str) -> str:
    """A column of clients' scores, beside an axis."""
    return score.replace("heldout_", "held-out ") if score.startswith("heldout_") else f"{score} on training data"


def _means(method: Method, score: str) -> pd.Series[float]:
    """A client's mean over seeds, by its name."""
    own = [run.clients.set_index("name")[score].astype(float) for run in method.runs]
    return pd.concat(own, axis=1).replace([np.inf, -np.inf], np.nan).mean(axis=1)
