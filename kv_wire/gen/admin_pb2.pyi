from kv_wire.gen import cache_pb2 as _cache_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Wait(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAIT_UNSPECIFIED: _ClassVar[Wait]
    WAIT_NONE: _ClassVar[Wait]
    WAIT_HIDDEN: _ClassVar[Wait]
    WAIT_DRAINED: _ClassVar[Wait]

class Unconfirmed(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNCONFIRMED_UNSPECIFIED: _ClassVar[Unconfirmed]
    UNCONFIRMED_NOT_ASKED: _ClassVar[Unconfirmed]
    UNCONFIRMED_MEMBERS: _ClassVar[Unconfirmed]
    UNCONFIRMED_REPLICATION: _ClassVar[Unconfirmed]
    UNCONFIRMED_SETTLING: _ClassVar[Unconfirmed]
    UNCONFIRMED_INCARNATION: _ClassVar[Unconfirmed]
    UNCONFIRMED_LOG: _ClassVar[Unconfirmed]
    UNCONFIRMED_ENDING: _ClassVar[Unconfirmed]
WAIT_UNSPECIFIED: Wait
WAIT_NONE: Wait
WAIT_HIDDEN: Wait
WAIT_DRAINED: Wait
UNCONFIRMED_UNSPECIFIED: Unconfirmed
UNCONFIRMED_NOT_ASKED: Unconfirmed
UNCONFIRMED_MEMBERS: Unconfirmed
UNCONFIRMED_REPLICATION: Unconfirmed
UNCONFIRMED_SETTLING: Unconfirmed
UNCONFIRMED_INCARNATION: Unconfirmed
UNCONFIRMED_LOG: Unconfirmed
UNCONFIRMED_ENDING: Unconfirmed

class Selector(_message.Message):
    __slots__ = ("namespace_id", "model", "weights_version", "adapter", "tenant", "key", "producer", "tag", "since_ms", "until_ms", "since_revision", "until_revision", "other_weights_than")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    SINCE_REVISION_FIELD_NUMBER: _ClassVar[int]
    UNTIL_REVISION_FIELD_NUMBER: _ClassVar[int]
    OTHER_WEIGHTS_THAN_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    model: str
    weights_version: str
    adapter: str
    tenant: str
    key: bytes
    producer: bytes
    tag: bytes
    since_ms: int
    until_ms: int
    since_revision: int
    until_revision: int
    other_weights_than: str
    def __init__(self, namespace_id: _Optional[bytes] = ..., model: _Optional[str] = ..., weights_version: _Optional[str] = ..., adapter: _Optional[str] = ..., tenant: _Optional[str] = ..., key: _Optional[bytes] = ..., producer: _Optional[bytes] = ..., tag: _Optional[bytes] = ..., since_ms: _Optional[int] = ..., until_ms: _Optional[int] = ..., since_revision: _Optional[int] = ..., until_revision: _Optional[int] = ..., other_weights_than: _Optional[str] = ...) -> None: ...

class InvalidateRequest(_message.Message):
    __slots__ = ("selectors", "reason", "author", "wait", "timeout_ms", "request_id")
    SELECTORS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    selectors: _containers.RepeatedCompositeFieldContainer[Selector]
    reason: str
    author: str
    wait: Wait
    timeout_ms: int
    request_id: bytes
    def __init__(self, selectors: _Optional[_Iterable[_Union[Selector, _Mapping]]] = ..., reason: _Optional[str] = ..., author: _Optional[str] = ..., wait: _Optional[_Union[Wait, str]] = ..., timeout_ms: _Optional[int] = ..., request_id: _Optional[bytes] = ...) -> None: ...

class AwaitFenceRequest(_message.Message):
    __slots__ = ("stamp", "wait", "timeout_ms")
    STAMP_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    stamp: _cache_pb2.Stamp
    wait: Wait
    timeout_ms: int
    def __init__(self, stamp: _Optional[_Union[_cache_pb2.Stamp, _Mapping]] = ..., wait: _Optional[_Union[Wait, str]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class InvalidateResponse(_message.Message):
    __slots__ = ("stamps", "confirmed", "unconfirmed", "why", "missing", "gone", "missing_count", "gone_count", "waited_ms")
    STAMPS_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    UNCONFIRMED_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    MISSING_COUNT_FIELD_NUMBER: _ClassVar[int]
    GONE_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    stamps: _containers.RepeatedCompositeFieldContainer[_cache_pb2.Stamp]
    confirmed: bool
    unconfirmed: Unconfirmed
    why: str
    missing: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    gone: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    missing_count: int
    gone_count: int
    waited_ms: int
    def __init__(self, stamps: _Optional[_Iterable[_Union[_cache_pb2.Stamp, _Mapping]]] = ..., confirmed: _Optional[bool] = ..., unconfirmed: _Optional[_Union[Unconfirmed, str]] = ..., why: _Optional[str] = ..., missing: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., gone: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., missing_count: _Optional[int] = ..., gone_count: _Optional[int] = ..., waited_ms: _Optional[int] = ...) -> None: ...

class DryRunRequest(_message.Message):
    __slots__ = ("selectors",)
    SELECTORS_FIELD_NUMBER: _ClassVar[int]
    selectors: _containers.RepeatedCompositeFieldContainer[Selector]
    def __init__(self, selectors: _Optional[_Iterable[_Union[Selector, _Mapping]]] = ...) -> None: ...

class TierCount(_message.Message):
    __slots__ = ("tier", "pages", "bytes")
    TIER_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    tier: _cache_pb2.Tier
    pages: int
    bytes: int
    def __init__(self, tier: _Optional[_Union[_cache_pb2.Tier, str]] = ..., pages: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class DryRunResponse(_message.Message):
    __slots__ = ("tiers",)
    TIERS_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedCompositeFieldContainer[TierCount]
    def __init__(self, tiers: _Optional[_Iterable[_Union[TierCount, _Mapping]]] = ...) -> None: ...

class AnnounceWeightsRequest(_message.Message):
    __slots__ = ("model", "version", "reason", "author", "wait", "timeout_ms", "request_id", "invalidate_version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INVALIDATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    reason: str
    author: str
    wait: Wait
    timeout_ms: int
    request_id: bytes
    invalidate_version: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., reason: _Optional[str] = ..., author: _Optional[str] = ..., wait: _Optional[_Union[Wait, str]] = ..., timeout_ms: _Optional[int] = ..., request_id: _Optional[bytes] = ..., invalidate_version: _Optional[str] = ...) -> None: ...

class ReadLogRequest(_message.Message):
    __slots__ = ("after_revision", "count", "follow", "after_incarnation")
    AFTER_REVISION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    AFTER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    after_revision: int
    count: int
    follow: bool
    after_incarnation: bytes
    def __init__(self, after_revision: _Optional[int] = ..., count: _Optional[int] = ..., follow: _Optional[bool] = ..., after_incarnation: _Optional[bytes] = ...) -> None: ...

class LogRecord(_message.Message):
    __slots__ = ("stamp", "selector", "weights", "reason", "author", "appended_wall_ms")
    STAMP_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    APPENDED_WALL_MS_FIELD_NUMBER: _ClassVar[int]
    stamp: _cache_pb2.Stamp
    selector: Selector
    weights: WeightsVersion
    reason: str
    author: str
    appended_wall_ms: int
    def __init__(self, stamp: _Optional[_Union[_cache_pb2.Stamp, _Mapping]] = ..., selector: _Optional[_Union[Selector, _Mapping]] = ..., weights: _Optional[_Union[WeightsVersion, _Mapping]] = ..., reason: _Optional[str] = ..., author: _Optional[str] = ..., appended_wall_ms: _Optional[int] = ...) -> None: ...

class WeightsVersion(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class MembersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MemberStatus(_message.Message):
    __slots__ = ("id", "renewal", "acknowledged", "drained", "note", "is_self", "gone")
    ID_FIELD_NUMBER: _ClassVar[int]
    RENEWAL_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    IS_SELF_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    renewal: int
    acknowledged: int
    drained: int
    note: str
    is_self: bool
    gone: bool
    def __init__(self, id: _Optional[bytes] = ..., renewal: _Optional[int] = ..., acknowledged: _Optional[int] = ..., drained: _Optional[int] = ..., note: _Optional[str] = ..., is_self: _Optional[bool] = ..., gone: _Optional[bool] = ...) -> None: ...

class MembersResponse(_message.Message):
    __slots__ = ("fleet", "tip", "settled", "confirmed", "replicas", "members", "sizes")
    class SizesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    FLEET_FIELD_NUMBER: _ClassVar[int]
    TIP_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    tip: _cache_pb2.Stamp
    settled: bool
    confirmed: bool
    replicas: int
    members: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    sizes: _containers.ScalarMap[str, int]
    def __init__(self, fleet: _Optional[str] = ..., tip: _Optional[_Union[_cache_pb2.Stamp, _Mapping]] = ..., settled: _Optional[bool] = ..., confirmed: _Optional[bool] = ..., replicas: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., sizes: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ForgetMembersRequest(_message.Message):
    __slots__ = ("ids", "all_gone")
    IDS_FIELD_NUMBER: _ClassVar[int]
    ALL_GONE_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[bytes]
    all_gone: bool
    def __init__(self, ids: _Optional[_Iterable[bytes]] = ..., all_gone: _Optional[bool] = ...) -> None: ...

class ForgetMembersResponse(_message.Message):
    __slots__ = ("forgotten",)
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    forgotten: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, forgotten: _Optional[_Iterable[bytes]] = ...) -> None: ...

class InspectRequest(_message.Message):
    __slots__ = ("keys", "namespace_id", "start")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    namespace_id: bytes
    start: int
    def __init__(self, keys: _Optional[bytes] = ..., namespace_id: _Optional[bytes] = ..., start: _Optional[int] = ...) -> None: ...

class PageStatus(_message.Message):
    __slots__ = ("key", "resident", "namespace_id", "parent", "stamp", "producer", "producer_known", "tags", "computed_from_ms", "computed_until_ms", "payload_bytes", "leases", "expires_in_ms", "last_access_ms_ago", "why", "lineage_known", "tags_known", "servable")
    KEY_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_KNOWN_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FROM_MS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_ACCESS_MS_AGO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_KNOWN_FIELD_NUMBER: _ClassVar[int]
    TAGS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    SERVABLE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    resident: bool
    namespace_id: bytes
    parent: bytes
    stamp: _cache_pb2.Stamp
    producer: bytes
    producer_known: bool
    tags: _containers.RepeatedScalarFieldContainer[bytes]
    computed_from_ms: int
    computed_until_ms: int
    payload_bytes: int
    leases: int
    expires_in_ms: int
    last_access_ms_ago: int
    why: str
    lineage_known: bool
    tags_known: bool
    servable: bool
    def __init__(self, key: _Optional[bytes] = ..., resident: _Optional[bool] = ..., namespace_id: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., stamp: _Optional[_Union[_cache_pb2.Stamp, _Mapping]] = ..., producer: _Optional[bytes] = ..., producer_known: _Optional[bool] = ..., tags: _Optional[_Iterable[bytes]] = ..., computed_from_ms: _Optional[int] = ..., computed_until_ms: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., leases: _Optional[int] = ..., expires_in_ms: _Optional[int] = ..., last_access_ms_ago: _Optional[int] = ..., why: _Optional[str] = ..., lineage_known: _Optional[bool] = ..., tags_known: _Optional[bool] = ..., servable: _Optional[bool] = ...) -> None: ...

class InspectResponse(_message.Message):
    __slots__ = ("pages", "position")
    PAGES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    pages: _containers.RepeatedCompositeFieldContainer[PageStatus]
    position: _cache_pb2.Stamp
    def __init__(self, pages: _Optional[_Iterable[_Union[PageStatus, _Mapping]]] = ..., position: _Optional[_Union[_cache_pb2.Stamp, _Mapping]] = ...) -> None: ...

class NamespacesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NamespacesResponse(_message.Message):
    __slots__ = ("canonical", "incomplete", "position")
    CANONICAL_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    canonical: _containers.RepeatedScalarFieldContainer[bytes]
    incomplete: str
    position: _cache_pb2.Stamp
    def __init__(self, canonical: _Optional[_Iterable[bytes]] = ..., incomplete: _Optional[str] = ..., position: _Optional[_Union[_cache_pb2.Stamp, _Mapping]] = ...) -> None: ...

class SetReplicasRequest(_message.Message):
    __slots__ = ("replicas", "force")
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    replicas: int
    force: bool
    def __init__(self, replicas: _Optional[int] = ..., force: _Optional[bool] = ...) -> None: ...

class SetReplicasResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecordRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecordedLookUp(_message.Message):
    __slots__ = ("at_us", "input_tokens", "digests")
    AT_US_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    at_us: int
    input_tokens: int
    digests: bytes
    def __init__(self, at_us: _Optional[int] = ..., input_tokens: _Optional[int] = ..., digests: _Optional[bytes] = ...) -> None: ...

class RecordResponse(_message.Message):
    __slots__ = ("look_ups", "dropped")
    LOOK_UPS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    look_ups: _containers.RepeatedCompositeFieldContainer[RecordedLookUp]
    dropped: int
    def __init__(self, look_ups: _Optional[_Iterable[_Union[RecordedLookUp, _Mapping]]] = ..., dropped: _Optional[int] = ...) -> None: ...

class PinnedChain(_message.Message):
    __slots__ = ("namespace_id", "keys")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    keys: bytes
    def __init__(self, namespace_id: _Optional[bytes] = ..., keys: _Optional[bytes] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("name", "chains", "key", "lasting_s", "load")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHAINS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    LASTING_S_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    name: str
    chains: _containers.RepeatedCompositeFieldContainer[PinnedChain]
    key: bytes
    lasting_s: int
    load: bool
    def __init__(self, name: _Optional[str] = ..., chains: _Optional[_Iterable[_Union[PinnedChain, _Mapping]]] = ..., key: _Optional[bytes] = ..., lasting_s: _Optional[int] = ..., load: _Optional[bool] = ...) -> None: ...

class PinStatus(_message.Message):
    __slots__ = ("name", "chains", "pages", "held_pages", "held_bytes", "remaining_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHAINS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    HELD_PAGES_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    chains: int
    pages: int
    held_pages: int
    held_bytes: int
    remaining_ms: int
    def __init__(self, name: _Optional[str] = ..., chains: _Optional[int] = ..., pages: _Optional[int] = ..., held_pages: _Optional[int] = ..., held_bytes: _Optional[int] = ..., remaining_ms: _Optional[int] = ...) -> None: ...

class PinResponse(_message.Message):
    __slots__ = ("pin",)
    PIN_FIELD_NUMBER: _ClassVar[int]
    pin: PinStatus
    def __init__(self, pin: _Optional[_Union[PinStatus, _Mapping]] = ...) -> None: ...

class PinsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PinsResponse(_message.Message):
    __slots__ = ("pins", "quota_bytes", "charged_bytes", "beyond_quota")
    PINS_FIELD_NUMBER: _ClassVar[int]
    QUOTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHARGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BEYOND_QUOTA_FIELD_NUMBER: _ClassVar[int]
    pins: _containers.RepeatedCompositeFieldContainer[PinStatus]
    quota_bytes: int
    charged_bytes: int
    beyond_quota: int
    def __init__(self, pins: _Optional[_Iterable[_Union[PinStatus, _Mapping]]] = ..., quota_bytes: _Optional[int] = ..., charged_bytes: _Optional[int] = ..., beyond_quota: _Optional[int] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class UnpinResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
