"""A sidecar with one rule of the protocol taken away, to see that tests of fleets notice. Arguments: the rule, then serve …"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cache_l2.store import ArenaStore
from invalidation.validity import Validity
from kv_types.outcomes import RefuseReason
from kv_types.selectors import EVERYTHING, Selector
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


RULES: Mapping[str, Callable[[], None]] = {
    "hides nothing": lambda: setattr(ArenaStore, "hiding", _hide_nothing),
    "hides one record late": lambda: setattr(ArenaStore, "hiding", _hide_late),
    "hides everything": lambda: setattr(ArenaStore, "hiding", _hide_everything),
    "judges nothing": lambda: setattr(Validity, "judge", _judge_nothing),
    "is fresh for ever": lambda: setattr(ArenaStore, "publish_freshness", _fresh_for_ever),
}

if __name__ == "__main__":
    RULES[sys.argv.pop(1)]()
    main()
