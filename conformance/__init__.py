"""Conformance vectors for asynchronous aggregation methods, and who agrees with them. See docs/conformance.md."""
