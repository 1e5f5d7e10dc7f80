"""Files of weights and adapters, written byte by byte, for tests."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Tensor = tuple[str, Sequence[int], bytes]
"""dtype, shape, bytes."""


def safetensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """One well-formed file."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    return with_header(json.dumps(header).encode(), b"".join(data for _, _, data in tensors.values()))


def with_header(header: bytes, body: bytes = b"") -> bytes:
    """A file of whatever header."""
    return struct.pack("<Q", len(header)) + header + body


def some_tensors(*, seed: int = 0, rows: int = 300) -> dict[str, Tensor]:
    """A small model: one tensor that is read whole, and one large enough to be sampled."""
    small = bytes((seed + i) % 251 for i in range(64))
    large = bytes((seed + 7 * i) % 253 for i in range(rows * 1024))
    return {
        "model.norm.weight": ("F32", [16], small),
        "model.layers.0.mlp.weight": ("BF16", [rows, 512], large),
    }


def write_model(folder: Path, tensors: Mapping[str, Tensor] | None = None) -> Path:
    """A folder with one file of weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(safetensors(some_tensors() if tensors is None else tensors))
    return folder


def age(folder: Path, *, by_s: int = 60) -> None:
    """Make files look as if they had not been touched for long; their ctime stays."""
    for path in folder.iterdir():
        stat = path.stat()
        os.utime(path, (stat.st_atime - by_s, stat.st_mtime - by_s))
