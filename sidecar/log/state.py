"""How the sidecar stands with its log, as status and metrics tell it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from invalidation.log import LogStatistics
from kv_types.ids import Stamp


@dataclass(slots=True)
class LogCounters:
    """What following the log has counted, and what the log said last."""

    renewals: Counter[str] = field(default_factory=Counter)
    """Renewals by outcome: ok, unconfirmed, the log's refusals, or the reason of a failure."""
    tip: int = 0
    settled: bool = False
    replicas: int = 0
    confirmed_ns: int | None = None
    """When the last renewal that was confirmed came back, CLOCK_BOOTTIME."""
    failure: str = ""
    """What the last call that failed said; empty after one that did not."""
    statistics: LogStatistics | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """One moment of a sidecar that follows its log.

    `phase` and `reason` are short words for people and metrics, `reason` empty while hits are confirmed. `position` None:
    no log was joined yet. `confirmed_ago_s` None: never. `sizes` are tables of this sidecar and of the log, by name.
    `candidates` are the servers that were named for the log, `server` the one that is in use or tried now, which in a Cluster
    may be another; `server_errors` and `server_warnings` what was found wrong with it last.
    """

    phase: str
    reason: str
    member: bytes
    position: Stamp | None
    tip: int
    acknowledged: int
    drained: int
    settled: bool
    replicas: int
    confirmed_ago_s: float | None
    held_by: tuple[str, ...]
    draining_held_by: tuple[str, ...]
    renewals: Mapping[str, int]
    sizes: Mapping[str, int]
    pages_hidden: int
    records_applied: int
    candidates: tuple[str, ...] = ()
    server: str = ""
    server_errors: tuple[str, ...] = ()
    server_warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPicture:
    """A moment, with which log it is. `why_local`: why it is not on a server, where that was not asked for.

    `weights`: the version of each model's weights that was announced last.
    """

    fleet: str
    kind: str
    address: str
    why_local: str
    state: LogState
    weights: Mapping[str, str]
