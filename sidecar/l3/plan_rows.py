"""What the planner keeps of requests, their rows and the pages that they want."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from kv_types.ids import KEY_BYTES, NamespaceId, PageKey
from kv_types.loading import ComputeCost, LoadDecision
from kv_types.outcomes import MissReason
from sidecar.l3.loads import RowLoaded
from sidecar.l3.plan import Asked

if TYPE_CHECKING:
    from sidecar.l3.plan_courses import Course


class PageState(Enum):
    """How far a page is that the arena lacks."""

    ASKED = auto()
    """L3 is asked whether it has it."""
    THERE = auto()
    """L3 has it; nothing of it was fetched."""
    FLYING = auto()
    """It is being fetched into a place of the arena."""
    ARRIVED = auto()
    """It lies in its place and waits for its parent."""
    PUBLISHING = auto()
    """The shell was told to publish it."""
    AWAITED = auto()
    """A client is storing it."""


class Below(Enum):
    """What is known of a page's parent."""

    RESIDENT = auto()
    COMING = auto()
    """It is a page of the planner's too."""
    LOST = auto()
    """It won't come."""


@dataclass(slots=True, eq=False)
class Page:
    """One page that is wanted, or on its way though nobody wants it any more."""

    namespace: NamespaceId
    key: PageKey
    parent: PageKey | None
    size: int
    state: PageState
    below: Below
    until_ns: int
    """Deadline of what is under way for it."""
    probe: int = 0
    flight: int = 0
    rows: dict[Row, int] = field(default_factory=dict)
    """Rows that want it, and its index there."""

    @property
    def deadline_ns(self) -> int:
        """The latest one of those who want it."""
        return max((row.request.deadline_ns for row in self.rows), default=0)


def sent_until(pages: Sequence[Page], least_ns: int) -> int:
    """Deadline of what is sent for pages: what a hurried caller began is not thrown away with its connection."""
    return max(least_ns, *(page.deadline_ns for page in pages))


def half_until(now_ns: int, deadline_ns: int, least_ns: int) -> int:
    """Deadline of a question: one server that hangs holds up the whole answer, and what the others say is of use only while
    there is time to fetch it."""
    return now_ns + max((deadline_ns - now_ns) // 2, least_ns)


@dataclass(slots=True, eq=False)
class Request:
    """Rows that are answered together."""

    number: int
    deadline_ns: int
    is_group: bool
    probe_pages: int
    """Pages of one of its rows that are asked about at a time."""
    compute: ComputeCost | None = None
    """What computing its rows' pages takes, from their first keys on; None: they are loaded whatever that takes."""
    rows: list[Row] = field(default_factory=list)
    decision: LoadDecision | None = None
    is_waited: bool = False
    is_done: bool = False
    is_common_known: bool = False
    """Of a group: it was seen of every row how far L3 has it. That stays so, and no page that comes has all rows looked at."""

    @classmethod
    def of(cls, asked: Asked, *, probe_pages: int) -> Request:
        """Make a request of what is asked; its rows share the pages of one question."""
        request = cls(
            asked.request,
            asked.deadline_ns,
            asked.is_group,
            max(1, probe_pages // len(asked.rows)),
            asked.compute,
        )
        for row in asked.rows:
            resident, length = row.resident, len(row.keys) // KEY_BYTES
            request.rows.append(
                Row(
                    request, row.namespace, row.parent, row.keys, row.page_bytes, resident=resident, known=resident,
                    asked=resident, cursor=resident, end=resident if row.ended_by else length, ended_by=row.ended_by,
                )
            )  # fmt: skip
        return request

    def ready_by(self, row: Row) -> Sequence[Row]:
        """Rows that may have something to fetch since `row` went on: all of a group, when it is known how far L3 has it all."""
        if not self.is_group or self.is_common_known:
            return (row,)
        self.is_common_known = all(row.known >= row.end for row in self.rows)
        return self.rows if self.is_common_known else ()

    @property
    def is_decided(self) -> bool:
        """Whether everything has come that will come."""
        return all(row.resident >= row.end for row in self.rows)

    def told(self) -> tuple[RowLoaded, ...]:
        """Return what is staged of each row, and what is pending."""
        if not self.is_group:
            return tuple(row.told(min(row.resident, row.end)) for row in self.rows)
        common = min(min(row.resident, row.end) for row in self.rows)
        return tuple(row.told(common) for row in self.rows)


@dataclass(slots=True, eq=False)
class Row:
    """One row of a request: counts and indices are in pages from its first key."""

    request: Request
    namespace: NamespaceId
    parent: PageKey | None
    keys: bytes
    size: int
    """Bytes of a page."""
    resident: int
    """So many leading pages are in the arena."""
    known: int
    """So many are there or in L3."""
    asked: int
    """So many are there, or L3 was asked about them."""
    cursor: int
    """So many are there or on their way."""
    end: int
    """It can't become longer than this."""
    ended_by: MissReason
    from_l3: int | None = None
    """The first page that came from L3 while this row waited."""
    is_queued: bool = False
    course: Course | None = None
    allowed: int = 0
    """So far it may be fetched by its course; it is no bound where nothing is said of computing."""

    def key(self, index: int) -> PageKey:
        """Key of one page."""
        return PageKey(self.keys[index * KEY_BYTES : (index + 1) * KEY_BYTES])

    def parent_of(self, index: int) -> PageKey | None:
        """Key of the page before."""
        return self.key(index - 1) if index else self.parent

    def has(self, page: Page, index: int) -> bool:
        """Whether a page is the row's: a client may give any keys, in any order, under any namespace."""
        return (
            page.namespace == self.namespace
            and page.parent == self.parent_of(index)
            and page.size == self.size
        )

    def end_at(self, index: int, reason: MissReason) -> bool:
        """It can't become longer than `index`; False when that was known."""
        if index >= self.end:
            return False
        self.end, self.ended_by = index, reason
        return True

    @property
    def fetchable(self) -> int:
        """Up to here it is known that the row wants what L3 has."""
        if self.request.is_group and not self.request.is_common_known:
            return 0
        if self.request.compute is not None:
            return min(self.known, self.end, self.allowed)
        return min(self.known, self.end)

    def told(self, pages: int) -> RowLoaded:
        """Return what is said of the row when so many pages are served."""
        total = len(self.keys) // KEY_BYTES
        from_l3 = pages if self.from_l3 is None else min(self.from_l3, pages)
        pending = max(0, self.end - pages)
        reason = self.ended_by
        if pages < total and (pending or reason is MissReason.NONE):
            reason = MissReason.ABSENT
        return RowLoaded(pages, from_l3, MissReason.NONE if pages == total else reason, pending)
