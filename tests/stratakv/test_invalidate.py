"""`stratakv invalidate`: what is appended, what is asked, what is printed and which exit code says what."""

from __future__ import annotations

import getpass
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from kv_types.ids import NamespaceId, PageKey
from kv_types.page_keys import page_keys
from kv_types.selectors import Selector
from stratakv import invalidate
from tests.stratakv.conftest import SPACES, Command, selectors
from tests.support.admin_site import AdminSite
from tests.support.daemon import run_command
from tests.support.polling import wait_until

KEY = "ab" * 32
RESULT_KEYS = {
    "appended", "confirmed", "exit_code", "gone", "gone_count", "missing", "missing_count", "namespaces", "prefix_tokens",
    "reason", "request_id", "selectors", "wait", "waited_ms", "why",
}  # fmt: skip
MEMBER_KEYS = {"id", "is_self", "gone", "renewal", "acknowledged", "drained", "note"}


def last_key(space: Any, tokens: list[int]) -> PageKey:
    return PageKey(page_keys(space.id, tokens, page_tokens=space.page_tokens)[-32:])


def test_c36_reached_is_exit_0_and_the_record_says_who_and_why(site: AdminSite, stratakv: Command) -> None:
    result = stratakv("invalidate", "--all", "--yes", "--reason", "bad kernel")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "record 1 of log" in result.stdout
    assert "hidden" in result.stdout
    (record,) = site.call(site.fleet.records)
    assert (record.entry.reason, record.entry.author) == (
        "bad kernel",
        f"{getpass.getuser()}@{socket.gethostname()}",
    )


def test_every_option_is_a_condition(site: AdminSite, stratakv: Command) -> None:
    result = stratakv(
        "invalidate", "--model", "m", "--weights-version", "1", "--adapter", "", "--tenant", "alice", "--producer", "node-1",
        "--tag", "hex:ff00", "--since", "2026-01-01T00:00:00Z", "--until", "2026-01-02T00:00:00Z",
        "--since-revision", "3", "--until-revision", "9", "--other-weights-than", "2", "--yes",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert selectors(site) == [
        Selector(
            model="m", weights_version="1", adapter="", tenant="alice", producer=b"node-1", tag=b"\xff\x00",
            since_ms=1_767_225_600_000, until_ms=1_767_312_000_000, since_revision=3, until_revision=9,
            other_weights_than="2",
        )
    ]  # fmt: skip


def test_other_weights_are_those_of_one_model(site: AdminSite, stratakv: Command) -> None:
    result = stratakv("invalidate", "--other-weights-than", "2", "--yes")
    assert result.exit_code == 2
    assert "--model" in result.stderr
    assert selectors(site) == []
    told = stratakv.json("invalidate", "--model", "m", "--other-weights-than", "2", "--yes")
    assert told["selectors"] == [{"model": "m", "other_weights_than": "2"}]


def test_one_namespace_or_key_needs_no_confirmation(site: AdminSite, stratakv: Command) -> None:
    space = SPACES[0].id.hex()
    assert stratakv("invalidate", "--namespace", space).exit_code == 0
    assert stratakv("invalidate", "--key", KEY).exit_code == 0
    assert selectors(site) == [
        Selector(namespace=NamespaceId(SPACES[0].id)),
        Selector(key=PageKey(bytes.fromhex(KEY))),
    ]


@pytest.mark.parametrize(
    "wide", [("--all",), ("--model", "m"), ("--tenant", "alice"), ("--tag", "t"), ("--since", "10m")]
)
def test_beyond_one_namespace_it_asks_and_nobody_there_is_a_usage_error(
    site: AdminSite, stratakv: Command, wide: tuple[str, ...]
) -> None:
    result = stratakv("invalidate", *wide, stdin="y\n")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert selectors(site) == []


@pytest.mark.parametrize(("answer", "code", "records"), [("y\n", 0, 1), ("n\n", 1, 0), ("\n", 1, 0)])
def test_somebody_there_is_told_what_it_means_before_they_answer(
    site: AdminSite, stratakv: Command, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, records: int
) -> None:
    monkeypatch.setattr(invalidate, "is_interactive", lambda: True)
    site.store.add(SPACES[0], PageKey(b"k" * 32), None, site.fleet.position)
    result = stratakv("invalidate", "--model", "m", stdin=answer)
    assert result.exit_code == code
    assert "model='m'" in result.stderr
    assert "L2 1 pages, 1000B" in result.stderr
    assert len(selectors(site)) == records


def test_json_has_the_same_keys_whatever_became_of_it(site: AdminSite, stratakv: Command) -> None:
    reached = stratakv.json("invalidate", "--model", "m", "--yes")
    assert set(reached) == RESULT_KEYS
    assert reached["selectors"] == [{"model": "m"}]
    assert (reached["confirmed"], reached["exit_code"], reached["reason"], reached["wait"]) == (
        True,
        0,
        "",
        "hidden",
    )
    assert [stamp["revision"] for stamp in reached["appended"]] == [1]
    assert len(reached["request_id"]) == 32
    site.members[1].acknowledges = False
    missed = stratakv.json("invalidate", "--all", "--yes", "--timeout", "200ms", code=3)
    assert set(missed) == RESULT_KEYS
    assert (missed["confirmed"], missed["exit_code"], missed["reason"]) == (False, 3, "members")
    (member,) = missed["missing"]
    assert set(member) == MEMBER_KEYS
    assert member["id"] == site.members[1].id.hex()
    assert member["note"]["host"] == "node"
    assert missed["missing_count"] == 1


def test_exit_3_names_the_members_that_are_missing(site: AdminSite, stratakv: Command) -> None:
    site.members[1].acknowledges = False
    result = stratakv("invalidate", "--all", "--yes", "--timeout", "200ms")
    assert result.exit_code == 3
    assert site.members[1].id.hex() in result.stderr
    assert "--request-id" in result.stderr
    assert site.members[1].id.hex() in result.stdout
    assert len(selectors(site)) == 1


def test_exit_3_says_that_replication_is_not_confirmed(site: AdminSite, stratakv: Command) -> None:
    assert stratakv("replicas", "set", "1").exit_code == 0
    result = stratakv("invalidate", "--all", "--yes", "--timeout", "200ms")
    assert result.exit_code == 3
    assert "replication not confirmed" in result.stderr


def test_exit_3_when_the_log_is_young(site: AdminSite, stratakv: Command) -> None:
    site.call(site.fleet.begin_anew)
    missed = stratakv.json("invalidate", "--all", "--yes", "--timeout", "200ms", code=3)
    assert missed["reason"] == "settling"


def test_gone_members_are_named_and_hidden_holds(site: AdminSite, stratakv: Command) -> None:
    site.members[1].is_silent = True
    reached = stratakv.json("invalidate", "--all", "--yes")
    assert [member["id"] for member in reached["gone"]] == [site.members[1].id.hex()]
    drained = stratakv.json("invalidate", "--all", "--yes", "--wait=drained", "--timeout", "200ms", code=3)
    assert [member["id"] for member in drained["missing"]] == [site.members[1].id.hex()]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ((), "hidden"),
        (("--wait",), "hidden"),
        (("--wait=hidden",), "hidden"),
        (("--wait", "hidden"), "hidden"),
        (("--wait", "drained"), "drained"),
        (("--wait=drained",), "drained"),
        (("--no-wait",), "none"),
    ],
)
def test_wait_takes_a_value_or_none(stratakv: Command, words: tuple[str, ...], name: str) -> None:
    for arguments in ((*words, "--all", "--yes"), ("--all", "--yes", *words)):
        told = stratakv.json("invalidate", *arguments)
        assert (told["wait"], told["confirmed"]) == (name, name != "none")


def test_no_wait_is_done_when_it_is_appended(site: AdminSite, stratakv: Command) -> None:
    site.members[1].acknowledges = False
    told = stratakv.json("invalidate", "--all", "--yes", "--no-wait")
    assert (told["exit_code"], told["reason"]) == (0, "not_asked")
    assert len(selectors(site)) == 1


def test_a_repeated_request_appends_nothing_and_waits_again(site: AdminSite, stratakv: Command) -> None:
    site.members[1].acknowledges = False
    first = stratakv.json("invalidate", "--all", "--yes", "--timeout", "200ms", code=3)
    site.members[1].acknowledges = True
    second = stratakv.json("invalidate", "--all", "--yes", "--request-id", first["request_id"])
    assert second["appended"] == first["appended"]
    assert second["confirmed"]
    assert len(selectors(site)) == 1


def test_times_that_were_relative_are_told_as_the_record_has_them(site: AdminSite, stratakv: Command) -> None:
    site.members[1].acknowledges = False
    said = stratakv("invalidate", "--since", "10m", "--until", "now", "--yes", "--timeout", "100ms").stderr
    site.members[1].acknowledges = True
    again = said.partition("repeat it with ")[2].partition(", which")[0].split()
    assert stratakv("invalidate", *again, "--yes").exit_code == 0
    assert len(selectors(site)) == 1


BAD: list[tuple[tuple[str, ...], str]] = [
    ((), "name what to invalidate"),
    (("--all", "--model", "m"), "--all names everything"),
    (("--all", "--prefix-tokens", "-"), "--all names everything"),
    (("--namespace", "abcd"), "64 hexadecimal digits"),
    (("--namespace", ""), "64 hexadecimal digits"),
    (("--key", "g" * 64), "64 hexadecimal digits"),
    (("--key", KEY + " "), "64 hexadecimal digits"),
    (("--model", ""), "model is empty"),
    (("--model", "m" * 1025), "at most 1024"),
    (("--producer", ""), "producer is 1 to 64 bytes"),
    (("--producer", "hex:zz"), "hexadecimal digits"),
    (("--tag", "t" * 65), "tag is 1 to 64 bytes"),
    (("--since", "yesterday"), "ISO 8601"),
    (("--since", "5"), "ISO 8601"),
    (("--since", "1h", "--until", "2h"), "select nothing"),
    (("--since-revision", "2", "--until-revision", "1"), "select nothing"),
    (("--since-revision", "-1"), "--since-revision"),
    (("--since-revision", str(1 << 64)), "9007199254740991"),
    (("--all", "--wait", "--no-wait"), "not both"),
    (("--all", "--wait=gone"), "hidden or drained"),
    (("--all", "--timeout", "soon"), "duration"),
    (("--all", "--timeout", "2h"), "1h"),
    (("--all", "--timeout", "0"), "1ms"),
    (("--all", "--request-id", "12"), "32 hexadecimal digits"),
    (("--all", "--endpoint", "x"), "not both"),
    (("--all", "--reason", "r" * 1025), "reason"),
    (("--prefix-tokens", "-", "--prefix-text", "-"), "not both"),
    (("--prefix-text", "-"), "needs --tokenizer"),
    (("--tokenizer", "x", "--all"), "--prefix-text"),
    (("--prefix-tokens", "/no/such/file"), "cannot read"),
    (("--prefix-tokens", "-", "--key", KEY), "give one of them"),
    (("--all", "surplus"), "surplus"),
    (("--everything",), "--everything"),
]


@pytest.mark.parametrize(("words", "text"), BAD, ids=[" ".join(words)[:40] or "nothing" for words, _ in BAD])
def test_bad_input_is_exit_2_says_what_and_appends_nothing(
    site: AdminSite, stratakv: Command, words: tuple[str, ...], text: str
) -> None:
    result = stratakv("invalidate", "--yes", *words, stdin="1 2 3 4")
    assert result.exit_code == 2, (result.stderr, result.exception)
    shown = " ".join(result.stderr.replace("│", " ").split())
    assert text in shown
    assert "Traceback" not in result.stderr
    assert selectors(site) == []


def test_nobody_there_is_exit_1(tmp_path: Path, site: AdminSite) -> None:
    class Nowhere:
        runtime_dir = tmp_path

    result = Command(Nowhere())("invalidate", "--all", "--yes")  # type: ignore[arg-type]
    assert result.exit_code == 1
    assert "no sidecar answers" in result.stderr
    assert "stratakv serve" in result.stderr


def test_a_log_out_of_reach_before_anything_was_appended_is_exit_1(
    site: AdminSite, stratakv: Command
) -> None:
    site.fleet.log.before["fence"] = 10**9
    result = stratakv("invalidate", "--all", "--yes", "--timeout", "200ms")
    assert result.exit_code == 1
    assert "nothing was appended" in result.stderr
    assert selectors(site) == []


def test_a_log_out_of_reach_in_between_is_exit_3(site: AdminSite, stratakv: Command) -> None:
    site.fleet.log.after["append"] = 10**9
    told = stratakv.json("invalidate", "--all", "--yes", "--timeout", "200ms", code=3)
    assert (told["reason"], told["appended"]) == ("log", [])
    assert "may stand" in told["why"]


def test_administration_over_tcp_is_refused(site: AdminSite) -> None:
    result = run_command("invalidate", "--all", "--yes", "--endpoint", site.tcp)
    assert result.returncode == 1
    assert "Unix socket" in result.stderr
    assert selectors(site) == []


def test_a_connection_that_breaks_after_sending_is_exit_3_and_says_how_to_repeat(
    site: AdminSite, stratakv: Command
) -> None:
    site.members[1].acknowledges = False

    def break_it() -> None:
        wait_until(lambda: bool(selectors(site)), what="the record")
        site.call(lambda: site.server.stop(None))

    breaking = threading.Thread(target=break_it)
    breaking.start()
    told = stratakv.json("invalidate", "--all", "--yes", code=3)
    breaking.join()
    assert told["reason"] == "connection"
    assert "broke" in told["why"]
    assert len(told["request_id"]) == 32


# --- dry runs ---


def test_a_dry_run_counts_asks_nothing_and_changes_nothing(site: AdminSite, stratakv: Command) -> None:
    site.store.add(SPACES[0], PageKey(b"k" * 32), None, site.fleet.position)
    site.store.add(SPACES[2], PageKey(b"l" * 32), None, site.fleet.position)
    assert stratakv.json("invalidate", "--model", "m", "--dry-run") == {
        "dry_run": True,
        "namespaces": [],
        "prefix_tokens": None,
        "selectors": [{"model": "m"}],
        "tiers": [{"tier": "L2", "pages": 1, "bytes": 1000}],
    }
    result = stratakv("invalidate", "--all", "--dry-run")
    assert "L2 2 pages, 1.95KiB on this node" in result.stdout
    assert selectors(site) == []
