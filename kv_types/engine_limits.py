"""Limits of what runs inside an engine: L1, and its connector's workers. Part of kv_types.limits, in a file of its own."""

from __future__ import annotations

# L1
L1_MATCH_ATTEMPTS_MAX = 3
"""Look-ups tried again because the view moved meanwhile; then the reason is RACED."""
L1_EXPIRE_PAGES_MAX = 256
"""Expired pages freed by one call, so that no look-up pays for a whole cache."""
L1_TOMBSTONES_MAX = 4096
"""Hidden pages that an L1 remembers one by one; more become a floor that refuses inserts of older requests."""
L1_USES_COUNTED_MAX = 65_536
"""Pages of which it is counted how often L2 gave them."""
L1_STREAMS_MAX = 16
"""Streams of an engine whose work on L1's pages is told apart; of more, one is taken to wait for another."""
L1_STAGING_BUFFERS = 2
"""Pinned buffers of one direction: the host fills or empties one while the device moves the other."""
L1_STAGING_BYTES_MAX = 64 * 1024 * 1024
"""Pinned memory of one direction, but for larger pages; what does not fit goes in several turns."""

# An engine with a prefix cache of its own
ENGINE_BLOCKS_INDEXED_MAX = 4 * 1024 * 1024
"""Hashed blocks of an engine that are told apart; of more, any event takes all."""
ENGINE_BLOCKS_PRUNED_AT_ONCE = 2
"""Blocks that are looked at for each that is new, to forget those that the engine has evicted."""
ENGINE_DEFERRALS_MAX = 3
"""How often in a row one look-up is put off to the next step because the view moves on; then it gets nothing."""
ENGINE_STEPS_IN_FLIGHT_MAX = 64
"""Steps whose outputs are awaited and whose views are kept apart."""
ENGINE_KEYS_AWAITED_MAX = 1024
"""Selected keys that are held against the pages which one request has begun to compute; it is tainted for more."""

# The vLLM connector's workers
BLOCK_RUNS_PER_LAYER_MAX = 8
"""Pieces of memory in which one block of a layer may lie; keys and values apart make two."""
VERSION_BOARD_READS_MAX = 100
"""Attempts to read a version that is being written."""
ORIGIN_PAGES_MAX = 262_144
"""Pages of an engine whose origin in L2 is remembered."""
ORIGIN_REQUESTS_MAX = 4096
"""Requests of which a worker remembers what was loaded for them."""
SAVE_JOBS_QUEUED_MAX = 4096
"""Orders to store that wait in one worker; more are dropped, and are misses later."""
SAVE_BATCH_BYTES_MAX = 16 * 1024 * 1024
"""What is read from the engine's blocks at once; a preemption waits for no more."""
LOAD_BATCH_BYTES_MAX = 16 * 1024 * 1024
"""What is copied into the engine's blocks between two looks at the time."""
ENGINE_LOAD_S_MAX = 5.0
"""How long one load into the engine's blocks may take, from its order on; then the engine computes."""
ENGINE_PIN_S_MAX = 0.25
"""How long an engine's step waits, for all of its loads, for a sidecar that must be asked before their pages can be pinned."""
ENGINE_PIN_PAUSE_S = 2.0
"""How long no step waits for that again once one did in vain."""
ENGINE_LOAD_THREADS = 2
ENGINE_SETTLE_S_MAX = 1.0
"""How long a step of an engine that may sleep waits for what is being stored; the rest is dropped."""
ENGINE_DRAIN_S_MAX = 5.0
"""How long an engine's end waits for what is being stored."""
