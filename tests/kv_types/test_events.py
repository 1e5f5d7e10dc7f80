"""Events: each kind survives the ring, and what is not understood is an error rather than a guess."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_types.errors import InvalidArgumentError, ProtocolError
from kv_types.events import (
    EVENT_PAGES_MAX,
    Event,
    EventKind,
    EverythingHidden,
    LogStarted,
    NamespaceHidden,
    PagesHidden,
    decode_event,
    encode_event,
    pages_hidden,
)
from kv_types.ids import NamespaceId, PageKey
from kv_types.limits import EVENT_PAYLOAD_BYTES_MAX

KEYS = st.binary(min_size=32, max_size=32)
EVENTS = st.one_of(
    st.just(LogStarted()),
    st.just(EverythingHidden()),
    KEYS.map(lambda value: NamespaceHidden(NamespaceId(value))),
    st.lists(KEYS.map(PageKey), min_size=1, max_size=EVENT_PAGES_MAX).map(
        lambda keys: PagesHidden(tuple(keys))
    ),
)


@given(event=EVENTS)
def test_every_event_round_trips_within_a_ring_record(event: Event) -> None:
    kind, payload = encode_event(event)
    assert len(payload) <= EVENT_PAYLOAD_BYTES_MAX
    assert decode_event(int(kind), payload) == event


@given(kind=st.integers(0, 2**32 - 1), payload=st.binary(max_size=EVENT_PAYLOAD_BYTES_MAX + 40))
def test_bytes_that_no_encoder_wrote_are_refused(kind: int, payload: bytes) -> None:
    try:
        event = decode_event(kind, payload)
    except ProtocolError:
        return
    assert encode_event(event) == (kind, payload)


@pytest.mark.parametrize("count", [0, EVENT_PAGES_MAX + 1])
def test_an_event_of_no_or_too_many_pages_is_not_encoded(count: int) -> None:
    with pytest.raises(InvalidArgumentError, match="split"):
        encode_event(PagesHidden(tuple(PageKey(os.urandom(32)) for _ in range(count))))


@pytest.mark.parametrize("count", [0, 1, EVENT_PAGES_MAX, EVENT_PAGES_MAX + 1, 5 * EVENT_PAGES_MAX])
def test_splitting_loses_and_reorders_nothing(count: int) -> None:
    packed = os.urandom(32 * count)
    events = list(pages_hidden(packed))
    assert b"".join(encode_event(event)[1] for event in events) == packed


def test_kinds_keep_their_numbers() -> None:
    assert {kind.name: kind.value for kind in EventKind} == {
        "LOG_STARTED": 1, "EVERYTHING": 2, "NAMESPACE": 3, "PAGES": 4,
    }  # fmt: skip
