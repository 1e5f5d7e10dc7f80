"""Which codec a page is stored with, and what becomes of records that its namespace does not allow."""

from __future__ import annotations

import numpy as np
import pytest

from cache_l3.lossy_tally import LossyTally
from cache_l3.page_codecs import KeptExact, PageCodecs
from cache_l3.record_store import LoadedRecord
from kv_types.errors import CorruptRecordError
from kv_types.limits import L3_ERROR_LIMIT_DEFAULT
from kv_types.namespace import KvDtype, Namespace, StoredAs
from kv_types.outcomes import STORED, MissReason
from kv_types.page_layout import PageLayout
from kv_types.record import Codec
from kv_types.scale_groups import error_bound
from tests.cache_l3.test_lossy import as_bytes, as_numbers
from tests.kv_types.samples import geometry, namespace
from tests.support.record_stores import KEYS, opened, until
from tests.support.records import describe, name, place, within
from tests.support.redis_servers import RedisServer

LOSSY = {
    stored_as: namespace(stored_as=stored_as, kv_dtype=KvDtype.BF16, geometry=geometry(head_dim=64))
    for stored_as in StoredAs
}
PLAIN = namespace(kv_dtype=KvDtype.BF16, geometry=geometry(head_dim=64))
SIZE = PageLayout.of(PLAIN).page_bytes
CODEC_OF = {StoredAs.FP8_E4M3: Codec.FP8_E4M3, StoredAs.INT8: Codec.INT8}


def page() -> memoryview:
    values = np.random.default_rng(0).standard_normal(SIZE // 2).astype(np.float32)
    return memoryview(as_bytes(values, KvDtype.BF16))


def codecs(lossless: Codec = Codec.PLANES, *, error_limit: float = L3_ERROR_LIMIT_DEFAULT) -> PageCodecs:
    return PageCodecs(lossless, error_limit=error_limit)


def back(codec: Codec, data: memoryview, of: Namespace | None) -> bytes:
    into = memoryview(bytearray(data if codec is Codec.RAW else b"\xee" * SIZE))
    codecs().decode(codec, data, into, of)
    return bytes(into)


@pytest.mark.parametrize("lossless", [Codec.RAW, Codec.PLANES], ids=lambda codec: codec.name)
@pytest.mark.parametrize("of", [PLAIN, None], ids=["known", "unknown"])
def test_without_a_word_pages_are_kept_bit_for_bit(of: Namespace | None, lossless: Codec) -> None:
    packed = codecs(lossless).encode(page(), of)
    assert (packed.codec, packed.error, packed.kept) == (lossless, None, None)
    assert back(packed.codec, packed.data, of) == page()


@pytest.mark.parametrize("lossless", [Codec.RAW, Codec.PLANES], ids=lambda codec: codec.name)
@pytest.mark.parametrize("stored_as", StoredAs)
def test_a_namespace_that_says_so_is_stored_lossily_whatever_the_setting(
    stored_as: StoredAs, lossless: Codec
) -> None:
    of = LOSSY[stored_as]
    packed = codecs(lossless).encode(page(), of)
    assert (packed.codec, packed.kept) == (CODEC_OF[stored_as], None)
    assert packed.error is not None
    assert 0 < packed.error.mean <= packed.error.worst < 0.03
    assert len(packed.data) < SIZE * 0.55
    after = as_numbers(back(packed.codec, packed.data, of), KvDtype.BF16)
    before = as_numbers(page(), KvDtype.BF16)
    assert np.abs(after - before).max() <= error_bound(stored_as, KvDtype.BF16) * np.abs(before).max()


@pytest.mark.parametrize("stored_as", StoredAs)
@pytest.mark.parametrize("lossless", [Codec.RAW, Codec.PLANES], ids=lambda codec: codec.name)
def test_a_page_with_a_nan_or_over_the_limit_is_kept_bit_for_bit(
    stored_as: StoredAs, lossless: Codec
) -> None:
    of = LOSSY[stored_as]
    broken = bytearray(page())
    broken[10:12] = b"\xc0\x7f"
    packed = codecs(lossless).encode(memoryview(broken), of)
    assert (packed.codec, packed.kept, packed.error) == (lossless, KeptExact.NOT_FINITE, None)
    assert back(packed.codec, packed.data, of) == broken
    packed = codecs(lossless, error_limit=0.001).encode(page(), of)
    assert (packed.codec, packed.kept) == (lossless, KeptExact.ERROR_LIMIT)
    assert packed.error is not None
    assert packed.error.worst > 0.001
    assert back(packed.codec, packed.data, of) == page()


def test_outliers_that_int8_drowns_in_trip_the_default_limit_and_fp8_bears_them() -> None:
    """One value of a token that is hundreds of times the others leaves int8 few steps for them."""
    values = np.random.default_rng(0).standard_normal(SIZE // 2).astype(np.float32)
    values[::64] = 300.0
    drowned = memoryview(as_bytes(values, KvDtype.BF16))
    told = codecs().encode(drowned, LOSSY[StoredAs.INT8])
    assert told.kept is KeptExact.ERROR_LIMIT
    assert told.error is not None
    assert told.error.worst > 0.1 > told.error.mean
    assert codecs().encode(drowned, LOSSY[StoredAs.FP8_E4M3]).kept is None


def test_a_page_of_few_tokens_whose_scales_take_more_than_they_save_is_kept() -> None:
    of = namespace(
        stored_as=StoredAs.INT8, page_tokens=1, kv_dtype=KvDtype.BF16, geometry=geometry(head_dim=1)
    )
    size = PageLayout.of(of).page_bytes
    packed = codecs(Codec.RAW).encode(memoryview(as_bytes(np.ones(size // 2), KvDtype.BF16)), of)
    assert (packed.codec, packed.kept) == (Codec.RAW, KeptExact.NOT_SMALLER)


@pytest.mark.parametrize("of", [PLAIN, LOSSY[StoredAs.INT8], None], ids=["plain", "other", "unknown"])
def test_a_lossy_record_of_a_namespace_that_does_not_say_so_is_corrupt(of: Namespace | None) -> None:
    packed = codecs().encode(page(), LOSSY[StoredAs.FP8_E4M3])
    assert packed.codec is Codec.FP8_E4M3
    with pytest.raises(CorruptRecordError):
        back(packed.codec, packed.data, of)


@pytest.mark.asyncio
@pytest.mark.parametrize("stored_as", StoredAs)
async def test_a_store_keeps_what_the_namespace_says(shared_redis: RedisServer, stored_as: StoredAs) -> None:
    of, tally = LOSSY[stored_as], LossyTally()
    known: dict[bytes, Namespace] = {of.id: of}
    about = describe(1, namespace=of.id, size=SIZE)
    async with opened(shared_redis.url, namespace_of=known.get, lossy=tally) as store:
        assert await store.store(about, page(), ttl_s=60, deadline_ns=within()) is STORED
        where = place(SIZE)
        loaded = await store.load(name(1, namespace=of.id), where, deadline_ns=within())
        assert isinstance(loaded, LoadedRecord)
        assert loaded.header.codec is CODEC_OF[stored_as]
        assert loaded.header.stored_bytes < SIZE * 0.55
        before, after = as_numbers(page(), KvDtype.BF16), as_numbers(where, KvDtype.BF16)
        assert 0 < np.abs(after - before).max() <= error_bound(stored_as, KvDtype.BF16) * np.abs(before).max()
        assert tally.read()[of.id].pages == {"lossy": 1}
        known.clear()
        forgotten = await store.load(name(1, namespace=of.id), where, deadline_ns=within())
        assert forgotten is MissReason.ABORTED, (
            "nobody knows how to read it, which says nothing of the record"
        )
        known[of.id] = PLAIN
        assert await store.load(name(1, namespace=of.id), where, deadline_ns=within()) is MissReason.CORRUPT
        await until(lambda: shared_redis.client.get(KEYS.key(name(1, namespace=of.id))) is None, what="it")
