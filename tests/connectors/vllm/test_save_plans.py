"""What is stored of a request and when, against a real sidecar."""

from __future__ import annotations

import pytest

from inference_worker.client import Client
from inference_worker.connectors.vllm.asking import Asker
from inference_worker.connectors.vllm.requests import RequestState
from inference_worker.connectors.vllm.save_plans import SavePlans
from kv_types.limits import VLLM_SAVE_SHORTFALLS_MAX
from tests.connectors.vllm.scheduling import ARequest, Scheduling, base_of

TOKENS = 8
BLOCKS = list(range(100, 200))


def _plans(client: Client, *, ranks: int = 1, saves_generated: bool = True) -> SavePlans:
    return SavePlans(
        Asker(client), blocks_per_page=2, page_tokens=TOKENS, saves_generated=saves_generated, ranks=ranks
    )


@pytest.fixture
def scheduling(client: Client, request: pytest.FixtureRequest) -> Scheduling:
    return Scheduling(client, [base_of(request.node.name)], page_tokens=TOKENS)


def _computed(state: RequestState, tokens: int, *, in_flight: int = 0) -> None:
    assert isinstance(state.request, ARequest)
    state.request.num_computed_tokens, state.request.num_in_flight_tokens = tokens, in_flight


def _plan(plans: SavePlans, scheduling: Scheduling, state: RequestState):  # type: ignore[no-untyped-def]
    stamp = scheduling.client.stamp()
    assert stamp is not None
    return plans.plan(state, stamp, lambda _: BLOCKS)


def test_only_whole_pages_of_confirmed_tokens_are_stored(scheduling: Scheduling) -> None:
    plans, state = _plans(scheduling.client), scheduling.state(list(range(3 * TOKENS + 2)))
    _computed(state, 3 * TOKENS + 2, in_flight=TOKENS)
    job = _plan(plans, scheduling, state)
    assert (job.start, job.pages, list(job.block_ids)) == (0, 2, BLOCKS[:4])
    assert _plan(plans, scheduling, state) is None
    _computed(state, 3 * TOKENS + 2)
    later = _plan(plans, scheduling, state)
    assert (later.start, later.pages, list(later.block_ids)) == (2, 3, BLOCKS[4:6])


def test_what_the_node_has_is_not_stored_again(scheduling: Scheduling) -> None:
    plans, state = _plans(scheduling.client), scheduling.state(list(range(3 * TOKENS)))
    scheduling.put(state, 2)
    _computed(state, 3 * TOKENS)
    job = _plan(plans, scheduling, state)
    assert (job.start, job.pages) == (2, 3)
    whole = scheduling.state(list(range(2 * TOKENS)))
    _computed(whole, 2 * TOKENS)
    assert _plan(plans, scheduling, whole) is None
    assert plans.counts["known"] == 2


def test_c14_generated_tokens_are_stored_unless_that_is_turned_off(scheduling: Scheduling) -> None:
    for saves_generated, pages in ((True, 2), (False, 1)):
        plans = _plans(scheduling.client, saves_generated=saves_generated)
        state = scheduling.state(list(range(2 * TOKENS)))
        state.request.num_prompt_tokens = TOKENS + 3
        _computed(state, 2 * TOKENS)
        assert _plan(plans, scheduling, state).pages == pages


def test_a_job_is_over_when_every_rank_has_said_so(scheduling: Scheduling) -> None:
    plans, state = _plans(scheduling.client, ranks=2), scheduling.state(list(range(2 * TOKENS)))
    _computed(state, 2 * TOKENS)
    job = _plan(plans, scheduling, state)
    assert plans.ended(job.number, [2]) is None
    assert state.jobs
    assert plans.ended(job.number, [2]) is state
    assert not state.jobs
    assert plans.under_way == 0
    assert plans.ended(job.number, [2]) is None


def test_what_could_not_be_stored_is_offered_again_a_few_times(scheduling: Scheduling) -> None:
    plans, state = _plans(scheduling.client), scheduling.state(list(range(2 * TOKENS)))
    _computed(state, 2 * TOKENS)
    for _ in range(VLLM_SAVE_SHORTFALLS_MAX + 1):
        job = _plan(plans, scheduling, state)
        assert job.start == 0
        plans.ended(job.number, [0])
    assert _plan(plans, scheduling, state) is None
    assert plans.counts["not_stored"] == 2 * (VLLM_SAVE_SHORTFALLS_MAX + 1)


def test_pages_that_are_computed_anew_are_stored_anew(scheduling: Scheduling) -> None:
    plans, state = _plans(scheduling.client), scheduling.state(list(range(3 * TOKENS)))
    _computed(state, 3 * TOKENS)
    assert _plan(plans, scheduling, state).pages == 3
    _computed(state, TOKENS)  # the engine found blocks of it wrong
    assert _plan(plans, scheduling, state) is None
    _computed(state, 3 * TOKENS)
    job = _plan(plans, scheduling, state)
    assert (job.start, job.pages) == (1, 3)
