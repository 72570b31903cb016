"""The pictures of the documentation, cut out of real reports: `python docs/figures/make.py demo/report.html`.

Makes what it finds in the page: those of the method comparison in one of `acefl compare`, those of the diagnosis in one
of `acefl diagnose`.

Needs Chromium and its driver (Debian: apt-get install chromium chromium-driver) and Pillow, which the lock file has.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path

from PIL import Image
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

WIDTH, TALL, MARGIN, COLOURS = 1300, 7000, 30, 256
PICTURES = {  # file: from the top of this section to the top of that one
    "report.png": (None, "Accuracy while training"),
    "slow-clients-over-time.png": ("Slow-fifth accuracy while training", "Who takes part"),
    "who-takes-part.png": ("Who takes part", "Who makes the model"),
    "error-terms.png": ("What an update's error is made of", "The methods, term by term"),
    "who-makes-the-model.png": ("Who makes the model", "Heterogeneity amplification"),
    "amplification.png": ("Heterogeneity amplification", "The convergence claim"),
    "convergence.png": ("The convergence claim", "How this was made"),
}
WITH_LEGEND = ("slow-clients-over-time.png", "who-makes-the-model.png")
_PLACES = """
const place = (element) => element.getBoundingClientRect().top + window.scrollY;
const legend = document.querySelector(".legend");
const tops = Array.from(document.querySelectorAll("h2"), (heading) => [heading.textContent.trim(), place(heading)]);
return { legend: place(legend), below: place(legend) + legend.offsetHeight, ...Object.fromEntries(tops) };
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
    legend = _cut(whole, places["legend"], places["below"])
    for name, (first, after) in PICTURES.items():
        if not {first or after, after} <= set(places):
            continue
        part = _cut(whole, places[first] - MARGIN if first else 0, places[after] - MARGIN)
        if name in WITH_LEGEND:
            part = _stack(legend, part)
        path = Path(__file__).with_name(name)
        part.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
        print(f"{path.name}: {part.width} x {part.height}, {path.stat().st_size // 1000} KB")


def _cut(whole: Image.Image, top: float, bottom: float) -> Image.Image:
    return whole.convert("RGB").crop((0, int(top), WIDTH, int(bottom)))


def _stack(above: Image.Image, below: Image.Image) -> Image.Image:
    both = Image.new("RGB", (WIDTH, MARGIN + above.height + below.height), "white")
    both.paste(above, (0, MARGIN))
    both.paste(below, (0, MARGIN + above.height))
    return both


if __name__ == "__main__":
    main(sys.argv[1])
