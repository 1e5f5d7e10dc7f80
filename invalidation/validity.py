"""Validity: what the log says at one position, and whether a page of a stamp may be published or served (rules R2–R5)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter

from invalidation.compaction import CompactionLimits
from invalidation.log import Boot
from invalidation.records import NO_DIGEST, LogRecord
from invalidation.selector_tables import OriginMatches, SelectorTables
from invalidation.turns import Turns
from kv_types.events import Selected, WeightsAnnounced
from kv_types.ids import PageKey, Stamp
from kv_types.limits import LOG_WEIGHTS_MAX, NAMESPACES_MAX, ORIGINS_REMEMBERED_MAX
from kv_types.namespace import Namespace
from kv_types.outcomes import RefuseReason
from kv_types.selectors import EVERYTHING, Origin, Selector

Chain = Callable[[], Sequence[PageKey] | None]
"""Gives the keys of a page's chain, root first, the page last; None where it is too long to be looked at."""


class _Subject:
    """What is judged: the revision of a page's stamp, and the keys of its chain, asked for at most once."""

    def __init__(self, revision: int, chain: Chain) -> None:
        self.revision = revision
        self._chain = chain

    @cached_property
    def keys(self) -> frozenset[PageKey] | None:
        """The keys, None where they are too many to be looked at."""
        keys = self._chain()
        return None if keys is None else frozenset(keys)


class Validity:
    """The log's state at `position`, by which commits are judged. Pure, not thread-safe.

    A page is valid iff its stamp is of this incarnation, not ahead of the position, and not below any floor or tombstone
    that selects the page or anything it was computed from. What a judgement costs: nothing for a stamp that no record is
    newer than, which is nearly every one; else a look into a table a page of the chain; and only for stamps older than
    the newest selector by origin a walk through those that are newer than the stamp. `skew_ms` is how far wall clocks may
    be apart when a selector names times.
    """

    def __init__(self, *, skew_ms: int, limits: CompactionLimits | None = None) -> None:
        self._skew_ms = skew_ms
        self._limits = limits or CompactionLimits()
        self.position: Stamp | None = None
        """Revision up to which records are applied; None: nothing is known yet, and every stamp is refused."""
        self.digest = NO_DIGEST
        """Digest of the log at the position."""
        self._weights: OrderedDict[str, str] = OrderedDict()
        self._tables = SelectorTables(self._limits)

    @property
    def weights(self) -> Mapping[str, str]:
        """Weights version announced last for each model: in this incarnation, or else in one before it.

        That a log is lost does not load the old weights again, and nobody but those who heard of them remembers.
        """
        return self._weights

    def restarting(self, boot: Boot) -> Turns[None]:
        """Replace all by what the log says: made aside, and put in place of what was at a stroke, in the last turn.

        Until then it judges as before, at the position before: by all or nothing of what is new, never by a part of it. Of
        weights that the log says nothing of, what was heard before stays.
        """
        tables = yield from SelectorTables.of(boot, self._limits)
        self.position, self.digest, self._tables = boot.tip, boot.digest, tables
        for model, version in boot.weights.items():
            self._announce(model, version)

    def apply(self, record: LogRecord) -> None:
        """Take in the record after the position; raises ValueError on any other: a gap must never go unnoticed."""
        if self.position is None or record.revision != self.position.revision + 1:
            raise ValueError(f"record {record.revision} does not follow {self.position}")
        match record.event:
            case Selected(selector):
                if selector.is_everything:
                    self._tables = SelectorTables(self._limits)
                self._tables.select(selector, record.revision)
            case WeightsAnnounced(model, version):
                self._announce(model, version)
            case other:
                raise ValueError(f"record {record.revision} says {other}, which no log holds")
        self.position = Stamp(self.position.incarnation, record.revision)
        self.digest = record.digest

    def judge(self, namespace: Namespace, stamp: Stamp, origin: Origin, chain: Chain) -> RefuseReason:
        """Reason why a page must not be published or served, NONE where nothing speaks against it (I3, R2, R5).

        `origin` is the page's own. `chain` is called only when its keys decide; a chain that is too long to be looked at
        is refused.
        """
        position = self.position
        if (
            position is None
            or stamp.incarnation != position.incarnation
            or stamp.revision > position.revision
        ):
            return RefuseReason.STAMP_FOREIGN
        if stamp.revision >= self._tables.newest:
            return RefuseReason.NONE
        selected = self._selected_by(namespace, origin, _Subject(stamp.revision, chain))
        return RefuseReason.NONE if selected is None else RefuseReason.INVALIDATED

    def judge_loaded(self, namespace: Namespace, stamp: Stamp, origin: Origin, chain: Chain) -> RefuseReason:
        """See CommitJudge: what is stored again is judged as what is stored first."""
        return self.judge(namespace, stamp, origin, chain)

    def explain(self, namespace: Namespace, stamp: Stamp, origin: Origin, chain: Chain) -> str:
        """Say in a line, for people, what a judgement rests on."""
        position = self.position
        if position is None:
            return "the log has not been read yet"
        if stamp.incarnation != position.incarnation:
            return (
                f"its stamp is of log incarnation {stamp.incarnation.hex()}, the log's is "
                f"{position.incarnation.hex()}"
            )
        if stamp.revision > position.revision:
            return f"its stamp {stamp.revision} lies ahead of this sidecar's position {position.revision}"
        found = self._selected_by(namespace, origin, _Subject(stamp.revision, chain))
        if found is None:
            return f"valid: no record after {stamp.revision} selects it"
        return f"its stamp {stamp.revision} is below {found}"

    def newer(self, revision: int) -> list[tuple[Selector, int]]:
        """What a follower at `revision`, whose pages have stamps up to there, must hide: selectors and their revisions.

        Oldest first. Floors stand as selectors of everything or of a namespace; what they cover is left out.
        """
        kept = self._tables.kept
        if kept.floor > revision:
            return [(EVERYTHING, kept.floor)]
        selectors = [(Selector(namespace=scope), at) for scope, at in kept.floors.items() if at > revision]
        covered = {selector.namespace for selector, _ in selectors}
        for selector, at in kept.tombstones.items():
            if at > revision and selector.namespace not in covered:
                selectors.append((selector, at))
        return sorted(selectors, key=itemgetter(1))

    def statistics(self) -> Mapping[str, int]:
        """Sizes of the tables, all bounded."""
        return {**self._tables.statistics(), "weights": len(self._weights)}

    def _announce(self, model: str, version: str) -> None:
        self._weights[model] = version
        self._weights.move_to_end(model)
        while len(self._weights) > LOG_WEIGHTS_MAX:
            self._weights.popitem(last=False)

    # --- judging ---

    def _selected_by(self, namespace: Namespace, origin: Origin, subject: _Subject) -> str | None:
        """What selects a page whose stamp is older than it, for people; None: nothing."""
        revision = subject.revision
        if revision < self._tables.kept.floor:
            return f"the floor of everything, {self._tables.kept.floor}"
        floor = self._tables.kept.floors.get(namespace.id, 0)
        if revision < floor:
            return f"its namespace's floor, {floor}"
        floor = self._field_floor(namespace)
        if revision < floor:
            return f"record {floor}, which selects its namespace by what it is"
        if revision < self._tables.newest_key:
            found = self._key_floor(namespace, subject)
            if found:
                return f"record {found}, which selects a page of its chain"
        if revision < self._tables.newest_origin:
            found = self._origin_floor(namespace, origin, subject)
            if found:
                return f"record {found}, which selects it by its origin"
        return None

    def _field_floor(self, namespace: Namespace) -> int:
        """Newest revision that a selector by namespace fields has for it; looks only at those since the last time.

        A tombstone that was dropped since leaves its revision here, where the floor that it became says no less.
        """
        floor, seen = self._tables.field_floors.get(namespace.id, (0, 0))
        newest = seen
        for selector, revision in reversed(self._tables.fields.items()):
            if revision <= seen:
                break
            newest = max(newest, revision)
            if selector.matches_namespace(namespace):
                floor = revision
                break
        self._tables.field_floors[namespace.id] = floor, newest
        self._tables.field_floors.move_to_end(namespace.id)
        if len(self._tables.field_floors) > NAMESPACES_MAX:
            self._tables.field_floors.popitem(last=False)
        return floor

    def _key_floor(self, namespace: Namespace, subject: _Subject) -> int:
        keys = subject.keys
        if keys is None:
            return self._tables.newest_key
        if self._tables.keys.keys().isdisjoint(keys):
            return 0
        for key in keys:
            for selector, at in self._tables.keys.get(key, {}).items():
                if at > subject.revision and selector.matches_namespace(namespace):
                    return at
        return 0

    def _origin_floor(self, namespace: Namespace, origin: Origin, subject: _Subject) -> int:
        floor, of_keys = self._origin_matches(namespace, origin, subject.revision)
        if floor or not of_keys:
            return floor
        keys = subject.keys
        return next((at for key, at in of_keys if keys is None or key in keys), 0)

    def _origin_matches(self, namespace: Namespace, origin: Origin, revision: int) -> OriginMatches:
        """What selects pages of one origin: a revision, or else keys and revisions. All pages of a put have one origin."""
        asked = namespace.id, origin, revision
        known = self._tables.origin_memory.get(asked)
        if known is not None:
            return known
        floor, of_keys = 0, []
        for selector, at in reversed(self._tables.origins.items()):
            if at <= revision:
                break
            if selector.matches_namespace(namespace) and selector.matches_origin(
                origin, skew_ms=self._skew_ms
            ):
                if selector.key is None:
                    floor = at
                    break
                of_keys.append((selector.key, at))
        if len(self._tables.origin_memory) >= ORIGINS_REMEMBERED_MAX:
            self._tables.origin_memory.clear()
        self._tables.origin_memory[asked] = floor, of_keys
        return floor, of_keys
