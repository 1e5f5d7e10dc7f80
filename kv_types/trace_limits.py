"""Limits of traces of requests, replayed and recorded. Part of kv_types.limits, in a file of its own."""

from __future__ import annotations

from kv_types.limits import ATTACH_MESSAGE_BYTES_MAX, CHAIN_PAGES_MAX

TRACE_LINE_BYTES_MAX = 4 * 1024 * 1024
TRACE_REQUESTS_MAX = 16 * 1024 * 1024
TRACE_BLOCKS_MAX = 32 * 1024 * 1024
"""Blocks that all requests of one trace ask for together: 512 MiB while it is replayed."""
TRACE_TIME_MS_MAX = 2**42
"""The year 2109 in Unix ms."""
TRACE_TOKENS_MAX = 2**31 - 1
"""Tokens in, or out, of one request."""
SIMULATE_JOBS_MAX = 256
"""Processes that replay at a time."""
RECORDINGS_MAX = 4
"""Recordings of one sidecar's look-ups at a time."""
RECORDED_LOOK_UPS_MAX = 16_384
RECORDED_BYTES_MAX = 32 * 1024 * 1024
"""Look-ups, and bytes of their digests, that wait for one recording's reader; more are dropped and counted."""
LOOKED_PAGES_MAX = 16_000
"""Pages of one look-up that a client tells of; a longer one is dropped and counted."""
RECORD_S_MAX = 31 * 86_400.0
"""How long one recording lasts at most."""

assert LOOKED_PAGES_MAX * 8 + 64 < ATTACH_MESSAGE_BYTES_MAX, (
    "a look-up that is told of must fit one attach message"
)
assert CHAIN_PAGES_MAX * 22 < TRACE_LINE_BYTES_MAX, "the longest chain must fit one line of a trace"
