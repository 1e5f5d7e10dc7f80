"""Load or recompute: how far a prefix is loaded from a slower tier, so that having all of it takes least time. Pure, no clock.

Loading and computing do not overlap, and only a prefix can be loaded, so that loading the first j of n pages takes

    T(j) = latency + j · bytes / bandwidth + C(n) − C(j)   (j > 0),   T(0) = C(n),   C(j) = Σ first + i · growth.

Later pages cost no less to compute than earlier ones (attention), so T is concave from its first page on, and the best j is
0 or n, or what comes until the caller's deadline. What can be wrong is the estimate: a load that turns out slower is looked at
again and given up; a tier of which nothing is known brings a few pages first; one that was judged slow is tried again, for a
bounded part of the time that computing takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kv_policy.transfer_estimates import TransferEstimate
from kv_types.limits import L3_LOAD_S_MAX
from kv_types.loading import ComputeCost, LoadChoice, LoadDecision

_HYSTERESIS = 0.05
"""The other choice must be better by this part than the one that was made last."""
_TRIAL_SHARE = 0.02
"""The part of the time that requests compute which may be lost by trying a tier that was judged slow."""
_TRIAL_BYTES = 256 * 1024
"""What is loaded at first of a tier of which nothing is known: more than its latency tells."""
_TRIAL_GROWTH = 4
_ALLOWANCE_KEPT = 0.99
"""What a request leaves of an allowance that is more than itself could have earned."""
_DEBT = 3.0
_MARGIN_IN_DEBT = 0.8
"""Once trials and loads that were given up have cost so many typical requests, estimates are trusted less: a load must
be expected to take this part of what computing does."""
_TYPICAL_GAIN = 0.05
"""What one request changes of the typical time that computing takes."""
_PATIENCE = 2.0
_PATIENCE_S = 0.005
"""A load is looked at again when it has taken so many times as long as expected, and so much more."""


@dataclass(frozen=True, slots=True)
class Step:
    """What to do next with a load: bring its first `upto` pages, and look again then, or after `look_s` at the latest."""

    upto: int
    look_s: float
    is_last: bool
    """Whether nothing is to be decided any more once they have come."""


class LoadOrRecompute:
    """What is known of one tier, and the choices made by it."""

    def __init__(self) -> None:
        self.estimate = TransferEstimate()
        self._prefers_load = True
        self._allowance_s = 0.0
        self._typical_s = 0.0
        self._trial_bytes = _TRIAL_BYTES
        self._compute_s_a_byte = 0.0
        self._counts: Counter[str] = Counter()

    def rules_out(self, pages: int, page_bytes: int, cost: ComputeCost | None) -> LoadDecision | None:
        """Decide that the tier is not even asked for `pages` pages, since loading would not pay if it had them all.

        It would not for fewer either: their computing costs less a page, and their loading no less.
        """
        if cost is None or not pages or not self.estimate.is_known:
            return None
        size = pages, page_bytes, cost
        if self._loads(*size) or self._may_try_larger(*size) or self._may_try(*size):
            return None
        decision = self.decision(LoadChoice.COMPUTE, pages, 0, page_bytes, cost)
        self.computed(decision)
        return decision

    def course(
        self, pages: int, page_bytes: int, cost: ComputeCost | None, *, left_s: float, now_s: float
    ) -> LoadCourse:
        """Begin with `pages` pages that the tier has, of `page_bytes` each (in all shards), wanted within `left_s`."""
        if cost is not None:
            now, before = cost.seconds(pages) / (pages * page_bytes), self._compute_s_a_byte
            self._compute_s_a_byte = now if not before else before + _TYPICAL_GAIN * (now - before)
        return LoadCourse(self, pages, page_bytes, cost, left_s=left_s, now_s=now_s)

    def compute_s(self, size: int) -> float:
        """What workers of late said that pages of so many bytes take to compute; 0: none said anything."""
        return self._compute_s_a_byte * size

    def decision(
        self, choice: LoadChoice, pages: int, chosen: int, page_bytes: int, cost: ComputeCost | None
    ) -> LoadDecision:
        """Say what is chosen, with the estimates of now."""
        compute_s = cost.seconds(pages) if cost is not None else 0.0
        return LoadDecision(choice, pages, chosen, self._seconds(pages * page_bytes), compute_s)

    def statistics(self, now_s: float) -> Mapping[str, float]:
        """Decisions by choice, and the estimate, by name."""
        chosen = {f"chose_{choice.name.lower()}": float(self._counts[choice.name]) for choice in LoadChoice}
        return {**chosen, **self.estimate.statistics(now_s)}

    # --- for courses ---

    def ended(self, decision: LoadDecision) -> None:
        """Count what was chosen in the end."""
        self._counts[decision.choice.name] += 1

    def computed(self, decision: LoadDecision) -> None:
        """Computing was chosen: a part of its time may be spent on finding out whether that is still right."""
        self.ended(decision)
        compute_s = min(
            decision.compute_s, L3_LOAD_S_MAX
        )  # one worker's word weighs only so much with the others
        self._typical_s += _TYPICAL_GAIN * (compute_s - self._typical_s)
        self._allowance_s = min(
            self._allowance_s + _TRIAL_SHARE * compute_s,
            max(self._allowance_s * _ALLOWANCE_KEPT, compute_s),  # no burst of trials after a long time
        )

    def lost(self, seconds: float) -> None:
        """So much time was lost by loading what was not worth it: it is made up for before anything is tried again."""
        self._allowance_s -= max(0.0, seconds)

    def first_pages(self, pages: int, page_bytes: int, cost: ComputeCost) -> tuple[LoadChoice, int]:
        """Choose for `pages` pages that the tier has: what, and how many of them now."""
        if not self.estimate.is_known:
            return LoadChoice.TRIAL, min(pages, max(1, _TRIAL_BYTES // page_bytes))
        if self._loads(pages, page_bytes, cost):
            self._prefers_load = True
            return LoadChoice.LOAD, pages
        self._prefers_load = False
        if self._may_try_larger(pages, page_bytes, cost):
            return LoadChoice.TRIAL, self._next_size(pages, page_bytes)
        if not self._may_try(pages, page_bytes, cost):
            return LoadChoice.COMPUTE, 0
        tried = self._trial_pages(pages, page_bytes)
        # Each trial is larger, so that at some time the very size that is wanted was tried; then small ones do again.
        self._trial_bytes = _TRIAL_GROWTH * tried * page_bytes if tried < pages else _TRIAL_BYTES
        return LoadChoice.TRIAL, tried

    def more_pages(self, pages: int, page_bytes: int, cost: ComputeCost, *, came: int) -> int:
        """How many more of a load are to be loaded next, behind its first `came` pages."""
        rest = pages - came
        compute_s = cost.seconds(rest, start=came)
        if self.estimate.seconds(rest * page_bytes) <= compute_s:
            return rest
        if self.estimate.seconds_at_best(rest * page_bytes) <= compute_s:
            return self._next_size(rest, page_bytes)
        return 0

    def _may_try_larger(self, pages: int, page_bytes: int, cost: ComputeCost) -> bool:
        """Whether it is open still how the tier's time grows with the size, and loading might pay."""
        if self._allowance_s < 0.0 or cost.seconds(pages) < self._typical_s:
            return False
        return self.estimate.seconds_at_best(pages * page_bytes) <= cost.seconds(pages)

    def _next_size(self, pages: int, page_bytes: int) -> int:
        """So much more than what was measured that one or two such steps tell latency and bandwidth apart."""
        return min(pages, max(1, _TRIAL_GROWTH * self.estimate.largest // page_bytes))

    def _loads(self, pages: int, page_bytes: int, cost: ComputeCost) -> bool:
        margin = 1.0 + _HYSTERESIS if self._prefers_load else 1.0 - _HYSTERESIS
        if self._allowance_s < -_DEBT * self._typical_s:
            margin = _MARGIN_IN_DEBT
        return self.estimate.seconds(pages * page_bytes) <= cost.seconds(pages) * margin

    def _may_try(self, pages: int, page_bytes: int, cost: ComputeCost) -> bool:
        """Whether a trial costs no more than may be spent; it is given up when all could be computed meanwhile."""
        compute_s = cost.seconds(pages)
        if compute_s < self._typical_s:  # it would be given up too soon to tell anything
            return False
        tried = self._trial_pages(pages, page_bytes)
        lost_s = self.estimate.seconds(tried * page_bytes) - cost.seconds(tried)
        return min(lost_s, compute_s) <= self._allowance_s

    def _trial_pages(self, pages: int, page_bytes: int) -> int:
        return min(pages, max(1, self._trial_bytes // page_bytes))

    def _seconds(self, size: int) -> float:
        return self.estimate.seconds(size) if self.estimate.is_known else 0.0


class LoadCourse:
    """One load, from what is known when it begins to its end. `look` is asked first, and whenever its last step says."""

    def __init__(
        self,
        tier: LoadOrRecompute,
        pages: int,
        page_bytes: int,
        cost: ComputeCost | None,
        *,
        left_s: float,
        now_s: float,
    ) -> None:
        self._tier = tier
        self._pages = pages
        self._page_bytes = page_bytes
        self._cost = cost
        self._until_s = now_s + left_s
        self._began_s = now_s
        self._from, self._since_s = 0, now_s
        self._step: Step | None = None
        self._is_trial = False
        self.decision = tier.decision(LoadChoice.UNPRICED, pages, pages, page_bytes, cost)

    def look(self, came: int, now_s: float, *, is_measured: bool = True) -> Step | None:
        """Say what to do now that the first `came` pages are there; None: no more than that is to be loaded.

        Without `is_measured` the time since the last look says nothing of the tier: somebody else had begun with it.
        """
        step = self._step
        if step is None:
            return self._begin(now_s)
        if is_measured:
            self._measure(step, came, now_s)
        if came >= step.upto and step.is_last:
            self._end(self.decision.choice)
            return None
        return self._again(step, came, now_s)

    def stopped(self, came: int, now_s: float, *, is_late: bool) -> None:
        """The load has ended otherwise. `is_late`: since time ran out, which says that the tier is slow."""
        if self._step is None:
            return
        if is_late:
            self._measure(self._step, came, now_s)
        if self._cost is not None:
            self._tier.lost(now_s - self._began_s - self._cost.seconds(came))
        self._end(self.decision.choice)

    def _begin(self, now_s: float) -> Step | None:
        if self._cost is None:
            return self._steps(self._pages, now_s, is_last=True)
        choice, upto = self._tier.first_pages(self._pages, self._page_bytes, self._cost)
        self.decision = self._tier.decision(choice, self._pages, upto, self._page_bytes, self._cost)
        self._is_trial = choice is LoadChoice.TRIAL
        if choice is LoadChoice.COMPUTE:
            self._tier.computed(self.decision)
            return None
        return self._steps(upto, now_s, is_last=False)

    def _again(self, step: Step, came: int, now_s: float) -> Step | None:
        cost = self._cost
        if cost is None:
            return self._steps(self._pages, now_s, is_last=True)
        rest = self._pages - came
        if not rest:
            self._end(LoadChoice.LOAD)
            return None
        lost_s = now_s - self._began_s - cost.seconds(came)
        # Whatever is hoped for, no more than twice the time of computing is taken.
        may_go_on = lost_s < cost.seconds(self._pages)
        more = self._tier.more_pages(self._pages, self._page_bytes, cost, came=came) if may_go_on else 0
        if more:
            if came >= step.upto:
                self._from, self._since_s = came, now_s
            choice = LoadChoice.LOAD if more == rest else LoadChoice.TRIAL
            self._is_trial = self._is_trial and choice is LoadChoice.TRIAL
            self.decision = self._tier.decision(choice, self._pages, came + more, self._page_bytes, cost)
            return self._steps(came + more, now_s, is_last=False)
        self._tier.lost(lost_s)
        self._end(LoadChoice.TRIAL if self._is_trial else LoadChoice.STOPPED, came)
        return None

    def _steps(self, upto: int, now_s: float, *, is_last: bool) -> Step:
        expected_s = self._tier.estimate.seconds((upto - self._from) * self._page_bytes)
        look_s = _PATIENCE * expected_s + _PATIENCE_S
        if self._cost is not None:
            compute_s = self._cost.seconds(self._pages)
            look_s = min(look_s, compute_s) if self._tier.estimate.is_known else compute_s
        self._step = Step(upto, min(look_s, max(0.0, self._until_s - now_s)), is_last)
        return self._step

    def _measure(self, step: Step, came: int, now_s: float) -> None:
        took_s = now_s - self._since_s
        if took_s <= 0.0:
            return
        if came >= step.upto:
            self._tier.estimate.observe((came - self._from) * self._page_bytes, took_s, now_s=now_s)
        else:
            size = max(1, came + 1 - self._from) * self._page_bytes
            self._tier.estimate.observe_at_least(size, took_s, now_s=now_s)

    def _end(self, choice: LoadChoice, chosen: int | None = None) -> None:
        done = self.decision
        if chosen is not None or choice is not done.choice:
            done = LoadDecision(
                choice,
                done.pages,
                done.pages_chosen if chosen is None else chosen,
                done.load_s,
                done.compute_s,
            )
        self.decision, self._step = done, None
        self._tier.ended(done)
