"""Registrations of namespaces over the attach connection: what one means, and one that was asked for and goes on by itself."""

from __future__ import annotations

from dataclasses import dataclass

from cache_l2.attach_calls import Call
from cache_l2.attach_channel import AttachChannel, ConnectionBroken, DeadlinePassed
from cache_l2.attach_messages import Failed, Registered, SidecarMessage
from kv_types.errors import (
    ClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    LayoutConflictError,
    LimitExceededError,
    LogUnreachableError,
    OverloadedError,
    ProtocolError,
    SidecarUnreachableError,
    StrataError,
    UnknownNamespaceError,
)
from kv_types.ids import NamespaceId

_ERRORS: dict[str, type[StrataError]] = {
    error.code: error
    for error in (
        ClosedError, InvalidArgumentError, LayoutConflictError, LimitExceededError, LogUnreachableError, OverloadedError,
        ProtocolError, UnknownNamespaceError,
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Registration:
    """A namespace as one attachment knows it: `number` and `counter` mean something only in this sidecar's life."""

    namespace_id: NamespaceId
    number: int
    counter: int
    page_bytes: int


def error_of(failed: Failed) -> StrataError:
    """Return the error that a sidecar's refusal stands for."""
    return _ERRORS.get(failed.code, StrataError)(failed.text)


def registration_of(registered: Registered) -> Registration:
    """Return what the sidecar answered."""
    return Registration(registered.namespace, registered.number, registered.counter, registered.page_bytes)


class RegistrationTicket:
    """A registration that was asked for: the sidecar carries it out whether or not anybody waits. For one thread at a time."""

    def __init__(self, channel: AttachChannel, call: Call) -> None:
        self._channel = channel
        self._call = call

    def wait(self, *, deadline_s: float) -> Registration:
        """Return the answer, which may have come long ago.

        Raises DeadlineExceededError while there is none, after which it can be waited for again; what
        AttachedArena.register raises once there is one.
        """
        try:
            reply: SidecarMessage = self._channel.wait(self._call, deadline_s=deadline_s)
        except DeadlinePassed as error:
            raise DeadlineExceededError(
                f"the sidecar did not register the namespace within {deadline_s} s"
            ) from error
        except ConnectionBroken as error:
            raise SidecarUnreachableError(f"the sidecar did not register the namespace: {error}") from error
        if isinstance(reply, Failed):
            raise error_of(reply)
        if not isinstance(reply, Registered):
            self._channel.close()
            raise ProtocolError(
                f"the sidecar answered a registration with {type(reply).__name__}; the connection was closed"
            )
        return registration_of(reply)

    def forget(self) -> None:
        """Nobody wants the answer any more."""
        self._channel.forget(self._call)
