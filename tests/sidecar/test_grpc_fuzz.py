"""Whatever comes over gRPC, in whatever shape: no bug answers, nothing stays behind, and a neighbour is served meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.message import Message

from kv_types.outcomes import STORED, Hit
from kv_types.page_keys import pack_keys
from kv_wire.admin_calls import ADMIN_SERVICE
from kv_wire.channel import SERVICE, open_channel
from kv_wire.conversions import stamp_to_wire
from kv_wire.gen import admin_pb2, cache_pb2
from kv_wire.transfer import encode_put_request
from tests.support.daemon import Daemon
from tests.support.polling import wait_until
from tests.support.protobuf_noise import Noise
from tests.support.remote_store import RemoteStore
from tests.support.spaces import fresh_chain, page_of, space_of

SECONDS = 10.0
PAGE_BYTES = 1000
CALL_S = 1.0
A_BUG = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
METHODS = [
    (f"/{service.full_name}/{method.name}", message_factory.GetMessageClass(method.input_type), method)
    for file in (admin_pb2.DESCRIPTOR, cache_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
]


@pytest.fixture(scope="module")
def serving() -> Iterator[Daemon]:
    with (
        tempfile.TemporaryDirectory(prefix="skv-") as scratch,
        Daemon(Path(scratch) / "run", "--no-l3") as running,
    ):
        yield running.wait_ready()


class Neighbour(threading.Thread):
    """Puts pages and gets them back, until it is told to end: what it gets is right, byte for byte, and comes in time.

    Pages may be invalidated at any time by whoever fuzzes.
    """

    def __init__(self, address: str) -> None:
        super().__init__(name="neighbour")
        self._address = address
        self._ending = threading.Event()
        self._space = space_of(PAGE_BYTES)
        self.rounds = 0
        self.hits = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with open_channel(self._address) as channel:
                store = RemoteStore(channel)
                while not self._ending.is_set():
                    self._round(store)
        except BaseException as error:
            self.failure = error

    def _round(self, store: RemoteStore) -> None:
        space, keys = store.register(self._space), fresh_chain(2)
        pages = [page_of(key, PAGE_BYTES) for key in keys]
        store.put(space, keys, pages, stamp=store.stamp())
        room = [memoryview(bytearray(PAGE_BYTES)) for _ in keys]
        outcome = store.get(space, keys, room)
        if isinstance(outcome, Hit):
            assert room[: outcome.pages] == pages[: outcome.pages]
            self.hits += outcome.pages
        self.rounds += 1

    def __enter__(self) -> Neighbour:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.join(30)
        assert not self.is_alive(), "the neighbour hangs"
        if self.failure is not None:
            raise self.failure


def requests_of(noise: Noise, draw: random.Random, kind: type[Message]) -> Iterator[bytes]:
    """One message, or several of a stream; damaged half of the time."""
    for _ in range(draw.choice([1, 1, 2, 5])):
        data = noise.fill(kind()).SerializeToString()
        yield noise.damage(data) if draw.random() < 0.5 else data


def test_random_and_damaged_requests_of_every_method_are_answered_and_leave_nothing(serving: Daemon) -> None:
    seed = int(os.environ.get("STRATAKV_FUZZ_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"STRATAKV_FUZZ_SEED={seed}")
    draw, codes, calls = random.Random(seed), Counter[grpc.StatusCode](), 0
    with open_channel(serving.grpc_address) as channel:
        store, keys = RemoteStore(channel), fresh_chain(3)
        space = store.register(space_of(PAGE_BYTES, model="fuzzed"))
        assert (
            store.put(space, keys, [page_of(key, PAGE_BYTES) for key in keys], stamp=store.stamp())
            == [STORED] * 3
        )
        stamp = store.stamp()
        assert stamp is not None
        noise = Noise(draw, [bytes(space), pack_keys(keys), bytes(keys[0]), stamp.incarnation])
        end_s = time.monotonic() + SECONDS
        with Neighbour(serving.grpc_address) as neighbour:
            while time.monotonic() < end_s:
                path, kind, method = METHODS[calls % len(METHODS)]
                codes[
                    call(channel, path, requests_of(noise, draw, kind), streams=method.client_streaming)
                ] += 1
                calls += 1
        assert min(neighbour.rounds, neighbour.hits) > SECONDS, "it was served all the time"
        assert not A_BUG & set(codes), codes
        assert calls > 5 * len(METHODS)
        assert min(codes[grpc.StatusCode.OK], codes[grpc.StatusCode.INVALID_ARGUMENT]) > 10, codes
        wait_until(lambda: _held(store) == (0, 0), what="all leases and reservations to end")
    assert [line for line in serving.lines if line["level"] in ("error", "critical")] == []


def call(channel: grpc.Channel, path: str, requests: Iterator[bytes], *, streams: bool) -> grpc.StatusCode:
    """How it ended."""
    try:
        if streams:
            channel.stream_unary(path, None, None)(requests, timeout=CALL_S)
        else:
            # Answers may never end, or be more than anybody reads.
            for _, _ in zip(
                channel.unary_stream(path, None, None)(next(requests), timeout=CALL_S), range(3), strict=False
            ):
                pass
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def _held(store: RemoteStore) -> tuple[int, int]:
    arena = store.status().arena
    return arena["leases"], arena["reservations"]


def test_connections_that_say_nothing_and_streams_that_stop_keep_nobody_out(serving: Daemon) -> None:
    path = str(serving.runtime_dir / "grpc.sock")
    space = space_of(PAGE_BYTES)
    with contextlib.ExitStack() as held, open_channel(serving.grpc_address) as channel:
        store = RemoteStore(channel)
        store.register(space)
        for _ in range(200):
            raw = held.enter_context(socket.socket(socket.AF_UNIX))
            raw.connect(path)
        going = threading.Event()
        held.callback(going.set)
        header = cache_pb2.PutHeader(
            namespace_id=space.id,
            chain=cache_pb2.Chain(keys=fresh_chain(1)[0]),
            stamp=stamp_to_wire(store.stamp()),
        )

        def stops() -> Iterator[bytes]:
            yield encode_put_request(header=header)
            going.wait(30)

        stalled = held.enter_context(open_channel(serving.grpc_address))
        for _ in range(300):
            held.callback(store_put(stalled, stops()).cancel)
        with Neighbour(serving.grpc_address) as neighbour:
            wait_until(
                lambda: neighbour.rounds > 20 or neighbour.failure is not None,
                what="a neighbour to be served",
            )


def store_put(channel: grpc.Channel, requests: Iterator[bytes]) -> Any:
    return channel.stream_unary(f"/{SERVICE}/Put", None, None).future(requests, timeout=30)


def test_every_method_is_asked() -> None:
    assert {path.split("/")[1] for path, _, _ in METHODS} == {SERVICE, ADMIN_SERVICE}
