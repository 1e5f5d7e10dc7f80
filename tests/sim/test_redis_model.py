"""The simulation's Redis against real ones: the log's script in any order of verbs, and what replication does to a server."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from redis import Connection, Redis
from redis._parsers import BaseParser
from redis.exceptions import ResponseError

from invalidation.log import LogLimits
from invalidation.redis.script import script_arguments, script_keys, script_text
from tests.sim.clockwork import Clockwork, S
from tests.sim.network import Network
from tests.sim.nodes import Node
from tests.sim.redis_data import Stream
from tests.sim.redis_server import RedisServer, Session
from tests.sim.scripts import LUA
from tests.support import redis_servers as real
from tests.support.lua_redis import ErrorReply

KEYS = [key.encode() for key in script_keys("fleet")]
LIMITS = LogLimits(
    records=4, batch=2, per_scope=3, tombstones=4, scopes=2, requests=3, weights=2, namespaces=2, members=2
)
TEXT = script_text().encode()
SPACES = [b"n" + bytes([number]) * 32 for number in range(4)]

Command = tuple[bytes, ...]
_parse_error: Callable[[str], Exception] = BaseParser.parse_error


def _digest(number: int) -> bytes:
    return b"%040x" % number


small = st.integers(0, 6).map(lambda number: b"%d" % number)
ids = st.sampled_from([b"a" * 16, b"b" * 16, b"c" * 16])
scopes = st.sampled_from([b"-", *SPACES])
appends = st.one_of(
    st.tuples(st.just(b"E"), st.just(b"-"), st.just(b"")),
    st.tuples(st.just(b"N"), st.sampled_from(SPACES), st.just(b"")),
    st.tuples(st.just(b"T"), scopes, st.binary(min_size=1, max_size=3)),
    st.tuples(st.just(b"W"), st.sampled_from([b"m", b"n", b"o"]), small),
)
verbs: st.SearchStrategy[Command] = st.one_of(
    st.tuples(st.just(b"append"), ids, st.binary(max_size=4), appends).map(lambda v: (*v[:3], *v[3])),
    st.tuples(st.just(b"append"), st.binary(min_size=16, max_size=16), st.just(b"p"), appends).map(
        lambda v: (*v[:3], *v[3])
    ),
    st.tuples(
        st.just(b"renew"), ids, small, st.sampled_from([b"PRESENT", b"f" * 32]), small,
        st.sampled_from([b"PRESENT", _digest(0)]), small, small, st.just(b"{}"),
    ),
    st.tuples(st.just(b"boot")),
    st.tuples(st.just(b"fence")),
    st.tuples(st.just(b"fork"), st.sampled_from([b"PRESENT", b"f" * 32])),
    st.tuples(st.just(b"settle"), st.sampled_from([b"PRESENT", b"f" * 32])),
    st.tuples(st.just(b"leave"), ids, small, st.sampled_from([b"0", b"1"])),
    st.tuples(st.just(b"set_replicas"), small),
    st.tuples(st.just(b"read"), small, small),
    st.tuples(st.just(b"know"), st.binary(min_size=1, max_size=3)),
    st.tuples(st.just(b"namespaces")),
    st.tuples(st.just(b"statistics")),
    st.tuples(st.just(b"FLUSHALL")),
    st.tuples(st.just(b"UNLINK"), st.sampled_from(KEYS)),
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with real.redis_servers() as servers:
        yield servers.start().client


def ask(server: Redis, *command: Any) -> Any:
    """Send one command."""
    execute: Callable[..., Any] = server.execute_command
    return execute(*command)


def _model() -> RedisServer:
    clockwork = Clockwork(0)
    return RedisServer(clockwork, Network(clockwork), Node(clockwork, "r0"), LUA, on_write=lambda *_: None)


def _arguments(command: Command, incarnation: bytes, replies: list[Any]) -> list[bytes]:
    """Arguments of the script; PRESENT stands for what the last reply named."""
    present = next((reply for reply in reversed(replies) if isinstance(reply, list)), None)
    verb, *rest = command
    filled = []
    for at, part in enumerate(rest):
        value = part
        if part == b"PRESENT" and present is not None:
            value = present[1] if verb != b"renew" or at == 2 else _digest_of(replies)
        filled.append(value)
    return [
        bytes(one)
        for one in script_arguments(
            verb.decode(), *filled, incarnation=incarnation, replicas=0, limits=LIMITS
        )
    ]


def _digest_of(replies: list[Any]) -> bytes:
    """The digest that the last boot told."""
    told = (reply[5] for reply in reversed(replies) if isinstance(reply, list) and len(reply) == 9)
    return next(told, _digest(0))


def _plain(reply: Any) -> Any:
    """Without what no hash promises: the order of its fields."""
    if isinstance(reply, list):
        return [sorted(map(repr, one)) if isinstance(one, list) else one for one in reply]
    return reply


@settings(max_examples=60, deadline=None, phases=(Phase.generate, Phase.shrink))
@given(st.lists(verbs, min_size=1, max_size=30))
def test_the_script_answers_as_on_a_real_server(server: Redis, commands: list[Command]) -> None:
    server.flushall()
    model, session = _model(), Session()
    replies: list[Any] = []
    for number, command in enumerate(commands):
        if command[0] in (b"FLUSHALL", b"UNLINK"):
            assert model.execute(session, *command) == ask(server, *command)
            continue
        arguments = _arguments(command, b"%016d" % number, replies)
        call = (TEXT, b"%d" % len(KEYS), *KEYS, *arguments)
        expected = ask(server, "EVAL", *call)
        got = model.execute(session, b"EVAL", *call)
        assert _plain(got) == _plain(expected), command
        replies.append(got)
    assert _contents(model) == _contents_of(server)


strings: st.SearchStrategy[Command] = st.one_of(
    st.tuples(st.just(b"SET"), small, st.binary(max_size=9)),
    st.tuples(st.just(b"SET"), small, st.binary(max_size=9), st.just(b"EX"), st.sampled_from([b"0", b"100"])),
    st.tuples(st.just(b"SET"), small, st.binary(max_size=9), st.just(b"PXAT"), st.sampled_from([b"1", b"99999999999999"])),
    st.tuples(st.sampled_from([b"GET", b"STRLEN", b"TTL", b"EXISTS", b"UNLINK"]), small),
    st.tuples(st.just(b"GETRANGE"), small, small, small),
    st.tuples(st.just(b"EXPIRE"), small, st.sampled_from([b"-1", b"100"])),
)  # fmt: skip


@settings(max_examples=60, deadline=None, phases=(Phase.generate, Phase.shrink))
@given(st.lists(strings, min_size=1, max_size=30))
def test_strings_and_their_times_are_as_on_a_real_server(server: Redis, commands: list[Command]) -> None:
    server.flushall()
    model, session = _model(), Session()
    model.node.wall_offset_ns = time.time_ns()
    for command in commands:
        expected: Any = None
        try:
            expected = ask(server, *command)
        except ResponseError as error:
            with pytest.raises(ErrorReply, match=re.escape(str(error))):
                model.execute(session, *command)
            continue
        got = model.execute(session, *command)
        assert got == (b"OK" if expected is True else expected), command


def _contents(model: RedisServer) -> dict[bytes, Any]:
    contents: dict[bytes, Any] = {
        key: [
            (b"%d-%d" % entry, dict(zip(pairs[::2], pairs[1::2], strict=True)))
            for entry, pairs in value.entries
        ]
        if isinstance(value, Stream)
        else dict(value)
        for key, value in model.keyspace.values.items()
    }
    contents.get(KEYS[0], {}).pop(b"history", None)
    return contents


def _contents_of(server: Redis) -> dict[bytes, Any]:
    contents: dict[bytes, Any] = {
        key: server.xrange(key) if server.type(key) == b"stream" else server.hgetall(key)
        for key in ask(server, "KEYS", "*")
    }
    contents.get(KEYS[0], {}).pop(b"history", None)
    return contents


# --- what replication, promotions and restarts do ---


class RealPair:
    """A primary and a replica that are processes."""

    def __init__(self, servers: real.RedisServers) -> None:
        self.one = servers.start()
        self.two = servers.start()

    def connect(self, server: Any) -> Callable[..., Any]:
        connect: Callable[..., Any] = Connection
        connection = connect(host="127.0.0.1", port=server.port)
        connection.connect()

        def call(*command: Any) -> Any:
            connection.send_command(*command)
            try:
                return connection.read_response()
            except ResponseError as error:
                return type(error).__name__

        return call

    def follow(self, server: Any, primary: Any) -> None:
        server.follow(primary)

    def identity(self, server: Any) -> tuple[str, str]:
        return server.info("replication")["master_replid"], server.info("server")["run_id"]

    def pass_time(self) -> None:
        """Real servers see to that themselves."""

    def restart(self, server: Any) -> None:
        server.restart()


class ModelPair:
    """The same as models."""

    def __init__(self) -> None:
        self.clockwork = Clockwork(1)
        network = Network(self.clockwork)
        make = functools.partial(RedisServer, scripts=LUA, on_write=lambda *_: None)
        self.one = make(self.clockwork, network, Node(self.clockwork, "r0"))
        self.two = make(self.clockwork, network, Node(self.clockwork, "r1"))
        self._dumps: dict[RedisServer, dict[bytes, Any]] = {}

    def connect(self, server: RedisServer) -> Callable[..., Any]:
        session = Session()
        server.execute(session, b"CLIENT", b"SETINFO")  # as redis-py does when it connects

        def call(*command: Any) -> Any:
            parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
            if parts[0] == b"WAIT":
                answers: list[Any] = []
                server.wait(session, int(parts[1]), int(parts[2]), answers.append)
                self.pass_time()
                return answers[0]
            if parts[0] == b"SAVE":
                self._dumps[server] = server.keyspace.snapshot()
                return b"OK"
            try:
                return server.execute(session, *parts)
            except ErrorReply as error:
                return type(_parse_error(str(error))).__name__
            finally:
                self.pass_time()

        return call

    def follow(self, server: RedisServer, primary: RedisServer) -> None:
        server.follow(primary)
        self.pass_time()

    def identity(self, server: RedisServer) -> tuple[str, str]:
        return server.replication_id, server.run_id

    def pass_time(self) -> None:
        self.clockwork.run(self.clockwork.now_ns + 1 * S)

    def restart(self, server: RedisServer) -> None:
        server.crash()
        server.restart(RedisServer.copy(self._dumps[server]))


def _observe(
    pair: Any, freeze: Callable[[], None], thaw: Callable[[], None], promote: Callable[[], None]
) -> list[Any]:
    """One story, told by what two servers answer in it."""
    seen: list[Any] = []
    alone = pair.identity(pair.one)
    pair.follow(pair.two, pair.one)
    primary, replica = pair.identity(pair.one), pair.identity(pair.two)
    seen += ["the first replica changes the history", primary[0] != alone[0], primary[1] == alone[1]]
    seen += [
        "a replica has its primary's history and a run of its own",
        primary[0] == replica[0],
        primary[1] != replica[1],
    ]
    writer, other, reader = pair.connect(pair.one), pair.connect(pair.one), pair.connect(pair.two)
    load = writer("SCRIPT", "LOAD", "return redis.call('HSET', KEYS[1], 'a', ARGV[1])")
    seen += [writer("EVALSHA", load, 1, "x", "1"), writer("WAIT", 1, 2000), reader("HGET", "x", "a")]
    seen += [
        "a replica refuses",
        reader("HSET", "x", "a", "2"),
        reader("HDEL", "x", ""),
        reader("EVALSHA", load, 1, "x", "2"),
    ]
    freeze()
    seen += ["what a silent replica lacks", writer("HSET", "x", "b", "1"), writer("WAIT", 1, 200)]
    seen += ["another connection asks for what it wrote itself", other("WAIT", 1, 200)]
    seen += [
        "after a read it asks for all that it could have seen",
        other("HGET", "x", "b"),
        other("WAIT", 1, 200),
    ]
    thaw()
    seen += [writer("WAIT", 1, 3000)]
    promote()
    pair.pass_time()
    promoted = pair.identity(pair.two)
    seen += [
        "a promotion changes the history, not the run",
        promoted[0] != primary[0],
        promoted[1] == replica[1],
    ]
    seen += [
        "the old primary goes on",
        pair.identity(pair.one) == primary,
        writer("HSET", "x", "c", "1"),
        writer("WAIT", 1, 200),
    ]
    seen += [
        "the new one has the data and no script",
        reader("HGET", "x", "b"),
        reader("EVALSHA", load, 1, "x", "3"),
    ]
    pair.follow(pair.one, pair.two)
    writer = pair.connect(pair.one)
    demoted = pair.identity(pair.one)
    seen += [
        "demoted, it takes over history and data",
        demoted[0] == promoted[0],
        demoted[1] == primary[1],
        writer("HGET", "x", "c"),
    ]
    seen += [reader("HSET", "x", "d", "1"), reader("WAIT", 1, 2000), writer("HGET", "x", "d")]
    return seen + _observe_losses(pair, reader)


def _observe_losses(pair: Any, reader: Any) -> list[Any]:
    """The story goes on: the new primary is dumped, flushed and restarted."""
    promoted = pair.identity(pair.two)
    seen = [reader("SAVE"), reader("HSET", "x", "e", "1"), reader("FLUSHALL")]
    seen += [
        "a flush changes nothing but the data",
        pair.identity(pair.two) == promoted,
        reader("HGET", "x", "d"),
    ]
    pair.restart(pair.two)
    restarted, reader = pair.identity(pair.two), pair.connect(pair.two)
    seen += ["a restart changes both", restarted[0] != promoted[0], restarted[1] != promoted[1]]
    return [*seen, "and brings back the dump", reader("HGET", "x", "d"), reader("HGET", "x", "e")]


def test_servers_behave_as_real_ones_over_promotions_and_restarts() -> None:
    model = ModelPair()
    told = _observe(
        model,
        lambda: model.clockwork.stop(model.two.process),
        lambda: model.clockwork.resume(model.two.process),
        model.two.promote,
    )
    with real.redis_servers() as servers:
        pair = RealPair(servers)
        expected = _observe(pair, pair.two.freeze, pair.two.thaw, pair.two.promote)
    for at, (mine, theirs) in enumerate(zip(told, expected, strict=True)):
        assert mine == theirs, told[max(0, at - 3) : at + 1]
