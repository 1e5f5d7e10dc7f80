"""Why the log did not answer: errors of redis-py and of servers as the short words that people and metrics see."""

from __future__ import annotations

import asyncio
import ssl

from redis import exceptions

from invalidation.log import LogUnavailableError

RIGHTS = (
    "give its user the right to EVAL, EVALSHA, INFO, WAIT and XREAD and to the script's commands on the log's keys: "
    "ACL SETUSER <user> ~stratakv:* +@read +@write +eval +evalsha +info +wait"
)
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
_REMEDIES = {
    "denied": RIGHTS,
    "version": "use Redis 6.2 or later, or Valkey",
    "full": "let its pages be evicted: CONFIG SET maxmemory-policy volatile-lru",
    "disk": "look at its disk: it refuses writes until it can save again",
}

_BY_CODE = {
    "OOM": "full",
    "LOADING": "loading",
    "READONLY": "readonly",
    "MASTERDOWN": "readonly",
    "MOVED": "moved",
    "ASK": "moved",
    "CLUSTERDOWN": "moved",
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
    ("script", "script"),
)
_BY_TYPE: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.AuthenticationError, "denied"),
    (exceptions.BusyLoadingError, "loading"),
    (exceptions.TimeoutError, "timeout"),
    (exceptions.InvalidResponse, "malformed"),
    (exceptions.ConnectionError, "unreachable"),
    (asyncio.IncompleteReadError, "unreachable"),
    (OSError, "unreachable"),
)


def unavailable(error: Exception, *, server: str, hint: str = "") -> LogUnavailableError:
    """What is raised for an error met on the way to a server, or in its reply; `hint` is for one without a known remedy."""
    reason = _reason(error)
    # Not even the error's own text is sure to be there, or to be short.
    detail = f"{server}: {(str(error) or type(error).__name__):.500}"
    remedy = _CREDENTIALS if _is_stranger(error) else _REMEDIES.get(reason, hint)
    return LogUnavailableError(reason, f"{detail}; {remedy}" if remedy else detail)


def tls_hint(scheme: str, error: Exception) -> str:
    """What a new connection that failed may have to do with TLS, empty where nothing hints at that.

    A server without TLS takes a greeting for the begin of a command and waits for its end; one with TLS hangs up on a
    command, or answers with bytes that are none of Redis.
    """
    reason = _reason(error)
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


def _reason(error: Exception) -> str:
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
        if isinstance(error, exceptions.RedisError) and words in lower:
            return reason
    for kind, reason in _BY_TYPE:
        if isinstance(error, kind):
            return reason
    return "refused" if isinstance(error, exceptions.ResponseError) else "malformed"


def _without_dash(word: str) -> str:
    return word.removeprefix("-")
