"""`stratakv record`: writes the look-ups that a sidecar's clients make as a trace, with digests that tell nothing of a prompt."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import grpc
import typer

from kv_types.errors import DeadlineExceededError, SidecarUnreachableError
from kv_types.ids import DIGEST_BYTES
from kv_types.trace_limits import RECORD_S_MAX, TRACE_REQUESTS_MAX
from kv_wire.gen import admin_pb2
from kv_wire.status import from_rpc_error
from stratakv.admin import UNREACHABLE, EndpointOption, RuntimeDirOption, Sidecar, duration, sidecar_of
from stratakv.commands import AdminCommand
from stratakv.presentation import say
from stratakv.trace_files import STANDARD_OUTPUT
from stratakv.trace_writer import TraceWriter, new_trace

_VERB = "record"
_SALT_BYTES = 32

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=AdminCommand)
def record(
    out: Annotated[
        str,
        typer.Argument(
            metavar="OUT", help="A new file, .jsonl, .jsonl.gz or .jsonl.zst; - is standard output."
        ),
    ],
    for_: Annotated[
        str | None,
        typer.Option("--for", help="How long, for example 10m; until Ctrl-C where it is not said."),
    ] = None,
    requests: Annotated[
        int, typer.Option(min=1, max=TRACE_REQUESTS_MAX, help="Look-ups to record at most.")
    ] = TRACE_REQUESTS_MAX,
    endpoint: EndpointOption = None,
    runtime_dir: RuntimeDirOption = None,
) -> None:
    """Record the look-ups of a running sidecar as a trace that `stratakv simulate` replays: hashes, no tokens."""
    with sidecar_of(_VERB, endpoint, runtime_dir) as sidecar:
        within_s = None if for_ is None else duration(for_, option="--for", least_s=0.1, most_s=RECORD_S_MAX)
        written = Written()
        try:
            # its first answer comes before a file is made: where nobody answers, or may be asked, none is left behind
            with _recording(sidecar, within_s) as answers, _opened(out) as file, _ends_in_order():
                written.has_begun = True
                say(_VERB, "recording; Ctrl-C ends it")
                _write(answers, file, written, requests)
        except (grpc.RpcError, SidecarUnreachableError) as error:
            if not written.has_begun:
                raise
            why = from_rpc_error(error) if isinstance(error, grpc.RpcError) else error
            if not isinstance(why, DeadlineExceededError):  # which is how --for ends
                _summarise(written)
                say(_VERB, f"the sidecar has ended the recording: {why}")
                raise typer.Exit(UNREACHABLE) from error
        except KeyboardInterrupt:
            if not written.has_begun:
                raise
        _summarise(written)


@dataclass(slots=True)
class Written:
    """How far a recording came."""

    has_begun: bool = False
    requests: int = 0
    pages: int = 0
    dropped: int = 0


class Salted:
    """Digests of pages under a salt that is drawn once and kept nowhere: whoever has the trace can't try prompts against it."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt

    def ids(self, digests: bytes) -> list[int]:
        """64-bit numbers, one a page."""
        return [
            int.from_bytes(
                blake2b(digests[at : at + DIGEST_BYTES], digest_size=8, key=self._salt).digest(), "little"
            )
            for at in range(0, len(digests), DIGEST_BYTES)
        ]


@contextlib.contextmanager
def _recording(sidecar: Sidecar, within_s: float | None) -> Iterator[Iterator[admin_pb2.RecordResponse]]:
    """Look-ups as they come; the sidecar records them from here on until this is left."""
    sidecar.status()  # nobody is waited for who does not answer
    call: Any = sidecar.admin.record(admin_pb2.RecordRequest(), timeout=within_s)
    try:
        if next(call, None) is None:
            raise SidecarUnreachableError("the sidecar is ending and records nothing")
        yield call
    finally:
        call.cancel()


def _write(
    answers: Iterator[admin_pb2.RecordResponse],
    file: TraceWriter,
    written: Written,
    requests: int,
) -> None:
    """Write what comes, as it comes."""
    salted = Salted(secrets.token_bytes(_SALT_BYTES))
    for answer in answers:
        written.dropped += answer.dropped
        for one in answer.look_ups:
            ids = salted.ids(one.digests)
            line = {
                "timestamp": one.at_us // 1000,
                "input_length": one.input_tokens,
                "output_length": 0,
                "hash_ids": ids,
            }
            file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            written.requests += 1
            written.pages += len(ids)
            if written.requests >= requests:
                return
        file.flush()
    raise SidecarUnreachableError("it is shutting down")


@contextlib.contextmanager
def _opened(out: str) -> Iterator[TraceWriter]:
    """Where to write. Raises ConfigError."""
    if out == STANDARD_OUTPUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with new_trace(Path(out)) as file:
        yield file


@contextlib.contextmanager
def _ends_in_order() -> Iterator[None]:
    """SIGTERM is as Ctrl-C here: what was recorded is written to its end."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # a thread of somebody's test or program: there signals are not ours
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _summarise(written: Written) -> None:
    lost = "none was lost"
    if written.dropped:
        lost = f"{written.dropped:,} more were lost, because they came faster than they were taken"
    say(_VERB, f"{written.requests:,} look-ups of {written.pages:,} pages are recorded; {lost}")
