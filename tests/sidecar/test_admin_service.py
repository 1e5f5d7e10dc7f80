"""The Admin service over real sockets: who may call, what a bad message gets, deadlines, cancelling, answers in parts."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from invalidation.log import Member
from invalidation.records import LogRecord
from kv_types import limits
from kv_types.errors import (
    InvalidArgumentError,
    LogUnreachableError,
    OverloadedError,
    PermissionDeniedError,
    UnknownNamespaceError,
)
from kv_types.events import Selected
from kv_types.ids import PageKey, Stamp
from kv_types.namespace import Namespace, parameters
from kv_types.selectors import Selector
from kv_wire.admin_calls import ADMIN_SERVICE, AdminCalls
from kv_wire.admin_conversions import record_from_wire
from kv_wire.channel import open_channel
from kv_wire.gen import admin_pb2
from kv_wire.status import from_rpc_error
from sidecar.serving.calls import Context
from tests.kv_types.samples import namespace
from tests.support.admin_site import AdminSite
from tests.support.polling import wait_until

SPACE = namespace(model="m")
METHODS = sorted(method.name for method in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods)
EVERYTHING = admin_pb2.Selector()


@pytest.fixture
def site() -> Iterator[AdminSite]:
    with tempfile.TemporaryDirectory(prefix="skv-") as folder, AdminSite(Path(folder), SPACE) as running:
        yield running


@pytest.fixture
def admin(site: AdminSite) -> Iterator[AdminCalls]:
    with open_channel(site.address) as channel:
        yield AdminCalls(channel)


def raw_call(channel: grpc.Channel, method: str, body: bytes, *, timeout_s: float = 10) -> list[bytes]:
    """Any method with any bytes; unary ones as a stream of one answer, which gRPC allows."""
    call = channel.unary_stream(f"/{ADMIN_SERVICE}/{method}", lambda data: data, lambda data: data)
    return list(call(body, timeout=timeout_s))


def failure(call: Any, request: Any, *, timeout: float = 10.0) -> Exception:
    """The error of a call; a stream fails while it is read."""

    def whole() -> None:
        answer = call(request, timeout=timeout)
        if isinstance(answer, grpc.Call):
            list(answer)  # type: ignore[call-overload]

    with pytest.raises(grpc.RpcError) as caught:
        whole()
    return from_rpc_error(caught.value)


def invalidate(**fields: Any) -> admin_pb2.InvalidateRequest:
    return admin_pb2.InvalidateRequest(**{"selectors": [EVERYTHING], "request_id": os.urandom(16), **fields})


def records(site: AdminSite) -> int:
    return len(site.call(site.fleet.records))


def test_an_invalidation_is_confirmed_with_its_stamps(site: AdminSite, admin: AdminCalls) -> None:
    selectors = [admin_pb2.Selector(model="m"), EVERYTHING]
    answer = admin.invalidate(invalidate(selectors=selectors, reason="r", author="a"), timeout=10)
    assert answer.confirmed
    assert answer.unconfirmed == admin_pb2.UNCONFIRMED_UNSPECIFIED
    assert [stamp.revision for stamp in answer.stamps] == [1, 2]
    assert not answer.missing
    assert not answer.gone
    again = admin.await_fence(admin_pb2.AwaitFenceRequest(stamp=answer.stamps[1]), timeout=10)
    assert again.confirmed


@pytest.mark.parametrize("method", METHODS)
def test_c35_nobody_administers_over_tcp(site: AdminSite, method: str) -> None:
    with open_channel(site.tcp) as channel, pytest.raises(grpc.RpcError) as caught:
        raw_call(channel, method, b"")
    error = from_rpc_error(caught.value)
    assert isinstance(error, PermissionDeniedError)
    assert "Unix socket" in str(error)
    assert records(site) == 0


BAD: list[tuple[str, Any, str]] = [
    ("invalidate", admin_pb2.InvalidateRequest(), "got 0"),
    ("invalidate", invalidate(selectors=[EVERYTHING] * 1025), "got 1025"),
    ("invalidate", invalidate(selectors=[admin_pb2.Selector(key=b"x")]), "32 bytes"),
    ("invalidate", invalidate(selectors=[admin_pb2.Selector(since_ms=2, until_ms=1)]), "select nothing"),
    ("invalidate", invalidate(reason="r" * 1025), "reason"),
    ("invalidate", invalidate(author="a" * 1025), "author"),
    ("invalidate", invalidate(wait=9), "wait=9"),
    ("invalidate", invalidate(timeout_ms=3_600_001), "an hour"),
    ("invalidate", invalidate(request_id=b"short"), "16 bytes"),
    ("await_fence", admin_pb2.AwaitFenceRequest(), "16 bytes"),
    ("await_fence", admin_pb2.AwaitFenceRequest(wait=admin_pb2.WAIT_NONE), "waits for nothing"),
    ("dry_run", admin_pb2.DryRunRequest(), "got 0"),
    ("announce_weights", admin_pb2.AnnounceWeightsRequest(version="2"), "model"),
    ("announce_weights", admin_pb2.AnnounceWeightsRequest(model="m"), "version"),
    (
        "announce_weights",
        admin_pb2.AnnounceWeightsRequest(model="m", version="1", invalidate_version="1"),
        "at once",
    ),
    ("read_log", admin_pb2.ReadLogRequest(after_incarnation=b"x"), "16 bytes"),
    ("forget_members", admin_pb2.ForgetMembersRequest(ids=[b"x"]), "16 bytes"),
    ("inspect", admin_pb2.InspectRequest(), "at least one key"),
    ("inspect", admin_pb2.InspectRequest(keys=bytes(33)), "multiple of 32"),
    ("inspect", admin_pb2.InspectRequest(keys=bytes(32), start=1), "start=1"),
    ("inspect", admin_pb2.InspectRequest(keys=bytes(32), namespace_id=b"x"), "32 bytes"),
    ("set_replicas", admin_pb2.SetReplicasRequest(replicas=17), "0 to 16"),
]


@pytest.mark.parametrize(
    ("method", "request_", "text"), BAD, ids=[f"{name}: {text}" for name, _, text in BAD]
)
def test_bad_messages_are_the_callers_mistake_and_change_nothing(
    site: AdminSite, admin: AdminCalls, method: str, request_: Any, text: str
) -> None:
    error = failure(getattr(admin, method), request_, timeout=10)
    assert isinstance(error, InvalidArgumentError)
    assert text in str(error)
    assert records(site) == 0


def messages(kind: Descriptor) -> st.SearchStrategy[Message]:
    """Any message of a kind, each field there or not, with any value of its type."""
    scalars: dict[int, st.SearchStrategy[Any]] = {
        FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1) | st.integers(0, 300),
        FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
        FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
        FieldDescriptor.CPPTYPE_ENUM: st.integers(0, 5),
    }

    def value(field: FieldDescriptor) -> st.SearchStrategy[Any]:
        if field.message_type is not None:
            one: st.SearchStrategy[Any] = messages(field.message_type)
        elif field.type == FieldDescriptor.TYPE_BYTES:
            one = st.binary(max_size=40) | st.sampled_from([bytes(16), bytes(32), bytes(64)])
        elif field.type == FieldDescriptor.TYPE_STRING:
            one = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
        else:
            one = scalars[field.cpp_type]
        return st.lists(one, max_size=3) if field.is_repeated else one

    present = st.fixed_dictionaries({}, optional={field.name: value(field) for field in kind.fields})
    return present.map(lambda fields: GetMessageClass(kind)(**fields))


def requests() -> st.SearchStrategy[tuple[str, bytes]]:
    methods = admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods
    formed = st.one_of(
        *(
            st.tuples(
                st.just(method.name), messages(method.input_type).map(lambda one: one.SerializeToString())
            )
            for method in methods
            if method.name != "ForgetMembers"  # waits by its meaning
        )
    )
    return formed | st.tuples(st.sampled_from(METHODS), st.binary(max_size=60))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests())
def test_any_message_gets_an_answer_or_an_error_that_says_whose_fault_it_is(
    site: AdminSite, request_: tuple[str, bytes]
) -> None:
    method, body = request_
    code = grpc.StatusCode.OK
    with open_channel(site.address) as channel:
        try:
            raw_call(channel, method, body, timeout_s=0.4)
        except grpc.RpcError as error:
            code = error.code()
    assert code in {
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.DEADLINE_EXCEEDED,  # a log that was to be followed
        grpc.StatusCode.CANCELLED,  # the same, where the server's clock was ahead
    }


def test_a_wait_ends_before_the_callers_deadline_to_say_how_far_it_got(
    site: AdminSite, admin: AdminCalls
) -> None:
    site.members[1].acknowledges = False
    answer = admin.invalidate(invalidate(timeout_ms=3_000_000), timeout=1.0)
    assert not answer.confirmed
    assert answer.unconfirmed == admin_pb2.UNCONFIRMED_MEMBERS
    assert [member.id for member in answer.missing] == [site.members[1].id]
    assert answer.missing_count == 1
    assert not answer.missing[0].is_self
    assert len(answer.stamps) == 1


def test_a_cancelled_call_ends_its_wait_and_the_record_stands(site: AdminSite, admin: AdminCalls) -> None:
    site.members[1].acknowledges = False
    call = admin.invalidate.future(invalidate(timeout_ms=3_000_000))
    wait_until(lambda: records(site) == 1, what="the record")
    call.cancel()  # type: ignore[no-untyped-call]
    wait_until(lambda: site.calls.running == 0, what="the end of the wait")
    assert records(site) == 1


def test_gone_members_are_named_and_forgotten_only_by_whoever_knows(
    site: AdminSite, admin: AdminCalls
) -> None:
    silent = site.members[1]
    silent.is_silent = True
    answer = admin.invalidate(invalidate(), timeout=10)
    assert answer.confirmed
    assert [(member.id, member.renewal) for member in answer.gone] == [(silent.id, silent.number)]
    drained = admin.invalidate(invalidate(wait=admin_pb2.WAIT_DRAINED, timeout_ms=300), timeout=10)
    assert not drained.confirmed
    assert [(member.id, member.gone) for member in drained.missing] == [(silent.id, True)]
    forgotten = admin.forget_members(admin_pb2.ForgetMembersRequest(all_gone=True), timeout=10)
    assert list(forgotten.forgotten) == [silent.id]
    assert admin.invalidate(invalidate(wait=admin_pb2.WAIT_DRAINED), timeout=10).confirmed


def test_a_log_that_is_out_of_reach_is_an_error_of_its_own(site: AdminSite, admin: AdminCalls) -> None:
    site.fleet.log.before["fence"] = 10**9
    error = failure(admin.invalidate, invalidate(timeout_ms=200), timeout=10)
    assert isinstance(error, LogUnreachableError)
    assert "nothing was appended" in str(error)
    assert isinstance(failure(admin.members, admin_pb2.MembersRequest(), timeout=10), LogUnreachableError)


def test_the_log_streams_and_follows_until_its_reader_goes(site: AdminSite, admin: AdminCalls) -> None:
    admin.invalidate(invalidate(reason="first", author="a"), timeout=10)
    stream = admin.read_log(admin_pb2.ReadLogRequest(follow=True))
    arriving = iter(stream)
    found = [next(arriving)]
    site_call = threading.Thread(
        target=lambda: admin.invalidate(invalidate(selectors=[admin_pb2.Selector(model="m")]), timeout=10)
    )
    site_call.start()
    found.append(next(arriving))
    site_call.join()
    assert [record_from_wire(record)[1] for record in found] == [
        Selected(Selector()),
        Selected(Selector(model="m")),
    ]
    assert (found[0].reason, found[0].author, found[0].stamp.revision) == ("first", "a", 1)
    assert found[0].appended_wall_ms > 1_700_000_000_000
    stream.cancel()  # type: ignore[no-untyped-call]
    wait_until(lambda: site.calls.running == 0, what="the end of the stream")
    whole = list(admin.read_log(admin_pb2.ReadLogRequest(after_revision=1), timeout=10))
    assert [record.stamp.revision for record in whole] == [2]


def test_a_reader_that_goes_leaves_no_open_generator_to_the_collector(
    site: AdminSite, admin: AdminCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.invalidate(invalidate(), timeout=10)
    closed: list[bool] = []
    original = site.admin.records

    async def records(**terms: Any) -> AsyncGenerator[tuple[Stamp, LogRecord], None]:
        try:
            async for record in original(**terms):
                yield record
        finally:
            closed.append(True)

    class Gone:
        """A context whose reader has gone."""

        async def write(self, _: bytes) -> None:
            raise ConnectionResetError

    async def read() -> None:
        with pytest.raises(ConnectionResetError):
            await site.service.read_log(b"", cast("Context", Gone()))
        assert closed == [True], "before anybody else runs"

    monkeypatch.setattr(site.admin, "records", records)
    site.call(read)


def test_members_come_in_parts_that_fit_a_message(site: AdminSite, admin: AdminCalls) -> None:
    async def join() -> None:
        boot = await site.fleet.local.boot(deadline_ns=0)
        for number in range(1500):
            member = Member(
                id=number.to_bytes(16, "big"), applied=boot.tip, digest=boot.digest, acknowledged=0, drained=0,
                note="x" * limits.MEMBER_NOTE_BYTES_MAX,
            )  # fmt: skip
            await site.fleet.local.renew(member, number=1, deadline_ns=0)

    site.call(join)
    parts = list(admin.members(admin_pb2.MembersRequest(), timeout=10))
    assert len(parts) > 1
    members = [member for part in parts for member in part.members]
    assert len({member.id for member in members}) == len(members) == 1502
    assert [member.id for member in members if member.is_self] == [site.fleet.member]
    assert {(part.fleet, part.settled, part.confirmed, part.replicas) for part in parts} == {
        ("test", True, True, 0)
    }
    assert parts[0].sizes["members"] == 1502
    # the same many in what a fence answers: counted, and as many named as fit
    answer = admin.invalidate(invalidate(timeout_ms=100), timeout=10)
    assert (answer.missing_count, len(answer.missing)) == (1500, limits.MEMBERS_LISTED_MAX)


def test_namespaces_come_in_parts_that_fit_a_message(site: AdminSite, admin: AdminCalls) -> None:
    def large(number: int) -> Namespace:
        return namespace(model=f"{number}", numerics=parameters({"n": (0.5,) * 500, "m": (0.5,) * 500}))

    spaces = [large(number) for number in range(400)]
    site.call(lambda: site.fleet.local.know([space.canonical for space in spaces], deadline_ns=0))
    parts = list(admin.namespaces(admin_pb2.NamespacesRequest(), timeout=10))
    assert len(parts) > 1
    found = [canonical for part in parts for canonical in part.canonical]
    assert set(found) == {space.canonical for space in [*spaces, SPACE]}
    assert len(found) == len(set(found))
    site.fleet.log.before["namespaces"] = 1
    (part,) = admin.namespaces(admin_pb2.NamespacesRequest(), timeout=10)
    assert list(part.canonical) == [SPACE.canonical]
    assert "does not answer" in part.incomplete


def test_inspection_tells_where_a_chain_ends_and_why(site: AdminSite, admin: AdminCalls) -> None:
    keys = [PageKey(bytes([number]) * 32) for number in range(4)]
    stamp = site.fleet.position
    site.store.add(SPACE, keys[0], None, stamp)
    site.store.add(SPACE, keys[1], keys[0], stamp)
    site.store.add(SPACE, keys[3], keys[2], stamp)
    request = admin_pb2.InspectRequest(keys=b"".join(keys), namespace_id=SPACE.id)
    answer = admin.inspect(request, timeout=10)
    assert [page.servable for page in answer.pages] == [True, True, False, False]
    assert [page.resident for page in answer.pages] == [True, True, False, True]
    first, _, absent, beyond = answer.pages
    assert (first.producer, first.producer_known, list(first.tags), first.payload_bytes) == (
        b"p",
        True,
        [b"t"],
        1000,
    )
    assert (first.namespace_id, first.expires_in_ms, first.last_access_ms_ago) == (SPACE.id, -1, -1)
    assert "no record after 0" in first.why
    assert "not on this node" in absent.why
    assert "page 2 of the chain is not here" in beyond.why
    (alone,) = admin.inspect(admin_pb2.InspectRequest(keys=keys[1]), timeout=10).pages
    assert (alone.servable, alone.parent) == (True, keys[0])
    (rest,) = admin.inspect(admin_pb2.InspectRequest(keys=b"".join(keys), start=3), timeout=10).pages
    assert not rest.servable
    site.is_fresh = False
    (stale,) = admin.inspect(admin_pb2.InspectRequest(keys=keys[1]), timeout=10).pages
    assert (stale.resident, stale.servable) == (True, False)
    assert "serves nothing now" in stale.why


def test_inspection_of_an_invalidated_chain_names_the_record(site: AdminSite, admin: AdminCalls) -> None:
    key = PageKey(b"k" * 32)
    admin.invalidate(invalidate(selectors=[admin_pb2.Selector(key=key)]), timeout=10)

    async def follow() -> None:
        for record in await site.fleet.records():
            site.validity.apply(record)

    site.call(follow)
    request = admin_pb2.InspectRequest(keys=key, namespace_id=SPACE.id)
    (page,) = admin.inspect(request, timeout=10).pages
    assert not page.resident
    assert "a stamp of 1 or later" in page.why
    assert "below record 1" in page.why


def test_an_unknown_namespace_is_said(site: AdminSite, admin: AdminCalls) -> None:
    request = admin_pb2.InspectRequest(keys=bytes(32), namespace_id=bytes(32))
    assert isinstance(failure(admin.inspect, request, timeout=10), UnknownNamespaceError)


def test_weights_are_announced_and_the_old_ones_invalidated(site: AdminSite, admin: AdminCalls) -> None:
    request = admin_pb2.AnnounceWeightsRequest(model="m", version="2", invalidate_version="1")
    answer = admin.announce_weights(request, timeout=10)
    assert answer.confirmed
    assert len(answer.stamps) == 2
    first, second = admin.read_log(admin_pb2.ReadLogRequest(), timeout=10)
    assert (first.weights.model, first.weights.version) == ("m", "2")
    assert (second.selector.model, second.selector.weights_version) == ("m", "1")


def test_replicas_are_set_and_nothing_is_confirmed_without_them(site: AdminSite, admin: AdminCalls) -> None:
    admin.set_replicas(admin_pb2.SetReplicasRequest(replicas=1), timeout=10)
    answer = admin.invalidate(invalidate(timeout_ms=100), timeout=10)
    assert answer.unconfirmed == admin_pb2.UNCONFIRMED_REPLICATION
    admin.set_replicas(admin_pb2.SetReplicasRequest(replicas=0), timeout=10)
    assert admin.invalidate(invalidate(), timeout=10).confirmed


def test_more_calls_than_may_be_at_once_are_refused(site: AdminSite, admin: AdminCalls) -> None:
    site.members[1].acknowledges = False
    waiting = [admin.invalidate.future(invalidate(timeout_ms=3_000_000)) for _ in range(8)]
    wait_until(lambda: site.calls.running == 8, what="eight calls")
    assert isinstance(
        failure(admin.dry_run, admin_pb2.DryRunRequest(selectors=[EVERYTHING])), OverloadedError
    )
    site.members[1].acknowledges = True
    assert all(call.result(10).confirmed for call in waiting)


def test_a_dry_run_counts_this_nodes_l2(site: AdminSite, admin: AdminCalls) -> None:
    site.store.add(SPACE, PageKey(b"a" * 32), None, site.fleet.position)
    answer = admin.dry_run(admin_pb2.DryRunRequest(selectors=[admin_pb2.Selector(model="m")]), timeout=10)
    assert [(tier.tier, tier.pages, tier.bytes) for tier in answer.tiers] == [(2, 1, 1000)]
    assert records(site) == 0
