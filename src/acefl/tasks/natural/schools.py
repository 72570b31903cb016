"""Schools, lecturers and neighbourhoods: small models of tables with one row per pupil, rating or stop."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from acefl.tasks.groups import NamedClients, by_group
from acefl.tasks.natural.tables import HELD_OUT, described, largest, periodic, seeded, split, standardised, table, task
from acefl.tasks.torch_task import TorchTask


def chem97(clients: int | None = None, *, batch: int = 20, seed: int = 0, sha256: str | None = None) -> TorchTask:
    """Chemistry marks of 31,022 English pupils in 2,410 schools (`mlmRev/Chem97`): linear regression.

    A client is a school with at least four pupils. Predicted is the mark at A level, standardised, from sex, age and
    the marks two years before.

    Args:
        clients: How many schools, the largest first; None: all 1,892 that have four pupils.
        batch: Samples per minibatch.
        seed: Of the first model; the split over schools and what they hold out are fixed.
        sha256: Of the table, as records have it; another table is refused.
    """
    frame = table("mlmRev/Chem97", sha256)
    before = standardised(frame["gcsescore"])
    data = frame[["school"]].assign(
        girl=(frame["gender"] == "F").astype(float),
        age=standardised(frame["age"]),
        before=before,
        before_squared=before**2,
        before_girl=before * (frame["gender"] == "F"),
        mark=standardised(frame["score"]),
    )
    own = split(largest(data, "school", clients), "school", ["mark"], at_least=4)
    return _linear("chem97", "mlmRev/Chem97", own, clients, batch, seed)


def hsb82(clients: int | None = None, *, batch: int = 20, seed: int = 0, sha256: str | None = None) -> TorchTask:
    """Mathematics achievement of 7,185 American pupils in 160 schools (`mlmRev/Hsb82`): linear regression.

    Predicted is the achievement, standardised, from the pupil's sex, minority and social status, the mean status of the
    school, and whether it is Catholic.

    Args:
        clients: How many schools, the largest first; None: all 160.
        batch: Samples per minibatch.
        seed: Of the first model; the split over schools and what they hold out are fixed.
        sha256: Of the table, as records have it; another table is refused.
    """
    frame = table("mlmRev/Hsb82", sha256)
    catholic = (frame["sector"] == "Catholic").astype(float)
    data = frame[["school", "ses", "meanses"]].assign(
        minority=(frame["minrty"] == "Yes").astype(float),
        girl=(frame["sx"] == "Female").astype(float),
        catholic=catholic,
        ses_catholic=frame["ses"] * catholic,
        achievement=standardised(frame["mAch"]),
    )
    own = split(largest(data, "school", clients), "school", ["achievement"])
    return _linear("hsb82", "mlmRev/Hsb82", own, clients, batch, seed)


class _Ratings(nn.Module):
    """A rating as the sum of what its categories and its student add."""

    def __init__(self, levels: int, students: int) -> None:
        super().__init__()
        self.levels, self.students = nn.Embedding(levels, 1), nn.Embedding(students, 1)
        nn.init.zeros_(self.levels.weight)
        nn.init.zeros_(self.students.weight)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = self.levels(codes[..., 1:]).sum(-2) + self.students(codes[..., 0])
        return total


def insteval(clients: int | None = None, *, batch: int = 20, seed: int = 0, sha256: str | None = None) -> TorchTask:
    """73,421 ratings of 1,128 lecturers by 2,972 students at ETH Zurich (`lme4/InstEval`): a mixed linear model.

    A client is a lecturer. Predicted is the rating, less the middle of its scale, as the sum of effects of the
    student's and the lecture's age, of service lectures, of departments, and of every student, who are held together by
    a ridge.

    Args:
        clients: How many lecturers, those with most ratings first; None: all 1,128.
        batch: Samples per minibatch.
        seed: Has no effect: all effects start at 0, and what lecturers hold out is fixed.
        sha256: Of the table, as records have it; another table is refused.
    """
    frame = table("lme4/InstEval", sha256)
    columns, levels = ["studage", "lectage", "service", "dept"], 0
    data = frame[["d", "s", *columns]].assign(s=frame["s"] - 1, y=frame["y"] - 3.0)
    for column in columns:
        data[column] += levels
        levels = int(data[column].max()) + 1
    data = largest(data, "d", clients)
    inputs, targets = data[["s", *columns]].to_numpy(), data[["y"]].to_numpy()
    own = by_group((inputs, targets), data["d"].to_numpy(), test=HELD_OUT, order="target")
    record = described("insteval", "lme4/InstEval", clients, batch, seed)
    model = _Ratings(levels, frame["s"].max())
    return task(model, F.mse_loss, own, record, ridge=1e-3)


def stops(clients: int | None = None, *, batch: int = 20, seed: int = 0, sha256: str | None = None) -> TorchTask:
    """51,920 police stops in 87 neighbourhoods of Minneapolis (`carData/MplsStops`): a small network of two classes.

    A client is a neighbourhood. Predicted is whether a stop was about traffic or something suspicious, from the time of
    day and week and what was noted of the person.

    Args:
        clients: How many neighbourhoods, those with most stops first; None: all 87.
        batch: Samples per minibatch.
        seed: Of the first model; the split over neighbourhoods and what they hold out are fixed.
        sha256: Of the table, as records have it; another table is refused.
    """
    import pandas as pd

    frame = table("carData/MplsStops", sha256)
    when = pd.to_datetime(frame["date"], utc=True).dt.tz_convert("America/Chicago")
    noted = pd.get_dummies(frame[["race", "gender", "personSearch"]].fillna("not noted"), dtype=float)
    data = noted.assign(
        neighborhood=frame["neighborhood"],
        **periodic("hour", when.dt.hour + when.dt.minute / 60, 24),
        weekend=(when.dt.day_of_week >= 5).astype(float),
        month=standardised(when.dt.month.astype(float)),
        traffic=(frame["problem"] == "traffic").astype(int),
    )
    own = split(largest(data, "neighborhood", clients), "neighborhood", "traffic")
    with seeded(seed):
        model = nn.Sequential(nn.Linear(own[0][0].shape[1], 16), nn.Tanh(), nn.Linear(16, 2))
    record = described("stops", "carData/MplsStops", clients, batch, seed)
    return task(model, F.cross_entropy, own, record)


def _linear(name: str, source: str, data: NamedClients, clients: int | None, batch: int, seed: int) -> TorchTask:
    with seeded(seed):
        model = nn.Linear(data[0][0].shape[1], 1)
    record = described(name, source, clients, batch, seed)
    return task(model, F.mse_loss, data, record)
