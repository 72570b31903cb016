"""MovieLens: 671 people who rated films."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F

from acefl.core.errors import require
from acefl.tasks.groups import by_group
from acefl.tasks.natural.tables import HELD_OUT, described, largest, seeded, table, task
from acefl.tasks.torch_task import TorchTask

if TYPE_CHECKING:
    import pandas as pd

_PAUSE = 30 * 60  # seconds without a rating that end a visit
_RATED = 20  # films with fewer ratings are left out
_MIDDLE = 3.5  # of the ratings


class Factors(nn.Module):
    """A rating as what its user and its film add, and the product of their vectors."""

    def __init__(self, users: int, films: int, rank: int) -> None:
        super().__init__()
        self.users, self.films = nn.Embedding(users, rank + 1), nn.Embedding(films, rank + 1)
        for part in (self.users, self.films):
            nn.init.normal_(part.weight, std=0.1)
            nn.init.zeros_(part.weight[:, 0])

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        user, film = self.users(codes[..., 0]), self.films(codes[..., 1])
        rating: torch.Tensor = user[..., :1] + film[..., :1] + (user[..., 1:] * film[..., 1:]).sum(-1, keepdim=True)
        return rating


def movielens(
    clients: int | None = None, *, rank: int = 4, batch: int = 20, seed: int = 0, sha256: str | None = None
) -> TorchTask:
    """Ratings of 1,303 films by 671 people (`dslabs/movielens`): matrix factorisation.

    A client is a user, called by the user's number. Films with fewer than 20 ratings are left out. Predicted is the
    rating, less 3.5, by a vector per film and per user; a user's ratings say nothing of other users' vectors.

    Args:
        clients: How many users, those with most ratings first; None: all 671.
        rank: Numbers per film and user, beside what each adds by itself.
        batch: Samples per minibatch.
        seed: Of the first model; the split over users and what they hold out are fixed.
        sha256: Of the table, as records have it; another table is refused.
    """
    require(rank >= 1, f"rank is {rank}; allowed: at least 1")
    frame = _often_rated(table("dslabs/movielens", sha256))
    frame = largest(frame.assign(film=frame["movieId"].astype("category").cat.codes), "userId", clients)
    users = frame["userId"].astype("category").cat.codes.to_numpy()
    inputs = torch.stack([torch.tensor(users).long(), torch.tensor(frame["film"].to_numpy()).long()], dim=1)
    targets = torch.tensor(frame["rating"].to_numpy() - _MIDDLE).unsqueeze(1)
    own = by_group((inputs, targets), frame["userId"].to_numpy(), test=HELD_OUT, order="target")
    with seeded(seed):
        model = Factors(int(users.max()) + 1, int(frame["film"].max()) + 1, rank)
    record = described("movielens", "dslabs/movielens", clients, batch, seed) | {"rank": rank}
    return task(model, F.mse_loss, own, record, ridge=1e-3)


def movielens_visits(clients: int | None = None, *, sha256: str | None = None) -> pd.DataFrame:
    """When the users of `movielens` came and went: a table for `Scenario(visits=...)`, in the order of the ends.

    A visit is a row of ratings by one user without a pause of more than 30 minutes. `start` is when the first one was
    given and `end` when the last one was, in seconds since the first visit of all. Ratings of films that the task
    leaves out count too: the user was there.

    Args:
        clients: As for `movielens`: the same users.
        sha256: Of the table, as records have it; another table is refused.
    """
    frame = table("dslabs/movielens", sha256)
    known = largest(_often_rated(frame), "userId", clients)["userId"]
    given = frame[frame["userId"].isin(known)].sort_values(["userId", "timestamp"], kind="stable")
    apart = given.groupby("userId")["timestamp"].diff()
    number = (apart.isna() | (apart > _PAUSE)).cumsum()
    visits = given.groupby(number).agg(client=("userId", "first"), start=("timestamp", "min"), end=("timestamp", "max"))
    first = visits["start"].min()
    visits = visits.assign(
        client=visits["client"].astype(str), start=visits["start"] - first, end=visits["end"] - first
    )
    return visits.sort_values(["end", "start"], kind="stable", ignore_index=True)


def _often_rated(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame.groupby("movieId")["movieId"].transform("size") >= _RATED]
