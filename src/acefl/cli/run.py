"""`acefl run`: one method, one seed."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from acefl.cli import options
from acefl.cli.flatten import with_options
from acefl.core.errors import Interrupted, InvalidInput, require

if TYPE_CHECKING:
    from acefl.runs.record import Run


@with_options
def run(
    context: typer.Context,
    task: options.TaskOptions,
    scenario: options.ScenarioOptions,
    stop: options.StopOptions,
    lr: Annotated[
        float | None,
        options.option(
            options.RATE, "X", "The server's learning rate; acefl tune finds one", callback=options.check_rate
        ),
    ] = None,
    optimizer: options.ServerOptimizer = None,
    schedule: options.RateSchedule = None,
    method: options.OneMethod = "ACE",
    seed: options.Seed = 0,
    evaluations: options.Evaluations = 50,
    out: Annotated[
        Path | None,
        options.option(options.OUTPUT, "DIR", "Where to write the run and its report; replaces an earlier record"),
    ] = None,
    checkpoint_every: Annotated[
        int | None,
        options.option(
            options.OUTPUT,
            "N",
            "Save the state in --out after every N uploads, so that a killed run can be resumed",
            min=1,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        options.option(
            options.OUTPUT, "DIR", "Go on with the interrupted run in DIR, whose settings are recorded there"
        ),
    ] = None,
    fleet: Annotated[
        str,
        options.option(
            options.FLEET,
            "NAME",
            "Who does the work: clients in virtual time, or Ray actors in real time",
            words=("simulated", "ray"),
        ),
    ] = "simulated",
    actors: Annotated[int, options.option(options.FLEET, "N", "ray: how many actors", min=1)] = 4,
    together: Annotated[
        int,
        options.option(
            options.FLEET,
            "N",
            "ray: how many of an actor's clients work on one model in one call; more pays for small models",
            min=1,
        ),
    ] = 1,
    gpus: Annotated[float, options.option(options.FLEET, "X", "ray: GPUs per actor", min=0.0)] = 0.0,
    ray: Annotated[
        str, options.option(options.FLEET, "ADDRESS", "ray: the cluster, or local for this machine")
    ] = "local",
    logger: options.LoggerName = None,
    json: options.Json = False,
) -> None:
    """Run one method on one seed, with a learning rate of your choice.

    Prints how it ended; with --out also writes the run and its report.

    Examples:
      acefl run --lr 0.25
      acefl run --method 'FedBuff(buffer=5)' --lr 0.5 --seed 7 --out runs/fedbuff
      acefl run --method ASGD --lr 0.1 --optimizer Momentum --schedule Cosine
      acefl run --task quadratic --dim 20 --lr 0.1 --time 500 --json
      acefl run --lr 0.25 --out runs/long --checkpoint-every 1000
      acefl run --resume runs/long
      acefl run --lr 0.25 --logger tensorboard
      acefl run --method mypkg.mymodule:MyRule --lr 0.1
      acefl run --task 'mymodule:make_task(batch=8)' --lr 0.1 --out runs/mine
      acefl run --fleet ray --actors 4 --lr 0.25 --arrivals 20000
    """
    from acefl import Every, report, simulate
    from acefl import resume as resume_run
    from acefl.cli import show
    from acefl.cli.prepare import compute_on_one_thread, prepare
    from acefl.core.files import atomic_directory, check_replaceable
    from acefl.runs.loggers import open_logger
    from acefl.runs.on_ray import run_on_ray
    from acefl.runs.record import run_name

    folder: Path | None
    expected: dict[str, list[str]] = {}
    with contextlib.ExitStack() as whole:
        name = Path(resume or out or run_name(method, seed)).name
        logs = [whole.enter_context(open_logger(logger, name))] if logger is not None else []
        if resume is not None:
            named = {"method": options.is_own(method), "task": options.is_own(task.task)}
            _refuse_settings_beside_resume(context, [*(name for name, own in named.items() if own), "logger"])
            own = options.parse_methods([method])[0] if named["method"] else None
            own_task = options.TaskOptions(task.task).build() if named["task"] else None
            out = folder = resume
            whole.enter_context(_telling_how_to_resume(out, task.task, method))
            compute_on_one_thread()
            with show.fraction_bar("resumed", quiet=json) as progress:
                finished = resume_run(resume, task=own_task, rule=own, observers=logs, progress=progress)
        elif lr is None:
            raise InvalidInput("Missing option '--lr' (see acefl run --help)")
        else:
            _refuse_settings_of_another_fleet(context, fleet)
            [rule] = options.parse_methods([method])
            on_any_fleet: dict[str, Any] = {
                "lr": lr,
                "seed": seed,
                "evaluations": evaluations,
                "observers": logs,
                "checkpoint": Every(arrivals=checkpoint_every) if checkpoint_every else None,
                **options.parse_step(optimizer, schedule),
            }
            folder = out
            if fleet == "ray":
                if out is not None and checkpoint_every is None:
                    check_replaceable(out)
                settings, budget = task.build(), stop.build()
                with show.fraction_bar(f"{method} on {actors} actors", quiet=json) as progress:
                    finished = run_on_ray(
                        settings,
                        rule,
                        stop=budget,
                        actors=actors,
                        together=together,
                        gpus=gpus,
                        address=ray,
                        out=out,
                        progress=progress,
                        **on_any_fleet,
                    )
            else:
                require(out is not None or checkpoint_every is None, "--checkpoint-every needs --out DIR to write to")
                if out is not None:
                    check_replaceable(out)
                ready = prepare(task, scenario, stop, [rule], seed)
                expected = {"expectation": ready.expectation, "warnings": ready.warnings}
                if out is not None and checkpoint_every is None:
                    folder = whole.enter_context(atomic_directory(out))
                elif out is not None:
                    whole.enter_context(_telling_how_to_resume(out, task.task, method))
                if not json:
                    show.print_expectations(ready)
                with show.fraction_bar(method, quiet=json) as progress:
                    finished = simulate(
                        ready.task,
                        rule,
                        scenario=ready.scenario,
                        stop=ready.stop,
                        out=folder,
                        progress=progress,
                        **on_any_fleet,
                    )
        if folder is not None:
            report.build(folder)
    if json:
        result = {**finished.config, **finished.summary, "participation": finished.participation, **expected}
        if out is not None:
            result |= {"directory": out, "report": out / "report.html"}
        show.print_json(result)
    else:
        _print(finished)
        if out is not None:
            show.path("report", out / "report.html")


def _refuse_settings_of_another_fleet(context: typer.Context, fleet: str) -> None:
    """A setting that would be ignored is a mistake: real time passes by itself, virtual time needs no actors."""
    names, why = ["actors", "together", "gpus", "ray"], "describes Ray's actors; allowed with --fleet ray only"
    if fleet == "ray":
        names = [field.name for field in dataclasses.fields(options.ScenarioOptions)]
        why = "describes simulated time; allowed with --fleet ray: task, budget and output"
    for option in options.written(context, names):
        raise InvalidInput(f"{option} {why}")


def _refuse_settings_beside_resume(context: typer.Context, but: list[str]) -> None:
    """A setting that would be ignored is a mistake. What is one's own has to be named: records import nothing."""
    for option in options.written(context, beside=("resume", "json", *but)):
        raise InvalidInput(f"{option} is given beside --resume, which takes all settings from the record")


@contextlib.contextmanager
def _telling_how_to_resume(out: Path, task: str, method: str) -> Iterator[None]:
    """What is one's own has to be named again."""
    try:
        yield
    except KeyboardInterrupt:
        own = {"--task": task, "--method": method}
        named = [word for option, text in own.items() if options.is_own(text) for word in (option, text)]
        again = shlex.join(["acefl", "run", "--resume", str(out), *named])
        raise Interrupted(f"interrupted; go on with: {again}") from None


def _print(run: Run) -> None:
    from acefl.cli import show

    show.console().print(_final(run))
    if run.diverged:
        show.warn("the model diverged and the run ended early: try a smaller --lr")
    elif "target" in run.summary:
        show.console().print(_about_target(run), markup=False)
    elif "ended" in run.config:
        show.warn(f"the run ended early: {run.config['ended']}")


def _about_target(run: Run) -> str:
    """Whether and when it was reached."""
    from acefl.core.metrics import Target

    aim = Target.of(run.config["stop"]["target"])
    reached, words = run.time_to(aim.metric, aim.value), aim.words(run.better)
    if reached is None:
        return f"{words} was not reached"
    return f"{words} was reached at time {reached.time:,.6g}: {reached.arrivals:,} arrivals, {reached.steps:,} steps"


def _final(run: Run) -> Table:
    """The last evaluation and what it took, a number per line."""
    from acefl.cli import show
    from acefl.report import metrics

    rows = {m.heading: m.write(run.final[m.key]) for m in metrics.known(run.final, run.better)}
    clock = "seconds" if run.config["scenario"]["clock"] == "wall" else "virtual time"
    rows |= {"server steps": f"{run.steps:,}", "uploads": f"{len(run.events):,}", clock: f"{run.time:,.0f}"}
    rows |= {f"refused: {reason}": f"{count:,}" for reason, count in run.refused.items()}
    rows |= {"took": f"{run.wall_seconds:.1f} s"}
    return show.pairs(rows, justify="right")
