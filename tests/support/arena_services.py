"""Arenas behind the gRPC service as a sidecar without L3 has them."""

from __future__ import annotations

from cache_l2.store import ArenaStore
from kv_types.clock import BoottimeClock
from sidecar.l3.residency import ResidentOnly
from sidecar.serving.arena_service import ArenaService
from tests.support.directory import EverythingListed


def service_of(store: ArenaStore) -> ArenaService:
    """Pages of this node alone, under namespaces that are all listed."""
    return ArenaService(
        store, directory=EverythingListed(), loads=ResidentOnly(store), clock=BoottimeClock(), prefetch_s=1.0
    )
