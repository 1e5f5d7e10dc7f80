"""URLs of servers: read strictly, told without passwords, of one server, of several, of a Cluster."""

from __future__ import annotations

import pytest

from cache_l3.address import parse_address, parse_addresses, parse_servers
from kv_types.errors import ConfigError
from kv_types.limits import SERVERS_NAMED_MAX


@pytest.mark.parametrize(
    ("url", "label", "options"),
    [
        ("redis://h", "redis://h:6379", {"host": "h"}),
        ("redis://u:p%40x@h:7/2", "redis://h:7", {"host": "h", "port": 7, "db": 2, "username": "u", "password": "p@x"}),
        ("unix:///run/r.sock?db=3", "unix:///run/r.sock", {"path": "/run/r.sock", "db": 3}),
        ("redis://[::1]:6380", "redis://::1:6380", {"host": "::1", "port": 6380}),
        (
            "rediss://h?ssl_ca_certs=/ca.pem",
            "rediss://h:6379",
            {"host": "h", "ssl_ca_certs": "/ca.pem"},
        ),
    ],
)  # fmt: skip
def test_urls_are_read(url: str, label: str, options: dict[str, object]) -> None:
    address = parse_address(url)
    assert (address.label, dict(address.options)) == (label, options)
    assert address.connection() is not None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h:6379",
        "http://h",
        "redis://",
        "redis://h:port",
        "redis://h:99999",
        "redis://h/name",
        "redis://h?db=x",
        "redis://h?db",
        "redis://h?protocol=3",
        "redis://h?decode_responses=True",
        "redis://h?ssl_ca_certs=/ca.pem",
        "unix://",
        "unix://relative",
    ],
)
def test_a_url_that_means_nothing_is_an_error(url: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(url)


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("redis://h/-1", "database '-1'"),
        ("redis://h/1_0", "database '1_0'"),
        ("redis://h/+1", "database"),
        ("redis://h/1/2", "database '1/2'"),
        ("redis://h?db=-1", "database '-1'"),
        ("unix:///s?db=x1", "can't be read"),
        ("unix:///s?db=-1", "database '-1'"),
        ("redis://h/1?db=2", "two values for db"),
        ("redis://h?db=1&db=1", "two values for db"),
        ("redis://h?db=", "database ''"),
        ("rediss://h?ssl_ca_certs=", "no value for ssl_ca_certs"),
        ("unix://:p@/s?password=q", "two values for password"),
        ("redis://h#1", "fragment"),
        ("redis://h/0#", "fragment"),
        ("unix:///s#1", "fragment"),
        ("redis://h%zz", "host"),
        ("redis://u%zz:p@h", "user"),
        ("redis://u:%zz@h", "password"),
        ("redis://u:p%@h", "password"),
        ("redis://u:%ff@h", "password"),
        ("unix:///s%z", "path"),
        ("rediss://h?ssl_ca_certs=%2", "options"),
        ("redis://h:0", "port 0"),
        ("redis://h?host=k", "not known: host"),
        ("redis://h?path=/s", "not known: path"),
        ("redis+cluster://h/1", "names database 1"),
        ("redis+cluster://h,k/2", "names database 2"),
        ("redis+cluster://h,redis+cluster://k/3", "names database 3"),
        ("redis+cluster://h,k?db=4", "names database 4"),
        ("redis+cluster://h,k?db=5,l", "names database 5"),
        ("redis+cluster://:p@h,redis+cluster://:hunter2@k", "those of redis://k:6379"),
        ("redis+cluster://h,rediss+cluster://k", "TLS"),
        ("rediss+cluster://h,k?ssl_ca_certs=/c,l", "options of a Cluster"),
    ],
)
def test_what_is_odd_in_a_url_is_named(url: str, part: str) -> None:
    with pytest.raises(ConfigError) as failed:
        parse_servers(url)
    assert part in str(failed.value)


def test_database_0_of_a_cluster_may_be_named() -> None:
    for urls in (
        "redis+cluster://h/0,k",
        "redis+cluster://h,k/0",
        "redis+cluster://h?db=0,redis+cluster://k",
    ):
        assert len(parse_servers(urls).addresses) == 2


def test_no_error_shows_a_password() -> None:
    for url in (
        "redis://u:hunter2@h?protocol=3", "redis://u:hunter2@h/name", "redis://u:hunter2@h:x", "redis://u:hunter2%@h",
        "redis://u:hunter2#x@h", "unix://u:hunter2#x@/s", "unix://u:hunter2@/s#1", "redis://h?password=hunter2&db=x1",
        "redis://h?password=hunter2%zz",
    ):  # fmt: skip
        with pytest.raises(ConfigError) as failed:
            parse_address(url)
        assert "hunter2" not in str(failed.value)


def test_several_urls_are_candidates() -> None:
    assert [each.label for each in parse_addresses("redis://a, redis://b:1")] == [
        "redis://a:6379",
        "redis://b:1",
    ]
    with pytest.raises(ConfigError, match="at most"):
        parse_addresses(",".join(["redis://a"] * (SERVERS_NAMED_MAX + 1)))


@pytest.mark.parametrize(
    ("urls", "labels", "options"),
    [
        ("redis+cluster://h", ["redis://h:6379"], {"host": "h"}),
        ("redis+cluster://u:p@h:7,k, l:9", ["redis://h:7", "redis://k:6379", "redis://l:9"], {"username": "u", "password": "p"}),
        ("redis+cluster://:p@h, redis+cluster://:p@k:1", ["redis://h:6379", "redis://k:1"], {"password": "p"}),
        ("rediss+cluster://h?ssl_ca_certs=/c,k", ["rediss://h:6379", "rediss://k:6379"], {"ssl_ca_certs": "/c"}),
        ("rediss+cluster://h,k:1?ssl_ca_certs=/c", ["rediss://h:6379", "rediss://k:1"], {"ssl_ca_certs": "/c"}),
        ("redis+cluster://[::1]:1,[::2]:2", ["redis://::1:1", "redis://::2:2"], {}),
    ],
)  # fmt: skip
def test_servers_of_a_cluster_are_read(urls: str, labels: list[str], options: dict[str, object]) -> None:
    servers = parse_servers(urls)
    assert servers.is_cluster
    assert [address.label for address in servers.addresses] == labels
    assert servers.label == ", ".join(labels)
    assert all(options.items() <= address.options.items() for address in servers.addresses)


def test_a_server_or_several_are_no_cluster() -> None:
    servers = parse_servers("redis://a, unix:///b")
    assert not servers.is_cluster
    assert servers.addresses == parse_addresses("redis://a,unix:///b")


@pytest.mark.parametrize(
    "urls",
    [
        "redis+cluster://h/1",
        "redis+cluster://h,redis://k",
        "redis://h,redis+cluster://k",
        "redis+cluster://h,u:hunter2@k",
        "redis+cluster://h,k:port",
        "redis+cluster://",
        "unix+cluster:///run/s",
        "http+cluster://h",
        "redis+cluster://h" + ",h" * SERVERS_NAMED_MAX,
    ],
)
def test_urls_of_a_cluster_that_mean_nothing_are_errors(urls: str) -> None:
    with pytest.raises(ConfigError) as failed:
        parse_servers(urls)
    assert "hunter2" not in str(failed.value)


def test_another_server_of_the_same_kind_keeps_user_and_tls() -> None:
    named = parse_address("rediss://u:p@h:7?ssl_ca_certs=/c")
    other = named.at("10.0.0.1", 6380)
    assert (other.label, other.is_encrypted) == ("rediss://10.0.0.1:6380", True)
    assert dict(other.options) == dict(named.options) | {"host": "10.0.0.1", "port": 6380}


def test_a_connection_for_a_thread_waits_no_longer_than_it_may() -> None:
    connection = parse_address("redis://h:7").threaded_connection(timeout_s=0.5)
    assert connection.socket_timeout == connection.socket_connect_timeout == 0.5
