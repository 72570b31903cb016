"""When things happen: delay laws, client speeds, clocks and availability."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from acefl.core import rng as keyed
from acefl.core.errors import InvalidInput, one_of, require
from acefl.core.settings import replaced_settings
from acefl.fleets.devices import DEVICES, task_times
from acefl.fleets.measured import Entry, measured, ordered, positive, read_trace
from acefl.fleets.visits import Visit, numbered, visits_of

if TYPE_CHECKING:
    import pandas as pd

CLOCKS = ("event", "tick", "sampled")
SPEEDS = ("last", "random", "first")
_SPEED_STREAM, _DELAY_STREAM, _DROPOUT_STREAM = 1, 2, 3
_QUANTILES = 50  # of a delay law: enough to see what rounding to whole steps does to its mean


def _constant(u: float, shape: float) -> float:
    return 1.0


def _exponential(u: float, shape: float) -> float:
    return -math.log(u)


def _lognormal(u: float, shape: float) -> float:
    return math.exp(shape * _STANDARD_NORMAL.inv_cdf(u) - 0.5 * shape * shape)


def _uniform(u: float, shape: float) -> float:
    return 2.0 * u


def _pareto(u: float, shape: float) -> float:
    return float((shape - 1.0) / shape * u ** (-1.0 / shape))


def _two_speed(u: float, shape: float) -> float:
    slow = 0.1  # one task in ten takes `shape` times as long as the others
    unit = 1.0 / (1.0 - slow + slow * shape)
    return shape * unit if u < slow else unit


_STANDARD_NORMAL = NormalDist()

# Each law turns a uniform number into a delay of mean 1; the second entry is the default of its `shape`, 0 for none.
LAWS: dict[str, tuple[Callable[[float, float], float], float]] = {
    "constant": (_constant, 0.0),
    "exponential": (_exponential, 0.0),
    "lognormal": (_lognormal, 1.0),
    "uniform": (_uniform, 0.0),
    "pareto": (_pareto, 1.5),
    "two-speed": (_two_speed, 10.0),
}


@dataclass(frozen=True)
class Scenario:
    """How fast clients are, how time passes, and who is there.

    Client i's mean task time is `delay * spread ** (i / (n - 1))` (`slow="last"`; `slow="random"` permutes it,
    `slow="first"` turns it round), plus `fixed`, the same for everybody. Single tasks vary around it by `law`.

    clock: `event`: the server acts at each arrival. `tick`: once per unit of time, on whatever arrived in it.
    `sampled`: each arrival is a client drawn at random (fast ones more often), whose staleness in model versions is
    drawn from the delay law.

    Args:
        clock: `event`, `tick` or `sampled`.
        delay: Mean task time of the fastest client; the paper's beta.
        law: `constant`, `exponential`, `lognormal`, `uniform`, `pareto` or `two-speed`.
        shape: Of the law: sigma (`lognormal`), tail index (`pareto`), slow over fast (`two-speed`).
        spread: How many times slower the slowest client is than the fastest.
        slow: `last`, `random` or `first`: tasks order clients by their data, so speed goes with data, is independent of
            it, or goes with it the other way round.
        fixed: Time added to every task.
        trace: CSV with columns client,duration, in place of the settings from `delay` to `fixed`. Clients are named, or
            numbered where the task has no names for them.
        durations: What clients take, by name: `{"Mercy": 3.0, "St. Ann": [40.0, 38.5]}`, a Series, or a DataFrame with
            columns client and duration, in place of `delay`, `spread`, `slow` and `fixed`. A number is a mean, around
            which tasks vary by `law`; a list is what its tasks take in turn, again and again.
        devices: A capability profile, in place of `spread`: `edge-flowertune` or `phones`; times are multiples of
            `delay`.
        visits: When clients came and when each was done, in place of all other settings: a DataFrame with columns
            client, start and end, or rows of these. A client gets the model that is current at the start, and its
            update is there at the end. Nobody comes at any other time, and the run is over after the last visit.
        concurrency: Clients at work at once; None: all.
        dropout: Share of clients that leave.
        dropout_at: Share of the budget at which they leave.
        rejoin_at: Share at which they come back; None: never.
    """

    clock: str = "event"
    delay: float = 1.0  # the paper's beta
    law: str = "exponential"
    shape: float | None = None  # lognormal: sigma; pareto: tail index; two-speed: how much slower a slow task is
    spread: float = 1.0
    slow: str = "last"
    fixed: float = 0.0
    trace: str | Sequence[Sequence[float]] | None = None  # a CSV file with columns client,duration, or every client's
    # durations themselves: replaces delay to fixed
    durations: Mapping[str, float | Sequence[float]] | Sequence[float | Sequence[float]] | pd.DataFrame | None = None
    devices: str | None = None  # replaces spread
    visits: Sequence[tuple[Any, float, float]] | pd.DataFrame | None = None  # replaces everything else
    concurrency: int | None = None  # clients at work at once; None: all
    dropout: float = 0.0  # fraction of clients that leave ...
    dropout_at: float = 0.5  # ... at this fraction of the budget ...
    rejoin_at: float | None = None  # ... and come back at this one; None: never

    def __post_init__(self) -> None:
        one_of("clock", self.clock, CLOCKS)
        one_of("law", self.law, tuple(LAWS))
        one_of("slow", self.slow, SPEEDS)
        positive("delay", self.delay)
        require(math.isfinite(self.spread) and self.spread >= 1, f"spread is {self.spread}; allowed: at least 1")
        require(math.isfinite(self.fixed) and self.fixed >= 0, f"fixed is {self.fixed}; allowed: at least 0")
        if self.shape is not None:
            positive("shape", self.shape)
        if self.law == "pareto":
            require(self._shape > 1, f"shape is {self.shape}; allowed for pareto: above 1, or the mean is infinite")
        require(0 <= self.dropout < 1, f"dropout is {self.dropout}; allowed: from 0 to below 1")
        require(0 <= self.dropout_at <= 1, f"dropout_at is {self.dropout_at}; allowed: from 0 to 1")
        if self.rejoin_at is not None:
            require(
                self.dropout_at < self.rejoin_at <= 1,
                f"rejoin_at is {self.rejoin_at}; allowed: above dropout_at ({self.dropout_at}), up to 1",
            )
        if self.concurrency is not None:
            require(self.concurrency >= 1, f"concurrency is {self.concurrency}; allowed: at least 1")
        given = [name for name in ("trace", "durations", "devices") if getattr(self, name) is not None]
        require(len(given) <= 1, f"{' and '.join(given)} are given; allowed: one of them")
        if self.devices is not None:
            one_of("devices", self.devices, DEVICES)
        if self.durations is not None:
            object.__setattr__(self, "durations", measured(self.durations))
        if self.visits is not None:
            others = (field.name for field in fields(self) if field.name != "visits")
            beside = self._changed(*others)
            require(not beside, f"{beside} beside visits, which say when everybody comes; allowed: visits alone")
            object.__setattr__(self, "visits", visits_of(self.visits))
        if self.trace is not None and not isinstance(self.trace, str | Path):
            object.__setattr__(self, "trace", tuple(_durations(client, own) for client, own in enumerate(self.trace)))

    def record(self) -> dict[str, Any]:
        """The settings as plain values. Of a trace the file's name alone: its content is recorded beside them."""
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        named = self.trace is None or isinstance(self.trace, str | Path)
        return settings | {"trace": self.trace and (str(self.trace) if named else "durations given as numbers")}

    @property
    def _shape(self) -> float:
        return LAWS[self.law][1] if self.shape is None else self.shape

    def matched(self, clients: int, names: Sequence[str] | None) -> Scenario:
        """The scenario with what was given by name or in a file in the order of the clients."""
        if self.trace is not None:
            return dataclasses.replace(self, trace=read_trace(self.trace, clients, names))
        if self.durations is not None:
            return dataclasses.replace(self, durations=ordered(self._measured, clients, names))
        return self

    def came(self, clients: int, names: Sequence[str] | None) -> list[tuple[int, float, float]]:
        """The visits of the clients by their numbers, in the order in which they began."""
        return numbered(self._visits, clients, names)

    @property
    def _visits(self) -> tuple[Visit, ...]:
        return self.visits or ()  # type: ignore[return-value]  # as `visits_of` has made it

    @property
    def _measured(self) -> Mapping[str, Entry] | Sequence[Entry]:
        return self.durations  # type: ignore[return-value]  # as `measured` has made it

    def check(self, clients: int, names: Sequence[str] | None = None) -> None:
        """Refuse settings that do not fit the number of clients, or the names they have."""
        if names is not None:
            self.matched(clients, names)
            self.came(clients, names)
        if self.concurrency is not None:
            require(
                self.concurrency <= clients,
                f"concurrency is {self.concurrency}; allowed: at most the number of clients, {clients}",
            )

    def busy(self, clients: int) -> int:
        """How many clients are at work at once."""
        return clients if self.concurrency is None else self.concurrency

    def expectation(self, clients: int, arrivals_per_step: int = 1) -> str:
        """What staleness to expect, in a sentence, before anything is run."""
        mean = self.mean_staleness(clients, arrivals_per_step)
        if self.visits is not None:
            told = f"{len(self._visits):,} visits, one step per {_arrivals(arrivals_per_step)}"
            return f"visits as given: expect a mean staleness of about {mean:.3g} steps ({told})"
        how = {
            "event": f"{self.busy(clients)} clients at work, one step per {_arrivals(arrivals_per_step)}",
            "tick": "one step per unit of time",
            "sampled": "delays count server steps",
        }[self.clock]
        return f"clock {self.clock}: expect a mean staleness of about {mean:.3g} steps ({how})"

    def mean_staleness(self, clients: int, arrivals_per_step: int = 1) -> float:
        """About the mean over arrivals once a run is under way; fast clients weigh more, as they arrive more often."""
        busy = self.busy(clients)
        if self.visits is not None:
            ends = [end for _, _, end in self._visits]
            waits = (place - bisect_right(ends, start, hi=place) for place, (_, start, _) in enumerate(self._visits))
            return sum(waits) / len(ends) / arrivals_per_step
        if self.clock == "event":
            return (busy - 1) / arrivals_per_step
        durations = Durations(self, clients, seed=0)
        if self.clock == "sampled":
            speeds = [1.0 / mean for mean in durations.mean]
            ages = [durations.mean_rounded(client, math.floor) for client in range(clients)]
            return sum(map(math.prod, zip(speeds, ages, strict=True))) / sum(speeds)
        alike = self.spread == 1 and self.trace is None and self.durations is None and self.devices is None
        if self.law == "constant" and alike:
            return 0.0  # all arrive in the same tick
        times = [durations.mean_rounded(client, math.ceil) for client in range(clients)]
        pause = _pause_between_tasks(times, busy)
        arrivals = sum(1.0 / (time + pause) for time in times)  # per tick
        ticks_with_arrivals = 1.0 - math.exp(-arrivals)
        steps = min(ticks_with_arrivals, 1.0 / (arrivals_per_step / arrivals + 0.5))
        return busy * steps / arrivals - steps / ticks_with_arrivals

    def warnings(self, by_time: bool = False) -> list[str]:
        """Settings that cannot matter: worth a word before somebody sweeps over them."""
        found = []
        ignored = self._changed(*replaced_settings(self.record()))
        if ignored and self.trace is not None:
            found.append(f"{ignored}: no effect beside a trace, which gives every task's duration")
        elif ignored:
            beside = "durations, which say" if self.durations is not None else "devices, which say"
            found.append(f"{ignored}: no effect beside {beside} how long clients take")
        if self.trace is None and self.durations is None:
            if self.clock == "event" and self.fixed == 0 and self.delay != 1 and not by_time:
                found.append(
                    f"delay={self.delay:g} only sets the unit of time: under the event clock every delay gives the "
                    "same run (use spread to make some clients slower, fixed for a part all share, or the tick clock)"
                )
            if self.shape is not None and not LAWS[self.law][1]:
                found.append(f"shape={self.shape:g}: no effect on the {self.law} law, which has none")
            if self.slow != "last" and self.spread == 1 and self.devices is None:
                found.append(f"slow={self.slow}: no effect with spread=1, which makes all clients equally fast")
        if self.clock == "sampled" and self.concurrency is not None:
            found.append("concurrency has no effect under the sampled clock: staleness is drawn, not simulated")
        if not self.dropout and self._changed("dropout_at", "rejoin_at"):
            found.append(f"{self._changed('dropout_at', 'rejoin_at')}: no effect with dropout=0, as nobody leaves")
        return found

    def _changed(self, *names: str) -> str:
        defaults = {field.name: field.default for field in fields(self)}
        values = {name: getattr(self, name) for name in names}
        return ", ".join(f"{name}={value}" for name, value in values.items() if value != defaults[name])


def _arrivals(count: int) -> str:
    return "arrival" if count == 1 else f"{count} arrivals"


def _pause_between_tasks(times: Sequence[float], busy: int) -> float:
    """How long a client waits for its next task when only `busy` of them work at once: the same for fast and slow."""
    if busy == len(times):
        return 0.0
    low, high = 0.0, max(times) * len(times)
    for _ in range(50):
        middle = 0.5 * (low + high)
        at_work = sum(time / (time + middle) for time in times)
        low, high = (middle, high) if at_work > busy else (low, middle)
    return low


def _durations(client: int, own: Sequence[float]) -> tuple[float, ...]:
    try:
        durations = tuple(float(duration) for duration in own)
    except (TypeError, ValueError):
        raise InvalidInput(f"trace: the durations of client {client} are {own!r}; allowed: numbers above 0") from None
    require(bool(durations), f"trace has no duration for client {client}; every client needs at least one")
    for duration in durations:
        positive(f"trace: a duration of client {client}", duration)
    return durations


class Durations:
    """How long each client takes for each of its tasks: a pure function of (seed, client, visit)."""

    def __init__(self, scenario: Scenario, clients: int, seed: int, names: Sequence[str] | None = None) -> None:
        matched = scenario.matched(clients, names)
        self._seed = seed
        self._keys = [keyed.key(seed, _DELAY_STREAM, client) for client in range(clients)]
        self._fixed = scenario.fixed
        self._law = LAWS[scenario.law][0]
        self._shape = scenario._shape
        self.trace: list[list[float]] | None = None
        self._in_turn: list[Sequence[float] | None] = [None] * clients  # of those who were measured task by task
        if matched.trace is not None:
            self.trace = read_trace(matched.trace, clients)
            self._in_turn = list(self.trace)
            self._scale = [0.0] * clients
        elif matched.durations is not None:
            self._fixed = 0.0
            own = ordered(matched._measured, clients, None)
            self._in_turn = [entry if isinstance(entry, tuple) else None for entry in own]
            self._scale = [0.0 if isinstance(entry, tuple) else entry for entry in own]
        else:
            self._scale = self._speeds(scenario, clients)
        means = zip(self._in_turn, self._scale, strict=True)
        self.mean = [fmean(own) if own else scale + self._fixed for own, scale in means]

    def _speeds(self, scenario: Scenario, clients: int) -> list[float]:
        last = max(clients - 1, 1)
        if scenario.devices is not None:
            scale = [scenario.delay * time for time in task_times(scenario.devices, clients)]
        else:
            scale = [scenario.delay * scenario.spread ** (i / last) for i in range(clients)]
        if scenario.slow == "first":
            scale.reverse()
        if scenario.slow == "random":
            order = sorted(range(clients), key=lambda i: keyed.key(self._seed, _SPEED_STREAM, i))
            scale = [scale[i] for i in order]
        return scale

    def of(self, client: int, visit: int) -> float:
        own = self._in_turn[client]
        if own is not None:
            return own[visit % len(own)]
        u = keyed.uniform(keyed.extend(self._keys[client], visit))
        return self._fixed + self._scale[client] * self._law(u, self._shape)

    def each(self, clients: keyed.Array, visits: keyed.Array) -> keyed.Array:
        """`of` for each of these."""
        law, shape = self._law, self._shape
        draws = keyed.uniforms(keyed.extend_each(np.array(self._keys, np.uint64)[clients], visits))
        times = np.array(self._scale)[clients] * np.array([law(u, shape) for u in draws]) + self._fixed
        for client, own in enumerate(self._in_turn):
            if own is not None:
                whose = clients == client
                times[whose] = np.array(own)[visits[whose] % len(own)]
        found: keyed.Array = times
        return found

    def mean_rounded(self, client: int, rounding: Callable[[float], int]) -> float:
        """The mean of a client's rounded task times: its exact mean, plus what rounding changes at even quantiles."""
        own = self._in_turn[client]
        if own is not None:
            return fmean(rounding(duration) for duration in own)
        scale = self._scale[client]
        times = [self._fixed + scale * self._law((k + 0.5) / _QUANTILES, self._shape) for k in range(_QUANTILES)]
        return self.mean[client] + fmean(rounding(time) - time for time in times)


def slowest(mean_times: Sequence[float], fraction: float = 0.2) -> list[int]:
    """The slowest fifth of clients (at least one), ties going to the higher index."""
    count = max(1, round(fraction * len(mean_times)))
    return sorted(range(len(mean_times)), key=lambda i: (mean_times[i], i))[-count:]


def fastest(mean_times: Sequence[float], fraction: float = 0.2) -> list[int]:
    """The fastest fifth of clients (at least one), ties going to the lower index."""
    count = max(1, round(fraction * len(mean_times)))
    return sorted(range(len(mean_times)), key=lambda i: (mean_times[i], i))[:count]


def dropouts(scenario: Scenario, clients: int, seed: int) -> list[int]:
    """The clients that leave: a keyed random choice of the scenario's fraction, at least one of them staying."""
    order = sorted(range(clients), key=lambda i: keyed.key(seed, _DROPOUT_STREAM, i))
    return sorted(order[: min(round(scenario.dropout * clients), clients - 1)])
