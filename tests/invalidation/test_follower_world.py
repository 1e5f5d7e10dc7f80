"""The follower in a hostile world, seed by seed; and broken followers in it, each of which must be found out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from invalidation.follower import (
    Action,
    Apply,
    Follower,
    Phase,
    PublishFreshness,
    _Applying,
)
from invalidation.log import Boot, Renewal, RenewalStatus
from invalidation.records import LogRecord
from kv_types.ids import Stamp
from tests.invalidation.follower_world import LEASE_NS, BrokenPromiseError, FollowerWorld

SEEDS = range(400)
STEPS = 80


def test_what_it_vouches_for_holds_whatever_happens() -> None:
    phases: set[Phase] = set()
    for seed in SEEDS:
        world = FollowerWorld(seed)
        world.run(STEPS)
        phases |= world.phases
    assert phases == set(Phase), "the world leads it everywhere"


class CountsFromTheAnswer(Follower):
    def _renewed(self, renewal: Renewal, sent_ns: int, now_ns: int) -> list[Action]:
        return super()._renewed(renewal, now_ns, now_ns)


class VouchesBeforeItApplies(Follower):
    def _renewed(self, renewal: Renewal, sent_ns: int, now_ns: int) -> list[Action]:
        actions = super()._renewed(renewal, sent_ns, now_ns)
        if actions and isinstance(actions[0], Apply) and renewal.confirmed:
            return [PublishFreshness(sent_ns + LEASE_NS), *actions]
        return actions


class VouchesForABatch(Follower):
    def _take(self, renewal: Renewal, before: Stamp, sent_ns: int) -> list[Action]:
        actions = super()._take(renewal, before, sent_ns)
        if self._applying is not None and renewal.confirmed:
            self._applying = _Applying(self._applying.position, self._applying.digest, sent_ns + LEASE_NS)
        return actions


class NeedsNoConfirmation(Follower):
    def _renewed(self, renewal: Renewal, sent_ns: int, now_ns: int) -> list[Action]:
        confirmed = Renewal(
            renewal.status, renewal.incarnation, renewal.number, renewal.tip, renewal.records, True, 0
        )
        return super()._renewed(confirmed, sent_ns, now_ns)


class IgnoresGaps(Follower):
    def _renewed(self, renewal: Renewal, sent_ns: int, now_ns: int) -> list[Action]:
        if renewal.status is RenewalStatus.GAP and self.position is not None:
            fine = Renewal(
                RenewalStatus.OK, renewal.incarnation, renewal.number, self.position.revision, [], True, 0
            )
            return super()._renewed(fine, sent_ns, now_ns)
        return super()._renewed(renewal, sent_ns, now_ns)


class IgnoresForks(Follower):
    def _renewed(self, renewal: Renewal, sent_ns: int, now_ns: int) -> list[Action]:
        if renewal.status is RenewalStatus.FORK and self.position is not None:
            fine = Renewal(
                RenewalStatus.OK, renewal.incarnation, renewal.number, self.position.revision, [], True, 0
            )
            return super()._renewed(fine, sent_ns, now_ns)
        return super()._renewed(renewal, sent_ns, now_ns)


class KeepsPagesAcrossIncarnations(Follower):
    def _booted(self, boot: Boot, now_ns: int) -> list[Action]:
        before = self.position
        if before is not None:
            self.position = Stamp(boot.tip.incarnation, before.revision)
        return super()._booted(boot, now_ns)


class SettlesAtOnce(Follower):
    def _booted(self, boot: Boot, now_ns: int) -> list[Action]:
        actions = super()._booted(boot, now_ns)
        if self._settle_at_ns is not None:
            self._settle_at_ns = now_ns
        return actions


class NeverBootsAgain(Follower):
    def _boot_again(self, reason: str, now_ns: int) -> None:
        self._stumble(Phase.BOOTING, reason, now_ns, free=1)


class VouchesForNews(Follower):
    def _heard(self, after: Stamp, records: Sequence[LogRecord]) -> list[Action]:
        actions = super()._heard(after, records)
        if self._applying is not None and actions:
            self._applying = replace(self._applying, freshness_ns=self._renewed_ns + 2 * LEASE_NS)
        return actions


BROKEN: Sequence[type[Follower]] = (
    CountsFromTheAnswer, VouchesBeforeItApplies, VouchesForABatch, NeedsNoConfirmation, IgnoresGaps,
    IgnoresForks, KeepsPagesAcrossIncarnations, SettlesAtOnce, NeverBootsAgain,
    VouchesForNews,
)  # fmt: skip


def _live_through(broken: type[Follower]) -> None:
    for seed in SEEDS:
        FollowerWorld(seed, broken).run(STEPS)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_follower_is_found_out(broken: type[Follower]) -> None:
    with pytest.raises(BrokenPromiseError):
        _live_through(broken)
