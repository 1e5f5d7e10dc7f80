"""The attach socket's path: whom it belongs to, when it is taken over, and what is left of it."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from kv_types.errors import ConfigError, EndpointInUseError
from sidecar.attach.endpoint import listen_on, unlink_own
from tests.support.attach_daemon import AttachDaemon
from tests.support.attach_site import SMALL, AttachSite


def test_the_path_is_for_its_owner_alone_from_the_first_moment(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        listener, _ = listen_on(tmp_path / "attach.sock", backlog=1)
    finally:
        os.umask(before)
    with listener:
        mode = (tmp_path / "attach.sock").stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_c23_a_living_holder_is_named_and_undisturbed(tmp_path: Path) -> None:
    with AttachDaemon(tmp_path, **SMALL) as holder:
        with pytest.raises(EndpointInUseError, match=f"process {holder.pid} listens"):
            listen_on(holder.path, backlog=1)
        holder.attach().close()


def test_c23_a_stale_path_of_a_killed_daemon_is_taken_over(tmp_path: Path) -> None:
    with AttachDaemon(tmp_path, **SMALL) as killed:
        killed.kill()
        assert killed.path.exists()
    with AttachSite(tmp_path) as site:
        site.attach().close()
    assert not site.path.exists(), "a daemon that ends by itself leaves nothing behind"


def test_c23_a_holder_of_another_kind_is_not_robbed(tmp_path: Path) -> None:
    path = tmp_path / "attach.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        other.listen(1)
        with pytest.raises(EndpointInUseError, match=f"process {os.getpid()} listens"):
            listen_on(path, backlog=1)
    assert path.exists()


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "attach.sock"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="no socket"):
        listen_on(path, backlog=1)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("name", ["missing/attach.sock", "x" * 120])
def test_a_path_that_cannot_be_bound_is_a_clear_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="choose another path"):
        listen_on(tmp_path / name, backlog=1)


def test_a_successors_path_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "attach.sock"
    first, inode = listen_on(path, backlog=1)
    first.close()
    second, second_inode = listen_on(path, backlog=1)
    with second:
        unlink_own(path, -1 if inode == second_inode else inode)
        assert path.exists()
        unlink_own(path, second_inode)
        assert not path.exists()
        unlink_own(path, second_inode)
