"""The answer of one Get as a run of encoded messages: pages out of leased views, each byte copied once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kv_wire.checksum import Checksum, checksum
from kv_wire.gen import cache_pb2
from kv_wire.transfer import Chunk, encode_get_response, plan_chunks


def get_messages(
    views: Sequence[memoryview], *, start: int, header: cache_pb2.GetHeader, chunk_bytes: int
) -> Iterator[bytes]:
    """Yield the messages of one answer: the header in the first, the trailer in the last.

    `views` are the pages from chain index `start` on, header.page_bytes long each. Every step copies and hashes
    little more than `chunk_bytes`, so that an event loop can do other things between two of them.
    """
    trailer = cache_pb2.GetTrailer(pages=len(views), ended_by=header.ended_by)
    opening: cache_pb2.GetHeader | None = header
    batches = _batches(views, start=start, page_bytes=header.page_bytes, chunk_bytes=chunk_bytes)
    batch = next(batches, [])
    while True:
        following = next(batches, None)
        yield encode_get_response(
            header=opening, chunks=batch, trailer=trailer if following is None else None
        )
        if following is None:
            return
        opening, batch = None, following


def _batches(
    views: Sequence[memoryview], *, start: int, page_bytes: int, chunk_bytes: int
) -> Iterator[list[Chunk]]:
    chunk, pages_together = plan_chunks(page_bytes, chunk_bytes=chunk_bytes, message_bytes=chunk_bytes)
    if chunk < page_bytes:
        for index, view in enumerate(views):
            yield from ([piece] for piece in _pieces(view, page=start + index, chunk_bytes=chunk))
        return
    for first in range(0, len(views), pages_together):
        some = views[first : first + pages_together]
        yield [Chunk(start + first + index, 0, view, checksum(view)) for index, view in enumerate(some)]


def _pieces(view: memoryview, *, page: int, chunk_bytes: int) -> Iterator[Chunk]:
    digest = Checksum()
    for offset in range(0, view.nbytes, chunk_bytes):
        data = view[offset : offset + chunk_bytes]
        digest.update(data)
        is_last = offset + data.nbytes == view.nbytes
        yield Chunk(page, offset, data, digest.value if is_last else 0)
