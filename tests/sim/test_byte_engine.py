"""The simulation's engine of bytes against the native one: the same requests to the same values end in the same way."""

from __future__ import annotations

import socket
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import xxhash
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from redis import Redis

from cache_l3._native import Engine
from cache_l3.commands import encode_get, encode_question, encode_set
from cache_l3.verification import SHAPE
from kv_types.clock import BoottimeClock
from kv_types.limits import L3_LINE_BYTES_MAX, L3_PASSED_OVER_MAX, L3_REPLY_BYTES_MAX, L3_WINDOW_BYTES
from tests.sim.byte_engine import ModelEngine
from tests.sim.clockwork import MS, Clockwork, S
from tests.sim.loop import SimulatedLoop
from tests.sim.network import Network
from tests.sim.nodes import Node
from tests.sim.page_sockets import PageSocket
from tests.sim.redis_client import SimulatedAddress
from tests.sim.redis_server import RedisServer, Session
from tests.sim.scripts import LUA
from tests.support import redis_servers as real

PAGE = 16
SETTINGS: dict[str, int] = {
    "size_at": SHAPE.size_at, "checksum_at": SHAPE.checksum_at, "header_bytes_min": SHAPE.bytes_min,
    "header_bytes_max": SHAPE.bytes_max, "window": 2, "window_bytes": L3_WINDOW_BYTES, "passed_over_max": L3_PASSED_OVER_MAX,
    "line_bytes_max": L3_LINE_BYTES_MAX, "reply_bytes_max": L3_REPLY_BYTES_MAX,
}  # fmt: skip
Command = tuple[Any, ...]


def header(size: int = SHAPE.bytes_min) -> bytes:
    """Bytes that say that they are a header of so many."""
    made = bytearray(SHAPE.bytes_min)
    made[SHAPE.size_at : SHAPE.size_at + 4] = size.to_bytes(4, "little")
    return bytes(made)


values = st.sampled_from(
    (
        b"", b"short", header() + bytes(PAGE), header() + b"x" * (PAGE - 1), header() + b"y" * (PAGE + 3),
        header(1 << 30) + bytes(PAGE), header(3), header() + bytes(4 * SHAPE.bytes_max),
    )
)  # fmt: skip
keys = st.sampled_from((b"a", b"b"))
commands: st.SearchStrategy[Command] = st.one_of(
    st.tuples(st.just("get"), st.sampled_from((b"a", b"b", b"hash")), st.booleans()),
    st.tuples(st.just("set"), keys, st.binary(min_size=PAGE, max_size=PAGE)),
    st.tuples(st.just("value"), keys, values),
    st.tuples(
        st.just("ask"),
        st.lists(
            st.one_of(
                st.tuples(st.just(b"GETRANGE"), keys, st.just(b"0"), st.just(b"9")),
                st.tuples(st.just(b"EXPIRE"), keys, st.just(b"100")),
                st.tuples(st.just(b"UNLINK"), keys),
                st.tuples(st.just(b"PING")),
                st.tuples(st.just(b"HSET"), st.just(b"hash"), st.just(b"f"), st.just(b"v")),
            ),
            min_size=1,
            max_size=3,
        ),
    ),
)


class Model:
    """The engine of the simulation, on a server of the simulation."""

    def __init__(self) -> None:
        self.clockwork = Clockwork(1)
        network = Network(self.clockwork)
        self.node = Node(self.clockwork, "n0")
        self.server = RedisServer(
            self.clockwork, network, Node(self.clockwork, "r0"), LUA, on_write=lambda *_: None
        )
        process = self.node.process("sidecar")
        self.loop = SimulatedLoop(self.clockwork, self.node, process, turn_ns=lambda: 0)
        self.engine: Any = None
        self.shard = 0
        self._address = SimulatedAddress(self.clockwork, network, self.node, process, self.server)
        self.loop.call_soon(lambda: self._begin(process))
        self.wait()

    def _begin(self, process: Any) -> None:
        self.engine = ModelEngine(self.clockwork, process, **SETTINGS)
        self.shard = self.engine.open_shard()
        self.connect()

    def connect(self) -> None:
        connection = PageSocket(self._address)
        self.server.connections.append(connection)
        self.engine.add_connection(self.shard, connection.detach())

    def put(self, key: bytes, value: bytes) -> None:
        self.server.execute(Session(), b"SET", key, value, b"EX", b"100")

    def now_ns(self) -> int:
        return self.node.now_ns()

    def wait(self) -> None:
        self.clockwork.run(self.clockwork.now_ns + 100 * MS)

    def end(self) -> None:
        self.engine.close()
        self.clockwork.end()


class Native:
    """The native one, on a real server."""

    def __init__(self, server: Redis) -> None:
        self.server = server
        self.engine: Any = Engine(**SETTINGS)
        self.shard = self.engine.open_shard()
        self._where = server.connection_pool.connection_kwargs
        self.connect()

    def connect(self) -> None:
        if "path" in self._where:
            made = socket.socket(socket.AF_UNIX)
            made.connect(self._where["path"])
        else:
            made = socket.create_connection((self._where["host"], self._where["port"]))
        made.setblocking(False)
        self.engine.add_connection(self.shard, made.detach())

    def put(self, key: bytes, value: bytes) -> None:
        self.server.set(key, value, ex=100)

    def now_ns(self) -> int:
        return BoottimeClock().now_ns()

    def wait(self) -> None:
        time.sleep(0.0005)

    def end(self) -> None:
        self.engine.close()


def carry_out(side: Any, command: Command) -> tuple[Any, ...]:
    """How a request ends: status, whether it was sent, its value, and what lies in its place; and whether a connection does."""
    name, *rest = command
    place, deadline_ns = bytearray(b"." * PAGE), side.now_ns() + 10 * S
    if name == "value":
        side.put(*rest)
        return ()
    if name == "get":
        key, is_late = rest
        number = side.engine.get(
            side.shard, encode_get(key, asking=False), place, asking=False,
            deadline_ns=side.now_ns() - 1 if is_late else deadline_ns,
        )  # fmt: skip
    elif name == "set":
        key, payload = rest
        before, after = encode_set(key, value_bytes=len(header()) + PAGE, ttl_s=100, asking=False)
        number = side.engine.set(
            side.shard, before, header(), payload, after, asking=False, deadline_ns=deadline_ns
        )
    else:
        (questions,) = rest
        number = side.engine.ask(
            side.shard, encode_question(questions, asking=False), len(questions), deadline_ns=deadline_ns
        )
    side.engine.flush()
    ended: dict[int, Any] = {}
    connections = 0
    for _ in range(20_000):
        for one, status, was_sent, value in side.engine.drain():
            connections += one < 0
            ended |= {one: (status, was_sent, value)} if one >= 0 else {}
        if number in ended:
            break
        side.wait()
    if connections:
        side.connect()
        side.wait()  # the native engine has it before any later request; the model may not
    status, was_sent, value = ended[number]
    return status, (was_sent if status else None), _plain(status, value), bytes(place), bool(connections)


def _plain(status: int, value: Any) -> Any:
    """Without words for people, and buffers as bytes."""
    if status == 4:  # refused: what the server said is told
        return value
    if status:
        return None
    if isinstance(value, tuple):
        head, size, in_place, apart, checksum = value
        return bytes(head), size, in_place, None if apart is None else bytes(memoryview(apart)), checksum
    return value


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with real.redis_servers() as servers:
        yield servers.start().client


@settings(max_examples=60, deadline=None, phases=(Phase.explicit, Phase.generate, Phase.shrink))
@example([("value", b"a", bytes(20_000)), ("get", b"a", False), ("get", b"a", True)])
@given(st.lists(commands, min_size=1, max_size=12))
def test_requests_end_as_with_the_native_engine(server: Redis, commands: list[Command]) -> None:
    server.flushall()
    model, native = Model(), Native(server)
    try:
        for command in commands:
            mine, theirs = carry_out(model, command), carry_out(native, command)
            assert mine == theirs, command
    finally:
        model.end()
        native.end()


def test_a_record_is_sealed_on_its_way() -> None:
    model = Model()
    carry_out(model, ("set", b"a", b"p" * PAGE))
    stored = model.server.execute(Session(), b"GET", b"a")
    at = SHAPE.checksum_at
    assert stored[at : at + 8] == xxhash.xxh3_64_intdigest(b"p" * PAGE).to_bytes(8, "little")
    assert stored[SHAPE.bytes_min - 4 : SHAPE.bytes_min] == zlib.crc32(
        stored[: SHAPE.bytes_min - 4]
    ).to_bytes(4, "little")
    model.end()
