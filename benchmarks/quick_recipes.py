"""Every recipe of `acefl reproduce` with --quick, in turn, on two workers: how long a newcomer waits for all of them.

python -m benchmarks.quick_recipes DATA   # a folder with CIFAR-10, CIFAR-100 and 20 Newsgroups, as acefl reads them
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from acefl.paper import NAMES, recipe
from benchmarks.common import report

ASKED = 600.0


def seconds(name: str, data: Path, out: Path) -> float:
    """Start-up of the program included."""
    given = ["--data", str(data)] if recipe(name).data is not None else []
    began = time.perf_counter()
    command = [sys.executable, "-m", "acefl", "reproduce", name, "--quick", "--workers", "2", "--out", str(out), *given]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    took = time.perf_counter() - began
    print(f"{name} {took:.1f} s", flush=True)
    return took


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m benchmarks.quick_recipes DATA")
    with tempfile.TemporaryDirectory() as folder:
        rows = [{"recipe": name, "s": seconds(name, Path(sys.argv[1]), Path(folder) / name)} for name in NAMES]
    whole = sum(float(row["s"]) for row in rows)
    target = {"what": "the whole --quick set, s", "measured": whole, "asked": f"< {ASKED:g}", "met": whole < ASKED}
    report("quick_recipes", __doc__ or "", rows, [target])


if __name__ == "__main__":
    main()
