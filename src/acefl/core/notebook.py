"""Small tables for notebooks. Everything shown is escaped: a label or a setting may be anybody's text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_NUMBER = ' style="text-align:right"'
_LEFT = ' style="text-align:left"'
_LONGEST = 200  # characters of one setting


def pairs(title: str, values: Mapping[str, Any]) -> str:
    """A name and what it is, per line."""
    rows = "".join(f"<tr><th{_LEFT}>{escape(str(k))}</th><td{_LEFT}>{_cell(v)}</td></tr>" for k, v in values.items())
    return f"<div><strong>{escape(title)}</strong><table>{rows}</table></div>"


def table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], bold: Iterable[Sequence[bool]]) -> str:
    """Results, a row each, the first column being names; what `bold` marks is bold."""
    head = "".join(f"<th{_NUMBER}>{escape(heading)}</th>" for heading in headings)
    body = ""
    for row, marks in zip(rows, bold, strict=True):
        cells = [
            f"<strong>{_cell(text)}</strong>" if mark else _cell(text) for text, mark in zip(row, marks, strict=True)
        ]
        body += f"<tr><td{_LEFT}>{cells[0]}</td>" + "".join(f"<td{_NUMBER}>{cell}</td>" for cell in cells[1:]) + "</tr>"
    return f"<div><strong>{escape(title)}</strong><table><tr>{head}</tr>{body}</table></div>"


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


def note(text: str) -> str:
    """A sentence under a table."""
    return f"<small>{escape(text)}</small>" if text else ""
