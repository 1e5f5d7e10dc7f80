"""Replies are read strictly: whatever a server says, it is the script's answer or LogUnavailableError, never a crash."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from redis._parsers import _AsyncHiredisParser, _AsyncRESP2Parser
from redis.asyncio.connection import AbstractConnection
from redis.utils import HIREDIS_AVAILABLE

from invalidation.log import LogUnavailableError, RenewalStatus
from invalidation.records import NO_DIGEST, next_digest
from invalidation.redis import replies
from invalidation.redis.replies import Answer, MalformedReplyError, Refusal, read_answer
from invalidation.turns import Turns
from kv_types.selectors import EVERYTHING, Selector
from tests.support.logs import Follower, Logs, append, entry, within
from tests.support.turns import finish

INCARNATION = b"ab" * 16
HEAD = [b"OK", INCARNATION, b"1", b"7", b"0"]
PAYLOAD = entry().encode()
DIGEST = next_digest(NO_DIGEST, PAYLOAD)
RECORD = [b"1-0", [b"p", PAYLOAD, b"d", DIGEST.hex().encode()]]
READERS: dict[str, tuple[list[Any], Callable[[Answer], Turns[Any]]]] = {
    "renew": (
        [b"3", [RECORD]],
        lambda answer: replies.read_renewal(
            answer, number=3, applied=0, digest=NO_DIGEST, confirmed=True
        ),
    ),
    "append": ([b"7", [b"m" * 16]], replies.read_appended),
    "boot": (
        [b"0" * 40, [b"-", b"2"], [b"n" + b"s" * 32 + Selector(model="m").encode(), b"3"], [b"m", b"1 v"]],
        replies.read_boot,
    ),
    "fence": ([[b"m" * 16, b"3 2 1 0 {}"]], lambda answer: replies.read_fence(answer, confirmed=True)),
    "settle": ([b"1"], replies.read_flag),
    "fork": ([], replies.read_nothing),
    "read": ([[RECORD]], replies.read_read),
    "namespace ids": ([[b"a" * 40]], replies.read_namespace_ids),
    "namespaces": ([[b"space", None]], replies.read_namespaces),
    "statistics": ([[b"1"] * len(replies.SIZE_NAMES)], replies.read_sizes),
}  # fmt: skip

anything = st.recursive(
    st.none() | st.integers() | st.binary(max_size=40) | st.booleans() | st.sampled_from([b"OK", b"0", INCARNATION]),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=20,
)  # fmt: skip


@pytest.mark.parametrize("verb", READERS)
def test_what_the_script_says_is_understood(verb: str) -> None:
    rest, read = READERS[verb]
    answer = read_answer([*HEAD, *rest])
    assert isinstance(answer, Answer)
    assert (answer.status, answer.replicas, answer.tip, answer.settled) == (RenewalStatus.OK, 1, 7, False)
    finish(read(answer))


@pytest.mark.parametrize("verb", READERS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), other=anything)
def test_one_part_that_is_wrong_is_malformed_or_means_the_same(verb: str, seed: int, other: Any) -> None:
    """Replace any one part of a good reply by anything: it is read, or it is MalformedReplyError."""
    rest, read = READERS[verb]
    damaged = replace_somewhere([*HEAD, *rest], other, random.Random(seed))
    with contextlib.suppress(MalformedReplyError):
        answer = read_answer(damaged)
        if isinstance(answer, Answer):
            finish(read(answer))


def replace_somewhere(value: Any, other: Any, draw: random.Random) -> Any:
    if not isinstance(value, list) or not value or draw.random() < 0.15:
        return other
    at = draw.randrange(len(value))
    return [*value[:at], replace_somewhere(value[at], other, draw), *value[at + 1 :]]


@settings(max_examples=150, deadline=None)
@given(reply=anything)
def test_any_reply_is_read_or_malformed(reply: Any) -> None:
    with contextlib.suppress(MalformedReplyError):
        answer = read_answer(reply)
        assert isinstance(answer, Answer | Refusal)


@pytest.mark.parametrize(
    ("verb", "rest"),
    [
        ("renew", [b"4", [RECORD]]),
        ("renew", [b"3", [[b"1-1", RECORD[1]]]]),
        ("renew", [b"3", [[b"1-0", [b"p", PAYLOAD, b"d", b"0" * 39]]]]),
        ("append", [b"7", [b"m" * 15]]),
        ("append", [b"-7", []]),
        ("append", [b"9007199254740993", []]),
        ("boot", [b"0" * 40, [b"-", b"2", b"3"], [], []]),
        ("boot", [b"0" * 40, [b"x", b"2"], [], []]),
        ("boot", [b"0" * 40, [], [], [b"m", b"v"]]),
        ("boot", [b"0" * 40, [], [], [b"\xff", b"1 v"]]),
        ("fence", [[b"m" * 16, b"3 2 1 {}"]]),
        ("settle", [b"2"]),
        ("fork", [b"1"]),
    ],
)
def test_replies_that_are_nearly_right_are_malformed(verb: str, rest: list[Any]) -> None:
    answer = read_answer([*HEAD, *rest])
    assert isinstance(answer, Answer)
    with pytest.raises(MalformedReplyError):
        finish(READERS[verb][1](answer))


def test_records_that_do_not_follow_the_members_digest_are_a_gap() -> None:
    answer = read_answer([*HEAD, b"3", [RECORD]])
    assert isinstance(answer, Answer)
    for applied, digest in ((0, b"x" * 20), (1, NO_DIGEST)):
        renewal = finish(
            replies.read_renewal(answer, number=3, applied=applied, digest=digest, confirmed=True)
        )
        assert (renewal.status, list(renewal.records)) == (RenewalStatus.GAP, [])
    nothing = read_answer([*HEAD, b"3", []])
    assert isinstance(nothing, Answer)
    renewal = finish(replies.read_renewal(nothing, number=3, applied=6, digest=DIGEST, confirmed=True))
    assert renewal.status is RenewalStatus.GAP, "it is behind the tip, and told nothing of what is between"


def test_a_tombstone_that_is_not_understood_is_a_floor_of_everything() -> None:
    answer = read_answer([*HEAD, b"0" * 40, [b"-", b"1"], [b"-" + b"\xff\x01\x00a", b"5"], []])
    assert isinstance(answer, Answer)
    boot = finish(replies.read_boot(answer))
    assert (boot.floors, boot.tombstones) == ({None: 5}, {})
    assert EVERYTHING not in boot.tombstones


PARSERS = {"python": _AsyncRESP2Parser} | ({"hiredis": _AsyncHiredisParser} if HIREDIS_AVAILABLE else {})


class HostileServer:
    """Answers every command with the bytes that it was given, whatever it was asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.says = b""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            if await reader.read(1 << 16):
                writer.write(self.says)
                await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()


@pytest_asyncio.fixture(params=PARSERS)
async def hostile(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HostileServer]:
    """Once with each parser that redis-py has: with hiredis installed it takes that one."""
    makes = inspect.unwrap(AbstractConnection.__init__)
    assert "parser_class" in makes.__kwdefaults__
    monkeypatch.setitem(makes.__kwdefaults__, "parser_class", PARSERS[request.param])
    server = HostileServer(tmp_path / "h")
    await server.start()
    yield server
    await server.close()


GOOD = b"*7\r\n$2\r\nOK\r\n$32\r\n" + INCARNATION + b"\r\n$1\r\n0\r\n$1\r\n0\r\n$1\r\n0\r\n$1\r\n1\r\n*0\r\n"
SAYINGS = {
    "nothing": b"",
    "no protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a number for a list": b":7\r\n",
    "no number": b"*x\r\n",
    "a negative count": b"*-7\r\n",
    "a text cut short": b"$100\r\nabc",
    "a list cut short": b"*7\r\n$2\r\nOK\r\n",
    "a list in a list in a list": b"*1\r\n" * 5000,
    "an unknown type": b"!21\r\nSYNTAX invalid syntax\r\n",
    "an error of no kind": b"-\r\n",
    "an error without end": b"-" + b"E" * 200_000,
    "zeros": bytes(4096),
    "good, then more": GOOD + b"+OK\r\n",
}


@pytest.mark.asyncio
@pytest.mark.parametrize("what", SAYINGS)
async def test_a_hostile_server_makes_the_log_unavailable(
    hostile: HostileServer, logs: Logs, what: str
) -> None:
    hostile.says = SAYINGS[what]
    log = logs.open(f"unix://{hostile.path}")
    with contextlib.suppress(LogUnavailableError):
        appended = await append(log)
        assert what == "good, then more", appended


@pytest.mark.asyncio
async def test_random_bytes_make_the_log_unavailable(hostile: HostileServer, logs: Logs) -> None:
    draw = random.Random(11)
    log = logs.open(f"unix://{hostile.path}")
    member = Follower(log)
    for _ in range(150):
        cut = draw.randrange(len(GOOD))
        damaged = bytearray(GOOD[:cut] if draw.random() < 0.3 else GOOD)
        for _ in range(draw.randrange(1, 4)):
            if damaged:
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        hostile.says = bytes(damaged)
        for call in (
            lambda: append(log),
            lambda: log.boot(deadline_ns=within(0.2)),
            lambda: member.renew(seconds=0.2),
            lambda: log.woken(0, digest=NO_DIGEST, deadline_ns=within(0.2)),
            lambda: log.check(deadline_ns=within(0.2)),
        ):
            with contextlib.suppress(LogUnavailableError):
                await call()
