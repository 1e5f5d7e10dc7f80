from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_UNSPECIFIED: _ClassVar[Tier]
    TIER_L1: _ClassVar[Tier]
    TIER_L2: _ClassVar[Tier]
    TIER_L3: _ClassVar[Tier]

class MissReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MISS_REASON_NONE: _ClassVar[MissReason]
    MISS_REASON_ABSENT: _ClassVar[MissReason]
    MISS_REASON_STALE: _ClassVar[MissReason]
    MISS_REASON_CLOSED: _ClassVar[MissReason]
    MISS_REASON_INVALIDATED: _ClassVar[MissReason]
    MISS_REASON_LEASE_EXPIRED: _ClassVar[MissReason]
    MISS_REASON_LEASE_LIMIT: _ClassVar[MissReason]
    MISS_REASON_ABORTED: _ClassVar[MissReason]
    MISS_REASON_DEADLINE: _ClassVar[MissReason]
    MISS_REASON_UNREACHABLE: _ClassVar[MissReason]
    MISS_REASON_UNCACHEABLE: _ClassVar[MissReason]
    MISS_REASON_CORRUPT: _ClassVar[MissReason]
    MISS_REASON_RACED: _ClassVar[MissReason]
    MISS_REASON_EXPIRED: _ClassVar[MissReason]
    MISS_REASON_UNKNOWN_NAMESPACE: _ClassVar[MissReason]
    MISS_REASON_OVERLOADED: _ClassVar[MissReason]
    MISS_REASON_L3_UNAVAILABLE: _ClassVar[MissReason]
    MISS_REASON_NO_ROOM: _ClassVar[MissReason]
    MISS_REASON_COMPUTE_IS_FASTER: _ClassVar[MissReason]

class PutStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUT_STATUS_STORED: _ClassVar[PutStatus]
    PUT_STATUS_KNOWN: _ClassVar[PutStatus]
    PUT_STATUS_REFUSED: _ClassVar[PutStatus]

class RefuseReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFUSE_REASON_NONE: _ClassVar[RefuseReason]
    REFUSE_REASON_FULL: _ClassVar[RefuseReason]
    REFUSE_REASON_TOO_LARGE: _ClassVar[RefuseReason]
    REFUSE_REASON_PARENT_ABSENT: _ClassVar[RefuseReason]
    REFUSE_REASON_STAMP_FOREIGN: _ClassVar[RefuseReason]
    REFUSE_REASON_INVALIDATED: _ClassVar[RefuseReason]
    REFUSE_REASON_CLOSED: _ClassVar[RefuseReason]
    REFUSE_REASON_UNREACHABLE: _ClassVar[RefuseReason]
    REFUSE_REASON_DEADLINE: _ClassVar[RefuseReason]
    REFUSE_REASON_BUSY: _ClassVar[RefuseReason]
    REFUSE_REASON_UNCACHEABLE: _ClassVar[RefuseReason]
    REFUSE_REASON_QUOTA: _ClassVar[RefuseReason]
    REFUSE_REASON_EXPIRED: _ClassVar[RefuseReason]
    REFUSE_REASON_CORRUPT: _ClassVar[RefuseReason]
    REFUSE_REASON_UNKNOWN_NAMESPACE: _ClassVar[RefuseReason]
    REFUSE_REASON_OVERLOADED: _ClassVar[RefuseReason]
    REFUSE_REASON_UNLISTED: _ClassVar[RefuseReason]

class LoadChoice(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOAD_CHOICE_UNPRICED: _ClassVar[LoadChoice]
    LOAD_CHOICE_LOAD: _ClassVar[LoadChoice]
    LOAD_CHOICE_COMPUTE: _ClassVar[LoadChoice]
    LOAD_CHOICE_TRIAL: _ClassVar[LoadChoice]
    LOAD_CHOICE_STOPPED: _ClassVar[LoadChoice]
TIER_UNSPECIFIED: Tier
TIER_L1: Tier
TIER_L2: Tier
TIER_L3: Tier
MISS_REASON_NONE: MissReason
MISS_REASON_ABSENT: MissReason
MISS_REASON_STALE: MissReason
MISS_REASON_CLOSED: MissReason
MISS_REASON_INVALIDATED: MissReason
MISS_REASON_LEASE_EXPIRED: MissReason
MISS_REASON_LEASE_LIMIT: MissReason
MISS_REASON_ABORTED: MissReason
MISS_REASON_DEADLINE: MissReason
MISS_REASON_UNREACHABLE: MissReason
MISS_REASON_UNCACHEABLE: MissReason
MISS_REASON_CORRUPT: MissReason
MISS_REASON_RACED: MissReason
MISS_REASON_EXPIRED: MissReason
MISS_REASON_UNKNOWN_NAMESPACE: MissReason
MISS_REASON_OVERLOADED: MissReason
MISS_REASON_L3_UNAVAILABLE: MissReason
MISS_REASON_NO_ROOM: MissReason
MISS_REASON_COMPUTE_IS_FASTER: MissReason
PUT_STATUS_STORED: PutStatus
PUT_STATUS_KNOWN: PutStatus
PUT_STATUS_REFUSED: PutStatus
REFUSE_REASON_NONE: RefuseReason
REFUSE_REASON_FULL: RefuseReason
REFUSE_REASON_TOO_LARGE: RefuseReason
REFUSE_REASON_PARENT_ABSENT: RefuseReason
REFUSE_REASON_STAMP_FOREIGN: RefuseReason
REFUSE_REASON_INVALIDATED: RefuseReason
REFUSE_REASON_CLOSED: RefuseReason
REFUSE_REASON_UNREACHABLE: RefuseReason
REFUSE_REASON_DEADLINE: RefuseReason
REFUSE_REASON_BUSY: RefuseReason
REFUSE_REASON_UNCACHEABLE: RefuseReason
REFUSE_REASON_QUOTA: RefuseReason
REFUSE_REASON_EXPIRED: RefuseReason
REFUSE_REASON_CORRUPT: RefuseReason
REFUSE_REASON_UNKNOWN_NAMESPACE: RefuseReason
REFUSE_REASON_OVERLOADED: RefuseReason
REFUSE_REASON_UNLISTED: RefuseReason
LOAD_CHOICE_UNPRICED: LoadChoice
LOAD_CHOICE_LOAD: LoadChoice
LOAD_CHOICE_COMPUTE: LoadChoice
LOAD_CHOICE_TRIAL: LoadChoice
LOAD_CHOICE_STOPPED: LoadChoice

class Stamp(_message.Message):
    __slots__ = ("incarnation", "revision")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    incarnation: bytes
    revision: int
    def __init__(self, incarnation: _Optional[bytes] = ..., revision: _Optional[int] = ...) -> None: ...

class RegisterNamespaceRequest(_message.Message):
    __slots__ = ("canonical", "page_bytes")
    CANONICAL_FIELD_NUMBER: _ClassVar[int]
    PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    canonical: bytes
    page_bytes: int
    def __init__(self, canonical: _Optional[bytes] = ..., page_bytes: _Optional[int] = ...) -> None: ...

class RegisterNamespaceResponse(_message.Message):
    __slots__ = ("namespace_id", "life", "stamp")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    life: bytes
    stamp: Stamp
    def __init__(self, namespace_id: _Optional[bytes] = ..., life: _Optional[bytes] = ..., stamp: _Optional[_Union[Stamp, _Mapping]] = ...) -> None: ...

class Chain(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    def __init__(self, keys: _Optional[bytes] = ...) -> None: ...

class ComputeCost(_message.Message):
    __slots__ = ("first_s", "growth_s")
    FIRST_S_FIELD_NUMBER: _ClassVar[int]
    GROWTH_S_FIELD_NUMBER: _ClassVar[int]
    first_s: float
    growth_s: float
    def __init__(self, first_s: _Optional[float] = ..., growth_s: _Optional[float] = ...) -> None: ...

class LoadDecision(_message.Message):
    __slots__ = ("choice", "pages", "pages_chosen", "load_s", "compute_s")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    PAGES_CHOSEN_FIELD_NUMBER: _ClassVar[int]
    LOAD_S_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    choice: LoadChoice
    pages: int
    pages_chosen: int
    load_s: float
    compute_s: float
    def __init__(self, choice: _Optional[_Union[LoadChoice, str]] = ..., pages: _Optional[int] = ..., pages_chosen: _Optional[int] = ..., load_s: _Optional[float] = ..., compute_s: _Optional[float] = ...) -> None: ...

class LookUpRequest(_message.Message):
    __slots__ = ("namespace_id", "rows", "prefetch", "compute")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    rows: _containers.RepeatedCompositeFieldContainer[Chain]
    prefetch: bool
    compute: ComputeCost
    def __init__(self, namespace_id: _Optional[bytes] = ..., rows: _Optional[_Iterable[_Union[Chain, _Mapping]]] = ..., prefetch: _Optional[bool] = ..., compute: _Optional[_Union[ComputeCost, _Mapping]] = ...) -> None: ...

class TierPages(_message.Message):
    __slots__ = ("tier", "pages")
    TIER_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    tier: Tier
    pages: int
    def __init__(self, tier: _Optional[_Union[Tier, str]] = ..., pages: _Optional[int] = ...) -> None: ...

class RowOutcome(_message.Message):
    __slots__ = ("pages", "tiers", "ended_by", "pending_pages")
    PAGES_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    ENDED_BY_FIELD_NUMBER: _ClassVar[int]
    PENDING_PAGES_FIELD_NUMBER: _ClassVar[int]
    pages: int
    tiers: _containers.RepeatedCompositeFieldContainer[TierPages]
    ended_by: MissReason
    pending_pages: int
    def __init__(self, pages: _Optional[int] = ..., tiers: _Optional[_Iterable[_Union[TierPages, _Mapping]]] = ..., ended_by: _Optional[_Union[MissReason, str]] = ..., pending_pages: _Optional[int] = ...) -> None: ...

class LookUpResponse(_message.Message):
    __slots__ = ("rows", "stamp")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[RowOutcome]
    stamp: Stamp
    def __init__(self, rows: _Optional[_Iterable[_Union[RowOutcome, _Mapping]]] = ..., stamp: _Optional[_Union[Stamp, _Mapping]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("namespace_id", "chain", "start", "chunk_bytes", "compute")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    chain: Chain
    start: int
    chunk_bytes: int
    compute: ComputeCost
    def __init__(self, namespace_id: _Optional[bytes] = ..., chain: _Optional[_Union[Chain, _Mapping]] = ..., start: _Optional[int] = ..., chunk_bytes: _Optional[int] = ..., compute: _Optional[_Union[ComputeCost, _Mapping]] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("header", "chunks", "trailer")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    TRAILER_FIELD_NUMBER: _ClassVar[int]
    header: GetHeader
    chunks: _containers.RepeatedCompositeFieldContainer[PageChunk]
    trailer: GetTrailer
    def __init__(self, header: _Optional[_Union[GetHeader, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[PageChunk, _Mapping]]] = ..., trailer: _Optional[_Union[GetTrailer, _Mapping]] = ...) -> None: ...

class GetHeader(_message.Message):
    __slots__ = ("pages", "page_bytes", "ended_by", "stamp", "pages_l3", "load")
    PAGES_FIELD_NUMBER: _ClassVar[int]
    PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENDED_BY_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    PAGES_L3_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    pages: int
    page_bytes: int
    ended_by: MissReason
    stamp: Stamp
    pages_l3: int
    load: LoadDecision
    def __init__(self, pages: _Optional[int] = ..., page_bytes: _Optional[int] = ..., ended_by: _Optional[_Union[MissReason, str]] = ..., stamp: _Optional[_Union[Stamp, _Mapping]] = ..., pages_l3: _Optional[int] = ..., load: _Optional[_Union[LoadDecision, _Mapping]] = ...) -> None: ...

class PageChunk(_message.Message):
    __slots__ = ("page", "offset", "data", "checksum")
    PAGE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    page: int
    offset: int
    data: bytes
    checksum: int
    def __init__(self, page: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., checksum: _Optional[int] = ...) -> None: ...

class GetTrailer(_message.Message):
    __slots__ = ("pages", "ended_by", "instance")
    PAGES_FIELD_NUMBER: _ClassVar[int]
    ENDED_BY_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    pages: int
    ended_by: MissReason
    instance: int
    def __init__(self, pages: _Optional[int] = ..., ended_by: _Optional[_Union[MissReason, str]] = ..., instance: _Optional[int] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("header", "chunks")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    header: PutHeader
    chunks: _containers.RepeatedCompositeFieldContainer[PageChunk]
    def __init__(self, header: _Optional[_Union[PutHeader, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[PageChunk, _Mapping]]] = ...) -> None: ...

class PutHeader(_message.Message):
    __slots__ = ("namespace_id", "chain", "start", "stamp", "ttl_s", "producer", "tags", "computed_from_ms", "computed_until_ms", "rests_on")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FROM_MS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    RESTS_ON_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    chain: Chain
    start: int
    stamp: Stamp
    ttl_s: int
    producer: bytes
    tags: _containers.RepeatedScalarFieldContainer[bytes]
    computed_from_ms: int
    computed_until_ms: int
    rests_on: int
    def __init__(self, namespace_id: _Optional[bytes] = ..., chain: _Optional[_Union[Chain, _Mapping]] = ..., start: _Optional[int] = ..., stamp: _Optional[_Union[Stamp, _Mapping]] = ..., ttl_s: _Optional[int] = ..., producer: _Optional[bytes] = ..., tags: _Optional[_Iterable[bytes]] = ..., computed_from_ms: _Optional[int] = ..., computed_until_ms: _Optional[int] = ..., rests_on: _Optional[int] = ...) -> None: ...

class PutOutcome(_message.Message):
    __slots__ = ("status", "reason")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    status: PutStatus
    reason: RefuseReason
    def __init__(self, status: _Optional[_Union[PutStatus, str]] = ..., reason: _Optional[_Union[RefuseReason, str]] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("pages",)
    PAGES_FIELD_NUMBER: _ClassVar[int]
    pages: _containers.RepeatedCompositeFieldContainer[PutOutcome]
    def __init__(self, pages: _Optional[_Iterable[_Union[PutOutcome, _Mapping]]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NamespaceStatus(_message.Message):
    __slots__ = ("namespace_id", "model", "page_bytes", "page_tokens", "resident_pages", "resident_bytes", "requested_pages", "l1_pages", "l2_pages", "l3_pages", "missed_pages")
    class MissedPagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_PAGES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_PAGES_FIELD_NUMBER: _ClassVar[int]
    L1_PAGES_FIELD_NUMBER: _ClassVar[int]
    L2_PAGES_FIELD_NUMBER: _ClassVar[int]
    L3_PAGES_FIELD_NUMBER: _ClassVar[int]
    MISSED_PAGES_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    model: str
    page_bytes: int
    page_tokens: int
    resident_pages: int
    resident_bytes: int
    requested_pages: int
    l1_pages: int
    l2_pages: int
    l3_pages: int
    missed_pages: _containers.ScalarMap[str, int]
    def __init__(self, namespace_id: _Optional[bytes] = ..., model: _Optional[str] = ..., page_bytes: _Optional[int] = ..., page_tokens: _Optional[int] = ..., resident_pages: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., requested_pages: _Optional[int] = ..., l1_pages: _Optional[int] = ..., l2_pages: _Optional[int] = ..., l3_pages: _Optional[int] = ..., missed_pages: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ClientStatus(_message.Message):
    __slots__ = ("row", "pid", "state", "leases", "leased_bytes", "reservations", "name", "oldest_view", "oldest_hidden_view", "prefill_tokens_per_s", "copy_latency_s", "copy_bytes_per_s")
    ROW_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    LEASED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OLDEST_VIEW_FIELD_NUMBER: _ClassVar[int]
    OLDEST_HIDDEN_VIEW_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    COPY_LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    COPY_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    row: int
    pid: int
    state: str
    leases: int
    leased_bytes: int
    reservations: int
    name: str
    oldest_view: int
    oldest_hidden_view: int
    prefill_tokens_per_s: float
    copy_latency_s: float
    copy_bytes_per_s: float
    def __init__(self, row: _Optional[int] = ..., pid: _Optional[int] = ..., state: _Optional[str] = ..., leases: _Optional[int] = ..., leased_bytes: _Optional[int] = ..., reservations: _Optional[int] = ..., name: _Optional[str] = ..., oldest_view: _Optional[int] = ..., oldest_hidden_view: _Optional[int] = ..., prefill_tokens_per_s: _Optional[float] = ..., copy_latency_s: _Optional[float] = ..., copy_bytes_per_s: _Optional[float] = ...) -> None: ...

class LogStatus(_message.Message):
    __slots__ = ("fleet", "kind", "address", "phase", "reason", "member", "incarnation", "tip", "applied", "acknowledged", "drained", "confirmed_ms_ago", "held_by", "sizes", "settled", "why_local", "server", "server_errors", "server_warnings", "draining_held_by")
    class SizesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    FLEET_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TIP_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_MS_AGO_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    WHY_LOCAL_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    SERVER_ERRORS_FIELD_NUMBER: _ClassVar[int]
    SERVER_WARNINGS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_HELD_BY_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    kind: str
    address: str
    phase: str
    reason: str
    member: bytes
    incarnation: bytes
    tip: int
    applied: int
    acknowledged: int
    drained: int
    confirmed_ms_ago: int
    held_by: _containers.RepeatedScalarFieldContainer[str]
    sizes: _containers.ScalarMap[str, int]
    settled: bool
    why_local: str
    server: str
    server_errors: _containers.RepeatedScalarFieldContainer[str]
    server_warnings: _containers.RepeatedScalarFieldContainer[str]
    draining_held_by: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, fleet: _Optional[str] = ..., kind: _Optional[str] = ..., address: _Optional[str] = ..., phase: _Optional[str] = ..., reason: _Optional[str] = ..., member: _Optional[bytes] = ..., incarnation: _Optional[bytes] = ..., tip: _Optional[int] = ..., applied: _Optional[int] = ..., acknowledged: _Optional[int] = ..., drained: _Optional[int] = ..., confirmed_ms_ago: _Optional[int] = ..., held_by: _Optional[_Iterable[str]] = ..., sizes: _Optional[_Mapping[str, int]] = ..., settled: _Optional[bool] = ..., why_local: _Optional[str] = ..., server: _Optional[str] = ..., server_errors: _Optional[_Iterable[str]] = ..., server_warnings: _Optional[_Iterable[str]] = ..., draining_held_by: _Optional[_Iterable[str]] = ...) -> None: ...

class L3ServerStatus(_message.Message):
    __slots__ = ("server", "breaker", "connections", "last_error", "writes", "refused", "last_error_ms_ago")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    BREAKER_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_MS_AGO_FIELD_NUMBER: _ClassVar[int]
    server: str
    breaker: str
    connections: int
    last_error: str
    writes: str
    refused: _containers.RepeatedScalarFieldContainer[str]
    last_error_ms_ago: int
    def __init__(self, server: _Optional[str] = ..., breaker: _Optional[str] = ..., connections: _Optional[int] = ..., last_error: _Optional[str] = ..., writes: _Optional[str] = ..., refused: _Optional[_Iterable[str]] = ..., last_error_ms_ago: _Optional[int] = ...) -> None: ...

class L3Status(_message.Message):
    __slots__ = ("why_off", "kind", "servers", "trouble", "loads", "stores", "records", "choices")
    class LoadsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class StoresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class RecordsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ChoicesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WHY_OFF_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    why_off: str
    kind: str
    servers: _containers.RepeatedCompositeFieldContainer[L3ServerStatus]
    trouble: str
    loads: _containers.ScalarMap[str, int]
    stores: _containers.ScalarMap[str, int]
    records: _containers.ScalarMap[str, int]
    choices: _containers.ScalarMap[str, float]
    def __init__(self, why_off: _Optional[str] = ..., kind: _Optional[str] = ..., servers: _Optional[_Iterable[_Union[L3ServerStatus, _Mapping]]] = ..., trouble: _Optional[str] = ..., loads: _Optional[_Mapping[str, int]] = ..., stores: _Optional[_Mapping[str, int]] = ..., records: _Optional[_Mapping[str, int]] = ..., choices: _Optional[_Mapping[str, float]] = ...) -> None: ...

class MemoryStatus(_message.Message):
    __slots__ = ("huge_pages_asked", "huge_pages", "huge_page_bytes", "mapped_bytes", "huge_pages_note", "placement", "placement_note")
    HUGE_PAGES_ASKED_FIELD_NUMBER: _ClassVar[int]
    HUGE_PAGES_FIELD_NUMBER: _ClassVar[int]
    HUGE_PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HUGE_PAGES_NOTE_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_NOTE_FIELD_NUMBER: _ClassVar[int]
    huge_pages_asked: str
    huge_pages: str
    huge_page_bytes: int
    mapped_bytes: int
    huge_pages_note: str
    placement: str
    placement_note: str
    def __init__(self, huge_pages_asked: _Optional[str] = ..., huge_pages: _Optional[str] = ..., huge_page_bytes: _Optional[int] = ..., mapped_bytes: _Optional[int] = ..., huge_pages_note: _Optional[str] = ..., placement: _Optional[str] = ..., placement_note: _Optional[str] = ...) -> None: ...

class TenantStatus(_message.Message):
    __slots__ = ("tenant", "share_bytes", "used_bytes", "evictions_own", "evictions_caused", "evictions_suffered")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SHARE_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_OWN_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_CAUSED_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_SUFFERED_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    share_bytes: int
    used_bytes: int
    evictions_own: int
    evictions_caused: int
    evictions_suffered: int
    def __init__(self, tenant: _Optional[str] = ..., share_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., evictions_own: _Optional[int] = ..., evictions_caused: _Optional[int] = ..., evictions_suffered: _Optional[int] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("version", "life", "pid", "uptime_s", "serving", "stamp", "view", "arena_bytes", "arena", "namespaces", "clients", "attach_path", "grpc_addresses", "metrics_address", "freshness_remaining_ms", "attach", "runtime_dir", "log", "weights_versions", "l3", "memory", "tenants", "pins")
    class ArenaEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class AttachEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class WeightsVersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class PinsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    ARENA_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    ATTACH_PATH_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FRESHNESS_REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_DIR_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    L3_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    version: str
    life: bytes
    pid: int
    uptime_s: float
    serving: bool
    stamp: Stamp
    view: int
    arena_bytes: int
    arena: _containers.ScalarMap[str, int]
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceStatus]
    clients: _containers.RepeatedCompositeFieldContainer[ClientStatus]
    attach_path: str
    grpc_addresses: _containers.RepeatedScalarFieldContainer[str]
    metrics_address: str
    freshness_remaining_ms: int
    attach: _containers.ScalarMap[str, int]
    runtime_dir: str
    log: LogStatus
    weights_versions: _containers.ScalarMap[str, str]
    l3: L3Status
    memory: MemoryStatus
    tenants: _containers.RepeatedCompositeFieldContainer[TenantStatus]
    pins: _containers.ScalarMap[str, int]
    def __init__(self, version: _Optional[str] = ..., life: _Optional[bytes] = ..., pid: _Optional[int] = ..., uptime_s: _Optional[float] = ..., serving: _Optional[bool] = ..., stamp: _Optional[_Union[Stamp, _Mapping]] = ..., view: _Optional[int] = ..., arena_bytes: _Optional[int] = ..., arena: _Optional[_Mapping[str, int]] = ..., namespaces: _Optional[_Iterable[_Union[NamespaceStatus, _Mapping]]] = ..., clients: _Optional[_Iterable[_Union[ClientStatus, _Mapping]]] = ..., attach_path: _Optional[str] = ..., grpc_addresses: _Optional[_Iterable[str]] = ..., metrics_address: _Optional[str] = ..., freshness_remaining_ms: _Optional[int] = ..., attach: _Optional[_Mapping[str, int]] = ..., runtime_dir: _Optional[str] = ..., log: _Optional[_Union[LogStatus, _Mapping]] = ..., weights_versions: _Optional[_Mapping[str, str]] = ..., l3: _Optional[_Union[L3Status, _Mapping]] = ..., memory: _Optional[_Union[MemoryStatus, _Mapping]] = ..., tenants: _Optional[_Iterable[_Union[TenantStatus, _Mapping]]] = ..., pins: _Optional[_Mapping[str, int]] = ...) -> None: ...
