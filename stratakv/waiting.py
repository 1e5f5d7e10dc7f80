"""What the verbs that wait for a fence share: the options --wait, --no-wait and --timeout, and the call itself."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Annotated, Any, ClassVar

import grpc
import typer
from rich.console import Console

from kv_types.errors import ConfigError
from kv_types.limits import CALL_S_MAX, FENCE_S_DEFAULT
from kv_wire.admin_conversions import ID_BYTES
from kv_wire.gen import admin_pb2
from kv_wire.status import from_rpc_error
from sidecar.units import format_duration
from stratakv.admin import duration, is_refusal
from stratakv.commands import AdminCommand

_WAITS = {"hidden": admin_pb2.WAIT_HIDDEN, "drained": admin_pb2.WAIT_DRAINED}
_NONE = "none"
_OPTION = "--wait"
_SLACK_S = 5.0
"""What an answer may take beyond the wait itself, before the connection counts as broken."""
_STOPPED_BY = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}

WaitOption = Annotated[
    str | None,
    typer.Option(
        _OPTION, metavar="[=hidden|drained]", show_default=False,
        help="Wait until no look-up gets a matching page (hidden, the default), or nothing uses one any more (drained).",
    ),
]  # fmt: skip
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Append, and wait for nothing.")]
TimeoutOption = Annotated[str, typer.Option("--timeout", help="How long to wait at most.")]
RequestIdOption = Annotated[
    str | None,
    typer.Option(
        "--request-id",
        help="Of a command that is repeated, so that nothing is appended twice: 32 hex digits.",
    ),
]
TIMEOUT_DEFAULT = format_duration(FENCE_S_DEFAULT)


class WaitingCommand(AdminCommand):
    """A command that waits for a fence; its --wait takes a value or none, which typer's options can't."""

    alone: ClassVar[Mapping[str, tuple[str, Collection[str]]]] = {_OPTION: ("hidden", _WAITS)}

    def invoke(self, ctx: Any) -> Any:
        """Run it; SIGTERM ends it as Ctrl-C does, so that it says what may stand."""
        with _terminated_as_interrupted():
            try:
                return super().invoke(ctx)
            except Terminated as stop:
                raise typer.Exit(128 + signal.SIGTERM) from stop


class Terminated(KeyboardInterrupt):
    """SIGTERM; an orchestrator's Ctrl-C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What to wait for, for how long, and the id of the request."""

    name: str
    wait: Any
    timeout_s: float
    request_id: bytes

    @property
    def timeout_ms(self) -> int:
        """As messages take it; never 0, which is the sidecar's default."""
        return max(1, int(self.timeout_s * 1000))


def waiting_of(wait: str | None, timeout: str, request_id: str | None, *, no_wait: bool) -> Waiting:
    """Read the options. Raises ConfigError."""
    if no_wait and wait is not None:
        raise ConfigError("give --wait or --no-wait, not both")
    if wait is not None and wait not in _WAITS:
        raise ConfigError(f"--wait is {' or '.join(_WAITS)}; got {wait!r}")
    name = _NONE if no_wait else wait or "hidden"
    return Waiting(
        name=name,
        wait=_WAITS.get(name, admin_pb2.WAIT_NONE),
        timeout_s=duration(timeout, option="--timeout", least_s=0.001, most_s=CALL_S_MAX),
        request_id=os.urandom(ID_BYTES) if request_id is None else _request_id(request_id),
    )


def call_and_wait(
    call: Any, request: Any, waiting: Waiting
) -> tuple[admin_pb2.InvalidateResponse | None, str]:
    """Send a request that appends, and wait: (the answer, ""), or (None, why nobody knows what became of it).

    Raises grpc.RpcError where the sidecar said that it appended nothing.
    """
    with _ends_of_a_wait() as ends:
        future = call.future(request, timeout=waiting.timeout_s + _SLACK_S)
        future.add_done_callback(lambda _: ends.put(""))
        with _shown(waiting):
            stopped_by = ends.get()
        if stopped_by:
            future.cancel()
            return None, stopped_by
        try:
            return future.result(), ""
        except grpc.RpcError as error:
            if is_refusal(error):
                raise
            return None, f"the connection to the sidecar broke ({from_rpc_error(error)})"


@contextlib.contextmanager
def _ends_of_a_wait() -> Iterator[SimpleQueue[str]]:
    """A queue that Ctrl-C and SIGTERM put their word into, where they would have raised.

    An exception in the midst of gRPC's bookkeeping leaves a call that nobody drives, and its channel's end waits for that.
    """
    ends: SimpleQueue[str] = SimpleQueue()
    raising: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number, word in _STOPPED_BY.items():
            if callable(signal.getsignal(number)):
                raising[number] = signal.signal(number, lambda *_, word=word: ends.put(word))
    try:
        yield ends
    finally:
        for stopping, handler in raising.items():
            signal.signal(stopping, handler)


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM raise Terminated meanwhile, unless somebody chose already what it does."""

    def terminated(*_: object) -> None:
        raise Terminated(_STOPPED_BY[signal.SIGTERM])

    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def _shown(waiting: Waiting) -> Iterator[None]:
    if waiting.name == _NONE or not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(
        f"waiting until it is {waiting.name}, for up to {waiting.timeout_s:g} s"
    ):
        yield


def _request_id(text: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != ID_BYTES or len(text) != 2 * ID_BYTES:
        raise ConfigError(f"--request-id takes {2 * ID_BYTES} hexadecimal digits; got {text!r}")
    return value
