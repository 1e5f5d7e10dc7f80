"""Reaping, rule by rule: when a member looks for silent others, whom it gives up, and whom never."""

from __future__ import annotations

from invalidation.log import FenceState, MemberState
from invalidation.notes import MemberNote
from invalidation.silence import Reaping
from invalidation.timing import Timing
from kv_types.ids import LogIncarnation, Stamp
from kv_types.limits import LOG_REAP_AGAIN_S, LOG_REAP_S, MEMBERS_LISTED_MAX

S = 1_000_000_000
TIMING = Timing(lease_ns=3 * S, pause_ns=2 * S, drift=0.001)
WINDOW_NS = TIMING.window_ns()
ME, A, B, C, D = (bytes([one]) * 16 for one in b"mabcd")


def member(number: int = 1, *, keep: int = 0, lease_s: int = 3, gone: bool = False) -> MemberState:
    note = MemberNote(lease_ns=lease_s * S, engines_keep=keep).encode()
    return MemberState(number, 5, 5, note, gone)


def state(
    members: dict[bytes, MemberState], *, incarnation: bytes = b"1" * 16, confirmed: bool = True
) -> FenceState:
    return FenceState(Stamp(LogIncarnation(incarnation), 5), True, members, confirmed, 0)


def reaping(*, spread: float = 0.0) -> Reaping:
    return Reaping(TIMING, me=ME, members_max=8, spread=spread)


def test_who_was_refused_looks_at_once_and_again_only_now_and_then() -> None:
    one, again_ns = reaping(), int(LOG_REAP_AGAIN_S * S)
    assert not one.is_due(refusals=0, members=0, now_ns=0)
    assert one.is_due(refusals=1, members=0, now_ns=1)
    assert not one.is_due(refusals=1, members=0, now_ns=2 * again_ns), "refused no more"
    assert one.is_due(refusals=2, members=0, now_ns=3 * again_ns)
    assert not one.is_due(refusals=9, members=0, now_ns=4 * again_ns - 1)
    assert one.is_due(refusals=9, members=0, now_ns=4 * again_ns)


def test_a_table_that_is_more_than_half_full_is_looked_at_rarely() -> None:
    one, every_ns = reaping(spread=0.5), int(LOG_REAP_S * S)
    assert not one.is_due(refusals=0, members=4, now_ns=10 * every_ns)
    due = [
        now for now in range(0, 3 * every_ns, every_ns // 8) if one.is_due(refusals=0, members=5, now_ns=now)
    ]
    assert due == [every_ns // 2, every_ns // 2 + every_ns, every_ns // 2 + 2 * every_ns]


def test_who_is_silent_for_the_window_is_given_up_and_nobody_else() -> None:
    one = reaping()
    before = {ME: member(), A: member(7), B: member(2), C: member(3, keep=1), D: member(4, lease_s=60)}
    assert one.observe(state(before), now_ns=0) == {}
    after = before | {B: member(3)}
    assert one.observe(state(after), now_ns=WINDOW_NS - 1) == {}
    assert one.observe(state(after), now_ns=WINDOW_NS) == {A: 7}
    assert one.observe(state(after | {A: member(7, gone=True)}), now_ns=WINDOW_NS + 1) == {}
    longer_ns = TIMING.window_ns(lease_ns=60 * S)
    assert one.observe(state({C: before[C], D: before[D]}), now_ns=longer_ns) == {D: 4}


def test_an_unconfirmed_answer_or_another_incarnation_is_no_observation_of_the_old_ones() -> None:
    one = reaping()
    assert one.observe(state({A: member()}, confirmed=False), now_ns=0) == {}
    assert one.observe(state({A: member()}), now_ns=WINDOW_NS) == {}
    assert one.observe(state({A: member()}, confirmed=False), now_ns=2 * WINDOW_NS) == {}
    assert one.observe(state({A: member()}, incarnation=b"2" * 16), now_ns=2 * WINDOW_NS) == {}
    assert one.observe(state({A: member()}, incarnation=b"2" * 16), now_ns=3 * WINDOW_NS) == {A: 1}


def test_one_look_gives_up_a_bounded_number() -> None:
    one = reaping()
    many = {number.to_bytes(16, "big"): member() for number in range(MEMBERS_LISTED_MAX + 9)}
    one.observe(state(many), now_ns=0)
    assert len(one.observe(state(many), now_ns=WINDOW_NS)) == MEMBERS_LISTED_MAX
