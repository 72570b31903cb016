"""Every benchmark that needs neither a GPU nor the network, in turn: `python -m benchmarks [NAME ...]`."""

from __future__ import annotations

import importlib
import sys

EVERY = (
    "simulator",
    "simulate_speed",
    "clients",
    "many_clients",
    "server_memory",
    "plan",
    "quadratic_gap",
    "probes",
    "checkpoint",
    "shared_version",
    "linear_layers",
    "sweep_scaling",
)


def main() -> None:
    for name in sys.argv[1:] or EVERY:
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main()
