"""What a server may say: anything, in any pieces. Whatever it is, requests end once, and nothing outside a place is written."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache_l3.data_path import (
    ABSENT,
    Got,
    Lost,
    Malformed,
    ServerError,
    ServerRefused,
    TooLarge,
    TransferError,
)
from kv_types.limits import L3_LINE_BYTES_MAX, L3_REPLY_BYTES_MAX, L3_WINDOW_DEFAULT
from tests.support.data_paths import (
    MAKERS,
    SHAPE,
    Site,
    bulk,
    header,
    outcome,
    payload_of,
    record,
    sealed,
    site,
    within,
)

PLACE = 3000
GUARD = b"\xa5" * 64

kinds = pytest.mark.parametrize("kind", list(MAKERS))


@dataclass
class Guarded:
    """A place within memory that must stay as it is."""

    memory: bytearray

    @classmethod
    def of(cls, size: int) -> Guarded:
        return cls(bytearray(GUARD + b"u" * size + GUARD))

    @property
    def place(self) -> memoryview:
        return memoryview(self.memory)[len(GUARD) : -len(GUARD)]

    @property
    def is_untouched(self) -> bool:
        return set(self.place) == {ord("u")}

    def check(self) -> None:
        assert self.memory[: len(GUARD)] == GUARD
        assert self.memory[-len(GUARD) :] == GUARD


def get(at: Site, guarded: Guarded) -> asyncio.Future[object]:
    return at.path.get(at.shard, b"k", guarded.place, deadline_ns=within())  # type: ignore[return-value]


REQUEST = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"

BROKEN_GETS: list[tuple[bytes, type[TransferError]]] = [
    (b"hello\r\n", Malformed),
    (b"\r\n", Malformed),
    (b"\n", Malformed),
    (b"$\r\n", Malformed),
    (b"$12", Lost),
    (b"$x\r\n", Malformed),
    (b"$+5\r\n", Malformed),
    (b"$ 5\r\n", Malformed),
    (b"$05\r\n", Malformed),
    (b"$-0\r\n", Malformed),
    (b"$-2\r\n", Malformed),
    (b"$5\n", Malformed),
    (b"$5\r\r\n", Malformed),
    (b"$5\r\nabcdeXY", Malformed),
    (b"$5\r\nabcde\n\n", Malformed),
    (b"$0x10\r\n", Malformed),
    (b"$1e3\r\n", Malformed),
    (b"$9223372036854775807\r\n", TooLarge),
    (b"$18446744073709551616\r\n", Malformed),
    (b"$99999999999999999999999\r\n", Malformed),
    (b"$%d\r\n" % (SHAPE.bytes_max + 2 * PLACE + 1), TooLarge),
    (b"+OK\r\n", Malformed),
    (b":1\r\n", Malformed),
    (b"*1\r\n$1\r\nx\r\n", Malformed),
    (b"*-1\r\n", Malformed),
    (b"_\r\n", Malformed),
    (b">2\r\n", Malformed),
    (b"$" + b"1" * (L3_LINE_BYTES_MAX + 1), Malformed),
    (b"-" + b"e" * (1 << 20), Malformed),
    (b"\x00" * 100_000, Malformed),
    (b"", Lost),
]


@kinds
@pytest.mark.asyncio
@pytest.mark.parametrize(("said", "expected"), BROKEN_GETS, ids=lambda value: repr(value)[:30])
async def test_a_broken_reply_ends_its_connection(
    kind: str, said: bytes, expected: type[TransferError]
) -> None:
    guarded = Guarded.of(PLACE)
    with site(kind) as at:
        peer = at.peer()
        future = get(at, guarded)
        assert await peer.hears(len(REQUEST)) == REQUEST
        # The peer may find that nobody listens any more, half through what it has to say.
        await asyncio.get_running_loop().run_in_executor(None, _say_what_goes, peer.socket.sendall, said)
        peer.close()
        ended = await outcome(future)
        assert type(ended) is expected, ended
        assert ended.was_sent
        await at.until_lost()
        assert at.path.statistics()["connections"] == 0
    guarded.check()
    assert guarded.is_untouched


def _say_what_goes(say: Callable[[bytes], None], said: bytes) -> None:
    try:
        say(said)
    except OSError:
        return


BROKEN_SETS = [b"$2\r\nOK\r\n", b"+QUEUED\r\n", b"+ok\r\n", b":1\r\n", b"$-1\r\n", b"*0\r\n"]


@kinds
@pytest.mark.asyncio
@pytest.mark.parametrize("said", BROKEN_SETS, ids=repr)
async def test_no_reply_of_a_set_ends_its_connection(kind: str, said: bytes) -> None:
    with site(kind) as at:
        peer = at.peer()
        future = at.path.set(at.shard, b"k", header(), b"x", ttl_s=5, deadline_ns=within())
        await peer.hears(300)
        peer.says(said)
        assert isinstance(await outcome(future), Malformed)
        await at.until_lost()


@kinds
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"*1\r\n:1\r\n", Malformed), (b":\r\n", Malformed), (b":1.5\r\n", Malformed), (b":007\r\n", Malformed),
        (b":9223372036854775808\r\n", Malformed), (b"$%d\r\n" % (L3_REPLY_BYTES_MAX + 1), TooLarge),
        (b":1\r\n$3\r\nabcd\r\n", Malformed),
    ],
    ids=repr,
)  # fmt: skip
async def test_no_reply_of_a_question_ends_its_connection(
    kind: str, said: bytes, expected: type[TransferError]
) -> None:
    with site(kind) as at:
        peer = at.peer()
        future = at.path.ask(at.shard, [[b"PING"], [b"PING"]], deadline_ns=within())
        await peer.hears(28)
        peer.says(said)
        assert type(await outcome(future)) is expected
        await at.until_lost()


@kinds
@pytest.mark.asyncio
async def test_a_server_that_speaks_unasked_is_not_believed(kind: str) -> None:
    with site(kind) as at:
        at.peer().says(b"-ERR max number of clients reached\r\n")
        await at.until_lost()
        assert at.lost == [at.lost[0]]
        assert "unasked" in at.lost[0]


@kinds
@pytest.mark.asyncio
async def test_a_second_reply_to_one_request_ends_the_connection(kind: str) -> None:
    with site(kind) as at:
        peer = at.peer()
        future = at.path.ask(at.shard, [[b"PING"]], deadline_ns=within())
        await peer.hears(14)
        peer.says(b"+PONG\r\n+PONG\r\n")
        await at.until_lost()
        ended = await outcome(future)
        assert ended == [b"PONG"] or isinstance(ended, Malformed)


@pytest.mark.asyncio
async def test_a_reply_to_what_was_not_wholly_sent_ends_the_connection_and_leaves_the_payload_alone() -> None:
    """A SET whose payload the server does not read: it answers nevertheless."""
    with site("native") as at:
        peer = at.peer()
        payload = bytearray(8 << 20)
        future = at.path.set(at.shard, b"k", header(), payload, ttl_s=5, deadline_ns=within())
        await peer.hears(1000)
        peer.says(b"+OK\r\n")
        assert isinstance(await outcome(future), Malformed)
        payload.extend(b"nobody looks at it any more")


@kinds
@pytest.mark.asyncio
async def test_a_server_that_refuses_a_record_before_it_has_it_is_understood(kind: str) -> None:
    """It says so, and hangs up with most of the record unread."""
    with site(kind) as at:
        peer = at.peer()
        future = at.path.set(at.shard, b"k", header(), bytes(8 << 20), ttl_s=5, deadline_ns=within())
        await peer.hears(1000)
        peer.says(b"-ERR Protocol error: invalid bulk length\r\n")
        peer.close()
        refused = await outcome(future)
        assert isinstance(refused, ServerRefused), repr(refused)
        assert str(refused) == "ERR Protocol error: invalid bulk length"
        await at.until_lost()
        assert at.lost == [str(refused)]


@kinds
@pytest.mark.asyncio
async def test_a_server_that_lost_its_thread_is_asked_nothing_more_on_that_connection(kind: str) -> None:
    with site(kind) as at:
        peer = at.peer()
        future = at.path.set(at.shard, b"k", header(), b"x", ttl_s=5, deadline_ns=within())
        await peer.hears(300)
        peer.says(b"-ERR Protocol error: too big bulk count string\r\n")
        assert isinstance(await outcome(future), ServerRefused)
        await at.until_lost()
        assert at.path.statistics()["connections"] == 0


@pytest.mark.asyncio
async def test_replies_to_a_question_may_come_while_its_end_is_still_on_its_way() -> None:
    words = [b"PING", b"x" * 4000]
    with site("native") as at:
        peer = at.peer()
        future = at.path.ask(at.shard, [words] * 100, deadline_ns=within())
        await peer.hears(5000)
        peer.says(b"$1\r\na\r\n")
        await at.until_received(7)
        rest = 100 * len(b"*2\r\n$4\r\nPING\r\n$4000\r\n" + words[1] + b"\r\n") - 5000
        await peer.hears(rest)
        peer.says(b"$1\r\nb\r\n" * 99)
        assert await outcome(future) == [b"a"] + [b"b"] * 99


REPLIES = st.one_of(
    st.just(b"$-1\r\n"),
    st.sampled_from([b"-ERR no\r\n", b"-MOVED 3999 127.0.0.1:6381\r\n", b"-OOM \xff\xfe\r\n"]),
    st.builds(
        lambda number, size, head: bulk(record(number, size, header_bytes=head)),
        st.integers(0, 1000),
        st.one_of(st.just(PLACE), st.integers(0, 2 * PLACE)),
        st.integers(SHAPE.bytes_min, SHAPE.bytes_max),
    ),
    st.builds(bulk, st.binary(max_size=400)),
)
MODEST = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """In pieces."""
    edges = sorted({0, len(data), *(each % (len(data) + 1) for each in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def check_reply(reply: bytes, ended: object, guarded: Guarded) -> None:
    """What one good reply must have become."""
    guarded.check()
    if reply == b"$-1\r\n":
        assert ended is ABSENT
    elif reply.startswith(b"-"):
        assert isinstance(ended, ServerRefused)
        assert str(ended) == reply[1:-2].decode("utf-8", "backslashreplace")
    else:
        _check_record(reply[reply.index(b"\n") + 1 : -2], ended, guarded)


def _check_record(value: bytes, ended: object, guarded: Guarded) -> None:
    assert isinstance(ended, Got)
    assert value.startswith(ended.header)
    stored = value[len(ended.header) :]
    assert len(stored) == ended.stored_bytes
    if ended.in_place:
        assert guarded.place == stored
    else:
        assert guarded.is_untouched
        assert ended.stored is None or bytes(ended.stored) == stored
    if ended.in_place or ended.stored is not None:
        assert ended.checksum == xxhash.xxh3_64_intdigest(stored)


@kinds
@given(
    replies=st.lists(REPLIES, min_size=1, max_size=L3_WINDOW_DEFAULT),
    cuts=st.lists(st.integers(0, 40_000), max_size=8),
)
@MODEST
def test_good_replies_are_understood_wherever_they_are_cut(
    kind: str, replies: list[bytes], cuts: list[int]
) -> None:
    async def converse() -> None:
        with site(kind) as at:
            peer = at.peer()
            places = [Guarded.of(PLACE) for _ in replies]
            futures = [get(at, guarded) for guarded in places]
            if kind == "blocking":
                for reply in replies:
                    await peer.hears(len(REQUEST))
                    await _say_in_pieces(at, peer.says, cut(reply, cuts))
            else:
                await peer.hears(len(REQUEST) * len(replies))
                await _say_in_pieces(at, peer.says, cut(b"".join(replies), cuts))
            for reply, future, guarded in zip(replies, futures, places, strict=True):
                check_reply(reply, await outcome(future), guarded)
            assert not at.lost

    asyncio.run(converse())


async def _say_in_pieces(at: Site, say: Callable[[bytes], None], pieces: list[bytes]) -> None:
    """Each piece is read before the next one comes."""
    heard = at.path.statistics()["bytes_in"]
    for piece in pieces:
        say(piece)
        heard += len(piece)
        await at.until_received(heard)


@kinds
@given(
    replies=st.lists(REPLIES, min_size=1, max_size=4),
    where=st.integers(0, 1 << 20),
    damage=st.binary(min_size=0, max_size=12),
    length=st.integers(0, 12),
    cuts=st.lists(st.integers(0, 40_000), max_size=3),
)
@MODEST
def test_damaged_replies_harm_nobody(
    kind: str, replies: list[bytes], where: int, damage: bytes, length: int, cuts: list[int]
) -> None:
    """Some bytes are replaced, lost or put in between, then the connection ends: every request ends, once, as something."""
    whole = b"".join(replies)
    at_byte = where % (len(whole) + 1)
    said = whole[:at_byte] + damage + whole[at_byte + length :]

    async def converse() -> None:
        with site(kind) as at:
            peer = at.peer()
            places = [Guarded.of(PLACE) for _ in replies]
            futures = [get(at, guarded) for guarded in places]
            await peer.hears(len(REQUEST) * (len(replies) if kind == "native" else 1))
            for piece in cut(said, cuts):
                await asyncio.get_running_loop().run_in_executor(
                    None, _say_what_goes, peer.socket.sendall, piece
                )
            peer.close()
            await at.until_lost()
            waiting = [future for future in futures if not future.done()]
            for future in waiting:  # those of the queue, and of no connection
                at.path.cancel(future)
            for future, guarded in zip(futures, places, strict=True):
                ended = await outcome(future)
                assert ended is ABSENT or isinstance(ended, Got | TransferError)
                guarded.check()
                after = bytes(guarded.memory)
                guarded.memory[len(GUARD)] ^= 0xFF  # ours again
                assert bytes(guarded.memory) != after

    asyncio.run(converse())


ANSWERS = st.one_of(
    st.binary(max_size=40).map(lambda said: said.translate(None, b"\r\n")).map(lambda text: (b"+" + text + b"\r\n", text)),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: (b":%d\r\n" % number, number)),
    st.just((b"$-1\r\n", None)),
    st.binary(max_size=600).map(lambda value: (bulk(value), value)),
    st.just((b"-ERR no\r\n", ServerError("ERR no"))),
)  # fmt: skip


@kinds
@given(answers=st.lists(ANSWERS, min_size=1, max_size=30), cuts=st.lists(st.integers(0, 40_000), max_size=8))
@MODEST
def test_answers_are_understood_wherever_they_are_cut(
    kind: str, answers: list[tuple[bytes, object]], cuts: list[int]
) -> None:
    async def converse() -> None:
        with site(kind) as at:
            peer = at.peer()
            future = at.path.ask(at.shard, [[b"PING"]] * len(answers), deadline_ns=within())
            await peer.hears(14 * len(answers))
            await _say_in_pieces(at, peer.says, cut(b"".join(said for said, _ in answers), cuts))
            assert await outcome(future) == [value for _, value in answers]
            assert not at.lost

    asyncio.run(converse())


@kinds
@pytest.mark.asyncio
async def test_a_reply_is_lost_with_its_connection_at_every_byte(kind: str) -> None:
    """The server's end closes after each number of bytes in turn."""
    size = 70
    whole = bulk(record(5, size))
    with site(kind) as at:
        for count in range(len(whole) + 1):
            guarded = Guarded.of(size)
            peer = at.peer()
            future = get(at, guarded)
            await peer.hears(len(REQUEST))
            peer.says(whole[:count])
            peer.close()
            await at.until_lost(count + 1)
            ended = await outcome(future)
            if count < len(whole):
                assert type(ended) is Lost, (count, ended)
                assert ended.was_sent
            else:
                check_reply(whole, ended, guarded)
            guarded.check()
        assert at.path.statistics()["lost"] == len(whole)


@kinds
@pytest.mark.asyncio
async def test_a_request_is_lost_with_its_connection_at_every_byte(kind: str) -> None:
    """The server's end closes after it has read each number of bytes of a SET in turn; sent anew, it is stored whole."""
    payload = payload_of(6, 90)
    value = sealed(header(), payload) + payload
    request = b"*5\r\n$3\r\nSET\r\n$1\r\nk\r\n" + bulk(value) + b"$2\r\nEX\r\n$1\r\n5\r\n"
    with site(kind) as at:
        for ended, count in enumerate(range(1, len(request) + 1), start=1):
            peer = at.peer()
            future = at.path.set(at.shard, b"k", header(), payload, ttl_s=5, deadline_ns=within())
            assert await peer.hears(count) == request[:count]
            if count == len(request):
                peer.says(b"+OK\r\n")
                assert await outcome(future) is None
            peer.close()
            await at.until_lost(ended)
            assert count == len(request) or type(await outcome(future)) is Lost
