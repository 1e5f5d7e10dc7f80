"""Which namespace gives its number up once all are taken: one that no client counts under and no page goes by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from cache_l2.accounts import Accounts
from cache_l2.namespaces import NamespaceRecord
from kv_types.limits import HIDING_STEP_WORK_MAX


class NumberedArena(Protocol):
    """What goes by a number in the arena."""

    def namespace_entries(self, namespace_slot: int) -> int:
        """Pages of any state that still go by it."""
        ...

    def evict_namespace(self, namespace_slot: int) -> int:
        """Evict its pages; returns those that are left."""
        ...


class NamespaceNumbers:
    """Frees numbers. The work of one call is bounded: a look at each namespace, and one step of hiding."""

    def __init__(self, arena: NumberedArena, accounts: Accounts) -> None:
        self._arena = arena
        self._accounts = accounts

    def give_up(self, idle: Iterable[NamespaceRecord]) -> NamespaceRecord | None:
        """Return one by whose number nothing goes any more; None where there is none.

        Idle for longest first: whoever has no pages goes before anybody loses some.
        """
        unbound = [record for record in idle if not self._accounts.is_bound(record.id)]
        entries = [self._arena.namespace_entries(record.number) for record in unbound]
        for record, count in zip(unbound, entries, strict=True):
            if not count:
                return record
        left = HIDING_STEP_WORK_MAX
        for record, count in zip(unbound, entries, strict=True):
            if count <= left:
                left -= count
                if not self._arena.evict_namespace(record.number):
                    return record
        return None
