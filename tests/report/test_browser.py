"""The page in a real browser, from a file and without a network: is every figure drawn, and does nothing complain?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from tests.report.fixtures import SIX, write_comparison
from tests.report.test_escaping import compared, poison, ranked, read, swept

from acefl import report
from acefl.report import figures, recorded
from acefl.studies.sweep import Grid, sweep

_DRAWN = """
return Array.from(document.querySelectorAll(".plot"), (plot) => {
  const marks = Array.from(plot.querySelectorAll(".traces path, .traces rect"));
  const seen = marks.map((mark) => mark.getBoundingClientRect()).filter((box) => box.width + box.height > 2);
  const frame = plot.querySelector("svg.drawing");
  const box = frame ? frame.getBoundingClientRect() : { width: 0, height: 0 };
  return { id: plot.id, marks: seen.length, width: box.width, height: box.height };
});
"""


def _open(browser: Chrome, page: Path) -> None:
    browser.get(page.as_uri())
    WebDriverWait(browser, 60).until(lambda b: b.execute_script("return document.body.dataset.drawn"))


def _complaints(browser: Chrome) -> list[dict[str, Any]]:
    return [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@pytest.mark.browser
def test_every_figure_is_drawn(browser: Chrome, tmp_path: Path) -> None:
    directory = write_comparison(tmp_path / "digits", arrivals=1000, evaluations=30)
    expected = {
        f"{figure.name}-{place}"
        for figure in figures.of(recorded.load(directory))
        for place in range(len(figure.panels))
    }
    _open(browser, report.build(directory))

    drawn = {plot["id"]: plot for plot in browser.execute_script(_DRAWN)}
    assert set(drawn) == expected
    for plot in drawn.values():
        assert plot["marks"] > 0, plot
        assert plot["width"] > 200, plot
        assert plot["height"] > 200, plot
    texts = browser.find_elements(By.CSS_SELECTOR, "#staleness-0 text")
    shown = [text.get_attribute("textContent") or "" for text in texts if text.is_displayed()]
    assert [sum(word in text for text in shown) for word in ("median", "largest")] == [len(SIX), len(SIX)]
    fetched = browser.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert [name for name in fetched if not name.startswith("data:")] == []
    assert _complaints(browser) == []

    _hide_a_method(browser, "ASGD")
    too_wide = browser.execute_script("return document.documentElement.scrollWidth > window.innerWidth")
    assert not too_wide


def _hide_a_method(browser: Chrome, label: str) -> None:
    """Its chip in the legend takes its curves out of every panel and leaves the others."""
    curves = "return document.querySelectorAll('#curve-accuracy-1 .traces .line').length"
    before = browser.execute_script(curves)
    chip = browser.find_element(By.CSS_SELECTOR, f'.legend button[data-method="{label}"]')
    browser.execute_script("arguments[0].click()", chip)
    WebDriverWait(browser, 60).until(lambda b: b.execute_script(curves) < before)
    assert chip.get_attribute("aria-pressed") == "false"
    assert browser.execute_script(curves) > 0
    assert _complaints(browser) == []


@pytest.mark.browser
def test_a_task_without_accuracy_is_drawn_too(browser: Chrome, tmp_path: Path) -> None:
    directory = write_comparison(
        tmp_path / "quadratic", methods=SIX[:3], seeds=(0,), task="quadratic", clients=20, arrivals=400, evaluations=20
    )
    _open(browser, report.build(directory))
    assert all(plot["marks"] > 0 for plot in browser.execute_script(_DRAWN))
    assert _complaints(browser) == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1600])
def test_a_page_fits_the_screen_and_its_tables_scroll(browser: Chrome, tmp_path: Path, width: int) -> None:
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    grid = {"method": ["ACE", "ASGD"], "lr": 0.05, "evaluations": 2, "stop": {"arrivals": 20}}
    swept = sweep(Grid.of({**grid, "task": {"name": "quadratic", "clients": 4, "dim": 2}}), tmp_path / "s", workers=1)
    compared = write_comparison(tmp_path / "c", seeds=(0, 1), clients=20, arrivals=200, evaluations=10)
    for directory in (swept.directory, compared):
        _open(browser, report.build(directory))
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        cut = "return Array.from(document.querySelectorAll('table'), (t) => t.closest('.wide') === null)"
        assert not any(browser.execute_script(cut)), "a table that cannot scroll"
    titles = "return Array.from(document.querySelectorAll('.xtitle'), (t) => t.getBoundingClientRect().toJSON())"
    for box in browser.execute_script(titles):
        assert box["left"] >= 0, "an axis title begins beyond the screen"
        assert box["right"] <= width, "an axis title ends beyond the screen"


@pytest.mark.browser
@pytest.mark.parametrize("make", [compared, swept, ranked], ids=lambda make: make.__name__)
def test_a_browser_draws_text_from_a_record_as_text(
    make: Callable[[Path], Path], browser: Chrome, tmp_path: Path
) -> None:
    directory = make(tmp_path / "record")
    poison(directory)
    page = report.build(directory)
    _open(browser, page)
    assert browser.execute_script("return document.scripts.length") == len(
        [tag for tag, _ in read(page).elements if tag == "script"]
    )
    drawn = browser.execute_script("return Array.from(document.querySelectorAll('svg text'), (t) => t.textContent)")
    assert [text for text in drawn if "<script" in text], "no text of the record is in a figure"
    assert _complaints(browser) == []
