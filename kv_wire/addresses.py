"""Where a sidecar is found: its runtime directory, the names in it, and host:port as people write it.

Sidecars and workers look here, so that both mean the same place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

ATTACH_SOCKET = "attach.sock"
GRPC_SOCKET = "grpc.sock"

_HOST_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%a-z]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")


def default_runtime_dir(environment: Mapping[str, str]) -> Path:
    """Return $XDG_RUNTIME_DIR/stratakv, else a directory of this user's under /tmp."""
    base = environment.get("XDG_RUNTIME_DIR")
    return Path(base) / "stratakv" if base else Path(f"/tmp/stratakv-{os.getuid()}")  # noqa: S108 - 0700 and checked


def host_and_port(text: str) -> tuple[str, int] | None:
    """Return the two parts of host:port or [ipv6]:port; None when it is neither. The port may be too large."""
    parts = _HOST_PORT.fullmatch(text)
    return None if parts is None else (parts["host"], int(parts["port"]))
