"""A small page that shows a run while it goes on: `observers=[LivePage(8765)]`, in `simulate` or in `run_async`.

Read-only, served on 127.0.0.1 only, and off unless asked for. The page asks for a snapshot once a second; the run only
keeps counts and never waits for anybody who looks.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import Counter, deque
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from threading import Lock, Thread
from typing import Any

from acefl.core.errors import InvalidInput, require
from acefl.core.server import Server
from acefl.core.types import Arrival, Step
from acefl.runs.observers import Observer

log = logging.getLogger("acefl")

MINUTE = 60.0
MOST_POINTS = 500
MOST_CLIENTS = 1000
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; img-src data:"


class LivePage(Observer):
    """Watches a run and serves what it sees. Port 0 takes a free one; `address` says where."""

    def __init__(self, port: int) -> None:
        require(0 <= port < 65536, f"port is {port}; allowed: 0 to 65535")
        self._lock = Lock()
        self._arrivals: deque[float] = deque()  # when, of the last minute
        self._per_client: Counter[int] = Counter()
        self._staleness: deque[int] = deque(maxlen=1000)
        self._refused: Counter[str] = Counter()
        self._last_seen: dict[int, float] = {}
        self._rows: list[dict[str, float]] = []
        self._active: frozenset[int] | None = None
        self._step = Step(0, 0, 0.0, False)
        self._clients = 0
        try:
            self._http = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        except OSError as error:
            raise InvalidInput(f"cannot serve a live page on port {port}: {error.strerror}") from None
        self.names = tuple(f"{name}:{self._http.server_port}" for name in ("127.0.0.1", "localhost"))
        self.address = f"http://{self.names[0]}/"
        Thread(target=self._http.serve_forever, name="acefl-live", daemon=True).start()
        log.info("the live page: %s", self.address)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def arrived(self, arrival: Arrival, reason: str) -> None:
        now = time.monotonic()
        with self._lock:
            if reason:
                self._refused[reason] += 1
                return
            self._arrivals.append(now)
            self._per_client[arrival.client] += 1
            self._last_seen[arrival.client] = now
            self._staleness.append(arrival.staleness)

    def stepped(self, step: Step, server: Server) -> None:
        active = server.rule.active
        with self._lock:
            self._step, self._active, self._clients = step, active, len(server.participation)

    def evaluated(self, row: dict[str, float]) -> None:
        with self._lock:
            self._rows.append(dict(row))
            if len(self._rows) > MOST_POINTS:
                del self._rows[1::2]

    def snapshot(self) -> dict[str, Any]:
        """What the page shows, as plain JSON."""
        now = time.monotonic()
        with self._lock:
            while self._arrivals and self._arrivals[0] < now - MINUTE:
                self._arrivals.popleft()
            shown = range(min(self._clients, MOST_CLIENTS))
            staleness = sorted(self._staleness)
            return {
                "steps": self._step.version,
                "arrivals": self._step.arrivals,
                "time": self._step.time,
                "per_minute": len(self._arrivals),
                "refused": dict(self._refused),
                "staleness": _histogram(staleness),
                "mean_staleness": sum(staleness) / len(staleness) if staleness else None,
                "evaluations": [{k: v if math.isfinite(v) else None for k, v in row.items()} for row in self._rows],
                "clients": [
                    {
                        "client": client,
                        "arrivals": self._per_client[client],
                        "seconds_ago": now - self._last_seen[client] if client in self._last_seen else None,
                        "active": client in self._active if self._active is not None else self._per_client[client] > 0,
                    }
                    for client in shown
                ],
                "all_clients": self._clients,
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
        """GET of three things, for whoever asks this machine by its own name: another site's page cannot read them."""

        def do_GET(self) -> None:
            if self.headers.get("Host") not in page.names:
                self.send_error(HTTPStatus.FORBIDDEN)
            elif self.path == "/":
                self._send(_file("live.html"), "text/html; charset=utf-8")
            elif self.path == "/live.js":
                self._send(_file("live.js"), "text/javascript; charset=utf-8")
            elif self.path == "/state.json":
                self._send(json.dumps(page.snapshot(), allow_nan=False).encode(), "application/json")
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
