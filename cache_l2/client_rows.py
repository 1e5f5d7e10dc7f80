"""Clients as the sidecar sees them, and how far they have followed what it published (rules R18, R19)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kv_types.validity import EngineMode

_ROW_STATES = {0: "free", 1: "attached", 2: "orphaned"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    """One client as the sidecar sees it. `oldest_view` 0: no request in flight.

    The views and `own_freshness_ns` are its own words; whatever stands there can hold acknowledgements back, no more.
    """

    row: int
    pid: int
    state: str
    leases: int
    leased_bytes: int
    reservations: int
    applied_view: int
    oldest_view: int
    engine: EngineMode = EngineMode.NONE
    own_freshness_ns: int = 0

    @classmethod
    def of(cls, row: int, figures: Mapping[str, int]) -> ClientRow:
        """Read a row's statistics."""
        return cls(
            row=row, pid=figures["pid"], state=_ROW_STATES.get(figures["state"], str(figures["state"])),
            leases=figures["leases"], leased_bytes=figures["leased_bytes"],
            reservations=figures["reservations"], applied_view=figures["applied_view"],
            oldest_view=figures["oldest_view"], engine=EngineMode(figures["engine"]),
            own_freshness_ns=figures["own_freshness_ns"],
        )  # fmt: skip

    def acknowledges(self, view: int, *, now_ns: int) -> bool:
        """Whether an engine below this client uses nothing any more that was hidden up to a view (rule R18)."""
        if self.engine is EngineMode.NONE or self.applied_view >= view:
            return True
        return not self.may_serve(now_ns=now_ns)

    def may_serve(self, *, now_ns: int) -> bool:
        """Whether an engine below this client serves what it has without asking."""
        if self.engine is EngineMode.DROP:
            return self.own_freshness_ns > now_ns
        return self.engine is EngineMode.KEEP


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A client that holds back the acknowledgement of the present view, and why."""

    row: int
    pid: int
    why: str


def acknowledged_view(clients: Iterable[ClientRow], *, view: int, now_ns: int) -> int:
    """Return the newest view that every engine below these clients has applied."""
    return min(
        (client.applied_view for client in clients if not client.acknowledges(view, now_ns=now_ns)),
        default=view,
    )


def oldest_view(clients: Iterable[ClientRow], *, view: int) -> int:
    """Return the least view that a request in flight loaded; the present one when none is under way."""
    return min((client.oldest_view for client in clients if client.oldest_view), default=view)


def held_back_by(clients: Iterable[ClientRow], *, view: int, now_ns: int) -> list[HeldBack]:
    """Return the clients whose engines have not applied the present view, and why each is waited for."""
    return [
        HeldBack(client.row, client.pid, _why(client, view=view, now_ns=now_ns))
        for client in clients
        if not client.acknowledges(view, now_ns=now_ns)
    ]


def _why(client: ClientRow, *, view: int, now_ns: int) -> str:
    behind = f"its engine has applied view {client.applied_view} of {view}"
    if client.engine is EngineMode.DROP:
        return f"{behind}; it drops its pages in {(client.own_freshness_ns - now_ns) / 1e9:.1f} s"
    kept = f"{behind}; it keeps its pages (mode keep)"
    return kept if client.state == "attached" else f"{kept} and is {client.state}"
