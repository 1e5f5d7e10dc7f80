"""The board of pins, over a fake arena and the native one: replaced, refused, given up half-way, ended in steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from cache_l2.pins import Pin, PinBoard, PinnedChain, PinningArena
from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.ids import NamespaceId
from kv_types.operator_limits import (
    PIN_CHAINS_MAX,
    PIN_NAME_BYTES_MAX,
    PIN_PAGES_MAX,
    PIN_STEP_KEYS,
    PINNED_PAGES_MAX,
    PINS_MAX,
)
from tests.support.native_arena import NativeArena
from tests.support.pages import chain, packed
from tests.support.pinned_arena import SLOT, FakePinnedArena

SPACE = NamespaceId(b"n" * 32)
_made: list[NativeArena] = []


def native() -> PinningArena:
    """An arena that lives as long as its test: the board keeps its core alone."""
    _made.append(NativeArena(slots=64))
    return _made[-1].arena


@pytest.fixture(params=[FakePinnedArena, native], ids=["fake", "native"])
def make_arena(request: pytest.FixtureRequest) -> Iterator[Callable[[], PinningArena]]:
    made: Callable[[], PinningArena] = request.param
    yield made
    for world in _made:
        world.reader.close()
        world.arena.close()
    _made.clear()


def board_of(arena: PinningArena, *, quota_pages: int = 1 << 20) -> PinBoard:
    return PinBoard(arena, quota_bytes=quota_pages * SLOT, find=lambda namespace: None)


def pin_of(name: str, pages: int, *, ends_ns: int = 100) -> Pin:
    keys = packed(chain(pages, root=name.encode()))
    return Pin(name, (PinnedChain(SPACE, keys, page_bytes=SLOT),), ends_ns)


def pin(board: PinBoard, one: Pin) -> None:
    for _ in board.pinning(one):
        pass


def settle(board: PinBoard) -> None:
    while board.settle():
        pass


def test_pins_last_until_their_end(make_arena: Callable[[], PinningArena]) -> None:
    board = board_of(make_arena())
    pin(board, pin_of("short", 3, ends_ns=50))
    pin(board, pin_of("long", 4, ends_ns=90))
    assert (list(board.pins), board.figures()["keys"], board.figures()["pins"]) == (["short", "long"], 7, 2)
    assert board.expire(49) == []
    assert board.expire(50) == ["short"]
    assert board.figures()["keys"] == 4
    assert board.end("long")
    assert not board.end("long")
    settle(board)
    assert board.figures()["charged_bytes"] == 0


def test_a_pin_takes_the_place_of_one_of_its_name(make_arena: Callable[[], PinningArena]) -> None:
    board = board_of(make_arena(), quota_pages=6)
    pin(board, pin_of("prompt", 6, ends_ns=50))
    longer = Pin("prompt", pin_of("prompt", 6).chains, 99)
    pin(board, longer)
    settle(board)
    assert (board.pins["prompt"].ends_ns, board.figures()["keys"]) == (99, 6)
    pin(board, Pin("prompt", pin_of("prompt", 2).chains, 99))
    settle(board)
    assert board.figures()["charged_bytes"] == 2 * SLOT


def test_a_pin_beyond_the_quota_is_refused_and_nothing_is_left_of_it(
    make_arena: Callable[[], PinningArena],
) -> None:
    board = board_of(make_arena(), quota_pages=6)
    pin(board, pin_of("a", 4))
    with pytest.raises(
        LimitExceededError, match=r"pin 'b' takes 12288 bytes more and 16384 of the quota of 24576"
    ):
        pin(board, pin_of("b", 3))
    settle(board)
    assert (list(board.pins), board.figures()["keys"]) == (["a"], 4)
    pin(board, pin_of("b", 2))


def test_a_pin_that_is_given_up_half_way_leaves_nothing(make_arena: Callable[[], PinningArena]) -> None:
    board = board_of(make_arena())
    steps = board.pinning(pin_of("p", 2 * PIN_STEP_KEYS + 1))
    for _ in itertools.islice(steps, 5):  # three to know its cost, two that pin
        pass
    assert board.figures()["keys"] == 2 * PIN_STEP_KEYS
    steps.close()
    settle(board)
    assert (board.figures()["keys"], dict(board.pins)) == (0, {})


def test_what_another_pin_took_meanwhile_is_the_others(make_arena: Callable[[], PinningArena]) -> None:
    board = board_of(make_arena(), quota_pages=6)
    steps = board.pinning(pin_of("late", 4))
    next(steps)
    pin(board, pin_of("fast", 4))
    with pytest.raises(LimitExceededError, match="late"):
        list(steps)
    settle(board)
    assert board.figures()["keys"] == 4


def test_a_long_pin_ends_a_step_at_a_time(make_arena: Callable[[], PinningArena]) -> None:
    board = board_of(make_arena())
    pin(board, pin_of("p", 2 * PIN_STEP_KEYS + 1))
    assert board.expire(100) == ["p"]
    assert board.figures()["keys"] == PIN_STEP_KEYS + 1
    assert board.settle()
    assert not board.settle()
    assert board.figures()["keys"] == 0


def test_what_is_held_is_told_in_steps() -> None:
    arena = FakePinnedArena()
    board = board_of(arena)
    one = pin_of("p", PIN_STEP_KEYS + 2)
    pin(board, one)
    keys = one.chains[0].keys
    arena.resident = {keys[:32], keys[-32:]}
    assert list(board.holding(one)) == [(1, 1000), (1, 1000)]


def test_without_pins_the_arena_is_asked_nothing() -> None:
    board = board_of(FakePinnedArena(), quota_pages=7)
    board.expire(1 << 62)
    assert board.figures() == {
        "beyond_quota": 0, "charged_bytes": 0, "held_bytes": 0, "held_pages": 0, "keys": 0, "pins": 0,
        "quota_bytes": 7 * SLOT,
    }  # fmt: skip


def test_names_chains_and_pages_are_bounded() -> None:
    chains = pin_of("p", 1).chains
    for name in ("", "n" * (PIN_NAME_BYTES_MAX + 1), "a\x1bb"):
        with pytest.raises(InvalidArgumentError, match="name"):
            Pin(name, chains, 1)
    with pytest.raises(LimitExceededError, match="chains"):
        Pin("p", (), 1)
    with pytest.raises(LimitExceededError, match="chains"):
        Pin("p", chains * (PIN_CHAINS_MAX + 1), 1)
    for keys in (b"", b"k" * 33):
        with pytest.raises(InvalidArgumentError, match="32 bytes"):
            Pin("p", (PinnedChain(SPACE, keys),), 1)
    with pytest.raises(LimitExceededError, match=f"{PIN_PAGES_MAX} pages at most"):
        Pin("p", (PinnedChain(SPACE, b"k" * 32 * (PIN_PAGES_MAX + 1)),), 1)


def test_all_pins_together_are_bounded() -> None:
    board = board_of(FakePinnedArena())
    for number in range(PINS_MAX):
        pin(board, pin_of(f"p{number}", 1))
    with pytest.raises(LimitExceededError, match=f"{PINS_MAX} pins at most"):
        pin(board, pin_of("more", 1))
    board = board_of(FakePinnedArena(), quota_pages=1 << 30)
    many = PINNED_PAGES_MAX // PIN_PAGES_MAX
    keys = packed(chain(PIN_PAGES_MAX, root=b"same"))
    for number in range(many):
        pin(board, Pin(f"p{number}", (PinnedChain(SPACE, keys, SLOT),), 1))
    with pytest.raises(LimitExceededError, match=f"{PINNED_PAGES_MAX} pages at most"):
        pin(board, pin_of("more", 1))
