"""The state machine of a put: every way in which a stream can be wrong, and nothing half-done after any of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from kv_types import limits
from kv_types.errors import (
    InvalidArgumentError,
    InvalidIdentifierError,
    LimitExceededError,
    UnknownNamespaceError,
)
from kv_types.ids import PageKey, Stamp, new_log_incarnation
from kv_types.outcomes import KNOWN, STORED, Refused, RefuseReason
from kv_wire.checksum import checksum
from kv_wire.gen import cache_pb2
from kv_wire.page_batches import page_batches
from kv_wire.transfer import Chunk
from sidecar.serving.put_stream import PutStream
from tests.support.fake_served_store import FakeServedStore

KEYS = [PageKey(bytes([number]) * 32) for number in range(1, 6)]
PAGES = [bytes([number]) * 100 for number in range(1, 6)]


def header(pages: int = 3, **fields: Any) -> cache_pb2.PutHeader:
    return cache_pb2.PutHeader(
        **{
            "namespace_id": b"n" * 32,
            "chain": cache_pb2.Chain(keys=b"".join(KEYS[:pages])),
            "stamp": cache_pb2.Stamp(incarnation=b"i" * 16, revision=3),
            **fields,
        }
    )


def chunk(page: int, begin: int = 0, end: int = 100, *, digest: int | None = None) -> Chunk:
    whole = checksum(PAGES[page]) if end >= 100 else 0
    return Chunk(page, begin, memoryview(PAGES[page])[begin:end], whole if digest is None else digest)


def test_pages_become_visible_one_by_one_with_their_terms() -> None:
    store = FakeServedStore()
    stamp = Stamp(new_log_incarnation(), 7)
    wire = cache_pb2.Stamp(incarnation=stamp.incarnation, revision=7)
    stream = PutStream(
        store,
        header(2, stamp=wire, ttl_s=9, producer=b"me", tags=[b"a"], computed_from_ms=1, computed_until_ms=2),
    )
    stream.take(chunk(0))
    assert set(store.pages) == {KEYS[0]}
    stream.take(chunk(1, 0, 60))
    assert set(store.pages) == {KEYS[0]}
    stream.take(chunk(1, 60))
    assert stream.finish() == [STORED, STORED]
    assert [store.pages[key] for key in KEYS[:2]] == PAGES[:2]
    terms = store.terms[KEYS[1]]
    assert (terms.stamp, terms.ttl_s, terms.producer, terms.tags) == (stamp, 9, b"me", (b"a",))
    assert (terms.computed_from_ms, terms.computed_until_ms) == (1, 2)
    assert store.written_bytes == 200


def test_a_put_without_a_stamp_is_refused_and_never_stamped_here() -> None:
    store = FakeServedStore()
    with pytest.raises(InvalidArgumentError, match="stamp"):
        PutStream(store, header(1, stamp=None))
    assert not store.pages
    assert not store.open_places


def test_known_pages_are_read_past() -> None:
    store = FakeServedStore(pages={KEYS[0]: b"kept"})
    stream = PutStream(store, header(2))
    stream.take(chunk(0))
    stream.take(chunk(1))
    assert stream.finish() == [KNOWN, STORED]
    assert store.pages[KEYS[0]] == b"kept"


def test_ancestors_are_named_but_not_sent() -> None:
    store = FakeServedStore(pages={KEYS[0]: PAGES[0], KEYS[1]: PAGES[1]})
    stream = PutStream(store, header(3, start=2))
    stream.take(chunk(2))
    assert stream.finish() == [STORED]


@pytest.mark.parametrize("where", ["refuse_reserve", "refuse_commit"])
def test_after_a_refused_page_all_that_follow_lack_their_parent(where: str) -> None:
    store = FakeServedStore(**{where: {KEYS[1]: RefuseReason.FULL}})  # type: ignore[arg-type]
    stream = PutStream(store, header(4))
    stream.take(chunk(0))
    stream.take(chunk(1))
    assert stream.refused
    orphan = Refused(RefuseReason.PARENT_ABSENT)
    assert stream.finish() == [STORED, Refused(RefuseReason.FULL), orphan, orphan]
    assert not store.open_places


def test_a_page_that_fails_its_checksum_is_refused_as_corrupt() -> None:
    store = FakeServedStore()
    stream = PutStream(store, header(2))
    stream.take(chunk(0, digest=12345))
    assert stream.finish()[0] == Refused(RefuseReason.CORRUPT)
    assert not store.pages
    assert store.aborted == [KEYS[0]]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (chunk(0, 0, 50), "expected page 0 from byte 50"),
        (chunk(0, 40), "expected page 0 from byte 50"),
        (chunk(0, 60), "expected page 0 from byte 50"),
        (chunk(1), "expected page 0 from byte 50"),
        (Chunk(0, 50, memoryview(b"")), "empty chunk"),
        (Chunk(0, 50, memoryview(bytes(51))), "a chunk brings 51 more"),
        (Chunk(0, 50, memoryview(bytes(20)), 7), "a checksum came at byte 70"),
        (Chunk(2**32 - 1, 2**32 - 1, memoryview(b"x")), "expected page 0 from byte 50"),
        (Chunk(0, 50, memoryview(bytes(limits.GRPC_CHUNK_BYTES + 1))), "at most 1048576 bytes"),
    ],
)
def test_wrong_chunks_are_named_and_leave_nothing(wrong: Chunk, says: str) -> None:
    store = FakeServedStore()
    stream = PutStream(store, header(2))
    stream.take(chunk(0, 0, 50))
    with pytest.raises(InvalidArgumentError, match=says):
        stream.take(wrong)
    stream.close()
    assert not store.pages
    assert not store.open_places
    assert store.aborted == [KEYS[0]]


def test_a_chunk_after_the_last_page_is_named() -> None:
    store = FakeServedStore()
    stream = PutStream(store, header(1))
    stream.take(chunk(0))
    with pytest.raises(InvalidArgumentError, match="after the last page, 0, was complete"):
        stream.take(chunk(0))


@pytest.mark.parametrize("sent", [[], [chunk(0)], [chunk(0), chunk(1, 0, 99)]])
def test_a_cut_stream_is_named_and_its_open_page_is_given_back(sent: list[Chunk]) -> None:
    store = FakeServedStore()
    stream = PutStream(store, header(2))
    for part in sent:
        stream.take(part)
    with pytest.raises(InvalidArgumentError, match=r"ended in page \d at byte \d+ of 100"):
        stream.finish()
    stream.close()
    stream.close()
    assert not store.open_places
    assert set(store.pages) == set(KEYS[: sum(part.checksum != 0 for part in sent)])


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda: header(namespace_id=b"short"), InvalidIdentifierError, "32 bytes"),
        (lambda: header(namespace_id=b"m" * 32), UnknownNamespaceError, "registered"),
        (lambda: header(chain=cache_pb2.Chain(keys=b"x" * 33)), InvalidArgumentError, "33 bytes"),
        (lambda: header(chain=cache_pb2.Chain()), InvalidArgumentError, "0 bytes"),
        (lambda: header(3, start=3), InvalidArgumentError, "start=3"),
        (lambda: header(ttl_s=2**31), LimitExceededError, "ttl_s"),
        (lambda: header(producer=b"p" * 65), LimitExceededError, "producer"),
        (lambda: header(tags=[b"t"] * 9), LimitExceededError, "8 tags"),
        (lambda: header(tags=[b""]), LimitExceededError, "1 to 64"),
        (lambda: header(computed_from_ms=2, computed_until_ms=1), InvalidArgumentError, "computed_from_ms"),
        (lambda: header(stamp=cache_pb2.Stamp(incarnation=b"x")), InvalidIdentifierError, "incarnation"),
    ],
)
def test_bad_headers_are_named(
    make: Callable[[], cache_pb2.PutHeader], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        PutStream(FakeServedStore(), make())


def test_any_split_of_any_put_stores_the_same_bytes() -> None:
    seed = 4711
    rng = random.Random(seed)
    for _ in range(300):
        store = FakeServedStore()
        stream = PutStream(store, header(5))
        size = rng.randint(1, 120)
        for batch in page_batches(
            [memoryview(page) for page in PAGES], start=0, page_bytes=100, chunk_bytes=size
        ):
            for part in batch:
                stream.take(part)
        assert stream.finish() == [STORED] * 5, f"seed {seed}, chunks of {size}"
        assert [store.pages[key] for key in KEYS] == PAGES
        assert not store.open_places
