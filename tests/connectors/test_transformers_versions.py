"""Weights named by version: followed as they are announced, set in process, and never mixed within one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from inference_worker.connectors.transformers import TransformersConnector
from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.events import WeightsAnnounced
from kv_types.ids import KEY_BYTES, LifeId, NamespaceId
from kv_types.limits import WEIGHTS_SWITCHES_MAX
from kv_types.namespace import Namespace, UncacheableReason, Weights
from tests.connectors.fakes import FakeClient, FakeRequest, FakeSidecar, number_of, split
from tests.connectors.models import PAGE_TOKENS, shared_model, tiny_model, tokens

ROW = tokens(40)[None]
PAGES = 40 // PAGE_TOKENS
MODEL = "policy"


def connect(client: FakeClient, *, version: str = "1", **settings: Any) -> TransformersConnector:
    settings.setdefault("follow_weights", True)
    return TransformersConnector(
        settings.pop("model", shared_model("llama")), client, page_tokens=PAGE_TOKENS, model_name=MODEL,
        weights=Weights(version=version), require_cacheable=True, **settings,
    )  # fmt: skip


def during(worker: TransformersConnector, what: Callable[[], object]) -> Any:
    """Run a prefill in whose forward pass something happens; returns its report."""
    handle = worker.model.register_forward_pre_hook(lambda *_: what() and None)
    try:
        return worker.prefill(ROW).report
    finally:
        handle.remove()


def version_of(worker: TransformersConnector) -> str | None:
    assert worker.namespace is not None
    return worker.namespace.weights.version


def test_an_announcement_is_a_new_name_before_anything_is_reused() -> None:
    sidecar = FakeSidecar()
    client = FakeClient(sidecar)
    worker = connect(client)
    assert worker.prefill(ROW).report.pages_stored == PAGES
    assert worker.prefill(ROW).report.rows[0].pages_l1 == PAGES
    old = worker.namespace
    assert old is not None
    sidecar.publish(WeightsAnnounced("another model", "9"))
    assert worker.prefill(ROW).report.rows[0].pages_l1 == PAGES
    sidecar.publish(WeightsAnnounced(MODEL, "2"))
    report = worker.prefill(ROW).report
    assert (report.reused, report.pages_stored, report.off) == (0, PAGES, "")
    assert version_of(worker) == "2"
    assert client.forgotten == [old.id]
    assert worker.prefill(ROW).report.rows[0].pages_l1 == PAGES
    sidecar.publish(WeightsAnnounced(MODEL, "1"))
    back = worker.prefill(ROW).report
    assert (version_of(worker), back.rows[0].pages_l1, back.rows[0].pages_l2) == ("1", 0, PAGES)


def test_announcements_are_looked_at_after_the_view_was_loaded() -> None:
    """One that comes while a call begins is one that it goes by: nothing is missed between the look and the view."""
    sidecar = FakeSidecar()
    client = FakeClient(sidecar)
    worker = connect(client)
    worker.prefill(ROW)
    begin = client.begin
    begun: list[FakeRequest] = []

    def begin_late(namespace: NamespaceId) -> FakeRequest:
        if not begun:
            sidecar.publish(WeightsAnnounced(MODEL, "2"))
        begun.append(begin(namespace))
        return begun[-1]

    client.begin = begin_late  # type: ignore[method-assign]
    report = worker.prefill(ROW).report
    assert (report.reused, version_of(worker)) == (0, "2")
    assert len(begun) == 2, "begun anew under the new name"
    assert all(request.ended for request in begun)
    assert begun[0].told == [], "nothing was looked up under the old one"


def test_a_call_that_spans_an_announcement_stores_nothing() -> None:
    sidecar = FakeSidecar()
    worker = connect(FakeClient(sidecar))
    report = during(worker, lambda: sidecar.publish(WeightsAnnounced(MODEL, "2")))
    assert "announced during this call" in report.off
    assert not sidecar.pages
    assert worker.statistics()["resident_pages"] == 0
    assert worker.prefill(ROW).report.pages_stored == PAGES
    assert version_of(worker) == "2"
    again = during(worker, lambda: sidecar.publish(WeightsAnnounced(MODEL, "2")))
    assert "announced during this call" in again.off, "there and back again is a change too"


def test_announcements_that_never_rest_cost_reuse_and_nothing_else() -> None:
    sidecar = FakeSidecar()
    client = FakeClient(sidecar)
    worker = connect(client)
    begin = client.begin
    begun: list[FakeRequest] = []

    def begin_and_announce(namespace: NamespaceId) -> FakeRequest:
        sidecar.publish(WeightsAnnounced(MODEL, str(100 + len(begun))))
        begun.append(begin(namespace))
        return begun[-1]

    client.begin = begin_and_announce  # type: ignore[method-assign]
    done = worker.prefill(ROW)
    assert "faster" in done.report.off
    assert len(begun) == WEIGHTS_SWITCHES_MAX
    assert all(request.ended for request in begun)
    assert len(client.forgotten) == WEIGHTS_SWITCHES_MAX


def test_a_worker_that_starts_with_other_weights_than_announced_reuses_nothing_until_it_is_told() -> None:
    sidecar = FakeSidecar()
    sidecar.publish(WeightsAnnounced(MODEL, "3"))
    worker = connect(FakeClient(sidecar))
    report = worker.prefill(ROW).report
    assert "version 3" in report.off
    assert not sidecar.pages
    worker.set_weights_version("3")
    assert worker.prefill(ROW).report.pages_stored == PAGES
    right = connect(FakeClient(sidecar), version="3")
    assert right.prefill(ROW).report.rows[0].pages_l2 == PAGES


def test_while_nobody_can_tell_what_is_announced_nothing_is_reused_or_stored() -> None:
    sidecar = FakeSidecar()
    client = FakeClient(sidecar)
    client.reachable = False
    worker = connect(client)
    assert "can't be told" in worker.prefill(ROW).report.off
    client.reachable = True
    assert worker.prefill(ROW).report.pages_stored == PAGES


def test_a_version_that_is_set_in_process_holds_from_the_next_call_on() -> None:
    sidecar = FakeSidecar()
    client = FakeClient(sidecar)
    worker = connect(client, follow_weights=False)
    worker.prefill(ROW)
    worker.set_weights_version("2")
    assert (version_of(worker), worker.prefill(ROW).report.reused) == ("2", 0)
    report = during(worker, lambda: worker.set_weights_version("3"))
    assert "changed during this call" in report.off
    assert len(sidecar.pages) == 2 * PAGES, "of two versions"
    worker.set_weights_version("3")
    assert worker.prefill(ROW).report.pages_stored == PAGES
    sidecar.publish(WeightsAnnounced(MODEL, "9"))
    assert worker.prefill(ROW).report.rows[0].pages_l1 == PAGES, "who does not follow is not led"


def test_a_version_set_in_process_outlives_what_was_announced_before_it() -> None:
    sidecar = FakeSidecar()
    sidecar.publish(WeightsAnnounced(MODEL, "1"))
    worker = connect(FakeClient(sidecar))
    worker.set_weights_version("2")  # swapped here first, announced later
    assert worker.prefill(ROW).report.pages_stored == PAGES
    assert version_of(worker) == "2"
    sidecar.publish(WeightsAnnounced(MODEL, "2"))
    assert worker.prefill(ROW).report.rows[0].pages_l1 == PAGES
    sidecar.publish(WeightsAnnounced(MODEL, "3"))
    worker.prefill(ROW)
    assert version_of(worker) == "3"


def test_a_namespace_is_let_go_of_when_the_last_call_under_it_has_ended() -> None:
    sidecar = FakeSidecar()
    client = FakeClient(sidecar)
    worker = connect(client, follow_weights=False)
    seen: list[list[NamespaceId]] = []

    def switch() -> None:
        worker.set_weights_version("2")
        seen.append(list(client.forgotten))

    during(worker, switch)
    assert seen == [[]]
    assert len(client.forgotten) == 1


def test_weights_that_are_named_by_their_content_have_no_version_to_set() -> None:
    worker = TransformersConnector(tiny_model("llama"), FakeClient(FakeSidecar()), page_tokens=PAGE_TOKENS)
    with pytest.raises(InvalidArgumentError, match="content"):
        worker.set_weights_version("2")
    with pytest.raises(InvalidArgumentError, match="version"):
        TransformersConnector(tiny_model("llama"), FakeClient(FakeSidecar()), follow_weights=True)
    with pytest.raises(InvalidArgumentError):
        connect(FakeClient(FakeSidecar())).set_weights_version("")


def test_no_room_for_another_namespace_costs_reuse_and_nothing_else() -> None:
    client = FakeClient(FakeSidecar())
    worker = connect(client, follow_weights=False)

    def refuse(namespace: Namespace) -> NamespaceId:
        raise LimitExceededError("this client has 32 namespaces")

    register, client.register = client.register, refuse  # type: ignore[method-assign]
    worker.set_weights_version("2")
    report = worker.prefill(ROW).report
    assert "32 namespaces" in report.off
    assert worker.uncacheable is not None
    assert worker.uncacheable.reason is UncacheableReason.INVALID
    client.register = register  # type: ignore[method-assign]
    assert worker.prefill(ROW).report.pages_stored == PAGES
    assert version_of(worker) == "2"

    def refuse_begin(namespace: NamespaceId) -> FakeRequest:
        raise LimitExceededError("this sidecar knows 1024 namespaces already")

    client.begin = refuse_begin  # type: ignore[method-assign]
    assert "1024 namespaces" in worker.prefill(ROW).report.off


def test_l1_keeps_which_pages_of_l2_its_own_are_and_requests_are_told() -> None:
    sidecar = FakeSidecar()
    client = FakeClient(sidecar)
    begun: list[FakeRequest] = []
    begin = client.begin
    client.begin = lambda namespace: begun.append(begin(namespace)) or begun[-1]  # type: ignore[method-assign, func-returns-value]
    worker = connect(client, follow_weights=False)
    worker.prefill(ROW)
    assert [keys for keys, _ in begun[0].told] == [b""], "nothing was in L1"
    longer = torch.cat((ROW, tokens(20, seed=4)[None]), dim=1)
    worker.prefill(longer)
    ((keys, instances),) = begun[1].told
    assert len(keys) == PAGES * KEY_BYTES
    assert instances.life == sidecar.life
    assert list(instances.numbers) == [number_of(key) for key in split(keys)]
    sidecar.life = LifeId(b"M" * 16)
    worker.prefill(ROW)
    assert [keys for keys, _ in begun[2].told] == [b""], "another life knows none of them"
