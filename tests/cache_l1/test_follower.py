"""ViewFollower: whatever it cannot tell means everything, and no insert slips past what was hidden."""

from __future__ import annotations

import random

import pytest

from cache_l1.follower import ViewFollower
from kv_types.engine_limits import L1_TOMBSTONES_MAX
from kv_types.events import Event, LogStarted, Selected, WeightsAnnounced
from kv_types.ids import NO_LIFE, PageKey, new_life_id
from kv_types.limits import EVENT_PAYLOAD_BYTES_MAX
from kv_types.namespace import Adapter, Namespace, Weights
from kv_types.selectors import EVERYTHING, Selector
from kv_types.validity import ObservedView
from tests.cache_l1.fakes import FakeHeader
from tests.kv_types.samples import namespace as some_namespace

MINE = some_namespace(
    model="mine", weights=Weights(version="7"), adapter=Adapter("tuned", b"a" * 32), tenant="acme"
)
OTHER = some_namespace(model="other")


def key(number: int) -> PageKey:
    return PageKey(number.to_bytes(32, "big"))


CHAIN = [key(n) for n in range(1, 5)]


def pages(number: int, **more: object) -> Selected:
    """What selects a page and all that stands on it."""
    return Selected(Selector(key=key(number), **more))  # type: ignore[arg-type]


def started(header: FakeHeader, *, namespace: Namespace | None = None) -> ViewFollower:
    follower = ViewFollower(header, namespace=namespace)
    assert follower.follow().everything, "nothing is known of what happened before"
    return follower


def view(header: FakeHeader) -> ObservedView:
    return ObservedView(header.life_now, header.view_now)


def test_nothing_new_forgets_nothing() -> None:
    header = FakeHeader()
    follower = started(header)
    verdict = follower.follow()
    assert (verdict.observed, verdict.everything, verdict.pages) == (view(header), False, ())
    assert follower.admits(CHAIN, view(header))


def test_hidden_pages_are_forgotten_one_by_one() -> None:
    header = FakeHeader()
    follower = started(header)
    before = view(header)
    header.publish(pages(2))
    header.publish(pages(91))
    verdict = follower.follow()
    assert not verdict.everything
    assert verdict.pages == (key(2), key(91))
    assert not follower.admits(CHAIN, before), "the chain stands on a hidden page"
    assert follower.admits([key(7), key(8)], before), "what is not selected stays insertable"
    assert follower.admits(CHAIN, view(header)), "what is computed after the event may come back (I9)"
    middle = ObservedView(header.life_now, before.view + 1)
    assert follower.admits(CHAIN, middle)
    assert not follower.admits([key(91)], middle)


WHOLE = [
    LogStarted(),
    Selected(EVERYTHING),
    Selected(Selector(namespace=MINE.id)),
    Selected(Selector(model="mine", weights_version="7", adapter="tuned", tenant="acme")),
    Selected(Selector(model="mine", other_weights_than="8")),
    Selected(Selector(producer=b"worker 3")),
    Selected(Selector(model="mine", tag=b"eval", since_ms=5, until_ms=9)),
    Selected(Selector(since_revision=2, until_revision=3)),
]
"""Events that may select any page of MINE: who computed it, when and under which tags can't be told here."""


@pytest.mark.parametrize("event", WHOLE)
def test_events_that_select_everything(event: Event) -> None:
    header = FakeHeader()
    follower = started(header, namespace=MINE)
    before = view(header)
    header.publish(event)
    assert follower.follow().everything
    assert not follower.admits(CHAIN, before)
    assert follower.admits(CHAIN, view(header))


@pytest.mark.parametrize(
    "others",
    [
        {"namespace": OTHER.id}, {"model": "other"}, {"weights_version": "8"}, {"adapter": ""},
        {"model": "mine", "other_weights_than": "7"}, {"tenant": ""},
        {"model": "mine", "tenant": "umbrella"}, {"model": "other", "producer": b"worker 3"},
        {"model": "other", "key": key(2)},
    ],
)  # fmt: skip
def test_another_namespace_is_none_of_its_business(others: dict[str, object]) -> None:
    header = FakeHeader()
    knowing, unknowing = started(header, namespace=MINE), started(header)
    before = view(header)
    header.publish(Selected(Selector(**others)))  # type: ignore[arg-type]
    verdict = knowing.follow()
    assert (verdict.everything, verdict.pages) == (False, ())
    assert knowing.admits(CHAIN, before)
    verdict = unknowing.follow()
    named = (others["key"],) if "key" in others else ()
    assert (verdict.everything, verdict.pages) == (not named, named), (
        "pages of an unknown namespace may be meant"
    )
    assert not unknowing.admits(CHAIN, before)


@pytest.mark.parametrize(
    "more", [{}, {"model": "mine"}, {"producer": b"worker 3"}, {"tag": b"eval", "since_ms": 1}]
)
@pytest.mark.parametrize("namespace", [MINE, None])
def test_a_key_names_its_subtree_whatever_else_is_asked_for(
    more: dict[str, object], namespace: Namespace | None
) -> None:
    header = FakeHeader()
    follower = started(header, namespace=namespace)
    before = view(header)
    header.publish(pages(2, **more))
    verdict = follower.follow()
    assert (verdict.everything, verdict.pages) == (False, (key(2),))
    assert not follower.admits(CHAIN, before)
    assert follower.admits([key(7)], before)


def test_announced_weights_hide_nothing_and_are_passed() -> None:
    header = FakeHeader()
    follower = started(header, namespace=MINE)
    before = view(header)
    header.publish(WeightsAnnounced("mine", "8"))
    verdict = follower.follow()
    assert (verdict.observed, verdict.everything, verdict.pages) == (view(header), False, ())
    assert follower.admits(CHAIN, before)


def test_a_selector_too_long_for_the_ring_is_everything() -> None:
    header = FakeHeader()
    follower = started(header, namespace=MINE)
    header.publish(Selected(Selector(model="o" * EVENT_PAYLOAD_BYTES_MAX, key=key(2))))
    assert follower.follow().everything


@pytest.mark.parametrize(
    ("kind", "payload"),
    [(0, b""), (99, b""), (1, b"x"), (2, b"x"), (2, b"\x06\x01\0k"), (3, b"short"), (3, b"")],
)
def test_events_of_no_known_meaning_are_everything(kind: int, payload: bytes) -> None:
    header = FakeHeader()
    follower = started(header, namespace=MINE)
    before = view(header)
    header.publish_raw(kind, payload)
    assert follower.follow().everything
    assert not follower.admits(CHAIN, before)


def test_an_overrun_ring_is_everything() -> None:
    header = FakeHeader(ring_records=2)
    follower = started(header, namespace=MINE)
    before = view(header)
    for _ in range(3):
        header.publish(Selected(Selector(namespace=OTHER.id)))
    assert follower.follow().everything
    assert not follower.admits(CHAIN, before)


def test_a_missing_event_is_everything() -> None:
    header = FakeHeader()
    follower = started(header, namespace=MINE)
    header.publish(Selected(Selector(namespace=OTHER.id)))
    header.publish(Selected(Selector(namespace=OTHER.id)))
    del header.events[0]
    assert follower.follow().everything


def test_events_beyond_the_view_wait_for_their_turn() -> None:
    header = FakeHeader()
    follower = started(header)
    header.publish(pages(2))
    header.publish(pages(3))
    header.view_now -= 1  # the second one is in the ring, its view is not published yet
    assert follower.follow().pages == (key(2),)
    header.view_now += 1
    assert follower.follow().pages == (key(3),)


def test_c38_another_life_is_everything_though_the_views_are_equal() -> None:
    header = FakeHeader()
    follower = started(header)
    before = view(header)
    header.restart()
    assert header.view_now == before.view
    assert follower.follow().everything
    assert not follower.admits(CHAIN, before)
    assert follower.admits(CHAIN, view(header))


def test_a_view_that_went_back_is_everything() -> None:
    header = FakeHeader()
    header.view_now = 9
    follower = started(header)
    header.view_now = 8
    assert follower.follow().everything


def test_without_a_header_nothing_is_trusted() -> None:
    header = FakeHeader()
    follower = started(header)
    before = view(header)
    header.detach()
    assert follower.follow().observed is None
    header.life_now, header.view_now = before.life, before.view
    assert follower.follow().observed == before


def test_a_life_that_changes_while_it_is_read_is_no_observation() -> None:
    header = FakeHeader()
    follower = started(header)

    def restart() -> None:
        header.on_look = None
        header.restart()

    header.on_look = restart
    assert follower.follow().observed is None
    assert follower.follow().everything


def test_events_of_the_next_life_are_not_taken_for_those_of_this_one() -> None:
    header = FakeHeader()
    follower = started(header, namespace=MINE)
    header.publish(Selected(EVERYTHING))

    def restart() -> None:
        header.on_events = None
        header.restart()
        header.publish(
            Selected(Selector(namespace=OTHER.id))
        )  # has the number of the event that was asked for

    header.on_events = restart
    assert follower.follow().observed is None
    assert follower.follow().everything


@pytest.mark.parametrize("shift", [-1, 1])
def test_views_from_before_it_followed_or_from_the_future_are_not_admitted(shift: int) -> None:
    header = FakeHeader()
    header.view_now = 5
    follower = started(header)
    assert not follower.admits(CHAIN, ObservedView(header.life_now, 5 + shift))
    assert not follower.admits(CHAIN, ObservedView(new_life_id(), 5))
    assert not follower.admits(CHAIN, ObservedView(NO_LIFE, 5))
    assert not follower.admits(CHAIN, None)


def test_too_many_tombstones_become_a_floor() -> None:
    header = FakeHeader()
    follower = started(header)
    before = view(header)
    for number in range(L1_TOMBSTONES_MAX + 1):
        header.publish(pages(1_000 + number))
    assert not follower.follow().everything
    assert not follower.admits([key(1)], before), "over-invalidate, never under"
    assert follower.admits([key(1)], view(header))
    assert not follower._tombstones


def test_each_view_is_confirmed_once() -> None:
    header = FakeHeader()
    follower = ViewFollower(header)
    for _ in range(3):
        observed = follower.follow().observed
        assert observed is not None
        follower.confirm(observed)
    assert header.applied == [1]


@pytest.mark.parametrize("seed", range(6))
def test_admission_agrees_with_a_scan_of_all_events(seed: int) -> None:
    print(f"seed {seed}")
    draw = random.Random(seed)
    header = FakeHeader()
    follower = started(header, namespace=MINE)
    selections: list[tuple[int, set[PageKey] | None]] = []  # (view, keys; None: all)
    for _ in range(300):
        for _ in range(draw.randrange(3)):
            kind = draw.random()
            if kind < 0.7:
                number = draw.randrange(12)
                header.publish(pages(number))
                selections.append((header.view_now, {key(number)}))
            elif kind < 0.9:
                header.publish(Selected(Selector(namespace=OTHER.id)))
            else:
                header.publish(Selected(EVERYTHING))
                selections.append((header.view_now, None))
        follower.follow()
        chain = [key(draw.randrange(12)) for _ in range(draw.randint(1, 4))]
        at = draw.randint(max(1, header.view_now - 4), header.view_now)
        expected = not any(
            since > at and (keys_or_all is None or keys_or_all & set(chain))
            for since, keys_or_all in selections
        )
        assert follower.admits(chain, ObservedView(header.life_now, at)) == expected
