"""Views turned into revisions, and the pace of renewals: pure parts of following the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.log.renewal_pace import RenewalPace
from sidecar.log.view_positions import ViewPositions

MS = 1_000_000


def test_a_view_stands_for_the_newest_revision_published_up_to_it() -> None:
    positions = ViewPositions()
    for view, revision in ((5, 0), (6, 1), (9, 2)):
        positions.published(view, revision)
    assert (positions.advance(4), positions.reached) == (False, 0)
    assert (positions.advance(8), positions.reached) == (True, 1)
    assert (positions.advance(7), positions.reached) == (False, 1), "what clients write can't take it back"
    assert not positions.is_complete
    assert (positions.advance(2**64 - 1), positions.reached) == (True, 2)
    assert positions.is_complete


def test_revisions_of_another_incarnation_are_forgotten() -> None:
    positions = ViewPositions()
    positions.published(5, 40)
    positions.advance(5)
    positions.published(6, 41)
    positions.begin()
    positions.published(7, 3)
    assert positions.reached == 0
    positions.advance(6)
    assert positions.reached == 0, "view 6 stood for a revision of the log before"
    positions.advance(7)
    assert positions.reached == 3


@given(
    events=st.lists(st.one_of(st.just(None), st.integers(0, 5)), max_size=60), positions_max=st.integers(1, 6)
)
def test_bounded_positions_tell_later_and_never_earlier(events: list[int | None], positions_max: int) -> None:
    bounded, exact = ViewPositions(positions_max=positions_max), ViewPositions()
    view = 0
    for event in events:
        if event is None:
            view += 1
            bounded.published(view, view * 10)
            exact.published(view, view * 10)
        else:
            bounded.advance(view - event)
            exact.advance(view - event)
        assert bounded.reached <= exact.reached
        assert len(bounded) <= positions_max
    bounded.advance(view)
    assert bounded.reached == view * 10, "the newest is never forgotten"


@pytest.mark.parametrize("spacing_ms", [0, 1, 3, 10, 50])
def test_renewals_pass_at_once_until_they_are_many_and_then_at_the_rate(spacing_ms: int) -> None:
    pace = RenewalPace(burst=4, interval_ns=10 * MS)
    now_ns, sent = 0, []
    for _ in range(50):
        now_ns = pace.earliest_ns(now_ns)
        sent.append(now_ns)
        pace.sent(now_ns)
        now_ns += spacing_ms * MS
    assert sent[3] <= 3 * spacing_ms * MS, "a few at once"
    for first, later in zip(sent, sent[14:], strict=False):
        assert later - first >= (14 - 4 + 1) * 10 * MS or spacing_ms >= 10
    if spacing_ms >= 10:
        assert sent == [turn * spacing_ms * MS for turn in range(50)], "nobody waits who comes slowly"


def test_a_pause_gives_the_few_back() -> None:
    pace = RenewalPace(burst=3, interval_ns=10 * MS)
    for _ in range(3):
        assert pace.earliest_ns(0) == 0
        pace.sent(0)
    assert pace.earliest_ns(0) == 10 * MS
    for _ in range(3):
        assert pace.earliest_ns(1000 * MS) == 1000 * MS
        pace.sent(1000 * MS)
    assert pace.earliest_ns(1000 * MS) == 1010 * MS
