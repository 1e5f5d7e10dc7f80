"""Traces of requests: lines of JSON become numbered chains, and what is wrong with a line is said, never passed over."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.limits import (
    CHAIN_PAGES_MAX,
    PAGE_TOKENS_MAX,
    TRACE_BLOCKS_MAX,
    TRACE_LINE_BYTES_MAX,
    TRACE_REQUESTS_MAX,
    TRACE_TIME_MS_MAX,
    TRACE_TOKENS_MAX,
)

_ID_END = 1 << 64
_NO_PARENT = -1
_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in the order of their times. Blocks are numbered from 0 in the order in which they first appear.

    A block is known by the whole chain up to it: equal ids behind different ones are different blocks. Request i asks for
    blocks[offsets[i]:offsets[i + 1]], root first.
    """

    name: str
    times_ns: npt.NDArray[np.int64]
    """One a request, from 0 on; requests of one time step are spread over it."""
    offsets: npt.NDArray[np.uint64]
    """One a request, and the end."""
    blocks: npt.NDArray[np.uint64]
    distinct: int
    """Different blocks."""
    reused: int
    """Of all blocks, those that an earlier request asked for: what a cache without bounds has."""
    input_tokens: int
    output_tokens: int
    block_tokens: int | None
    """Tokens of one block, where the lengths of inputs tell them."""

    @property
    def requests(self) -> int:
        """How many there are."""
        return len(self.times_ns)

    @property
    def span_s(self) -> float:
        """Time from the first request to the last."""
        return float(self.times_ns[-1]) / 1e9 if self.requests else 0.0


class TraceBuilder:
    """Takes lines of one trace, of one file or of several, and numbers their blocks. Bounded by TRACE_BLOCKS_MAX."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._times = array("q")
        self._ends = array("Q", [0])
        self._ids = array("Q")
        self._input_tokens = self._output_tokens = 0
        self._sizes = BlockTokens()

    def add(self, line: bytes, *, file: str, number: int) -> None:
        """Take one line. Raises InvalidArgumentError that names file, line and field, LimitExceededError."""
        where = f"{file}, line {number}"
        told = _object(line, where)
        time_ms = _time_ms(told, where)
        input_length = _count(told, "input_length", TRACE_TOKENS_MAX, where)
        output_length = _count(told, "output_length", TRACE_TOKENS_MAX, where)
        ids = _ids(told, where)
        if len(self._times) >= TRACE_REQUESTS_MAX or len(self._ids) + len(ids) > TRACE_BLOCKS_MAX:
            raise LimitExceededError(
                f"{where}: a trace has at most {TRACE_REQUESTS_MAX:,} requests with {TRACE_BLOCKS_MAX:,} blocks: "
                "cut it into parts and replay them one by one"
            )
        if len(ids) > input_length:
            raise InvalidArgumentError(f"{where}: hash_ids has {len(ids)} blocks for {input_length} tokens")
        self._times.append(time_ms)
        self._ids.extend(ids)
        self._ends.append(len(self._ids))
        self._input_tokens += input_length
        self._output_tokens += output_length
        self._sizes.add(input_length, len(ids))

    def add_lines(self, lines: Iterable[bytes], *, file: str) -> None:
        """Take all lines of a file. Raises as `add`."""
        for number, line in enumerate(lines, 1):
            self.add(line, file=file, number=number)

    def build(self) -> Trace:
        """Order by time, number, spread. Raises InvalidArgumentError when there is no request."""
        if not self._times:
            raise InvalidArgumentError(f"{self._name} has no requests: is it the right file?")
        times = np.frombuffer(self._times, dtype=np.int64)
        ends = np.frombuffer(self._ends, dtype=np.uint64).astype(np.int64)
        order = np.argsort(times, kind="stable")
        numbers = _Numbers()
        blocks, offsets = array("Q"), array("Q", [0])
        for request in order.tolist():
            numbers.chain(self._ids[ends[request] : ends[request + 1]], into=blocks)
            offsets.append(len(blocks))
        return Trace(
            name=self._name,
            times_ns=_spread(times[order]),
            offsets=np.array(offsets, dtype=np.uint64),
            blocks=np.array(blocks, dtype=np.uint64),
            distinct=len(numbers),
            reused=numbers.reused,
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            block_tokens=self._sizes.tokens(),
        )


class BlockTokens:
    """How many tokens a block has, told by the lengths of inputs: of full blocks alone, or with a last one partly filled."""

    def __init__(self) -> None:
        self._full = (1, PAGE_TOKENS_MAX)
        self._partial = (1, PAGE_TOKENS_MAX)

    def add(self, input_length: int, blocks: int) -> None:
        """Narrow what is possible by one request."""
        low, high = self._full
        self._full = (
            max(low, input_length // (blocks + 1) + 1),
            min(high, input_length // blocks if blocks else high),
        )
        if not blocks:
            self._partial = self._partial if not input_length else (1, 0)
            return
        low, high = self._partial
        above = (input_length - 1) // (blocks - 1) if blocks > 1 else high
        self._partial = (max(low, -(-input_length // blocks)), min(high, above))

    def tokens(self) -> int | None:
        """The only number of tokens, or the only power of two, that all requests allow; None where they leave it open."""
        found: set[int] = set()
        for low, high in (self._full, self._partial):
            powers = [1 << power for power in range(PAGE_TOKENS_MAX.bit_length()) if low <= 1 << power <= high]
            if low == high:
                found.add(low)
            elif len(powers) == 1:
                found.add(powers[0])
            elif low <= high:
                return None
        return found.pop() if len(found) == 1 else None


class _Numbers:
    """Numbers of blocks by what they are: an id behind its parent."""

    def __init__(self) -> None:
        self._by_id: dict[int, int] = {}
        self._parents = array("q")
        self._others: dict[tuple[int, int], int] = {}
        self.reused = 0

    def __len__(self) -> int:
        return len(self._parents)

    def chain(self, ids: Iterable[int], *, into: array[int]) -> None:
        """Append the numbers of a chain. An id that always has one parent, as a chained hash has, costs one look."""
        parent = _NO_PARENT
        for identity in ids:
            number = self._by_id.get(identity)
            if number is None:
                number = self._by_id[identity] = self._new(parent)
            elif self._parents[number] == parent:
                self.reused += 1
            else:
                known = self._others.get((parent, identity))
                self.reused += known is not None
                number = self._new(parent) if known is None else known
                self._others[parent, identity] = number
            into.append(number)
            parent = number

    def _new(self, parent: int) -> int:
        self._parents.append(parent)
        return len(self._parents) - 1


def _object(line: bytes, where: str) -> dict[str, Any]:
    if len(line) > TRACE_LINE_BYTES_MAX:
        raise LimitExceededError(f"{where} is longer than {TRACE_LINE_BYTES_MAX:,} bytes: is this a trace?")
    try:
        told = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        cut = "" if line.endswith(b"\n") else "; the file ends in the midst of it, as if it had been cut off"
        raise InvalidArgumentError(
            f"{where} is no JSON object ({error}){cut}: a trace has one request a line, "
            '{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [numbers]}'
        ) from error
    if not isinstance(told, dict):
        raise InvalidArgumentError(f"{where} is a JSON {type(told).__name__}; a request is an object")
    return told


def _field(told: dict[str, Any], name: str, where: str) -> Any:
    if name not in told:
        raise InvalidArgumentError(f"{where}: {name} is missing")
    return told[name]


def _count(told: dict[str, Any], name: str, most: int, where: str) -> int:
    value = _field(told, name, where)
    if type(value) is not int or not 0 <= value <= most:
        raise InvalidArgumentError(f"{where}: {name} is {value!r:.60}; it is a whole number from 0 to {most:,}")
    return value


def _time_ms(told: dict[str, Any], where: str) -> int:
    """Time in steps of 2^-10 ms, so that fractions of a ms are kept in whole numbers."""
    value = _field(told, "timestamp", where)
    is_number = type(value) is int or (type(value) is float and math.isfinite(value))
    if not is_number or not 0 <= value <= TRACE_TIME_MS_MAX:
        raise InvalidArgumentError(
            f"{where}: timestamp is {value!r:.60}; it is ms, a number from 0 to {TRACE_TIME_MS_MAX:,}"
        )
    return int(value * 1024)


def _ids(told: dict[str, Any], where: str) -> list[int]:
    value = _field(told, "hash_ids", where)
    if not isinstance(value, list):
        raise InvalidArgumentError(f"{where}: hash_ids is {value!r:.60}; it is a list of numbers, root first")
    if len(value) > CHAIN_PAGES_MAX:
        raise LimitExceededError(f"{where}: hash_ids has {len(value):,} blocks; at most {CHAIN_PAGES_MAX:,} go")
    for index, one in enumerate(value):
        if type(one) is not int or not 0 <= one < _ID_END:
            raise InvalidArgumentError(
                f"{where}: hash_ids[{index}] is {one!r:.60}; it is a whole number of 64 bits, 0 or more"
            )
    return value


def _spread(times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Times in ns from 0 on, requests of one step spread over it: a coarse clock says nothing of their ages else.

    A step is as long as steps usually are, and ends where the next one begins: nobody waits over an idle hour.
    """
    steps, first, counts = np.unique(times, return_index=True, return_counts=True)
    gaps = np.diff(steps)
    usual = float(np.median(gaps)) if len(gaps) else 1024.0
    lengths = np.minimum(np.append(gaps, usual), usual)
    place = np.arange(len(times)) - np.repeat(first, counts)
    spread = np.repeat(lengths, counts) * place / np.repeat(counts, counts)
    spread_ns = ((times - times[0]) + spread) * (_NS_PER_MS / 1024)
    return spread_ns.astype(np.int64)
