"""Recordings of look-ups: each reader hears what came since it began, within bounds, and none outlives its reader."""

from __future__ import annotations

import asyncio

import pytest

from kv_types.clock import ManualClock
from kv_types.errors import OverloadedError
from kv_types.trace_limits import RECORDED_BYTES_MAX, RECORDED_LOOK_UPS_MAX, RECORDINGS_MAX
from sidecar.recording import LookUp, Recorder, Recording

ALL = 1 << 40
PAGE = bytes(range(8))


class Switch:
    """What clients would see, and how often it was set."""

    def __init__(self) -> None:
        self.on = False

    def __call__(self, on: bool) -> None:
        self.on = on


@pytest.fixture
def switch() -> Switch:
    return Switch()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def recorder(switch: Switch, clock: ManualClock) -> Recorder:
    return Recorder(switch, clock=clock)


def test_a_recording_hears_what_comes_after_it_began(recorder: Recorder, clock: ManualClock) -> None:
    recorder.looked(4, PAGE)
    first = recorder.begin()
    clock.advance(2_000_000)
    recorder.looked(4, PAGE * 3)
    second = recorder.begin()
    clock.advance(1_500)
    recorder.looked(16, PAGE, dropped=2)
    assert first.take(bytes_about=ALL) == ([LookUp(2000, 12, PAGE * 3), LookUp(2001, 16, PAGE)], 2)
    assert second.take(bytes_about=ALL) == ([LookUp(1, 16, PAGE)], 2)
    assert first.take(bytes_about=ALL) == ([], 0)


def test_clients_tell_only_while_somebody_hears(recorder: Recorder, switch: Switch) -> None:
    first = recorder.begin()
    second = recorder.begin()
    assert (switch.on, recorder.recordings) == (True, 2)
    recorder.end(first)
    recorder.end(first)
    assert (switch.on, recorder.recordings) == (True, 1)
    recorder.end(second)
    assert (switch.on, recorder.recordings) == (False, 0)


def test_no_more_recordings_than_may_be(recorder: Recorder) -> None:
    under_way = [recorder.begin() for _ in range(RECORDINGS_MAX)]
    with pytest.raises(OverloadedError, match="end one"):
        recorder.begin()
    recorder.end(under_way[0])
    recorder.begin()


def test_who_does_not_read_loses_what_does_not_fit_and_is_told(recorder: Recorder) -> None:
    slow = recorder.begin()
    for _ in range(RECORDED_LOOK_UPS_MAX + 3):
        recorder.looked(4, PAGE)
    taken, dropped = slow.take(bytes_about=ALL)
    assert (len(taken), dropped) == (RECORDED_LOOK_UPS_MAX, 3)
    large = bytes(RECORDED_BYTES_MAX // 2)
    for _ in range(3):
        recorder.looked(4, large)
    taken, dropped = slow.take(bytes_about=ALL)
    assert (len(taken), dropped) == (2, 1)
    recorder.looked(4, large)
    assert len(slow.take(bytes_about=ALL)[0]) == 1, "the room that was taken is free again"


def test_what_is_taken_at_once_is_bounded(recorder: Recorder) -> None:
    recording = recorder.begin()
    for _ in range(5):
        recorder.looked(4, PAGE)
    assert [len(recording.take(bytes_about=16)[0]) for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.asyncio
async def test_a_reader_waits_for_something_to_take(recorder: Recorder) -> None:
    recording = recorder.begin()
    waiting = asyncio.ensure_future(recording.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    recorder.looked(4, PAGE)
    assert await waiting
    recording.take(bytes_about=ALL)
    again = asyncio.ensure_future(recording.wait())
    await asyncio.sleep(0)
    assert not again.done()
    recorder.end_all()
    assert not await again


@pytest.mark.asyncio
async def test_what_waits_at_the_end_is_still_taken(recorder: Recorder) -> None:
    recording: Recording = recorder.begin()
    recorder.looked(4, PAGE)
    recorder.end_all()
    assert await recording.wait()
    assert len(recording.take(bytes_about=ALL)[0]) == 1
    assert not await recording.wait()
    recorder.looked(4, PAGE)
    assert recording.take(bytes_about=ALL) == ([], 0)
