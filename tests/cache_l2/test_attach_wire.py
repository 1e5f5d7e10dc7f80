"""The attach codec: what is encoded comes back, and bytes that nobody encoded are a ProtocolError."""

from __future__ import annotations

import dataclasses
import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_l2 import attach_wire as wire
from cache_l2.attach_messages import (
    Abort,
    CancelLoad,
    ChainToLoad,
    ClientMessage,
    Commit,
    Done,
    Failed,
    Hello,
    Load,
    LoadedPages,
    LoadedRow,
    Looked,
    MessageType,
    Ping,
    Pong,
    Refused,
    Register,
    Reserve,
    ReservedPages,
    Role,
    SidecarMessage,
    Speeds,
)
from kv_types.errors import InvalidArgumentError, LimitExceededError, ProtocolError
from kv_types.ids import LogIncarnation, PageKey, Stamp
from kv_types.limits import (
    ATTACH_MESSAGE_BYTES_MAX,
    BATCH_PAGES_MAX,
    COMPUTE_PAGE_S_MAX,
    FAILURE_TEXT_BYTES_MAX,
    LOAD_KEYS_MAX,
    LOAD_ROWS_MAX,
    NAMESPACE_BYTES_MAX,
)
from kv_types.loading import ComputeCost, LoadChoice, LoadDecision
from kv_types.trace_limits import LOOKED_PAGES_MAX
from tests.support.attach_strategies import CLIENT_MESSAGES, SIDECAR_MESSAGES, U32


@given(message=CLIENT_MESSAGES, request_id=U32)
def test_client_messages_round_trip(message: ClientMessage, request_id: int) -> None:
    assert wire.decode_client_message(wire.encode_message(message, request_id)) == (request_id, message)


@given(message=SIDECAR_MESSAGES, request_id=U32)
def test_sidecar_messages_round_trip(message: SidecarMessage, request_id: int) -> None:
    assert wire.decode_sidecar_message(wire.encode_message(message, request_id)) == (request_id, message)


@given(data=st.binary(max_size=400))
def test_random_bytes_are_a_protocol_error(data: bytes) -> None:
    for decode in (wire.decode_client_message, wire.decode_sidecar_message):
        with pytest.raises(ProtocolError):
            decode(data)


@given(message=CLIENT_MESSAGES, data=st.data())
def test_a_damaged_message_is_refused_or_means_exactly_what_it_says(
    message: ClientMessage, data: st.DataObject
) -> None:
    damaged = bytearray(wire.encode_message(message, 7))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        request_id, decoded = wire.decode_client_message(bytes(damaged))
    except ProtocolError:
        return
    version = struct.unpack_from("<H", damaged, 4)[0]
    assert wire.encode_message(decoded, request_id, version=version) == bytes(damaged)


@given(message=CLIENT_MESSAGES, extra=st.integers(-60, 60).filter(bool))
@settings(max_examples=50)
def test_a_message_cut_or_extended_is_refused(message: ClientMessage, extra: int) -> None:
    data = wire.encode_message(message, 7)
    changed = data[:extra] if extra < 0 else data + bytes(extra)
    with pytest.raises(ProtocolError):
        wire.decode_client_message(changed)


@pytest.mark.parametrize("message", [Done(), Pong(1), Refused(1, "no")])
def test_a_sidecar_message_is_not_taken_from_a_client(message: SidecarMessage) -> None:
    with pytest.raises(ProtocolError, match="not one that a client sends"):
        wire.decode_client_message(wire.encode_message(message, 1))


def test_full_batches_fit_a_message() -> None:
    keys = os.urandom(32 * BATCH_PAGES_MAX)
    reserve = wire.encode_message(Reserve(namespace_number=1, parent=None, keys=keys, ttl_s=None), 1)
    columns = tuple(range(BATCH_PAGES_MAX))
    reply = wire.encode_message(
        ReservedPages(bytes(BATCH_PAGES_MAX), bytes(BATCH_PAGES_MAX), columns, columns), 1
    )
    assert max(len(reserve), len(reply)) <= ATTACH_MESSAGE_BYTES_MAX


def _load(rows: int, pages: int) -> Load:
    keys = os.urandom(32 * pages)
    parent = PageKey(os.urandom(32))
    return Load(
        tuple(ChainToLoad(namespace_number=7, parent=parent, keys=keys) for _ in range(rows)),
        2**32 - 1, True, ComputeCost(1e-300, COMPUTE_PAGE_S_MAX),
    )  # fmt: skip


def test_a_full_load_and_its_answer_fit_a_message() -> None:
    load = _load(LOAD_ROWS_MAX, LOAD_KEYS_MAX // LOAD_ROWS_MAX)
    answer = LoadedPages(
        (LoadedRow(LOAD_KEYS_MAX, LOAD_KEYS_MAX, 255, LOAD_KEYS_MAX),) * LOAD_ROWS_MAX,
        LoadDecision(LoadChoice.STOPPED, 2**32 - 1, 2**32 - 1, 1e300, 1e-300),
    )
    encoded = wire.encode_message(load, 1), wire.encode_message(answer, 1)
    assert max(map(len, encoded)) <= ATTACH_MESSAGE_BYTES_MAX
    assert wire.decode_client_message(encoded[0]) == (1, load)
    assert wire.decode_sidecar_message(encoded[1]) == (1, answer)


@pytest.mark.parametrize(
    ("rows", "pages"), [(LOAD_ROWS_MAX + 1, 0), (1, LOAD_KEYS_MAX + 1), (2, LOAD_KEYS_MAX)]
)
def test_a_load_beyond_its_limits_is_refused_on_both_sides(rows: int, pages: int) -> None:
    with pytest.raises(LimitExceededError, match="split"):
        wire.encode_message(_load(rows, pages), 1)
    row = struct.pack("<IB32sH", 1, 0, bytes(32), pages) + bytes(32 * pages)
    body = struct.pack("<IBddH", 1000, 0, 0.0, 0.0, rows) + row * rows
    forged = struct.pack("<4sHHII", wire.MAGIC, wire.PROTOCOL_VERSION, MessageType.LOAD, 1, len(body)) + body
    with pytest.raises(ProtocolError, match=r"exceeds|bytes"):
        wire.decode_client_message(forged)


def test_an_answer_to_more_chains_than_a_load_has_is_refused_on_both_sides() -> None:
    rows = (LoadedRow(0, 0, 1),) * (LOAD_ROWS_MAX + 1)
    with pytest.raises(LimitExceededError, match=str(LOAD_ROWS_MAX)):
        wire.encode_message(LoadedPages(rows), 1)
    body = struct.pack("<H", len(rows)) + bytes(7 * len(rows))
    forged = (
        struct.pack("<4sHHII", wire.MAGIC, wire.PROTOCOL_VERSION, MessageType.LOADED, 1, len(body)) + body
    )
    with pytest.raises(ProtocolError, match="limit"):
        wire.decode_sidecar_message(forged)


GOLDEN: list[tuple[ClientMessage | SidecarMessage, str]] = [
    (
        Load((ChainToLoad(namespace_number=5, parent=None, keys=b"\x11" * 32),), 250),
        "534b564105001100090000005e000000" "fa000000" "00" + "00" * 16 + "0100" "05000000" "00" + "00" * 32 + "0100" + "11" * 32,
    ),
    (
        Load(
            (
                ChainToLoad(namespace_number=1, parent=PageKey(b"\x22" * 32), keys=b""),
                ChainToLoad(namespace_number=2, parent=None, keys=b""),
            ),
            1,
            True,
            ComputeCost(0.5, 0.25),
        ),
        "534b564105001100090000006500000001000000" "01" "000000000000e03f" "000000000000d03f" "0200"
        "01000000" "01" + "22" * 32 + "0000" "02000000" "00" + "00" * 32 + "0000",
    ),
    (
        LoadedPages((LoadedRow(12, 4, 8, 3),)),
        "534b5641050012000900000023000000" "0100" "0c00" "0400" "08" "0300" + "00" * 26,
    ),
    (
        LoadedPages((), LoadDecision(LoadChoice.COMPUTE, 9, 0, 0.5, 0.25)),
        "534b564105001200090000001c000000" "0000" "01" "02" "09000000" "00000000" "000000000000e03f" "000000000000d03f",
    ),
    (CancelLoad(8), "534b5641050013000900000004000000" "08000000"),
    (
        Looked(5, b"\x11" * 8 + b"\x22" * 8, 3),
        "534b564105001400090000001a000000" "05000000" "03000000" "0200" + "11" * 8 + "22" * 8,
    ),
    (
        Speeds(0.5, 0.25, 0.0),
        "534b5641050015000900000018000000" "000000000000e03f" "000000000000d03f" "0000000000000000",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("message", "data"), GOLDEN)
def test_the_bytes_of_loads_are_these(message: ClientMessage | SidecarMessage, data: str) -> None:
    assert wire.encode_message(message, 9).hex() == data


def test_a_look_up_beyond_the_limit_is_refused_on_both_sides() -> None:
    longest = Looked(1, bytes(8 * LOOKED_PAGES_MAX))
    data = wire.encode_message(longest, 1)
    assert wire.decode_client_message(data) == (1, longest)
    with pytest.raises(LimitExceededError, match=str(LOOKED_PAGES_MAX)):
        wire.encode_message(Looked(1, bytes(8 * (LOOKED_PAGES_MAX + 1))), 1)
    longer = bytearray(data + bytes(8))
    longer[12:16] = (len(longer) - 16).to_bytes(4, "little")
    longer[24:26] = (LOOKED_PAGES_MAX + 1).to_bytes(2, "little")
    with pytest.raises(ProtocolError, match=str(LOOKED_PAGES_MAX)):
        wire.decode_client_message(bytes(longer))


@pytest.mark.parametrize("number", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("at", range(3))
def test_speeds_that_are_none_are_refused(number: float, at: int) -> None:
    data = bytearray(wire.encode_message(Speeds(1.0, 1.0, 1.0), 1))
    data[16 + 8 * at : 24 + 8 * at] = struct.pack("<d", number)
    with pytest.raises(ProtocolError, match="0 or more"):
        wire.decode_client_message(bytes(data))


@pytest.mark.parametrize(
    ("first_s", "growth_s"),
    [
        (0.0, 1.0),
        (-1.0, 0.0),
        (-0.0, 0.0),
        (float("nan"), 0.0),
        (float("inf"), 0.0),
        (1.0, -1.0),
        (1.0, float("nan")),
    ],
)
def test_a_load_that_tells_no_time_of_computing_is_refused(first_s: float, growth_s: float) -> None:
    body = struct.pack("<IBddH", 1000, 0, first_s, growth_s, 0)
    forged = struct.pack("<4sHHII", wire.MAGIC, wire.PROTOCOL_VERSION, MessageType.LOAD, 1, len(body)) + body
    with pytest.raises(ProtocolError, match="compute"):
        wire.decode_client_message(forged)


@pytest.mark.parametrize(
    "decision",
    [
        (0, 1, 0, 0, 0.0, 0.0), (0, 0, 0, 0, -0.0, 0.0), (1, 9, 0, 0, 0.0, 0.0), (1, 1, 3, 4, 0.0, 0.0),
        (1, 1, 3, 3, -1.0, 0.0), (1, 1, 3, 3, 0.0, float("inf")),
    ],
)  # fmt: skip
def test_an_answer_that_tells_no_choice_is_refused(decision: tuple[float, ...]) -> None:
    body = struct.pack("<H", 0) + struct.pack("<BBIIdd", *decision)
    forged = (
        struct.pack("<4sHHII", wire.MAGIC, wire.PROTOCOL_VERSION, MessageType.LOADED, 1, len(body)) + body
    )
    with pytest.raises(ProtocolError, match="choice"):
        wire.decode_sidecar_message(forged)


def test_batches_beyond_the_limit_are_refused_on_both_sides() -> None:
    too_many = BATCH_PAGES_MAX + 1
    with pytest.raises(LimitExceededError, match=str(BATCH_PAGES_MAX)):
        wire.encode_message(Abort(tuple(range(too_many))), 1)
    with pytest.raises(LimitExceededError, match="split"):
        wire.encode_message(
            Reserve(namespace_number=1, parent=None, keys=bytes(32 * too_many), ttl_s=None), 1
        )
    body = struct.pack(f"<H{too_many}Q", too_many, *range(too_many))
    forged = struct.pack("<4sHHII", wire.MAGIC, wire.PROTOCOL_VERSION, MessageType.ABORT, 1, len(body)) + body
    with pytest.raises(ProtocolError, match="limit"):
        wire.decode_client_message(forged)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Register(bytes(NAMESPACE_BYTES_MAX + 1), 1), LimitExceededError),
        (Register(b"", -1), InvalidArgumentError),
        (Reserve(namespace_number=2**32, parent=None, keys=b"", ttl_s=None), InvalidArgumentError),
        (Reserve(namespace_number=1, parent=None, keys=bytes(31), ttl_s=None), InvalidArgumentError),
        (Reserve(namespace_number=1, parent=None, keys=b"", ttl_s=-5), InvalidArgumentError),
        (Abort((2**64,)), InvalidArgumentError),
        (
            Commit(reservations=(), stamp=Stamp(LogIncarnation(bytes(16)), 0), rests_on=2**64),
            InvalidArgumentError,
        ),
    ],
)
def test_values_that_do_not_fit_are_clear_errors(message: ClientMessage, error: type[Exception]) -> None:
    with pytest.raises(error):
        wire.encode_message(message, 1)


def test_hello_of_a_future_version_can_still_be_read() -> None:
    hello = Hello(
        version_min=7,
        version_max=9,
        layout_version=3,
        role=Role.WRITER,
        time_namespace=0,
        boot_now_ns=1,
        name="x",
    )
    assert wire.decode_client_message(wire.encode_message(hello, 4, version=9)) == (4, hello)
    with pytest.raises(ProtocolError, match="version 9"):
        wire.decode_client_message(wire.encode_message(Ping(), 4, version=9))


def test_a_long_text_is_cut_rather_than_lost() -> None:
    text = "é" * FAILURE_TEXT_BYTES_MAX
    _, message = wire.decode_sidecar_message(wire.encode_message(Failed("internal", text), 1))
    assert isinstance(message, Failed)
    assert message.text
    assert text.startswith(message.text)


def test_every_message_has_its_own_number() -> None:
    kinds = [kind for kind, _ in wire._WRITERS.values()]
    assert sorted(kinds) == sorted(MessageType)
    assert all(dataclasses.is_dataclass(message) for message in wire._WRITERS)
