"""The gRPC service stratakv.v1.Admin over an Administration: who may call, decoding, deadlines, answers in parts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from cache_l2.pins import PinnedChain
from invalidation.fence import Wait
from invalidation.log import MemberState
from invalidation.records import LogRecord
from kv_types import limits
from kv_types.errors import (
    InvalidArgumentError,
    LimitExceededError,
    PermissionDeniedError,
)
from kv_types.ids import Stamp, namespace_id, page_key
from kv_types.outcomes import Tier
from kv_wire.admin_calls import ADMIN_SERVICE
from kv_wire.admin_conversions import (
    ID_BYTES,
    identifier_from_wire,
    identifiers_from_wire,
    record_to_wire,
    revision_from_wire,
    selectors_from_wire,
)
from kv_wire.conversions import stamp_from_wire, stamp_to_wire
from kv_wire.gen import admin_pb2
from sidecar.admin.administration import Administration, Fleet, KnownNamespaces
from sidecar.admin.fencing import FenceResult, Unconfirmed
from sidecar.admin.inspection import Inspection, PageReport
from sidecar.admin.pins import PinAdministration, PinTold
from sidecar.logs import logger
from sidecar.recording import LookUp, Recorder
from sidecar.serving.calls import Calls, Context, StreamBody, UnaryBody, parse, within_idle_limit

_log = logger("admin")
_LOCAL_PEER = "unix:"
_ANSWER_S = 0.3
"""What an answer may take on its way: so long before the caller's deadline a wait ends, to say how far it got."""
_WAITS: Mapping[int, Wait | None] = {
    admin_pb2.WAIT_UNSPECIFIED: Wait.HIDDEN,
    admin_pb2.WAIT_NONE: None,
    admin_pb2.WAIT_HIDDEN: Wait.HIDDEN,
    admin_pb2.WAIT_DRAINED: Wait.DRAINED,
}
_UNCONFIRMED: Mapping[Unconfirmed | None, Any] = {
    None: admin_pb2.UNCONFIRMED_UNSPECIFIED,
    Unconfirmed.NOT_ASKED: admin_pb2.UNCONFIRMED_NOT_ASKED,
    Unconfirmed.MEMBERS: admin_pb2.UNCONFIRMED_MEMBERS,
    Unconfirmed.REPLICATION: admin_pb2.UNCONFIRMED_REPLICATION,
    Unconfirmed.SETTLING: admin_pb2.UNCONFIRMED_SETTLING,
    Unconfirmed.INCARNATION: admin_pb2.UNCONFIRMED_INCARNATION,
    Unconfirmed.LOG: admin_pb2.UNCONFIRMED_LOG,
    Unconfirmed.ENDING: admin_pb2.UNCONFIRMED_ENDING,
}

_Request = TypeVar("_Request", bound=Message)
_Item = TypeVar("_Item")


class AdminService:
    """Serves one sidecar's administration to peers on its Unix socket, whom the file system has let in."""

    def __init__(
        self,
        administration: Administration,
        inspection: Inspection,
        calls: Calls,
        pins: PinAdministration,
        *,
        fleet: str,
        recorder: Recorder,
        idle_s: float = limits.GRPC_IDLE_S_MAX,
    ) -> None:
        self._administration = administration
        self._inspection = inspection
        self._calls = calls
        self._pins = pins
        self._fleet = fleet
        self._recorder = recorder
        self._idle_s = idle_s

    def handler(self) -> grpc.GenericRpcHandler[bytes, bytes]:
        """Return the handlers of all methods."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        bodies = {
            "Invalidate": unary(self._guard("Invalidate", self.invalidate)),
            "AwaitFence": unary(self._guard("AwaitFence", self.await_fence)),
            "DryRun": unary(self._guard("DryRun", self.dry_run)),
            "AnnounceWeights": unary(self._guard("AnnounceWeights", self.announce_weights)),
            "ReadLog": stream(self._guard("ReadLog", self.read_log)),
            "Members": stream(self._guard("Members", self.members)),
            "ForgetMembers": unary(self._guard("ForgetMembers", self.forget_members)),
            "Inspect": unary(self._guard("Inspect", self.inspect)),
            "Namespaces": stream(self._guard("Namespaces", self.namespaces)),
            "SetReplicas": unary(self._guard("SetReplicas", self.set_replicas)),
            "Record": stream(self._guard("Record", self.record)),
            "Pin": unary(self._guard("Pin", self.pin)),
            "Pins": unary(self._guard("Pins", self.pins)),
            "Unpin": unary(self._guard("Unpin", self.unpin)),
        }
        return grpc.method_handlers_generic_handler(ADMIN_SERVICE, bodies)

    def _guard(self, method: str, body: UnaryBody | StreamBody) -> Callable[[Any, Context], Awaitable[Any]]:
        async def local_only(raw: bytes, context: Context) -> Any:
            if not context.peer().startswith(_LOCAL_PEER):
                raise PermissionDeniedError(
                    "administration has no authentication yet, so that it is served on the sidecar's Unix socket only: "
                    "call from its node, with --runtime-dir"
                )
            return await body(raw, context)

        return self._calls.guard(f"Admin.{method}", local_only)

    async def invalidate(self, raw: bytes, context: Context) -> bytes:
        """Append records and wait for them."""
        request = _parsed(admin_pb2.InvalidateRequest(), raw)
        result = await self._administration.invalidate(
            selectors_from_wire(request.selectors),
            reason=request.reason,
            author=request.author,
            wait=_wait(request.wait),
            timeout_s=_timeout_s(request.timeout_ms, context),
            request_id=_request_id(request.request_id),
        )
        return self._result(result)

    async def announce_weights(self, raw: bytes, context: Context) -> bytes:
        """Append a weights version, and the invalidation of what it replaces."""
        request = _parsed(admin_pb2.AnnounceWeightsRequest(), raw)
        replaced = request.invalidate_version if request.HasField("invalidate_version") else None
        result = await self._administration.announce(
            request.model,
            request.version,
            invalidate_version=replaced,
            reason=request.reason,
            author=request.author,
            wait=_wait(request.wait),
            timeout_s=_timeout_s(request.timeout_ms, context),
            request_id=_request_id(request.request_id),
        )
        return self._result(result)

    async def await_fence(self, raw: bytes, context: Context) -> bytes:
        """Wait for records that were appended before."""
        request = _parsed(admin_pb2.AwaitFenceRequest(), raw)
        wait = _wait(request.wait)
        if wait is None:
            raise InvalidArgumentError("AwaitFence with WAIT_NONE waits for nothing: name what to wait for")
        stamp = stamp_from_wire(request.stamp)
        revision_from_wire(stamp.revision, "stamp.revision")
        timeout_s = _timeout_s(request.timeout_ms, context)
        result = await self._administration.await_fence(stamp, wait=wait, timeout_s=timeout_s)
        return self._result(result)

    async def dry_run(self, raw: bytes, context: Context) -> bytes:
        """Count what would go."""
        del context
        request = _parsed(admin_pb2.DryRunRequest(), raw)
        pages, size = await self._administration.dry_run(selectors_from_wire(request.selectors))
        tier = admin_pb2.TierCount(tier=int(Tier.L2), pages=pages, bytes=size)  # type: ignore[arg-type]
        return admin_pb2.DryRunResponse(tiers=[tier]).SerializeToString()

    async def read_log(self, raw: bytes, context: Context) -> None:
        """Stream records."""
        request = _parsed(admin_pb2.ReadLogRequest(), raw)
        incarnation = request.after_incarnation
        if incarnation:
            identifier_from_wire(incarnation, "log incarnation")
        after = revision_from_wire(request.after_revision, "after_revision")
        found = self._administration.records(
            after=after, incarnation=incarnation, count=request.count, follow=request.follow
        )
        # Closed here, whatever ends this: a generator left to the collector is closed some time, by another task.
        async with contextlib.aclosing(found) as records:
            async for stamp, record in records:
                await self._write(_record(stamp, record), context, what="the reader of the log")

    async def members(self, raw: bytes, context: Context) -> None:
        """Stream the members."""
        _parsed(admin_pb2.MembersRequest(), raw)
        fleet = await self._administration.members()
        for part in _parts(sorted(fleet.state.members.items()), limits.MEMBERS_LISTED_MAX):
            await self._write(self._fleet_part(fleet, part), context, what="the reader of the members")

    async def forget_members(self, raw: bytes, context: Context) -> bytes:
        """Take members off the list."""
        del context
        request = _parsed(admin_pb2.ForgetMembersRequest(), raw)
        ids = identifiers_from_wire(request.ids, "member id")
        forgotten = await self._administration.forget_members(ids, all_gone=request.all_gone)
        return admin_pb2.ForgetMembersResponse(forgotten=forgotten).SerializeToString()

    async def inspect(self, raw: bytes, context: Context) -> bytes:
        """Tell about pages."""
        del context
        request = _parsed(admin_pb2.InspectRequest(), raw)
        if not request.keys:
            raise InvalidArgumentError("an inspection names at least one key")
        wanted = request.namespace_id
        namespace = await self._administration.namespace(namespace_id(wanted)) if wanted else None
        report = await self._inspection.chain(request.keys, start=request.start, namespace=namespace)
        answer = admin_pb2.InspectResponse(
            pages=[_page(page) for page in report.pages], position=stamp_to_wire(report.position)
        )
        return answer.SerializeToString()

    async def namespaces(self, raw: bytes, context: Context) -> None:
        """Stream namespaces."""
        _parsed(admin_pb2.NamespacesRequest(), raw)
        known = await self._administration.namespaces()
        for message in _namespace_parts(known):
            await self._write(message, context, what="the reader of the namespaces")

    async def set_replicas(self, raw: bytes, context: Context) -> bytes:
        """Set k."""
        del context
        request = _parsed(admin_pb2.SetReplicasRequest(), raw)
        await self._administration.set_replicas(request.replicas, force=request.force)
        return admin_pb2.SetReplicasResponse().SerializeToString()

    async def record(self, raw: bytes, context: Context) -> None:
        """Stream look-ups as they come, until the caller goes or reads no more."""
        _parsed(admin_pb2.RecordRequest(), raw)
        recording = self._recorder.begin()
        _log.info("look-ups are recorded", recordings=self._recorder.recordings)
        what = "the reader of the recording"
        try:
            await self._write(admin_pb2.RecordResponse(), context, what=what)
            while await recording.wait():
                await self._write(
                    _recorded(*recording.take(bytes_about=limits.GRPC_CHUNK_BYTES)), context, what=what
                )
        finally:
            self._recorder.end(recording)
            _log.info("a recording of look-ups has ended", recordings=self._recorder.recordings)

    async def pin(self, raw: bytes, context: Context) -> bytes:
        """Pin chains, or one page with what it stands on."""
        del context
        request = _parsed(admin_pb2.PinRequest(), raw)
        if bool(request.chains) == bool(request.key):
            raise InvalidArgumentError("a pin names chains, or one page by its key")
        if request.key:
            told = await self._pins.pin_key(request.name, page_key(request.key), lasting_s=request.lasting_s)
        else:
            chains = [PinnedChain(namespace_id(one.namespace_id), one.keys) for one in request.chains]
            told = await self._pins.pin(request.name, chains, lasting_s=request.lasting_s, load=request.load)
        return admin_pb2.PinResponse(pin=_pin(told)).SerializeToString()

    async def pins(self, raw: bytes, context: Context) -> bytes:
        """List pins."""
        del context
        _parsed(admin_pb2.PinsRequest(), raw)
        pins = [_pin(told) for told in await self._pins.pins()]
        figures = self._pins.figures
        answer = admin_pb2.PinsResponse(
            pins=pins, quota_bytes=figures["quota_bytes"], charged_bytes=figures["charged_bytes"],
            beyond_quota=figures["beyond_quota"],
        )  # fmt: skip
        return answer.SerializeToString()

    async def unpin(self, raw: bytes, context: Context) -> bytes:
        """End a pin."""
        del context
        await self._pins.unpin(_parsed(admin_pb2.UnpinRequest(), raw).name)
        return admin_pb2.UnpinResponse().SerializeToString()

    async def _write(self, message: Message, context: Context, *, what: str) -> None:
        await within_idle_limit(context.write(message.SerializeToString()), what=what, idle_s=self._idle_s)

    def _fleet_part(self, fleet: Fleet, members: Sequence[tuple[bytes, MemberState]]) -> Message:
        state, sizes = fleet.state, fleet.statistics
        return admin_pb2.MembersResponse(
            fleet=self._fleet,
            tip=stamp_to_wire(state.tip),
            settled=state.settled,
            confirmed=state.confirmed,
            replicas=state.replicas,
            members=[self._member(*member) for member in members],
            sizes={
                name: getattr(sizes, name)
                for name in ("records", "tombstones", "floors", "members", "requests")
            },
        )

    def _member(self, member: bytes, state: MemberState) -> admin_pb2.MemberStatus:
        return admin_pb2.MemberStatus(
            id=member,
            renewal=state.number,
            acknowledged=state.acknowledged,
            drained=state.drained,
            note=state.note,
            is_self=member == self._administration.member,
            gone=state.gone,
        )

    def _result(self, result: FenceResult) -> bytes:
        listed = limits.MEMBERS_LISTED_MAX
        answer = admin_pb2.InvalidateResponse(
            stamps=[stamp for one in result.stamps if (stamp := stamp_to_wire(one)) is not None],
            confirmed=result.unconfirmed is None,
            unconfirmed=_UNCONFIRMED[result.unconfirmed],
            why=result.why,
            missing=[self._member(*member) for member in list(result.missing.items())[:listed]],
            gone=[self._member(*member) for member in list(result.gone.items())[:listed]],
            missing_count=len(result.missing),
            gone_count=len(result.gone),
            waited_ms=result.waited_ms,
        )
        return answer.SerializeToString()


def _parsed(into: _Request, raw: bytes) -> _Request:
    parse(into, raw)
    return into


def _wait(number: int) -> Wait | None:
    if number not in _WAITS:
        raise InvalidArgumentError(f"wait={number} has no meaning that this version knows")
    return _WAITS[number]


def _timeout_s(timeout_ms: int, context: Context) -> float:
    """Time for a wait: what was asked for, and never past the caller's own deadline."""
    if timeout_ms > limits.CALL_S_MAX * 1000:
        raise LimitExceededError(
            f"timeout_ms is at most {limits.CALL_S_MAX * 1000:.0f} (an hour); got {timeout_ms}: wait again afterwards"
        )
    asked_s = timeout_ms / 1000 if timeout_ms else limits.FENCE_S_DEFAULT
    remaining_s = context.time_remaining()
    return asked_s if remaining_s is None else max(0.0, min(asked_s, remaining_s - _ANSWER_S))


def _request_id(given: bytes) -> bytes:
    return identifier_from_wire(given, "request id") if given else os.urandom(ID_BYTES)


def _parts(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    """Cut into parts of at most `size`; an empty one where there is nothing."""
    for begin in range(0, max(1, len(items)), size):
        yield items[begin : begin + size]


def _namespace_parts(known: KnownNamespaces) -> Iterable[Message]:
    def begun() -> admin_pb2.NamespacesResponse:
        position = None if known.position is None else stamp_to_wire(known.position)
        return admin_pb2.NamespacesResponse(incomplete=known.incomplete, position=position)

    part, size = begun(), 0
    for namespace in known.by_id.values():
        if size + len(namespace.canonical) > limits.GRPC_CHUNK_BYTES:
            yield part
            part, size = begun(), 0
        part.canonical.append(namespace.canonical)
        size += len(namespace.canonical)
    yield part


def _record(stamp: Stamp, record: LogRecord) -> admin_pb2.LogRecord:
    entry = record.entry
    return record_to_wire(
        stamp, entry.event, reason=entry.reason, author=entry.author, appended_wall_ms=entry.appended_wall_ms
    )


def _recorded(look_ups: Sequence[LookUp], dropped: int) -> admin_pb2.RecordResponse:
    told = [
        admin_pb2.RecordedLookUp(at_us=one.at_us, input_tokens=one.input_tokens, digests=one.digests)
        for one in look_ups
    ]
    return admin_pb2.RecordResponse(look_ups=told, dropped=dropped)


def _pin(told: PinTold) -> admin_pb2.PinStatus:
    return admin_pb2.PinStatus(
        name=told.pin.name,
        chains=len(told.pin.chains),
        pages=told.pin.pages,
        held_pages=told.held_pages,
        held_bytes=told.held_bytes,
        remaining_ms=told.remaining_ms,
    )


def _page(report: PageReport) -> admin_pb2.PageStatus:
    facts = report.facts
    if facts is None:
        return admin_pb2.PageStatus(key=report.key, why=report.why)
    origin = facts.origin
    return admin_pb2.PageStatus(
        key=report.key,
        resident=True,
        namespace_id=facts.namespace.id,
        parent=facts.parent or b"",
        stamp=stamp_to_wire(facts.stamp),
        producer=origin.producer or b"",
        producer_known=origin.producer is not None,
        tags=origin.tags or (),
        tags_known=origin.tags is not None,
        computed_from_ms=origin.from_ms,
        computed_until_ms=origin.until_ms,
        payload_bytes=facts.payload_bytes,
        leases=facts.leases,
        expires_in_ms=-1 if facts.expires_in_ms is None else facts.expires_in_ms,
        last_access_ms_ago=-1 if facts.last_access_ms_ago is None else facts.last_access_ms_ago,
        servable=report.servable,
        why=report.why,
        lineage_known=origin.lineage_known,
    )
