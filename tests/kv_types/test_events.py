"""Events: each kind survives the ring, and what is not understood is an error rather than a guess."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_types.errors import InvalidArgumentError, ProtocolError
from kv_types.events import (
    Event,
    EventKind,
    LogStarted,
    Selected,
    WeightsAnnounced,
    decode_event,
    encode_event,
)
from kv_types.limits import EVENT_PAYLOAD_BYTES_MAX, NAME_BYTES_MAX
from kv_types.selectors import EVERYTHING, Selector
from tests.kv_types.selector_samples import NAMES, SELECTORS

ROOM = EVENT_PAYLOAD_BYTES_MAX - 4
"""Bytes that model and version may have together: the ring's, less two lengths of two bytes."""

SHORT_NAMES = NAMES.filter(lambda name: len(name.encode()) <= ROOM // 2)
EVENTS = st.one_of(
    st.just(LogStarted()),
    SELECTORS.map(Selected),
    st.builds(WeightsAnnounced, model=SHORT_NAMES, version=SHORT_NAMES),
)


@given(event=EVENTS)
def test_every_event_round_trips_within_a_ring_record(event: Event) -> None:
    kind, payload = encode_event(event)
    assert len(payload) <= EVENT_PAYLOAD_BYTES_MAX
    told = decode_event(int(kind), payload)
    if isinstance(event, Selected) and len(event.selector.encode()) > EVENT_PAYLOAD_BYTES_MAX:
        assert told == Selected(EVERYTHING), "more than it selects, never less"
    else:
        assert told == event


@pytest.mark.parametrize("model_bytes", [420, 421, 422, 423, NAME_BYTES_MAX])
def test_a_selector_too_long_for_the_ring_is_told_as_everything(model_bytes: int) -> None:
    selector = Selector(model="m" * model_bytes, tenant="tttt")
    fits = len(selector.encode()) <= EVENT_PAYLOAD_BYTES_MAX
    assert fits == (model_bytes + 4 + 2 * 3 <= EVENT_PAYLOAD_BYTES_MAX)
    assert decode_event(*encode_event(Selected(selector))) == Selected(selector if fits else EVERYTHING)


@given(kind=st.integers(0, 2**32 - 1), payload=st.binary(max_size=EVENT_PAYLOAD_BYTES_MAX + 40))
def test_bytes_that_no_encoder_wrote_are_refused(kind: int, payload: bytes) -> None:
    try:
        event = decode_event(kind, payload)
    except ProtocolError:
        return
    assert encode_event(event) == (kind, payload)


@given(event=EVENTS, data=st.data())
def test_damaged_payloads_are_refused_or_mean_something_else(event: Event, data: st.DataObject) -> None:
    kind, payload = encode_event(event)
    cut = payload[: data.draw(st.integers(0, len(payload)))] + data.draw(st.binary(max_size=3))
    try:
        told = decode_event(int(kind), cut)
    except ProtocolError:
        return
    assert encode_event(told) == (kind, cut)


@pytest.mark.parametrize(
    ("model", "version"),
    [("", "1"), ("m", ""), ("m" * ROOM, "1"), ("é" * (ROOM // 2), "1"), ("m", "\ud800")],
)
def test_weights_that_nobody_could_be_told_of_are_no_announcement(model: str, version: str) -> None:
    with pytest.raises(InvalidArgumentError):
        WeightsAnnounced(model, version)


def test_the_longest_names_can_be_announced_whatever_they_contain() -> None:
    for event in (
        WeightsAnnounced("m" * (ROOM - 1), "1"),
        WeightsAnnounced("a\0b", "\0"),
        WeightsAnnounced("ü", "1.0"),
    ):
        assert decode_event(*encode_event(event)) == event


def test_an_end_within_a_letter_is_refused() -> None:
    with pytest.raises(ProtocolError, match="announce no weights"):
        decode_event(EventKind.WEIGHTS, b"\x01\x00\x02\x00\xc3\xa9x")


def test_kinds_keep_their_numbers() -> None:
    assert {kind.name: kind.value for kind in EventKind} == {"LOG_STARTED": 1, "SELECTED": 2, "WEIGHTS": 3}
