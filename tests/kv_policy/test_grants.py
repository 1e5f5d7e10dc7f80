"""How many slots writers get in advance: enough for the next puts, never much of the arena."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kv_policy.grants import granted_bytes_max, slots_to_offer
from kv_types.limits import BATCH_PAGES_MAX, GRANTS_PER_CLIENT_MAX, SEGMENT_BYTES_MAX

ARENAS = st.integers(1 << 20, 1 << 43)
SLOTS = st.integers(1, SEGMENT_BYTES_MAX // 4096).map(lambda units: units * 4096)
PAGES = st.integers(1, BATCH_PAGES_MAX)


@given(arena_bytes=ARENAS, slot_bytes=SLOTS, put_pages=PAGES)
def test_a_writer_gets_a_thirty_second_part_at_most_and_nothing_that_it_can_not_use(
    arena_bytes: int, slot_bytes: int, put_pages: int
) -> None:
    slots = slots_to_offer(arena_bytes=arena_bytes, slot_bytes=slot_bytes, put_pages=put_pages)
    assert slots * slot_bytes * 32 <= arena_bytes
    assert slots <= GRANTS_PER_CLIENT_MAX
    assert slots == 0 or slots >= put_pages, "the next put of this size would not fit"


@given(arena_bytes=ARENAS)
def test_two_writers_and_no_more_get_their_whole_part(arena_bytes: int) -> None:
    assert granted_bytes_max(arena_bytes) == arena_bytes // 32 * 2 + arena_bytes % 32 // 16


def test_a_large_arena_has_room_for_two_puts() -> None:
    def offered(put_pages: int) -> int:
        return slots_to_offer(arena_bytes=1 << 33, slot_bytes=1 << 20, put_pages=put_pages)

    assert [offered(pages) for pages in (1, 2, 5, 20, 32, 64, 65)] == [4, 4, 10, 40, 64, 64, 0]
