"""Pins and tenants' shares through a real sidecar: they hold under a scan, are shown, and pins outlive a restart."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from kv_types.ids import PageKey
from kv_types.namespace import Namespace
from kv_types.outcomes import STORED, Hit, Tier
from kv_types.page_keys import page_keys, unpack_keys
from kv_wire.channel import open_channel
from tests.support.daemon import Daemon, read_status, run_command
from tests.support.pages import chain, namespace_of, page_bytes_of, pages_of
from tests.support.remote_store import RemoteStore

SLOTS = 256
TOKENS = list(range(64))


def put(store: RemoteStore, space: Namespace, keys: list[PageKey]) -> None:
    pages = pages_of(keys, page_bytes_of(space))
    assert store.put(space.id, keys, pages, stamp=store.stamp()) == [STORED] * len(keys)


def scan(store: RemoteStore, space: Namespace) -> None:
    """Twice as many pages as the arena holds."""
    for _ in range(2 * SLOTS // 16):
        put(store, space, chain(16))


def command(runtime_dir: Path, *words: str) -> str:
    done = run_command(*words, "--runtime-dir", str(runtime_dir))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pins_and_shares_hold_and_pins_outlive_a_restart(runtime_dir: Path, tmp_path: Path) -> None:
    anna, hostile = namespace_of("a", tenant="anna", units=4), namespace_of("b", tenant="hostile", units=4)
    page = page_bytes_of(anna)
    arena = f"{SLOTS * page}"
    flags = ("--tenant-shares", "anna=0.25", "--no-l3", "--segment-size", f"{16 * page}")
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps(TOKENS))
    prompt = unpack_keys(page_keys(hostile.id, TOKENS, page_tokens=hostile.page_tokens))
    with Daemon(runtime_dir, *flags, arena=arena) as daemon:
        daemon.wait_ready()
        with open_channel(daemon.grpc_address) as channel:
            store = RemoteStore(channel)
            store.register(anna)
            store.register(hostile)
            working_set = chain(40)
            put(store, anna, working_set)
            put(store, hostile, prompt)
            told = json.loads(
                command(
                    runtime_dir, "pin", "--prefix-tokens", str(tokens), "--tenant", "hostile", "--for", "1h",
                    "--name", "prompt", "--json",
                )
            )  # fmt: skip
            assert (told["pages"], told["held_pages"], told["held_bytes"]) == (4, 4, 4 * page)
            scan(store, hostile)
            assert store.look_up(anna.id, working_set) == Hit(40, Tier.L2)
            assert store.look_up(hostile.id, prompt) == Hit(4, Tier.L2)
        status = read_status(runtime_dir)
        everybody, of_anna = status["tenants"]
        assert (everybody["tenant"], of_anna["tenant"]) == ("", "anna")
        assert of_anna["share_bytes"] == SLOTS * page // 4
        assert (of_anna["used_bytes"], of_anna["evictions_suffered"]) == (40 * page, 0)
        assert (status["pins"]["pins"], status["pins"]["held_pages"]) == (1, 4)
        shown = command(runtime_dir, "status")
        for part in ("1 pin, 4 pages", "anna", "everybody else"):
            assert part in shown
        with urllib.request.urlopen(f"http://{status['metrics_address']}/metrics", timeout=10) as answer:
            metrics = answer.read().decode()
        assert f'stratakv_tenant_used_bytes{{tenant="anna"}} {float(40 * page)}' in metrics
        assert "stratakv_pinned_held_pages 4.0" in metrics
    with Daemon(runtime_dir, *flags, arena=arena) as daemon:
        daemon.wait_ready()
        (kept,) = json.loads(command(runtime_dir, "pins", "--json"))["pins"]
        assert (kept["name"], kept["pages"], kept["held_pages"]) == ("prompt", 4, 0)
        with open_channel(daemon.grpc_address) as channel:
            store = RemoteStore(channel)
            store.register(hostile)
            put(store, hostile, prompt)
            scan(store, hostile)
            assert store.look_up(hostile.id, prompt) == Hit(4, Tier.L2)
        command(runtime_dir, "unpin", "prompt")
    assert sorted(path.name for path in runtime_dir.iterdir()) == ["sidecar.lock"]
