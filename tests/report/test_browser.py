"""The page in a real browser, from a file and without a network: is every figure drawn, and does nothing complain?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from tests.report.fixtures import SIX, write_comparison
from tests.report.test_escaping import KINDS, compared, poison, ranked, read, swept

from acefl import report
from acefl.report import figures, recorded

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


_CONTRAST = """
const channels = (text) => text.match(/[\\d.]+/g).map(Number);
const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgb = (colour) => {  // whatever the notation
  paint.clearRect(0, 0, 1, 1);
  paint.fillStyle = colour;
  paint.fillRect(0, 0, 1, 1);
  return Array.from(paint.getImageData(0, 0, 1, 1).data.slice(0, 3));
};
const light = (colour) => {
  const [r, g, b] = rgb(colour).map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
const clear = (colour) => channels(colour).length === 4 && channels(colour)[3] === 0;
const placed = (cell) => [cell.getBoundingClientRect(), getComputedStyle(cell).fill];
const cells = Array.from(document.querySelectorAll(".cell"), placed);
const behind = (element) => {
  if (element.ownerSVGElement) {
    const box = element.getBoundingClientRect();
    const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
    const under = cells.find(([cell]) => x > cell.left && x < cell.right && y > cell.top && y < cell.bottom);
    if (under) return under[1];
  }
  for (let one = element; one; one = one.parentElement) {
    const ground = getComputedStyle(one).backgroundColor;
    if (!clear(ground)) return ground;
  }
  return "rgb(255, 255, 255)";
};
const says = (node) => node.nodeType === 3 && node.textContent.trim();
const own = (element) => element.checkVisibility() && Array.from(element.childNodes).some(says);
return Array.from(document.querySelectorAll("body *"), (element) => {
  if (["SCRIPT", "STYLE"].includes(element.tagName) || !own(element)) return null;
  const style = getComputedStyle(element);
  const found = contrast(element.ownerSVGElement ? style.fill : style.color, behind(element));
  return found < 4.5 ? `${element.textContent.trim().slice(0, 40)}: ${found.toFixed(2)}` : null;
}).filter(Boolean);
"""
_TITLES = "return Array.from(document.querySelectorAll('.xtitle'), (t) => t.getBoundingClientRect().toJSON())"
_FAINT = """
const ground = getComputedStyle(document.body).backgroundColor;
return [ground, ...Array.from(document.querySelectorAll(".plot .line"), (line) => getComputedStyle(line).stroke)];
"""


def _seen_by(browser: Chrome, scheme: str, width: int) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@pytest.mark.browser
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_every_kind_of_page_fits_every_screen_and_can_be_read(
    make: Callable[[Path], Path], browser: Chrome, tmp_path: Path
) -> None:
    page = report.build(make(tmp_path / "record"))
    assert page.stat().st_size < 2_000_000
    for scheme in ("light", "dark"):
        for width in (400, 900, 1600):
            _seen_by(browser, scheme, width)
            _open(browser, page)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            assert browser.execute_script(_CONTRAST) == [], f"too little contrast, {scheme}, {width} px"
            for box in browser.execute_script(_TITLES):
                assert box["left"] >= 0, "an axis title begins beyond the screen"
                assert box["right"] <= width, "an axis title ends beyond the screen"
            hints = """return Array.from(document.querySelectorAll(".wide"), (box) =>
                [box.scrollWidth > box.clientWidth + 1, !box.previousElementSibling.hidden])"""
            assert all(cut == told for cut, told in browser.execute_script(hints)), "a cut table that does not say so"
        ground, *lines = browser.execute_script(_FAINT)
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
        assert ground not in lines
    assert _complaints(browser) == []


@pytest.mark.browser
def test_a_figure_s_numbers_are_saved_as_csv(browser: Chrome, tmp_path: Path) -> None:
    where = {"behavior": "allow", "downloadPath": str(tmp_path)}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", where)
    directory = compared(tmp_path / "record")
    _open(browser, report.build(directory))
    for button in browser.find_elements(By.CSS_SELECTOR, "button.csv"):
        browser.execute_script("arguments[0].click()", button)
    saved = tmp_path / "curve-accuracy.csv"
    WebDriverWait(browser, 60).until(lambda _: saved.exists() and (tmp_path / "tuning.csv").exists())
    table = pd.read_csv(saved)
    read_back = recorded.load(directory)
    for method in read_back.methods:
        drawn = figures.over_seeds([run.metrics for run in method.runs], "arrival", "accuracy")
        own = table[(table["panel"] == "against arrivals") & (table["series"] == method.label)]
        assert drawn is not None
        for column, values in (("x", drawn.x), ("y", drawn.mean), ("low", drawn.low), ("high", drawn.high)):
            assert own[column].tolist() == pytest.approx(values.tolist(), rel=1e-5)
