"""Lossy codecs of payloads: fp8 (e4m3) and int8 with scales, page by page, in native code and without the GIL.

What a codec may lose is declared by `kv_types.scale_groups.error_bound`; what it did lose is told with every page. A page with
a number that is not finite is never stored so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from typing_extensions import Buffer

from cache_l3._native import Quantiser
from cache_l3.sections import Sections
from kv_types.errors import CorruptRecordError
from kv_types.limits import L3_QUANTISERS_MAX
from kv_types.namespace import KvDtype, Namespace, StoredAs
from kv_types.record import Codec
from kv_types.scale_groups import scaled_arrays

LOSSY_CODECS = {StoredAs.FP8_E4M3: Codec.FP8_E4M3, StoredAs.INT8: Codec.INT8}
_CODES = {StoredAs.FP8_E4M3: 0, StoredAs.INT8: 1}
_NUMBERS = {KvDtype.BF16: 0, KvDtype.FP16: 1, KvDtype.FP32: 2}


@dataclass(frozen=True, slots=True)
class PageError:
    """What a page lost, as Σ|x − x'| ÷ Σ|x|: over the whole page, and over the layer's keys or values where it is most."""

    mean: float
    worst: float


@dataclass(frozen=True, slots=True)
class Quantised:
    """A page as codes and scales. `data` is None where a number of it is not finite, or it would not be smaller."""

    data: bytes | None
    error: PageError | None


class LossyPlanes:
    """Codec.FP8_E4M3 and Codec.INT8: sections: scales, codes, and the bytes that are no numbers. For any number of threads.

    Scales of fp8 are u8 exponents (127 is 1), of int8 u16 bf16; codes stand in the order of the page's numbers.
    """

    def __init__(self) -> None:
        self._sections = Sections()

    def encode(self, payload: Buffer, namespace: Namespace) -> Quantised:
        """Store a page of a namespace as that says. Raises InvalidArgumentError for one that says nothing, or not this size."""
        data = memoryview(payload).cast("B")
        quantiser = quantiser_of(namespace, data.nbytes)
        parts = [
            np.empty(size, np.uint8).data
            for size in (quantiser.scales_bytes, quantiser.codes_bytes, quantiser.rest_bytes)
        ]
        lost = quantiser.encode(data, *parts)
        if lost is None:
            return Quantised(None, None)
        worst, mean = lost
        return Quantised(self._sections.pack(b"", parts, below=data.nbytes), PageError(mean, worst))

    def decode(self, stored: Buffer, place: memoryview, namespace: Namespace) -> None:
        """Fill `place` exactly; raises CorruptRecordError, also for what no encoder writes."""
        quantiser = quantiser_of(namespace, place.nbytes)
        scales, codes, rest = self._sections.unpack(
            memoryview(stored).cast("B"),
            (quantiser.scales_bytes, quantiser.codes_bytes, quantiser.rest_bytes),
        )
        if not quantiser.decode(scales, codes, rest, place):
            raise CorruptRecordError("a scale or a code that stands for no number")


@lru_cache(L3_QUANTISERS_MAX)
def quantiser_of(namespace: Namespace, page_bytes: int) -> Quantiser:
    """The native codec of a namespace's pages; raises InvalidArgumentError as `scaled_arrays` does."""
    arrays = scaled_arrays(namespace, page_bytes)
    assert namespace.stored_as is not None, "it has scaled arrays"
    return Quantiser(
        code=_CODES[namespace.stored_as],
        number=_NUMBERS[namespace.kv_dtype],
        page_bytes=page_bytes,
        arrays=[(one.offset, one.rows, one.columns, one.rows_a_scale, one.by_column) for one in arrays],
    )
