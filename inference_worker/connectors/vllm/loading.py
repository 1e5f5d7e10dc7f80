"""Pages that are being loaded before a step's pass: who wants them too waits for one step, and shares the blocks."""

from __future__ import annotations

from inference_worker.connectors.vllm.plan import LoadJob
from kv_types.ids import KEY_BYTES


class PagesLoading:
    """By key in the first rank. Until its load has ended well, nobody else finds a request's blocks."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, str] = {}
        self._by_request: dict[str, list[bytes]] = {}

    def begin(self, job: LoadJob) -> None:
        """A request loads."""
        packed = job.keys[0]
        keys = [packed[at : at + KEY_BYTES] for at in range(job.start * KEY_BYTES, len(packed), KEY_BYTES)]
        keys = [key for key in keys if key not in self._by_key]
        self._by_key |= dict.fromkeys(keys, job.request_id)
        self._by_request[job.request_id] = keys

    def end(self, request_id: str) -> None:
        """Its load is over, or nobody waits for it any more."""
        for key in self._by_request.pop(request_id, ()):
            del self._by_key[key]

    def has(self, key: bytes) -> bool:
        """Whether this page is being loaded."""
        return key in self._by_key
