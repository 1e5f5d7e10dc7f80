"""Connections to the log's primary: one exchange at a time over each, with another server where one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from redis.asyncio.connection import AbstractConnection

from cache_l3.address import RedisAddress
from cache_l3.connections import Command, exchange
from cache_l3.errors import tls_hint
from invalidation.log import LogUnavailableError
from invalidation.redis.errors import unavailable
from invalidation.redis.primary import Primary
from invalidation.redis.replies import MalformedReplyError
from kv_types.clock import Clock

_Result = TypeVar("_Result")


class Talk:
    """One exchange with one server: commands sent at once, their replies in order.

    `address` is the server's; `is_first` says that the connection had no exchange before.
    """

    def __init__(
        self,
        connection: AbstractConnection,
        clock: Clock,
        *,
        address: RedisAddress,
        is_first: bool,
        deadline_ns: int,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._deadline_ns = deadline_ns
        self.address = address
        self.is_first = is_first

    @property
    def remaining_ms(self) -> int:
        """Time that is left for it, in ms, at least 1."""
        return max(1, (self._deadline_ns - self._clock.now_ns()) // 1_000_000)

    async def send(self, commands: Sequence[Command]) -> list[object]:
        """Return the reply to each command; one that is an error is returned as a ResponseError."""
        return await exchange(self._connection, commands)


@dataclass(slots=True)
class _Tries:
    """What one exchange has come to: the server that is tried now (None: between two), the last that failed, all that was met."""

    address: RedisAddress | None = None
    failed: RedisAddress | None = None
    met: list[LogUnavailableError] = field(default_factory=list)
    is_begun: bool = False


class Line:
    """One connection, to whichever server is taken for the primary; exchanges on it wait for each other.

    A connection serves again only after an exchange that ended well: one that timed out, was cancelled or failed is
    closed with its connection, so that no reply ever reaches anybody but who asked for it (case C17).
    """

    def __init__(self, primary: Primary, clock: Clock) -> None:
        self._primary = primary
        self._clock = clock
        self._lock = asyncio.Lock()
        self._connection: AbstractConnection | None = None
        self._address: RedisAddress | None = None
        self._connecting = False
        self._closed = False

    async def exchange(self, talk: Callable[[Talk], Awaitable[_Result]], *, deadline_ns: int) -> _Result:
        """Carry out `talk` with the first server, of those that may be the primary, with which it succeeds.

        `talk` may be carried out more than once, and may raise LogUnavailableError, which another server may heal.
        Raises LogUnavailableError: what the primary's keeper says of all that failed, "timeout" when the deadline passes
        first, "closed" after close().
        """
        remaining_s = (deadline_ns - self._clock.now_ns()) / 1e9
        tries = _Tries()
        if remaining_s <= 0:
            raise LogUnavailableError("timeout", "there was no time left to call it")
        try:
            async with asyncio.timeout(remaining_s), self._lock:
                return await self._try_each(talk, tries, deadline_ns=deadline_ns)
        except TimeoutError:
            raise self._timed_out(tries, remaining_s) from None

    def _timed_out(self, tries: _Tries, remaining_s: float) -> LogUnavailableError:
        if tries.address is not None:
            self._primary.timed_out(tries.address)
        if tries.met and tries.address in (None, tries.failed):
            return tries.met[-1]  # what it said before tells more than that time is over
        if tries.address is not None:
            hint = tls_hint(tries.address.scheme, TimeoutError()) if self._connecting else ""
            said = f"{tries.address.label} did not answer in {remaining_s:.3f} s"
            return LogUnavailableError("timeout", f"{said}; {hint}" if hint else said)
        said = (
            "no server was found in time" if tries.is_begun else "earlier calls took all the time there was"
        )
        return LogUnavailableError("timeout", said)

    async def _try_each(
        self, talk: Callable[[Talk], Awaitable[_Result]], tries: _Tries, *, deadline_ns: int
    ) -> _Result:
        tries.is_begun = True
        while True:
            try:
                tries.address = await self._primary.find()
                return await self._attempt(talk, tries.address, deadline_ns=deadline_ns)
            except LogUnavailableError as error:
                tries.failed, tries.address = tries.address, None
                tries.met.append(error)
                await self._primary.failed(tries.failed, tries.met)

    async def _attempt(
        self, talk: Callable[[Talk], Awaitable[_Result]], address: RedisAddress, *, deadline_ns: int
    ) -> _Result:
        """Once; once more where a connection that was kept turns out to be broken, which says little of the server."""
        was_kept = self._connection is not None and self._address == address
        try:
            return await self._attempt_once(talk, address, deadline_ns=deadline_ns)
        except LogUnavailableError as error:
            if not was_kept or error.reason != "unreachable":
                raise
        return await self._attempt_once(talk, address, deadline_ns=deadline_ns)

    async def _attempt_once(
        self, talk: Callable[[Talk], Awaitable[_Result]], address: RedisAddress, *, deadline_ns: int
    ) -> _Result:
        if self._closed:
            raise LogUnavailableError("closed", "this log was closed")
        # Data or an end that nobody asked for: the server has closed it, or it is not where we think it is.
        if self._connection is not None and (self._address != address or await self._connection.can_read()):
            await self._drop()
        is_first = self._connection is None
        connection = self._connection or address.connection()
        self._connection, self._address = connection, address
        done, self._connecting = False, is_first
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            self._connecting = False
            result = await talk(
                Talk(connection, self._clock, address=address, is_first=is_first, deadline_ns=deadline_ns)
            )
            done = True
        except MalformedReplyError as error:
            raise LogUnavailableError("malformed", f"{address.label}: {error}") from error
        except LogUnavailableError:
            raise
        except Exception as error:  # whatever a broken or hostile server makes redis-py or its parser raise
            hint = tls_hint(address.scheme, error) if is_first else ""
            raise unavailable(error, server=address.label, hint=hint) from error
        finally:
            if not done:
                await self._drop()
        return result

    async def _drop(self) -> None:
        """Close the connection; nobody gets it again, even if this is cancelled half way."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Close the connection and fail whoever asks for one from now on. Idempotent."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect()
