"""Every figure of the page, in the order a reader meets them. A new figure is one more line here."""

from __future__ import annotations

from acefl.report import clients, curves, influence, staleness, timeline, tuning
from acefl.report.drawing import Figure
from acefl.report.recorded import Comparison


def of(comparison: Comparison) -> list[Figure]:
    """The figures this comparison has numbers for."""
    drawn = [
        clients.fairness(comparison),
        *curves.figures(comparison),
        clients.participation(comparison),
        timeline.figure(comparison),
        influence.figure(comparison),
        staleness.figure(comparison),
        tuning.figure(comparison),
    ]
    return [figure for figure in drawn if figure is not None]
