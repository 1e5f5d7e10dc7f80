"""Loads into a store that follows a log: what is described, judged, published, given way, and accounted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cache_l2 import intake, judging
from cache_l2._native import Reader
from cache_l2.arena_start import map_own
from cache_l2.namespaces import NamespaceRecord
from invalidation.listing import ListedJudge, Listings
from kv_types.clock import BoottimeClock, ManualClock
from kv_types.ids import LogIncarnation, PageKey, Stamp
from kv_types.limits import VETTED_TERMS_MAX
from kv_types.outcomes import STORED, Known, MissReason, PutStatus, RefuseReason
from kv_types.record import RESTS_ON_UNKNOWN, PageDescription
from kv_types.selectors import Selector
from kv_types.validity import NO_INSTANCE, stored_instance
from tests.support.followed_store import FollowedStore
from tests.support.pages import chain, namespace_of, packed, page_of, pages_of
from tests.support.stores import SECOND_NS, add, make_store

DONE = (PutStatus.STORED, RefuseReason.NONE)


class World:
    """Two nodes, each with a log of its own that says the same; what one stores the other loads."""

    def __init__(self, **config: Any) -> None:
        self.clock = ManualClock(BoottimeClock().now_ns())
        self.store = make_store(self.clock, **config)
        self.record = add(self.store, namespace_of("a"))
        self.stored: list[int] = []
        self.store.on_stored = self.stored.extend

    def put(
        self, keys: list[PageKey], *, after: PageKey | None = None, ttl_s: int | None = None, **given: Any
    ) -> list[int]:
        """Store a run; the instances."""
        rows = self.store.reserve(self.store.own_row, self.record, after, packed(keys), ttl_s)
        assert [row[0] for row in rows] == [PutStatus.STORED] * len(keys)
        self.store.reader.fill(
            [row[3] for row in rows],
            pages_of(keys, self.record.page_bytes),
            page_bytes=self.record.page_bytes,
        )
        terms: dict[str, Any] = {"stamp": self.store.stamp(), "rests_on": NO_INSTANCE} | given
        assert self.store.commit(self.store.own_row, [row[2] for row in rows], **terms) == [DONE] * len(keys)
        return [stored_instance(row[2]) for row in rows]

    def described(
        self, keys: list[PageKey], *, first: PageKey | None = None, **fields: Any
    ) -> list[PageDescription]:
        """Pages as they would come from elsewhere."""
        known: dict[str, Any] = {"stamp": self.store.stamp(), "rests_on": 0, "producer": b"elsewhere"}
        return [
            PageDescription(
                namespace=self.record.id, key=key, parent=keys[index - 1] if index else first,
                payload_bytes=self.record.page_bytes, birth=1000 + index, **(known | fields),
            )
            for index, key in enumerate(keys)
        ]  # fmt: skip

    def reserve(self, keys: list[PageKey], *, after: PageKey | None = None, **terms: Any) -> list[int]:
        rows = self.store.reserve_for_load(self.record, after, packed(keys), **terms)
        assert [row[0] for row in rows] == [PutStatus.STORED] * len(keys)
        return [row[2] for row in rows]

    def load(self, pages: list[PageDescription]) -> list[tuple[int, int]]:
        rows = self.store.reserve_for_load(self.record, pages[0].parent, packed([page.key for page in pages]))
        outcomes = []
        for (status, reason, reservation, offset), page in zip(rows, pages, strict=True):
            if status == PutStatus.STORED:
                self.store.reader.fill(
                    [offset], [page_of(page.key, page.payload_bytes)], page_bytes=page.payload_bytes
                )
                outcomes.append(self.store.publish_loaded(reservation, page))
            else:
                outcomes.append((status, reason))
        return outcomes


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.store.check_invariants()
    made.store.close()


def line_of(world: World, instance: int) -> int:
    told = world.store._arena.describe(instance)
    assert told is not None
    line = told["line"]
    assert isinstance(line, int)
    return line


def refused(reason: RefuseReason) -> tuple[int, int]:
    return (PutStatus.REFUSED, reason)


# --- descriptions ---


def test_a_page_travels_with_what_it_is_and_arrives_as_the_same(world: World) -> None:
    keys = chain(3)
    first = world.put(
        keys[:2], producer=b"node/worker", tags=(b"b", b"a"), computed_from_ms=5, computed_until_ms=9
    )
    second = world.put(keys[2:], after=keys[1], rests_on=first[1], producer=b"other")
    told = [world.store.describe(instance) for instance in (*first, *second)]
    pages = [page for page in told if page is not None]
    assert len(pages) == 3
    assert [page.parent for page in pages] == [None, keys[0], keys[1]]
    assert [page.rests_on for page in pages] == [0, 0, line_of(world, first[1])]
    assert (pages[0].producer, pages[0].tags, pages[0].origin_unknown) == (
        b"node/worker",
        (b"a", b"b"),
        False,
    )
    assert (pages[0].computed_from_ms, pages[0].computed_until_ms, pages[0].stamp) == (
        5,
        9,
        world.store.stamp(),
    )
    elsewhere = World()
    elsewhere.store.join()
    stamp = elsewhere.store.stamp()
    assert elsewhere.load([replace(page, stamp=stamp) for page in pages]) == [DONE] * 3
    with elsewhere.store.lease(world.record.id, keys) as lease:
        arrived = [elsewhere.store.describe(instance) for instance in lease.instances()]
    assert arrived == [replace(page, stamp=stamp) for page in pages]
    elsewhere.store.close()


def test_what_no_record_can_hold_is_told_as_unknown(world: World) -> None:
    keys = chain(2)
    backwards = world.put(keys[:1], computed_from_ms=9, computed_until_ms=5)[0]
    zero = world.put(keys[1:], after=keys[0], rests_on=2**64 - 1, producer=b"ends\0", tags=(b"t",))[0]
    page, other = world.store.describe(backwards), world.store.describe(zero)
    assert page is not None
    assert other is not None
    assert (page.computed_from_ms, page.computed_until_ms, page.origin_unknown) == (0, 0, False)
    assert (other.producer, other.tags, other.origin_unknown, other.rests_on) == (
        b"",
        (),
        True,
        RESTS_ON_UNKNOWN,
    )


def test_pages_of_unknown_origin_are_any_selector_s(world: World) -> None:
    keys = chain(2)
    pages = world.described(keys, producer=b"", origin_unknown=True)
    assert world.load(pages) == [DONE] * 2
    facts = world.store.inspect(keys[0])
    assert facts is not None
    assert (facts.origin.producer, facts.origin.tags) == (None, None)
    assert world.store.hide(Selector(producer=b"nobody")) == 2
    assert world.load(pages) == [refused(RefuseReason.INVALIDATED)] * 2


def test_those_who_store_are_told_and_those_who_load_are_not(world: World) -> None:
    keys = chain(4)
    assert world.stored == world.put(keys[:2])
    world.load(world.described(keys[2:], first=keys[1]))
    assert len(world.stored) == 2
    world.store.on_stored = None
    world.put(chain(1))
    assert len(world.stored) == 2


def test_only_what_was_published_is_told(world: World) -> None:
    rows = world.store.reserve(world.store.own_row, world.record, None, packed(chain(2)))
    world.store.hide_all()
    outcomes = world.store.commit(world.store.own_row, [row[2] for row in rows], stamp=world.store.stamp())
    assert [status for status, _ in outcomes] == [PutStatus.REFUSED] * 2
    assert world.stored == []


# --- judging ---


def test_a_load_is_judged_by_its_own_stamp_at_the_moment_it_is_published(world: World) -> None:
    keys = chain(2)
    pages = world.described(keys)
    first, second = world.reserve(keys)
    assert world.store.judge_probed(world.record, None, pages) == [RefuseReason.NONE] * 2
    assert world.store.publish_loaded(first, pages[0]) == DONE
    world.store.hide(Selector(producer=b"elsewhere"))
    assert world.store.judge_probed(world.record, None, pages) == [
        RefuseReason.INVALIDATED, RefuseReason.PARENT_ABSENT,
    ]  # fmt: skip
    assert world.store.publish_loaded(second, pages[1]) == refused(RefuseReason.INVALIDATED)
    assert world.load(world.described(keys)) == [DONE] * 2, "computed since"


@pytest.mark.parametrize(("changed", "reason"), [
    ({"stamp": Stamp(LogIncarnation(b"x" * 16), 1)}, RefuseReason.STAMP_FOREIGN),
    ({"key": PageKey(b"k" * 32)}, RefuseReason.CORRUPT),
    ({"parent": PageKey(b"k" * 32)}, RefuseReason.CORRUPT),
    ({"namespace": PageKey(b"n" * 32)}, RefuseReason.CORRUPT),
    ({"payload_bytes": 17}, RefuseReason.CORRUPT),
])  # fmt: skip
def test_what_is_not_what_was_asked_for_is_refused(
    world: World, changed: dict[str, Any], reason: RefuseReason
) -> None:
    keys = chain(2)
    (page,) = world.described(keys[:1])
    (reservation,) = world.reserve(keys[:1])
    assert world.store.publish_loaded(reservation, replace(page, **changed)) == refused(reason)
    assert world.store.publish_loaded(reservation, page) == refused(RefuseReason.EXPIRED), "it has ended"
    assert world.store.statistics()["entries_reserved"] == 0
    if "key" not in changed:  # whoever probes knows which key it asked for
        assert world.store.judge_probed(world.record, None, [replace(page, **changed)]) == [reason]


def test_a_stamp_ahead_of_this_node_is_refused(world: World) -> None:
    (page,) = world.described(chain(1))
    ahead = replace(page, stamp=replace(page.stamp, revision=page.stamp.revision + 1))
    assert world.load([ahead]) == [refused(RefuseReason.STAMP_FOREIGN)]


def test_a_key_above_a_load_is_looked_at_though_it_is_resident_or_in_the_same_run(world: World) -> None:
    keys = chain(6)
    old = world.described(keys)
    world.store.hide(Selector(key=keys[1]))
    assert world.load(world.described(keys[:4])) == [DONE] * 4, "computed anew"
    assert world.load(old[4:]) == [refused(RefuseReason.INVALIDATED), refused(RefuseReason.PARENT_ABSENT)]
    probed = world.store.judge_probed(world.record, None, old)
    assert probed == [RefuseReason.NONE, RefuseReason.INVALIDATED, *[RefuseReason.PARENT_ABSENT] * 4]
    assert world.store.judge_probed(world.record, keys[3], old[4:])[0] == RefuseReason.INVALIDATED
    assert world.load(world.described(keys[4:], first=keys[3])) == [DONE] * 2


def test_a_run_is_judged_though_its_chain_is_as_long_as_may_be_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = chain(4)
    old = [replace(page, computed_until_ms=1 + at) for at, page in enumerate(world.described(keys))]
    world.store.hide(Selector(key=chain(1)[0]))  # so that it takes a look at the keys to judge what is older
    monkeypatch.setattr(judging, "ANCESTORS_WALKED_MAX", 3)
    assert world.store.judge_probed(world.record, None, old) == [RefuseReason.NONE] * 4
    assert world.load(old) == [DONE] * 4


def test_loads_of_one_run_look_at_their_chain_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = chain(40)
    old = world.described(keys, tags=(b"t",))
    world.store.hide(Selector(key=chain(1)[0]))
    looked: list[bytes] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(arena, name)

        def chain(self, key: bytes, *, pages_max: int) -> bytes | None:
            looked.append(key)
            return arena.chain(key, pages_max=pages_max)

    arena = world.store._arena
    monkeypatch.setattr(world.store, "_arena", Watched())
    assert world.load(old) == [DONE] * 40
    assert looked == []
    assert world.load(world.described(chain(2), stamp=old[0].stamp)) == [DONE] * 2
    world.store.hide(Selector(key=chain(1)[0]))
    more = chain(2)
    pages = world.described(more, first=keys[-1], stamp=old[0].stamp, tags=(b"t",))
    assert world.load(pages) == [DONE] * 2
    assert looked == [keys[-1]], "a record came: what had passed is judged again"


def test_a_loaded_page_need_not_have_been_listed_here(world: World) -> None:
    listed = ListedJudge(world.store.validity, Listings())
    world.store._judge = listed
    keys = chain(2)
    assert world.load(world.described(keys[:1])) == [DONE]
    outcomes = world.store.put(
        world.record.id, keys, pages_of(keys, world.record.page_bytes), stamp=world.store.stamp()
    )
    assert outcomes[0] == Known()
    assert outcomes[1] != STORED, "a first commit is"


def test_a_draining_store_takes_no_loads(world: World) -> None:
    keys = chain(2)
    (reservation,) = world.reserve(keys[:1])
    world.store.drain()
    assert world.store.publish_loaded(reservation, world.described(keys)[0]) == refused(RefuseReason.CLOSED)
    rows = world.store.reserve_for_load(world.record, None, packed(keys))
    assert [row[1] for row in rows] == [RefuseReason.CLOSED] * 2


def test_chains_that_are_loaded_side_by_side_are_not_walked_for_each_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [chain(12), chain(12)]
    pages = [
        world.described(keys, computed_from_ms=at, computed_until_ms=at + 1) for at, keys in enumerate(runs)
    ]
    world.store.hide(Selector(key=chain(1)[0]))  # so that it takes a look at the keys to judge what is older
    walked: list[bytes] = []
    walk = judging.chain_of

    def counted(arena: judging.JudgedArena) -> judging.PackedChain:
        def chain(key: bytes, pages_max: int) -> bytes | None:
            walked.append(key)
            return walk(arena)(key, pages_max)

        return chain

    monkeypatch.setattr(intake, "chain_of", counted)
    places = [world.reserve(keys) for keys in runs]
    for at in range(12):
        for run in range(2):
            assert world.store.publish_loaded(places[run][at], pages[run][at]) == DONE
    assert walked == []


def test_pages_of_more_terms_than_are_remembered_are_judged_as_ever(world: World) -> None:
    keys = chain(3 * VETTED_TERMS_MAX)
    pages = world.described(keys)
    world.store.hide(Selector(key=keys[40]))
    told = [replace(page, computed_until_ms=1 + at // 2) for at, page in enumerate(pages)]
    done = world.load(told)
    assert done[:40] == [DONE] * 40
    assert done[40:] == [refused(RefuseReason.INVALIDATED)] + [refused(RefuseReason.PARENT_ABSENT)] * 7


# --- reservations ---


def test_a_load_s_reservation_lasts_as_long_as_its_transfer(world: World) -> None:
    keys = chain(2)
    until_ns = world.clock.now_ns() + 100 * SECOND_NS
    (long,) = world.reserve(keys[:1], until_ns=until_ns)
    (short,) = world.reserve(chain(1))
    world.clock.advance(99 * SECOND_NS)
    world.store.tick()
    assert world.store.statistics()["entries_quarantined"] == 1, (
        "it has run out, and its bytes may still arrive"
    )
    assert world.store.publish_loaded(long, world.described(keys)[0]) == DONE
    world.store.abort(world.store.own_row, [short])
    assert world.store.statistics()["entries_quarantined"] == 0


def test_a_put_over_the_network_takes_over_what_the_same_row_loads(world: World) -> None:
    keys = chain(3)
    loads = world.reserve(keys)
    sources = pages_of(keys, world.record.page_bytes)
    assert world.store.put(world.record.id, keys, sources, stamp=world.store.stamp()) == [STORED] * 3
    pages = world.described(keys)
    assert world.store.publish_loaded(loads[0], pages[0]) == refused(RefuseReason.EXPIRED)
    world.store.abort(world.store.own_row, loads[1:])
    assert world.store.statistics()["reservations"] == 0
    assert world.store.statistics()["entries_quarantined"] == 0
    assert world.store.statistics()["gave_way"] == 1


def test_the_time_of_a_page_travels(world: World) -> None:
    keys = chain(2)
    bounded, endless = world.put(keys[:1], ttl_s=50)[0], world.put(keys[1:], after=keys[0])[0]
    assert world.store.expires_in_s(endless) is None
    left = world.store.expires_in_s(bounded)
    assert left in (50, 51)
    world.clock.advance(20 * SECOND_NS)
    assert world.store.expires_in_s(bounded) == left - 20
    assert world.store.expires_in_s(bounded + 2**33) is None


# --- accounts ---


def test_c29_look_ups_that_wait_for_loads_are_accounted_for_exactly(world: World) -> None:
    """Known hits a tier, in two phases, by a client that goes on and by one that dies in between."""
    store, space = world.store, world.record.id
    keys = chain(8)
    world.put(keys[:3])
    row = store.open_client(os.getpid())
    counter = store.bind_namespace(row, world.record)
    reader = map_own(store._arena, row, store.life, prefault=False)
    whole = packed(keys)
    with reader.lease(counter, whole, start=1, may_load=True, namespace=world.record.number) as first:
        assert first.pages == 2
    world.load(world.described(keys[3:6], first=keys[2]))
    reader.complete_lease(
        counter,
        whole,
        start=1,
        l3_from=3,
        reason=int(MissReason.L3_UNAVAILABLE),
        namespace=world.record.number,
    ).release()
    counts = store.namespace_counts()[space]
    assert (counts.requested, counts.l1, counts.l2, counts.l3) == (8, 1, 2, 3)
    assert counts.missed_by_reason() == {MissReason.L3_UNAVAILABLE: 2}
    assert counts.is_balanced
    reader.lease(counter, whole, may_load=True, namespace=world.record.number).release()
    assert store.namespace_counts()[space] == counts, "it is under way"
    _end(store, row, reader)
    ended = store.namespace_counts()[space]
    assert ended.is_balanced
    assert (ended.requested, ended.l3) == (16, 3)
    assert ended.missed_by_reason() == {MissReason.L3_UNAVAILABLE: 2, MissReason.ABORTED: 8}
    figures = store.statistics()
    assert (figures["l3_pages"], figures["missed_pages_l3_unavailable"], figures["missed_pages_aborted"]) == (
        3,
        2,
        8,
    )


def test_pins_of_the_store_are_its_own_and_uncounted(world: World) -> None:
    keys = chain(1)
    (instance,) = world.put(keys)
    before = world.store.namespace_counts()
    pin = world.store.pin(instance)
    assert pin is not None
    assert world.store.client_leases(world.store.own_row) == 1
    assert bytes(pin[0]) == page_of(keys[0], world.record.page_bytes)
    pin.release()
    world.store.hide_all()
    assert world.store.pin(instance) is None
    assert world.store.describe(instance) is None
    assert world.store.namespace_counts() == before


def _end(store: FollowedStore, row: int, reader: Reader) -> None:
    reader.close()
    store.end_client(row)


def test_a_namespace_that_is_gone_takes_no_load(world: World) -> None:
    gone = NamespaceRecord(namespace_of("gone"), namespace_of("gone").id, 900, 4096)
    (key,) = chain(1)
    rows = world.store.reserve_for_load(gone, None, key)
    page = replace(world.described([key])[0], namespace=gone.id, payload_bytes=4096)
    assert world.store.publish_loaded(rows[0][2], page) == refused(RefuseReason.EXPIRED)
    assert world.store.judge_probed(gone, None, [page]) == [RefuseReason.EXPIRED]
