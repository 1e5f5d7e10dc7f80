"""Messages of the attach protocol, any that its encoder writes, for tests that draw them."""

from __future__ import annotations

from hypothesis import strategies as st

from cache_l2.attach_messages import (
    Abort,
    CancelLoad,
    ChainToLoad,
    ClientMessage,
    Commit,
    CommittedPages,
    Detach,
    Done,
    Failed,
    Hello,
    Load,
    LoadedPages,
    LoadedRow,
    Looked,
    Ping,
    Pong,
    Refused,
    Register,
    Registered,
    Reserve,
    ReservedPages,
    Role,
    SidecarMessage,
    Speeds,
    Unregister,
    Welcome,
)
from kv_types.ids import LifeId, LogIncarnation, NamespaceId, PageKey, Stamp
from kv_types.limits import (
    ATTACHMENTS_GONE_MAX,
    COMPUTE_PAGE_S_MAX,
    LOAD_ROWS_MAX,
    TAG_BYTES_MAX,
    TAGS_PER_RECORD_MAX,
)
from kv_types.loading import ComputeCost, LoadChoice, LoadDecision
from kv_types.validity import EngineMode

U8 = st.integers(0, 2**8 - 1)
U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
KEY = st.binary(min_size=32, max_size=32)
IDS = st.lists(U64, max_size=40).map(tuple)
NAMES = st.text(max_size=16)
STAMPS = st.builds(Stamp, st.binary(min_size=16, max_size=16).map(LogIncarnation), U64)


@st.composite
def reserved_pages(draw: st.DrawFn) -> ReservedPages:
    ids = draw(IDS)
    count = len(ids)
    return ReservedPages(
        draw(st.binary(min_size=count, max_size=count)), draw(st.binary(min_size=count, max_size=count)),
        ids, draw(st.lists(U64, min_size=count, max_size=count).map(tuple)),
    )  # fmt: skip


@st.composite
def committed_pages(draw: st.DrawFn) -> CommittedPages:
    count = draw(st.integers(0, 40))
    return CommittedPages(*(draw(st.binary(min_size=count, max_size=count)) for _ in range(2)))


CHAINS_TO_LOAD = st.builds(
    ChainToLoad, namespace_number=U32, parent=st.none() | KEY.map(PageKey),
    keys=st.lists(KEY, max_size=10).map(b"".join),
)  # fmt: skip
TIMES = st.floats(0.0, 1e9, allow_nan=False)
PAGE_TIMES = st.floats(0.0, COMPUTE_PAGE_S_MAX)
RATES = st.floats(min_value=0.0, allow_nan=False, allow_infinity=False)
COSTS = st.builds(ComputeCost, PAGE_TIMES.filter(lambda first_s: first_s > 0.0), PAGE_TIMES)
DECISIONS = st.tuples(st.sampled_from(LoadChoice), U32, U32, TIMES, TIMES).map(
    lambda told: LoadDecision(told[0], max(told[1:3]), min(told[1:3]), *told[3:])
)
CLIENT_MESSAGES: st.SearchStrategy[ClientMessage] = st.one_of(
    st.builds(
        Hello, version_min=U16, version_max=U16, layout_version=U32, role=st.sampled_from(Role),
        time_namespace=U64, boot_now_ns=U64, name=NAMES,
        gone=st.lists(U64, max_size=ATTACHMENTS_GONE_MAX).map(tuple), engine=st.sampled_from(EngineMode),
    ),
    st.builds(Register, st.binary(max_size=200), U32),
    st.builds(Unregister, U32),
    st.builds(
        Reserve, namespace_number=U32, parent=st.none() | KEY.map(PageKey),
        keys=st.lists(KEY, max_size=20).map(b"".join), ttl_s=st.none() | st.integers(0, 2**63 - 1),
    ),
    st.builds(
        Commit, reservations=IDS, stamp=STAMPS, producer=st.binary(max_size=64),
        tags=st.lists(st.binary(max_size=TAG_BYTES_MAX), max_size=TAGS_PER_RECORD_MAX).map(tuple),
        computed_from_ms=U64, computed_until_ms=U64, rests_on=U64,
    ),
    st.builds(Abort, IDS),
    st.builds(Load, st.lists(CHAINS_TO_LOAD, max_size=8).map(tuple), U32, st.booleans(), st.none() | COSTS),
    st.builds(CancelLoad, U32),
    st.builds(Looked, U32, st.lists(st.binary(min_size=8, max_size=8), max_size=20).map(b"".join), U32),
    st.builds(Speeds, RATES, RATES, RATES),
    st.just(Detach()),
    st.just(Ping()),
)  # fmt: skip
SIDECAR_MESSAGES: st.SearchStrategy[SidecarMessage] = st.one_of(
    st.builds(
        Welcome, version=U16, layout_version=U32, row=U32, life=st.binary(min_size=16, max_size=16).map(LifeId),
        control_bytes=U64, clients_bytes=U64, data_bytes=U64, batch_pages_max=U32, reservation_ms=U32,
        time_namespace=U64, boot_now_ns=U64, attachment=U64, has_l3=st.booleans(),
    ),
    st.builds(Refused, U16, st.text(max_size=100)),
    st.builds(Registered, namespace=KEY.map(NamespaceId), number=U32, counter=U32, page_bytes=U32),
    reserved_pages(),
    committed_pages(),
    st.builds(
        LoadedPages, st.lists(st.builds(LoadedRow, U16, U16, U8, U16), max_size=LOAD_ROWS_MAX).map(tuple),
        st.none() | DECISIONS,
    ),
    st.just(Done()),
    st.builds(Pong, U64),
    st.builds(Failed, NAMES, st.text(max_size=100)),
)  # fmt: skip
