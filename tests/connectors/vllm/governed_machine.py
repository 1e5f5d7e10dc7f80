"""The governor under everything that can happen between, and within, an engine's steps: a Hypothesis state machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from inference_worker.connectors.vllm.governor import Governor
from kv_types.events import EventKind, WeightsAnnounced
from kv_types.selectors import Selector
from kv_types.validity import EngineMode
from tests.connectors.vllm.governed_blocks import BLOCK
from tests.connectors.vllm.governed_engine import Engine, EngineRequest
from tests.connectors.vllm.governed_names import TENANTS, key_of, names

_tokens = st.integers(0, 1)
_tenants = st.sampled_from(TENANTS)
POINTS = ("after boundary", "before look-up", "in look-up", "scheduled")


@st.composite
def selectors(draw: Any, blocks_per_page: int, is_calm: bool = False) -> Selector:
    tenant = draw(_tenants)
    others = () if is_calm else ("namespace", "tenant", "origin", "model")
    kind = draw(st.sampled_from(("key", "key", "key", "bare key", *others)))
    if "key" in kind:
        pages = draw(st.integers(1, 3 if blocks_per_page == 1 else 2))
        size = pages * BLOCK * blocks_per_page
        tokens = tuple(draw(st.lists(_tokens, min_size=size, max_size=size)))
        rank = draw(st.integers(0, 1))
        key = key_of(tenant, tokens, blocks_per_page=blocks_per_page, rank=rank)
        if kind == "bare key":
            return Selector(key=key, producer=draw(st.sampled_from((None, b"somebody"))))
        return Selector(namespace=names(blocks_per_page)[tenant][rank].id, key=key)
    return {
        "namespace": Selector(namespace=names(blocks_per_page)[tenant][draw(st.integers(0, 1))].id),
        "tenant": Selector(tenant=tenant),
        "origin": Selector(tag=b"draft"),
        "model": Selector(model=draw(st.sampled_from(("toy", "other")))),
    }[kind]


class GovernedEngine(RuleBasedStateMachine):
    """`governor`: the class under test; `setup`: what a test breaks in the engine; `fixed`: what is not drawn of its build;
    `is_calm`: only pages are selected.
    """

    governor: type[Governor] = Governor
    fixed: Mapping[str, Any] = {}
    is_calm = False
    setup: Callable[[Engine], None] = staticmethod(lambda _: None)

    @initialize(
        mode=st.sampled_from((EngineMode.DROP, EngineMode.KEEP)),
        blocks_per_page=st.sampled_from((1, 1, 2)),
        depth=st.integers(1, 2),
        recompute=st.booleans(),
        granted=st.booleans(),
    )
    def build(self, **drawn: Any) -> None:
        build = {**drawn, **self.fixed}
        self.blocks_per_page = build["blocks_per_page"]
        self.engine = Engine(
            names(self.blocks_per_page),
            mode=build["mode"],
            blocks_per_page=self.blocks_per_page,
            depth=build["depth"],
            recompute=build["recompute"] and build["depth"] == 1,
            governor=self.governor,
            setup=self.setup,
        )
        self.engine.header.keep_granted = build["granted"] and build["mode"] is EngineMode.KEEP
        self.number = 0

    @rule(
        tenant=_tenants,
        prompt=st.lists(_tokens, min_size=1, max_size=7),
        outputs=st.lists(_tokens, min_size=1, max_size=5),
    )
    def add(self, tenant: str, prompt: list[int], outputs: list[int]) -> None:
        if len(self.engine.requests) < 4:
            self.number += 1
            self.engine.add(f"r{self.number}", tenant, prompt, outputs)

    @rule(
        data=st.data(),
        chunk=st.sampled_from((1, 2, 3, 100)),
        load=st.sampled_from((0, 0, 1, 2)),
        is_async=st.booleans(),
        point=st.sampled_from((None, None, *POINTS)),
    )
    def step(self, data: Any, chunk: int, load: int, is_async: bool, point: str | None) -> None:
        injected: list[Selector] = []

        def inject(reached: str) -> None:
            if reached == point and not injected and self.is_alive and not self.engine.unheard:
                injected.append(data.draw(selectors(self.blocks_per_page, self.is_calm)))
                self.engine.select(injected[0])

        self.engine.inject = inject
        self.engine.step(chunk=chunk, load=load, is_async=is_async)
        self.engine.inject = lambda _: None
        self.engine.recompute()

    @rule()
    def finish_step(self) -> None:
        if self.engine.in_flight:
            self.engine.finish_step()

    @precondition(lambda self: self.is_alive and not self.engine.unheard)
    @rule(data=st.data())
    def select(self, data: Any) -> None:
        self.engine.select(data.draw(selectors(self.blocks_per_page, self.is_calm)))

    @precondition(lambda self: not self.is_calm and self.is_alive and not self.engine.unheard)
    @rule(kind=st.sampled_from((EventKind.LOG_STARTED, 77, EventKind.WEIGHTS)))
    def tell_other(self, kind: int) -> None:
        if kind == EventKind.WEIGHTS:
            self.engine.tell(lambda _: False, kind, WeightsAnnounced("toy", "v2").encode())
        else:
            self.engine.tell(lambda _: True, kind, b"" if kind == EventKind.LOG_STARTED else b"?")

    @precondition(lambda self: not self.is_calm and self.is_alive and not self.engine.unheard)
    @rule(data=st.data())
    def overrun(self, data: Any) -> None:
        self.engine.select(data.draw(selectors(self.blocks_per_page, self.is_calm)))
        self.engine.overrun()

    @precondition(lambda self: not self.is_calm)
    @rule(data=st.data())
    def unheard(self, data: Any) -> None:
        self.engine.cut_off()
        self.engine.tell_unheard(data.draw(selectors(self.blocks_per_page, self.is_calm)))

    @precondition(lambda self: self.is_alive)
    @rule()
    def reconnect(self) -> None:
        self.engine.reconnect()

    @precondition(lambda self: not self.is_calm)
    @rule()
    def sidecar_dies(self) -> None:
        self.engine.header.die()
        self.engine.unheard.clear()

    @precondition(lambda self: not self.is_calm)
    @rule()
    def sidecar_comes(self) -> None:
        self.engine.restart_sidecar()

    @rule(data=st.data())
    def preempt(self, data: Any) -> None:
        running = self._running()
        if running:
            self.engine.preempt(data.draw(st.sampled_from(running)))

    @rule(data=st.data())
    def abort(self, data: Any) -> None:
        if self.engine.requests:
            self.engine.end(data.draw(st.sampled_from(list(self.engine.requests.values()))))

    @rule(data=st.data(), failed_from=st.sampled_from((None, 0, 1)))
    def loaded(self, data: Any, failed_from: int | None) -> None:
        loading = [request for request in self.engine.requests.values() if request.loading]
        if loading:
            self.engine.loaded(data.draw(st.sampled_from(loading)), failed_from=failed_from)

    @property
    def is_alive(self) -> bool:
        return self.engine.header.is_there and not self.engine.header.is_dead

    def _running(self) -> list[EngineRequest]:
        return [r for r in self.engine.requests.values() if r.is_running and not r.loading]
