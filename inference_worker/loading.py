"""Having the sidecar bring what its L2 lacks: what is asked, what came of it, and how long that was waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cache_l2.attach_loads import LoadTicket, Wanted
from cache_l2.attach_messages import LoadedPages
from cache_l2.reader import AttachedArena
from inference_worker.copy_speed import CopySpeed
from inference_worker.deadlines import Deadline
from inference_worker.prefill_speed import PrefillSpeed
from kv_types.errors import ClosedError, OverloadedError, ProtocolError, StrataError
from kv_types.ids import KEY_BYTES, PageKey
from kv_types.limits import LOAD_KEYS_MAX
from kv_types.loading import ComputeCost, LoadDecision
from kv_types.outcomes import MissReason

_REASONS = tuple(MissReason)


@dataclass(frozen=True, slots=True)
class Staged:
    """What a load has left in L2: the first `pages` of a chain, those from index `l3_from` on because of it."""

    pages: int
    l3_from: int | None
    reason: MissReason
    """Why there are no more; NONE when all are there."""
    decision: LoadDecision | None = None
    """What was chosen between loading and computing, of the last part of a long chain."""


class LoadCounts:
    """Of one client: loads that look-ups waited for, what they brought, and how long that took. Thread-safe.

    With it goes how fast the client computes, which loads are weighed against, and copies out of L2.
    """

    def __init__(self, prefill: PrefillSpeed | None = None) -> None:
        self.prefill = PrefillSpeed() if prefill is None else prefill
        self.copies = CopySpeed()
        self._lock = threading.Lock()
        self._loads = self._pages = self._waited_ns = self._waited_ns_max = 0

    def add(self, *, pages: int, waited_ns: int) -> None:
        """Count one load."""
        with self._lock:
            self._loads += 1
            self._pages += pages
            self._waited_ns += waited_ns
            self._waited_ns_max = max(self._waited_ns_max, waited_ns)

    def statistics(self) -> dict[str, int]:
        """Counters by name; times in microseconds."""
        with self._lock:
            return {
                "loads": self._loads,
                "loads_pages": self._pages,
                "loads_waited_us": self._waited_ns // 1000,
                "loads_waited_us_max": self._waited_ns_max // 1000,
            }


class Loader:
    """Asks for loads over one attachment, and waits for them."""

    def __init__(self, attached: AttachedArena, counts: LoadCounts) -> None:
        self._attached = attached
        self._counts = counts

    def stage(
        self, namespace_number: int, packed: bytes, first: int, deadline: Deadline, *, page_tokens: int
    ) -> Staged:
        """Have the pages of a chain from index `first` on brought, as many as `deadline` allows and loading pays for."""
        pages = len(packed) // KEY_BYTES
        began_ns = time.monotonic_ns()
        at, l3_from, reason, decision = first, None, MissReason.NONE, None
        while at < pages and not reason:
            upto = min(pages, at + LOAD_KEYS_MAX)
            wanted = Wanted(
                namespace_number, parent_of(packed, at), packed[at * KEY_BYTES : upto * KEY_BYTES]
            )
            answer = self._ask([wanted], deadline, compute=self._counts.prefill.cost(page_tokens, at))
            if isinstance(answer, MissReason):
                reason = answer
                break
            (row,), decision = answer.rows, answer.decision
            if l3_from is None and row.from_l3 < row.pages:
                l3_from = at + row.from_l3
            at, reason = at + row.pages, _REASONS[row.reason]
        brought = 0 if l3_from is None else at - l3_from
        self._counts.add(pages=brought, waited_ns=time.monotonic_ns() - began_ns)
        return Staged(at, l3_from, reason, decision)

    def stage_group(
        self, shards: Sequence[tuple[int, bytes]], first: int, deadline: Deadline, *, page_tokens: int
    ) -> Staged:
        """Have the pages of several chains (number of the namespace, keys) from index `first` on brought, for all or none.

        `pages` is what each of them has then; `l3_from` is set if anything was brought for any.
        """
        pages = len(shards[0][1]) // KEY_BYTES
        step = max(1, LOAD_KEYS_MAX // len(shards))
        began_ns = time.monotonic_ns()
        at, brought, reason, decision = first, 0, MissReason.NONE, None
        while at < pages and not reason:
            upto = min(pages, at + step)
            rows = [
                Wanted(number, parent_of(packed, at), packed[at * KEY_BYTES : upto * KEY_BYTES])
                for number, packed in shards
            ]
            cost = self._counts.prefill.cost(page_tokens, at)
            answer = self._ask(rows, deadline, group=True, compute=cost)
            if isinstance(answer, MissReason):
                reason = answer
                break
            shortest, decision = min(answer.rows, key=lambda row: row.pages), answer.decision
            brought += sum(row.pages - row.from_l3 for row in answer.rows)
            at, reason = at + shortest.pages, _REASONS[shortest.reason]
        self._counts.add(pages=brought, waited_ns=time.monotonic_ns() - began_ns)
        return Staged(at, first if brought else None, reason, decision)

    def begin(
        self, namespace_number: int, packed: bytes, first: int, *, deadline_s: float, page_tokens: int
    ) -> LoadTicket | MissReason:
        """Ask for the pages of a chain from index `first` on, LOAD_KEYS_MAX of them at most, and wait for nothing."""
        keys = packed[first * KEY_BYTES : (first + LOAD_KEYS_MAX) * KEY_BYTES]
        try:
            return self._attached.begin_load(
                [Wanted(namespace_number, parent_of(packed, first), keys)],
                deadline_s=deadline_s,
                compute=self._counts.prefill.cost(page_tokens, first),
            )
        except ClosedError:
            return MissReason.UNREACHABLE

    def _ask(
        self, rows: Sequence[Wanted], deadline: Deadline, *, group: bool = False, compute: ComputeCost | None
    ) -> LoadedPages | MissReason:
        left_s = deadline.remaining_s()
        if left_s <= 0.0:
            return MissReason.DEADLINE
        try:
            return self._attached.load(rows, deadline_s=left_s, group=group, compute=compute)
        except OverloadedError:
            return MissReason.OVERLOADED
        except (ClosedError, ProtocolError):  # withdrawn by another thread, or cut off for talking nonsense
            return MissReason.UNREACHABLE
        except StrataError:  # it can't be carried out there, whatever the sidecar says of it
            return MissReason.L3_UNAVAILABLE


def parent_of(packed: bytes, index: int) -> PageKey | None:
    """Key of the page before one of a chain; None for the first."""
    return PageKey(packed[(index - 1) * KEY_BYTES : index * KEY_BYTES]) if index else None
