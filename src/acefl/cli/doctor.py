"""`acefl doctor`: what is installed, and does it work."""

from __future__ import annotations

from typing import Any

import typer

from acefl.cli import options


def doctor(json: options.Json = False) -> None:
    """Say what is installed, what this machine has, and whether it works.

    The exit code is 1 if something that acefl needs is broken.

    Examples:
      acefl doctor
      acefl doctor --json > machine.json
    """
    from acefl.cli import show
    from acefl.cli.checks import examine

    found = examine()
    if json:
        show.print_json(found)
    else:
        show.console().print(show.pairs(_lines(found)))
        for problem in found["problems"]:
            show.warn(problem)
    if found["problems"]:
        raise typer.Exit(1)


def _lines(found: dict[str, Any]) -> dict[str, str]:
    machine, temporary, run = found.get("machine", {}), found["temporary"], found.get("run")
    gpus = [f"{gpu['name']} ({_size(gpu['memory'])})" for gpu in machine.get("gpus", [])]
    lines = {
        "acefl": f"{machine.get('acefl', '?')} on Python {machine.get('python', '?')}, {machine.get('system', '?')}",
        "packages": _versions(found["packages"]),
        **{f"extra {name}": _extra(name, packages) for name, packages in found["extras"].items()},
        "processor": f"{machine.get('cpu', '?')}, {machine.get('cores', '?')} cores",
        "GPU": ", ".join(gpus) or "none that torch can use",
        "free memory": _size(found["memory"]["free"]),
        "free disk": f"{_size(temporary['free_here'])} here, {_size(temporary['free'])} in {temporary['directory']}",
    }
    if "table_kernels" in found:
        lines["table kernels"] = "\n".join(f"{where}: {what}" for where, what in found["table_kernels"].items())
    for task, strategy in found.get("compute", {}).items():
        lines["gradients"] = f"{strategy} ({task})"
    if run:
        lines["a small run"] = f"works: {run['arrivals']} arrivals in {run['seconds']:.2f} s, saved and read back"
    return lines


def _versions(packages: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version or 'MISSING'}" for name, version in packages.items())


def _extra(name: str, packages: dict[str, str | None]) -> str:
    missing = [package for package, version in packages.items() if version is None]
    if missing:
        return f"no {', '.join(missing)}: pip install 'acefl[{name}]'"
    return _versions(packages) if len(packages) <= 3 else f"all {len(packages)} packages"


def _size(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 2**30:,.1f} GiB"
