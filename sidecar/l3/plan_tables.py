"""What the planner counts, queues and remembers: flights, rows to fetch, questions, times that are due, absent pages."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from cachetools import TTLCache

from kv_types.ids import NamespaceId, PageKey
from kv_types.outcomes import MissReason
from sidecar.l3.plan import Bounds, Probe, ProbedPage
from sidecar.l3.plan_rows import Page, PageState, Row, half_until, sent_until

_DUE_KEPT = 64
"""Settled entries that may wait in the heap beside the living ones before it is cleared."""


class Flights:
    """Pages that have a place in the arena, or are to get one, by the number of their flight."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._pages: dict[int, Page | None] = {}
        self._sizes: dict[int, int] = {}
        self._begun = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._pages)

    def has_room(self, *, pages: int, size: int, is_waited: bool) -> bool:
        """Whether `pages` more of `size` bytes each may begin; one may always, when there is nothing else.

        What nobody waits for never takes the last quarter of the places.
        """
        flights = len(self._pages) + pages
        if flights == 1:
            return True
        flights_max, bytes_max = self._bounds.flights, self._bounds.flight_bytes
        if not is_waited:
            flights_max, bytes_max = flights_max - flights_max // 4, bytes_max - bytes_max // 4
        return flights <= flights_max and self.bytes + pages * size <= bytes_max

    def run(self, row: Row, pages: Mapping[PageKey, Page]) -> Iterator[Page]:
        """The next of `pages` that a row has to fetch, consecutive ones, as many as there are places for and its turn allows."""
        row.cursor, taken = max(row.cursor, row.resident), 0
        while row.cursor < row.fetchable and taken < self._bounds.run_pages:
            page = pages[row.key(row.cursor)]
            if page.state is PageState.THERE:
                if not self.has_room(pages=taken + 1, size=page.size, is_waited=row.request.is_waited):
                    return
                taken += 1
                yield page
            elif page.state is PageState.AWAITED or taken:
                return
            row.cursor += 1

    def begin(self, page: Page) -> int:
        """Number a new flight."""
        self._begun += 1
        self._pages[self._begun] = page
        self._sizes[self._begun] = page.size
        self.bytes += page.size
        return self._begun

    def page(self, flight: int) -> Page | None:
        """Whose flight it is; None: nobody's any more."""
        return self._pages[flight]

    def disown(self, flight: int) -> None:
        """The flight ends for nobody: its page is resident, or can't be published."""
        self._pages[flight] = None

    def end(self, flight: int) -> Page | None:
        """Forget a flight; returns whose it was."""
        self.bytes -= self._sizes.pop(flight)
        return self._pages.pop(flight)


def is_held_up(row: Row, pages: Mapping[PageKey, Page]) -> bool:
    """Whether the row has something to fetch for which there is no place now."""
    if row.request.is_done or row.cursor >= row.fetchable:
        return False
    return pages[row.key(row.cursor)].state is PageState.THERE


class FetchQueue:
    """Rows that have something to fetch, in turns; those that somebody waits for go first."""

    def __init__(self) -> None:
        self._waited: deque[Row] = deque()
        self._unwaited: deque[Row] = deque()

    def put(self, row: Row, *, first: bool = False) -> None:
        """Queue a row unless it is queued, or has nothing to fetch."""
        if row.is_queued or row.request.is_done or max(row.cursor, row.resident) >= row.fetchable:
            return
        row.is_queued = True
        queue = self._waited if row.request.is_waited else self._unwaited
        if first:
            queue.appendleft(row)
        else:
            queue.append(row)

    def promote(self, row: Row) -> None:
        """Somebody waits for the row from now on."""
        if row.is_queued:
            self._unwaited.remove(row)
            self._waited.append(row)

    def first(self) -> Row | None:
        """The row whose turn it is."""
        queue = self._waited or self._unwaited
        return queue[0] if queue else None

    def take(self) -> None:
        """End the turn of the first row."""
        (self._waited or self._unwaited).popleft().is_queued = False


class Questions:
    """Pages that L3 is to be asked about, and the questions that are under way."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._under_way: dict[int, tuple[PageKey, ...]] = {}
        self._begun = 0
        self._to_ask: list[Page] = []

    def __len__(self) -> int:
        return len(self._under_way)

    def add(self, page: Page) -> None:
        """Ask about this page with the next question."""
        self._to_ask.append(page)

    def answered(self, probe: int) -> tuple[PageKey, ...]:
        """Forget a question; returns the pages that it was about."""
        return self._under_way.pop(probe)

    def ask(self, is_wanted: Callable[[Page], bool], now_ns: int) -> Iterator[Probe]:
        """Ask about all pages that were made wanted since the last time, together."""
        to_ask, self._to_ask = self._to_ask, []
        wanted = [page for page in to_ask if is_wanted(page)]
        for at in range(0, len(wanted), self._bounds.probe_pages):
            asked = wanted[at : at + self._bounds.probe_pages]
            deadline_ns = sent_until(asked, now_ns + self._bounds.sent_ns)
            self._begun += 1
            for page in asked:
                page.probe, page.until_ns = self._begun, deadline_ns
            self._under_way[self._begun] = tuple(page.key for page in asked)
            pages = tuple(ProbedPage(one.namespace, one.key, one.parent, one.size) for one in asked)
            yield Probe(self._begun, pages, half_until(now_ns, deadline_ns, self._bounds.sent_ns))


class RecentMisses:
    """Pages that L3 had no valid record of a moment ago, and why: they are not asked for again at once.

    What was asked under one namespace says nothing of another, whoever made the mistake.
    """

    def __init__(self, bounds: Bounds, timer: Callable[[], int]) -> None:
        self._reasons: TTLCache[PageKey, tuple[NamespaceId, MissReason]] = TTLCache(
            bounds.absent_pages, bounds.absent_ns, timer=timer
        )

    def remember(self, namespace: NamespaceId, key: PageKey, reason: MissReason) -> None:
        """Note a reason that will hold for a while; others say nothing of the record."""
        if reason in (MissReason.ABSENT, MissReason.INVALIDATED):
            self._reasons[key] = namespace, reason

    def reason(self, namespace: NamespaceId, key: PageKey) -> MissReason:
        """Why L3 need not be asked; NONE: it may have it."""
        asked, reason = self._reasons.get(key, (namespace, MissReason.NONE))
        return reason if asked == namespace else MissReason.NONE

    def forget(self, key: PageKey) -> None:
        """It may be there now."""
        self._reasons.pop(key, None)


class DueTimes:
    """When requests end, and pages that clients store are not awaited any longer."""

    def __init__(self, is_open: Callable[[int, int, PageKey | None], bool]) -> None:
        """`is_open` tells whether (time, request, key) still matters."""
        self._is_open = is_open
        self._heap: list[tuple[int, int, PageKey | None]] = []
        self._clear_at = _DUE_KEPT

    def add(self, due_ns: int, request: int, key: PageKey | None = None) -> None:
        """Note a time: of a request, or of a page (`request` is 0 then)."""
        if len(self._heap) >= self._clear_at:
            self._heap = [entry for entry in self._heap if self._is_open(*entry)]
            heapq.heapify(self._heap)
            self._clear_at = 2 * len(self._heap) + _DUE_KEPT
        heapq.heappush(self._heap, (due_ns, request, key))

    def next_ns(self) -> int | None:
        """The earliest time that matters; None: there is none."""
        while self._heap and not self._is_open(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now_ns: int) -> tuple[int, PageKey | None] | None:
        """Remove and return what was due first, if anything is."""
        due_ns = self.next_ns()
        if due_ns is None or due_ns > now_ns:
            return None
        _, request, key = heapq.heappop(self._heap)
        return request, key
