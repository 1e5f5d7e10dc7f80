"""A naive engine with a prefix cache, driven step by step, that knows of each block what its KV was really computed from.

It schedules as vLLM does: at a step's beginning running requests are given blocks, which are hashed before they are
computed; then waiting ones are looked up; only at the end of scheduling does a request count as computed. Outputs come
one or two steps later. What a block holds is a set of atoms: (page key or tail, when its computation began).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from inference_worker.connectors.vllm.adapter_contents import EngineAdapter
from inference_worker.connectors.vllm.governed import GateAnswer
from inference_worker.connectors.vllm.governor import Governor
from inference_worker.connectors.vllm.running_weights import EngineWeights
from kv_types.clock import ManualClock
from kv_types.events import EventKind
from kv_types.namespace import Namespace
from kv_types.selectors import Selector
from kv_types.validity import EngineMode
from tests.connectors.vllm.governed_blocks import (
    BLOCK,
    Atom,
    Block,
    FakePool,
    Place,
    Record,
    hash_of,
    keys_of,
)
from tests.connectors.vllm.governed_header import FakeHeader


@dataclass(eq=False)
class EngineRequest:
    """Conforms to governed.LiveRequest. `row`: all tokens it will ever have; `known` of them are there."""

    request_id: str
    tenant: str
    row: tuple[int, ...]
    known: int
    names: tuple[Namespace, ...]
    page_tokens: int
    computed_tokens: int = 0
    in_flight: int = 0
    blocks: list[Block] = field(default_factory=list)
    hashed: int = 0
    is_running: bool = False
    loading: int = 0
    is_finished: bool = False
    adapter: EngineAdapter | None = None

    @property
    def namespaces(self) -> tuple[Namespace, ...]:
        return self.names

    @property
    def block_hashes(self) -> Sequence[bytes]:
        return [hash_of(self.place(index)) for index in range(self.known // BLOCK)]

    def place(self, index: int) -> Place:
        return self.tenant, self.row[: (index + 1) * BLOCK]

    def page_keys(self, start: int, end: int) -> tuple[bytes, ...]:
        keys = [keys_of(name, self.row[: self.known], self.page_tokens) for name in self.names]
        return tuple(b"".join(chain[start:end]) for chain in keys)


Work = list[tuple[EngineRequest, int, int]]
"""What a step computes: request, first token, tokens."""


class Engine:
    """`names`: the namespaces of each tenant, one a rank. `inject`: called at each named point within a step."""

    def __init__(
        self,
        names: dict[str, tuple[Namespace, ...]],
        *,
        mode: EngineMode,
        blocks_per_page: int = 1,
        blocks: int = 14,
        depth: int = 1,
        recompute: bool = False,
        governor: type[Governor] = Governor,
        setup: Callable[[Engine], None] = lambda _: None,
    ) -> None:
        self.names, self.mode = names, mode
        self.clock = ManualClock()
        self.header = FakeHeader(self.clock)
        self.pool = FakePool(blocks)
        self.governor = governor(self.header, self.clock, mode=mode, recompute=recompute)
        self.governor.bind(self.pool, block_tokens=BLOCK, can_be_exact=True)
        self.weights = EngineWeights("v1", random=bytes)
        self.governor.learn(self.weights, blocks_per_page=blocks_per_page)
        self.page_tokens = BLOCK * blocks_per_page
        self.depth = depth
        self.requests: dict[str, EngineRequest] = {}
        self.waiting: list[EngineRequest] = []
        self.in_flight: list[tuple[int, Work, frozenset[Atom]]] = []
        self.records: list[Record] = []
        self.views: list[tuple[int, int]] = []
        self.unheard: list[tuple[int, Selector]] = []
        self.made = self.seen_applied = 0
        self.was_overrun = False
        self.inject: Callable[[str], None] = lambda _: None
        self.hits: dict[str, int] = {}
        setup(self)

    # --- records ----------------------------------------------------------------------------------------------------

    def tell(self, takes: Callable[[Place], bool], kind: int, payload: bytes = b"") -> None:
        """The log has a record and the sidecar publishes it; the fence that follows returns at once: nobody is waited for."""
        self.records.append(Record(len(self.records) + 1, takes))
        self.views.append((self.header.number, self.header.publish(kind, payload)))

    def cut_off(self) -> None:
        """The sidecar can't reach the log any more, and its freshness runs out."""
        if self.header.fresh_until_ns > self.clock.now_ns():
            self.header.fresh_until_ns = self.clock.now_ns()

    def tell_unheard(self, selector: Selector) -> None:
        """The log has a record that the sidecar does not hear of yet; where it counts as gone, the fence has returned."""
        if self.mode is EngineMode.KEEP and self.header.keep_granted:
            return
        self.records.append(Record(len(self.records) + 1, lambda place: self.is_selected(selector, place)))
        self.views.append((self.header.number, 1 << 62))
        self.unheard.append((len(self.views) - 1, selector))

    def reconnect(self) -> None:
        """The sidecar hears of all records, and then vouches for its view again."""
        for place, selector in self.unheard:
            self.views[place] = (
                self.header.number,
                self.header.publish(EventKind.SELECTED, selector.encode()),
            )
        self.unheard.clear()
        self.header.fresh_until_ns = 1 << 62

    def select(self, selector: Selector) -> None:
        self.tell(lambda place: self.is_selected(selector, place), EventKind.SELECTED, selector.encode())

    def is_selected(self, selector: Selector, place: Place) -> bool:
        """By its name, or as part of a page that isn't full: whether any rank's page that begins with it is selected."""
        tenant, tokens = place
        names = self.names[tenant]
        if not any(selector.matches_namespace(name) for name in names):
            return False
        if selector.key is None:
            return True
        pages = len(tokens) // self.page_tokens
        if any(selector.key in keys_of(name, tokens, self.page_tokens) for name in names):
            return True
        if len(tokens) % self.page_tokens == 0:
            return False
        return any(
            keys_of(name, full, self.page_tokens)[pages : pages + 1] == [selector.key]
            for full in self._fillings(tokens)
            for name in names
        )

    def _fillings(self, tokens: tuple[int, ...]) -> list[tuple[int, ...]]:
        missing = -len(tokens) % self.page_tokens
        rows = [tokens]
        for _ in range(missing):
            rows = [(*row, token) for row in rows for token in (0, 1)]
        return rows

    def overrun(self) -> None:
        """The ring has lost what was published."""
        self.header.overrun_to = len(self.header.events)
        self.was_overrun = True

    def restart_sidecar(self) -> None:
        self.header.restart()
        self.unheard.clear()
        self.header.fresh_until_ns = 1 << 62
        self.records.append(Record(len(self.records) + 1, lambda _: True))
        self.views.append((self.header.number, 1))

    def is_bad(self, atoms: Iterable[Atom], *, up_to: int | None = None) -> bool:
        """Whether a record selects something among it whose computation had begun before."""
        seen = self.records if up_to is None else self.records[:up_to]
        return any(
            record.number > atom.began and record.takes(atom.place) for atom in atoms for record in seen
        )

    # --- what the engine does ---------------------------------------------------------------------------------------

    def add(
        self, request_id: str, tenant: str, prompt: Sequence[int], outputs: Sequence[int] = (1,)
    ) -> EngineRequest:
        row = (*prompt, *outputs)
        request = EngineRequest(request_id, tenant, row, len(prompt), self.names[tenant], self.page_tokens)
        self.requests[request_id] = request
        self.waiting.append(request)
        self.governor.track(request)
        return request

    def step(self, *, chunk: int = 100, load: int = 0, is_async: bool = False) -> None:
        """Schedule one step; outputs of the oldest come once `depth` are in flight."""
        if len(self.in_flight) >= self.depth:
            self.finish_step()
        self.pool.evicted.clear()
        self.governor.boundary()
        self.check_boundary()
        began = len(self.records)
        self.inject("after boundary")
        work: Work = []
        for request in list(self.requests.values()):
            if request.is_running and not request.loading:
                # Placeholders of outputs that are not there yet are computed too, as with asynchronous scheduling.
                ready = min(len(request.row) - 1, request.known + request.in_flight)
                self._schedule(request, min(chunk, ready - request.computed_tokens), began, work)
        for request in list(self.waiting):
            self._look_up(request, chunk, began, work, load=load, is_async=is_async)
        for request, start, tokens in work:
            request.computed_tokens = start + tokens
            request.in_flight += 1
        self.inject("scheduled")
        self.made += 1
        self.governor.step_begun(self.made)
        used = frozenset(
            atom
            for request, start, tokens in work
            for block in request.blocks[: -(-(start + tokens) // BLOCK)]
            for atom in block.atoms
        )
        self.in_flight.append((self.made, work, used))
        self.check_idle_state()

    def _schedule(
        self,
        request: EngineRequest,
        tokens: int,
        began: int,
        work: Work,
        start: int | None = None,
    ) -> bool:
        start = request.computed_tokens if start is None else start
        if tokens <= 0:
            return True
        if not self._allocate(request, start + tokens):
            return False
        self._hash(request, min(start + tokens, request.known))
        self._write(request, start, start + tokens, began)
        work.append((request, start, tokens))
        return True

    def _allocate(self, request: EngineRequest, tokens: int) -> bool:
        while len(request.blocks) * BLOCK < tokens:
            block = self.pool.take()
            if block is None:
                return False
            request.blocks.append(block)
        return True

    def _hash(self, request: EngineRequest, tokens: int) -> None:
        if self.governor.may_hash(request.request_id):
            for index in range(request.hashed, tokens // BLOCK):
                if request.blocks[index].block_hash is None:
                    request.blocks[index].block_hash = hash_of(request.place(index))
            request.hashed = max(request.hashed, tokens // BLOCK)
            self.governor.hashed(request.request_id, tokens)

    def _write(self, request: EngineRequest, start: int, end: int, began: int) -> None:
        for index in range(start // BLOCK, -(-end // BLOCK)):
            block = request.blocks[index]
            below = {atom for lower in request.blocks[:index] for atom in lower.atoms}
            kept = block.atoms if index * BLOCK < start else frozenset()
            block.atoms = frozenset(below | kept | {Atom(request.place(index), began)})

    def _look_up(
        self,
        request: EngineRequest,
        chunk: int,
        began: int,
        work: Work,
        *,
        load: int,
        is_async: bool,
    ) -> None:
        self.inject("before look-up")
        invoked = len(self.records)
        answer = self.governor.gate(request.request_id)
        self.inject("in look-up")
        found = self._cached(request) if answer is GateAnswer.SERVE else []
        self.governor.looked_up()
        assert self.header.own_freshness_ns == 0, "a claim was kept after the look-up"
        for block in found:
            assert not self.is_bad(block.atoms, up_to=invoked), "a purged block was served"
        if self.governor.is_deferred(request.request_id):
            return
        self.hits[request.request_id] = len(found)
        for block in found:
            block.users += 1
        request.blocks, request.hashed = list(found), len(found)
        computed = len(found) * BLOCK
        loaded = min(
            load * self.page_tokens,
            (len(request.row) - 1) // self.page_tokens * self.page_tokens,
            request.known - 1,
        )
        loaded -= loaded % self.page_tokens
        if loaded > computed and self._allocate(request, loaded):
            self._write(request, computed, loaded, began)
            computed = loaded
            if is_async:
                request.computed_tokens, request.loading = computed, computed
                request.is_running = True
                self.waiting.remove(request)
                return
        admitted = self._schedule(request, min(chunk, request.known - computed), began, work, start=computed)
        if admitted:
            request.is_running = True
            self.waiting.remove(request)
        else:
            self._free(request)

    def _cached(self, request: EngineRequest) -> list[Block]:
        found: list[Block] = []
        for index in range((request.known - 1) // BLOCK):
            blocks = self.pool.of(hash_of(request.place(index)))
            if not blocks:
                break
            found.append(blocks[0])
        return found

    def finish_step(self) -> None:
        """The outputs of the oldest step come."""
        number, work, _ = self.in_flight.pop(0)
        for request, start, tokens in work:
            request.in_flight = max(0, request.in_flight - 1)
            if request.is_finished or not request.is_running or request.computed_tokens < start + tokens:
                continue
            if start + tokens >= request.known:
                request.known = min(len(request.row), start + tokens + 1)
                self._hash(request, min(request.computed_tokens, request.known))
            if request.known == len(request.row):
                self.end(request)
        self.governor.step_done(number)
        self.check_idle_state()

    def loaded(self, request: EngineRequest, *, failed_from: int | None = None) -> None:
        """An asynchronous load has ended; from block `failed_from` on it failed."""
        if failed_from is not None:
            request.computed_tokens = min(request.computed_tokens, failed_from * BLOCK)
        request.loading = 0
        if request.computed_tokens:
            self._hash(request, request.computed_tokens)
            request.computed_tokens = min(request.computed_tokens, request.known - 1)
        else:
            self._free(request)
            request.is_running = False
            self.waiting.append(request)

    def recompute(self) -> None:
        """What the governor wants computed anew is reported as failed: the engine counts it as not computed."""
        for request_id, first in self.governor.to_recompute().items():
            request = self.requests[request_id]
            if request.is_running and not request.loading:
                shared = any(block.users > 1 for block in request.blocks[first:])
                if not shared:
                    request.computed_tokens = min(request.computed_tokens, first * BLOCK)

    def preempt(self, request: EngineRequest) -> None:
        self._free(request)
        request.is_running = False
        self.waiting.insert(0, request)

    def _free(self, request: EngineRequest) -> None:
        for block in request.blocks:
            block.users -= 1
        request.blocks, request.computed_tokens, request.hashed, request.loading = [], 0, 0, 0

    def end(self, request: EngineRequest) -> None:
        self._free(request)
        request.is_finished, request.is_running = True, False
        if request in self.waiting:
            self.waiting.remove(request)
        del self.requests[request.request_id]
        self.governor.untrack(request.request_id)

    # --- what must hold ---------------------------------------------------------------------------------------------

    def applied_records(self) -> int:
        """Records up to the view that was applied last."""
        position = (int.from_bytes(self.governor.life, "big"), self.governor.view)
        return sum(1 for view in self.views if view <= position)

    def check_boundary(self) -> None:
        applied = self.applied_records()
        if self.header.is_there:
            assert self.header.applied == self.governor.view == len(self.header.events)
        for block in self.pool.blocks:
            if block.block_hash is not None:
                assert not self.is_bad(block.atoms, up_to=applied), "what was selected stayed in the cache"
        self.check_exactness(applied)

    def check_exactness(self, applied: int) -> None:
        """With one block a page nothing goes, and nobody is tainted, that no record selects."""
        fresh, self.seen_applied = self.records[self.seen_applied : applied], applied
        if self.page_tokens != BLOCK or self.was_overrun:
            return
        for block_hash in self.pool.evicted:
            place = ast.literal_eval(block_hash.decode())
            assert any(record.takes(place) for record in fresh), "evicted needlessly"
        for request in self.requests.values():
            if self.governor.is_tainted(request.request_id):
                held = request.blocks[: -(-request.computed_tokens // BLOCK)]
                atoms = {atom for block in held for atom in block.atoms}
                assert self.is_bad(atoms, up_to=applied), "tainted needlessly"

    def check_idle_state(self) -> None:
        """Between steps: taints, stamp and hold."""
        applied = self.applied_records()
        for request in self.requests.values():
            atoms = {
                atom
                for block in request.blocks[: -(-request.computed_tokens // BLOCK)]
                for atom in block.atoms
            }
            if not self.governor.is_tainted(request.request_id):
                full = {a for b in request.blocks[: request.computed_tokens // BLOCK] for a in b.atoms}
                full = {a for a in full if len(a.place[1]) <= request.known}
                assert not self.is_bad(full, up_to=applied), "a request was not tainted"
                if (stamp := self.governor.stamp) is not None:
                    assert stamp.revision <= self.governor.view, (
                        "a stamp that nobody held the request against"
                    )
            self._check_held(atoms)
        for _, _, used in self.in_flight:
            self._check_held(used)
        if not self.requests and not self.in_flight and self.header.is_there:
            assert not self.header.held_views, "`drained` is held back by nothing"

    def _check_held(self, atoms: Iterable[Atom]) -> None:
        if not self.header.is_there or self.governor.life != self.header.life:
            return
        for atom in atoms:
            for record, (life, view) in zip(self.records, self.views, strict=True):
                if (
                    life == self.header.number
                    and view <= len(self.header.events)
                    and record.number > atom.began
                    and record.takes(atom.place)
                ):
                    least = max(1, view - 1)
                    assert self.header.held_views, "nothing holds `drained` back"
                    assert min(self.header.held_views) <= least, "the hold was raised early"
