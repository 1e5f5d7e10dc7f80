"""Router: carries a request to the primary that has its key, and again elsewhere or later, within its deadline and a budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from cache_l3.address import RedisAddress, RedisServers
from cache_l3.capacity import Room
from cache_l3.connections import Connector
from cache_l3.data_path import (
    Cancelled,
    DataPath,
    Late,
    Overloaded,
    Reply,
    ServerError,
    ServerRefused,
    TooLarge,
    TransferError,
)
from cache_l3.record_store import ServerPicture
from cache_l3.shard import Shard, ShardTerms
from cache_l3.topology import open_topology, redirect_target
from kv_types.clock import Clock
from kv_types.errors import ClosedError
from kv_types.limits import (
    L3_ATTEMPTS_MAX,
    L3_PROBE_RECORDS_MAX,
    L3_RETRY_PAUSE_S_MAX,
    L3_RETRY_PAUSE_S_MIN,
    L3_SHARD_IDLE_S,
    L3_SHARDS_MAX,
)

_Answer = TypeVar("_Answer")
Command = Sequence[bytes]


class Trouble(Enum):
    """Why a request has no answer."""

    LATE = "late"
    UNAVAILABLE = "unavailable"
    FULL = "full"
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


_DOWN = frozenset({"LOADING", "MASTERDOWN"})
_LATER = frozenset({"TRYAGAIN", "CLUSTERDOWN", "READONLY"})
_ELSEWHERE = frozenset({"CLUSTERDOWN", "READONLY"})


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
        shards = list(self._shards.values())
        self._shards.clear()
        await asyncio.gather(*(shard.close() for shard in shards), *self._leaving)
        await asyncio.sleep(0)  # connections of asyncio's are closed in the loop's next turn

    def describe(self) -> tuple[ServerPicture, ...]:
        """Shards as people see them."""
        return tuple(shard.describe() for shard in self._shards.values())

    def opened(self) -> int:
        """How often breakers of the shards there are have opened."""
        return sum(shard.breaker.opened for shard in self._shards.values())

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
        aim = await self.aim(key, deadline_ns=deadline_ns)
        for attempt in range(L3_ATTEMPTS_MAX):
            began_ns = self._clock.now_ns()
            if writes_bytes:
                _make_sure_of_room(aim.shard, writes_bytes)
            try:
                answer = await send(aim.shard.number, aim.asking)
            except ClosedError:
                raise TroubleError(Trouble.CLOSED) from None
            except TransferError as error:
                aim = await self._after(aim, key, error, began_ns, attempt, deadline_ns)
            else:
                aim.shard.answered()
                return answer
        aim.shard.unanswered(
            f"{aim.shard.address.label}: no answer in {L3_ATTEMPTS_MAX} attempts", began_ns=began_ns
        )
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
        if isinstance(error, ServerRefused):
            shard.answered()
            redirected = self.react(aim, error.error)
            if redirected is not None:
                return redirected
        elif isinstance(error, Late):
            shard.unanswered(f"{shard.address.label}: {error}", began_ns=began_ns)
            raise TroubleError(Trouble.LATE)
        elif isinstance(
            error, Cancelled
        ):  # by the shard, which is down or leaves: a caller's own comes otherwise
            raise TroubleError(Trouble.CLOSED if self._is_closed else Trouble.UNAVAILABLE)
        elif isinstance(error, Overloaded):
            raise TroubleError(Trouble.OVERLOADED)
        elif isinstance(error, TooLarge):
            raise TroubleError(Trouble.FOREIGN)
        else:
            shard.note(f"{shard.address.label}: {error}")
        if not shard.retries.take(self._clock.now_ns()):
            shard.unanswered(f"{shard.address.label}: {error}", began_ns=began_ns)
            raise TroubleError(Trouble.UNAVAILABLE)
        self.retried += 1
        await self.pause(attempt, deadline_ns=deadline_ns)
        return await self.aim(key, deadline_ns=deadline_ns)

    def react(self, aim: Aim, error: ServerError) -> Aim | None:
        """Where an error of a server sends a request; None: to wherever its key is then, a little later. Raises TroubleError."""
        shard = aim.shard
        if error.code in ("MOVED", "ASK"):
            self.redirected += 1
            return self._redirected(aim, error)
        if error.code == "OOM":
            shard.capacity.refused()
            raise TroubleError(Trouble.FULL)
        if error.code == "WRONGTYPE":
            raise TroubleError(Trouble.FOREIGN)
        shard.note_reply(error.text)
        if error.code in _DOWN:
            shard.is_down(error.text)
        if error.code in _ELSEWHERE:
            self._topology.suspect(shard.address)
        if error.code in _LATER:
            return None
        raise TroubleError(Trouble.UNAVAILABLE)

    async def pause(self, attempt: int, *, deadline_ns: int) -> None:
        """Wait a little longer after each attempt, up to the deadline. Raises TroubleError when that has come."""
        remaining_s = (deadline_ns - self._clock.now_ns()) / 1e9
        if remaining_s <= 0:
            raise TroubleError(Trouble.LATE)
        wanted_s = min(L3_RETRY_PAUSE_S_MIN * (1 << attempt), L3_RETRY_PAUSE_S_MAX) if attempt else 0.0
        await asyncio.sleep(min(wanted_s, remaining_s))

    # --- many small ones ---

    async def ask_each(
        self, keys: Sequence[bytes], command: Callable[[bytes], Command], *, deadline_ns: int
    ) -> list[Reply | Trouble]:
        """Ask one small command about each key, together where the same server has them. No key's trouble is another's."""
        results: list[Reply | Trouble] = [Trouble.UNAVAILABLE] * len(keys)
        aims: dict[int, Aim] = {}
        waiting = list(range(len(keys)))
        for attempt in range(L3_ATTEMPTS_MAX):
            for place in waiting:
                if place not in aims:
                    try:
                        aims[place] = await self.aim(keys[place], deadline_ns=deadline_ns)
                    except TroubleError as error:
                        results[place] = error.trouble
            batches = _batches([place for place in waiting if place in aims], aims)
            ends = await asyncio.gather(
                *(
                    self._ask(aim, [command(keys[place]) for place in places], deadline_ns=deadline_ns)
                    for aim, places in batches
                )
            )
            again: dict[int, Aim | None] = {}
            for (aim, places), end in zip(batches, ends, strict=True):
                for place, reply in zip(places, end, strict=True):
                    results[place], next_aim, is_again = self._settle(aim, reply)
                    if is_again:
                        again[place] = next_aim
            waiting = list(again)
            aims = {place: aim for place, aim in again.items() if aim is not None}
            if not waiting:
                break
            if not aims:
                try:
                    await self.pause(attempt, deadline_ns=deadline_ns)
                except TroubleError as error:
                    for place in waiting:
                        results[place] = error.trouble
                    break
        return results

    def _settle(self, aim: Aim, reply: Reply | Trouble | None) -> tuple[Reply | Trouble, Aim | None, bool]:
        """What one reply comes to: the result so far, whom to ask next, and whether to ask again."""
        if not isinstance(reply, ServerError):
            return (
                reply,
                None,
                reply is Trouble.UNAVAILABLE and aim.shard.breaker.lets_through and self._may_retry(aim),
            )
        try:
            target = self.react(aim, reply)
        except TroubleError as error:
            return error.trouble, None, False
        return Trouble.UNAVAILABLE, target, target is not None or self._may_retry(aim)

    def _may_retry(self, aim: Aim) -> bool:
        may = aim.shard.retries.take(self._clock.now_ns())
        self.retried += may
        return may

    async def _ask(self, aim: Aim, commands: list[Command], *, deadline_ns: int) -> list[Reply | Trouble]:
        """One question to one server; what keeps all of it from being answered is the trouble of each."""
        shard, began_ns = aim.shard, self._clock.now_ns()
        try:
            replies = await self._path.ask(shard.number, commands, deadline_ns=deadline_ns, asking=aim.asking)
        except ClosedError:
            return [Trouble.CLOSED] * len(commands)
        except Late as error:
            shard.unanswered(f"{shard.address.label}: {error}", began_ns=began_ns)
            return [Trouble.LATE] * len(commands)
        except Overloaded:
            return [Trouble.OVERLOADED] * len(commands)
        except TooLarge:
            return [Trouble.FOREIGN] * len(commands)
        except TransferError as error:
            shard.note(f"{shard.address.label}: {error}")
            return [Trouble.UNAVAILABLE] * len(commands)
        shard.answered()
        return list(replies)

    # --- shards ---

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
        if shard is None or not shard.breaker.lets_through:
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
                on_suspect=lambda suspect: self._topology.suspect(suspect.address),
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
        if self.kind == "cluster":
            for address in known.values():
                self._shard(address)
        idle_ns = self._clock.now_ns() - int(L3_SHARD_IDLE_S * 1e9)
        for label, shard in list(self._shards.items()):
            if label not in known and shard.used_ns < idle_ns:
                del self._shards[label]
                leaving = asyncio.get_running_loop().create_task(shard.close())
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)

    async def _wait_known(self, deadline_ns: int) -> None:
        """Until the servers are known for the first time."""
        try:
            async with asyncio.timeout(max(0.0, (deadline_ns - self._clock.now_ns()) / 1e9)):
                await self._topology.known.wait()
        except TimeoutError:
            raise TroubleError(Trouble.UNAVAILABLE) from None


def _make_sure_of_room(shard: Shard, record_bytes: int) -> None:
    if shard.capacity.room is Room.FULL:
        raise TroubleError(Trouble.FULL)
    shard.capacity.wrote(record_bytes)


def _batches(places: Sequence[int], aims: dict[int, Aim]) -> list[tuple[Aim, list[int]]]:
    """Places of the same aim together, L3_PROBE_RECORDS_MAX at most."""
    found: dict[tuple[int, bool], list[tuple[Aim, list[int]]]] = {}
    for place in places:
        aim = aims[place]
        batches = found.setdefault((id(aim.shard), aim.asking), [])
        if not batches or len(batches[-1][1]) >= L3_PROBE_RECORDS_MAX:
            batches.append((aim, []))
        batches[-1][1].append(place)
    return [batch for batches in found.values() for batch in batches]
