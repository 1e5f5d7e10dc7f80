"""Where pages stop: what a server says of its memory, what its policy makes of that, and what was written since."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_l3.capacity import Capacity, MemoryPicture, Room, allocated_bytes, read_memory, reserve_bytes
from cache_l3.server_info import parse_info
from kv_types.limits import L3_CAPACITY_KNOWN_S

MIB = 1024 * 1024
KNOWN_NS = int(L3_CAPACITY_KNOWN_S * 1e9)


def capacity(policy: str, *, used: int, most: int, holds_log: bool = False) -> Capacity:
    made = Capacity(holds_log=holds_log)
    made.told(MemoryPicture(used, most, policy), now_ns=0)
    return made


@pytest.mark.parametrize(
    ("policy", "holds_log", "expected"),
    [
        ("noeviction", False, Room.FULL),
        ("noeviction", True, Room.FULL),
        ("volatile-lru", False, Room.YES),
        ("volatile-ttl", True, Room.YES),
        ("allkeys-lru", False, Room.YES),
        ("allkeys-lfu", True, Room.FULL),
        ("some-new-policy", False, Room.FULL),
    ],
)
def test_only_a_server_that_makes_room_without_harm_is_filled_up(
    policy: str, holds_log: bool, expected: Room
) -> None:
    assert capacity(policy, used=950 * MIB, most=1000 * MIB, holds_log=holds_log).room(1) is expected
    assert capacity(policy, used=500 * MIB, most=1000 * MIB, holds_log=holds_log).room(1) is Room.YES
    assert capacity(policy, used=950 * MIB, most=0, holds_log=holds_log).room(1) is Room.YES, "no limit"


def test_pages_stop_at_the_reserve_and_go_on_below_it() -> None:
    made = capacity("noeviction", used=899 * MIB, most=1000 * MIB)
    assert made.limit_bytes == 900 * MIB
    assert made.room(1) is Room.YES
    made.wrote(2 * MIB)
    assert made.room(1) is Room.FULL, "what was written since counts before the server says so"
    made.told(MemoryPicture(900 * MIB, 1000 * MIB, "noeviction"), now_ns=0)
    assert made.room(1) is Room.FULL
    made.told(MemoryPicture(900 * MIB - 1, 1000 * MIB, "noeviction"), now_ns=0)
    assert made.room(1) is Room.YES


def test_a_refusal_counts_until_the_next_answer() -> None:
    made = capacity("volatile-lru", used=1, most=1000 * MIB)
    made.refused_room(now_ns=0)
    assert made.room(1) is Room.FULL
    made.told(MemoryPicture(1, 1000 * MIB, "volatile-lru"), now_ns=0)
    assert made.room(1) is Room.YES


def test_a_server_that_does_not_say_is_unknown_until_it_refuses() -> None:
    made = Capacity(holds_log=True)
    assert made.limit_bytes is None
    assert made.room(1) is Room.UNKNOWN
    made.refused_room(now_ns=0)
    assert made.room(1) is Room.FULL
    made.told(None, now_ns=0)
    assert made.room(1) is Room.UNKNOWN


def test_what_a_server_does_not_say_again_is_forgotten() -> None:
    made = capacity("noeviction", used=999 * MIB, most=1000 * MIB)
    assert made.room(KNOWN_NS - 1) is Room.FULL
    assert made.room(KNOWN_NS) is Room.UNKNOWN
    made.refused_room(now_ns=KNOWN_NS)
    assert made.room(2 * KNOWN_NS - 1) is Room.FULL
    assert made.room(2 * KNOWN_NS) is Room.UNKNOWN


def test_records_of_a_size_that_was_refused_are_not_tried_again_for_a_while() -> None:
    made = Capacity(holds_log=False)
    assert not made.is_too_large(MIB, now_ns=0)
    made.refused_size(MIB, now_ns=0)
    assert made.is_too_large(MIB, now_ns=KNOWN_NS - 1)
    assert not made.is_too_large(MIB - 1, now_ns=0)
    assert not made.is_too_large(MIB, now_ns=KNOWN_NS), "it may take larger ones by now"


@given(st.integers(1, 1 << 50))
def test_the_reserve_leaves_pages_at_least_half(most: int) -> None:
    assert 0 <= reserve_bytes(most) <= most // 2
    assert reserve_bytes(most) >= min(most // 2, most // 10)


def test_info_is_read_and_buffers_of_replicas_do_not_count() -> None:
    text = "# Memory\r\nused_memory:5000\r\nmaxmemory:9000\r\nmaxmemory_policy:volatile-lru\r\nmem_not_counted_for_evict:600\r\n"
    assert read_memory(parse_info(text)) == MemoryPicture(4400, 9000, "volatile-lru")
    assert read_memory(parse_info("used_memory:5\r\nmaxmemory:0\r\n")) == MemoryPicture(5, 0, "noeviction")


@pytest.mark.parametrize(
    "text", ["", "used_memory:5", "maxmemory:5", "used_memory:-5\nmaxmemory:1", "used_memory:x\nmaxmemory:1"]
)
def test_info_without_what_is_needed_is_no_picture(text: str) -> None:
    assert read_memory(parse_info(text)) is None


@pytest.mark.parametrize(
    ("record_bytes", "class_bytes"), [(1, 16), (4096, 4096), (4097, 5120), (MIB, MIB), (MIB + 1, 5 * MIB // 4)]
)  # fmt: skip
def test_what_was_written_counts_as_the_allocator_counts_it(record_bytes: int, class_bytes: int) -> None:
    assert 0 < allocated_bytes(record_bytes) - class_bytes < 512


def test_the_reserve_is_what_was_set() -> None:
    for reserve, expected in ((0.05, Room.YES), (0.2, Room.FULL)):
        made = Capacity(holds_log=False, reserve=reserve)
        made.told(MemoryPicture(used_bytes=900 * MIB, bytes_max=1000 * MIB, policy="noeviction"), now_ns=0)
        assert made.room(1) is expected
