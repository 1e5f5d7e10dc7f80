"""One error table for the wire: kv_types errors to gRPC status and back, and to the data path's reasons."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import grpc

from kv_types import errors
from kv_types.outcomes import MissReason, RefuseReason

ERROR_KEY = "stratakv-error"
"""Trailing metadata key that carries a StrataError's code."""

_Code = grpc.StatusCode
TABLE: dict[type[errors.StrataError], grpc.StatusCode] = {
    errors.InvalidArgumentError: _Code.INVALID_ARGUMENT,
    errors.InvalidIdentifierError: _Code.INVALID_ARGUMENT,
    errors.LimitExceededError: _Code.INVALID_ARGUMENT,
    errors.BufferMismatchError: _Code.INVALID_ARGUMENT,
    errors.ProtocolError: _Code.INVALID_ARGUMENT,
    errors.CorruptRecordError: _Code.DATA_LOSS,
    errors.UnreadableRecordError: _Code.DATA_LOSS,
    errors.UnknownNamespaceError: _Code.NOT_FOUND,
    errors.LayoutConflictError: _Code.FAILED_PRECONDITION,
    errors.HandshakeError: _Code.FAILED_PRECONDITION,
    errors.ConfigError: _Code.FAILED_PRECONDITION,
    errors.ArenaTooLargeError: _Code.FAILED_PRECONDITION,
    errors.EndpointInUseError: _Code.ALREADY_EXISTS,
    errors.ClosedError: _Code.UNAVAILABLE,
    errors.SidecarUnreachableError: _Code.UNAVAILABLE,
    errors.LogUnreachableError: _Code.UNAVAILABLE,
    errors.PermissionDeniedError: _Code.PERMISSION_DENIED,
    errors.DeadlineExceededError: _Code.DEADLINE_EXCEEDED,
    errors.OverloadedError: _Code.RESOURCE_EXHAUSTED,
    errors.StrataError: _Code.INTERNAL,
}
"""Every error of ours and the status that it travels as."""

_BY_CODE = {kind.code: kind for kind in TABLE}
assert len(_BY_CODE) == len(TABLE), "error codes are unique"

# What a status without our metadata means: gRPC itself made it, or something between us and the sidecar.
_BY_STATUS: dict[grpc.StatusCode, type[errors.StrataError]] = {
    _Code.INVALID_ARGUMENT: errors.InvalidArgumentError,
    _Code.OUT_OF_RANGE: errors.LimitExceededError,
    _Code.DEADLINE_EXCEEDED: errors.DeadlineExceededError,
    _Code.CANCELLED: errors.SidecarUnreachableError,
    _Code.UNAVAILABLE: errors.SidecarUnreachableError,
    _Code.RESOURCE_EXHAUSTED: errors.OverloadedError,
    _Code.UNIMPLEMENTED: errors.HandshakeError,
    _Code.PERMISSION_DENIED: errors.PermissionDeniedError,
    _Code.UNAUTHENTICATED: errors.HandshakeError,
    _Code.DATA_LOSS: errors.ProtocolError,
}
# gRPC reports a message over the size limit with the status of overload; only its text tells the two apart.
_TOO_LARGE_TEXT = "larger than max"


def to_status(error: errors.StrataError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Return (status, details, trailing metadata) that carry this error."""
    kind = _listed(type(error))
    return TABLE[kind], str(error), ((ERROR_KEY, kind.code),)


def from_status(
    status: grpc.StatusCode, details: str | None, trailing: Iterable[tuple[str, str | bytes]] | None = None
) -> errors.StrataError:
    """Return the error that a status carries; by its metadata where it is ours, else by the status alone."""
    text = details or f"the sidecar answered {status.name} without saying why"
    code = next((value for key, value in trailing or () if key == ERROR_KEY), None)
    if isinstance(code, bytes):
        code = code.decode("ascii", "replace")
    if code in _BY_CODE:
        return _BY_CODE[code](text)
    if status is _Code.RESOURCE_EXHAUSTED and _TOO_LARGE_TEXT in text:
        return errors.LimitExceededError(text)
    kind = _BY_STATUS.get(status)
    return errors.StrataError(f"{status.name}: {text}") if kind is None else kind(text)


def from_rpc_error(error: grpc.RpcError) -> errors.StrataError:
    """Return the error that a failed call carries."""
    call: object = error  # what a stub raises is a Call as well, which the type stubs cannot say
    if isinstance(call, grpc.Call | grpc.aio.AioRpcError):
        trailing = cast("Iterable[tuple[str, str | bytes]]", call.trailing_metadata() or ())
        return from_status(call.code(), call.details(), trailing)
    return errors.SidecarUnreachableError(f"the call failed before it was sent: {error}")


_MISS: dict[type[errors.StrataError], MissReason] = {
    errors.ClosedError: MissReason.CLOSED,
    errors.SidecarUnreachableError: MissReason.UNREACHABLE,
    errors.DeadlineExceededError: MissReason.DEADLINE,
    errors.OverloadedError: MissReason.OVERLOADED,
    errors.LogUnreachableError: MissReason.STALE,
    errors.UnknownNamespaceError: MissReason.UNKNOWN_NAMESPACE,
    errors.ProtocolError: MissReason.CORRUPT,
    errors.CorruptRecordError: MissReason.CORRUPT,
    errors.UnreadableRecordError: MissReason.UNREADABLE,
}
_REFUSE: dict[type[errors.StrataError], RefuseReason] = {
    errors.ClosedError: RefuseReason.CLOSED,
    errors.SidecarUnreachableError: RefuseReason.UNREACHABLE,
    errors.DeadlineExceededError: RefuseReason.DEADLINE,
    errors.OverloadedError: RefuseReason.OVERLOADED,
    errors.LogUnreachableError: RefuseReason.UNLISTED,
    errors.UnknownNamespaceError: RefuseReason.UNKNOWN_NAMESPACE,
    errors.CorruptRecordError: RefuseReason.CORRUPT,
    errors.UnreadableRecordError: RefuseReason.CORRUPT,
}


def miss_reason(error: errors.StrataError) -> MissReason | None:
    """Return the reason of the miss that a look-up's error is; None when the caller is at fault."""
    return _MISS.get(type(error))


def refuse_reason(error: errors.StrataError) -> RefuseReason | None:
    """Return the reason of the refusal that a put's error is; None when the caller is at fault."""
    return _REFUSE.get(type(error))


def _listed(kind: type[errors.StrataError]) -> type[errors.StrataError]:
    for base in kind.__mro__:
        if base in TABLE:
            return base
    raise AssertionError("StrataError itself is in the table")
