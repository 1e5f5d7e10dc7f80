"""Settings: precedence, units, sources, and errors that name the key, the file and what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_l2._native import COPY_KERNELS
from kv_types.errors import ConfigError
from sidecar.config import Settings, accepted, default_shown, shown
from sidecar.config_sources import DEFAULT, load_settings, variable_of
from sidecar.units import format_duration, format_size, parse_duration, parse_size, rough_duration


@pytest.fixture(autouse=True)
def _no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("STRATAKV_"):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sidecar.toml"


def test_flags_win_over_environment_over_file_over_defaults(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('arena_size = "2MiB"\nfreshness_lease = "2s"\nreservation_time = "20s"\n')
    monkeypatch.setenv("STRATAKV_ARENA_SIZE", "3MiB")
    monkeypatch.setenv("STRATAKV_FRESHNESS_LEASE", "4s")
    loaded = load_settings({"arena_size": "5MiB"}, config_file=file)
    settings, sources = loaded.settings, loaded.sources
    assert (settings.arena_size, sources["arena_size"]) == (5 * 2**20, "--arena-size")
    assert (settings.freshness_lease, sources["freshness_lease"]) == (4.0, "STRATAKV_FRESHNESS_LEASE")
    assert (settings.reservation_time, sources["reservation_time"]) == (20.0, str(file))
    assert (settings.drain_time, sources["drain_time"]) == (5.0, DEFAULT)


def test_the_file_can_be_named_by_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("client_rows = 7\n")
    monkeypatch.setenv("STRATAKV_CONFIG", str(file))
    assert load_settings({}).settings.client_rows == 7


def test_an_unknown_key_is_named_with_its_file_and_what_was_meant(file: Path) -> None:
    file.write_text('arena_sise = "2MiB"\n')
    with pytest.raises(ConfigError) as caught:
        load_settings({}, config_file=file)
    for part in ("arena_sise", str(file), "arena_size"):
        assert part in str(caught.value)


def test_an_unknown_table_is_an_unknown_key(file: Path) -> None:
    file.write_text('[sidecar]\narena_size = "2MiB"\n')
    with pytest.raises(ConfigError, match="'sidecar'"):
        load_settings({}, config_file=file)


def test_an_unknown_variable_is_named_with_what_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATAKV_ARENASIZE", "2MiB")
    with pytest.raises(ConfigError, match=r"STRATAKV_ARENASIZE.*STRATAKV_ARENA_SIZE"):
        load_settings({})


def test_what_workers_read_is_no_unknown_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATAKV_ENDPOINT", "unix:/run/x")
    assert load_settings({}).settings.client_rows == 64


@pytest.mark.parametrize(
    ("text", "reason"), [("arena_size = ", "TOML"), ("\xff", "TOML"), ("a = 1\na = 2\n", "TOML")]
)
def test_a_broken_file_is_named(file: Path, text: str, reason: str) -> None:
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=reason) as caught:
        load_settings({}, config_file=file)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*sidecar\.toml: No such file"):
        load_settings({}, config_file=file)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("arena_size", "4 parsecs", "unknown unit"),
        ("arena_size", "-1", "not a size"),
        ("arena_size", "4KiB", "at least 1MiB"),
        ("arena_size", "0.3B", "whole number"),
        ("freshness_lease", "1ms", "at least 100ms"),
        ("freshness_lease", "soon", "not a duration"),
        ("client_rows", "1", "at least 2"),
        ("client_rows", "many", "valid integer"),
        ("metrics_port", "65536", "at most 65535"),
        ("grpc_tcp", "7420", "host:port"),
        ("grpc_tcp", "localhost:99999", "host:port"),
        ("grpc_tcp", "localhost:\u0664\u0663", "host:port"),
        ("log_level", "loud", "'debug'"),
        ("prefault", "perhaps", "boolean"),
        ("arena_size", "9" * 400, "not a size"),
        ("arena_size", "9" * 300 + "TiB", "not a size"),
        ("freshness_lease", "9" * 400, "not a duration"),
        ("runtime_dir", "~no-such-user/run", "home directory"),
        ("runtime_dir", "", "no directory"),
        ("arena_size", "50%", "write auto and set arena_share"),
        ("arena_share", "1", "at most 0.95"),
        ("huge_pages", "on", "'explicit'"),
        ("numa_node", "-1", "interleave, none or the number of a node"),
        ("numa_node", "0-1", "the number of a node"),
    ],
)
def test_a_bad_value_is_named_with_its_source(name: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings({name: value})
    text = str(caught.value)
    assert reason in text
    assert f"(from --{name.replace('_', '-')})" in text
    assert value in text


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "metrics_port = false",
            "a number or off, not",
        ),  # 0 would be any free port, the opposite of what was meant
        ("metrics_port = true", "not true or false"),
        ("pages_max = true", "a number or auto, not"),
        ("client_rows = true", "not true or false"),
        (f"arena_size = {'9' * 400}", "not a size"),
        (f"drain_time = {'9' * 400}", "not a duration"),
        ('runtime_dir = "a\\u0000b"', "zero byte"),
        ("numa_node = true", "the number of a node"),
        ("huge_pages = true", "'transparent'"),
    ],
)
def test_a_value_of_the_wrong_type_in_the_file_is_named(file: Path, line: str, reason: str) -> None:
    file.write_text(line)
    with pytest.raises(ConfigError, match=reason) as caught:
        load_settings({}, config_file=file)
    assert str(file) in str(caught.value)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"segment_size 64MiB is larger than arena_size 1MiB"):
        load_settings({"arena_size": "1MiB", "segment_size": "64MiB"})


def test_every_setting_can_be_written_back_the_way_it_is_shown() -> None:
    loaded = load_settings({"default_ttl": "90m", "segment_size": "1MiB", "grpc_tcp": "127.0.0.1:0"})
    again = load_settings({name: value for name, value, _ in loaded.rows()})
    assert again.settings == loaded.settings


def test_auto_and_off_are_words() -> None:
    settings = load_settings({"pages_max": "auto", "metrics_port": "off", "grpc_tcp": "OFF"}).settings
    assert (settings.pages_max, settings.metrics_port, settings.grpc_tcp) == (None, None, None)
    assert (shown("pages_max", None), shown("metrics_port", None)) == ("auto", "off")


def test_an_arena_that_chooses_its_size_has_none_before() -> None:
    settings = load_settings({"arena_size": "AUTO", "segment_size": "64MiB"}).settings
    assert settings.arena_size is None
    assert shown("arena_size", None) == "auto"
    with pytest.raises(RuntimeError, match="not been chosen"):
        _ = settings.arena_bytes
    assert load_settings({}).settings.arena_bytes == 2**30, "no more than is asked for by default"


def test_where_memory_lies_can_be_said_in_a_file_and_on_a_command_line(file: Path) -> None:
    file.write_text('numa_node = 1\nhuge_pages = "try"\n')
    settings = load_settings({}, config_file=file).settings
    assert (settings.numa_node, settings.huge_pages) == ("1", "try")
    assert load_settings({"numa_node": " Interleave "}).settings.numa_node == "interleave"
    assert (accepted("numa_node"), accepted("huge_pages")) == (
        "number, auto, interleave or none", "off, transparent, try, explicit",
    )  # fmt: skip


def test_every_setting_is_documented() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert accepted(name), name
        assert default_shown(name), name
        assert variable_of(name).startswith("STRATAKV_")


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 4 * 2**30), ("1.5MiB", 1_572_864), ("10 kb", 10_000), ("7", 7), (7, 7), ("1TiB", 2**40)],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "duration_s"), [("3s", 3.0), ("250ms", 0.25), ("1.5h", 5400.0), ("2d", 172_800.0), (0.5, 0.5)]
)
def test_durations(text: str | float, duration_s: float) -> None:
    assert parse_duration(text) == duration_s


@pytest.mark.parametrize("size", [1, 1023, 2**10, 2**20, 3 * 2**30, 2**40])
def test_sizes_come_back(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize("duration_s", [0.001, 0.25, 1.0, 1.5, 59.0, 60.0, 90.0, 3600.0, 86_400.0])
def test_durations_come_back(duration_s: float) -> None:
    assert parse_duration(format_duration(duration_s)) == pytest.approx(duration_s)


def test_a_short_time_to_live_is_not_rounded_to_for_ever() -> None:
    from sidecar.runtime import arena_config

    settings = load_settings({"default_ttl": "400ms", "copy_kernel": "memcpy"}).settings
    config = arena_config(settings)
    assert config.default_ttl_s == 1
    assert COPY_KERNELS[config.copy_kernel] == "memcpy"


def test_an_unknown_copy_kernel_is_named_with_those_there_are() -> None:
    from sidecar.runtime import arena_config

    with pytest.raises(ConfigError, match=r"'warp'.*memcpy"):
        arena_config(load_settings({"copy_kernel": "warp"}).settings)


# --- the invalidation log ---


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("l3_url", "http://there", "redis://"),
        ("l3_url", "redis://a,there", "redis://"),
        ("log_url", "", "redis://"),
        ("log_url", "redis://", "needs a host"),
        ("log_url", "redis://there:port", "can't be read"),
        ("l3_url", "redis://a,redis://there/x", "database's number"),
        ("l3_url", "redis://there/0?colour=red", "colour"),
        ("fleet", "", "letters"),
        ("fleet", "-x", "first of them"),
        ("fleet", "a b", "letters"),
        ("fleet", "x" * 65, "64"),
        ("log_replicas", "17", "at most 16"),
        ("log_deadline", "0", "at least 50ms"),
        ("drift_bound", "0.5", "at most 0.1"),
        ("drift_bound", "-1", "at least 0"),
        ("pause_bound", "2h", "at most 1h"),
        ("skew_bound", "-1s", "skew_bound"),
        ("redis_memory", "1MiB", "at least 4MiB"),
    ],
)
def test_settings_of_the_log_outside_their_bounds_are_named(name: str, value: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings({name: value})
    assert name in str(caught.value)
    assert told in str(caught.value)


def test_servers_without_l3_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="l3 is off"):
        load_settings({"l3_url": "redis://there", "l3": False})
    assert load_settings({"log_url": "redis://there", "l3": False}).settings.log_url == "redis://there"


@pytest.mark.parametrize("name", ["log_url", "l3_url"])
def test_several_servers_of_which_none_must_confirm_are_refused_with_the_remedy(name: str) -> None:
    """A failover is expected there, and after one whose old primary lives on nobody could notice that fences are wrong."""
    several = "redis://:hunter2@a,redis://b,redis://c"
    with pytest.raises(ConfigError, match=f"{name} names 3 servers.*--log-replicas 2") as caught:
        load_settings({name: several})
    assert "hunter2" not in str(caught.value)
    assert load_settings({name: several, "log_replicas": "2"}).settings.log_replicas == 2
    assert load_settings({name: "redis://a"}).settings.log_replicas == 0


def test_where_pages_are_on_several_servers_the_log_may_be_on_one() -> None:
    assert load_settings({"l3_url": "redis://a,redis://b", "log_url": "redis://c"}).settings.log_replicas == 0
    with pytest.raises(ConfigError, match="log_url"):
        load_settings({"l3_url": "redis://a", "log_url": "redis://b,redis://c"})


@pytest.mark.parametrize(
    "urls",
    [
        "redis://admin:hunter2@there:6379/0",
        "rediss://:hunter2@here,redis://user:hunter2@there",
        "unix://:hunter2@/run/redis.sock?db=1",
        "redis://user:hunter2%40x@there",
        "redis://user:hunter2,x@there",
        "redis://user:hunter2/x@there",
        "redis://user:hun@ter2hunter2@there",
        "rediss://there?ssl_password=hunter2",
        "unix:///run/there?password=hunter2&db=0",
        "redis://there?password=hunter2,x",
        "rediss://a?ssl_password=hunter2,rediss://there",
    ],
)
def test_passwords_in_urls_are_not_shown(urls: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = shown("l3_url", urls)
    assert "hunter2" not in written
    assert ("there" in urls) == ("there" in written)
    monkeypatch.setenv("STRATAKV_L3_URL", f"{urls},http://x")
    with pytest.raises(ConfigError) as caught:
        load_settings({})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2#x@there",
        "redis://user:hunter2/x@there",
        "redis://:1/hunter2@there",
        "redis://:1?hunter2=x@there",
        "redis://user:p@a/hunter2@there",
    ],
)
def test_what_cannot_be_read_says_how_passwords_are_written_and_shows_none(url: str) -> None:
    with pytest.raises(ConfigError, match="%23") as caught:
        load_settings({"log_url": url})
    assert "hunter2" not in str(caught.value)


def test_urls_without_passwords_are_shown_as_they_are() -> None:
    for urls in ("redis://there:6379/1", "unix:///run/redis.sock", "redis://a,redis://b"):
        assert shown("log_url", urls) == urls


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.2, "0s"),
        (59.6, "1m"),
        (1799.0, "29m 59s"),
        (3601.0, "1h"),
        (604_796.4, "6d 23h"),
        (2_592_000.0, "30d"),
    ],
)
def test_a_time_that_is_left_is_told_by_its_two_largest_units(seconds: float, told: str) -> None:
    assert rough_duration(seconds) == told
