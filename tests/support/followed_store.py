"""An ArenaStore whose log is driven by the test, synchronously: real records, real validity, real order of R14."""

from __future__ import annotations

import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from cache_l2.store import ArenaConfig, ArenaStore
from invalidation.local_log import LocalLog
from invalidation.records import LogEntry
from invalidation.validity import Validity
from kv_types.clock import BoottimeClock, Clock
from kv_types.events import LogStarted, Selected, WeightsAnnounced
from kv_types.ids import NamespaceId, Stamp
from kv_types.page_keys import Keys, pack_keys, unpack_keys
from kv_types.selectors import EVERYTHING, Selector
from tests.support.turns import finish

SECOND_NS = 1_000_000_000
_FAR_NS = 1 << 62

_Answer = TypeVar("_Answer")


def at_once(call: Coroutine[Any, Any, _Answer]) -> _Answer:
    """The answer of a call that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as done:
        answer: _Answer = done.value
        return answer
    raise AssertionError("the call waits for something")


class FollowedStore(ArenaStore):
    """Follows a LocalLog of its own: joined at once, fresh for `lease_s` from each tick, applied when told to hide."""

    def __init__(
        self,
        config: ArenaConfig,
        *,
        clock: Clock | None = None,
        lease_s: float = 600.0,
        log: LocalLog | None = None,
    ) -> None:
        """`log`: one that other stores follow too. Its wall clock goes with its clock."""
        self.validity = Validity(skew_ms=int(config.skew_bound_s * 1000))
        self.clock = clock or BoottimeClock()
        self.log = log or LocalLog(clock=self.clock)
        self._lease_ns = int(lease_s * SECOND_NS)
        super().__init__(
            config, clock=self.clock, judge=self.validity, wall_ms=lambda: self.clock.now_ns() // 1_000_000
        )
        self.join()
        self.tick()

    def join(self) -> None:
        """Begin with the log as it is: everything from before is void."""
        boot = at_once(self.log.boot(deadline_ns=_FAR_NS))
        finish(self.validity.restarting(boot))
        sum(self.hiding(EVERYTHING))
        self.publish(LogStarted(), boot.tip)

    def begin_anew(self) -> None:
        """Another incarnation of the log, joined at once."""
        at_once(self.log.fork(self.stamp().incarnation, deadline_ns=_FAR_NS))
        self.join()

    def tick(self) -> int:
        hidden = super().tick()
        if not self.is_draining:
            self.publish_freshness(self.clock.now_ns() + self._lease_ns)
        return hidden

    def append(self, *events: Selected | WeightsAnnounced) -> int:
        """Append records and apply them one by one; returns the pages hidden."""
        for event in events:
            at_once(self.log.append(LogEntry(event=event), request_id=os.urandom(16), deadline_ns=_FAR_NS))
        return self.catch_up()

    def catch_up(self) -> int:
        """Apply the records that were appended meanwhile; returns the pages hidden."""
        position = self.validity.position
        assert position is not None
        tip, records = at_once(self.log.read(position.revision, count=1000, deadline_ns=_FAR_NS))
        assert tip.incarnation == position.incarnation
        hidden = 0
        for record in records:
            self.validity.apply(record)
            if isinstance(record.event, Selected):
                hidden += sum(self.hiding(record.event.selector))
            self.publish(record.event, Stamp(tip.incarnation, record.revision))
        return hidden

    def hide(self, *selectors: Selector) -> int:
        """Invalidate what each selects, a record each; returns the pages hidden."""
        return self.append(*(Selected(selector) for selector in selectors))

    def hide_pages(self, keys: Keys) -> int:
        return self.hide(*(Selector(key=key) for key in unpack_keys(pack_keys(keys))))

    def hide_namespace(self, namespace: NamespaceId) -> int:
        return self.hide(Selector(namespace=namespace))

    def hide_all(self) -> int:
        return self.hide(EVERYTHING)
