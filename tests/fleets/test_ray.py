"""Real actors: what they compute is what the simulator computes, and one that dies is noticed and replaced."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from acefl import ACE, ACED, ASGD, Every, InvalidInput, Server, Stop, load
from acefl.cli import main
from acefl.core.errors import AceflError, NothingInFlight
from acefl.core.gate import NormLimit
from acefl.core.loop import run
from acefl.core.rule import Method
from acefl.core.types import Arrival, Vector
from acefl.fleets.ray import RayFleet
from acefl.fleets.scripted import ScriptedFleet
from acefl.fleets.simulated import work_key
from acefl.probes import ErrorTerms, Participation, TrueGradient
from acefl.rules import FedAvg
from acefl.runs.loggers import TensorBoard
from acefl.runs.on_ray import run_on_ray
from acefl.runs.record import Run
from acefl.tasks.sources import build_task

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),  # Ray's own
]

SOURCE = {"name": "quadratic", "clients": 8, "dim": 30}
SEED = 5


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    import ray

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


def serve(fleet: RayFleet, rule: Method, stop: Stop) -> tuple[Server, list[list[tuple[int, int]]]]:
    """Run the one loop; the server, and who arrived in each turn on which version."""
    model = build_task(SOURCE, SEED).initial()
    turns: list[list[tuple[int, int]]] = [[]]

    def heard(arrival: Arrival, reason: str) -> None:
        assert not reason
        fleet.acknowledge(arrival, reason)
        turns[-1].append((arrival.client, arrival.trained_on))

    server = Server(model, rule.build(fleet.clients, model), 0.2, fleet.clients, on_arrival=heard)
    for _ in run(server, fleet, stop):
        turns.append([])
    return server, [turn for turn in turns if turn]


def replay(rule: Method, turns: list[list[tuple[int, int]]], last_sent: dict[int, int]) -> Vector:
    """The same arrivals from a script, computed here."""
    task = build_task(SOURCE, SEED)

    def work(client: int, visit: int, model: Vector) -> Vector:
        return task.updates(model.unsqueeze(0), [client], [work_key(SEED, client, visit)])[0]

    model = task.initial()
    server = Server(model, rule.build(task.clients, model), 0.2, task.clients)
    for _ in run(server, ScriptedFleet(turns, work, last_sent), Stop(arrivals=sum(map(len, turns)))):
        pass
    return server.model


@pytest.mark.parametrize("together", [1, 3])
def test_the_arrivals_of_actors_replayed_from_a_script_give_the_same_model(together: int) -> None:
    rule = ACED(tau=5)
    fleet = RayFleet(SOURCE, SEED, clients=8, actors=2, together=together)
    try:
        fleet.ready()
        server, turns = serve(fleet, rule, Stop(arrivals=100))
    finally:
        fleet.close()
    assert min(server.participation) >= 1, "some client never got its turn"
    alone = replay(rule, turns, server.last_sent)
    if together == 1:
        assert torch.equal(alone, server.model)
    else:  # a product of several matrices at once may round otherwise
        assert torch.allclose(alone, server.model, atol=1e-4)


def test_an_actor_that_is_killed_now_and_then_is_replaced_each_time_and_its_clients_go_on() -> None:
    """More often than `restarts`: what counts is how often in a row, without an answer in between."""
    fleet = RayFleet(SOURCE, SEED, clients=8, actors=2, restarts=1)
    try:
        assert len({*fleet.ready()}) == 2
        model = build_task(SOURCE, SEED).initial()
        server = Server(model, ACE(warmup="seen").build(8, model), 0.2, 8, on_arrival=fleet.acknowledge)
        kills = before = 0
        for _ in run(server, fleet, Stop(arrivals=1_000_000)):
            answered = server.participation[0]  # the first actor works for this client
            if fleet.deaths == kills and answered > before + 5:
                if kills == 3:
                    break
                os.kill(ray.get(fleet.actors[0].process.remote()), signal.SIGKILL)
                kills, before = kills + 1, answered
        assert kills == 3
    finally:
        fleet.close()


def test_the_clients_of_an_actor_that_stays_dead_move_to_the_others() -> None:
    fleet = RayFleet(SOURCE, SEED, clients=8, actors=2, restarts=0)
    try:
        victim, _ = fleet.ready()
        model = build_task(SOURCE, SEED).initial()
        server = Server(model, ACED(tau=20, warmup="seen").build(8, model), 0.2, 8, on_arrival=fleet.acknowledge)
        before: list[int] = []
        for _ in run(server, fleet, Stop(arrivals=1_000_000)):
            if not before and server.accepted >= 40:
                os.kill(victim, signal.SIGKILL)
                before = list(server.participation)
            if fleet.deaths and all(now > then + 2 for now, then in zip(server.participation, before, strict=True)):
                break
        assert fleet.deaths == 1
    finally:
        fleet.close()


def test_actors_that_cannot_start_end_the_run_with_the_reason() -> None:
    def broken(seed: int) -> Any:
        raise RuntimeError("the disk is on fire")

    fleet = RayFleet(broken, SEED, clients=4, actors=1, restarts=1)
    try:
        model = torch.zeros(3)
        server = Server(model, ACE().build(4, model), 0.1, 4)
        with pytest.raises(NothingInFlight, match="actor"):
            for _ in run(server, fleet, Stop(arrivals=10)):
                pass
        assert fleet.deaths == 2
    finally:
        fleet.close()


def test_a_mistake_in_a_users_task_is_shown_not_retried() -> None:
    def sloppy(seed: int) -> Any:
        task = build_task(SOURCE, seed)
        task.updates = lambda *_: 1 / 0  # type: ignore[method-assign]
        return task

    fleet = RayFleet(sloppy, SEED, clients=4, actors=1)
    try:
        model = torch.zeros(3)
        server = Server(model, ACE().build(4, model), 0.1, 4)
        with pytest.raises(AceflError, match="division by zero"):
            for _ in run(server, fleet, Stop(arrivals=10)):
                pass
    finally:
        fleet.close()


def test_a_run_on_ray_ends_at_its_target() -> None:
    stop = Stop(arrivals=1_000_000, target=("gap", 1.0))
    made = run_on_ray(SOURCE, ACE(), lr=0.3, stop=stop, seed=SEED, actors=2, evaluations=100_000)
    reached = made.time_to("gap", 1.0)
    assert reached is not None
    assert 0 < reached.arrivals <= made.arrivals < 100_000
    assert "gap ≤ 1 was reached" in made.config["ended"]


def test_a_run_on_ray_is_recorded_like_any_other(tmp_path: Path) -> None:
    from acefl import report

    made = run_on_ray(
        SOURCE, ACED(tau=20), lr=0.3, stop=Stop(arrivals=120), seed=SEED, actors=2, evaluations=5, out=tmp_path / "run"
    )
    again = load(tmp_path / "run")
    assert again.final == made.final
    assert again.final["gap"] < again.history["gap"][0]
    assert again.config["scenario"]["fleet"] == "ray"
    assert set(again.events.columns) >= {"sent", "uplink", "downlink"}
    assert (again.events["uplink"] == 4 * made.model.numel()).all()
    assert again.history["step"].is_monotonic_increasing
    assert "ACED" in report.build(tmp_path / "run").read_text("utf-8")


def test_probes_and_loggers_watch_a_run_on_ray(tmp_path: Path) -> None:
    """Every number they write is in the record, what they know of each client too, and the norm limit is recorded."""
    with TensorBoard(tmp_path / "log") as log:
        made = run_on_ray(
            SOURCE, ACED(tau=20), lr=0.3, stop=Stop(arrivals=120), seed=SEED, actors=2, evaluations=5,
            observers=[Participation(), ErrorTerms(every=20), TrueGradient(), log], norm_limit=NormLimit(factor=1e6),
        )  # fmt: skip
    assert made.config["norm_limit"]["factor"] == 1e6
    assert sum(row["influence"] for row in made.clients) == pytest.approx(1.0)
    assert made.final["noise"] >= 0
    assert made.final["grad_norm"] == pytest.approx(
        float(build_task(SOURCE, SEED).mean_gradient(made.model).norm())  # type: ignore[attr-defined]
    )
    assert any((tmp_path / "log").iterdir())


def test_what_actors_were_at_when_the_run_ended_may_have_been_sent() -> None:
    made = run_on_ray(SOURCE, ACED(tau=20), lr=0.3, stop=Stop(arrivals=60), seed=SEED, actors=2, evaluations=1)
    uploads, answers = [int(row["uploads"]) for row in made.clients], made.events["client"].value_counts()
    assert all(uploads[client] >= answers.get(client, 0) for client in range(8))
    assert 0 < sum(uploads) - len(made.events) <= 4, "two actors have at most two tasks each"


def test_a_run_on_ray_that_was_killed_counts_what_was_sent_and_its_probe_goes_on(tmp_path: Path) -> None:
    class Killed(BaseException):
        """As SIGKILL: nobody catches it."""

    def kill(spent: float, *_: object) -> None:
        if spent > 0.5:
            raise Killed

    def start(**more: Any) -> Run:
        return run_on_ray(
            SOURCE, ACED(tau=20), lr=0.3, stop=Stop(arrivals=120), seed=SEED, actors=2, evaluations=2,
            observers=[Participation()], out=tmp_path / "run", checkpoint=Every(arrivals=50), **more,
        )  # fmt: skip

    with pytest.raises(Killed):
        start(progress=kill)
    sent = len((tmp_path / "run" / "checkpoint" / "sent").read_text().split())
    assert sent > 60
    made = start()
    again = made.arrivals - 50  # at least so many after the resume, from a checkpoint of 50 arrivals or a few more
    assert sum(row["uploads"] for row in made.clients) >= sent + again - 20
    assert sum(row["influence"] for row in made.clients) == pytest.approx(1.0)


def test_a_round_that_was_interrupted_goes_on_with_everybody_it_lacks(tmp_path: Path) -> None:
    class Killed(BaseException):
        """As SIGKILL: nobody catches it."""

    def start(progress: Any = None) -> Run:
        return run_on_ray(
            SOURCE, FedAvg(), lr=0.3, stop=Stop(arrivals=32), seed=SEED, actors=1, evaluations=1,
            out=tmp_path / "run", checkpoint=Every(arrivals=1), progress=progress,
        )  # fmt: skip

    def kill(spent: float, *_: object) -> None:
        if 8 < spent * 32 < 16:
            raise Killed

    with pytest.raises(Killed):
        start(kill)
    made = start()
    assert made.steps == 4
    for _, one in made.events.groupby("version"):
        assert sorted(one["client"]) == list(range(8))


def test_a_run_on_ray_goes_on_with_its_own_seed_and_task_only(tmp_path: Path) -> None:
    class Killed(BaseException):
        """As SIGKILL: nobody catches it."""

    def kill(spent: float, *_: object) -> None:
        raise Killed

    def start(source: Any = SOURCE, seed: int = SEED, progress: Any = None) -> Run:
        return run_on_ray(
            source, ASGD(), lr=0.3, stop=Stop(arrivals=60), seed=seed, actors=1, evaluations=1,
            out=tmp_path / "run", checkpoint=Every(arrivals=20), progress=progress,
        )  # fmt: skip

    with pytest.raises(Killed):
        start(progress=kill)
    with pytest.raises(InvalidInput, match="seed is 6; that of the run in .*run was 5"):
        start(seed=SEED + 1)
    with pytest.raises(InvalidInput, match=r"the task is not that of the run in .*run: noise is 9\.0; the run's was 0"):
        start({**SOURCE, "noise": 9.0})
    assert start().arrivals >= 60


def test_the_command_runs_on_actors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    settings = "--task quadratic --clients 8 --dim 30 --arrivals 120 --actors 2 --together 2 --lr 0.3 --json"
    assert main(["run", "--fleet", "ray", *settings.split(), "--out", str(out)]) == 0
    said = json.loads(capsys.readouterr().out)
    made = load(out)
    assert said["final"] == made.final
    assert made.config["scenario"] == {"clock": "wall", "fleet": "ray", "actors": 2, "together": 2}
    assert "against seconds" in (out / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("--fleet ray --spread 3", "--spread describes simulated time"),
        ("--together 4", "--together describes Ray's actors; allowed with --fleet ray only"),
        ("--ray auto", "--ray describes Ray's actors"),
        ("--fleet ray --method ACE(variant='client-held')", "client-held ACE leaves gradients with the clients"),
    ],
)
def test_what_would_be_ignored_is_refused(given: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--lr", "0.1", "--task", "quadratic", "--arrivals", "10", *given.split()]) == 2
    assert line in capsys.readouterr().err


def test_gradients_held_by_clients_make_no_sense_on_ray() -> None:
    with pytest.raises(InvalidInput, match="client-held"):
        run_on_ray(SOURCE, ACE(variant="client-held"), lr=0.1, stop=Stop(arrivals=10))
