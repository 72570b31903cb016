"""APPFL's virtual-time simulator (`appfl.vsim.AsyncSimDriver`), FedAsync and FedBuff, all clients in flight.

Methods: `FedAsync` and `FedBuff` are APPFL at its best: its option `optimize_memory` is off everywhere and
`gc.collect`, which it calls some twelve times per arrival, does nothing. `FedAsync as shipped` leaves both as they are.
In both: client agents and data in memory (TensorDataset), one local step, no validation by clients, the server's test
set in one batch instead of one by one, all logging off, a fixed time per step. APPFL trains when it dispatches, so what
is in flight at the end counts as arrived. `piq`, needed for image quality reports alone, is an empty module here: it
would bring torchvision.
"""

from __future__ import annotations

import gc
import logging
import sys
import types
from pathlib import Path
from typing import Any

import torch
from work import BATCH, BUFFER, EVERY, LR, Answer, Digits, Mlp, Stopwatch, drive, evaluate

sys.modules["piq"] = types.ModuleType("piq")

from appfl.agent import SimClientAgent, SimServerAgent  # noqa: E402
from appfl.vsim import AsyncSimDriver, ClientProfile  # noqa: E402

IN_FLIGHT_AS_SHIPPED = 2  # at a few seconds per task, a hundred would train for minutes before the first one arrives


def configuration(clients: int, arrivals: int, buffered: bool, lean: bool) -> dict[str, Any]:
    aggregator = {"num_clients": 1, "alpha": 0.9, "staleness_fn": "constant", "optimize_memory": not lean}
    return {
        "model_configs": {"model_path": str(Path(__file__).with_name("work.py")), "model_name": "Mlp"},
        "algorithm_configs": {
            "num_global_epochs": arrivals,
            "aggregator": "FedBuffAggregator" if buffered else "FedAsyncAggregator",
            "aggregator_kwargs": {**aggregator, "K": BUFFER} if buffered else aggregator,
            "scheduler": "AsyncScheduler",
            "scheduler_kwargs": {"num_clients": clients, "optimize_memory": not lean},
            "trainer": "VanillaTrainer",
            "trainer_kwargs": {
                "mode": "step",
                "num_local_steps": 1,
                "optim": "SGD",
                "optim_args": {"lr": LR},
                "loss_fn": "CrossEntropyLoss",
                "metric_path": str(Path(__file__).with_name("work.py")),
                "metric_name": "accuracy",
                "train_batch_size": BATCH,
                "do_validation": False,
                "optimize_memory": not lean,
            },
        },
        "server_configs": {"optimize_memory": not lean},
        "log_configs": {"logging_output_dirname": "", "logging_output_filename": ""},
    }


def run(digits: Digits, method: str, arrivals: int) -> Answer:
    lean = not method.endswith("as shipped")
    if lean:
        gc.collect = lambda *_: 0  # type: ignore[assignment]
    logging.disable(logging.CRITICAL)
    config = configuration(len(digits.clients), arrivals, method.startswith("FedBuff"), lean)
    agents = []
    for client, data in enumerate(digits.clients):
        agent = SimClientAgent(config, client_id=str(client), client_dataset=torch.utils.data.TensorDataset(*data))
        agent.optimize_memory = not lean
        agents.append(agent)
    server = SimServerAgent(config, num_clients=len(agents))
    test = torch.utils.data.TensorDataset(*digits.test)
    server.load_server_val_dataset(test)
    server._val_dataloader = torch.utils.data.DataLoader(test, batch_size=len(test))
    driver = AsyncSimDriver(
        server,
        agents,
        {str(client): ClientProfile(compute_factor=digits.slowness(client)) for client in range(len(agents))},
        max_in_flight=len(agents) if lean else IN_FLIGHT_AS_SHIPPED,
        logger=logging.getLogger("vsim"),
        base_step_time=1.0,
        eval_every=EVERY,
    )
    watch = Stopwatch()
    driver.run()
    seconds = watch.stop()
    model = Mlp()
    model.load_state_dict(server.get_parameters(serial_run=True))
    return len(driver.history) + len(driver._pending), seconds, evaluate(model, digits)


if __name__ == "__main__":
    drive(run, warm_up=0 if "FedAsync as shipped" in sys.argv else 200)
