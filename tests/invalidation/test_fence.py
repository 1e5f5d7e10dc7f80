"""FenceEvaluation, rule by rule: who must have got there, who may be given up, and when nothing may be concluded."""

from __future__ import annotations

import pytest

from invalidation.fence import FenceEvaluation, NewIncarnation, Pending, Reached, Verdict, Wait
from invalidation.log import FenceState, MemberState
from invalidation.notes import MemberNote
from invalidation.timing import Timing
from kv_types.ids import LogIncarnation, Stamp

S = 1_000_000_000
TIMING = Timing(lease_ns=3 * S, pause_ns=2 * S, drift=0.001)
WINDOW_NS = 5_005_000_000
FIRST, SECOND = LogIncarnation(b"1" * 16), LogIncarnation(b"2" * 16)
STAMP = Stamp(FIRST, 7)
A, B = b"a" * 16, b"b" * 16
NOTE = MemberNote(lease_ns=3 * S, engines_keep=0).encode()
NOTE_KEEP = MemberNote(lease_ns=3 * S, engines_keep=1).encode()


def _member(
    number: int = 1, acknowledged: int = 6, *, drained: int = 0, note: str = NOTE, gone: bool = False
) -> MemberState:
    return MemberState(number, acknowledged, drained, note, gone)


def _state(
    members: dict[bytes, MemberState],
    *,
    tip: Stamp = STAMP,
    settled: bool = True,
    confirmed: bool = True,
) -> FenceState:
    return FenceState(tip, settled, members, confirmed, replicas=1)


def _fence(wait: Wait = Wait.HIDDEN) -> FenceEvaluation:
    return FenceEvaluation(stamp=STAMP, wait=wait, timing=TIMING, me=A)


def _missing(verdict: Verdict) -> set[bytes]:
    assert isinstance(verdict, Pending), verdict
    return set(verdict.missing)


def test_a_fleet_of_nobody_is_done_once_it_is_settled() -> None:
    """An empty table after FLUSHALL says nothing about who was there before."""
    fence = _fence()
    verdict = fence.observe(_state({}, settled=False), now_ns=0)
    assert isinstance(verdict, Pending)
    assert "settled" in verdict.why
    assert fence.observe(_state({}), now_ns=1) == Reached({})


def test_it_waits_for_each_member() -> None:
    fence = _fence()
    assert _missing(fence.observe(_state({A: _member(), B: _member()}), now_ns=0)) == {A, B}
    assert _missing(fence.observe(_state({A: _member(2, 7), B: _member(2)}), now_ns=1)) == {B}
    assert fence.observe(_state({A: _member(2, 7), B: _member(3, 9)}), now_ns=2) == Reached({})


def test_who_joins_later_must_acknowledge_too() -> None:
    fence = _fence()
    fence.observe(_state({A: _member()}), now_ns=0)
    assert _missing(fence.observe(_state({A: _member(2, 7), B: _member(1, 6)}), now_ns=1)) == {B}
    assert fence.observe(_state({A: _member(2, 7), B: _member(1, 7)}), now_ns=2) == Reached({})


def test_who_left_is_not_waited_for() -> None:
    fence = _fence()
    fence.observe(_state({A: _member()}), now_ns=0)
    assert fence.observe(_state({}), now_ns=1) == Reached({})


def test_a_silent_member_is_given_up_after_the_window_and_not_before() -> None:
    fence = _fence()
    state = _state({A: _member(4), B: _member(2, 7)})
    for now_ns in (0, 1, WINDOW_NS - 1):
        assert _missing(fence.observe(state, now_ns=now_ns)) == {A}
    assert fence.observe(state, now_ns=WINDOW_NS) == Reached({A: _member(4)})


def test_the_window_begins_anew_with_each_renewal() -> None:
    fence = _fence()
    fence.observe(_state({A: _member(4)}), now_ns=0)
    assert _missing(fence.observe(_state({A: _member(5)}), now_ns=WINDOW_NS)) == {A}
    assert _missing(fence.observe(_state({A: _member(5)}), now_ns=2 * WINDOW_NS - 1)) == {A}
    assert fence.observe(_state({A: _member(5)}), now_ns=2 * WINDOW_NS) == Reached({A: _member(5)})


def test_a_renewal_that_arrives_late_counts_as_life_too() -> None:
    """A smaller number than the last is a renewal that was held up: it was carried out just now."""
    fence = _fence()
    fence.observe(_state({A: _member(5)}), now_ns=0)
    assert _missing(fence.observe(_state({A: _member(4)}), now_ns=WINDOW_NS)) == {A}


def test_a_member_that_lives_and_does_not_acknowledge_is_never_given_up() -> None:
    fence = _fence()
    for number in range(50):
        verdict = fence.observe(_state({A: _member(number)}), now_ns=number * S)
        assert _missing(verdict) == {A}


def test_a_longer_lease_of_a_member_makes_the_window_longer() -> None:
    long = MemberNote(lease_ns=10 * S, engines_keep=0).encode()
    fence, window_ns = _fence(), TIMING.window_ns(lease_ns=10 * S)
    assert window_ns == 12_012_000_000
    fence.observe(_state({A: _member(note=long)}), now_ns=0)
    assert _missing(fence.observe(_state({A: _member(note=long)}), now_ns=window_ns - 1)) == {A}
    assert isinstance(fence.observe(_state({A: _member(note=long)}), now_ns=window_ns), Reached)


def test_a_shorter_lease_of_a_member_shortens_nothing() -> None:
    short = MemberNote(lease_ns=1, engines_keep=0).encode()
    fence = _fence()
    fence.observe(_state({A: _member(note=short)}), now_ns=0)
    assert _missing(fence.observe(_state({A: _member(note=short)}), now_ns=WINDOW_NS - 1)) == {A}


@pytest.mark.parametrize("note", [NOTE_KEEP, "{}", "", "no note", '{"lease_ns":"3","engines_keep":0}'])
@pytest.mark.parametrize("gone", [True, False])
def test_whose_engines_go_on_or_whose_note_says_nothing_is_never_given_up(note: str, gone: bool) -> None:
    fence = _fence()
    state = _state({A: _member(note=note, gone=gone)})
    fence.observe(state, now_ns=0)
    assert _missing(fence.observe(state, now_ns=1000 * WINDOW_NS)) == {A}


def test_who_said_goodbye_is_given_up_at_once() -> None:
    state = _state({A: _member(gone=True)})
    assert _fence().observe(state, now_ns=0) == Reached({A: _member(gone=True)})


def test_drained_is_never_concluded_from_silence_nor_from_a_goodbye() -> None:
    fence = _fence(Wait.DRAINED)
    state = _state({A: _member(1, 7, drained=6), B: _member(1, 7, drained=6, gone=True)})
    for now_ns in (0, WINDOW_NS, 1000 * WINDOW_NS):
        assert _missing(fence.observe(state, now_ns=now_ns)) == {A, B}
    drained = _state({A: _member(2, 7, drained=7), B: _member(1, 7, drained=7, gone=True)})
    assert fence.observe(drained, now_ns=0) == Reached({})


@pytest.mark.parametrize("others", [{}, {B: _member(1, 7, drained=7)}])
def test_drained_waits_for_whoever_says_so_to_be_a_member_itself(others: dict[bytes, MemberState]) -> None:
    """Requests run below a sidecar that has not joined the log yet, and it would be told of no other's."""
    fence = _fence(Wait.DRAINED)
    verdict = fence.observe(_state(others), now_ns=0)
    assert isinstance(verdict, Pending)
    assert "this sidecar" in verdict.why
    assert not verdict.missing
    assert _missing(fence.observe(_state(others | {A: _member(1, 7, drained=0)}), now_ns=1)) == {A}
    assert fence.observe(_state(others | {A: _member(2, 7, drained=7)}), now_ns=2) == Reached({})
    assert _fence().observe(_state(others), now_ns=0) == Reached({}), "it serves nothing before it has joined"


def test_hidden_asks_for_no_draining() -> None:
    assert _fence().observe(_state({A: _member(1, 7, drained=0)}), now_ns=0) == Reached({})


@pytest.mark.parametrize("wait", Wait)
def test_nothing_is_concluded_from_what_is_not_confirmed(wait: Wait) -> None:
    fence = _fence(wait)
    done = {A: _member(1, 9, drained=9)}
    verdict = fence.observe(_state(done, confirmed=False), now_ns=0)
    assert isinstance(verdict, Pending)
    assert "replication not confirmed" in verdict.why
    assert fence.observe(_state(done), now_ns=1) == Reached({})


def test_silence_towards_an_old_primary_is_no_silence() -> None:
    fence = _fence()
    fence.observe(_state({A: _member(4)}, confirmed=False), now_ns=0)
    assert _missing(fence.observe(_state({A: _member(4)}), now_ns=WINDOW_NS)) == {A}


@pytest.mark.parametrize("tip", [Stamp(SECOND, 0), Stamp(SECOND, 9), Stamp(FIRST, 6)])
def test_a_log_without_the_record_asks_for_another_append(tip: Stamp) -> None:
    done = {A: _member(1, 99, drained=99)}
    verdict = _fence().observe(_state(done, tip=tip), now_ns=0)
    assert verdict == NewIncarnation(tip)


def test_an_unsettled_incarnation_is_never_final_whoever_acknowledged() -> None:
    fence = _fence()
    state = _state({A: _member(1, 9), B: _member(1)}, settled=False)
    for now_ns in (0, 1000 * WINDOW_NS):
        assert isinstance(fence.observe(state, now_ns=now_ns), Pending)
    assert _missing(fence.observe(state, now_ns=2000 * WINDOW_NS)) == set(), "only settling is missing"


def test_notes_are_read_only_of_who_may_be_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fence looks at its members many times a second, and a large fleet has a thousand notes."""
    read = 0
    real = MemberNote.decode

    def decode(text: str) -> MemberNote | None:
        nonlocal read
        read += 1
        return real(text)

    monkeypatch.setattr(MemberNote, "decode", decode)
    fence = _fence()
    state = _state({bytes([number]) * 16: _member() for number in range(100, 200)} | {A: _member(gone=True)})
    for now_ns in range(0, WINDOW_NS, WINDOW_NS // 20):
        assert len(_missing(fence.observe(state, now_ns=now_ns))) == 100
    assert read <= 21, "of the one that is gone, and no other"
    assert isinstance(fence.observe(state, now_ns=WINDOW_NS), Reached)


@pytest.mark.parametrize("tip", [Stamp(SECOND, 9), Stamp(SECOND, 0), Stamp(FIRST, 6)])
def test_what_nobody_confirms_is_no_news_of_another_incarnation(tip: Stamp) -> None:
    """It may be what an old primary says; whoever appended again there would append for nobody, again and again."""
    fence = _fence()
    verdict = fence.observe(_state({}, tip=tip, confirmed=False), now_ns=0)
    assert isinstance(verdict, Pending)
    assert "replication not confirmed" in verdict.why
    assert isinstance(fence.observe(_state({}, tip=tip), now_ns=1), NewIncarnation)
