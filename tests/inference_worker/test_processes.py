"""Worker processes that come, go, are killed and are stopped in mid-copy: what the others and the sidecar see of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from inference_worker.client import Client, ClientSettings
from kv_types.outcomes import Hit, MissReason, Tier
from kv_wire.channel import open_channel
from tests.inference_worker.conftest import FLAGS, MakeClient
from tests.inference_worker.worlds import all_stored, chain, namespace, pages_under, room_for
from tests.support.daemon import ROOT, clean_environment
from tests.support.polling import wait_until
from tests.support.processes import wait_until_stopped
from tests.support.puts import put_fresh
from tests.support.remote_store import RemoteStore
from tests.support.sidecar_process import SidecarProcess, sidecar_process

MIB = 2**20
LEASE_S, SLOWED_S = 0.05, 0.2
PAGES = 48


class Process:
    """A worker, its behaviour and handle: it says lines of JSON, and does what a line on its standard input says."""

    def __init__(self, behaviour: str, sidecar: SidecarProcess) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.inference_worker.test_processes", behaviour, str(sidecar.runtime)],
            cwd=ROOT, env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the worker ended with {self._process.wait(10)}"
        return json.loads(line)

    def tell(self, line: str) -> int:
        """Let it end; returns its exit code."""
        self._process.communicate(line + "\n", timeout=20)
        return self._process.returncode

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def process(behaviour: str, sidecar: SidecarProcess) -> Iterator[Process]:
    """A worker, killed with the block."""
    made = Process(behaviour, sidecar)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.parametrize("how", ["closes", "returns", "killed"])
def test_c24_a_worker_that_ends_leaves_the_sidecar_and_the_others_serving(
    shared_sidecar: SidecarProcess, connect: MakeClient, how: str
) -> None:
    other = connect(shared_sidecar.runtime)
    ns = other.register(namespace(f"c24 {how}"))
    keys = chain(ns.identified, 3)
    assert all_stored(put_fresh(other, ns, keys, pages_under(keys, ns.page_bytes)))
    with other.lease(ns, keys) as lease, process("comes", shared_sidecar) as worker:
        assert worker.hear() == {"leased": 5}
        if how == "killed":
            worker.send(signal.SIGKILL)
        else:
            assert worker.tell(how) == 0
        with open_channel(f"unix:{shared_sidecar.runtime / 'grpc.sock'}") as channel:
            store = RemoteStore(channel)
            wait_until(lambda: len(store.status().clients) == 2, what="the worker's row to be given back")
            assert store.status().arena["leases"] == 3, "of who is still there"
        assert [bytes(page) for page in lease] == pages_under(keys, ns.page_bytes)
    assert all_stored(
        put_fresh(other, ns, chain(ns.identified, 2, seed=1), pages_under(keys, ns.page_bytes)[:2])
    )
    with process("comes", shared_sidecar) as another:
        assert another.hear() == {"leased": 5}


def test_c30_a_copy_that_takes_longer_than_its_lease_is_told_so_and_gives_no_bytes() -> None:
    """A lease of 50 ms, and a reader that is stopped for 200 ms in the midst of its copy."""
    with sidecar_process(arena_bytes=96 * MIB, flags=FLAGS) as sidecar, process("copies", sidecar) as reader:
        assert reader.hear() == {"stored": PAGES}
        with open_channel(f"unix:{sidecar.runtime / 'grpc.sock'}") as channel:
            assert _stop_in_mid_copy(RemoteStore(channel), reader), "no copy was ever caught under way"
        stopped_s = time.monotonic()
        wait_until(lambda: time.monotonic() - stopped_s > SLOWED_S, what="the stop to outlast the lease")
        reader.send(signal.SIGCONT)
        heard = reader.hear()
        while heard["seconds"] < SLOWED_S:
            heard = reader.hear()
        assert heard["reason"] == MissReason.LEASE_EXPIRED
        assert heard["pages"] < PAGES, "what was copied in time may be served, the rest must not be"
        assert heard["right"], "whatever counts as a hit is right"


def _stop_in_mid_copy(store: RemoteStore, reader: Process) -> bool:
    def copying() -> bool:
        return any(client.pid == reader.pid and client.leases for client in store.status().clients)

    for _ in range(2000):
        if copying():
            reader.send(signal.SIGSTOP)
            wait_until_stopped(reader.pid)
            if copying():
                return True
            reader.send(signal.SIGCONT)
    return False


# --- what the processes do ---


def comes(runtime: str) -> None:
    """Store and lease a chain, then end as it is told: after closing, or without."""
    client = Client.connect(runtime, settings=ClientSettings(prefault=False, deadline_s=10.0))
    ns = client.register(namespace("comes and goes"))
    keys = chain(ns.identified, 5)
    put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes))
    lease = client.lease(ns, keys)
    _say(leased=lease.pages)
    if sys.stdin.readline().strip() == "closes":
        lease.release()
        client.close()


def copies(runtime: str) -> None:
    """Copy a chain of pages of 1 MiB under leases of 50 ms, again and again."""
    settings = ClientSettings(copy_lease_s=LEASE_S, deadline_s=10.0)
    client = Client.connect(runtime, settings=settings)
    ns = client.register(namespace("copied", layers=256, head_dim=256))
    keys = chain(ns.identified, PAGES)
    pages, room = pages_under(keys, MIB), room_for(keys, MIB)
    assert all_stored(put_fresh(client, ns, keys, pages))
    assert client.get(ns, keys, room) == Hit(PAGES, Tier.L2)
    _say(stored=PAGES)
    while True:
        began_s = time.monotonic()
        outcome = client.get(ns, keys, room)
        seconds = time.monotonic() - began_s
        hit = isinstance(outcome, Hit)
        got, reason = (outcome.pages, outcome.ended_by) if isinstance(outcome, Hit) else (0, outcome.reason)  # type: ignore[union-attr]
        right = not hit or seconds < SLOWED_S or [bytes(page) for page in room[:got]] == pages[:got]
        _say(pages=got, reason=reason, seconds=seconds, right=right)


def _say(**told: object) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
