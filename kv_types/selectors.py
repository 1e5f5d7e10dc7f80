"""Selectors: what an invalidation names, as a value with canonical bytes, and what it matches."""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kv_types.clock import show_time
from kv_types.computation import Weights, check_name
from kv_types.errors import InvalidArgumentError, LimitExceededError, ProtocolError, StrataError
from kv_types.ids import NamespaceId, PageKey, namespace_id, page_key
from kv_types.limits import PRODUCER_BYTES_MAX, SELECTOR_BYTES_MAX, TAG_BYTES_MAX
from kv_types.namespace import Namespace
from kv_types.numbers import check_word

_HEAD = struct.Struct("<BH")  # field number, bytes of its value
_U64 = struct.Struct("<Q")
_DIGEST = re.compile(r"[0-9A-Fa-f]{64}")

# Numbers are part of the log's format and never reused; encoding is in ascending order.
_NUMBERS = {
    "namespace": 1,
    "model": 2,
    "weights_version": 3,
    "adapter": 4,
    "tenant": 5,
    "key": 6,
    "producer": 7,
    "tag": 8,
    "since_ms": 9,
    "until_ms": 10,
    "since_revision": 11,
    "until_revision": 12,
    "other_weights_than": 13,
}
_OF_NAMESPACE = ("namespace", "model", "weights_version", "adapter", "tenant", "other_weights_than")
_values = operator.attrgetter(*_NUMBERS)
"""A selector's values in the order of their numbers. Logs have thousands of selectors: they are read in one go."""


def _check_id(value: bytes, name: str) -> None:
    namespace_id(value) if name == "namespace" else page_key(value)


def _check_text(value: str, name: str) -> None:
    if value != "" or name not in ("adapter", "tenant"):
        check_name(value, name.replace("_", " "))


def _check_bytes(value: bytes, name: str) -> None:
    most = PRODUCER_BYTES_MAX if name == "producer" else TAG_BYTES_MAX
    if not isinstance(value, bytes) or not 1 <= len(value) <= most:
        raise LimitExceededError(f"a {name} is 1 to {most} bytes; got {value!r}")


def _check_order(since: str, first: int | None, until: str, last: int | None) -> None:
    if first is not None and last is not None and first > last:
        raise InvalidArgumentError(f"{since} {first} lies after {until} {last}: it would select nothing")


def _read_whole(data: bytes) -> int:
    (value,) = _U64.unpack(data)
    return int(value)


_Kind = tuple[Callable[[Any, str], None], Callable[[Any], bytes], Callable[[bytes], Any]]
"""How a value is checked, written and read."""
_ID: _Kind = (_check_id, bytes, bytes)
_TEXT: _Kind = (_check_text, str.encode, bytes.decode)
_BYTES: _Kind = (_check_bytes, bytes, bytes)
_WHOLE: _Kind = (check_word, _U64.pack, _read_whole)
_KINDS = (_ID, _TEXT, _TEXT, _TEXT, _TEXT, _ID, _BYTES, _BYTES, _WHOLE, _WHOLE, _WHOLE, _WHOLE, _TEXT)
_FIELDS = [
    (number, name, check, write)
    for (name, number), (check, write, _) in zip(_NUMBERS.items(), _KINDS, strict=True)
]
_READERS = {
    number: (name, read) for (name, number), (_, _, read) in zip(_NUMBERS.items(), _KINDS, strict=True)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How one page came to be, as selectors see it.

    `producer` and `tags` are None where they were not kept apart (they may be anything). `from_ms` and `until_ms` are
    the producer's wall clock, Unix ms, 0 where it is unknown. `revision` is that of the page's stamp. With `lineage_known`
    False the page may rest on pages that are none of its resident ancestors.
    """

    producer: bytes | None
    tags: tuple[bytes, ...] | None
    from_ms: int
    until_ms: int
    revision: int
    lineage_known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """What a record selects: every field that is set must match (fields combine by "and"); none set selects everything.

    `model`, `weights_version` (a Weights.version, or 64 hexadecimal digits of a weights digest), `adapter` (a name; ""
    for none) and `tenant` ("" for none) are fields of a Namespace. `other_weights_than` selects where `weights_version`
    with the same text would not: every version but that one. `key` selects the page and everything computed on
    top of it (rule R3). `producer` and `tag` are those a put named. `since_ms` and `until_ms` (Unix ms, both ends
    included) select what was computed in an interval that overlaps theirs, widened by a skew bound; `since_revision` and
    `until_revision` (included) bound the stamp. What stands on a selected page is selected too, always.

    Raises InvalidArgumentError, LimitExceededError.
    """

    namespace: NamespaceId | None = None
    model: str | None = None
    weights_version: str | None = None
    adapter: str | None = None
    tenant: str | None = None
    key: PageKey | None = None
    producer: bytes | None = None
    tag: bytes | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    since_revision: int | None = None
    until_revision: int | None = None
    other_weights_than: str | None = None

    def __post_init__(self) -> None:
        for place, value in enumerate(_values(self)):
            if value is not None:
                _, name, check, _ = _FIELDS[place]
                check(value, name)
        _check_order("since_ms", self.since_ms, "until_ms", self.until_ms)
        _check_order("since_revision", self.since_revision, "until_revision", self.until_revision)
        if self._names_text and len(self.encode()) > SELECTOR_BYTES_MAX:  # nothing else is long
            raise LimitExceededError(f"a selector has at most {SELECTOR_BYTES_MAX} bytes; shorten its names")

    @property
    def is_everything(self) -> bool:
        """Whether it selects every page there is."""
        return self.key is None and not self.names_namespace and not self.names_origin

    @property
    def is_one_namespace(self) -> bool:
        """Whether it selects all pages of one namespace, named by its id, and says nothing else."""
        return (
            self.namespace is not None
            and self.key is None
            and all(getattr(self, name) is None for name in _OF_NAMESPACE[1:])
            and not self.names_origin
        )

    @property
    def _names_text(self) -> bool:
        return not (
            self.model is None
            and self.weights_version is None
            and self.adapter is None
            and self.tenant is None
            and self.other_weights_than is None
        )

    @property
    def names_namespace(self) -> bool:
        """Whether any condition is on the namespace."""
        return not (
            self.namespace is None
            and self.model is None
            and self.weights_version is None
            and self.adapter is None
            and self.tenant is None
            and self.other_weights_than is None
        )

    @property
    def names_origin(self) -> bool:
        """Whether any condition is on how a page came to be, so that neither its key nor its namespace decides."""
        # spelled out: it is asked several times for each record of a storm
        return not (
            self.producer is None
            and self.tag is None
            and self.since_ms is None
            and self.until_ms is None
            and self.since_revision is None
            and self.until_revision is None
        )

    def matches_namespace(self, namespace: Namespace) -> bool:
        """Whether pages of a namespace may be selected at all."""
        adapter = namespace.adapter.name if namespace.adapter is not None else ""
        return (
            (self.namespace is None or self.namespace == namespace.id)
            and (self.model is None or self.model == namespace.model)
            and (self.weights_version is None or names_weights(self.weights_version, namespace.weights))
            and (
                self.other_weights_than is None
                or not names_weights(self.other_weights_than, namespace.weights)
            )
            and (self.adapter is None or self.adapter == adapter)
            and (self.tenant is None or self.tenant == namespace.tenant)
        )

    def matches_origin(self, origin: Origin, *, skew_ms: int) -> bool:
        """Whether a page of this origin is selected by its own origin, or may be by that of an unknown ancestor."""
        if not self.names_origin or not origin.lineage_known:
            return True
        return (
            (self.producer is None or origin.producer is None or self.producer == origin.producer)
            and (self.tag is None or origin.tags is None or self.tag in origin.tags)
            and (self.since_ms is None or not origin.until_ms or origin.until_ms + skew_ms >= self.since_ms)
            and (self.until_ms is None or not origin.from_ms or origin.from_ms <= self.until_ms + skew_ms)
            and (self.since_revision is None or origin.revision >= self.since_revision)
            and (self.until_revision is None or origin.revision <= self.until_revision)
        )

    def encode(self) -> bytes:
        """Canonical bytes, the same for equal selectors; none for everything."""
        parts: list[bytes] = []
        for place, value in enumerate(_values(self)):
            if value is not None:
                number, _, _, write = _FIELDS[place]
                data = write(value)
                parts.append(_HEAD.pack(number, len(data)) + data)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> Selector:
        """Read canonical bytes back; raises ProtocolError on anything that encode() does not give."""
        values: dict[str, Any] = {}
        end = last = 0
        try:
            while end < len(data):
                number, size = _HEAD.unpack_from(data, end)
                begin, end = end + _HEAD.size, end + _HEAD.size + size
                name, read = _READERS[number]
                values[name] = read(data[begin:end])
                if number <= last:  # each field once and in order: one selector has one encoding
                    raise ProtocolError("its fields are out of order")
                last = number
            if end != len(data):
                raise ProtocolError("its last field is cut off")
            return cls(**values)
        except (KeyError, UnicodeDecodeError, struct.error, StrataError) as error:
            raise ProtocolError(f"{len(data)} bytes form no selector: {error}") from error

    def describe(self) -> str:
        """Say in a line what it selects, for people."""
        if self.is_everything:
            return "everything"
        shown = []
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is None:
                continue
            if name in ("namespace", "key"):
                value = value.hex()
            elif isinstance(value, bytes):
                value = value.decode(errors="backslashreplace")
            elif name in ("since_ms", "until_ms"):
                shown.append(f"{name.removesuffix('_ms')}={show_time(value)}")
                continue
            shown.append(
                f"{name.replace('_', '-')}={value!r}"
                if isinstance(value, str)
                else f"{name.replace('_', '-')}={value}"
            )
        return " and ".join(shown)


EVERYTHING = Selector()


def names_weights(version: str, weights: Weights) -> bool:
    """Whether weights have this version, or this digest, whose hexadecimal digits may be of either case."""
    if weights.digest is not None:
        return version.lower() == weights.digest.hex()
    return version == weights.version


def may_be_same_weights(version: str, other: str) -> bool:
    """Whether some weights have both names: one version, or one digest written in two ways."""
    return version == other or (_DIGEST.fullmatch(version) is not None and version.lower() == other.lower())


EVERYTHING = Selector()
