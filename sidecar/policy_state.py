"""What the eviction policy has learned, kept in a file of the runtime directory so that it outlives a restart of the sidecar."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from cache_l2.store import ArenaStore
from kv_types.errors import InvalidArgumentError
from kv_types.limits import POLICY_STATE_BYTES_MAX
from sidecar.kept_files import in_thread_to_its_end, read_whole, write_whole
from sidecar.logs import logger

STATE_NAME = "eviction-policy.state"
_SAVE_S = 60.0

_log = logger("policy")


class PolicyState:
    """One file, whole or not there; one that can't be used costs what was learned, and never a start.

    Where the plain policy is chosen it is left alone: what it holds may be wanted again.
    """

    def __init__(self, store: ArenaStore, directory: Path) -> None:
        self._store = store
        self._path = directory / STATE_NAME
        self._kept_requests = 0
        self._told = ""

    def load(self) -> None:
        """Hand the policy what the sidecar before has left."""
        if not self._store.learns:
            return
        try:
            state = read_whole(self._path, bytes_max=POLICY_STATE_BYTES_MAX)
            if state is None:
                return
            self._store.import_policy(state)
        except (OSError, InvalidArgumentError) as error:
            _log.warning("the eviction policy begins anew", path=str(self._path), reason=str(error))
        else:
            self._kept_requests = self._store.statistics()["policy_requests"]
            _log.info("the eviction policy goes on", path=str(self._path), state_bytes=len(state))

    async def keep(self) -> None:
        """Save once a minute, off the event loop; what is lost when the sidecar is killed is a minute's learning."""
        while True:
            await asyncio.sleep(_SAVE_S)
            if (state := self._exported()) is not None:
                await in_thread_to_its_end(partial(self._write, state))

    def save(self) -> None:
        """Save now, with the last look-ups: the sidecar ends."""
        self._store.read_notes()
        if (state := self._exported()) is not None:
            self._write(state)

    def _exported(self) -> bytes | None:
        """What there is to keep, if anything was learned since it was kept last."""
        requests = self._store.statistics()["policy_requests"]
        if not self._store.learns or requests == self._kept_requests:
            return None
        self._kept_requests = requests
        return self._store.export_policy()

    def _write(self, state: bytes) -> None:
        try:
            write_whole(self._path, state)
        except OSError as error:
            if str(error) != self._told:  # each minute the same
                _log.warning("what was learned can't be kept", path=str(self._path), reason=str(error))
            self._told = str(error)
