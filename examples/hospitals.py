"""Nine hospitals with names, measured speeds and a report: from nothing to a comparison of four methods.

python examples/hospitals.py [DIRECTORY]    where the report goes; hospitals-report by default
"""

import sys

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import f1_score
from torch import nn

from acefl import ACE, ASGD, CA2FL, FedBuff, Scenario, Stop, compare, tasks

NAMES = ["Charité", "Mercy", "St. Ann", "St. Luke", "Queen Mary", "Royal Free", "Sinai", "UZ Gent", "Karolinska"]
patients = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "benign"})  # 569 tumours, 30 numbers each
patients.iloc[:, :30] = (patients.iloc[:, :30] - patients.iloc[:, :30].mean()) / patients.iloc[:, :30].std()
patients["hospital"] = np.take(NAMES, pd.qcut(patients["mean radius"], 9, labels=False))  # large tumours go to a few
minutes = {name: 3.0 + 12.0 * place for place, name in enumerate(NAMES)}  # what a visit takes, as each has measured it


def f1(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return f1_score(targets, outputs.argmax(1), average="macro", zero_division=np.nan)


def task(seed: int) -> tasks.TorchTask:
    clients = tasks.by_group(patients, "hospital", target="benign", test=0.25, seed=seed)
    torch.manual_seed(seed)
    return tasks.TorchTask(nn.Linear(30, 2), nn.CrossEntropyLoss(), clients, batch=16, metrics={"f1": f1})


out = sys.argv[1] if len(sys.argv) > 1 else "hospitals-report"
scenario, methods = Scenario(durations=minutes), [ACE(), CA2FL(buffer=3), FedBuff(buffer=3), ASGD()]
compare(task, methods, scenario=scenario, stop=Stop(arrivals=300), seeds=[0, 1], evaluations=10, out=out)
print(f"report: {out}/report.html")
