"""The command: version, help, usage errors, status for people and programs."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

import stratakv
from kv_types.outcomes import STORED
from kv_wire.channel import open_channel
from kv_wire.gen import cache_pb2
from sidecar.config import Settings
from sidecar.config_sources import flag_of, variable_of
from stratakv.status import as_plain, render
from tests.support.daemon import ROOT, Daemon, clean_environment, run_command
from tests.support.polling import wait_until
from tests.support.remote_store import RemoteStore
from tests.support.spaces import fresh_chain, page_of, space_of


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="skv-") as scratch, Daemon(Path(scratch) / "run") as running:
        yield running.wait_ready()


def test_the_version_is_plain_and_that_of_the_distribution() -> None:
    result = run_command("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"stratakv {stratakv.__version__}\n", "")
    assert f'version = "{stratakv.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_help_lists_the_verbs_without_loading_them() -> None:
    result = run_command("--help")
    assert result.returncode == 0
    for verb in (
        "serve", "status", "invalidate", "log", "members", "namespaces", "inspect", "weights", "replicas", "record",
        "simulate", "bench",
    ):  # fmt: skip
        assert verb in result.stdout
    script = (
        "import sys\n"
        "from stratakv.cli import app\n"
        "sys.argv = ['stratakv', '--help']\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'grpc', 'torch', 'benchmarks', 'sidecar', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, timeout=60)


def test_serve_help_shows_every_setting_with_its_flag_and_variable() -> None:
    result = run_command("serve", "--help", environment={"COLUMNS": "200"})
    assert result.returncode == 0
    for name in Settings.model_fields:
        assert flag_of(name) in result.stdout
        assert variable_of(name) in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("frobnicate",),
        ("serve", "--no-such-flag"),
        ("serve", "--arena-size", "much"),
        ("status", "--deadline", "never"),
        ("status", "--endpoint", "not an address"),
        ("status", "--endpoint", "x:1", "--runtime-dir", "/tmp"),
    ],
)
def test_usage_errors_exit_2_without_a_traceback(arguments: tuple[str, ...]) -> None:
    result = run_command(*arguments)
    assert result.returncode == 2
    assert result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_key_in_the_file_exits_2_and_names_it(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text("arena_sizes = 1\n")
    result = run_command("serve", "--config", str(file))
    assert result.returncode == 2
    assert f"{file}: unknown key 'arena_sizes' (did you mean arena_size" in result.stderr


def test_settings_are_logged_with_their_sources(daemon: Daemon) -> None:
    logged = {
        line["name"]: (line["value"], line["source"]) for line in daemon.lines if line["event"] == "setting"
    }
    assert set(logged) == set(Settings.model_fields)
    assert logged["arena_size"] == ("64MiB", "--arena-size")
    assert logged["freshness_lease"] == ("3s", "default")


def test_on_a_terminal_settings_are_a_table(tmp_path: Path) -> None:
    """serve on a pseudo-terminal: the table, then console log lines; no JSON."""
    with tempfile.TemporaryDirectory(prefix="skv-") as scratch:
        directory = Path(scratch) / "run[/red]"
        ours, theirs = pty.openpty()
        environment = clean_environment({"STRATAKV_DRAIN_TIME": "1s", "COLUMNS": "160", "TERM": "xterm"})
        process = subprocess.Popen(
            [sys.executable, "-m", "stratakv", "serve", "--runtime-dir", str(directory), "--arena-size", "64MiB"],
            cwd=ROOT, env=environment, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        try:
            wait_until((directory / "attach.sock").exists, timeout_s=30, what="the attach socket")
        finally:
            process.terminate()
        output = b""
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the other end closed with the process
                break
            if not data:
                break
            output += data
        os.close(ours)
        assert process.wait(30) == 0
    text = output.decode()
    assert "STRATAKV_DRAIN_TIME" in text
    assert "--arena-size" in text
    assert '{"' not in text


@pytest.mark.parametrize("by", ["--runtime-dir", "--endpoint", "STRATAKV_ENDPOINT", "STRATAKV_RUNTIME_DIR"])
def test_status_as_json_holds_everything(daemon: Daemon, by: str) -> None:
    directory = str(daemon.runtime_dir)
    if by.startswith("STRATAKV"):
        result = run_command("status", "--json", environment={by: directory})
    else:
        result = run_command("status", "--json", by, directory)
    assert result.returncode == 0, result.stderr
    status = json.loads(result.stdout)
    assert status["pid"] == daemon.pid
    assert status["serving"] is True
    assert status["version"] == stratakv.__version__
    assert status["arena_bytes"] == 64 * 2**20
    assert status["life"] == daemon.line("ready")["life"]
    assert status["runtime_dir"] == directory
    assert len(status["stamp"]["incarnation"]) == 32
    assert isinstance(status["arena"]["resident_bytes"], int)
    assert [client["state"] for client in status["clients"]] == ["service"]
    log = status["log"]
    assert (log["fleet"], log["kind"], log["phase"], log["reason"]) == ("default", "private", "following", "")
    assert (log["applied"], log["tip"], log["settled"], log["held_by"]) == (0, 0, True, [])
    assert len(log["incarnation"]) == len(log["member"]) == 32
    assert 0 <= log["confirmed_ms_ago"] < 60_000
    assert isinstance(log["sizes"]["tombstones"], int)
    assert status["weights_versions"] == {}
    memory = status["memory"]
    assert memory["huge_pages_asked"] == "transparent"
    assert memory["huge_pages"] in ("", "none", "transparent")
    assert memory["huge_page_bytes"] <= memory["mapped_bytes"]


def test_status_shows_namespaces_and_reasons_to_a_person(daemon: Daemon) -> None:
    with open_channel(daemon.grpc_address) as channel:
        store = RemoteStore(channel)
        space, keys = space_of(1000, model="visible"), fresh_chain(3)
        store.register(space)
        assert (
            store.put(space.id, keys[:2], [page_of(key, 1000) for key in keys[:2]], stamp=store.stamp())
            == [STORED] * 2
        )
        store.get(space.id, keys, [memoryview(bytearray(1000)) for _ in keys])
    result = run_command("status", "--runtime-dir", str(daemon.runtime_dir), environment={"COLUMNS": "180"})
    assert result.returncode == 0, result.stderr
    for part in (space.model, space.id.hex()[:12], "absent 1", "serving", f"pid {daemon.pid}", "service"):
        assert part in result.stdout, part
    as_json = json.loads(run_command("status", "--json", "--runtime-dir", str(daemon.runtime_dir)).stdout)
    (row,) = (row for row in as_json["namespaces"] if row["namespace_id"] == space.id.hex())
    assert (row["requested_pages"], row["l2_pages"], row["missed_pages"]) == (3, 2, {"absent": 1})
    assert row["resident_bytes"] == 2000


def test_status_says_what_memory_the_arena_lies_in() -> None:
    answer = cache_pb2.StatusResponse(
        memory=cache_pb2.MemoryStatus(
            huge_pages_asked="try", huge_pages="transparent", huge_page_bytes=30, mapped_bytes=40,
            huge_pages_note="too few are set apart: 3 more", placement="node 1", placement_note="",
        ),
    )  # fmt: skip
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render(answer))
    text = console.export_text()
    for part in ("transparent, 75 %", "node 1", "too few are set apart: 3 more"):
        assert part in text, part
    answer.memory.Clear()
    answer.memory.placement_note = "memory is not placed on node 1"
    console.print(render(answer))
    text = console.export_text()
    assert "memory is not placed on node 1" in text
    assert "%" not in text


def test_status_says_why_nothing_is_served_and_who_holds_what_back() -> None:
    answer = cache_pb2.StatusResponse(
        serving=True, freshness_remaining_ms=-5, weights_versions={"llama": "v7"},
        log=cache_pb2.LogStatus(
            fleet="blue", kind="redis", address="redis://there:6379", phase="unreachable", applied=41, tip=44,
            acknowledged=40, drained=39, reason="unreachable: timeout: no answer", confirmed_ms_ago=12_300,
            held_by=["pid 7: its engine has applied view 3 of 9"], server="redis://b:1",
            draining_held_by=["pid 8 (w): a request of it began at view 2 of 9"],
            server_errors=["it could evict the log"], server_warnings=["its last snapshot failed"],
        ),
        view=9, clients=[cache_pb2.ClientStatus(pid=8, oldest_view=2)],
    )  # fmt: skip
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render(answer))
    text = console.export_text()
    for part in (
        "stale: hits have stopped", "redis://there:6379 (redis), on redis://b:1 now, fleet blue",
        "unreachable, not settled", "41", "44",
        "unreachable: timeout: no answer (confirmed 12.3 s ago)", "held back by pid 7: its engine", "llama v7",
        "draining held back by pid 8 (w): a request of it began", "view 2 of 9",
        "redis://b:1 would not be joined again: it could evict the log", "redis://b:1: its last snapshot failed",
    ):  # fmt: skip
        assert part in text, part
    answer.log.MergeFrom(cache_pb2.LogStatus(kind="local", why_local="there is no redis-server"))
    answer.log.address = ""
    answer.log.confirmed_ms_ago = -1
    console.print(render(answer))
    text = console.export_text()
    assert "in this sidecar's memory (local: there is no redis-server)" in text
    assert "confirmed never" in text
    told = json.loads(json.dumps(as_plain(answer)))
    assert told["weights_versions"] == {"llama": "v7"}
    assert told["freshness_remaining_ms"] is None, "never confirmed is no time ago"
    answer.log.confirmed_ms_ago = 12_300
    assert as_plain(answer)["freshness_remaining_ms"] == -5


@pytest.mark.parametrize("name", ["[/bold] m", "[red]m", "a\x1b[31mb\nc", "\u202em"])
def test_status_shows_names_as_they_are_and_no_control_characters(daemon: Daemon, name: str) -> None:
    """Models and clients are called what their owners like: no markup, and nothing that a terminal would obey."""
    with open_channel(daemon.grpc_address) as channel:
        RemoteStore(channel).register(space_of(1000, model=name))
    result = run_command("status", "--runtime-dir", str(daemon.runtime_dir), environment={"COLUMNS": "180"})
    assert result.returncode == 0, result.stderr
    shown = "".join(character if character.isprintable() else "\ufffd" for character in name)
    assert shown in result.stdout
    assert "\x1b" not in result.stdout


def test_status_without_a_sidecar_exits_1_and_says_what_to_do() -> None:
    result = run_command("status", "--endpoint", "/tmp/no-such-sidecar")
    assert result.returncode == 1
    assert "no sidecar answers at unix:/tmp/no-such-sidecar/grpc.sock" in result.stderr
    assert "stratakv serve" in result.stderr
    assert result.stdout == ""


def test_every_public_name_can_be_imported() -> None:
    for name in stratakv.__all__:
        assert getattr(stratakv, name) is not None
        assert name in dir(stratakv)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = stratakv.nonsense


@pytest.mark.parametrize(
    "script", ["docs/generate_api.py", "docs/generate_configuration.py", "docs/generate_mutations.py"]
)
def test_generated_pages_are_current(script: str) -> None:
    result = subprocess.run(
        [sys.executable, script, "--check"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stderr
