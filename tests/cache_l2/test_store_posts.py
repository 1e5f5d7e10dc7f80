"""Posted puts in a store that follows a log: judged when they are carried out, told, bounded, and never a slot lost."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pytest

from cache_l2._native import Reader
from cache_l2.attach_messages import Commit, Ping
from cache_l2.attach_wire import encode_message
from cache_l2.store import NamespaceRecord
from kv_types.clock import BoottimeClock, ManualClock
from kv_types.ids import PageKey
from kv_types.limits import GRANT_IDLE_S, GRANTS_PER_CLIENT_MAX, POSTS_PER_TURN
from kv_types.outcomes import Hit, PutStatus, RefuseReason
from kv_types.validity import NO_INSTANCE, stored_instance
from tests.support.followed_store import FollowedStore
from tests.support.pages import chain, namespace_of, packed, pages_of
from tests.support.stores import MIB, SECOND_NS, add, make_store

POSTED = 1
FAR_NS = 1 << 62
DONE = (PutStatus.STORED, RefuseReason.NONE)


class Client:
    """A client in this process, which has slots in advance."""

    def __init__(self, store: FollowedStore, record: NamespaceRecord) -> None:
        self.store, self.record = store, record
        self.row = store.open_client(os.getpid())
        store.bind_namespace(self.row, record)
        control, clients, data = store.descriptors(writable=True)
        self.reader = Reader(
            control_fd=control, clients_fd=clients, data_fd=data, row=self.row, life=store.life,
            writable=True, doorbell_fd=os.eventfd(0, os.EFD_NONBLOCK),
        )  # fmt: skip
        self.offer()

    def offer(self, pages: int = 2) -> None:
        self.store.offer_slots(self.row, self.record, [DONE] * pages)

    def post(
        self, keys: list[PageKey], *, start: int = 0, terms: bytes | None = None, **given: Any
    ) -> list[int]:
        """Post keys[start:]; the instances that they will be."""
        stamp = self.store.stamp()
        told = encode_message(Commit(reservations=(), stamp=stamp, rests_on=NO_INSTANCE), 0)
        arguments: dict[str, Any] = {"namespace": self.record.number, "page_bytes": self.record.page_bytes}
        kind, ids = self.reader.post(
            0, packed(keys), pages_of(keys[start:], self.record.page_bytes), start=start, resident=start,
            incarnation=stamp.incarnation, revision=stamp.revision, deadline_ns=FAR_NS,
            terms=told if terms is None else terms, **arguments | given,
        )  # fmt: skip
        assert kind == POSTED
        return [stored_instance(one) for one in ids]


class World(Client):
    """A store, and a client of it."""

    def __init__(self, **config: Any) -> None:
        self.clock = ManualClock(BoottimeClock().now_ns())
        store = make_store(self.clock, arena_bytes=16 * MIB, **config)
        super().__init__(store, add(store, namespace_of("a")))
        self.stored: list[int] = []
        self.store.on_stored = self.stored.extend

    @property
    def grants(self) -> int:
        return self.store.statistics()["entries_granted"]

    def pages(self, keys: list[PageKey]) -> int:
        outcome = self.store.look_up(self.record.id, packed(keys))
        return outcome.pages if isinstance(outcome, Hit) else 0


def test_whoever_asks_the_store_finds_what_was_posted_before() -> None:
    world = World()
    keys = chain(4)
    posted = world.post(keys[:2]) + world.post(keys[:3], start=2)
    assert world.pages(keys) == 3
    assert world.stored == posted
    (row,) = world.store.reserve(world.row, world.record, keys[2], packed(keys[3:]))
    assert row[0] == PutStatus.STORED, "what stands on posted pages can be reserved"
    facts = world.store.inspect(keys[1])
    assert facts is not None
    assert facts.stamp == world.store.stamp()


def test_what_an_invalidation_took_between_post_and_settlement_is_never_seen() -> None:
    world = World()
    keys, other = chain(2), chain(2)
    world.post(keys)
    world.post(other)
    world.store.hide_pages(packed(keys[:1]))
    assert world.pages(keys) == 0
    assert world.pages(other) == 2
    assert world.store.statistics()["entries_reserved"] == 0
    world.store.check_invariants()


def test_slots_follow_what_was_put_and_go_back_when_nothing_is() -> None:
    world = World()
    assert world.grants == 4
    world.post(chain(4))
    world.store.settle_posts()
    assert world.grants == 8
    world.clock.advance(int((GRANT_IDLE_S - 1) * SECOND_NS))
    world.store.tick()
    assert world.grants == 8
    world.clock.advance(2 * SECOND_NS)
    world.store.tick()
    assert world.grants == 0


def test_a_put_too_large_for_slots_in_advance_gets_none_and_neither_does_one_that_failed() -> None:
    world = World()
    world.store.tick()
    world.clock.advance(int((GRANT_IDLE_S + 1) * SECOND_NS))
    world.store.tick()
    world.offer(GRANTS_PER_CLIENT_MAX + 1)
    assert world.grants == 0
    world.store.offer_slots(world.row, world.record, [(PutStatus.REFUSED, RefuseReason.BUSY)])
    assert world.grants == 0


def test_what_a_client_posted_before_it_ended_is_stored_and_its_slots_return() -> None:
    world = World()
    keys = chain(3)
    posted = world.post(keys)
    world.store.end_client(world.row)
    assert world.grants == 0
    assert world.pages(keys) == 3
    assert world.stored == posted
    world.store.check_invariants()


def test_an_orphans_posts_are_stored_and_what_it_had_on_offer_returns() -> None:
    world = World()
    keys = chain(3)
    world.post(keys)
    world.store.orphan_client(world.row)
    assert world.grants == 0
    assert world.pages(keys) == 3


def _unregistered(world: World) -> dict[str, Any]:
    return {"namespace": add(world.store, namespace_of("b")).number}


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(_unregistered, id="a namespace that the client has not registered"),
        pytest.param(lambda _: {"namespace": 1023}, id="a namespace that nobody has registered"),
        pytest.param(lambda _: {"terms": b""}, id="no terms"),
        pytest.param(lambda _: {"terms": b"\xff" * 100}, id="garbage as terms"),
        pytest.param(lambda _: {"terms": encode_message(Ping(), 0)}, id="another message as terms"),
        pytest.param(
            lambda world: {"terms": encode_message(Commit(reservations=(1,), stamp=world.store.stamp()), 0)},
            id="terms that name a reservation",
        ),
        pytest.param(
            lambda world: {
                "terms": encode_message(Commit(reservations=(), stamp=world.store.stamp(), tags=(b"",)), 0)
            },
            id="terms with a tag that is none",
        ),
    ],
)
def test_a_post_that_no_client_writes_stores_nothing_and_what_follows_is_carried_out(lie: Any) -> None:
    world = World()
    keys, others = chain(2), chain(2)
    world.post(keys, **lie(world))
    world.post(others)
    assert world.pages(keys) == 0
    assert world.pages(others) == 2
    assert world.store.statistics()["posts_garbled"] == 1
    assert world.store.statistics()["entries_reserved"] == 0
    assert world.grants == 4
    world.store.check_invariants()


def test_what_was_posted_before_the_end_is_stored_and_nothing_after_it() -> None:
    world = World()
    before, after = chain(2), chain(2)
    posted = world.post(before)
    world.store.drain()
    assert world.stored == posted
    kind, _ = world.reader.post(
        0, packed(after), pages_of(after, world.record.page_bytes), namespace=world.record.number, start=0, resident=0,
        page_bytes=world.record.page_bytes, incarnation=world.store.stamp().incarnation,
        revision=world.store.stamp().revision, deadline_ns=FAR_NS, terms=b"",
    )  # fmt: skip
    assert kind != POSTED
    world.store.check_invariants()


def test_nothing_is_told_to_be_stored_while_the_end_carries_out_what_was() -> None:
    world = World()
    other = Client(world.store, world.record)
    told: list[int] = []

    def post_again(instances: list[int]) -> None:
        world.stored.extend(instances)
        with contextlib.suppress(AssertionError):  # it must ask, and is refused
            told.extend(world.post(chain(1)))

    told += world.post(chain(1)) + other.post(chain(1))
    world.store.on_stored = post_again
    world.store.drain()
    assert sorted(world.stored) == sorted(told)


def test_what_was_posted_in_a_namespace_is_stored_though_its_client_gives_that_up() -> None:
    world = World()
    keys = chain(2)
    world.post(keys)
    world.store.unbind_namespace(world.row, world.record)
    assert world.pages(keys) == 2


def test_a_client_of_two_models_has_slots_for_the_one_that_it_stores_now() -> None:
    world = World()
    other = add(world.store, namespace_of("b", units=5))
    world.store.offer_slots(world.row, other, [DONE] * 2)
    assert world.grants == 4
    keys = chain(2)
    with pytest.raises(AssertionError):
        world.post(keys)  # none of this size are on offer any more
    world.offer()
    world.post(keys)
    assert world.pages(keys) == 2
    world.store.check_invariants()


def test_a_client_that_posts_without_end_keeps_nobody_waiting() -> None:
    world = World()
    other = Client(world.store, world.record)
    posts = 0

    def post_again(instances: list[int]) -> None:
        nonlocal posts
        world.stored.extend(instances)
        if instances[0] not in others and posts < 4 * POSTS_PER_TURN:
            posts += 1
            world.post(chain(1))

    world.store.on_stored = post_again
    world.post(chain(1))
    others = other.post(chain(1))
    assert world.store.settle_some_posts(), "more is left than one turn carries out"
    assert others[0] in world.stored
    while world.store.settle_some_posts():
        pass
    assert len(world.stored) == 4 * POSTS_PER_TURN + 2


def test_a_turn_carries_out_a_bounded_number_of_pages_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cache_l2.posted.POSTED_PAGES_PER_TURN", 4)
    world = World()
    other = Client(world.store, world.record)
    expected: list[int] = []
    for client in (world, other):
        client.offer(5)
        expected += [one for _ in range(5) for one in client.post(chain(2))]
    turns = []
    while world.store.settle_some_posts():
        turns.append(len(world.stored))
    assert turns == [4, 8, 12, 16, 20]
    assert sorted(world.stored) == sorted(expected)


def test_who_looks_finds_what_was_posted_before_however_much_it_is() -> None:
    world = World()
    other = Client(world.store, world.record)
    last = []
    for client in (world, other):
        client.offer(GRANTS_PER_CLIENT_MAX // 2)
        for _ in range(GRANTS_PER_CLIENT_MAX):
            last = chain(1)
            client.post(last)
    assert world.pages(last) == 1
