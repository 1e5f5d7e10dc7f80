"""The runtime directory: private, held by one, never trusted when others could have made it."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path

import pytest

from kv_types.errors import ConfigError, EndpointInUseError
from sidecar.endpoint import RuntimeDirectory, check_port_free, private_files


def test_it_is_made_private_whatever_the_umask(runtime_dir: Path) -> None:
    before = os.umask(0)
    try:
        directory = RuntimeDirectory(runtime_dir)
        directory.acquire()
    finally:
        os.umask(before)
    assert stat.S_IMODE(runtime_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(directory.lock_path.stat().st_mode) == 0o600
    directory.release()


def test_the_lock_names_its_holder_and_is_free_after_release(runtime_dir: Path) -> None:
    first, second = RuntimeDirectory(runtime_dir), RuntimeDirectory(runtime_dir)
    first.acquire()
    assert json.loads(first.lock_path.read_text())["pid"] == os.getpid()
    with pytest.raises(EndpointInUseError, match=rf"pid {os.getpid()}, since \d{{4}}-"):
        second.acquire()
    first.release()
    first.release()
    second.acquire()
    second.release()


def test_a_holder_that_wrote_nothing_yet_is_still_a_holder(runtime_dir: Path) -> None:
    first, second = RuntimeDirectory(runtime_dir), RuntimeDirectory(runtime_dir)
    first.acquire()
    first.lock_path.write_text("not json")
    with pytest.raises(EndpointInUseError, match="has not said who it is"):
        second.acquire()
    first.release()


def test_what_the_server_of_a_killed_sidecar_left_is_cleared_whatever_log_comes_next(
    runtime_dir: Path,
) -> None:
    directory = RuntimeDirectory(runtime_dir)
    file = runtime_dir / "redis-1.sock"
    file.write_text("somebody else's")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(runtime_dir / "redis-2.sock"))
    directory.acquire()
    assert sorted(runtime_dir.iterdir()) == [file, directory.lock_path]
    directory.release()


def test_the_sockets_of_a_successor_are_left_alone(runtime_dir: Path) -> None:
    """Somebody removed the directory of a living daemon and started another one there."""
    first = RuntimeDirectory(runtime_dir)
    first.acquire()
    first.lock_path.unlink()
    second = RuntimeDirectory(runtime_dir)
    second.acquire()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(second.grpc_path))
        first.release()
        assert second.grpc_path.exists()
        second.release()
    assert not second.grpc_path.exists()


def test_stale_sockets_are_removed_and_nothing_else(runtime_dir: Path) -> None:
    directory = RuntimeDirectory(runtime_dir)
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(directory.grpc_path))
    stale.close()
    other = runtime_dir / "precious"
    other.write_text("kept")
    directory.acquire()
    assert not directory.grpc_path.exists()
    assert other.read_text() == "kept"
    directory.release()


def test_what_is_no_socket_is_not_removed(runtime_dir: Path) -> None:
    directory = RuntimeDirectory(runtime_dir)
    directory.attach_path.write_text("kept")
    with pytest.raises(ConfigError, match="not a socket"):
        directory.acquire()
    assert directory.attach_path.read_text() == "kept"


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_directory_that_others_can_enter_is_refused(runtime_dir: Path, mode: int) -> None:
    runtime_dir.mkdir()
    runtime_dir.chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}.*chmod 700"):
        RuntimeDirectory(runtime_dir)


def test_a_link_is_refused(runtime_dir: Path) -> None:
    target = runtime_dir.with_name("target")
    target.mkdir(mode=0o700)
    runtime_dir.symlink_to(target)
    with pytest.raises(ConfigError, match="not a directory"):
        RuntimeDirectory(runtime_dir)


def test_a_lock_that_is_a_link_is_refused(runtime_dir: Path) -> None:
    directory = RuntimeDirectory(runtime_dir)
    victim = runtime_dir.with_name("victim")
    victim.write_text("kept")
    directory.lock_path.symlink_to(victim)
    with pytest.raises(ConfigError, match="cannot open the lock"):
        directory.acquire()
    assert victim.read_text() == "kept"


def test_somebody_elses_directory_is_refused(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime_dir.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match="belongs to user"):
        RuntimeDirectory(runtime_dir)


def test_a_path_too_long_for_sockets_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 100)
    with pytest.raises(ConfigError, match="107 are allowed"):
        RuntimeDirectory(path)
    assert not path.exists()


def test_sockets_are_private_from_their_first_moment(runtime_dir: Path) -> None:
    RuntimeDirectory(runtime_dir)
    before = os.umask(0)
    try:
        with private_files(), socket.socket(socket.AF_UNIX) as made:
            made.bind(str(runtime_dir / "s"))
        assert os.umask(0) == 0, "the mask from before is back"
    finally:
        os.umask(before)
    assert stat.S_IMODE((runtime_dir / "s").stat().st_mode) == 0o600


def test_ports_are_checked_by_name() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(EndpointInUseError, match=f"port {port} of 127.0.0.1"):
            check_port_free(f"127.0.0.1:{port}")
    check_port_free(f"127.0.0.1:{port}")
    with pytest.raises(ConfigError, match=r"203\.0\.113\.1"):
        check_port_free("203.0.113.1:0")
    with pytest.raises(ConfigError, match=r"no-such-host\.invalid"):
        check_port_free("no-such-host.invalid:1")
