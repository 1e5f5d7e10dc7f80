"""Page streams of gRPC: chunks put together into checked pages, and pages cut into messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kv_types.errors import ProtocolError
from kv_types.outcomes import Hit, LookUpOutcome, Miss, MissReason, Tier
from kv_types.validity import NO_INSTANCE, UNKNOWN_INSTANCE
from kv_wire.checksum import checksum
from kv_wire.conversions import decision_from_wire, miss_reason_from_wire
from kv_wire.gen import cache_pb2
from kv_wire.transfer import Chunk, GetPart, encode_put_request, plan_chunks


class PageReceiver:
    """Takes the parts of one Get in order; `outcome` says what may be used once the stream has ended.

    Pages go into `destinations`, or into memory allocated when the sidecar says how many come. `first` is the chain
    index of the first page. A page that fails its checksum ends the prefix; without the trailer nothing may be used.
    """

    def __init__(
        self, *, page_bytes: int, first: int, pages_max: int, destinations: Sequence[memoryview] | None = None
    ) -> None:
        self._page_bytes = page_bytes
        self._first = first
        self._pages_max = pages_max
        self._destinations = destinations
        self.views: Sequence[memoryview] = ()
        self.restart()

    def restart(self) -> None:
        """Forget a stream that was cut; another one follows."""
        self._header: cache_pb2.GetHeader | None = None
        self._trailer: cache_pb2.GetTrailer | None = None
        self._whole = 0
        self._filled = 0
        self._corrupt_at: int | None = None

    def take(self, part: GetPart) -> None:
        """Take one message. Raises ProtocolError when it does not continue what came before."""
        if self._trailer is not None:
            raise ProtocolError("a message follows the trailer of a Get")
        if part.header is not None:
            self._take_header(part.header)
        for chunk in part.chunks:
            self._take_chunk(chunk)
        self._trailer = part.trailer

    def outcome(self) -> LookUpOutcome:
        """What arrived whole. Raises ProtocolError when the stream ended without a trailer."""
        if self._header is None or self._trailer is None:
            raise ProtocolError("a Get ended without its trailer")
        load = decision_from_wire(self._header.load) if self._header.HasField("load") else None
        pages = min(self._trailer.pages, self._whole)
        ended_by = miss_reason_from_wire(self._trailer.ended_by)
        if self._corrupt_at is not None and self._corrupt_at < self._trailer.pages:
            pages, ended_by = self._corrupt_at, MissReason.CORRUPT
        elif pages < self._trailer.pages:
            raise ProtocolError(f"a Get promised {self._trailer.pages} pages and sent {pages}")
        if not pages:
            return Miss(ended_by if ended_by is not MissReason.NONE else MissReason.ABSENT, load)
        pages_l3 = max(0, pages - (self._header.pages - min(self._header.pages, self._header.pages_l3)))
        return Hit(pages, Tier.L3 if pages_l3 else Tier.L2, ended_by, pages_l3, load)

    def instance(self, pages: int) -> int:
        """Instance of the last of `pages` pages: the sidecar names only that of the last one that it sent."""
        if self._trailer is None or not pages or self._trailer.pages != pages:
            return UNKNOWN_INSTANCE
        return self._trailer.instance if self._trailer.instance != NO_INSTANCE else UNKNOWN_INSTANCE

    def _take_header(self, header: cache_pb2.GetHeader) -> None:
        if self._header is not None:
            raise ProtocolError("a Get has two headers")
        if header.pages > self._pages_max:
            raise ProtocolError(f"a Get of {self._pages_max} pages announces {header.pages}")
        if header.pages and header.page_bytes != self._page_bytes:
            raise ProtocolError(
                f"a Get announces pages of {header.page_bytes} bytes; the namespace's have {self._page_bytes}"
            )
        self._header = header
        self.views = self._destinations if self._destinations is not None else self._allocate(header.pages)

    def _allocate(self, pages: int) -> list[memoryview]:
        memory = memoryview(bytearray(pages * self._page_bytes))
        return [memory[at * self._page_bytes : (at + 1) * self._page_bytes] for at in range(pages)]

    def _take_chunk(self, chunk: Chunk) -> None:
        if self._header is None or self._whole >= self._header.pages:
            raise ProtocolError("a Get sends more than its header announced")
        end = self._filled + chunk.data.nbytes
        if chunk.page != self._first + self._whole or chunk.offset != self._filled or end > self._page_bytes:
            raise ProtocolError(
                f"a Get sends page {chunk.page} from byte {chunk.offset}; "
                f"page {self._first + self._whole} from byte {self._filled} is next"
            )
        page = self.views[self._whole]
        page[self._filled : end] = chunk.data
        self._filled = end
        if end == self._page_bytes:
            if self._corrupt_at is None and checksum(page) != chunk.checksum:
                self._corrupt_at = self._whole
            self._whole += 1
            self._filled = 0


def put_messages(
    header: cache_pb2.PutHeader, pages: Sequence[memoryview], *, first: int, page_bytes: int, keep: object
) -> Iterator[bytes]:
    """Yield the messages of a Put: the header with the first chunks, then the rest.

    gRPC draws them on a thread of its own, which may outlive a call that was cut off; `keep` is held until then, so
    that the memory behind `pages` stays.
    """
    chunk_bytes, pages_a_message = plan_chunks(page_bytes)
    leading: cache_pb2.PutHeader | None = header
    for begin in range(0, len(pages), pages_a_message):
        chunks = []
        for at in range(begin, min(begin + pages_a_message, len(pages))):
            for chunk in _chunks(pages[at], first + at, chunk_bytes):
                chunks.append(chunk)
                if pages_a_message == 1:
                    yield encode_put_request(header=leading, chunks=chunks)
                    leading, chunks = None, []
        if chunks:
            yield encode_put_request(header=leading, chunks=chunks)
            leading = None
    del keep


def _chunks(page: memoryview, number: int, chunk_bytes: int) -> Iterator[Chunk]:
    total = checksum(page)
    for offset in range(0, page.nbytes, chunk_bytes):
        data = page[offset : offset + chunk_bytes]
        is_last = offset + data.nbytes == page.nbytes
        yield Chunk(page=number, offset=offset, data=data, checksum=total if is_last else 0)
