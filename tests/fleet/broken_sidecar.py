"""A sidecar with one rule of the protocol taken away, to see that tests of fleets notice. Arguments: the rule, then serve …"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import cache_l3.redis_store
from cache_l2.store import ArenaStore
from cache_l3.data_path import Got
from cache_l3.record_store import RecordName
from cache_l3.verification import check_arrival, read_header
from invalidation.validity import Validity
from kv_types.outcomes import RefuseReason
from kv_types.record import RecordHeader
from kv_types.selectors import EVERYTHING, Selector
from sidecar.l3.write_behind import WriteBehind
from stratakv.cli import main

_hiding = ArenaStore.hiding


def _hide_nothing(store: ArenaStore, *selectors: Selector) -> Iterator[int]:
    """R14: it publishes and acknowledges what it has not hidden."""
    yield 0


def _hide_everything(store: ArenaStore, *selectors: Selector) -> Iterator[int]:
    """Sparing: whatever is named, all goes."""
    return _hiding(store, EVERYTHING)


def _judge_nothing(*_: Any, **__: Any) -> RefuseReason:
    """I3: puts in flight are stored whatever came meanwhile."""
    return RefuseReason.NONE


def _fresh_for_ever(store: ArenaStore, freshness_ns: int) -> None:
    """I2: it vouches for its pages without a lease."""
    store._arena.publish_freshness(1 << 62)


def _hide_late(store: ArenaStore, *selectors: Selector) -> Iterator[int]:
    """R14: pages are hidden one record too late."""
    late: tuple[Selector, ...] = getattr(store, "_late", ())
    store._late = selectors  # type: ignore[attr-defined]
    return _hiding(store, *late) if late else iter((0,))


def _believe_sums(got: Got, name: RecordName, *, page_bytes: int) -> RecordHeader:
    """I5: what comes from L3 is served whatever its checksum says."""
    told = replace(got, checksum=read_header(got.header, name).checksum)
    return check_arrival(told, name, page_bytes=page_bytes)


def _share_nothing(*_: Any) -> None:
    """I9: what a node computes stays on it."""


RULES: Mapping[str, Callable[[], None]] = {
    "hides nothing": lambda: setattr(ArenaStore, "hiding", _hide_nothing),
    "hides one record late": lambda: setattr(ArenaStore, "hiding", _hide_late),
    "hides everything": lambda: setattr(ArenaStore, "hiding", _hide_everything),
    "judges nothing": lambda: setattr(Validity, "judge", _judge_nothing),
    "is fresh for ever": lambda: setattr(ArenaStore, "publish_freshness", _fresh_for_ever),
    "judges no loads": lambda: setattr(Validity, "judge_loaded", _judge_nothing),
    "judges loads before they come alone": lambda: setattr(ArenaStore, "_judge_loaded", _judge_nothing),
    "checks no sums": lambda: setattr(cache_l3.redis_store, "check_arrival", _believe_sums),
    "shares nothing": lambda: setattr(WriteBehind, "on_stored", _share_nothing),
}

if __name__ == "__main__":
    RULES[sys.argv.pop(1)]()
    main()
