"""The file in which a sidecar keeps its pins, so that a restart does not end them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cache_l2.pins import Pin, PinnedChain
from kv_types.errors import ProtocolError, StrataError
from kv_types.ids import namespace_id
from kv_types.operator_limits import PIN_FILE_BYTES_MAX, PINS_MAX
from sidecar.kept_files import read_whole, write_whole

PIN_FILE = "pins.json"
_FORMAT = 1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Which boot of the machine this is: a pin's end is a time of its clock."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


def encode_pins(pins: Iterable[Pin], boot: str) -> bytes:
    """Write pins down: a line with the digest of the rest, and one JSON object."""
    told = [
        {
            "name": pin.name,
            "ends_ns": pin.ends_ns,
            "chains": [
                {
                    "namespace": chain.namespace.hex(),
                    "page_bytes": chain.page_bytes,
                    "keys": base64.b64encode(chain.keys).decode(),
                }
                for chain in pin.chains
            ],
        }
        for pin in pins
    ]
    body = json.dumps({"format": _FORMAT, "boot": boot, "pins": told}).encode()
    return _digest(body) + b"\n" + body + b"\n"


def decode_pins(data: bytes, boot: str) -> list[Pin]:
    """Read what `encode_pins` wrote, none where that was under another boot. Raises ProtocolError for anything else."""
    digest, _, body = data.partition(b"\n")
    body = body.removesuffix(b"\n")
    if digest != _digest(body):
        raise ProtocolError("the file of pins is damaged: its digest is another")
    try:
        told = json.loads(body)
        if told["format"] != _FORMAT:
            raise ProtocolError(f"the file of pins has the format {told['format']!r}, not {_FORMAT}")
        pins = [_pin(one) for one in told["pins"][:PINS_MAX]]
        return pins if told["boot"] == boot else []
    except (ValueError, KeyError, TypeError, StrataError, RecursionError) as error:
        raise ProtocolError(f"the file of pins can't be read: {error}") from error


def read_pins(path: Path) -> list[Pin]:
    """Pins of a file, none where it isn't there. Raises ProtocolError, InvalidArgumentError, OSError."""
    data = read_whole(path, bytes_max=PIN_FILE_BYTES_MAX)
    return [] if data is None else decode_pins(data, boot_id())


def write_pins(path: Path, pins: Sequence[Pin]) -> None:
    """Put a new file in the place of the old one; no pins, no file. Raises OSError; the old stays then."""
    if pins:
        write_whole(path, encode_pins(pins, boot_id()))
    else:
        path.unlink(missing_ok=True)


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=32).hexdigest().encode()


def _pin(told: Any) -> Pin:
    chains = tuple(
        PinnedChain(
            namespace_id(bytes.fromhex(one["namespace"])),
            base64.b64decode(one["keys"], validate=True),
            _number(one["page_bytes"]),
        )
        for one in told["chains"]
    )
    return Pin(str(told["name"]), chains, _number(told["ends_ns"]))


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is no number of it")
    return value
