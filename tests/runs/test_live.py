"""The live page: what it says is so, only this machine can read it, nobody can write to it, and a browser draws it."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from acefl import ACED, Every, InvalidInput, Scenario, Stop, resume, simulate, tasks
from acefl.core.server import Server
from acefl.core.types import Arrival, Step
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


def test_after_a_resume_it_counts_on(page: LivePage, tmp_path: Path) -> None:
    """Nobody who counts in the next step is said not to have answered yet, and the curve is whole."""

    def kill(spent: float, *_: object) -> None:
        if spent > 0.5:
            raise KeyboardInterrupt

    task = tasks.quadratic(clients=6, dim=3, seed=0)
    with pytest.raises(KeyboardInterrupt):
        simulate(
            task, ACED(tau=200), lr=0.1, scenario=Scenario(spread=60.0), stop=Stop(arrivals=300), evaluations=10,
            out=tmp_path / "run", checkpoint=Every(20), observers=[page], progress=kill,
        )  # fmt: skip
    again = LivePage(0)
    run = resume(tmp_path / "run", observers=[again])
    found = state(again)
    again.close()
    assert [client["arrivals"] for client in found["clients"]] == run.participation
    assert [row["arrival"] for row in found["evaluations"]] == list(run.history["arrival"])
    again = LivePage(0)
    again.load_state_dict({})  # of a checkpoint that an earlier version wrote
    again.close()


def test_it_says_who_is_at_work_on_how_old_a_model_and_why_somebody_does_not_count(page: LivePage) -> None:
    rule = ACED(tau=3, warmup="seen").build(3, torch.zeros(1))
    server = Server(torch.zeros(1), rule, 0.1, 3, on_dispatch=page.dispatched, on_arrival=page.arrived)
    for task in range(6):  # client 0 answers every time, client 1 once, client 2 never
        server.dispatched([0] if task else [0, 1, 2])
        arrivals = [Arrival(0, torch.ones(1), server.version, server.version, task)]
        arrivals += [Arrival(1, torch.ones(1), 0, 0, 0)] if not task else []
        page.stepped(Step(0, server.version, 0.0, server.handle(arrivals)), server)
    server.dispatched([0, 1])
    server.handle([Arrival(0, torch.ones(1), server.version, server.version, 6)])
    page.stepped(Step(0, server.version, 0.0, True), server)
    page.lost(2)
    shown = {client["client"]: client for client in state(page)["clients"]}
    assert [shown[client]["why_not"] for client in (0, 2)] == ["", "has not answered yet"]
    assert [shown[client]["active"] for client in (0, 2)] == [True, False]
    assert shown[0]["at_work"] is None
    assert shown[0]["task_seconds"] >= 0
    assert shown[1]["at_work"] >= 0
    assert shown[1]["model_age"] == 1
    assert (shown[2]["at_work"], shown[2]["lost"]) == (None, 1)


def parsed(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Prometheus' text format by its grammar: every sample under its TYPE, no line that is none of these."""
    families: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    label = r'(\w+)="((?:[^"\\\n]|\\["\\n])*)"'
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            assert re.fullmatch(r"# HELP [a-z_]+ .+", line)
        elif line.startswith("# TYPE "):
            declared = re.fullmatch(r"# TYPE ([a-z_]+) (counter|gauge)", line)
            assert declared, line
            assert declared[1] not in families
            assert (declared[2] == "counter") == declared[1].endswith("_total")
            families[declared[1]] = {}
        else:
            found = re.fullmatch(rf"([a-z_]+)(?:\{{((?:{label},?)*)\}})? (\S+)", line)
            assert found, line
            labels = tuple(re.findall(label, found[2] or ""))
            assert labels not in families[found[1]], "twice"
            families[found[1]][labels] = float(found[found.re.groups])
    return families


def test_prometheus_reads_the_same_numbers(watched: LivePage) -> None:
    found, shown = parsed(ask(watched, "/metrics").text), state(watched)  # type: ignore[attr-defined]
    assert found["acefl_arrivals_total"] == {(): 400}
    assert found["acefl_steps_total"] == {(): shown["steps"]}
    assert found["acefl_refused_total"] == {(("reason", "non-finite"),): 1}
    assert sum(found["acefl_client_arrivals_total"].values()) == 400
    assert sum(found["acefl_client_counts"].values()) == 10
    assert found["acefl_score"][(("metric", "accuracy"),)] == shown["evaluations"][-1]["accuracy"]


def test_names_with_quotes_and_scores_that_are_no_numbers_do_not_break_the_metrics(page: LivePage) -> None:
    page.arrived(Arrival(0, torch.zeros(1), 0, 0, 0), 'a "quoted" \\ reason\n')
    page.evaluated({"step": 1, "loss": float("nan")})
    found = parsed(ask(page, "/metrics").text)  # type: ignore[attr-defined]
    assert len(found["acefl_refused_total"]) == 1
    assert "acefl_score" not in found


def test_an_address_that_others_can_reach_needs_a_token() -> None:
    with pytest.raises(InvalidInput, match="which others can reach: allowed with token="):
        LivePage(0, "0.0.0.0")
    with pytest.raises(InvalidInput, match="token is too short"):
        LivePage(0, token="secret")
    token = "0123456789abcdef"
    page = LivePage(0, token=token)
    try:
        for path in ("/", "/state.json", "/metrics"):
            assert ask(page, path).status == 403
            assert ask(page, f"{path}?token={token[:-1]}").status == 403
            assert ask(page, f"{path}?token={token}", host="some.name").status == 200
        connection = http.client.HTTPConnection("127.0.0.1", page._http.server_port, timeout=30)
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
        assert connection.getresponse().status == 200
        connection.close()
    finally:
        page.close()


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
    assert browser.find_element(By.ID, "metric").text == "accuracy against time"
    assert "1 non-finite" in browser.find_element(By.ID, "refusals").text
    assert len(browser.find_elements(By.CSS_SELECTOR, "#bars rect")) == len(state(watched)["staleness"])
    watched.evaluated({"step": 10_000, "accuracy": 1.0})
    wait.until(lambda b: "10,000" in b.find_element(By.ID, "curve").text)
    errors = [
        entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE" and "favicon" not in str(entry)
    ]
    assert not errors
    watched.close()
    wait.until(lambda b: b.find_element(By.ID, "stopped").is_displayed())
