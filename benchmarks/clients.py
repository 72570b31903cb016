"""What an arrival costs as the number of clients grows: it should not.

The same model and the same event loop with precomputed updates, so that only the server and its rule are timed.
"""

from __future__ import annotations

import itertools

import torch

from acefl import ACE, ACED, ASGD, CA2FL, Arrival, Server
from acefl.core.rule import Method
from benchmarks.common import interleaved, median_ratio, report

DIM, ARRIVALS, FEW, MANY = 50_000, 3_000, 100, 1_000


def server_loop(rule: Method, clients: int) -> None:
    """All clients report once (not timed apart: the same for both sizes per arrival), then go on in turn."""
    model = torch.zeros(DIM)
    updates = torch.randn(16, DIM)
    server = Server(model, rule.build(clients, model), 0.01, clients)
    for task, client in zip(range(clients + ARRIVALS), itertools.cycle(range(clients)), strict=False):
        version = server.version
        trained_on = max(0, version - clients + 1)
        server.handle([Arrival(client, updates[task % 16], trained_on, version, task)])


def main() -> None:
    torch.set_num_threads(1)
    rules: dict[str, Method] = {"ACE": ACE(), "ACED": ACED(tau=5_000), "CA2FL": CA2FL(), "ASGD": ASGD()}
    rules["ACE direct (as printed)"] = ACE(variant="direct")
    jobs = {}
    for (name, rule), clients in itertools.product(rules.items(), (FEW, MANY)):
        if not (name.startswith("ACE direct") and clients == MANY):
            jobs[f"{name} {clients}"] = lambda r=rule, n=clients: server_loop(r, n)
    seconds = interleaved(jobs, repeats=3)
    rows, targets = [], []
    for name in rules:
        row = {"rule": name}
        for clients in (FEW, MANY):
            times = seconds.get(f"{name} {clients}")
            row[f"us per arrival, n = {clients}"] = min(times) / (ARRIVALS + clients) * 1e6 if times else "-"
        if f"{name} {MANY}" in seconds:
            ratio = (
                median_ratio(seconds[f"{name} {MANY}"], seconds[f"{name} {FEW}"]) * (ARRIVALS + FEW) / (ARRIVALS + MANY)
            )
            row["ratio"] = ratio
            if name in ("ACE", "ACED", "CA2FL"):
                targets.append(
                    {
                        "what": f"{name}, n = {MANY} over n = {FEW}",
                        "measured": ratio,
                        "asked": "<= 1.3",
                        "met": ratio <= 1.3,
                    }
                )
        rows.append(row)
    report("clients", __doc__ or "", rows, targets)


if __name__ == "__main__":
    main()
