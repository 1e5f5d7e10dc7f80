"""Addresses of Redis servers: URLs read once and strictly, and the connections that they stand for.

One server, several that stand for each other, or servers of a Cluster: `redis+cluster://` and `rediss+cluster://`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis import connection as threaded
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)

from kv_types.errors import ConfigError
from kv_types.limits import SERVERS_NAMED_MAX

_CLASSES: Mapping[str, type[AbstractConnection]] = {
    "redis": Connection,
    "rediss": SSLConnection,
    "unix": UnixDomainSocketConnection,
}
_THREADED: Mapping[str, Callable[..., threaded.AbstractConnection]] = {
    "redis": threaded.Connection,
    "rediss": threaded.SSLConnection,
    "unix": threaded.UnixDomainSocketConnection,
}
_CLUSTER = "+cluster"
PORT_DEFAULT = 6379
_OPTIONS = frozenset({"db", "username", "password"})
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
_HALF_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_DATABASE = re.compile("0|[1-9][0-9]{0,8}")
_UNREADABLE = (
    "a server's URL can't be read; it is redis://[user:password@]host[:port][/db], the same with rediss://, unix://path, or "
    "redis+cluster://[user:password@]host[:port] and rediss+cluster:// for a Cluster; "
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

    def threaded_connection(self, *, timeout_s: float) -> threaded.AbstractConnection:
        """One for a thread, not open yet; each wait of its opening ends after `timeout_s`."""
        return _THREADED[self.scheme](
            **self.options, protocol=2, socket_timeout=timeout_s, socket_connect_timeout=timeout_s,
            driver_info=None,
        )  # fmt: skip

    @property
    def is_encrypted(self) -> bool:
        """Whether its connections speak TLS."""
        return self.scheme == "rediss"

    def at(self, host: str, port: int) -> RedisAddress:
        """Another server of the same kind and credentials."""
        place = {"host": host, "port": port}
        return replace(self, label=f"{self.scheme}://{host}:{port}", options={**self.options, **place})


@dataclass(frozen=True, slots=True)
class RedisServers:
    """Servers that were named: of one Cluster, or any of which may be the primary."""

    addresses: tuple[RedisAddress, ...]
    is_cluster: bool

    @property
    def label(self) -> str:
        """All of them in one line, without passwords."""
        return ", ".join(address.label for address in self.addresses)


def parse_servers(urls: str) -> RedisServers:
    """Read one URL or several with a comma between; raises ConfigError.

    Beside those of `parse_addresses`: `redis+cluster://[user:password@]host[:port]` and `rediss+cluster://…`, whose further
    servers may be named as `host[:port]` alone, and whose options may stand behind the last.
    """
    parts = [part.strip() for part in urls.split(",")]
    if not parts[0].partition("://")[0].endswith(_CLUSTER):
        return RedisServers(parse_addresses(urls), is_cluster=False)
    last, mark, options = parts[-1].partition("?")
    if mark and "://" not in last:  # they stand behind the last server, and are meant for all
        joint = "&" if "?" in parts[0] else "?"
        parts[0], parts[-1] = f"{parts[0]}{joint}{options}", last
    first = parse_address(_without_cluster(parts[0]))
    if first.scheme == "unix":
        raise ConfigError("servers of a Cluster are reached over TCP; name one by redis+cluster://")
    _check_of_cluster(first, first)
    rest = (_of_cluster(part, first) for part in _checked_count(parts)[1:])
    return RedisServers((first, *rest), is_cluster=True)


def _of_cluster(part: str, first: RedisAddress) -> RedisAddress:
    if "://" in part:
        return _check_of_cluster(parse_address(_without_cluster(part)), first)
    if "@" in part:
        raise ConfigError("a Cluster's user and password stand in its first URL, for all its servers")
    named = parse_address(f"{first.scheme}://{part}")
    if _terms_of(named):
        raise ConfigError(
            f"options of a Cluster stand behind its first or its last server; {named.label} is neither"
        )
    return _check_of_cluster(replace(named, options={**_terms_of(first), **named.options}), first)


def _check_of_cluster(named: RedisAddress, first: RedisAddress) -> RedisAddress:
    if named.options.get("db"):
        raise ConfigError(
            f"a Cluster has no database but 0; {named.label} names database {named.options['db']}"
        )
    if (named.scheme, _terms_of(named)) != (first.scheme, _terms_of(first)):
        raise ConfigError(
            f"servers of a Cluster have TLS, user, password and options in common; those of {named.label} are not those "
            f"of {first.label}"
        )
    return named


def _terms_of(address: RedisAddress) -> dict[str, Any]:
    """How it is spoken to, wherever it is."""
    return {name: value for name, value in address.options.items() if name not in ("host", "port", "db")}


def _without_cluster(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if not scheme.endswith(_CLUSTER):
        raise ConfigError("servers of a Cluster and others can't be named together")
    return f"{scheme.removesuffix(_CLUSTER)}://{rest}"


def _checked_count(parts: list[str]) -> list[str]:
    if len(parts) > SERVERS_NAMED_MAX:
        raise ConfigError(f"{len(parts)} servers are named; at most {SERVERS_NAMED_MAX} may be")
    return parts


def parse_addresses(urls: str) -> tuple[RedisAddress, ...]:
    """Read one URL or several with a comma between, none of a Cluster; raises ConfigError.

    `redis://[user:password@]host[:port][/db]`, `rediss://…` (TLS, with redis-py's ssl_… options), and
    `unix://[user:password@]/path[?db=n]`.
    """
    return tuple(parse_address(part) for part in _checked_count([part.strip() for part in urls.split(",")]))


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
        else f"{split.scheme}://{split.hostname}:{port or PORT_DEFAULT}"
    )
    if "#" in url:
        raise ConfigError(f"{label} has a fragment, which means nothing; a # in a name is written %23")
    if split.scheme == "unix" and not split.path:
        raise ConfigError("a URL with unix:// needs the path of a socket, as in unix:///run/redis.sock")
    if split.scheme != "unix" and not split.hostname:
        raise ConfigError(f"a URL with {split.scheme}:// needs a host, as in {split.scheme}://redis:6379")
    if port == 0:
        raise ConfigError(f"{split.scheme}://{split.hostname} has the port 0; ports are 1 to 65535")
    _check_escapes(split, label)
    _check_options(split, label)
    return RedisAddress(label, split.scheme, options)


def _check_escapes(split: SplitResult, label: str) -> None:
    parts = {
        "user": split.username, "password": split.password, "host": split.hostname, "path": split.path,
        "options": split.query,
    }  # fmt: skip
    for part, text in parts.items():
        try:
            unquote(text or "", errors="strict")
            is_whole = _HALF_ESCAPE.search(text or "") is None
        except UnicodeDecodeError:
            is_whole = False
        if not is_whole:
            raise ConfigError(
                f"{label} has a percent sign in its {part} that begins no escape of UTF-8; % itself is written %25"
            )


def _check_options(split: SplitResult, label: str) -> None:
    given = parse_qsl(split.query, keep_blank_values=True)
    unknown = sorted({name for name, _ in given} - _options_of(split.scheme))
    if unknown:
        raise ConfigError(f"{label} has options that are not known: {', '.join(unknown)}")
    if split.scheme != "unix" and split.path not in ("", "/"):
        given.append(("db", split.path[1:]))
    given += [("username", name) for name in [split.username] if name]
    given += [("password", word) for word in [split.password] if word]
    seen: set[str] = set()
    for name, value in given:
        if name == "db" and _DATABASE.fullmatch(value) is None:
            raise ConfigError(
                f"{label} has the database {value!r}; such a URL has a database's number there, 0 or more"
            )
        if name in seen or not value:
            raise ConfigError(f"{label} has {'no value' if not value else 'two values'} for {name}")
        seen.add(name)


def _options_of(scheme: str) -> frozenset[str]:
    return _OPTIONS | (_TLS_OPTIONS if scheme == "rediss" else frozenset())
