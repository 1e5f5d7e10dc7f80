"""The client: what a worker does with KV pages, over shared memory where it can be had and gRPC where not.

Misses and refusals are outcomes. Exceptions are for the caller's mistakes (`kv_types.errors`) and a closed client.
Thread-safe. Each call is bounded by its deadline; a sidecar that is not there costs an answer at once.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Sequence
from types import TracebackType

from inference_worker.accounting import PageCounts
from inference_worker.buffers import Buffers, page_sources
from inference_worker.chains import packed_chain, pages_after
from inference_worker.deadlines import Deadline
from inference_worker.endpoint import parse_endpoint
from inference_worker.lease import PageLease
from inference_worker.link import Link
from inference_worker.namespaces import Pages, PutTerms, RegisteredNamespace
from inference_worker.prefetch import Prefetch
from inference_worker.request import Request
from inference_worker.reused import ReusedPages
from inference_worker.settings import ClientSettings, RegisterMemory
from inference_worker.shards import checked_shards, match_shards
from inference_worker.validity import ClientValidity
from inference_worker.weights import Announced
from kv_types.computation import check_name
from kv_types.errors import ClosedError, InvalidArgumentError, LimitExceededError
from kv_types.ids import LifeId, Stamp, log_incarnation
from kv_types.limits import TAG_BYTES_MAX, TAGS_PER_RECORD_MAX, TTL_S_MAX
from kv_types.namespace import Namespace, Uncacheable
from kv_types.numbers import check_integer, check_word
from kv_types.outcomes import LookUpOutcome, MissReason, PutOutcome, Refused, RefuseReason
from kv_types.page_keys import Keys

__all__ = ["Announced", "Client", "ClientSettings", "PageLease", "Prefetch", "RegisteredNamespace", "Request"]


class Client:
    """One worker's connection to its sidecar. Made by `connect`; a context manager that closes itself.

    After a fork the child's copy attaches anew at its next call; leases and requests stay the parent's.
    """

    def __init__(self, link: Link) -> None:
        """Use `connect`."""
        self._link = link
        self._settings = link.settings
        self._producer = link.settings.name.encode()
        self.validity = ClientValidity(link)
        """Life, view and events of the sidecar's header, for an L1."""
        self._finalizer = weakref.finalize(self, link.close)

    @classmethod
    def connect(
        cls, endpoint: str | os.PathLike[str] | None = None, *, settings: ClientSettings | None = None
    ) -> Client:
        """Connect to the sidecar at a runtime directory ("unix:<dir>", a path) or at "host:port" by gRPC alone.

        None takes $STRATAKV_ENDPOINT, else $STRATAKV_RUNTIME_DIR, else the default runtime directory. Waits for the first
        attempt to attach, at most settings.attach_deadline_s, and returns whatever came of it: a sidecar may come later,
        and calls answer unreachable until then. Raises ConfigError.
        """
        settings = settings if settings is not None else ClientSettings()
        link = Link(parse_endpoint(endpoint, os.environ), settings)
        client = cls(link)
        if link.wants_shared_memory:
            link.wait_attempted(Deadline(settings.attach_deadline_s))
        return client

    def wait_ready(self, *, deadline_s: float) -> bool:
        """Wait until pages can be reached, for set-ups and tests that start a sidecar; returns whether they can.

        Over gRPC alone this says only that calls are tried. Raises ClosedError.
        """
        return self._link.wait_serving(Deadline(deadline_s))

    def register(
        self, namespace: Namespace | Uncacheable, *, page_bytes: int | None = None
    ) -> RegisteredNamespace:
        """Return the handle under which this client's calls name a namespace; nothing is sent yet.

        It stays valid over every life of the sidecar, which is told of it when needed. An Uncacheable gives a handle
        whose calls answer Miss or Refused with UNCACHEABLE and are counted. `page_bytes` must be given for an
        engine's own layout, and may be for the canonical one. Raises ClosedError, InvalidArgumentError,
        LayoutConflictError, LimitExceededError.
        """
        return self._link.register(namespace, page_bytes)

    def forget(self, namespace: RegisteredNamespace, *, deadline_s: float | None = None) -> None:
        """Keep nothing of a namespace but its counts: its pages stay where they are, and it can be registered again.

        For one who goes through many (weights version after weights version). No call under it may be under way, and
        none may follow: requests begun under it end. Raises InvalidArgumentError, DeadlineExceededError, ClosedError.
        """
        self._own(namespace)
        self._link.forget(namespace, self._deadline(deadline_s))

    def begin(self, namespace: RegisteredNamespace, *, deadline_s: float | None = None) -> Request:
        """Begin a request: loads freshness and view before any reuse, and fixes the stamp of what it computes (R1).

        A context manager; end it when the computation's pages are stored. Raises ClosedError.
        """
        begun = self._own(namespace).begin(self._deadline(deadline_s))
        return Request(self, namespace, begun, self._link.home, deadline_s=self._settings.deadline_s)

    def match(self, namespace: RegisteredNamespace, keys: Keys, *, start: int = 0) -> LookUpOutcome:
        """Tell how many pages of keys[start:] could be served now. Pins nothing and is not counted as a look-up.

        `keys` is the chain from the root, packed (32 bytes each; the fast way) or a list of PageKey. Raises
        InvalidArgumentError, LimitExceededError, ClosedError.
        """
        try:
            is_own = namespace.owner is self._link
        except AttributeError:
            is_own = False
        if not is_own:
            raise self._foreign(namespace)
        return namespace.pages.match(keys, start)

    def lease(
        self,
        namespace: RegisteredNamespace,
        keys: Keys,
        *,
        start: int = 0,
        deadline_s: float | None = None,
        counted: bool = True,
        missed: MissReason = MissReason.ABSENT,
    ) -> PageLease:
        """Pin the longest servable prefix of keys[start:]; read-only views, no copy. Release it soon.

        `start` pages came from the caller's own L1; they are counted as such. What this node lacks and L3 has is brought
        meanwhile, within `deadline_s` (None: settings.deadline_s; 0: this node's pages only, and nothing is waited for but what
        somebody here has just put, for 20 ms at most).
        Over gRPC the pages are fetched into memory of the worker, within the same time. Without `counted` this is part of a
        look-up that another process has made and counted: no account changes, and only this node's pages are pinned, as with
        `deadline_s` 0, which then bounds calls to the sidecar alone: to make a new namespace known, and those over gRPC.
        `missed`: with `deadline_s` 0, why what is absent was not brought, as the caller knows of a prefetch
        (COMPUTE_IS_FASTER). Raises InvalidArgumentError, LimitExceededError, ClosedError.
        """
        try:
            is_own = namespace.owner is self._link
        except AttributeError:
            is_own = False
        if not is_own:
            raise self._foreign(namespace)
        deadline = None if deadline_s is None else Deadline(deadline_s)
        if not counted:
            return namespace.pages.lease_uncounted(keys, start, deadline)
        if missed is MissReason.COMPUTE_IS_FASTER and deadline_s == 0:
            return namespace.pages.lease_left(keys, start, missed)
        return namespace.pages.lease(keys, start, deadline)

    def get(
        self,
        namespace: RegisteredNamespace,
        keys: Keys,
        destinations: Buffers,
        *,
        start: int = 0,
        deadline_s: float | None = None,
    ) -> LookUpOutcome:
        """Copy the longest servable prefix of keys[start:] into `destinations`; `deadline_s` as for `lease`.

        Destinations: a list of one writable contiguous buffer of page_bytes a page, or one buffer for all of them;
        CPU tensors too. Those after the hit's end are unspecified. Raises BufferMismatchError, InvalidArgumentError,
        LimitExceededError, ClosedError.
        """
        return self._own(namespace).get(keys, destinations, start, self._deadline(deadline_s))

    def put(
        self,
        namespace: RegisteredNamespace,
        keys: Keys,
        sources: Buffers,
        *,
        stamp: Stamp | None,
        start: int = 0,
        ttl_s: int | None = None,
        tags: Sequence[bytes] = (),
        deadline_s: float | None = None,
    ) -> list[PutOutcome]:
        """Store keys[start:] from `sources` (as `destinations` of get); one outcome a page, in order.

        A request's own `put` is the usual way: it has the stamp, and knows what the pages rest on. `stamp` here is what
        `stamp()` returned before the computation began and before it reused anything; one loaded later vouches for bytes
        that an invalidation in between selects. Without one (None) every page is refused as STAMP_FOREIGN. What these
        pages rest on is unknown: any invalidation by producer, tag or time takes them too.

        In shared memory a put of a few pages does not wait for the sidecar: they are in slots that it granted in advance,
        and whoever looks for one waits for it. Should one be invalidated or evicted meanwhile, that was right behind the put.

        Pages that are known already are not sent. ttl_s: None takes the sidecar's default, 0 is never, a year the most.
        After the first refused page all later ones are refused, since they stand on it. What was not confirmed in time
        is Refused(DEADLINE), though it may yet be stored. Raises BufferMismatchError, InvalidArgumentError,
        LimitExceededError, ClosedError.
        """
        return self.put_computed(
            namespace,
            keys,
            sources,
            start=start,
            stamp=stamp,
            ttl_s=ttl_s,
            tags=tags,
            deadline_s=deadline_s,
            computed_from_ms=0,
            refused=RefuseReason.NONE,
            reused=None,
        )

    def put_computed(
        self,
        namespace: RegisteredNamespace,
        keys: Keys,
        sources: Buffers,
        *,
        start: int,
        stamp: Stamp | None,
        ttl_s: int | None,
        tags: Sequence[bytes],
        deadline_s: float | None,
        computed_from_ms: int,
        refused: RefuseReason,
        reused: ReusedPages | None,
    ) -> list[PutOutcome]:
        """Store what a request computed. Request.put calls this, and so may who computes for requests that begin elsewhere.

        `stamp` is as for `put`. `computed_from_ms` is the producer's wall clock at the request's beginning, 0 when that can't
        be told. With `refused` the arguments are checked and every page is refused. `reused` tells what the pages rest on (see
        ReusedPages), and is told what was stored; None: on anything. Raises as `put`.
        """
        pages, deadline = self._own(namespace), self._deadline(deadline_s)
        stamp, tags = _checked_stamp(stamp), _checked_tags(tags)
        if ttl_s is not None:
            check_integer(ttl_s, "ttl_s", low=0, high=TTL_S_MAX)
        if stamp is not None and refused is RefuseReason.NONE:
            terms = PutTerms(
                deadline=deadline,
                start=start,
                stamp=stamp,
                ttl_s=ttl_s,
                tags=tags,
                producer=self._producer,
                computed_from_ms=computed_from_ms,
                computed_until_ms=time.time_ns() // 1_000_000,
                reused=reused,
            )
            return pages.put(keys, sources, terms)
        # Nothing vouches for these pages, and nothing can afterwards (rule R1).
        if refused is RefuseReason.NONE:
            uncacheable = namespace.uncacheable is not None
            refused = RefuseReason.UNCACHEABLE if uncacheable else RefuseReason.STAMP_FOREIGN
        self._check_open()
        offered = pages_after(keys, start)
        if namespace.uncacheable is None:
            page_sources(sources, pages=offered, page_bytes=namespace.page_bytes)
        return [Refused(refused)] * offered

    def match_shards(
        self, shards: Sequence[tuple[RegisteredNamespace, Keys]], *, deadline_s: float | None = None
    ) -> LookUpOutcome:
        """Tell how many pages could be served to every shard of a tensor-parallel group: one question for all of them.

        A shard is its namespace and the keys of its chain; all chains have one length, and at most LOAD_ROWS_MAX shards
        are asked about. What some shards lack and L3 has is brought within `deadline_s` (None: settings.deadline_s; 0:
        nothing is), and no more of it than all of them can have. Over gRPC nothing is brought. Pins nothing, and is not
        counted as a look-up. Raises InvalidArgumentError, LimitExceededError, ClosedError.
        """
        for namespace, _ in shards:
            self._own(namespace)
        return match_shards(self._link, checked_shards(shards), self._deadline(deadline_s))

    def prefetch(
        self, namespace: RegisteredNamespace, keys: Keys, *, deadline_s: float | None = None
    ) -> Prefetch | None:
        """Ask the sidecar to bring pages that only L3 has into L2, within `deadline_s` (None: settings.deadline_s).

        Waits for nothing: ask at a request's arrival, and look up when it is its turn. Of a longer chain LOAD_KEYS_MAX
        pages are asked for. None: it was not asked, because all pages are resident, there is no L3, too many prefetches are
        under way (they are counted as dropped), or the computation is uncacheable. Raises InvalidArgumentError,
        LimitExceededError, ClosedError.
        """
        self._own(namespace)
        self._check_open()
        packed, wanted = packed_chain(keys, 0)
        within_s = self._deadline(deadline_s).remaining_s()
        if not wanted or namespace.uncacheable is not None:
            return None
        return self._link.prefetch(namespace, packed, deadline_s=within_s)

    def observe_prefill(self, tokens: int, *, start: int, seconds: float) -> None:
        """Tell that this worker computed so many tokens of prompts, behind `start` others of theirs, in so long.

        By that, and by how fast L3 is, the sidecar decides how far a prefix is loaded. Raises InvalidArgumentError.
        """
        self._link.prefill.observe(tokens, start=start, seconds=seconds)

    def observe_copy(self, size: int, seconds: float) -> None:
        """Tell that so many bytes were copied out of leased pages in so long; `get` tells that by itself.

        The sidecar shows it. Raises InvalidArgumentError for what is no measurement.
        """
        self._link.loads.copies.observe(size, seconds)

    def has_page(self, instance: int, *, life: LifeId) -> bool:
        """Whether L2 has the page that is this instance still, in this life of the sidecar: one look into shared memory.

        For an L1, to which a page costs less that L2 has too. False as well where that can't be told. Never raises.
        """
        arena = self._link.arena
        return arena is not None and arena.life == life and arena.has_page(instance)

    def register_memory(self, register: RegisterMemory) -> None:
        """Have `register` called with address and bytes of the arena's pages, now and in each later life of the sidecar.

        What it returns is called before they are unmapped, at `close` too. For what learns of its device only after it has
        connected; where settings.register_memory is given, or this was called before, that holds. Raises ClosedError.
        """
        self._link.register_memory(register)

    @property
    def prefill_tokens_per_s(self) -> float:
        """How fast this worker computes the first thousand tokens of a prompt, as was told or measured; 0: unknown."""
        return self._link.prefill.tokens_per_s()

    def stamp(self) -> Stamp | None:
        """Return the sidecar's present log position, or None while it cannot be told.

        For a computation use `begin`, which also fixes it and holds back `drained`; what is put with a stamp was begun
        after the stamp was loaded. Raises ClosedError.
        """
        return self._link.stamp(self._deadline(None))

    def announced(self, model: str, *, deadline_s: float | None = None) -> Announced | None:
        """What weights version is announced for a model, or None when that can't be told within `deadline_s`.

        Load a view before (`begin`): no announcement up to it is overlooked then. Costs a look at shared memory, where it
        waits only if a deadline is named, and over gRPC a call. Raises InvalidArgumentError, ClosedError.
        """
        check_name(model, "model")
        return self._link.announced(model, None if deadline_s is None else Deadline(deadline_s))

    def weights_version(self, model: str) -> str | None:
        """The weights version announced last for a model; None: none was, or it can't be told now (see `announced`).

        Raises InvalidArgumentError, ClosedError.
        """
        announced = self.announced(model, deadline_s=self._settings.deadline_s)
        return None if announced is None else announced.version

    def statistics(self) -> dict[str, int | str]:
        """Counters and gauges by name, and why the client is not attached where it is not.

        Pages are those of this process's look-ups since it was connected or forked: requested_pages = l1_pages +
        l2_pages + l3_pages + the sum of missed_pages_<reason>. Works on a closed client.
        """
        total = sum(self._link.counts().values(), PageCounts())
        missed = {f"missed_pages_{reason.name.lower()}": pages for reason, pages in total.missed.items()}
        return {
            **self._link.describe(),
            "look_ups": total.look_ups,
            "requested_pages": total.requested,
            "l1_pages": total.l1,
            "l2_pages": total.l2,
            "l3_pages": total.l3,
            **missed,
            "bytes_read": total.bytes_read,
            "bytes_written": total.bytes_written,
            **self._link.loads.statistics(),
            **self._link.remote.prefetches.statistics(),
        }

    def namespace_counts(self) -> dict[str, PageCounts]:
        """Pages by namespace: its id in hexadecimal, "uncacheable:<reason>", or "forgotten" for all that were."""
        return self._link.counts()

    def close(self) -> None:
        """Detach. Leases that are held stay readable until released; every other call then raises ClosedError.

        Requests that are open store nothing more, and hold back `drained` until they are ended, or this process is: what
        was computed from their pages may go on. So end them when that is over.
        """
        self._finalizer()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _deadline(self, deadline_s: float | None) -> Deadline:
        return Deadline(self._settings.deadline_s if deadline_s is None else deadline_s)

    def _own(self, namespace: RegisteredNamespace) -> Pages:
        if not isinstance(namespace, RegisteredNamespace) or namespace.owner is not self._link:
            raise self._foreign(namespace)
        return namespace.pages

    def _check_open(self) -> None:
        if self._link.closed:
            raise ClosedError("this client was closed; connect another one")

    def _foreign(self, namespace: object) -> InvalidArgumentError:
        if isinstance(namespace, RegisteredNamespace) and namespace.owner is None:
            return InvalidArgumentError("this namespace was forgotten; register it again")
        if isinstance(namespace, RegisteredNamespace):
            return InvalidArgumentError(
                "this namespace was registered with another client; register it with this one"
            )
        return InvalidArgumentError(
            f"a namespace is what Client.register returned; got {type(namespace).__name__}"
        )


def _checked_stamp(stamp: Stamp | None) -> Stamp | None:
    if stamp is None:
        return None
    if not isinstance(stamp, Stamp):
        raise InvalidArgumentError(f"stamp is a Stamp or None; got {type(stamp).__name__}")
    log_incarnation(stamp.incarnation)
    check_word(stamp.revision, "a stamp's revision")
    return stamp


def _checked_tags(tags: Sequence[bytes]) -> tuple[bytes, ...]:
    if not isinstance(tags, Sequence):
        raise InvalidArgumentError(f"tags are a sequence of bytes; got {type(tags).__name__}")
    if len(tags) > TAGS_PER_RECORD_MAX:
        raise LimitExceededError(f"{len(tags)} tags; at most {TAGS_PER_RECORD_MAX} are allowed")
    for tag in tags:
        if not isinstance(tag, bytes) or not 0 < len(tag) <= TAG_BYTES_MAX:
            raise InvalidArgumentError(f"a tag is 1 to {TAG_BYTES_MAX} bytes; got {tag!r}")
    return tuple(tags)
