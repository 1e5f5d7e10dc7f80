"""Events of the shared-memory ring: what the log said, one event a record, as kind and payload.

An event says what to forget, never what to keep: whoever does not know a kind drops all (invariant I6).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from kv_types.computation import check_name
from kv_types.errors import InvalidArgumentError, LimitExceededError, ProtocolError
from kv_types.limits import EVENT_PAYLOAD_BYTES_MAX
from kv_types.selectors import EVERYTHING, Selector

_NAMES = struct.Struct("<HH")  # bytes of model, bytes of version


class EventKind(IntEnum):
    """What an event says. Numbers are part of the shared-memory contract and never reused."""

    LOG_STARTED = 1
    """A log incarnation begins, or the log was joined anew; every page is void. No payload."""
    SELECTED = 2
    """Every page that a selector selects was hidden. Payload: its canonical bytes."""
    WEIGHTS = 3
    """From here on a model's weights are of another version. Payload: model and version."""


@dataclass(frozen=True, slots=True)
class LogStarted:
    """A log incarnation begins: a holder drops every page that it has."""


@dataclass(frozen=True, slots=True)
class Selected:
    """Every page that `selector` selects, and what was computed on it, was hidden."""

    selector: Selector


@dataclass(frozen=True, slots=True)
class WeightsAnnounced:
    """Workers that follow announcements compute `model` under weights version `version` from here on (rule R5).

    Raises InvalidArgumentError on names that no namespace could have, or that are too long for the ring.
    """

    model: str
    version: str

    def __post_init__(self) -> None:
        for value, what in ((self.model, "model"), (self.version, "weights version")):
            check_name(value, what)
        size = len(self.encode())
        if size > EVENT_PAYLOAD_BYTES_MAX:
            raise LimitExceededError(
                f"model and weights version have at most {EVENT_PAYLOAD_BYTES_MAX - _NAMES.size} bytes of UTF-8 "
                f"together, to be announced; got {size - _NAMES.size}"
            )

    def encode(self) -> bytes:
        """Bytes in the ring and in the log."""
        model, version = self.model.encode(), self.version.encode()
        return _NAMES.pack(len(model), len(version)) + model + version

    @classmethod
    def decode(cls, data: bytes) -> WeightsAnnounced:
        """Read the bytes back; raises ProtocolError on any that encode() does not give."""
        try:
            model, version = _NAMES.unpack_from(data)
            names = data[_NAMES.size :]
            if model + version != len(names):
                raise ProtocolError(f"{len(data)} bytes name no model and version")
            return cls(names[:model].decode(), names[model:].decode())
        except (struct.error, UnicodeDecodeError, InvalidArgumentError) as error:
            raise ProtocolError(f"{len(data)} bytes announce no weights: {error}") from error


Event = LogStarted | Selected | WeightsAnnounced


def encode_event(event: Event) -> tuple[EventKind, bytes]:
    """Return the (kind, payload) of an event.

    A selector too long for the ring is told as one of everything: L1 drops more than it must, never less.
    """
    match event:
        case LogStarted():
            return EventKind.LOG_STARTED, b""
        case Selected(selector):
            payload = selector.encode()
            fits = len(payload) <= EVENT_PAYLOAD_BYTES_MAX
            return EventKind.SELECTED, payload if fits else EVERYTHING.encode()
        case WeightsAnnounced():
            return EventKind.WEIGHTS, event.encode()


def decode_event(kind: int, payload: bytes) -> Event:
    """Read an event back; raises ProtocolError on a kind of no known meaning or a payload that is none of it.

    The right answer to a ProtocolError is to drop every page (invariant I6).
    """
    if len(payload) <= EVENT_PAYLOAD_BYTES_MAX:
        if kind == EventKind.LOG_STARTED and not payload:
            return LogStarted()
        if kind == EventKind.SELECTED:
            return Selected(Selector.decode(payload))
        if kind == EventKind.WEIGHTS:
            return WeightsAnnounced.decode(payload)
    raise ProtocolError(f"event kind {kind} with {len(payload)} payload bytes has no known meaning")
