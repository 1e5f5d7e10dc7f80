"""Records: what is appended can be read back, and what can't be read selects everything."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from invalidation.records import NO_DIGEST, VERSION, LogEntry, next_digest, read_record
from kv_types.errors import InvalidArgumentError, LimitExceededError, ProtocolError
from kv_types.events import Selected, WeightsAnnounced
from kv_types.limits import LOG_NOTE_BYTES_MAX
from kv_types.selectors import EVERYTHING
from tests.kv_types.selector_samples import NAMES, SELECTORS, UINT64

SHORT = NAMES.filter(lambda name: len(name.encode()) <= 200)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=LOG_NOTE_BYTES_MAX // 4)
ENTRIES = st.builds(
    LogEntry,
    event=SELECTORS.map(Selected) | st.builds(WeightsAnnounced, model=SHORT, version=SHORT),
    reason=TEXTS,
    author=TEXTS,
    appended_wall_ms=UINT64,
)


@given(entry=ENTRIES)
def test_entries_round_trip(entry: LogEntry) -> None:
    data = entry.encode()
    assert LogEntry.decode(data) == entry
    assert len(data) < 1 << 16
    record = read_record(5, data, b"d" * 20)
    assert (record.revision, record.entry, record.event, record.digest) == (5, entry, entry.event, b"d" * 20)


@given(entry=ENTRIES, data=st.data())
def test_damaged_bytes_select_everything_or_are_another_entry(entry: LogEntry, data: st.DataObject) -> None:
    whole = bytearray(entry.encode())
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    damaged = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    record = read_record(1, damaged, NO_DIGEST)
    try:
        told = LogEntry.decode(damaged)
    except ProtocolError:
        assert record.event == Selected(EVERYTHING)
        assert len(record.entry.reason.encode()) <= LOG_NOTE_BYTES_MAX
    else:
        assert told.encode() == damaged
        assert record.entry == told


@given(payload=st.binary(max_size=5000))
def test_no_bytes_stop_a_reader(payload: bytes) -> None:
    record = read_record(1, payload, NO_DIGEST)
    assert record.entry.encode() == payload or record.event == Selected(EVERYTHING)


@pytest.mark.parametrize(
    "head",
    [(VERSION + 1, 1), (0, 1), (VERSION, 3), (VERSION, 0)],
    ids=lambda head: f"version {head[0]}, kind {head[1]}",
)
def test_another_version_or_kind_selects_everything(head: tuple[int, int]) -> None:
    payload = struct.pack("<BBHHHQ", *head, 0, 0, 0, 0)
    assert read_record(1, payload, NO_DIGEST).event == Selected(EVERYTHING)
    with pytest.raises(ProtocolError):
        LogEntry.decode(payload)


def test_the_format_is_what_it_was() -> None:
    """Other members of the fleet read these bytes."""
    entry = LogEntry(event=WeightsAnnounced("m", "2"), reason="why", author="me", appended_wall_ms=5)
    assert entry.encode() == struct.pack("<BBHHHQ", 1, 2, 6, 3, 2, 5) + b"\1\0\1\0m2" + b"why" + b"me"
    everything = LogEntry(event=Selected(EVERYTHING))
    assert everything.encode() == struct.pack("<BBHHHQ", 1, 1, 0, 0, 0, 0)


@pytest.mark.parametrize("what", ["reason", "author"])
def test_notes_have_bounds_and_are_text(what: str) -> None:
    event = Selected(EVERYTHING)
    assert LogEntry(event=event, **{what: "é" * (LOG_NOTE_BYTES_MAX // 2)})  # type: ignore[arg-type]
    with pytest.raises(LimitExceededError, match=rf"^the {what} has at most .* shorten"):
        LogEntry(event=event, **{what: "é" * (LOG_NOTE_BYTES_MAX // 2) + "x"})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="UTF-8"):
        LogEntry(event=event, **{what: "\ud800"})  # type: ignore[arg-type]


@pytest.mark.parametrize("wall_ms", [-1, 1 << 64])
def test_a_wall_clock_is_a_number_of_64_bits(wall_ms: int) -> None:
    with pytest.raises(InvalidArgumentError):
        LogEntry(event=Selected(EVERYTHING), appended_wall_ms=wall_ms)


def test_digests_depend_on_everything_before() -> None:
    payloads = [b"a", b"b", b""]
    digest, text = NO_DIGEST, "0" * 40
    for payload in payloads:
        digest = next_digest(digest, payload)
        text = hashlib.sha1(text.encode() + payload, usedforsecurity=False).hexdigest()
        assert digest.hex() == text
    assert next_digest(next_digest(NO_DIGEST, b"b"), b"a") != next_digest(next_digest(NO_DIGEST, b"a"), b"b")
