"""Provenance of pages: (producer, tags) to a number that an entry of the arena can hold."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.limits import PRODUCER_BYTES_MAX, PROVENANCES_MAX, TAG_BYTES_MAX, TAGS_PER_RECORD_MAX


@dataclass(frozen=True, slots=True)
class Provenance:
    """Who computed a page (node or worker, up to PRODUCER_BYTES_MAX bytes) and the tags it was given, sorted."""

    producer: bytes = b""
    tags: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if len(self.producer) > PRODUCER_BYTES_MAX:
            raise LimitExceededError(f"a producer of {len(self.producer)} bytes exceeds {PRODUCER_BYTES_MAX}")
        if len(self.tags) > TAGS_PER_RECORD_MAX:
            raise LimitExceededError(f"{len(self.tags)} tags; a record has at most {TAGS_PER_RECORD_MAX}")
        for tag in self.tags:
            if not 1 <= len(tag) <= TAG_BYTES_MAX:
                raise InvalidArgumentError(f"a tag has 1 to {TAG_BYTES_MAX} bytes; one has {len(tag)}")


class ProvenanceTable:
    """Numbers each provenance once. When it is full, new ones share OVERFLOW, which every selector matches (rule R3)."""

    UNKNOWN = 0
    OVERFLOW = 2**32 - 1

    def __init__(self, *, provenances_max: int = PROVENANCES_MAX) -> None:
        self._numbers: dict[Provenance, int] = {Provenance(): self.UNKNOWN}
        self._provenances = [Provenance()]
        self._of_producer: dict[bytes, array[int]] = {}
        self._of_tag: dict[bytes, array[int]] = {}
        self._max = provenances_max

    def __len__(self) -> int:
        return len(self._provenances)

    def number(self, producer: bytes, tags: tuple[bytes, ...]) -> int:
        """Return the number of a provenance. Raises LimitExceededError, InvalidArgumentError."""
        if not producer and not tags:
            return self.UNKNOWN
        provenance = Provenance(producer, tuple(sorted(set(tags))))
        known = self._numbers.get(provenance)
        if known is not None:
            return known
        if len(self._provenances) >= self._max:
            return self.OVERFLOW
        number = len(self._provenances)
        self._numbers[provenance] = number
        self._provenances.append(provenance)
        self._of_producer.setdefault(provenance.producer, array("L")).append(number)
        for tag in provenance.tags:
            self._of_tag.setdefault(tag, array("L")).append(number)
        return number

    def matching(self, producer: bytes | None, tag: bytes | None) -> Sequence[int]:
        """Numbers of the provenances of this producer and with this tag, None standing for any. OVERFLOW is none of them."""
        if producer is None:
            return range(len(self)) if tag is None else self._of_tag.get(tag, array("L"))
        numbers = self._of_producer.get(producer, array("L"))
        if tag is None:
            return numbers
        return [number for number in numbers if tag in self._provenances[number].tags]

    def provenance(self, number: int) -> Provenance | None:
        """Return what a number stands for; None for OVERFLOW: it may be anything."""
        return self._provenances[number] if 0 <= number < len(self._provenances) else None
