"""Files of recorded traces hold whole lines, however their writing ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kv_types.errors import ConfigError
from stratakv import trace_writer
from stratakv.trace_files import read_traces
from stratakv.trace_writer import new_trace

SUFFIXES = [".jsonl", ".jsonl.gz", ".jsonl.zst"]


def line(number: int) -> bytes:
    return b'{"timestamp":%d,"input_length":64,"output_length":0,"hash_ids":[%d]}\n' % (number, number)


def record(out: Path, lines: int) -> Iterator[int]:
    """Write so many lines, and tell of each before it is."""
    with new_trace(out) as file:
        for number in range(lines):
            yield number
            file.write(line(number))
            file.flush()
        file.end()


def requests(path: Path) -> int:
    """Of a trace that can be read; lines that are cut would be refused."""
    (trace,) = read_traces([str(path)], merge=False)
    assert trace.blocks.size == trace.requests
    return trace.requests


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_full_disk_ends_it_with_a_whole_line(
    narrow: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_writer, "_BLOCK_BYTES", 1024)
    out, told = narrow / f"trace{suffix}", [0]
    with pytest.raises(ConfigError, match=r"any further: No space left on device; what came before is in it"):
        told.extend(record(out, 100_000))
    assert 50 < requests(out) <= told[-1]
    assert requests(out) > told[-1] - 30, "what is lost is one block"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_interrupted_in_a_write_is_written_to_its_end(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / f"trace{suffix}"
    write = os.write
    interruptions = iter([KeyboardInterrupt()])

    def interrupted(descriptor: int, data: memoryview) -> int:
        written = write(descriptor, data[: len(data) // 2])
        for error in interruptions:
            raise error
        return written + write(descriptor, data[written:])

    recording = record(out, 20)
    assert next(recording) == 0  # the file is open
    monkeypatch.setattr(os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(recording)
    assert next(interruptions, None) is None
    assert requests(out) == (1 if suffix == ".jsonl" else 20), (
        "what came before it, in the midst of a line or not"
    )
