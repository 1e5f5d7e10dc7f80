"""The body of LOOKED, by which clients tell of look-ups while these are recorded."""

from __future__ import annotations

import struct

from cache_l2.attach_body import Body
from cache_l2.attach_messages import Looked
from kv_types.errors import LimitExceededError, ProtocolError
from kv_types.ids import DIGEST_BYTES
from kv_types.trace_limits import LOOKED_PAGES_MAX

_LOOKED = struct.Struct("<IIH")


def write_looked(message: Looked) -> bytes:
    """Return the body. Raises LimitExceededError for a chain that is too long to be told."""
    pages = len(message.digests) // DIGEST_BYTES
    if pages > LOOKED_PAGES_MAX:
        raise LimitExceededError(f"a look-up of {pages} pages exceeds {LOOKED_PAGES_MAX}: it is not told of")
    return _LOOKED.pack(message.namespace_number, message.dropped, pages) + message.digests


def read_looked(body: Body) -> Looked:
    """Read the body. Raises ProtocolError."""
    number, dropped, pages = body.unpack(_LOOKED)
    if pages > LOOKED_PAGES_MAX:
        raise ProtocolError(f"a look-up of {pages} pages exceeds {LOOKED_PAGES_MAX}")
    return Looked(number, bytes(body.take(pages * DIGEST_BYTES)), dropped)
