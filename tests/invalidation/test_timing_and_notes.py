"""Timing and MemberNote: waiting times as written, notes within bounds, and nothing concluded from what can't be read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from invalidation.notes import MemberNote
from invalidation.timing import Timing
from kv_types.errors import InvalidArgumentError
from kv_types.limits import MEMBER_NOTE_BYTES_MAX

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NOTES = st.builds(
    MemberNote,
    lease_ns=st.integers(1, (1 << 64) - 1),
    engines_keep=st.integers(0, 1 << 20),
    host=st.text(st.characters(exclude_categories=["Cs"]), max_size=400),
    pid=st.integers(0, 1 << 22),
    version=TEXTS,
    held_back_by=st.lists(TEXTS.filter(bool), max_size=60).map(tuple),
)


def test_the_window_is_lease_and_pause_and_drift() -> None:
    timing = Timing(lease_ns=3_000_000_000, pause_ns=2_000_000_000, drift=0.001)
    assert timing.window_ns() == 5_005_000_000
    assert timing.window_ns(lease_ns=1) == timing.window_ns(), "never below its own"
    assert timing.window_ns(lease_ns=4_000_000_000) == 6_006_000_000
    assert Timing(lease_ns=1, pause_ns=0, drift=0.1).window_ns() == 2, "rounded up"


@pytest.mark.parametrize(
    ("lease_ns", "pause_ns", "drift"),
    [(0, 0, 0.0), (-1, 0, 0.0), (1, -1, 0.0), (1, 0, -0.1), (1, 0, 1.0), (1, 0, float("nan"))],
)
def test_times_that_make_no_sense_are_errors(lease_ns: int, pause_ns: int, drift: float) -> None:
    with pytest.raises(InvalidArgumentError):
        Timing(lease_ns=lease_ns, pause_ns=pause_ns, drift=drift)


@given(note=NOTES)
def test_a_note_fits_and_keeps_what_a_fence_reads(note: MemberNote) -> None:
    text = note.encode()
    assert len(text.encode()) <= MEMBER_NOTE_BYTES_MAX
    assert isinstance(json.loads(text), dict)
    told = MemberNote.decode(text)
    assert told is not None
    assert (told.lease_ns, told.engines_keep, told.pid) == (note.lease_ns, note.engines_keep, note.pid)
    if len(json.dumps([note.host, note.version, note.held_back_by])) < MEMBER_NOTE_BYTES_MAX - 150:
        assert told == note


def test_a_note_too_long_says_so() -> None:
    holders = tuple(f"client {number} of some name" for number in range(200))
    told = MemberNote.decode(MemberNote(lease_ns=1, engines_keep=200, held_back_by=holders).encode())
    assert told is not None
    assert told.held_back_by[:10] == holders[:10]
    assert told.held_back_by[-1] == f"and {200 - len(told.held_back_by) + 1} more"


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "null", "[]", '"x"', "{}", '{"lease_ns":1}', '{"engines_keep":0}',
        '{"lease_ns":0,"engines_keep":0}', '{"lease_ns":1.5,"engines_keep":0}',
        '{"lease_ns":true,"engines_keep":0}', '{"lease_ns":1,"engines_keep":-1}',
        '{"lease_ns":1,"engines_keep":0,"host":"' + "x" * MEMBER_NOTE_BYTES_MAX + '"}', "[" * 1000,
        '{"lease_ns":NaN,"engines_keep":0}', "\ud800",
    ],
)  # fmt: skip
def test_a_note_that_says_not_enough_says_nothing(text: str) -> None:
    assert MemberNote.decode(text) is None


def test_what_is_for_people_may_be_anything() -> None:
    told = MemberNote.decode(
        '{"lease_ns":1,"engines_keep":0,"host":7,"pid":"x","held_back_by":[1,"a"],"new":{}}'
    )
    assert told == MemberNote(lease_ns=1, engines_keep=0, held_back_by=("a",))
