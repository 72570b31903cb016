"""How people name a thing with settings: `ACE`, `ACED(tau=300)`, `cifar10(folder='data', device='cuda')`."""

from __future__ import annotations

import ast
from typing import Any

from acefl.errors import InvalidInput


def parse_call(text: str) -> tuple[str, dict[str, Any]] | None:
    """The name and its settings, which are plain values; None if the text is not of this form."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last: nested too deeply for Python's parser
        return None
    settings: dict[str, Any] = {}
    if isinstance(node, ast.Call) and not node.args and all(word.arg for word in node.keywords):
        try:
            settings = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
        except (ValueError, TypeError, RecursionError):
            raise InvalidInput(f"{text!r} has a setting that is not a plain value such as 5 or 'sqrt'") from None
        node = node.func
    return (node.id, settings) if isinstance(node, ast.Name) else None
