"""Commands as RESP writes them, and the bounds of what may be sent: the same for every data path."""

from __future__ import annotations

from collections.abc import Sequence

from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.limits import L3_ASK_BYTES_MAX, L3_ASK_COMMANDS_MAX, L3_KEY_BYTES_MAX, TTL_S_MAX

ASKING = b"*1\r\n$6\r\nASKING\r\n"


def encode(*words: bytes) -> bytes:
    """One command."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def encode_get(key: bytes, *, asking: bool) -> bytes:
    """GET of a record. Raises InvalidArgumentError for a key that no page has."""
    _check_key(key)
    return (ASKING if asking else b"") + encode(b"GET", key)


def encode_set(key: bytes, *, value_bytes: int, ttl_s: int, asking: bool) -> tuple[bytes, bytes]:
    """What goes before and after the value of a SET. Raises InvalidArgumentError."""
    _check_key(key)
    if not 1 <= ttl_s <= TTL_S_MAX:
        raise InvalidArgumentError(f"a record lives 1 to {TTL_S_MAX} s; got {ttl_s}")
    command = b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, value_bytes)
    return (ASKING if asking else b"") + command, b"\r\n$2\r\nEX\r\n$%d\r\n%d\r\n" % (
        len(str(ttl_s)), ttl_s,
    )  # fmt: skip


def encode_question(commands: Sequence[Sequence[bytes]], *, asking: bool) -> bytes:
    """Commands in a row, ASKING before each if wanted. Raises InvalidArgumentError, LimitExceededError."""
    if not commands or not all(commands):
        raise InvalidArgumentError("a question has one command at least, and a command a name")
    if len(commands) > L3_ASK_COMMANDS_MAX:
        raise LimitExceededError(f"{len(commands)} commands; one question has at most {L3_ASK_COMMANDS_MAX}")
    before = ASKING if asking else b""
    request = b"".join(before + encode(*words) for words in commands)
    if len(request) > L3_ASK_BYTES_MAX:
        raise LimitExceededError(f"{len(request)} bytes; one question has at most {L3_ASK_BYTES_MAX}")
    return request


def _check_key(key: bytes) -> None:
    if not 1 <= len(key) <= L3_KEY_BYTES_MAX:
        raise InvalidArgumentError(f"a key has 1 to {L3_KEY_BYTES_MAX} bytes; got {len(key)}")
