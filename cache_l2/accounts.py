"""Accounts of look-ups: pages requested, served a tier and missed by reason, exact over living and ended clients (I7)."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Protocol

from cache_l2.namespaces import NamespaceRecord
from kv_types.errors import LimitExceededError, OverloadedError
from kv_types.ids import NamespaceId
from kv_types.limits import CLIENT_COUNT_MAX, COUNT_SUM_MAX, NAMESPACES_PER_CLIENT_MAX
from kv_types.outcomes import MissReason


class RowCounts(Protocol):
    """What the accounts need of the arena."""

    def row_counts(self, row: int, counter: int) -> dict[str, int]:
        """One consistent copy of a row's counters."""
        ...

    def reset_counts(self, row: int, counter: int) -> None:
        """Set a row's counters to zero."""
        ...


@dataclass(frozen=True, slots=True)
class NamespaceCounts:
    """Pages unless the name says otherwise. requested = l1 + l2 + l3 + sum(missed) whenever no look-up is under way."""

    requested: int = 0
    l1: int = 0
    l2: int = 0
    l3: int = 0
    missed: tuple[int, ...] = (0,) * len(MissReason)
    bytes_read: int = 0
    bytes_written: int = 0
    collisions: int = 0
    look_ups: int = 0

    def __add__(self, other: NamespaceCounts) -> NamespaceCounts:
        missed = tuple(_sum(a, b) for a, b in zip(self.missed, other.missed, strict=True))
        plain = (field.name for field in fields(self) if field.name != "missed")
        return NamespaceCounts(
            missed=missed, **{name: _sum(getattr(self, name), getattr(other, name)) for name in plain}
        )

    def missed_by_reason(self) -> dict[MissReason, int]:
        """Pages missed a reason, reasons that never occurred left out."""
        return {reason: self.missed[reason] for reason in MissReason if self.missed[reason]}

    @property
    def is_balanced(self) -> bool:
        """Whether every requested page is accounted for."""
        return self.requested == self.l1 + self.l2 + self.l3 + sum(self.missed)


class Accounts:
    """Which counter of which row counts for which namespace, and the sums of rows and counters that have ended."""

    def __init__(self, arena: RowCounts, *, counters_per_row: int = NAMESPACES_PER_CLIENT_MAX) -> None:
        self._arena = arena
        self._counters_per_row = counters_per_row
        self._bound: dict[int, OrderedDict[NamespaceId, int]] = {}
        self._rows_of: Counter[NamespaceId] = Counter()
        """How many rows count under each namespace."""
        self._ended: dict[NamespaceId, NamespaceCounts] = {}
        self.forgotten = NamespaceCounts()
        """Sums of namespaces that are not told apart any more."""

    def open_row(self, row: int) -> None:
        """A cleared row begins."""
        self._bound[row] = OrderedDict()

    def bind(self, row: int, record: NamespaceRecord, *, recycle: bool = False) -> int:
        """Return the counter of a namespace in a row, the same one each time.

        `recycle` takes the counter of the namespace not used for longest once all are taken; only the owner of the
        row may ask for it, since it must not hold on to a counter. Raises LimitExceededError, OverloadedError where each
        counter is of look-ups that are under way.
        """
        bound = self._bound[row]
        counter = bound.get(record.id)
        if counter is None:
            counter = self._free_counter(row, recycle=recycle)
            bound[record.id] = counter
            self._rows_of[record.id] += 1
        bound.move_to_end(record.id)
        return counter

    def unbind(self, row: int, namespace: NamespaceId) -> None:
        """Give a counter back, whose client has said that it counts under it no more. Does nothing when there is none."""
        counter = self._bound[row].pop(namespace, None)
        if counter is not None:
            self._fold(namespace, *self._read(row, counter))
            self._arena.reset_counts(row, counter)
            self._release(namespace)

    def end_row(self, row: int) -> list[NamespaceId]:
        """Fold a row whose process has ended: what it began and did not finish counts as missed(aborted) (rule R20).

        Returns the namespaces that it counted under.
        """
        bound = self._bound.pop(row)
        for namespace, counter in bound.items():
            self._fold(namespace, *self._read(row, counter))
            self._release(namespace)
        return list(bound)

    def counts_under(self, row: int, namespace: NamespaceId) -> bool:
        """Whether a row counts under a namespace."""
        return namespace in self._bound.get(row, ())

    def is_bound(self, namespace: NamespaceId) -> bool:
        """Whether a row counts under a namespace."""
        return namespace in self._rows_of

    def add(self, namespace: NamespaceId, counts: NamespaceCounts) -> None:
        """Count what no row does."""
        self._ended[namespace] = self._ended.get(namespace, NamespaceCounts()) + counts

    def forget(self, namespace: NamespaceId) -> None:
        """Tell a namespace that no row counts under apart no more; what it counted stays in the sum of such."""
        assert not self.is_bound(namespace), "its rows go on counting"
        self.forgotten += self._ended.pop(namespace, NamespaceCounts())

    def totals(self) -> Mapping[NamespaceId, NamespaceCounts]:
        """Sums a namespace over rows that live and rows that have ended, without what was forgotten."""
        totals = dict(self._ended)
        for row, bound in self._bound.items():
            for namespace, counter in bound.items():
                _, living = self._read(row, counter)
                totals[namespace] = totals.get(namespace, NamespaceCounts()) + living
        return totals

    def _free_counter(self, row: int, *, recycle: bool) -> int:
        bound = self._bound[row]
        if len(bound) < self._counters_per_row:
            return min(set(range(self._counters_per_row)) - set(bound.values()))
        if recycle:
            for namespace, counter in bound.items():
                unfinished, counts = self._read(row, counter)
                if not unfinished:
                    self._fold(namespace, unfinished, counts)
                    self._arena.reset_counts(row, counter)
                    del bound[namespace]
                    self._release(namespace)
                    return counter
            raise OverloadedError(
                f"look-ups of {len(bound)} namespaces are under way, which is all at a time; try again"
            )
        raise LimitExceededError(
            f"one client counts {self._counters_per_row} namespaces at most: use one client a model, or forget namespaces"
        )

    def _fold(self, namespace: NamespaceId, unfinished: int, counts: NamespaceCounts) -> None:
        if unfinished > 0:
            aborted = tuple(unfinished if reason is MissReason.ABORTED else 0 for reason in MissReason)
            counts += NamespaceCounts(requested=unfinished, missed=aborted)
        self.add(namespace, counts)

    def _release(self, namespace: NamespaceId) -> None:
        self._rows_of[namespace] -= 1
        if not self._rows_of[namespace]:
            del self._rows_of[namespace]

    def _read(self, row: int, counter: int) -> tuple[int, NamespaceCounts]:
        """(pages begun and not finished, what is finished); nothing when the row's client wrote garbage there."""
        try:
            raw = self._arena.row_counts(row, counter)
        except RuntimeError:  # rewritten at every attempt to read it: no look-up counts so fast
            return 0, NamespaceCounts()
        missed = tuple(raw[f"miss_{int(reason)}"] for reason in MissReason)
        plain = {field.name: raw[field.name] for field in fields(NamespaceCounts) if field.name != "missed"}
        counts = NamespaceCounts(missed=missed, **plain)
        if max(raw.values()) > CLIENT_COUNT_MAX or not counts.is_balanced:
            return 0, NamespaceCounts()
        return raw["begun"] - raw["requested"], counts


def _sum(a: int, b: int) -> int:
    return min(a + b, COUNT_SUM_MAX)
