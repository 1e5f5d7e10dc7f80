"""The daemon's life as a process: one at a time, taken over when dead, drained when told, nothing left behind."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cache_l2.huge_pages import HugePages
from kv_types import errors
from kv_types.ids import PageKey, Stamp
from kv_types.namespace import Namespace
from kv_types.outcomes import STORED, Hit, Miss, MissReason, Tier
from kv_types.page_keys import pack_keys
from kv_wire.channel import SERVICE, CacheCalls, open_channel
from kv_wire.checksum import checksum
from kv_wire.conversions import stamp_to_wire
from kv_wire.gen import cache_pb2
from kv_wire.transfer import Chunk, decode_get_response, encode_put_request
from tests.support.daemon import ROOT, Daemon, clean_environment, private_servers, run_command
from tests.support.huge_pages import available, set_apart
from tests.support.polling import wait_until
from tests.support.remote_store import RemoteStore
from tests.support.shared_files import nothing_new_in_shared_memory
from tests.support.spaces import fresh_chain, page_of, space_of

MIB = 2**20
CYCLES = 20


def left_over(runtime_dir: Path) -> list[str]:
    return sorted(path.name for path in runtime_dir.iterdir())


def assert_quiet(daemon: Daemon) -> None:
    """Every line that it wrote is a log line, and none is a warning or worse."""
    assert len(daemon.lines) == len(daemon.output.splitlines()), daemon.output
    assert {line["level"] for line in daemon.lines} <= {"debug", "info"}, daemon.output


def stored_page(store: RemoteStore) -> tuple[Namespace, list[PageKey]]:
    space, keys = space_of(1000), fresh_chain(1)
    store.register(space)
    assert store.put(space.id, keys, [page_of(keys[0], 1000)], stamp=store.stamp()) == [STORED]
    return space, keys


def test_c23_a_second_daemon_on_the_directory_exits_and_names_the_holder(runtime_dir: Path) -> None:
    with Daemon(runtime_dir) as first:
        first.wait_ready()
        second = run_command("serve", "--runtime-dir", str(runtime_dir), "--arena-size", "64MiB")
        assert second.returncode == 1
        assert f"pid {first.pid}, since 20" in second.stderr
        assert str(runtime_dir) in second.stderr
        with open_channel(first.grpc_address) as channel:
            stored_page(RemoteStore(channel))
    assert left_over(runtime_dir) == ["sidecar.lock"]


def test_c23_a_daemon_whose_lock_was_removed_is_not_robbed(runtime_dir: Path) -> None:
    with Daemon(runtime_dir) as first:
        first.wait_ready()
        (runtime_dir / "sidecar.lock").unlink()
        second = run_command("serve", "--runtime-dir", str(runtime_dir), "--arena-size", "64MiB")
        assert second.returncode == 1
        assert f"process {first.pid} listens at {runtime_dir / 'attach.sock'}" in second.stderr
        with open_channel(first.grpc_address) as channel:
            stored_page(RemoteStore(channel))


@pytest.mark.parametrize("flag", ["--grpc-tcp", "--metrics-port"])
def test_c23_a_port_that_is_taken_is_named(runtime_dir: Path, flag: str) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        value = f"127.0.0.1:{port}" if flag == "--grpc-tcp" else str(port)
        result = run_command("serve", "--runtime-dir", str(runtime_dir), "--arena-size", "64MiB", flag, value)
    assert result.returncode == 1
    assert f"port {port}" in result.stderr
    assert "Traceback" not in result.stderr
    assert left_over(runtime_dir) == ["sidecar.lock"]


def test_c23_two_daemons_do_not_share_a_tcp_port(runtime_dir: Path) -> None:
    with Daemon(runtime_dir, "--grpc-tcp", "127.0.0.1:0") as first:
        address = first.wait_ready().line("ready")["grpc"][1]
        other = runtime_dir.with_name("other")
        result = run_command(
            "serve", "--runtime-dir", str(other), "--arena-size", "64MiB", "--grpc-tcp", address
        )
        assert result.returncode == 1
        assert f"port {address.split(':')[1]} of 127.0.0.1 is taken" in result.stderr
        with open_channel(address) as channel:
            assert RemoteStore(channel).status().pid == first.pid


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("huge_pages", [HugePages.TRANSPARENT, HugePages.EXPLICIT])
def test_c23_c26_sigkilled_daemons_are_taken_over_and_leave_nothing(
    runtime_dir: Path, huge_pages: HugePages
) -> None:
    with set_apart(60) if huge_pages is HugePages.EXPLICIT else contextlib.nullcontext() as pool:
        _take_over_from_the_dead(runtime_dir, huge_pages)
        assert pool is None or available() == pool, "huge pages of the dead are there again"


def _take_over_from_the_dead(runtime_dir: Path, huge_pages: HugePages) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with nothing_new_in_shared_memory():
        lives = {_life_and_death(runtime_dir, huge_pages, stores=cycle % 5 == 0) for cycle in range(CYCLES)}
        assert len(lives) == CYCLES, "every life has its own id"
        with Daemon(runtime_dir) as last:
            last.wait_ready()
            with open_channel(last.grpc_address) as channel:
                stored_page(RemoteStore(channel))
        assert last.process.returncode == 0
    assert left_over(runtime_dir) == ["sidecar.lock"]
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def _life_and_death(runtime_dir: Path, huge_pages: HugePages, *, stores: bool) -> str:
    """One daemon that is killed once it is ready; returns the id of its life."""
    flags = ("--no-prefault", "--metrics-port", "off", "--copy-kernel", "memcpy", "--huge-pages", huge_pages)
    daemon = Daemon(runtime_dir, *flags)
    life: str = daemon.wait_ready().line("ready")["life"]
    if stores:
        with open_channel(daemon.grpc_address) as channel:
            stored_page(RemoteStore(channel))
    assert len(private_servers(runtime_dir)) == 1
    daemon.kill()
    wait_until(lambda: not private_servers(runtime_dir), what="the end of its Redis server")
    assert left_over(runtime_dir) == ["attach.sock", "grpc.sock", f"redis-{daemon.pid}.sock", "sidecar.lock"]
    return life


def test_c23_a_daemon_whose_directory_was_removed_leaves_its_successor_alone(runtime_dir: Path) -> None:
    with Daemon(runtime_dir) as first:
        first.wait_ready()
        shutil.rmtree(runtime_dir)
        with Daemon(runtime_dir) as second:
            second.wait_ready()
            assert first.stop() == 0
            with open_channel(second.grpc_address) as channel:
                CacheCalls(channel).status(cache_pb2.StatusRequest(), timeout=10)
            assert {"attach.sock", "grpc.sock"} <= set(left_over(runtime_dir))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(runtime_dir: Path, number: signal.Signals) -> None:
    daemon = Daemon(runtime_dir).wait_ready()
    daemon.send(number)
    assert daemon.wait_end() == 0
    assert left_over(runtime_dir) == ["sidecar.lock"]
    assert daemon.line("draining")["signal"] == number.name
    assert daemon.line("ended")
    assert_quiet(daemon)


def slow_put(
    space: Namespace, keys: list[PageKey], stamp: Stamp | None, go_on: threading.Event
) -> Iterator[bytes]:
    """Half a page, then the rest once told."""
    page = page_of(keys[0], 1000)
    header = cache_pb2.PutHeader(
        namespace_id=space.id, chain=cache_pb2.Chain(keys=pack_keys(keys)), stamp=stamp_to_wire(stamp)
    )
    yield encode_put_request(header=header, chunks=[Chunk(0, 0, page[:500])])
    assert go_on.wait(20)
    yield encode_put_request(chunks=[Chunk(0, 500, page[500:], checksum(page))])


@contextmanager
def running_put(daemon: Daemon) -> Iterator[tuple[Any, threading.Event]]:
    """A put of which half has arrived, and what lets the rest follow."""
    go_on = threading.Event()
    with open_channel(daemon.grpc_address) as channel:
        store = RemoteStore(channel)
        space = space_of(1000)
        store.register(space)
        call = store.calls.put_raw.future(slow_put(space, fresh_chain(1), store.stamp(), go_on), timeout=30)
        wait_until(lambda: store.status().arena["reservations"] == 1, what="the running put")
        yield call, go_on


def test_draining_finishes_what_runs_and_refuses_what_is_new(runtime_dir: Path) -> None:
    daemon = Daemon(runtime_dir, "--drain-time", "20s", arena="128MiB").wait_ready()
    with open_channel(daemon.grpc_address) as channel:
        store = RemoteStore(channel)
        space, keys = stored_page(store)
        large = store.register(space_of(MIB))
        chain = fresh_chain(40)
        store.put(large, chain, [page_of(key, MIB) for key in chain], stamp=store.stamp())
        request = cache_pb2.GetRequest(namespace_id=large, chain=cache_pb2.Chain(keys=pack_keys(chain)))
        running = iter(store.calls.get_raw(request, timeout=60))
        messages = [next(running)]

        daemon.send(signal.SIGTERM)
        wait_until(lambda: '"event": "draining"' in daemon.output, what="draining")
        wait_until(lambda: not _is_serving(channel), what="the health check's end")
        with pytest.raises((errors.ClosedError, errors.SidecarUnreachableError)):
            store.look_up(space.id, keys)

        messages += running
        pages = [chunk for message in messages for chunk in decode_get_response(message).chunks]
        assert [bytes(chunk.data) for chunk in pages] == [page_of(key, MIB) for key in chain]
    assert daemon.wait_end() == 0
    assert_quiet(daemon)
    assert left_over(runtime_dir) == ["eviction-policy.state", "sidecar.lock"]


def _is_serving(channel: grpc.Channel) -> bool:
    request = health_pb2.HealthCheckRequest(service=SERVICE)
    try:
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)
    except grpc.RpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def test_draining_gives_up_after_its_time(runtime_dir: Path) -> None:
    daemon = Daemon(runtime_dir, "--drain-time", "300ms").wait_ready()
    with running_put(daemon) as (call, go_on):
        daemon.send(signal.SIGTERM)
        assert daemon.wait_end() == 0
        go_on.set()
        with pytest.raises(grpc.RpcError):
            call.result(timeout=10)
    assert left_over(runtime_dir) == ["sidecar.lock"]


def test_a_second_signal_ends_at_once(runtime_dir: Path) -> None:
    daemon = Daemon(runtime_dir, "--drain-time", "10m").wait_ready()
    with running_put(daemon) as (call, go_on):
        daemon.send(signal.SIGTERM)
        wait_until(lambda: '"event": "draining"' in daemon.output, what="draining")
        daemon.send(signal.SIGTERM)
        assert daemon.wait_end() == 128 + signal.SIGTERM
        go_on.set()
        call.cancel()
    assert left_over(runtime_dir) == ["sidecar.lock"]


def test_health_and_reflection_are_served(runtime_dir: Path) -> None:
    from google.protobuf.descriptor_pool import DescriptorPool
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    with Daemon(runtime_dir) as daemon, open_channel(daemon.wait_ready().grpc_address) as channel:
        assert _is_serving(channel)
        database = ProtoReflectionDescriptorDatabase(channel)
        assert SERVICE in database.get_services()
        pool = DescriptorPool(database)
        methods = {method.name for method in pool.FindServiceByName(SERVICE).methods}
        assert methods == {"RegisterNamespace", "LookUp", "Get", "GetWhole", "Put", "Status"}


def test_hits_come_back_after_a_pause_of_the_daemon(runtime_dir: Path) -> None:
    with (
        Daemon(runtime_dir, "--freshness-lease", "200ms") as daemon,
        open_channel(daemon.wait_ready().grpc_address) as channel,
    ):
        store = RemoteStore(channel)
        space, keys = stored_page(store)
        wait_until(lambda: store.look_up(space.id, keys) == Hit(1, Tier.L2), what="a hit")
        daemon.send(signal.SIGSTOP)
        try:
            stopped = psutil.Process(daemon.pid)
            wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED, what="the stop")
        finally:
            daemon.send(signal.SIGCONT)
        wait_until(lambda: store.look_up(space.id, keys) == Hit(1, Tier.L2), what="hits again")


def test_a_failing_heartbeat_ends_the_daemon_with_its_error(runtime_dir: Path) -> None:
    """No silent loss of the heartbeat: the daemon ends, says why, and leaves nothing."""
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from cache_l2.store import ArenaStore\n"
        "from sidecar.config_sources import load_settings\n"
        "from sidecar.runtime import Sidecar\n"
        "beats = []\n"
        "tick = ArenaStore.tick\n"
        "def failing(self):\n"
        "    beats.append(1)\n"
        "    if len(beats) > 3: raise OSError('the heart stopped')\n"
        "    return tick(self)\n"
        "ArenaStore.tick = failing\n"
        "settings = load_settings({'runtime_dir': sys.argv[1], 'arena_size': '64MiB',\n"
        "    'freshness_lease': '200ms'}).settings\n"
        "async def main(): await Sidecar(settings, version='0').run()\n"
        "asyncio.run(main())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(runtime_dir)],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert "OSError: the heart stopped" in result.stderr
    assert left_over(runtime_dir) == ["sidecar.lock"]


def test_what_stays_loaded_is_nothing_that_a_collection_looks_at(runtime_dir: Path) -> None:
    """Modules and settings are some hundred thousand objects; the daemon's own are a few thousand beside them."""
    script = (
        "import asyncio, gc, sys\n"
        "from sidecar.config_sources import load_settings\n"
        "from sidecar.runtime import Sidecar\n"
        "from sidecar.services import Services\n"
        "start = Services.start\n"
        "async def looking(self):\n"
        "    await start(self)\n"
        "    print(gc.get_freeze_count() > 10 * len(gc.get_objects()), gc.isenabled(), flush=True)\n"
        "    sidecar._ending.set()\n"
        "Services.start = looking\n"
        "settings = load_settings({'runtime_dir': sys.argv[1], 'arena_size': '64MiB'}).settings\n"
        "sidecar = Sidecar(settings, version='0')\n"
        "async def main(): await sidecar.run()\n"
        "asyncio.run(main())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(runtime_dir)],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "True True" in result.stdout.splitlines(), result.stdout + result.stderr


@pytest.mark.parametrize("huge_pages", [HugePages.TRANSPARENT, HugePages.TRY, HugePages.EXPLICIT])
def test_c25_an_arena_that_does_not_fit_is_a_clear_error(runtime_dir: Path, huge_pages: HugePages) -> None:
    result = run_command(
        "serve", "--runtime-dir", str(runtime_dir), "--arena-size", "64TiB", "--huge-pages", huge_pages
    )
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "stratakv serve: " in result.stderr
    assert left_over(runtime_dir) == ["sidecar.lock"]


def test_a_miss_after_the_restart_says_that_the_namespace_is_unknown(runtime_dir: Path) -> None:
    with Daemon(runtime_dir) as daemon, open_channel(daemon.wait_ready().grpc_address) as channel:
        space, keys = stored_page(RemoteStore(channel))
    with Daemon(runtime_dir) as daemon, open_channel(daemon.wait_ready().grpc_address) as channel:
        store = RemoteStore(channel)
        with pytest.raises(errors.UnknownNamespaceError):
            store.look_up(space.id, keys)
        store.register(space)
        assert store.look_up(space.id, keys) == Miss(MissReason.ABSENT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_memory_is_committed_ends_it_at_once(
    runtime_dir: Path, number: signal.Signals
) -> None:
    """A large arena takes long to commit, on the thread of the event loop; here that is a lock never released."""
    script = (
        "import asyncio, sys, threading\n"
        "from sidecar import runtime\n"
        "from sidecar.config_sources import load_settings\n"
        "def endless(*_, **__):\n"
        "    print('committing', flush=True)\n"
        "    threading.Event().wait()\n"
        "runtime.ArenaStore = endless\n"
        "settings = load_settings({'runtime_dir': sys.argv[1], 'arena_size': '64MiB'}).settings\n"
        "async def main(): await runtime.Sidecar(settings, version='0').run()\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(runtime_dir)],
        cwd=ROOT, env=clean_environment(), stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    while process.stdout.readline() != b"committing\n":
        assert process.poll() is None
    process.send_signal(number)
    assert process.wait(20) == -number
    process.stdout.close()
    with Daemon(runtime_dir) as after:
        after.wait_ready()
