"""The judge of fleets' histories: each broken promise is found where one is planted, and none where none is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kv_types.outcomes import MissReason
from tests.fleet.checker import (
    Broken,
    Span,
    availability,
    broke_fail_closed,
    broke_fence,
    broke_sparing,
    broke_whole,
)
from tests.fleet.history import Breach, HistoryFile, LookUp, Recorder
from tests.fleet.purges import Purge, Purged
from tests.fleet.stamped import PAGE_BYTES, BrokenPageError, Part, Place, StampedPage, read_page


def page(
    index: int = 0, *, producer: int = 1, tag: int = 0, at: int = 10, on: Sequence[StampedPage] = ()
) -> StampedPage:
    """A page of chain 0/0, begun at `at`."""
    return StampedPage.computed(Place(0, 0, index), Part(index, producer, tag, at, at + 1), on)


def chain(*begun: int, producer: int = 1) -> tuple[StampedPage, ...]:
    """Pages 0…, each resting on those before it."""
    pages: list[StampedPage] = []
    for index, at in enumerate(begun):
        pages.append(page(index, producer=producer, at=at, on=pages))
    return tuple(pages)


def look_up(
    at: int, pages: Sequence[StampedPage], *, wanted: int = 3, reason: MissReason = MissReason.ABSENT
) -> LookUp:
    return LookUp("w", 0, at, at + 1, 0, 0, wanted, 0, tuple(pages), reason)


def purged(purge: Purge, begun: int, ended: int, exit_code: int = 0) -> Purged:
    return Purged(purge=purge, invoked_ns=begun, ended_ns=ended, exit_code=exit_code)


FENCES: dict[str, tuple[Purge, tuple[StampedPage, ...], bool]] = {
    "everything": (Purge(), chain(10), True),
    "its tenant": (Purge(tenant=0), chain(10), True),
    "another tenant": (Purge(tenant=1), chain(10), False),
    "its prefix": (Purge(tenant=0, chain=0, page=0), chain(10, 11), True),
    "a later page of its chain": (Purge(tenant=0, chain=0, page=2), chain(10, 11), False),
    "another chain": (Purge(tenant=0, chain=1), chain(10), False),
    "its producer": (Purge(producer=1), chain(10), True),
    "another producer": (Purge(producer=2), chain(10), False),
    "the producer of what it rests on": (
        Purge(producer=2), (page(1, at=30, on=chain(10, producer=2)),), True,
    ),
    "its tag": (Purge(tag=0), chain(10), True),
    "another tag": (Purge(tag=1), chain(10), False),
    "something begun after it": (Purge(), chain(21), False),
    "something begun after it on what was begun before": (Purge(), chain(10, 21)[1:], True),
}  # fmt: skip


@pytest.mark.parametrize("name", FENCES)
def test_a_page_after_the_fence_is_found(name: str) -> None:
    purge, pages, is_broken = FENCES[name]
    done = [purged(purge, 20, 40)]
    assert bool(broke_fence([look_up(40, pages)], done)) is is_broken
    assert broke_fence([look_up(39, pages)], done) == [], "it was invoked before the fence returned"
    unconfirmed = [replace(done[0], exit_code=3)]
    assert broke_fence([look_up(40, pages)], unconfirmed) == [], "nothing was promised"


def test_a_hit_in_the_dark_is_found() -> None:
    dark = [Span(100, 200, frozenset({0}))]
    assert [one.promise for one in broke_fail_closed([look_up(150, chain(10))], dark)] == ["fail closed"]
    assert broke_fail_closed([look_up(150, ()), look_up(99, chain(10)), look_up(200, chain(10))], dark) == []
    assert broke_fail_closed([look_up(150, chain(10))], [Span(100, 200, frozenset({1}))]) == []


def test_a_page_that_went_for_no_reason_is_found() -> None:
    calm = [Span(0, 1000)]
    before, after = look_up(100, chain(10, 11)), look_up(200, chain(10, 11)[:1])
    assert [one.promise for one in broke_sparing([before, after], [], calm)] == ["sparing"]
    assert broke_sparing([after, before], [purged(Purge(tenant=1), 150, 160)], calm), "another tenant's"
    assert broke_sparing([before, after], [purged(Purge(tenant=0, chain=0, page=1), 150, 160)], calm) == []
    assert broke_sparing([before, after], [purged(Purge(), 205, 300)], calm), "it came after the miss"
    assert broke_sparing([before, after], [], [Span(0, 150), Span(150, 1000)]) == [], "not one calm time"
    stale = replace(after, reason=MissReason.STALE)
    assert broke_sparing([before, stale], [], calm) == []
    assert broke_sparing([before, stale, replace(after, invoked_ns=300, answered_ns=301)], [], calm)
    assert availability([before, stale], calm) == {"ABSENT": 1, "STALE": 1}


def test_an_invalidation_that_was_not_confirmed_may_take_what_came_later() -> None:
    calm = [Span(0, 1000)]
    history = [look_up(100, chain(60)), look_up(200, ())]
    assert broke_sparing(history, [purged(Purge(), 20, 40)], calm)
    assert broke_sparing(history, [purged(Purge(), 20, 40, exit_code=3)], calm) == []


def test_of_pages_whose_lineage_nobody_can_tell_more_may_go() -> None:
    calm, purges = [Span(0, 1000)], [purged(Purge(producer=2), 150, 160)]
    root = chain(10)
    own = (*root, page(1, at=11, on=root))
    assert broke_sparing([look_up(100, own), look_up(200, own[:1])], purges, calm)
    foreign = (*root, page(1, at=11, on=chain(9)))
    assert broke_sparing([look_up(100, foreign), look_up(200, foreign[:1])], purges, calm) == []
    assert broke_sparing([look_up(100, foreign), look_up(200, ())], purges, calm), "its root is known"


def test_what_a_worker_had_itself_need_not_be_on_its_node() -> None:
    own = replace(look_up(100, chain(10)), l1=1)
    assert broke_sparing([own, look_up(200, ())], [], [Span(0, 1000)]) == []


@pytest.mark.parametrize("at", [0, 5, 20, PAGE_BYTES // 2, PAGE_BYTES - 1])
def test_torn_pages_and_pages_of_other_places_are_found(at: int) -> None:
    whole = page(1, on=chain(10))
    data = bytearray(whole.encode())
    assert read_page(data, whole.place) == whole
    with pytest.raises(BrokenPageError):
        read_page(data, replace(whole.place, tenant=1))
    data[at] ^= 1
    with pytest.raises(BrokenPageError):
        read_page(data, whole.place)


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "w", bytes_max=100_000)
    file = HistoryFile(tmp_path / "w", worker="w", sidecar=0)
    wanted = [look_up(100, chain(10, 11)), look_up(200, chain(10)), look_up(300, (), reason=MissReason.STALE)]
    for one in wanted:
        recorder.look_up(
            invoked_ns=one.invoked_ns, answered_ns=one.answered_ns, tenant=0, chain=0, wanted=3, l1=0,
            pages=one.pages, reason=one.reason,
        )  # fmt: skip
        file.read()
    recorder.breach(400, "torn")
    with (tmp_path / "w").open("ab") as half_written:
        half_written.write(b'{"look":[1')
    file.read()
    assert file.look_ups == wanted
    assert file.breaches == [Breach("w", 400, "torn")]
    assert broke_whole(file.breaches) == [Broken("whole", "w at 400: torn")]


def test_a_history_is_bounded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "w", bytes_max=1000)
    while not recorder.is_full:
        recorder.breach(1, "x" * 100)
    assert (tmp_path / "w").stat().st_size <= 1000
