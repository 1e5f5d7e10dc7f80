"""Pages over gRPC against a real daemon: all sizes, all chunkings, what can be wrong, and who is unharmed by it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kv_types import errors, limits
from kv_types.ids import KEY_BYTES, NamespaceId, PageKey
from kv_types.namespace import Namespace
from kv_types.outcomes import KNOWN, STORED, Hit, Miss, MissReason, Refused, RefuseReason, Tier
from kv_types.page_keys import pack_keys
from kv_wire.channel import CacheCalls, open_channel
from kv_wire.checksum import checksum
from kv_wire.conversions import stamp_to_wire
from kv_wire.gen import cache_pb2, cache_pb2_grpc
from kv_wire.status import from_rpc_error
from kv_wire.transfer import Chunk, decode_get_response, encode_put_request
from tests.support.daemon import Daemon
from tests.support.polling import wait_until
from tests.support.relay import CountingRelay
from tests.support.remote_store import RemoteStore
from tests.support.spaces import fresh_chain, page_of, space_of

MIB = 2**20


def put_header(store: RemoteStore, namespace: Namespace, keys: list[PageKey]) -> cache_pb2.PutHeader:
    return cache_pb2.PutHeader(
        namespace_id=namespace.id,
        chain=cache_pb2.Chain(keys=pack_keys(keys)),
        stamp=stamp_to_wire(store.stamp()),
    )


def call_error(call: object) -> errors.StrataError:
    assert callable(call)
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return from_rpc_error(caught.value)


@pytest.mark.parametrize("page_bytes", [1, 100, 4096, 70_002, MIB - 1, MIB, MIB + 1, 3 * MIB + 7])
@pytest.mark.parametrize("chunk_bytes", [limits.GRPC_CHUNK_BYTES_MIN, limits.GRPC_CHUNK_BYTES])
def test_every_chunking_brings_the_same_bytes(
    channel: grpc.Channel, page_bytes: int, chunk_bytes: int
) -> None:
    store = RemoteStore(channel, chunk_bytes=chunk_bytes)
    namespace = store.register(space_of(page_bytes))
    keys = fresh_chain(5)
    pages = [page_of(key, page_bytes) for key in keys]
    assert store.put(namespace, keys[:4], pages[:4], stamp=store.stamp()) == [STORED] * 4
    into = [memoryview(bytearray(page_bytes)) for _ in keys]
    assert store.get(namespace, keys, into) == Hit(4, Tier.L2, MissReason.ABSENT)
    assert into[:4] == pages[:4]
    assert store.get(namespace, keys[:4], into[:2], start=2) == Hit(2, Tier.L2)
    assert into[:2] == pages[2:4]


@pytest.mark.parametrize(("pages", "page_bytes"), [(1, MIB), (8, MIB // 8), (256, 100), (256, 4096)])
def test_a_short_answer_comes_in_one_message(channel: grpc.Channel, pages: int, page_bytes: int) -> None:
    store = RemoteStore(channel, whole=True)
    namespace = store.register(space_of(page_bytes))
    keys = fresh_chain(pages)
    stored = [page_of(key, page_bytes) for key in keys]
    assert store.put(namespace, keys, stored, stamp=store.stamp()) == [STORED] * pages
    into = [memoryview(bytearray(page_bytes)) for _ in keys]
    assert store.get(namespace, keys, into) == Hit(pages, Tier.L2)
    assert into == stored
    assert store.status().arena["leases"] == 0


@pytest.mark.parametrize(("pages", "page_bytes"), [(1, MIB + 1), (2, MIB - 1), (257, 1)])
def test_an_answer_that_does_not_fit_one_message_is_told_to_use_get(
    store: RemoteStore, pages: int, page_bytes: int
) -> None:
    namespace = store.register(space_of(page_bytes))
    request = cache_pb2.GetRequest(
        namespace_id=namespace, chain=cache_pb2.Chain(keys=pack_keys(fresh_chain(pages)))
    )
    error = call_error(lambda: store.calls.get_whole_raw(request, timeout=10))
    assert isinstance(error, errors.LimitExceededError)
    assert "call Get" in str(error)


def test_another_implementation_of_protobuf_puts_and_gets_the_same_bytes(daemon: Daemon) -> None:
    """The generated stub with protobuf's own codec, as any foreign client would use it."""
    space = space_of(1000)
    keys = fresh_chain(2)
    pages = [bytes(page_of(key, 1000)) for key in keys]
    with grpc.insecure_channel(daemon.grpc_address) as channel:
        stub = cache_pb2_grpc.CacheStub(channel)
        registered = stub.RegisterNamespace(
            cache_pb2.RegisterNamespaceRequest(canonical=space.canonical, page_bytes=1000), timeout=10
        )
        header = cache_pb2.PutHeader(
            namespace_id=space.id, chain=cache_pb2.Chain(keys=pack_keys(keys)), stamp=registered.stamp
        )
        requests = [cache_pb2.PutRequest(header=header)]
        requests += [
            cache_pb2.PutRequest(chunks=[cache_pb2.PageChunk(page=index, data=page, checksum=checksum(page))])
            for index, page in enumerate(pages)
        ]
        answer = stub.Put(iter(requests), timeout=10)
        assert [page.status for page in answer.pages] == [cache_pb2.PUT_STATUS_STORED] * 2
        got = list(
            stub.Get(
                cache_pb2.GetRequest(namespace_id=space.id, chain=cache_pb2.Chain(keys=pack_keys(keys))),
                timeout=10,
            )
        )
    assert len(got) == 1, "a short answer is one message"
    assert got[0].header.pages == got[0].trailer.pages == 2
    assert [chunk.data for chunk in got[0].chunks] == pages
    assert [chunk.checksum for chunk in got[0].chunks] == [checksum(page) for page in pages]


def test_known_pages_are_told_and_keep_their_bytes(store: RemoteStore) -> None:
    namespace = store.register(space_of(MIB))
    keys = fresh_chain(2)
    pages = [page_of(key, MIB) for key in keys]
    assert store.put(namespace, keys, pages, stamp=store.stamp()) == [STORED, STORED]
    assert store.put(namespace, keys, [pages[1], pages[0]], stamp=store.stamp()) == [KNOWN, KNOWN]
    into = [memoryview(bytearray(MIB)) for _ in keys]
    store.get(namespace, keys, into)
    assert into == pages


def test_c32_a_refusal_ends_a_long_put_early_and_is_no_error(store: RemoteStore) -> None:
    """A page whose parent is absent: the other 63 MiB are not waited for, each page has its outcome."""
    namespace = store.register(space_of(MIB))
    keys = fresh_chain(65)
    blank = memoryview(bytes(MIB))
    outcomes = store.put(namespace, keys, [blank] * 64, start=1, stamp=store.stamp())
    assert outcomes == [Refused(RefuseReason.PARENT_ABSENT)] * 64


def test_a_damaged_page_is_refused_as_corrupt_and_never_served(
    store: RemoteStore,
) -> None:
    space = space_of(1000)
    store.register(space)
    keys = fresh_chain(1)
    page = page_of(keys[0], 1000)
    message = encode_put_request(
        header=put_header(store, space, keys), chunks=[Chunk(0, 0, page, checksum(page) ^ 1)]
    )
    answer = store.calls.put_raw(iter([message]), timeout=10)
    assert (answer.pages[0].status, answer.pages[0].reason) == (
        cache_pb2.PUT_STATUS_REFUSED,
        cache_pb2.REFUSE_REASON_CORRUPT,
    )
    assert store.look_up(space.id, keys) == Miss(MissReason.ABSENT)
    assert store.put(space.id, keys, [page], stamp=store.stamp()) == [STORED]


def test_a_put_without_a_stamp_is_refused_by_the_fields_name(store: RemoteStore) -> None:
    space = space_of(100)
    store.register(space)
    keys = fresh_chain(1)
    header = put_header(store, space, keys)
    header.ClearField("stamp")
    page = page_of(keys[0], 100)
    message = encode_put_request(header=header, chunks=[Chunk(0, 0, page, checksum(page))])
    error = call_error(lambda: store.calls.put_raw(iter([message]), timeout=10))
    assert isinstance(error, errors.InvalidArgumentError)
    assert "stamp" in str(error)
    assert store.look_up(space.id, keys) == Miss(MissReason.ABSENT)


def _reservations(store: RemoteStore) -> int:
    return store.status().arena["reservations"]


def test_c31_a_writer_that_goes_away_leaves_no_page_and_no_reservation(store: RemoteStore) -> None:
    space = space_of(MIB)
    store.register(space)
    keys = fresh_chain(1)
    half = Chunk(0, 0, page_of(keys[0], MIB)[: MIB // 2])
    reached = threading.Event()

    def half_a_page() -> Iterator[bytes]:
        yield encode_put_request(header=put_header(store, space, keys), chunks=[half])
        reached.wait(20)

    call = store.calls.put_raw.future(half_a_page(), timeout=30)
    wait_until(lambda: _reservations(store) == 1, what="the reservation of the half page")
    call.cancel()  # type: ignore[no-untyped-call]
    reached.set()
    wait_until(lambda: _reservations(store) == 0, what="the end of the reservation")
    assert store.look_up(space.id, keys) == Miss(MissReason.ABSENT)
    assert store.put(space.id, keys, [page_of(keys[0], MIB)], stamp=store.stamp()) == [STORED]


def test_a_reader_that_goes_away_leaves_no_lease(store: RemoteStore) -> None:
    namespace = store.register(space_of(MIB))
    keys = fresh_chain(40)
    store.put(namespace, keys, [page_of(key, MIB) for key in keys], stamp=store.stamp())
    call = store.calls.get_raw(
        cache_pb2.GetRequest(namespace_id=namespace, chain=cache_pb2.Chain(keys=pack_keys(keys))), timeout=30
    )
    next(iter(call))
    assert store.status().arena["leases"] == 40
    call.cancel()  # type: ignore[no-untyped-call]
    wait_until(lambda: store.status().arena["leases"] == 0, what="the end of the leases")


def test_the_callers_deadline_ends_the_work(store: RemoteStore) -> None:
    namespace = store.register(space_of(MIB))
    keys = fresh_chain(40)
    store.put(namespace, keys, [page_of(key, MIB) for key in keys], stamp=store.stamp())
    request = cache_pb2.GetRequest(namespace_id=namespace, chain=cache_pb2.Chain(keys=pack_keys(keys)))
    call = store.calls.get_raw(request, timeout=0.5)
    next(iter(call))
    # Nobody reads on, so flow control holds the sender; only the deadline can end it.
    wait_until(lambda: store.status().arena["leases"] == 0, what="the end of the leases at the deadline")

    def stalled() -> Iterator[bytes]:
        yield encode_put_request(header=put_header(store, space_small, fresh_chain(1)))
        threading.Event().wait(5)

    space_small = space_of(100)
    store.register(space_small)
    error = call_error(lambda: store.calls.put_raw(stalled(), timeout=0.3))
    assert isinstance(error, errors.DeadlineExceededError)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([b""], "begins with a header"),
        ([], "without one"),
        ([b"\xff" * 40], "not a PutRequest"),
        ([b"\x0a\x05hello"], "not a PutHeader"),
        (["header", "header"], "second header"),
        (["header"], "ended in page 0 at byte 0"),
        (["header", Chunk(0, 0, memoryview(bytes(60)))], "ended in page 0 at byte 60 of 100"),
        (["header", Chunk(0, 0, memoryview(bytes(101)))], "a chunk brings 101 more"),
        (["header", Chunk(1, 0, memoryview(bytes(100)))], "expected page 0"),
        (["header", Chunk(0, 0, memoryview(b""))], "empty chunk"),
        (["header", "page", "page"], "expected page 1 from byte 0"),
        (["header", "page", "page 1", "page 1"], "after the last page"),
    ],
)
def test_a_wrong_put_is_named_and_the_daemon_is_unharmed(
    store: RemoteStore, parts: list[object], says: str
) -> None:
    space = space_of(100)
    store.register(space)
    keys = fresh_chain(2)
    pages = [page_of(key, 100) for key in keys]
    known: dict[object, bytes] = {
        "header": encode_put_request(header=put_header(store, space, keys)),
        "page": encode_put_request(chunks=[Chunk(0, 0, pages[0], checksum(pages[0]))]),
        "page 1": encode_put_request(chunks=[Chunk(1, 0, pages[1], checksum(pages[1]))]),
    }
    messages = [
        part
        if isinstance(part, bytes)
        else encode_put_request(chunks=[part])
        if isinstance(part, Chunk)
        else known[part]
        for part in parts
    ]
    error = call_error(lambda: store.calls.put_raw(iter(messages), timeout=10))
    assert isinstance(error, errors.InvalidArgumentError | errors.ProtocolError)
    assert says in str(error)
    assert _reservations(store) == 0
    expected: list[object] = [KNOWN if "page" in parts else STORED, KNOWN if "page 1" in parts else STORED]
    assert store.put(space.id, keys, pages, stamp=store.stamp()) == expected


@pytest.mark.parametrize(
    ("method", "request_bytes", "kind", "says"),
    [
        ("LookUp", b"\xff\xff\xff", errors.ProtocolError, "not a valid LookUpRequest"),
        ("Get", b"\x0a\x7fx", errors.ProtocolError, "not a valid GetRequest"),
        ("Status", b"\x07", errors.ProtocolError, "not a valid StatusRequest"),
        ("RegisterNamespace", b"\x80", errors.ProtocolError, "not a valid RegisterNamespaceRequest"),
        ("RegisterNamespace", b"", errors.LimitExceededError, "1 to 16384 bytes"),
        ("LookUp", b"", errors.LimitExceededError, "1 to 256 rows"),
        ("Get", b"", errors.InvalidIdentifierError, "32 bytes"),
        ("GetWhole", b"\x0a\x7fx", errors.ProtocolError, "not a valid GetRequest"),
        ("GetWhole", b"", errors.InvalidIdentifierError, "32 bytes"),
        ("Nonsense", b"", errors.HandshakeError, "Method not found"),
    ],
)
def test_garbage_on_the_grpc_socket_is_named(
    channel: grpc.Channel, method: str, request_bytes: bytes, kind: type[errors.StrataError], says: str
) -> None:
    call = channel.unary_unary(f"/stratakv.v1.Cache/{method}", None, None)
    error = call_error(lambda: call(request_bytes, timeout=10))
    assert type(error) is kind
    assert says in str(error)


def test_bytes_that_are_no_http2_end_their_connection_alone(daemon: Daemon, store: RemoteStore) -> None:
    for garbage in (
        os.urandom(2000),
        b"GET / HTTP/1.0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(500),
    ):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(10)
            raw.connect(str(daemon.runtime_dir / "grpc.sock"))
            raw.sendall(garbage)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                pass
    assert store.status().serving


def test_unknown_namespaces_conflicts_and_limits_are_named(store: RemoteStore) -> None:
    space = space_of(100)
    keys = fresh_chain(1)
    with pytest.raises(errors.UnknownNamespaceError, match="register"):
        store.look_up(space.id, keys)
    with pytest.raises(errors.UnknownNamespaceError):
        store.get(space.id, keys, [memoryview(bytearray(100))])
    store.register(space)
    wrong = cache_pb2.RegisterNamespaceRequest(canonical=space.canonical, page_bytes=101)
    assert isinstance(
        call_error(lambda: store.calls.register_namespace(wrong, timeout=10)), errors.LayoutConflictError
    )
    torn = cache_pb2.RegisterNamespaceRequest(canonical=space.canonical[:-1], page_bytes=100)
    assert isinstance(
        call_error(lambda: store.calls.register_namespace(torn, timeout=10)), errors.ProtocolError
    )
    rows = [cache_pb2.Chain(keys=keys[0])] * (limits.LOOK_UP_ROWS_MAX + 1)
    many = cache_pb2.LookUpRequest(namespace_id=space.id, rows=rows)
    assert isinstance(call_error(lambda: store.calls.look_up(many, timeout=10)), errors.LimitExceededError)
    chunks = cache_pb2.GetRequest(namespace_id=space.id, chain=rows[0], chunk_bytes=5)
    assert isinstance(
        call_error(lambda: list(store.calls.get_raw(chunks, timeout=10))), errors.LimitExceededError
    )


def test_a_message_above_the_limit_is_refused_and_named(daemon: Daemon, store: RemoteStore) -> None:
    space = space_of(100)
    store.register(space)
    rows = [cache_pb2.Chain(keys=bytes(KEY_BYTES * 20_000))] * 8
    request = cache_pb2.LookUpRequest(namespace_id=space.id, rows=rows)
    assert request.ByteSize() > limits.GRPC_MESSAGE_BYTES_MAX
    with grpc.insecure_channel(daemon.grpc_address) as unlimited:
        call = cache_pb2_grpc.CacheStub(unlimited).LookUp
        error = call_error(lambda: call(request, timeout=10))
        assert isinstance(error, errors.LimitExceededError)
        zipped = call_error(lambda: call(request, timeout=10, compression=grpc.Compression.Gzip))
        assert isinstance(zipped, errors.LimitExceededError), "small on the wire, too large when unpacked"


def test_a_batch_of_look_ups_answers_row_by_row(store: RemoteStore) -> None:
    namespace = store.register(space_of(100))
    whole, part, none = fresh_chain(3), fresh_chain(3), fresh_chain(3)
    store.put(namespace, whole, [page_of(key, 100) for key in whole], stamp=store.stamp())
    store.put(namespace, part[:1], [page_of(part[0], 100)], stamp=store.stamp())
    before = store.status()
    request = cache_pb2.LookUpRequest(
        namespace_id=namespace,
        rows=[cache_pb2.Chain(keys=pack_keys(keys)) for keys in (whole, part, none)],
        prefetch=True,
    )
    answer = store.calls.look_up(request, timeout=10)
    found = [
        (row.pages, row.ended_by, [(tier.tier, tier.pages) for tier in row.tiers]) for row in answer.rows
    ]
    assert found == [
        (3, cache_pb2.MISS_REASON_NONE, [(cache_pb2.TIER_L2, 3)]),
        (1, cache_pb2.MISS_REASON_ABSENT, [(cache_pb2.TIER_L2, 1)]),
        (0, cache_pb2.MISS_REASON_ABSENT, []),
    ]
    assert not any(row.pending_pages for row in answer.rows), "there is no tier to prefetch from"
    assert answer.stamp == before.stamp


def test_answers_are_compressed_where_asked_for_and_above_1_kib_only(
    daemon: Daemon, store: RemoteStore, tmp_path: Path
) -> None:
    zeros = memoryview(bytes(MIB))
    large, small = store.register(space_of(MIB)), store.register(space_of(900))
    (large_key,), (small_key,) = fresh_chain(1), fresh_chain(1)
    store.put(large, [large_key], [zeros], stamp=store.stamp())
    store.put(small, [small_key], [zeros[:900]], stamp=store.stamp())
    relay = CountingRelay(tmp_path / "r.sock", daemon.runtime_dir / "grpc.sock")

    def sent_back(namespace: NamespaceId, key: PageKey, metadata: tuple[tuple[str, str], ...]) -> int:
        before = relay.sent_back
        request = cache_pb2.GetRequest(namespace_id=namespace, chain=cache_pb2.Chain(keys=key))
        payload = b"".join(
            bytes(chunk.data)
            for message in calls.get_raw(request, timeout=10, metadata=metadata)
            for chunk in decode_get_response(message).chunks
        )
        assert not any(payload)
        assert len(payload) in (MIB, 900)
        return relay.sent_back - before

    asked = (("stratakv-compression", "gzip"),)
    with open_channel(f"unix:{tmp_path / 'r.sock'}") as channel:
        calls = CacheCalls(channel)
        sent_back(small, small_key, ())
        assert sent_back(large, large_key, ()) > MIB
        assert sent_back(large, large_key, asked) < MIB // 10
        assert sent_back(large, large_key, (("stratakv-compression", "unheard-of"),)) > MIB
        assert sent_back(small, small_key, asked) > 900
    relay.close()


def test_c35_the_socket_is_this_users_alone(daemon: Daemon) -> None:
    for name, mode in (("", 0o700), ("grpc.sock", 0o600), ("attach.sock", 0o600), ("sidecar.lock", 0o600)):
        found = Path(daemon.runtime_dir / name).stat()
        assert found.st_mode & 0o777 == mode, name
        assert found.st_uid == os.getuid()
