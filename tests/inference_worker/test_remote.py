"""The gRPC path: sizes around its message limits, streams that lie, and when it stands in for shared memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from inference_worker.client import Client
from inference_worker.remote import RemoteSidecar
from kv_types.outcomes import Hit, Miss, MissReason, Refused, RefuseReason, Tier
from kv_wire.channel import CacheCalls, open_channel
from kv_wire.gen import cache_pb2
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.lying_sidecar import header, lying_sidecar, page, trailer
from tests.inference_worker.worlds import (
    all_stored,
    chain,
    engine_namespace,
    namespace,
    page_under,
    pages_under,
    room_for,
)
from tests.support.polling import wait_until
from tests.support.puts import put_fresh
from tests.support.sidecar_process import SidecarProcess, sidecar_process

MIB = 2**20


@pytest.fixture(scope="module")
def roomy_sidecar() -> Iterator[SidecarProcess]:
    """A daemon with room for pages of 64 MiB, and a TCP port."""
    flags = ("--segment-size", str(64 * MIB), "--grpc-tcp", "127.0.0.1:0")
    with sidecar_process(arena_bytes=256 * MIB, flags=flags) as started:
        yield started


@pytest.mark.parametrize("page_bytes", [4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 64 * MIB])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_c21_payloads_around_the_message_limit_pass_both_ways(
    roomy_sidecar: SidecarProcess, connect: MakeClient, page_bytes: int, direction: str
) -> None:
    remote = connect(roomy_sidecar.runtime, shared_memory=False, deadline_s=30.0)
    local = connect(roomy_sidecar.runtime, deadline_s=30.0)
    writer, reader = (remote, local) if direction == "in" else (local, remote)
    identity = engine_namespace(f"size-{page_bytes}-{direction}")
    keys = chain(identity, 1)
    content = page_under(keys, page_bytes)
    assert all_stored(put_fresh(writer, writer.register(identity, page_bytes=page_bytes), keys, [content]))
    room = bytearray(page_bytes)
    assert reader.get(reader.register(identity, page_bytes=page_bytes), keys, [room]) == Hit(1, Tier.L2)
    assert room == content


def test_host_and_port(roomy_sidecar: SidecarProcess, connect: MakeClient) -> None:
    with open_channel(f"unix:{roomy_sidecar.runtime / 'grpc.sock'}") as channel:
        status = CacheCalls(channel).status(cache_pb2.StatusRequest(), timeout=5)
    (address,) = [one for one in status.grpc_addresses if not one.startswith("unix:")]
    client = connect(address, deadline_s=10.0)
    ns = client.register(namespace("tcp"))
    keys = chain(ns.identified, 3)
    assert all_stored(put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes)))
    with client.lease(ns, keys) as lease:
        assert [bytes(view) for view in lease] == pages_under(keys, ns.page_bytes)
    assert client.statistics()["transport"] == "grpc"
    assert client.validity.view == 0


def test_nobody_at_a_port_is_unreachable_at_once(connect: MakeClient) -> None:
    client = connect("127.0.0.1:9", deadline_s=5.0)
    ns = client.register(namespace())
    keys = chain(ns.identified, 2)
    assert client.match(ns, keys) == Miss(MissReason.UNREACHABLE)
    assert client.get(ns, keys, room_for(keys, ns.page_bytes)) == Miss(MissReason.UNREACHABLE)
    assert (
        put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes))
        == [Refused(RefuseReason.UNREACHABLE)] * 2
    )
    assert client.namespace_counts()[ns.label].missed == {MissReason.UNREACHABLE: 2}


def test_a_service_of_another_kind_is_unreachable_and_the_statistics_say_why(connect: MakeClient) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        client = connect(f"127.0.0.1:{port}", deadline_s=5.0)
        ns = client.register(namespace())
        keys = chain(ns.identified, 2)
        assert client.match(ns, keys) == Miss(MissReason.UNREACHABLE)
        assert (
            put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes))
            == [Refused(RefuseReason.UNREACHABLE)] * 2
        )
        assert "not found" in str(client.statistics()["grpc_error"]).lower()
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize("call", ["match", "lease", "get", "put", "begin", "stamp"])
def test_a_channel_closed_by_another_thread_is_unreachable(
    roomy_sidecar: SidecarProcess, connect: MakeClient, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """gRPC raises ValueError then, which nobody promised."""
    client = connect(roomy_sidecar.runtime, shared_memory=False, deadline_s=10.0)
    ns = client.register(namespace(f"closed-{call}"))
    keys = chain(ns.identified, 2)
    pages = pages_under(keys, ns.page_bytes)
    assert all_stored(put_fresh(client, ns, keys, pages))
    plain = RemoteSidecar._open

    def closed_meanwhile(self: RemoteSidecar) -> CacheCalls:
        calls = plain(self)
        self.close()
        return calls

    monkeypatch.setattr(RemoteSidecar, "_open", closed_meanwhile)
    room = room_for(keys, ns.page_bytes)
    missed, refused = Miss(MissReason.UNREACHABLE), Refused(RefuseReason.UNREACHABLE)
    answers: dict[str, tuple[Callable[[], object], object]] = {
        "match": (lambda: client.match(ns, keys), missed),
        "lease": (lambda: Miss(client.lease(ns, keys).reason), missed),
        "get": (lambda: client.get(ns, keys, room), missed),
        "put": (lambda: put_fresh(client, ns, keys, pages), [refused] * 2),
        "begin": (lambda: client.begin(ns).put(keys, pages), [refused] * 2),
        "stamp": (client.stamp, None),
    }
    ask, expected = answers[call]
    assert ask() == expected


# --- streams that lie -----------------------------------------------------------------------------------------------

Messages = Callable[[list[bytes], int], list[bytes]]


def _damaged(pages: list[bytes], page_bytes: int) -> list[bytes]:
    wrong = bytes([pages[1][0] ^ 1]) + pages[1][1:]
    return [
        header(3, page_bytes),
        page(0, pages[0]),
        page(1, pages[1], sent=wrong),
        page(2, pages[2]),
        trailer(3),
    ]


def _first_damaged(pages: list[bytes], page_bytes: int) -> list[bytes]:
    return [header(1, page_bytes), page(0, pages[0], sent=pages[1]), trailer(1)]


def _fewer_in_the_end(pages: list[bytes], page_bytes: int) -> list[bytes]:
    sent = [page(number, content) for number, content in enumerate(pages)]
    return [header(3, page_bytes), *sent, trailer(1, MissReason.INVALIDATED)]


def _cut(pages: list[bytes], page_bytes: int) -> list[bytes]:
    return [header(3, page_bytes), page(0, pages[0])]


def _out_of_order(pages: list[bytes], page_bytes: int) -> list[bytes]:
    return [header(3, page_bytes), page(1, pages[1]), page(0, pages[0]), page(2, pages[2]), trailer(3)]


def _too_many(pages: list[bytes], page_bytes: int) -> list[bytes]:
    return [
        header(4, page_bytes),
        *(page(number, content) for number, content in enumerate(pages)),
        trailer(3),
    ]


def _other_size(pages: list[bytes], page_bytes: int) -> list[bytes]:
    return [header(3, page_bytes // 2), trailer(0)]


def _longer_than_a_page(pages: list[bytes], page_bytes: int) -> list[bytes]:
    return [header(1, page_bytes), page(0, pages[0] + b"x"), trailer(1)]


def _promised_but_not_sent(pages: list[bytes], page_bytes: int) -> list[bytes]:
    return [header(3, page_bytes), page(0, pages[0]), trailer(3)]


def _garbage(pages: list[bytes], page_bytes: int) -> list[bytes]:
    return [b"\xff" * 40]


@pytest.mark.parametrize(
    ("messages", "outcome"),
    [
        (_damaged, Hit(1, Tier.L2, MissReason.CORRUPT)),
        (_first_damaged, Miss(MissReason.CORRUPT)),
        (_fewer_in_the_end, Hit(1, Tier.L2, MissReason.INVALIDATED)),
        (_cut, Miss(MissReason.CORRUPT)),
        (_out_of_order, Miss(MissReason.CORRUPT)),
        (_too_many, Miss(MissReason.CORRUPT)),
        (_other_size, Miss(MissReason.CORRUPT)),
        (_longer_than_a_page, Miss(MissReason.CORRUPT)),
        (_promised_but_not_sent, Miss(MissReason.CORRUPT)),
        (_garbage, Miss(MissReason.CORRUPT)),
    ],
)
@pytest.mark.parametrize("in_one_message", [True, False])
def test_a_stream_is_believed_only_as_far_as_its_checksums_and_trailer(
    connect: MakeClient,
    messages: Messages,
    outcome: Hit | Miss,
    in_one_message: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not in_one_message:
        monkeypatch.setattr("kv_wire.channel.fits_one_message", lambda pages, page_bytes: False)
    identity = namespace()
    keys = chain(identity, 3)

    def get(_: cache_pb2.GetRequest) -> Iterator[bytes]:
        yield from messages(pages_under(keys, ns.page_bytes), ns.page_bytes)

    with lying_sidecar(get) as address:
        client = connect(address, deadline_s=5.0)
        ns = client.register(identity)
        room = room_for(keys, ns.page_bytes)
        assert client.get(ns, keys, room) == outcome
        hits = outcome.pages if isinstance(outcome, Hit) else 0
        assert [bytes(one) for one in room[:hits]] == pages_under(keys, ns.page_bytes)[:hits]
        with client.lease(ns, keys) as lease:
            reason = outcome.ended_by if isinstance(outcome, Hit) else outcome.reason
            assert (lease.pages, lease.reason) == (hits, reason)
            assert [bytes(view) for view in lease] == pages_under(keys, ns.page_bytes)[:hits]
        counts = client.namespace_counts()[ns.label]
        assert (counts.requested, counts.l2, counts.missed) == (6, 2 * hits, {reason: 6 - 2 * hits})
        client.close()


# --- instead of shared memory ---------------------------------------------------------------------------------------


def attached(client: Client) -> bool:
    return client.statistics()["transport"] == "shared_memory"


def test_a_client_refused_shared_memory_uses_grpc_says_why_and_attaches_when_it_can(
    sidecar: SidecarProcess, connect: MakeClient
) -> None:
    sidecar.flags += ("--client-rows", "2")
    sidecar.start()
    first = connect(sidecar.runtime)
    assert attached(first)
    second = connect(sidecar.runtime, reattach_s=0.2, deadline_s=10.0)
    statistics = second.statistics()
    assert statistics["transport"] == "grpc"
    assert "client_rows" in str(statistics["reason"])
    ns = second.register(namespace())
    keys = chain(ns.identified, 3)
    assert all_stored(put_fresh(second, ns, keys, pages_under(keys, ns.page_bytes)))
    first.close()
    wait_until(lambda: attached(second), what="the second client to attach")
    with second.lease(ns, keys) as lease:
        assert [bytes(view) for view in lease] == pages_under(keys, ns.page_bytes)
        assert second.statistics()["leases_held"] == 1


def test_a_client_in_a_foreign_time_namespace_uses_grpc_and_says_why(shared_sidecar: SidecarProcess) -> None:
    import json
    import shutil
    import subprocess
    import sys

    from tests.support.daemon import ROOT

    unshare = shutil.which("unshare")
    if (
        unshare is None
        or subprocess.run([unshare, "-T", "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("this system lets nobody make a time namespace")
    script = (
        "import json, sys; from inference_worker.client import Client\n"
        "from tests.inference_worker.worlds import *; from tests.support.puts import put_fresh\n"
        "client = Client.connect(sys.argv[1]); ns = client.register(namespace('foreign'))\n"
        "keys = chain(ns.identified, 2); put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes))\n"
        "with client.lease(ns, keys) as lease: right = list(map(bytes, lease)) == pages_under(keys, ns.page_bytes)\n"
        "print(json.dumps({'right': right, **client.statistics()}))"
    )
    done = subprocess.run(
        [unshare, "-T", "--boottime", "86400", sys.executable, "-c", script, str(shared_sidecar.runtime)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["right"]
    assert report["transport"] == "grpc"
    assert "time namespace" in report["reason"]


def test_a_read_only_client_leases_from_shared_memory_and_puts_over_grpc(
    shared_sidecar: SidecarProcess, connect: MakeClient
) -> None:
    client = connect(shared_sidecar.runtime, writable=False, deadline_s=10.0)
    assert attached(client)
    ns = client.register(namespace("read-only"))
    keys = chain(ns.identified, 3)
    assert all_stored(put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes)))
    with client.lease(ns, keys) as lease:
        assert [bytes(view) for view in lease] == pages_under(keys, ns.page_bytes)
        assert client.statistics()["leases_held"] == 1
