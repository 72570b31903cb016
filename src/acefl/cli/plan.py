"""`acefl plan`: what the table of a federation will cost, before anybody trains."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from acefl.cli import options


def plan(
    params: Annotated[str, typer.Option(metavar="N", help="The model's parameters: 11.2M, 500K, 1.1B")],
    clients: Annotated[int, typer.Option(metavar="N", help="How many clients")],
    table: Annotated[str, typer.Option(metavar="NAME", help="Encoding: fp32, bf16, int8, int4")] = "int8",
    home: Annotated[str, typer.Option(metavar="PLACE", help="memory, or the file to keep the table in")] = "memory",
    json: options.Json = False,
) -> None:
    """Forecast what ACE's table costs on this machine.

    Sizes follow from the numbers; the time per arrival is taken here, by running
    the real kernels on a small table with rows of the same length.

    Examples:
      acefl plan --params 11.2M --clients 1000 --table int8
      acefl plan --params 1.2M --clients 10000 --home /data/table
    """
    from acefl.cli import show
    from acefl.studies import plan as forecasting

    found = forecasting.forecast(forecasting.parse_count(params), clients, table=table, home=home)
    if json:
        show.print_json({**dataclasses.asdict(found), "bytes_per_param": found.bytes_per_param})
        return
    places = {"memory": "memory", "device": "the memory of the model's device"}
    where = places.get(home, f"file {home} (resident memory stays at the server's)")
    show.console().print(
        show.pairs(
            {
                "table": f"{size(found.table_bytes)} in {where}, once every client has arrived",
                "a client's row": f"{size(found.row_bytes)}, {found.bytes_per_param:.3f} bytes per parameter",
                "server besides": f"{size(found.server_bytes)}: model, running sum, one update",
                "an upload": f"{size(found.upload_bytes)} as float32",
                "an arrival": f"{found.seconds * 1e3:.3g} ms and {size(found.traffic_bytes)} of memory traffic "
                f"({found.kernels} kernels), whatever the number of clients",
            }
        )
    )


def size(count: float) -> str:
    """Bytes as people write them."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.4g} TB"
