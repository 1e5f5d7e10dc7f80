"""Judges a history of look-ups by itself, knowing nothing of how the product works: which promises were broken, and where."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kv_types.outcomes import MissReason
from tests.fleet.accounts import Account
from tests.fleet.history import Breach, LookUp
from tests.fleet.metronome import Pause, Pauses
from tests.fleet.purges import Purged
from tests.fleet.stamped import StampedPage

_UNFRESH = frozenset({MissReason.STALE, MissReason.RACED, MissReason.UNREACHABLE, MissReason.CLOSED})
"""Misses that say nothing of the page: the look-up could not be answered just then."""
_TOO_LATE = frozenset({MissReason.DEADLINE, MissReason.OVERLOADED, MissReason.L3_UNAVAILABLE})
"""Misses that say that what is shared was not brought in time."""

_Chain: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Broken:
    """One promise that did not hold, by its name, and what shows it."""

    promise: str
    what: str


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time, CLOCK_BOOTTIME ns, for some sidecars; None: all."""

    since_ns: int
    until_ns: int
    sidecars: frozenset[int] | None = None

    def holds(self, look_up: LookUp) -> bool:
        """Whether a look-up lies wholly in it."""
        return (
            self.since_ns <= look_up.invoked_ns
            and look_up.answered_ns <= self.until_ns
            and (self.sidecars is None or look_up.sidecar in self.sidecars)
        )


def broke_fence(look_ups: Iterable[LookUp], purges: Sequence[Purged]) -> list[Broken]:
    """I1: a look-up that was invoked after an invalidation had returned 0 got a page that it forbids."""
    confirmed = [purged for purged in purges if purged.is_confirmed]
    forbidden_from: dict[StampedPage, int | None] = {}
    broken = []
    for look_up in look_ups:
        for page in look_up.pages:
            if page not in forbidden_from:
                ends = [purged.ended_ns for purged in confirmed if purged.forbids(page)]
                forbidden_from[page] = min(ends, default=None)
            since_ns = forbidden_from[page]
            if since_ns is not None and look_up.invoked_ns >= since_ns:
                late_ms = (look_up.invoked_ns - since_ns) / 1e6
                broken.append(
                    Broken("fence", f"{_told(look_up)} got {page} {late_ms:.1f} ms after its invalidation")
                )
    return broken


def broke_fail_closed(look_ups: Iterable[LookUp], dark: Sequence[Span]) -> list[Broken]:
    """I2: a look-up got pages while no log vouched for them."""
    return [
        Broken("fail closed", f"{_told(look_up)} got {len(look_up.pages)} pages")
        for look_up in look_ups
        if look_up.pages and any(span.holds(look_up) for span in dark)
    ]


def broke_whole(breaches: Iterable[Breach]) -> list[Broken]:
    """I5: a worker got bytes that were torn, of another key, or of another tenant."""
    return [Broken("whole", f"{breach.worker} at {breach.at_ns}: {breach.what}") for breach in breaches]


def broke_sparing(
    look_ups: Iterable[LookUp],
    purges: Sequence[Purged],
    calm: Sequence[Span],
    *,
    remote: frozenset[str] = frozenset(),
) -> list[Broken]:
    """What doesn't match stays: in a calm time a node's page was missed, though no invalidation may have taken it.

    `remote` workers reach their node over the network: they may come too late for what is there.
    """
    broken = []
    there = _Residents(purges)
    ordered = sorted(look_ups, key=lambda look_up: look_up.invoked_ns)
    for span in calm:
        there.forget()
        for look_up in filter(span.holds, ordered):
            due = there.due(look_up)
            is_late = look_up.worker in remote and look_up.reason is MissReason.DEADLINE
            if len(look_up.pages) < due and look_up.reason not in _UNFRESH and not is_late:
                got = f"got {len(look_up.pages)} of {due} pages that were there"
                broken.append(Broken("sparing", f"{_told(look_up)} {got}"))
            there.seen(look_up)
    return broken


def broke_deadline(
    look_ups: Iterable[LookUp], pauses: Pauses, stopped: Mapping[str, Sequence[Pause]]
) -> list[Broken]:
    """A look-up took longer than its deadline + max(20 %, 20 ms), without what the machine had no CPU for.

    `stopped`: when workers, by name, were stopped by the test.
    """
    broken = []
    for look_up in look_ups:
        allowed_ns = look_up.deadline_ns + max(look_up.deadline_ns // 5, 20_000_000)
        if not look_up.deadline_ns or look_up.took_ns <= allowed_ns:
            continue
        since_ns, until_ns = look_up.answered_ns - look_up.took_ns, look_up.answered_ns
        excused_ns = look_up.waited_ns + pauses.within_ns(since_ns, until_ns)
        excused_ns += Pauses(stopped.get(look_up.worker, ())).within_ns(since_ns, until_ns)
        if look_up.took_ns > allowed_ns + excused_ns:
            took = f"took {look_up.took_ns / 1e6:.1f} ms of {look_up.deadline_ns / 1e6:.1f}"
            broken.append(
                Broken("deadline", f"{_told(look_up)} {took}, {excused_ns / 1e6:.1f} ms without a CPU")
            )
    return broken


def broke_accounts(accounts: Iterable[Account]) -> list[Broken]:
    """I7: what a worker counted and what its client says differ, or don't add up."""
    return [
        Broken("accounts", f"{account.worker} at {account.at_ns}: {'; '.join(differences)}")
        for account in accounts
        if (differences := account.differences())
    ]


def broke_sharing(
    look_ups: Iterable[LookUp], purges: Sequence[Purged], calm: Sequence[Span], *, shared_after_ns: int
) -> list[Broken]:
    """I9 with L3: in a calm time a page was missed anywhere, though it had been got on some node long enough before.

    Only what was wholly computed within the calm time counts: what was computed earlier may have been kept from L3.
    """
    broken = []
    there = _Residents(purges, everywhere=True)
    ordered = sorted(look_ups, key=lambda look_up: look_up.invoked_ns)
    for span in calm:
        there.forget()
        for look_up in filter(span.holds, ordered):
            due = there.due(look_up, at_ns=look_up.invoked_ns - shared_after_ns)
            if (
                look_up.deadline_ns
                and len(look_up.pages) < due
                and look_up.reason not in _UNFRESH | _TOO_LATE
            ):
                got = f"got {len(look_up.pages)} of {due} pages that the fleet had"
                broken.append(Broken("sharing", f"{_told(look_up)} {got}"))
            if all(page.lineage[-1].begun_ns >= span.since_ns for page in look_up.pages):
                there.seen(look_up)
    return broken


class _Residents:
    """What the sidecars of a fleet must still have: what look-ups got before, as long as nothing may have taken it.

    With `everywhere`, what one of them had is due on each.
    """

    def __init__(self, purges: Sequence[Purged], *, everywhere: bool = False) -> None:
        self._purges = purges
        self._everywhere = everywhere
        self._gone_from: dict[tuple[StampedPage, ...], float] = {}
        self._known: dict[_Chain, dict[tuple[StampedPage, ...], int]] = defaultdict(dict)

    def forget(self) -> None:
        """Pages may have gone for other reasons."""
        self._known.clear()

    def seen(self, look_up: LookUp) -> None:
        """Take a look-up's pages for resident from its answer on; what a worker has in its own memory is another matter."""
        if look_up.pages and not look_up.l1:
            self._known[self._chain(look_up)].setdefault(look_up.pages, look_up.answered_ns)

    def due(self, look_up: LookUp, *, at_ns: int | None = None) -> int:
        """Pages that a look-up must get at least, of those that were there then; None: when it was invoked."""
        known, due = self._known[self._chain(look_up)], 0
        at_ns = look_up.invoked_ns if at_ns is None else at_ns
        for pages, since_ns in list(known.items()):
            if self._is_gone(pages[:1], look_up.invoked_ns):
                del known[pages]
            elif since_ns <= at_ns:
                # Elsewhere they would stand on what is there, which may be another computation.
                below = look_up.pages if self._everywhere else pages
                there = (*below[: len(pages)], *pages[len(below) :])
                gone = [self._is_gone(there[:end], look_up.answered_ns) for end in range(1, len(there) + 1)]
                due = max(due, gone.index(True) if True in gone else len(pages))
        return due

    def _chain(self, look_up: LookUp) -> _Chain:
        return 0 if self._everywhere else look_up.sidecar, look_up.tenant, look_up.chain

    def _is_gone(self, chain: tuple[StampedPage, ...], at_ns: int) -> bool:
        """Whether the last page of a chain may have been taken by then.

        Where it was computed from other pages than those that it stands on now, nobody can tell which producers and tags
        it rests on: then any of these may take it.
        """
        if chain not in self._gone_from:
            *below, page = chain
            is_known = set(page.lineage[:-1]) == {other.lineage[-1] for other in below}
            takers = [one.invoked_ns for one in self._purges if one.may_take(page, lineage_known=is_known)]
            self._gone_from[chain] = min(takers, default=math.inf)
        return self._gone_from[chain] <= at_ns


def availability(look_ups: Iterable[LookUp], calm: Sequence[Span]) -> Mapping[str, int]:
    """How look-ups of calm times ended: "full", or the reason that ended them."""
    return Counter(
        "full" if look_up.is_full else look_up.reason.name
        for look_up in look_ups
        if any(span.holds(look_up) for span in calm)
    )


def _told(look_up: LookUp) -> str:
    return (
        f"{look_up.worker} on sidecar {look_up.sidecar}, invoked at {look_up.invoked_ns}, chain "
        f"{look_up.tenant}/{look_up.chain}, ended by {look_up.reason.name},"
    )
