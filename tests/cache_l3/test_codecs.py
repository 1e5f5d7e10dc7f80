"""Planes of numbers, as they are or under Zstandard: bit exact for any bytes, smaller for KV, and no harm from hostile ones."""

from __future__ import annotations

import contextlib
import struct
import threading
import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_l3._native import join_planes, split_planes
from cache_l3.codecs import WIDTHS, Planes, ZstdPlanes
from kv_types.errors import CorruptRecordError, InvalidArgumentError
from tests.support.records import floats, payload

CODEC, EARLIER = Planes(), ZstdPlanes()


def decoded(stored: bytes, size: int, codec: Planes | ZstdPlanes = CODEC) -> bytes:
    place = memoryview(bytearray(b"\xee" * size))
    codec.decode(stored, place)
    return bytes(place)


def as_earlier(data: bytes, width: int) -> bytes:
    """A payload as earlier versions stored it."""
    count = len(data) // width * width
    planes = b"".join(data[place:count:width] for place in range(width)) + data[count:]
    return bytes([width]) + zstandard.ZstdCompressor(level=1).compress(planes)


def sections(width: int, sizes: tuple[int, ...], *parts: bytes) -> bytes:
    return bytes([width]) + struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(parts)


GOOD = (
    CODEC.encode(np.random.default_rng(1).standard_normal(2048).astype(np.float32).tobytes(), width=4) or b""
)
assert GOOD


def raw_frame(data: bytes, *, window_log: int) -> bytes:
    """A frame of one block that is not compressed, of any window."""
    head = b"\x28\xb5\x2f\xfd\x80" + bytes([window_log - 10 << 3]) + len(data).to_bytes(4, "little")
    return head + (len(data) << 3 | 1).to_bytes(3, "little") + data


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=60), st.integers(1, 90), st.sampled_from(WIDTHS))
def test_whatever_gets_smaller_comes_back_bit_for_bit(part: bytes, times: int, width: int) -> None:
    data = part * times
    stored = CODEC.encode(data, width=width)
    if stored is not None:
        assert len(stored) < len(data)
        assert decoded(stored, len(data)) == data


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("size", [4095, 4096, 4097, 1])
def test_sizes_that_are_no_multiple_of_the_width_come_back(width: int, size: int) -> None:
    data = bytes(floats(3, size=size))
    stored = CODEC.encode(data, width=width)
    assert (stored is None) == (size == 1)
    assert stored is None or decoded(stored, size) == data


@settings(deadline=None)
@given(st.binary(max_size=700), st.sampled_from(WIDTHS))
def test_every_processor_parts_numbers_alike(data: bytes, width: int) -> None:
    count = len(data) // width
    numbers, told = data[: count * width], []
    for plain in (False, True):
        planes, back = bytearray(count * width), bytearray(count * width)
        split_planes(numbers, width, planes, plain=plain)
        parts = [memoryview(planes)[at * count : (at + 1) * count] for at in range(width)]
        join_planes(parts, back, plain=plain)
        assert back == numbers
        told.append(planes)
    assert told[0] == told[1]


def test_numbers_compress_by_their_planes_and_hardly_without() -> None:
    drawn = np.random.default_rng(5).standard_normal(1 << 17).astype(np.float32)
    halves = (drawn.view(np.uint32) >> 16).astype(np.uint16).tobytes()  # as bf16
    by_planes, plain = CODEC.encode(halves, width=2), CODEC.encode(halves, width=1)
    assert by_planes is not None
    assert len(by_planes) < 0.75 * len(halves)
    assert plain is None or len(by_planes) < 0.9 * len(plain)
    assert decoded(by_planes, len(halves)) == halves


def test_every_bit_pattern_of_a_half_survives() -> None:
    """NaNs with payloads, infinities, denormals, both zeros: bytes are moved, never numbers."""
    data = np.arange(1 << 16, dtype=np.uint16).tobytes() + bytes(1 << 18)
    stored = CODEC.encode(data, width=2)
    assert stored is not None
    assert decoded(stored, len(data)) == data


def test_noise_is_left_as_it_is() -> None:
    assert CODEC.encode(payload(1), width=2) is None


@pytest.mark.parametrize("width", [0, 3, 16, -1])
def test_a_width_that_no_number_has_is_refused(width: int) -> None:
    with pytest.raises(InvalidArgumentError):
        CODEC.encode(bytes(64), width=width)


@pytest.mark.parametrize("width", WIDTHS)
def test_what_earlier_versions_stored_is_read(width: int) -> None:
    for size in (4096, 4099):
        data = bytes(floats(3, size=size))
        assert decoded(as_earlier(data, width), size, EARLIER) == data


def test_planes_that_are_noise_are_stored_as_they_are() -> None:
    drawn = np.random.default_rng(5).standard_normal(1 << 17).astype(np.float32)
    stored = CODEC.encode(drawn.tobytes(), width=4)
    assert stored is not None
    sizes = struct.unpack_from("<5I", stored, 1)
    assert sizes[:3] == (1 << 17,) * 3
    assert sizes[3] < 1 << 16, "the exponents"
    assert sizes[4] == 0, "nothing is left over"
    assert (
        stored[21 : 21 + (1 << 17)]
        == (drawn.view(np.uint32) << 1 | drawn.view(np.uint32) >> 31).astype(np.uint8).tobytes()
    )


def test_frames_that_lie_are_corrupt() -> None:
    assert decoded(b"\x01" + raw_frame(bytes(4096), window_log=12), 4096, EARLIER) == bytes(4096), (
        "this one does not"
    )
    data = bytes(floats(1))
    frame = as_earlier(data, 2)[1:]
    unnamed = zstandard.ZstdCompressor(write_content_size=False).compress(data)
    for bad in (
        b"", b"\x02", b"\x03" + frame, b"\x02" + unnamed, b"\x02" + frame[:-1], b"\x02" + frame[: len(frame) // 2],
        b"\x02" + frame + b"\0", b"\x02" + frame + frame, b"\x02" + data[:100],
        b"\x02" + zstandard.compress(data[:-1]), b"\x02" + zstandard.compress(data + b"\0"),
        b"\x02" + raw_frame(data, window_log=27),
    ):  # fmt: skip
        with pytest.raises(CorruptRecordError):
            decoded(bad, len(data), EARLIER)


def test_sections_that_lie_are_corrupt() -> None:
    low, high = bytes(range(256)) * 8, bytes(2048)
    frame = zstandard.compress(high)
    good = sections(2, (2048, len(frame), 0), low, frame)
    assert len(decoded(good, 4096)) == 4096, "this one does not"
    for bad in (
        sections(2, (2048, len(frame), 1), low, frame, b"x"), sections(2, (2048, len(frame), 0), low, frame, b"x"),
        sections(2, (2048, len(frame) - 1, 0), low, frame[:-1]), sections(2, (2047, len(frame), 0), low[1:], frame),
        sections(2, (len(frame), 2048, 0), low, frame), sections(2, (2**32 - 1, 2**32 - 1, 0), low, frame),
        sections(2, (2048, 2048), low, high), sections(3, (2048, len(frame), 0), low, frame), good[:-1], good[:6], good[:1],
        sections(2, (2048, len(frame), 0), low, zstandard.compress(high[:-1])),
        sections(2, (2048, 2049, 0), low, high + b"x"),
    ):  # fmt: skip
        with pytest.raises(CorruptRecordError):
            decoded(bad, 4096)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_byte_that_changed_never_does_harm(at: int, to: int) -> None:
    """The checksum would have caught it; the codec gives a page of other bytes, or says that it can't."""
    stored = bytearray(GOOD)
    stored[at % len(stored)] = to
    with contextlib.suppress(CorruptRecordError):
        assert len(decoded(bytes(stored), 8192)) == 8192


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_corrupt_or_the_right_number_of_bytes(data: bytes) -> None:
    for codec in (CODEC, EARLIER):
        with contextlib.suppress(CorruptRecordError):
            assert len(decoded(data, 64, codec)) == 64


def test_a_bomb_takes_no_more_than_a_page() -> None:
    frame = zstandard.compress(bytes(1 << 28))
    bomb = b"\x02" + frame
    tracemalloc.start()
    with pytest.raises(CorruptRecordError):
        decoded(bomb, 4096, EARLIER)
    with pytest.raises(CorruptRecordError):
        decoded(sections(1, (len(frame), 0), frame), 4096)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(bomb) < 1 << 16
    assert peak < 1 << 20


def test_a_frame_whose_blocks_hold_more_than_it_says_is_corrupt() -> None:
    """The header of a small frame before the blocks of a large one."""
    small, large = zstandard.compress(bytes(4096)), zstandard.compress(bytes(1 << 17))
    head, blocks = zstandard.frame_header_size(small), zstandard.frame_header_size(large)
    with pytest.raises(CorruptRecordError):
        decoded(b"\x01" + small[:head] + large[blocks:], 4096, EARLIER)


def test_threads_do_not_share_contexts() -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(50):
            data = bytes(floats(number * 100 + turn, size=20_000))
            stored = CODEC.encode(data, width=2)
            if stored is None or decoded(stored, len(data)) != data:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
