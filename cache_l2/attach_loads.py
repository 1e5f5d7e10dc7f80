"""Loads that a worker asks its sidecar for: what is asked, how the answer is checked, and those that nobody waits for."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import NamedTuple

from cache_l2.attach_calls import Call
from cache_l2.attach_channel import AttachChannel, ConnectionBroken, DeadlinePassed
from cache_l2.attach_messages import (
    CancelLoad,
    ChainToLoad,
    Failed,
    Load,
    LoadedPages,
    SidecarMessage,
)
from kv_types.errors import ProtocolError
from kv_types.ids import KEY_BYTES, PageKey
from kv_types.loading import ComputeCost
from kv_types.outcomes import MissReason

_GRACE_PART = 0.1
_GRACE_S_MIN = 0.01
_REASONS = frozenset(MissReason)


class Wanted(NamedTuple):
    """Pages of one chain that L2 may lack: `keys` (n × 32 bytes) follow `parent`, None: they begin the chain."""

    namespace_number: int
    parent: PageKey | None
    keys: bytes


def load_message(
    rows: Sequence[Wanted], *, deadline_s: float, group: bool, compute: ComputeCost | None = None
) -> Load:
    """Return the request for these rows."""
    chains = (ChainToLoad(namespace_number=number, parent=parent, keys=keys) for number, parent, keys in rows)
    return Load(tuple(chains), math.floor(max(0.0, deadline_s) * 1000), group, compute)


def with_grace(deadline_s: float) -> float:
    """How long to wait for the answer to a load of so many seconds: it comes when they are over, and takes its way."""
    return deadline_s + max(_GRACE_PART * deadline_s, _GRACE_S_MIN)


def loaded_pages(reply: SidecarMessage, asked: Load) -> LoadedPages:
    """Return the answer. Raises ProtocolError for one that answers something else."""
    if not isinstance(reply, LoadedPages) or len(reply.rows) != len(asked.rows):
        raise ProtocolError(f"the sidecar answered a load of {len(asked.rows)} chains with {reply!r:.100}")
    for row, chain in zip(reply.rows, asked.rows, strict=True):
        pages = len(chain.keys) // KEY_BYTES
        if not row.from_l3 <= row.pages <= pages or row.reason not in _REASONS:
            raise ProtocolError(f"the sidecar answered a load of {pages} pages with {row}")
        if row.pages < pages and not row.reason:
            raise ProtocolError(f"the sidecar loaded {row.pages} of {pages} pages and says no reason")
    return reply


class LoadTicket:
    """A load that was asked for and is not waited for. Thread-safe."""

    def __init__(self, channel: AttachChannel, call: Call, message: Load) -> None:
        self._channel = channel
        self._call = call
        self._message = message

    def answer(self) -> LoadedPages | MissReason | None:
        """Return the answer, why there is none, or None while it has not come. Does not wait.

        Raises ProtocolError.
        """
        if self._call.reply is None:
            try:
                self._channel.poll()
            except ConnectionBroken:
                return MissReason.UNREACHABLE if self._call.reply is None else self.answer()
        reply = self._call.reply
        if reply is None:
            return None
        if isinstance(reply, Failed):
            return MissReason.OVERLOADED
        return loaded_pages(reply, self._message)

    def cancel(self) -> None:
        """Say that nobody wants it any more, without waiting; the answer comes soon, with what there is by then."""
        if self._call.reply is None:
            cancel_load(self._channel, self._call.request)


def cancel_load(channel: AttachChannel, request: int) -> None:
    """Say that nobody waits for a load any more, if that can be said at once: it ends by its deadline anyway."""
    with contextlib.suppress(DeadlinePassed, ConnectionBroken):
        channel.post(CancelLoad(request))
