"""The scheduler's uncounted look-ups: in shared memory at once, and never long where a sidecar would have to answer first."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from inference_worker.client import Client
from inference_worker.namespaces import RegisteredNamespace
from kv_types.ids import KEY_BYTES
from kv_types.limits import VLLM_SIDECAR_LEFT_ALONE_S
from kv_types.outcomes import Hit, LookUpOutcome, Miss, MissReason


class Asker:
    """Not thread-safe. A sidecar that let one call wait in vain is asked nothing for a while: each would stop the engine."""

    def __init__(self, client: Client, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._now_s = now_s
        self._alone_until_s = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether the sidecar is left alone."""
        return self._now_s() < self._alone_until_s

    def match(self, namespace: RegisteredNamespace, packed: bytes) -> LookUpOutcome:
        """Client.match; a namespace that the sidecar would have to be told of first finds nothing while it is left alone."""
        if self.is_waiting and namespace.pages is namespace.absent:
            return Miss(MissReason.DEADLINE)
        outcome = self._client.match(namespace, packed)
        if isinstance(outcome, Miss) and outcome.reason is MissReason.DEADLINE:
            self.hung()
        return outcome

    def match_all(self, chains: Mapping[RegisteredNamespace, bytes]) -> tuple[int, MissReason]:
        """Pages that every shard has of one prompt, and why there are no more."""
        fewest, reason = min(len(packed) // KEY_BYTES for packed in chains.values()), MissReason.NONE
        for namespace, packed in chains.items():
            pages, ended_by = _pages(self.match(namespace, packed))
            if pages < fewest:
                fewest, reason = pages, ended_by
            if not fewest:
                break
        return fewest, reason

    def hung(self) -> None:
        """A call has waited in vain."""
        self._alone_until_s = self._now_s() + VLLM_SIDECAR_LEFT_ALONE_S


def _pages(outcome: LookUpOutcome) -> tuple[int, MissReason]:
    match outcome:
        case Hit(pages=pages, ended_by=reason):
            return pages, reason
        case Miss(reason=reason):
            return 0, reason
        case _:
            return 0, MissReason.ABSENT
