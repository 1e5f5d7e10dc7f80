"""log, members, namespaces, inspect, weights set-version and replicas set: what they print, for people and programs."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kv_types.clock import show_time
from kv_types.computation import StoredAs
from kv_types.errors import ConfigError
from kv_types.events import Selected, WeightsAnnounced
from kv_types.ids import PageKey
from kv_types.limits import LOG_REVISION_MAX
from kv_types.page_keys import page_keys, unpack_keys
from kv_types.selectors import Selector
from stratakv.namespaces import namespace_plain
from stratakv.selection import parse_name, show_name
from stratakv.times import parse_time
from tests.kv_types.samples import namespace
from tests.stratakv.conftest import SPACES, Command
from tests.support.admin_site import AdminSite
from tests.support.daemon import run_command, start_command
from tests.support.polling import wait_until

HOSTILE = "a\x1b[31mb [/red]"


# --- log ---


def test_log_shows_who_did_what_and_why(site: AdminSite, stratakv: Command) -> None:
    stratakv("invalidate", "--model", HOSTILE, "--yes", "--reason", HOSTILE)
    stratakv("weights", "set-version", "2", "--model", "m")
    shown = stratakv("log")
    assert shown.exit_code == 0, shown.stderr
    assert "\x1b" not in shown.stdout
    assert "[/red]" in shown.stdout
    assert "weights of m are now 2" in shown.stdout
    lines = [json.loads(line) for line in stratakv("log", "--json").stdout.splitlines()]
    first, second, third = lines
    assert third["selector"] == {"model": "m", "other_weights_than": "2"}
    assert set(first) == {
        "appended_wall_ms", "author", "incarnation", "kind", "reason", "revision", "selector",
    }  # fmt: skip
    assert (first["kind"], first["revision"], first["selector"]) == ("invalidation", 1, {"model": HOSTILE})
    assert first["reason"] == HOSTILE
    assert first["incarnation"] == site.fleet.position.incarnation.hex()
    assert set(second) == {
        "appended_wall_ms", "author", "incarnation", "kind", "model", "reason", "revision", "version",
    }  # fmt: skip
    assert (second["kind"], second["model"], second["version"]) == ("weights", "m", "2")
    assert [
        json.loads(line)["revision"] for line in stratakv("log", "--after", "1", "--json").stdout.splitlines()
    ] == [2, 3]
    assert stratakv("log", "--after", "9").stdout == ""
    assert stratakv("log", "--after", str(LOG_REVISION_MAX)).stdout == ""
    for beyond in (-1, LOG_REVISION_MAX + 1, 2**64):
        assert stratakv("log", "--after", str(beyond)).exit_code == 2


def test_log_follows_until_ctrl_c(site: AdminSite, stratakv: Command) -> None:
    process = start_command(
        "log",
        "--follow",
        "--json",
        "--runtime-dir",
        str(site.runtime_dir),
        environment={"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    for revision in (1, 2):
        assert stratakv("invalidate", "--all", "--yes").exit_code == 0
        assert json.loads(process.stdout.readline())["revision"] == revision
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    wait_until(lambda: site.calls.running == 0, what="the end of the stream")


# --- members ---


def test_members_shows_the_fleet(site: AdminSite, stratakv: Command) -> None:
    stratakv("invalidate", "--all", "--yes")
    told = stratakv.json("members")
    assert set(told) == {"confirmed", "fleet", "members", "replicas", "settled", "sizes", "tip"}
    assert (told["fleet"], told["confirmed"], told["settled"], told["replicas"]) == ("test", True, True, 0)
    assert told["tip"] == {"incarnation": site.fleet.position.incarnation.hex(), "revision": 1}
    assert {member["id"] for member in told["members"]} == {member.id.hex() for member in site.members}
    assert [member["id"] for member in told["members"] if member["is_self"]] == [site.fleet.member.hex()]
    assert told["sizes"]["members"] == 2
    shown = stratakv("members").stdout
    for part in (site.members[1].id.hex(), "this sidecar", "2 members", "revision 1"):
        assert part in shown


def test_members_says_what_stops_fences(site: AdminSite, stratakv: Command) -> None:
    site.call(site.fleet.begin_anew)
    stratakv("replicas", "set", "1")
    shown = stratakv("members").stdout
    assert "replication is not confirmed" in shown
    assert "young" in shown


def test_members_are_forgotten_when_somebody_knows(site: AdminSite, stratakv: Command) -> None:
    alive, silent = site.members
    silent.is_silent = True
    stratakv("invalidate", "--all", "--yes")
    assert "gone" in stratakv("members").stdout
    told = stratakv.json("members", "--forget", silent.id.hex(), "--forget", silent.id.hex())
    assert told == {"forgotten": [silent.id.hex()], "stayed": [], "reasons": {}}
    assert stratakv("members", "--forget-gone").stdout == "nobody was given up for gone\n"
    assert {member["id"] for member in stratakv.json("members")["members"]} == {alive.id.hex()}


def test_members_that_are_not_forgotten_are_exit_3_and_it_says_why(
    site: AdminSite, stratakv: Command
) -> None:
    alive, silent = site.members
    silent.is_silent = True
    stratakv("invalidate", "--all", "--yes")
    nobody = "0" * 32
    named = ("--forget", alive.id.hex(), "--forget", nobody)
    told = stratakv.json("members", *named, "--forget-gone", code=3)
    assert told == {
        "forgotten": [silent.id.hex()],
        "stayed": [alive.id.hex(), nobody],
        "reasons": {alive.id.hex(): "renews", nobody: "unknown"},
    }
    shown = stratakv("members", *named)
    assert shown.exit_code == 3
    assert f"{alive.id.hex()} was not forgotten: it renews" in shown.stderr
    assert f"{nobody} was not forgotten: no member" in shown.stderr
    assert "nobody was given up" not in shown.stdout


def test_a_member_s_id_is_all_of_it(stratakv: Command) -> None:
    bad = stratakv("members", "--forget", "ab")
    assert bad.exit_code == 2
    assert "32 hexadecimal digits" in bad.stderr


# --- namespaces ---


def test_namespaces_lists_what_prefixes_are_applied_in(site: AdminSite, stratakv: Command) -> None:
    told = stratakv.json("namespaces")
    assert told["incomplete"] == ""
    assert [one["id"] for one in told["namespaces"]] == [space.id.hex() for space in SPACES]
    assert told["namespaces"][1] == {
        "adapter": None, "heads": [0, 2], "id": SPACES[1].id.hex(), "kv_dtype": "fp16", "layers": [0, 4], "model": "m",
        "page_tokens": 4, "position_offset": 0, "stored_as": None, "tenant": "alice", "weights_version": "1",
    }  # fmt: skip
    shown = stratakv("namespaces").stdout
    for part in (SPACES[2].id.hex(), "alice", "heads 0:2 of 2"):
        assert part in shown
    site.fleet.log.before["namespaces"] = 1
    partial = stratakv("namespaces")
    assert partial.exit_code == 0
    assert "missing" in partial.stderr


def test_a_namespace_tells_how_its_pages_are_stored() -> None:
    assert namespace_plain(namespace(model="m", stored_as=StoredAs.INT8))["stored_as"] == "int8"


# --- inspect ---


@pytest.mark.parametrize("columns", ["30", "80"])
def test_on_a_narrow_terminal_ids_stay_whole(site: AdminSite, stratakv: Command, columns: str) -> None:
    narrow = {"COLUMNS": columns}
    shown = stratakv("namespaces", environment=narrow).stdout
    for space in SPACES:
        assert space.id.hex() in shown
    member = site.members[0].id.hex()
    assert member in stratakv("members", environment=narrow).stdout
    site.members[0].acknowledges = False
    failed = stratakv("invalidate", "--all", "--yes", "--timeout", "10ms", environment=narrow)
    assert (failed.exit_code, member in failed.stdout) == (3, True)


def test_what_is_no_terminal_gets_a_line_for_each_row(
    site: AdminSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    ended = run_command("namespaces", "--runtime-dir", str(site.runtime_dir))
    for space in SPACES:
        (line,) = [line for line in ended.stdout.splitlines() if space.id.hex() in line]
        assert space.model in line


def test_inspect_shows_a_page_by_its_key(site: AdminSite, stratakv: Command) -> None:
    key = PageKey(b"k" * 32)
    site.store.add(SPACES[0], key, None, site.fleet.position)
    answer = stratakv.json("inspect", key.hex())
    assert (set(answer), answer["prefix_tokens"]) == ({"chains", "prefix_tokens"}, None)
    (told,) = answer["chains"]
    (page,) = told["pages"]
    assert (page["resident"], page["servable"], page["key"]) == (True, True, key.hex())
    assert "no record after 0" in page["why"]
    assert page["header"] == {
        "computed_from_ms": 1, "computed_until_ms": 2, "expires_in_ms": None, "last_access_ms_ago": None, "leases": 0,
        "lineage_known": True, "namespace": SPACES[0].id.hex(), "parent": None, "payload_bytes": 1000, "producer": "p",
        "stamp": {"incarnation": site.fleet.position.incarnation.hex(), "revision": 0}, "tags": ["t"],
    }  # fmt: skip
    shown = stratakv("inspect", key.hex()).stdout
    assert "valid" in shown
    (absent,) = stratakv.json("inspect", "00" * 32, "--namespace", SPACES[0].id.hex())["chains"]
    assert absent["pages"][0]["header"] is None
    assert "not on this node" in absent["pages"][0]["why"]


def test_inspect_shows_how_far_a_prefix_reaches_in_each_namespace(site: AdminSite, stratakv: Command) -> None:
    tokens = list(range(12))
    keys = unpack_keys(page_keys(SPACES[0].id, tokens, page_tokens=4))
    site.store.add(SPACES[0], keys[0], None, site.fleet.position)
    site.store.add(SPACES[0], keys[1], keys[0], site.fleet.position)
    answer = stratakv.json("inspect", "--prefix-tokens", "-", "--model", "m", stdin=json.dumps(tokens))
    told = answer["chains"]
    assert answer["prefix_tokens"] == 12
    assert [one["namespace"] for one in told] == [SPACES[0].id.hex(), SPACES[1].id.hex()]
    assert [[page["servable"] for page in one["pages"]] for one in told] == [[True, True, False], [False] * 3]
    shown = stratakv(
        "inspect", "--prefix-tokens", "-", "--namespace", SPACES[0].id.hex(), stdin=json.dumps(tokens)
    )
    assert "2 of 3 pages would be served" in shown.stdout


def test_inspect_of_a_long_prefix_comes_whole(site: AdminSite, stratakv: Command) -> None:
    tokens = list(range(4 * 2500))
    answer = stratakv.json("inspect", "--prefix-tokens", "-", "--tenant", "alice", stdin=json.dumps(tokens))
    (told,) = answer["chains"]
    keys = unpack_keys(page_keys(SPACES[1].id, tokens, page_tokens=4))
    assert [page["key"] for page in told["pages"]] == [key.hex() for key in keys]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "name one page"),
        (("ab" * 32, "--prefix-tokens", "-"), "name one page"),
        (("abc",), "64 hexadecimal digits"),
        (("ab" * 32, "--model", "m"), "--namespace alone"),
        (("ab" * 32, "--namespace", "x"), "64 hexadecimal digits"),
        (("--prefix-tokens", "-", "--model", "nobody"), "stratakv namespaces"),
        (("--prefix-tokens", "-", "--model", "other"), "16 tokens"),
    ],
)
def test_bad_inspections_are_usage_errors(stratakv: Command, words: tuple[str, ...], text: str) -> None:
    result = stratakv("inspect", *words, stdin="1 2 3 4")
    assert result.exit_code == 2, (result.stderr, result.exception)
    assert text in result.stderr


def test_inspect_tiers_tells_how_fast_l3_is_or_that_there_is_none(stratakv: Command) -> None:
    assert set(stratakv.json("inspect", "--tiers")) == {"l3", "workers"}
    assert stratakv("inspect", "--tiers").exit_code == 0
    refused = stratakv("inspect", "ab" * 32, "--tiers")
    assert refused.exit_code == 2
    assert "--tiers" in refused.stderr


def test_an_unknown_namespace_is_said(stratakv: Command) -> None:
    result = stratakv("inspect", "ab" * 32, "--namespace", "cd" * 32)
    assert result.exit_code == 1
    assert "knows the namespace" in result.stderr


# --- weights ---


def test_weights_are_announced_and_every_other_version_is_invalidated_or_one_that_is_named(
    site: AdminSite, stratakv: Command
) -> None:
    first = stratakv.json("weights", "set-version", "1", "--model", "m", "--reason", "r")
    assert (first["confirmed"], first["invalidated_version"]) == (True, None)
    assert (first["model"], first["version"], len(first["appended"])) == ("m", "1", 2)
    second = stratakv("weights", "set-version", "2", "--model", "m")
    assert "every other version is invalidated" in second.stdout
    named = stratakv.json("weights", "set-version", "2", "--model", "m", "--from", "0", "--wait=drained")
    assert (named["exit_code"], named["invalidated_version"]) == (0, "0")
    events = [record.event for record in site.call(site.fleet.records)]
    assert events == [
        WeightsAnnounced("m", "1"), Selected(Selector(model="m", other_weights_than="1")),
        WeightsAnnounced("m", "2"), Selected(Selector(model="m", other_weights_than="2")),
        WeightsAnnounced("m", "2"), Selected(Selector(model="m", weights_version="0")),
    ]  # fmt: skip


@pytest.mark.parametrize("told", [None, "1", "2"])
def test_what_a_sidecar_has_heard_of_decides_nothing(
    site: AdminSite, stratakv: Command, told: str | None
) -> None:
    """It may have read no log, or one that forgot what was announced, or the new version may be announced already."""
    site.is_fresh = told is not None
    if told is not None:
        site.weights["m"] = told
    assert stratakv("weights", "set-version", "2", "--model", "m").exit_code == 0
    (_, replaced) = (record.event for record in site.call(site.fleet.records))
    assert replaced == Selected(Selector(model="m", other_weights_than="2"))


def test_weights_that_are_not_confirmed_are_repeated_by_their_request_id_alone(
    site: AdminSite, stratakv: Command
) -> None:
    site.members[1].acknowledges = False
    command = ("weights", "set-version", "2", "--model", "m", "--request-id", "ab" * 16)
    result = stratakv(*command, "--timeout", "200ms")
    assert result.exit_code == 3
    assert f"--request-id {'ab' * 16}" in result.stderr
    site.members[1].acknowledges = True
    assert stratakv(*command).exit_code == 0
    assert len(site.call(site.fleet.records)) == 2


def test_weights_are_not_replaced_by_themselves(site: AdminSite, stratakv: Command) -> None:
    result = stratakv("weights", "set-version", "2", "--model", "m", "--from", "2")
    assert result.exit_code == 2
    assert "at once" in result.stderr
    assert site.call(site.fleet.records) == ()


def test_one_digest_written_in_two_ways_is_not_replaced_by_itself(site: AdminSite, stratakv: Command) -> None:
    result = stratakv("weights", "set-version", "ab" * 32, "--model", "m", "--from", "AB" * 32)
    assert result.exit_code == 2
    assert "at once" in result.stderr
    assert site.call(site.fleet.records) == ()


# --- replicas ---


def test_replicas_are_set_within_bounds(site: AdminSite, stratakv: Command) -> None:
    assert stratakv.json("replicas", "set", "2") == {"replicas": 2}
    assert stratakv.json("members")["replicas"] == 2
    assert stratakv("replicas", "set", "17").exit_code == 2
    assert stratakv("replicas", "set", "many").exit_code == 2
    assert stratakv("replicas").exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        ("log",), ("members",), ("namespaces",), ("inspect", "ab" * 32), ("replicas", "set", "1"),
        ("weights", "set-version", "2", "--model", "m"),
    ],
)  # fmt: skip
def test_where_nobody_is_every_verb_exits_1_and_says_what_to_do(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    class Nowhere:
        runtime_dir = tmp_path

    result = Command(Nowhere())(*words)  # type: ignore[arg-type]
    assert result.exit_code == 1
    assert "no sidecar answers" in result.stderr


# --- times and names ---

NOW = datetime(2026, 8, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "ago_s"),
    [
        ("now", 0), ("10m", 600), ("10m ago", 600), ("1.5h", 5400), ("90 s ago", 90), ("2d", 172_800), ("5ms", 0.005),
        ("2026-08-01T12:00:00Z", 0), ("2026-08-01T14:00:00+02:00", 0), ("2026-08-01T11:59:00.500Z", 59.5),
    ],
)  # fmt: skip
def test_times_are_read_as_people_write_them(text: str, ago_s: float) -> None:
    assert parse_time(text, option="--since", now=NOW) == NOW.timestamp() * 1000 - ago_s * 1000


@pytest.mark.parametrize(
    "text", ["", "5", "soon", "10m hence", "ago", "-5m", "1969-12-31T23:59:59Z", "9e9d", "9" * 20 + "d"]
)
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="--since"):
        parse_time(text, option="--since", now=NOW)


def test_times_are_shown_whatever_the_number() -> None:
    assert show_time(int(NOW.timestamp() * 1000)) == "2026-08-01T12:00:00Z"
    assert show_time(2**64 - 1).endswith(" ms")


@pytest.mark.parametrize("value", [b"node-1", "Ω".encode(), b"\xff", b"hex:", b"a\x1bb", b"\x00"])
def test_names_come_back_as_the_options_take_them(value: bytes) -> None:
    assert parse_name(show_name(value), "--producer") == value
    assert show_name(value).isprintable()


def test_log_waits_for_a_sidecar_that_comes_back(site: AdminSite, stratakv: Command) -> None:
    """A follower outlives its sidecar: nothing is shown twice, nothing is lost."""
    process = start_command(
        "log",
        "--follow",
        "--json",
        "--runtime-dir",
        str(site.runtime_dir),
        environment={"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    wait_until(lambda: site.calls.running == 1, timeout_s=30, what="a follower of an empty log")
    for revision in (1, 2):
        site.call(site.restart_server)
        assert "waiting for the sidecar" in process.stderr.readline()
        assert stratakv("invalidate", "--all", "--yes").exit_code == 0
        assert json.loads(process.stdout.readline())["revision"] == revision
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    process.stdout.close()
    process.stderr.close()
