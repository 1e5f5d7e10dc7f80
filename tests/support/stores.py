"""Small arena stores for tests that own one in their own process."""

from __future__ import annotations

from typing import Any

from cache_l2.store import ArenaConfig, ArenaStore, NamespaceRecord
from invalidation.local_log import LocalLog
from kv_types.clock import BoottimeClock, ManualClock
from kv_types.namespace import Namespace
from tests.support.followed_store import FollowedStore
from tests.support.pages import page_bytes_of

MIB = 1 << 20
SECOND_NS = 1_000_000_000


def make_store(
    clock: ManualClock | BoottimeClock | None = None,
    *,
    lease_s: float = 600.0,
    log: LocalLog | None = None,
    **config: Any,
) -> FollowedStore:
    defaults: dict[str, Any] = {
        "arena_bytes": 4 * MIB, "segment_bytes": MIB // 8, "client_rows": 4, "leases_per_client": 1024,
        "ring_records": 64, "prefault": False,
    }  # fmt: skip
    return FollowedStore(ArenaConfig(**{**defaults, **config}), clock=clock, lease_s=lease_s, log=log)


def add(store: ArenaStore, namespace: Namespace) -> NamespaceRecord:
    return store.register(namespace.canonical, page_bytes_of(namespace))
