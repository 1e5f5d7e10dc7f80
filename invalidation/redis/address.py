"""Addresses of Redis servers: URLs read once and strictly, and the connections that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)

from kv_types.errors import ConfigError
from kv_types.limits import LOG_CANDIDATES_MAX

_CLASSES: Mapping[str, type[AbstractConnection]] = {
    "redis": Connection,
    "rediss": SSLConnection,
    "unix": UnixDomainSocketConnection,
}
_OPTIONS = frozenset({"db", "username", "password", "path", "host", "port"})
_TLS_OPTIONS = frozenset(
    {
        "ssl_ca_certs",
        "ssl_ca_path",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_cert_reqs",
        "ssl_check_hostname",
        "ssl_min_version",
        "ssl_password",
    }
)
_UNREADABLE = (
    "a log's URL can't be read; it is redis://[user:password@]host[:port][/db], the same with rediss://, or unix://path; "
    "in a password # / ? @ : are written %23 %2F %3F %40 %3A"
)


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Where one Redis server is. `label` names it for people, without the password."""

    label: str
    scheme: str
    options: Mapping[str, Any]

    def connection(self) -> AbstractConnection:
        """A connection that is not open yet, and that leaves deadlines and retries to whoever uses it."""
        return _CLASSES[self.scheme](
            **self.options, protocol=2, socket_timeout=None, socket_connect_timeout=None, driver_info=None
        )


def parse_addresses(urls: str) -> tuple[RedisAddress, ...]:
    """Read one URL or several with a comma between; raises ConfigError.

    `redis://[user:password@]host[:port][/db]`, `rediss://…` (TLS, with redis-py's ssl_… options), and
    `unix://[user:password@]/path[?db=n]`.
    """
    parts = [part.strip() for part in urls.split(",")]
    if len(parts) > LOG_CANDIDATES_MAX:
        raise ConfigError(f"{len(parts)} servers are named for the log; at most {LOG_CANDIDATES_MAX} may be")
    return tuple(parse_address(part) for part in parts)


def parse_address(url: str) -> RedisAddress:
    """Read one URL; raises ConfigError. What it says of a wrong one never shows a password."""
    try:
        split = urlsplit(url)
        options: dict[str, Any] = dict(parse_url(url))
        port = split.port
    except ValueError:  # its text may be a part of the password
        raise ConfigError(_UNREADABLE) from None
    if split.scheme != "unix" and "@" in split.path + split.query + split.fragment:
        raise ConfigError(_UNREADABLE)  # what stands before is the rest of a password
    options.pop("connection_class", None)
    label = (
        f"unix://{split.path}"
        if split.scheme == "unix"
        else f"{split.scheme}://{split.hostname}:{port or 6379}"
    )
    allowed = _OPTIONS | (_TLS_OPTIONS if split.scheme == "rediss" else frozenset())
    unknown = sorted(options.keys() - allowed)
    if unknown:
        raise ConfigError(f"{label} has options that are not known: {', '.join(unknown)}")
    if split.scheme == "unix" and not split.path:
        raise ConfigError("a log's URL with unix:// needs the path of a socket, as in unix:///run/redis.sock")
    if split.scheme != "unix" and not split.hostname:
        raise ConfigError(
            f"a log's URL with {split.scheme}:// needs a host, as in {split.scheme}://redis:6379"
        )
    if split.scheme != "unix" and split.path not in ("", "/") and "db" not in options:
        raise ConfigError(
            f"{label} has the path {split.path!r}; the path of such a URL is a database's number"
        )
    return RedisAddress(label, split.scheme, options)
