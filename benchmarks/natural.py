"""What one computer with everybody's data reaches on the natural tasks: `python -m benchmarks.natural`.

The same model as in federation, by Adam on the exact gradient of the mean over clients, judged by what they hold out.
"""

from __future__ import annotations

from acefl.tasks import natural
from benchmarks.common import report


def main() -> None:
    rows = []
    for make in natural.TASKS:
        if make is natural.heart:
            continue  # whose files come with no package
        task = make()
        start, end = (task.evaluate(model).metrics for model in (task.initial(), natural.centralised(task)))
        rows.append(
            {
                "task": f"natural.{make.__name__}",
                "clients": task.clients,
                "samples": sum(task.samples),
                "parameters": len(task.initial()),
                "held-out client loss at the start": start["heldout_client_loss"],
                "held-out client loss": end["heldout_client_loss"],
                "held-out client accuracy": end.get("heldout_client_accuracy", "–"),
            }
        )
    report("natural", "Centralised references of the natural tasks", rows)


if __name__ == "__main__":
    main()
