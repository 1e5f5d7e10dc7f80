"""Shard: one primary as a store uses it: its connections kept open, its breaker, its budget of retries, its memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from redis.exceptions import ResponseError

from cache_l3.address import RedisAddress
from cache_l3.breaker import Breaker, BreakerState, BreakerTerms
from cache_l3.capacity import Capacity, Room, read_memory
from cache_l3.connections import REMEDIES, ConnectError, Connector, Control
from cache_l3.data_path import DataPath
from cache_l3.errors import explain
from cache_l3.record_store import ServerPicture
from cache_l3.retry_budget import RetryBudget
from cache_l3.server_info import parse_info
from kv_types.clock import Clock
from kv_types.errors import ClosedError, InvalidArgumentError, LimitExceededError
from kv_types.limits import (
    L3_BREAKER_LATE_S,
    L3_CONNECT_S,
    L3_CONNECTIONS_PER_SHARD_DEFAULT,
    L3_CONNECTIONS_PER_SHARD_MAX,
    L3_LOOK_ANSWER_S,
    L3_LOOK_S,
    L3_OPENINGS_BURST_MAX,
    L3_OPENINGS_PER_S_MAX,
    L3_RENEW_S,
    L3_REOPEN_S,
    L3_RESERVE_FRACTION,
    L3_RETRIES_BURST_MAX,
    L3_RETRIES_PER_S_MAX,
)

_LOOK = (("INFO", "memory"), ("INFO", "replication"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTerms:
    """How a shard is used. `holds_log`: the fleet's log lies on the same server, so that pages must not fill it.

    Raises InvalidArgumentError.
    """

    connections: int = L3_CONNECTIONS_PER_SHARD_DEFAULT
    holds_log: bool = False
    reserve: float = L3_RESERVE_FRACTION
    """The part of a server's maxmemory that pages leave free, where it evicts none of them."""
    breaker: BreakerTerms = field(default_factory=BreakerTerms)

    def __post_init__(self) -> None:
        if not 1 <= self.connections <= L3_CONNECTIONS_PER_SHARD_MAX:
            raise InvalidArgumentError(
                f"a shard has 1 to {L3_CONNECTIONS_PER_SHARD_MAX} connections; got {self.connections}"
            )


class Shard:
    """One primary. A task of its own keeps its connections open, looks after its memory, and probes it while it is down.

    `on_suspect(shard)` is called when it went down, `on_replica(shard)` each time that it says that it is one.
    """

    def __init__(
        self,
        address: RedisAddress,
        *,
        path: DataPath,
        connector: Connector,
        clock: Clock,
        terms: ShardTerms,
        on_suspect: Callable[[Shard], None],
        on_replica: Callable[[Shard], None],
    ) -> None:
        self.address = address
        self.number = path.open_shard()
        """The data path's; another one after each time that it went down."""
        self.breaker = Breaker(terms.breaker)
        self.retries = RetryBudget(burst=L3_RETRIES_BURST_MAX, per_s=L3_RETRIES_PER_S_MAX)
        self.capacity = Capacity(holds_log=terms.holds_log, reserve=terms.reserve)
        self.used_ns = clock.now_ns()
        """When somebody asked it for something last."""
        self.is_replica = False
        """It is set aside: it is only looked at, until it says that it is a primary."""
        self._path = path
        self._connector = connector
        self._clock = clock
        self._terms = terms
        self._on_suspect = on_suspect
        self._on_replica = on_replica
        self._control = Control(address)
        self._connections = 0
        self._openings = RetryBudget(burst=L3_OPENINGS_BURST_MAX, per_s=L3_OPENINGS_PER_S_MAX)
        self._renewals = RetryBudget(burst=1, per_s=1 / L3_RENEW_S)
        self._reopen_s = L3_REOPEN_S
        self._look_due_ns = clock.now_ns()
        self._last_error = ""
        self._last_error_ns = 0
        self._refused: set[str] = set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to connect."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """Close its connections; what is under way on them ends."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        with contextlib.suppress(ClosedError):
            self._path.close_shard(self.number)
        await self._control.close()

    @property
    def is_asked(self) -> bool:
        """Whether a request may be sent to it."""
        return self.breaker.lets_through and not self.is_replica

    # --- what requests tell ---

    def answered(self) -> None:
        """A request got its answer, whatever it said."""
        self.breaker.succeeded()

    def unanswered(self, why: str, *, began_ns: int) -> None:
        """A request got none."""
        self.note(why)
        if self.breaker.failed(began_ns=began_ns, now_ns=self._clock.now_ns()):
            self._shut()

    def late(self, why: str, *, began_ns: int) -> None:
        """The deadline of a request passed first. One that had hardly any time says nothing of the server."""
        if self._clock.now_ns() - began_ns < int(L3_BREAKER_LATE_S * 1e9):
            self.note(why)
        else:
            self.unanswered(why, began_ns=began_ns)

    def is_down(self) -> None:
        """It said itself that it can't answer now, or takes no connection."""
        if self.breaker.trip(self._clock.now_ns()):
            self._shut()

    def carried_out(self, command: str) -> None:
        """It did what it was told, or said that there is nothing to do it with."""
        self._refused.discard(command)

    def refused(self, command: str) -> None:
        """It answered by an error that says nothing of room, of another server, or of a moment."""
        self._refused.add(command)

    def renew(self) -> None:
        """Connect anew, now and then at most: its name may stand for another server by now. Requests are to be sent again."""
        if self.breaker.lets_through and self._renewals.take(self._clock.now_ns()):
            self._drop_connections()

    def set_aside(self) -> None:
        """It is a replica: what waits for it ends now, and nothing is asked of it."""
        if not self.is_replica or self._connections:
            self._drop_connections()
        self.is_replica = True

    def may_be_primary(self) -> None:
        """Another one is a primary no more, so that this one may be it by now, whatever it said before."""
        if self.is_replica:
            self.is_replica = False
            self._look_due_ns = self._clock.now_ns()
            self._changed.set()

    def note(self, why: str) -> None:
        """Remember the newest trouble, for people."""
        self._last_error, self._last_error_ns = why, self._clock.now_ns()

    def note_reply(self, text: str) -> None:
        """The same of an error that it answered, with what to do about it."""
        self.note(explain(ResponseError(text), server=self.address.label, remedies=REMEDIES))

    def describe(self) -> ServerPicture:
        """As people see it."""
        return ServerPicture(
            server=self.address.label,
            breaker=(BreakerState.OPEN if self.is_replica else self.breaker.state).value,
            connections=self._connections,
            last_error=self._last_error,
            writes=self._writes(),
            last_error_ms_ago=(self._clock.now_ns() - self._last_error_ns) // 1_000_000
            if self._last_error
            else 0,
            refused=tuple(sorted(self._refused)),
        )

    def _writes(self) -> str:
        room = self.capacity.room(self._clock.now_ns())
        if self.is_replica or ("SET" in self._refused and room is not Room.FULL):
            return "refused"
        return room.value

    # --- the keeper ---

    async def _keep(self) -> None:
        while True:
            try:
                await self._turn()
            except Exception as error:  # noqa: BLE001 - a server without a keeper would never be used again
                self.note(f"{self.address.label}: an error in the keeper itself ({type(error).__name__})")
                await asyncio.sleep(L3_LOOK_S)

    async def _turn(self) -> None:
        self._changed.clear()
        if not self.breaker.lets_through:
            await self._probe()
        elif self._connections < self._terms.connections and not self.is_replica:
            await self._open()
        else:
            await self._rest()
        if self.breaker.lets_through and self._clock.now_ns() >= self._look_due_ns:
            await self._look()

    async def _probe(self) -> None:
        """While it is down: wait until the next probe is due. A new connection, with an answer on it, is the probe."""
        due_ns = self.breaker.probe_due_ns or 0
        await asyncio.sleep(max(0.0, (due_ns - self._clock.now_ns()) / 1e9))
        if not self.breaker.begin_probe(self._clock.now_ns()):
            return
        is_there = False
        try:
            is_there = await self._connect()
        finally:
            self.breaker.probed(answered=is_there, now_ns=self._clock.now_ns())
        if is_there:
            self._look_due_ns = self._clock.now_ns()
        else:
            self._on_suspect(self)

    async def _open(self) -> None:
        """Open one more connection. Two in a row that can't be opened, while there is none, show that the server is down."""
        await asyncio.sleep(self._openings.wait_ns(self._clock.now_ns()) / 1e9)
        self._openings.take(self._clock.now_ns())
        if await self._connect() or (self._connections == 0 and await self._connect()):
            self._reopen_s = L3_REOPEN_S
        elif self._connections == 0:
            self.is_down()
        else:
            await asyncio.sleep(self._reopen_s)
            self._reopen_s = min(2 * self._reopen_s, L3_LOOK_S)

    async def _connect(self) -> bool:
        number = self.number
        try:
            connection = await self._connector.open(self.address, timeout_s=L3_CONNECT_S)
        except ConnectError as error:
            self.note(str(error))
            return False
        if number != self.number:  # it went down meanwhile, and this one is of before
            connection.close()
            return False
        try:
            self._path.add_connection(number, connection, on_lost=lambda why: self._lost(number, why))
        except (LimitExceededError, ClosedError, OSError) as error:
            connection.close()
            self.note(str(error))
            return False
        self._connections += 1
        return True

    def _lost(self, number: int, why: str) -> None:
        if number == self.number:
            self._connections -= 1
            self.note(f"{self.address.label}: {why}")
            self._changed.set()

    async def _rest(self) -> None:
        """Until a connection is lost, it went down, or it is time to look."""
        try:
            async with asyncio.timeout(max(0.0, (self._look_due_ns - self._clock.now_ns()) / 1e9)):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _look(self) -> None:
        """Ask for its memory and its role."""
        began_ns = self._clock.now_ns()
        self._look_due_ns = began_ns + int(L3_LOOK_S * 1e9)
        try:
            memory, replication = await self._control.ask(_LOOK, timeout_s=L3_LOOK_ANSWER_S)
        except ConnectError as error:
            self.unanswered(str(error), began_ns=began_ns)
            return
        self.answered()
        self.capacity.told(read_memory(_read(memory)), now_ns=began_ns)
        if _read(replication).get("role") == "slave":
            self.note(f"{self.address.label} is a replica: name its primary, in its place or beside it")
            await self._control.close()  # the next look is to find whatever its name stands for by then
            self._on_replica(self)
        elif self.is_replica:
            self.is_replica = False
            self._drop_connections()

    def _shut(self) -> None:
        """It went down: whatever waits for it ends now, not at its deadline."""
        self._drop_connections()
        self._on_suspect(self)

    def _drop_connections(self) -> None:
        self._path.close_shard(self.number)
        self.number = self._path.open_shard()
        self._connections = 0
        self._changed.set()


def _read(reply: object) -> dict[str, str]:
    """INFO's answer; empty where it may not be asked."""
    return dict(parse_info(reply.decode(errors="replace"))) if isinstance(reply, bytes) else {}
