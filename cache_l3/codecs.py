"""Codecs of payloads: Zstandard over the planes of a page's bytes, bit for bit reversible, and safe with hostile bytes.

The bytes of neighbouring KV numbers are alike in significance, not in sequence: the first bytes of all elements, then all
second ones and so on compress where the numbers themselves do not. What does not get smaller is stored as it is.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
import zstandard
from typing_extensions import Buffer

from kv_types.errors import CorruptRecordError, InvalidArgumentError
from kv_types.limits import L3_ZSTD_LEVEL_MAX, L3_ZSTD_LEVEL_MIN, PAGE_BYTES_MAX

WIDTHS = (1, 2, 4, 8)
"""Bytes of elements that can be taken apart."""
_Bytes = npt.NDArray[np.uint8]


class ZstdPlanes:
    """Codec.ZSTD_PLANES: u8 width ‖ one frame that names its size. For any number of threads, each with its own contexts.

    Both directions release the GIL while they work; a MiB takes about one ms. Raises InvalidArgumentError for a level beyond
    L3_ZSTD_LEVEL_MIN to L3_ZSTD_LEVEL_MAX.
    """

    def __init__(self, *, level: int) -> None:
        if not L3_ZSTD_LEVEL_MIN <= level <= L3_ZSTD_LEVEL_MAX:
            raise InvalidArgumentError(
                f"a level of compression is {L3_ZSTD_LEVEL_MIN} to {L3_ZSTD_LEVEL_MAX}; got {level}"
            )
        self._level = level
        self._contexts = threading.local()

    def encode(self, payload: Buffer, *, width: int) -> bytes | None:
        """Compress elements of `width` bytes; None: that would not make it smaller."""
        if width not in WIDTHS:
            raise InvalidArgumentError(f"elements have 1, 2, 4 or 8 bytes; got {width}")
        data = memoryview(payload).cast("B")
        frame = self._compressor().compress(_apart(np.frombuffer(data, np.uint8), width))
        stored = bytes([width]) + frame
        return stored if len(stored) < data.nbytes else None

    def decode(self, stored: Buffer, place: memoryview) -> None:
        """Fill `place` exactly; raises CorruptRecordError. No more memory is taken than `place` has, whatever the frame says."""
        data = memoryview(stored).cast("B")
        width = data[0] if data.nbytes else 0
        if width not in WIDTHS:
            raise CorruptRecordError(f"elements of {width} bytes")
        planes = self._decompress(data[1:], place.nbytes)
        _together(np.frombuffer(planes, np.uint8), np.frombuffer(place, np.uint8), width)

    def _decompress(self, frame: memoryview, size: int) -> bytes:
        try:
            told = zstandard.get_frame_parameters(frame)
            if told.content_size != size or told.window_size > max(size, _WINDOW_LEAST) or told.dict_id:
                raise CorruptRecordError(
                    f"a frame of {told.content_size} bytes by a window of {told.window_size}; the page has {size}"
                )
            planes = self._decompressor().decompress(frame, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise CorruptRecordError(f"no frame of Zstandard: {error}") from error
        if len(planes) != size:
            raise CorruptRecordError(f"a frame of {len(planes)} bytes; the page has {size}")
        return planes

    def _compressor(self) -> zstandard.ZstdCompressor:
        if not hasattr(self._contexts, "compressor"):
            self._contexts.compressor = zstandard.ZstdCompressor(level=self._level)
        made: zstandard.ZstdCompressor = self._contexts.compressor
        return made

    def _decompressor(self) -> zstandard.ZstdDecompressor:
        if not hasattr(self._contexts, "decompressor"):
            self._contexts.decompressor = zstandard.ZstdDecompressor(max_window_size=PAGE_BYTES_MAX)
        made: zstandard.ZstdDecompressor = self._contexts.decompressor
        return made


_WINDOW_LEAST = 1024
"""The smallest window that a frame can name, though its content be smaller."""


def _apart(data: _Bytes, width: int) -> memoryview:
    """All first bytes, all second ones, …, and what is left over."""
    if width == 1:
        return data.data
    count = data.size // width
    planes = np.empty_like(data)
    for place in range(width):
        planes[place * count : (place + 1) * count] = data[place : count * width : width]
    planes[count * width :] = data[count * width :]
    return planes.data


def _together(planes: _Bytes, data: _Bytes, width: int) -> None:
    count = planes.size // width
    for place in range(width):
        data[place : count * width : width] = planes[place * count : (place + 1) * count]
    data[count * width :] = planes[count * width :]
