"""The tables of README.md that are of `terms/` and `rate/`, made from these records.

    python experiments/ace/theory/terms.py

Beside what `acefl diagnose` prints: the paper's words, intervals over seeds, and CA²FL's terms with cached updates
replaced too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2]))

from experiments.leaderboard.publish import filled  # noqa: E402

from acefl.core.files import atomic_write  # noqa: E402
from acefl.report import diagnosis  # noqa: E402
from acefl.report.statistics import half_width  # noqa: E402

_NAMES = {"CA2FL": "CA²FL", "DelayAdaptiveASGD": "delay-adaptive", "digits mlp": "digits MLP"}
_ONE = ("not reduced", "contains bias", "τζ² interaction")
PAPER = {  # noise, bias, delay in the paper's table
    "ASGD": _ONE,
    "DelayAdaptiveASGD": (*_ONE[:2], "τζ² interaction; smaller rate may reduce it"),
    "FedBuff": ("reduced by m", *_ONE[1:]),
    "CA2FL": ("reduced by m", "contains bias", "no interaction"),
    "ACE": ("max. reduction", "eliminated", "no interaction"),
    "ACED(tau=300)": ("not in the table",) * 3,
}


def tables() -> dict[str, str]:
    """By the marker that stands around it on the page."""
    terms, rate = (diagnosis.load(HERE / part) for part in ("terms", "rate"))
    return {"impact": _impact(terms), "participation": _participation(terms), "slopes": _slopes(rate)}


def page() -> str:
    """README.md with these tables."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    for name, table in tables().items():
        text = filled(text, name, table)
    return text


def _impact(found: diagnosis.Diagnosis) -> str:
    impact = diagnosis.impact(found).set_index("method")
    rows = []
    for method, (noise, bias, delay) in PAPER.items():
        own, seeds = impact.loc[method], _by_seed(found, method)
        factors = _amplified_by_seed(found, method)
        none = own["bias"] < 1e-9 * own["mse"]
        measured = "none (below 1e-9 of the error)" if none else f"{seeds('bias')} = {own['bias_share']:.2g} ζ²"
        range_ = f"({_factor(min(factors))} to {_factor(max(factors))})"
        last = f"{seeds('delay')}, **{_factor(own['amplified'])}×** {range_}"
        first = f"{seeds('noise')} = σ²/{own['averages']:.3g}"
        rows.append([_NAMES.get(method, method), noise, first, bias, measured, delay, last])
    header = ["noise A: paper", "measured", "bias B: paper", "measured", "delay C: paper", "measured; delay × het."]
    cached = _by_seed(found, "CA2FL")
    also = f"With cached updates replaced too, CA²FL has noise {cached('noise_all')} and bias {cached('bias_all')}."
    return f"{_table(['method', *header], rows, text=(0, 1, 3, 5))}\n\n{also}"


def _by_seed(found: diagnosis.Diagnosis, label: str) -> Callable[[str], str]:
    """The mean over seeds of a term, with half of its 95 % interval."""
    assert found.methods is not None
    runs = next(method for method in found.methods.methods if method.label == label).runs
    late = [diagnosis.second_half(run.metrics) for run in runs]

    def term(name: str) -> str:
        values = [float(one[name].mean()) for one in late]
        return f"{fmean(values):.2g} ± {half_width(values):.1g}"

    return term


def _amplified_by_seed(found: diagnosis.Diagnosis, label: str) -> list[float]:
    assert found.amplification is not None
    return [diagnosis.amplified(cells, label) for _, cells in found.amplification.groupby("seed")]


def _factor(value: float) -> str:
    return f"{value:.0f}" if value > 10 else f"{value:.1f}"


def _participation(found: diagnosis.Diagnosis) -> str:
    rows = []
    for row in diagnosis.readable(diagnosis.participation(found)).itertuples(index=False):
        influence = row[4].replace("%", " %")
        rows.append([_NAMES.get(row[0], row[0]), *row[1:4], influence, ", ".join(row[5:8]), ", ".join(row[8:11])])
    header = ["clients that count", "Gini", "correlation with speed", "slow fifth's influence"]
    header += ["staleness: median, 90 %, largest", "held-out accuracy: slow fifth, fast fifth, worst client"]
    return _table(["method", *header], rows)


def _slopes(found: diagnosis.Diagnosis) -> str:
    slopes = diagnosis.readable_slopes(diagnosis.slopes(found)).to_numpy().tolist()
    rows = []
    for whole, half in zip(slopes[::2], slopes[1::2], strict=True):
        task, method, against = _NAMES.get(whole[0], whole[0]), whole[1], whole[2].partition(",")[0]
        rows.append([task, method, against, f"**{whole[3]}** ({whole[4]})", f"{half[3]} ({half[4]})"])
    return _table(["task", "method", "against", "whole run (the theorem's)", "second half"], rows, text=(0, 1, 2))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], text: Sequence[int] = (0,)) -> str:
    rule = "".join("|---" if column in text else "|--:" for column in range(len(header))) + "|"
    return "\n".join([f"| {' | '.join(header)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)])


if __name__ == "__main__":
    atomic_write(HERE / "README.md", page())
