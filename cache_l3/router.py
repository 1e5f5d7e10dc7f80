"""Router: carries a request to the primary that has its key, and again elsewhere or later, within its deadline and a budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from redis.exceptions import ResponseError

from cache_l3.address import RedisAddress, RedisServers
from cache_l3.capacity import Room
from cache_l3.connections import Connector
from cache_l3.data_path import (
    Cancelled,
    DataPath,
    Late,
    Overloaded,
    ServerError,
    ServerRefused,
    TooLarge,
    TransferError,
)
from cache_l3.errors import reason_of
from cache_l3.record_store import ServerPicture
from cache_l3.shard import Shard, ShardTerms
from cache_l3.topology import open_topology, redirect_target
from kv_types.clock import Clock
from kv_types.errors import ClosedError
from kv_types.limits import (
    L3_ATTEMPTS_MAX,
    L3_RETRY_PAUSE_S_MAX,
    L3_RETRY_PAUSE_S_MIN,
    L3_SHARD_IDLE_S,
    L3_SHARDS_MAX,
)

_Answer = TypeVar("_Answer")


class Trouble(Enum):
    """Why a request has no answer."""

    LATE = "late"
    UNAVAILABLE = "unavailable"
    FULL = "full"
    TOO_LARGE = "too_large"
    """The server takes no value of that size."""
    OVERLOADED = "overloaded"
    FOREIGN = "foreign"
    """What lies under the key is none of our records."""
    CLOSED = "closed"


class TroubleError(Exception):
    """A request has no answer; `trouble` says why."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.value)
        self.trouble = trouble


@dataclass(frozen=True, slots=True)
class Aim:
    """Where a request goes; `asking`: to a server that takes the slot over, and has to be told that we know."""

    shard: Shard
    asking: bool = False


_CLOSING_TURNS = 3
"""Turns of the loop in which asyncio closes connections, those of TLS too."""
_DOWN = frozenset({"LOADING", "MASTERDOWN"})
_ELSEWHERE = frozenset({"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "OOM", "WRONGTYPE"}) | _DOWN
"""What says nothing of whether a server does what it is told, or that it is full, which is known apart."""
_LATER = frozenset({"TRYAGAIN", "CLUSTERDOWN", "READONLY"})


class Router:
    """All shards of an L3. Used from one event loop."""

    def __init__(
        self,
        servers: RedisServers,
        *,
        path: DataPath,
        clock: Clock,
        terms: ShardTerms,
    ) -> None:
        self._path = path
        self._clock = clock
        self._terms = terms
        self._connector = Connector()
        self._topology = open_topology(servers, on_change=self._tidy)
        self._shards: dict[str, Shard] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._opened_before = 0
        """Those of shards that have been let go."""
        self.retried = 0
        self.redirected = 0

    @property
    def kind(self) -> str:
        """single, cluster."""
        return self._topology.kind

    @property
    def trouble(self) -> str:
        """What keeps all of it from working."""
        return self._topology.trouble

    async def start(self) -> None:
        """Begin to connect to whatever is known."""
        await self._topology.start()
        self._tidy()
        first = self._topology.server_of(b"")
        if first is not None:
            self._shard(first)

    async def close(self) -> None:
        """Close all shards; what is under way ends."""
        self._is_closed = True
        await self._topology.close()
        self._connector.close()
        self._opened_before = self.opened()
        shards = list(self._shards.values())
        self._shards.clear()
        await asyncio.gather(*(shard.close() for shard in shards), *self._leaving)
        for _ in range(_CLOSING_TURNS):
            await asyncio.sleep(0)

    def describe(self) -> tuple[ServerPicture, ...]:
        """Shards as people see them; replicas only where there is nothing else."""
        shards = [shard for shard in self._shards.values() if not shard.is_replica] or self._shards.values()
        return tuple(shard.describe() for shard in shards)

    def opened(self) -> int:
        """How often breakers have opened."""
        return self._opened_before + sum(shard.breaker.opened for shard in self._shards.values())

    # --- one request ---

    async def carry_out(
        self,
        key: bytes,
        send: Callable[[int, bool], asyncio.Future[_Answer]],
        *,
        deadline_ns: int,
        writes_bytes: int = 0,
    ) -> _Answer:
        """Send a request until it has its answer. Raises TroubleError; CancelledError once no byte moves any more.

        `send` hands it to the data path, given the shard's number and whether ASKING goes before. `writes_bytes`: what it adds to
        the server's memory, 0 for a read.
        """
        command = "SET" if writes_bytes else "GET"
        aim = await self.aim(key, deadline_ns=deadline_ns)
        for attempt in range(L3_ATTEMPTS_MAX):
            began_ns = self._clock.now_ns()
            if writes_bytes:
                _make_sure_of_room(aim.shard, writes_bytes, now_ns=began_ns)
            try:
                answer = await send(aim.shard.number, aim.asking)
            except ClosedError:
                raise TroubleError(Trouble.CLOSED) from None
            except TransferError as error:
                if isinstance(error, ServerRefused):
                    self._heed_refusal(aim.shard, command, error.error, writes_bytes)
                aim = await self._after(aim, key, error, began_ns, attempt, deadline_ns)
            else:
                aim.shard.answered()
                aim.shard.carried_out(command)
                return answer
        raise TroubleError(Trouble.UNAVAILABLE)

    async def aim(self, key: bytes, *, deadline_ns: int) -> Aim:
        """Whom to ask for a key. Raises TroubleError at once when that one is down."""
        if not self._topology.known.is_set():
            await self._wait_known(deadline_ns)
        if self._is_closed:
            raise TroubleError(Trouble.CLOSED)
        address = self._topology.server_of(key)
        shard = self._shard(address) if address is not None else None
        return self._checked(shard)

    async def _after(
        self, aim: Aim, key: bytes, error: TransferError, began_ns: int, attempt: int, deadline_ns: int
    ) -> Aim:
        """Where to go after an attempt that failed, once it is time. Raises TroubleError when it has failed for good."""
        shard = aim.shard
        match error:
            case ServerRefused():
                shard.answered()
                redirected = self.react(aim, error.error)
                if redirected is not None:
                    return redirected
            case Late():
                shard.late(f"{shard.address.label}: {error}", began_ns=began_ns)
                raise TroubleError(Trouble.LATE)
            case Overloaded():
                raise TroubleError(Trouble.OVERLOADED)
            case TooLarge():
                raise TroubleError(Trouble.FOREIGN)
            case Cancelled():  # by the shard, which is down or leaves; a caller's own comes otherwise
                if self._is_closed:
                    raise TroubleError(Trouble.CLOSED)
            case _ if attempt + 1 == L3_ATTEMPTS_MAX:
                shard.unanswered(f"{shard.address.label}: {error}", began_ns=began_ns)
        if not self.may_retry(shard):
            raise TroubleError(Trouble.UNAVAILABLE)
        await self.pause(attempt, deadline_ns=deadline_ns)
        return await self.aim(key, deadline_ns=deadline_ns)

    def react(self, aim: Aim, error: ServerError) -> Aim | None:
        """Where an error of a server sends a request; None: to wherever its key is then, a little later. Raises TroubleError."""
        shard = aim.shard
        if error.code in ("MOVED", "ASK"):
            self.redirected += 1
            return self._redirected(aim, error)
        if error.code == "OOM":
            raise TroubleError(Trouble.FULL)
        if error.code == "WRONGTYPE":
            raise TroubleError(Trouble.FOREIGN)
        shard.note_reply(error.text)
        if _is_of_size(error):
            raise TroubleError(Trouble.TOO_LARGE)
        if error.code in _DOWN:
            shard.is_down()
        if error.code == "READONLY":
            self._find_primary(shard)
        if error.code == "CLUSTERDOWN":
            self._topology.suspect(shard.address)
        if error.code in _LATER:
            return None
        raise TroubleError(Trouble.UNAVAILABLE)

    def _heed_refusal(self, shard: Shard, command: str, error: ServerError, writes_bytes: int) -> None:
        """What an error says of further requests of the kind."""
        if is_refusal(error):
            shard.refused(command)
        if not writes_bytes:
            return
        if error.code == "OOM":
            shard.capacity.refused_room(now_ns=self._clock.now_ns())
        if _is_of_size(error):
            shard.capacity.refused_size(writes_bytes, now_ns=self._clock.now_ns())

    async def pause(self, attempt: int, *, deadline_ns: int) -> None:
        """Wait a little longer after each attempt, up to the deadline. Raises TroubleError when that has come."""
        remaining_s = (deadline_ns - self._clock.now_ns()) / 1e9
        if remaining_s <= 0:
            raise TroubleError(Trouble.LATE)
        wanted_s = min(L3_RETRY_PAUSE_S_MIN * (1 << attempt), L3_RETRY_PAUSE_S_MAX) if attempt else 0.0
        await asyncio.sleep(min(wanted_s, remaining_s))

    def may_retry(self, shard: Shard) -> bool:
        """Take one retry from a shard's budget."""
        may = shard.retries.take(self._clock.now_ns())
        self.retried += may
        return may

    # --- shards ---

    def _find_primary(self, replica: Shard) -> None:
        """One that was taken for it is a replica: another candidate has become it, or another server under the same name."""
        self._topology.suspect(replica.address)
        for shard in self._shards.values():
            if shard is not replica:
                shard.may_be_primary()
        if self._topology.servers() == [replica.address]:
            replica.renew()

    def _said_replica(self, shard: Shard) -> None:
        self._topology.suspect(shard.address)
        if not self._topology.is_spread:
            shard.set_aside()

    def _redirected(self, aim: Aim, error: ServerError) -> Aim:
        source = aim.shard.address
        if error.code == "MOVED":
            address = self._topology.moved(error.text, source)
        else:
            target = redirect_target(error.text, source)
            address = target[1] if target is not None else None
        shard = self._shard(address) if address is not None else None
        if shard is None:
            aim.shard.note_reply(error.text)
        return Aim(self._checked(shard).shard, asking=error.code == "ASK")

    def _checked(self, shard: Shard | None) -> Aim:
        if shard is None or not shard.is_asked:
            raise TroubleError(Trouble.UNAVAILABLE)
        return Aim(shard)

    def _shard(self, address: RedisAddress) -> Shard | None:
        """The shard of a server; None: there are as many as may be."""
        shard = self._shards.get(address.label)
        if shard is None:
            if len(self._shards) >= L3_SHARDS_MAX or self._is_closed:
                return None
            shard = Shard(
                address, path=self._path, connector=self._connector, clock=self._clock, terms=self._terms,
                on_suspect=lambda suspect: self._topology.suspect(suspect.address), on_replica=self._said_replica,
            )  # fmt: skip
            self._shards[address.label] = shard
            shard.start()
        shard.used_ns = self._clock.now_ns()
        return shard

    def _tidy(self) -> None:
        """Open shards of primaries that are known now, and let go of those that are none any more and that nobody uses."""
        if self._is_closed:
            return
        known = {address.label: address for address in self._topology.servers()}
        if self._topology.is_spread:
            for address in known.values():
                self._shard(address)
        idle_ns = self._clock.now_ns() - int(L3_SHARD_IDLE_S * 1e9)
        for label, shard in list(self._shards.items()):
            if label not in known and shard.used_ns < idle_ns:
                del self._shards[label]
                self._opened_before += shard.breaker.opened
                leaving = asyncio.get_running_loop().create_task(shard.close())
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)

    async def _wait_known(self, deadline_ns: int) -> None:
        """Until the servers are known for the first time."""
        try:
            async with asyncio.timeout(max(0.0, (deadline_ns - self._clock.now_ns()) / 1e9)):
                await self._topology.known.wait()
        except TimeoutError:
            raise TroubleError(Trouble.LATE) from None


def is_refusal(error: ServerError) -> bool:
    """Whether a server won't do what it was told, whatever the key and the size."""
    return error.code not in _ELSEWHERE and not _is_of_size(error)


def _make_sure_of_room(shard: Shard, record_bytes: int, *, now_ns: int) -> None:
    if shard.capacity.is_too_large(record_bytes, now_ns=now_ns):
        raise TroubleError(Trouble.TOO_LARGE)
    if shard.capacity.room(now_ns) is Room.FULL:
        raise TroubleError(Trouble.FULL)
    shard.capacity.wrote(record_bytes)


def _is_of_size(error: ServerError) -> bool:
    return reason_of(ResponseError(error.text)) == "size"
