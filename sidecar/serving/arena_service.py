"""The arena as the gRPC service sees it: ArenaStore's own row behind the `ServedStore` protocol."""

from __future__ import annotations

from collections.abc import Sequence

from cache_l2._native import Lease
from cache_l2.store import ArenaStore
from kv_types.clock import Clock
from kv_types.errors import LogUnreachableError
from kv_types.ids import KEY_BYTES, LifeId, NamespaceId, PageKey, Stamp
from kv_types.loading import ComputeCost, LoadDecision
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
from kv_types.page_keys import key_digests
from kv_types.validity import NO_INSTANCE, UNKNOWN_INSTANCE
from sidecar.l3.loads import LoadRow, Loads, RowLoaded
from sidecar.log.directory import ListsNamespaces
from sidecar.recording import Recorder
from sidecar.serving.served_store import Place, PutTerms, ServedNamespace


class ArenaLease:
    """A native lease as the service uses it. `instance` is told as its life tells it."""

    def __init__(self, lease: Lease, instance: int, pages_l3: int, load: LoadDecision | None) -> None:
        self._lease = lease
        self.load = load
        self.pages_l3 = pages_l3
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

    def __init__(
        self,
        store: ArenaStore,
        *,
        directory: ListsNamespaces,
        loads: Loads,
        clock: Clock,
        prefetch_s: float,
        recorder: Recorder | None = None,
    ) -> None:
        """`loads` brings what the arena lacks; a prefetch may take `prefetch_s` seconds. `recorder` hears of look-ups."""
        self._store = store
        self._loads = loads
        self._clock = clock
        self._prefetch_s = prefetch_s
        self._recorder = recorder
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

    async def lease_chain(
        self,
        namespace: NamespaceId,
        keys: bytes,
        *,
        start: int,
        wait_s: float,
        compute: ComputeCost | None = None,
    ) -> ArenaLease:
        """Pin what can be served of keys[start:], after a load of what the arena lacks."""
        if self._recorder is not None and self._recorder.recordings:
            self._recorder.looked(self._store.namespace(namespace).namespace.page_tokens, key_digests(keys))
        if not self._loads.is_available or wait_s <= 0:
            return self._leased(self._store.lease(namespace, keys, start=start))
        self._store.settle_posts()
        record = self._store.namespace(namespace)
        counter, reader = self._store.own_counter(record), self._store.reader
        here = reader.lease(counter, keys, namespace=record.number, start=start, may_load=True)
        if here.reason != MissReason.ABSENT:
            return self._leased(here)
        begin = start + here.pages
        try:  # it is begun, and is counted once it is over; until then what is here stays
            if start and not here.pages:
                # what the caller has may be gone here, and a page can stand on its parent only
                begin, _ = reader.match(keys[: start * KEY_BYTES], namespace=record.number)
            loaded, decision = await self._load(namespace, keys, begin, wait_s, compute)
        except BaseException:
            reader.complete(counter, requested=len(keys) // KEY_BYTES, l1=start, reason=MissReason.ABORTED)
            raise
        else:
            from_l3 = None if loaded.from_l3 == loaded.pages else begin + loaded.from_l3
            lease = reader.complete_lease(
                counter, keys, namespace=record.number, start=start, l3_from=from_l3, reason=loaded.reason
            )
        finally:
            here.release()
        pages_l3 = 0 if from_l3 is None else max(0, start + lease.pages - max(start, from_l3))
        return self._leased(lease, pages_l3, decision)

    async def _load(
        self, namespace: NamespaceId, keys: bytes, begin: int, wait_s: float, compute: ComputeCost | None
    ) -> tuple[RowLoaded, LoadDecision | None]:
        load = self._loads.begin(
            [_row(namespace, keys, begin)],
            deadline_ns=self._after_ns(wait_s),
            compute=None if compute is None else compute.after(begin),
        )
        (loaded,) = await load.wait()
        return loaded, load.decision

    def _leased(self, lease: Lease, pages_l3: int = 0, load: LoadDecision | None = None) -> ArenaLease:
        return ArenaLease(lease, self._masked(lease.instance), pages_l3, load)

    def prefetch(
        self, namespace: NamespaceId, rows: Sequence[bytes], *, compute: ComputeCost | None = None
    ) -> list[int]:
        """Begin to load what the arena lacks of chains; returns the pages of each that may come."""
        if not self._loads.is_available:
            return [0] * len(rows)
        wanted = [_row(namespace, keys, 0) for keys in rows]
        load = self._loads.begin(wanted, deadline_ns=self._after_ns(self._prefetch_s), compute=compute)
        return [row.pending for row in load.so_far()]

    def _after_ns(self, seconds: float) -> int:
        return self._clock.now_ns() + int(seconds * 1e9)

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


def _row(namespace: NamespaceId, keys: bytes, begin: int) -> LoadRow:
    parent = PageKey(keys[(begin - 1) * KEY_BYTES : begin * KEY_BYTES]) if begin else None
    return LoadRow(namespace, parent, keys[begin * KEY_BYTES :])
