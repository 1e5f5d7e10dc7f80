"""Where a sidecar is: the text that users write, parsed into a runtime directory or a gRPC address."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kv_types.errors import ConfigError
from kv_types.limits import PORT_MAX, SOCKET_PATH_BYTES_MAX
from kv_wire.addresses import ATTACH_SOCKET, GRPC_SOCKET, default_runtime_dir, host_and_port

ENDPOINT_VARIABLE = "STRATAKV_ENDPOINT"
RUNTIME_DIR_VARIABLE = "STRATAKV_RUNTIME_DIR"
"""What `stratakv serve` takes its runtime directory from, too."""
_EXAMPLES = (
    "write a runtime directory (/run/stratakv), unix:/run/stratakv, or host:port (10.0.0.7:7420, [::1]:7420)"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`runtime_dir` holds the sidecar's sockets, or is None for a remote one; `grpc_target` is what gRPC dials."""

    runtime_dir: Path | None
    grpc_target: str

    @property
    def attach_path(self) -> Path | None:
        """The attach socket, or None when shared memory is out of the question."""
        return None if self.runtime_dir is None else self.runtime_dir / ATTACH_SOCKET

    def __str__(self) -> str:
        return self.grpc_target if self.runtime_dir is None else f"unix:{self.runtime_dir}"


def parse_endpoint(text: str | os.PathLike[str] | None, environment: Mapping[str, str]) -> Endpoint:
    """Parse an endpoint; None takes $STRATAKV_ENDPOINT, else $STRATAKV_RUNTIME_DIR, else the default runtime directory.

    Raises ConfigError.
    """
    if text is None:
        text = environment.get(ENDPOINT_VARIABLE) or _runtime_dir(environment)
    if isinstance(text, os.PathLike):
        return _directory(os.fspath(text))
    if not isinstance(text, str):
        raise ConfigError(f"an endpoint is text or a path, not {type(text).__name__}; {_EXAMPLES}")
    if text.startswith("unix:"):
        return _directory(text.removeprefix("unix:"))
    if "/" in text or text.startswith((".", "~")):
        return _directory(text)
    return _remote(text)


def _runtime_dir(environment: Mapping[str, str]) -> Path:
    """Where a sidecar of the same environment has its sockets: a path, however it is written."""
    named = environment.get(RUNTIME_DIR_VARIABLE)
    return Path(named) if named else default_runtime_dir(environment)


def _directory(text: str) -> Endpoint:
    if not text or "\0" in text or "://" in text:
        raise ConfigError(f"{text!r} is no runtime directory; {_EXAMPLES}")
    try:
        path = Path(text).expanduser().absolute()
    except RuntimeError as error:  # ~user of somebody who is not there
        raise ConfigError(f"{text!r} is no runtime directory: {error}; {_EXAMPLES}") from error
    longest = path / ATTACH_SOCKET
    if len(os.fsencode(longest)) > SOCKET_PATH_BYTES_MAX:
        raise ConfigError(
            f"{str(longest)!r} has {len(os.fsencode(longest))} bytes, and a socket's path may have at most "
            f"{SOCKET_PATH_BYTES_MAX}; choose a runtime directory with a shorter path"
        )
    return Endpoint(runtime_dir=path, grpc_target=f"unix:{path / GRPC_SOCKET}")


def _remote(text: str) -> Endpoint:
    parts = host_and_port(text)
    if parts is None:
        raise ConfigError(f"{text!r} is no endpoint; {_EXAMPLES}")
    if not 1 <= parts[1] <= PORT_MAX:
        raise ConfigError(f"port {parts[1]} in {text!r} is outside 1 to {PORT_MAX}; {_EXAMPLES}")
    return Endpoint(runtime_dir=None, grpc_target=text)
