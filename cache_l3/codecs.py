"""Lossless codecs: the planes of a page's numbers, bit for bit reversible, and safe with hostile bytes.

Neighbouring KV numbers are alike in size, not in sequence: their exponents, taken together, compress to a third, and
their mantissas are noise, which is stored as it is. Both directions release the GIL while they work.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from cache_l3._native import join_planes, split_planes
from cache_l3.sections import Sections
from kv_types.errors import CorruptRecordError, InvalidArgumentError

WIDTHS = (1, 2, 4, 8)
"""Bytes of elements that can be taken apart."""


class Planes:
    """Codec.PLANES: u8 width ‖ sections: each plane, the least significant first, then the rest. For any number of threads."""

    def __init__(self) -> None:
        self._sections = Sections()

    def encode(self, payload: Buffer, *, width: int) -> bytes | None:
        """Compress elements of `width` bytes; None: that would not make it smaller. Raises InvalidArgumentError."""
        if width not in WIDTHS:
            raise InvalidArgumentError(f"elements have 1, 2, 4 or 8 bytes; got {width}")
        data = memoryview(payload).cast("B")
        count = data.nbytes // width
        planes = np.empty(count * width, np.uint8).data
        split_planes(data, width, planes)
        parts = [planes[at * count : (at + 1) * count] for at in range(width)]
        return self._sections.pack(bytes([width]), [*parts, data[count * width :]], below=data.nbytes)

    def decode(self, stored: Buffer, place: memoryview) -> None:
        """Fill `place` exactly; raises CorruptRecordError. No more memory is taken than `place` has, whatever is stored."""
        data = memoryview(stored).cast("B")
        width = _width(data)
        count = place.nbytes // width
        *planes, rest = self._sections.unpack(data[1:], [*[count] * width, place.nbytes - count * width])
        join_planes(planes, place[: count * width])
        place[count * width :] = rest


class ZstdPlanes:
    """Codec.ZSTD_PLANES: u8 width ‖ one frame of all planes, numbers not turned. Written by earlier versions, and only read."""

    def __init__(self) -> None:
        self._sections = Sections()

    def decode(self, stored: Buffer, place: memoryview) -> None:
        """Fill `place` exactly; raises CorruptRecordError. No more memory is taken than `place` has, whatever the frame says."""
        data = memoryview(stored).cast("B")
        width = _width(data)
        planes = np.frombuffer(self._sections.unframe(data[1:], place.nbytes), np.uint8)
        _together(planes, np.frombuffer(place, np.uint8), width)


def _width(data: memoryview) -> int:
    width = data[0] if data.nbytes else 0
    if width not in WIDTHS:
        raise CorruptRecordError(f"elements of {width} bytes")
    return width


def _together(planes: npt.NDArray[np.uint8], data: npt.NDArray[np.uint8], width: int) -> None:
    count = planes.size // width
    for place in range(width):
        data[place : count * width : width] = planes[place * count : (place + 1) * count]
    data[count * width :] = planes[count * width :]
