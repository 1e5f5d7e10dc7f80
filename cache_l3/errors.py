"""Why a server did not do what it was asked: errors of redis-py and of servers as the short words that people and metrics see."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

from redis import exceptions

_CREDENTIALS = "name its user and password in the URL, redis://user:password@host, or redis://:password@host for its default user"
_NO_TLS = "if it speaks no TLS, its URL begins with redis://"
_ONLY_TLS = "if it speaks TLS alone, its URL begins with rediss://"
_NO_HANDSHAKE = (
    "WRONG_VERSION_NUMBER",
    "UNEXPECTED_EOF_WHILE_READING",
    "RECORD_LAYER_FAILURE",
    "HTTP_REQUEST",
)
"""What OpenSSL says of bytes that are no handshake."""
_BY_CODE = {
    "OOM": "full",
    "LOADING": "loading",
    "READONLY": "readonly",
    "MASTERDOWN": "readonly",
    "MOVED": "moved",
    "ASK": "moved",
    "CLUSTERDOWN": "moved",
    "TRYAGAIN": "moved",
    "NOREPLICAS": "replicas",
    "MISCONF": "disk",
    "BUSY": "busy",
    "NOAUTH": "denied",
    "WRONGPASS": "denied",
    "NOPERM": "denied",
    "NOSCRIPT": "script",
}
_BY_WORDS = (
    ("max number of clients", "clients"),
    ("unauthenticated", "denied"),
    ("acl failure", "denied"),
    ("no permissions", "denied"),
    ("can't run this command", "denied"),
    ("unknown command", "version"),
    ("invalid bulk length", "size"),
    ("script", "script"),
    ("cluster mode is not enabled", "single"),
)
_BY_TYPE: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.AuthenticationError, "denied"),
    (exceptions.BusyLoadingError, "loading"),
    (exceptions.TimeoutError, "timeout"),
    (TimeoutError, "timeout"),
    (exceptions.InvalidResponse, "malformed"),
    (exceptions.ConnectionError, "unreachable"),
    (asyncio.IncompleteReadError, "unreachable"),
    (OSError, "unreachable"),
)


def explain(error: Exception, *, server: str, remedies: Mapping[str, str], hint: str = "") -> str:
    """A line about an error met on the way to a server, or in its reply, with what to do about it if that is known.

    `remedies` are by the words of `reason_of`; `hint` is for an error without one.
    """
    # Not even the error's own text is sure to be there, or to be short.
    detail = f"{server}: {(str(error) or type(error).__name__):.500}"
    remedy = _CREDENTIALS if _is_stranger(error) else remedies.get(reason_of(error), hint)
    return f"{detail}; {remedy}" if remedy else detail


def tls_hint(scheme: str, error: Exception) -> str:
    """What a new connection that failed may have to do with TLS, empty where nothing hints at that.

    A server without TLS takes a greeting for the begin of a command and waits for its end; one with TLS hangs up on a
    command, or answers with bytes that are none of Redis.
    """
    reason = reason_of(error)
    if scheme == "rediss":
        return _NO_TLS if _is_no_handshake(error) else ""
    hung_up = reason == "unreachable" and "connecting to" not in str(error)
    return _ONLY_TLS if scheme == "redis" and (hung_up or reason == "malformed") else ""


def _is_no_handshake(error: BaseException) -> bool:
    """Whether a handshake got no answer of its kind: redis-py raises its own error in place of the one that it met."""
    met = error.__context__ if isinstance(error, exceptions.ConnectionError) else error
    if isinstance(met, ssl.SSLError):
        return met.reason in _NO_HANDSHAKE
    return isinstance(met, TimeoutError | ConnectionResetError | ConnectionAbortedError)


def _is_stranger(error: Exception) -> bool:
    """Whether the server does not know who this is; else it knows, and does not let them."""
    text = str(error)
    code = getattr(error, "status_code", None) or text.split(" ", 1)[0]
    return (
        isinstance(error, exceptions.AuthenticationError)
        or code in ("NOAUTH", "WRONGPASS")
        or "unauthenticated" in text.lower()  # a server's words for a long call before AUTH
    )


def reason_of(error: Exception) -> str:
    """The kind of an error in one word."""
    text = str(error)
    code = getattr(error, "status_code", None) or text.split(" ", 1)[0]
    # A script's error may have the code of the command that failed within it, further on in the text.
    found = _BY_CODE.get(code) or next(
        (_BY_CODE[word] for word in map(_without_dash, text.split()) if word in _BY_CODE), None
    )
    if found is not None:
        return found
    lower = text.lower()
    for words, reason in _BY_WORDS:
        if isinstance(error, exceptions.RedisError | exceptions.RedisClusterException) and words in lower:
            return reason
    for kind, reason in _BY_TYPE:
        if isinstance(error, kind):
            return reason
    return "refused" if isinstance(error, exceptions.ResponseError) else "malformed"


def _without_dash(word: str) -> str:
    return word.removeprefix("-")
