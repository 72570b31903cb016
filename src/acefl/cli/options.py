"""The options that commands share, each declared once, and the settings they stand for.

An option that is not given is None, and its value is decided where it is decided for Python users too: in
`acefl.studies`, `acefl.fleets.scenario` and `acefl.tasks`. The words and defaults that the help shows are copies, since
the originals live beside torch; `tests/cli/test_cli.py` holds them to the originals.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acefl.core.errors import InvalidInput, require
from acefl.core.own import is_own as is_own
from acefl.core.settings import parse_call

if TYPE_CHECKING:
    from acefl.core.rule import Method
    from acefl.core.stop import Stop
    from acefl.fleets.scenario import Scenario

TASK, SCENARIO, FLEET, BUDGET = "Task", "Scenario", "Fleet", "Budget"  # panels of the help
RATE, OUTPUT = "Learning rate", "Output"

METHODS = (
    *("ACE", "ACED", "CA2FL", "FedBuff", "ASGD", "DelayAdaptiveASGD", "RobustACE"),
    *("RingmasterASGD", "RingleaderASGD", "MaleniaSGD", "MIFA", "FedStaleWeight"),
    *("FedAsync", "FedFa", "AREA", "FADAS", "FedAvg", "FedAdam"),
    *("Calibrated", "RescaledASGD", "DelayedNesterov", "Clipped"),
)
OPTIMIZERS = ("SGD", "Momentum", "Nesterov", "Adam", "Yogi")
SCHEDULES = ("Constant", "Sqrt", "WarmUp", "Cosine")
NATURAL = ("chem97", "cifar100", "flights", "heart", "hsb82", "insteval", "movielens", "news", "stops")
TASKS = ("digits", "quadratic", "cifar10", "cifar100", "news20", *(f"natural.{name}" for name in NATURAL))
PARTITIONS = ("dirichlet", "shards", "pathological", "iid")
CLOCKS = ("event", "tick", "sampled")
LAWS = ("constant", "exponential", "lognormal", "uniform", "pareto", "two-speed")
SPEEDS = ("last", "random", "first")
DEVICES = ("edge-flowertune", "phones")
MOST_SEEDS = 10_000  # more is a slip of the keyboard, and as a list would fill the memory


def option(
    panel: str | None,
    metavar: str,
    text: str,
    default: object = None,
    words: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
    **more: Any,
) -> Any:
    """An option with a value; `default` is what the help says it is where None stands for it."""
    choice = f" ({', '.join(words)})" if words else ""
    shown = f" [dim]\\[{default}][/dim]" if default is not None else ""
    more |= one_of(words) if words else {}
    return typer.Option(*names, help=f"{text}{choice}{shown}", rich_help_panel=panel, metavar=metavar, **more)


def one_of(words: tuple[str, ...]) -> dict[str, Any]:
    """Arguments for `typer.Option`: only these words, in any case, and shells complete them.

    Callbacks are in every typer; its choices are enums, literals or click's types, each only in some.
    """

    def check(value: str | None) -> str | None:
        found = {word.lower(): word for word in words}.get(value.lower()) if value is not None else None
        if value is not None and found is None:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(map(repr, words))}.")
        return found

    return {"callback": check, "autocompletion": lambda: list(words)}


_TASK_NAME = option(
    TASK,
    "NAME",
    f"One of {', '.join(TASKS)}, or your own as mypkg.mymodule:make_task; settings without an option of their own "
    "as in \"cifar10(folder='data', device='cuda')\"",
    autocompletion=lambda: list(TASKS),
)


@dataclasses.dataclass(frozen=True)
class TaskOptions:
    """What is trained, on whose data."""

    task: Annotated[str, _TASK_NAME] = "digits"
    clients: Annotated[int | None, option(TASK, "N", "How many clients", 100)] = None
    alpha: Annotated[float | None, option(TASK, "X", "Dirichlet parameter of the split, small is uneven", 0.1)] = None
    model: Annotated[str | None, option(TASK, "NAME", "digits: softmax, mlp; cifar: resnet18, cnn", "softmax")] = None
    partition: Annotated[str | None, option(TASK, "NAME", "The split", "dirichlet", PARTITIONS)] = None
    classes_per_client: Annotated[
        int | None, option(TASK, "N", "Labels per client, for shards and pathological", 2)
    ] = None
    batch: Annotated[int | None, option(TASK, "N", "Samples per gradient", 20)] = None
    local: Annotated[
        str | None, option(TASK, "WORK", "A client's work per upload, as in 'sgd(lr=0.1, epochs=2)'", "one gradient")
    ] = None
    dim: Annotated[int | None, option(TASK, "N", "quadratic: number of parameters", 50)] = None
    heterogeneity: Annotated[float | None, option(TASK, "X", "quadratic: how far optima lie apart", 1.0)] = None
    noise: Annotated[float | None, option(TASK, "X", "quadratic: noise of the gradients", 0.5)] = None

    def build(self) -> dict[str, Any]:
        """All settings of the task, for `acefl.studies`; a setting that the task does not have is refused."""
        from acefl import tasks
        from acefl.studies.spec import DEFAULT_TASK
        from acefl.tasks.sources import parse_task

        options = {key: value for key, value in _given(self).items() if key != "task"}
        if is_own(self.task):
            return {**options, **parse_task(self.task)}
        name, called = parse_call(self.task) or (self.task, {})
        require(name in tasks.TASKS, f"unknown task {name!r}; allowed: {', '.join(tasks.TASKS)}")
        parameters = inspect.signature(tasks.TASKS[name]).parameters
        default = DEFAULT_TASK if DEFAULT_TASK["name"] == name else {}
        given = options | called
        for key, value in given.items():
            allowed = ", ".join(key for key in parameters if key != "seed")
            require(key in parameters and key != "seed", f"task {name} has no setting {key!r}; allowed: {allowed}")
            require(not isinstance(value, list | dict | set), f"{key} is {value}; allowed: a plain value")
        settings = {key: parameter.default for key, parameter in parameters.items() if key != "seed"}
        settings = {"name": name, **settings, **default, **given}
        for key, value in settings.items():
            require(value is not inspect.Parameter.empty, f'task {name} needs {key}, as in "{name}({key}=...)"')
        return {key: value for key, value in settings.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class ScenarioOptions:
    """The fields of `acefl.Scenario`: how fast clients are, how time passes, and who is there."""

    clock: Annotated[str | None, option(SCENARIO, "NAME", "When the server acts", "event", CLOCKS)] = None
    delay: Annotated[float | None, option(SCENARIO, "X", "Mean task time of the fastest, the paper's β", 1.0)] = None
    law: Annotated[str | None, option(SCENARIO, "NAME", "How single tasks vary", "exponential", LAWS)] = None
    shape: Annotated[
        float | None,
        option(SCENARIO, "X", "lognormal: sigma, pareto: tail index, two-speed: ratio", "1.0, 1.5, 10.0"),
    ] = None
    spread: Annotated[float | None, option(SCENARIO, "X", "Mean task time, slowest over fastest", 30.0)] = None
    slow: Annotated[str | None, option(SCENARIO, "NAME", "Who is slow; last: speed goes with data", "last", SPEEDS)] = (
        None
    )
    fixed: Annotated[float | None, option(SCENARIO, "X", "Time added to every task of everybody", 0.0)] = None
    trace: Annotated[
        str | None,
        option(SCENARIO, "FILE", "CSV of client,duration, by name or number, in place of law and speeds"),
    ] = None
    devices: Annotated[
        str | None, option(SCENARIO, "NAME", "Speeds of real devices in place of spread", words=DEVICES)
    ] = None
    concurrency: Annotated[int | None, option(SCENARIO, "N", "Clients at work at once", "all")] = None
    dropout: Annotated[float | None, option(SCENARIO, "X", "Fraction of clients that leave ...", 0.0)] = None
    dropout_at: Annotated[float | None, option(SCENARIO, "X", "... at this fraction of the budget ...", 0.5)] = None
    rejoin_at: Annotated[float | None, option(SCENARIO, "X", "... and come back at this one", "never")] = None

    def build(self) -> Scenario:
        """The default comparison's scenario, with what was given in place of it."""
        from acefl.studies.spec import DEFAULT_SCENARIO

        measured = self.trace is not None or self.devices is not None
        base = dataclasses.replace(DEFAULT_SCENARIO, delay=1.0, spread=1.0) if measured else DEFAULT_SCENARIO
        return dataclasses.replace(base, **_given(self))


@dataclasses.dataclass(frozen=True)
class StopOptions:
    """The fields of `acefl.Stop`: when a run ends, whichever limit comes first."""

    arrivals: Annotated[
        int | None, option(BUDGET, "N", "End after so many accepted uploads", "10000, if no limit is given")
    ] = None
    steps: Annotated[int | None, option(BUDGET, "N", "End after so many server steps")] = None
    time: Annotated[float | None, option(BUDGET, "X", "End after so much virtual time")] = None
    target: Annotated[
        str | None,
        option(BUDGET, "METRIC=X", "End at the first evaluation that reaches it, as in accuracy=0.9, and say when"),
    ] = None

    def build(self) -> Stop:
        """The limits that were given, or the default comparison's, and the target."""
        from acefl.core.stop import Stop
        from acefl.studies.spec import DEFAULT_STOP

        given = _given(self)
        return Stop(**given) if set(given) - {"target"} else dataclasses.replace(DEFAULT_STOP, **given)


def check_rate(lr: float | None) -> float | None:
    """Before anything is loaded or run, since every method needs it."""
    require(lr is None or 0 < lr < float("inf"), f"lr is {lr}; allowed: a finite number above 0")
    return lr


def check_centre(lr_centre: float) -> float:
    require(0 < lr_centre < float("inf"), f"lr-centre is {lr_centre}; allowed: a finite number above 0")
    return lr_centre


def check_seed(seed: int) -> int:
    """What both torch and scikit-learn take for a seed."""
    require(0 <= seed < 2**32, f"seed is {seed}; allowed: from 0 to {2**32 - 1}")
    return seed


def method_option(text: str, default: object = None) -> Any:
    """`--method`, which is called `--rule` too."""
    names = ("--method", "--rule")
    return option(None, "NAME", text, default, names=names, autocompletion=lambda: list(METHODS))


A_METHOD = f"One of {', '.join(METHODS)}, or your own as mypkg.mymodule:MyRule, with settings as in"
Methods = Annotated[list[str] | None, method_option(f"{A_METHOD} 'ACED(tau=300)'; again for each", "the paper's six")]
OneMethod = Annotated[str, method_option(f"{A_METHOD} 'ACED(tau=300)'")]
Seeds = Annotated[str, option(BUDGET, "N", "How many seeds (3 is 0, 1 and 2), or which, as in 4,7")]
Seed = Annotated[int, option(BUDGET, "N", "Of data split, schedule and minibatches", callback=check_seed)]
Evaluations = Annotated[int, option(BUDGET, "N", "Points per curve", min=1)]
RateCentre = Annotated[float, option(RATE, "X", "Middle of the first five rates tried", callback=check_centre)]
Rates = Annotated[
    list[str] | None,
    option(
        RATE,
        "X",
        "One rate for every method, or NAME=X for one of them, again for each",
        "tune each one's",
        names=("--lr",),
    ),
]
By = Annotated[
    str | None,
    option(
        RATE,
        "METRIC",
        "What to go by, such as heldout_client_loss or f1, whichever way it is better",
        "the task's objective",
    ),
]
ServerOptimizer = Annotated[
    str | None,
    option(RATE, "NAME", f"How the server steps: {', '.join(OPTIMIZERS)}, settings as in 'Adam(beta2=0.9)'", "SGD"),
]
RateSchedule = Annotated[
    str | None,
    option(
        RATE,
        "NAME",
        f"How the rate changes: {', '.join(SCHEDULES)}, settings as in 'Cosine(warmup=0.1)'",
        "Constant",
    ),
]
LoggerName = Annotated[
    str | None,
    option(OUTPUT, "NAME", "Live curves: tensorboard, wandb, mlflow, as in \"tensorboard(directory='logs')\""),
]
Workers = Annotated[int | None, option(OUTPUT, "N", "Processes at work at once", "one per core, at most 8")]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON on stdout, and nothing else", rich_help_panel=OUTPUT)
]


def parse_methods(names: list[str] | None) -> list[Method]:
    """The methods a person named, or the paper's."""
    from acefl.rules import parse
    from acefl.studies.spec import PAPER_METHODS

    return [parse(name) for name in names] if names else list(PAPER_METHODS)


def parse_rates(given: list[str] | None) -> float | dict[str, float] | None:
    """`0.1` for all methods; `ACE=0.1` and `ACED(tau=300)=0.05` for these."""
    if not given:
        return None
    rates: dict[str, float] = {}
    for text in given:
        name, _, number = text.rpartition("=")
        require(not name or name.strip() not in rates, f"lr of {name.strip()} is given twice; allowed: once")
        try:
            rates[name.strip()] = float(number)
        except ValueError:
            raise InvalidInput(f"lr is {text!r}; allowed: a number, or NAME=X such as ACE=0.1") from None
        check_rate(rates[name.strip()])
    require("" not in rates or len(given) == 1, f"lr is {', '.join(given)}; allowed: one for all, or NAME=X for each")
    return rates.get("", rates)


def parse_step(optimizer: str | None, schedule: str | None) -> dict[str, Any]:
    """The optimizer and the schedule a person named, as arguments of `simulate` and `compare`."""
    from acefl.core import optimizers, schedules

    return {
        "optimizer": optimizers.parse(optimizer) if optimizer is not None else None,
        "schedule": schedules.parse(schedule) if schedule is not None else None,
    }


def parse_seeds(text: str) -> list[int]:
    """`3` is the first three seeds; `4,7` are these two; `4,` is this one."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers or (len(numbers) == 1 and "," not in text and numbers[0] < 1):
        raise InvalidInput(f"seeds is {text!r}; allowed: how many, such as 3, or which, such as 4,7")
    if "," in text:
        return [check_seed(number) for number in numbers]
    if numbers[0] > MOST_SEEDS:
        raise InvalidInput(f"seeds is {text!r}; allowed: at most {MOST_SEEDS:,} of them")
    return list(range(numbers[0]))


def written(context: typer.Context, names: Iterable[str] | None = None, *, beside: Collection[str] = ()) -> list[str]:
    """The options that the command line gives, among these names (None: all) and beside those, as they are written."""
    # The source is an enum of click's or, since typer 0.26, of typer's own copy: only its names are the same.
    sources = {name: context.get_parameter_source(name) for name in names or context.params if name not in beside}
    return ["--" + name.replace("_", "-") for name, source in sources.items() if source and source.name != "DEFAULT"]


def _given(options: Any) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(options).items() if value is not None}
