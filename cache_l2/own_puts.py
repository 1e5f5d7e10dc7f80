"""Puts of the sidecar's own row: reserve, fill and commit in batches, as a client would over the attach connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cache_l2.namespaces import NamespaceRecord
from kv_types.ids import KEY_BYTES, PageKey, Stamp
from kv_types.limits import BATCH_PAGES_MAX
from kv_types.outcomes import PutOutcome, PutStatus, Refused, RefuseReason, put_outcome
from kv_types.validity import NO_INSTANCE, UNKNOWN_INSTANCE

if TYPE_CHECKING:
    from cache_l2.store import ArenaStore


def put_pages(
    store: ArenaStore,
    record: NamespaceRecord,
    packed: bytes,
    sources: Sequence[memoryview],
    *,
    start: int,
    stamp: Stamp | None,
) -> list[PutOutcome]:
    """Store the pages of `packed` keys from `start` on, one source each; one outcome each, in order."""
    if stamp is None:
        return [Refused(RefuseReason.STAMP_FOREIGN)] * len(sources)
    outcomes: list[PutOutcome] = []
    rests_on = UNKNOWN_INSTANCE if start else NO_INSTANCE
    pages = len(packed) // KEY_BYTES
    for begin in range(start, pages, BATCH_PAGES_MAX):
        end = min(begin + BATCH_PAGES_MAX, pages)
        parent = PageKey(packed[(begin - 1) * KEY_BYTES : begin * KEY_BYTES]) if begin else None
        keys = packed[begin * KEY_BYTES : end * KEY_BYTES]
        run = sources[begin - start : end - start]
        outcomes += _put_run(store, record, parent, keys, run, stamp, rests_on)
    return outcomes


def _put_run(
    store: ArenaStore,
    record: NamespaceRecord,
    parent: PageKey | None,
    keys: bytes,
    sources: Sequence[memoryview],
    stamp: Stamp,
    rests_on: int,
) -> list[PutOutcome]:
    rows = store.reserve(store.own_row, record, parent, keys)
    reserved = [
        (reservation, offset, source)
        for (status, _, reservation, offset), source in zip(rows, sources, strict=True)
        if status == PutStatus.STORED
    ]
    reservations = [reservation for reservation, _, _ in reserved]
    if reserved:
        try:
            store.reader.fill(
                [offset for _, offset, _ in reserved], [source for _, _, source in reserved],
                page_bytes=record.page_bytes, counter=store.own_counter(record),
            )  # fmt: skip
        except BaseException:
            store.abort(store.own_row, reservations)
            raise
    committed = iter(store.commit(store.own_row, reservations, stamp=stamp, rests_on=rests_on))
    return [
        put_outcome(*(next(committed) if status == PutStatus.STORED else (status, reason)))
        for status, reason, _, _ in rows
    ]
