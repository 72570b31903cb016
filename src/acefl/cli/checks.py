"""What is installed, what the machine has, and whether what everything stands on works."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[.*?\])?\s*(?P<range>[^;]*)(;.*extra == ['\"](?P<extra>[\w-]+)['\"])?")


def examine() -> dict[str, Any]:
    """Everything as plain JSON; `problems` is empty unless something required is broken."""
    required, extras = _packages()
    problems = [
        f"{name} is not installed; acefl needs {name}{needs}"
        for name, (version, needs) in required.items()
        if version is None
    ]
    found: dict[str, Any] = {
        "packages": {name: version for name, (version, _) in required.items()},
        "extras": {extra: {name: version for name, (version, _) in own.items()} for extra, own in extras.items()},
        "memory": {"free": _free_memory()},
        "temporary": _temporary(problems),
    }
    for part, look in (("machine", _machine), ("table_kernels", _table_kernels), ("compute", _compute), ("run", _run)):
        try:
            found[part] = look()
        except Exception as error:  # whatever a broken installation does: that is what a doctor is asked about
            problems.append(f"{part}: {type(error).__name__}: {' '.join(str(error).split())}")
    return {**found, "problems": problems}


Packages = dict[str, tuple[str | None, str]]  # name: (installed version, required range)


def _packages() -> tuple[Packages, dict[str, Packages]]:
    """What acefl's own metadata asks for: always, and for each extra."""
    required: Packages = {}
    extras: dict[str, Packages] = {}
    try:
        lines = metadata.requires("acefl") or []
    except metadata.PackageNotFoundError:  # a source tree on the path, never installed
        lines = []
    for line in lines:
        match = _REQUIREMENT.match(line)
        assert match is not None, line
        name, extra = match["name"], match["extra"]
        if name != "acefl":
            into = extras.setdefault(extra, {}) if extra else required
            into[name] = (_version(name), match["range"].strip())
    return required, extras


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _machine() -> dict[str, Any]:
    import torch

    from acefl.runs.record import machine

    found = machine()
    with contextlib.suppress(AttributeError):  # not on every system
        found["cores"] = len(os.sched_getaffinity(0))
    found["gpus"] = [
        {"name": torch.cuda.get_device_name(k), "memory": torch.cuda.get_device_properties(k).total_memory}
        for k in range(torch.cuda.device_count())
    ]
    found["cuda"] = torch.version.cuda
    return found


def _table_kernels() -> dict[str, str]:
    from acefl.core import kernels

    return kernels.describe()


def _compute() -> dict[str, str]:
    """How a small task's gradients are computed here."""
    from acefl import tasks

    return {"digits softmax, 10 clients": tasks.digits(clients=10).compute.name}


def _run() -> dict[str, Any]:
    """A very small run, written and read back: the whole way from a task to a file."""
    import acefl

    with tempfile.TemporaryDirectory(prefix="acefl-doctor-") as folder:
        task = acefl.tasks.quadratic(clients=4, dim=3)
        run = acefl.simulate(task, acefl.ACE(), lr=0.1, stop=acefl.Stop(arrivals=40), evaluations=2)
        loaded = acefl.load(run.save(Path(folder) / "run"))
        assert loaded.final == run.final, "a run that was saved reads back differently"
        return {"arrivals": run.arrivals, "seconds": run.wall_seconds}


def _temporary(problems: list[str]) -> dict[str, Any]:
    where = tempfile.gettempdir()
    try:
        with tempfile.NamedTemporaryFile(prefix="acefl-doctor-") as file:
            file.write(b"\0" * 4096)
        writable = True
    except OSError as error:
        problems.append(f"the temporary directory {where} cannot be written to: {error.strerror}")
        writable = False
    return {
        "directory": where,
        "writable": writable,
        "free": shutil.disk_usage(where).free,
        "free_here": shutil.disk_usage(".").free,
    }


def _free_memory() -> int | None:
    """Bytes that can still be used: of the machine, or of the container's allowance where that is less."""
    bounds = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        bounds.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")))
    with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
        group = Path("/sys/fs/cgroup")
        bounds.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(bounds, default=None)
