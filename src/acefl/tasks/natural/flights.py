"""Flights out of New York: was a flight late at the airport it went to?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn import functional as F

from acefl.tasks.natural.tables import described, largest, periodic, seeded, split, standardised, table, task
from acefl.tasks.torch_task import TorchTask

if TYPE_CHECKING:
    import pandas as pd

_MOST = 1000  # flights of an airport that are kept: the busiest has 16,837


def flights(clients: int | None = None, *, batch: int = 20, seed: int = 0, sha256: str | None = None) -> TorchTask:
    """Flights of 2013 from New York to 103 airports (`nycflights13/flights`): a small network of two classes.

    A client is the airport a flight went to, called by its code, with at least four flights. Of those with more than
    1,000 it holds 1,000, evenly spread over the year. Predicted is whether a flight arrived later than planned, from
    what is known before it leaves: the hour, the day of the week and of the year, the airline, the airport it leaves
    from, and the distance.

    Args:
        clients: How many airports, those with most flights first; None: all 103.
        batch: Samples per minibatch.
        seed: Of the first model; the split over airports and what they hold out are fixed.
        sha256: Of the table, as records have it; another table is refused.
    """
    import numpy as np
    import pandas as pd

    frame = table("nycflights13/flights", sha256).dropna(subset=["arr_delay"])
    when = pd.to_datetime(frame[["year", "month", "day"]])
    companies = pd.get_dummies(frame[["carrier", "origin"]], dtype=float)
    weekdays = pd.get_dummies(when.dt.day_of_week, prefix="weekday", dtype=float)
    data = pd.concat([companies, weekdays, frame["dest"]], axis=1).assign(
        **periodic("hour", frame["sched_dep_time"] // 100 + frame["sched_dep_time"] % 100 / 60, 24),
        **periodic("year", when.dt.day_of_year, 365),
        distance=standardised(np.log(frame["distance"])),
        late=(frame["arr_delay"] > 0).astype(int),
    )
    own = split(evenly(largest(data, "dest", clients)), "dest", "late", at_least=4)
    with seeded(seed):
        model = nn.Sequential(nn.Linear(own[0][0].shape[1], 16), nn.Tanh(), nn.Linear(16, 2))
    record = described("flights", "nycflights13/flights", clients, batch, seed)
    return task(model, F.cross_entropy, own, record)


def evenly(frame: pd.DataFrame) -> pd.DataFrame:
    """At most so many rows of each airport, evenly over the table, which goes through the months day by day."""
    place = frame.groupby("dest").cumcount()
    count = frame.groupby("dest")["dest"].transform("size")
    kept = place * _MOST // count != (place - 1) * _MOST // count
    return frame[kept | (count <= _MOST)]
