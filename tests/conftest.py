"""What every test stands on: one torch thread, no network, repeatable hypothesis, and a browser where there is one."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# Before anything reads them: no library asks its hub, sends statistics or looks for a newer version of itself.
os.environ.update(
    HF_HUB_OFFLINE="1",
    FLWR_TELEMETRY_ENABLED="0",
    RAY_USAGE_STATS_ENABLED="0",
    SE_OFFLINE="true",
    SE_AVOID_STATS="true",
)

import pytest
import torch
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

# A shell ignores Ctrl-C for what it starts in the background, and every process started here would inherit that: those
# that tests interrupt would never end.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Sums are taken in one order, whatever the machine; and two cores serve two workers.
torch.set_num_threads(1)

# A slow machine is no failure. In CI the examples are the same in every run; at a desk they are new ones each time.
settings.register_profile("desk", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("desk"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Files that Ray forgot are collected while its warnings are ignored, not in some later test."""
    yield
    if item.get_closest_marker("ray") is not None:
        gc.collect()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)


def _program(name: str) -> str:
    """Debian's path first, then whatever the PATH has."""
    debian = Path("/usr/bin") / name
    found = str(debian) if debian.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install chromium chromium-driver)")
    return found


@pytest.fixture
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """A headless Chromium with an empty profile; `browser.get_log("browser")` is the page's console."""
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install 'acefl[dev]'")
    options = selenium.ChromeOptions()
    options.binary_location = _program("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1400,1800",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(flag)
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(_program("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()
