"""Pages that say who computed them and what they rest on, so that a history of look-ups can be judged by itself."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from kv_types.ids import KEY_BYTES, PageKey
from kv_types.namespace import Namespace
from tests.support.pages import PAGE_UNIT_BYTES, namespace_of

PAGE_BYTES = PAGE_UNIT_BYTES
MODEL = "fleet"
PARTS_MAX = 100

_HEAD = struct.Struct("<4sBHHB")  # magic, index in the chain, tenant, chain, parts
_PART = struct.Struct("<BHHQQ")  # index, producer, tag, begun, ended
_SUM = struct.Struct("<I")
_MAGIC = b"page"


class BrokenPageError(Exception):
    """Bytes that no worker of the fleet has written whole, or not for this place."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a page belongs: tenant and chain by number, and the index in the chain."""

    tenant: int
    chain: int
    index: int


@dataclass(frozen=True, slots=True)
class Part:
    """One page's computation: which page of the chain, producer and tag by number, when it ran (CLOCK_BOOTTIME ns).

    `begun_ns` was read after the request had begun, so that whatever came later than it came later than the beginning.
    """

    index: int
    producer: int
    tag: int
    begun_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class StampedPage:
    """A page's content: its place, and all computations that it rests on, its own as the last.

    There may be several of one index: a page can be evicted or invalidated and computed anew while a request goes on.
    """

    place: Place
    lineage: tuple[Part, ...]

    @classmethod
    def computed(cls, place: Place, own: Part, reused: Iterable[StampedPage]) -> StampedPage:
        """What `own` makes of the pages that its request had before it."""
        rested_on = dict.fromkeys(part for page in reused for part in page.lineage)
        return cls(place, (*rested_on, own))

    def encode(self, page_bytes: int = PAGE_BYTES) -> bytes:
        """So many bytes; each part of them depends on all that the page says."""
        place = self.place
        said = _HEAD.pack(_MAGIC, place.index, place.tenant, place.chain, len(self.lineage))
        said += b"".join(_PART.pack(*_words(part)) for part in self.lineage)
        total = _SUM.pack(zlib.crc32(said))
        return (said + total * (page_bytes // _SUM.size))[:page_bytes]


def read_page(data: bytes | bytearray | memoryview, place: Place) -> StampedPage:
    """Read a page that was got for `place`. Raises BrokenPageError when it is torn or another one."""
    data = bytes(data)
    magic, index, tenant, chain, parts = _HEAD.unpack_from(data)
    if magic != _MAGIC or Place(tenant, chain, index) != place:
        raise BrokenPageError(f"the page of {place} says {magic!r}, {Place(tenant, chain, index)}")
    end = _HEAD.size + _PART.size * parts
    if end > len(data):
        raise BrokenPageError(f"the page of {place} has {parts} parts")
    page = StampedPage(place, tuple(Part(*part) for part in _PART.iter_unpack(data[_HEAD.size : end])))
    if page.encode(len(data)) != data:
        raise BrokenPageError(f"the page of {place} is torn")
    return page


def _words(part: Part) -> tuple[int, int, int, int, int]:
    return part.index, part.producer, part.tag, part.begun_ns, part.ended_ns


def tenant_name(tenant: int) -> str:
    return f"tenant-{tenant}"


def producer_name(producer: int) -> bytes:
    return f"worker-{producer}".encode()


def tag_name(tag: int) -> bytes:
    return f"tag-{tag}".encode()


def space_of(tenant: int, *, units: int = 1) -> Namespace:
    """The namespace of a tenant; its pages have `units` × PAGE_BYTES."""
    return namespace_of(MODEL, units=units, tenant=tenant_name(tenant))


def chain_keys(tenant: int, chain: int, pages: int) -> list[PageKey]:
    """Keys of a chain, the same in every process."""
    key, keys = f"{tenant}/{chain}".encode(), []
    for _ in range(pages):
        key = hashlib.blake2b(key, digest_size=KEY_BYTES).digest()
        keys.append(PageKey(key))
    return keys
