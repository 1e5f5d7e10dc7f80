"""Pages through a client, over shared memory and over gRPC alike, against a real daemon: bytes, errors, accounting."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from inference_worker.client import Client
from kv_types.errors import (
    BufferMismatchError,
    ClosedError,
    InvalidArgumentError,
    LayoutConflictError,
    LimitExceededError,
)
from kv_types.ids import PageKey
from kv_types.limits import BATCH_PAGES_MAX, CHAIN_PAGES_MAX
from kv_types.namespace import KvDtype, Uncacheable, UncacheableReason
from kv_types.outcomes import KNOWN, STORED, Hit, Miss, MissReason, Refused, RefuseReason, Tier
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.worlds import (
    all_stored,
    chain,
    engine_namespace,
    keys_of,
    namespace,
    page_under,
    pages_under,
    room_for,
)
from tests.support.puts import put_fresh
from tests.support.sidecar_process import SidecarProcess


def test_what_is_put_comes_back_byte_for_byte(client: Client, model: str) -> None:
    ns = client.register(namespace(model, layers=3))
    keys = chain(ns.identified, 5)
    assert client.match(ns, keys) == Miss(MissReason.ABSENT)
    assert all_stored(put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes)))
    assert client.match(ns, keys) == Hit(5, Tier.L2)
    room = room_for(keys, ns.page_bytes)
    assert client.get(ns, keys, room) == Hit(5, Tier.L2)
    assert [bytes(page) for page in room] == pages_under(keys, ns.page_bytes)
    with client.lease(ns, keys) as lease:
        assert (len(lease), lease.pages, lease.reason) == (5, 5, MissReason.NONE)
        assert [bytes(view) for view in lease] == pages_under(keys, ns.page_bytes)
        assert all(view.readonly for view in lease)


def test_a_longer_chain_hits_its_resident_prefix(client: Client, model: str) -> None:
    ns = client.register(namespace(model))
    keys = chain(ns.identified, 8)
    stored = keys[: 3 * 32]
    put_fresh(client, ns, stored, pages_under(stored, ns.page_bytes))
    assert client.match(ns, keys) == Hit(3, Tier.L2, MissReason.ABSENT)
    assert client.match(ns, keys, start=2) == Hit(1, Tier.L2, MissReason.ABSENT)
    assert client.match(ns, keys, start=3) == Miss(MissReason.ABSENT)
    room = room_for(keys[2 * 32 :], ns.page_bytes)
    assert client.get(ns, keys, room, start=2) == Hit(1, Tier.L2, MissReason.ABSENT)
    assert bytes(room[0]) == page_under(keys_of(keys)[2], ns.page_bytes)
    with client.lease(ns, keys, start=1) as lease:
        assert (lease.pages, lease.reason) == (2, MissReason.ABSENT)
        assert bytes(lease[1]) == page_under(keys_of(keys)[2], ns.page_bytes)


@pytest.mark.parametrize("layers", [1, 3], ids=["pages of equal size", "larger pages"])
def test_keys_of_another_namespace_find_nothing(client: Client, model: str, layers: int) -> None:
    theirs = client.register(namespace(model))
    keys = chain(theirs.identified, 4)
    assert all_stored(put_fresh(client, theirs, keys, pages_under(keys, theirs.page_bytes)))
    ours = client.register(namespace(model + "-other", layers=layers))
    nothing = Miss(MissReason.ABSENT)
    for start in (0, 2):
        assert client.match(ours, keys, start=start) == nothing
        room = room_for(keys[start * 32 :], ours.page_bytes)
        assert client.get(ours, keys, room, start=start) == nothing
        assert not any(any(page) for page in room)
        with client.lease(ours, keys, start=start) as lease:
            assert (len(lease), lease.reason) == (0, MissReason.ABSENT)
    assert client.match_shards([(ours, keys), (theirs, keys)]) == nothing
    refused = Refused(RefuseReason.PARENT_ABSENT)
    for start in (0, 2):
        pages = pages_under(keys[start * 32 :], ours.page_bytes)
        assert put_fresh(client, ours, keys, pages, start=start) == [refused] * (4 - start)
    assert client.match(theirs, keys) == Hit(4, Tier.L2)


def test_a_put_goes_on_where_another_one_ended(client: Client, model: str) -> None:
    ns = client.register(namespace(model))
    keys = chain(ns.identified, 6)
    pages = pages_under(keys, ns.page_bytes)
    assert put_fresh(client, ns, keys[: 2 * 32], pages[:2]) == [STORED, STORED]
    assert put_fresh(client, ns, keys, pages[1:], start=1) == [KNOWN, STORED, STORED, STORED, STORED]
    written = client.statistics()["bytes_written"]
    assert put_fresh(client, ns, keys, pages) == [KNOWN] * 6
    assert client.statistics()["bytes_written"] == written, "known pages are not sent again"


def test_a_page_without_its_parent_is_refused(client: Client, model: str) -> None:
    ns = client.register(namespace(model))
    keys = chain(ns.identified, 3)
    outcomes = put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes)[1:], start=1)
    assert outcomes == [Refused(RefuseReason.PARENT_ABSENT)] * 2
    assert client.match(ns, keys) == Miss(MissReason.ABSENT)


@pytest.mark.parametrize("form", ["list", "one", "numpy", "torch", "torch-list"])
def test_every_form_of_buffer_in_and_out(client: Client, model: str, form: str) -> None:
    ns = client.register(namespace(model, layers=2))
    keys = chain(ns.identified, 3)
    pages = pages_under(keys, ns.page_bytes)

    def shape(parts: list[Any]) -> Any:
        flat = np.frombuffer(bytearray(b"".join(parts)), np.uint8)
        tensor = torch.from_numpy(flat).view(torch.bfloat16).reshape(3, -1)
        forms: dict[str, Any] = {
            "list": parts,
            "one": flat.data,
            "numpy": flat.reshape(3, -1),
            "torch": tensor,
        }
        return list(tensor.unbind()) if form == "torch-list" else forms[form]

    assert all_stored(put_fresh(client, ns, keys, shape(pages)))
    room = shape([bytearray(ns.page_bytes) for _ in pages])
    assert client.get(ns, keys, room) == Hit(3, Tier.L2)
    parts = room if isinstance(room, list) else [room]
    got = b"".join(
        bytes(p.view(torch.uint8).numpy()) if isinstance(p, torch.Tensor) else bytes(p) for p in parts
    )
    assert got == b"".join(pages)


def test_a_list_of_keys_does_as_packed_ones(client: Client, model: str) -> None:
    ns = client.register(namespace(model))
    packed = chain(ns.identified, 3)
    keys = [PageKey(key) for key in keys_of(packed)]
    assert all_stored(put_fresh(client, ns, keys, pages_under(packed, ns.page_bytes)))
    assert client.match(ns, keys) == Hit(3, Tier.L2)
    assert client.get(ns, keys, room_for(packed, ns.page_bytes)) == Hit(3, Tier.L2)
    with client.lease(ns, keys, start=1) as lease:
        assert lease.pages == 2


def test_nothing_asked_is_nothing_missed(client: Client, model: str) -> None:
    ns = client.register(namespace(model))
    keys = chain(ns.identified, 2)
    assert client.match(ns, b"") == Hit(0, Tier.L2)
    assert client.get(ns, keys, [], start=2) == Hit(0, Tier.L2)
    assert put_fresh(client, ns, keys, [], start=2) == []
    with client.lease(ns, keys, start=2) as lease:
        assert (lease.pages, lease.reason, list(lease)) == (0, MissReason.NONE, [])


def test_more_pages_than_one_batch(client: Client, model: str) -> None:
    ns = client.register(namespace(model))
    keys = chain(ns.identified, BATCH_PAGES_MAX + 100)
    assert all_stored(put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes)))
    room = bytearray(len(keys) // 32 * ns.page_bytes)
    assert client.get(ns, keys, room) == Hit(BATCH_PAGES_MAX + 100, Tier.L2)
    assert bytes(room) == b"".join(pages_under(keys, ns.page_bytes))


def test_c02_c37_other_dtype_or_tenant_never_gets_the_bytes(client: Client, model: str) -> None:
    mine = client.register(namespace(model, kv_dtype=KvDtype.FP16, tenant="a"))
    keys = chain(mine.identified, 3)
    put_fresh(client, mine, keys, pages_under(keys, mine.page_bytes))
    for dtype, tenant in [
        (KvDtype.BF16, "a"),
        (KvDtype.FP8_E4M3, "a"),
        (KvDtype.FP16, "b"),
        (KvDtype.FP16, ""),
    ]:
        other = client.register(namespace(model, kv_dtype=dtype, tenant=tenant))
        room = [bytearray(b"\xee" * other.page_bytes) for _ in range(3)]
        theirs = chain(other.identified, 3)
        assert client.get(other, theirs, room) == Miss(MissReason.ABSENT)
        assert all(bytes(page) == b"\xee" * other.page_bytes for page in room)
        assert client.lease(other, theirs).pages == 0


def test_c29_every_page_asked_for_is_counted_once(client: Client, model: str) -> None:
    ns = client.register(namespace(model))
    keys = chain(ns.identified, 6)
    put_fresh(client, ns, keys[: 4 * 32], pages_under(keys[: 4 * 32], ns.page_bytes))
    expected = {"requested": 0, "l1": 0, "l2": 0, "absent": 0}
    for start, wanted in [(0, 6), (0, 4), (1, 6), (4, 6), (2, 3), (0, 1), (6, 6), (3, 5), (0, 6), (5, 6)]:
        asked = keys[: wanted * 32]
        if start < 4 or wanted % 2:
            client.get(ns, asked, room_for(asked[start * 32 :], ns.page_bytes), start=start)
        else:
            client.lease(ns, asked, start=start).release()
        served = max(0, min(wanted, 4) - start)
        expected["requested"] += wanted
        expected["l1"] += start
        expected["l2"] += served
        expected["absent"] += wanted - start - served
    counts = client.namespace_counts()[ns.label]
    assert counts.look_ups == 10, "one that asks for nothing beyond the worker's own pages is one too"
    assert (counts.requested, counts.l1, counts.l2, counts.l3) == (
        expected["requested"], expected["l1"], expected["l2"], 0,
    )  # fmt: skip
    assert counts.missed == {MissReason.ABSENT: expected["absent"]}
    assert counts.requested == counts.l1 + counts.l2 + counts.l3 + sum(counts.missed.values())


def test_eight_threads_on_one_client_never_see_foreign_bytes(client: Client, model: str) -> None:
    ns = client.register(namespace(model, layers=4))
    failures: list[str] = []

    def work(number: int) -> None:
        for turn in range(6):
            keys = chain(ns.identified, 4, seed=(number + turn) % 8)
            outcomes = put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes))
            refused = {one.reason for one in outcomes if isinstance(one, Refused)}
            if refused - {RefuseReason.BUSY, RefuseReason.PARENT_ABSENT}:
                failures.append(f"put refused: {refused}")
            room = room_for(keys, ns.page_bytes)
            outcome = client.get(ns, keys, room)
            pages = outcome.pages if isinstance(outcome, Hit) else 0
            if [bytes(page) for page in room[:pages]] != pages_under(keys, ns.page_bytes)[:pages]:
                failures.append("get gave foreign bytes")
            with client.lease(ns, keys) as lease:
                if [bytes(view) for view in lease] != pages_under(keys, ns.page_bytes)[: lease.pages]:
                    failures.append("lease gave foreign bytes")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for seed in range(8):
        assert client.match(ns, chain(ns.identified, 4, seed=seed)) == Hit(4, Tier.L2)


# --- requests -------------------------------------------------------------------------------------------------------


def test_a_request_keeps_the_stamp_it_began_with(client: Client, model: str) -> None:
    ns = client.register(namespace(model))
    keys = chain(ns.identified, 4)
    with client.begin(ns) as request:
        stamp = request.stamp
        assert stamp is not None
        assert stamp == client.stamp()
        assert request.match(keys) == Miss(MissReason.ABSENT)
        assert all_stored(request.put(keys, pages_under(keys, ns.page_bytes)))
        assert request.stamp == stamp
        with request.lease(keys) as lease:
            assert lease.pages == 4
        assert request.get(keys, room_for(keys, ns.page_bytes)) == Hit(4, Tier.L2)
    with pytest.raises(ClosedError, match="ended"):
        request.put(keys, pages_under(keys, ns.page_bytes))
    request.end()


def test_a_foreign_stamp_is_refused(client: Client, model: str) -> None:
    ns = client.register(namespace(model))
    keys = chain(ns.identified, 2)
    stamp = client.stamp()
    assert stamp is not None
    ahead = type(stamp)(stamp.incarnation, stamp.revision + 1)
    foreign = type(stamp)(type(stamp.incarnation)(bytes(16)), stamp.revision)
    for wrong in (ahead, foreign):
        outcomes = client.put(ns, keys, pages_under(keys, ns.page_bytes), stamp=wrong)
        assert outcomes[0] == Refused(RefuseReason.STAMP_FOREIGN)
    assert client.match(ns, keys) == Miss(MissReason.ABSENT)


# --- what callers do wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["match", "lease", "get", "put"])
@pytest.mark.parametrize(
    ("keys", "start", "error"),
    [
        (b"x" * 33, 0, InvalidArgumentError),
        ([b"x" * 31], 0, InvalidArgumentError),
        ("text", 0, InvalidArgumentError),
        (bytes(64), 3, InvalidArgumentError),
        (bytes(64), -1, InvalidArgumentError),
        (bytes(32 * (CHAIN_PAGES_MAX + 1)), 0, LimitExceededError),
        (None, 0, InvalidArgumentError),
        (5, 0, InvalidArgumentError),
        (bytes(64), 1.5, InvalidArgumentError),
        (bytes(64), "1", InvalidArgumentError),
        (bytes(64), True, InvalidArgumentError),
    ],
)
def test_bad_keys_are_named(
    client: Client, model: str, call: str, keys: Any, start: Any, error: type[Exception]
) -> None:
    ns = client.register(namespace(model))
    arguments: tuple[Any, ...] = (ns, keys) if call in ("match", "lease") else (ns, keys, [])
    terms = {"stamp": client.stamp()} if call == "put" else {}
    with pytest.raises(error):
        getattr(client, call)(*arguments, start=start, **terms)


def test_buffers_of_the_wrong_size_are_named_by_index(client: Client, model: str) -> None:
    ns = client.register(namespace(model))
    keys = chain(ns.identified, 2)
    good, short = bytes(ns.page_bytes), bytes(ns.page_bytes - 1)
    with pytest.raises(BufferMismatchError, match=rf"source 1 holds {ns.page_bytes - 1} bytes"):
        put_fresh(client, ns, keys, [good, short])
    with pytest.raises(BufferMismatchError, match=rf"destination 0 holds {ns.page_bytes - 1} bytes"):
        client.get(ns, keys, [bytearray(short), bytearray(good)])
    with pytest.raises(BufferMismatchError, match="destination 0 is read-only"):
        client.get(ns, keys, [good, good])
    with pytest.raises(BufferMismatchError, match="2 pages need 2 destinations; got 1"):
        client.get(ns, keys, [bytearray(good)])
    assert client.match(ns, keys) == Miss(MissReason.ABSENT)


def test_a_namespace_of_another_client_is_refused(
    client: Client, model: str, shared_sidecar: SidecarProcess, connect: MakeClient
) -> None:
    foreign = connect(shared_sidecar.runtime).register(namespace(model))
    for handle in (foreign, namespace(model), b"id"):
        with pytest.raises(InvalidArgumentError, match="register"):
            client.lease(handle, bytes(32))  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="register"):
            client.get(handle, bytes(32), [])  # type: ignore[arg-type]


def test_registering_again_gives_the_same_handle_and_another_size_is_a_conflict(
    client: Client, model: str
) -> None:
    own = namespace(model, layout="engine-x86-avx512")
    handle = client.register(own, page_bytes=5000)
    assert client.register(namespace(model, layout="engine-x86-avx512"), page_bytes=5000) is handle
    with pytest.raises(LayoutConflictError, match=r"5000 bytes, now with 6000"):
        client.register(own, page_bytes=6000)
    with pytest.raises(InvalidArgumentError, match="layout"):
        client.register(namespace(model, layout="engine-b"))
    with pytest.raises(InvalidArgumentError, match="geometry"):
        client.register(namespace(model), page_bytes=1000)


def test_a_size_that_another_client_registered_otherwise_is_a_conflict_and_harms_nobody(
    client: Client, model: str, shared_sidecar: SidecarProcess, connect: MakeClient
) -> None:
    identity = namespace(model, layout="engine-x86-avx512")
    keys = chain(identity, 2)
    first = connect(shared_sidecar.runtime)
    ns = first.register(identity, page_bytes=5000)
    assert all_stored(put_fresh(first, ns, keys, pages_under(keys, 5000)))
    other = client.register(identity, page_bytes=6000)
    calls: list[Any] = [
        lambda: client.match(other, keys),
        lambda: client.lease(other, keys),
        lambda: client.get(other, keys, room_for(keys, 6000)),
        lambda: put_fresh(client, other, keys, pages_under(keys, 6000)),
    ]
    for call in calls:
        with pytest.raises(LayoutConflictError):
            call()
    good = client.register(namespace(model))
    more = chain(good.identified, 1)
    assert all_stored(put_fresh(client, good, more, pages_under(more, good.page_bytes)))
    assert first.match(ns, keys) == Hit(2, Tier.L2)


@pytest.mark.parametrize("identity", [None, "llama", 5])
def test_what_is_no_namespace_is_named(client: Client, model: str, identity: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=type(identity).__name__):
        client.register(identity)
    with pytest.raises(InvalidArgumentError, match="page_bytes"):
        client.register(engine_namespace(model), page_bytes="4096")  # type: ignore[arg-type]


def test_a_closed_client_says_so(client: Client, model: str) -> None:
    ns = client.register(namespace(model))
    keys = chain(ns.identified, 2)
    put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes))
    lease = client.lease(ns, keys)
    request = client.begin(ns)
    client.close()
    client.close()
    room = room_for(keys, ns.page_bytes)
    calls: list[Any] = [
        lambda: client.match(ns, keys),
        lambda: client.lease(ns, keys),
        lambda: client.get(ns, keys, room),
        lambda: put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes)),
        lambda: client.begin(ns),
        lambda: client.prefetch(ns, keys),
        lambda: client.register(namespace(model)),
        client.stamp,
        lambda: client.wait_ready(deadline_s=1.0),
        lambda: request.match(keys),
    ]
    for call in calls:
        with pytest.raises(ClosedError):
            call()
    request.end()
    assert [bytes(view) for view in lease] == pages_under(keys, ns.page_bytes), "leases outlive the client"
    lease.release()
    lease.release()
    with pytest.raises(ClosedError):
        lease[0]
    assert client.statistics()["transport"] in ("none", "grpc")


# --- uncacheable ----------------------------------------------------------------------------------------------------


def test_an_uncacheable_computation_is_answered_and_counted_with_its_reason(client: Client) -> None:
    why = Uncacheable(UncacheableReason.SLIDING_WINDOW, "layers 1, 3")
    ns = client.register(why)
    keys = bytes(32 * 3)
    assert client.match(ns, keys) == Miss(MissReason.UNCACHEABLE)
    assert client.lease(ns, keys).reason is MissReason.UNCACHEABLE
    assert client.get(ns, keys, [bytearray(1)] * 3) == Miss(MissReason.UNCACHEABLE)
    refused = [Refused(RefuseReason.UNCACHEABLE)] * 3
    assert put_fresh(client, ns, keys, [b"x"] * 3) == refused
    with client.begin(ns) as request:
        assert request.refused is RefuseReason.UNCACHEABLE
        assert request.put(keys, [b"x"] * 3) == refused
    assert not client.prefetch(ns, keys)
    counts = client.namespace_counts()["uncacheable:" + UncacheableReason.SLIDING_WINDOW.value]
    assert (counts.look_ups, counts.requested, counts.missed) == (2, 6, {MissReason.UNCACHEABLE: 6})
    with pytest.raises(InvalidArgumentError, match="no namespace"):
        _ = ns.id
