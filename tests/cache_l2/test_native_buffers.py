"""What the native core copies from and to: buffers, tensors, kernels, and the errors that name what does not fit."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

from cache_l2 import _native
from kv_types.outcomes import MissReason
from tests.support.native_arena import PAGE, NativeArena, chain, payload

torch = pytest.importorskip("torch")


@pytest.fixture
def world() -> NativeArena:
    filled = NativeArena()
    filled.put(chain("a", 4))
    return filled


KEYS = b"".join(chain("a", 4))
EXPECTED = b"".join(payload(key) for key in chain("a", 4))


def test_destinations_of_many_kinds(world: NativeArena) -> None:
    one = bytearray(4 * PAGE)
    rows = np.zeros((4, PAGE), np.uint8)
    several: list[Any] = [
        bytearray(PAGE),
        memoryview(bytearray(PAGE)).cast("f"),
        memoryview(bytearray(PAGE)).cast("I"),
        array.array("d", bytes(PAGE)),
    ]
    for destination in (one, rows, several, tuple(several)):
        assert world.reader.get(0, KEYS, destination, page_bytes=PAGE, namespace=1)[:2] == (
            4,
            MissReason.NONE,
        )
    assert bytes(one) == EXPECTED
    assert rows.tobytes() == EXPECTED
    assert b"".join(bytes(memoryview(part).cast("B")) for part in several) == EXPECTED
    larger = bytearray(5 * PAGE)
    assert world.reader.get(0, KEYS, larger, page_bytes=PAGE, start=1, namespace=1)[:2] == (
        3,
        MissReason.NONE,
    )
    assert bytes(larger[: 3 * PAGE]) == EXPECTED[PAGE:]


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "int8"])
def test_tensors_of_every_kind_of_kv(world: NativeArena, name: str) -> None:
    dtype = getattr(torch, name)
    whole = torch.zeros(4, PAGE // dtype.itemsize, dtype=dtype)
    assert world.reader.get(0, KEYS, whole, page_bytes=PAGE, namespace=1)[:2] == (4, MissReason.NONE)
    assert whole.view(torch.uint8).numpy().tobytes() == EXPECTED
    parts = [torch.zeros(PAGE // dtype.itemsize, dtype=dtype) for _ in range(4)]
    assert world.reader.get(0, KEYS, parts, page_bytes=PAGE, namespace=1)[:2] == (4, MissReason.NONE)
    assert b"".join(part.view(torch.uint8).numpy().tobytes() for part in parts) == EXPECTED
    other = chain("b", 4)
    answers = world.reserve(other)
    world.reader.fill([answer.offset for answer in answers], whole, page_bytes=PAGE)
    world.commit([answer.reservation for answer in answers])
    with world.reader.lease(0, b"".join(other), namespace=1) as lease:
        assert b"".join(bytes(view) for view in lease) == EXPECTED


def test_bad_destinations_are_named(world: NativeArena) -> None:
    def get(destinations: object) -> None:
        world.reader.get(0, KEYS, destinations, page_bytes=PAGE, namespace=1)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="16384 bytes are needed, the buffer has 16383"):
        get(bytearray(4 * PAGE - 1))
    with pytest.raises(ValueError, match="4096 bytes are needed, the buffer has 8"):
        get([bytearray(PAGE)] * 3 + [bytearray(8)])
    with pytest.raises(ValueError, match="one buffer a page is needed; got 3 for 4 pages"):
        get([bytearray(PAGE)] * 3)
    with pytest.raises(ValueError, match="C-contiguous and writable; this bytes is not"):
        get(bytes(4 * PAGE))
    with pytest.raises(ValueError, match="C-contiguous"):
        get(np.zeros((4, 2 * PAGE), np.uint8)[:, ::2])
    read_only = np.zeros(4 * PAGE, np.uint8)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        get(read_only)
    with pytest.raises(ValueError, match="C-contiguous"):
        get(torch.zeros(4, 2 * PAGE, dtype=torch.uint8)[:, ::2])
    with pytest.raises(ValueError, match="detach it"):
        get(torch.zeros(4, PAGE, device="meta"))
    with pytest.raises(ValueError, match="buffer or a sequence of buffers; got int"):
        get(5)
    with pytest.raises(ValueError, match="buffer protocol or DLPack; object does neither"):
        get([object()] * 4)
    assert world.reader.held() == 0
    assert world.counts()["requested"] == 0, "a call that was refused is not a look-up"


def test_bad_keys_are_named(world: NativeArena) -> None:
    with pytest.raises(ValueError, match="n × 32 bytes; got 31 bytes"):
        world.reader.match(bytes(31), namespace=1)
    with pytest.raises(ValueError, match="got str"):
        world.reader.match("x" * 32, namespace=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="start must be 0 to the number of keys"):
        world.reader.match(KEYS, start=5, namespace=1)
    with pytest.raises(ValueError, match="start"):
        world.reader.lease(0, KEYS, start=-1, namespace=1)
    with pytest.raises(ValueError, match="at most 65536 keys"):
        world.reader.match(bytes(32 * 65_537), namespace=1)
    assert world.reader.match(bytearray(KEYS), namespace=1) == (4, MissReason.NONE)
    assert world.reader.match(memoryview(KEYS).cast("Q"), namespace=1) == (4, MissReason.NONE)


def test_a_page_of_another_size_is_a_miss(world: NativeArena) -> None:
    assert world.reader.get(0, KEYS, bytearray(8 * PAGE), page_bytes=2 * PAGE, namespace=1)[:2] == (
        0,
        MissReason.ABSENT,
    )


def test_bad_places_are_named(world: NativeArena) -> None:
    data_bytes = world.arena.geometry["data_bytes"]
    for offset in (1, data_bytes, 1 << 62):
        with pytest.raises(ValueError, match="no reserved place"):
            world.reader.fill([offset], bytes(PAGE), page_bytes=PAGE)
        with pytest.raises(ValueError, match="no reserved place"):
            world.reader.slot(offset, PAGE)
    with pytest.raises(ValueError, match="page_bytes"):
        world.reader.fill([0], b"", page_bytes=0)
    read_only = world.attach(world.arena.open_row(2), writable=False)
    with pytest.raises(ValueError, match="writable=True"):
        read_only.fill([0], bytes(PAGE), page_bytes=PAGE)
    with pytest.raises(ValueError, match="writable=True"):
        read_only.slot(0, PAGE)
    assert read_only.match(KEYS, namespace=1) == (4, MissReason.NONE)


def test_writers_may_fill_in_place(world: NativeArena) -> None:
    key = chain("in place", 1)[0]
    answer = world.reserve([key])[0]
    view = memoryview(world.reader.slot(answer.offset, PAGE))
    assert not view.readonly
    view[:] = payload(key)
    world.commit([answer.reservation])
    with world.reader.lease(0, key, namespace=1) as lease:
        assert bytes(lease[0]) == payload(key)


@pytest.mark.parametrize("kernel", range(-1, len(_native.COPY_KERNELS)))
def test_every_kernel_copies_every_size(kernel: int) -> None:
    source = np.arange(70_000, dtype=np.uint32).view(np.uint8)
    for size in (0, 1, 31, 63, 64, 127, 255, 256, 257, 4096, 65_537, 262_144):
        for shift in (0, 1, 33):
            destination = np.zeros(size + 128, np.uint8)
            _native.copy_bytes(destination[shift : shift + size], source[7 : 7 + size], kernel=kernel)
            assert destination[shift : shift + size].tobytes() == source[7 : 7 + size].tobytes()
            assert not destination[:shift].any()
            assert not destination[shift + size :].any()


def test_copy_errors_are_named() -> None:
    with pytest.raises(ValueError, match="differ in size"):
        _native.copy_bytes(bytearray(4), b"12345")
    with pytest.raises(ValueError, match="kernel"):
        _native.copy_bytes(bytearray(4), b"1234", kernel=99)
    with pytest.raises(ValueError, match="bytes must be"):
        _native.calibrate_copy(bytes=0)


def test_calibration_measures_every_kernel_and_leaves_warm_destinations_warm() -> None:
    (cold, warm), seconds = _native.calibrate_copy(bytes=1 << 18)
    assert set(seconds) == set(_native.COPY_KERNELS)
    assert all(0 < cold_s < 1 and 0 < warm_s < 1 for cold_s, warm_s in seconds.values())
    keeping = [name for name in _native.COPY_KERNELS if not name.endswith("_stream")]
    assert seconds[_native.COPY_KERNELS[cold]][0] == min(times[0] for times in seconds.values())
    assert seconds[_native.COPY_KERNELS[warm]][1] == min(seconds[name][1] for name in keeping)


def test_probing_a_destination_leaves_its_other_bytes_alone() -> None:
    _native.calibrate_copy(bytes=1 << 18)  # from here on two kernels, and a probe that chooses
    for size in (1, 32 * 1024, 40_001, 1 << 20):
        source = np.arange(size, dtype=np.uint64).view(np.uint8)[:size].copy()
        for margin in (0, 1, 64):
            destination = np.full(size + 2 * margin, 7, dtype=np.uint8)
            inner = destination[margin : margin + size]
            _native.copy_bytes(inner, source)
            assert np.array_equal(inner, source)
            assert (destination[:margin] == 7).all()
            assert (destination[margin + size :] == 7).all()
