"""Failures of the cache: serving goes on, its output is that of a run without a cache, and reasons are counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inference_worker.connectors.transformers import TransformersConnector
from kv_types.errors import InvalidArgumentError
from kv_types.events import Selected
from kv_types.ids import LifeId
from kv_types.outcomes import Hit, Miss, MissReason, Pending, PutOutcome, Refused, RefuseReason, Tier
from kv_types.selectors import EVERYTHING
from tests.connectors.fakes import FakeClient, FakeSidecar, Faults
from tests.connectors.models import PAGE_TOKENS, shared_model, tokens

ROW = tokens(60)[None]
SETTINGS: dict[str, Any] = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False}


def connect(client: FakeClient, **settings: Any) -> TransformersConnector:
    return TransformersConnector(
        shared_model("llama"), client, page_tokens=PAGE_TOKENS, require_cacheable=True, **settings
    )


def warmed() -> FakeSidecar:
    """A sidecar that has the pages of ROW."""
    sidecar = FakeSidecar()
    connect(FakeClient(sidecar)).prefill(ROW)
    return sidecar


def oracle() -> torch.Tensor:
    text: torch.Tensor = shared_model("llama").generate(ROW, attention_mask=torch.ones_like(ROW), **SETTINGS)
    return text


@pytest.mark.parametrize(
    ("answer", "reused", "ended_by"),
    [
        (Miss(MissReason.STALE), 0, MissReason.STALE),
        (Miss(MissReason.CORRUPT), 0, MissReason.CORRUPT),
        (Miss(MissReason.LEASE_EXPIRED), 0, MissReason.LEASE_EXPIRED),
        (Miss(MissReason.DEADLINE), 0, MissReason.DEADLINE),
        (Hit(3, Tier.L2, MissReason.INVALIDATED), 24, MissReason.INVALIDATED),
        (Pending(7, 1), 0, MissReason.DEADLINE),
    ],
    ids=["refused", "wrong-checksum", "late", "deadline", "short", "under-way"],
)
def test_c07_load_failures_leave_the_greedy_text_as_it_is(
    answer: Any, reused: int, ended_by: MissReason
) -> None:
    client = FakeClient(warmed(), Faults(get=lambda wanted: answer))
    done = connect(client).generate(ROW, **SETTINGS)
    assert torch.equal(done.sequences, oracle())
    assert (done.report.reused, done.report.rows[0].ended_by) == (reused, ended_by)


def test_c07_a_load_that_fails_after_writing_into_our_buffers_is_not_used() -> None:
    client = FakeClient(warmed())

    def spoil(keys: bytes, destinations: Any, **_: Any) -> Miss:
        for destination in destinations:
            destination[:] = b"\xff" * len(destination)
        return Miss(MissReason.LEASE_EXPIRED)

    worker = connect(client)
    begin = client.begin

    def begin_spoilt(namespace: Any) -> Any:
        request = begin(namespace)
        request.get = spoil  # type: ignore[method-assign]
        return request

    client.begin = begin_spoilt  # type: ignore[method-assign]
    done = worker.generate(ROW, **SETTINGS)
    assert torch.equal(done.sequences, oracle())
    assert done.report.reused == 0


def test_c07_refused_puts_change_nothing_and_are_counted() -> None:
    refused: PutOutcome = Refused(RefuseReason.FULL)
    client = FakeClient(FakeSidecar(), Faults(put=lambda offered: [refused] * offered))
    done = connect(client).generate(ROW, **SETTINGS)
    assert torch.equal(done.sequences, oracle())
    assert done.report.refused == {"full": 75 // PAGE_TOKENS}
    assert done.report.pages_stored == 0


def test_c20_a_sidecar_that_is_not_there_costs_reuse_and_nothing_else() -> None:
    sidecar = FakeSidecar()
    client = FakeClient(sidecar)
    client.reachable = False
    worker = connect(client)
    done = worker.generate(ROW, **SETTINGS)
    assert torch.equal(done.sequences, oracle())
    assert done.report.rows[0].ended_by is MissReason.UNREACHABLE
    assert done.report.refused == {"unreachable": 75 // PAGE_TOKENS}
    again = worker.generate(ROW, **SETTINGS)
    assert again.report.reused == 0, "without a sidecar nobody vouches for pages in L1"

    client.reachable = True  # it came, and nothing was restarted
    assert worker.generate(ROW, **SETTINGS).report.pages_stored > 0
    assert worker.generate(ROW, **SETTINGS).report.reused == 56
    sidecar.life = LifeId(b"M" * 16)  # it died, and another one came with nothing
    sidecar.pages.clear()
    reborn = worker.generate(ROW, **SETTINGS)
    assert (reborn.report.reused, reborn.report.pages_stored > 0) == (0, True)
    assert torch.equal(reborn.sequences, oracle())


def test_what_began_without_a_stamp_is_not_stored_under_a_later_one() -> None:
    client = FakeClient(FakeSidecar())
    client.reachable = False
    model = shared_model("llama")
    worker = connect(client)
    seen: list[bool] = []

    def hook(module: Any, arguments: Any) -> None:
        client.reachable = True
        seen.append(True)

    handle = model.register_forward_pre_hook(hook)
    try:
        report = worker.prefill(ROW).report
    finally:
        handle.remove()
    assert seen
    assert report.pages_stored == 0
    assert not client.sidecar.pages
    assert worker.statistics()["resident_pages"] == 0


def test_c16_pages_computed_across_an_invalidation_stay_out_of_l1() -> None:
    sidecar = FakeSidecar()
    client = FakeClient(sidecar)
    model = shared_model("llama")
    worker = connect(client)
    handle = model.register_forward_pre_hook(lambda module, arguments: sidecar.publish(Selected(EVERYTHING)))
    try:
        worker.prefill(ROW)
    finally:
        handle.remove()
    assert worker.statistics()["resident_pages"] == 0


def test_stale_freshness_serves_nothing_from_l1() -> None:
    sidecar = FakeSidecar()
    client = FakeClient(sidecar)
    worker = connect(client)
    worker.prefill(ROW)
    sidecar.fresh = False
    client.faults.get = lambda wanted: Miss(MissReason.STALE)
    report = worker.prefill(ROW).report
    assert (report.reused, report.rows[0].ended_by) == (0, MissReason.STALE)


def test_a_chain_that_l2_lost_is_sent_again_from_its_root() -> None:
    sidecar = FakeSidecar()
    client = FakeClient(sidecar)
    worker = connect(client)
    worker.prefill(ROW)
    sidecar.pages.clear()  # evicted; L1 still has the pages
    longer = torch.cat((ROW, tokens(20, seed=4)[None]), dim=1)
    report = worker.prefill(longer).report
    assert report.rows[0].pages_l1 == 7
    assert report.pages_stored == 10
    assert connect(FakeClient(sidecar)).prefill(longer).report.rows[0].pages_l2 == 10


def test_known_pages_are_not_sent_again() -> None:
    sidecar = FakeSidecar()
    client = FakeClient(sidecar)
    connect(FakeClient(sidecar)).prefill(ROW)
    worker = connect(client)
    assert worker.prefill(ROW).report.pages_known == 0
    assert client.puts == []


def test_the_look_up_has_one_deadline_for_all_rows() -> None:
    client = FakeClient(warmed())
    worker = connect(client, look_up_deadline_s=0.25)
    worker.prefill(torch.cat((ROW, ROW, ROW)))
    assert len(client.deadlines_s) == 3
    assert max(client.deadlines_s) <= 0.25
    assert client.deadlines_s == sorted(client.deadlines_s, reverse=True)


def test_a_spent_deadline_asks_no_more() -> None:
    client = FakeClient(warmed())
    worker = connect(client, look_up_deadline_s=0.0)
    report = worker.prefill(ROW).report
    assert (report.reused, report.rows[0].ended_by) == (0, MissReason.DEADLINE)
    assert client.gets == []


@pytest.mark.parametrize("setting", ["look_up_deadline_s", "store_deadline_s", "l1_bytes"])
def test_settings_that_are_no_numbers_are_named(setting: str) -> None:
    for bad in (True, float("nan"), float("inf"), -1, "1"):
        with pytest.raises(InvalidArgumentError, match=f"^{setting} "):
            connect(FakeClient(FakeSidecar()), **{setting: bad})


def test_a_model_that_fails_ends_its_request() -> None:
    client = FakeClient(FakeSidecar())
    worker = connect(client)
    requests: list[Any] = []
    begin = client.begin
    client.begin = lambda namespace: requests.append(begin(namespace)) or requests[-1]  # type: ignore[method-assign, func-returns-value]

    def fail(module: Any, arguments: Any) -> None:
        raise RuntimeError("out of memory")

    handle = shared_model("llama").register_forward_pre_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            worker.prefill(ROW)
    finally:
        handle.remove()
    assert [request.ended for request in requests] == [True]
    assert worker.prefill(ROW).report.pages_stored == 7
