"""Planner: the state machine of loads from L3 (single flight, chain order, deadlines, bounds). Pure: no clock, I/O or lock.

A shell turns what happens into events and carries out the actions, in their order, before the next event. Each page that is
wanted is asked about once and fetched once, however many requests want it. A page is published after its parent, never
before. A flight ends by exactly one Publish or GiveBack, unless its place was never given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kv_policy.load_or_recompute import LoadOrRecompute
from kv_types.ids import PageKey
from kv_types.outcomes import MissReason
from sidecar.l3 import plan
from sidecar.l3.loads import RowLoaded
from sidecar.l3.plan import Action, Bounds, Event
from sidecar.l3.plan_courses import Courses
from sidecar.l3.plan_rows import Below, Page, PageState, Request, Row, sent_until
from sidecar.l3.plan_tables import DueTimes, FetchQueue, Flights, Questions, RecentMisses, is_held_up

_PAGES_AHEAD_PROBES = 2
"""A row asks L3 about so many questions' worth of pages beyond what is resident, so that long rows stay bounded."""


class Planner:
    """Decides which pages to ask for, fetch, publish and give back, and when who is answered what."""

    def __init__(self, bounds: Bounds, tier: LoadOrRecompute | None = None) -> None:
        """`tier`: what is known of L3, for the choice between loading and computing."""
        self._bounds = bounds
        self._courses = Courses(LoadOrRecompute() if tier is None else tier, self._is_untouched)
        self._now_ns = 0
        self._requests: dict[int, Request] = {}
        self._pages: dict[PageKey, Page] = {}
        self._children: dict[PageKey | None, set[PageKey]] = {}
        self._flights = Flights(bounds)
        self._queue = FetchQueue()
        self._due = DueTimes(self._is_due_still)
        self._questions = Questions(bounds)
        self._touched: dict[Request, None] = {}
        self._recent_misses = RecentMisses(bounds, lambda: self._now_ns)
        self._actions: list[Action] = []
        self._counts: Counter[str] = Counter()
        self._is_closing = False

    # --- what the shell asks ---

    @property
    def due_ns(self) -> int | None:
        """When TimeCame is to come; None: nothing is waited for."""
        return self._due.next_ns()

    def so_far(self, request: int) -> tuple[RowLoaded, ...] | None:
        """Return what is staged and pending of a request; None when it was answered or given up."""
        return None if (found := self._requests.get(request)) is None else found.told()

    def statistics(self) -> Mapping[str, int]:
        """Counters, and how much is under way now."""
        return {
            **self._counts,
            "requests": len(self._requests),
            "pages": len(self._pages),
            "flights": len(self._flights),
            "flight_bytes": self._flights.bytes,
            "probes_in_flight": len(self._questions),
        }

    def step(self, event: Event) -> list[Action]:
        """Take in an event; returns what is to be done, in order."""
        self._take(event)
        self._schedule()
        self._ask()
        self._settle()
        actions, self._actions = self._actions, []
        return actions

    def _take(self, event: Event) -> None:
        match event:
            case plan.Asked():
                self._asked(event)
            case plan.Waited(number):
                self._wait(number)
            case plan.GivenUp(number):
                if (request := self._requests.get(number)) is not None:
                    self._counts["given_up"] += 1
                    self._forget(request)
            case plan.Probed():
                self._probed(event)
            case plan.Arrived():
                self._arrived(event)
            case plan.BecameResident(keys) | plan.StoredThere(keys):
                self._somebody_stored(keys, in_arena=isinstance(event, plan.BecameResident))
            case plan.TimeCame() | plan.BecameStale() | plan.Closing():
                self._everybody_told(event)
            case _:
                self._flight_told(event)

    def _everybody_told(self, event: plan.TimeCame | plan.BecameStale | plan.Closing) -> None:
        match event:
            case plan.TimeCame(now_ns):
                self._now_ns = now_ns
                self._time_came()
            case plan.BecameStale():
                self._answer_all(MissReason.STALE)
            case plan.Closing():
                self._is_closing = True
                self._answer_all(MissReason.CLOSED)

    def _somebody_stored(self, keys: tuple[PageKey, ...], *, in_arena: bool) -> None:
        for key in reversed(keys):  # the deepest first
            self._recent_misses.forget(key)
            if in_arena and (page := self._pages.get(key)) is not None:
                self._became_resident(page, from_l3=False)

    # --- requests ---

    def _asked(self, event: plan.Asked) -> None:
        self._now_ns = event.now_ns
        self._counts["asked"] += 1
        request = Request.of(event, probe_pages=self._bounds.probe_pages)
        refusal = self._refusal(request)
        if refusal is not None:
            self._counts[f"refused_{refusal.name.lower()}"] += 1
            self._end_all(request, refusal)
            self._tell(request, _nothing(request, refusal) if self._is_closing else request.told())
            return
        self._requests[request.number] = request
        self._touched[request] = None
        self._due.add(request.deadline_ns, request.number)
        if request.is_group:
            shortest = min(request.rows, key=lambda row: row.end)
            self._cut_group(request, shortest.end, shortest.ended_by)
        for row in request.rows:
            if (ends := self._courses.rules_out(row)) is not None:
                self._counts["ruled_out"] += 1
                self._cut(row, ends, MissReason.COMPUTE_IS_FASTER)
            self._advance(row)

    def _refusal(self, request: Request) -> MissReason | None:
        if self._is_closing:
            return MissReason.CLOSED
        if request.deadline_ns <= self._now_ns:
            return MissReason.DEADLINE
        bounds = self._bounds
        if len(self._requests) >= bounds.requests or len(self._pages) >= bounds.pages:
            return MissReason.OVERLOADED
        return None

    def _wait(self, number: int) -> None:
        request = self._requests.get(number)
        if request is None or request.is_waited:
            return
        request.is_waited = True
        for row in request.rows:
            self._queue.promote(row)

    def _time_came(self) -> None:
        while (due := self._due.take(self._now_ns)) is not None:
            number, key = due
            if key is not None:
                self._counts["puts_awaited_in_vain"] += 1
                self._fail(self._pages[key], MissReason.ABSENT)
            elif (request := self._requests[number]).deadline_ns > self._now_ns:
                self._look_after(request)
            else:
                self._counts["late"] += 1
                self._courses.stopped(request, self._now_ns, is_late=True)
                self._end_all(request, MissReason.DEADLINE)
                self._tell(request, request.told())

    def _is_due_still(self, due_ns: int, number: int, key: PageKey | None) -> bool:
        if key is None:
            return number in self._requests
        page = self._pages.get(key)
        return page is not None and page.state is PageState.AWAITED and page.until_ns == due_ns

    def _answer_all(self, reason: MissReason) -> None:
        """Nothing is served from now on, so that all get the same answer."""
        for request in list(self._requests.values()):
            self._tell(request, _nothing(request, reason))

    def _tell(self, request: Request, rows: tuple[RowLoaded, ...]) -> None:
        self._courses.stopped(request, self._now_ns, is_late=False)
        self._actions.append(plan.Answer(request.number, rows, request.decision))
        self._forget(request)

    def _forget(self, request: Request) -> None:
        """What only this request wanted and is not on its way is not wanted any more."""
        self._requests.pop(request.number, None)
        request.is_done = True
        for row in request.rows:
            self._let_go(row, 0)

    def _settle(self) -> None:
        touched, self._touched = self._touched, {}
        for request in touched:
            if not request.is_done and request.is_decided:
                self._tell(request, request.told())

    # --- how far a row goes ---

    def _advance(self, row: Row) -> None:
        """Take in what is known of the row's next pages, and ask about more of them."""
        while True:
            while row.known < row.asked and not self._is_asked(row.key(row.known)):
                row.known += 1
            if row.known < row.asked or row.asked >= row.end or not self._ask_further(row):
                break
        for ready in row.request.ready_by(row):
            self._look(ready)
            self._queue.put(ready)
        self._touched[row.request] = None

    def _look(self, row: Row) -> None:
        """Decide how far the row is loaded, by what it takes and has taken."""
        if row.request.is_done:
            return
        if (ends := self._courses.look(row, self._now_ns)) is not None:
            self._cut(row, ends, MissReason.COMPUTE_IS_FASTER)
        elif (due_ns := self._courses.due_ns(row)) is not None:
            self._due.add(due_ns, row.request.number)

    def _look_after(self, request: Request) -> None:
        for row in request.rows:
            self._look(row)
            self._queue.put(row)
        self._touched[request] = None

    def _is_untouched(self, row: Row, begin: int, end: int) -> bool:
        found = (self._pages.get(row.key(index)) for index in range(begin, end))
        return all(page is not None and page.state is PageState.THERE for page in found)

    def _is_asked(self, key: PageKey) -> bool:
        return (page := self._pages.get(key)) is not None and page.state is PageState.ASKED

    def _ask_further(self, row: Row) -> bool:
        """Make the next pages of the row wanted; False when that must wait until more of it is resident."""
        chunk = row.request.probe_pages
        if not row.request.is_group and row.known - row.resident >= _PAGES_AHEAD_PROBES * chunk:
            return False
        for index in range(row.asked, min(row.end, row.asked + chunk)):
            key = row.key(index)
            reason = self._recent_misses.reason(row.namespace, key)
            page = self._pages.get(key)
            if page is None and reason is MissReason.NONE:
                if len(self._pages) >= self._bounds.pages:
                    reason = MissReason.OVERLOADED
                else:
                    page = self._new_page(row, index, key)
            elif page is not None and not row.has(page, index):
                reason = MissReason.ABSENT
            if page is None or reason is not MissReason.NONE:
                self._cut(row, index, reason)
                break
            page.rows[row] = index
            row.asked = index + 1
            if index == row.resident and page.below is not Below.RESIDENT:
                self._stands(page)
        return True

    def _stands(self, page: Page) -> None:
        """The arena has the page's parent, as a row that begins with it shows."""
        parent = None if page.parent is None else self._pages.get(page.parent)
        if parent is not None:
            self._became_resident(parent, from_l3=False)
        elif page.below is not Below.RESIDENT:
            page.below = Below.RESIDENT
            if page.state is PageState.ARRIVED:
                self._publish(page)

    def _new_page(self, row: Row, index: int, key: PageKey) -> Page:
        parent = row.parent_of(index)
        below = Below.RESIDENT if index == row.resident else Below.COMING
        page = Page(row.namespace, key, parent, row.size, PageState.ASKED, below, 0)
        self._pages[key] = page
        self._children.setdefault(parent, set()).add(key)
        for child in self._children.get(key, ()):  # their parent was lost while they were on their way
            self._pages[child].below = Below.COMING
        self._questions.add(page)
        return page

    def _cut(self, row: Row, index: int, reason: MissReason) -> None:
        """The row can't become longer than `index`; nor can those of its group."""
        if row.request.is_group:
            self._cut_group(row.request, index, reason)
        else:
            self._cut_row(row, index, reason)

    def _cut_group(self, request: Request, index: int, reason: MissReason) -> None:
        for row in request.rows:
            self._cut_row(row, index, reason)
        for row in request.ready_by(request.rows[0]):
            self._queue.put(row)

    def _cut_row(self, row: Row, index: int, reason: MissReason) -> None:
        if row.end_at(index, reason):
            self._touched[row.request] = None
            self._let_go(row, index)

    def _end_all(self, request: Request, reason: MissReason) -> None:
        """Whatever has not come does not come: rows end at what is resident."""
        if request.is_group:
            self._cut_group(request, min(min(row.resident, row.end) for row in request.rows), reason)
            return
        for row in request.rows:
            self._cut_row(row, row.resident, reason)

    def _let_go(self, row: Row, index: int) -> None:
        """The row wants none of its pages from `index` on."""
        for at in range(max(index, min(row.resident, row.asked)), row.asked):
            page = self._pages.get(row.key(at))
            if page is not None and page.rows.pop(row, None) is not None and not page.rows:
                self._unwanted(page)
        row.asked, row.known = min(row.asked, index), min(row.known, index)
        row.cursor = min(row.cursor, index)

    # --- pages ---

    def _unwanted(self, page: Page) -> None:
        """What is on its way lands still: it costs no more, and the next one may want it."""
        if page.state in (PageState.ASKED, PageState.THERE, PageState.AWAITED):
            self._remove(page, Below.LOST)

    def _remove(self, page: Page, below: Below) -> None:
        """The planner knows the page no more; `below` is what that means for those that stand on it."""
        removing = [page]
        while removing:
            gone = removing.pop()
            del self._pages[gone.key]
            siblings = self._children[gone.parent]
            siblings.discard(gone.key)
            if not siblings:
                del self._children[gone.parent]
            if gone.flight:
                self._flights.disown(gone.flight)
                if gone.state is PageState.ARRIVED:
                    self._give_back(gone.flight)
            for key in self._children.get(gone.key, ()):
                child = self._pages[key]
                if child.below is not Below.RESIDENT:
                    child.below = below if gone is page else Below.LOST
                if child.state is not PageState.ARRIVED:
                    continue
                if child.below is Below.RESIDENT:
                    self._publish(child)
                else:
                    removing.append(child)

    def _fail(self, page: Page, reason: MissReason, *, is_told: bool = False) -> None:
        """The page won't come: whoever wants it ends before it. `is_told`: L3, or the log, says so."""
        if is_told:
            self._recent_misses.remember(page.namespace, page.key, reason)
        for row, index in list(page.rows.items()):
            self._cut(row, index, reason)
        if self._pages.get(page.key) is page:  # nothing was on its way, or it has ended
            self._remove(page, Below.LOST)

    def _became_resident(self, page: Page, *, from_l3: bool) -> None:
        """So are those below it, whatever was heard of them."""
        line = {page.key: page}
        while page.below is Below.COMING and page.parent is not None and page.parent not in line:
            if (above := self._pages.get(page.parent)) is None:
                break
            line[above.key] = page = above
        for one in line.values():  # the deepest first: nothing is published that is there already
            rows = list(one.rows.items())
            self._remove(one, Below.RESIDENT)
            for row, index in rows:
                if from_l3 and row.from_l3 is None:
                    row.from_l3 = index
                row.resident = max(row.resident, index + 1)
                self._advance(row)

    def _probed(self, event: plan.Probed) -> None:
        self._now_ns = event.now_ns
        advanced: dict[Row, None] = {}
        for key, reason in zip(self._questions.answered(event.probe), event.results, strict=True):
            page = self._pages.get(key)
            if page is None or page.state is not PageState.ASKED or page.probe != event.probe:
                continue
            if reason is MissReason.NONE:
                page.state = PageState.THERE
                advanced |= dict.fromkeys(page.rows)
            elif reason is MissReason.DEADLINE and page.deadline_ns > max(page.until_ns, self._now_ns):
                self._questions.add(page)  # who came later has time still
            else:
                self._counts[f"probed_{reason.name.lower()}"] += 1
                advanced |= dict.fromkeys(page.rows)
                self._fail(page, reason, is_told=True)
        for row in advanced:
            if not row.request.is_done:
                self._advance(row)

    def _arrived(self, event: plan.Arrived) -> None:
        self._now_ns = event.now_ns
        page = self._flights.page(event.flight)
        if page is None:
            self._give_back(event.flight)
        elif event.reason is MissReason.NONE:
            page.state = PageState.ARRIVED
            if page.below is Below.RESIDENT:
                self._publish(page)
            elif page.below is Below.LOST:
                self._remove(page, Below.LOST)
        else:
            self._give_back(event.flight)
            page.flight = 0
            if event.reason is MissReason.DEADLINE and page.deadline_ns > max(page.until_ns, self._now_ns):
                self._back_on_the_list(page, first=True)
            else:
                self._counts[f"lost_{event.reason.name.lower()}"] += 1
                self._fail(page, event.reason, is_told=True)

    def _flight_told(self, event: plan.FlightTold) -> None:
        """A flight has ended without anything to give back."""
        page = self._flights.end(event.flight)
        if page is None:
            return
        page.flight = 0
        match event:
            case plan.Published():
                self._counts["loaded"] += 1
                self._became_resident(page, from_l3=True)
            case plan.AlreadyThere() | plan.NotPublished(_, MissReason.NONE):
                self._became_resident(page, from_l3=False)
            case plan.NotPublished(_, MissReason.ABSENT) if page.rows:  # its place went when its parent's did
                self._back_on_the_list(page, first=True)
            case plan.NotPublished(_, reason):
                self._counts["refused_at_publish"] += 1
                self._fail(page, reason, is_told=reason is MissReason.INVALIDATED)
            case plan.NoPlace(_, missed):
                self._fail(page, missed)
            case plan.BeingPut():
                page.state = PageState.AWAITED
                for row, index in page.rows.items():
                    row.cursor = min(row.cursor, index)
                page.until_ns = self._now_ns + self._bounds.put_awaited_ns
                self._due.add(page.until_ns, 0, page.key)
                if not page.rows:
                    self._remove(page, Below.LOST)
            case plan.NotTried():
                self._back_on_the_list(page, first=False)

    def _back_on_the_list(self, page: Page, *, first: bool) -> None:
        page.state = PageState.THERE
        if not page.rows:
            self._remove(page, Below.LOST)
        for row, index in page.rows.items():
            row.cursor = min(row.cursor, index)
            self._queue.put(row, first=first)

    # --- flights ---

    def _schedule(self) -> None:
        """Fetch in turns, a run of pages a row, while there are places."""
        while (row := self._queue.first()) is not None:
            run = [] if row.request.is_done else list(self._flights.run(row, self._pages))
            if run:
                self._fetch(row, run)
            elif is_held_up(row, self._pages):
                return
            self._queue.take()
            if run:
                self._queue.put(row)

    def _fetch(self, row: Row, run: list[Page]) -> None:
        deadline_ns = sent_until(run, self._now_ns + self._bounds.sent_ns)
        for page in run:
            page.flight, page.state, page.until_ns = self._flights.begin(page), PageState.FLYING, deadline_ns
        flights = tuple(page.flight for page in run)
        keys = tuple(page.key for page in run)
        self._counts["fetched"] += len(run)
        self._actions.append(plan.Fetch(row.namespace, run[0].parent, keys, flights, deadline_ns))

    def _publish(self, page: Page) -> None:
        page.state = PageState.PUBLISHING
        self._actions.append(plan.Publish(page.flight))

    def _give_back(self, flight: int) -> None:
        self._flights.end(flight)
        self._actions.append(plan.GiveBack(flight))

    # --- questions ---

    def _ask(self) -> None:
        for probe in self._questions.ask(self._is_wanted, self._now_ns):
            self._counts["probed"] += len(probe.pages)
            self._actions.append(probe)

    def _is_wanted(self, page: Page) -> bool:
        return self._pages.get(page.key) is page and bool(page.rows)


def _nothing(request: Request, reason: MissReason) -> tuple[RowLoaded, ...]:
    return (RowLoaded(0, 0, reason),) * len(request.rows)
