"""Tally: what a record store counts, under the names that its statistics have in every implementation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kv_types.outcomes import MissReason, PutOutcome, Refused, RefuseReason

MISSES = (
    MissReason.ABSENT,
    MissReason.CLOSED,
    MissReason.ABORTED,
    MissReason.DEADLINE,
    MissReason.CORRUPT,
    MissReason.UNREADABLE,
    MissReason.OVERLOADED,
    MissReason.L3_UNAVAILABLE,
)
"""Reasons that a record store gives."""
REFUSALS = (
    RefuseReason.FULL,
    RefuseReason.TOO_LARGE,
    RefuseReason.CLOSED,
    RefuseReason.UNREACHABLE,
    RefuseReason.DEADLINE,
    RefuseReason.OVERLOADED,
)
_PLAIN = (
    "probes", "probed", "loads", "loaded", "loaded_bytes", "stores", "stored", "stored_bytes",
    "corrupt", "unreadable", "refreshed", "removed",
)  # fmt: skip


class Tally:
    """Counters that only grow. `loads` = `loaded` + all `load_missed_…`; `stores` = `stored` + all `store_refused_…`."""

    def __init__(self) -> None:
        names = [*_PLAIN]
        names += [f"load_missed_{reason.name.lower()}" for reason in MISSES]
        names += [f"probe_missed_{reason.name.lower()}" for reason in MISSES]
        names += [f"store_refused_{reason.name.lower()}" for reason in REFUSALS]
        self._counts: Counter[str] = Counter(dict.fromkeys(names, 0))

    def probed(self, results: Sequence[object]) -> None:
        """One question about so many records has been answered."""
        self._counts["probes"] += 1
        for result in results:
            if isinstance(result, MissReason):
                self._counts[f"probe_missed_{result.name.lower()}"] += 1
            else:
                self._counts["probed"] += 1

    def loaded(self, result: MissReason | None, *, payload_bytes: int) -> None:
        """A load has ended; None: with its page."""
        self._counts["loads"] += 1
        if result is None:
            self._counts["loaded"] += 1
            self._counts["loaded_bytes"] += payload_bytes
        else:
            self._counts[f"load_missed_{result.name.lower()}"] += 1

    def stored(self, outcome: PutOutcome) -> None:
        """A store has ended; its bytes, as they lie in L3, are counted by themselves."""
        self._counts["stores"] += 1
        if isinstance(outcome, Refused):
            self._counts[f"store_refused_{outcome.reason.name.lower()}"] += 1
        else:
            self._counts["stored"] += 1

    def count(self, name: str, by: int = 1) -> None:
        """Count something that stands for itself."""
        self._counts[name] += by

    def read(self) -> Mapping[str, int]:
        """All counters by name."""
        return dict(self._counts)
