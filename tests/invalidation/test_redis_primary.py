"""Which server is taken for the log's primary: what is followed, what is waited for, what is told at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from cache_l3.address import RedisAddress, RedisServers, parse_servers
from cache_l3.topology import redirect_target
from invalidation.log import LogUnavailableError
from invalidation.redis import primary
from invalidation.redis.errors import unavailable
from invalidation.redis.primary import Candidates, SlotPrimary, open_primary
from kv_types.limits import LOG_REDIRECTS_MAX, LOG_RETRY_S, LOG_UNCONFIRMED_MAX

pytestmark = pytest.mark.asyncio

KEY = "stratakv:{f}:log:state"
NAMED = parse_servers("redis+cluster://a:1,b:2")
A, B = NAMED.addresses


class Table:
    """A Cluster's table as the test says it is; stands for cache_l3.topology.Cluster."""

    def __init__(self, servers: RedisServers, *, on_change: Callable[[], None]) -> None:
        self.on_change = on_change
        self.known = asyncio.Event()
        self.owner: RedisAddress | None = A
        self.trouble = ""
        self.suspected: list[RedisAddress] = []
        self.is_open = False

    async def start(self) -> None:
        self.is_open = True
        self.known.set()

    async def close(self) -> None:
        self.is_open = False
        self.known.set()

    def server_of(self, key: bytes) -> RedisAddress | None:
        return self.owner if self.is_open else None

    def moved(self, redirect: str, source: RedisAddress) -> RedisAddress | None:
        target = redirect_target(redirect, source)
        return None if target is None else target[1]

    def suspect(self, address: RedisAddress) -> None:
        self.suspected.append(address)
        asyncio.get_running_loop().call_soon(self.on_change)


@pytest.fixture
def slot(monkeypatch: pytest.MonkeyPatch) -> SlotPrimary:
    monkeypatch.setattr(primary, "Cluster", Table)
    return SlotPrimary(NAMED, KEY)


def table_of(slot: SlotPrimary) -> Table:
    table: object = slot._cluster
    assert isinstance(table, Table)
    return table


def met(*errors: Exception) -> list[LogUnavailableError]:
    return [unavailable(error, server="s") for error in errors]


MOVED_TO_B = MovedError("77 b:2", status_code="MOVED")


async def test_each_candidate_is_tried_once_and_the_first_reason_is_told() -> None:
    servers = parse_servers("redis://a:1,redis://b:2")
    candidates = open_primary(servers, key=KEY)
    assert isinstance(candidates, Candidates)
    first, second = servers.addresses
    errors = met(ReadOnlyError("READONLY"), ResponseError("LOADING"))
    assert await candidates.find() == first
    await candidates.failed(first, errors[:1])
    assert await candidates.find() == second
    await candidates.failed(first, errors[:1])  # somebody else who was there has gone on already
    assert candidates.label == second.label
    with pytest.raises(LogUnavailableError) as told:
        await candidates.failed(second, errors)
    assert told.value is errors[0]
    for _ in range(LOG_UNCONFIRMED_MAX):
        candidates.answered(first, confirmed=False)
    assert await candidates.find() == second


async def test_moved_is_followed_at_once_a_few_times(slot: SlotPrimary) -> None:
    assert slot.label == A.label
    assert await slot.find() == A
    await slot.failed(A, met(MOVED_TO_B))
    assert await slot.find() == B
    assert slot.label == B.label
    back = MovedError("77 :1", status_code="MOVED")
    began = asyncio.get_running_loop().time()
    await slot.failed(A, met(*[back] * (LOG_REDIRECTS_MAX + 1)))
    assert asyncio.get_running_loop().time() > began + 0.9 * LOG_RETRY_S
    assert await slot.find() == A.at("a", 1), "a host that is left out is that of who said it"
    table_of(slot).on_change()
    assert await slot.find() == A, "a table that was read since is believed"


@pytest.mark.parametrize(
    "error",
    [
        AskError("77 b:2", status_code="ASK"),
        TryAgainError("TRYAGAIN Multiple keys request", status_code="TRYAGAIN"),
        ClusterDownError("CLUSTERDOWN The cluster is down", status_code="CLUSTERDOWN"),
        ReadOnlyError("READONLY"),
        ConnectionRefusedError("refused"),
    ],
)
async def test_what_another_look_may_heal_is_waited_for_and_never_followed(
    slot: SlotPrimary, error: Exception
) -> None:
    await slot.find()
    await slot.failed(A, met(*[error] * 50))
    assert table_of(slot).suspected == [A]
    assert await slot.find() == A


@pytest.mark.parametrize(
    "text", ["NOPERM this user", "OOM command not allowed", "MISCONF disk", "ERR script"]
)
async def test_what_no_other_server_would_heal_is_told_at_once(slot: SlotPrimary, text: str) -> None:
    await slot.find()
    (error,) = met(ResponseError(text))
    with pytest.raises(LogUnavailableError) as told:
        await slot.failed(A, [error])
    assert told.value is error
    assert table_of(slot).suspected == []


async def test_a_server_that_nobody_confirms_or_that_hangs_is_suspect(slot: SlotPrimary) -> None:
    await slot.find()
    for number in range(LOG_UNCONFIRMED_MAX):
        assert table_of(slot).suspected == []
        slot.answered(A, confirmed=False)
        assert bool(table_of(slot).suspected) == (number == LOG_UNCONFIRMED_MAX - 1)
    slot.timed_out(A)
    assert table_of(slot).suspected == [A, A]


async def test_why_nobody_is_known_is_told(slot: SlotPrimary) -> None:
    table_of(slot).owner = None
    with pytest.raises(LogUnavailableError, match="no server of the Cluster has the log's slot"):
        await slot.find()
    table_of(slot).trouble = "redis://a:1: NOPERM"
    with pytest.raises(LogUnavailableError, match="NOPERM"):
        await slot.find()


async def test_after_its_close_nothing_begins(slot: SlotPrimary) -> None:
    await slot.close()
    with pytest.raises(LogUnavailableError, match="closed"):
        await slot.find()
    assert not table_of(slot).is_open
