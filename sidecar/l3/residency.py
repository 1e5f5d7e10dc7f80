"""How much of the rows that are asked for the arena has, when a load begins and when it is answered."""

from __future__ import annotations

from collections.abc import Sequence

from cache_l2.store import ArenaStore
from kv_types.errors import InvalidArgumentError, LimitExceededError, UnknownNamespaceError
from kv_types.ids import KEY_BYTES
from kv_types.limits import CHAIN_PAGES_MAX, LOOK_UP_ROWS_MAX
from kv_types.loading import ComputeCost
from kv_types.outcomes import MissReason
from sidecar.l3.loads import Load, LoadRow, RowLoaded
from sidecar.l3.plan import AskedRow

_NOTHING_HITS = (MissReason.STALE, MissReason.CLOSED)
"""Reasons for which no page is served whatever is there."""


def check_rows(rows: Sequence[LoadRow]) -> None:
    """Raise InvalidArgumentError or LimitExceededError for rows that nobody may ask for."""
    if not rows:
        raise InvalidArgumentError("a load has one row or more; got none")
    if len(rows) > LOOK_UP_ROWS_MAX:
        raise LimitExceededError(f"a load has at most {LOOK_UP_ROWS_MAX} rows; got {len(rows)}")
    for row in rows:
        if not row.keys or len(row.keys) % KEY_BYTES:
            raise InvalidArgumentError(
                f"a row is one or more keys of {KEY_BYTES} bytes each; got {len(row.keys)}"
            )
    pages = sum(len(row.keys) for row in rows) // KEY_BYTES
    if pages > CHAIN_PAGES_MAX:
        raise LimitExceededError(f"{pages} pages in one load; at most {CHAIN_PAGES_MAX} are allowed")


def resident(store: ArenaStore, row: LoadRow) -> tuple[int, MissReason]:
    """Pages of a row that a look-up would find now, and why it would end there."""
    store.settle_posts()
    try:
        number = store.namespace(row.namespace).number
    except UnknownNamespaceError:
        return 0, MissReason.UNKNOWN_NAMESPACE
    if row.parent is None:
        pages, reason = store.reader.match(row.keys, namespace=number)
    else:
        pages, reason = store.reader.match(row.parent + row.keys, namespace=number, start=1)
    return pages, MissReason(reason)


def asked_row(store: ArenaStore, row: LoadRow) -> AskedRow | MissReason:
    """Look a row up; a reason when nothing at all is served now."""
    pages, reason = resident(store, row)
    if reason in _NOTHING_HITS:
        return reason
    ended_by, page_bytes = MissReason.NONE, 1
    if reason is MissReason.UNKNOWN_NAMESPACE:
        ended_by = reason
    else:
        page_bytes = store.namespace(row.namespace).page_bytes
        if not pages and row.parent is not None and store.chain(row.parent, pages_max=1) == []:
            ended_by = MissReason.ABSENT  # nothing could be published on it
    return AskedRow(
        namespace=row.namespace, parent=row.parent, keys=row.keys, page_bytes=page_bytes, resident=pages,
        ended_by=ended_by,
    )  # fmt: skip


def answers(
    store: ArenaStore, rows: Sequence[LoadRow], planned: Sequence[RowLoaded], *, is_group: bool
) -> list[RowLoaded]:
    """Tell of each row what is there now: what was evicted meanwhile is not told, what others stored is."""
    told = [_answer(store, row, loaded) for row, loaded in zip(rows, planned, strict=True)]
    if not is_group:
        return told
    shortest = min(told, key=lambda one: one.pages)
    return [
        RowLoaded(shortest.pages, min(one.from_l3, shortest.pages), one.reason or shortest.reason)
        if one.pages > shortest.pages or one.reason
        else one
        for one in told
    ]


class ResidentOnly:
    """The Loads of a sidecar without L3: nobody need ask, and who does is told what is here."""

    is_available = False

    def __init__(self, store: ArenaStore) -> None:
        self._store = store

    def begin(
        self,
        rows: Sequence[LoadRow],
        *,
        deadline_ns: int,
        group: bool = False,
        compute: ComputeCost | None = None,
    ) -> Load:
        """See Loads; it is answered at once."""
        del deadline_ns, compute
        check_rows(rows)
        nothing = [RowLoaded(0, 0, MissReason.ABSENT)] * len(rows)
        return _Answered(answers(self._store, rows, nothing, is_group=group))


class _Answered:
    """A load that is over."""

    decision = None

    def __init__(self, rows: list[RowLoaded]) -> None:
        self._rows = rows

    async def wait(self) -> list[RowLoaded]:
        return self._rows

    def so_far(self) -> list[RowLoaded]:
        return self._rows

    def cancel(self) -> None:
        return


def _answer(store: ArenaStore, row: LoadRow, planned: RowLoaded) -> RowLoaded:
    if planned.reason in _NOTHING_HITS:
        return planned
    pages, reason = resident(store, row)
    if reason is MissReason.ABSENT and pages >= planned.pages and planned.reason is not MissReason.NONE:
        reason = planned.reason
    # Where nothing came from L3, or what came is gone again, the first page of L3 is that behind the last one.
    from_l3 = min(planned.from_l3, pages) if planned.from_l3 < planned.pages else pages
    return RowLoaded(pages, from_l3, reason)
