"""A ServerApp that steps at every answer instead of waiting for rounds."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from acefl import Every, Stop, rules
from acefl.flower import Wires, run_async
from acefl.runs.live import LivePage
from flower_digits import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    result = run_async(
        grid,
        rules.parse(str(config["method"])),
        ArrayRecord(task.new_model().state_dict()),
        lr=float(config["lr"]) or None,
        stop=Stop(arrivals=int(config["arrivals"])),
        nodes=int(config["nodes"]),
        wires=Wires(uplink=str(config["uplink"])),
        evaluate_fn=evaluate,
        surveys=int(config["surveys"]),
        out=str(config["out"]) or None,
        checkpoint=Every(arrivals=int(config["checkpoint"])) if config["checkpoint"] else None,
        observers=[LivePage(int(config["live"]))] if config["live"] else [],
        task={"name": "flower-digits", "model": "mlp"},
    )
    print(result)


def evaluate(version: int, arrays: ArrayRecord) -> MetricRecord:
    model = task.new_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord(task.test(model, task.load()))
