"""The pictures of the documentation, cut out of a real report: `python docs/figures/make.py demo/report.html`.

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

WIDTH, TALL, MARGIN, COLOURS = 1300, 5000, 30, 96
PICTURES = {  # file: from the top of this section to the top of that one
    "report.png": (None, "Accuracy while training"),
    "slow-clients-over-time.png": ("Slow-fifth accuracy while training", "Who takes part"),
    "who-takes-part.png": ("Who takes part", "Staleness of what arrives"),
}
_TOPS = """
return Object.fromEntries(Array.from(document.querySelectorAll("h2"),
  (heading) => [heading.textContent.trim(), heading.getBoundingClientRect().top + window.scrollY]));
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
        return Image.open(io.BytesIO(browser.get_screenshot_as_png())), browser.execute_script(_TOPS)
    finally:
        browser.quit()


def main(page: str) -> None:
    whole, tops = screenshot(Path(page))
    for name, (first, after) in PICTURES.items():
        begins = int(tops[first]) - MARGIN if first else 0
        part = whole.convert("RGB").crop((0, begins, WIDTH, int(tops[after]) - MARGIN))
        path = Path(__file__).with_name(name)
        part.quantize(COLOURS).save(path, optimize=True)
        print(f"{path.name}: {part.width} x {part.height}, {path.stat().st_size // 1000} KB")


if __name__ == "__main__":
    main(sys.argv[1])
