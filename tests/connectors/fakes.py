"""A sidecar in memory for connector tests: what a client sees of it, with faults to be switched on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from inference_worker.lease import Home, OwnedPages, PageLease
from inference_worker.settings import RegisterMemory
from inference_worker.weights import Announced
from kv_types.events import Event, Selected, WeightsAnnounced, encode_event
from kv_types.ids import KEY_BYTES, NO_LIFE, LifeId, LogIncarnation, NamespaceId, Stamp
from kv_types.loading import LoadDecision
from kv_types.namespace import Namespace
from kv_types.outcomes import (
    KNOWN,
    STORED,
    Hit,
    LookUpOutcome,
    Miss,
    MissReason,
    PutOutcome,
    Refused,
    RefuseReason,
    Tier,
)
from kv_types.validity import Instances

HOUR_NS = 3600 * 10**9


@dataclass
class Faults:
    """What goes wrong: `get` and `put` run before the real call and may answer in its place."""

    get: Callable[[int], LookUpOutcome | None] = lambda wanted: None
    put: Callable[[int], list[PutOutcome] | None] = lambda offered: None


@dataclass
class FakeSidecar:
    """Pages by (namespace, key), a view and a life. Shared by several clients as a node's sidecar is."""

    pages: dict[tuple[NamespaceId, bytes], bytes] = field(default_factory=dict)
    life: LifeId = field(default_factory=lambda: LifeId(b"L" * 16))
    events: list[tuple[int, bytes, int, int, bytes]] = field(default_factory=list)
    fresh: bool = True
    weights: dict[str, list[str]] = field(default_factory=dict)

    @property
    def view(self) -> int:
        return len(self.events)

    def publish(self, event: Event) -> None:
        """Publish an event; every page goes where it selects any."""
        if isinstance(event, Selected):
            self.pages.clear()
        if isinstance(event, WeightsAnnounced):
            self.weights.setdefault(event.model, []).append(event.version)
        kind, payload = encode_event(event)
        self.events.append((self.view + 1, b"I" * 16, self.view + 1, int(kind), payload))

    def chain(self, namespace: NamespaceId, keys: bytes) -> int:
        """Pages of the chain's longest prefix that are here."""
        for index, key in enumerate(split(keys)):
            if (namespace, key) not in self.pages:
                return index
        return len(keys) // KEY_BYTES


class FakeClient:
    """One worker's client of a FakeSidecar; `reachable` False stands for a sidecar that is not there."""

    def __init__(self, sidecar: FakeSidecar, faults: Faults | None = None) -> None:
        self.sidecar = sidecar
        self.faults = faults or Faults()
        self.reachable = True
        self.gets: list[tuple[int, int]] = []
        self.puts: list[tuple[int, int]] = []
        self.deadlines_s: list[float] = []
        self.prefetched: list[bytes] = []
        self.prefetches: list[FakePrefetch] = []
        self.forgotten: list[NamespaceId] = []
        self.registrars: list[RegisterMemory] = []
        self.prefills: list[tuple[int, int, float]] = []
        self.validity = FakeValidity(self)

    def register(self, namespace: Namespace) -> NamespaceId:
        return namespace.id

    def prefetch(
        self, namespace: NamespaceId, keys: bytes, *, deadline_s: float | None = None
    ) -> FakePrefetch | None:
        assert deadline_s is not None
        if self.sidecar.chain(namespace, keys) == len(keys) // KEY_BYTES:
            return None
        self.prefetched.append(keys)
        self.prefetches.append(FakePrefetch())
        return self.prefetches[-1]

    def has_page(self, instance: int, *, life: LifeId) -> bool:
        sidecar = self.sidecar
        is_there = any(number_of(key) == instance for _, key in sidecar.pages)
        return self.reachable and life == sidecar.life and is_there

    def forget(self, namespace: NamespaceId) -> None:
        self.forgotten.append(namespace)

    def register_memory(self, register: RegisterMemory) -> None:
        self.registrars.append(register)

    def observe_prefill(self, tokens: int, *, start: int, seconds: float) -> None:
        self.prefills.append((tokens, start, seconds))

    def announced(self, model: str, *, deadline_s: float | None = None) -> Announced | None:
        versions = self.sidecar.weights.get(model, [])
        return Announced(versions[-1] if versions else None, len(versions), 1) if self.reachable else None

    def begin(self, namespace: NamespaceId) -> FakeRequest:
        stamp = Stamp(LogIncarnation(b"I" * 16), self.sidecar.view) if self.reachable else None
        return FakeRequest(self, namespace, stamp)


@dataclass
class FakePrefetch:
    """Goes on until it is called off."""

    is_over: bool = False
    load: LoadDecision | None = None

    def cancel(self) -> None:
        self.is_over = True


@dataclass
class FakeValidity:
    """The header as L1 reads it."""

    client: FakeClient
    applied: int = 0

    @property
    def life(self) -> LifeId:
        return self.client.sidecar.life if self.client.reachable else NO_LIFE

    @property
    def view(self) -> int:
        return self.client.sidecar.view if self.client.reachable else 0

    @property
    def freshness_ns(self) -> int:
        if not (self.client.reachable and self.client.sidecar.fresh):
            return 0
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + HOUR_NS

    def events_since(self, view: int) -> Sequence[tuple[int, bytes, int, int, bytes]] | None:
        return self.client.sidecar.events[view:]

    def set_applied_view(self, view: int) -> None:
        self.applied = view


@dataclass
class FakeRequest:
    """Get and put as the client's request has them."""

    client: FakeClient
    namespace: NamespaceId
    stamp: Stamp | None
    ended: bool = False
    told: list[tuple[bytes, Instances]] = field(default_factory=list)

    def get(
        self, keys: bytes, destinations: Sequence[Any], *, start: int = 0, deadline_s: float | None = None
    ) -> LookUpOutcome:
        assert not self.ended
        wanted = len(keys) // KEY_BYTES - start
        assert len(destinations) == wanted
        assert deadline_s is not None
        self.client.deadlines_s.append(deadline_s)
        self.client.gets.append((start, wanted))
        if not self.client.reachable:
            return Miss(MissReason.UNREACHABLE)
        answer = self.client.faults.get(wanted)
        if answer is not None:
            if isinstance(answer, Hit):
                self._copy(keys, destinations, start=start, pages=answer.pages)
            return answer
        here = max(self.client.sidecar.chain(self.namespace, keys) - start, 0)
        self._copy(keys, destinations, start=start, pages=here)
        if wanted and not here:
            return Miss(MissReason.ABSENT)
        return Hit(here, Tier.L2, MissReason.NONE if here == wanted else MissReason.ABSENT)

    def lease(self, keys: bytes, *, start: int = 0, deadline_s: float | None = None) -> PageLease:
        here = max(self.client.sidecar.chain(self.namespace, keys) - start, 0)
        pages = [
            memoryview(self.client.sidecar.pages[self.namespace, key])
            for key in split(keys)[start : start + here]
        ]
        is_all = start + here == len(keys) // KEY_BYTES
        return PageLease(OwnedPages(pages, MissReason.NONE if is_all else MissReason.ABSENT), Home())

    def _copy(self, keys: bytes, destinations: Sequence[Any], *, start: int, pages: int) -> None:
        for key, destination in zip(split(keys)[start : start + pages], destinations, strict=False):
            destination[:] = self.client.sidecar.pages[self.namespace, key]

    def put(
        self, keys: bytes, sources: Sequence[Any], *, start: int = 0, deadline_s: float | None = None
    ) -> list[PutOutcome]:
        assert not self.ended
        chain = split(keys)[start:]
        assert len(chain) == len(sources)
        self.client.puts.append((start, len(sources)))
        if not self.client.reachable or self.stamp is None:
            return [Refused(RefuseReason.UNREACHABLE)] * len(sources)
        answer = self.client.faults.put(len(sources))
        if answer is not None:
            return answer
        store = self.client.sidecar
        if store.chain(self.namespace, keys[: start * KEY_BYTES]) < start:
            return [Refused(RefuseReason.PARENT_ABSENT)] * len(sources)
        outcomes: list[PutOutcome] = []
        for key, source in zip(chain, sources, strict=True):
            outcomes.append(KNOWN if (self.namespace, key) in store.pages else STORED)
            store.pages.setdefault((self.namespace, key), bytes(source))
        return outcomes

    def reused(self, keys: bytes, instances: Instances) -> None:
        assert not self.ended
        assert len(keys) == KEY_BYTES * len(instances.numbers)
        self.told.append((keys, instances))

    def instances(self, keys: bytes) -> Instances:
        """A page's number is made of its key, so that tests can tell whose it is."""
        assert not self.ended
        return Instances(self.client.sidecar.life, tuple(number_of(key) for key in split(keys)))

    def end(self) -> None:
        self.ended = True


def number_of(key: bytes) -> int:
    """The instance that a FakeRequest names for a key."""
    return int.from_bytes(key[:7], "little") + 1


def split(keys: bytes) -> list[bytes]:
    """Packed keys, one by one."""
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
