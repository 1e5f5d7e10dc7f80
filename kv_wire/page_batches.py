"""How pages travel: large ones cut into chunks, small ones several to a message, a checksum at each page's end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kv_types import limits
from kv_wire.checksum import Checksum, checksum
from kv_wire.gen import cache_pb2
from kv_wire.transfer import Chunk, encode_put_request, plan_chunks


def page_batches(
    views: Sequence[memoryview], *, start: int, page_bytes: int, chunk_bytes: int = limits.GRPC_CHUNK_BYTES
) -> Iterator[list[Chunk]]:
    """Yield the chunks of one message after another: `views` are the pages from chain index `start` on.

    Every view is contiguous and page_bytes long. Each step hashes little more than `chunk_bytes` and copies nothing.
    """
    chunk, pages_together = plan_chunks(page_bytes, chunk_bytes=chunk_bytes, message_bytes=chunk_bytes)
    if chunk < page_bytes:
        for index, view in enumerate(views):
            yield from ([piece] for piece in _pieces(view, page=start + index, chunk_bytes=chunk))
        return
    for first in range(0, len(views), pages_together):
        some = views[first : first + pages_together]
        yield [Chunk(start + first + index, 0, view, checksum(view)) for index, view in enumerate(some)]


def put_messages(
    header: cache_pb2.PutHeader, sources: Sequence[memoryview], *, page_bytes: int
) -> Iterator[bytes]:
    """Yield the messages of one Put; the header shares the first one. `sources` are bytes-like, page_bytes long."""
    opening: cache_pb2.PutHeader | None = header
    for batch in page_batches(sources, start=header.start, page_bytes=page_bytes):
        yield encode_put_request(header=opening, chunks=batch)
        opening = None
    if opening is not None:
        yield encode_put_request(header=opening)


def _pieces(view: memoryview, *, page: int, chunk_bytes: int) -> Iterator[Chunk]:
    digest = Checksum()
    for offset in range(0, view.nbytes, chunk_bytes):
        data = view[offset : offset + chunk_bytes]
        digest.update(data)
        is_last = offset + data.nbytes == view.nbytes
        yield Chunk(page, offset, data, digest.value if is_last else 0)
