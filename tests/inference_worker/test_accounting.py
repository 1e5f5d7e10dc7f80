"""Accounts: each look-up once, sums that hold, rows of shared memory and own counts added up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference_worker.accounting import OwnCounts, PageCounts, of_row
from kv_types.outcomes import MissReason

REASONS = st.sampled_from([reason for reason in MissReason if reason is not MissReason.NONE])
LOOK_UPS = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), REASONS)


@given(st.lists(LOOK_UPS, max_size=20))
def test_requested_is_what_was_served_and_missed(
    look_ups: list[tuple[int, int, int, int, MissReason]],
) -> None:
    counts = OwnCounts()
    for l1, l2, l3, missed, reason in look_ups:
        counts.look_up(requested=l1 + l2 + l3 + missed, l1=l1, served=l2 + l3, of_l3=l3, reason=reason)
    total = counts.snapshot()
    assert total.look_ups == len(look_ups)
    assert total.requested == total.l1 + total.l2 + total.l3 + sum(total.missed.values())
    for reason in MissReason:
        expected = sum(missed for *_, missed, why in look_ups if why is reason)
        assert total.missed.get(reason, 0) == expected
    assert (total.l2, total.l3) == (sum(one[1] for one in look_ups), sum(one[2] for one in look_ups))


def test_a_rest_without_a_reason_is_counted_as_absent() -> None:
    counts = OwnCounts()
    counts.look_up(requested=3, served=1)
    assert counts.snapshot().missed == {MissReason.ABSENT: 2}


def test_a_row_of_shared_memory_adds_to_what_was_counted_here() -> None:
    row = {
        "begun": 9,
        "requested": 9,
        "l1": 1,
        "l2": 5,
        "l3": 0,
        "look_ups": 2,
        "bytes_read": 50,
        "bytes_written": 7,
    }
    row |= {f"miss_{number}": 0 for number in range(16)} | {"miss_1": 2, "miss_2": 1, "collisions": 0}
    counts = OwnCounts()
    counts.look_up(requested=4, reason=MissReason.STALE)
    counts.add(of_row(row))
    expected = PageCounts(
        look_ups=3, requested=13, l1=1, l2=5, missed={MissReason.ABSENT: 2, MissReason.STALE: 5},
        bytes_read=50, bytes_written=7,
    )  # fmt: skip
    assert counts.snapshot() == expected
    assert expected + PageCounts(missed={MissReason.STALE: 1}) == PageCounts(
        look_ups=3, requested=13, l1=1, l2=5, missed={MissReason.ABSENT: 2, MissReason.STALE: 6},
        bytes_read=50, bytes_written=7,
    )  # fmt: skip
