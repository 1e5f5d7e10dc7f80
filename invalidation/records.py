"""What the log holds: its records as values with canonical bytes, and the digest that chains them (rule R7)."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field

from kv_types.errors import InvalidArgumentError, LimitExceededError, ProtocolError
from kv_types.events import Event, Selected, WeightsAnnounced
from kv_types.limits import EVENT_PAYLOAD_BYTES_MAX, LOG_NOTE_BYTES_MAX, SELECTOR_BYTES_MAX
from kv_types.selectors import EVERYTHING, Selector

VERSION = 1
DIGEST_BYTES = 20
NO_DIGEST = bytes(DIGEST_BYTES)
"""Digest at revision 0."""

_HEAD = struct.Struct("<BBHHHQ")
"""Version, kind, bytes of subject, reason and author, appender's wall clock."""
_INVALIDATION, _WEIGHTS = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """What somebody appends: an event for the whole fleet, who asked for it and why.

    `appended_wall_ms` is the appender's wall clock, Unix ms: for people only, never compared. Raises
    InvalidArgumentError, LimitExceededError.
    """

    event: Selected | WeightsAnnounced
    reason: str = ""
    author: str = ""
    appended_wall_ms: int = 0

    def __post_init__(self) -> None:
        for text, what in ((self.reason, "reason"), (self.author, "author")):
            try:
                size = len(text.encode())
            except UnicodeEncodeError as error:
                raise InvalidArgumentError(f"the {what} is text that UTF-8 can encode: {error}") from error
            if size > LOG_NOTE_BYTES_MAX:
                raise LimitExceededError(
                    f"the {what} has at most {LOG_NOTE_BYTES_MAX} bytes of UTF-8, not {size}; shorten it"
                )
        if not 0 <= self.appended_wall_ms < 1 << 64:
            raise InvalidArgumentError(f"appended_wall_ms is Unix ms; got {self.appended_wall_ms}")

    def encode(self) -> bytes:
        """Bytes of the log's payload, the same for equal entries."""
        match self.event:
            case Selected(selector):
                kind, subject = _INVALIDATION, selector.encode()
            case WeightsAnnounced():
                kind, subject = _WEIGHTS, self.event.encode()
        reason, author = self.reason.encode(), self.author.encode()
        head = _HEAD.pack(VERSION, kind, len(subject), len(reason), len(author), self.appended_wall_ms)
        return head + subject + reason + author

    @classmethod
    def decode(cls, data: bytes) -> LogEntry:
        """Read an entry back; raises ProtocolError. What can't be read selects everything: see `read_record`."""
        try:
            version, kind, *sizes, wall_ms = _HEAD.unpack_from(data)
            if version != VERSION or len(data) != _HEAD.size + sum(sizes):
                raise ProtocolError(f"{len(data)} bytes form no log entry of version {VERSION}")
            begin = _HEAD.size
            parts = []
            for size in sizes:
                parts.append(data[begin : begin + size])
                begin += size
            return cls(
                event=_event(kind, parts[0]),
                reason=parts[1].decode(),
                author=parts[2].decode(),
                appended_wall_ms=wall_ms,
            )
        except (struct.error, UnicodeDecodeError, InvalidArgumentError) as error:
            raise ProtocolError(f"{len(data)} bytes form no log entry: {error}") from error


def _event(kind: int, subject: bytes) -> Selected | WeightsAnnounced:
    if kind == _INVALIDATION:
        return Selected(Selector.decode(subject))
    if kind == _WEIGHTS:
        return WeightsAnnounced.decode(subject)
    raise ProtocolError(f"a log entry of kind {kind} has no known meaning")


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One entry in its place. `digest` chains it to all before it."""

    revision: int
    entry: LogEntry
    digest: bytes = field(default=NO_DIGEST)

    @property
    def event(self) -> Event:
        """What it says."""
        return self.entry.event


def read_record(revision: int, payload: bytes, digest: bytes) -> LogRecord:
    """Make a record of what the log returned. A payload of no known meaning selects everything (invariant I6)."""
    try:
        entry = LogEntry.decode(payload)
    except ProtocolError:
        entry = LogEntry(event=Selected(EVERYTHING), reason=f"{len(payload)} bytes that are not understood")
    return LogRecord(revision, entry, digest)


def next_digest(digest: bytes, payload: bytes) -> bytes:
    """Digest after a record: SHA-1 of the one before, as 40 lower-case hexadecimal digits, and the payload (rule R7).

    It tells histories apart, it does not protect against forgers.
    """
    return hashlib.sha1(digest.hex().encode() + payload, usedforsecurity=False).digest()


assert max(SELECTOR_BYTES_MAX, EVENT_PAYLOAD_BYTES_MAX, LOG_NOTE_BYTES_MAX) < 1 << 16, (
    "sizes are 16 bits wide"
)
