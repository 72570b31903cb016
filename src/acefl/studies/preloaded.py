"""What jobs import, imported once: worker processes are forks of one that has done so and nothing else.

Starting threads or touching a GPU here would break the forks.
"""

from __future__ import annotations

import contextlib
import gc
import importlib

from acefl.core.kernels import patient

_USED = (
    "acefl.core.kernels.cpu",
    "acefl.runs.simulate",
    "acefl.tasks",
    "datasets",
    "flwr_datasets",
    "pandas",
    "pyarrow.parquet",
    "sklearn.datasets",
    "sklearn.model_selection",
    "torch._inductor",
)

for _name in _USED:
    with contextlib.suppress(ImportError):  # an extra that is not installed: whoever needs it says so
        importlib.import_module(_name)

patient.PATIENCE = patient.PATIENCE_LOSSLESS = 0  # compiled kernels are there, so they pay from the first exchange on
gc.freeze()  # else every collection goes through all that was imported, and copies it into the fork
