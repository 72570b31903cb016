"""Which versions of Flower this was tested with."""

from __future__ import annotations

import logging
from importlib import metadata

log = logging.getLogger("acefl")

TESTED = ("1.41.",)


def is_tested(version: str) -> bool:
    """Whether everything here was tried with this version of flwr.

    Args:
        version: As of the installed package.
    """
    return version.startswith(TESTED)


def tested() -> str:
    """The versions, for people."""
    return ", ".join(f"{prefix}x" for prefix in TESTED)


def warn_if_untested() -> None:
    """One line where Flower is another version: most of it may work, nothing was tried."""
    version = metadata.version("flwr")
    if not is_tested(version):
        log.warning("flwr is %s; tested with %s: pin it, or expect surprises", version, tested())
