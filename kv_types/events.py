"""Events of the shared-memory ring: what a sidecar hid, as kind and payload that an L1 interprets on its own.

An event says what to forget, never what to keep: whoever does not know a kind drops all (invariant I6).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from kv_types.errors import InvalidArgumentError, ProtocolError
from kv_types.ids import KEY_BYTES, NamespaceId, PageKey, namespace_id, page_key
from kv_types.limits import EVENT_PAYLOAD_BYTES_MAX

EVENT_PAGES_MAX = EVENT_PAYLOAD_BYTES_MAX // KEY_BYTES
"""Page keys that one event can name."""


class EventKind(IntEnum):
    """What an event selects. Numbers are part of the shared-memory contract and never reused."""

    LOG_STARTED = 1
    """A log incarnation begins; pages of any other incarnation are void. No payload."""
    EVERYTHING = 2
    """Every page. No payload."""
    NAMESPACE = 3
    """Every page of one namespace. Payload: its id, 32 bytes."""
    PAGES = 4
    """These pages and all that was computed on them. Payload: 1 to EVENT_PAGES_MAX keys of 32 bytes."""


@dataclass(frozen=True, slots=True)
class LogStarted:
    """A log incarnation begins: a holder drops every page that it has."""


@dataclass(frozen=True, slots=True)
class EverythingHidden:
    """Every page was hidden."""


@dataclass(frozen=True, slots=True)
class NamespaceHidden:
    """Every page of `namespace` was hidden."""

    namespace: NamespaceId


@dataclass(frozen=True, slots=True)
class PagesHidden:
    """The pages under `keys`, and whatever was computed on top of them, were hidden."""

    keys: tuple[PageKey, ...]


Event = LogStarted | EverythingHidden | NamespaceHidden | PagesHidden


def encode_event(event: Event) -> tuple[EventKind, bytes]:
    """Return the (kind, payload) of an event; raises InvalidArgumentError on no or too many pages."""
    match event:
        case LogStarted():
            return EventKind.LOG_STARTED, b""
        case EverythingHidden():
            return EventKind.EVERYTHING, b""
        case NamespaceHidden(namespace):
            return EventKind.NAMESPACE, bytes(namespace)
        case PagesHidden(keys):
            if not 1 <= len(keys) <= EVENT_PAGES_MAX:
                raise InvalidArgumentError(
                    f"one event names 1–{EVENT_PAGES_MAX} pages, got {len(keys)}: split with pages_hidden()"
                )
            return EventKind.PAGES, b"".join(keys)


def decode_event(kind: int, payload: bytes) -> Event:
    """Read an event back; raises ProtocolError on a kind of no known meaning or a payload of the wrong size.

    The right answer to a ProtocolError is to drop every page (invariant I6).
    """
    if kind == EventKind.LOG_STARTED and not payload:
        return LogStarted()
    if kind == EventKind.EVERYTHING and not payload:
        return EverythingHidden()
    if kind == EventKind.NAMESPACE and len(payload) == KEY_BYTES:
        return NamespaceHidden(namespace_id(payload))
    if (
        kind == EventKind.PAGES
        and 0 < len(payload) <= EVENT_PAYLOAD_BYTES_MAX
        and not len(payload) % KEY_BYTES
    ):
        return PagesHidden(
            tuple(page_key(payload[at : at + KEY_BYTES]) for at in range(0, len(payload), KEY_BYTES))
        )
    raise ProtocolError(f"event kind {kind} with {len(payload)} payload bytes has no known meaning")


def pages_hidden(packed: bytes) -> Iterator[PagesHidden]:
    """Split n × 32 key bytes into as many events as they need."""
    step = EVENT_PAGES_MAX * KEY_BYTES
    for begin in range(0, len(packed), step):
        part = packed[begin : begin + step]
        yield PagesHidden(tuple(page_key(part[at : at + KEY_BYTES]) for at in range(0, len(part), KEY_BYTES)))
