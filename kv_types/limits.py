"""Every limit of the product in one place, with the relations between them checked at import."""

from __future__ import annotations

# Keys and chains
PAGE_TOKENS_MAX = 4096
CHAIN_PAGES_MAX = 65_536
"""Pages of one request: one million tokens in pages of 16."""
EXTRA_DIGESTS_PER_PAGE_MAX = 64
EXTRA_DIGEST_BYTES_MAX = 64

# Names inside a namespace, in UTF-8 bytes
NAME_BYTES_MAX = 1024
NAMESPACE_BYTES_MAX = 16_384
PARAMETERS_MAX = 64
"""Parameters of one position configuration."""
PARAMETER_NUMBERS_MAX = 512
"""Numbers in one list-valued parameter."""
LAYERS_MAX = 4096
HEADS_MAX = 65_536
HEAD_DIM_MAX = 65_536
POSITION_OFFSET_MAX = 2**31 - 1

# Records
TAGS_PER_RECORD_MAX = 8
TAG_BYTES_MAX = 64
PRODUCER_BYTES_MAX = 64
RECORD_BYTES_MAX = 64 * 1024 * 1024 + 4096
"""A whole record: its header and the largest page. Servers take values of up to 512 MiB unless told otherwise."""

# One client
CLIENT_NAME_BYTES_MAX = PRODUCER_BYTES_MAX
"""A client's name is the producer of its pages."""
OUTCOMES_SHARED_MAX = 4096
"""Different outcomes of look-ups that a worker keeps instead of making them anew."""
PREFETCHES_IN_FLIGHT_MAX = 64
"""Prefetches that one client may have under way; more are dropped and counted."""
WEIGHTS_SWITCHES_MAX = 4
"""How often one call begins again because weights were announced meanwhile; then it reuses and stores nothing."""
REUSED_RUNS_MAX = 4096
"""Look-ups and puts of one request that are told apart; what it computes after more is of unknown lineage."""
REMOTE_LEASE_BYTES_MAX = 1024 * 1024 * 1024
"""What one lease over gRPC may bring into the worker's own memory."""
REATTACH_S_DEFAULT = 30.0
"""How often a client that was refused shared memory asks for it again."""
FORK_WAIT_S_MAX = 1.0
"""How long a fork may be held back until gRPC calls in flight have ended."""

# Arena
PAGE_BYTES_MAX = 64 * 1024 * 1024
SLOT_ALIGN_BYTES = 4096
SEGMENT_BYTES_MIN = 64 * 1024
SEGMENT_BYTES_MAX = PAGE_BYTES_MAX
ARENA_BYTES_MIN = 1024 * 1024
ARENA_PAGES_MAX = 16 * 1024 * 1024
CLIENT_ROWS_MAX = 1024
LEASES_PER_CLIENT_MAX = 65_536
RESERVATIONS_PER_CLIENT_MAX = 4096
CLIENT_COUNT_MAX = 1 << 56
"""More pages or bytes than one client can have counted: clients write their counters, so anything may stand there."""
COUNT_SUM_MAX = (1 << 64) - 1
"""What a message can tell."""
NAMESPACES_PER_CLIENT_MAX = 32
REQUESTS_IN_FLIGHT_PER_CLIENT_MAX = 256
RING_RECORDS_MAX = 65_536
EVENT_PAYLOAD_BYTES_MAX = 432
"""Payload of one ring record; part of the shared-memory contract."""
SELECTOR_BYTES_MAX = 4096
"""One selector's canonical bytes; longer than a ring record, it is told to workers as everything."""
HIDING_STEP_WORK_MAX = 8192
"""Entries that one step of hiding or counting looks at or changes: one ms or two, after which the event loop serves others."""
HIDING_WALK_WORK = 1024
"""Entries' worth of work that hiding one small subtree counts as: it looks at all leases once."""
SELECTORS_MATCHED_MAX = 4096
"""Selectors held against namespaces, each against each, without letting others run: some 2 ms."""
ANCESTORS_WALKED_MAX = 4096
"""Ancestors looked at for a stamp older than the newest hidden page; a longer chain is refused."""
PROVENANCES_MAX = 65_536
"""Different (producer, tags) that a sidecar tells apart; more are anything to a selector."""
TTL_S_MAX = 365 * 86_400
"""Longest time to live of a page, one year; 0 stands for no end."""

EVICTION_DEAD_PLACES_MAX = 64
"""Left-over places in a queue of victims, beyond as many as there are pages, before it is rebuilt."""

# L1
L1_MATCH_ATTEMPTS_MAX = 3
"""Look-ups tried again because the view moved meanwhile; then the reason is RACED."""
L1_EXPIRE_PAGES_MAX = 256
"""Expired pages freed by one call, so that no look-up pays for a whole cache."""
L1_TOMBSTONES_MAX = 4096
"""Hidden pages that an L1 remembers one by one; more become a floor that refuses inserts of older requests."""

# The log
LOG_NOTE_BYTES_MAX = 1024
"""Reason, and author, of one record."""
LOG_RECORDS_KEPT_MAX = 10_000
"""Records that the log keeps for followers that lag; one further behind starts again from a snapshot."""
LOG_BATCH_RECORDS_MAX = 1000
"""Records that one renewal returns."""
LOG_TOMBSTONES_PER_SCOPE_MAX = 1024
"""Tombstones of one namespace, or of the whole fleet; the older half of more become a floor."""
LOG_TOMBSTONES_MAX = 8 * LOG_TOMBSTONES_PER_SCOPE_MAX
"""Tombstones in all, which bounds what a follower reads when it starts; the older half of more become floors."""
LOG_SCOPES_MAX = 1024
"""Namespaces with a floor of their own; the older half of more become a floor of everything."""
ORIGINS_REMEMBERED_MAX = 1024
"""Origins of pages whose judgement is kept until the next selector by origin: the pages of one put have one."""
LOG_REQUESTS_KEPT_MAX = 4096
"""Request ids of appends that the log remembers, so that a repeated one is not appended twice."""
LOG_REVISION_MAX = 2**53 - 1
"""The log's script counts in numbers of double precision: beyond it some revisions would be skipped."""
LOG_WEIGHTS_MAX = 1024
"""Models with an announced weights version."""
FLEET_NAMESPACES_MAX = 4096
FLEET_MEMBERS_MAX = 4096
FLEET_NAME_BYTES_MAX = 64
MEMBER_NOTE_BYTES_MAX = 1024
REPLICAS_MAX = 16
PRIVATE_REDIS_BYTES_DEFAULT = 256 * 1024 * 1024
"""Memory of a private server: about what the bounded tables of a log take at most."""
LOG_KNOW_AGAIN_S = 3600.0
"""How often a sidecar enters its namespaces into the fleet's directory anew, which forgets those not heard of longest."""
PREFIX_ROUNDS_MAX = 8
"""How often one command appends for namespaces that came meanwhile."""
LISTING_S_MAX = 0.25
"""How long a registration waits for the fleet's directory at most."""
LISTINGS_IN_FLIGHT_PER_CLIENT_MAX = 16
"""Registrations of one client that wait for the fleet's directory at a time."""
SERVERS_NAMED_MAX = 16
"""Servers that one list of URLs may name."""
LOG_UNCONFIRMED_MAX = 3
"""Renewals in a row that no replica confirms before another server is tried."""
LOG_NAMESPACES_BATCH_MAX = 128
"""Namespaces of one call to the log's script."""
LOG_RENEWAL_GAP_S = 0.002
"""Renewals that nothing but news or an acknowledgement asks for come no closer; records of a storm come in batches."""
RENEWALS_BURST_MAX = 8
RENEWALS_PER_S_MAX = 100
"""Renewals of one sidecar: so many at once, then at this rate, whatever happens."""
LOG_TURN_ENTRIES_MAX = 128
"""Records, tombstones or members that are read, or taken in, without letting others run: about one ms."""
LOG_APPLY_RECORDS_MAX = 128
"""Records whose floors are raised, or whose events are published, without letting others run."""
LOG_WAKE_S_MAX = 10.0
"""How long one call waits to be woken by the log; then it asks anew."""
LOG_STATISTICS_S = 10.0
"""How often a sidecar asks the log for the sizes of its tables."""
LOG_SERVER_LOOK_S = 60.0
"""How often a sidecar looks at how the log's server is configured while it follows it."""
LOG_REAP_LOOK_S = 1.0
LOG_REAP_AGAIN_S = 30.0
LOG_REAP_S = 3600.0
"""How often a sidecar asks itself whether to look for silent members of its fleet, and how often it does: one that the full
table of members refused, and the others while it is more than half full."""
LOG_REPORT_S_MIN = 30.0
"""A trouble that goes on is logged no more often."""
VIEW_POSITIONS_MAX = 4096
"""Views that clients have not all applied yet and whose revisions are told apart."""
CLIENTS_WATCH_S_MIN = 0.005
CLIENTS_WATCH_S_MAX = 0.05
"""How often clients that hold something back are looked at, at first and in the end."""
LOG_BACKOFF_S_MIN = 0.05
LOG_BACKOFF_S_MAX = 1.0
"""How long a follower waits after failures in a row, at most."""

# The data path of L3
L3_WINDOW_DEFAULT = 4
"""Requests on one connection at a time: with fewer it idles, with many the server piles up replies in cold memory."""
L3_WINDOW_MAX = 64
L3_WINDOW_BYTES = 3 * 512 * 1024
"""A connection that has so many bytes under way takes no further request: what its server piles up stays in a near cache."""
L3_PASSED_OVER_MAX = 8
"""How often more urgent requests of a shard go before one that waits."""
L3_CONNECTIONS_MAX = 1024
"""Connections of one data path."""
L3_REQUESTS_MAX = 8192
"""Requests of one data path, queued and under way; more are refused at once."""
L3_KEY_BYTES_MAX = 512
L3_ASK_COMMANDS_MAX = 1024
"""Commands of one question."""
L3_ASK_BYTES_MAX = 512 * 1024
"""What one question takes on its way to the server."""
L3_REPLY_BYTES_MAX = 16 * 1024
"""One reply to a question: the header of a record and what goes with it."""
L3_LINE_BYTES_MAX = 1024
"""A line of a reply: a length, a number, an error's text."""

# The store of L3
L3_BREAKER_FAILURES = 3
L3_BREAKER_SILENT_S = 0.1
"""Requests in a row without an answer, over so long a silence, and a server is asked nothing but probes."""
L3_BREAKER_COOL_S_MIN = 0.1
L3_BREAKER_COOL_S_MAX = 2.0
"""Between two probes, at first and at most."""
L3_RETRIES_BURST_MAX = 256
L3_RETRIES_PER_S_MAX = 64
"""Requests that are sent to one server again after a failure: so many at once, then at this rate."""
L3_RESERVE_FRACTION = 0.1
L3_RESERVE_BYTES_MIN = 8 * 1024 * 1024
"""What pages leave free of a server's maxmemory where it evicts none of them: this part of it, and so much at least."""
L3_ZSTD_LEVEL_DEFAULT = 1
L3_ZSTD_LEVEL_MIN = 1
L3_ZSTD_LEVEL_MAX = 19
"""Levels of compression; further ones take hundreds of MiB for a context."""

# Administration
ADMIN_CALLS_MAX = 32
"""Administrative calls at once; they never take a place of the data path's calls."""
INVALIDATE_SELECTORS_MAX = 1024
"""Records that one call appends: more would push one another's tombstones into floors of everything."""
MEMBERS_LISTED_MAX = 512
"""Members in one message."""
INSPECT_PAGES_MAX = 1024
"""Pages that one answer tells about."""
FENCE_S_DEFAULT = 30.0
"""How long an invalidation waits for its promise unless it says otherwise; longer than a silent member takes."""
FENCE_POLL_S_MAX = 0.05
"""Longest pause between two looks at a fence."""
FENCE_INCARNATIONS_MAX = 8
"""Incarnations of the log that one call appends its records to before it gives up."""
PREFIX_FILE_BYTES_MAX = 64 * 1024 * 1024
"""A file of token ids, or of text to be made into some, that an administrator names a prefix by."""
LOG_FOLLOW_S_MAX = 3600.0
"""How long one call may follow the log; whoever wants more calls again."""

# The private Redis of a sidecar without a fleet
PRIVATE_REDIS_BYTES_MIN = 4 * 1024 * 1024
"""An empty server has about one MiB; the log of one sidecar, full, a few more."""
PRIVATE_REDIS_LOG_LINES_MAX = 20
"""Last lines of what it said, for the error that tells how it ended."""
PRIVATE_REDIS_START_S_MAX = 10.0
PRIVATE_REDIS_STOP_S_MAX = 2.0
PRIVATE_REDIS_BACKOFF_S_MIN = 0.1
PRIVATE_REDIS_BACKOFF_S_MAX = 5.0
"""How long it waits after one end before it starts it again."""

# Messages and batches
BATCH_PAGES_MAX = 1024
"""Pages of one reserve or commit over the attach connection."""
LOOK_UP_ROWS_MAX = 256
ATTACH_MESSAGE_BYTES_MAX = 128 * 1024
ATTACH_QUEUE_MESSAGES_MAX = 64
ATTACHMENTS_GONE_MAX = 64
"""Broken attachments that a process names as gone when it attaches again."""
ATTACH_HANDSHAKES_MAX = 64
"""Connections that have not said hello yet; more are closed."""
FAILURE_CODE_BYTES_MAX = 64
FAILURE_TEXT_BYTES_MAX = 2048
PORT_MAX = 65_535
SOCKET_PATH_BYTES_MAX = 107
"""sun_path holds 108 bytes, the last of them a zero."""
GRPC_CHUNK_BYTES = 1024 * 1024
GRPC_MESSAGE_BYTES_MAX = 4 * 1024 * 1024
GRPC_CHUNK_BYTES_MIN = 4 * 1024
GRPC_MESSAGE_CHUNKS_MAX = 256
"""Chunks of one message, and so pages of one GetWhole: bounds the work that a message of tiny pages makes."""
GRPC_CONCURRENT_CALLS_MAX = 256
GRPC_COMPRESSION_BYTES_MIN = 1024
"""Answers up to this size are never compressed: it costs more than it saves."""
METRICS_CONNECTIONS_MAX = 16
METRICS_REQUEST_BYTES_MAX = 8 * 1024

# Namespaces and metrics of one sidecar
NAMESPACES_MAX = 1024
METRIC_NAMESPACES_MAX = 64

# Times, in seconds
CALL_DEADLINE_S_DEFAULT = 1.0
CALL_S_MAX = 3600.0
"""The longest deadline that a call may have."""
ATTACH_DEADLINE_S_DEFAULT = 5.0
FRESHNESS_LEASE_S_DEFAULT = 3.0
PAUSE_BOUND_S_DEFAULT = 2.0
"""The longest pause of a node that its clock does not notice."""
DRIFT_BOUND_DEFAULT = 0.001
DRIFT_BOUND_MAX = 0.1
"""By which part two boot clocks run apart."""
SKEW_BOUND_S_DEFAULT = 1.0
"""How far the wall clocks of producers and of who invalidates may lie apart."""
RESERVATION_S_DEFAULT = 30.0
COPY_LEASE_S_DEFAULT = 5.0
DRAIN_S_DEFAULT = 5.0
GRPC_IDLE_S_MAX = 30.0
"""A streaming peer that moves no byte for so long is cut off, whatever its deadline."""
METRICS_REQUEST_S_MAX = 5.0
RECONNECT_BACKOFF_S_MAX = 2.0

assert PAGE_BYTES_MAX < RECORD_BYTES_MAX < 512 * 1024 * 1024, (
    "every page has a record, and a server takes each"
)
assert SEGMENT_BYTES_MAX >= PAGE_BYTES_MAX, "a page of the largest size needs a segment that holds it"
assert LOOK_UP_ROWS_MAX * 4 <= REUSED_RUNS_MAX, (
    "rows of one batch, found in two tiers and stored, must be told apart"
)
assert BATCH_PAGES_MAX <= RESERVATIONS_PER_CLIENT_MAX, "one batch must fit a client's quota"
assert BATCH_PAGES_MAX * 64 < ATTACH_MESSAGE_BYTES_MAX, "a full batch must fit one attach message"
assert GRPC_CHUNK_BYTES * 2 <= GRPC_MESSAGE_BYTES_MAX, "a chunk and its envelope must fit one gRPC message"
assert CHAIN_PAGES_MAX <= LEASES_PER_CLIENT_MAX, "one client must be able to lease one whole chain"
assert METRIC_NAMESPACES_MAX <= NAMESPACES_MAX, "metrics cannot show more namespaces than exist"
assert NAMESPACE_BYTES_MAX < ATTACH_MESSAGE_BYTES_MAX, "a namespace must fit one attach message"
assert min(LOG_SCOPES_MAX, LOG_TOMBSTONES_PER_SCOPE_MAX) >= INVALIDATE_SELECTORS_MAX, (
    "one call stays apart in the log"
)
assert 2 * MEMBERS_LISTED_MAX * (MEMBER_NOTE_BYTES_MAX + 128) < GRPC_MESSAGE_BYTES_MAX, (
    "two lists must fit one message"
)
assert INVALIDATE_SELECTORS_MAX < LOG_REQUESTS_KEPT_MAX, "a repeated call must be recognised"
assert RESERVATION_S_DEFAULT > CALL_DEADLINE_S_DEFAULT, "a reservation must outlive the call that fills it"
