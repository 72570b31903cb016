"""What happened to a server, in order: who joined, was sent a model, arrived, was lost.

The accepted arrivals alone do not decide a model where answers can be lost or refused. ACED counts a client from the
last time it was sent a model, answered or not, and a round does not wait for what is lost. With this beside the
arrivals a run can be computed again, bit for bit.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from acefl.core.state import blocks, snapshot
from acefl.core.types import State

if TYPE_CHECKING:
    import pandas as pd

JOINED, SENT, ARRIVED, LOST, RESTARTED, GAVE_UP = "joined", "sent", "arrived", "lost", "restarted", "gave up"
KINDS = (JOINED, SENT, ARRIVED, LOST, RESTARTED, GAVE_UP)
_NUMBER = {kind: number for number, kind in enumerate(KINDS)}
NOBODY = -1  # whom an entry is about that is about all


class Journal:
    """One row per thing that happened, as columns that grow without boxing: 13 bytes a row.

    `client` is whom it happened to; of `joined`, how many clients there are now. `version` is the model's at that time:
    of `sent`, the one that was sent. Rows of one turn of the server have one `turn`, and so has what is sent after it.
    """

    def __init__(self) -> None:
        self.turn = 0
        self._clear()

    def _clear(self) -> None:
        self._turns, self._kinds, self._clients, self._versions = array("i"), array("b"), array("i"), array("i")

    def note(self, kind: str, clients: Iterable[int], version: int) -> None:
        """This has happened to these clients, one after another."""
        for client in clients:
            self._turns.append(self.turn)
            self._kinds.append(_NUMBER[kind])
            self._clients.append(client)
            self._versions.append(version)

    @property
    def at_start(self) -> int:
        """How many clients there were before anything happened."""
        return self._clients[0]

    def frame(self) -> pd.DataFrame:
        import pandas as pd

        kinds = pd.Categorical.from_codes(list(self._kinds), pd.Index(KINDS))
        return pd.DataFrame(
            {"turn": self._turns, "kind": kinds, "client": self._clients, "version": self._versions},
        ).astype({"turn": "int32", "client": "int32", "version": "int32"})

    @property
    def _columns(self) -> list[array[Any]]:
        return [self._turns, self._kinds, self._clients, self._versions]

    def state_dict(self) -> State:
        return {"rows": snapshot([f"{start}-{stop}" for start, stop in blocks(len(self._turns))], self._rows)}

    def _rows(self, name: str) -> torch.Tensor:
        start, stop = map(int, name.split("-"))
        return torch.tensor([column[start:stop].tolist() for column in self._columns], dtype=torch.int32)

    def load_state_dict(self, state: State) -> None:
        self._clear()
        for rows in state["rows"].values():
            for column, numbers in zip(self._columns, rows.tolist(), strict=True):
                column.extend(numbers)
        self.turn = self._turns[-1] if self._turns else 0
