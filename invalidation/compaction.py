"""Compaction: what is kept of the records of one incarnation, in bounded room, so that only too much is ever selected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from invalidation.turns import Turns
from kv_types.ids import NamespaceId
from kv_types.limits import (
    LOG_SCOPES_MAX,
    LOG_TOMBSTONES_MAX,
    LOG_TOMBSTONES_PER_SCOPE_MAX,
    LOG_TURN_ENTRIES_MAX,
)
from kv_types.selectors import Selector

Scope = NamespaceId | None
"""What a selector surely stays within: a namespace, or None, the whole fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionLimits:
    """How much is kept at most. The log and all who follow it use the limits of the product; tests use small ones."""

    tombstones_per_scope: int = LOG_TOMBSTONES_PER_SCOPE_MAX
    tombstones: int = LOG_TOMBSTONES_MAX
    scopes: int = LOG_SCOPES_MAX


def scope_of(selector: Selector) -> Scope:
    """The namespace that a selector names by id, None where it names none."""
    return selector.namespace


@dataclass(slots=True)
class Kept:
    """What the records up to now still say (rule R4): `floor`, `floors` and `tombstones`.

    A stamp below `floor` is not valid, one below `floors[namespace]` not in that namespace, one below `tombstones[selector]`
    not for what the selector selects. `tombstones` is in the order of the revisions.
    """

    limits: CompactionLimits = field(default_factory=CompactionLimits)
    floor: int = 0
    floors: dict[NamespaceId, int] = field(default_factory=dict)
    tombstones: dict[Selector, int] = field(default_factory=dict)
    _counts: dict[Scope, int] = field(default_factory=dict)


def keep(kept: Kept, selector: Selector, revision: int) -> list[Selector]:
    """Take in the record `revision`, newer than all before it; returns selectors whose tombstones were dropped for room.

    The rule, which the log's script follows step by step, so that both always hold the same:

    1. A selector of everything: floor = revision; floors and tombstones are cleared. Done.
    2. A selector of a namespace by its id and of nothing else: floors[namespace] = revision. It has no tombstone; those
       of the namespace stay, though they say nothing any more. Go on with 6.
    3. Any other: tombstones[selector] = revision, in place of the one that it may have had. Its scope is the namespace
       that it names by id, else the fleet.
    4. If there are more tombstones of this scope than `tombstones_per_scope`: drop all of them but the newest
       `tombstones_per_scope` div 2, as below.
    5. If there are more tombstones in all than `tombstones`: drop all but the newest `tombstones` div 2, as below.
    6. If there are more floors than `scopes`: drop all but the highest `scopes` div 2; floor becomes the highest of those
       dropped, where that is higher than it is.

    To drop a tombstone is to raise the floor of its scope to its revision, where it is lower: floors[namespace], or floor
    for the fleet. Never less than that revision (a page with the stamp before it may be selected), and never dropped
    without. No two tombstones and no two floors have the same revision, so what is newest is never in doubt.
    """
    if selector.is_everything:
        kept.floor = max(kept.floor, revision)
        kept.floors.clear()
        kept.tombstones.clear()
        kept._counts.clear()
        return []
    scope = scope_of(selector)
    dropped: list[Selector] = []
    if scope is not None and selector.is_one_namespace:
        kept.floors[scope] = max(kept.floors.get(scope, 0), revision)
    else:
        if kept.tombstones.pop(selector, None) is None:
            kept._counts[scope] = kept._counts.get(scope, 0) + 1
        kept.tombstones[selector] = revision
        if kept._counts[scope] > kept.limits.tombstones_per_scope:
            mine = [old for old in kept.tombstones if scope_of(old) == scope]
            dropped += _drop(kept, mine[: len(mine) - kept.limits.tombstones_per_scope // 2])
        if len(kept.tombstones) > kept.limits.tombstones:
            dropped += _drop(
                kept, list(kept.tombstones)[: len(kept.tombstones) - kept.limits.tombstones // 2]
            )
    _bound_floors(kept)
    return dropped


def loading(
    floors: Mapping[Scope, int], tombstones: Mapping[Selector, int], *, limits: CompactionLimits | None = None
) -> Turns[Kept]:
    """Take up what a log keeps, as `Boot` tells it. Whatever is too much for the limits is dropped by the same rule."""
    kept = Kept(limits=limits or CompactionLimits())
    kept.floor = floors.get(None, 0)
    kept.floors = {scope: revision for scope, revision in floors.items() if scope is not None}
    for count, (selector, revision) in enumerate(sorted(tombstones.items(), key=itemgetter(1)), 1):
        if (
            selector.is_everything
        ):  # of a log that wrote what this one does not understand; floors above it stand
            kept.floor = max(kept.floor, revision)
        else:
            keep(kept, selector, revision)
        if not count % LOG_TURN_ENTRIES_MAX:
            yield
    _bound_floors(kept)
    return kept


def floors_of(kept: Kept) -> dict[Scope, int]:
    """All floors in one table, that of everything under None; none that is 0."""
    return ({None: kept.floor} if kept.floor else {}) | kept.floors


def _drop(kept: Kept, selectors: list[Selector]) -> list[Selector]:
    for selector in selectors:
        revision, scope = kept.tombstones.pop(selector), scope_of(selector)
        kept._counts[scope] -= 1
        if not kept._counts[scope]:
            del kept._counts[scope]
        if scope is None:
            kept.floor = max(kept.floor, revision)
        else:
            kept.floors[scope] = max(kept.floors.get(scope, 0), revision)
    return selectors


def _bound_floors(kept: Kept) -> None:
    if len(kept.floors) <= kept.limits.scopes:
        return
    by_height = sorted(kept.floors.items(), key=lambda item: item[1])
    for scope, revision in by_height[: len(by_height) - kept.limits.scopes // 2]:
        del kept.floors[scope]
        kept.floor = max(kept.floor, revision)
