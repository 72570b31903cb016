"""Many light nodes in one process: they speak Flower's Fleet API by Flower's own code, without a process for each.

`python -m benchmarks.flower_light_nodes ADDRESS NODES` is started by `benchmarks.flower_nodes`. Every node is a thread
with a connection, a key, an id and heartbeats of its own. It does what a SuperNode's loop does, with the same pause of
three seconds when there is no message. What a SuperNode does beyond that is left out: it keeps messages in a store, and
hands them to a ClientApp in another process through an HTTP server of its own. Here the ClientApp is called at once.
"""

from __future__ import annotations

import sys
import threading
import time
from functools import partial
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects, push_objects
from flwr.supernode.fleet_http_connection import http_request_response

from benchmarks.flower import ENGINE_POLL

APP = Path(__file__).parent / "flower_nodes_app"


def work(address: str, number: int) -> None:
    """One node's life."""
    from flower_nodes.client_app import app  # type: ignore[import-not-found]

    with http_request_response(address, insecure=True) as connection:
        node_id, receive, send, get_run, _, pull_object, push_object, confirm = connection
        contexts: dict[int, Context] = {}
        while True:
            received = receive()
            if received is None:
                time.sleep(ENGINE_POLL)
                continue
            head, tree = received
            run, message_id = head.metadata.run_id, head.metadata.message_id
            found = pull_objects([part.object_id for part in iterate_object_tree(tree)], partial(pull_object, run))
            confirm(run, message_id)
            message = inflate_object_from_contents(message_id, found)
            assert isinstance(message, Message)
            message.metadata.__dict__["_message_id"] = message_id
            if run not in contexts:
                config = get_run(run).override_config
                contexts[run] = Context(run, node_id, {"partition-id": number}, RecordDict(), config)
            reply = app(message, contexts[run])
            with no_object_id_recompute():
                reply.metadata.__dict__["_message_id"] = reply.object_id
                wanted, session = send(reply, get_object_tree(reply), 0.0)
                push_objects(
                    get_all_nested_objects(reply), partial(push_object, run, session), object_ids_to_push=wanted
                )


def main() -> None:
    address, nodes = sys.argv[1], int(sys.argv[2])
    sys.path.insert(0, str(APP))
    threads = [threading.Thread(target=work, args=(address, number), daemon=True) for number in range(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
