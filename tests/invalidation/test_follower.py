"""Follower, rule by rule: what it vouches for and when, where it begins anew, and how patiently it tries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from invalidation.follower import (
    NOT_CONFIRMED,
    AcknowledgedMoved,
    Applied,
    Apply,
    Booted,
    CallBoot,
    CallFailed,
    CallFork,
    CallRenew,
    CallSettle,
    Forked,
    Phase,
    PublishFreshness,
    Reapply,
    Reset,
    Settled,
    Started,
    TimeCame,
    WaitUntil,
    Woken,
)
from invalidation.log import Boot, RenewalStatus
from invalidation.records import LogRecord
from kv_types.ids import LogIncarnation, Stamp
from kv_types.limits import LOG_BACKOFF_S_MAX, LOG_BACKOFF_S_MIN
from tests.invalidation.follower_driver import (
    FIRST,
    GAP_NS,
    INTERVAL_NS,
    LEASE_NS,
    MS,
    SECOND,
    SETTLE_NS,
    Driver,
    boot_at,
    records_of,
)


@pytest.fixture
def driver() -> Driver:
    return Driver()


# --- starting ---


def test_it_hides_everything_before_its_first_renewal(driver: Driver) -> None:
    assert driver.follower.position is None
    assert driver.send(Started(driver.now_ns)) == [CallBoot()]
    assert driver.phase() is Phase.BOOTING
    assert driver.send(Booted(boot_at(5), driver.now_ns)) == [Reset(boot_at(5))]
    assert driver.phase() is Phase.RESETTING
    assert driver.follower.position is None, "nothing is applied yet"
    assert driver.send(TimeCame(driver.now_ns)) == []
    assert driver.send(Applied(driver.now_ns)) == [CallRenew(1)]
    assert driver.follower.position == Stamp(FIRST, 5)


def test_nothing_happens_before_it_is_started(driver: Driver) -> None:
    assert driver.wake() == []
    assert driver.wait() == []
    assert driver.send(Started(driver.now_ns)) == [CallBoot()]


# --- vouching ---


def test_freshness_counts_from_before_the_renewal_was_sent(driver: Driver) -> None:
    driver.start(boot_at())
    driver.now_ns += 300 * MS
    sent_ns = driver.now_ns - 300 * MS
    actions = driver.renewed(0, took_ns=300 * MS)
    assert actions[0] == PublishFreshness(sent_ns + LEASE_NS)
    assert driver.phase() is Phase.FOLLOWING


def test_freshness_comes_after_what_the_renewal_brought_is_applied(driver: Driver) -> None:
    driver.start(boot_at())
    sent_ns = driver.now_ns
    assert driver.renewed(3, records_of(1, 3)) == [Apply(records_of(1, 3))]
    assert driver.phase() is Phase.BEHIND
    assert driver.follower.position == Stamp(FIRST, 0)
    driver.now_ns += 50 * MS
    assert driver.wait(0) == [], "no renewal while something is applied"
    assert driver.send(Applied(driver.now_ns)) == [PublishFreshness(sent_ns + LEASE_NS), CallRenew(2)]
    assert driver.follower.position == Stamp(FIRST, 3)
    assert driver.phase() is Phase.FOLLOWING


def test_a_batch_that_does_not_reach_the_tip_vouches_for_nothing(driver: Driver) -> None:
    driver.start(boot_at())
    assert driver.renewed(9, records_of(1, 4)) == [Apply(records_of(1, 4))]
    assert driver.send(Applied(driver.now_ns)) == [CallRenew(2)]
    assert driver.phase() is Phase.BEHIND
    assert driver.renewed(9, records_of(5, 9)) == [Apply(records_of(5, 9))]
    assert driver.send(Applied(driver.now_ns))[0] == PublishFreshness(driver.now_ns + LEASE_NS)


@pytest.mark.parametrize("brought", [0, 2])
def test_an_unconfirmed_renewal_vouches_for_nothing_but_its_records_are_applied(
    driver: Driver, brought: int
) -> None:
    driver.start(boot_at())
    actions = driver.renewed(brought, records_of(1, brought), confirmed=False)
    if brought:
        assert actions == [Apply(records_of(1, 2))]
        actions = driver.send(Applied(driver.now_ns))
    assert not any(isinstance(action, PublishFreshness) for action in actions)
    assert (driver.phase(), driver.follower.reason) == (Phase.UNCONFIRMED, NOT_CONFIRMED)


@pytest.mark.parametrize("status", [RenewalStatus.NEW_INCARNATION, RenewalStatus.FORK, RenewalStatus.GAP])
@pytest.mark.parametrize("confirmed", [True, False])
def test_whatever_is_not_ok_vouches_for_nothing(
    driver: Driver, status: RenewalStatus, confirmed: bool
) -> None:
    driver.follow()
    driver.wait()
    actions = driver.renewed(0, status=status, incarnation=SECOND, confirmed=confirmed)
    assert not any(isinstance(action, PublishFreshness) for action in actions)


def test_the_answer_to_another_renewal_is_dropped(driver: Driver) -> None:
    driver.follow()
    driver.wait()
    actions = driver.renewed(4, records_of(1, 4), number=driver.number - 1)
    assert all(isinstance(action, WaitUntil) for action in actions)
    assert driver.follower.position == Stamp(FIRST, 0)
    assert driver.wait()[-1] == CallRenew(3)


@pytest.mark.parametrize(
    ("tip", "records", "incarnation"),
    [
        (3, records_of(2, 3), FIRST),
        (3, [*records_of(1, 1), *records_of(3, 3)], FIRST),
        (3, records_of(1, 4), FIRST),
        (3, [], FIRST),
        (3, records_of(1, 3), SECOND),
        (3, list(reversed(records_of(1, 3))), FIRST),
    ],
)
def test_an_answer_that_leaves_a_gap_is_never_applied(
    driver: Driver, tip: int, records: list[LogRecord], incarnation: LogIncarnation
) -> None:
    driver.follow()
    driver.wait()
    assert driver.renewed(tip, records, incarnation=incarnation) == [CallBoot()]


# --- keeping up ---


def test_it_renews_four_times_a_lease_and_a_little(driver: Driver) -> None:
    driver.start(boot_at())
    due_ns = driver.now_ns + INTERVAL_NS
    assert driver.renewed(0) == [PublishFreshness(driver.now_ns + LEASE_NS), WaitUntil(due_ns)]
    assert driver.wait(INTERVAL_NS - 1) == [WaitUntil(due_ns)]
    assert driver.wait(1) == [CallRenew(2)]


def test_news_is_asked_for_at_once_but_no_closer_than_the_gap(driver: Driver) -> None:
    driver.follow()
    due_ns = driver.now_ns + GAP_NS
    assert driver.wake() == [WaitUntil(due_ns)]
    assert driver.wait(GAP_NS) == [CallRenew(2)]
    driver.renewed(0)
    driver.now_ns += GAP_NS
    assert driver.wake() == [CallRenew(3)]


def test_news_that_come_with_the_wake_up_are_applied_at_once_and_then_acknowledged(driver: Driver) -> None:
    driver.follow(boot_at(4))
    vouched_ns = driver.now_ns + GAP_NS
    driver.now_ns += GAP_NS
    assert driver.hear(Stamp(FIRST, 4), records_of(5, 6)) == [Apply(records_of(5, 6))]
    assert driver.phase() is Phase.BEHIND
    assert driver.follower.position == Stamp(FIRST, 4), "nothing is applied yet"
    assert driver.send(Applied(driver.now_ns)) == [CallRenew(2)], "what was heard vouches for nothing"
    assert (driver.follower.position, driver.phase()) == (Stamp(FIRST, 6), Phase.FOLLOWING)
    assert driver.renewed(6)[0] == PublishFreshness(vouched_ns + LEASE_NS)


def test_news_are_applied_however_close_they_come(driver: Driver) -> None:
    driver.follow()
    driver.hear(Stamp(FIRST, 0), records_of(1, 1))
    due_ns = driver.now_ns + GAP_NS
    assert driver.send(Applied(driver.now_ns)) == [WaitUntil(due_ns)], "the gap is one between renewals"
    assert driver.hear(Stamp(FIRST, 1), records_of(2, 2)) == [Apply(records_of(2, 2))]


@pytest.mark.parametrize(
    ("after", "records"),
    [
        (Stamp(FIRST, 3), records_of(4, 5)),
        (Stamp(SECOND, 4), records_of(5, 6)),
        (Stamp(FIRST, 4), records_of(6, 6)),
        (Stamp(FIRST, 4), [*records_of(5, 5), *records_of(7, 7)]),
        (Stamp(FIRST, 4), []),
    ],
)
def test_news_that_do_not_follow_are_asked_about(
    driver: Driver, after: Stamp, records: list[LogRecord]
) -> None:
    driver.follow(boot_at(4))
    driver.now_ns += GAP_NS
    assert driver.hear(after, records) == [CallRenew(2)]


def test_news_are_asked_about_while_the_log_is_in_doubt(driver: Driver) -> None:
    driver.start(boot_at())
    assert driver.hear(Stamp(FIRST, 0), records_of(1, 1)) == [], "a renewal under way brings them too"
    driver.now_ns += GAP_NS
    assert driver.renewed(0, confirmed=False)[-1] == CallRenew(2)
    driver.renewed(0, confirmed=False)
    assert driver.phase() is Phase.UNCONFIRMED
    assert not any(isinstance(one, Apply) for one in driver.hear(Stamp(FIRST, 0), records_of(1, 1)))
    driver.wait(LEASE_NS)
    driver.renewed(0, status=RenewalStatus.NEW_INCARNATION, incarnation=SECOND)
    assert driver.hear(Stamp(FIRST, 0), records_of(1, 1)) == []
    driver.send(Booted(boot_at(2, SECOND), driver.now_ns))
    assert driver.hear(Stamp(FIRST, 0), records_of(1, 1)) == [], "everything is being hidden"


@pytest.mark.parametrize("event", [Woken, AcknowledgedMoved])
def test_what_happens_during_a_renewal_asks_for_another(driver: Driver, event: type[Woken]) -> None:
    driver.start(boot_at())
    assert driver.send(event(driver.now_ns)) == [], "one call at a time"
    driver.now_ns += GAP_NS
    assert driver.renewed(0)[-1] == CallRenew(2)
    assert driver.renewed(0)[-1] == WaitUntil(driver.now_ns + INTERVAL_NS)


def test_an_acknowledgement_is_told_at_once(driver: Driver) -> None:
    driver.follow()
    driver.now_ns += 10 * MS
    assert driver.send(AcknowledgedMoved(driver.now_ns)) == [CallRenew(2)]


# --- beginning anew ---


def test_a_gap_hides_only_what_was_missed(driver: Driver) -> None:
    driver.follow(boot_at(4))
    driver.wait()
    assert driver.renewed(90, status=RenewalStatus.GAP) == [CallBoot()]
    assert driver.follower.reason == "gap"
    assert driver.send(Booted(boot_at(90), driver.now_ns)) == [Reapply(boot_at(90), after=4)]
    assert driver.phase() is Phase.CATCHING_UP
    assert driver.send(Applied(driver.now_ns)) == [CallRenew(3)]
    assert driver.follower.position == Stamp(FIRST, 90)


def test_a_new_incarnation_hides_everything(driver: Driver) -> None:
    driver.follow(boot_at(4))
    driver.wait()
    assert driver.renewed(0, status=RenewalStatus.NEW_INCARNATION, incarnation=SECOND) == [CallBoot()]
    assert driver.send(Booted(boot_at(7, SECOND), driver.now_ns)) == [Reset(boot_at(7, SECOND))]
    driver.send(Applied(driver.now_ns))
    assert driver.follower.position == Stamp(SECOND, 7)


def test_a_fork_starts_another_incarnation(driver: Driver) -> None:
    driver.follow(boot_at(4))
    driver.wait()
    assert driver.renewed(2, status=RenewalStatus.FORK) == [CallFork(FIRST)]
    assert driver.phase() is Phase.FORKING
    assert driver.send(Forked(driver.now_ns)) == [CallBoot()]
    assert driver.send(Booted(boot_at(0, SECOND), driver.now_ns)) == [Reset(boot_at(0, SECOND))]


@pytest.mark.parametrize(
    "boot",
    [boot_at(3), boot_at(0), replace(boot_at(4), digest=b"x" * 20)],
    ids=["shorter", "empty", "changed"],
)
def test_a_log_that_contradicts_what_was_applied_is_forked(driver: Driver, boot: Boot) -> None:
    """Equal incarnations do not make it the same log: records that were applied must still be there."""
    driver.follow(boot_at(4))
    driver.wait()
    driver.renewed(4, status=RenewalStatus.GAP)
    assert driver.send(Booted(boot, driver.now_ns))[-1] in (
        CallFork(FIRST),
        WaitUntil(driver.now_ns + int(LOG_BACKOFF_S_MIN * 1e9 / 2)),
    )
    assert driver.phase() is Phase.FORKING
    assert driver.follower.position == Stamp(FIRST, 4)


def test_a_start_that_finds_nothing_new_hides_nothing(driver: Driver) -> None:
    driver.follow(boot_at(4))
    driver.wait()
    driver.renewed(4, status=RenewalStatus.GAP)
    assert driver.send(Booted(boot_at(4), driver.now_ns)) == [CallRenew(3)]


@pytest.mark.parametrize("status", [RenewalStatus.NEW_INCARNATION, RenewalStatus.FORK, RenewalStatus.GAP])
def test_an_old_primary_costs_nobody_their_pages(driver: Driver, status: RenewalStatus) -> None:
    driver.follow(boot_at(4))
    driver.wait()
    for _ in range(5):
        actions = driver.renewed(0, status=status, incarnation=SECOND, confirmed=False)
        assert [type(action) for action in actions] == [WaitUntil]
        assert driver.phase() is Phase.UNCONFIRMED
        assert isinstance(driver.wait()[-1], CallRenew)
    assert driver.renewed(4)[0] == PublishFreshness(driver.now_ns + LEASE_NS)


# --- settling ---


def test_an_incarnation_is_settled_by_who_has_watched_it_long_enough(driver: Driver) -> None:
    driver.send(Started(driver.now_ns))
    driver.send(Booted(boot_at(settled=False), driver.now_ns))
    observed_ns = driver.now_ns
    driver.now_ns += 20 * MS
    driver.send(Applied(driver.now_ns))
    calls = []
    while driver.now_ns < observed_ns + SETTLE_NS - INTERVAL_NS:
        actions = driver.renewed(0)
        calls += [action for action in actions if isinstance(action, CallSettle)]
        driver.wait()
    assert calls == []
    driver.renewed(0)
    assert driver.wait(observed_ns + SETTLE_NS - driver.now_ns) == [CallSettle(FIRST)]
    driver.send(Settled(True, driver.now_ns))
    for _ in range(5):
        assert not isinstance(driver.wait()[-1], CallSettle)
        driver.renewed(0)


def test_each_incarnation_is_watched_anew(driver: Driver) -> None:
    driver.follow(boot_at(settled=False))
    driver.wait(SETTLE_NS - MS)
    driver.renewed(0, status=RenewalStatus.NEW_INCARNATION, incarnation=SECOND)
    driver.send(Booted(boot_at(0, SECOND, settled=False), driver.now_ns))
    observed_ns = driver.now_ns
    driver.send(Applied(driver.now_ns))
    while driver.now_ns < observed_ns + SETTLE_NS:
        actions = driver.renewed(0, incarnation=SECOND)
        assert not any(isinstance(action, CallSettle) for action in actions)
        (wait,) = [action for action in actions if isinstance(action, WaitUntil)]
        actions = driver.wait(wait.at_ns - driver.now_ns)
    assert actions == [CallSettle(SECOND)]


def test_an_incarnation_that_is_settled_needs_no_settling(driver: Driver) -> None:
    driver.follow(boot_at(settled=False))
    driver.wait()
    driver.renewed(9, status=RenewalStatus.GAP)
    driver.send(Booted(boot_at(9, settled=True), driver.now_ns))
    actions = driver.send(Applied(driver.now_ns))
    for _ in range(20):
        assert isinstance(driver.wait_out(actions)[-1], CallRenew)
        actions = driver.renewed(9)


def test_settling_that_fails_does_not_keep_it_from_renewing(driver: Driver) -> None:
    driver.follow(boot_at(settled=False))
    driver.wait(SETTLE_NS)
    vouched = settling = 0
    actions = driver.renewed(0)
    for _ in range(40):
        vouched += isinstance(actions[0], PublishFreshness)
        if isinstance(actions[-1], CallSettle):
            settling += 1
            actions = driver.send(CallFailed("deadline", driver.now_ns))
        if isinstance(actions[-1], WaitUntil):
            actions = driver.wait(actions[-1].at_ns - driver.now_ns)
        if isinstance(actions[-1], CallRenew):
            actions = driver.renewed(0)
    assert 3 <= settling <= 15
    assert vouched > 2 * settling


def test_settling_another_incarnation_starts_again(driver: Driver) -> None:
    driver.follow(boot_at(settled=False))
    assert driver.wait(SETTLE_NS) == [CallRenew(2)]
    assert driver.renewed(0)[-1] == CallSettle(FIRST)
    assert driver.send(Settled(False, driver.now_ns)) == [CallBoot()]


# --- troubles ---


def test_it_waits_longer_after_each_failure_and_never_too_long(driver: Driver) -> None:
    driver.send(Started(driver.now_ns))
    waits = []
    for _ in range(12):
        (wait,) = driver.send(CallFailed("refused", driver.now_ns))
        assert isinstance(wait, WaitUntil)
        assert (driver.phase(), driver.follower.reason) == (Phase.UNREACHABLE, "refused")
        waits.append(wait.at_ns - driver.now_ns)
        assert driver.wake() == [wait], "news does not shorten it"
        assert driver.wait(waits[-1]) == [CallBoot()]
    assert waits[0] == LOG_BACKOFF_S_MIN * 1e9 / 2
    assert waits == sorted(waits)
    assert waits[-1] == LOG_BACKOFF_S_MAX * 1e9 / 2


def test_the_first_answer_ends_the_waiting(driver: Driver) -> None:
    driver.follow()
    driver.wait()
    for _ in range(6):
        (wait,) = driver.send(CallFailed("deadline", driver.now_ns))
        assert isinstance(wait, WaitUntil)
        assert isinstance(driver.wait(wait.at_ns - driver.now_ns)[-1], CallRenew)
    assert driver.renewed(0)[0] == PublishFreshness(driver.now_ns + LEASE_NS)
    assert driver.follower.reason == ""
    driver.wait()
    (wait,) = driver.send(CallFailed("deadline", driver.now_ns))
    assert wait == WaitUntil(driver.now_ns + int(LOG_BACKOFF_S_MIN * 1e9 / 2))


def test_a_fleet_does_not_come_back_all_at_once() -> None:
    waits = set()
    for spread in (0.0, 0.25, 0.5, 0.75, 1.0):
        driver = Driver(spread=spread)
        driver.follow()
        assert isinstance(driver.wait(LEASE_NS // 4)[-1], CallRenew)
        (wait,) = driver.send(CallFailed("refused", driver.now_ns))
        assert isinstance(wait, WaitUntil)
        waits.add(wait.at_ns - driver.now_ns)
    assert len(waits) == 5
    assert max(waits) == 2 * min(waits)


def test_a_fork_that_failed_is_asked_for_again_by_the_next_renewal(driver: Driver) -> None:
    driver.follow(boot_at(4))
    driver.wait()
    driver.renewed(2, status=RenewalStatus.FORK)
    (wait,) = driver.send(CallFailed("deadline", driver.now_ns))
    assert isinstance(wait, WaitUntil)
    assert driver.wait(wait.at_ns - driver.now_ns) == [CallRenew(3)]
    actions = driver.renewed(2, status=RenewalStatus.FORK)
    assert isinstance(actions[-1], WaitUntil), (
        "a log that goes on contradicting itself is asked ever less often"
    )
    assert driver.wait(actions[-1].at_ns - driver.now_ns) == [CallFork(FIRST)]


def test_gaps_without_end_are_asked_for_ever_less_often(driver: Driver) -> None:
    driver.follow(boot_at(1))
    driver.wait()
    revision, began_ns, calls = 1, driver.now_ns, 0
    while driver.now_ns < began_ns + 10_000 * MS:
        revision += 1
        actions = driver.renewed(revision, status=RenewalStatus.GAP)
        calls += 1
        assert driver.wait_out(actions) == [CallBoot()]
        assert driver.send(Booted(boot_at(revision), driver.now_ns)) == [
            Reapply(boot_at(revision), revision - 1)
        ]
        assert isinstance(driver.wait_out(driver.send(Applied(driver.now_ns)))[-1], CallRenew)
    assert calls < 40


def test_answers_to_nothing_are_errors_of_the_shell(driver: Driver) -> None:
    driver.follow()
    for event in (
        Booted(boot_at(), driver.now_ns), Forked(driver.now_ns), Settled(True, driver.now_ns),
        CallFailed("refused", driver.now_ns), Applied(driver.now_ns),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"under way|to be applied"):
            driver.send(event)
    with pytest.raises(ValueError, match="under way"):
        driver.renewed(0)
