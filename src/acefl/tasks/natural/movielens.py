"""MovieLens: 671 people who rated films."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from acefl.core.errors import require
from acefl.tasks.groups import by_group
from acefl.tasks.natural.tables import HELD_OUT, described, largest, seeded, table, task
from acefl.tasks.torch_task import TorchTask

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
    frame = table("dslabs/movielens", sha256)
    frame = frame[frame.groupby("movieId")["movieId"].transform("size") >= _RATED]
    frame = largest(frame.assign(film=frame["movieId"].astype("category").cat.codes), "userId", clients)
    users = frame["userId"].astype("category").cat.codes.to_numpy()
    inputs = torch.stack([torch.tensor(users).long(), torch.tensor(frame["film"].to_numpy()).long()], dim=1)
    targets = torch.tensor(frame["rating"].to_numpy() - _MIDDLE).unsqueeze(1)
    own = by_group((inputs, targets), frame["userId"].to_numpy(), test=HELD_OUT, order="target")
    with seeded(seed):
        model = Factors(int(users.max()) + 1, int(frame["film"].max()) + 1, rank)
    record = described("movielens", "dslabs/movielens", clients, batch, seed) | {"rank": rank}
    return task(model, F.mse_loss, own, record, ridge=1e-3)
