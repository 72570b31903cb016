"""What `acefl diagnose` recorded, read back, and what it comes to: tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from acefl.core.errors import InvalidInput, require
from acefl.core.files import read_json
from acefl.report import clients, recorded, style
from acefl.report.recorded import Comparison

_TERMS = ("noise", "bias", "delay")
PREDICTED = -0.5  # the exponent of the mean squared gradient in T and in n, by the paper's Theorem 1
_ROUNDING = 1e-9  # of the mean squared error: below this a term is rounding, and shown as none


@dataclass(frozen=True)
class Diagnosis:
    """What `acefl diagnose` recorded; a part that was not asked for is None."""

    content: dict[str, Any]
    methods: Comparison | None
    amplification: pd.DataFrame | None
    rate: pd.DataFrame | None

    @property
    def labels(self) -> list[str]:
        if self.methods is not None:
            return [method.label for method in self.methods.methods]
        return list(self.amplification["method"].unique()) if self.amplification is not None else []

    @property
    def looks(self) -> dict[str, style.Look]:
        """How each method is drawn, in the order of the labels."""
        looks = style.looks_of(self.labels) if self.methods is None else style.looks(self.methods.methods)
        return {label: looks[label] for label in self.labels}


def load(directory: Path) -> Diagnosis:
    """Read what `acefl diagnose` wrote."""
    directory = Path(directory)
    content = read_json(directory / "diagnose.json")
    methods = recorded.load(directory / "methods") if (directory / "methods").is_dir() else None
    return Diagnosis(content, methods, *(_csv(directory / f"{name}.csv") for name in ("amplification", "rate")))


def _csv(path: Path) -> pd.DataFrame | None:
    try:
        return pd.read_csv(path) if path.exists() else None
    except (OSError, ValueError) as problem:
        raise InvalidInput(f"{path}: cannot be read ({problem})") from None


def impact(found: Diagnosis) -> pd.DataFrame:
    """The paper's table of algorithmic elements with measured numbers: means over the second half of the runs.

    `averages` is how many updates an average with this noise would be over, `bias_share` the bias relative to the
    heterogeneity of the data, `amplified` how much larger the delay error is on the most heterogeneous data of the
    amplification study than on homogeneous data, both at the largest spread of speeds.
    """
    rows = []
    for label in found.labels:
        row: dict[str, Any] = {"method": label}
        if found.methods is not None:
            method = next(method for method in found.methods.methods if method.label == label)
            late = pd.concat([second_half(run.metrics) for run in method.runs])
            row |= {name: float(late[name].mean()) for name in (*_TERMS, "mse", "squared_gradient", "cos_update")}
            row["averages"] = 1 / float(late["squared_weights"].mean())
            row["bias_share"] = float((late["bias"] / late["heterogeneity"]).mean())
            row["lr"] = method.lr
        if found.amplification is not None:
            row["amplified"] = amplified(found.amplification, label)
        rows.append(row)
    return pd.DataFrame(rows)


_SERVED = tuple(  # the first of these that was measured
    tuple(f"{held}{who}_{score}" for who in ("slow", "fast", "worst"))
    for score in ("accuracy", "loss")
    for held in ("heldout_", "")
)


def participation(found: Diagnosis) -> pd.DataFrame:
    """Who makes the model and who is served by it: influence over the whole run, staleness of all arrivals, the end."""
    if found.methods is None:
        return pd.DataFrame()
    measures = found.methods.measures
    served = next((names for names in _SERVED if measures(names[0])), ())
    rows = []
    for method in found.methods.methods:
        row: dict[str, Any] = {"method": method.label}
        names = ("influence_clients", "influence_gini", "influence_speed", "influence_slow", *served, "gap")
        row |= {name: method.mean(name) for name in names if measures(name)}
        counts = clients.staleness_counts(method)
        for name, q in (("median", 0.5), ("p90", 0.9), ("max", 1.0)):
            row[f"staleness_{name}"] = float(clients.quantile(counts, q)) if counts else math.nan
        rows.append(row)
    return pd.DataFrame(rows)


def second_half(metrics: pd.DataFrame) -> pd.DataFrame:
    """The measured steps of a run's second half, when its start is forgotten."""
    measured = metrics[metrics["noise"].notna()] if "noise" in metrics else metrics.iloc[:0]
    if measured.empty:
        raise InvalidInput("no error terms were measured: the runs are shorter than the arrivals between two of them")
    late: pd.DataFrame = measured[measured["arrival"] >= measured["arrival"].max() / 2]
    return late


def amplified(cells: pd.DataFrame, label: str) -> float:
    """How much larger a method's delay error is on the most heterogeneous data than on homogeneous ones."""
    slow = cells[(cells["method"] == label) & (cells["spread"] == cells["spread"].max())]
    delay = slow.groupby("heterogeneity")["delay"].mean()  # over seeds
    return float(delay[delay.index.max()] / delay[delay.index.min()])


_COLUMNS = {  # of both tables: heading, and how numbers are written
    "noise": ("noise", ".2g"),
    "averages": ("is σ² /", ".3g"),
    "bias": ("bias", ".2g"),
    "bias_share": ("is ζ² ×", ".2g"),
    "delay": ("delay", ".2g"),
    "amplified": ("delay × het.", ".3g"),
    "mse": ("error", ".2g"),
    "squared_gradient": ("gradient", ".2g"),
    "cos_update": ("cosine", ".2f"),
    "influence_clients": ("clients that count", ".0f"),
    "influence_gini": ("Gini", ".2f"),
    "influence_speed": ("correlation with speed", ".2f"),
    "influence_slow": ("slow fifth's influence", ".1%"),
    "staleness_median": ("staleness: median", ",.0f"),
    "staleness_p90": ("90 %", ",.0f"),
    "staleness_max": ("largest", ",.0f"),
    "heldout_slow_accuracy": ("held-out accuracy: slow fifth", ".3f"),
    "heldout_fast_accuracy": ("fast fifth", ".3f"),
    "heldout_worst_accuracy": ("worst client", ".3f"),
    "heldout_slow_loss": ("held-out loss: slow fifth", ".3g"),
    "heldout_fast_loss": ("fast fifth", ".3g"),
    "heldout_worst_loss": ("worst client", ".3g"),
    "slow_accuracy": ("accuracy: slow fifth", ".3f"),
    "fast_accuracy": ("fast fifth", ".3f"),
    "worst_accuracy": ("worst client", ".3f"),
    "slow_loss": ("loss: slow fifth", ".3g"),
    "fast_loss": ("fast fifth", ".3g"),
    "worst_loss": ("worst client", ".3g"),
    "gap": ("gap", ".2g"),
}


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """`impact` or `participation` as text, under headings for people; a bias that is only rounding is none."""
    columns = {"method": list(table["method"])}
    for name, (heading, digits) in _COLUMNS.items():
        if name in table:
            columns[heading] = ["–" if math.isnan(v) else _minus(format(v, digits)) for v in table[name]]
    text = pd.DataFrame(columns)
    if "bias" in table:
        text.loc[table["bias"] < _ROUNDING * table["mse"], ["bias", "is ζ² ×"]] = "none", "0"
    return text


def slopes(found: Diagnosis) -> pd.DataFrame:
    """The fitted exponent of every line of the rate study, with its 95 % interval, next to what theory predicts."""
    if found.rate is None:
        return pd.DataFrame()
    rows = []
    for (task, method, against), points in found.rate.groupby(["task", "method", "against"], sort=False):
        for over in ("whole", "second_half"):
            slope = fit(points[against].tolist(), points[over].tolist())
            rows.append(
                {"task": task, "method": method, "against": against, "over": over}
                | {"slope": slope.value, "low": slope.low, "high": slope.high, "predicted": PREDICTED}
            )
    return pd.DataFrame(rows)


class Slope(NamedTuple):
    """An exponent with its 95 % interval."""

    value: float
    low: float
    high: float


def fit(x: Sequence[float], y: Sequence[float]) -> Slope:
    """The exponent k of y = a x^k: least squares in log-log axes, and the interval from its residuals."""
    from scipy.stats import t as student

    require(len(set(x)) >= 2 and len(x) >= 3, "a slope needs at least three points at two places")
    across, up = np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float))
    away = across - across.mean()
    slope = float(away @ up / (away @ away))
    left = up - up.mean() - slope * away
    error = math.sqrt(float(left @ left) / (len(x) - 2) / float(away @ away))
    half = float(student.ppf(0.975, len(x) - 2)) * error
    return Slope(slope, slope - half, slope + half)


def readable_slopes(table: pd.DataFrame) -> pd.DataFrame:
    """The slopes as text, under headings for people."""
    over = {"whole": "whole run", "second_half": "second half"}
    return pd.DataFrame(
        {
            "task": table["task"],
            "method": table["method"],
            "mean squared gradient against": [
                f"{a}, {over[o]}" for a, o in zip(table["against"], table["over"], strict=True)
            ],
            "slope": [signed(value) for value in table["slope"]],
            "95 % interval": [
                f"{signed(low)} to {signed(high)}" for low, high in zip(table["low"], table["high"], strict=True)
            ],
            "predicted": [signed(value) for value in table["predicted"]],
        }
    )


def signed(value: float) -> str:
    """With two digits and a proper minus."""
    return _minus(f"{value:.2f}")


def _minus(text: str) -> str:
    """With the sign that people read; what rounds to nothing has none."""
    if not text.startswith("-"):
        return text
    return text[1:] if float(text.rstrip("%").replace(",", "")) == 0 else f"−{text[1:]}"


def sentences(found: Diagnosis) -> list[str]:
    """What was found, in words."""
    said = []
    if found.methods is not None:
        table = impact(found)
        total = table["noise"] + table["bias"] + table["delay"]
        biased = [
            f"{m} {b / t:.0%}" for m, b, t in zip(table["method"], table["bias"], total, strict=True) if b > 0.01 * t
        ]
        free = [m for m, b, t in zip(table["method"], table["bias"], total, strict=True) if b <= _ROUNDING * t]
        if biased:
            said.append(f"Participation bias is this much of the squared error of an update: {', '.join(biased)}.")
        if free:
            said.append(f"{' and '.join(free)} {'has' if len(free) == 1 else 'have'} none.")
    if found.amplification is not None:
        factors = {label: amplified(found.amplification, label) for label in found.labels}
        worst = max(factors, key=lambda label: factors[label])
        of_ace = f", that of ACE by {factors['ACE']:,.3g}" if "ACE" in factors else ""
        said.append(
            f"At the largest spread of speeds, heterogeneous data multiply the delay error of {worst} by "
            f"{factors[worst]:,.3g}{of_ace}."
        )
    table = slopes(found)
    if len(table):
        ace = table[(table["method"] == "ACE") & (table["over"] == "whole")]
        listed = [f"{signed(row['slope'])} ({row['task']}, in {row['against']})" for _, row in ace.iterrows()]
        said.append(f"The mean squared gradient of ACE falls with exponents {', '.join(listed)}; predicted: −0.50.")
    return said
