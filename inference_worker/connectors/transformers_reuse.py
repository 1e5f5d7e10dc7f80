"""Pages of a batch's rows: found in L1, then in L2 through the client, and stored in both after the pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from cache_l1.cache import L1Cache
from numpy.typing import NDArray

from inference_worker.connectors.transformers_cache import PageCodec
from inference_worker.connectors.transformers_report import ReuseReport
from inference_worker.connectors.transformers_store import PageClient, PageRequest
from kv_types.ids import KEY_BYTES
from kv_types.limits import BATCH_PAGES_MAX
from kv_types.namespace import Namespace
from kv_types.outcomes import Hit, Miss, MissReason, PutOutcome, Refused, RefuseReason
from kv_types.page_keys import page_keys


@dataclass(slots=True)
class FoundRow:
    """Pages found for one row. `keys`: those of all its full pages, packed. `pages`: uint8 [found,
    page_bytes].
    """

    keys: bytes
    pages: torch.Tensor

    @property
    def found(self) -> int:
        """Pages at hand, from the chain's root on."""
        return len(self.pages)


class PageReuse:
    """L1 and L2 of one namespace. Look-ups and stores of several threads take turns; forward passes do not.
    """

    def __init__(
        self,
        client: PageClient,
        namespace: Namespace,
        *,
        codec: PageCodec,
        l1_bytes: int,
        device: torch.device,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._registered = client.register(namespace)
        self._codec = codec
        self._device = device
        self._lock = threading.Lock()
        self.l1 = L1Cache(
            capacity_pages=l1_bytes // codec.page_bytes, page_bytes=codec.page_bytes, device=str(device)
        )

    def begin(self) -> PageRequest:
        """Begin a request before anything is reused, so that its stamp is older than all it builds on (rule
        R1).
        """
        return self._client.begin(self._registered)

    def look_up(
        self,
        request: PageRequest,
        tokens: Sequence[NDArray[np.uint32]],
        report: ReuseReport,
        *,
        deadline_s: float,
    ) -> list[FoundRow]:
        """Find the longest prefix of each row; all rows together wait at most `deadline_s`."""
        began = time.monotonic()
        found = []
        with self._lock:
            self.l1.synchronise(self._client.validity)
            for index, row in enumerate(tokens):
                keys = page_keys(self._namespace.id, row, page_tokens=self._codec.page_tokens)
                left_s = began + deadline_s - time.monotonic()
                found.append(self._look_up_row(request, keys, report, index, deadline_s=left_s))
        report.look_up_s += time.monotonic() - began
        return found

    def _look_up_row(
        self, request: PageRequest, keys: bytes, report: ReuseReport, index: int, *, deadline_s: float
    ) -> FoundRow:
        wanted = len(keys) // KEY_BYTES
        pages = torch.empty((wanted, self._codec.page_bytes), dtype=torch.uint8, device=self._device)
        local = self._read_l1(keys, pages)
        remote, reason = self._read_l2(request, keys, pages, start=local, deadline_s=deadline_s)
        if remote:
            self.l1.insert(keys, local, list(pages[local : local + remote]), view=request.view)
        row = report.rows[index]
        row.pages_l1, row.pages_l2, row.ended_by = local, remote, reason
        report.bytes_from_l1 += local * self._codec.page_bytes
        report.bytes_from_l2 += remote * self._codec.page_bytes
        return FoundRow(keys, pages[: local + remote])

    def _read_l1(self, keys: bytes, pages: torch.Tensor) -> int:
        numbers = self.l1.match(keys)
        try:
            self.l1.read(numbers, list(pages[: len(numbers)]))
        finally:
            self.l1.release(numbers)
        return len(numbers)

    def _read_l2(
        self, request: PageRequest, keys: bytes, pages: torch.Tensor, *, start: int, deadline_s: float
    ) -> tuple[int, MissReason]:
        """Pages copied behind the first `start`, and why there are no more."""
        if deadline_s <= 0.0:
            return 0, MissReason.DEADLINE
        wanted = len(pages) - start
        staging = (
            pages[start:] if pages.device.type == "cpu" else torch.empty_like(pages[start:], device="cpu")
        )
        destinations = [page.data for page in staging.numpy()]
        outcome = request.get(keys, destinations, start=start, deadline_s=deadline_s)
        match outcome:
            case Hit(pages=count, ended_by=reason):
                if staging is not pages[start:] and count:
                    pages[start : start + count].copy_(staging[:count])
                return min(count, wanted), reason
            case Miss(reason=reason):
                return 0, reason
            case _:  # a load under way: not waited for
                return 0, MissReason.DEADLINE

    def store(
        self,
        request: PageRequest,
        cache: Any,
        *,
        row: int,
        column: int,
        tokens: NDArray[np.uint32],
        found: FoundRow,
        report: ReuseReport,
        deadline_s: float,
    ) -> None:
        """Keep the full pages of `tokens`, whose KV stands in `cache` from `column` on, behind those found.
        """
        began = time.monotonic()
        keys = page_keys(self._namespace.id, tokens, page_tokens=self._codec.page_tokens)
        total = len(keys) // KEY_BYTES
        fresh = total - found.found
        if fresh > 0:
            begin = column + found.found * self._codec.page_tokens
            pages = self._codec.gather(cache, row=row, column=begin, pages=fresh)
            with self._lock:
                self.l1.insert(keys, found.found, list(pages), view=request.view)
            self._put(request, keys, pages.cpu(), found, report, until=began + deadline_s)
        report.store_s += time.monotonic() - began

    def _put(
        self,
        request: PageRequest,
        keys: bytes,
        pages: torch.Tensor,
        found: FoundRow,
        report: ReuseReport,
        *,
        until: float,
    ) -> None:
        outcomes = self._put_from(request, keys, pages, start=found.found, until=until)
        first = outcomes[0]
        if found.found and isinstance(first, Refused) and first.reason is RefuseReason.PARENT_ABSENT:
            # L2 evicted pages that L1 still has. Sent again, they let it take the new ones.
            both = torch.cat((found.pages.cpu(), pages))
            outcomes = self._put_from(request, keys, both, start=0, until=until)
        report.add_puts(outcomes, page_bytes=self._codec.page_bytes)

    @staticmethod
    def _put_from(
        request: PageRequest, keys: bytes, pages: torch.Tensor, *, start: int, until: float
    ) -> list[PutOutcome]:
        outcomes: list[PutOutcome] = []
        sources = [page.data for page in pages.numpy()]
        for at in range(0, len(sources), BATCH_PAGES_MAX):
            batch = sources[at : at + BATCH_PAGES_MAX]
            begin = start + at
            upto = keys[: (begin + len(batch)) * KEY_BYTES]
            left_s = until - time.monotonic()
            if left_s <= 0.0:
                outcomes += [Refused(RefuseReason.DEADLINE)] * len(batch)
                continue
            outcomes += request.put(upto, batch, start=begin, deadline_s=left_s)
        return outcomes
