"""Listing: since when each namespace is in the fleet's directory, and that nothing older is stored under it.

An invalidation by a prefix of tokens becomes one selector for each namespace that the directory holds, since only a
namespace and tokens together have a key. So no page may exist under a namespace whose computation began before the
directory had it: whoever reads the directory behind an append has then seen every namespace with pages older than that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from cache_l2.judging import Chain, CommitJudge
from kv_types.ids import LogIncarnation, NamespaceId, Stamp
from kv_types.namespace import Namespace
from kv_types.outcomes import RefuseReason
from kv_types.selectors import Origin


class Listings:
    """For each namespace a position of the log by which the fleet's directory had it. Pure, not thread-safe."""

    def __init__(self) -> None:
        self._since: dict[NamespaceId, Stamp] = {}

    def __len__(self) -> int:
        return len(self._since)

    def enter(self, namespaces: Iterable[NamespaceId], tip: Stamp) -> None:
        """The directory has these at `tip`. Of one incarnation the first time counts: what is listed stays so."""
        for namespace in namespaces:
            since = self._since.get(namespace)
            if since is None or since.incarnation != tip.incarnation:
                self._since[namespace] = tip

    def forget_others(self, registered: Collection[NamespaceId]) -> None:
        """Keep only those that are registered, which bounds how many there are."""
        for namespace in self._since.keys() - registered:
            del self._since[namespace]

    def has(self, namespace: NamespaceId, incarnation: LogIncarnation) -> bool:
        """Whether the directory of this incarnation has it."""
        since = self._since.get(namespace)
        return since is not None and since.incarnation == incarnation

    def lists(self, namespace: NamespaceId, position: Stamp | None) -> bool:
        """Whether what is computed from `position` on may be stored under the namespace."""
        since = self._since.get(namespace)
        return (
            since is not None
            and position is not None
            and since.incarnation == position.incarnation
            and since.revision <= position.revision
        )


class ListedJudge:
    """A CommitJudge that besides refuses, as UNLISTED, what was begun before its namespace was listed."""

    def __init__(self, judge: CommitJudge, listings: Listings) -> None:
        self._judge = judge
        self._listings = listings

    @property
    def position(self) -> Stamp | None:
        """How far the log has been applied."""
        return self._judge.position

    def judge(self, namespace: Namespace, stamp: Stamp, origin: Origin, chain: Chain) -> RefuseReason:
        """See CommitJudge."""
        reason = self._judge.judge(namespace, stamp, origin, chain)
        if reason is RefuseReason.NONE and not self._listings.lists(namespace.id, stamp):
            return RefuseReason.UNLISTED
        return reason

    def judge_loaded(self, namespace: Namespace, stamp: Stamp, origin: Origin, chain: Chain) -> RefuseReason:
        """See CommitJudge: whoever stored it first was told what was listed by its stamp, which it keeps."""
        return self._judge.judge_loaded(namespace, stamp, origin, chain)
