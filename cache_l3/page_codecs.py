"""PageCodecs: which codec a page is stored with, by its namespace and the sidecar's setting, and reading whatever was stored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cache_l3.codecs import WIDTHS, Planes, ZstdPlanes
from cache_l3.lossy import LOSSY_CODECS, LossyPlanes, PageError
from kv_types.errors import CorruptRecordError
from kv_types.namespace import Namespace
from kv_types.record import Codec

_WIDTH_UNKNOWN = 2


class KeptExact(StrEnum):
    """Why a page that may be stored lossily was stored bit for bit."""

    NOT_FINITE = "not_finite"
    """It holds a NaN or an infinity."""
    ERROR_LIMIT = "error_limit"
    """It would have lost more than the limit."""
    NOT_SMALLER = "not_smaller"


@dataclass(frozen=True, slots=True)
class Packed:
    """A page ready to be stored. `error` is what it lost, or would have; `kept` why it did not."""

    codec: Codec
    data: memoryview
    error: PageError | None = None
    kept: KeptExact | None = None


class PageCodecs:
    """Encodes by one lossless codec, or by the lossy one that a namespace names; decodes all of them. For any number of threads.

    `error_limit`: a page of which some layer's keys or values would lose more is stored lossless.
    """

    def __init__(self, lossless: Codec, *, error_limit: float) -> None:
        self._lossless = lossless
        self._error_limit = error_limit
        self._planes = Planes()
        self._zstd_planes = ZstdPlanes()
        self._lossy = LossyPlanes()

    def encode(self, payload: memoryview, namespace: Namespace | None) -> Packed:
        """Pack a page; `namespace` is None where it is not known any more, which costs some bytes and nothing else."""
        if namespace is None or namespace.stored_as is None:
            return self._exact(payload, namespace)
        quantised = self._lossy.encode(payload, namespace)
        if quantised.error is None:
            return self._exact(payload, namespace, kept=KeptExact.NOT_FINITE)
        if quantised.error.worst > self._error_limit:
            return self._exact(payload, namespace, error=quantised.error, kept=KeptExact.ERROR_LIMIT)
        if quantised.data is None:
            return self._exact(payload, namespace, error=quantised.error, kept=KeptExact.NOT_SMALLER)
        return Packed(LOSSY_CODECS[namespace.stored_as], memoryview(quantised.data), quantised.error)

    def decode(
        self, codec: Codec, stored: memoryview, place: memoryview, namespace: Namespace | None
    ) -> None:
        """Fill `place`; raises CorruptRecordError, also for a lossy record of a namespace that does not name that codec."""
        if codec is Codec.PLANES:
            self._planes.decode(stored, place)
        elif codec is Codec.ZSTD_PLANES:
            self._zstd_planes.decode(stored, place)
        elif codec is not Codec.RAW:
            if (
                namespace is None
                or namespace.stored_as is None
                or LOSSY_CODECS[namespace.stored_as] is not codec
            ):
                raise CorruptRecordError(f"a record of {codec.name} in a namespace that does not say so")
            self._lossy.decode(stored, place, namespace)

    def _exact(
        self,
        payload: memoryview,
        namespace: Namespace | None,
        *,
        error: PageError | None = None,
        kept: KeptExact | None = None,
    ) -> Packed:
        if self._lossless is Codec.PLANES:
            width = _WIDTH_UNKNOWN if namespace is None else namespace.kv_dtype.item_bytes
            data = self._planes.encode(payload, width=width if width in WIDTHS else 1)
            if data is not None:
                return Packed(Codec.PLANES, memoryview(data), error, kept)
        return Packed(Codec.RAW, payload, error, kept)
