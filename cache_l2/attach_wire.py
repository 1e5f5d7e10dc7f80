"""Codec of the attach protocol: bytes to typed messages and back, without sockets, clocks or state.

One message a SOCK_SEQPACKET datagram. All integers are little-endian:

    magic "SKVA" | version u16 | type u16 | request u32 | body bytes u32 | body

`request` is drawn by the client and echoed by the reply. The header and the bodies of HELLO and REFUSED never change,
so that any two versions can at least tell each other that they do not match. HELLO carries one descriptor (the
client's pidfd), WELCOME four (control, clients, data, doorbell); no other message carries any.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from cache_l2.attach_body import COUNT, Body
from cache_l2.attach_load_wire import read_load, read_loaded, write_load, write_loaded
from cache_l2.attach_looked import read_looked, write_looked
from cache_l2.attach_messages import (
    Abort,
    CancelLoad,
    ClientMessage,
    Commit,
    CommittedPages,
    Detach,
    Done,
    Failed,
    Hello,
    Load,
    LoadedPages,
    Looked,
    MessageType,
    Ping,
    Pong,
    Refused,
    Register,
    Registered,
    Reserve,
    ReservedPages,
    Role,
    SidecarMessage,
    Speeds,
    Unregister,
    Welcome,
)
from cache_l2.attach_speeds import read_speeds, write_speeds
from kv_types.errors import InvalidArgumentError, LimitExceededError, ProtocolError
from kv_types.ids import (
    INCARNATION_BYTES,
    KEY_BYTES,
    LIFE_BYTES,
    LifeId,
    LogIncarnation,
    NamespaceId,
    PageKey,
    Stamp,
)
from kv_types.limits import (
    ATTACH_MESSAGE_BYTES_MAX,
    ATTACHMENTS_GONE_MAX,
    BATCH_PAGES_MAX,
    CLIENT_NAME_BYTES_MAX,
    FAILURE_CODE_BYTES_MAX,
    FAILURE_TEXT_BYTES_MAX,
    NAMESPACE_BYTES_MAX,
    PRODUCER_BYTES_MAX,
    TAG_BYTES_MAX,
    TAGS_PER_RECORD_MAX,
)
from kv_types.validity import EngineMode

MAGIC = b"SKVA"
PROTOCOL_VERSION = 5
PROTOCOL_VERSION_MIN = 5
HELLO_DESCRIPTORS = 1
WELCOME_DESCRIPTORS = 4

_HEADER = struct.Struct("<4sHHII")
_ENGINE_SHIFT = 4
"""HELLO's byte of what a client is: its role in the low half, its engine mode in the high one."""
_HELLO = struct.Struct("<HHIBQQ")
_WELCOME = struct.Struct(f"<HII{LIFE_BYTES}sQQQIIQQQB")
_REGISTERED = struct.Struct(f"<{KEY_BYTES}sIII")
_RESERVE = struct.Struct(f"<IBqB{KEY_BYTES}sH")
_COMMIT = struct.Struct(f"<{INCARNATION_BYTES}sQQQQH")
_LENGTH = struct.Struct("<I")
_PONG = struct.Struct("<Q")


def encode_message(
    message: ClientMessage | SidecarMessage, request: int, *, version: int = PROTOCOL_VERSION
) -> bytes:
    """Return the datagram of `message`.

    Raises LimitExceededError when a batch, name or the whole exceeds its limit, InvalidArgumentError when a number
    is out of its field's range.
    """
    kind, write = _WRITERS[type(message)]
    try:
        body = write(message)
    except struct.error as error:
        raise InvalidArgumentError(f"a field of {kind.name} is out of its range: {error}") from error
    if _HEADER.size + len(body) > ATTACH_MESSAGE_BYTES_MAX:
        raise LimitExceededError(
            f"an attach message of {_HEADER.size + len(body)} bytes exceeds {ATTACH_MESSAGE_BYTES_MAX}"
        )
    return _HEADER.pack(MAGIC, version, kind, request, len(body)) + body


def decode_client_message(datagram: bytes | memoryview) -> tuple[int, ClientMessage]:
    """Read what a client sent: (request, message). Raises ProtocolError on anything an encoder does not write."""
    kind, request, body = _open(datagram)
    reader = _CLIENT_READERS.get(kind)
    if reader is None:
        raise ProtocolError(f"message type {kind} is not one that a client sends")
    message = reader(body)
    body.done()
    return request, message


def decode_sidecar_message(datagram: bytes | memoryview) -> tuple[int, SidecarMessage]:
    """Read what a sidecar sent: (request, message). Raises ProtocolError on anything an encoder does not write."""
    kind, request, body = _open(datagram)
    reader = _SIDECAR_READERS.get(kind)
    if reader is None:
        raise ProtocolError(f"message type {kind} is not one that a sidecar sends")
    message = reader(body)
    body.done()
    return request, message


def _open(datagram: bytes | memoryview) -> tuple[int, int, Body]:
    view = memoryview(datagram)
    if not _HEADER.size <= len(view) <= ATTACH_MESSAGE_BYTES_MAX:
        raise ProtocolError(
            f"a message of {len(view)} bytes; {_HEADER.size} to {ATTACH_MESSAGE_BYTES_MAX} are valid"
        )
    magic, version, kind, request, size = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise ProtocolError(f"a message begins with {bytes(magic).hex()} instead of {MAGIC.hex()}")
    if kind not in _STABLE_KINDS and not PROTOCOL_VERSION_MIN <= version <= PROTOCOL_VERSION:
        raise ProtocolError(f"a message of protocol version {version}; agreed was {PROTOCOL_VERSION} at most")
    if size != len(view) - _HEADER.size:
        raise ProtocolError(f"a message names a body of {size} bytes and brings {len(view) - _HEADER.size}")
    return kind, request, Body(view[_HEADER.size :])


_STABLE_KINDS = frozenset((MessageType.HELLO, MessageType.REFUSED))


def _write_hello(message: Hello) -> bytes:
    head = _HELLO.pack(
        message.version_min, message.version_max, message.layout_version,
        message.role | message.engine << _ENGINE_SHIFT, message.time_namespace, message.boot_now_ns,
    )  # fmt: skip
    gone = _numbers(message.gone, ATTACHMENTS_GONE_MAX)
    return head + _text(message.name, CLIENT_NAME_BYTES_MAX, "the client's name") + gone


def _write_welcome(message: Welcome) -> bytes:
    return _WELCOME.pack(
        message.version, message.layout_version, message.row, message.life, message.control_bytes,
        message.clients_bytes, message.data_bytes, message.batch_pages_max, message.reservation_ms,
        message.time_namespace, message.boot_now_ns, message.attachment, message.has_l3,
    )  # fmt: skip


def _write_refused(message: Refused) -> bytes:
    return COUNT.pack(message.code) + _clipped(message.text)


def _write_register(message: Register) -> bytes:
    size = len(message.canonical)
    if size > NAMESPACE_BYTES_MAX:
        raise LimitExceededError(f"a namespace of {size} bytes exceeds {NAMESPACE_BYTES_MAX}")
    return _LENGTH.pack(message.page_bytes) + _LENGTH.pack(size) + message.canonical


def _write_registered(message: Registered) -> bytes:
    return _REGISTERED.pack(message.namespace, message.number, message.counter, message.page_bytes)


def _write_reserve(message: Reserve) -> bytes:
    count = _pages_of(message.keys)
    if message.ttl_s is not None and message.ttl_s < 0:
        raise InvalidArgumentError(f"a time to live of {message.ttl_s} s; it is 0 (never) or more")
    head = _RESERVE.pack(
        message.namespace_number,
        message.ttl_s is not None,
        message.ttl_s or 0,
        message.parent is not None,
        message.parent or bytes(KEY_BYTES),
        _batch(count),
    )
    return head + message.keys


def _write_reserved(message: ReservedPages) -> bytes:
    count = _batch(len(message.statuses))
    columns = struct.pack(f"<{2 * count}Q", *message.reservations, *message.offsets)
    return COUNT.pack(count) + message.statuses + message.reasons + columns


def _write_commit(message: Commit) -> bytes:
    if len(message.tags) > TAGS_PER_RECORD_MAX:
        raise LimitExceededError(f"{len(message.tags)} tags; a record has at most {TAGS_PER_RECORD_MAX}")
    head = _COMMIT.pack(
        message.stamp.incarnation, message.stamp.revision, message.computed_from_ms, message.computed_until_ms,
        message.rests_on, len(message.tags),
    )  # fmt: skip
    tags = b"".join(_short(tag, TAG_BYTES_MAX, "a tag") for tag in message.tags)
    producer = _short(message.producer, PRODUCER_BYTES_MAX, "the producer")
    return head + tags + producer + _numbers(message.reservations)


def _write_committed(message: CommittedPages) -> bytes:
    return COUNT.pack(_batch(len(message.statuses))) + message.statuses + message.reasons


def _write_failed(message: Failed) -> bytes:
    return _text(message.code, FAILURE_CODE_BYTES_MAX, "a failure's code") + _clipped(message.text)


def _pages_of(keys: bytes) -> int:
    count, rest = divmod(len(keys), KEY_BYTES)
    if rest:
        raise InvalidArgumentError(f"packed keys are n × {KEY_BYTES} bytes; got {len(keys)}")
    return count


def _batch(count: int) -> int:
    if count > BATCH_PAGES_MAX:
        raise LimitExceededError(f"a batch of {count} pages exceeds {BATCH_PAGES_MAX}: split it")
    return count


def _numbers(values: Sequence[int], limit: int = BATCH_PAGES_MAX) -> bytes:
    if len(values) > limit:
        raise LimitExceededError(f"{len(values)} numbers of one message exceed {limit}: split it")
    return struct.pack(f"<H{len(values)}Q", len(values), *values)


def _short(value: bytes, limit: int, what: str) -> bytes:
    if len(value) > limit:
        raise LimitExceededError(f"{what} of {len(value)} bytes exceeds {limit}")
    return COUNT.pack(len(value)) + value


def _text(value: str, limit: int, what: str) -> bytes:
    return _short(value.encode("utf-8"), limit, what)


def _clipped(value: str) -> bytes:
    """A person's text is cut rather than refused: losing an error's tail beats losing the error."""
    encoded = value.encode("utf-8")[:FAILURE_TEXT_BYTES_MAX]
    return _short(encoded.decode("utf-8", "ignore").encode("utf-8"), FAILURE_TEXT_BYTES_MAX, "a text")


def _read_hello(body: Body) -> Hello:
    version_min, version_max, layout_version, what, time_namespace, boot_now_ns = body.unpack(_HELLO)
    role, engine = what & ((1 << _ENGINE_SHIFT) - 1), what >> _ENGINE_SHIFT
    if role not in tuple(Role) or engine not in tuple(EngineMode):
        raise ProtocolError(f"role {role} or engine mode {engine} has no known meaning")
    return Hello(
        version_min=version_min, version_max=version_max, layout_version=layout_version, role=Role(role),
        time_namespace=time_namespace, boot_now_ns=boot_now_ns,
        name=body.text(CLIENT_NAME_BYTES_MAX, "the client's name"),
        gone=body.numbers(body.counted(COUNT, ATTACHMENTS_GONE_MAX, "attachments that are gone")),
        engine=EngineMode(engine),
    )  # fmt: skip


def _read_welcome(body: Body) -> Welcome:
    (
        version,
        layout,
        row,
        life,
        control,
        clients,
        data,
        batch,
        reservation_ms,
        time_namespace,
        now,
        attachment,
        has_l3,
    ) = _WELCOME.unpack(body.take(_WELCOME.size))
    return Welcome(
        version=version, layout_version=layout, row=row, life=LifeId(life), control_bytes=control,
        clients_bytes=clients, data_bytes=data, batch_pages_max=batch, reservation_ms=reservation_ms,
        time_namespace=time_namespace, boot_now_ns=now, attachment=attachment, has_l3=_flag(has_l3),
    )  # fmt: skip


def _read_refused(body: Body) -> Refused:
    (code,) = body.unpack(COUNT)
    return Refused(code, body.text(FAILURE_TEXT_BYTES_MAX, "a refusal's text"))


def _read_register(body: Body) -> Register:
    (page_bytes,) = body.unpack(_LENGTH)
    size = body.counted(_LENGTH, NAMESPACE_BYTES_MAX, "a namespace's bytes")
    return Register(bytes(body.take(size)), page_bytes)


def _read_registered(body: Body) -> Registered:
    namespace, number, counter, page_bytes = _REGISTERED.unpack(body.take(_REGISTERED.size))
    return Registered(namespace=NamespaceId(namespace), number=number, counter=counter, page_bytes=page_bytes)


def _read_reserve(body: Body) -> Reserve:
    number, has_ttl, ttl_s, has_parent, parent, count = _RESERVE.unpack(body.take(_RESERVE.size))
    if has_ttl > 1 or has_parent > 1 or (not has_ttl and ttl_s) or (not has_parent and any(parent)):
        raise ProtocolError(
            "a reserve message has a flag that is neither 0 nor 1, or a value its flag denies"
        )
    if ttl_s < 0:
        raise ProtocolError(f"a time to live of {ttl_s} s; it is 0 (never) or more")
    if count > BATCH_PAGES_MAX:
        raise ProtocolError(f"a reserve of {count} pages exceeds {BATCH_PAGES_MAX}")
    return Reserve(
        namespace_number=number,
        parent=PageKey(parent) if has_parent else None,
        keys=bytes(body.take(count * KEY_BYTES)),
        ttl_s=ttl_s if has_ttl else None,
    )


def _read_commit(body: Body) -> Commit:
    incarnation, revision, from_ms, until_ms, rests_on, tag_count = _COMMIT.unpack(body.take(_COMMIT.size))
    if tag_count > TAGS_PER_RECORD_MAX:
        raise ProtocolError(f"{tag_count} tags; a record has at most {TAGS_PER_RECORD_MAX}")
    tags = tuple(body.short_bytes(TAG_BYTES_MAX, "a tag") for _ in range(tag_count))
    producer = body.short_bytes(PRODUCER_BYTES_MAX, "the producer")
    return Commit(
        reservations=_read_numbers(body), stamp=Stamp(LogIncarnation(incarnation), revision), producer=producer,
        tags=tags, computed_from_ms=from_ms, computed_until_ms=until_ms, rests_on=rests_on,
    )  # fmt: skip


def _read_numbers(body: Body) -> tuple[int, ...]:
    return body.numbers(body.counted(COUNT, BATCH_PAGES_MAX, "reservations of one message"))


def _read_reserved(body: Body) -> ReservedPages:
    count = body.counted(COUNT, BATCH_PAGES_MAX, "pages of one reply")
    statuses, reasons = bytes(body.take(count)), bytes(body.take(count))
    return ReservedPages(statuses, reasons, body.numbers(count), body.numbers(count))


def _read_committed(body: Body) -> CommittedPages:
    count = body.counted(COUNT, BATCH_PAGES_MAX, "pages of one reply")
    return CommittedPages(bytes(body.take(count)), bytes(body.take(count)))


def _flag(value: int) -> bool:
    if value > 1:
        raise ProtocolError(f"a flag of {value} is neither 0 nor 1")
    return bool(value)


def _read_failed(body: Body) -> Failed:
    code = body.text(FAILURE_CODE_BYTES_MAX, "a failure's code")
    return Failed(code, body.text(FAILURE_TEXT_BYTES_MAX, "a failure's text"))


def _read_pong(body: Body) -> Pong:
    return Pong(body.unpack(_PONG)[0])


def _write_nothing(message: Detach | Ping | Done) -> bytes:
    return b""


# The value of each entry takes messages of its key's class; a mapping's type can't say so.
_WRITERS: dict[type, tuple[MessageType, Callable[[Any], bytes]]] = {
    Hello: (MessageType.HELLO, _write_hello),
    Welcome: (MessageType.WELCOME, _write_welcome),
    Refused: (MessageType.REFUSED, _write_refused),
    Register: (MessageType.REGISTER, _write_register),
    Registered: (MessageType.REGISTERED, _write_registered),
    Unregister: (MessageType.UNREGISTER, lambda message: _LENGTH.pack(message.namespace_number)),
    Reserve: (MessageType.RESERVE, _write_reserve),
    ReservedPages: (MessageType.RESERVED, _write_reserved),
    Commit: (MessageType.COMMIT, _write_commit),
    CommittedPages: (MessageType.COMMITTED, _write_committed),
    Abort: (MessageType.ABORT, lambda message: _numbers(message.reservations)),
    Load: (MessageType.LOAD, write_load),
    LoadedPages: (MessageType.LOADED, write_loaded),
    CancelLoad: (MessageType.CANCEL_LOAD, lambda message: _LENGTH.pack(message.request)),
    Looked: (MessageType.LOOKED, write_looked),
    Speeds: (MessageType.SPEEDS, write_speeds),
    Detach: (MessageType.DETACH, _write_nothing),
    Ping: (MessageType.PING, _write_nothing),
    Done: (MessageType.DONE, _write_nothing),
    Pong: (MessageType.PONG, lambda message: _PONG.pack(message.boot_now_ns)),
    Failed: (MessageType.FAILED, _write_failed),
}
_CLIENT_READERS: dict[int, Callable[[Body], ClientMessage]] = {
    MessageType.HELLO: _read_hello,
    MessageType.REGISTER: _read_register,
    MessageType.UNREGISTER: lambda body: Unregister(body.unpack(_LENGTH)[0]),
    MessageType.RESERVE: _read_reserve,
    MessageType.COMMIT: _read_commit,
    MessageType.ABORT: lambda body: Abort(_read_numbers(body)),
    MessageType.LOAD: read_load,
    MessageType.CANCEL_LOAD: lambda body: CancelLoad(body.unpack(_LENGTH)[0]),
    MessageType.LOOKED: read_looked,
    MessageType.SPEEDS: read_speeds,
    MessageType.DETACH: lambda body: Detach(),
    MessageType.PING: lambda body: Ping(),
}
_SIDECAR_READERS: dict[int, Callable[[Body], SidecarMessage]] = {
    MessageType.WELCOME: _read_welcome,
    MessageType.REFUSED: _read_refused,
    MessageType.REGISTERED: _read_registered,
    MessageType.RESERVED: _read_reserved,
    MessageType.COMMITTED: _read_committed,
    MessageType.LOADED: read_loaded,
    MessageType.DONE: lambda body: Done(),
    MessageType.PONG: _read_pong,
    MessageType.FAILED: _read_failed,
}
