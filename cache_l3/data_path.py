"""The contract of what moves bytes between the sockets of servers and memory, one connection's window of requests at a time.

A data path knows RESP and how a record begins, nothing of pages. Whoever uses it connects and authenticates, hands the
connection over, and decides what is tried again. All of it is called from one event loop, in which its futures complete.

**Exactly once.** Every future completes, once, by its deadline and what it takes to notice, with a value or with one of the
family of `TransferError`. From then on no byte of its `place` is written and no byte of its `payload` is read. That holds
after a cancellation too: `future.cancel()` (also that of a task which awaits it) asks for the end and does not wait for it,
so a future is done later than it was cancelled. Then it raises asyncio.CancelledError; after `DataPath.cancel`, Cancelled.

**One late request ends its connection**: its reply could come at any time and would be taken for that of another. The
other requests of that connection's window end as Lost; all of them may be sent again (a SET of a record overwrites, so that
twice is once). Nothing is sent again in here: retry budgets and breakers are the caller's.

**Order.** A shard hands its requests to whichever of its connections has least under way: GETs before questions before
SETs, though nobody waits for ever. Of several connections one is never given a SET while the others can take it, so that a
load does not wait until a large page is stored. A request waits while the shard has no connection; its deadline ends that.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

from typing_extensions import Buffer

from kv_types.errors import StrataError


@dataclass(frozen=True, slots=True)
class HeaderShape:
    """Where a record's header says what a data path must know; the rest of it is not looked at. Bytes from its start."""

    size_at: int
    """u32, little-endian: bytes of the whole header, its CRC included."""
    checksum_at: int
    """u64, little-endian: XXH3-64 of the stored payload."""
    bytes_min: int
    """Of a header; the last four of them are the CRC-32 of all before, little-endian."""
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Got:
    """A record as it arrived. Nothing of it is verified but that it fits."""

    header: bytes
    """As many bytes as the record says its header has. Where that is impossible: its first `bytes_max` bytes, or fewer."""
    stored_bytes: int
    """Bytes that came after the header."""
    in_place: bool
    """They were exactly as many as the place has, and lie in it."""
    stored: Buffer | None
    """They were fewer, and lie here; the place is untouched. None: they are in the place, or were too many and thrown away."""
    checksum: int
    """XXH3-64 of them as they arrived; 0 for what was thrown away."""


class Absent(Enum):
    """The server has no value under the key."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT


@dataclass(frozen=True, slots=True)
class ServerError:
    """One error reply among the replies to a question, without its leading minus."""

    text: str

    @property
    def code(self) -> str:
        """Its first word: MOVED, ASK, OOM, LOADING, NOPERM, ERR …."""
        return self.text.split(" ", 1)[0]

    @property
    def hangs_up(self) -> bool:
        """Whether the server closes the connection after it, because it can't tell where the next command begins."""
        return self.text.startswith("ERR Protocol error")


Reply: TypeAlias = bytes | int | ServerError | None
"""A bulk or simple string, an integer, an error, nil."""


class TransferError(StrataError):
    """A request has no reply that can be used. `was_sent`: bytes of it may have reached the server."""

    code = "transfer"

    def __init__(self, text: str, *, was_sent: bool) -> None:
        super().__init__(text)
        self.was_sent = was_sent


class Late(TransferError):
    """The deadline passed first. If it was sent, its connection is closed."""

    code = "deadline"


class Lost(TransferError):
    """The connection ended, for a reason that is not this request's; sending it again is safe."""

    code = "lost"


class ServerRefused(TransferError):
    """The server answered with an error (its text, without the minus). The connection lives on.

    But not where the server hangs up: after an error of the protocol, or one that came before the request was wholly sent.
    """

    code = "server_refused"

    def __init__(self, text: str) -> None:
        super().__init__(text, was_sent=True)

    @property
    def error(self) -> ServerError:
        """The same as a value."""
        return ServerError(str(self))


class Malformed(TransferError):
    """What came is no RESP reply, or none that this command can have; the connection is closed."""

    code = "malformed"


class TooLarge(TransferError):
    """The reply is far larger than what was asked for; the connection is closed."""

    code = "too_large"


class Cancelled(TransferError):
    """The caller gave it up, or closed the shard or all. If it was sent, its connection is closed."""

    code = "cancelled"


class Overloaded(TransferError):
    """More requests are under way than one data path takes; this one was not queued."""

    code = "overloaded"


class DataPath(Protocol):
    """Moves bytes for any number of shards. `deadline_ns` is CLOCK_BOOTTIME. Raises ClosedError after `close`."""

    def open_shard(self) -> int:
        """Begin a set of connections to one server that share a queue; returns its number."""
        ...

    def close_shard(self, shard: int) -> None:
        """Close its connections, without `on_lost`, and end its requests as Cancelled, soon. Twice is once."""
        ...

    def add_connection(
        self, shard: int, connection: socket.socket, *, on_lost: Callable[[str], None]
    ) -> None:
        """Take over a connected, authenticated socket on which nothing is under way; the caller's object is detached.

        `on_lost(why)` is called once, in the loop, when it has ended for whatever reason but `close` and `close_shard`. For
        a shard that is closed it is closed.
        """
        ...

    def get(
        self, shard: int, key: bytes, place: memoryview, *, deadline_ns: int, asking: bool = False
    ) -> asyncio.Future[Got | Absent]:
        """GET a record, its payload straight into `place` (writable, contiguous, the bytes that a raw payload has).

        A value of more than `bytes_max` + 2 × place is TooLarge. `asking`: ASKING goes before, for a slot that moves.
        """
        ...

    def set(
        self,
        shard: int,
        key: bytes,
        header: bytes,
        payload: Buffer,
        *,
        ttl_s: int,
        deadline_ns: int,
        asking: bool = False,
    ) -> asyncio.Future[None]:
        """SET `header` ‖ `payload` (contiguous) with EX `ttl_s` (1 or more).

        The header goes out sealed: with the payload's XXH3-64 at `checksum_at` and the CRC-32 made anew, both computed here;
        whatever stood there is ignored.
        """
        ...

    def ask(
        self, shard: int, commands: Sequence[Sequence[bytes]], *, deadline_ns: int, asking: bool = False
    ) -> asyncio.Future[list[Reply]]:
        """Send small commands together and return one reply each, errors among them as values.

        For what replies with one string, integer or nil (GETRANGE, EXPIRE, UNLINK, PING). Raises LimitExceededError for more
        than L3_ASK_COMMANDS_MAX commands or L3_ASK_BYTES_MAX bytes. `asking` goes before every command.
        """
        ...

    def cancel(self, future: asyncio.Future[Any]) -> None:
        """End a request soon as Cancelled; one that was sent closes its connection. Done already: nothing happens."""
        ...

    def close(self) -> None:
        """Close all connections; every request is done when this returns. Twice is once."""
        ...

    def statistics(self) -> Mapping[str, int]:
        """Since the start: gets, sets, asks, bytes_in, bytes_out, late, lost, refused, malformed, too_large, cancelled,
        overloaded, connections_lost; now: connections, queued, in_flight."""
        ...
