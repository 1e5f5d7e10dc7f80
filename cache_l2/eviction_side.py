"""What a store tells its eviction policy, and asks of it: notes of look-ups, costs, what is cold, what was learned."""

from __future__ import annotations

from cache_l2._native import Arena
from cache_l2.arena_start import ArenaConfig
from kv_policy.eviction_choice import EvictionChoice
from kv_policy.losing_cost import LosingCosts
from kv_types.clock import Clock
from kv_types.errors import InvalidArgumentError

_NOTES_PER_TICK = 8192
"""Of look-ups, all clients together: a ms or two."""


class EvictionSide:
    """The part of an arena's store that is about the choice of what goes. Not thread-safe, as the store is not."""

    _arena: Arena
    _config: ArenaConfig
    _clock: Clock

    def read_notes(self) -> None:
        """Tell the eviction policy of look-ups that were noted, up to so many."""
        self._arena.read_notes(notes_max=_NOTES_PER_TICK, now_ns=self._clock.now_ns())

    @property
    def learns(self) -> bool:
        """Whether victims are chosen by what look-ups have shown."""
        return self._config.eviction_policy is EvictionChoice.LEARNED

    def export_policy(self) -> bytes:
        """What the eviction policy has learned of the workload, for the next life; nothing of the pages themselves."""
        return self._arena.export_policy()

    def import_policy(self, state: bytes) -> None:
        """Go on with what an earlier life has learned. Raises InvalidArgumentError, and changes nothing, when it is damaged."""
        try:
            self._arena.import_policy(state, now_ns=self._clock.now_ns())
        except ValueError as error:
            raise InvalidArgumentError(f"the state of the eviction policy: {error}") from error

    def set_elsewhere(self, instance: int, is_elsewhere: bool) -> None:
        """Say whether L3 holds the page that is an instance: then it costs less to lose. One that is gone costs nothing."""
        self._arena.set_elsewhere(instance, is_elsewhere)

    def set_losing_costs(self, costs: LosingCosts) -> None:
        """What it costs from now on to lose pages."""
        self._arena.set_losing_costs(elsewhere=costs.elsewhere, attention_pages=costs.attention_pages)

    def used_pages(self, *, begin: int, count: int) -> tuple[int, list[int]]:
        """Instances that were looked up since they were stored, among `count` entries from `begin` on, and where to go on.

        0: that was the end. What is found may be gone by now. Raises ValueError for a count beyond 65,536.
        """
        return self._arena.used_pages(begin=begin, count=count)

    def cold_used_pages(self, *, turn: int, count: int) -> list[int]:
        """At most so many instances that were looked up since they were stored and that are likely to be evicted soon.

        A bounded look at what is coldest now, at other pages with each `turn`. Raises ValueError for a count beyond 65,536.
        """
        return self._arena.cold_used_pages(turn=turn, count=count)
