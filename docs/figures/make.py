"""The pictures of the documentation, cut out of real reports: `python docs/figures/make.py demo/report.html`.

Makes what it finds in the page: those of the method comparison in one of `acefl compare`, those of the diagnosis in one
of `acefl diagnose`. The diagnosis that is shown is recorded, and its pages are made again from the record:

    for part in terms rate; do
        acefl report experiments/ace/theory/$part --out $part.html && python docs/figures/make.py $part.html
    done

Needs Chromium and its driver (Debian: apt-get install chromium chromium-driver) and Pillow, which the lock file has.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from itertools import pairwise
from pathlib import Path

from PIL import Image
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

WIDTH, TALL, MARGIN, COLOURS = 1300, 12000, 30, 256
OF_A_COMPARISON = {  # file: the section it shows
    "slow-clients-over-time.png": "Slow-fifth held-out accuracy while training",
    "who-takes-part.png": "Who takes part",
}
OF_A_DIAGNOSIS = {
    "error-terms.png": "What an update's error is made of",
    "cosines.png": "Where an update and its errors point",
    "who-makes-the-model.png": "Who makes the model",
    "who-is-served.png": "Slow clients against fast clients",
    "amplification.png": "Heterogeneity amplification",
    "convergence.png": "The convergence claim",
}
WITH_LEGEND = ("slow-clients-over-time.png", "cosines.png", "who-makes-the-model.png", "who-is-served.png")
_PLACES = """
const place = (element) => element.getBoundingClientRect().top + window.scrollY;
const legend = document.querySelector(".legend");
const tops = Array.from(document.querySelectorAll("h2"), (heading) => [heading.textContent.trim(), place(heading)]);
const below = legend ? { legend: place(legend), below: place(legend) + legend.offsetHeight } : { legend: 0, below: 0 };
return { ...below, ...Object.fromEntries(tops) };
"""


def screenshot(page: Path) -> tuple[Image.Image, dict[str, float]]:
    """The whole page, and where its sections begin."""
    os.environ["SE_OFFLINE"] = "true"
    options = ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--window-size={WIDTH},{TALL}",
    ):
        options.add_argument(flag)
    browser = Chrome(options=options, service=Service(executable_path=shutil.which("chromedriver")))
    try:
        browser.get(page.resolve().as_uri())
        WebDriverWait(browser, 60).until(lambda b: b.execute_script("return document.body.dataset.drawn"))
        return Image.open(io.BytesIO(browser.get_screenshot_as_png())), browser.execute_script(_PLACES)
    finally:
        browser.quit()


def main(page: str) -> None:
    whole, places = screenshot(Path(page))
    legend = _cut(whole, places.pop("legend"), places.pop("below"))
    compared = "Accuracy while training" in places
    if compared:
        _save("report.png", _cut(whole, 0, places[OF_A_COMPARISON["slow-clients-over-time.png"]] - MARGIN))
    ends = dict(pairwise(sorted(places.values())))
    for name, section in (OF_A_COMPARISON if compared else OF_A_DIAGNOSIS).items():
        if section in places:
            part = _cut(whole, places[section] - MARGIN, ends[places[section]] - MARGIN)
            _save(name, _stack(legend, part) if name in WITH_LEGEND else part)


def _save(name: str, picture: Image.Image) -> None:
    path = Path(__file__).with_name(name)
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.name}: {picture.width} x {picture.height}, {path.stat().st_size // 1000} KB")


def _cut(whole: Image.Image, top: float, bottom: float) -> Image.Image:
    return whole.convert("RGB").crop((0, int(top), WIDTH, int(bottom)))


def _stack(above: Image.Image, below: Image.Image) -> Image.Image:
    both = Image.new("RGB", (WIDTH, MARGIN + above.height + below.height), "white")
    both.paste(above, (0, MARGIN))
    both.paste(below, (0, MARGIN + above.height))
    return both


if __name__ == "__main__":
    main(sys.argv[1])
