"""Nodes that do next to nothing, so that what a federation costs by itself can be seen."""
