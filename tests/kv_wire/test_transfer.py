"""The bulk codec writes and reads exactly what protobuf does."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_types import limits
from kv_types.errors import ProtocolError
from kv_wire.gen import cache_pb2
from kv_wire.transfer import (
    CHUNK_OVERHEAD_BYTES,
    Chunk,
    decode_get_response,
    decode_put_request,
    encode_get_response,
    encode_put_request,
    plan_chunks,
)

u32 = st.integers(0, 2**32 - 1)
chunks = st.lists(
    st.builds(
        lambda page, offset, data, checksum: Chunk(page, offset, memoryview(data), checksum),
        u32,
        u32,
        st.binary(max_size=300),
        st.integers(0, 2**64 - 1),
    ),
    max_size=4,
)


def _as_message(chunk: Chunk) -> cache_pb2.PageChunk:
    return cache_pb2.PageChunk(
        page=chunk.page, offset=chunk.offset, data=bytes(chunk.data), checksum=chunk.checksum
    )


def _same(left: Chunk, right: cache_pb2.PageChunk) -> bool:
    return (left.page, left.offset, bytes(left.data), left.checksum) == (
        right.page,
        right.offset,
        right.data,
        right.checksum,
    )


@given(chunks, st.booleans(), st.booleans())
def test_protobuf_reads_what_we_write(parts: list[Chunk], with_header: bool, with_trailer: bool) -> None:
    header = cache_pb2.GetHeader(pages=3, page_bytes=9, ended_by=cache_pb2.MISS_REASON_ABSENT)
    trailer = cache_pb2.GetTrailer(pages=3)
    ours = encode_get_response(
        header=header if with_header else None, chunks=parts, trailer=trailer if with_trailer else None
    )
    expected = cache_pb2.GetResponse(chunks=[_as_message(part) for part in parts])
    if with_header:
        expected.header.CopyFrom(header)
    if with_trailer:
        expected.trailer.CopyFrom(trailer)
    assert cache_pb2.GetResponse.FromString(ours) == expected


@given(chunks, st.booleans())
def test_we_read_what_protobuf_writes(parts: list[Chunk], with_header: bool) -> None:
    message = cache_pb2.PutRequest(chunks=[_as_message(part) for part in parts])
    if with_header:
        message.header.CopyFrom(cache_pb2.PutHeader(namespace_id=b"n" * 32, start=7))
    part = decode_put_request(message.SerializeToString())
    assert part.header == (message.header if with_header else None)
    assert len(part.chunks) == len(parts)
    assert all(_same(ours, theirs) for ours, theirs in zip(part.chunks, message.chunks, strict=True))


@settings(max_examples=500)
@given(st.binary(max_size=120))
def test_garbage_is_refused_exactly_when_protobuf_refuses_it(message: bytes) -> None:
    try:
        expected: cache_pb2.PutRequest | None = cache_pb2.PutRequest.FromString(message)
    except DecodeError:
        expected = None
    try:
        part = decode_put_request(message)
    except ProtocolError:
        # Stricter than protobuf only about the deprecated groups (wire types 3 and 4), which we never send.
        assert expected is None or any(byte & 7 in (3, 4) for byte in message)
        return
    assert expected is not None
    assert all(_same(ours, theirs) for ours, theirs in zip(part.chunks, expected.chunks, strict=True))
    assert (part.header is not None) == expected.HasField("header")


def test_damaged_messages_agree_with_protobuf() -> None:
    seed = 20_261_129
    rng = random.Random(seed)
    good = encode_put_request(
        header=cache_pb2.PutHeader(namespace_id=b"n" * 32, chain=cache_pb2.Chain(keys=b"k" * 64)),
        chunks=[Chunk(1, 0, memoryview(b"x" * 50)), Chunk(1, 50, memoryview(b"y" * 50), 99)],
    )
    for _ in range(3000):
        bad = bytearray(good[: rng.randrange(1, len(good) + 1)])
        bad[rng.randrange(len(bad))] = rng.randrange(256)
        try:
            theirs = cache_pb2.PutRequest.FromString(bytes(bad))
        except DecodeError:
            with pytest.raises(ProtocolError):
                decode_put_request(bytes(bad))
            continue
        refusal, ours = "", None
        try:
            ours = decode_put_request(bytes(bad))
        except ProtocolError as error:
            refusal = str(error)
        if ours is None:
            assert "wire type" in refusal, f"seed {seed}: {refusal} for {bytes(bad)!r}"
            continue
        assert [bytes(part.data) for part in ours.chunks] == [part.data for part in theirs.chunks], seed


def test_chunks_are_views_of_the_message_and_not_copies() -> None:
    payload = bytes(range(256)) * 4
    message = encode_get_response(chunks=[Chunk(0, 0, memoryview(payload))])
    (chunk,) = decode_get_response(message).chunks
    assert chunk.data.obj is message
    assert chunk.data == payload


@pytest.mark.parametrize("page_bytes", [1, 4096, 2**20 - 1, 2**20, 2**20 + 1, limits.PAGE_BYTES_MAX])
def test_planned_messages_stay_within_the_limit(page_bytes: int) -> None:
    chunk_bytes, pages = plan_chunks(page_bytes)
    assert pages >= 1
    assert chunk_bytes <= limits.GRPC_CHUNK_BYTES
    parts = [Chunk(0xFFFF, page_bytes, memoryview(bytes(chunk_bytes)), 2**64 - 1)] * pages
    assert len(encode_get_response(chunks=parts)) <= limits.GRPC_MESSAGE_BYTES_MAX
    assert len(encode_get_response(chunks=parts[:1])) <= chunk_bytes + CHUNK_OVERHEAD_BYTES


def test_a_header_that_does_not_parse_is_named() -> None:
    with pytest.raises(ProtocolError, match="PutHeader"):
        decode_put_request(b"\x0a\x02\x0a\x7f")
