"""One command each: `python -m benchmarks.NAME`; `python -m benchmarks` runs them all."""
