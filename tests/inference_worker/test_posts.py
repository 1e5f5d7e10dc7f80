"""Puts without a round trip, between real processes: seen by whoever looks next, and stored though their writer dies."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from inference_worker.client import Client, RegisteredNamespace
from kv_types.outcomes import Hit, Miss, MissReason, Tier
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.worlds import (
    all_stored,
    chain,
    keys_of,
    namespace,
    page_under,
    pages_under,
    room_for,
)
from tests.support.daemon import ROOT, clean_environment
from tests.support.polling import wait_until
from tests.support.puts import put_fresh
from tests.support.sidecar_process import SidecarProcess

WAIT_S = 0.02
"""How long a look-up waits for what was posted."""


def is_whole(client: Client, ns: RegisteredNamespace, keys: bytes) -> bool:
    return client.match(ns, keys) == Hit(len(keys) // 32, Tier.L2)


DYING_WRITER = """
import os, signal, sys
from inference_worker.client import Client, ClientSettings
from tests.inference_worker.worlds import all_stored, chain, namespace, pages_under
from tests.support.puts import put_fresh

client = Client.connect(sys.argv[1], settings=ClientSettings(deadline_s=10.0))
assert client.wait_ready(deadline_s=10.0)
ns = client.register(namespace(sys.argv[2]))
for seed in range(8):
    keys = chain(ns.identified, 4, seed=seed)
    assert all_stored(put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes)))
os.kill(os.getpid(), signal.SIGKILL)
"""


def ready(connect: MakeClient, sidecar: SidecarProcess, model: str) -> tuple[Client, RegisteredNamespace]:
    client = connect(sidecar.runtime, deadline_s=10.0)
    assert client.wait_ready(deadline_s=10.0)
    return client, client.register(namespace(model))


def test_a_page_is_found_by_whoever_looks_after_its_put_has_returned(
    shared_sidecar: SidecarProcess, connect: MakeClient, model: str
) -> None:
    writer, ns = ready(connect, shared_sidecar, model)
    reader, same = ready(connect, shared_sidecar, model)
    pages = 40
    keys = chain(ns.identified, pages)
    found = 0
    with writer.begin(ns) as request:
        for page in range(pages):
            until = keys[: 32 * (page + 1)]
            source = [page_under(keys_of(keys)[page], ns.page_bytes)]
            assert all_stored(request.put(until, source, start=page))
            room = room_for(until, ns.page_bytes)
            began_s = time.monotonic()
            outcome = reader.get(same, until, room)
            if outcome == Hit(page + 1, Tier.L2):
                assert [bytes(one) for one in room] == pages_under(until, ns.page_bytes)
                found += 1
            else:
                assert time.monotonic() - began_s >= WAIT_S, f"not waited for: {outcome}"
    assert found > pages // 2
    wait_until(lambda: reader.match(same, keys) == Hit(pages, Tier.L2), what="all pages")


def test_a_writers_own_chain_grows_without_its_waiting_and_is_whole(
    shared_sidecar: SidecarProcess, connect: MakeClient, model: str
) -> None:
    client, ns = ready(connect, shared_sidecar, model)
    keys = chain(ns.identified, 300)
    sources = pages_under(keys, ns.page_bytes)
    with client.begin(ns) as request:
        for begin in range(0, 300, 3):
            until = keys[: 32 * (begin + 3)]
            assert all_stored(request.put(until, sources[begin : begin + 3], start=begin))
    wait_until(lambda: client.match(ns, keys) == Hit(300, Tier.L2), what="the whole chain")
    room = room_for(keys, ns.page_bytes)
    assert client.get(ns, keys, room) == Hit(300, Tier.L2)
    assert [bytes(one) for one in room] == sources


def test_what_a_writer_stored_before_it_was_killed_is_there(
    shared_sidecar: SidecarProcess, connect: MakeClient, model: str
) -> None:
    client, ns = ready(connect, shared_sidecar, model)
    ended = subprocess.run(
        [sys.executable, "-c", DYING_WRITER, str(shared_sidecar.runtime), model],
        cwd=ROOT, env=clean_environment(), timeout=60, check=False, capture_output=True,
    )  # fmt: skip
    assert ended.returncode == -9, ended.stderr.decode()
    for seed in range(8):
        keys = chain(ns.identified, 4, seed=seed)
        wait_until(partial(is_whole, client, ns, keys), what=f"chain {seed}")
        room = room_for(keys, ns.page_bytes)
        client.get(ns, keys, room)
        assert [bytes(one) for one in room] == pages_under(keys, ns.page_bytes)


def test_a_look_up_waits_for_a_sidecar_that_stands_still_no_longer_than_it_says(
    sidecar: SidecarProcess, connect: MakeClient, model: str, tmp_path: Path
) -> None:
    sidecar.start()
    client, ns = ready(connect, sidecar, model)
    first, second = chain(ns.identified, 2), chain(ns.identified, 2, seed=1)
    put_fresh(client, ns, first, pages_under(first, ns.page_bytes))
    sidecar.pause()
    assert all_stored(put_fresh(client, ns, second, pages_under(second, ns.page_bytes)))
    assert client.statistics()["posted_pages"] == 2, "taken for stored, and with nobody yet"
    began_s = time.monotonic()
    outcome = client.match(ns, second)
    assert outcome in (Miss(MissReason.ABSENT), Miss(MissReason.STALE))
    assert time.monotonic() - began_s < 10 * WAIT_S
    assert client.match(ns, first) in (Hit(2, Tier.L2), Miss(MissReason.STALE))
    sidecar.signal(signal.SIGCONT)
    wait_until(lambda: client.match(ns, second) == Hit(2, Tier.L2), what="what was posted meanwhile")
    wait_until(lambda: client.statistics()["posted_pages"] == 0, what="the sidecar's account of it")
