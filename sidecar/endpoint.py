"""The daemon's place on this machine: a private directory, a lock that names its holder, socket paths, TCP ports."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from cache_l2.attach_socket import peer_of
from kv_types.errors import ConfigError, EndpointInUseError
from kv_types.limits import SOCKET_PATH_BYTES_MAX
from kv_wire.addresses import ATTACH_SOCKET, GRPC_SOCKET

LOCK_NAME = "sidecar.lock"
PRIVATE_REDIS_SOCKETS = "redis-*.sock"
"""Sockets of private Redis servers, each with its sidecar's pid for the star."""


class RuntimeDirectory:
    """A directory that one daemon at a time holds. Everything in it is private to this user.

    The lock is an flock: it goes with the process, whatever kills it. Whoever holds it knows that sockets found
    here are left over from a daemon that died, and takes their place.
    """

    def __init__(self, path: Path) -> None:
        """Make the directory or check it. Raises ConfigError when it cannot be trusted or used."""
        self.path = path
        longest = len(os.fsencode(path / ATTACH_SOCKET))
        if longest > SOCKET_PATH_BYTES_MAX:
            raise ConfigError(
                f"the runtime directory {path} is too long a path: sockets in it would have {longest} bytes, "
                f"{SOCKET_PATH_BYTES_MAX} are allowed; choose a shorter --runtime-dir"
            )
        _make_private(path)
        self._lock_fd: int | None = None

    @property
    def attach_path(self) -> Path:
        """Socket that workers attach to."""
        return self.path / ATTACH_SOCKET

    @property
    def grpc_path(self) -> Path:
        """Socket of the gRPC service."""
        return self.path / GRPC_SOCKET

    @property
    def lock_path(self) -> Path:
        """File whose flock says that a daemon lives here."""
        return self.path / LOCK_NAME

    def acquire(self) -> None:
        """Take the lock and clear what a dead daemon left; raises EndpointInUseError naming the holder."""
        try:
            fd = os.open(self.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot open the lock {self.lock_path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _describe_holder(fd)
            os.close(fd)
            raise EndpointInUseError(
                f"another sidecar holds {self.path}: {holder}; stop it, or choose another --runtime-dir"
            ) from None
        # A lock that somebody removed says nothing: whoever holds it still listens.
        for path in (self.attach_path, self.grpc_path):
            listener = holder_of(path)
            if listener is not None:
                os.close(fd)
                raise EndpointInUseError(
                    f"{listener} listens at {path}, though the lock {self.lock_path} is free; stop it, or choose "
                    "another --runtime-dir"
                )
        os.fchmod(fd, 0o600)
        body = json.dumps({"pid": os.getpid(), "started": datetime.now(UTC).isoformat(timespec="seconds")})
        os.ftruncate(fd, 0)
        os.pwrite(fd, body.encode() + b"\n", 0)
        self._lock_fd = fd
        self.remove_sockets()

    def remove_sockets(self) -> None:
        """Remove the socket files; raises ConfigError when something else stands in their place."""
        for path in (self.attach_path, self.grpc_path):
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISSOCK(path.lstat().st_mode):
                    raise ConfigError(f"{path} is not a socket and stands where one must be; move it away")
                path.unlink()
        remove_private_sockets(self.path)

    def release(self) -> None:
        """Remove the sockets and empty the lock file, then let go of the lock. May be called twice."""
        if self._lock_fd is None:
            return
        if self._is_still_ours():
            self.remove_sockets()
        # Emptied, not unlinked: a second daemon may have opened the file already, and two locks on two files
        # of one name would let both in.
        os.ftruncate(self._lock_fd, 0)
        os.close(self._lock_fd)
        self._lock_fd = None

    def _is_still_ours(self) -> bool:
        """Whether the lock that we hold is the one at the path: else the sockets there are another daemon's."""
        assert self._lock_fd is not None, "asked for while the lock is held"
        try:
            return os.path.samestat(os.fstat(self._lock_fd), self.lock_path.lstat())
        except OSError:
            return False


def holder_of(path: Path) -> str | None:
    """Who listens on the Unix socket at a path: "process 123", or "somebody" whom one can't connect to; None: nobody does."""
    status = errno.EPROTOTYPE
    for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
        if status != errno.EPROTOTYPE:
            break
        with socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as probe:
            status = probe.connect_ex(os.fspath(path))
            if status == 0:
                return f"process {peer_of(probe).pid}"
    if status in (errno.ENOENT, errno.ECONNREFUSED):
        return None
    return f"somebody ({os.strerror(status)})"


def remove_private_sockets(runtime_dir: Path) -> None:
    """Remove the sockets of private Redis servers, those of sidecars that were killed among them; only while the lock is held."""
    for path in runtime_dir.glob(PRIVATE_REDIS_SOCKETS):
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Make files and sockets that are created meanwhile 0600 from their first moment on."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def check_port_free(address: str) -> None:
    """Raise EndpointInUseError when host:port is taken, ConfigError when it can't be listened on at all."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror}") from error
    family, kind, protocol, _, target = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(target)
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise EndpointInUseError(
                    f"port {port} of {host} is taken by another process; stop it, or choose another port"
                ) from error
            raise ConfigError(f"cannot listen on {address}: {error.strerror}") from error


def _make_private(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
    except OSError as error:
        raise ConfigError(f"cannot make the runtime directory {path}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{path} is not a directory; choose another --runtime-dir")
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"{path} belongs to user {found.st_uid}, not to {os.geteuid()}: its owner could put sockets in "
            "our place; choose another --runtime-dir"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(
            f"{path} has mode {stat.S_IMODE(found.st_mode):04o}, so others can enter it; "
            f"chmod 700 {path}, or choose another --runtime-dir"
        )


def _describe_holder(fd: int) -> str:
    # The holder writes its line right after it has the lock: wait for it a moment, it is worth naming.
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            record = json.loads(os.pread(fd, 4096, 0))
            return f"pid {int(record['pid'])}, since {record['started']}"
        time.sleep(0.01)
    return "it has not said who it is"
