"""Selectors: bytes that tell exactly one selector, and matches that equal what the fields say in plain words."""

from __future__ import annotations

import struct
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_types.errors import InvalidArgumentError, LimitExceededError, ProtocolError
from kv_types.ids import NamespaceId, PageKey
from kv_types.limits import NAME_BYTES_MAX, PRODUCER_BYTES_MAX, SELECTOR_BYTES_MAX, TAG_BYTES_MAX
from kv_types.namespace import Namespace, Weights
from kv_types.selectors import EVERYTHING, Origin, Selector, may_be_same_weights
from tests.kv_types.selector_samples import (
    DIGEST,
    FEW_ORIGINS,
    FEW_SELECTORS,
    NAMES,
    SELECTORS,
    SPACES,
    UINT64_MAX,
    literally_selects,
    space,
)

SOMEWHERE = Origin(producer=b"p", tags=(b"x", b"y"), from_ms=1000, until_ms=2000, revision=7)


# --- bytes ---


@given(selector=SELECTORS)
def test_bytes_tell_the_selector(selector: Selector) -> None:
    data = selector.encode()
    assert len(data) <= SELECTOR_BYTES_MAX
    assert Selector.decode(data) == selector
    assert selector.is_everything == (data == b"")


@given(first=FEW_SELECTORS, second=FEW_SELECTORS)
def test_equal_bytes_and_equal_selectors_are_the_same(first: Selector, second: Selector) -> None:
    assert (first == second) == (first.encode() == second.encode())
    assert first != second or hash(first) == hash(second)


@given(data=st.binary(max_size=60))
def test_bytes_that_nobody_wrote_are_refused(data: bytes) -> None:
    try:
        selector = Selector.decode(data)
    except ProtocolError:
        return
    assert selector.encode() == data


@given(selector=SELECTORS, data=st.data())
def test_damaged_bytes_are_refused_or_another_selector(selector: Selector, data: st.DataObject) -> None:
    whole = bytearray(selector.encode())
    if whole:
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    damaged = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        told = Selector.decode(damaged)
    except ProtocolError:
        return
    assert told.encode() == damaged


def _field(number: int, value: bytes) -> bytes:
    return struct.pack("<BH", number, len(value)) + value


@pytest.mark.parametrize(
    "data",
    [
        _field(5, b"t") + _field(2, b"m"),
        _field(2, b"m") + _field(2, b"m"),
        _field(2, b"m") + _field(2, b"n"),
        _field(2, b""),
        _field(2, b"\xff"),
        _field(1, b"short"),
        _field(6, b"short"),
        _field(9, b"1234567"),
        _field(9, struct.pack("<Q", 5)) + _field(10, struct.pack("<Q", 4)),
        _field(99, b"a field of a later version"),
        _field(2, b"m")[:-1],
        b"\x02",
        _field(8, b"t" * (TAG_BYTES_MAX + 1)),
    ],
)
def test_what_is_not_canonical_is_no_selector(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Selector.decode(data)


def test_numbers_of_the_fields_are_the_logs_format() -> None:
    selector = Selector(
        namespace=NamespaceId(b"N" * 32), model="m", weights_version="1", adapter="", tenant="t",
        key=PageKey(b"K" * 32), producer=b"p", tag=b"x", since_ms=1, until_ms=2, since_revision=3, until_revision=4,
        other_weights_than="2",
    )  # fmt: skip
    numbers = [struct.pack("<Q", number) for number in (1, 2, 3, 4)]
    values = [b"N" * 32, b"m", b"1", b"", b"t", b"K" * 32, b"p", b"x", *numbers, b"2"]
    assert selector.encode() == b"".join(
        _field(number, value) for number, value in enumerate(values, start=1)
    )
    assert len(fields(Selector)) == len(values), "a new field needs a number, and a line here"


# --- what may be said ---


@pytest.mark.parametrize(
    "wrong",
    [
        {"namespace": b"short"}, {"key": b"short"}, {"key": "k" * 32}, {"model": ""}, {"model": b"m"},
        {"weights_version": ""}, {"other_weights_than": ""}, {"tenant": "\ud800"}, {"producer": b""}, {"tag": "x"},
        {"since_ms": -1}, {"until_ms": 1 << 64}, {"since_revision": True}, {"until_revision": 1.0},
        {"since_ms": 2, "until_ms": 1}, {"since_revision": 2, "until_revision": 1},
    ],
)  # fmt: skip
def test_a_field_of_no_meaning_is_an_error(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        Selector(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "long",
    [
        {"model": "m" * (NAME_BYTES_MAX + 1)}, {"producer": b"p" * (PRODUCER_BYTES_MAX + 1)},
        {"tag": b"x" * (TAG_BYTES_MAX + 1)},
        dict.fromkeys(("model", "weights_version", "adapter", "tenant"), "x" * NAME_BYTES_MAX),
        dict.fromkeys(("model", "other_weights_than", "adapter", "tenant"), "x" * NAME_BYTES_MAX),
    ],
)  # fmt: skip
def test_a_selector_has_bounds(long: dict[str, object]) -> None:
    with pytest.raises(LimitExceededError):
        Selector(**long)  # type: ignore[arg-type]


# --- what is matched ---


def test_everything_matches_all_there_is() -> None:
    assert EVERYTHING.is_everything
    assert all(EVERYTHING.matches_namespace(each) for each in SPACES)
    assert EVERYTHING.matches_origin(SOMEWHERE, skew_ms=0)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (Selector(model="m"), [0, 1]),
        (Selector(model="M"), []),
        (Selector(weights_version="1"), [0, 3]),
        (Selector(model="n", weights_version="1"), [3]),
        (Selector(weights_version=DIGEST.hex()), [2]),
        (Selector(weights_version=DIGEST.hex().upper()), [2]),
        (Selector(other_weights_than="1"), [1, 2]),
        (Selector(model="m", other_weights_than="2"), [0]),
        (Selector(model="m", other_weights_than="3"), [0, 1]),
        (Selector(other_weights_than=DIGEST.hex()), [0, 1, 3]),
        (Selector(other_weights_than=DIGEST.hex().upper()), [0, 1, 3]),
        (Selector(weights_version="1", other_weights_than="1"), []),
        (Selector(weights_version="1", other_weights_than="2"), [0, 3]),
        (Selector(adapter=""), [0, 1]),
        (Selector(adapter="a"), [2]),
        (Selector(tenant=""), [0, 2]),
        (Selector(tenant="t", model="m"), [1]),
        (Selector(namespace=SPACES[3].id), [3]),
        (Selector(namespace=SPACES[3].id, model="m"), []),
        (Selector(producer=b"p", key=PageKey(bytes(32))), [0, 1, 2, 3]),
    ],
    ids=lambda value: value.describe() if isinstance(value, Selector) else "",
)
def test_fields_of_the_namespace_combine(selector: Selector, expected: list[int]) -> None:
    assert [at for at, each in enumerate(SPACES) if selector.matches_namespace(each)] == expected


def test_a_version_that_looks_like_a_digest_is_taken_at_its_word() -> None:
    versioned = space("m", Weights(version=DIGEST.hex().upper()))
    assert Selector(weights_version=DIGEST.hex().upper()).matches_namespace(versioned)
    assert not Selector(weights_version=DIGEST.hex()).matches_namespace(versioned), (
        "versions keep their letters"
    )
    assert Selector(other_weights_than=DIGEST.hex()).matches_namespace(versioned)
    assert not Selector(other_weights_than=DIGEST.hex().upper()).matches_namespace(versioned)


@given(
    weights=st.sampled_from([each.weights for each in SPACES] + [Weights(version=DIGEST.hex())]),
    version=NAMES | st.sampled_from(["1", "2", DIGEST.hex(), DIGEST.hex().upper()]),
)
def test_weights_are_named_or_otherwise_named_and_never_both(weights: Weights, version: str) -> None:
    one = space("m", weights)
    named = Selector(weights_version=version).matches_namespace(one)
    assert Selector(other_weights_than=version).matches_namespace(one) is not named


@pytest.mark.parametrize(
    ("version", "other", "expected"),
    [
        ("1", "1", True), ("1", "2", False), ("a", "A", False), (DIGEST.hex(), DIGEST.hex().upper(), True),
        (DIGEST.hex().upper(), DIGEST.hex(), True), (DIGEST.hex(), DIGEST.hex()[:-1], False),
        ("\u212a" * 64, "k" * 64, False),
    ],
)  # fmt: skip
def test_two_ways_to_write_a_digest_name_the_same_weights(version: str, other: str, expected: bool) -> None:
    assert may_be_same_weights(version, other) is expected


def test_what_was_written_before_there_were_other_weights_is_read_as_ever() -> None:
    before = _field(2, b"m") + _field(3, b"1") + _field(12, struct.pack("<Q", 4))
    assert Selector.decode(before) == Selector(model="m", weights_version="1", until_revision=4)


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (Selector(producer=b"p"), True),
        (Selector(producer=b"q"), False),
        (Selector(tag=b"y"), True),
        (Selector(tag=b"z"), False),
        (Selector(tag=b"y", producer=b"q"), False),
        (Selector(since_ms=2010), True),
        (Selector(since_ms=2011), False),
        (Selector(until_ms=990), True),
        (Selector(until_ms=989), False),
        (Selector(since_ms=1500, until_ms=1600), True),
        (Selector(since_revision=7, until_revision=7), True),
        (Selector(since_revision=8), False),
        (Selector(until_revision=6), False),
    ],
    ids=lambda value: value.describe() if isinstance(value, Selector) else "",
)
def test_fields_of_the_origin_combine_and_times_are_widened(selector: Selector, matches: bool) -> None:
    assert selector.matches_origin(SOMEWHERE, skew_ms=10) == matches
    assert selector.matches_origin(replace(SOMEWHERE, lineage_known=False), skew_ms=10), "it may be anybody's"


@given(selector=FEW_SELECTORS, space=st.sampled_from(SPACES), origin=FEW_ORIGINS, skew_ms=st.integers(0, 2))
def test_matches_equal_what_the_fields_say(
    selector: Selector, space: Namespace, origin: Origin, skew_ms: int
) -> None:
    found = selector.matches_namespace(space) and selector.matches_origin(origin, skew_ms=skew_ms)
    assert found == literally_selects(selector, space, origin, skew_ms=skew_ms)


@given(selector=SELECTORS | FEW_SELECTORS)
def test_what_decides_is_told_apart(selector: Selector) -> None:
    of_space = ("namespace", "model", "weights_version", "adapter", "tenant", "other_weights_than")
    of_origin = ("producer", "tag", "since_ms", "until_ms", "since_revision", "until_revision")
    assert selector.names_namespace == any(getattr(selector, name) is not None for name in of_space)
    assert selector.names_origin == any(getattr(selector, name) is not None for name in of_origin)
    assert selector.is_everything == (selector == Selector())
    assert selector.is_one_namespace == (
        selector.namespace is not None and selector == Selector(namespace=selector.namespace)
    )


def test_a_description_names_every_field_that_is_set() -> None:
    selector = Selector(model="m", key=PageKey(b"\xab" * 32), tag=b"a\xff", since_ms=0, until_ms=UINT64_MAX)
    assert selector.describe() == (
        f"model='m' and key='{'ab' * 32}' and tag='a\\\\xff' and "
        f"since=1970-01-01T00:00:00Z and until={UINT64_MAX} ms"
    )
    assert EVERYTHING.describe() == "everything"
