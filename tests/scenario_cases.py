"""Random small runs: every method under every clock; who is at work, who leaves and when it ends are drawn."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from acefl import Scenario, Stop
from acefl.core.rule import Method
from acefl.fleets.scenario import CLOCKS, LAWS
from acefl.rules import METHODS, label

SMALL: dict[str, dict[str, tuple[Any, ...]]] = {  # settings worth drawing; the others stay as they are
    "ACE": {"variant": ("incremental", "direct", "client-held"), "warmup": ("wait", "seen"), "table": ("fp32", "int8")},
    "ACED": {"tau": (1, 3, 50), "freshness": ("dispatch", "model"), "warmup": ("wait", "seen")},
    "CA2FL": {"buffer": (1, 3, 10)},
    "FedBuff": {"buffer": (1, 3, 10), "staleness": ("none", "sqrt")},
    "DelayAdaptiveASGD": {"threshold": (None, 1)},
    "RobustACE": {"aggregate": ("median", "trimmed"), "warmup": ("wait", "seen")},
    "RingmasterASGD": {"threshold": (None, 1, 2)},
    "MaleniaSGD": {"batch": (1.0, 1.5, 3.0)},
    "MIFA": {"buffer": (1, 3), "warmup": ("wait", "seen")},
    "FedStaleWeight": {"buffer": (1, 3)},
    "FedFa": {"window": (1, 3, 7)},
    "AREA": {"buffer": (1, 3)},
    "FADAS": {"buffer": (1, 3)},
    "FedAvg": {"cohort": (None, 1, 2), "weights": ("uniform", "samples")},
    "FedAdam": {"cohort": (None, 1, 2)},
    "Calibrated": {"c": ("share", 0.3, 1.0), "beta": (0.0, 0.5, 1.0), "buffer": (1, 3), "warmup": ("wait", "zeros")},
    "DelayedNesterov": {"period": (1, 4)},
    "Clipped": {"method": ("ASGD", "ACE", "FedAvg"), "threshold": (0.5, 5.0)},
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One run to be made."""

    number: int
    clients: int
    method: Method
    scenario: Scenario
    stop: Stop
    noise: float

    def __str__(self) -> str:
        return f"case {self.number}: {self.clients} clients, {label(self.method)}, {self.scenario}, {self.stop}"


def case(number: int, folder: Path) -> Case:
    """The same number is the same case; methods take turns, so that each gets its share."""
    random = np.random.default_rng([17, number])

    def pick(*values: Any) -> Any:
        return values[random.integers(len(values))]

    clients = int(random.integers(2, 7))
    name = list(METHODS)[number % len(METHODS)]
    method = METHODS[name](**{key: pick(*values) for key, values in SMALL.get(name, {}).items()})
    rounds = getattr(method, "synchronous", False)
    cohort = getattr(method, "cohort", None)
    dropout_at = pick(0.0, 0.1, 0.5, 0.9, 1.0)
    trace = _trace(folder / f"trace-{number}.csv", clients, random) if random.random() < 0.2 else None
    scenario = Scenario(
        clock=pick("event", "tick") if rounds else pick(*CLOCKS),
        delay=pick(0.3, 1.0, 4.0),
        law=pick(*LAWS),
        spread=pick(1.0, 4.0, 20.0),
        slow=pick("last", "random"),
        fixed=pick(0.0, 0.0, 1.0),
        concurrency=cohort if cohort is not None else pick(None, 1, int(random.integers(1, clients + 1))),
        dropout=pick(0.0, 0.3, 0.6, 0.99),
        dropout_at=dropout_at,
        rejoin_at=pick(None, min(1.0, dropout_at + 0.3)) if dropout_at < 1 else None,
        trace=trace,
    )
    limits = {
        "arrivals": int(random.integers(1, 80)),
        "steps": int(random.integers(1, 20)),
        "time": pick(0.5, 5.0, 30.0),
    }
    chosen = pick(("arrivals",), ("steps",), ("steps",), ("time",), ("steps", "time"))
    return Case(number, clients, method, scenario, Stop(**{key: limits[key] for key in chosen}), pick(0.0, 0.5))


def _trace(path: Path, clients: int, random: np.random.Generator) -> str:
    """A recorded history of a few tasks per client: shorter than the run, which begins it again."""
    lines = ["client,duration"]
    for client in range(clients):
        for _ in range(int(random.integers(1, 4))):
            lines.append(f"{client},{random.choice([0.2, 0.999, 1.0, 2.0, 7.5]):g}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)
