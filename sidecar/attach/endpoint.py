"""The path of the attach socket: bound for one user, never stolen from a living holder, never left behind by us."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

from kv_types.errors import ConfigError, EndpointInUseError
from sidecar.endpoint import holder_of

_MODE = 0o600


def listen_on(path: Path, *, backlog: int) -> tuple[socket.socket, int]:
    """Return a non-blocking listening SOCK_SEQPACKET socket at `path` (0600) and the inode of the path.

    Two daemons that start at the same moment are kept apart by the runtime directory's lock, not here.
    Raises EndpointInUseError naming the holder, ConfigError when the path can't be bound.
    """
    _clear_stale(path)
    listener = socket.socket(
        socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    )
    try:
        # Linux gives the path the mode of the socket: it is never open to others, not even for a moment
        os.fchmod(listener.fileno(), _MODE)
        listener.bind(os.fspath(path))
        listener.listen(backlog)
        return listener, path.stat().st_ino
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"the attach socket can't be bound at {path}: {error}; choose another path"
        ) from error


def unlink_own(path: Path, inode: int) -> None:
    """Remove the path if it is still the one that was bound here."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_ino == inode:
            path.unlink()


def _clear_stale(path: Path) -> None:
    """Remove a socket that nobody listens on."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"the attach socket can't be at {path}: {error}") from error
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} exists and is no socket: remove it, or choose another path")
    holder = holder_of(path)
    if holder is not None:
        raise EndpointInUseError(f"{holder} listens at {path}: stop it, or choose another path")
    path.unlink()
