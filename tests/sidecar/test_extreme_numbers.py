"""Every number in a request, at its ends: an answer by its meaning, or an error that names the field; never a bug."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from kv_types.limits import LOG_REVISION_MAX
from kv_types.page_layout import PageLayout
from kv_wire.admin_calls import ADMIN_SERVICE
from kv_wire.channel import SERVICE, open_channel
from kv_wire.checksum import checksum
from kv_wire.conversions import stamp_to_wire
from kv_wire.gen import admin_pb2, cache_pb2
from kv_wire.transfer import Chunk, encode_put_request
from tests.support.daemon import Daemon
from tests.support.remote_store import RemoteStore
from tests.support.spaces import fresh_chain, page_of, space_of

PAGE_BYTES = 1000
U32 = (0, 1, 2**31 - 1, 2**31, 2**32 - 1)
U64 = (*U32, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
ENDS = {
    FieldDescriptor.TYPE_UINT32: U32,
    FieldDescriptor.TYPE_UINT64: U64,
    FieldDescriptor.TYPE_FIXED64: U64,
}
BY_ITS_MEANING = {grpc.StatusCode.OK, grpc.StatusCode.FAILED_PRECONDITION}
SAID = {"offset": "byte", "lasting_s": "a pin lasts"}
"""How an error calls a field, where it is not by its name."""

KINDS = {
    f"{service.full_name}/{method.name}": method.input_type
    for file in (admin_pb2.DESCRIPTOR, cache_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
}
"""What each method takes."""

Path_ = tuple[FieldDescriptor, ...]


@pytest.fixture(scope="module", params=["redis", "local"])
def serving(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """A daemon for each kind of log."""
    flags = ["--no-l3"] if request.param == "local" else []
    with (
        tempfile.TemporaryDirectory(prefix="skv-") as scratch,
        Daemon(Path(scratch) / "run", *flags) as running,
    ):
        yield running.wait_ready()


@pytest.fixture
def channel(serving: Daemon) -> Iterator[grpc.Channel]:
    with open_channel(serving.grpc_address) as opened:
        yield opened


def numbers(kind: Descriptor, *above: FieldDescriptor) -> Iterator[Path_]:
    """Every field of a message, and of those in it, that is a number."""
    for field in kind.fields:
        if field.type in ENDS:
            yield (*above, field)
        elif field.message_type is not None:
            yield from numbers(field.message_type, *above, field)


def changed(request: Message, path: Path_, value: int) -> Message:
    """The request with another number in one place."""
    made = type(request)()
    made.CopyFrom(request)
    inner: Any = made
    for field in path[:-1]:
        part = getattr(inner, field.name)
        inner = part[0] if field.is_repeated else part
    setattr(inner, path[-1].name, value)
    return made


def call(channel: grpc.Channel, name: str, request: Message) -> tuple[grpc.StatusCode, str]:
    """How it ended, and what the error says."""
    body = request.SerializeToString()
    try:
        if name == f"{SERVICE}/Put":
            channel.stream_unary(f"/{name}", None, None)(iter([body]), timeout=30)
        else:
            list(channel.unary_stream(f"/{name}", None, None)(body, timeout=30))
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def asked(channel: grpc.Channel) -> Mapping[str, Message]:
    """By method, a request that it answers with OK, and that nobody made before."""
    space = space_of(PAGE_BYTES)
    store, (root, key) = RemoteStore(channel), fresh_chain(2)
    store.register(space)
    store.put(space.id, [root], [page_of(root, PAGE_BYTES)], stamp=store.stamp())
    stamp = stamp_to_wire(store.stamp())
    narrow = admin_pb2.Selector(model="nobody's")
    chain = cache_pb2.Chain(keys=root)
    page = page_of(key, PAGE_BYTES)
    header = cache_pb2.PutHeader(namespace_id=space.id, chain=cache_pb2.Chain(keys=key), stamp=stamp)
    put = cache_pb2.PutRequest.FromString(
        encode_put_request(header=header, chunks=[Chunk(0, 0, page, checksum(page))])
    )
    admin = {
        "Invalidate": admin_pb2.InvalidateRequest(selectors=[narrow], wait=admin_pb2.WAIT_NONE),
        "AwaitFence": admin_pb2.AwaitFenceRequest(stamp=stamp, timeout_ms=50),
        "DryRun": admin_pb2.DryRunRequest(selectors=[admin_pb2.Selector(tag=b"t")]),
        "AnnounceWeights": admin_pb2.AnnounceWeightsRequest(
            model="nobody's", version="1", wait=admin_pb2.WAIT_NONE
        ),
        "ReadLog": admin_pb2.ReadLogRequest(),
        "Inspect": admin_pb2.InspectRequest(keys=root),
        "SetReplicas": admin_pb2.SetReplicasRequest(replicas=0),
        "Pin": admin_pb2.PinRequest(
            name="ends", chains=[admin_pb2.PinnedChain(namespace_id=space.id, keys=root)], lasting_s=60
        ),
    }
    cache = {
        "RegisterNamespace": cache_pb2.RegisterNamespaceRequest(
            canonical=space.canonical, page_bytes=PageLayout.of(space).page_bytes
        ),
        "Get": cache_pb2.GetRequest(namespace_id=space.id, chain=chain),
        "GetWhole": cache_pb2.GetRequest(namespace_id=space.id, chain=chain),
        "Put": put,
    }
    named = ((ADMIN_SERVICE, admin), (SERVICE, cache))
    return {f"{service}/{name}": one for service, methods in named for name, one in methods.items()}


def test_the_requests_are_all_those_with_numbers_in_them(channel: grpc.Channel) -> None:
    found = asked(channel)
    assert set(found) == {name for name, kind in KINDS.items() if any(numbers(kind))}
    for name, request in found.items():
        assert call(channel, name, request) == (grpc.StatusCode.OK, ""), name


def test_every_number_at_its_ends_is_answered_or_named(serving: Daemon, channel: grpc.Channel) -> None:
    ends = [
        (name, path, value)
        for name, kind in KINDS.items()
        for path in numbers(kind)
        for value in ENDS[path[-1].type]
    ]
    assert len(ends) > 150
    for name, path, value in ends:
        requests = asked(channel)
        code, text = call(channel, name, changed(requests[name], path, value))
        field = path[-1].name
        named = code is grpc.StatusCode.INVALID_ARGUMENT and SAID.get(field, field) in text
        assert named or code in BY_ITS_MEANING, (name, field, value, code, text)
        call(channel, f"{ADMIN_SERVICE}/SetReplicas", requests[f"{ADMIN_SERVICE}/SetReplicas"])
    assert [line for line in serving.lines if line["level"] in ("error", "critical")] == []


@pytest.mark.parametrize(
    ("after", "code"),
    [
        (LOG_REVISION_MAX, grpc.StatusCode.OK),
        *itertools.product(
            (LOG_REVISION_MAX + 1, 2**63 - 1, 2**63, 2**64 - 1), [grpc.StatusCode.INVALID_ARGUMENT]
        ),
    ],
)
def test_after_a_revision_that_no_log_reaches_there_is_nothing(
    channel: grpc.Channel, after: int, code: grpc.StatusCode
) -> None:
    request = admin_pb2.ReadLogRequest(after_revision=after)
    assert call(channel, f"{ADMIN_SERVICE}/ReadLog", request)[0] is code
