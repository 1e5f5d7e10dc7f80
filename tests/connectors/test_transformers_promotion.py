"""What of L2 comes to stay in L1: all while there is room, then everything or what L2 gives again; no page without its parent."""

from __future__ import annotations

from typing import Any

import pytest

from cache_l1.metrics import L1Collector
from inference_worker.connectors.transformers import TransformersConnector
from inference_worker.connectors.transformers_promotion import Promotions, l1_promotion_named
from kv_policy.admission import L1Promotion
from kv_types.errors import InvalidArgumentError
from kv_types.ids import KEY_BYTES
from tests.connectors.fakes import FakeClient, FakeSidecar
from tests.connectors.models import PAGE_TOKENS, plain_cache, shared_model, tokens

PAGES = 4


def keys_of(*names: int) -> bytes:
    return b"".join(bytes([name]) * KEY_BYTES for name in names)


def worker_of(sidecar: FakeSidecar, *, pages: int, **settings: Any) -> TransformersConnector:
    """A worker whose L1 has room for so many pages."""
    probe = TransformersConnector(shared_model("llama"), FakeClient(sidecar), page_tokens=PAGE_TOKENS)
    page_bytes = probe.statistics()["page_bytes"]
    return TransformersConnector(
        shared_model("llama"), FakeClient(sidecar), page_tokens=PAGE_TOKENS, require_cacheable=True,
        l1_bytes=pages * page_bytes, **settings,
    )  # fmt: skip


def test_what_suits_the_device_is_chosen_unless_it_is_named() -> None:
    assert l1_promotion_named(None, device="cpu") is L1Promotion.SECOND_USE
    assert l1_promotion_named(None, device="cuda") is L1Promotion.ALWAYS
    assert l1_promotion_named("always", device="cpu") is L1Promotion.ALWAYS
    with pytest.raises(InvalidArgumentError, match="l1_promotion is one of 'always', 'second_use'"):
        l1_promotion_named("sometimes", device="cpu")


def test_the_front_is_kept_up_to_the_first_page_that_is_not() -> None:
    promotions = Promotions(L1Promotion.SECOND_USE)
    assert promotions.kept(keys_of(1, 2, 3), start=0, end=3, free_pages=3) == 3
    assert promotions.kept(keys_of(1, 2, 4, 3), start=0, end=4, free_pages=3) == 2
    assert promotions.kept(keys_of(1, 2, 4, 5), start=1, end=3, free_pages=0) == 3
    assert promotions.statistics() == {"promoted_pages": 3 + 2 + 2, "left_in_l2_pages": 2}


def test_a_full_l1_takes_what_l2_gives_a_second_time() -> None:
    sidecar = FakeSidecar()
    own, other = tokens(PAGES * PAGE_TOKENS + 1, seed=1), tokens(PAGES * PAGE_TOKENS + 1, seed=2)
    worker_of(sidecar, pages=PAGES).prefill(other[None])
    worker = worker_of(sidecar, pages=PAGES)
    worker.prefill(own[None])
    assert worker.statistics()["free_pages"] == 0
    found = [worker.prefill(other[None]).report.rows[0] for _ in range(3)]
    assert [(row.pages_l1, row.pages_l2) for row in found] == [(0, PAGES), (0, PAGES), (PAGES, 0)]
    counts = worker.statistics()
    assert (counts["promoted_pages"], counts["left_in_l2_pages"]) == (PAGES, PAGES)
    shown = {
        (sample.labels["choice"]): sample.value
        for family in L1Collector(worker.statistics).collect()
        for sample in family.samples
        if sample.name == "stratakv_l1_promoted_pages_total"
    }
    assert shown == {"kept": PAGES, "left": PAGES}


@pytest.mark.parametrize("policy", ["learned", "lru"])
def test_always_takes_it_at_once_under_either_policy(policy: str) -> None:
    sidecar = FakeSidecar()
    own, other = tokens(PAGES * PAGE_TOKENS + 1, seed=1), tokens(PAGES * PAGE_TOKENS + 1, seed=2)
    worker_of(sidecar, pages=PAGES).prefill(other[None])
    worker = worker_of(sidecar, pages=PAGES, l1_promotion="always", l1_policy=policy)
    worker.prefill(own[None])
    found = [worker.prefill(other[None]).report.rows[0] for _ in range(2)]
    assert [(row.pages_l1, row.pages_l2) for row in found] == [(0, PAGES), (PAGES, 0)]
    assert worker.statistics()["left_in_l2_pages"] == 0


def test_what_is_computed_behind_pages_that_stay_in_l2_is_stored_there_and_right() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    longer = tokens((PAGES + 3) * PAGE_TOKENS + 1, seed=2)
    worker_of(sidecar, pages=PAGES).prefill(longer[None, : PAGES * PAGE_TOKENS + 1])
    worker = worker_of(sidecar, pages=2)
    worker.prefill(tokens(2 * PAGE_TOKENS + 1, seed=1)[None])
    report = worker.prefill(longer[None]).report
    assert (report.rows[0].pages_l2, report.pages_stored) == (PAGES, 3)
    done = worker_of(sidecar, pages=PAGES).prefill(longer[None])
    assert done.report.rows[0].pages_l2 == PAGES + 3
    _, logits = plain_cache(model, longer)
    assert (done.logits[0] - logits[-1]).abs().max() <= 1e-5


@pytest.mark.parametrize(("setting", "wrong"), [("l1_policy", "newest"), ("l1_promotion", "sometimes")])
def test_names_that_are_none_are_refused(setting: str, wrong: str) -> None:
    settings: dict[str, Any] = {setting: wrong}
    with pytest.raises(InvalidArgumentError, match=wrong):
        TransformersConnector(shared_model("llama"), FakeClient(FakeSidecar()), **settings)
