"""L1Cache: bounded pages in a worker's own memory, served only while the sidecar's view vouches for them.

Every look-up follows rule R16: load freshness, then the view; forget what the events up to it select, or everything
when they cannot be told; collect; check the clock against freshness; look at the view again. Inserts are checked,
before and after the copy, against the view that the request observed before it reused anything.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from cache_l1.block_tables import BlockTable
from cache_l1.follower import ViewFollower
from cache_l1.page_memory import PageMemory, device_pages
from cache_l1.policies import POLICY_DEFAULT, policy_of
from cache_l1.pool import PagePool
from cache_l1.prefix_index import PrefixIndex
from cache_l1.residents import InL2, Residents
from kv_policy.losing_cost import LosingCosts
from kv_types.clock import BoottimeClock, Clock
from kv_types.engine_limits import L1_EXPIRE_PAGES_MAX, L1_MATCH_ATTEMPTS_MAX
from kv_types.errors import BufferMismatchError, InvalidArgumentError
from kv_types.ids import LifeId, PageKey
from kv_types.namespace import Namespace
from kv_types.outcomes import MissReason, RefuseReason
from kv_types.page_keys import Keys, pack_keys, unpack_keys
from kv_types.validity import (
    NO_INSTANCES,
    Instances,
    ObservedView,
    ValiditySource,
)

__all__ = ["Filling", "Instances", "L1Cache", "ObservedView", "PageMemory", "ValiditySource"]


_COUNTERS = (
    "requested_pages",
    "hit_pages",
    "inserted_pages",
    "known_pages",
    "evicted_pages",
    "found_alone_pages",
    "expired_pages",
    "dropped_pages",
    "copied_in_pages",
    "copied_out_pages",
)


_FOUND_NOTHING = frozenset({MissReason.ABSENT, MissReason.EXPIRED})
"""Reasons of a look-up without a page that say that there is none."""


class L1Cache:
    """Pages by key, least recently used tails first. Thread-safe: one lock, not held while bytes move."""

    def __init__(
        self,
        *,
        capacity_pages: int,
        page_bytes: int,
        device: Any = "cpu",
        namespace: Namespace | None = None,
        memory: PageMemory | None = None,
        clock: Clock | None = None,
        ttl_ns: int | None = None,
        policy: str = POLICY_DEFAULT,
        in_l2: InL2 | None = None,
    ) -> None:
        """`namespace`: that of all its pages, so that what hides others leaves it alone; None: unknown or several.

        `policy` names one of cache_l1.policies.POLICIES, which says what goes when room is needed. `in_l2` lets it go by that
        pages cost less to lose while L2 has them too (`set_losing_costs`); None: nobody knows, and all cost alike.
        `memory` None: a torch tensor on `device`. `clock` must be the one that freshness is told in.
        Raises InvalidArgumentError.
        """
        self._pool = PagePool(capacity_pages)
        self._memory = device_pages(capacity_pages, page_bytes, device) if memory is None else memory
        if (self._memory.capacity, self._memory.page_bytes) != (capacity_pages, page_bytes):
            raise InvalidArgumentError(
                f"the memory has {self._memory.capacity} pages of {self._memory.page_bytes} bytes; "
                f"{capacity_pages} of {page_bytes} are asked for"
            )
        if ttl_ns is not None and ttl_ns <= 0:
            raise InvalidArgumentError(f"a time to live must be positive; got {ttl_ns} ns")
        self._clock = BoottimeClock() if clock is None else clock
        self._ttl_ns = ttl_ns
        self._lock = threading.Lock()
        self._index = PrefixIndex()
        self._policy = policy_of(policy, capacity_pages)
        self._pins: Counter[int] = Counter()
        self._residents = Residents(capacity_pages, in_l2)
        self._namespace = namespace
        self._follower: ViewFollower | None = None
        self._counts: Counter[str] = Counter(dict.fromkeys(_COUNTERS, 0))

    def synchronise(self, source: ValiditySource) -> None:
        """Follow this source from now on (a new one drops everything) and apply what it has published."""
        with self._lock:
            if self._follower is None or source is not self._follower.source:
                self._follower = ViewFollower(source, namespace=self._namespace)
            self._follow()

    def observe(self) -> ObservedView | None:
        """The view to load before a request reuses anything and to give to `insert`; None: insert nothing."""
        with self._lock:
            return self._follow()

    def match(self, keys: Keys) -> list[int]:
        """Page numbers of the longest valid prefix, pinned until `release`. Counts a look-up.

        Raises InvalidIdentifierError, LimitExceededError.
        """
        chain = unpack_keys(pack_keys(keys))
        with self._lock:
            pages, reason = self._collect(chain)
            self._note_looked(chain, pages, reason)
            self._pin(pages)
            self._counts["requested_pages"] += len(chain)
            self._counts["hit_pages"] += len(pages)
            if len(pages) < len(chain):
                self._counts[f"missed_pages_{reason.name.lower()}"] += len(chain) - len(pages)
            return pages

    def instances(self, pages: Sequence[int]) -> Instances:
        """Which pages of L2's arena pinned pages are, as it was told when they were inserted.

        What rests on the last of them rests on nothing else: unknown from the first page on whose place below in L2 was
        another than the one here. Unknown as well once a page was dropped. Raises InvalidArgumentError when one is not
        pinned.
        """
        with self._lock:
            for page in pages:
                self._check_pinned(page, 1)
            life = self._life()
            if life is None:
                return NO_INSTANCES
            return Instances(life, tuple(map(self._residents.instance, pages)))

    def read(self, pages: Sequence[int], destinations: Sequence[Any]) -> None:
        """Copy pinned pages out, one destination (tensor or writable buffer of page_bytes) a page.

        Raises InvalidArgumentError when a page is not pinned, BufferMismatchError.
        """
        if len(pages) != len(destinations):
            raise BufferMismatchError(
                f"{len(destinations)} destinations for {len(pages)} pages; give one a page"
            )
        with self._lock:
            self._note_copied_out(pages)
        for page, destination in zip(pages, destinations, strict=True):
            self._memory.read(page, destination)

    def note_copied_out(self, pages: Sequence[int]) -> None:
        """Count pinned pages that the caller takes out of the memory itself, many at a time.

        Raises InvalidArgumentError when one is not pinned.
        """
        with self._lock:
            self._note_copied_out(pages)

    def _note_copied_out(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._check_pinned(page, 1)
        self._counts["copied_out_pages"] += len(pages)

    def release(self, pages: Sequence[int]) -> None:
        """End one pin of each page. Raises InvalidArgumentError, and releases nothing, when one has none."""
        with self._lock:
            for page, count in Counter(pages).items():
                self._check_pinned(page, count)
            for page in pages:
                self._unpin(page)

    def insert(
        self,
        keys: Keys,
        start: int,
        sources: Sequence[Any],
        *,
        view: ObservedView | None,
        instances: Instances = NO_INSTANCES,
    ) -> int:
        """Keep pages `keys[start:]` (one source of page_bytes a page); returns how many were added.

        `view` is what `observe` gave before the request reused anything; nothing is kept when an event since
        then may select a page of the chain, or when keys[:start] are not all here. When there is no room, the
        front of the chain is kept. `instances` says of each page of `keys` which one of L2's arena the caller has.
        Raises InvalidIdentifierError, LimitExceededError, InvalidArgumentError, BufferMismatchError.
        """
        chain = unpack_keys(pack_keys(keys))
        if not 0 <= start <= len(chain) or len(sources) != len(chain) - start:
            raise InvalidArgumentError(
                f"{len(sources)} sources for pages {start} to {len(chain)} of the chain; give one a page"
            )
        with self.filling(chain, start, view=view) as filling:
            for index, page in filling.pages.items():
                self._memory.write(page, sources[index - start])
            return filling.publish(instances)

    def filling(self, keys: Keys, start: int, *, view: ObservedView | None) -> Filling:
        """Places for pages of `keys[start:]`, for a caller that fills them itself: a context manager.

        What is said of `insert` holds; what is filled is seen by nobody until it is published. Raises InvalidIdentifierError,
        LimitExceededError, InvalidArgumentError.
        """
        chain = unpack_keys(pack_keys(keys))
        if not 0 <= start <= len(chain):
            raise InvalidArgumentError(f"pages from {start} on of a chain of {len(chain)}")
        with self._lock:
            table, held = self._make_room(chain, start, view)
        return Filling(self, chain, table, held=held, view=view)

    def _publish_filled(self, filling: Filling, instances: Instances) -> int:
        with self._lock:
            filling.table.check_open()
            self._counts["copied_in_pages"] += len(filling.pages)
            return self._publish(filling.chain, filling.pages, filling.view, instances)

    def _end_filling(self, filling: Filling) -> None:
        with self._lock:
            for page in filling.table.pages:
                self._unhold(page)
            filling.table.release()

    @property
    def free_pages(self) -> int:
        """Pages that can be taken without an eviction."""
        return self._pool.free_pages

    def set_losing_costs(self, costs: LosingCosts) -> None:
        """What it costs from now on to lose pages. Raises InvalidArgumentError."""
        with self._lock:
            self._policy.set_losing_costs(costs)

    def statistics(self) -> Mapping[str, int]:
        """Counters and gauges by name.

        requested_pages = hit_pages + the sum of missed_pages_<reason>; refused_pages_<reason> are of inserts. Pages are whole,
        so that none wastes room within; `scattered_pages` are resident ones that don't lie behind their parent. `shared_pages`
        are in use by a request beside the cache, or by several. `copied_…` are copies of pages into this memory and out of it.
        `found_alone_pages` were to go because L2 had them too, and were chosen anew because it had them no more.
        """
        with self._lock:
            pool = self._pool
            gauges = {
                "capacity_pages": pool.capacity,
                "resident_pages": len(self._index),
                "pinned_pages": len(self._pins),
                "free_pages": pool.free_pages,
                "used_pages_peak": pool.used_pages_peak,
                "shared_pages": pool.shared_pages,
                "scattered_pages": self._residents.scattered,
                "page_bytes": self._memory.page_bytes,
            }
            return {**self._counts, **gauges}

    def _collect(self, chain: Sequence[PageKey]) -> tuple[list[int], MissReason]:
        follower = self._follower
        if follower is None:
            return [], MissReason.UNREACHABLE
        for _ in range(L1_MATCH_ATTEMPTS_MAX):
            freshness_ns = follower.source.freshness_ns
            observed = self._follow()
            if observed is None:
                return [], MissReason.UNREACHABLE
            now_ns = self._clock.now_ns()
            self._expire(now_ns)
            pages, reason = self._living(self._index.longest_prefix(chain), now_ns)
            fresh = self._clock.now_ns() < freshness_ns
            if follower.look() == observed:
                return (pages, reason) if fresh else ([], MissReason.STALE)
        return [], MissReason.RACED

    def _living(self, pages: list[int], now_ns: int) -> tuple[list[int], MissReason]:
        """The pages before the first whose time has passed: while pinned it stays here, but it is not served."""
        for index, page in enumerate(pages):
            if self._policy.expired(page, now_ns):
                return pages[:index], MissReason.EXPIRED
        return pages, MissReason.ABSENT

    def _follow(self) -> ObservedView | None:
        """Forget what was hidden since the last call; the view up to which the pages left are vouched for."""
        if self._follower is None:
            return None
        verdict = self._follower.follow()
        if verdict.everything:
            self._drop_all()
        for key in verdict.pages:
            self._drop(self._index.remove_subtree(key))
        if verdict.observed is not None:
            self._follower.confirm(verdict.observed)
        return verdict.observed

    def _admissible(self, chain: Sequence[PageKey], view: ObservedView | None) -> bool:
        if self._follower is None or self._follow() is None:
            return False
        return self._follower.admits(chain, view)

    def _make_room(
        self, chain: Sequence[PageKey], start: int, view: ObservedView | None
    ) -> tuple[BlockTable, int]:
        """A table of what is here of the chain, and of new pages for what is not; and how many are here. All are pinned."""
        # Pages are full here, so that a table's unit is the page.
        table = BlockTable(self._pool, page_tokens=1, make_room=self._evict)
        if not self._admissible(chain, view):
            self._count_refused(RefuseReason.INVALIDATED, len(chain) - start)
            return table, 0
        now_ns = self._clock.now_ns()
        self._expire(now_ns, count_max=self._pool.capacity)
        here, reason = self._living(self._index.longest_prefix(chain), now_ns)
        if len(here) < start:
            self._count_refused(RefuseReason.PARENT_ABSENT, len(chain) - start)
            return table, 0
        if reason is MissReason.EXPIRED:  # still read by somebody, so that its place cannot be taken yet
            self._count_refused(RefuseReason.BUSY, len(chain) - len(here))
            return table, 0
        self._counts["known_pages"] += len(here) - start
        table.share(here)
        for page in here:
            self._hold(page)
            self._policy.touch(page, now_ns)
        for index in range(len(here), len(chain)):
            grown = table.append(1)
            if grown is None:
                self._count_refused(RefuseReason.FULL, len(chain) - index)
                break
            self._pins[grown.fresh[0]] += 1
        return table, len(here)

    def _evict(self, pages: int) -> None:
        victims = self._policy.evict(pages, is_elsewhere=self._is_in_l2)
        self._forget(victims)
        self._counts["evicted_pages"] += len(victims)

    def _publish(
        self,
        chain: Sequence[PageKey],
        fresh: Mapping[int, int],
        view: ObservedView | None,
        instances: Instances,
    ) -> int:
        """Make filled pages visible, unless events forbid it or somebody else was faster."""
        if not fresh:
            return 0
        if not self._admissible(chain, view):
            self._count_refused(RefuseReason.INVALIDATED, len(fresh))
            return 0
        now_ns = self._clock.now_ns()
        expires_ns = None if self._ttl_ns is None else now_ns + self._ttl_ns
        added = 0
        for index in sorted(fresh):
            key, parent = chain[index], chain[index - 1] if index else None
            if key in self._index:
                self._counts["known_pages"] += 1
                continue
            parent_page = None if parent is None else self._index.find(parent)
            if parent is not None and parent_page is None:
                self._count_refused(RefuseReason.PARENT_ABSENT, len(fresh) - added)
                break
            page = fresh[index]
            self._index.insert(key, page, parent=parent)
            self._residents.add(page, parent_page, instances, index, life=self._life())
            self._policy.insert(
                page, parent=parent_page, now_ns=now_ns, expires_ns=expires_ns, digest=_digest(key)
            )
            self._policy.set_elsewhere(page, self._residents.came_with_l2(page))
            self._policy.hold(page)
            self._pool.acquire(page)
            added += 1
        self._counts["inserted_pages"] += added
        return added

    def _life(self) -> LifeId | None:
        followed = self._follower.followed if self._follower is not None else None
        return None if followed is None else followed.life

    def _is_in_l2(self, page: int) -> bool:
        """Look whether L2 has a page still, which it had when it came here."""
        is_there = self._residents.is_in_l2(page, self._life())
        self._counts["found_alone_pages"] += not is_there
        return is_there

    def _expire(self, now_ns: int, *, count_max: int = L1_EXPIRE_PAGES_MAX) -> None:
        victims = self._policy.expire(now_ns, count_max=count_max)
        self._forget(victims)
        self._counts["expired_pages"] += len(victims)

    def _forget(self, victims: Sequence[int]) -> None:
        for page in victims:
            self._index.remove_page(page)
            self._residents.forget(page)
            self._pool.release(page)

    def _drop_all(self) -> None:
        self._drop(self._index.clear())

    def _drop(self, pages: Sequence[int]) -> None:
        """Let go of pages that the index has hidden; pinned ones keep their memory until they are released."""
        for page in pages:
            self._residents.forget(page)
            if page in self._policy:
                self._policy.remove(page)
            self._pool.release(page)
        self._counts["dropped_pages"] += len(pages)

    def _note_looked(self, chain: Sequence[PageKey], pages: Sequence[int], reason: MissReason) -> None:
        """Let the policy learn of a look-up, where what it found is all that is here."""
        if not pages and reason not in _FOUND_NOTHING:
            return
        missing = len(chain) - len(pages)
        self._policy.looked(
            pages[-1] if pages else None,
            resident_pages=len(pages),
            missing_pages=missing,
            now_ns=self._clock.now_ns(),
            digest=_digest(chain[len(pages)]) if missing else 0,
        )

    def _pin(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._pool.acquire(page)
            self._hold(page)

    def _hold(self, page: int) -> None:
        self._policy.hold(page)
        self._pins[page] += 1

    def _unpin(self, page: int) -> None:
        self._unhold(page)
        self._pool.release(page)

    def _unhold(self, page: int) -> None:
        self._pins[page] -= 1
        if not self._pins[page]:
            del self._pins[page]
        # a dropped page is in no policy any more, and its number is not used again before its last pin ends
        if page in self._policy:
            self._policy.release(page)

    def _check_pinned(self, page: int, count: int) -> None:
        if self._pins.get(page, 0) < count:
            raise InvalidArgumentError(
                f"page {page} has {self._pins.get(page, 0)} pins, {count} are needed: it was released already"
            )

    def _count_refused(self, reason: RefuseReason, pages: int) -> None:
        self._counts[f"refused_pages_{reason.name.lower()}"] += pages


class Filling:
    """Places in an L1 that are filled and not seen yet. Its pages stay where they are until it is left."""

    __slots__ = ("_cache", "chain", "pages", "table", "view")

    def __init__(
        self,
        cache: L1Cache,
        chain: Sequence[PageKey],
        table: BlockTable,
        *,
        held: int,
        view: ObservedView | None,
    ) -> None:
        """Made by `L1Cache.filling`; the first `held` pages of the table are filled already."""
        self._cache = cache
        self.chain = chain
        self.table = table
        self.view = view
        self.pages = {held + at: page for at, page in enumerate(table.pages[held:])}
        """Index in the chain → page to be filled, from its front on; fewer than wanted when there is no room for all."""

    def publish(self, instances: Instances = NO_INSTANCES) -> int:
        """Let look-ups see all pages, each filled by now; returns how many were added, 0 when an event forbids it.

        Raises ClosedError once it was left.
        """
        return self._cache._publish_filled(self, instances)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cache._end_filling(self)


def _digest(key: PageKey) -> int:
    """By which a policy knows a page that comes back."""
    return int.from_bytes(key[:4], "little")
