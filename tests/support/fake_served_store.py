"""A ServedStore over dictionaries, with injected refusals, and a record of every reservation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_types.errors import UnknownNamespaceError
from kv_types.ids import LifeId, NamespaceId, PageKey, Stamp, new_life_id, new_log_incarnation
from kv_types.loading import ComputeCost, LoadDecision
from kv_types.outcomes import (
    KNOWN,
    STORED,
    Hit,
    Known,
    LookUpOutcome,
    Miss,
    MissReason,
    PutOutcome,
    Refused,
    RefuseReason,
    Tier,
)
from sidecar.serving.served_store import Place, PutTerms, ServedNamespace


@dataclass(slots=True)
class FakeLease:
    views: list[memoryview]
    ended_by: MissReason
    instance: int = 0
    pages_l3: int = 0
    load: LoadDecision | None = None
    released: bool = False

    def release(self) -> None:
        self.released = True


@dataclass(slots=True)
class FakeServedStore:
    """`refuse_reserve` and `refuse_commit` name pages by key and the reason that they get."""

    page_bytes: int = 100
    namespace: NamespaceId = field(default_factory=lambda: NamespaceId(b"n" * 32))
    life: LifeId = field(default_factory=new_life_id)
    position: Stamp | None = field(default_factory=lambda: Stamp(new_log_incarnation(), 3))
    refuse_reserve: dict[PageKey, RefuseReason] = field(default_factory=dict)
    refuse_commit: dict[PageKey, RefuseReason] = field(default_factory=dict)
    pages: dict[PageKey, bytes] = field(default_factory=dict)
    terms: dict[PageKey, PutTerms] = field(default_factory=dict)
    open_places: dict[int, PageKey] = field(default_factory=dict)
    instances: dict[PageKey, int] = field(default_factory=dict)
    leases: list[FakeLease] = field(default_factory=list)
    aborted: list[PageKey] = field(default_factory=list)
    lists: bool = True
    asked_to_list: list[NamespaceId] = field(default_factory=list)
    written_bytes: int = 0
    waits_s: list[float] = field(default_factory=list)
    costs: list[ComputeCost | None] = field(default_factory=list)

    def stamp(self) -> Stamp | None:
        return self.position

    def register_namespace(self, canonical: bytes, page_bytes: int) -> ServedNamespace:
        del canonical
        self.page_bytes = page_bytes
        return ServedNamespace(self.namespace, page_bytes)

    async def list_namespace(self, namespace: NamespaceId) -> bool:
        self.asked_to_list.append(namespace)
        return self.lists

    def served_namespace(self, namespace: NamespaceId) -> ServedNamespace:
        if namespace != self.namespace:
            raise UnknownNamespaceError("not registered")
        return ServedNamespace(namespace, self.page_bytes)

    def look_up_chain(self, namespace: NamespaceId, keys: bytes) -> LookUpOutcome:
        del namespace
        found = len(self._prefix(keys))
        return Hit(found, Tier.L2) if found else Miss(MissReason.ABSENT)

    async def lease_chain(
        self,
        namespace: NamespaceId,
        keys: bytes,
        *,
        start: int,
        wait_s: float,
        compute: ComputeCost | None = None,
    ) -> FakeLease:
        del namespace
        self.costs.append(compute)
        self.waits_s.append(wait_s)
        found = self._prefix(keys)[start:]
        whole = start + len(found) == len(keys) // 32
        views = [memoryview(self.pages[key]) for key in found]
        instance = self.instances.get(found[-1], 0) if found else 0
        lease = FakeLease(views, MissReason.NONE if whole else MissReason.ABSENT, instance)
        self.leases.append(lease)
        return lease

    def prefetch(
        self, namespace: NamespaceId, rows: Sequence[bytes], *, compute: ComputeCost | None = None
    ) -> list[int]:
        del namespace
        self.costs.append(compute)
        return [len(keys) // 32 - len(self._prefix(keys)) for keys in rows]

    def reserve_page(
        self, namespace: NamespaceId, *, parent: PageKey | None, key: PageKey, ttl_s: int | None
    ) -> Place | Known | Refused:
        del namespace, ttl_s
        if parent is not None and parent not in self.pages:
            return Refused(RefuseReason.PARENT_ABSENT)
        if key in self.pages:
            return KNOWN
        if key in self.refuse_reserve:
            return Refused(self.refuse_reserve[key])
        number = len(self.pages) + len(self.aborted) + len(self.open_places) + 1
        self.open_places[number] = key
        return Place(number, memoryview(bytearray(self.page_bytes)))

    def commit_page(self, place: Place, terms: PutTerms) -> PutOutcome:
        key = self.open_places.pop(place.reservation)
        if key in self.refuse_commit:
            return Refused(self.refuse_commit[key])
        self.pages[key] = bytes(place.view)
        self.terms[key] = terms
        return STORED

    def abort_page(self, place: Place) -> None:
        self.aborted.append(self.open_places.pop(place.reservation))

    def count_written(self, namespace: NamespaceId, written_bytes: int) -> None:
        del namespace
        self.written_bytes += written_bytes

    def _prefix(self, keys: bytes) -> list[PageKey]:
        found: list[PageKey] = []
        for begin in range(0, len(keys), 32):
            key = PageKey(keys[begin : begin + 32])
            if key not in self.pages:
                break
            found.append(key)
        return found
