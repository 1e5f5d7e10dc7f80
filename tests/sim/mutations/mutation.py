"""What a mutation is: edits of files, the kind of trouble in which a seed is looked for, and what counts as found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Edit(NamedTuple):
    """One place of a patch: `old` is there exactly once."""

    file: str
    old: str
    new: str


SAFETY = frozenset(
    {
        "BrokeFence", "BrokeFailClosed", "BrokeInFlight", "BrokePrefix", "BrokeWhole", "BrokeAccount", "BrokeDrained",
        "BrokeSparing", "BrokeLoad", "BrokeRecord", "BrokeChoice",
    }
)  # fmt: skip
LIVENESS = frozenset({"BrokeRecreate", "BrokeDeadline", "BrokeLeft"})


@dataclass(frozen=True)
class Mutation:
    """A rule taken away. `profile` is the kind of trouble among which a seed is looked for; `breaks`: what counts as found."""

    number: str
    title: str
    edits: tuple[Edit, ...]
    profile: int = 0
    breaks: frozenset[str] = SAFETY
