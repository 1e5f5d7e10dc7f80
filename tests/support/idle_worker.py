"""Run as a program with a runtime directory: a worker that does what a line of its standard input says, else nothing at all.

`store N`: put N pages, which may be there; `look N`: get them, and print the pages of L2 and of L3; `hold N`: lease them;
`release`. Each is answered by one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys

from inference_worker.client import Client, ClientSettings
from kv_types.outcomes import Hit, Known, Stored
from tests.inference_worker.worlds import chain, namespace, pages_under, room_for
from tests.support.polling import wait_until

SPACE = namespace("idle", layers=64)


def main() -> None:
    """Attach, say so, and obey."""
    with (
        contextlib.ExitStack() as held,
        Client.connect(sys.argv[1], settings=ClientSettings(deadline_s=10.0)) as client,
    ):
        assert client.wait_ready(deadline_s=30.0)
        handle = client.register(SPACE)
        answer("ready")
        for line in sys.stdin:
            verb, _, pages = line.strip().partition(" ")
            keys = chain(SPACE, int(pages or 0))
            if verb == "store":
                wait_until(lambda keys=keys: _store(client, keys, handle), timeout_s=20.0, what="a put")  # type: ignore[misc]
                answer("stored")
            elif verb == "look":
                room = room_for(keys, handle.page_bytes)
                outcome = client.get(handle, keys, room)
                hit = outcome if isinstance(outcome, Hit) else None
                got = (hit.pages - hit.pages_l3, hit.pages_l3) if hit else (0, 0)
                right = [bytes(page) for page in room[: sum(got)]] == pages_under(keys, handle.page_bytes)[
                    : sum(got)
                ]
                answer([*got, right])
            elif verb == "hold":
                lease = held.enter_context(client.lease(handle, keys))
                answer(lease.pages)
            elif verb == "release":
                held.close()
                answer("released")


def _store(client: Client, keys: bytes, handle: object) -> bool:
    with client.begin(handle) as request:  # type: ignore[arg-type]
        outcomes = request.put(keys, pages_under(keys, handle.page_bytes))  # type: ignore[attr-defined]
        return bool(outcomes) and all(isinstance(one, Stored | Known) for one in outcomes)


def answer(what: object) -> None:
    """One line for the parent."""
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
