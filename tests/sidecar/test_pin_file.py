"""The file of pins: read as it was written, for this user alone, and never a reason to fail."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_l2.pins import Pin, PinnedChain
from kv_types.errors import InvalidArgumentError, ProtocolError
from kv_types.ids import NamespaceId, namespace_id
from kv_types.limits import PAGE_BYTES_MAX
from kv_types.operator_limits import (
    PIN_CHAINS_MAX,
    PIN_FILE_BYTES_MAX,
    PIN_NAME_BYTES_MAX,
    PINNED_PAGES_MAX,
    PINS_MAX,
)
from sidecar.kept_files import in_thread_to_its_end
from sidecar.pin_file import decode_pins, encode_pins, read_pins, write_pins

BOOT = "this-boot"
CHAINS = st.builds(
    PinnedChain,
    st.binary(min_size=32, max_size=32).map(NamespaceId),
    st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=4).map(b"".join),
    st.integers(0, 1 << 30),
)
PINS = st.builds(
    Pin,
    st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=20),
    st.lists(CHAINS, min_size=1, max_size=3).map(tuple),
    st.integers(0, 1 << 62),
)
ONE = Pin("prompt", (PinnedChain(NamespaceId(b"n" * 32), b"k" * 64, 4096),), 5)


@given(st.lists(PINS, max_size=4))
def test_what_was_written_is_read(pins: list[Pin]) -> None:
    assert decode_pins(encode_pins(pins, BOOT), BOOT) == pins


def test_pins_of_another_boot_are_over() -> None:
    assert decode_pins(encode_pins([ONE], "before"), BOOT) == []


def test_every_flipped_bit_is_noticed() -> None:
    data = encode_pins([ONE], BOOT)
    for at in range(len(data) - 1):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises(ProtocolError, match="file of pins"):
            decode_pins(bytes(damaged), BOOT)
    for end in range(len(data) - 1):
        with pytest.raises(ProtocolError, match="file of pins"):
            decode_pins(data[:end], BOOT)


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="file of pins"):
        decode_pins(data, BOOT)


def test_a_file_that_says_nonsense_under_its_right_digest_is_refused() -> None:
    from sidecar import pin_file

    for body in (
        b"[]", b"{}", b'{"format": 2, "boot": "b", "pins": []}', b'{"format": 1, "boot": "b", "pins": [{}]}',
        b'{"format": 1, "boot": "b", "pins": [{"name": "p", "ends_ns": -1, "chains": []}]}', b"[" * 10_000,
    ):  # fmt: skip
        with pytest.raises(ProtocolError, match="file of pins"):
            decode_pins(pin_file._digest(body) + b"\n" + body, BOOT)


def test_it_is_this_users_alone_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "pins.json"
    assert read_pins(path) == []
    for pins in ([ONE], [ONE, Pin("other", ONE.chains, 6)]):
        write_pins(path, pins)
        assert read_pins(path) == pins
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["pins.json"]
    write_pins(path, [])
    assert list(tmp_path.iterdir()) == []


def test_what_an_interrupted_write_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "pins.json.new").write_bytes(b"half")
    write_pins(tmp_path / "pins.json", [ONE])
    assert read_pins(tmp_path / "pins.json") == [ONE]


def test_whoever_is_cancelled_while_it_is_written_goes_on_when_that_is_over() -> None:
    has_begun, may_end = threading.Event(), threading.Event()
    written = []

    def write() -> None:
        has_begun.set()
        written.append(may_end.wait(30))

    async def cancelled() -> None:
        writing = asyncio.ensure_future(in_thread_to_its_end(write))
        await asyncio.to_thread(has_begun.wait, 30)
        writing.cancel()
        await asyncio.to_thread(may_end.set)
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert written == [True]

    asyncio.run(cancelled())


def test_all_that_may_be_pinned_is_read_back() -> None:
    pages = PINNED_PAGES_MAX // PINS_MAX
    assert pages <= PIN_CHAINS_MAX, "each page a chain of its own: more to write down than longer ones"
    chain = PinnedChain(namespace_id(b"\xff" * 32), b"\xff" * 32, PAGE_BYTES_MAX)
    name = "\N{GRINNING FACE}" * (PIN_NAME_BYTES_MAX // 4)
    one = encode_pins([Pin(name, (chain,) * pages, (1 << 63) - 1)], "a" * 36)
    assert len(one) * PINS_MAX <= PIN_FILE_BYTES_MAX


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "pins.json"
    with path.open("wb") as target:
        target.truncate(PIN_FILE_BYTES_MAX + 1)
    with pytest.raises(InvalidArgumentError, match="more than"):
        read_pins(path)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "pins.json"
    os.mkfifo(path)
    with pytest.raises(InvalidArgumentError, match="no regular file"):
        read_pins(path)


def test_what_is_no_file_delays_no_start(tmp_path: Path) -> None:
    path = tmp_path / "pins.json"
    os.mkfifo(path)
    with pytest.raises(InvalidArgumentError, match="no regular file"):
        read_pins(path)
    path.unlink()
    path.symlink_to(tmp_path / "else")
    with pytest.raises(OSError, match="symbolic"):
        read_pins(path)
