"""Reading traces: what is right becomes numbered chains, what is wrong is named by file, line and field."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_policy import trace as traces
from kv_policy.trace import BlockTokens, TraceBuilder
from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.limits import CHAIN_PAGES_MAX
from kv_types.trace_limits import TRACE_LINE_BYTES_MAX, TRACE_TIME_MS_MAX
from tests.support.traces import NAMES, line_of, public_trace, trace_of

RIGHT: dict[str, Any] = {"timestamp": 5, "input_length": 40, "output_length": 2, "hash_ids": [7, 8]}


def build(*lines: bytes) -> traces.Trace:
    builder = TraceBuilder("made")
    builder.add_lines(lines, file="made.jsonl")
    return builder.build()


def test_requests_are_numbered_chains_in_the_order_of_their_times() -> None:
    trace = build(
        line_of([9, 5], at_ms=30),
        line_of([9, 5, 2**64 - 1], at_ms=10, out=3),
        line_of([], at_ms=20, tokens=3),
    )
    assert trace.blocks.tolist() == [0, 1, 2, 0, 1]
    assert trace.offsets.tolist() == [0, 3, 3, 5]
    assert trace.times_ns.tolist() == [0, 10_000_000, 20_000_000]
    assert (trace.requests, trace.distinct, trace.reused, trace.span_s) == (3, 3, 2, 0.02)
    assert (trace.input_tokens, trace.output_tokens) == (83, 3)


def test_equal_ids_behind_different_ones_are_different_blocks() -> None:
    """Ids may be hashes of a block's own tokens: it is of use only behind what it was computed behind."""
    trace = trace_of([[1, 5, 5], [2, 5, 5], [1, 5, 5], [2, 5]])
    assert trace.blocks.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4]
    assert (trace.distinct, trace.reused) == (6, 5)


def test_further_fields_are_nobodys_fault() -> None:
    assert build(json.dumps({**RIGHT, "type": "text", "turn": 1}).encode()).requests == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timestamp", None), ("timestamp", "5"), ("timestamp", -1), ("timestamp", float("nan")),
        ("timestamp", True), ("timestamp", TRACE_TIME_MS_MAX + 1),
        ("input_length", -1), ("input_length", 1.5), ("input_length", 2**40), ("input_length", True),
        ("output_length", "2"), ("output_length", None),
        ("hash_ids", 7), ("hash_ids", "78"), ("hash_ids", None),
        ("hash_ids", [7, "8"]), ("hash_ids", [7, -8]), ("hash_ids", [7, 2**64]), ("hash_ids", [7, 1.0]),
        ("hash_ids", [7, True]), ("hash_ids", [[7]]),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_field_is_named_with_file_and_line(field: str, value: object) -> None:
    lines = [json.dumps(RIGHT).encode() + b"\n", json.dumps({**RIGHT, field: value}).encode() + b"\n"]
    with pytest.raises(InvalidArgumentError, match=rf"^made\.jsonl, line 2: {field}"):
        build(*lines)


@pytest.mark.parametrize("field", sorted(RIGHT))
def test_a_missing_field_is_named(field: str) -> None:
    told = {name: value for name, value in RIGHT.items() if name != field}
    with pytest.raises(InvalidArgumentError, match=rf"^made\.jsonl, line 1: {field} is missing$"):
        build(json.dumps(told).encode())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"\n", "line 1 is no JSON object"),
        (b"{\n", "line 1 is no JSON object"),
        (b"[1]\n", "line 1 is a JSON list"),
        (b"7\n", "line 1 is a JSON int"),
        (b"\xff\n", "line 1 is no JSON object"),
        (b'{"timestamp": 1', "cut off"),
        (b"[" * 100_000 + b"\n", "line 1 is no JSON object"),
        (b'{"timestamp": ' + b"1" * 5000 + b"}\n", "line 1 is no JSON object"),
        (line_of([1, 2, 3], tokens=2), "3 blocks for 2 tokens"),
    ],
    ids=["empty", "open", "list", "number", "bytes", "cut", "deep", "long number", "too few tokens"],
)
def test_what_is_no_request_is_refused(line: bytes, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        build(line)


def test_limits_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LimitExceededError, match="longer than"):
        build(b" " * TRACE_LINE_BYTES_MAX + b"{}")
    with pytest.raises(LimitExceededError, match="hash_ids has 65,537 blocks"):
        build(line_of(range(CHAIN_PAGES_MAX + 1)))
    monkeypatch.setattr(traces, "TRACE_BLOCKS_MAX", 3)
    with pytest.raises(LimitExceededError, match=r"line 2: a trace has at most"):
        build(line_of([1, 2]), line_of([3, 4]))
    monkeypatch.setattr(traces, "TRACE_REQUESTS_MAX", 1)
    with pytest.raises(LimitExceededError, match=r"line 2: a trace has at most 1 requests"):
        build(line_of([]), line_of([]))


def test_an_empty_trace_is_no_trace() -> None:
    with pytest.raises(InvalidArgumentError, match="made has no requests"):
        build()


LINE = json.dumps(RIGHT).encode() + b"\n"


@given(st.data())
def test_whatever_stands_in_a_line_is_read_or_named(data: st.DataObject) -> None:
    """No byte from outside raises anything else, and nothing is passed over."""
    line = bytearray(LINE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(line) - 1))
        line[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    _read_or_named(bytes(line))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_named(line: bytes) -> None:
    _read_or_named(line)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("a7é", max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("a7é", max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(RIGHT, JSON)))
def test_any_object_is_read_or_named(told: dict[str, Any]) -> None:
    _read_or_named(json.dumps(told).encode())


def _read_or_named(line: bytes) -> None:
    try:
        assert build(LINE, line).requests == 2
    except InvalidArgumentError as error:
        said = str(error)
    else:
        return
    assert re.match(r"made\.jsonl, line 2\b", said), said


# --- time ---


def test_requests_of_one_step_are_spread_over_it_and_stay_in_order() -> None:
    trace = build(
        *(line_of([at], at_ms=ms) for at, ms in enumerate([0, 0, 0, 3000, 3000, 6000, 600_000, 600_000]))
    )
    spread = (trace.times_ns / 1e6).tolist()
    assert spread == [0, 1000, 2000, 3000, 4500, 6000, 600_000, 601_500]
    assert trace.blocks.tolist() == list(range(8))


def test_fractions_of_a_millisecond_are_kept() -> None:
    trace = build(line_of([1], at_ms=0.25), line_of([2], at_ms=1.5))
    assert trace.times_ns.tolist() == [0, 1_250_000]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40))
def test_spread_times_grow(times: list[int]) -> None:
    trace = build(*(line_of([], at_ms=at, tokens=1) for at in times))
    assert (np.diff(trace.times_ns) >= 0).all()
    assert trace.times_ns[0] == 0
    assert len(set(trace.times_ns.tolist())) == len(times)


# --- tokens of a block ---


@given(
    st.sampled_from([16, 64, 128, 512]),
    st.lists(st.integers(1, 20_000), min_size=30, max_size=60),
    st.booleans(),
)
def test_a_blocks_tokens_are_told_by_the_lengths_or_left_open(
    tokens: int, lengths: list[int], counts_partly_filled: bool
) -> None:
    sizes = BlockTokens()
    for length in lengths:
        sizes.add(length, -(-length // tokens) if counts_partly_filled else length // tokens)
    assert sizes.tokens() in (tokens, None)


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("miniswe_c64", 64),
        ("mooncake_conversation_6000", 512),
        ("mooncake_synthetic", 512),
        ("taubench_c64", 64),
    ],
)
def test_public_traces_tell_their_blocks_tokens(name: str, tokens: int) -> None:
    assert public_trace(name).block_tokens == tokens


def test_lengths_that_fit_nothing_tell_nothing() -> None:
    sizes = BlockTokens()
    sizes.add(100, 2)
    sizes.add(1000, 2)
    assert sizes.tokens() is None
    assert BlockTokens().tokens() is None


def test_the_public_traces_are_what_their_notes_say() -> None:
    requests = {name: public_trace(name).requests for name in NAMES}
    assert requests == {
        "miniswe_c64": 402, "mooncake_conversation_6000": 6000, "mooncake_synthetic": 3993, "taubench_c64": 278,
    }  # fmt: skip
