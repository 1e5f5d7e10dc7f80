"""The checksum of the native data path agrees with other people's, for all lengths, however the bytes come."""

from __future__ import annotations

import random

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from cache_l3._native import XXH3_KERNELS, xxh3_64, xxh3_64_by

_BYTES = random.Random(7).randbytes(300_000)


def test_xxh3_of_every_length_up_to_three_blocks() -> None:
    for length in range(3 * 1024 + 130):
        assert xxh3_64(_BYTES[:length]) == xxhash.xxh3_64_intdigest(_BYTES[:length]), length


@pytest.mark.parametrize("kernel", range(len(XXH3_KERNELS)), ids=XXH3_KERNELS)
@given(
    start=st.integers(0, 4096),
    length=st.one_of(st.integers(0, 2100), st.integers(0, 290_000)),
    cuts=st.lists(st.integers(0, 300_000), max_size=20),
)
def test_xxh3_of_bytes_that_come_in_pieces(kernel: int, start: int, length: int, cuts: list[int]) -> None:
    data = _BYTES[start : start + length]
    assert xxh3_64_by(kernel, cuts, data) == xxhash.xxh3_64_intdigest(data)


def test_what_cannot_be_hashed_is_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        xxh3_64(memoryview(b"abcdef")[::2])
    with pytest.raises(ValueError, match="XXH3_KERNELS"):
        xxh3_64_by(len(XXH3_KERNELS), [], b"")
