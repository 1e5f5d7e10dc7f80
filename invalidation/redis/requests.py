"""What each verb of the log's script is given: values of the log's contract as the script's own arguments."""

from __future__ import annotations

from collections.abc import Sequence

from invalidation.compaction import scope_of
from invalidation.log import Member, checked_number
from invalidation.records import DIGEST_BYTES, LogEntry
from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.events import Selected, WeightsAnnounced
from kv_types.ids import INCARNATION_BYTES, LogIncarnation, NamespaceId
from kv_types.limits import MEMBER_NOTE_BYTES_MAX, NAMESPACE_BYTES_MAX, REPLICAS_MAX
from kv_types.selectors import Selector

MEMBER_BYTES = 16
REQUEST_BYTES = 16

_FLEET = b"-"
_NAMESPACE = b"n"


def scope_bytes(scope: NamespaceId | None) -> bytes:
    """A scope as the script's tables name it: "-" for the fleet, "n" and the id for a namespace."""
    return _FLEET if scope is None else _NAMESPACE + scope


def append_arguments(entry: LogEntry, *, request_id: bytes) -> list[bytes]:
    """Raises InvalidArgumentError on a request id of the wrong size."""
    _check_size(request_id, REQUEST_BYTES, "a request id")
    match entry.event:
        case Selected(selector):
            what = _selected(selector)
        case WeightsAnnounced(model, version):
            what = [b"W", model.encode(), version.encode()]
    return [request_id, entry.encode(), *what]


def _selected(selector: Selector) -> list[bytes]:
    scope = scope_of(selector)
    if selector.is_everything:
        return [b"E"]
    if scope is not None and selector == Selector(namespace=scope):
        return [b"N", scope_bytes(scope)]
    return [b"T", scope_bytes(scope), selector.encode()]


def renew_arguments(member: Member, *, number: int) -> list[bytes]:
    """Raises InvalidArgumentError on what is no member or no renewal, LimitExceededError on too long a note."""
    _check_size(member.id, MEMBER_BYTES, "a member's id")
    _check_size(member.digest, DIGEST_BYTES, "a log's digest")
    note = member.note.encode()
    if len(note) > MEMBER_NOTE_BYTES_MAX:
        raise LimitExceededError(
            f"a note has at most {MEMBER_NOTE_BYTES_MAX} bytes of UTF-8; got {len(note)}"
        )
    return [
        member.id,
        _number(number, "the number of a renewal"),
        incarnation_text(member.applied.incarnation),
        _number(member.applied.revision, "a revision"),
        member.digest.hex().encode(),
        _number(member.acknowledged, "a revision"),
        _number(member.drained, "a revision"),
        note,
    ]


def leave_arguments(member: bytes, *, number: int, drained: bool) -> list[bytes]:
    """Raises InvalidArgumentError on what is no member or no renewal."""
    _check_size(member, MEMBER_BYTES, "a member's id")
    return [member, _number(number, "the number of a renewal"), b"1" if drained else b"0"]


def replicas_arguments(replicas: int) -> list[bytes]:
    """Raises LimitExceededError on more replicas than WAIT is used for."""
    if not 0 <= replicas <= REPLICAS_MAX:
        raise LimitExceededError(f"a log has 0 to {REPLICAS_MAX} configured replicas; got {replicas}")
    return [b"%d" % replicas]


def read_arguments(after: int, *, count: int) -> list[bytes]:
    """Raises InvalidArgumentError on what is no revision or no count."""
    return [_number(after, "a revision"), _number(count, "a count of records", least=1)]


def know_arguments(canonicals: Sequence[bytes]) -> list[bytes]:
    """Raises LimitExceededError on an encoding that no namespace has."""
    for canonical in canonicals:
        if not 1 <= len(canonical) <= NAMESPACE_BYTES_MAX:
            raise LimitExceededError(
                f"a namespace's encoding has 1 to {NAMESPACE_BYTES_MAX} bytes; got {len(canonical)}"
            )
    return list(canonicals)


def incarnation_text(incarnation: LogIncarnation) -> bytes:
    """An incarnation as the script compares it; raises InvalidArgumentError on the wrong size."""
    _check_size(incarnation, INCARNATION_BYTES, "a log incarnation")
    return incarnation.hex().encode()


def _number(value: int, what: str, *, least: int = 0) -> bytes:
    return b"%d" % checked_number(value, what, least=least)


def _check_size(value: bytes, size: int, what: str) -> None:
    if len(value) != size:
        raise InvalidArgumentError(f"{what} has {size} bytes; got {len(value)}")
