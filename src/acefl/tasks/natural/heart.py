"""Heart disease in four hospitals: the UCI files, in a folder that the user names."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn
from torch.nn import functional as F

from acefl.core.errors import InvalidInput, require
from acefl.tasks.natural.tables import seeded, split, standardised, task
from acefl.tasks.torch_task import TorchTask

if TYPE_CHECKING:
    import pandas as pd

HOSPITALS = {
    "Cleveland": "processed.cleveland.data",
    "Hungary": "processed.hungarian.data",
    "Switzerland": "processed.switzerland.data",
    "Long Beach": "processed.va.data",
}
_COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
)
_SELDOM = ("slope", "ca", "thal")  # missing in most rows of three hospitals


def heart(
    folder: str = "data/heart-disease", *, batch: int = 10, seed: int = 0, sha256: str | None = None
) -> TorchTask:
    """Heart disease in four hospitals, from the files of the UCI repository: logistic regression.

    A client is a hospital. Predicted is whether a patient is ill (`num` above 0). `slope`, `ca` and `thal` are left
    out, and so are patients of whom something else is missing.

    Args:
        folder: Where `processed.cleveland.data`, `.hungarian`, `.switzerland` and `.va` lie.
        batch: Samples per minibatch.
        seed: Of the first model; what hospitals hold out is fixed.
        sha256: Of the four files one after another, as records have it; others are refused.
    """
    import pandas as pd

    frame, found = _read(Path(folder))
    require(sha256 in (None, found), f"the files in {folder} have sha256 {found}; allowed: {sha256}")
    kinds = pd.get_dummies(frame[["cp", "restecg"]].astype(int).astype(str), dtype=float)
    measured = frame[["age", "trestbps", "chol", "thalach", "oldpeak"]].apply(standardised)
    data = pd.concat([kinds, measured, frame[["sex", "fbs", "exang", "hospital"]]], axis=1)
    data = data.assign(ill=(frame["num"] > 0).astype(int))
    own = split(data, "hospital", "ill")
    with seeded(seed):
        model = nn.Linear(own[0][0].shape[1], 2)
    record = {"name": "natural.heart", "folder": folder, "batch": batch, "seed": seed, "sha256": found}
    return task(model, F.cross_entropy, own, record)


def _read(folder: Path) -> tuple[pd.DataFrame, str]:
    """All patients of whom everything is known, and the hash of the files."""
    import pandas as pd

    content, rows = hashlib.sha256(), []
    wanted = f"a folder with the UCI files {', '.join(HOSPITALS.values())}"
    for hospital, file in HOSPITALS.items():
        path = folder / file
        require(path.is_file(), f"{path} is missing; allowed: {wanted}")
        text = path.read_bytes()
        content.update(text)
        for line, row in enumerate(csv.reader(text.decode("utf-8", errors="replace").splitlines()), start=1):
            fits = len(row) == len(_COLUMNS)
            require(fits, f"{path}, line {line}: {len(row)} values; allowed: {len(_COLUMNS)}, with ? for a missing one")
            try:
                known = [float("nan") if value.strip() == "?" else float(value) for value in row]
            except ValueError:
                allowed = "numbers, with ? for a missing one"
                raise InvalidInput(f"{path}, line {line}: {','.join(row)}; allowed: {allowed}") from None
            rows.append([*known, hospital])
    frame = pd.DataFrame(rows, columns=[*_COLUMNS, "hospital"]).drop(columns=list(_SELDOM)).dropna()
    return frame.reset_index(drop=True), content.hexdigest()
