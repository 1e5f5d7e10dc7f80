"""Who may go by blocks whose load failed, and who computes them anew, without an engine."""

from __future__ import annotations

from inference_worker.connectors.vllm.block_index import BlockIndex
from inference_worker.connectors.vllm.failed_blocks import FailedBlocks
from inference_worker.connectors.vllm.plan import Variant
from inference_worker.connectors.vllm.requests import RequestState
from tests.connectors.vllm.scheduling import ARequest, base_of

BLOCK = 4


class Running:
    """Requests with their blocks; the first block of each chain is right, what follows was to be loaded."""

    def __init__(self) -> None:
        self.states: dict[str, RequestState] = {}
        self.blocks: dict[str, list[int]] = {}
        self.failed = FailedBlocks(BLOCK)

    def add(self, name: str, blocks: list[int], *, computed: int = 0) -> RequestState:
        state = RequestState(ARequest(list(range(len(blocks) * BLOCK)), request_id=name), Variant())
        state.request.num_computed_tokens = computed
        self.states[name], self.blocks[name] = state, blocks
        return state

    def step(self, **scheduled: int) -> set[int]:
        again = self.failed.review(scheduled, self.states, lambda name: self.blocks.get(name, []))
        for name, tokens in scheduled.items():
            self.states[name].request.num_computed_tokens += tokens
        return again


def test_who_shares_them_waits_until_they_are_computed() -> None:
    running = Running()
    first = running.add("a", [1, 2, 3, 4], computed=BLOCK)
    sharer = running.add("b", [1, 2, 3, 9], computed=3 * BLOCK)
    stranger = running.add("c", [1, 5, 6])
    running.failed.add(first, 1, running.blocks["a"])
    assert running.failed.are_held(running.blocks["b"], sharer)
    assert not running.failed.are_held(running.blocks["a"], first)
    assert not running.failed.are_held(running.blocks["c"], stranger)
    assert running.step(a=3 * BLOCK, b=BLOCK, c=3) == set()
    assert running.failed.are_held(running.blocks["b"], sharer), "nobody has confirmed that step"
    running.step()
    assert not running.failed.are_held(running.blocks["b"], sharer)


def test_the_next_one_computes_them_when_the_first_is_gone() -> None:
    running = Running()
    running.failed.add(running.add("a", [1, 2, 3], computed=BLOCK), 1, [1, 2, 3])
    sharer = running.add("b", [1, 2, 3], computed=2 * BLOCK)
    last = running.add("c", [1, 2, 3], computed=2 * BLOCK)
    del running.states["a"]
    running.blocks["a"] = []
    assert running.step(b=BLOCK, c=BLOCK) == {2, 3}
    sharer.request.num_computed_tokens = BLOCK  # the engine has heard of it
    assert not running.failed.are_held([1, 2, 3], sharer)
    assert running.failed.are_held([1, 2, 3], last)
    assert running.step(b=2 * BLOCK, c=BLOCK) == set()
    running.step()
    assert not running.failed.are_held([1, 2, 3], last)


def test_the_next_one_goes_on_where_the_first_stops_in_a_step() -> None:
    running = Running()
    running.failed.add(running.add("a", [1, 2, 3, 4], computed=BLOCK), 1, [1, 2, 3, 4])
    running.add("b", [1, 2, 3, 4, 5], computed=4 * BLOCK)
    assert running.step(a=BLOCK, b=BLOCK) == {3, 4}


def test_what_nobody_shares_is_forgotten_with_its_request() -> None:
    running = Running()
    running.failed.add(running.add("a", [1, 2], computed=BLOCK), 1, [1, 2])
    del running.states["a"]
    running.step()
    late = running.add("b", [1, 2], computed=2 * BLOCK)
    assert not running.failed.are_held([1, 2], late)


def test_a_preempted_request_has_left_them() -> None:
    running = Running()
    running.failed.add(running.add("a", [1, 2], computed=BLOCK), 1, [1, 2])
    running.add("b", [1, 2, 3], computed=2 * BLOCK)
    running.blocks["a"] = []
    running.states["a"].request.num_computed_tokens = 0
    assert running.step(b=BLOCK) == {2}


def test_the_index_takes_blocks_with_all_that_stand_on_them() -> None:
    index = BlockIndex(blocks_per_page=2, is_cached=lambda _: True)
    space = (base_of("index"),)
    index.note(space, [b"a", b"b", b"c", b"d"], [bytes(64)], start=0, end=4)
    index.note(space, [b"a", b"x"], [bytes(32)], start=0, end=2)
    assert index.take_blocks([b"b", b"unknown"]) == {b"b", b"c", b"d", b"unknown"}
    assert len(index) == 2
    assert index.take_blocks([b"a"]) == {b"a", b"x"}
    assert len(index) == 0
