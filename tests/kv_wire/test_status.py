"""Every error of ours crosses the wire as itself."""

from __future__ import annotations

import grpc
import pytest

from kv_types import errors
from kv_types.outcomes import MissReason, RefuseReason
from kv_wire.status import ERROR_KEY, TABLE, from_status, miss_reason, refuse_reason, to_status


def _all_errors() -> list[type[errors.StrataError]]:
    found, todo = [], [errors.StrataError]
    while todo:
        kind = todo.pop()
        found.append(kind)
        todo += [sub for sub in kind.__subclasses__() if sub.__module__ == errors.__name__]
    return sorted(set(found), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", _all_errors())
def test_every_error_is_in_the_table_and_comes_back_as_itself(kind: type[errors.StrataError]) -> None:
    assert kind in TABLE
    status, text, trailing = to_status(kind("what was wrong and what to do"))
    back = from_status(status, text, trailing)
    assert type(back) is kind
    assert str(back) == "what was wrong and what to do"


def test_a_subclass_from_elsewhere_travels_as_its_base() -> None:
    class NarrowError(errors.LimitExceededError):
        pass

    status, _, trailing = to_status(NarrowError("x"))
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert trailing == ((ERROR_KEY, "limit_exceeded"),)


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, "connection refused", errors.SidecarUnreachableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", errors.DeadlineExceededError),
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "CLIENT: Received message larger than max (9 vs. 4)",
            errors.LimitExceededError,
        ),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "quota", errors.OverloadedError),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", errors.HandshakeError),
        (grpc.StatusCode.ABORTED, None, errors.StrataError),
    ],
)
def test_a_status_that_is_not_ours_is_understood(
    status: grpc.StatusCode, text: str | None, kind: type[errors.StrataError]
) -> None:
    error = from_status(status, text, ())
    assert type(error) is kind
    assert status.name in str(error) or (text or "") in str(error)


def test_an_unknown_code_in_the_metadata_falls_back_to_the_status() -> None:
    error = from_status(grpc.StatusCode.UNAVAILABLE, "x", ((ERROR_KEY, "from_the_future"),))
    assert type(error) is errors.SidecarUnreachableError


def test_binary_metadata_is_not_trusted_to_be_text() -> None:
    error = from_status(grpc.StatusCode.INTERNAL, "x", ((ERROR_KEY, b"\xff\xfe"),))
    assert type(error) is errors.StrataError


def test_what_is_nobodys_fault_has_a_reason_and_what_is_the_callers_has_none() -> None:
    assert miss_reason(errors.OverloadedError("")) is MissReason.OVERLOADED
    assert miss_reason(errors.DeadlineExceededError("")) is MissReason.DEADLINE
    assert miss_reason(errors.SidecarUnreachableError("")) is MissReason.UNREACHABLE
    assert miss_reason(errors.UnknownNamespaceError("")) is MissReason.UNKNOWN_NAMESPACE
    assert refuse_reason(errors.ClosedError("")) is RefuseReason.CLOSED
    assert refuse_reason(errors.OverloadedError("")) is RefuseReason.OVERLOADED
    for kind in (errors.InvalidArgumentError, errors.LimitExceededError, errors.BufferMismatchError):
        assert miss_reason(kind("")) is None
        assert refuse_reason(kind("")) is None
