"""The sidecar's own Redis: it ends with the sidecar by every kind of death, leaves nothing, and comes back when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from invalidation.log import LogUnavailableError, RenewalStatus
from kv_types.errors import ConfigError
from kv_types.limits import PRIVATE_REDIS_BYTES_MIN
from sidecar.log import die_with_parent
from sidecar.log.private_redis import PrivateRedis, find_redis_server
from tests.support.logs import Follower, Logs, append, within
from tests.support.polling import wait_until
from tests.support.processes import wait_until_stopped
from tests.support.redis_servers import redis_binaries, redis_kinds

MEMORY = 8 * 1024 * 1024
PARENT = Path(__file__).parent.parent / "support" / "private_redis_parent.py"


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="skv-") as scratch:
        yield Path(scratch)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


class Parent:
    """The process that has the private Redis."""

    def __init__(self, runtime: Path, *, end: str) -> None:
        root = PARENT.parent.parent.parent
        self.process = subprocess.Popen(
            [sys.executable, str(PARENT), str(runtime), end],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=root, env=os.environ | {"PYTHONPATH": str(root)},
        )  # fmt: skip
        assert self.process.stdout is not None
        pid, path = self.process.stdout.readline().split()
        self.redis_pid, self.socket_path = int(pid), Path(path)

    def end_by(self, how: str) -> None:
        if how == "killed":
            self.process.kill()
        elif how == "terminated":
            self.process.terminate()
        self.process.communicate(input="\n", timeout=20)


@pytest.mark.parametrize("how", ["stop", "exit", "error", "killed", "terminated"])
def test_it_ends_with_its_sidecar_and_leaves_nothing_but_its_socket(runtime: Path, how: str) -> None:
    parent = Parent(runtime, end=how)
    assert is_alive(parent.redis_pid)
    assert stat.S_ISSOCK(parent.socket_path.stat().st_mode)
    parent.end_by(how)
    wait_until(lambda: not is_alive(parent.redis_pid), what="the private Redis to end")
    assert list(runtime.iterdir()) == ([] if how == "stop" else [parent.socket_path])


def test_a_stopped_one_ends_with_its_sidecar(runtime: Path) -> None:
    parent = Parent(runtime, end="stop")
    os.kill(parent.redis_pid, signal.SIGSTOP)
    wait_until_stopped(parent.redis_pid)
    parent.end_by("killed")
    wait_until(lambda: not is_alive(parent.redis_pid), what="the private Redis to end")


def test_a_parent_that_is_gone_before_the_signal_is_armed_is_noticed(runtime: Path) -> None:
    """The race between fork and prctl: somebody else is the parent already, so the program must not begin."""
    marker = runtime / "begun"
    shim = [sys.executable, "-I", "-S", die_with_parent.__file__]
    touch = ["/bin/sh", "-c", f"echo > {marker}"]
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    subprocess.run([*shim, gone.stdout.decode().strip(), *touch], check=True)
    assert not marker.exists()
    subprocess.run([*shim, str(os.getpid()), *touch], check=True)
    assert marker.exists()


def test_a_parent_killed_at_any_moment_leaves_no_server(runtime: Path) -> None:
    """Killed while it starts, at moments spread over the start: no server of it is left, whatever had been reached."""
    root = PARENT.parent.parent.parent
    for at in range(8):
        place = runtime / str(at)
        place.mkdir()
        process = subprocess.Popen(
            [sys.executable, str(PARENT), str(place), "stop"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            cwd=root, env=os.environ | {"PYTHONPATH": str(root)},
        )  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.2 + 0.04 * at)
        process.kill()
        process.communicate()
        wait_until(functools.partial(is_deserted, place), what="every server of it to end")


def is_deserted(place: Path) -> bool:
    """Whether no process' command line names a directory: no server, nor what stands between fork and exec."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and os.fsencode(place) in (entry / "cmdline").read_bytes():
                return False
    return True


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", redis_kinds())
async def test_it_is_what_a_log_and_pages_need(runtime: Path, kind: str) -> None:
    redis, logs = PrivateRedis(redis_binaries()[kind], runtime, memory_bytes=MEMORY), Logs()
    try:
        log = logs.open(await redis.start())
        facts = await log.check(deadline_ns=within())
        assert (facts.errors, facts.warnings) == ((), ())
        assert (facts.policy, facts.memory_bytes_max) == ("volatile-lru", MEMORY)
        member = Follower(log)
        await member.boot()
        await append(log)
        assert (await member.renew()).confirmed
        mode = redis.socket_path.stat().st_mode
        assert stat.S_IMODE(mode) == 0o600
        with Redis(unix_socket_path=str(redis.socket_path)) as client:
            assert client.config_get("port") == {"port": "0"} or client.config_get("port") == {b"port": b"0"}
            assert client.info("persistence")["aof_enabled"] == 0
        assert redis.pid is not None
        assert os.getpgid(redis.pid) == redis.pid != os.getpgid(0), "a group of its own"
        assert list(runtime.iterdir()) == [redis.socket_path]
    finally:
        await logs.close()
        await redis.stop()
    assert list(runtime.iterdir()) == []


@pytest.mark.asyncio
async def test_it_comes_back_when_it_dies_as_a_new_log(runtime: Path) -> None:
    binary, logs = find_redis_server(), Logs()
    assert binary is not None
    redis = PrivateRedis(binary, runtime, memory_bytes=MEMORY)
    try:
        log = logs.open(await redis.start())
        member = Follower(log)
        await member.boot()
        assert (await member.renew()).status is RenewalStatus.OK
        first = redis.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        renewal = None
        async with asyncio.timeout(20.0):
            while renewal is None:
                with contextlib.suppress(LogUnavailableError):
                    renewal = await member.renew(seconds=0.5)
                await asyncio.sleep(0)
        assert renewal.status is RenewalStatus.NEW_INCARNATION
        assert redis.pid != first
        assert redis.restarts == 1
    finally:
        await logs.close()
        await redis.stop()
    assert list(runtime.iterdir()) == []


@pytest.mark.asyncio
async def test_a_frozen_one_is_ended_all_the_same(runtime: Path) -> None:
    binary = find_redis_server()
    assert binary is not None
    redis = PrivateRedis(binary, runtime, memory_bytes=MEMORY)
    await redis.start()
    pid = redis.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    await redis.stop()
    assert not is_alive(pid)
    assert list(runtime.iterdir()) == []


@pytest.mark.asyncio
async def test_sockets_of_dead_sidecars_are_cleared_and_other_files_are_not(runtime: Path) -> None:
    parent = await asyncio.to_thread(lambda: Parent(runtime, end="stop"))
    parent.end_by("killed")
    assert parent.socket_path.exists(), "it had no time to remove it"
    (runtime / "redis-1.sock").write_text("a file of somebody else's")
    binary = find_redis_server()
    assert binary is not None
    redis = PrivateRedis(binary, runtime, memory_bytes=MEMORY)
    await redis.start()
    try:
        assert not parent.socket_path.exists()
        assert (runtime / "redis-1.sock").read_text() == "a file of somebody else's"
    finally:
        await redis.stop()


@pytest.mark.asyncio
async def test_what_does_not_start_says_why(runtime: Path) -> None:
    cases = {
        runtime / "missing": "can't be started|ended at once",
        Path("/bin/false"): "ended at once with 1",
    }
    talker = runtime / "talker"
    talker.write_text("#!/bin/sh\necho it has no room >&2\nexit 7\n")
    talker.chmod(0o700)
    cases[talker] = "ended at once with 7; it said: it has no room"
    for binary, words in cases.items():
        with pytest.raises(ConfigError, match=words):
            await PrivateRedis(binary, runtime, memory_bytes=MEMORY).start()


def test_settings_that_can_not_work_are_errors(runtime: Path) -> None:
    binary = find_redis_server()
    assert binary is not None
    with pytest.raises(ConfigError, match="runtime-dir"):
        PrivateRedis(binary, runtime / ("d" * 100), memory_bytes=MEMORY)
    with pytest.raises(ConfigError, match="at least"):
        PrivateRedis(binary, runtime, memory_bytes=PRIVATE_REDIS_BYTES_MIN - 1)


def test_the_servers_of_path_come_first_then_the_packaged_one(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = runtime / "redis-server"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o700)
    monkeypatch.setenv("PATH", str(runtime))
    assert find_redis_server() == mine
    mine.unlink()
    assert find_redis_server() == redis_binaries().get("packaged"), "the package's, where it is installed"
    monkeypatch.setattr("sidecar.log.private_redis.importlib.util.find_spec", lambda name: None)
    assert find_redis_server() is None
