"""The answer of one Get as a run of encoded messages: pages out of leased views, each byte copied once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kv_wire.gen import cache_pb2
from kv_wire.page_batches import page_batches
from kv_wire.transfer import encode_get_response


def get_messages(
    views: Sequence[memoryview],
    *,
    start: int,
    header: cache_pb2.GetHeader,
    instance: int,
    chunk_bytes: int,
) -> Iterator[bytes]:
    """Yield the messages of one answer: the header in the first, the trailer, which names `instance`, in the last.

    `views` are the pages from chain index `start` on, header.page_bytes long each. Every step copies and hashes
    little more than `chunk_bytes`, so that an event loop can do other things between two of them.
    """
    trailer = cache_pb2.GetTrailer(pages=len(views), ended_by=header.ended_by, instance=instance)
    opening: cache_pb2.GetHeader | None = header
    batches = page_batches(views, start=start, page_bytes=header.page_bytes, chunk_bytes=chunk_bytes)
    batch = next(batches, [])
    while True:
        following = next(batches, None)
        yield encode_get_response(
            header=opening, chunks=batch, trailer=trailer if following is None else None
        )
        if following is None:
            return
        opening, batch = None, following


def whole_message(
    views: Sequence[memoryview], *, start: int, header: cache_pb2.GetHeader, instance: int
) -> bytes:
    """Return the one message of an answer that fits one (`kv_wire.transfer.fits_one_message`)."""
    batches = page_batches(views, start=start, page_bytes=header.page_bytes)
    trailer = cache_pb2.GetTrailer(pages=len(views), ended_by=header.ended_by, instance=instance)
    chunks = [chunk for batch in batches for chunk in batch]
    return encode_get_response(header=header, chunks=chunks, trailer=trailer)
