"""Runs a SuperNode's ClientApps without importing everything anew for each message.

Flower starts a Python process for every message, and most of a message's time is that process importing torch. This
command takes the place of `flower-superexec` beside `flower-supernode --isolation process`. It imports once what apps
need, and forks: every message still has a process of its own, started in milliseconds. What an app imports beyond that
is learned from its first message. The app's own code is never loaded in the parent, so that two runs cannot meet.

    flower-supernode --isolation process --host 127.0.0.1 --port 9094 ...
    python -m acefl.flower.executor --runtime-api-address 127.0.0.1:9094

Flower has an interface for executors, but no way to name one of your own, so this file uses names that Flower does not
promise to keep. It is the only one here that does, and it refuses versions of Flower that it was not tested with.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.metadata
import ipaddress
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from acefl.core.errors import AceflError, InvalidInput, require
from acefl.flower.versions import is_tested, tested

log = logging.getLogger("acefl")

LOOKS_EVERY = 0.2  # seconds between two looks for a message
PRELOADED = ("flwr.supernode.runtime.run_clientapp", "numpy", "torch", "acefl.fleets.flower.client")
MOST_NAMES = 1 << 20  # bytes that a ClientApp may tell of its imports


def main(arguments: Sequence[str] | None = None) -> None:
    """The command.

    Args:
        arguments: Of the command line; None: the process's own.
    """
    options = argparse.ArgumentParser(prog="python -m acefl.flower.executor", description=__doc__.split("\n")[0])
    options.add_argument("--runtime-api-address", required=True, help="host:port of the SuperNode (its --host, --port)")
    options.add_argument("--root-certificates", help="PEM file that vouches for a SuperNode with --ssl-certfile")
    options.add_argument(
        "--superexec-auth-secret-file", help="the secret that the SuperNode was given, if it was given one"
    )
    options.add_argument(
        "--preload", default="", metavar="MODULES", help="more to import at the start, separated by commas"
    )
    options.add_argument("--every", type=float, default=LOOKS_EVERY, help="seconds between looks for a message")
    options.add_argument(
        "--no-learning", action="store_true", help="import nothing more when an app's imports are known"
    )
    given = options.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    log.setLevel(logging.INFO)
    logging.getLogger("flwr").propagate = False  # it prints for itself
    try:
        check_version(importlib.metadata.version("flwr"))
        require(given.every > 0, f"--every is {given.every}; allowed: above 0 seconds")
        node = SuperNode.at(given.runtime_api_address, given.root_certificates, given.superexec_auth_secret_file)
        modules = [*PRELOADED, *(name.strip() for name in given.preload.split(",") if name.strip())]
        for name in modules:
            require(_imported(name), f"--preload {name!r} cannot be imported; allowed: modules that are installed")
        serve(node, given.every, learning=not given.no_learning)
    except InvalidInput as error:
        options.exit(2, f"{error}\n")
    except _Threads as error:
        log.warning("%s; started again, without learning", error)
        again = [*(sys.argv[1:] if arguments is None else arguments), "--no-learning"]
        os.execv(sys.executable, [sys.executable, "-m", "acefl.flower.executor", *again])
    except KeyboardInterrupt:
        pass  # as Flower ends its own processes


def check_version(version: str) -> None:
    """InvalidInput unless this version of Flower was tried.

    Args:
        version: Of the installed flwr.
    """
    require(
        is_tested(version),
        f"flwr is {version}; allowed: {tested()}. Use Flower's own flower-superexec, which is slower and always fits.",
    )


@dataclass(frozen=True)
class SuperNode:
    """Where messages come from: a SuperNode's Runtime API.

    Args:
        address: As host:port.
        certificates: Path of the PEM file that vouches for it; None: plain HTTP, on this machine only.
        secret: Contents of the file that the SuperNode was given; None: it was given none.
    """

    address: str
    certificates: str | None = None
    secret: bytes | None = None

    @classmethod
    def at(cls, address: str, certificates: str | None, secret_file: str | None) -> SuperNode:
        """Checks what the command was given.

        Args:
            address: As host:port.
            certificates: Path of a PEM file, or None.
            secret_file: Path of the secret, or None.
        """
        from flwr.supercore.auth import load_superexec_auth_secret

        host, _, port = address.rpartition(":")
        require(port.isdigit() and bool(host), f"--runtime-api-address is {address!r}; allowed: host:port")
        require(
            certificates is not None or _is_loopback(host),
            f"--runtime-api-address is {address!r}: without --root-certificates only addresses of this machine",
        )
        require(
            certificates is None or Path(str(certificates)).is_file(), f"--root-certificates: no file {certificates}"
        )
        try:
            secret = load_superexec_auth_secret(secret_file=secret_file) if secret_file is not None else None
        except ValueError as error:
            raise InvalidInput(f"--superexec-auth-secret-file: {error}") from None
        return cls(address, certificates, secret)

    def acquirer(self) -> Callable[[], str | None]:
        """What asks for a task and gives its token, or None where there is none; waits while the SuperNode is down."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest
        from flwr.supercore.constant import TaskType
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
        from flwr.supercore.retry import make_simple_http_retry_invoker
        from flwr.supercore.runtime import RuntimeHttpClient

        interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
        if self.secret is not None:
            methods = frozenset({"/flwr.proto.Runtime/AcquireTask"})
            interceptors.append(SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=methods))
        client = RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=self.certificates is None,
            root_certificates=self._pem(),
            interceptors=interceptors,
            retry_invoker=make_simple_http_retry_invoker(),
        )

        def acquire() -> str | None:
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
            return str(found.token) if found.HasField("task") and found.token else None

        return acquire

    def run(self, token: str, parent: int) -> None:
        """Flower's own ClientApp process, from pulling the message to pushing its answer. Ends in SystemExit.

        Args:
            token: Of the task.
            parent: Process without which this one ends.
        """
        from flwr.supernode.runtime.run_clientapp import run_clientapp

        run_clientapp(
            runtime_api_address=self.address,
            token=token,
            insecure=self.certificates is None,
            certificates=self._pem(),
            parent_pid=parent,
            runtime_dependency_install=False,
        )

    def _pem(self) -> bytes | None:
        return Path(self.certificates).read_bytes() if self.certificates is not None else None


class _Threads(AceflError):
    """Something that was imported has started a thread: a process with threads cannot be forked safely."""


@dataclass
class _Child:
    """A forked ClientApp, and the file in which it tells what it imported."""

    pid: int
    told: IO[bytes]

    def is_over(self) -> bool:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid and os.WIFSIGNALED(status):
            log.warning("a ClientApp was killed by signal %d; its node says so within a minute", os.WTERMSIG(status))
        return pid != 0

    def imported(self) -> list[str]:
        """Empty if it was killed."""
        with self.told:
            self.told.seek(0)
            return self.told.read(MOST_NAMES).decode("utf-8", "replace").split()


def serve(node: SuperNode, every: float = LOOKS_EVERY, *, learning: bool = True) -> None:
    """Fork a ClientApp for every message of a SuperNode, for good.

    A SuperNode works on one message at a time, so nobody asks for the next one while a ClientApp is at work.

    Args:
        node: The SuperNode.
        every: Seconds between looks for a message.
        learning: Whether to import what a ClientApp imported, for the next one.
    """
    acquire = node.acquirer()
    known: set[str] = set(sys.modules)
    children: list[_Child] = []
    log.info("ready for messages of the SuperNode at %s", node.address)
    while True:
        for child in [child for child in children if child.is_over()]:
            children.remove(child)
            learn(child.imported() if learning else (), known)
        token = None if children else acquire()
        if token is None:
            time.sleep(every if not children else every / 4)
        else:
            children.append(fork(lambda token=token: node.run(token, os.getppid())))  # type: ignore[misc]


def fork(work: Callable[[], None]) -> _Child:
    """Do the work in a fork of this process; what it imports is told when it is over.

    Args:
        work: May end by returning, or in SystemExit.
    """
    gc.collect()
    gc.freeze()  # a collection in the child would write to, and so copy, every page
    known = set(sys.modules)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    told = tempfile.TemporaryFile()  # noqa: SIM115  # a pipe would be full before anybody reads it
    pid = os.fork()
    if pid:
        return _Child(pid, told)
    code = 1
    try:
        _fresh_random_numbers()
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        log.exception("a ClientApp failed")
    finally:
        try:
            told.write(" ".join(_installed(set(sys.modules) - known)).encode())
            for stream in (told, sys.stdout, sys.stderr):
                stream.flush()
        finally:
            os._exit(code)


def learn(names: Iterable[str], known: set[str]) -> None:
    """Import what a ClientApp imported, so that the next one finds it. Each name is tried once.

    _Threads: something that was imported now stands in the way of forking.

    Args:
        names: Of modules.
        known: Names that were tried; grows.
    """
    new = [name for name in names if name not in known]
    known.update(new)
    loaded = [name for name in new if _imported(name)]
    if loaded:
        log.info("%d modules that the ClientApp needed are imported for the next one", len(loaded))
    if threading.active_count() > 1:
        raise _Threads(f"a module of the ClientApp starts threads when it is imported: {threading.enumerate()[1:]}")


def _installed(names: Iterable[str]) -> list[str]:
    """Those of these modules that do not belong to an app: Flower unpacks apps in its home."""
    from flwr.supercore.utils import get_flwr_home

    home = str(get_flwr_home().resolve())
    ours = []
    for name in names:
        origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
        if origin and not str(Path(origin).resolve()).startswith(home):
            ours.append(name)
    return ours


def _imported(name: str) -> bool:
    """Whether a module could be imported; what it prints or raises is not ours."""
    try:
        importlib.import_module(name)
    except Exception as error:
        log.debug("%s was not imported: %s", name, error)
        return False
    return True


def _fresh_random_numbers() -> None:
    """As in a process of its own: numpy draws its seed when it is imported, and forks would all share it.

    torch starts every process with the same seed, so there is nothing to do; `random` looks after itself.
    """
    import numpy as np

    np.random.seed()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


if __name__ == "__main__":
    main()
