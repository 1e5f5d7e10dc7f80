"""Events of the shared-memory ring: what the log said, one event a record, as kind and payload.

An event says what to forget, never what to keep: whoever does not know a kind drops all (invariant I6).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from kv_types.errors import InvalidArgumentError, ProtocolError
from kv_types.limits import EVENT_PAYLOAD_BYTES_MAX, SELECTOR_BYTES_MAX
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
    """Workers that follow announcements compute `model` under weights version `version` from here on (rule R5)."""

    model: str
    version: str


Event = LogStarted | Selected | WeightsAnnounced


def encode_event(event: Event) -> tuple[EventKind, bytes]:
    """Return the (kind, payload) of an event; raises InvalidArgumentError on names too long for the ring."""
    match event:
        case LogStarted():
            return EventKind.LOG_STARTED, b""
        case Selected(selector):
            payload = selector.encode()
            # A selector too long for the ring is told as everything: L1 drops more than it must, never less.
            return EventKind.SELECTED, payload if len(
                payload
            ) <= EVENT_PAYLOAD_BYTES_MAX else EVERYTHING.encode()
        case WeightsAnnounced(model, version):
            names = model.encode(), version.encode()
            payload = _NAMES.pack(len(names[0]), len(names[1])) + b"".join(names)
            if not names[0] or not names[1] or len(payload) > EVENT_PAYLOAD_BYTES_MAX:
                raise InvalidArgumentError(
                    f"model and version need 1 byte each and have at most {EVENT_PAYLOAD_BYTES_MAX - _NAMES.size} "
                    f"together; got {len(names[0])} and {len(names[1])}"
                )
            return EventKind.WEIGHTS, payload


def decode_event(kind: int, payload: bytes) -> Event:
    """Read an event back; raises ProtocolError on a kind of no known meaning or a payload that is none of it.

    The right answer to a ProtocolError is to drop every page (invariant I6).
    """
    if len(payload) <= EVENT_PAYLOAD_BYTES_MAX:
        if kind == EventKind.LOG_STARTED and not payload:
            return LogStarted()
        if kind == EventKind.SELECTED:
            return Selected(Selector.decode(payload))
        if kind == EventKind.WEIGHTS and len(payload) >= _NAMES.size:
            return _weights(payload)
    raise ProtocolError(f"event kind {kind} with {len(payload)} payload bytes has no known meaning")


def _weights(payload: bytes) -> WeightsAnnounced:
    model, version = _NAMES.unpack_from(payload)
    names = payload[_NAMES.size :]
    if not model or not version or model + version != len(names):
        raise ProtocolError(f"{len(payload)} bytes name no model and version")
    try:
        return WeightsAnnounced(names[:model].decode(), names[model:].decode())
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a model's name or version is no UTF-8: {error}") from error


assert SELECTOR_BYTES_MAX >= EVENT_PAYLOAD_BYTES_MAX
