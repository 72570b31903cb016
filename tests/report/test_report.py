"""Laws of the report: numbers equal to those computed plainly from the files, and a page that needs nothing else."""

from __future__ import annotations

import ast
import html
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.report.fixtures import SIX, Invented, write_comparison, write_run

from acefl import report
from acefl.cli import show
from acefl.core.errors import InvalidInput
from acefl.report import equal_cost, figures, headline, metrics, recorded, style, tables
from acefl.report.statistics import leaders


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_comparison(tmp_path_factory.mktemp("report") / "digits")


@pytest.fixture(scope="module")
def page(digits: Path) -> str:
    return report.build(digits).read_text(encoding="utf-8")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Quick to write and to spoil."""
    return write_comparison(tmp_path / "small", methods=SIX[:2], seeds=(0, 1), clients=10, arrivals=200, evaluations=10)


# -- the table ------------------------------------------------------------------------------------------------------


def test_means_and_stds_are_those_of_the_files(digits: Path) -> None:
    table = report.summary_table(digits).set_index("method")
    for method in json.loads((digits / "compare.json").read_text())["methods"]:
        summaries = [json.loads((digits / run / "summary.json").read_text()) for run in method["runs"]]
        row = table.loc[method["label"]]
        for metric in ("heldout_slow_accuracy", "accuracy", "client_loss", "slow_accuracy"):
            values = [summary["final"][metric] for summary in summaries]
            assert row[metric] == pytest.approx(statistics.mean(values))
            assert row[f"{metric}_std"] == pytest.approx(statistics.stdev(values))
        for cost in ("steps", "uploads", "time"):
            assert row[cost] == pytest.approx(statistics.mean(summary[cost] for summary in summaries))
        assert row["lr"] == method["lr"]
        assert row["seeds"] == 3


def test_rows_are_ordered_by_how_the_slow_clients_fare(digits: Path) -> None:
    table = report.summary_table(digits)
    assert table["heldout_slow_accuracy"].is_monotonic_decreasing
    assert list(table["method"][:2]) == ["ACE", "CA2FL"]


def test_text_shows_mean_and_spread_to_the_same_place(digits: Path) -> None:
    text = tables.readable(report.summary_table(digits))
    assert re.fullmatch(r"0\.\d{3} ± 0\.\d{3}", text["slow-fifth held-out accuracy"][0])
    assert re.fullmatch(r"0\.\d{3} ± 0\.\d{3}", text["client-average loss"][0])
    assert set(text["uploads"]) == {"2,000"}


def test_bold_is_who_leads_and_nobody_leads_by_a_budget(digits: Path) -> None:
    table = report.summary_table(digits)
    marks = tables.bold(table)
    finals = {
        method.label: [-value for value in method.finals("heldout_slow_accuracy")]
        for method in recorded.load(digits).methods
    }
    assert dict(zip(table["method"], marks["slow-fifth held-out accuracy"], strict=True)) == {
        label: label in leaders(finals) for label in table["method"]
    }
    assert marks["slow-fifth held-out accuracy"].tolist() == [True, True] + [False] * 4
    assert not marks[["method", "server steps", "uploads", "virtual time", "tuned lr"]].any(axis=None)


def test_the_page_and_the_terminal_say_the_same_of_bold(
    digits: Path, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = report.summary_table(digits)
    show.print_summary(table)
    said = " ".join(capsys.readouterr().out.split())
    why = tables.why_bold(table)
    assert why.startswith("Bold: ")
    assert why in said
    assert html.escape(why) in page
    assert page.partition("</table>")[0].count('class="best"') == tables.bold(table).to_numpy().sum()


def test_one_seed_and_a_model_that_learnt_nothing_leave_nothing_bold(small: Path, tmp_path: Path) -> None:
    assert tables.bold(report.summary_table(small)).any(axis=None)
    for path in small.glob("runs/*/metrics.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(rows[-1] | {"step": 0, "arrival": 0, "time": 0.0}) + "\n" for _ in rows))
    assert not tables.bold(report.summary_table(small)).any(axis=None)
    lone = write_comparison(tmp_path / "lone", methods=SIX[:2], seeds=(0,), clients=10, arrivals=200, evaluations=10)
    table = report.summary_table(lone)
    assert not tables.bold(table).any(axis=None)
    assert tables.why_bold(table) == "Nothing is bold: one seed tells no method from another."


def test_held_out_scores_come_first_where_they_are_recorded(small: Path) -> None:
    comparison = recorded.load(small)
    assert metrics.primary(comparison) is metrics.columns(comparison)[0] is metrics.HELDOUT_SLOW_ACCURACY
    assert metrics.SLOW_ACCURACY not in metrics.curves(comparison)
    for path in small.glob("runs/*/summary.json"):
        final = json.loads(path.read_text())["final"]
        spoil_json(path, final={name: None for name in final if name.startswith("heldout_")})
    older = recorded.load(small)
    assert metrics.primary(older) is metrics.SLOW_ACCURACY
    assert metrics.SLOW_ACCURACY in metrics.curves(older)


def test_the_page_tells_how_much_each_method_was_searched_for_and_by_what(small: Path) -> None:
    assert "6 values tried, by client-average loss" in report.build(small).read_text(encoding="utf-8")
    described = json.loads((small / "compare.json").read_text())
    described["methods"][0]["tuning"].append({"lr": 64.0, "score": None})
    spoil_json(small / "compare.json", methods=described["methods"], objective="gap")
    page = report.build(small).read_text(encoding="utf-8")
    assert "tuned by the same search for every method: 6 to 7 values tried, by optimality gap" in page
    assert "effort" not in page.partition("<script")[0]


def test_quadratic_is_judged_by_its_gap(tmp_path: Path) -> None:
    directory = write_comparison(tmp_path / "q", methods=SIX, task="quadratic", seeds=(0, 1), arrivals=500)
    table = report.summary_table(directory)
    assert table["gap"].is_monotonic_increasing
    assert "accuracy" not in table.columns
    assert re.fullmatch(r"\(\d\.\d\d ± \d\.\d\d\)e-05", tables.readable(table)["optimality gap"][0])


def test_a_seed_that_diverged_is_not_averaged_away(small: Path) -> None:
    spoil_json(
        small / "runs/ACE-seed1/summary.json", diverged=True, final={"accuracy": None, "heldout_slow_accuracy": None}
    )
    table = report.summary_table(small)
    assert list(table["method"]) == ["ACED", "ACE"]
    assert np.isnan(table["heldout_slow_accuracy"][1])
    assert tables.readable(table)["diverged"].tolist() == ["", "1 of 2"]
    assert "Runs that diverged: ACE in 1 of 2." in report.build(small).read_text(encoding="utf-8")


# -- the headline ---------------------------------------------------------------------------------------------------


def test_headline_names_who_serves_the_slow_clients(digits: Path) -> None:
    first, second = headline.sentences(recorded.load(digits))
    assert first == (
        "ACE and CA2FL serve the slowest fifth of clients at 0.97 accuracy; worse, 4 methods at 0.85 to 0.91, "
        "DelayAdaptiveASGD last (mean over 3 seeds)."
    )
    assert second == "Every method received 2,000 uploads, from which it took 200 to 2,000 server steps."


def test_headline_claims_nothing_that_one_seed_contradicts(small: Path) -> None:
    spoil_json(small / "runs/ACED-seed1/summary.json", final={"heldout_slow_accuracy": 0.999})
    assert headline.sentences(recorded.load(small))[0].startswith("The seeds tell no method from the others: ")


def test_headline_says_what_a_step_cost(small: Path) -> None:
    for seed in (0, 1):
        spoil_json(small / f"runs/ACED-seed{seed}/summary.json", uploads=2000)
    assert "200 server steps cost 200 to 2,000 uploads, depending on the method." in headline.sentences(
        recorded.load(small)
    )


def test_headline_says_when_learning_rates_were_not_tuned(small: Path) -> None:
    described = json.loads((small / "compare.json").read_text())
    spoil_json(small / "compare.json", methods=[method | {"tuning": []} for method in described["methods"]])
    said = headline.sentences(recorded.load(small))
    assert said[0].startswith("ACE serves the slowest fifth of clients at 0.97 accuracy; worse, ACED at 0.9")
    assert said[-1].startswith("Learning rates were given, not tuned")
    assert "tuned lr" not in tables.readable(report.summary_table(small)).columns


# -- curves ---------------------------------------------------------------------------------------------------------


def test_curve_is_the_plain_mean_where_seeds_were_evaluated_together() -> None:
    seeds = [pd.DataFrame({"step": [0, 10, 20], "accuracy": [0.1, a, b]}) for a, b in ((0.5, 0.8), (0.7, 0.9))]
    curve = figures.over_seeds(seeds, "step", "accuracy")
    assert curve is not None
    assert curve.x.tolist() == [0, 10, 20]
    assert curve.mean == pytest.approx([0.1, 0.6, 0.85])
    assert curve.low == pytest.approx([0.1, 0.5, 0.8])
    assert curve.high == pytest.approx([0.1, 0.7, 0.9])


def test_curve_ends_with_the_shortest_seed() -> None:
    short = pd.DataFrame({"time": [0.0, 4.0, 8.0], "gap": [1.0, 0.5, None]})
    long = pd.DataFrame({"time": [0.0, 5.0, 9.0], "gap": [1.0, 0.5, 0.1]})
    curve = figures.over_seeds([short, long], "time", "gap")
    assert curve is not None
    assert curve.x.tolist() == [0.0, 4.0]
    assert curve.mean[-1] == pytest.approx((0.5 + 0.6) / 2)


def test_curve_keeps_few_points_and_both_ends() -> None:
    history = pd.DataFrame({"arrival": range(10_000), "accuracy": np.linspace(0, 1, 10_000)})
    curve = figures.over_seeds([history], "arrival", "accuracy")
    assert curve is not None
    assert len(curve.x) == 400
    assert (curve.x[0], curve.x[-1]) == (0, 9999)


# -- the page -------------------------------------------------------------------------------------------------------

EVERY_FIGURE = {"fairness", "curve-accuracy", "curve-heldout_slow_accuracy", "participation", "staleness", "tuning"}


def test_every_figure_is_there(digits: Path, page: str) -> None:
    drawn = figures.of(recorded.load(digits))
    assert {figure.name for figure in drawn} == EVERY_FIGURE
    for figure in drawn:
        for place in range(len(figure.panels)):
            assert page.count(f'id="{figure.name}-{place}"') == 1
    assert {trace["name"] for panel in panels_of(page) for trace in panel["traces"]} >= {m.label for m in SIX}


def test_a_method_has_one_colour_everywhere(digits: Path, page: str) -> None:
    looks = style.looks(recorded.load(digits).methods)
    assert len({look.colour for look in looks.values()}) == len(SIX)
    for panel in panels_of(page):
        for trace in panel["traces"]:
            if trace.get("meta") in looks:
                colour = trace.get("color") or (trace.get("line") or trace["marker"])["color"]
                assert colour == looks[trace["meta"]].colour


def test_every_figure_has_numbers_to_save(page: str) -> None:
    assert page.count('class="save csv"') == len(EVERY_FIGURE)
    for panel in panels_of(page):
        if panel["table"] is not None:
            assert panel["table"]["rows"]
            assert {len(row) for row in panel["table"]["rows"]} == {len(panel["table"]["headings"])}
        else:
            assert any(trace["x"] for trace in panel["traces"] if trace.get("hover") is not False)


def test_saved_staleness_is_that_of_the_events(digits: Path, page: str) -> None:
    table = next(panel["table"] for panel in panels_of(page) if panel["id"] == "staleness-0")
    counts = {(method, age): count for method, age, count in table["rows"]}
    for method in recorded.load(digits).methods:
        events = pd.concat([run.events() for run in method.runs])
        ages = (events["version"] - events["trained_on"])[events["accepted"].astype(bool)].value_counts()
        assert {age: count for (label, age), count in counts.items() if label == method.label} == dict(ages)


def test_staleness_shares_add_up(digits: Path) -> None:
    run = recorded.load(digits).methods[0].runs[0]
    events = pd.read_parquet(run.directory / "events.parquet")
    assert sum(run.staleness.values()) == len(events)
    mean = sum(value * count for value, count in run.staleness.items()) / len(events)
    assert mean == pytest.approx((events["version"] - events["trained_on"]).mean())


def test_page_asks_no_other_machine_for_anything(page: str) -> None:
    found = Resources()
    found.feed(page)
    assert found.loaded == ["data:,"]
    assert "default-src 'none'" in found.policy


def test_building_twice_gives_the_same_bytes(small: Path, tmp_path: Path) -> None:
    first = report.build(small).read_bytes()
    assert report.build(small).read_bytes() == first
    elsewhere = [report.build(small, tmp_path / "elsewhere" / name).read_bytes() for name in ("one.html", "two.html")]
    assert elsewhere[0] == elsewhere[1]


def test_a_comparison_links_to_the_pages_of_its_runs(small: Path, tmp_path: Path) -> None:
    links = re.findall(r'<a href="([^"]*)">', report.build(small).read_text(encoding="utf-8"))
    assert sorted(links) == sorted(
        f"runs/{label}-seed{seed}/report.html" for label in ("ACE", "ACED") for seed in (0, 1)
    )
    for link in links:
        assert "<h1>ACE" in (small / link).read_text(encoding="utf-8")
    alone = report.build(small, tmp_path / "sent" / "page.html").read_text(encoding="utf-8")
    assert "<a href" not in alone, "these links lead nowhere"


def test_a_run_that_lies_elsewhere_is_neither_linked_nor_written_to(small: Path, tmp_path: Path) -> None:
    (small / "runs/ACE-seed1").rename(tmp_path / "moved")
    described = json.loads((small / "compare.json").read_text())
    described["methods"][0]["runs"][1] = "../moved"
    spoil_json(small / "compare.json", methods=described["methods"])
    page = report.build(small).read_text(encoding="utf-8")
    assert page.count("<a href") == 3
    assert not (tmp_path / "moved/report.html").exists()


def test_equal_cost_is_where_curves_stood_when_the_first_ended(small: Path) -> None:
    comparison = recorded.load(small)
    shown = equal_cost.table(comparison, {})
    assert shown is not None
    for column, budget in ((1, "arrival"), (3, "time")):
        end = min(float(run.metrics[budget].max()) for run in comparison.runs)
        for method, row in zip(comparison.methods, shown.rows, strict=True):
            at_end = [np.interp(end, r.metrics[budget], r.metrics["heldout_slow_accuracy"]) for r in method.runs]
            spread = f"{statistics.mean(at_end):.3f} ± {statistics.stdev(at_end):.3f}"
            assert row[column].text == spread
    assert "At equal uploads and at equal time" in report.build(small).read_text(encoding="utf-8")


def test_a_run_that_diverged_early_does_not_cut_the_others_short(small: Path) -> None:
    spoil_json(small / "runs/ACE-seed1/summary.json", diverged=True)
    path = small / "runs/ACE-seed1/metrics.jsonl"
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines()[:2]))
    comparison = recorded.load(small)
    shown = equal_cost.table(comparison, {})
    assert equal_cost.shared(comparison, "arrival", "heldout_slow_accuracy") == 200
    assert shown is not None
    assert shown.rows[0][1].text == "–"


def test_an_axis_is_logarithmic_where_one_method_would_squeeze_another(digits: Path, small: Path) -> None:
    scales = {path: curve_scales(path) for path in (digits, small)}
    assert scales[digits]["curve-accuracy-0"] == "log", "FedBuff takes a tenth of the steps"
    assert scales[digits]["curve-accuracy-1"] == scales[small]["curve-accuracy-0"] == "linear"


def test_the_page_says_what_a_client_does_per_upload(small: Path) -> None:
    assert "A client sends" not in report.build(small).read_text(encoding="utf-8")
    work = "A client sends the gradient of one minibatch of 20 of its samples."
    spoil_json(small / "compare.json", task={"client_work": work})
    page = report.build(small).read_text(encoding="utf-8")
    assert page.count(work) == 2
    assert "client_work=" not in page


def test_labels_cannot_break_the_page(tmp_path: Path) -> None:
    nasty = Invented('</script><b onclick="x">&', "ASGD", {}, 0.1, 0.9, 0.9, 0.9, 0.1)
    directory = write_run(tmp_path / "nasty", nasty, seed=0, clients=10, arrivals=100, evaluations=5)
    html = report.build(directory).read_text(encoding="utf-8")
    assert "<b onclick" not in html
    assert panels_of(html)


def test_page_stays_small_for_a_long_comparison(tmp_path: Path) -> None:
    directory = write_comparison(tmp_path / "long", arrivals=10_000, evaluations=1000)
    assert report.build(directory).stat().st_size < 2_000_000


def test_one_run_has_a_page_too(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "one", SIX[0], seed=7, arrivals=300)
    html = report.build(directory).read_text(encoding="utf-8")
    assert "ACE on digits" in html
    assert "One seed: nothing here says how much another seed would differ." in html
    assert len(report.summary_table(directory)) == 1


def test_how_it_was_made_is_on_the_page(page: str) -> None:
    for fact in ("acefl compare --task digits", "spread=30.0", "event: every arrival", "6 values tried", "0, 1, 2"):
        assert fact in page


def test_importing_the_report_is_cheap() -> None:
    code = "import sys; import acefl.core.errors, acefl.report; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "jinja2" not in loaded
    assert "acefl.report.page" not in loaded


def test_the_report_reads_records_and_imports_nothing_that_makes_them() -> None:
    below = ("acefl.core.errors", "acefl.core", "acefl.report.statistics", "acefl.runs.record", "acefl.report")
    for path in Path(report.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            named += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            for module in named:
                allowed = module.partition(".")[0] != "acefl" or module.startswith(below)
                assert allowed, f"{path.name} imports {module}"


# -- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda d: (d / "compare.json").write_text("{"), "compare.json: not valid JSON"),
        (lambda d: (d / "compare.json").write_text("[]"), "compare.json: not a JSON object"),
        (lambda d: spoil_json(d / "compare.json", format=99), "compare.json: format 99, but .* reads format 1"),
        (lambda d: spoil_json(d / "compare.json", methods=[]), "compare.json: no methods in it"),
        (lambda d: spoil_json(d / "compare.json", methods=[{}]), "compare.json: each method needs a label"),
        (lambda d: spoil_json(d / "compare.json", seeds=3), "compare.json: 'seeds' is missing or not a list"),
        (lambda d: (d / "runs/ACE-seed0/summary.json").unlink(), "ACE-seed0/summary.json: missing"),
        (lambda d: (d / "runs/ACE-seed0/metrics.jsonl").write_text('{"step": 0}\n{"st'), "metrics.jsonl line 2: not"),
        (lambda d: (d / "runs/ACE-seed0/metrics.jsonl").write_text('{"step": 0}\n'), "metrics.jsonl: no column 'arr"),
        (lambda d: (d / "runs/ACE-seed0/metrics.jsonl").write_text(""), "metrics.jsonl: no rows"),
        (lambda d: (d / "runs/ACE-seed0/events.parquet").write_bytes(b"nonsense"), "events.parquet: not a readable"),
        (lambda d: (d / "runs/ACED-seed1/clients.parquet").unlink(), "ACED-seed1/clients.parquet: missing"),
    ],
)
def test_a_bad_file_is_named_in_one_line(small: Path, spoil: Callable[[Path], Any], says: str) -> None:
    spoil(small)
    with pytest.raises(InvalidInput, match=says) as caught:
        report.build(small)
    assert "\n" not in str(caught.value)
    assert not (small / "report.html").exists()


def test_a_place_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="neither compare.json nor config.json"):
        report.build(tmp_path)
    with pytest.raises(InvalidInput, match="no such directory"):
        report.build(tmp_path / "nowhere")


def test_a_directory_is_not_written_over(small: Path) -> None:
    with pytest.raises(InvalidInput, match="is a directory"):
        report.build(small, small)


def test_only_a_page_is_written_over(small: Path, tmp_path: Path) -> None:
    before = (small / "compare.json").read_bytes()
    with pytest.raises(InvalidInput, match=r"compare.json: exists and is no page; allowed: a new file, or one that"):
        report.build(small, small / "compare.json")
    assert (small / "compare.json").read_bytes() == before
    page = report.build(small, tmp_path / "page.html")
    assert report.build(small, page) == page


# -- helpers --------------------------------------------------------------------------------------------------------


class Resources(HTMLParser):
    """Everything an HTML page would fetch, and its security policy."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.policy = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.loaded += [str(given[name]) for name in ("src", "srcset", "data", "poster") if name in given]
        if tag == "link":
            self.loaded.append(str(given.get("href")))
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = str(given["content"])


def panels_of(html: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="panels">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    panels: list[dict[str, Any]] = json.loads(found[1])
    return panels


def curve_scales(directory: Path) -> dict[str, str]:
    """Of every panel: whether its horizontal axis is logarithmic."""
    panels = panels_of(report.build(directory).read_text(encoding="utf-8"))
    return {panel["id"]: panel["layout"]["xaxis"].get("type", "linear") for panel in panels}


def spoil_json(path: Path, **changes: Any) -> None:
    """Change a JSON file; a dict is merged into the one that is there."""
    data = json.loads(path.read_text())
    for key, value in changes.items():
        data[key] = data[key] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(data))
