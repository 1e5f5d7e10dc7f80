"""Codec of loads in the attach protocol: the bodies of LOAD and LOADED, with what computing takes and what was chosen."""

from __future__ import annotations

import math
import struct

from cache_l2.attach_body import COUNT, Body
from cache_l2.attach_messages import ChainToLoad, Load, LoadedPages, LoadedRow
from kv_types.errors import InvalidArgumentError, LimitExceededError, ProtocolError
from kv_types.ids import KEY_BYTES, PageKey
from kv_types.limits import LOAD_KEYS_MAX, LOAD_ROWS_MAX
from kv_types.loading import ComputeCost, LoadChoice, LoadDecision

_LOAD = struct.Struct("<IBddH")
"""Deadline in ms; group; seconds to compute the first page of each row (0: unknown), and more of each after it; rows."""
_LOAD_ROW = struct.Struct(f"<IB{KEY_BYTES}sH")
_LOADED_ROW = struct.Struct("<HHBH")
_DECISION = struct.Struct("<BBIIdd")
"""Whether there is one; choice, pages, pages chosen, estimated seconds of loading and of computing."""
_CHOICES = frozenset(LoadChoice)


def write_load(message: Load) -> bytes:
    """Return the body of LOAD. Raises LimitExceededError, InvalidArgumentError, struct.error."""
    if len(message.rows) > LOAD_ROWS_MAX:
        raise LimitExceededError(f"a load of {len(message.rows)} chains exceeds {LOAD_ROWS_MAX}: split it")
    rows = b"".join(_chain_to_load(row) for row in message.rows)
    pages = sum(len(row.keys) for row in message.rows) // KEY_BYTES
    if pages > LOAD_KEYS_MAX:
        raise LimitExceededError(f"a load of {pages} pages exceeds {LOAD_KEYS_MAX}: split it")
    cost = message.compute
    first_s, growth_s = (0.0, 0.0) if cost is None else (cost.first_s, cost.growth_s)
    return _LOAD.pack(message.deadline_ms, message.group, first_s, growth_s, len(message.rows)) + rows


def read_load(body: Body) -> Load:
    """Read what write_load has written. Raises ProtocolError."""
    deadline_ms, group, first_s, growth_s, count = body.unpack(_LOAD)
    if count > LOAD_ROWS_MAX:
        raise ProtocolError(f"a load of {count} chains exceeds {LOAD_ROWS_MAX}")
    compute = _cost(first_s, growth_s)
    rows = tuple(_read_chain_to_load(body) for _ in range(count))
    pages = sum(len(row.keys) for row in rows) // KEY_BYTES
    if pages > LOAD_KEYS_MAX:
        raise ProtocolError(f"a load of {pages} pages exceeds {LOAD_KEYS_MAX}")
    return Load(rows, deadline_ms, _flag(group), compute)


def write_loaded(message: LoadedPages) -> bytes:
    """Return the body of LOADED. Raises LimitExceededError, struct.error."""
    if len(message.rows) > LOAD_ROWS_MAX:
        raise LimitExceededError(f"an answer to {len(message.rows)} chains exceeds {LOAD_ROWS_MAX}")
    rows = [_LOADED_ROW.pack(row.pages, row.from_l3, row.reason, row.pending) for row in message.rows]
    return COUNT.pack(len(rows)) + b"".join(rows) + _decision(message.decision)


def read_loaded(body: Body) -> LoadedPages:
    """Read what write_loaded has written. Raises ProtocolError."""
    count = body.counted(COUNT, LOAD_ROWS_MAX, "chains of one answer")
    rows = tuple(LoadedRow(*body.unpack(_LOADED_ROW)) for _ in range(count))
    return LoadedPages(rows, _read_decision(body))


def _chain_to_load(row: ChainToLoad) -> bytes:
    has_parent, parent = row.parent is not None, row.parent or bytes(KEY_BYTES)
    count, rest = divmod(len(row.keys), KEY_BYTES)
    if rest:
        raise InvalidArgumentError(f"packed keys are n × {KEY_BYTES} bytes; got {len(row.keys)}")
    return _LOAD_ROW.pack(row.namespace_number, has_parent, parent, count) + row.keys


def _read_chain_to_load(body: Body) -> ChainToLoad:
    number, has_parent, parent, count = _LOAD_ROW.unpack(body.take(_LOAD_ROW.size))
    if not _flag(has_parent) and any(parent):
        raise ProtocolError("a chain to load has a parent that its flag denies")
    return ChainToLoad(
        namespace_number=number,
        parent=PageKey(parent) if has_parent else None,
        keys=bytes(body.take(count * KEY_BYTES)),
    )


def _cost(first_s: float, growth_s: float) -> ComputeCost | None:
    if _is_zero(first_s) and _is_zero(growth_s):
        return None
    try:
        return ComputeCost(first_s, growth_s)
    except InvalidArgumentError as error:
        raise ProtocolError(f"a load tells no time to compute its pages: {error}") from error


def _decision(made: LoadDecision | None) -> bytes:
    if made is None:
        return bytes(_DECISION.size)
    return _DECISION.pack(1, made.choice, made.pages, made.pages_chosen, made.load_s, made.compute_s)


def _read_decision(body: Body) -> LoadDecision | None:
    is_made, choice, pages, chosen, load_s, compute_s = body.unpack(_DECISION)
    if not _flag(is_made):
        if choice or pages or chosen or not (_is_zero(load_s) and _is_zero(compute_s)):
            raise ProtocolError("an answer tells a choice that its flag denies")
        return None
    if choice not in _CHOICES or chosen > pages or not (_is_time(load_s) and _is_time(compute_s)):
        raise ProtocolError(
            f"an answer tells choice {choice} for {chosen} of {pages} pages, {load_s} s and {compute_s} s"
        )
    return LoadDecision(LoadChoice(choice), pages, chosen, load_s, compute_s)


def _is_zero(value: float) -> bool:
    return value == 0.0 and math.copysign(1.0, value) > 0.0


def _is_time(seconds: float) -> bool:
    return 0.0 <= seconds < math.inf


def _flag(value: int) -> bool:
    if value > 1:
        raise ProtocolError(f"a flag of {value} is neither 0 nor 1")
    return bool(value)
