"""The judge of fleets' histories: each broken promise is found where one is planted, and none where none is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kv_types.outcomes import MissReason
from tests.fleet.accounts import Account, Tally
from tests.fleet.checker import (
    Broken,
    Span,
    availability,
    broke_accounts,
    broke_deadline,
    broke_fail_closed,
    broke_fence,
    broke_sharing,
    broke_sparing,
    broke_whole,
)
from tests.fleet.history import Breach, HistoryFile, LookUp, Recorder
from tests.fleet.metronome import Pause, Pauses
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


def test_who_asks_over_the_network_may_come_too_late_for_what_is_there() -> None:
    calm = [Span(0, 1000)]
    history = [look_up(100, chain(10)), look_up(200, (), reason=MissReason.DEADLINE)]
    assert broke_sparing(history, [], calm)
    assert broke_sparing(history, [], calm, remote=frozenset({"v"}))
    assert broke_sparing(history, [], calm, remote=frozenset({"w"})) == []


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


MS = 1_000_000


def waiting(took_ms: float, deadline_ms: float, *, waited_ms: float = 0.0) -> LookUp:
    """One that was answered at 1000 ms."""
    return replace(
        look_up(0, (), reason=MissReason.DEADLINE), answered_ns=1000 * MS, took_ns=int(took_ms * MS),
        deadline_ns=int(deadline_ms * MS), waited_ns=int(waited_ms * MS),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("late", "is_broken"),
    [
        (waiting(29, 10), False),
        (waiting(31, 10), True),
        (waiting(239, 200), False),
        (waiting(241, 200), True),
        (waiting(500, 0), False),
        (waiting(41, 10, waited_ms=12), False),
        (waiting(41, 10, waited_ms=10), True),
    ],
)
def test_a_look_up_past_its_deadline_is_found(late: LookUp, is_broken: bool) -> None:
    assert bool(broke_deadline([late], Pauses(()), {})) is is_broken


def test_time_without_a_cpu_is_nobodys_fault_and_other_time_is() -> None:
    late = waiting(40, 10)
    early = [Pause(0, 965 * MS), Pause(1001 * MS, 2000 * MS)]
    assert broke_deadline([late], Pauses(early), {})
    assert broke_deadline([late], Pauses([*early, Pause(960 * MS, 971 * MS)]), {}) == []
    assert broke_deadline([late], Pauses(()), {"w": [Pause(900 * MS, 975 * MS)]}) == []
    assert broke_deadline([late], Pauses(()), {"v": [Pause(900 * MS, 975 * MS)]})
    overlapping = Pauses([Pause(5, 9), Pause(0, 10), Pause(8, 20), Pause(30, 40)])
    assert overlapping.within_ns(0, 100) == 30
    assert overlapping.within_ns(6, 32) == 16


def test_a_page_that_one_node_had_and_another_missed_is_found() -> None:
    calm = [Span(0, 10_000)]

    def shared(at: int, pages: Sequence[StampedPage], node: int, **changed: Any) -> LookUp:
        return replace(look_up(at, pages), sidecar=node, deadline_ns=5, **changed)

    def broken(*history: LookUp, purges: Sequence[Purged] = ()) -> list[str]:
        return [one.promise for one in broke_sharing(history, purges, calm, shared_after_ns=1000)]

    got = shared(100, chain(10, 11), 0)
    assert broken(got, shared(1101, (), 1)) == ["sharing"]
    assert broken(got, shared(1101, chain(10), 1)) == ["sharing"]
    assert broken(got, shared(1100, (), 1)) == [], "so soon it need not be there"
    assert broken(got, shared(1101, chain(10, 11), 1)) == []
    assert broken(got, shared(1101, (), 1, reason=MissReason.DEADLINE)) == []
    assert broken(got, shared(1101, (), 1, reason=MissReason.CORRUPT)) == ["sharing"]
    assert broken(got, replace(shared(1101, (), 1), deadline_ns=0)) == [], "it did not ask"
    assert broken(got, shared(1101, (), 1), purges=[purged(Purge(), 500, 600)]) == []
    assert broken(got, shared(1101, (), 1), purges=[purged(Purge(tenant=1), 500, 600)]) == ["sharing"]
    elsewhere = (page(0, at=12, producer=2),)  # page 1 was computed on another page 0
    assert broken(got, shared(1101, elsewhere, 1)) == ["sharing"]
    other = [purged(Purge(producer=7), 500, 600)]
    assert broken(got, shared(1101, elsewhere, 1), purges=other) == [], "what it rests on can't be told there"
    assert broken(got, shared(1101, chain(10), 1), purges=other) == ["sharing"]
    calm[:] = [Span(11, 10_000)]
    assert broken(got, shared(1101, (), 1)) == [], "its root was computed before"


def account(own: Tally, **counted: int) -> Account:
    client = {"look_ups": 2, "requested_pages": 6, "l1_pages": 1, "l2_pages": 1, "l3_pages": 2} | counted
    return Account.at(5, own, client)


def test_counts_that_differ_are_found() -> None:
    own = Tally()
    own.count(wanted=3, l1=1, found=3, reason=MissReason.NONE)
    own.count(wanted=3, l1=0, found=1, reason=MissReason.ABSENT)
    right = account(own, missed_pages_absent=2, missed_pages_stale=0)
    assert broke_accounts([right]) == []
    assert right.l3_pages == 2
    for wrong in (
        account(own, missed_pages_absent=3),
        account(own, missed_pages_stale=2),
        account(own, missed_pages_absent=2, l3_pages=1),
        account(own, missed_pages_absent=2, l1_pages=0, l2_pages=2),
        account(own, missed_pages_absent=2, requested_pages=7),
        account(own, missed_pages_absent=2, look_ups=3),
    ):
        assert [one.promise for one in broke_accounts([wrong])] == ["accounts"]


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
    wanted = [look_up(100, chain(10, 11)), look_up(200, chain(10)), waiting(29, 10, waited_ms=3)]
    for one in wanted:
        recorder.look_up(
            invoked_ns=one.invoked_ns, answered_ns=one.answered_ns, tenant=0, chain=0, wanted=3, l1=0,
            pages=one.pages, reason=one.reason, deadline_ns=one.deadline_ns, took_ns=one.took_ns,
            waited_ns=one.waited_ns,
        )  # fmt: skip
        file.read()
    tally = Tally(look_ups=1)
    recorder.account(Account.at(350, tally, {"look_ups": 1, "attached": "no", "bytes_read": 3}))
    recorder.breach(400, "torn")
    with (tmp_path / "w").open("ab") as half_written:
        half_written.write(b'{"look":[1')
    file.read()
    assert file.look_ups == wanted
    assert file.breaches == [Breach("w", 400, "torn")]
    assert file.accounts == [Account("w", 350, tally.told(), {"look_ups": 1})]
    assert broke_whole(file.breaches) == [Broken("whole", "w at 400: torn")]


def test_a_history_is_bounded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "w", bytes_max=1000)
    while not recorder.is_full:
        recorder.breach(1, "x" * 100)
    assert (tmp_path / "w").stat().st_size <= 1000
