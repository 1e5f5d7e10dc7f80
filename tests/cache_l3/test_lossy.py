"""fp8 and int8 with scales: within their declared bound for any numbers, and never for what is not finite."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cache_l3._native import Quantiser
from cache_l3.lossy import LossyPlanes, quantiser_of
from kv_types.errors import CorruptRecordError, InvalidArgumentError
from kv_types.namespace import KvDtype, Namespace, StoredAs
from kv_types.page_layout import PageLayout
from kv_types.scale_groups import ScaledArray, error_bound, scaled_arrays
from tests.kv_types.samples import geometry, mla, namespace

LOSSY = LossyPlanes()
DTYPES = (KvDtype.BF16, KvDtype.FP16, KvDtype.FP32)
LARGEST = {KvDtype.BF16: 3.3895e38, KvDtype.FP16: 65504.0, KvDtype.FP32: 3.4028e38}
NEGLIGIBLE = {StoredAs.FP8_E4M3: 2.0**-117, StoredAs.INT8: 2.0**-93}
SHAPES: dict[str, dict[str, Any]] = {
    "gqa": {"geometry": geometry(head_dim=24, value_head_dim=10)},
    "mla": {"geometry": mla(latent_dim=70, rope_dim=6)},
    "engine": {"geometry": geometry(head_dim=64), "layout": "some engine's own"},
    "engine-mla": {"geometry": mla(), "layout": "some engine's own"},
}
Doubles = npt.NDArray[np.float64]


def space(shape: str, dtype: KvDtype, stored_as: StoredAs) -> Namespace:
    return namespace(kv_dtype=dtype, stored_as=stored_as, page_tokens=16, **SHAPES[shape])


def page_bytes(of: Namespace) -> int:
    geo = of.geometry
    numbers = geo.heads * (geo.head_dim + geo.value_head_dim) + geo.latent_dim + geo.rope_dim
    return geo.layers * numbers * of.page_tokens * of.kv_dtype.item_bytes


def as_bytes(values: npt.ArrayLike, dtype: KvDtype) -> bytes:
    """Numbers as a page has them; to bf16 by cutting, which any number survives."""
    floats = np.asarray(values, np.float32)
    if dtype is KvDtype.FP16:
        return floats.astype(np.float16).tobytes()
    return (
        (floats.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        if dtype is KvDtype.BF16
        else floats.tobytes()
    )


def as_numbers(data: bytes | memoryview, dtype: KvDtype) -> Doubles:
    if dtype is KvDtype.BF16:
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.frombuffer(data, np.float16 if dtype is KvDtype.FP16 else np.float32).astype(np.float64)


def coarse(stored_as: StoredAs, dtype: KvDtype) -> float:
    """What int8 may lose besides where fp16 has steps of one size only: half of one."""
    return 2.0**-25 if (stored_as, dtype) == (StoredAs.INT8, KvDtype.FP16) else 0.0


def groups(numbers: Doubles, arrays: tuple[ScaledArray, ...], item_bytes: int) -> list[Doubles]:
    """The numbers of each scale, told anew from the arrays: [groups, members] of each array."""
    found = []
    for one in arrays:
        begin = one.offset // item_bytes
        rows = numbers[begin : begin + one.rows * one.columns].reshape(-1, one.rows_a_scale, one.columns)
        found.append(
            (rows.swapaxes(1, 2) if one.by_column else rows).reshape(
                -1, one.rows_a_scale * (1 if one.by_column else one.columns)
            )
        )
    return found


def decoded(stored: bytes, size: int, of: Namespace) -> bytes:
    place = memoryview(bytearray(b"\xee" * size))
    LOSSY.decode(stored, place, of)
    return bytes(place)


def drawn(seed: int, count: int, dtype: KvDtype) -> npt.NDArray[np.float32]:
    """Numbers of all sizes, with zeros, and rows that differ by many orders of magnitude."""
    random = np.random.default_rng(seed)
    kind = seed % 4
    scale = 10.0 ** random.uniform(-4, 4, count) if kind == 0 else 10.0 ** random.uniform(-4, 4)
    values = random.standard_normal(count) * scale
    if kind == 1:
        values[random.random(count) < 0.5] = 0
    if kind == 2:
        values *= LARGEST[dtype] / np.abs(values).max()
    if kind == 3:
        values *= np.where(random.random(count) < 0.01, 1000.0, 1.0)
    return np.clip(values, -LARGEST[dtype], LARGEST[dtype]).astype(np.float32)


@pytest.mark.parametrize("stored_as", StoredAs)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@settings(deadline=None)
@example(seed=53)  # all are below what fp16 has steps of their own for
@given(seed=st.integers(0, 2**32 - 1))
def test_what_comes_back_is_within_the_declared_bound(
    shape: str, dtype: KvDtype, stored_as: StoredAs, seed: int
) -> None:
    of = space(shape, dtype, stored_as)
    size = page_bytes(of)
    page = as_bytes(drawn(seed, size // dtype.item_bytes, dtype), dtype)
    quantised = LOSSY.encode(page, of)
    assert quantised.error is not None
    assert quantised.data is not None, "one byte a number and the scales are fewer than two"
    before, after = as_numbers(page, dtype), as_numbers(decoded(quantised.data, size, of), dtype)
    bound, arrays = error_bound(stored_as, dtype), scaled_arrays(of, size)
    parts = zip(
        groups(before, arrays, dtype.item_bytes), groups(after, arrays, dtype.item_bytes), strict=True
    )
    for was, now in parts:
        largest = np.abs(was).max(axis=1)
        lost = np.abs(was - now).max(axis=1)
        told = largest > NEGLIGIBLE[stored_as]
        allowed = bound * largest * (1 + 1e-6) + np.where(largest < 2.0**-14, coarse(stored_as, dtype), 0.0)
        assert (lost[told] <= allowed[told]).all()
    lost_all, magnitude = np.abs(before - after).sum(), np.abs(before).sum()
    assert quantised.error.mean == pytest.approx(
        lost_all / magnitude if magnitude else 0.0, rel=1e-3, abs=1e-9
    )
    assert quantised.error.worst >= quantised.error.mean * (1 - 1e-6)


def e4m3_values() -> Doubles:
    """The finite numbers of the format, from its definition."""
    return np.array([
        (-1) ** (code >> 7)
        * ((1 + (code & 7) / 8) * 2.0 ** ((code >> 3 & 15) - 7) if code >> 3 & 15 else (code & 7) / 8 * 2.0**-6)
        for code in range(256) if code & 0x7F != 0x7F
    ])  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp8_takes_the_nearest_number_of_the_format(dtype: KvDtype) -> None:
    of = space("gqa", dtype, StoredAs.FP8_E4M3)
    size = page_bytes(of)
    page = as_bytes(drawn(4, size // dtype.item_bytes, dtype), dtype)
    stored = LOSSY.encode(page, of).data
    assert stored is not None
    after = groups(as_numbers(decoded(stored, size, of), dtype), scaled_arrays(of, size), dtype.item_bytes)
    before = groups(as_numbers(page, dtype), scaled_arrays(of, size), dtype.item_bytes)
    values = e4m3_values()
    for was, now in zip(before, after, strict=True):
        scale = 2.0 ** np.ceil(np.log2(np.abs(was).max(axis=1, keepdims=True) / 448))
        nearest = np.abs((was / scale)[:, :, None] - values).min(axis=2)
        rounding = np.abs(was) * 2.0**-11 if dtype is KvDtype.FP16 else 0.0
        assert (np.abs(was - now) <= nearest * scale + rounding).all()


@pytest.mark.parametrize("dtype", [KvDtype.BF16, KvDtype.FP32])
def test_a_page_that_was_fp8_once_loses_nothing_more(dtype: KvDtype) -> None:
    of = space("gqa", dtype, StoredAs.FP8_E4M3)
    size = page_bytes(of)
    for seed in range(8):
        page = as_bytes(drawn(seed, size // dtype.item_bytes, dtype), dtype)
        once = LOSSY.encode(page, of).data
        assert once is not None
        back = decoded(once, size, of)
        again = LOSSY.encode(back, of)
        assert again.error is not None
        assert again.error.worst == 0
        assert again.data is not None
        assert decoded(again.data, size, of) == back


@pytest.mark.parametrize("stored_as", StoredAs)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "-inf"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_number_that_is_not_finite_is_never_stored_so(
    dtype: KvDtype, value: float, stored_as: StoredAs
) -> None:
    of = space("gqa", dtype, stored_as)
    count = page_bytes(of) // dtype.item_bytes
    for at in (0, 23, count // 2, count - 1):
        values = np.ones(count, np.float32)
        values[at] = value
        quantised = LOSSY.encode(as_bytes(values, dtype), of)
        assert (quantised.data, quantised.error) == (None, None)


@pytest.mark.parametrize("stored_as", StoredAs)
def test_zeros_stay_zeros(stored_as: StoredAs) -> None:
    of = space("gqa", KvDtype.BF16, stored_as)
    zeros = bytes(page_bytes(of))
    quantised = LOSSY.encode(zeros, of)
    assert quantised.error is not None
    assert quantised.error.worst == 0
    assert quantised.data is not None
    assert decoded(quantised.data, len(zeros), of) == zeros


def test_a_page_of_bf16_takes_half_with_its_scales() -> None:
    of = namespace(
        geometry=geometry(head_dim=64), page_tokens=64, kv_dtype=KvDtype.BF16, stored_as=StoredAs.FP8_E4M3
    )
    size = PageLayout.of(of).page_bytes
    values = np.random.default_rng(2).standard_normal(size // 2).astype(np.float32)
    stored = LOSSY.encode(as_bytes(values, KvDtype.BF16), of).data
    assert stored is not None
    assert len(stored) < size / 2


@pytest.mark.parametrize("number", range(3), ids=["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("code", range(2), ids=["fp8", "int8"])
@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_every_processor_gives_the_same_bits(code: int, number: int, seed: int) -> None:
    """Rows of any length, and numbers of any bits that are finite."""
    random, dtype = np.random.default_rng(seed), DTYPES[number]
    rows, columns = 2 * int(random.integers(1, 6)), int(random.integers(1, 200))
    bits = random.integers(0, 256, 2 * rows * columns * dtype.item_bytes, dtype=np.uint8).tobytes()
    with np.errstate(invalid="ignore"):
        numbers = as_numbers(bits, dtype)
    page = as_bytes(np.where(np.isfinite(numbers), numbers, 0), dtype)
    half = rows * columns * dtype.item_bytes
    told = []
    for plain in (False, True):
        quantiser = Quantiser(
            code=code, number=number, page_bytes=len(page), plain=plain,
            arrays=[(0, rows, columns, 2, False), (half, rows, columns, 2, True)],
        )  # fmt: skip
        parts = [bytearray(quantiser.scales_bytes), bytearray(quantiser.codes_bytes), bytearray(0)]
        errors, back = quantiser.encode(page, parts[0], parts[1], parts[2]), bytearray(len(page))
        assert errors is not None
        assert quantiser.decode(parts[0], parts[1], parts[2], back)
        told.append((errors, parts, back))
    assert told[0] == told[1]


def test_what_belongs_to_no_array_is_kept() -> None:
    quantiser = Quantiser(code=0, number=0, page_bytes=40, arrays=[(4, 2, 3, 2, False), (20, 1, 4, 1, True)])
    page = bytearray(range(100, 140))
    page[4:16] = as_bytes([1, 2, 3, 4, 5, 6], KvDtype.BF16)
    page[20:28] = as_bytes([1, -2, 0, 7], KvDtype.BF16)
    assert (quantiser.scales_bytes, quantiser.codes_bytes, quantiser.rest_bytes) == (1 + 4, 10, 20)
    scales, codes, rest, back = bytearray(5), bytearray(10), bytearray(20), bytearray(40)
    assert quantiser.encode(page, scales, codes, rest) == (0, 0)
    assert rest == page[:4] + page[16:20] + page[28:]
    assert quantiser.decode(scales, codes, rest, back)
    assert back == page


@pytest.mark.parametrize(
    "arrays",
    [
        [(0, 0, 4, 1, False)], [(0, 4, 0, 1, False)], [(0, 4, 4, 3, False)], [(0, 4, 4, 0, False)], [(10, 4, 4, 4, False)],
        [(0, 2, 4, 2, False), (8, 2, 4, 2, False)], [(0, 2**60, 16, 1, False)], [(2**63, 1, 1, 1, False)],
    ],
)  # fmt: skip
def test_arrays_that_are_none_of_a_page_are_refused(arrays: list[tuple[int, int, int, int, bool]]) -> None:
    with pytest.raises(ValueError):
        Quantiser(code=0, number=0, page_bytes=40, arrays=arrays)


def test_buffers_of_another_size_are_refused() -> None:
    quantiser = quantiser_of(
        space("gqa", KvDtype.BF16, StoredAs.INT8), page_bytes(space("gqa", KvDtype.BF16, StoredAs.INT8))
    )
    page = bytearray(page_bytes(space("gqa", KvDtype.BF16, StoredAs.INT8)))
    good = [
        bytearray(quantiser.scales_bytes),
        bytearray(quantiser.codes_bytes),
        bytearray(quantiser.rest_bytes),
    ]
    for wrong in range(3):
        parts = [bytearray(len(part) + 1) if at == wrong else part for at, part in enumerate(good)]
        with pytest.raises(ValueError):
            quantiser.encode(page, *parts)
        with pytest.raises(ValueError):
            quantiser.decode(parts[0], parts[1], parts[2], page)
    with pytest.raises(ValueError):
        quantiser.encode(page[1:], *good)


def stored_page(stored_as: StoredAs) -> bytes:
    of = space("gqa", KvDtype.BF16, stored_as)
    return LOSSY.encode(as_bytes(drawn(5, page_bytes(of) // 2, KvDtype.BF16), KvDtype.BF16), of).data or b""


STORED = {stored_as: stored_page(stored_as) for stored_as in StoredAs}


@pytest.mark.parametrize("stored_as", StoredAs)
@settings(deadline=None)
@given(data=st.data())
def test_a_byte_that_changed_never_does_harm(stored_as: StoredAs, data: st.DataObject) -> None:
    of, stored = space("gqa", KvDtype.BF16, stored_as), bytearray(STORED[stored_as])
    stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 3))
    with contextlib.suppress(CorruptRecordError):
        back = decoded(bytes(stored[: len(stored) - cut]), page_bytes(of), of)
        assert np.isfinite(as_numbers(back, KvDtype.BF16)).all(), "what is no number was told"


@pytest.mark.parametrize("stored_as", StoredAs)
@settings(deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_corrupt(stored_as: StoredAs, data: bytes) -> None:
    of = space("gqa", KvDtype.BF16, stored_as)
    with pytest.raises(CorruptRecordError):
        decoded(data, page_bytes(of), of)


@pytest.mark.parametrize(
    ("stored_as", "scale", "code"),
    [("fp8_e4m3", b"\x00", 1), ("fp8_e4m3", b"\xff", 1), ("fp8_e4m3", b"\x7f", 0x7F), ("fp8_e4m3", b"\x7f", 0xFF),
     ("int8", b"\x00\x00", 1), ("int8", b"\x80\x7f", 1), ("int8", b"\xc0\x7f", 1), ("int8", b"\x80\xbf", 1),
     ("int8", b"\x80\x3f", 0x80)],
)  # fmt: skip
def test_scales_and_codes_that_no_encoder_writes_are_told(stored_as: str, scale: bytes, code: int) -> None:
    quantiser = Quantiser(
        code=["fp8_e4m3", "int8"].index(stored_as), number=0, page_bytes=8, arrays=[(0, 1, 4, 1, False)]
    )
    place = bytearray(8)
    one = b"\x7f" if stored_as == "fp8_e4m3" else b"\x80\x3f"
    assert quantiser.decode(one, b"\1\2\3\4", b"", place)
    assert not quantiser.decode(scale, bytes([1, 2, 3, code]), b"", place)


def test_a_namespace_that_says_nothing_is_never_stored_lossily() -> None:
    with pytest.raises(InvalidArgumentError):
        LOSSY.encode(bytes(8192), namespace())


def one_array(code: int, dtype: KvDtype, count: int) -> Quantiser:
    """Numbers under one scale."""
    size = count * dtype.item_bytes
    return Quantiser(code=code, number=DTYPES.index(dtype), page_bytes=size, arrays=[(0, 1, count, 1, False)])


@pytest.mark.parametrize("stored_as", StoredAs)
@pytest.mark.parametrize("dtype", [KvDtype.BF16, KvDtype.FP16])
@settings(deadline=None, max_examples=20)
@given(largest=st.integers(0, 0x7FFF))
def test_all_finite_numbers_up_to_any_largest_come_back_within_the_bound(
    dtype: KvDtype, stored_as: StoredAs, largest: int
) -> None:
    """All bit patterns: denormals, both zeros, and every number that the scale's largest allows, under one scale."""
    infinite = 0x7F80 if dtype is KvDtype.BF16 else 0x7C00
    bits = np.arange(1 << 16, dtype=np.uint16)
    bits = bits[(bits & 0x7FFF) <= min(largest, infinite - 1)]
    quantiser = one_array(list(StoredAs).index(stored_as), dtype, bits.size)
    scales, codes, back = (
        bytearray(quantiser.scales_bytes),
        bytearray(quantiser.codes_bytes),
        bytearray(2 * bits.size),
    )
    assert quantiser.encode(bits.tobytes(), scales, codes, bytearray(0)) is not None
    assert quantiser.decode(scales, codes, b"", back)
    was, now = as_numbers(bits.tobytes(), dtype), as_numbers(bytes(back), dtype)
    assert np.isfinite(now).all()
    allowed = max(error_bound(stored_as, dtype) * np.abs(was).max(), NEGLIGIBLE[stored_as])
    denormal = coarse(stored_as, dtype) if np.abs(was).max() < 2.0**-14 else 0.0
    assert np.abs(was - now).max() <= allowed + denormal
    assert (np.signbit(was) == np.signbit(now))[now != 0].all(), "no number changes its sign"


@pytest.mark.parametrize("dtype", [KvDtype.BF16, KvDtype.FP16])
@pytest.mark.parametrize("stored_as", StoredAs)
def test_every_pattern_that_is_not_finite_is_told_wherever_it_stands(
    dtype: KvDtype, stored_as: StoredAs
) -> None:
    infinite = 0x7F80 if dtype is KvDtype.BF16 else 0x7C00
    count = 67  # one chunk of a vector loop, and some more
    quantiser = one_array(list(StoredAs).index(stored_as), dtype, count)
    parts = [bytearray(quantiser.scales_bytes), bytearray(quantiser.codes_bytes), bytearray(0)]
    for at, bits in enumerate(range(infinite, 0x8000)):
        numbers = np.zeros(count, np.uint16)
        numbers[at % count] = bits | (at & 1) << 15
        assert quantiser.encode(numbers.tobytes(), *parts) is None, hex(bits)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("stored_as", StoredAs)
@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_written_beside_buffers_that_lie_at_any_address(
    dtype: KvDtype, stored_as: StoredAs, plain: bool
) -> None:
    size, code = 131 * dtype.item_bytes, list(StoredAs).index(stored_as)
    for shift in (1, 3, 7):
        quantiser = Quantiser(
            code=code, number=DTYPES.index(dtype), page_bytes=size + 3, plain=plain,
            arrays=[(1, 1, 131, 1, False)],
        )  # fmt: skip
        sizes = (
            size + 3,
            quantiser.scales_bytes,
            quantiser.codes_bytes,
            quantiser.rest_bytes,
            size + 3,
        )
        whole = [bytearray(b"\xee" * (one + 2 * shift)) for one in sizes]
        page, scales, codes, rest, back = (memoryview(one)[shift : len(one) - shift] for one in whole)
        page[:] = b"\7" + as_bytes(np.linspace(-2, 3, 131), dtype) + b"\x08\x09"
        assert quantiser.encode(page, scales, codes, rest) is not None
        assert quantiser.decode(scales, codes, rest, back)
        assert (bytes(rest), back[0], bytes(back[-2:])) == (b"\7\x08\x09", 7, b"\x08\x09")
        for one in whole:
            assert one[:shift] == one[len(one) - shift :] == b"\xee" * shift
        with pytest.raises(ValueError, match="contiguous"):
            quantiser.encode(memoryview(bytearray(2 * (size + 3)))[::2], scales, codes, rest)
        with pytest.raises(ValueError, match="writable"):
            quantiser.decode(scales, codes, rest, bytes(size + 3))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stored_as", StoredAs)
def test_one_outlier_costs_its_own_scale_group_and_no_other(dtype: KvDtype, stored_as: StoredAs) -> None:
    """The largest number there is, of either sign, in one row of many."""
    for sign in (1, -1):
        values = np.tile(np.linspace(0.5, 1, 64), 4)
        values[70] = sign * LARGEST[dtype]
        page = as_bytes(values, dtype)
        quantiser = Quantiser(
            code=list(StoredAs).index(stored_as), number=DTYPES.index(dtype), page_bytes=len(page),
            arrays=[(0, 4, 64, 1, False)],
        )  # fmt: skip
        scales, codes = bytearray(quantiser.scales_bytes), bytearray(quantiser.codes_bytes)
        back = bytearray(len(page))
        assert quantiser.encode(page, scales, codes, bytearray(0)) is not None
        assert quantiser.decode(scales, codes, b"", back)
        was, now = as_numbers(page, dtype), as_numbers(bytes(back), dtype)
        lost = np.abs(was - now)
        bound = error_bound(stored_as, dtype)
        others = np.r_[0:64, 128:256]
        assert (lost[others] <= bound).all()
        assert np.isfinite(now).all()
        assert (lost[64:128] <= bound * LARGEST[dtype]).all()
