"""The arena as the gRPC service sees it: ArenaStore's own row behind the `ServedStore` protocol."""

from __future__ import annotations

from collections.abc import Sequence

from cache_l2._native import Lease
from cache_l2.store import ArenaStore
from kv_types.errors import LogUnreachableError
from kv_types.ids import LifeId, NamespaceId, PageKey, Stamp
from kv_types.outcomes import (
    Known,
    LookUpOutcome,
    MissReason,
    PutOutcome,
    PutStatus,
    Refused,
    RefuseReason,
    put_outcome,
)
from kv_types.validity import NO_INSTANCE, UNKNOWN_INSTANCE
from sidecar.log.directory import ListsNamespaces
from sidecar.serving.served_store import Place, PutTerms, ServedNamespace


class ArenaLease:
    """A native lease as the service uses it. `instance` is told as its life tells it."""

    def __init__(self, lease: Lease, instance: int) -> None:
        self._lease = lease
        self.views: Sequence[memoryview] = list(lease)
        self.ended_by = MissReason(lease.reason)
        self.instance = instance

    def release(self) -> None:
        """Let go of the pages; the views end with it."""
        self.views = ()
        self._lease.release()


class ArenaService:
    """Puts and gets of remote clients, in the sidecar's own row of the clients' table.

    Instances are numbers that come again in each life, and a remote client may not notice that it talks to the next one.
    So they are told under a mask of this life: what an earlier one told names no page here.
    """

    def __init__(self, store: ArenaStore, *, directory: ListsNamespaces) -> None:
        self._store = store
        self._directory = directory
        self._mask = int.from_bytes(store.life[:8], "little")

    @property
    def life(self) -> LifeId:
        """This life of the sidecar."""
        return self._store.life

    def stamp(self) -> Stamp:
        """Return the position to load before any reuse."""
        return self._store.stamp()

    def register_namespace(self, canonical: bytes, page_bytes: int) -> ServedNamespace:
        """Make a namespace known; see ArenaStore.register."""
        record = self._store.register(canonical, page_bytes)
        return ServedNamespace(record.id, record.page_bytes)

    async def list_namespace(self, namespace: NamespaceId) -> bool:
        """Have a namespace entered in the fleet's directory, if it is not yet."""
        try:
            await self._directory.list_namespace(self._store.namespace(namespace))
        except LogUnreachableError:
            return False
        return True

    def served_namespace(self, namespace: NamespaceId) -> ServedNamespace:
        """Return a registered namespace; raises UnknownNamespaceError."""
        record = self._store.namespace(namespace)
        return ServedNamespace(record.id, record.page_bytes)

    def look_up_chain(self, namespace: NamespaceId, keys: bytes) -> LookUpOutcome:
        """Tell how much of a chain could be served now."""
        return self._store.look_up(namespace, keys)

    def lease_chain(self, namespace: NamespaceId, keys: bytes, *, start: int) -> ArenaLease:
        """Pin what can be served of keys[start:]."""
        lease = self._store.lease(namespace, keys, start=start)
        return ArenaLease(lease, self._masked(lease.instance))

    def reserve_page(
        self, namespace: NamespaceId, *, parent: PageKey | None, key: PageKey, ttl_s: int | None
    ) -> Place | Known | Refused:
        """Reserve a place for one page."""
        record = self._store.namespace(namespace)
        ((status, reason, reservation, offset),) = self._store.reserve(
            self._store.own_row, record, parent, key, ttl_s
        )
        if status == PutStatus.KNOWN:
            return Known()
        if status == PutStatus.REFUSED:
            return Refused(RefuseReason(reason))
        view = memoryview(self._store.reader.slot(offset, record.page_bytes))
        return Place(reservation, view.cast("B"))

    def commit_page(self, place: Place, terms: PutTerms) -> PutOutcome:
        """Make a filled place visible."""
        ((status, reason),) = self._store.commit(
            self._store.own_row,
            [place.reservation],
            stamp=terms.stamp,
            producer=terms.producer,
            tags=terms.tags,
            computed_from_ms=terms.computed_from_ms,
            computed_until_ms=terms.computed_until_ms,
            rests_on=self._masked(terms.rests_on),
        )
        return put_outcome(status, reason)

    def _masked(self, instance: int) -> int:
        """Turn an instance into what is told of it, or what was told into the instance."""
        if instance in (NO_INSTANCE, UNKNOWN_INSTANCE):
            return instance
        masked = instance ^ self._mask
        return UNKNOWN_INSTANCE if masked == NO_INSTANCE else masked

    def abort_page(self, place: Place) -> None:
        """Give a place back."""
        self._store.abort(self._store.own_row, [place.reservation])

    def count_written(self, namespace: NamespaceId, written_bytes: int) -> None:
        """Account payload bytes of a put: the reader's own counters see only copies that it makes itself."""
        self._store.count_written(namespace, written_bytes)
