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
AUTO_ARENA_BYTES_MIN = 64 * 1024 * 1024
"""Less than this is no arena that a machine would be asked to choose by itself."""
AUTO_HEADROOM_BYTES = 512 * 1024 * 1024
"""What an arena that chooses its own size leaves at least of the memory that others live in, too."""
AUTO_SHARE_MAX = 0.95
ARENA_RELEASE_S_MAX = 10.0
"""How long a start waits for clients of sidecars that are gone to let go of their arenas."""
ARENA_PAGES_MAX = 16 * 1024 * 1024
CLIENT_ROWS_MAX = 1024
CLIENT_ROWS_PER_PROCESS_MAX = 16
"""Rows of one process, those whose connections broke among them: one that attaches again and again keeps nobody out."""
LEASES_PER_CLIENT_MAX = 65_536
RESERVATIONS_PER_CLIENT_MAX = 4096
GRANTS_PER_CLIENT_MAX = 64
"""Slots that one client may have in advance."""
GRANT_IDLE_S = 5.0
"""A client that has put nothing for so long has none."""
POSTS_PER_TURN = 64
"""Posts that are carried out without letting others run; one client can't have more on their way."""
POSTED_PAGES_PER_TURN = 256
"""Likewise pages of posts, but for those of the last one: two ms or so."""
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
VETTED_TERMS_MAX = 16
"""Terms by which it is remembered which pages passed, so that their children's ancestors are not looked at again."""
PROVENANCES_MAX = 65_536
"""Different (producer, tags) that a sidecar tells apart; more are anything to a selector."""
TTL_S_MAX = 365 * 86_400
"""Longest time to live of a page, one year; 0 stands for no end."""
POLICY_STATE_BYTES_MAX = 4 * 1024 * 1024  # what an eviction policy has learned, in a file
EVICTION_DEAD_PLACES_MAX = 64
"""Left-over places in a queue of victims, beyond as many as there are pages, before it is rebuilt."""

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
LOG_REDIRECTS_MAX = 4
"""How often one call of the log follows MOVED at once; after that it waits before each."""
LOG_RETRY_S = 0.25
"""How long a call waits, at most, before it tries a Cluster's server of the log again."""
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
LOG_TOLD_APART_MAX = 1024
"""Events, of so many processes, that are kept apart for that."""
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
L3_WINDOW_BYTES = 256 * 1024
"""A connection takes no further request while so many bytes are to come or to go: what servers pile up stays in near caches."""
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
L3_BREAKER_LATE_S = 0.02
"""A late request that had less time than this does not count: it may have been asked of a server that is merely far away."""
L3_BREAKER_COOL_S_MIN = 0.1
L3_BREAKER_COOL_S_MAX = 2.0
"""Between two probes, at first and at most."""
L3_RETRIES_BURST_MAX = 256
L3_RETRIES_PER_S_MAX = 64
"""Requests that are sent to one server again after a failure: so many at once, then at this rate."""
L3_ATTEMPTS_MAX = 16
"""How often one request is sent at most, its redirections included."""
L3_RETRY_PAUSE_S_MIN = 0.005
L3_RETRY_PAUSE_S_MAX = 0.2
"""Between two attempts, at first and at most."""
L3_CONNECTIONS_PER_SHARD_DEFAULT = 4
L3_CONNECTIONS_PER_SHARD_MAX = 32
L3_SHARDS_MAX = 256
"""Primaries of one L3."""
L3_SHARD_IDLE_S = 10.0
"""A server that is no primary any more is let go when nobody has asked it for so long."""
L3_CONNECT_S = 2.0
"""How long a server may take to be connected to, in each step and in all; with TLS on a busy machine that is much."""
L3_CONNECTING_MAX = 8
"""Connections that are opened at a time, each in a thread."""
L3_CONNECTING_ENDS_S = 1.0
"""How long the end of one waits for its beginning."""
L3_OPENINGS_BURST_MAX = 64
L3_OPENINGS_PER_S_MAX = 50
"""Connections to one server that are opened anew, because late requests ended them: so many at once, then at this rate."""
L3_REOPEN_S = 0.05
"""Pause after a connection that could not be opened while others are there; twice as long each time."""
L3_RENEW_S = 30.0
"""How often all connections to a server are opened anew because it refuses writes: its name may stand for another by now."""
L3_LOOK_S = 1.0
L3_LOOK_ANSWER_S = 1.0
"""How often a server is asked for its memory and role, and how long it may take to answer."""
L3_CAPACITY_KNOWN_S = 5.0
"""How long it counts what a server said of its memory, or that it refused a page for want of room or for its size."""
L3_TABLE_S = 1.0
"""How long one server may take to tell a Cluster's slot table before another is asked."""
L3_REFRESH_S_MIN = 0.25
L3_REFRESH_S = 30.0
"""How often a Cluster's slot table is read anew: after trouble at most, and without any."""
L3_PROBE_RECORDS_MAX = 64
"""Records in one question to one server: one ms of reading its answers, after which the event loop serves others."""
L3_CODEC_THREADS_MAX = 2
"""Threads that compress and decompress."""
L3_ENCODED_MAX = 16
"""Compressed records that wait to be sent."""
L3_DISCARDS_MAX = 64
L3_DISCARD_S = 1.0
"""Damaged records that are removed at a time, and how long each may take."""
L3_RESERVE_FRACTION = 0.1
L3_RESERVE_FRACTION_MAX = 0.5
L3_RESERVE_BYTES_MIN = 8 * 1024 * 1024
"""What pages leave free of a server's maxmemory where it evicts none of them: this part of it, and so much at least."""
L3_QUANTISERS_MAX = 256
"""Namespaces whose lossy codecs are at hand; those of others are made anew."""
L3_ERROR_LIMIT_DEFAULT = 0.1

# What a sidecar does with L3
L3_LOADS_MAX = 1024
"""Requests for pages of L3 that are under way; more are answered OVERLOADED at once."""
L3_LOAD_S_MAX = 60.0
"""The longest time that one of them takes, whatever its caller says."""
COMPUTE_PAGE_S_MAX = 3600.0
"""The longest time that a worker may say it computes one page: sums over the longest chains stay far from endless."""
L3_PAGES_WANTED_MAX = 32_768
"""Pages that are asked about, wanted or on their way."""
L3_FLIGHTS_MAX = 64
"""Pages on their way into the arena at a time: enough for a window on each connection of a few servers."""
L3_FLIGHT_BYTES_FRACTION = 0.25
"""The part of the arena that they may take together."""
L3_RUN_PAGES = 32
"""Pages of one request that are fetched before another has its turn."""
L3_PROBE_PAGES_MAX = 512
"""Pages of one question to L3."""
L3_ABSENT_MEMO_S = 0.25
L3_ABSENT_MEMO_MAX = 65_536
"""How long a record that was not there is not asked for again, and how many such are remembered."""
L3_HEADERS_REMEMBERED_MAX = 4096
"""Headers that are not decoded anew when their payload comes: some 5 MiB."""
L3_PUT_AWAITED_S = 0.1
"""How long a load waits for a page that a client is storing."""
L3_SENT_S_MIN = 0.1
"""How long a load goes on, once it is sent, though its caller waits no more: giving it up costs a connection."""
L3_TURN_PAGES = 128
"""Records that are judged, or pages that are described, without letting others run."""
L3_STORE_QUEUE_PAGES_MAX = 65_536
L3_STORE_QUEUE_BYTES_DEFAULT = 4 * 1024 * 1024 * 1024
"""Pages that wait to be stored in L3, and their bytes; a full queue takes no more."""
L3_STORE_QUEUE_S_MAX = 60.0
"""How long one waits there at most."""
L3_STORE_ATTEMPTS_MAX = 3
"""How often one is sent when no answer comes."""
L3_STORE_BATCH_PAGES = 64
"""Pages that are asked about together before they are stored."""
L3_STORES_IN_FLIGHT_MAX = 16
L3_STORES_IN_FLIGHT_WHILE_LOADING = 2
"""Pages that are being stored at a time; few while somebody waits for loads."""
L3_STORE_BYTES_IN_FLIGHT_MAX = 256 * 1024 * 1024
"""Their bytes, which stay pinned so long; one page may be larger than that, alone."""
L3_STORE_BACKOFF_S_MIN = 0.1
L3_STORE_BACKOFF_S_MAX = 2.0
"""How long storing pauses when L3 can't be reached, at first and at most."""
L3_TTL_S_DEFAULT = 86_400
"""How long a record lives that nobody stores again."""
L3_CALL_FRACTION = 0.5
"""The part of a gRPC call's time that may be spent on L3: the rest is for sending what there is."""
L3_KEPT_S = 60.0
L3_KEPT_PAGES_MAX = 65_536
"""How long, and of how many pages, it is remembered at most that L3 has them: what stands on them is stored without asking."""
L3_RESTORED_PAGES_MAX = 64
"""Ancestors of one page that are stored again at a time because L3 has lost them."""
L3_USES_COUNTED_MAX = 65_536
L3_PLACED_REMEMBERED_MAX = 262_144
"""Pages whose uses are counted for their admission to L3, and pages that are known to have gone there."""
L3_REFUSED_AGAIN_S_MIN = 60.0
"""How soon a page that L3 has refused, since it is full perhaps, is sent there again because it was asked for."""
L3_REPORT_S = 1.0
"""How often a sidecar looks at its servers of L3, to say in its log what has changed."""
L3_DRAIN_FRACTION = 0.5
"""The part of the drain time in which pages may still be stored."""

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
"""Connections that have not said hello yet; of more, the oldest one of the process that has most is closed."""
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
GRPC_CALLS_PER_CONNECTION_MAX = 128
"""Further calls of one connection wait at its client, so that no single one takes all that the sidecar runs."""
GRPC_COMPRESSION_BYTES_MIN = 1024
"""Answers up to this size are never compressed: it costs more than it saves."""
METRICS_CONNECTIONS_MAX = 16
METRICS_REQUEST_BYTES_MAX = 8 * 1024

# Loads that a client asks for
LOAD_ROWS_MAX = 64
"""Chains of one load: the shards of one tensor-parallel group."""
LOAD_KEYS_MAX = 3072
"""Pages of one load, of all its chains; a longer chain is asked for in several, one after another."""
LOADS_IN_FLIGHT_PER_CLIENT_MAX = 128
"""Loads of one client at a time, prefetches among them; more are answered at once as overloaded."""
LOAD_PAGES_IN_FLIGHT_PER_CLIENT_MAX = 16_384
"""Pages of one client's loads at a time, half of what a sidecar has under way: nobody's loads keep out all others'."""

# Namespaces and metrics of one sidecar
VLLM_SAVE_SHORTFALLS_MAX = 3
"""How often pages of one request are offered again after the store has not taken them; then it stores no more."""
NAMESPACES_MAX = 1024
METRIC_NAMESPACES_MAX = 64
METRIC_WORKERS_MAX = 64

# The vLLM connector
VLLM_SCHEDULER_DEADLINE_S_DEFAULT = 0.2
"""How long an engine's scheduler waits for an answer of the sidecar, which it needs for a namespace that is new."""
VLLM_SIDECAR_LEFT_ALONE_S = 4.0
"""How long a sidecar that did not answer in that time is asked nothing that needs an answer."""
ENGINE_LOOK_UP_S_MAX = 60.0
ENGINE_PAGE_TOKENS_MAX = 256
"""Of a page whose size nobody gave; engine blocks of more are pages themselves."""
WEIGHTS_HEADER_BYTES_MAX = 100_000_000
"""Header of one safetensors file, as the format itself bounds it."""
WEIGHTS_JSON_BYTES_MAX = 256 * 1024 * 1024
WEIGHTS_FILES_MAX = 4096
WEIGHTS_TENSOR_RANK_MAX = 64
WEIGHTS_THREADS_MAX = 8
DIGESTS_REMEMBERED_MAX = 256
DIGESTS_FILE_BYTES_MAX = 1024 * 1024
"""Content digests of files that are kept in a file of the user's cache, and that file's size."""
ADAPTERS_REMEMBERED_MAX = 4096
MULTIMODAL_ITEMS_MAX = 1024
"""Images and the like of one request."""
MULTIMODAL_ITEMS_REMEMBERED_MAX = 65_536
"""Adapters, and identifiers of such items, whose content is remembered; an engine itself keeps fewer."""

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
assert L3_PROBE_RECORDS_MAX <= L3_ASK_COMMANDS_MAX, "a question about records must be one that may be asked"
assert L3_CONNECTIONS_PER_SHARD_MAX <= L3_CONNECTIONS_MAX, "one shard must fit the data path"
assert SEGMENT_BYTES_MAX >= PAGE_BYTES_MAX, "a page of the largest size needs a segment that holds it"
assert LOOK_UP_ROWS_MAX * 4 <= REUSED_RUNS_MAX, (
    "rows of one batch, found in two tiers and stored, must be told apart"
)
assert POSTS_PER_TURN >= GRANTS_PER_CLIENT_MAX, "a turn must carry out all that one client has posted"
assert BATCH_PAGES_MAX <= RESERVATIONS_PER_CLIENT_MAX, "one batch must fit a client's quota"
assert BATCH_PAGES_MAX * 64 < ATTACH_MESSAGE_BYTES_MAX, "a full batch must fit one attach message"
assert LOAD_KEYS_MAX * 32 + LOAD_ROWS_MAX * 64 < ATTACH_MESSAGE_BYTES_MAX, "a full load must fit a message"
assert LOAD_KEYS_MAX <= LOAD_PAGES_IN_FLIGHT_PER_CLIENT_MAX <= L3_PAGES_WANTED_MAX // 2, (
    "one load must fit a client's share, and another client's loads beside it"
)
assert PREFETCHES_IN_FLIGHT_MAX < LOADS_IN_FLIGHT_PER_CLIENT_MAX, "prefetches leave look-ups' loads room"
assert LOADS_IN_FLIGHT_PER_CLIENT_MAX < REQUESTS_IN_FLIGHT_PER_CLIENT_MAX, "loads must leave room for puts"
assert GRPC_CHUNK_BYTES * 2 <= GRPC_MESSAGE_BYTES_MAX, "a chunk and its envelope must fit one gRPC message"
assert ARENA_PAGES_MAX < 1 << 30, "a lease must be able to name a whole chain"
assert GRPC_CALLS_PER_CONNECTION_MAX < GRPC_CONCURRENT_CALLS_MAX, "no connection may take all calls"
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
