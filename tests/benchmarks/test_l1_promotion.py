"""The replay behind the choice of what L2 gives L1: it accounts for all pages, and for the copies that each choice takes."""

from __future__ import annotations

import pytest

from benchmarks.l1_promotion import replay
from benchmarks.request_traces import made_up
from kv_policy.admission import L1Promotion


@pytest.mark.parametrize("kind", ["chat", "chat and scans"], ids=["chat", "chat_and_scans"])
def test_second_uses_take_fewer_copies_and_all_pages_are_accounted_for(kind: str) -> None:
    requests = made_up(kind, 3, 400)
    distinct = len({block for _, chain in requests for block in chain})
    by_choice = {one: replay(requests, distinct, one, l1_share=0.05) for one in L1Promotion}
    always, second = by_choice[L1Promotion.ALWAYS], by_choice[L1Promotion.SECOND_USE]
    for done in by_choice.values():
        assert done.requested == sum(len(chain) for _, chain in requests)
        assert 0 <= done.promoted <= done.from_l2 <= done.requested - done.from_l1
    assert always.promoted == always.from_l2
    assert second.promoted < always.promoted


def test_an_l1_with_room_for_everything_takes_everything() -> None:
    requests = made_up("chat", 3, 200)
    distinct = len({block for _, chain in requests for block in chain})
    done = [replay(requests, distinct, one, l1_share=1.0) for one in L1Promotion]
    assert done[0] == done[1]
    assert done[0].from_l2 == 0


@pytest.mark.parametrize("kind", ["chat", "loops"])
def test_both_tiers_serve_more_where_l1_keeps_what_l2_has_not(kind: str) -> None:
    requests = made_up(kind, 3, 800)
    distinct = len({block for _, chain in requests for block in chain})
    served = []
    for cost in (1.0, 0.125):
        done = replay(requests, distinct, L1Promotion.ALWAYS, l1_share=0.05, l2_share=0.05, cost=cost)
        served.append(done.from_l1 + done.from_l2)
    assert served[1] > served[0]
