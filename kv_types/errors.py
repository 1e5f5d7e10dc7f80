"""Errors: what callers did wrong or what could not be set up. Misses and refusals are outcomes instead."""

from __future__ import annotations


class StrataError(Exception):
    """Base of every error that stratakv raises on purpose. Its text names what was wrong and what to do."""

    code: str = "internal"


class InvalidArgumentError(StrataError):
    """An argument has the wrong size, type, range or combination."""

    code = "invalid_argument"


class InvalidIdentifierError(InvalidArgumentError):
    """An identifier has the wrong length."""

    code = "invalid_identifier"


class LimitExceededError(InvalidArgumentError):
    """A request is larger than a limit in `kv_types.limits`."""

    code = "limit_exceeded"


class UnknownNamespaceError(StrataError):
    """The namespace has not been registered with this sidecar."""

    code = "unknown_namespace"


class LayoutConflictError(StrataError):
    """A namespace was registered with a page size that differs from the one already registered."""

    code = "layout_conflict"


class BufferMismatchError(InvalidArgumentError):
    """A buffer is shorter than a page, not writable, or not contiguous."""

    code = "buffer_mismatch"


class ClosedError(StrataError):
    """The client, lease or store was closed by its owner and then used."""

    code = "closed"


class ConfigError(StrataError):
    """A setting is unknown, malformed or contradicts another one."""

    code = "config"


class ArenaTooLargeError(ConfigError):
    """The arena does not fit into the memory that this process may have.

    `missing_bytes` of memory that others have now would have to be free; 0 where that wouldn't help.
    """

    code = "arena_too_large"

    def __init__(self, *arguments: object, missing_bytes: int = 0) -> None:
        super().__init__(*arguments)
        self.missing_bytes = missing_bytes


class EndpointInUseError(StrataError):
    """Another live daemon holds the socket path or port."""

    code = "endpoint_in_use"


class HandshakeError(StrataError):
    """Client and sidecar do not speak the same protocol or memory layout, or may not talk to each other."""

    code = "handshake"


class ProtocolError(StrataError):
    """Bytes from outside do not form a valid message."""

    code = "protocol"


class CorruptRecordError(ProtocolError):
    """A record's header or payload fails its checksum or contradicts itself."""

    code = "corrupt_record"


class UnreadableRecordError(CorruptRecordError):
    """A record is whole, and says that it is of a kind this version does not know: a newer one wrote it."""

    code = "unreadable_record"


class SidecarUnreachableError(StrataError):
    """No sidecar answers at the endpoint. Data-path calls return a miss or refusal instead."""

    code = "unreachable"


class LogUnreachableError(StrataError):
    """The sidecar can't reach the invalidation log, so that nothing was appended or read."""

    code = "log_unreachable"


class PermissionDeniedError(StrataError):
    """The caller may not make this call in this way."""

    code = "permission_denied"


class DeadlineExceededError(StrataError):
    """The deadline passed before the answer came. Data-path calls return a miss or refusal instead of raising this."""

    code = "deadline"


class OverloadedError(StrataError):
    """The sidecar sheds load. Data-path calls return a miss or refusal instead of raising this."""

    code = "overloaded"
