"""Clients as the sidecar sees them, and how far they have followed what it published (rules R18, R19)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kv_types.validity import EngineMode

_NO_LIMIT = (1 << 64) - 1
_ROW_STATES = {0: "free", 1: "attached", 2: "orphaned"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    """One client as the sidecar sees it, under the name that it gave.

    `oldest_view` 0: no request in flight; `oldest_hidden_view` 0: it leases nothing that is hidden. The views and
    `own_freshness_ns` are its own words, all but the latter view; whatever stands there can hold back what is told to the
    log, no more.
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
    oldest_hidden_view: int = 0
    name: str = ""

    @classmethod
    def of(cls, row: int, figures: Mapping[str, int], *, name: str = "") -> ClientRow:
        """Read a row's statistics."""
        return cls(
            row=row, pid=figures["pid"], state=_ROW_STATES.get(figures["state"], str(figures["state"])),
            leases=figures["leases"], leased_bytes=figures["leased_bytes"],
            reservations=figures["reservations"], applied_view=figures["applied_view"],
            oldest_view=figures["oldest_view"], engine=EngineMode(figures["engine"]),
            own_freshness_ns=figures["own_freshness_ns"], oldest_hidden_view=figures["oldest_hidden_view"],
            name=name,
        )  # fmt: skip

    def acknowledges(self, view: int, *, now_ns: int) -> bool:
        """Whether an engine below this client uses nothing any more that was hidden up to a view (rule R18)."""
        if self.engine is EngineMode.NONE or self.applied_view >= view:
            return True
        return not self.may_serve(now_ns=now_ns)

    def may_serve(self, *, now_ns: int) -> bool:
        """Whether an engine below this client serves what it has without asking. One that is gated claims nothing meanwhile."""
        return self.engine is not EngineMode.NONE and self.own_freshness_ns > now_ns


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A client that holds back what is told of the present view, and why."""

    row: int
    pid: int
    name: str
    why: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name}): {self.why}" if self.name else f"pid {self.pid}: {self.why}"


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
        HeldBack(client.row, client.pid, client.name, _why(client, view=view, now_ns=now_ns))
        for client in clients
        if not client.acknowledges(view, now_ns=now_ns)
    ]


def undrained(clients: Iterable[ClientRow], *, view: int) -> list[HeldBack]:
    """Return the clients that use what is older than the present view, and what each of them does (rule R19)."""
    return [
        HeldBack(client.row, client.pid, client.name, why)
        for client in clients
        if (why := _what_is_used(client, view=view))
    ]


def _what_is_used(client: ClientRow, *, view: int) -> str:
    uses = []
    if 0 < client.oldest_view < view:
        uses.append(f"a request of it began at view {client.oldest_view} of {view}")
    if 0 < client.oldest_hidden_view < view:
        uses.append(f"it leases a page that was hidden behind view {client.oldest_hidden_view} of {view}")
    if uses and client.state != "attached":
        uses.append(f"it is {client.state}")
    return "; ".join(uses)


def _why(client: ClientRow, *, view: int, now_ns: int) -> str:
    behind = f"its engine has applied view {client.applied_view} of {view}"
    if client.own_freshness_ns < _NO_LIMIT:
        return f"{behind}; it serves on without asking for {(client.own_freshness_ns - now_ns) / 1e9:.1f} s"
    kept = f"{behind}; it keeps its pages (mode keep)"
    return kept if client.state == "attached" else f"{kept} and is {client.state}"
