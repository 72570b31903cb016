"""The command line, one file per command."""

from acefl.cli.entry import main

__all__ = ["main"]
