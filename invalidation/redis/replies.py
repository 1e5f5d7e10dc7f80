"""What the log's script answers, read strictly: anything else than its own replies is MalformedReplyError."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from invalidation.log import Appended, Boot, FenceState, MemberState, Renewal, RenewalStatus
from invalidation.records import DIGEST_BYTES, LogRecord, next_digest, read_record
from invalidation.redis.requests import MEMBER_BYTES
from invalidation.turns import Turns, in_one
from kv_types.errors import ProtocolError
from kv_types.ids import INCARNATION_BYTES, KEY_BYTES, LogIncarnation, NamespaceId, Stamp
from kv_types.limits import LOG_REVISION_MAX, LOG_TURN_ENTRIES_MAX, REPLICAS_MAX
from kv_types.selectors import EVERYTHING, Selector

SIZE_NAMES = (
    "records",
    "tombstones",
    "floors",
    "scopes",
    "members",
    "requests",
    "weights",
    "namespaces",
)
"""What `statistics` counts, in its order."""

_MEMBER = re.compile(rb"([0-9]{1,16}) ([0-9]{1,16}) ([0-9]{1,16}) ([01]) (.*)", re.DOTALL)
_WEIGHTS = re.compile(rb"[0-9]{1,16} (.+)", re.DOTALL)
_STATUSES = {status.value.encode(): status for status in RenewalStatus}


class MalformedReplyError(Exception):
    """A reply is not one that the script gives; its text says where."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The script refused to do it; `word` says why."""

    word: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What every reply begins with, and the verb's own `rest`."""

    status: RenewalStatus
    incarnation: LogIncarnation
    replicas: int
    tip: int
    settled: bool
    rest: Sequence[object]

    @property
    def stamp(self) -> Stamp:
        """The tip."""
        return Stamp(self.incarnation, self.tip)


def read_answer(reply: object) -> Answer | Refusal:
    """Read the beginning that all replies share; raises MalformedReplyError."""
    fields = _list(reply, "a reply")
    if len(fields) < 5:
        _malformed(f"a reply has {len(fields)} fields")
    status = _bytes(fields[0], "a status")
    if status == b"REFUSED":
        (word,) = _shape(fields[5:], 1, "a refusal")
        return Refusal(_bytes(word, "a reason").decode(errors="replace"))
    if status not in _STATUSES:
        _malformed(f"status {status!r} has no known meaning")
    replicas = _number(fields[2], "k")
    if replicas > REPLICAS_MAX:
        _malformed(f"{replicas} configured replicas are more than anybody may set")
    return Answer(
        status=_STATUSES[status],
        incarnation=LogIncarnation(_hex(fields[1], INCARNATION_BYTES, "an incarnation")),
        replicas=replicas,
        tip=_number(fields[3], "a tip"),
        settled=_flag(fields[4], "settled"),
        rest=fields[5:],
    )


def read_renewal(
    answer: Answer, *, number: int, applied: int, digest: bytes, confirmed: bool
) -> Turns[Renewal]:
    """Read what `renew` returned to renewal `number` of a member at (`applied`, `digest`).

    Records that do not follow each other, or not from that digest, are no records: the answer becomes GAP, and a boot
    heals it. Raises MalformedReplyError.
    """
    told, entries = _shape(answer.rest, 2, "a renewal")
    if _number(told, "a renewal's number") != number:
        _malformed(f"renewal {number} was answered as {told!r}")
    status, records = answer.status, (yield from _following(entries, applied, digest))
    if records is None:
        status, records = RenewalStatus.GAP, []
    if status is RenewalStatus.OK and not records and answer.tip != applied:
        status = RenewalStatus.GAP
    return Renewal(
        status=status,
        incarnation=answer.incarnation,
        number=number,
        tip=answer.tip,
        records=records,
        confirmed=confirmed,
        replicas=answer.replicas,
    )


class RawRecord(NamedTuple):
    """One entry of the stream."""

    revision: int
    payload: bytes
    digest: bytes

    def decode(self) -> LogRecord:
        """Read it; what can't be understood selects everything."""
        return read_record(self.revision, self.payload, self.digest)


def _raw_records(entries: object) -> Iterator[RawRecord]:
    """Read entries of the stream; raises MalformedReplyError."""
    for entry in _list(entries, "records"):
        name, fields = _shape(entry, 2, "a record")
        payload_name, payload, digest_name, digest = _shape(fields, 4, "a record's fields")
        revision, dash, rest = _bytes(name, "a record's id").partition(b"-")
        if payload_name != b"p" or digest_name != b"d" or not dash or rest != b"0":
            _malformed(f"a record of id {name!r} is not of this log")
        yield RawRecord(
            _number(revision, "a revision"),
            _bytes(payload, "a payload"),
            _hex(digest, DIGEST_BYTES, "a digest"),
        )


def _following(entries: object, after: int, digest: bytes) -> Turns[list[LogRecord] | None]:
    """Read records that follow each other, and a revision with that digest, as their own digests prove; None if not."""
    records: list[LogRecord] = []
    for raw in _raw_records(entries):
        after += 1
        digest = next_digest(digest, raw.payload)
        if raw.revision != after or raw.digest != digest:
            return None
        records.append(raw.decode())
        if not len(records) % LOG_TURN_ENTRIES_MAX:
            yield
    return records


def read_news(reply: object, *, after: int, digest: bytes) -> Turns[Sequence[LogRecord] | None]:
    """Read what a blocking read of the stream returned: None when its time was over; raises MalformedReplyError.

    No records where they do not follow `after` and the digest there: another history, or one that was trimmed.
    """
    if reply is None:
        return None
    (stream,) = _shape(reply, 1, "news")
    _, entries = _shape(stream, 2, "a stream")
    records = yield from _following(entries, after, digest)
    return records or ()


@in_one
def read_appended(answer: Answer) -> Appended:
    """Read what `append` returned; raises MalformedReplyError."""
    revision, members = _shape(answer.rest, 2, "an append")
    stamp = Stamp(answer.incarnation, _number(revision, "a revision"))
    return Appended(stamp, answer.settled, frozenset(_member(member) for member in _list(members, "members")))


def read_boot(answer: Answer) -> Turns[Boot]:
    """Read what `boot` returned; raises MalformedReplyError.

    A tombstone whose selector can't be understood stands for everything up to its revision (invariant I6).
    """
    digest, floors, tombstones, weights = _shape(answer.rest, 4, "a boot")
    all_floors: dict[NamespaceId | None, int] = {}
    for scope, revision in _pairs(floors, "floors"):
        space, rest = _scope(scope)
        if rest:
            _malformed("a floor's scope is too long")
        all_floors[space] = _number(revision, "a floor")
    selected: dict[Selector, int] = {}
    for count, (name, revision) in enumerate(_pairs(tombstones, "tombstones"), 1):
        selector = _selector(_scope(name)[1])
        selected[selector] = max(selected.get(selector, 0), _number(revision, "a tombstone"))
        if not count % LOG_TURN_ENTRIES_MAX:
            yield
    everything = selected.pop(EVERYTHING, 0)
    if everything:
        all_floors[None] = max(all_floors.get(None, 0), everything)
    return Boot(
        tip=answer.stamp,
        digest=_hex(digest, DIGEST_BYTES, "a digest"),
        floors=all_floors,
        tombstones=selected,
        weights=_weights(weights),
        settled=answer.settled,
        replicas=answer.replicas,
    )


def _selector(data: bytes) -> Selector:
    try:
        return Selector.decode(data)
    except ProtocolError:
        return EVERYTHING


def _weights(flat: object) -> Mapping[str, str]:
    weights = {}
    for model, value in _pairs(flat, "weights"):
        match = _WEIGHTS.fullmatch(value)
        if match is None:
            _malformed("announced weights have no version")
        try:
            weights[model.decode()] = match[1].decode()
        except UnicodeDecodeError as error:
            raise MalformedReplyError(f"announced weights are no UTF-8: {error}") from error
    return weights


def read_fence(answer: Answer, *, confirmed: bool) -> Turns[FenceState]:
    """Read what `fence` returned; raises MalformedReplyError."""
    (flat,) = _shape(answer.rest, 1, "a fence")
    members = {}
    for member, value in _pairs(flat, "members"):
        match = _MEMBER.fullmatch(value)
        if match is None:
            _malformed("a member's state is none")
        number, acknowledged, drained = (_number(part, "a member's number") for part in match.groups()[:3])
        members[_member(member)] = MemberState(
            number, acknowledged, drained, match[5].decode(errors="replace"), gone=match[4] == b"1"
        )
        if not len(members) % LOG_TURN_ENTRIES_MAX:
            yield
    return FenceState(answer.stamp, answer.settled, members, confirmed, answer.replicas)


@in_one
def read_nothing(answer: Answer) -> None:
    """Read what `fork` and `set_replicas` return; raises MalformedReplyError."""
    _shape(answer.rest, 0, "an answer")


@in_one
def read_tip(answer: Answer) -> Stamp:
    """Read what `know` returned; raises MalformedReplyError."""
    _shape(answer.rest, 0, "an answer")
    return answer.stamp


@in_one
def read_flag(answer: Answer) -> bool:
    """Read what `settle` and `leave` return; raises MalformedReplyError."""
    (flag,) = _shape(answer.rest, 1, "an answer")
    return _flag(flag, "an answer")


def read_read(answer: Answer) -> Turns[tuple[Stamp, list[LogRecord]]]:
    """Read what `read` returned; raises MalformedReplyError."""
    (entries,) = _shape(answer.rest, 1, "records")
    records: list[LogRecord] = []
    for raw in _raw_records(entries):
        records.append(raw.decode())
        if not len(records) % LOG_TURN_ENTRIES_MAX:
            yield
    return answer.stamp, records


@in_one
def read_namespace_ids(answer: Answer) -> tuple[Stamp, list[bytes]]:
    """Read what `namespaces` returned when it was asked for nothing in particular; raises MalformedReplyError."""
    (ids,) = _shape(answer.rest, 1, "ids of namespaces")
    return answer.stamp, [_bytes(id, "a namespace's id") for id in _list(ids, "ids of namespaces")]


@in_one
def read_namespaces(answer: Answer) -> tuple[Stamp, list[bytes]]:
    """Read canonical encodings, without those that were gone when they were asked for; raises MalformedReplyError."""
    (canonicals,) = _shape(answer.rest, 1, "namespaces")
    return answer.stamp, [
        _bytes(canonical, "a namespace")
        for canonical in _list(canonicals, "namespaces")
        if canonical is not None
    ]


@in_one
def read_sizes(answer: Answer) -> Mapping[str, int]:
    """Read what `statistics` returned, by SIZE_NAMES; raises MalformedReplyError."""
    (sizes,) = _shape(answer.rest, 1, "statistics")
    fields = _shape(sizes, len(SIZE_NAMES), "sizes")
    return {name: _number(size, f"a count of {name}") for name, size in zip(SIZE_NAMES, fields, strict=True)}


def _malformed(what: str) -> NoReturn:
    raise MalformedReplyError(what)


def _list(value: object, what: str) -> Sequence[object]:
    if not isinstance(value, list):
        _malformed(f"{what} is no list but {type(value).__name__}")
    return value


def _shape(value: object, size: int, what: str) -> Sequence[object]:
    fields = _list(value, what)
    if len(fields) != size:
        _malformed(f"{what} has {len(fields)} fields instead of {size}")
    return fields


def _bytes(value: object, what: str) -> bytes:
    if not isinstance(value, bytes):
        _malformed(f"{what} is no text but {type(value).__name__}")
    return value


def _number(value: object, what: str) -> int:
    data = _bytes(value, what)
    if not 1 <= len(data) <= 16 or not data.isdigit() or int(data) > LOG_REVISION_MAX:
        _malformed(f"{what} is no number: {data[:32]!r}")
    return int(data)


def _flag(value: object, what: str) -> bool:
    if value not in (b"0", b"1"):
        _malformed(f"{what} is neither 0 nor 1: {value!r:.64}")
    return value == b"1"


def _hex(value: object, size: int, what: str) -> bytes:
    data = _bytes(value, what)
    if len(data) == 2 * size:
        try:
            return bytes.fromhex(data.decode("ascii"))
        except ValueError as error:
            raise MalformedReplyError(f"{what} is not hexadecimal: {data!r}") from error
    _malformed(f"{what} has {len(data)} digits instead of {2 * size}")


def _member(value: object) -> bytes:
    data = _bytes(value, "a member's id")
    if len(data) != MEMBER_BYTES:
        _malformed(f"a member's id has {len(data)} bytes")
    return data


def _scope(name: bytes) -> tuple[NamespaceId | None, bytes]:
    if name[:1] == b"-":
        return None, name[1:]
    if name[:1] == b"n" and len(name) > KEY_BYTES:
        return NamespaceId(name[1 : 1 + KEY_BYTES]), name[1 + KEY_BYTES :]
    _malformed(f"a scope begins with {name[:1]!r}")


def _pairs(flat: object, what: str) -> Iterator[tuple[bytes, bytes]]:
    fields = _list(flat, what)
    if len(fields) % 2:
        _malformed(f"{what} has {len(fields)} fields, which are no pairs")
    for at in range(0, len(fields), 2):
        yield _bytes(fields[at], what), _bytes(fields[at + 1], what)
