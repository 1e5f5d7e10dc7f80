"""Pages of a batch's rows: found in L1, then in L2 through the client, and stored in both after the pass."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from cache_l1.cache import L1Cache
from inference_worker.connectors.transformers_cache import PageCodec
from inference_worker.connectors.transformers_report import ReuseReport
from inference_worker.connectors.transformers_store import PageClient, PageRequest
from inference_worker.prefetch import Prefetch
from inference_worker.weights import Announced
from kv_types.errors import StrataError
from kv_types.ids import KEY_BYTES
from kv_types.limits import BATCH_PAGES_MAX
from kv_types.namespace import Namespace
from kv_types.outcomes import Hit, Miss, MissReason, PutOutcome, Refused, RefuseReason
from kv_types.page_keys import page_keys
from kv_types.validity import Instances, ObservedView

TokenIds = NDArray[np.uint32]

_log = logging.getLogger("stratakv.transformers")


@dataclass(frozen=True, slots=True)
class FoundRow:
    """Pages at hand for one row: the first of its chain, uint8 [found, page_bytes], on the model's device."""

    pages: torch.Tensor
    from_l1: int

    @property
    def found(self) -> int:
        """Pages from the chain's root on."""
        return len(self.pages)


class PageReuse:
    """L1 and L2 of one namespace on one device. Thread-safe. Retired, it is let go of when the last call has ended."""

    def __init__(
        self,
        client: PageClient,
        namespace: Namespace,
        *,
        codec: PageCodec,
        l1_bytes: int,
        device: torch.device,
    ) -> None:
        self.client = client
        self.namespace = namespace
        self._calls = 0
        self._is_retired = False
        self._lock = threading.Lock()
        self.registered = client.register(namespace)
        self.codec = codec
        self.device = device
        self.l1 = L1Cache(
            capacity_pages=max(1, l1_bytes // codec.page_bytes),
            page_bytes=codec.page_bytes,
            device=device,
            namespace=namespace,
        )

    def begin(self, report: ReuseReport, *, mark: object) -> ReuseCall:
        """Begin one call: stamp and view are loaded now, before anything is reused (rule R1).

        `mark` is what the model looked like when it was named (rule R5: a call that spans a change stores
        nothing).
        """
        with self._lock:
            self._calls += 1
        try:
            return ReuseCall(self, report, mark)
        except BaseException:
            self.ended()
            raise

    def ended(self) -> None:
        """A call has ended."""
        with self._lock:
            self._calls -= 1
            is_last = self._is_retired and not self._calls
        if is_last:
            self._forget()

    def retire(self) -> None:
        """Another namespace has taken its place: no call begins here any more."""
        with self._lock:
            if self._is_retired:
                return
            self._is_retired = True
            is_last = not self._calls
        if is_last:
            self._forget()

    def _forget(self) -> None:
        try:
            self.client.forget(self.registered)
        except (
            StrataError
        ) as error:  # closed, or a sidecar that hangs: what is left goes when the client does
            _log.info("namespace %s is not let go of: %s", self.namespace.id.hex(), error)


class ReuseCall:
    """What one prefill or generate finds and stores, all under the stamp of its beginning. A context
    manager.
    """

    def __init__(self, reuse: PageReuse, report: ReuseReport, mark: object) -> None:
        self._reuse = reuse
        self.codec = reuse.codec
        self.report = report
        self.mark = mark
        self.announced: Announced | None = None
        """What weights were announced for `model` when this call began, where its connector follows that."""
        self.model = reuse.namespace.model
        self._is_ended = False
        self._request: PageRequest = reuse.client.begin(reuse.registered)
        reuse.l1.synchronise(reuse.client.validity)
        self._view: ObservedView | None = reuse.l1.observe()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """End the call; again does nothing."""
        if not self._is_ended:
            self._is_ended = True
            self._request.end()
            self._reuse.ended()

    # before the pass

    def look_up(self, rows: Sequence[TokenIds], *, deadline_s: float) -> list[FoundRow]:
        """Find the longest prefix of each row; all rows together wait at most `deadline_s`.

        While a row waits for what its node lacks, that of the others is on its way too.
        """
        began = time.monotonic()
        chains = [self._keys(row) for row in rows]
        prefetches = [self._prefetch(keys, deadline_s=deadline_s) for keys in chains[1:] if keys]
        try:
            found = [
                self._look_up_row(index, keys, until=began + deadline_s) for index, keys in enumerate(chains)
            ]
        finally:
            for prefetch in prefetches:
                if prefetch is not None:
                    prefetch.cancel()  # what is not here by now nobody waits for
        self.report.look_up_s += time.monotonic() - began
        return found

    def _prefetch(self, keys: bytes, *, deadline_s: float) -> Prefetch | None:
        return self._reuse.client.prefetch(self._reuse.registered, keys, deadline_s=deadline_s)

    def _look_up_row(self, index: int, keys: bytes, *, until: float) -> FoundRow:
        wanted = len(keys) // KEY_BYTES
        size = self.codec.page_bytes
        pages = torch.empty((wanted, size), dtype=torch.uint8, device=self._reuse.device)
        if not wanted:
            return FoundRow(pages, from_l1=0)
        local, instances = self._read_l1(keys, pages)
        self._request.reused(keys[: local * KEY_BYTES], instances)
        remote, pages_l3, reason = self._read_remote(keys, pages, start=local, until=until)
        row = self.report.rows[index]
        row.pages_l1, row.pages_l2, row.pages_l3, row.ended_by = local, remote - pages_l3, pages_l3, reason
        self.report.bytes_from_l1 += local * size
        self.report.bytes_from_l2 += (remote - pages_l3) * size
        self.report.bytes_from_l3 += pages_l3 * size
        return FoundRow(pages[: local + remote], from_l1=local)

    def _keys(self, tokens: TokenIds) -> bytes:
        return page_keys(self._reuse.namespace.id, tokens, page_tokens=self.codec.page_tokens)

    def _read_l1(self, keys: bytes, pages: torch.Tensor) -> tuple[int, Instances]:
        """Copy pages in; returns how many, and which pages of L2 they are."""
        numbers = self._reuse.l1.match(keys)
        try:
            self._reuse.l1.read(numbers, list(pages[: len(numbers)]))
            return len(numbers), self._reuse.l1.instances(numbers)
        finally:
            self._reuse.l1.release(numbers)

    def _read_remote(
        self, keys: bytes, pages: torch.Tensor, *, start: int, until: float
    ) -> tuple[int, int, MissReason]:
        """Copy pages in behind the first `start`: how many, how many of these L3 gave, and why there are no more."""
        left_s = until - time.monotonic()
        if left_s <= 0.0:
            return 0, 0, MissReason.DEADLINE
        behind = pages[start:]
        on_host = behind if behind.device.type == "cpu" else torch.empty_like(behind, device="cpu")
        destinations = _host_buffers(on_host)
        match self._request.get(keys, destinations, start=start, deadline_s=left_s):
            case Hit(pages=count, ended_by=reason, pages_l3=pages_l3):
                if on_host is not behind:
                    behind[:count].copy_(on_host[:count])
                return count, pages_l3, reason
            case Miss(reason=reason):
                return 0, 0, reason
            case _:  # a load is under way, and a forward pass does not wait for it
                return 0, 0, MissReason.DEADLINE

    # after the pass

    def store(
        self, cache: Any, *, row: int, column: int, tokens: TokenIds, found: FoundRow, deadline_s: float
    ) -> None:
        """Keep the full pages of `tokens`, whose KV stands in `cache` from `column` on, behind those found.

        Waits at most `deadline_s` for the sidecar to take them.
        """
        began = time.monotonic()
        keys = self._keys(tokens)
        fresh = max(len(keys) // KEY_BYTES - found.found, 0)
        begin = column + found.found * self.codec.page_tokens
        pages = self.codec.gather(cache, row=row, column=begin, pages=fresh)
        if fresh:
            outcomes = self._put(keys, pages, found, until=began + deadline_s)
            self.report.add_puts(outcomes, page_bytes=self.codec.page_bytes)
        if fresh or found.from_l1 < found.found:
            # From the root on, because L1 may have evicted what it had; pages that it still has are not copied. After
            # the put, which tells what page of L2 each of them is.
            sources = [*found.pages, *pages]
            instances = self._request.instances(keys[: len(sources) * KEY_BYTES])
            self._reuse.l1.insert(keys, 0, sources, view=self._view, instances=instances)
        self.report.store_s += time.monotonic() - began

    def _put(self, keys: bytes, fresh: torch.Tensor, found: FoundRow, *, until: float) -> list[PutOutcome]:
        sources = _host_buffers(fresh)
        outcomes = self._put_from(keys, sources, start=found.found, until=until)
        first = outcomes[0]
        if found.found and isinstance(first, Refused) and first.reason is RefuseReason.PARENT_ABSENT:
            # L2 evicted what L1 still had. Sent again from the root, the chain stands there once more, marked as of
            # unknown lineage by the request: who computed its first pages can't be told any more.
            return self._put_from(keys, _host_buffers(found.pages) + sources, start=0, until=until)
        return outcomes

    def _put_from(
        self, keys: bytes, sources: Sequence[memoryview], *, start: int, until: float
    ) -> list[PutOutcome]:
        outcomes: list[PutOutcome] = []
        for at in range(0, len(sources), BATCH_PAGES_MAX):
            batch = sources[at : at + BATCH_PAGES_MAX]
            left_s = until - time.monotonic()
            if left_s <= 0.0:
                outcomes += [Refused(RefuseReason.DEADLINE)] * len(batch)
                continue
            upto = keys[: (start + at + len(batch)) * KEY_BYTES]
            outcomes += self._request.put(upto, batch, start=start + at, deadline_s=left_s)
        return outcomes


def _host_buffers(pages: torch.Tensor) -> list[memoryview]:
    """One buffer a page, in host memory: the pages themselves where they are there already."""
    return [page.data for page in pages.cpu().numpy()]
