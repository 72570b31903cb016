"""What `acefl diagnose` recorded, read back, and what it comes to: tables and sentences."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from acefl import convergence
from acefl.errors import InvalidInput
from acefl.report import recorded, staleness, style
from acefl.report.recorded import Comparison, Method

_TERMS = ("noise", "bias", "delay")
_LEAST = 1e-9  # of the mean squared error: below this a term is rounding, and shown as none


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
        bare = [Method(label, label.partition("(")[0], {}, math.nan, [], []) for label in self.labels]
        looks = style.looks(self.methods.methods if self.methods is not None else bare)
        return {label: looks[label] for label in self.labels}


def load(directory: Path) -> Diagnosis:
    """Read what `acefl diagnose` wrote."""
    directory = Path(directory)
    path = directory / "diagnose.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise InvalidInput(f"{path}: cannot be read ({problem})") from None
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
            late = pd.concat([_second_half(run.metrics) for run in method.runs])
            row |= {name: float(late[name].mean()) for name in (*_TERMS, "mse", "squared_gradient", "cos_update")}
            row["averages"] = 1 / float(late["squared_weights"].mean())
            row["bias_share"] = float((late["bias"] / late["heterogeneity"]).mean())
            row["lr"] = method.lr
        if found.amplification is not None:
            row["amplified"] = _amplified(found.amplification, label)
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
        row |= {name: _mean(method, name) for name in names if measures(name)}
        counts = staleness.of_all(method)
        for name, q in (("median", 0.5), ("p90", 0.9), ("max", 1.0)):
            row[f"staleness_{name}"] = float(staleness.quantile(counts, q)) if counts else math.nan
        rows.append(row)
    return pd.DataFrame(rows)


def _second_half(metrics: pd.DataFrame) -> pd.DataFrame:
    measured = metrics[metrics["noise"].notna()] if "noise" in metrics else metrics.iloc[:0]
    if measured.empty:
        raise InvalidInput("no error terms were measured: the runs are shorter than the arrivals between two of them")
    late: pd.DataFrame = measured[measured["arrival"] >= measured["arrival"].max() / 2]
    return late


def _mean(method: Method, key: str) -> float:
    return float(np.mean(method.finals(key)))


def _amplified(cells: pd.DataFrame, label: str) -> float:
    slow = cells[(cells["method"] == label) & (cells["spread"] == cells["spread"].max())].set_index("heterogeneity")
    return float(slow["delay"][slow.index.max()] / slow["delay"][slow.index.min()])


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """The table as text, under headings for people."""
    columns: dict[str, list[str]] = {"method": list(table["method"])}
    if "noise" in table:
        gone = table["bias"] < _LEAST * table["mse"]
        columns["noise"] = [f"{value:.2g}" for value in table["noise"]]
        columns["is σ² /"] = [f"{value:.3g}" for value in table["averages"]]
        columns["bias"] = ["none" if none else f"{value:.2g}" for none, value in zip(gone, table["bias"], strict=True)]
        columns["is ζ² ×"] = [
            "0" if none else f"{value:.2g}" for none, value in zip(gone, table["bias_share"], strict=True)
        ]
        columns["delay"] = [f"{value:.2g}" for value in table["delay"]]
    if "amplified" in table:
        columns["delay × het."] = [f"{value:.3g}" for value in table["amplified"]]
    if "mse" in table:
        columns["error"] = [f"{value:.2g}" for value in table["mse"]]
        columns["gradient"] = [f"{value:.2g}" for value in table["squared_gradient"]]
        columns["cosine"] = [signed(value) for value in table["cos_update"]]
    return pd.DataFrame(columns)


_WHO = {
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


def readable_participation(table: pd.DataFrame) -> pd.DataFrame:
    """Who counts and who is served, as text under headings for people."""
    columns = {"method": list(table["method"])}
    for name, (heading, digits) in _WHO.items():
        if name in table:
            columns[heading] = ["–" if math.isnan(v) else _minus(format(v, digits)) for v in table[name]]
    return pd.DataFrame(columns)


def slopes(found: Diagnosis) -> pd.DataFrame:
    """The fitted exponent of every line of the rate study, with its 95 % interval, next to what theory predicts."""
    if found.rate is None:
        return pd.DataFrame()
    rows = []
    for (task, method, against), points in found.rate.groupby(["task", "method", "against"], sort=False):
        for over in ("whole", "second_half"):
            slope = convergence.fit(points[against].tolist(), points[over].tolist())
            rows.append(
                {"task": task, "method": method, "against": against, "over": over}
                | {"slope": slope.value, "low": slope.low, "high": slope.high, "predicted": convergence.PREDICTED}
            )
    return pd.DataFrame(rows)


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
    return text.lstrip("-") if float(text.rstrip("%").replace(",", "")) == 0 else text.replace("-", "−")


def sentences(found: Diagnosis) -> list[str]:
    """What was found, in words."""
    said = []
    if found.methods is not None:
        table = impact(found)
        total = table["noise"] + table["bias"] + table["delay"]
        biased = [
            f"{m} {b / t:.0%}" for m, b, t in zip(table["method"], table["bias"], total, strict=True) if b > 0.01 * t
        ]
        free = [m for m, b, t in zip(table["method"], table["bias"], total, strict=True) if b <= _LEAST * t]
        if biased:
            said.append(f"Participation bias is this much of the squared error of an update: {', '.join(biased)}.")
        if free:
            said.append(f"{' and '.join(free)} {'has' if len(free) == 1 else 'have'} none.")
    if found.amplification is not None:
        worst = max(found.labels, key=lambda label: _amplified(found.amplification, label))  # type: ignore[arg-type]
        said.append(
            f"At the largest spread of speeds, heterogeneous data multiply the delay error of {worst} by "
            f"{_amplified(found.amplification, worst):,.3g}"
            + (f", that of ACE by {_amplified(found.amplification, 'ACE'):,.3g}." if "ACE" in found.labels else ".")
        )
    table = slopes(found)
    if len(table):
        ace = table[(table["method"] == "ACE") & (table["over"] == "whole")]
        listed = [f"{signed(row['slope'])} ({row['task']}, in {row['against']})" for _, row in ace.iterrows()]
        said.append(f"The mean squared gradient of ACE falls with exponents {', '.join(listed)}; predicted: −0.50.")
    return said
