"""The body of SPEEDS, by which clients tell how fast they compute and copy."""

from __future__ import annotations

import struct

from cache_l2.attach_body import Body
from cache_l2.attach_messages import Speeds
from kv_types.errors import InvalidArgumentError, ProtocolError

_SPEEDS = struct.Struct("<3d")


def write_speeds(message: Speeds) -> bytes:
    """Return the body."""
    return _SPEEDS.pack(message.prefill_tokens_per_s, message.copy_latency_s, message.copy_bytes_per_s)


def read_speeds(body: Body) -> Speeds:
    """Read the body. Raises ProtocolError."""
    try:
        return Speeds(*(float(number) for number in body.unpack(_SPEEDS)))
    except InvalidArgumentError as error:
        raise ProtocolError(str(error)) from error
