"""Connections to the log's servers: which one is taken for the primary, and one exchange at a time over each connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from redis.asyncio.connection import AbstractConnection

from cache_l3.address import RedisAddress
from cache_l3.connections import Command, exchange
from cache_l3.errors import tls_hint
from invalidation.log import LogUnavailableError
from invalidation.redis.errors import unavailable
from invalidation.redis.replies import MalformedReplyError
from kv_types.clock import Clock
from kv_types.limits import LOG_UNCONFIRMED_MAX

_Result = TypeVar("_Result")


class Candidates:
    """Servers any of which may be the log's primary. The one that works is kept until it fails."""

    def __init__(self, addresses: Sequence[RedisAddress]) -> None:
        self.addresses = tuple(addresses)
        self.current = 0
        self._unconfirmed = 0

    def failed(self, place: int) -> None:
        """Go on to the next one, if nobody else has done so meanwhile."""
        if place == self.current:
            self.current = (place + 1) % len(self.addresses)
            self._unconfirmed = 0

    def answered(self, place: int, *, confirmed: bool) -> None:
        """Take note of a renewal's answer. A server whose replicas stay silent may be an old primary that lives on."""
        self._unconfirmed = 0 if confirmed else self._unconfirmed + 1
        if self._unconfirmed >= LOG_UNCONFIRMED_MAX:
            self.failed(place)


class Talk:
    """One exchange with one server: commands sent at once, their replies in order.

    `place` is the server's among the candidates; `is_first` says that the connection had no exchange before.
    """

    def __init__(
        self, connection: AbstractConnection, clock: Clock, *, place: int, is_first: bool, deadline_ns: int
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._deadline_ns = deadline_ns
        self.place = place
        self.is_first = is_first

    @property
    def remaining_ms(self) -> int:
        """Time that is left for it, in ms, at least 1."""
        return max(1, (self._deadline_ns - self._clock.now_ns()) // 1_000_000)

    async def send(self, commands: Sequence[Command]) -> list[object]:
        """Return the reply to each command; one that is an error is returned as a ResponseError."""
        return await exchange(self._connection, commands)


class Line:
    """One connection, to whichever server is taken for the primary; exchanges on it wait for each other.

    A connection serves again only after an exchange that ended well: one that timed out, was cancelled or failed is
    closed with its connection, so that no reply ever reaches anybody but who asked for it (case C17).
    """

    def __init__(self, candidates: Candidates, clock: Clock) -> None:
        self._candidates = candidates
        self._clock = clock
        self._lock = asyncio.Lock()
        self._connection: AbstractConnection | None = None
        self._place = 0
        self._connecting = False
        self._closed = False

    async def exchange(self, talk: Callable[[Talk], Awaitable[_Result]], *, deadline_ns: int) -> _Result:
        """Carry out `talk` with the first server, from the present one on, with which it succeeds.

        `talk` may be carried out more than once, and may raise LogUnavailableError, which another server may heal.
        Raises LogUnavailableError: of the first server's reason when all fail, "timeout" when the deadline passes
        first, "closed" after close().
        """
        remaining_s = (deadline_ns - self._clock.now_ns()) / 1e9
        trying: list[int] = []
        if remaining_s <= 0:
            raise LogUnavailableError("timeout", "there was no time left to call it")
        try:
            async with asyncio.timeout(remaining_s), self._lock:
                return await self._try_each(talk, trying, deadline_ns=deadline_ns)
        except TimeoutError as error:
            if trying:
                self._candidates.failed(trying[-1])
                address = self._candidates.addresses[trying[-1]]
                hint = tls_hint(address.scheme, error) if self._connecting else ""
                said = f"{address.label} did not answer in {remaining_s:.3f} s"
                raise LogUnavailableError("timeout", f"{said}; {hint}" if hint else said) from None
            raise LogUnavailableError("timeout", "earlier calls took all the time there was") from None

    async def _try_each(
        self, talk: Callable[[Talk], Awaitable[_Result]], trying: list[int], *, deadline_ns: int
    ) -> _Result:
        first: LogUnavailableError | None = None
        for _ in self._candidates.addresses:
            trying.append(self._candidates.current)
            try:
                return await self._attempt(talk, trying[-1], deadline_ns=deadline_ns)
            except LogUnavailableError as error:
                self._candidates.failed(trying[-1])
                first = first or error
        assert first is not None, "a log has at least one server"
        raise first

    async def _attempt(
        self, talk: Callable[[Talk], Awaitable[_Result]], place: int, *, deadline_ns: int
    ) -> _Result:
        """Once; once more where a connection that was kept turns out to be broken, which says little of the server."""
        was_kept = self._connection is not None and self._place == place
        try:
            return await self._attempt_once(talk, place, deadline_ns=deadline_ns)
        except LogUnavailableError as error:
            if not was_kept or error.reason != "unreachable":
                raise
        return await self._attempt_once(talk, place, deadline_ns=deadline_ns)

    async def _attempt_once(
        self, talk: Callable[[Talk], Awaitable[_Result]], place: int, *, deadline_ns: int
    ) -> _Result:
        address = self._candidates.addresses[place]
        if self._closed:
            raise LogUnavailableError("closed", "this log was closed")
        # Data or an end that nobody asked for: the server has closed it, or it is not where we think it is.
        if self._connection is not None and (self._place != place or await self._connection.can_read()):
            await self._drop()
        is_first = self._connection is None
        connection = self._connection or address.connection()
        self._connection, self._place = connection, place
        done, self._connecting = False, is_first
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            self._connecting = False
            result = await talk(
                Talk(connection, self._clock, place=place, is_first=is_first, deadline_ns=deadline_ns)
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
