"""The scheduler's look-ups against a real sidecar: what is found, what is loaded, and what is counted."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from inference_worker.client import Client
from inference_worker.connectors.vllm.look_ups import LookUps
from inference_worker.connectors.vllm.plan import IN_PLACE
from inference_worker.connectors.vllm.requests import RequestState
from kv_types.loading import LoadChoice, LoadDecision
from kv_types.outcomes import MissReason
from tests.connectors.vllm.scheduling import Scheduling, base_of

TOKENS = 8  # a page: two blocks of four


def _look_ups(client: Client) -> LookUps:
    return LookUps(client, blocks_per_page=2, block_tokens=4, deadline_s=1.0, is_async=False)


@pytest.fixture
def scheduling(client: Client, request: pytest.FixtureRequest) -> Scheduling:
    return Scheduling(client, [base_of(request.node.name)], page_tokens=TOKENS)


def _absent(statistics: Mapping[str, int | str]) -> int:
    return int(statistics.get("missed_pages_absent", 0))


def _found(look_ups: LookUps, state: RequestState, local_tokens: int = 0) -> int:
    look_ups.arrive(state)
    found = look_ups.match(state, local_tokens)
    assert found is not None
    return found


@pytest.mark.parametrize("tokens", [3 * TOKENS - 1, 3 * TOKENS, 3 * TOKENS + 1])
def test_c13_one_token_at_least_is_left_to_compute(scheduling: Scheduling, tokens: int) -> None:
    state = scheduling.state(list(range(tokens)))
    scheduling.put(scheduling.state(list(range(3 * TOKENS))), 3)
    assert _found(_look_ups(scheduling.client), state) == (tokens - 1) // TOKENS * TOKENS


@pytest.mark.parametrize("local_blocks", range(7))
def test_c08_a_hit_of_the_engine_goes_on_in_ours_at_whole_blocks(
    scheduling: Scheduling, local_blocks: int
) -> None:
    look_ups, state = _look_ups(scheduling.client), scheduling.state(list(range(3 * TOKENS + 1)))
    scheduling.put(state, 3)
    found = _found(look_ups, state, local_blocks * 4)
    assert found == 3 * TOKENS - local_blocks * 4
    blocks = list(range(100, 107))
    job = look_ups.admit(state, found, blocks)
    if not found:
        assert job is None
        return
    assert job is not None
    assert job.start == local_blocks // 2
    assert job.pages == 3
    # a block that the engine has is shared with others: nobody writes it
    wanted = [IN_PLACE if index < local_blocks else blocks[index] for index in range(job.start * 2, 6)]
    assert list(job.block_ids) == wanted
    state.release_leases()


def test_a_local_hit_beyond_ours_loads_nothing(scheduling: Scheduling) -> None:
    look_ups, state = _look_ups(scheduling.client), scheduling.state(list(range(3 * TOKENS + 1)))
    scheduling.put(state, 1)
    assert _found(look_ups, state, 2 * TOKENS) == 0


def test_c29_a_look_up_is_counted_once_when_it_is_admitted(scheduling: Scheduling) -> None:
    look_ups, state = _look_ups(scheduling.client), scheduling.state(list(range(5 * TOKENS + 1)))
    scheduling.put(state, 3)
    before = scheduling.client.statistics()
    for _ in range(3):
        found = _found(look_ups, state, TOKENS)
    assert scheduling.client.statistics()["requested_pages"] == before["requested_pages"]
    assert look_ups.admit(state, found, list(range(20))) is not None
    state.release_leases()
    now = scheduling.client.statistics()
    grown = {name: int(now[name]) - int(before[name]) for name in ("requested_pages", "l1_pages", "l2_pages")}
    assert grown == {"requested_pages": 5, "l1_pages": 1, "l2_pages": 2}
    assert _absent(now) - _absent(before) == 2
    assert now["leases_held"] == before["leases_held"]


def test_a_miss_is_counted_too(scheduling: Scheduling) -> None:
    look_ups, state = _look_ups(scheduling.client), scheduling.state(list(range(900, 900 + 2 * TOKENS + 1)))
    before = _absent(scheduling.client.statistics())
    assert _found(look_ups, state) == 0
    assert look_ups.admit(state, 0, list(range(6))) is None
    assert _absent(scheduling.client.statistics()) == before + 2
    assert state.found.ended_by is MissReason.ABSENT


def test_pages_are_pinned_from_admission_until_they_are_loaded(scheduling: Scheduling) -> None:
    look_ups, state = _look_ups(scheduling.client), scheduling.state(list(range(2 * TOKENS + 1)))
    scheduling.put(state, 2)
    assert look_ups.admit(state, _found(look_ups, state), list(range(6))) is not None
    assert scheduling.client.statistics()["leases_held"] == 1
    state.release_leases()
    assert scheduling.client.statistics()["leases_held"] == 0


def test_all_shards_decide_how_much_is_loaded(client: Client) -> None:
    scheduling = Scheduling(client, [base_of("one"), base_of("two")], page_tokens=TOKENS)
    state = scheduling.state(list(range(4 * TOKENS + 1)))
    scheduling.put(state, 4, shard=0)
    scheduling.put(state, 3, shard=1)
    look_ups = _look_ups(client)
    found = _found(look_ups, state)
    assert found == 3 * TOKENS
    job = look_ups.admit(state, found, list(range(9)))
    assert job is not None
    assert len(job.keys) == 2
    assert job.keys[0] != job.keys[1]
    assert len(state.leases) == 2
    state.release_leases()


def test_who_needs_every_position_finds_nothing(scheduling: Scheduling) -> None:
    state = scheduling.state(list(range(2 * TOKENS + 1)))
    scheduling.put(state, 2)
    state.reads_external = False
    assert _found(_look_ups(scheduling.client), state) == 0


class _Over:
    """A prefetch that is over, and what was chosen."""

    is_over = True

    def __init__(self, load: LoadDecision | None) -> None:
        self.load = load

    def cancel(self) -> None:
        """Nothing is under way."""


@pytest.mark.parametrize(
    "choice", [LoadChoice.COMPUTE, LoadChoice.TRIAL, LoadChoice.STOPPED, LoadChoice.LOAD]
)
def test_what_was_left_to_be_computed_is_counted_as_that(scheduling: Scheduling, choice: LoadChoice) -> None:
    look_ups, state = _look_ups(scheduling.client), scheduling.state(list(range(3 * TOKENS + 1)))
    scheduling.put(state, 1)
    look_ups.arrive(state)
    state.prefetches = [_Over(None), _Over(LoadDecision(choice, 2, 0, 1.0, 0.5))]
    found = look_ups.match(state, 0)
    assert found == TOKENS
    before = scheduling.client.statistics()
    assert look_ups.admit(state, found, list(range(100, 107))) is not None
    state.release_leases()
    after = scheduling.client.statistics()
    name = "missed_pages_absent" if choice is LoadChoice.LOAD else "missed_pages_compute_is_faster"
    assert state.found.ended_by.name.lower() in name
    assert int(after.get(name, 0)) - int(before.get(name, 0)) == 2
    assert int(after["requested_pages"]) - int(before["requested_pages"]) == 3
