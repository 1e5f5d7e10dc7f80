"""Sums over namespaces and clients, by name, for the store's statistics."""

from __future__ import annotations

from collections.abc import Sequence

from cache_l2.accounts import NamespaceCounts
from cache_l2.client_rows import ClientRow


def page_figures(total: NamespaceCounts) -> dict[str, int]:
    """Accounts over all namespaces, in pages; reasons that never occurred are left out."""
    missed = total.missed_by_reason()
    return {
        "requested_pages": total.requested,
        "l1_pages": total.l1,
        "l2_pages": total.l2,
        "l3_pages": total.l3,
        **{f"missed_pages_{reason.name.lower()}": pages for reason, pages in missed.items()},
    }


def client_figures(clients: Sequence[ClientRow]) -> dict[str, int]:
    """What clients hold, and how many there are."""
    return {
        "clients_attached": sum(client.state == "attached" for client in clients),
        "clients_orphaned": sum(client.state == "orphaned" for client in clients),
        "leases": sum(client.leases for client in clients),
        "reservations": sum(client.reservations for client in clients),
    }
