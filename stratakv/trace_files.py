"""Files of traces: plain, gzip or zstandard, known by how they begin; read line by line, and never beyond a line's limit."""

from __future__ import annotations

import contextlib
import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import zstandard

from kv_policy.trace import Trace, TraceBuilder
from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.trace_limits import TRACE_LINE_BYTES_MAX

STANDARD_INPUT = STANDARD_OUTPUT = "-"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_WINDOW_BYTES = 128 * 1024 * 1024
"""What a zstandard file may ask for to be unpacked, as the command zstd does without being told."""


def read_traces(
    files: Sequence[str], *, merge: bool, heard: Callable[[str], None] = lambda _: None
) -> list[Trace]:
    """Read a trace a file, or all files as parts of one. `heard` is told which file is read.

    Raises InvalidArgumentError that names file, line and field.
    """
    traces, builder = [], TraceBuilder(" + ".join(map(_name, files)))
    for file in files:
        heard(file)
        if not merge:
            builder = TraceBuilder(_name(file))
        with _lines(file) as lines:
            builder.add_lines(lines, file=file)
        if not merge:
            traces.append(builder.build())
    return [builder.build()] if merge else traces


def _name(file: str) -> str:
    if file == STANDARD_INPUT:
        return "standard input"
    name = Path(file).name
    for suffix in (".gz", ".zst", ".jsonl"):
        name = name.removesuffix(suffix) or name
    return name


@contextlib.contextmanager
def _lines(file: str) -> Iterator[Iterator[bytes]]:
    try:
        with contextlib.ExitStack() as stack:
            if file == STANDARD_INPUT:
                raw = _buffered(sys.stdin.buffer)
                stack.callback(raw.detach)  # it is not ours to close
            else:
                raw = stack.enter_context(Path(file).open("rb"))
            yield _bounded(_unpacked(raw, stack), file)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        why = getattr(error, "strerror", None) or str(error) or "it ends too early"
        raise InvalidArgumentError(f"{file} can't be read: {why}") from error


def _unpacked(raw: io.BufferedReader, stack: contextlib.ExitStack) -> io.BufferedIOBase:
    begins = raw.peek(len(_ZSTD))
    if begins.startswith(_GZIP):
        return stack.enter_context(gzip.GzipFile(fileobj=raw))
    if begins.startswith(_ZSTD):
        reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
        return stack.enter_context(
            _buffered(reader.stream_reader(raw, read_across_frames=True, closefd=False))
        )
    return raw


def _buffered(source: object) -> io.BufferedReader:
    """What can be read, with lines and a peek; the kinds of it have no type in common."""
    return io.BufferedReader(cast("io.RawIOBase", source))


def _bounded(source: io.BufferedIOBase, file: str) -> Iterator[bytes]:
    number = 0
    while line := source.readline(TRACE_LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > TRACE_LINE_BYTES_MAX:
            raise LimitExceededError(
                f"{file}, line {number} is longer than {TRACE_LINE_BYTES_MAX:,} bytes: is this a trace?"
            )
        yield line
