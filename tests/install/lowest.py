"""The lowest versions that pyproject.toml allows, as constraints for pip: `>=` read as `==`; nobody keeps a copy."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_LOWEST = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*[>=]=\s*([0-9.]+)")


def lowest(pyproject: Path) -> list[str]:
    """One constraint per requirement, of the package and of its extras; one without a lower bound is an error."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    found = {}
    for requirement in (line for group in groups for line in group if not line.startswith(f"{project['name']}[")):
        match = _LOWEST.match(requirement)
        if match is None:
            raise SystemExit(f"{requirement!r} in {pyproject} begins with no lower bound, as in 'numpy>=2.1'")
        found[match[1]] = match[2]
    return [f"{name}=={version}" for name, version in found.items()]
