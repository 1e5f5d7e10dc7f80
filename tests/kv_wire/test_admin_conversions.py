"""Selectors and records cross the wire as themselves; what does not mean one exactly is refused, whatever it is."""

from __future__ import annotations

import os

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from kv_types import limits
from kv_types.errors import (
    InvalidArgumentError,
    InvalidIdentifierError,
    LimitExceededError,
    ProtocolError,
    StrataError,
)
from kv_types.events import LogStarted, Selected, WeightsAnnounced
from kv_types.ids import NamespaceId, PageKey, Stamp, new_log_incarnation
from kv_types.selectors import EVERYTHING, Selector
from kv_wire.admin_conversions import (
    identifier_from_wire,
    identifiers_from_wire,
    record_from_wire,
    record_to_wire,
    selector_from_wire,
    selector_to_wire,
    selectors_from_wire,
)
from kv_wire.gen import admin_pb2
from tests.support.daemon import ROOT

_NAMES = st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
_MAY_BE_EMPTY = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_BYTES = st.none() | st.binary(min_size=1, max_size=64)
_IDS = st.none() | st.binary(min_size=32, max_size=32)
_SINCE, _UNTIL = st.none() | st.integers(0, 1 << 40), st.none() | st.integers(1 << 40, (1 << 64) - 1)
SELECTORS = st.builds(
    Selector,
    namespace=_IDS.map(lambda value: value and NamespaceId(value)),
    model=_NAMES,
    weights_version=_NAMES,
    adapter=_MAY_BE_EMPTY,
    tenant=_MAY_BE_EMPTY,
    key=_IDS.map(lambda value: value and PageKey(value)),
    producer=_BYTES,
    tag=_BYTES,
    since_ms=_SINCE,
    until_ms=_UNTIL,
    since_revision=_SINCE,
    until_revision=_UNTIL,
    other_weights_than=_NAMES,
)


@given(SELECTORS)
def test_selectors_come_back(selector: Selector) -> None:
    wire = selector_to_wire(selector).SerializeToString()
    assert selector_from_wire(admin_pb2.Selector.FromString(wire)) == selector


def test_a_field_that_is_empty_is_not_one_that_is_absent() -> None:
    """ "Without an adapter" and "whatever the adapter" must never be taken for each other."""
    assert selector_from_wire(admin_pb2.Selector(adapter="")) == Selector(adapter="")
    assert selector_from_wire(admin_pb2.Selector()) == EVERYTHING
    assert selector_from_wire(admin_pb2.Selector(since_ms=0)) == Selector(since_ms=0)


@pytest.mark.parametrize(
    "message",
    [
        admin_pb2.Selector(namespace_id=b"short"),
        admin_pb2.Selector(namespace_id=b""),
        admin_pb2.Selector(key=bytes(31)),
        admin_pb2.Selector(model=""),
        admin_pb2.Selector(weights_version=""),
        admin_pb2.Selector(other_weights_than=""),
        admin_pb2.Selector(producer=b""),
        admin_pb2.Selector(tag=bytes(limits.TAG_BYTES_MAX + 1)),
        admin_pb2.Selector(model="m" * (limits.NAME_BYTES_MAX + 1)),
        admin_pb2.Selector(since_ms=2, until_ms=1),
        admin_pb2.Selector(since_revision=2, until_revision=1),
        admin_pb2.Selector(
            model="m" * 1024, weights_version="v" * 1024, adapter="a" * 1024, tenant="t" * 1024
        ),
    ],
    ids=lambda message: str(message)[:30].strip(),
)
def test_what_is_no_selector_is_the_callers_mistake(message: admin_pb2.Selector) -> None:
    with pytest.raises(InvalidArgumentError):
        selector_from_wire(message)


def test_a_condition_of_a_later_version_is_refused_for_without_it_more_would_go() -> None:
    wire = admin_pb2.Selector(model="m").SerializeToString() + b"\x98\x06\x01"  # field 99
    with pytest.raises(ProtocolError, match="upgrade"):
        selector_from_wire(admin_pb2.Selector.FromString(wire))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_selector_or_an_error_of_ours(data: bytes) -> None:
    try:
        message = admin_pb2.Selector.FromString(data)
    except DecodeError:
        return
    try:
        selector = selector_from_wire(message)
    except StrataError:
        return
    assert selector_from_wire(selector_to_wire(selector)) == selector


@pytest.mark.parametrize("count", [0, limits.INVALIDATE_SELECTORS_MAX + 1])
def test_a_call_names_something_and_not_too_much(count: int) -> None:
    with pytest.raises(LimitExceededError, match=f"got {count}"):
        selectors_from_wire([admin_pb2.Selector()] * count)
    assert selectors_from_wire([admin_pb2.Selector(model="m")]) == [Selector(model="m")]


@pytest.mark.parametrize("size", [0, 15, 17])
def test_ids_have_their_size(size: int) -> None:
    with pytest.raises(InvalidIdentifierError, match=f"got {size}"):
        identifier_from_wire(bytes(size), "member id")


def test_ids_come_once_and_are_bounded() -> None:
    one, two = os.urandom(16), os.urandom(16)
    assert identifiers_from_wire([one, two, one], "member id") == [one, two]
    with pytest.raises(LimitExceededError):
        identifiers_from_wire(
            [number.to_bytes(16, "big") for number in range(limits.FLEET_MEMBERS_MAX + 1)], "member id"
        )


@pytest.mark.parametrize(
    "event", [Selected(EVERYTHING), Selected(Selector(tag=b"t")), WeightsAnnounced("m", "2")]
)
def test_records_come_back(event: Selected | WeightsAnnounced) -> None:
    stamp = Stamp(new_log_incarnation(), 7)
    wire = record_to_wire(stamp, event, reason="r", author="a", appended_wall_ms=9).SerializeToString()
    message = admin_pb2.LogRecord.FromString(wire)
    assert record_from_wire(message) == (stamp, event)
    assert (message.reason, message.author, message.appended_wall_ms) == ("r", "a", 9)


def test_a_record_that_says_nothing_is_none() -> None:
    with pytest.raises(ProtocolError, match="nothing"):
        record_from_wire(admin_pb2.LogRecord(stamp={"incarnation": bytes(16)}))
    with pytest.raises(AssertionError):
        record_to_wire(
            Stamp(new_log_incarnation(), 1), LogStarted(), reason="", author="", appended_wall_ms=0
        )


def test_the_schema_tells_the_limits_that_there_are() -> None:
    text = (ROOT / "proto" / "stratakv" / "v1" / "admin.proto").read_text(encoding="utf-8")
    assert text.count(f"1 to {limits.INVALIDATE_SELECTORS_MAX:,}") == 2
    assert f"at most {limits.INSPECT_PAGES_MAX:,} come in one answer" in text
    assert text.count(f"at most {limits.MEMBERS_LISTED_MAX}") == 2
    assert limits.CALL_S_MAX == limits.LOG_FOLLOW_S_MAX == 3600, "an hour"
    assert f"0: {limits.FENCE_S_DEFAULT:g} s" in text
