"""Conversions between messages of stratakv.v1.Admin and kv_types values; what comes from outside is checked here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from google.protobuf.unknown_fields import UnknownFieldSet

from kv_types import limits
from kv_types.errors import (
    InvalidArgumentError,
    InvalidIdentifierError,
    LimitExceededError,
    ProtocolError,
)
from kv_types.events import Event, LogStarted, Selected, WeightsAnnounced
from kv_types.ids import Stamp, namespace_id, page_key
from kv_types.selectors import Selector
from kv_wire.conversions import stamp_from_wire, stamp_to_wire
from kv_wire.gen import admin_pb2

ID_BYTES = 16
"""Size of a member's id and of a request's."""

_PLAIN = (
    "model",
    "weights_version",
    "adapter",
    "tenant",
    "producer",
    "tag",
    "since_ms",
    "until_ms",
    "since_revision",
    "until_revision",
    "other_weights_than",
)


def selector_to_wire(selector: Selector) -> admin_pb2.Selector:
    """Return the message of a selector; fields that are None are left out."""
    message = admin_pb2.Selector(namespace_id=selector.namespace, key=selector.key)
    for name in _PLAIN:
        value = getattr(selector, name)
        if value is not None:
            setattr(message, name, value)
    return message


def selector_from_wire(message: admin_pb2.Selector) -> Selector:
    """Return the selector of a message; raises InvalidArgumentError, LimitExceededError.

    A field that this version does not know is a condition: without it more would go than the sender asked for, so that
    such a message is refused (ProtocolError).
    """
    if len(UnknownFieldSet(message)):
        raise ProtocolError(
            "the selector has a condition that this version does not know: upgrade this sidecar"
        )
    plain = {name: getattr(message, name) for name in _PLAIN if message.HasField(name)}
    return Selector(
        namespace=namespace_id(message.namespace_id) if message.HasField("namespace_id") else None,
        key=page_key(message.key) if message.HasField("key") else None,
        **plain,
    )


def selectors_from_wire(messages: Sequence[admin_pb2.Selector]) -> list[Selector]:
    """Return the selectors of one call. Raises as `selector_from_wire` does, and unless there are 1 to the limit."""
    if not 1 <= len(messages) <= limits.INVALIDATE_SELECTORS_MAX:
        raise LimitExceededError(
            f"one call takes 1 to {limits.INVALIDATE_SELECTORS_MAX} selectors; got {len(messages)}. Everything is one "
            "selector without fields"
        )
    return [selector_from_wire(message) for message in messages]


def revision_from_wire(number: int, field: str) -> int:
    """Check a revision of the log in a message's field; raises InvalidArgumentError naming that."""
    if number > limits.LOG_REVISION_MAX:
        raise InvalidArgumentError(
            f"{field} is a revision of the log, {limits.LOG_REVISION_MAX} at most; got {number}"
        )
    return number


def identifier_from_wire(value: bytes, what: str) -> bytes:
    """Check the 16 bytes of a member's or request's id; raises InvalidIdentifierError."""
    if len(value) != ID_BYTES:
        raise InvalidIdentifierError(f"a {what} is exactly {ID_BYTES} bytes; got {len(value)}")
    return value


def identifiers_from_wire(values: Iterable[bytes], what: str) -> list[bytes]:
    """Check several ids, FLEET_MEMBERS_MAX at most, and return each once. Raises InvalidIdentifierError, LimitExceededError."""
    found = list(dict.fromkeys(identifier_from_wire(value, what) for value in values))
    if len(found) > limits.FLEET_MEMBERS_MAX:
        raise LimitExceededError(f"at most {limits.FLEET_MEMBERS_MAX} ids a call; got {len(found)}")
    return found


def record_to_wire(
    stamp: Stamp, event: Event, *, reason: str, author: str, appended_wall_ms: int
) -> admin_pb2.LogRecord:
    """Return the message of one record of the log."""
    message = admin_pb2.LogRecord(
        stamp=stamp_to_wire(stamp), reason=reason, author=author, appended_wall_ms=appended_wall_ms
    )
    match event:
        case Selected(selector):
            message.selector.CopyFrom(selector_to_wire(selector))
            message.selector.SetInParent()  # everything has no field, and is not nothing
        case WeightsAnnounced(model, version):
            message.weights.CopyFrom(admin_pb2.WeightsVersion(model=model, version=version))
        case LogStarted():
            raise AssertionError("a log's begin is no record of it")
    return message


def record_from_wire(message: admin_pb2.LogRecord) -> tuple[Stamp, Selected | WeightsAnnounced]:
    """Return where a record stands and what it says; raises ProtocolError when it says nothing that is known here."""
    stamp = stamp_from_wire(message.stamp)
    match message.WhichOneof("event"):
        case "selector":
            return stamp, Selected(selector_from_wire(message.selector))
        case "weights":
            return stamp, WeightsAnnounced(message.weights.model, message.weights.version)
    raise ProtocolError(f"record {stamp.revision} says nothing that this version knows")
