"""Sections of a stored payload: bytes whose sizes a reader knows, as they are or, where that is smaller, as a Zstandard frame.

What lies in them are planes of numbers and codes: their bytes are distributed unevenly and hardly ever repeat. So frames are made
without a search for repetitions worth the name, which makes them both smaller and faster to write, and in blocks of 32 KiB, each
with an entropy code for its own part of the page. `python -m benchmarks.codecs` shows what that comes to.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence

import numpy as np
import zstandard

from kv_types.errors import CorruptRecordError
from kv_types.limits import PAGE_BYTES_MAX

_WINDOW_LEAST = 1024
"""The smallest window that a frame can name, though its content be smaller."""
_FRAME_LEAST = 256
"""Sections of fewer bytes are not worth a frame."""
_SAMPLES = 8192
_NOISE_BITS = 7.8
"""A section with so many bits of entropy in its bytes is stored as it is: a frame would save less than it takes to read."""


def frame_parameters() -> zstandard.ZstdCompressionParameters:
    """How frames are made. `python -m benchmarks.codec_choices` has levels and trained dictionaries beside it."""
    return zstandard.ZstdCompressionParameters(
        window_log=15, hash_log=6, chain_log=6, min_match=7, target_length=0, strategy=zstandard.STRATEGY_FAST
    )


class Sections:
    """Packs and unpacks sections: u32 stored size of each, then all of them. For any number of threads."""

    def __init__(self) -> None:
        self._contexts = threading.local()

    def pack(self, head: bytes, sections: Sequence[memoryview], *, below: int) -> bytes | None:
        """`head`, then the sections; None where that would not have fewer than `below` bytes."""
        packed = [self._smaller(section) for section in sections]
        sizes = struct.pack(f"<{len(packed)}I", *(len(one) for one in packed))
        if len(head) + len(sizes) + sum(len(one) for one in packed) >= below:
            return None
        return b"".join((head, sizes, *packed))

    def unpack(self, data: memoryview, sizes: Sequence[int]) -> list[memoryview]:
        """The sections, of exactly these sizes; raises CorruptRecordError. Takes no more memory than that, whatever it says."""
        table = 4 * len(sizes)
        if data.nbytes < table:
            raise CorruptRecordError(f"{data.nbytes} bytes of {len(sizes)} sections")
        stored = struct.unpack_from(f"<{len(sizes)}I", data)
        if table + sum(stored) != data.nbytes:
            raise CorruptRecordError(f"sections of {sum(stored)} bytes in {data.nbytes - table}")
        found, end = [], table
        for size, stored_size in zip(sizes, stored, strict=True):
            section = data[end : end + stored_size]
            found.append(section if stored_size == size else self.unframe(section, size))
            end += stored_size
        return found

    def unframe(self, frame: memoryview, size: int) -> memoryview:
        """What one frame holds, which must say that it has this size; raises CorruptRecordError."""
        try:
            told = zstandard.get_frame_parameters(frame)
            if told.content_size != size or told.window_size > max(size, _WINDOW_LEAST) or told.dict_id:
                raise CorruptRecordError(
                    f"a frame of {told.content_size} bytes by a window of {told.window_size}; it must have {size}"
                )
            content = self._decompressor().decompress(frame, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise CorruptRecordError(f"no frame of Zstandard: {error}") from error
        if len(content) != size:
            raise CorruptRecordError(f"a frame of {len(content)} bytes; it must have {size}")
        return memoryview(content)

    def _smaller(self, section: memoryview) -> memoryview:
        if section.nbytes < _FRAME_LEAST or _entropy_bits(section) > _NOISE_BITS:
            return section
        frame = self._compressor().compress(section)
        return memoryview(frame) if len(frame) < section.nbytes else section

    def _compressor(self) -> zstandard.ZstdCompressor:
        if not hasattr(self._contexts, "compressor"):
            self._contexts.compressor = zstandard.ZstdCompressor(compression_params=frame_parameters())
        made: zstandard.ZstdCompressor = self._contexts.compressor
        return made

    def _decompressor(self) -> zstandard.ZstdDecompressor:
        if not hasattr(self._contexts, "decompressor"):
            self._contexts.decompressor = zstandard.ZstdDecompressor(max_window_size=PAGE_BYTES_MAX)
        made: zstandard.ZstdDecompressor = self._contexts.decompressor
        return made


def _entropy_bits(section: memoryview) -> float:
    """Entropy of a sample's bytes, taken at an odd distance, which no row of numbers has."""
    data = np.frombuffer(section, np.uint8)
    counts = np.bincount(data[:: data.size // _SAMPLES | 1], minlength=256)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())
