"""The live page: what it says is so, only this machine can read it, nobody can write to it, and a browser draws it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from acefl import ACED, InvalidInput, Scenario, Stop, simulate, tasks
from acefl.core.types import Arrival
from acefl.runs.live import LivePage


@pytest.fixture
def page() -> Iterator[LivePage]:
    page = LivePage(0)
    yield page
    page.close()


@pytest.fixture
def watched(page: LivePage) -> LivePage:
    """A run of twelve clients, two of whom leave half-way, seen to its end."""
    task = tasks.digits(clients=12, alpha=0.5, model="softmax", seed=0)
    scenario = Scenario(spread=5.0, dropout=0.2, dropout_at=0.3)
    simulate(task, ACED(tau=25), lr=0.3, scenario=scenario, stop=Stop(arrivals=400), evaluations=10, observers=[page])
    page.arrived(Arrival(3, torch.zeros(1), 0, 0, 0), "non-finite")
    return page


def ask(page: LivePage, path: str, method: str = "GET", host: str | None = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", int(page.address.rpartition(":")[2].strip("/")), timeout=30)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    answer.text = answer.read().decode()  # type: ignore[attr-defined]
    connection.close()
    return answer


def state(page: LivePage) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(page, "/state.json").text)  # type: ignore[attr-defined]
    return found


def test_it_counts_what_happened(watched: LivePage) -> None:
    found = state(watched)
    assert found["arrivals"] == 400
    assert sum(client["arrivals"] for client in found["clients"]) == 400
    assert sum(count for _, _, count in found["staleness"]) == 400
    assert found["refused"] == {"non-finite": 1}
    assert len(found["evaluations"]) >= 10
    assert found["evaluations"][-1]["accuracy"] > 0.6
    out = [client["client"] for client in found["clients"] if not client["active"]]
    assert len(out) == 2, "the two that left are not shown as out of the active set"


def test_before_anything_happened_it_says_so(page: LivePage) -> None:
    found = state(page)
    assert (found["arrivals"], found["staleness"], found["evaluations"], found["clients"]) == (0, [], [], [])


def test_numbers_that_json_does_not_have_are_null(page: LivePage) -> None:
    page.evaluated({"step": 1, "arrival": 1, "time": 1.0, "loss": float("nan"), "accuracy": float("inf")})
    assert state(page)["evaluations"] == [{"step": 1, "arrival": 1, "time": 1.0, "loss": None, "accuracy": None}]


def test_a_long_run_does_not_fill_the_memory(page: LivePage) -> None:
    for step in range(5000):
        page.evaluated({"step": step, "loss": 1.0})
    rows = state(page)["evaluations"]
    assert len(rows) <= 500
    assert rows[0]["step"] == 0
    assert rows[-1]["step"] == 4999
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)


def test_it_listens_on_this_machine_only(page: LivePage) -> None:
    assert page.address.startswith("http://127.0.0.1:")
    assert page._http.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", ""])
def test_a_page_of_another_site_cannot_read_it_by_rebinding_a_name(page: LivePage, host: str) -> None:
    assert ask(page, "/state.json", host=host or "127.0.0.1").status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_is_read_only(page: LivePage, method: str) -> None:
    assert ask(page, "/state.json", method).status == 501


@pytest.mark.parametrize("path", ["/nothing", "/../live.py", "/live.html", "/state.json/.."])
def test_there_is_nothing_else(page: LivePage, path: str) -> None:
    assert ask(page, path).status == 404


def test_a_port_that_is_taken_gets_one_clear_line(page: LivePage) -> None:
    port = int(page.address.rpartition(":")[2].strip("/"))
    with pytest.raises(InvalidInput, match=f"cannot serve a live page on port {port}"):
        LivePage(port)
    with pytest.raises(InvalidInput, match="port is 70000"):
        LivePage(70_000)


def test_a_browser_shows_the_run_and_follows_it(watched: LivePage, browser: Chrome) -> None:
    browser.get(watched.address)
    wait = WebDriverWait(browser, 60)
    wait.until(lambda b: b.find_elements(By.CSS_SELECTOR, "#clients span"))
    assert len(browser.find_elements(By.CSS_SELECTOR, "#clients .in")) == 10
    assert len(browser.find_elements(By.CSS_SELECTOR, "#clients .out")) == 2
    numbers = browser.find_element(By.ID, "numbers").text
    assert "400\narrivals" in numbers
    assert "1\nrefused" in numbers
    points = browser.find_element(By.CSS_SELECTOR, "#curve polyline").get_attribute("points")
    assert len(points.split()) >= 10
    assert browser.find_element(By.ID, "metric").text == "accuracy against server steps"
    assert len(browser.find_elements(By.CSS_SELECTOR, "#bars rect")) == len(state(watched)["staleness"])
    watched.evaluated({"step": 10_000, "accuracy": 1.0})
    wait.until(lambda b: "10,000" in b.find_element(By.ID, "curve").text)
    errors = [
        entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE" and "favicon" not in str(entry)
    ]
    assert not errors
    watched.close()
    wait.until(lambda b: b.find_element(By.ID, "stopped").is_displayed())
