"""Courses of loads in the planner: how far rows may be fetched now, by what loading and computing take, and what that taught."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kv_policy.load_or_recompute import LoadCourse, LoadOrRecompute, Step
from kv_types.loading import ComputeCost, LoadDecision
from sidecar.l3.plan_rows import Request, Row

_SECOND_NS = 1_000_000_000


class Course:
    """What is being loaded of one row, or of all rows of a group alike: `pages` pages from index `base` on."""

    def __init__(
        self, load: LoadCourse, rows: Sequence[Row], base: int, pages: int, *, is_measured: bool
    ) -> None:
        self.load = load
        self.rows = rows
        self.base = base
        self.pages = pages
        self.is_measured = is_measured
        self.step: Step | None = None
        self.look_ns = self.told_ns = 0

    @property
    def came(self) -> int:
        """So many of its pages all rows have."""
        return max(0, min(self.pages, min(row.resident for row in self.rows) - self.base))


class Courses:
    """Begins and looks after them. Pure, as the planner is: times come with its events."""

    def __init__(self, tier: LoadOrRecompute, is_untouched: Callable[[Row, int, int], bool]) -> None:
        """`is_untouched` tells whether nobody fetches any of a row's pages [begin, end) yet."""
        self._tier = tier
        self._is_untouched = is_untouched

    def rules_out(self, row: Row) -> int | None:
        """Where the row, or its group, ends since L3 need not be asked whatever it has; None: it is to be asked."""
        request = row.request
        rows = request.rows if request.is_group else [row]
        base = min(one.resident for one in rows)
        pages = min(one.end for one in rows) - base
        cost = _cost_from(request.compute, base)
        page_bytes = sum(one.size for one in rows)
        decision = self._tier.rules_out(max(0, pages), page_bytes, cost)
        if decision is None:
            return None
        _note(request, decision)
        return base

    def look(self, row: Row, now_ns: int) -> int | None:
        """Take in how far a row is; returns the index at which it is to end, None where it goes on.

        Where it does, `row.allowed` says how far it may be fetched now.
        """
        request = row.request
        if request.is_group and not request.is_common_known:
            return None
        rows = request.rows if request.is_group else [row]
        if row.course is not None:
            ends = self._look_on(row.course, now_ns)
            if ends is not None:
                return ends
        if row.course is None:
            return self._begin(request, rows, now_ns)
        return None

    def due_ns(self, row: Row) -> int | None:
        """When its course is to be looked at again, told once; None: no time is new."""
        course = row.course
        if course is None or row.request.compute is None or course.told_ns == course.look_ns:
            return None
        course.told_ns = course.look_ns
        return course.look_ns

    def stopped(self, request: Request, now_ns: int, *, is_late: bool) -> None:
        """The request has ended."""
        for row in request.rows:
            if row.course is not None:
                course: Course = row.course
                course.load.stopped(course.came, now_ns / _SECOND_NS, is_late=is_late and course.is_measured)
                self._ended(course)

    def _begin(self, request: Request, rows: Sequence[Row], now_ns: int) -> int | None:
        base = min(one.resident for one in rows)
        known = min(min(one.known, one.end) for one in rows)
        if known <= base:
            return None
        load = self._tier.course(
            known - base, sum(one.size for one in rows), _cost_from(request.compute, base),
            left_s=(request.deadline_ns - now_ns) / _SECOND_NS, now_s=now_ns / _SECOND_NS,
        )  # fmt: skip
        is_measured = all(self._is_untouched(one, max(base, one.resident), known) for one in rows)
        course = Course(load, rows, base, known - base, is_measured=is_measured)
        for one in rows:
            one.course = course
        return self._follow(course, load.look(0, now_ns / _SECOND_NS), now_ns)

    def _look_on(self, course: Course, now_ns: int) -> int | None:
        step, came = course.step, course.came
        assert step is not None, "a course that goes on has a step"
        if (
            min(one.end for one in course.rows) < course.base + course.pages
        ):  # a page is lost: nothing is to be learnt
            course.load.stopped(came, now_ns / _SECOND_NS, is_late=False)
            self._ended(course)
            return None
        if came < step.upto and now_ns < course.look_ns:
            return None
        measured = course.load.look(came, now_ns / _SECOND_NS, is_measured=course.is_measured)
        return self._follow(course, measured, now_ns)

    def _follow(self, course: Course, step: Step | None, now_ns: int) -> int | None:
        if step is None:
            self._ended(course)
            came = course.came
            return course.base + came if came < course.pages else None
        course.step = step
        course.look_ns = now_ns + int(step.look_s * _SECOND_NS) + 1
        for row in course.rows:
            row.allowed = course.base + step.upto
        return None

    def _ended(self, course: Course) -> None:
        _note(course.rows[0].request, course.load.decision)
        for row in course.rows:
            row.course = None


def _cost_from(cost: ComputeCost | None, base: int) -> ComputeCost | None:
    return None if cost is None else cost.after(base)


def _note(request: Request, decision: LoadDecision) -> None:
    """Long rows are decided in parts, and rows of a request apart: the request's decision is all of them."""
    before = request.decision
    if before is not None:
        decision = LoadDecision(
            max(before.choice, decision.choice),
            before.pages + decision.pages,
            before.pages_chosen + decision.pages_chosen,
            before.load_s + decision.load_s,
            before.compute_s + decision.compute_s,
        )
    request.decision = decision
