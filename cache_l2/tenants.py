"""Tenants' shares of one arena: which tenant of the arena a namespace counts for, and what each has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cache_l2.namespaces import NamespaceRecord

EVERYBODY_ELSE = ""
"""Stands for all tenants that have no share, and for pages of none: no tenant with a share is called so."""


class SharedArena(Protocol):
    """What shares need of the arena."""

    def set_tenant_shares(self, share_bytes: Sequence[int]) -> None:
        """Give tenants 1, 2, … these shares, before anything is stored."""
        ...

    def set_tenant(self, namespace_slot: int, tenant: int) -> None:
        """Say whose a namespace is, before it has pages."""
        ...

    def tenant_statistics(self) -> list[dict[str, int]]:
        """By tenant, from 0 on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFigures:
    """One tenant. Bytes are of slots: visible, reserved, or granted in advance; evictions are pages, for want of room.

    `evictions_own` were for itself, `evictions_caused` were others' for it, `evictions_suffered` its own for others.
    """

    share_bytes: int
    used_bytes: int
    evictions_own: int
    evictions_caused: int
    evictions_suffered: int


class Tenants:
    """Numbers tenants with a share from 1 on; 0 is everybody else. Without shares it asks nothing of the arena."""

    def __init__(self, arena: SharedArena, shares: Mapping[str, float], *, arena_bytes: int) -> None:
        """`shares` are parts of `arena_bytes`, by tenant."""
        self._arena = arena
        self._numbers = {tenant: number for number, tenant in enumerate(shares, start=1)}
        if shares:
            arena.set_tenant_shares([int(share * arena_bytes) for share in shares.values()])

    def assign(self, record: NamespaceRecord) -> None:
        """A namespace was registered just now: its pages will count for its tenant."""
        if self._numbers:
            self._arena.set_tenant(record.number, self._numbers.get(record.namespace.tenant, 0))

    def figures(self) -> dict[str, TenantFigures]:
        """By tenant, EVERYBODY_ELSE first; nothing where nobody has a share."""
        if not self._numbers:
            return {}
        names = (EVERYBODY_ELSE, *self._numbers)
        told = self._arena.tenant_statistics()
        return {name: TenantFigures(**figures) for name, figures in zip(names, told, strict=True)}
