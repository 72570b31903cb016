"""One look for every figure: a colour and a dash per method, and the layout all panels share.

Colours are Okabe and Ito's, which people with any common colour blindness tell apart; the dash is a second sign for
print and projectors. Colours of ink and grid are set in the page, which knows whether the reader likes light or dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acefl.report.recorded import Method

NEUTRAL = "#7d8590"
SIGNAL = "#d1483c"


@dataclass(frozen=True)
class Look:
    """How one method is drawn, in every figure."""

    colour: str
    dash: str

    @property
    def strokes(self) -> str:
        """The dash as SVG has it."""
        dashes = {"dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "11 4", "longdashdot": "11 3 2 3"}
        return dashes.get(self.dash, "none")


_OF_METHOD = {
    "ACE": Look("#0072B2", "solid"),
    "CA2FL": Look("#009E73", "dash"),
    "ACED": Look("#56B4E9", "dashdot"),
    "FedBuff": Look("#E69F00", "solid"),
    "ASGD": Look("#D55E00", "solid"),
    "DelayAdaptiveASGD": Look("#CC79A7", "dash"),
}
_SPARE = ("#5F6B76", "#6A51A3", "#8C6D31", "#B3A800")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def look(method: str) -> Look:
    """How a method is drawn where it stands alone, without variants of itself beside it."""
    return _OF_METHOD.get(method, Look(NEUTRAL, "dot"))


def looks(methods: Iterable[Method]) -> dict[str, Look]:
    """Label to look. A known method has its own colour in every report; variants of it take what is left."""
    return _looks({method.label: method.method for method in methods})


def looks_of(labels: Iterable[str]) -> dict[str, Look]:
    """The same where only labels were recorded: `FedBuff(buffer=4)` is a FedBuff."""
    return _looks({label: label.partition("(")[0] for label in labels})


def _looks(names: dict[str, str]) -> dict[str, Look]:
    """names: the method's name by label."""
    chosen: dict[str, Look] = {}
    for label, name in names.items():
        own = _OF_METHOD.get(name)
        if own is not None and own not in chosen.values():
            chosen[label] = own
    taken = {look.colour for look in chosen.values()}
    spare = [colour for colour in (*_SPARE, *(own.colour for own in _OF_METHOD.values())) if colour not in taken]
    others = [label for label in names if label not in chosen]
    for place, label in enumerate(others):
        chosen[label] = Look(spare[place % len(spare)], DASHES[place % len(DASHES)])
    return chosen


def log_ticks(low: float, high: float) -> dict[str, Any]:
    """Ticks of a log axis that read as whole numbers: 1, 2, 5, 10 over a short range, powers of ten over a long one."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if high < 3 * low:  # so short that 1, 2, 5 may all lie outside
        digits: tuple[int, ...] = tuple(range(1, 10))
    else:
        digits = (1, 2, 5) if last - first <= 4 else (1,)
    every = max(1, round((last - first) / 8))
    marks = [digit * 10.0**power for power in range(first, last + 1, every) for digit in digits]
    text = [f"{mark:,g}" if len(digits) > 1 else _power(round(math.log10(mark))) for mark in marks]
    return {"type": "log", "tickvals": marks, "ticktext": text}


def _power(exponent: int) -> str:
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def span(values: Iterable[float], least: float) -> list[float] | None:
    """An axis range around the values, never so narrow that chance differences fill the panel; None without values."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return None
    middle, half = (max(known) + min(known)) / 2, max(1.16 * (max(known) - min(known)), least, 1e-9) / 2
    return [middle - half, middle + half]


def layout(x_title: str, y_title: str, height: int = 340, **changes: Any) -> dict[str, Any]:
    """What all panels share. `xaxis` and `yaxis` in `changes` are merged, everything else replaces."""
    axes = {"xaxis": {"title": x_title}, "yaxis": {"title": y_title}}
    merged = {axis: titled | changes.pop(axis, {}) for axis, titled in axes.items()}
    together = False  # whether a pointer shows all curves at its place, or the nearest point
    return {"height": height, "showlegend": False, "together": together, **merged, **changes}
