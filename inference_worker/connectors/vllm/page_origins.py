"""Which pages of L2 the bytes in the engine's blocks are, so that a put tells what its pages were computed on.

The engine shares blocks between requests by what they hold, and says nothing of whose they were. So origins are kept by
page key. Where two computations of one page may both be in the engine's blocks, nobody can tell which one a request has
used: its origin is unknown from then on, and what rests on it goes with any invalidation by origin (I6).
"""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass
from typing import NamedTuple

from cachetools import LRUCache

from inference_worker.reused import ReusedPages, Run
from kv_types.engine_limits import ORIGIN_PAGES_MAX, ORIGIN_REQUESTS_MAX
from kv_types.ids import KEY_BYTES, NO_LIFE, LifeId
from kv_types.validity import NO_INSTANCE, UNKNOWN_INSTANCE, Instances


class _Origin(NamedTuple):
    """The page of L2 that some bytes are, and the one below it when they became so."""

    life: LifeId
    instance: int
    stands_on: int


_UNKNOWN = _Origin(NO_LIFE, UNKNOWN_INSTANCE, UNKNOWN_INSTANCE)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What a request had loaded into its own blocks: that is certain, whatever else the engine holds."""

    packed: bytes
    run: Run


@dataclass(frozen=True, slots=True)
class _Reused:
    """What a request reused, found out once: it does not change while it keeps its blocks."""

    front: bytes
    runs: list[Run]


class PageOrigins:
    """Bounded; the origin of a page that was forgotten is unknown. Thread-safe."""

    def __init__(self, *, pages_max: int = ORIGIN_PAGES_MAX) -> None:
        self._lock = threading.Lock()
        self._pages: LRUCache[bytes, _Origin] = LRUCache(min(pages_max, ORIGIN_PAGES_MAX))
        self._loaded: LRUCache[str, _Loaded] = LRUCache(ORIGIN_REQUESTS_MAX)
        self._reused: LRUCache[str, _Reused] = LRUCache(ORIGIN_REQUESTS_MAX)

    def __len__(self) -> int:
        return len(self._pages)

    def loaded(
        self, request_id: str, packed: bytes, start: int, instances: Instances, *, stands_on: int
    ) -> None:
        """Pages of a chain from `start` on came out of L2; `stands_on` is the instance that the first of them stands on."""
        numbers = instances.numbers
        if not numbers:
            return
        run = Run(instances.life, start, len(numbers), numbers[-1], array("Q", numbers), stands_on)
        packed = packed[: (start + len(numbers)) * KEY_BYTES]
        with self._lock:
            self._loaded[request_id] = _Loaded(packed, run)
            self._reused.pop(request_id, None)
            self._note(packed, run)

    def reused_for(self, request_id: str, packed: bytes, computed_from: int) -> ReusedPages:
        """What a request reused of a chain whose pages from `computed_from` on it has computed itself."""
        front = packed[: computed_from * KEY_BYTES]
        with self._lock:
            known = self._reused.get(request_id)
            if known is None or known.front != front:
                known = self._reused[request_id] = _Reused(
                    front, self._runs(request_id, front, computed_from)
                )
        reused = ReusedPages()
        for run in known.runs:
            reused.found(packed, run)
        return reused

    def _runs(self, request_id: str, front: bytes, computed_from: int) -> list[Run]:
        loaded = self._loaded.get(request_id)
        run = None
        if loaded is not None and (loaded.packed.startswith(front) or front.startswith(loaded.packed)):
            run = loaded.run
        from_cache = computed_from if run is None else min(run.start, computed_from)
        runs = [self._kept(front, from_cache)] if from_cache else []
        if run is not None and run.start < computed_from:
            runs.append(run)
            if run.end + 1 < computed_from:
                # It was given more than was loaded for it: somebody computed that meanwhile, and nobody says who.
                runs.append(_unknown_run(run.end + 1, computed_from))
        return runs

    def stored(self, packed: bytes, start: int, reused: ReusedPages, *, pages: int) -> None:
        """The first `pages` pages from `start` on were put with this; what L2 has taken of them has an instance now."""
        end = start + pages
        instances = reused.instances(packed[: end * KEY_BYTES])
        with self._lock:
            below = self._pages.get(_key(packed, start - 1), _UNKNOWN).instance if start else NO_INSTANCE
            numbers = array("Q", [instances.at(index) for index in range(start, end)])
            if pages:
                self._note(packed, Run(instances.life, start, pages, numbers[-1], numbers, below))

    def not_stored(self, packed: bytes, start: int, end: int) -> None:
        """Blocks hold these pages, and L2 doesn't have them as they are there: refused, dropped, or known by another."""
        with self._lock:
            for index in range(start, end):
                self._pages[_key(packed, index)] = _UNKNOWN

    def noted_until(self, packed: bytes, start: int) -> int:
        """The first page from `start` on that nothing was noted of: those before were in the engine's blocks once."""
        with self._lock:
            for index in range(start, len(packed) // KEY_BYTES):
                if _key(packed, index) not in self._pages:
                    return index
        return len(packed) // KEY_BYTES

    def forget_request(self, request_id: str) -> None:
        """A request lost its blocks, or ended."""
        with self._lock:
            self._loaded.pop(request_id, None)
            self._reused.pop(request_id, None)

    def _note(self, packed: bytes, run: Run) -> None:
        below = run.stands_on
        for index in range(run.start, run.end + 1):
            number = run.number_at(index)
            origin = _UNKNOWN if number == UNKNOWN_INSTANCE else _Origin(run.life, number, below)
            key, below = _key(packed, index), number
            before = self._pages.get(key)
            # Another computation of the same page may be in blocks still, and is told apart by nobody.
            self._pages[key] = origin if before in (None, origin) else _UNKNOWN

    def _kept(self, packed: bytes, pages: int) -> Run:
        """The first pages of a chain as one run, if all of them are known and each stands on the one before."""
        origins = [self._pages.get(_key(packed, index), _UNKNOWN) for index in range(pages)]
        below, life = NO_INSTANCE, origins[0].life
        for origin in origins:
            if origin.instance == UNKNOWN_INSTANCE or origin.life != life or origin.stands_on != below:
                return _unknown_run(0, pages)
            below = origin.instance
        return Run(life, 0, pages, below, array("Q", [one.instance for one in origins]), NO_INSTANCE)


def _unknown_run(start: int, end: int) -> Run:
    return Run(NO_LIFE, start, end - start, UNKNOWN_INSTANCE)


def _key(packed: bytes, index: int) -> bytes:
    return packed[index * KEY_BYTES : (index + 1) * KEY_BYTES]
