"""A small page that shows a run while it goes on: `observers=[LivePage(8765)]`, in `simulate` or in `run_async`.

Read-only, served on 127.0.0.1 unless there is a token, and off unless asked for. The page asks for a snapshot once a
second, Prometheus for `/metrics` when it likes; the run only keeps counts and never waits for anybody who looks.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import time
import weakref
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs

from acefl.core.errors import InvalidInput, require
from acefl.core.server import Server
from acefl.core.types import Arrival, State, Step
from acefl.fleets.base import Fleet
from acefl.runs.live_metrics import metrics_text
from acefl.runs.observers import Observer, RunInProgress

log = logging.getLogger("acefl")

LOOPBACK = "127.0.0.1"
LEAST_TOKEN = 16  # characters
MINUTE = 60.0
MOST_POINTS = 500
MOST_CLIENTS = 1000
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; img-src data:"


class LivePage(Observer):
    """Watches a run and serves what it sees; `address` says where.

    Args:
        port: Where to listen; 0 takes a free one.
        host: Address to listen on. One that other machines can reach needs a token.
        token: What whoever asks must show, as `Authorization: Bearer TOKEN` or `?token=TOKEN`; None: nothing, on this
            machine only.
        names: Names of nodes by their ids, for people.
    """

    def __init__(
        self, port: int, host: str = LOOPBACK, *, token: str | None = None, names: Mapping[int, str] | None = None
    ) -> None:
        require(0 <= port < 65536, f"port is {port}; allowed: 0 to 65535")
        require(
            token is not None or host == LOOPBACK,
            f"host is {host!r}, which others can reach: allowed with token=, or {LOOPBACK}",
        )
        enough = token is None or len(token) >= LEAST_TOKEN
        require(enough, f"token is too short; allowed: {LEAST_TOKEN} characters or more")
        self._token = token
        self._given = {str(node): name for node, name in (names or {}).items()}
        self._lock = Lock()
        self._arrivals: deque[float] = deque()  # when, of the last minute
        self._clients: list[Watched] = []
        self._staleness: deque[int] = deque(maxlen=1000)
        self._refused: Counter[str] = Counter()
        self._rows: list[dict[str, float]] = []
        self._active: frozenset[int] | None = None
        self._step = Step(0, 0, 0.0, False)
        self._run: weakref.ref[RunInProgress] | None = None
        try:
            self._http = ThreadingHTTPServer((host, port), _handler(self))
        except OSError as error:
            raise InvalidInput(f"cannot serve a live page on port {port}: {error.strerror}") from None
        self.names = tuple(f"{name}:{self._http.server_port}" for name in (host, "localhost"))
        self.address = f"http://{self.names[0]}/"
        Thread(target=self._http.serve_forever, name="acefl-live", daemon=True).start()
        log.info("the live page: %s", self.address)

    def close(self) -> None:
        """Stop answering; the run itself goes on without it."""
        self._http.shutdown()
        self._http.server_close()

    def admits(self, host: str | None, authorization: str | None, query: str) -> bool:
        """Whether a request may be answered: by its token, or because it asks this machine by its own name.

        Args:
            host: The header of that name.
            authorization: The header of that name.
            query: What follows the question mark.
        """
        if self._token is None:
            return host in self.names
        shown = [*parse_qs(query).get("token", []), (authorization or "").removeprefix("Bearer ")]
        return any(hmac.compare_digest(one.encode(), self._token.encode()) for one in shown)

    def started(self, run: RunInProgress) -> None:
        self._run = weakref.ref(run)

    def dispatched(self, clients: Sequence[int], version: int) -> None:
        now = time.monotonic()
        with self._lock:
            for client in clients:
                watched = self._client(client)
                watched.at_work_since, watched.works_on = now, version

    def lost(self, client: int) -> None:
        with self._lock:
            self._client(client).at_work_since = None
            self._client(client).lost += 1

    def arrived(self, arrival: Arrival, reason: str) -> None:
        now = time.monotonic()
        with self._lock:
            if reason:
                self._refused[reason] += 1
                if 0 <= arrival.client < len(self._clients):
                    self._clients[arrival.client].at_work_since = None
                return
            self._arrivals.append(now)
            self._client(arrival.client).answered(now)
            self._staleness.append(arrival.staleness)

    def stepped(self, step: Step, server: Server) -> None:
        active, run = server.rule.active, self._run() if self._run is not None else None
        members = run.fleet.members() if run is not None and isinstance(run.fleet, Fleet) else None
        with self._lock:
            self._step, self._active = step, active
            self._refused = Counter(server.refused)
            for client, refused in server.refused_by_client.items():
                if client >= 0:
                    self._client(client).refused = dict(refused)
            self._client(len(server.participation) - 1)
            for client, member in enumerate(members or ()):
                watched = self._client(client)
                watched.node, watched.connected = member.name, member.connected

    def evaluated(self, row: dict[str, float]) -> None:
        with self._lock:
            self._rows.append(dict(row))
            if len(self._rows) > MOST_POINTS:
                del self._rows[1::2]

    def state_dict(self) -> State:
        with self._lock:
            return {
                "clients": [[client.arrivals, client.lost] for client in self._clients],
                "rows": [[[name, value] for name, value in row.items()] for row in self._rows],
            }

    def load_state_dict(self, state: State) -> None:
        """Who has answered before the run was interrupted still has; when, was in another process's time."""
        with self._lock:
            for client, (arrivals, lost) in enumerate(state.get("clients", ())):  # states of earlier versions are empty
                self._client(client).arrivals, self._client(client).lost = arrivals, lost
            self._rows = [{name: value for name, value in row} for row in state.get("rows", ())]

    def _client(self, client: int) -> Watched:
        while len(self._clients) <= client:
            self._clients.append(Watched(len(self._clients)))
        return self._clients[client] if client >= 0 else Watched(client)

    def snapshot(self) -> dict[str, Any]:
        """What the page shows, as plain JSON."""
        now = time.monotonic()
        with self._lock:
            while self._arrivals and self._arrivals[0] < now - MINUTE:
                self._arrivals.popleft()
            staleness = sorted(self._staleness)
            version = self._step.version
            return {
                "steps": version,
                "arrivals": self._step.arrivals,
                "time": self._step.time,
                "per_minute": len(self._arrivals),
                "refused": dict(self._refused),
                "staleness": _histogram(staleness),
                "mean_staleness": sum(staleness) / len(staleness) if staleness else None,
                "evaluations": [{k: v if math.isfinite(v) else None for k, v in row.items()} for row in self._rows],
                "clients": [
                    client.shown(now, version, self._active, self._given) for client in self._clients[:MOST_CLIENTS]
                ],
                "all_clients": len(self._clients),
            }


@dataclass
class Watched:
    """What is known of one client."""

    client: int
    node: str = ""
    connected: bool = True
    arrivals: int = 0
    lost: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    last_seen: float | None = None
    at_work_since: float | None = None
    works_on: int = 0  # version of the model it was sent
    task_seconds: float | None = None

    def answered(self, now: float) -> None:
        """Its work came in: it is done with it until it is sent a model again."""
        self.task_seconds = now - self.at_work_since if self.at_work_since is not None else None
        self.arrivals, self.last_seen, self.at_work_since = self.arrivals + 1, now, None

    def left_out(self, active: frozenset[int] | None) -> str:
        """Why it does not count in the next step; empty: it does."""
        if not self.arrivals:
            return "has not answered yet"
        if active is None or self.client in active:
            return ""
        return "silent for too long, and gone" if not self.connected else "silent for too long"

    def shown(
        self, now: float, version: int, active: frozenset[int] | None, names: Mapping[str, str]
    ) -> dict[str, Any]:
        """A row of the page: ages instead of times, since the reader's clock may differ from the server's."""
        why = self.left_out(active)
        return {
            "client": self.client,
            "node": self.node,
            "name": names.get(self.node, ""),
            "connected": self.connected,
            "arrivals": self.arrivals,
            "lost": self.lost,
            "refused": self.refused,
            "seconds_ago": now - self.last_seen if self.last_seen is not None else None,
            "at_work": now - self.at_work_since if self.at_work_since is not None else None,
            "model_age": version - self.works_on if self.at_work_since is not None else None,
            "task_seconds": self.task_seconds,
            "active": not why,
            "why_not": why,
        }


def _histogram(values: list[int], bins: int = 20) -> list[list[int]]:
    """[lowest, highest, count] of each bin."""
    if not values:
        return []
    width = max(1, math.ceil((values[-1] - values[0] + 1) / bins))
    counts = Counter((value - values[0]) // width for value in values)
    return [
        [values[0] + place * width, values[0] + (place + 1) * width - 1, counts[place]]
        for place in range(max(counts) + 1)
    ]


def _handler(page: LivePage) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """GET of four things, for whoever asks this machine by its own name: another site's page cannot read them."""

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            admitted = page.admits(self.headers.get("Host"), self.headers.get("Authorization"), query)
            if not admitted and path != "/live.js":  # a script that everybody has
                self.send_error(HTTPStatus.FORBIDDEN)
            elif path == "/":
                self._send(_file("live.html"), "text/html; charset=utf-8")
            elif path == "/live.js":
                self._send(_file("live.js"), "text/javascript; charset=utf-8")
            elif path == "/state.json":
                self._send(json.dumps(page.snapshot(), allow_nan=False).encode(), "application/json")
            elif path == "/metrics":
                self._send(metrics_text(page.snapshot()).encode(), "text/plain; version=0.0.4; charset=utf-8")
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", _POLICY)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """A line per second for every open page would drown the run's own log."""

    return Handler


def _file(name: str) -> bytes:
    return resources.files("acefl.runs").joinpath("live_page", name).read_bytes()
