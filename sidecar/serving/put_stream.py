"""One Put as a state machine without I/O: a header, then chunks in page order, pages committed one by one."""

from __future__ import annotations

from kv_types import limits
from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.ids import KEY_BYTES, PageKey, namespace_id
from kv_types.outcomes import KNOWN, Known, PutOutcome, Refused, RefuseReason
from kv_types.validity import UNKNOWN_INSTANCE
from kv_wire.checksum import Checksum
from kv_wire.conversions import chain_keys, stamp_from_wire, ttl_from_wire
from kv_wire.gen import cache_pb2
from kv_wire.transfer import Chunk
from sidecar.serving.served_store import Place, PutTerms, ServedStore


class PutStream:
    """Takes the parts of one put. At any moment it holds at most one reservation; `close` gives that back.

    After an error, pages completed before stay stored, and the page that was under way is gone without a trace.
    """

    def __init__(self, store: ServedStore, header: cache_pb2.PutHeader) -> None:
        """Raises InvalidArgumentError, LimitExceededError, UnknownNamespaceError for a header that can't be served."""
        self._store = store
        self._namespace = store.served_namespace(namespace_id(header.namespace_id))
        self._keys = chain_keys(header.chain.keys, start=header.start)
        self._start = self._page = header.start
        self._end = len(self._keys) // KEY_BYTES
        self._terms = _terms(header)
        self._offset = 0
        self._place: Place | None = None
        self._digest = Checksum()
        self._outcomes: list[PutOutcome] = []
        self._refused = False

    @property
    def decided(self) -> bool:
        """Whether what becomes of every page is known."""
        return self._page == self._end

    @property
    def refused(self) -> bool:
        """Whether a refusal decided it, so that the chunks still to come need not be read."""
        return self._refused

    def take(self, chunk: Chunk) -> None:
        """Take the next chunk; raises InvalidArgumentError naming what is wrong with it."""
        self._check(chunk)
        if self._offset == 0:
            self._open_page()
            if self._refused:
                return
        size = chunk.data.nbytes
        if self._place is not None:
            self._place.view[self._offset : self._offset + size] = chunk.data
            self._digest.update(chunk.data)
        self._offset += size
        if self._offset == self._namespace.page_bytes:
            self._end_page(chunk.checksum)

    def finish(self) -> list[PutOutcome]:
        """Return one outcome a page after the last chunk; raises InvalidArgumentError when chunks are missing."""
        if not self.decided:
            raise InvalidArgumentError(
                f"the put ended in page {self._page} at byte {self._offset} of {self._namespace.page_bytes}; "
                f"pages {self._start} to {self._end - 1} were announced"
            )
        return self._outcomes

    def close(self) -> None:
        """Give back the place of a page that was not completed. May be called twice."""
        place, self._place = self._place, None
        if place is not None:
            self._store.abort_page(place)

    def _check(self, chunk: Chunk) -> None:
        page_bytes, size = self._namespace.page_bytes, chunk.data.nbytes
        if self.decided:
            raise InvalidArgumentError(
                f"a chunk of page {chunk.page} came after the last page, {self._end - 1}, was complete"
            )
        if (chunk.page, chunk.offset) != (self._page, self._offset):
            raise InvalidArgumentError(
                f"expected page {self._page} from byte {self._offset} on, got page {chunk.page} from byte "
                f"{chunk.offset}; chunks come in order, each once"
            )
        if size == 0:
            raise InvalidArgumentError(f"an empty chunk came for page {chunk.page} at byte {chunk.offset}")
        if size > limits.GRPC_CHUNK_BYTES:
            raise LimitExceededError(
                f"a chunk has at most {limits.GRPC_CHUNK_BYTES} bytes; got {size} for page {chunk.page}"
            )
        if self._offset + size > page_bytes:
            raise InvalidArgumentError(
                f"page {chunk.page} has {page_bytes} bytes, {self._offset} had arrived, and a chunk brings {size} more"
            )
        if chunk.checksum and self._offset + size < page_bytes:
            raise InvalidArgumentError(
                f"a checksum came at byte {self._offset + size} of page {chunk.page}; only the chunk that "
                f"completes its {page_bytes} bytes carries one"
            )

    def _open_page(self) -> None:
        begin = self._page * KEY_BYTES
        parent = PageKey(self._keys[begin - KEY_BYTES : begin]) if self._page else None
        got = self._store.reserve_page(
            self._namespace.id,
            parent=parent,
            key=PageKey(self._keys[begin : begin + KEY_BYTES]),
            ttl_s=self._terms.ttl_s,
        )
        if isinstance(got, Refused):
            self._refuse(got)
        elif isinstance(got, Place):
            self._place = got
            self._digest = Checksum()

    def _end_page(self, checksum: int) -> None:
        place, self._place = self._place, None
        self._offset = 0
        outcome: PutOutcome = KNOWN
        if place is not None:
            outcome = self._commit(place, checksum)
        if isinstance(outcome, Refused):
            self._refuse(outcome)
            return
        self._outcomes.append(outcome)
        self._page += 1

    def _commit(self, place: Place, checksum: int) -> PutOutcome:
        if self._digest.value != checksum:
            self._store.abort_page(place)
            return Refused(RefuseReason.CORRUPT)
        outcome = self._store.commit_page(place, self._terms)
        if not isinstance(outcome, Known | Refused):
            self._store.count_written(self._namespace.id, self._namespace.page_bytes)
        return outcome

    def _refuse(self, outcome: Refused) -> None:
        """Refuse this page and, since their parent will not be there, all that follow."""
        self._outcomes.append(outcome)
        after = self._end - self._page - 1
        self._outcomes += [Refused(RefuseReason.PARENT_ABSENT)] * after
        self._page = self._end
        self._offset = 0
        self._refused = True


def _terms(header: cache_pb2.PutHeader) -> PutTerms:
    if not header.HasField("stamp"):  # which invalidations did these bytes not hear of? Nobody can say (R1)
        raise InvalidArgumentError(
            "the put's header has no stamp: name the one that RegisterNamespace, LookUp or Get answered before the "
            "pages were computed"
        )
    if len(header.producer) > limits.PRODUCER_BYTES_MAX:
        raise LimitExceededError(
            f"producer has at most {limits.PRODUCER_BYTES_MAX} bytes; got {len(header.producer)}"
        )
    if len(header.tags) > limits.TAGS_PER_RECORD_MAX:
        raise LimitExceededError(
            f"a page has at most {limits.TAGS_PER_RECORD_MAX} tags; got {len(header.tags)}"
        )
    for tag in header.tags:
        if not 1 <= len(tag) <= limits.TAG_BYTES_MAX:
            raise LimitExceededError(f"a tag has 1 to {limits.TAG_BYTES_MAX} bytes; got {len(tag)}")
    if header.computed_from_ms > header.computed_until_ms:
        raise InvalidArgumentError(
            f"computed_from_ms {header.computed_from_ms} is after computed_until_ms {header.computed_until_ms}"
        )
    return PutTerms(
        stamp=stamp_from_wire(header.stamp),
        ttl_s=ttl_from_wire(header.ttl_s),
        producer=header.producer,
        tags=tuple(header.tags),
        computed_from_ms=header.computed_from_ms,
        computed_until_ms=header.computed_until_ms,
        rests_on=header.rests_on if header.HasField("rests_on") else UNKNOWN_INSTANCE,
    )
