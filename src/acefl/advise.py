"""Which method for this federation? What a recorded run shows of it, held against the recorded leaderboard.

A run says how often clients take part, how stale their updates are, who went silent and whom the model serves badly.
That places it in one of the leaderboard's scenarios; the method named is the simplest of those that no other method
beats there. What a run cannot say is said too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from acefl.errors import require
from acefl.leaderboard import MEANING
from acefl.record import Run
from acefl.report.standings import SHOWN, Board, Standing
from acefl.rules import METHODS, from_settings, label

if TYPE_CHECKING:
    import pandas as pd

SILENT_GAPS, SILENT_SHARE = 5.0, 0.2  # silent: for five of a client's usual pauses and a fifth of the run
MANY_SILENT = 0.2  # Pareto task times of tail index 1.3 make up to 0.16 look silent who are at a very long task
UNEQUAL = 4.0  # times as many updates from the fastest fifth of clients as from the slowest
HEAVY = 1.15  # std over mean of a client's pauses: exponential tasks give 0.96 to 1.04, Pareto ones of 1.5 mostly more
OFTEN_STALE = 12.0  # steps: nearer to 5 or to 30, in logs


@dataclass(frozen=True)
class Symptoms:
    """What a recorded run shows of its federation."""

    clients: int
    arrivals: int
    ticks: bool  # whether steps follow a clock, not arrivals
    per_step: float  # arrivals
    staleness: float  # mean, in steps
    round_trip: float  # steps that nine in ten clients need at most, on average, from a model to its answer
    unequal: float  # arrivals of the fastest fifth of clients over those of the slowest
    silent: float  # share of clients that stopped answering
    variation: float  # of the pauses between a client's arrivals
    slow_loss: float  # mean final loss of the least heard fifth of clients ...
    fast_loss: float  # ... and of the most heard; NaN where losses were not recorded
    bias: float  # mean squared participation bias over the mean squared error of a step; NaN where not measured

    @property
    def scenario(self) -> str:
        """The leaderboard's scenario that is nearest: the first of these that holds."""
        if self.silent >= MANY_SILENT:
            return "dropout"
        if self.unequal >= UNEQUAL:
            return "spread"
        if self.ticks:
            return "tick 5" if self.staleness < OFTEN_STALE else "tick 30"
        return "heavy tail" if self.variation >= HEAVY else "equal"


SIGNS = {
    "dropout": f"{MANY_SILENT:.0%} or more of the clients went silent",
    "spread": f"the fastest fifth of clients send {UNEQUAL:g} times as much as the slowest, or more",
    "tick 5": f"steps follow a clock, mean staleness below {OFTEN_STALE:g} steps",
    "tick 30": f"steps follow a clock, mean staleness of {OFTEN_STALE:g} steps or more",
    "heavy tail": f"pauses between a client's updates have a standard deviation of {HEAVY:g} times their mean, or more",
    "equal": "none of these",
}  # in the order in which they are looked for


@dataclass(frozen=True)
class Advice:
    """A method with its settings, why, and what is not known."""

    method: str
    lr: tuple[float, float] | None
    scenario: str
    evidence: list[str]
    unknown: list[str]


def symptoms_of(run: Run) -> Symptoms:
    """Look at a run: its log of arrivals, its clients, and its error terms where they were measured."""
    events = run.events[run.events["accepted"]]
    require(
        len(events) >= 2 * len(run.participation), "the run is too short to judge: fewer than two updates per client"
    )
    order = np.argsort(np.asarray(run.participation), kind="stable")
    fifth = max(1, round(0.2 * len(order)))
    counts = np.asarray(run.participation, dtype=float)
    losses = np.asarray([float(row.get("loss", math.nan)) for row in run.clients])
    silent, variation = _pauses(events, len(order))
    staleness = (events["version"] - events["trained_on"]).astype(float)
    by_client = staleness.groupby(events["client"]).mean()
    last = run.metrics[-1]
    terms = [last.get(name, math.nan) for name in ("A", "B", "C")]
    return Symptoms(
        clients=len(order),
        arrivals=len(events),
        ticks=run.config["scenario"]["clock"] != "event",
        per_step=len(events) / max(1, run.steps),
        staleness=float(staleness.mean()),
        round_trip=float(by_client.quantile(0.9)),
        unequal=float(counts[order[-fifth:]].sum() / max(1.0, counts[order[:fifth]].sum())),
        silent=silent,
        variation=variation,
        slow_loss=float(losses[order[:fifth]].mean()),
        fast_loss=float(losses[order[-fifth:]].mean()),
        bias=terms[1] / sum(terms) if all(map(math.isfinite, terms)) and sum(terms) > 0 else math.nan,
    )


def _pauses(events: pd.DataFrame, clients: int) -> tuple[float, float]:
    """The share of clients that fell silent, and how much the pauses of the others vary around each one's own mean."""
    end, begin = float(events["time"].max()), float(events["time"].min())
    quiet, relative = [], []  # both in units of the client's own mean pause
    for _, times in events.groupby("client")["time"]:
        pauses = np.diff(np.sort(times.to_numpy()))
        if len(pauses) < 2 or pauses.mean() == 0:
            continue
        relative.append(pauses / pauses.mean())
        since = end - float(times.max())
        quiet.append(since / pauses.mean() if since > SILENT_SHARE * (end - begin) else 0.0)
    if not relative:
        return 0.0, math.nan
    together = np.concatenate(relative)
    never = clients - events["client"].nunique()
    silent = sum(pause > SILENT_GAPS for pause in quiet) + never
    return float(silent / clients), float(together.std())


def unbeaten(board: Board, scenario: str) -> list[Standing]:
    """Who cannot be told apart from the first on digits, whose data are real; of these, who cannot on quadratics.

    Methods that wait for rounds are left out: whoever asks has clients that do not wait.
    """
    among = list(filter(_is_asynchronous, board.methods))
    require(bool(among), "the leaderboard has no asynchronous method of the library; allowed: one that has")
    left: list[Standing] = []
    for task, key in SHOWN.items():
        column = board.column(task, scenario, key, among)
        among = [standing.method for standing in column if standing.first] or [column[0].method]
        left = [standing for standing in left or column if standing.method in among]
    return left


def simplest(standings: Sequence[Standing]) -> Standing:
    """Of equals, one that keeps no row per client; else the one that stands first."""
    return next(filter(_keeps_no_rows, standings), standings[0])


def _keeps_no_rows(standing: Standing) -> bool:
    return not {"table", "home"} & set(standing.row["rule"])


def advise(run: Run, board: Board | None = None) -> Advice:
    """Recommend a method, its tau or buffer, and a range of learning rates."""
    board = Board.recorded() if board is None else board
    seen = symptoms_of(run)
    scenario = seen.scenario
    among = unbeaten(board, scenario)
    chosen = simplest(among)
    rule = _with_settings(chosen, seen, board)
    rates, about_rates = _rates(run, chosen, scenario, board)
    others = ", ".join(standing.method for standing in among if standing is not chosen)
    why = "which it is simpler than" if _keeps_no_rows(chosen) else "which it stands before"
    evidence = [
        *_seen(seen),
        f"Of the leaderboard's scenarios that is nearest to '{scenario}': {MEANING[scenario]}.",
        f"There {chosen.method} cannot be told apart from the first (digits, client-average loss {chosen.mean:.3g} ± "
        f"{chosen.half:.2g})" + (f", and neither can {others}, {why}." if others else "."),
        *about_rates,
    ]
    return Advice(label(rule), rates, scenario, evidence, _unknown(run, seen))


def _is_asynchronous(method: str) -> bool:
    kind = METHODS.get(method.partition("(")[0])
    return kind is not None and not kind.rounds


def _with_settings(chosen: Standing, seen: Symptoms, board: Board) -> Any:
    """The method as tuned on the leaderboard, with tau and buffer fitted to this federation."""
    name = str(chosen.method).partition("(")[0]
    settings = dict(chosen.row["rule"])
    if "tau" in settings:
        settings["tau"] = max(1, math.ceil(2 * seen.round_trip * (1.0 if seen.ticks else seen.per_step)))
    if "buffer" in settings:
        there = int(board.content["tasks"]["digits"]["clients"])
        settings["buffer"] = min(seen.clients, max(1, round(settings["buffer"] * seen.clients / there)))
    return from_settings(name, settings)


def _rates(run: Run, chosen: Standing, scenario: str, board: Board) -> tuple[tuple[float, float] | None, list[str]]:
    """The run's own rate, times what the two methods' tuned rates are apart on the board, a factor of 2 either way."""
    pairs = []
    for task in board.tasks:
        own = board.cell(task, scenario, run.config["method"])
        other = board.cell(task, scenario, chosen.method)
        if own is not None and other is not None:
            pairs.append(other["lr"] / own["lr"])
    if not pairs:
        return None, [f"{run.config['label']} is not on the leaderboard, so nothing says how its rate translates."]
    low, high = run.config["lr"] * min(pairs) / 2, run.config["lr"] * max(pairs) * 2
    there = " and ".join(f"{ratio:.2g}" for ratio in pairs)
    sentence = (
        f"The run's rate was {run.config['lr']:.3g}; tuned rates of {chosen.method} were {there} times those of "
        f"{run.config['method']} on the leaderboard's tasks, hence {low:.2g} to {high:.2g}, a factor of 2 either way."
    )
    return (float(f"{low:.2g}"), float(f"{high:.2g}")), [sentence]


def _seen(seen: Symptoms) -> list[str]:
    unit = "steps that follow a clock" if seen.ticks else "steps"
    said = [
        f"{seen.clients} clients sent {seen.arrivals:,} updates; mean staleness is {seen.staleness:.3g} {unit}.",
        f"The most heard fifth of clients sent {seen.unequal:.1f} times as many as the least heard fifth.",
    ]
    if seen.silent:
        said.append(f"{seen.silent:.0%} of the clients stopped answering before the end.")
    if math.isfinite(seen.variation) and seen.variation >= HEAVY:
        said.append(
            f"Pauses between a client's updates have a standard deviation of {seen.variation:.2f} times their mean."
        )
    if math.isfinite(seen.slow_loss) and math.isfinite(seen.fast_loss):
        said.append(
            f"The model's loss is {seen.slow_loss:.3g} for the least heard fifth and {seen.fast_loss:.3g} for the most."
        )
    if math.isfinite(seen.bias):
        said.append(f"Participation bias is {seen.bias:.0%} of the measured squared error of a step.")
    return said


def _unknown(run: Run, seen: Symptoms) -> list[str]:
    missing = [
        "Whether the run's own learning rate was a good one: tune (acefl tune) before you trust a rate.",
        "How your task differs from the leaderboard's two; acefl compare on your own data decides.",
    ]
    if not math.isfinite(seen.bias):
        missing.append(
            "How much of a step's error is bias and how much is delay: it was not measured (acefl diagnose)."
        )
    if not math.isfinite(seen.slow_loss):
        missing.append("Whom the model serves badly: losses per client were not recorded.")
    if run.diverged:
        missing.append("Anything about losses: the run diverged.")
    if not seen.silent:
        missing.append("Whether clients will leave later: none did here.")
    return missing


def decision_table(board: Board) -> str:
    """The decisions as Markdown, for the docs: the same functions make them here and in `advise`."""
    lines = [
        "| What the run shows, first that holds | Scenario | Take | Not to be told apart there |",
        "|---|---|---|---|",
    ]
    for scenario, sign in SIGNS.items():
        among = unbeaten(board, scenario)
        names = ", ".join(standing.method for standing in among)
        lines.append(f"| {sign} | {scenario} | `{simplest(among).method}` | {names} |")
    return "\n".join(lines)
