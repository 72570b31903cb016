"""Every method once more, from the formulas of the paper in the plainest way: lists of vectors, all sums taken anew.

An oracle is told of an arrival by `absorb` (True: step now) and asked for a step's direction by `step(t)`, where t is
the model version before the step. Where the paper is silent (clients that join or leave for good, several arrivals per
step) the oracle says what the library promises: everything absorbed since the last step is in the step, and means are
over the clients that count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


class Oracle(Protocol):
    def absorb(self, client: int, update: Numbers, trained_on: int, version: int) -> bool: ...

    def step(self, t: int) -> Numbers: ...

    def forget(self, client: int) -> None: ...

    def grow(self, clients: int, weight: float) -> None: ...


def weighted_mean(vectors: list[Numbers], weights: list[float]) -> Numbers:
    total = np.zeros_like(vectors[0])
    for vector, weight in zip(vectors, weights, strict=True):
        total = total + weight * vector
    return total / sum(weights)


class ACEOracle:
    """Algorithm 1: u^t is the mean of all cached gradients. The first step waits for everybody, or for nobody."""

    def __init__(self, weights: list[float], *, wait: bool, forgets: bool = True) -> None:
        self.weights = list(weights)
        self.cache: dict[int, Numbers] = {}
        self.awaited = set(range(len(weights))) if wait else set()
        self.forgets = forgets  # a server without a table cannot take back what a client contributed

    def absorb(self, client: int, update: Numbers, trained_on: int, version: int) -> bool:
        self.cache[client] = update
        self.awaited.discard(client)
        return not self.awaited

    def step(self, t: int) -> Numbers:
        clients = list(self.cache)
        return weighted_mean([self.cache[i] for i in clients], [self.weights[i] for i in clients])

    def forget(self, client: int) -> None:
        if self.forgets:
            self.cache.pop(client, None)
        self.awaited.discard(client)

    def grow(self, clients: int, weight: float) -> None:
        self.weights += [weight] * (clients - len(self.weights))


class MedianOracle(ACEOracle):
    """RobustACE: the median of all cached gradients, of each number by itself."""

    def step(self, t: int) -> Numbers:
        median: Numbers = np.median(list(self.cache.values()), axis=0)
        return median


class ACEDOracle:
    """The ACED algorithm, line by line: A(t) = {i : t - t_start_i <= tau}, formed anew for every step."""

    def __init__(self, weights: list[float], dim: int, *, tau: int, freshness: str, wait: bool) -> None:
        self.weights, self.dim, self.tau = list(weights), dim, tau
        self.resets_clock_on_dispatch = freshness == "dispatch"
        self.cache: dict[int, Numbers] = {}
        self.t_start: dict[int, int] = {}
        self.unanswered: list[int] = []  # who arrived since the last step, and gets the model after the next one
        self.is_told = False  # who is sent the model; otherwise it is whoever arrived
        self.awaited = set(range(len(weights))) if wait else set()

    def absorb(self, client: int, update: Numbers, trained_on: int, version: int) -> bool:
        self.cache[client] = update
        self.t_start[client] = trained_on  # "when client i obtained the model on which its gradient was computed"
        self.unanswered.append(client)
        self.awaited.discard(client)
        return not self.awaited

    def active(self, t: int) -> list[int]:
        return [i for i in self.cache if t - self.t_start[i] <= self.tau]

    def step(self, t: int) -> Numbers:
        active = self.active(t)
        if active:
            direction = weighted_mean([self.cache[i] for i in active], [self.weights[i] for i in active])
        else:
            direction = np.zeros(self.dim)  # "skip update if no valid fresh gradients": w^{t+1} = w^t
        if self.resets_clock_on_dispatch and not self.is_told:
            for i in self.unanswered:
                self.t_start[i] = t + 1  # "send w^{t+1} to client j and update t_start"
        self.unanswered = []
        return direction

    def dispatched(self, clients: Sequence[int], version: int) -> None:
        self.is_told = True
        if self.resets_clock_on_dispatch:
            self.t_start |= {i: version for i in clients if i in self.cache}

    def forget(self, client: int) -> None:
        self.cache.pop(client, None)
        self.t_start.pop(client, None)
        self.unanswered = [i for i in self.unanswered if i != client]
        self.awaited.discard(client)

    def grow(self, clients: int, weight: float) -> None:
        self.weights += [weight] * (clients - len(self.weights))


class _Indifferent:
    """Without a cache nobody's leaving or joining changes anything."""

    def forget(self, client: int) -> None:
        pass

    def grow(self, clients: int, weight: float) -> None:
        pass


class FedBuffOracle(_Indifferent):
    """The mean of a buffer of M updates, each times s(staleness) = 1 or 1 / sqrt(1 + staleness)."""

    def __init__(self, buffer: int, staleness: str) -> None:
        self.size, self.staleness = buffer, staleness
        self.buffer: list[Numbers] = []

    def absorb(self, client: int, update: Numbers, trained_on: int, version: int) -> bool:
        age = version - trained_on
        self.buffer.append(update if self.staleness == "none" else update / np.sqrt(1 + age))
        return len(self.buffer) >= self.size

    def step(self, t: int) -> Numbers:
        mean = sum(self.buffer[1:], self.buffer[0]) / len(self.buffer)
        self.buffer = []
        return mean


class ASGDOracle(_Indifferent):
    """w^{t+1} = w^t - eta g: one arrival, one step; what arrives together is averaged."""

    def __init__(self) -> None:
        self.arrived: list[Numbers] = []

    def absorb(self, client: int, update: Numbers, trained_on: int, version: int) -> bool:
        self.arrived.append(self.eta(version - trained_on) * update)
        return True

    def eta(self, staleness: int) -> float:
        return 1.0

    def step(self, t: int) -> Numbers:
        direction: Numbers = np.mean(self.arrived, axis=0)
        self.arrived = []
        return direction


class DelayAdaptiveOracle(ASGDOracle):
    """eta_t = eta if tau_t <= tau_C, else eta tau_C / tau_t."""

    def __init__(self, threshold: int) -> None:
        super().__init__()
        self.threshold = threshold

    def eta(self, staleness: int) -> float:
        return 1.0 if staleness <= self.threshold else self.threshold / staleness


class CA2FLOracle:
    """v_t = h_t + Δ_t / |S_t|, where h_t is the mean over clients of the caches when the buffer was last emptied.

    A client that leaves while something of it is in the buffer leaves when the buffer has been used.
    """

    def __init__(self, clients: int, dim: int, buffer: int) -> None:
        self.size, self.dim = buffer, dim
        self.members = set(range(clients))
        self.known = clients
        self.h: dict[int, Numbers] = {}  # h^i, replaced at once
        self.h_before: dict[int, Numbers] = {}  # h^i when the buffer was last emptied
        self.delta = np.zeros(dim)
        self.m = 0
        self.S: set[int] = set()
        self.leaving: set[int] = set()

    def absorb(self, client: int, update: Numbers, trained_on: int, version: int) -> bool:
        self.members.add(client)
        self.leaving.discard(client)
        self.delta = self.delta + (update - self.h.get(client, np.zeros(self.dim)))
        self.h[client] = update
        self.m += 1
        self.S.add(client)
        return self.m >= self.size

    def step(self, t: int) -> Numbers:
        h = sum(self.h_before.values(), np.zeros(self.dim)) / len(self.members)
        v: Numbers = h + self.delta / len(self.S)
        self.delta, self.m, self.S = np.zeros(self.dim), 0, set()
        for client in list(self.leaving):
            self.forget(client)
        self.leaving = set()
        self.h_before = dict(self.h)
        return v

    def forget(self, client: int) -> None:
        if client in self.S:
            self.leaving.add(client)
            return
        self.members.discard(client)
        self.h.pop(client, None)
        self.h_before.pop(client, None)

    def grow(self, clients: int, weight: float) -> None:
        self.members |= set(range(self.known, clients))
        self.known = max(self.known, clients)


class RingmasterOracle(ASGDOracle):
    """x^{k+1} = x^k - gamma g if its delay is below R, else g is ignored."""

    def __init__(self, threshold: int) -> None:
        super().__init__()
        self.threshold = threshold

    def absorb(self, client: int, update: Numbers, trained_on: int, version: int) -> bool:
        return version - trained_on < self.threshold and super().absorb(client, update, trained_on, version)


class MIFAOracle(ACEOracle):
    """w <- w - eta (1/N) sum_i G_i after each round of so many active clients."""

    def __init__(self, clients: int, buffer: int, *, wait: bool) -> None:
        super().__init__([1.0] * clients, wait=wait)
        self.size, self.came = buffer, 0

    def absorb(self, client: int, update: Numbers, trained_on: int, version: int) -> bool:
        self.came += 1
        return super().absorb(client, update, trained_on, version) and self.came >= self.size

    def step(self, t: int) -> Numbers:
        self.came = 0
        return super().step(t)

    def grow(self, clients: int, weight: float) -> None:
        super().grow(clients, 1.0)


class FedStaleWeightOracle:
    """sum_j p_j Δ_j over the buffer, p_j in proportion to the mean staleness of all arrivals of j's client."""

    def __init__(self, buffer: int) -> None:
        self.size = buffer
        self.staleness: dict[int, list[int]] = {}
        self.buffer: list[tuple[int, Numbers]] = []

    def absorb(self, client: int, update: Numbers, trained_on: int, version: int) -> bool:
        self.staleness.setdefault(client, []).append(version - trained_on)
        self.buffer.append((client, update))
        return len(self.buffer) >= self.size

    def step(self, t: int) -> Numbers:
        weights = [float(np.mean(self.staleness[client])) for client, _ in self.buffer]
        if sum(weights) == 0:
            weights = [1.0] * len(weights)
        direction = weighted_mean([update for _, update in self.buffer], weights)
        self.buffer = []
        return direction

    def forget(self, client: int) -> None:
        if client not in [member for member, _ in self.buffer]:
            self.staleness.pop(client, None)

    def grow(self, clients: int, weight: float) -> None:
        pass


def mean_of_means(gradients: dict[int, list[Numbers]]) -> Numbers:
    """(1/n) sum_i (1/b_i) sum_j g_ij."""
    mean: Numbers = np.mean([np.mean(of_client, axis=0) for of_client in gradients.values()], axis=0)
    return mean


class _Awaited:
    """Who is waited for: everybody but those that left and have not come back; newcomers once they have come."""

    def __init__(self, clients: int) -> None:
        self.members, self.known = set(range(clients)), clients

    def forget(self, client: int) -> None:
        self.members.discard(client)

    def grow(self, clients: int, weight: float) -> None:
        self.known = clients


class MaleniaOracle(_Awaited):
    """Gradients of x^k only, until (1/n sum_i 1/B_i)^-1 reaches S/n; then one step on the mean of the means."""

    def __init__(self, clients: int, batch: float) -> None:
        super().__init__(clients)
        self.batch = batch
        self.gradients: dict[int, list[Numbers]] = {}

    def absorb(self, client: int, update: Numbers, trained_on: int, version: int) -> bool:
        self.members.add(client)
        if trained_on < version:
            return False
        self.gradients.setdefault(client, []).append(update)
        if not self.members <= self.gradients.keys():
            return False
        inverse = [1 / len(self.gradients[i]) for i in self.members]  # who has left cannot send more
        return bool(1 / np.mean(inverse) >= self.batch - 1e-12)

    def step(self, t: int) -> Numbers:
        direction = mean_of_means(self.gradients)
        self.gradients = {}
        return direction


class RingleaderOracle(_Awaited):
    """Phase 1: collect until b_i >= 1 for all i. Phase 2: one step for every i when it comes; surplus is kept.

    Whoever comes in the same turn as the last one of phase 1 is still collected.
    """

    def __init__(self, clients: int) -> None:
        super().__init__(clients)
        self.table: dict[int, list[Numbers]] = {}
        self.following: dict[int, list[Numbers]] = {}
        self.owed: set[int] | None = None
        self.opening = self.due = False

    def absorb(self, client: int, update: Numbers, trained_on: int, version: int) -> bool:
        self.members.add(client)
        if self.owed == set() and not self.due:
            self.table, self.following, self.owed = self.following, {}, None
        if self.owed is None:
            self.table.setdefault(client, []).append(update)
            if self.members <= self.table.keys():
                self.owed = (set(self.table) & self.members) - {client}
                self.opening = self.due = True
        elif client in self.owed:
            self.table[client].append(update)
            self.due = True
            if not self.opening:
                self.owed.remove(client)
        else:
            self.following.setdefault(client, []).append(update)
        return self.due

    def step(self, t: int) -> Numbers:
        self.opening = self.due = False
        return mean_of_means(self.table)

    def forget(self, client: int) -> None:
        super().forget(client)
        if self.owed is not None:
            self.owed.discard(client)


class FedAvgOracle(_Awaited):
    """w_{t+1} = sum_k (n_k / n) w^k over the clients of a round, all of which started from w_t."""

    def __init__(self, weights: list[float], cohort: int | None) -> None:
        super().__init__(len(weights))
        self.weights, self.cohort = list(weights), cohort
        self.reports: list[tuple[int, Numbers]] = []

    def absorb(self, client: int, update: Numbers, trained_on: int, version: int) -> bool:
        self.members.add(client)
        if trained_on == version:
            self.reports.append((client, update))
        reported = {member for member, _ in self.reports}
        there = self.members | reported
        return bool(reported) and len(reported) >= min(len(there), self.cohort or len(there))

    def step(self, t: int) -> Numbers:
        clients, updates = zip(*self.reports, strict=True)
        self.reports = []
        return weighted_mean(list(updates), [self.weights[client] for client in clients])

    def grow(self, clients: int, weight: float) -> None:
        super().grow(clients, weight)
        self.weights += [weight] * (clients - len(self.weights))


class FedAsyncOracle:
    """w <- (1 - alpha_t) w + alpha_t w_i; of what comes together, the mean."""

    def __init__(self, alpha: float, staleness: str, a: float, b: float) -> None:
        self.alpha, self.staleness, self.a, self.b = alpha, staleness, a, b

    def turn(self, w: Numbers, models: list[tuple[int, Numbers, int]]) -> Numbers | None:
        mixed = []
        for _, w_i, tau in models:
            alpha_t = self.alpha * self.s(tau)
            mixed.append((1 - alpha_t) * w + alpha_t * w_i)
        mean: Numbers = np.mean(mixed, axis=0)
        return mean

    def s(self, tau: int) -> float:
        if self.staleness == "constant":
            return 1.0
        if self.staleness == "polynomial":
            return float((tau + 1) ** -self.a)
        return 1.0 if tau <= self.b else 1 / (self.a * (tau - self.b) + 1)


class FedFaOracle:
    """w <- mean of a queue of the last K clients' models, once it is full."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.queue: list[Numbers] = []

    def turn(self, w: Numbers, models: list[tuple[int, Numbers, int]]) -> Numbers | None:
        for _, w_i, _ in models:
            self.queue = [*self.queue, w_i][-self.window :]
        if len(self.queue) < self.window:
            return None
        mean: Numbers = np.mean(self.queue, axis=0)
        return mean


class AREAOracle:
    """Client i sends y_i_new - y_i_old; after K of them the server adds (1/n) of their sum."""

    def __init__(self, clients: int, start: Numbers, buffer: int) -> None:
        self.y = [start] * clients
        self.size = buffer
        self.residuals: list[Numbers] = []

    def turn(self, w: Numbers, models: list[tuple[int, Numbers, int]]) -> Numbers | None:
        for client, y, _ in models:
            self.residuals.append(y - self.y[client])
            self.y[client] = y
        if len(self.residuals) < self.size:
            return None
        new: Numbers = w + np.sum(self.residuals, axis=0) / len(self.y)
        self.residuals = []
        return new


class CalibratedOracle:
    """d = beta h + (c/|S|) sum_S (u_i - beta h_i), from every h_i by itself.

    Of a client that comes again, its last update is what it changes: so its first counts 1 - beta, in |S| too. What a
    client sent to the buffer stays in it when it leaves, except in a plain mean over all clients (c = |S|/n, beta = 1),
    which has no buffer.
    """

    def __init__(self, clients: int, dim: int, c: float | str, beta: float, buffer: int, warmup: str) -> None:
        self.c, self.beta, self.size, self.dim = c, beta, buffer, dim
        self.counts_absent = warmup == "zeros"
        self.members, self.known = set(range(clients)), clients
        self.awaited = set(range(clients)) if warmup == "wait" and beta else set()
        self.h: dict[int, Numbers] = {}
        self.h_before: dict[int, Numbers] = {}
        self.innovations: list[tuple[int, Numbers, Numbers]] = []  # client, u, and the h it found
        self.leaving: set[int] = set()

    def absorb(self, client: int, update: Numbers, trained_on: int, version: int) -> bool:
        self.members.add(client)
        self.leaving.discard(client)
        self.awaited.discard(client)
        self.innovations.append((client, update, self.h.get(client, np.zeros(self.dim))))
        self.h[client] = update
        return not self.awaited and len(self.innovations) >= self.size

    def step(self, t: int) -> Numbers:
        n = len(self.members) if self.counts_absent else len(self.h)
        if self.c == "share":
            fresh = sum((u for _, u, _ in self.innovations), np.zeros(self.dim))
            remembered = sum(self.h.values(), np.zeros(self.dim))
            d: Numbers = (self.beta * remembered + (1 - self.beta) * fresh) / n
        else:
            distinct = {client for client, _, _ in self.innovations}
            S = len(distinct) + (1 - self.beta) * (len(self.innovations) - len(distinct))
            h = sum(self.h_before.values(), np.zeros(self.dim)) / n
            changes = sum((u - self.beta * before for _, u, before in self.innovations), np.zeros(self.dim))
            d = self.beta * h + float(self.c) / S * changes
        self.innovations = []
        for client in list(self.leaving):
            self.forget(client)
        self.leaving = set()
        self.h_before = dict(self.h)
        return d

    def forget(self, client: int) -> None:
        self.awaited.discard(client)
        if self.c != "share" and self.beta and client in [member for member, _, _ in self.innovations]:
            self.leaving.add(client)
            return
        self.members.discard(client)
        self.h.pop(client, None)
        self.h_before.pop(client, None)

    def grow(self, clients: int, weight: float) -> None:
        self.members |= set(range(self.known, clients))
        self.known = max(self.known, clients)


class RescaledASGDOracle(_Indifferent):
    """w <- w - eta (t_i / H) g, t_i client i's mean of 1 + staleness so far, H the harmonic mean of all t_i.

    With fixed computation times and everybody at work, t_i / H is client i's time over their harmonic mean.
    """

    def __init__(self) -> None:
        self.times: dict[int, list[int]] = {}
        self.arrived: list[tuple[int, Numbers]] = []

    def absorb(self, client: int, update: Numbers, trained_on: int, version: int) -> bool:
        self.times.setdefault(client, []).append(1 + version - trained_on)
        self.arrived.append((client, update))
        return True

    def step(self, t: int) -> Numbers:
        times = {client: np.mean(of_client) for client, of_client in self.times.items()}
        harmonic = len(times) / sum(1 / time for time in times.values())
        direction: Numbers = np.mean([times[client] / harmonic * g for client, g in self.arrived], axis=0)
        self.arrived = []
        return direction

    def forget(self, client: int) -> None:
        self.times.pop(client, None)


class ClippedOracle:
    """Any method, of updates g min(1, threshold / |g|)."""

    def __init__(self, oracle: Oracle, threshold: float) -> None:
        self.oracle, self.threshold = oracle, threshold
        self.step, self.forget, self.grow = oracle.step, oracle.forget, oracle.grow

    def absorb(self, client: int, update: Numbers, trained_on: int, version: int) -> bool:
        norm = float(np.linalg.norm(update))
        return self.oracle.absorb(client, update * min(1.0, self.threshold / max(norm, 1e-300)), trained_on, version)


class NesterovOracle:
    """Delayed Nesterov, as its algorithm is printed: Δ collects, every N-th step looks at the momentum."""

    def __init__(self, beta: float, N: int, c: float) -> None:
        self.beta, self.N, self.c = beta, N, c
        self.t = 0
        self.m: Numbers | float = 0.0
        self.delta: Numbers | float = 0.0

    def step(self, w: Numbers, g: Numbers, lr: float) -> Numbers:
        self.delta = self.delta + g
        if (self.t + 1) % self.N == 0:
            self.m = self.beta * self.m + self.delta / self.N
            w = w - lr * ((1 - self.c * self.N + self.c) * self.beta * self.m + g / self.N)
            self.delta = 0.0
        else:
            w = w - lr * (self.c * self.beta * self.m + g / self.N)
        self.t += 1
        return w


class AdamOracle:
    """Reddi et al.'s server Adam: no bias correction, v starts at epsilon squared; amsgrad: the largest v so far."""

    def __init__(self, beta1: float, beta2: float, epsilon: float, *, amsgrad: bool = False) -> None:
        self.beta1, self.beta2, self.epsilon, self.amsgrad = beta1, beta2, epsilon, amsgrad
        self.m: Numbers | float = 0.0
        self.v: Numbers | float = epsilon**2
        self.largest: Numbers | float = epsilon**2

    def step(self, w: Numbers, g: Numbers, lr: float) -> Numbers:
        self.m = self.beta1 * self.m + (1 - self.beta1) * g
        self.v = self.beta2 * self.v + (1 - self.beta2) * g**2
        self.largest = np.maximum(self.largest, self.v)
        new: Numbers = w - lr * self.m / (np.sqrt(self.largest if self.amsgrad else self.v) + self.epsilon)
        return new
