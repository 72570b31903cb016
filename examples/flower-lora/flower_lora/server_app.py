"""A ServerApp that steps at every answer instead of waiting for rounds, and saves adapters on the way."""

from __future__ import annotations

from flwr.app import Context
from flwr.common.config import unflatten_dict
from flwr.serverapp import Grid, ServerApp

from acefl import Every, Stop, rules
from acefl.flower import Wires, run_async
from acefl.hf import SaveAdapters, trained_arrays
from acefl.runs.live import LivePage
from acefl.runs.observers import Observer
from flower_lora.models import get_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = unflatten_dict(context.run_config)
    train, strategy, model = config["train"], config["strategy"], get_model(config["model"])
    adapters = SaveAdapters(model, train["save-path"], train["save-every-version"]) if train["save-path"] else None
    observers: list[Observer] = [adapters] if adapters else []
    if config["live"]:
        observers.append(LivePage(config["live"]))
    result = run_async(
        grid,
        rules.parse(strategy["method"]),
        trained_arrays(model),
        lr=strategy["lr"] or None,
        stop=Stop(arrivals=config["num-arrivals"]),
        nodes=strategy["nodes"],
        wires=Wires(uplink=strategy["uplink"]),
        surveys=strategy["surveys"],
        out=config["out"] or None,
        checkpoint=Every(arrivals=config["checkpoint"]) if config["checkpoint"] else None,
        observers=observers,
        task={"name": "flower-lora", "model": config["model"]["name"]},
    )
    if adapters:
        adapters.save(result.arrays)
    print(result)
