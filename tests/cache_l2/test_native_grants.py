"""Slots granted in advance and what is posted in them, in the native core: given, taken, posted, taken back, and ended."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cache_l2._native import Reader
from kv_types import limits
from kv_types.outcomes import MissReason, PutStatus, RefuseReason
from kv_types.validity import stored_instance
from tests.support.native_arena import FAR_NS, NO_LOG, PAGE, NativeArena, chain, now_ns, payload, selection

ASK, POSTED, LATE = 0, 1, 2
STORED = (PutStatus.STORED, RefuseReason.NONE)
KNOWN = (PutStatus.KNOWN, RefuseReason.NONE)
PLENTY = 1 << 40
WAIT_S = 0.02
"""How long a look-up waits for what was posted."""


@dataclass
class Poster:
    """A row with a writer of its own."""

    world: NativeArena
    row: int
    reader: Reader

    @classmethod
    def of(cls, world: NativeArena, *, slots: int = 8) -> Poster:
        row = world.arena.open_row(os.getpid())
        poster = cls(world, row, world.attach(row, doorbell=True))
        if slots:
            poster.grant(slots)
        return poster

    def grant(self, slots: int, *, page_bytes: int = PAGE, bytes_max: int = PLENTY, spared: int = 0) -> int:
        return self.world.arena.grant(
            row=self.row,
            payload_bytes=page_bytes,
            wanted=slots,
            bytes_max=bytes_max,
            now_ns=now_ns(),
            spared=spared,
        )

    def post(self, keys: Sequence[bytes], *, start: int = 0, **given: Any) -> tuple[int, list[int]]:
        arguments: dict[str, Any] = {
            "namespace": 1, "page_bytes": PAGE, "incarnation": NO_LOG, "revision": 0, "deadline_ns": FAR_NS,
            "terms": b"terms", "resident": start,
        }  # fmt: skip
        sources = [payload(key) for key in keys[start:]]
        return self.reader.post(0, b"".join(keys), sources, start=start, **arguments | given)

    @property
    def grants(self) -> int:
        return self.world.arena.row_statistics(self.row)["grants"]


def granted(world: NativeArena) -> int:
    return world.arena.statistics()["entries_granted"]


def test_what_is_posted_is_there_once_it_is_settled_and_holds_its_bytes() -> None:
    world = NativeArena()
    poster = Poster.of(world, slots=4)
    keys = chain("a", 3)
    kind, ids = poster.post(keys)
    assert kind == POSTED
    assert world.resident(keys) == 0
    assert world.settle() == [[STORED] * 3]
    assert world.resident(keys) == 3
    with world.reader.lease(0, b"".join(keys), namespace=1) as lease:
        assert [bytes(page) for page in lease] == [payload(key) for key in keys]
        assert lease.instances() == [stored_instance(one) for one in ids]
    assert poster.grants == granted(world) == 1
    assert world.arena.posting_rows() == []
    world.arena.check_invariants()


def test_a_post_brings_its_namespace_parent_time_and_terms() -> None:
    world = NativeArena()
    poster = Poster.of(world)
    keys = chain("a", 3)
    poster.post(keys[:1])
    poster.post(keys, start=1, resident=0, ttl_s=17, terms=b"told")
    first = world.arena.next_post(poster.row)
    assert first is not None
    assert (first[:4], first[5:]) == ((1, PAGE, None, keys[0]), (-1, b"terms"))
    world.arena.settle_post(poster.row)
    second = world.arena.next_post(poster.row)
    assert second is not None
    assert (second[:4], second[5:]) == ((1, PAGE, keys[0], keys[1] + keys[2]), (17, b"told"))


def test_without_enough_slots_of_the_size_on_offer_it_must_ask() -> None:
    world = NativeArena(slots=256)
    poster = Poster.of(world, slots=0)
    assert poster.post(chain("a", 1)) == (ASK, [])
    poster.grant(2)
    assert poster.post(chain("a", 3)) == (ASK, [])
    assert poster.grants == 2
    assert poster.post(chain("a", 2), page_bytes=PAGE)[0] == POSTED
    poster.grant(2, page_bytes=5 * PAGE)
    assert poster.post(chain("b", 1)) == (ASK, []), "what is on offer is of another size"


@pytest.mark.parametrize("revision", [1, 2**40])
def test_under_another_stamp_than_the_present_one_it_must_ask(revision: int) -> None:
    poster = Poster.of(NativeArena())
    assert poster.post(chain("a", 1), revision=revision) == (ASK, [])
    assert poster.post(chain("a", 1), incarnation=b"\1" * 16) == (ASK, [])
    assert poster.post(chain("a", 1))[0] == POSTED


def test_a_stale_or_closed_header_has_it_ask() -> None:
    world = NativeArena()
    poster = Poster.of(world)
    world.arena.publish_freshness(1)
    assert poster.post(chain("a", 1)) == (ASK, [])
    world.arena.publish_freshness(FAR_NS)
    assert poster.post(chain("a", 1))[0] == POSTED
    world.arena.close_header()
    assert poster.post(chain("b", 1)) == (ASK, [])


def test_keys_that_somebody_has_and_parents_that_nobody_has_are_for_the_sidecar_to_judge() -> None:
    world = NativeArena()
    poster = Poster.of(world)
    keys = chain("a", 4)
    world.put(keys[:1])
    assert poster.post(keys[:1]) == (ASK, []), "it is there"
    world.reserve(keys[1:2], parent=keys[0])
    assert poster.post(keys[:2], start=1) == (ASK, []), "somebody fills it"
    other = chain("b", 3)
    assert poster.post(other[:2], start=1, resident=0) == (ASK, []), "what it stands on is not there"
    assert poster.post(other[:1])[0] == POSTED
    assert poster.post(other[:1]) == (ASK, []), "it has posted it already"
    assert poster.post(other[:2], start=1, resident=0)[0] == POSTED, "it stands on what it has posted itself"
    assert world.settle() == [[STORED], [STORED]]


def test_pages_that_come_too_late_are_not_posted_and_their_slots_are_on_offer_again() -> None:
    world = NativeArena()
    poster = Poster.of(world, slots=2)
    assert poster.post(chain("a", 2), deadline_ns=1) == (LATE, [])
    assert poster.post(chain("a", 2))[0] == POSTED
    assert world.settle() == [[STORED] * 2]


def test_only_a_writer_with_a_doorbell_posts() -> None:
    world = NativeArena()
    poster = Poster.of(world)
    poster.reader = world.attach(poster.row)
    assert poster.post(chain("a", 1)) == (ASK, [])
    poster.reader = world.attach(poster.row, writable=False, doorbell=True)
    assert poster.post(chain("a", 1)) == (ASK, [])


@pytest.mark.parametrize("given", [{"ttl_s": -2}, {"terms": bytes(1025)}, {"incarnation": b"short"}])
def test_what_no_post_can_carry_is_refused(given: dict[str, Any]) -> None:
    poster = Poster.of(NativeArena())
    with pytest.raises(ValueError, match=next(iter(given))):
        poster.post(chain("a", 1), **given)


# --- taken back ---


def test_what_is_on_offer_is_taken_back_and_what_is_in_hand_is_not() -> None:
    world = NativeArena()
    poster = Poster.of(world, slots=6)
    keys = chain("a", 2)
    assert poster.post(keys)[0] == POSTED
    world.arena.recall_grants(poster.row)
    assert poster.grants == 2
    assert poster.post(chain("b", 1)) == (ASK, [])
    assert world.settle() == [[STORED] * 2]
    assert granted(world) == 0
    world.arena.check_invariants()


def test_all_that_a_row_has_returns_when_its_process_ends() -> None:
    world = NativeArena()
    poster = Poster.of(world, slots=6)
    poster.post(chain("a", 2))  # filled, posted, never carried out
    world.arena.end_row(poster.row)
    assert granted(world) == 0
    assert world.arena.statistics()["entries_reserved"] == 0
    assert world.settle() == []
    again = world.arena.open_row(os.getpid())
    assert again == poster.row
    assert world.arena.next_post(again) is None
    world.arena.check_invariants()


def test_an_orphan_keeps_what_it_has_in_hand_and_gets_nothing_more() -> None:
    world = NativeArena()
    poster = Poster.of(world, slots=6)
    poster.post(chain("a", 2))
    world.arena.orphan_row(poster.row)
    assert poster.grants == 2
    assert poster.grant(4) == 0
    assert world.settle() == [[STORED] * 2]


def test_room_is_made_of_its_own_slots_before_anything_is_evicted() -> None:
    world = NativeArena(slots=256, entries=4096)
    poster = Poster.of(world, slots=0)
    resident = [chain(f"r{number}", 1) for number in range(240)]
    for keys in resident:
        world.put(keys)
    assert poster.grant(16) == 16
    answers = world.reserve(chain("a", 16), row=poster.row)
    assert all(answer.status == PutStatus.STORED for answer in answers)
    assert world.arena.statistics()["evictions_capacity"] == 0
    assert poster.grants == 0


def test_nothing_is_refused_for_slots_that_nobody_uses() -> None:
    world = NativeArena(slots=256)
    leases = []
    for number in range(224):
        keys = chain(f"r{number}", 1)
        world.put(keys)
        leases.append(world.reader.lease(0, keys[0], namespace=1))
    poster = Poster.of(world, slots=32)
    answers = world.reserve(chain("a", 32))  # another row's
    assert [answer.status for answer in answers] == [PutStatus.STORED] * 32
    assert poster.grants == 0
    for lease in leases:
        lease.release()


def test_a_segment_of_slots_on_offer_moves_to_who_needs_it() -> None:
    world = NativeArena(slots=256)
    poster = Poster.of(world, slots=64)
    while all(answer[0] == PutStatus.STORED for answer in world.put(chain(os.urandom(4).hex(), 1))):
        if world.arena.statistics()["evictions_capacity"]:
            break
    assert world.put(chain("large", 1), page_bytes=60 * 1024) == [STORED]
    assert poster.grants < 64
    world.arena.check_invariants()


def test_what_is_granted_evicts_no_page_of_the_chain_that_is_spared_and_keeps_to_its_bound() -> None:
    world = NativeArena(slots=256)
    keys = chain("a", 250)
    world.put(keys)
    instance = world.arena.instance(keys[-1])
    assert instance is not None
    poster = Poster.of(world, slots=0)
    assert poster.grant(64, spared=instance) == 6
    assert world.resident(keys) == 250
    assert poster.grant(64, bytes_max=10 * PAGE) == 6 + 4
    assert poster.grant(64) == 64
    assert world.resident(keys) == 250 - 58


# --- carried out ---


def test_pages_whose_parent_is_gone_by_then_are_refused_and_their_slots_are_free() -> None:
    world = NativeArena()
    poster = Poster.of(world, slots=2)
    keys = chain("a", 3)
    world.put(keys[:1])
    assert poster.post(keys, start=1)[0] == POSTED
    world.hide(keys[0])
    refused = (PutStatus.REFUSED, RefuseReason.PARENT_ABSENT)
    assert world.settle() == [[refused, refused]]
    assert granted(world) == world.arena.statistics()["entries_reserved"] == 0
    world.arena.check_invariants()


def test_of_two_who_post_one_page_the_second_finds_it_known() -> None:
    world = NativeArena()
    posters = [Poster.of(world, slots=2) for _ in range(2)]
    keys = chain("a", 2)
    assert [poster.post(keys)[0] for poster in posters] == [POSTED, POSTED]
    assert world.settle() == [[STORED] * 2, [KNOWN] * 2]
    assert granted(world) == 0


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lambda ids: [ids[0], ids[0]], id="the same slot twice"),
        pytest.param(lambda ids: [ids[0], ids[1] + (1 << 32)], id="a slot of another time"),
        pytest.param(lambda ids: [ids[0], 2**64 - 1], id="no slot"),
    ],
)
def test_slots_that_are_not_the_rows_are_refused(lie: Callable[[list[int]], list[int]]) -> None:
    world = NativeArena()
    poster = Poster.of(world, slots=2)
    keys = chain("a", 2)
    _, ids = poster.post(keys)
    rows = world.arena.reserve(
        row=poster.row, namespace_slot=1, parent=None, keys=b"".join(keys), payload_bytes=PAGE, expiry_s=0,
        deadline_ns=FAR_NS, now_ns=1, granted=lie(ids),
    )  # fmt: skip
    assert [row[:2] for row in rows] == [STORED, (PutStatus.REFUSED, RefuseReason.EXPIRED)]
    world.arena.check_invariants()


def test_a_look_up_waits_for_what_was_posted_and_for_nothing_else() -> None:
    world = NativeArena(slots=512)
    poster, reader = Poster.of(world, slots=0), Poster.of(world, slots=0).reader
    stop = threading.Event()
    granted_again = threading.Semaphore(0)

    def settle() -> None:
        while not stop.is_set():
            world.settle()
            poster.grant(4)
            granted_again.release()

    thread = threading.Thread(target=settle)
    thread.start()
    try:
        hits, deadline_s = 0, time.monotonic() + 60.0
        while hits < 50 and time.monotonic() < deadline_s:
            keys = chain(os.urandom(8).hex(), 1)
            granted_again.acquire()
            if poster.post(keys)[0] != POSTED:
                continue
            began_s = time.monotonic()
            pages, _ = reader.match(keys[0], namespace=1)
            assert pages or time.monotonic() - began_s >= WAIT_S, "absent, and it was not waited for"
            hits += pages
        assert hits == 50
    finally:
        stop.set()
        thread.join()
    poster.post(chain("unsettled", 1))
    began_s = time.monotonic()
    assert reader.match(chain("other", 1)[0], namespace=1) == (0, MissReason.ABSENT)
    assert time.monotonic() - began_s < WAIT_S, "nobody has posted that page"
    looks: list[Callable[[bytes], int]] = [
        lambda key: reader.match(key, namespace=1)[0],
        lambda key: reader.lease(0, key, namespace=1).pages,
        lambda key: reader.get(0, key, [bytearray(PAGE)], namespace=1, page_bytes=PAGE)[0],
    ]
    for look in looks:
        began_s = time.monotonic()
        assert look(chain("unsettled", 1)[0]) == 0
        assert time.monotonic() - began_s >= WAIT_S
    assert reader.match(chain("unsettled", 1)[0], namespace=1, may_await=False)[0] == 0


# --- hostile rows ---


def clients_file(world: NativeArena) -> mmap.mmap:
    control, clients, data = world.arena.duplicate_descriptors(writable=False)
    mapped = mmap.mmap(clients, world.arena.geometry["clients_bytes"])
    for descriptor in (control, clients, data):
        os.close(descriptor)
    return mapped


@pytest.mark.parametrize("byte", [b"\xff", b"\x01", b"\x80"])
def test_a_ring_of_garbage_is_told_once_and_hurts_nobody_else(byte: bytes) -> None:
    world = NativeArena()
    liar, honest = Poster.of(world, slots=2), Poster.of(world, slots=2)
    begin, stride = world.arena.geometry["row_offset"], world.arena.geometry["row_bytes"]
    with clients_file(world) as clients:
        clients[begin + liar.row * stride : begin + (liar.row + 1) * stride] = byte * stride
        clients[:8] = b"\xff" * 8  # every row says that it has posts
    with pytest.raises(ValueError, match=f"row {liar.row} posted what no client"):
        world.settle()
    assert honest.post(chain("a", 2))[0] == POSTED
    assert world.settle() == [[STORED] * 2]
    assert world.arena.posting_rows() == []
    world.arena.end_row(liar.row)
    world.arena.check_invariants()
    assert granted(world) == 0


def test_a_look_up_whose_time_a_load_has_used_up_waits_for_no_post() -> None:
    world = NativeArena(slots=512)
    poster, reader = Poster.of(world), Poster.of(world, slots=0).reader
    keys = chain("unsettled", 1)
    assert poster.post(keys)[0] == POSTED
    with reader.lease(0, keys[0], namespace=1, may_load=True) as held:
        assert held.reason == MissReason.ABSENT
    began_s = time.monotonic()
    with reader.complete_lease(0, keys[0], namespace=1, reason=MissReason.DEADLINE, may_await=False) as held:
        assert held.reason == MissReason.DEADLINE
    assert time.monotonic() - began_s < WAIT_S
    room = bytearray(PAGE)
    assert reader.get(0, keys[0], room, namespace=1, page_bytes=PAGE, may_load=True)[1] == MissReason.ABSENT
    began_s = time.monotonic()
    told = reader.complete_get(
        0, keys[0], room, namespace=1, page_bytes=PAGE, reason=MissReason.DEADLINE, may_await=False
    )
    assert told[:2] == (0, MissReason.DEADLINE)
    assert time.monotonic() - began_s < WAIT_S


def test_many_posts_of_all_lengths_come_round_the_ring_in_order() -> None:
    world = NativeArena(slots=1024)
    poster = Poster.of(world, slots=0)
    for number in range(400):
        pages = 1 + number % 7
        poster.grant(pages)
        keys, terms = chain(f"n{number}", pages), bytes([number % 256]) * (number * 37 % 1025)
        assert poster.post(keys, terms=terms)[0] == POSTED
        post = world.arena.next_post(poster.row)
        assert post is not None
        assert (post[3], len(post[4]), post[6]) == (b"".join(keys), pages, terms)
        world.settle()
        assert world.resident(keys) == pages


class GrantsMachine(RuleBasedStateMachine):
    """Everything that may happen to grants, in any order: no slot is lost, and what was posted comes out in order."""

    @initialize()
    def begin(self) -> None:
        self.world = NativeArena(slots=256, rows=5)
        self.posters: list[Poster] = []
        self.posted: dict[int, list[int]] = {}
        self.serial = 0

    @rule()
    def open(self) -> None:
        if len(self.posters) < 4:
            poster = Poster.of(self.world, slots=0)
            self.posters.append(poster)
            self.posted[poster.row] = []

    @rule(which=st.integers(0, 3), slots=st.integers(1, limits.GRANTS_PER_CLIENT_MAX))
    def grant(self, which: int, slots: int) -> None:
        if which < len(self.posters):
            assert self.posters[which].grant(slots) <= limits.GRANTS_PER_CLIENT_MAX

    @rule(which=st.integers(0, 3), pages=st.integers(1, 9), late=st.booleans())
    def post(self, which: int, pages: int, late: bool) -> None:
        if which < len(self.posters):
            self.serial += 1
            poster = self.posters[which]
            keys = chain(f"k{self.serial}", pages)
            kind, ids = poster.post(keys, **({"deadline_ns": 1} if late else {}))
            assert kind in ((LATE, ASK) if late else (POSTED, ASK))
            if kind == POSTED:
                self.posted[poster.row].append(len(ids))

    @rule(pages=st.integers(1, 40))
    def put(self, pages: int) -> None:
        self.serial += 1
        assert self.world.put(chain(f"k{self.serial}", pages)) == [STORED] * pages

    @rule()
    def settle(self) -> None:
        outcomes = self.world.settle()
        expected = [pages for row in sorted(self.posted) for pages in self.posted[row]]
        assert [len(one) for one in outcomes] == expected
        assert all(one == STORED for batch in outcomes for one in batch)
        self.posted = {row: [] for row in self.posted}

    @rule(which=st.integers(0, 3))
    def recall(self, which: int) -> None:
        if which < len(self.posters):
            poster = self.posters[which]
            self.world.arena.recall_grants(poster.row)
            assert poster.grants == sum(self.posted[poster.row])

    @rule(which=st.integers(0, 3))
    def end(self, which: int) -> None:
        if which < len(self.posters):
            poster = self.posters.pop(which)
            del self.posted[poster.row]
            self.world.arena.end_row(poster.row)

    @rule()
    def invalidate(self) -> None:
        for _ in self.world.hiding(selection(namespaces=[1])):
            pass

    @invariant()
    def holds(self) -> None:
        self.world.arena.check_invariants()
        assert granted(self.world) == sum(poster.grants for poster in self.posters)


TestGrants = GrantsMachine.TestCase
TestGrants.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
