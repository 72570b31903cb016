"""A whole Flower federation on this machine: a SuperLink and SuperNodes as processes of their own.

For demos, tests and benchmarks. Everything binds to 127.0.0.1, on ports that are free; certificates and node keys are
made for the occasion; and every process is in a group that ends with the federation, whatever happens.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from acefl.core.errors import AceflError

SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # seconds between looks for work; Flower's own default is 1
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}
NAME = "loopback"
ASKS_EVERY = 60.0  # seconds between questions about a run of which nothing is heard; each takes seconds itself
STARTS_WITHIN = 180.0  # seconds: generous, since a busy machine takes a minute to import everything


class Loopback:
    """Use as a context manager; `folder` keeps logs, keys and Flower's home.

    With `simulated_nodes` the SuperLink runs apps in Flower's simulation runtime, and there are no SuperNodes.
    `preloaded` nodes fork ClientApps by `python -m acefl.flower.executor`; others start them as Flower does. `host` is
    where the SuperLink listens. With `durable` it keeps its state in a file, and can be killed and restarted.
    """

    def __init__(
        self,
        folder: Path,
        *,
        secure: bool = True,
        simulated_nodes: int = 0,
        preloaded: bool = True,
        host: str = "127.0.0.1",
        durable: bool = False,
    ) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.secure = secure
        self._simulated_nodes = simulated_nodes
        self._preloaded = preloaded
        self._host, self._durable = host, durable
        self.port = free_port()
        programs = Path(sys.executable).parent
        self._environment = {
            **os.environ,
            **SETTINGS,
            "FLWR_HOME": str(self.folder / "home"),
            "RAY_ADDRESS": "local",  # a simulation's own Ray, not one that somebody else left on this machine
            "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        self._programs = programs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._node_settings: dict[int, str] = {}
        self._node_ports: dict[int, str] = {}
        self._node_network: dict[int, tuple[tuple[str, ...], str]] = {}

    def __enter__(self) -> Loopback:
        try:
            self._start_superlink()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_superlink(self) -> None:
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        for old in self.folder.glob("*.log"):  # of an earlier federation in the same folder
            old.unlink()
        address = f'address = "127.0.0.1:{self.port}"'
        trust = f'root-certificates = "{self.folder / "ca.crt"}"' if self.secure else "insecure = true"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n{address}\n{trust}\n'
        )
        security = ["--insecure"]
        if self._simulated_nodes:
            security += ["--simulation"]
        if self.secure:
            make_certificates(self.folder)
            security = [
                *("--ssl-ca-certfile", str(self.folder / "ca.crt")),
                *("--ssl-certfile", str(self.folder / "server.crt")),
                *("--ssl-keyfile", str(self.folder / "server.key")),
                "--enable-supernode-auth",
            ]
        if self._durable:
            security += ["--database", str(self.folder / "superlink.sqlite")]
        self._superlink = (
            *("flower-superlink", *security, "--host", self._host, "--port", str(self.port)),
            "--disable-runtime-dependency-installation",
        )
        self.restart_superlink()

    def kill_superlink(self) -> None:
        """End the SuperLink and its ServerApp by SIGKILL, as if their machine had died."""
        self._end("superlink", signal.SIGKILL)
        for process in self.processes("flower-superexec", "flwr-serverapp"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def restart_superlink(self) -> None:
        """Start the SuperLink by the command it was started with."""
        self._start("superlink", *self._superlink)
        self._until(self._answers, "the SuperLink", "superlink")

    def processes(self, *programs: str) -> list[int]:
        """Ours with one of these names."""
        found = []
        for process in self._stragglers():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{process}/cmdline").read_text().split("\0")
                if any(part.endswith(programs) for part in command[:2]):
                    found.append(process)
        return found

    def start_node(
        self, number: int, settings: str, *, inside: tuple[str, ...] = (), superlink: str = "127.0.0.1"
    ) -> None:
        """Start SuperNode `number` with a node-config such as `partition-id=0 num-partitions=4`.

        `inside`: a command that its processes are started by, such as `nsenter ...` for a network of their own, from
        which the SuperLink is at the address `superlink`.
        """
        security = ["--insecure"]
        if self.secure:
            key = self.folder / f"node-{number}"
            if number not in self._node_settings:
                make_key(key)
                self.flwr("supernode", "register", f"{key}.pub", NAME)
            security = ["--root-certificates", str(self.folder / "ca.crt"), "--auth-supernode-private-key", str(key)]
        self._node_settings[number], self._node_network[number] = settings, (inside, superlink)
        port = str(free_port())
        self._start(
            f"node-{number}",
            *("flower-supernode", *security, "--superlink", f"{superlink}:{self.port}"),
            *("--host", "127.0.0.1", "--port", port, "--node-config", settings),
            *("--isolation", "process" if self._preloaded else "subprocess"),
            inside=inside,
        )
        if self._preloaded:
            self._node_ports[number] = port
            self._start_executor(number)

    def _start_executor(self, number: int) -> None:
        address = f"127.0.0.1:{self._node_ports[number]}"
        command = ("python", "-m", "acefl.flower.executor", "--runtime-api-address", address)
        self._start(f"executor-{number}", *command, inside=self._node_network[number][0])

    def restart_executor(self, number: int) -> None:
        """Kill what starts a node's ClientApps, with those at work, and start it again."""
        self._end(f"executor-{number}", signal.SIGKILL)
        self._start_executor(number)

    def executor(self, number: int) -> int:
        """The process that starts a node's ClientApps."""
        return self._processes[f"executor-{number}"].pid

    def signal_node(self, number: int, which: signal.Signals) -> None:
        """Send a signal to a node's processes."""
        for name in (f"node-{number}", f"executor-{number}"):
            if name in self._processes:
                os.killpg(self._processes[name].pid, which)

    def kill_node(self, number: int, how: signal.Signals = signal.SIGKILL) -> None:
        """End a node and all that it runs, as if its machine had died."""
        self._end(f"executor-{number}", how)
        self._end(f"node-{number}", how)

    def restart_node(self, number: int) -> None:
        """Start a node again with the key and the settings it had."""
        inside, superlink = self._node_network[number]
        self.start_node(number, self._node_settings[number], inside=inside, superlink=superlink)

    def is_running(self, number: int) -> bool:
        process = self._processes.get(f"node-{number}")
        return process is not None and process.poll() is None

    def run(self, app: Path, config: Mapping[str, Any]) -> str:
        """Submit an app; returns the run's id."""
        settings = ["--run-config", " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())]
        if self._simulated_nodes:
            settings += ["--federation-config", f"num-supernodes={self._simulated_nodes}"]
        answer = _json(self.flwr("run", str(app), NAME, *settings, "--format", "json"))
        if not answer.get("success"):
            raise AceflError(f"{app} was not taken: {answer}\n{self.log('superlink')}")
        return str(answer["run-id"])

    def status(self, run: str) -> str:
        """`running`, `finished:completed`, `finished:failed` and the like."""
        answer = _json(self.flwr("list", NAME, "--run-id", run, "--format", "json"))
        [found] = answer["runs"]
        return str(found["status"])

    def wait(self, run: str, seconds: float) -> str:
        """Wait until a run is over; its last status.

        Looks at the SuperLink's log, since `flwr list` takes seconds, and asks now and then nevertheless: a ServerApp
        that stopped without a word (killed, or frozen for a minute) leaves no such line.
        """
        until = time.monotonic() + seconds
        ask = time.monotonic() + ASKS_EVERY
        while not re.search(rf"Finished task \d+ of run {run}", self.log("superlink")):
            now = time.monotonic()
            if now > until:
                raise AceflError(f"run {run} is not over after {seconds:.0f} s; logs are in {self.folder}")
            if now > ask:
                if self.is_over(run):
                    break
                ask = time.monotonic() + ASKS_EVERY
            time.sleep(0.3)
        return self.status(run)

    def is_over(self, run: str) -> bool:
        """Whether a run has ended, well or badly. Takes seconds."""
        return self.status(run).startswith("finished")

    def log(self, name: str) -> str:
        """What a process has printed: `superlink` (with the ServerApp's output) or `node-N`."""
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")

    def flwr(self, *arguments: str) -> str:
        """Run a flwr command; what it printed."""
        done = subprocess.run(
            [str(self._programs / "flwr"), *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode:
            raise AceflError(f"flwr {' '.join(arguments)} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
        return done.stdout

    def close(self) -> None:
        for name in [*(name for name in self._processes if name != "superlink"), "superlink"]:
            self._end(name, signal.SIGTERM)
        for process in self._stragglers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _stragglers(self) -> list[int]:
        """Processes that Flower started in sessions of their own: they have our Flower home in their environment."""
        return processes_with(f"FLWR_HOME={self._environment['FLWR_HOME']}")

    def _start(self, name: str, program: str, *arguments: str, inside: tuple[str, ...] = ()) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*inside, str(self._programs / program), *arguments],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _end(self, name: str, how: signal.Signals) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        for signal_ in (how, signal.SIGKILL):
            try:
                os.killpg(process.pid, signal_)
            except ProcessLookupError:
                break
            try:
                process.wait(10.0 if signal_ is not signal.SIGKILL else 60.0)
            except subprocess.TimeoutExpired:
                continue
        process.wait()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _until(self, condition: Any, what: str, name: str) -> None:
        until = time.monotonic() + STARTS_WITHIN
        while not condition():
            if self._processes[name].poll() is not None or time.monotonic() > until:
                raise AceflError(f"{what} did not start:\n{self.log(name)}")
            time.sleep(0.2)


def processes_with(variable: str) -> list[int]:
    """Processes that were started with this in their environment, as `NAME=value`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if variable.encode() in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_certificates(folder: Path) -> None:
    """A certificate authority and a server certificate for 127.0.0.1, for ten days: ca.crt, server.crt, server.key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def certificate(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("acefl loopback CA"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=10))
        )

    ca_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca = (
        certificate("acefl loopback CA", ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    server = (
        certificate("127.0.0.1", server_key)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    private = server_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    _write_private(folder / "server.key", private)
    for path, made in ((folder / "ca.crt", ca), (folder / "server.crt", server)):
        path.write_bytes(made.public_bytes(serialization.Encoding.PEM))


def _key_usage(*, signs: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def make_key(path: Path) -> None:
    """A node's key pair, as `ssh-keygen -t ecdsa -b 384` would make it: PATH and PATH.pub."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    _write_private(path, private)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    Path(f"{path}.pub").write_bytes(public + b"\n")


def _write_private(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)


def _json(text: str) -> dict[str, Any]:
    """The JSON object in what a flwr command printed, among whatever else it printed."""
    found: dict[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    return found
