"""What is stored of a request, and when: whole pages of confirmed KV, each once, one step after it was computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from inference_worker.connectors.vllm.asking import Asker
from inference_worker.connectors.vllm.plan import SaveJob
from inference_worker.connectors.vllm.requests import RequestState
from kv_types.ids import Stamp
from kv_types.limits import VLLM_SAVE_SHORTFALLS_MAX

BlocksOf = Callable[[str], Sequence[int]]
"""The engine's blocks of a request, from its first token on."""


class SavePlans:
    """Not thread-safe. Issues jobs and takes their ends; `counts` by what became of pages."""

    def __init__(
        self, asker: Asker, *, blocks_per_page: int, page_tokens: int, saves_generated: bool, ranks: int
    ) -> None:
        self._asker = asker
        self._blocks_per_page = blocks_per_page
        self._page_tokens = page_tokens
        self._saves_generated = saves_generated
        self._ranks = ranks
        self._number = 0
        self._jobs: dict[int, _Job] = {}
        self.counts: Counter[str] = Counter()

    @property
    def under_way(self) -> int:
        """Jobs that some rank has not told the end of."""
        return len(self._jobs)

    def plan(self, state: RequestState, stamp: Stamp, blocks_of: BlocksOf) -> SaveJob | None:
        """The pages of a request that are full by now and not stored, if there are any.

        What the node has already, by whomever, is not stored again. The caller has seen to it that the request may store.
        """
        chains, variant = state.chains, state.variant
        assert chains is not None, "only what has keys is stored"
        assert variant is not None, "only what has a name has keys"
        pages = self._full_pages(state)
        if pages > state.stored:
            chains.extend(state.request.all_token_ids)
            # Drafts behind a stop were accepted, and computed, though they are no tokens of the request.
            pages = min(pages, chains.pages)
        state.stored = min(state.stored, pages)  # fewer than before: the engine computes some of them anew
        if pages <= state.stored or state.save_shortfalls > VLLM_SAVE_SHORTFALLS_MAX:
            return None
        keys = chains.packed(pages)
        if not state.is_resident_known:
            # What the engine had of its own may be gone below, and a page is stored on its parent only.
            state.is_resident_known = True
            state.stored = self._resident(state, keys)
            if pages <= state.stored:
                self.counts["known"] += pages
                return None
        self._number += 1
        first = state.stored * self._blocks_per_page
        blocks = tuple(blocks_of(state.request_id)[first : pages * self._blocks_per_page])
        job = SaveJob(
            number=self._number, request_id=state.request_id, variant=variant, keys=keys, start=state.stored,
            block_ids=blocks, stamp=stamp, computed_from=state.computed_from, computed_from_ms=state.computed_from_ms,
        )  # fmt: skip
        state.jobs[job.number] = (state.stored, pages)
        self._jobs[job.number] = _Job(state)
        state.stored = pages
        return job

    def ended(self, number: int, pages: Sequence[int]) -> RequestState | None:
        """Ranks tell that a job is over, each with the pages that stand from its start; its request, if they were the last.

        Raises nothing for a job that nobody knows: it was issued for a request that is gone.
        """
        job = self._jobs.get(number)
        if job is None:
            return None
        job.told.extend(pages)
        if len(job.told) < self._ranks:
            return None
        del self._jobs[number]
        state = job.state
        start, end = state.jobs.pop(number)
        stands = min(job.told)
        self.counts["stored"] += stands
        if stands < end - start:
            self.counts["not_stored"] += end - start - stands
        if stands < end - start and job.interruptions == state.interruptions:
            state.save_shortfalls += 1
            # From here on again, once there is more to store; perhaps it is the page below that is gone.
            state.stored = min(state.stored, start + stands)
            state.is_resident_known = False
        return state

    def _full_pages(self, state: RequestState) -> int:
        tokens = state.confirmed_tokens
        if not self._saves_generated:
            tokens = min(tokens, state.request.num_prompt_tokens)
        return tokens // self._page_tokens

    def _resident(self, state: RequestState, keys: Sequence[bytes]) -> int:
        """Pages of the chain that all shards have."""
        pages, _ = self._asker.match_all(state.chains_by_namespace(keys))
        return pages


class _Job:
    """A job under way and what ranks have told of it."""

    __slots__ = ("interruptions", "state", "told")

    def __init__(self, state: RequestState) -> None:
        self.state = state
        self.interruptions = state.interruptions
        self.told: list[int] = []
