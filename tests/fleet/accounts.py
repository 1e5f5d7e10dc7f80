"""What a worker counted of its look-ups, beside what its client says of them: they must be equal, page for page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kv_types.outcomes import MissReason


@dataclass(slots=True)
class Tally:
    """Pages of a worker's look-ups, by what came of them. `beyond`: found in L2 or brought from L3."""

    look_ups: int = 0
    requested: int = 0
    l1: int = 0
    beyond: int = 0
    missed: Counter[str] = field(default_factory=Counter)

    def count(self, *, wanted: int, l1: int, found: int, reason: MissReason) -> None:
        """One look-up that went beyond L1."""
        self.look_ups += 1
        self.requested += wanted
        self.l1 += l1
        self.beyond += found - l1
        if found < wanted:
            self.missed[reason.name.lower()] += wanted - found

    def told(self) -> dict[str, Any]:
        return {
            "look_ups": self.look_ups, "requested": self.requested, "l1": self.l1, "beyond": self.beyond,
            "missed": dict(self.missed),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Account:
    """Both counts at one time, CLOCK_BOOTTIME ns, between two look-ups."""

    worker: str
    at_ns: int
    own: Mapping[str, Any]
    client: Mapping[str, int]

    @classmethod
    def at(cls, at_ns: int, tally: Tally, statistics: Mapping[str, int | str]) -> Account:
        """What a worker knows at this time."""
        kept = {
            name: value
            for name, value in statistics.items()
            if isinstance(value, int) and (name in _COUNTED or name.startswith(_MISSED))
        }
        return cls("", at_ns, tally.told(), kept)

    @classmethod
    def of(cls, worker: str, told: Mapping[str, Any]) -> Account:
        """What a worker has written down."""
        return cls(worker, told["at"], told["own"], told["client"])

    def told(self) -> dict[str, Any]:
        return {"at": self.at_ns, "own": dict(self.own), "client": dict(self.client)}

    @property
    def l3_pages(self) -> int:
        return self.client["l3_pages"]

    def differences(self) -> list[str]:
        """Where the two don't agree, or the client's don't add up."""
        own, client = self.own, self.client
        missed = {
            name.removeprefix(_MISSED): pages
            for name, pages in client.items()
            if name.startswith(_MISSED) and pages
        }
        pairs = {
            "look-ups": (own["look_ups"], client["look_ups"]),
            "requested": (own["requested"], client["requested_pages"]),
            "L1": (own["l1"], client["l1_pages"]),
            "L2 and L3": (own["beyond"], client["l2_pages"] + client["l3_pages"]),
            "missed, by reason": ({name: pages for name, pages in own["missed"].items() if pages}, missed),
            "the sum": (
                client["l1_pages"] + client["l2_pages"] + client["l3_pages"] + sum(missed.values()),
                client["requested_pages"],
            ),
        }
        return [
            f"{what}: the worker has {mine}, its client {theirs}"
            for what, (mine, theirs) in pairs.items()
            if mine != theirs
        ]


_MISSED = "missed_pages_"
_COUNTED = frozenset({"look_ups", "requested_pages", "l1_pages", "l2_pages", "l3_pages"})
