"""The conformance vectors are what the oracles say, cover every method, and acefl's servers pass them."""

from __future__ import annotations

import json
from typing import Any

from conformance.acefl_driver import acefl_driver
from conformance.check import VECTORS, check

from acefl.rules import METHODS
from conformance import make

WRITTEN: dict[str, Any] = json.loads(VECTORS.read_text(encoding="utf-8"))


def test_the_file_is_what_the_oracles_say() -> None:
    assert make.text(make.vectors()) == VECTORS.read_text(encoding="utf-8"), "python -m conformance.make"


def test_every_method_is_there_and_steps_on_every_script_on_some_more_than_twice() -> None:
    assert {vector["method"] for vector in WRITTEN["methods"]} == set(METHODS)
    for vector in WRITTEN["methods"]:
        steps = {name: sum(model is not None for model in models) for name, models in vector["models"].items()}
        assert min(steps.values()) >= 1, (vector["method"], steps)
        assert max(steps.values()) >= 3, (vector["method"], steps)


def test_no_two_methods_have_the_same_models() -> None:
    """Else a framework could pass as one with the other. FedBuff's and CA²FL's first steps may agree, all cannot."""
    seen = [json.dumps(vector["models"]) for vector in WRITTEN["methods"]]
    assert len(set(seen)) == len(seen)


def test_acefl_agrees() -> None:
    verdicts = check(acefl_driver)
    assert len(verdicts) == sum(len(vector["models"]) for vector in WRITTEN["methods"])
    assert [str(verdict) for verdict in verdicts if not verdict.agrees] == []


def test_a_server_that_is_wrong_is_told_after_which_event() -> None:
    def too_slow(method: str, settings: dict[str, Any], clients: int, start: list[float], lr: float) -> Any:
        return acefl_driver(method, settings, clients, start, lr * 1.001) if method == "ASGD" else None

    verdicts = check(too_slow)
    assert len(verdicts) == len(WRITTEN["scripts"])
    assert all(verdict.event == 0 for verdict in verdicts)
    assert "event 0: " in str(verdicts[0])


def test_a_server_that_forgets_nobody_is_found_out() -> None:
    def deaf(method: str, settings: dict[str, Any], clients: int, start: list[float], lr: float) -> Any:
        tried = acefl_driver(method, settings, clients, start, lr)
        tried.leave = lambda client: None  # type: ignore[method-assign]
        return tried

    found = {verdict.method for verdict in check(deaf) if verdict.script == "elastic" and not verdict.agrees}
    assert {"ACE", "CA2FL", "MIFA", "Calibrated", "RescaledASGD", "RingleaderASGD"} <= found
