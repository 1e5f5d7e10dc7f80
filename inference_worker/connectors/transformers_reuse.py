"""Pages of a batch's rows: found in L1, then in L2 through the client, and stored in both after the pass.

A page of L1 is on the engine's device: it goes straight into the engine's cache and comes straight out of it. Only what
L2 gives and gets goes over host memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from cache_l1.cache import Filling, L1Cache
from cache_l1.device_pages import DevicePages
from cache_l1.transfer import Part, Transfers, batches
from cache_l1.transfer_registration import RegisteredMemory
from cache_l1.transfer_streams import StreamOrder, streams_of
from inference_worker.connectors.transformers_cache import PageCodec, PagesAt
from inference_worker.connectors.transformers_fetch import bring
from inference_worker.connectors.transformers_losing import LosingFromL1
from inference_worker.connectors.transformers_promotion import Promotions
from inference_worker.connectors.transformers_report import ReuseReport
from inference_worker.connectors.transformers_store import PageClient, PageRequest
from inference_worker.prefetch import Prefetch
from inference_worker.weights import Announced
from kv_policy.admission import L1Promotion
from kv_types.errors import StrataError
from kv_types.ids import KEY_BYTES, LifeId
from kv_types.limits import BATCH_PAGES_MAX
from kv_types.namespace import Namespace
from kv_types.outcomes import Hit, Miss, MissReason, PutOutcome, Refused, RefuseReason
from kv_types.page_keys import page_keys
from kv_types.validity import Instances, ObservedView

TokenIds = NDArray[np.uint32]

_log = logging.getLogger("stratakv.transformers")


@dataclass(frozen=True, slots=True)
class FoundRow:
    """Pages at hand for one row, on the model's device: the first of its chain, which are pinned in L1, and those behind them,
    which L2 gave, uint8 [n, page_bytes].
    """

    in_l1: PagesAt
    fetched: torch.Tensor

    @property
    def from_l1(self) -> int:
        """Pages that L1 had."""
        return len(self.in_l1)

    @property
    def found(self) -> int:
        """Pages from the chain's root on."""
        return len(self.in_l1) + len(self.fetched)

    @property
    def pages(self) -> list[PagesAt]:
        """All of them, in their order."""
        return [self.in_l1, PagesAt(self.fetched, range(len(self.fetched)))]


class PageReuse:
    """L1 and L2 of one namespace on one device. Thread-safe. Retired, it is let go of when the last call has ended."""

    def __init__(
        self,
        client: PageClient,
        namespace: Namespace,
        *,
        codec: PageCodec,
        l1_bytes: int,
        l1_policy: str,
        l1_promotion: L1Promotion,
        device: torch.device,
        reached: RegisteredMemory | None,
    ) -> None:
        """`reached`: host memory that the device reads by itself; None: it has no memory of its own."""
        self.client = client
        self.reached = reached
        self.namespace = namespace
        self._calls = 0
        self._is_retired = False
        self._lock = threading.Lock()
        self.registered = client.register(namespace)
        self.codec = codec
        self.device = device
        self.memory = DevicePages(
            capacity=max(1, l1_bytes // codec.page_bytes), page_bytes=codec.page_bytes, device=device
        )
        self.transfers = Transfers(device)
        self.order = StreamOrder(streams_of(device))
        """Of work on L1's pages: threads whose streams differ share them."""
        self.l1 = L1Cache(
            capacity_pages=self.memory.capacity,
            page_bytes=codec.page_bytes,
            memory=self.memory,
            namespace=namespace,
            policy=l1_policy,
            in_l2=self._is_in_l2,
        )
        self.promotions = Promotions(l1_promotion)
        self.losing = LosingFromL1(page_bytes=codec.page_bytes, page_tokens=codec.page_tokens)
        self.l1.set_losing_costs(self.losing.costs())

    def _is_in_l2(self, instance: int, life: LifeId) -> bool:
        return self.client.has_page(instance, life=life)

    def statistics(self) -> Mapping[str, int]:
        """Counters and gauges of L1, and of what came into it from L2."""
        return {**self.l1.statistics(), **self.promotions.statistics()}

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
        self._pinned: list[int] = []
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
            self._reuse.order.leave()  # what reads these pages still comes before whoever fills them anew
            self._reuse.l1.release(self._pinned)
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
        size = self.codec.page_bytes
        local, instances = self._match_l1(keys)
        if not keys:
            return FoundRow(local, self._empty(0))
        self._request.reused(keys[: len(local) * KEY_BYTES], instances)
        began = time.monotonic()
        fetched, pages_l3, reason = self._fetch(keys, start=len(local), until=until)
        if not pages_l3:  # nobody waited for L3
            self._reuse.losing.fetched(len(fetched), time.monotonic() - began)
        row = self.report.rows[index]
        row.pages_l1, row.pages_l2, row.pages_l3 = len(local), len(fetched) - pages_l3, pages_l3
        row.ended_by = reason
        self.report.bytes_from_l1 += len(local) * size
        self.report.bytes_from_l2 += (len(fetched) - pages_l3) * size
        self.report.bytes_from_l3 += pages_l3 * size
        self.report.bytes_over_host += len(fetched) * size
        return FoundRow(local, fetched)

    def _keys(self, tokens: TokenIds) -> bytes:
        return page_keys(self._reuse.namespace.id, tokens, page_tokens=self.codec.page_tokens)

    def _match_l1(self, keys: bytes) -> tuple[PagesAt, Instances]:
        """Pages of L1, pinned until this call ends, and which pages of L2 they are."""
        numbers = self._reuse.l1.match(keys)
        self._pinned += numbers
        self._reuse.order.enter()
        return PagesAt(self._reuse.memory.memory, numbers), self._reuse.l1.instances(numbers)

    def _empty(self, pages: int) -> torch.Tensor:
        return torch.empty((pages, self.codec.page_bytes), dtype=torch.uint8, device=self._reuse.device)

    def _fetch(self, keys: bytes, *, start: int, until: float) -> tuple[torch.Tensor, int, MissReason]:
        """Pages behind the first `start`, how many of these L3 gave, and why there are no more."""
        left_s = until - time.monotonic()
        if left_s <= 0.0:
            return self._empty(0), 0, MissReason.DEADLINE
        if self._reuse.reached is not None:
            with self._request.lease(keys, start=start, deadline_s=left_s) as lease:
                fetched = bring(
                    list(lease), page_bytes=self.codec.page_bytes, device=self._reuse.device, reached=self._reuse.reached
                )  # fmt: skip
                return fetched, lease.pages_l3, lease.reason
        wanted = len(keys) // KEY_BYTES - start
        is_on_host = self._reuse.device.type == "cpu"
        room = torch.empty((wanted, self.codec.page_bytes), dtype=torch.uint8, pin_memory=not is_on_host)
        match self._request.get(keys, _buffers(room), start=start, deadline_s=left_s):
            case Hit(pages=count, ended_by=reason, pages_l3=pages_l3):
                brought = room[:count]
                # From pinned memory, which torch keeps until it is there: nobody has to wait.
                fetched = brought if is_on_host else brought.to(self._reuse.device, non_blocking=True)
                return fetched, pages_l3, reason
            case Miss(reason=reason):
                return self._empty(0), 0, reason
            case _:  # a load is under way, and a forward pass does not wait for it
                return self._empty(0), 0, MissReason.DEADLINE

    def note_used(self, found: FoundRow, tokens: int) -> None:
        """So many tokens of a row go from the pages at hand into the engine's cache: count those that L1 gives."""
        pages = -(-tokens // self.codec.page_tokens)
        self._reuse.l1.note_copied_out(found.in_l1.numbers[:pages])

    def observe_prefill(self, tokens: int, *, start: int, seconds: float) -> None:
        """Tell the client, and L1, how long this call's pass took over so many tokens behind `start` others."""
        self._reuse.client.observe_prefill(tokens, start=start, seconds=seconds)
        self._reuse.losing.computed(tokens, start=start, seconds=seconds)
        self._reuse.l1.set_losing_costs(self._reuse.losing.costs())

    # after the pass

    def store(
        self, cache: Any, *, row: int, column: int, tokens: TokenIds, found: FoundRow, deadline_s: float
    ) -> None:
        """Keep the full pages of `tokens`, whose KV stands in `cache` from `column` on, behind those found.

        Waits at most `deadline_s` for the sidecar to take them.
        """
        began = time.monotonic()
        keys = self._keys(tokens)
        count = len(keys) // KEY_BYTES
        if count > found.found or found.from_l1 < found.found:
            l1 = self._reuse.l1
            kept = self._reuse.promotions.kept(
                keys, start=found.from_l1, end=found.found, free_pages=l1.free_pages
            )
            wanted = keys if kept == found.found else keys[: kept * KEY_BYTES]
            with l1.filling(wanted, found.from_l1, view=self._view) as filling:
                with self._reuse.order.entered():
                    self._keep_fetched(filling, found)
                    if count > found.found:
                        begin = column + found.found * self.codec.page_tokens
                        fresh = self._take(
                            filling, cache, row=row, column=begin, first=found.found, end=count
                        )
                        outcomes = self._put(keys, fresh, found, until=began + deadline_s)
                        self.report.add_puts(outcomes, page_bytes=self.codec.page_bytes)
                        self.report.bytes_over_host += len(outcomes) * self.codec.page_bytes
                # After the put, which tells what page of L2 each of them is.
                filling.publish(self._request.instances(keys))
        self.report.store_s += time.monotonic() - began

    def _keep_fetched(self, filling: Filling, found: FoundRow) -> None:
        """Copy what L2 gave to its places in L1."""
        for index, page in filling.pages.items():
            if index < found.found:
                self._reuse.memory.write(page, found.fetched[index - found.from_l1])

    def _take(
        self, filling: Filling, cache: Any, *, row: int, column: int, first: int, end: int
    ) -> list[PagesAt]:
        """Copy pages [first, end) of the chain out of a cache, straight to their places in L1 as far as it has some."""
        places = [filling.pages[index] for index in range(first, end) if index in filling.pages]
        # L1 gives places from the front on, but for pages that somebody else has brought there meanwhile
        known = next((index for index in range(first, end) if index in filling.pages), end) - first
        spare = known + (end - first - known - len(places))
        beside = self._empty(spare)
        taken = [
            PagesAt(beside, range(known)),
            PagesAt(self._reuse.memory.memory, places),
            PagesAt(beside, range(known, spare)),
        ]
        for pages in taken:
            self.codec.scatter(cache, pages, row=row, column=column)
            column += len(pages) * self.codec.page_tokens
        return taken

    def _put(
        self, keys: bytes, fresh: Sequence[PagesAt], found: FoundRow, *, until: float
    ) -> list[PutOutcome]:
        sources = self._host_buffers(fresh)
        outcomes = self._put_from(keys, sources, start=found.found, until=until)
        first = outcomes[0]
        if found.found and isinstance(first, Refused) and first.reason is RefuseReason.PARENT_ABSENT:
            # L2 evicted what L1 still had. Sent again from the root, the chain stands there once more, marked as of
            # unknown lineage by the request: who computed its first pages can't be told any more.
            return self._put_from(keys, self._host_buffers(found.pages) + sources, start=0, until=until)
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

    def _host_buffers(self, pages: Sequence[PagesAt]) -> list[memoryview]:
        """One buffer a page, in host memory: the pages themselves where they are there already."""
        buffers: list[memoryview] = []
        for one in pages:
            if one.memory.device.type == "cpu":
                buffers += [one.memory[number].numpy().data for number in one.numbers]
            else:
                room = torch.empty((len(one), self.codec.page_bytes), dtype=torch.uint8)
                self._reuse.transfers.store(self._turns(one, room))
                buffers += _buffers(room)
        return buffers

    def _turns(self, pages: PagesAt, room: torch.Tensor) -> Iterator[Part]:
        for turn in batches(len(pages), self.codec.page_bytes):
            yield Part(
                len(turn) * self.codec.page_bytes,
                host=partial(_empty_into, room[turn.start : turn.stop]),
                device=partial(_fill_from, pages.memory, pages.numbers[turn.start : turn.stop]),
            )


def _empty_into(room: torch.Tensor, staging: torch.Tensor) -> None:
    room.view(-1).copy_(staging)


def _fill_from(memory: torch.Tensor, numbers: Sequence[int], staging: torch.Tensor) -> None:
    chosen = torch.tensor(numbers, device=memory.device)
    staging.view(len(numbers), memory.shape[1]).copy_(memory.index_select(0, chosen), non_blocking=True)


def _buffers(pages: torch.Tensor) -> list[memoryview]:
    """One buffer a page of the host's memory."""
    return [page.data for page in pages.numpy()]
