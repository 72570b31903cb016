"""Every client's latest update, in some encoding and some place, and running sums over them that do not drift."""

from acefl.table.table import Accumulator, Table

__all__ = ["Accumulator", "Table"]
