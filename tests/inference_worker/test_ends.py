"""How clients end: closed in a hurry, forgotten, or left to the interpreter; and that the sidecar's sums agree with theirs."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time

import pytest

from inference_worker.client import Client
from kv_types.errors import ConfigError
from kv_wire.channel import CacheCalls, open_channel
from kv_wire.gen import cache_pb2
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.worlds import chain, namespace, pages_under, room_for
from tests.support.daemon import ROOT
from tests.support.polling import wait_until
from tests.support.puts import put_fresh
from tests.support.sidecar_process import SidecarProcess
from tests.support.timing import timed


def session_threads() -> int:
    return sum(thread.name == "stratakv-session" for thread in threading.enumerate())


def test_a_forgotten_client_ends_its_thread(shared_sidecar: SidecarProcess) -> None:
    before = session_threads()
    client = Client.connect(shared_sidecar.runtime)
    ns = client.register(namespace("forgotten"))
    assert session_threads() == before + 1
    client.me = client  # type: ignore[attr-defined]  # garbage that only the collector finds
    del client, ns
    gc.collect()
    wait_until(lambda: session_threads() == before, what="the thread's end")


def test_close_does_not_wait_for_an_attempt_that_hangs(sidecar: SidecarProcess, connect: MakeClient) -> None:
    sidecar.start()
    sidecar.pause()
    before = session_threads()
    # connect waits for the first attempt, no longer
    client = timed(lambda: connect(sidecar.runtime, attach_deadline_s=0.5), deadline_s=0.6)
    wait_until(lambda: "did not answer" in str(client.statistics()["reason"]), what="the attempt's end")
    timed(client.close, deadline_s=1.0)
    wait_until(lambda: session_threads() == before, what="the thread's end")


@pytest.mark.parametrize("endpoint", ["the sidecar", "nobody"])
def test_a_program_that_never_closes_its_client_ends_at_once_and_quietly(
    shared_sidecar: SidecarProcess, endpoint: str
) -> None:
    runtime = str(shared_sidecar.runtime) + ("" if endpoint == "the sidecar" else "-nobody")
    script = (
        "import sys; from inference_worker.client import Client\n"
        "from tests.inference_worker.worlds import *; from tests.support.puts import put_fresh\n"
        "client = Client.connect(sys.argv[1]); ns = client.register(namespace('unclosed'))\n"
        "keys = chain(ns.identified, 2); put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes))\n"
        "lease = client.lease(ns, keys); request = client.begin(ns); client.prefetch(ns, keys + bytes(32))\n"
        "import time; print(time.time())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, runtime],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    ended = time.time()
    assert (done.returncode, done.stderr) == (0, "")
    assert ended - float(done.stdout) < 3.0


def test_bad_endpoint_text_is_a_config_error_with_examples() -> None:
    with pytest.raises(ConfigError, match="host:port"):
        Client.connect("http://localhost:7420")


@pytest.mark.parametrize("transport", ["shared_memory", "grpc"])
def test_c29_the_sidecars_sums_are_those_of_its_client(
    shared_sidecar: SidecarProcess, connect: MakeClient, transport: str
) -> None:
    client = connect(shared_sidecar.runtime, shared_memory=transport == "shared_memory", deadline_s=10.0)
    ns = client.register(namespace(f"sums-{transport}"))
    keys = chain(ns.identified, 6)
    put_fresh(client, ns, keys[: 4 * 32], pages_under(keys[: 4 * 32], ns.page_bytes))
    for start in (0, 1, 3, 4):
        client.get(ns, keys, room_for(keys[start * 32 :], ns.page_bytes), start=start)
        client.lease(ns, keys, start=start).release()
    counts = client.namespace_counts()[ns.label]
    with open_channel(f"unix:{shared_sidecar.runtime / 'grpc.sock'}") as channel:
        status = CacheCalls(channel).status(cache_pb2.StatusRequest(), timeout=5)
    (told,) = [one for one in status.namespaces if one.namespace_id == ns.id]
    assert (told.requested_pages, told.l1_pages, told.l2_pages, told.l3_pages) == (
        counts.requested, counts.l1, counts.l2, counts.l3,
    )  # fmt: skip
    assert {name: pages for name, pages in told.missed_pages.items() if pages} == {
        reason.name.lower(): pages for reason, pages in counts.missed.items()
    }
    assert counts.requested == 8 * 6
