"""Questions: one small command about each of many keys, sent together to each server that has some of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from cache_l3.data_path import DataPath, Late, Overloaded, Reply, ServerError, TransferError
from cache_l3.router import Aim, Router, Trouble, TroubleError, is_refusal
from kv_types.clock import Clock
from kv_types.errors import ClosedError
from kv_types.limits import L3_ATTEMPTS_MAX, L3_PROBE_RECORDS_MAX

Command = Callable[[bytes], Sequence[bytes]]
"""What is asked about a key."""
_Batch = tuple[Aim, list[int]]
"""Places of keys that one question is about."""


class Questions:
    """Asks by way of a router. What keeps one key from an answer is no other key's trouble."""

    def __init__(self, router: Router, *, path: DataPath, clock: Clock) -> None:
        self._router = router
        self._path = path
        self._clock = clock

    async def ask(
        self, keys: Sequence[bytes], command: Command, *, deadline_ns: int
    ) -> list[Reply | Trouble]:
        """One result a key, in order. A command is one that may be sent twice."""
        results: list[Reply | Trouble] = [Trouble.UNAVAILABLE] * len(keys)
        waiting: dict[int, Aim | None] = dict.fromkeys(range(len(keys)))
        for attempt in range(L3_ATTEMPTS_MAX):
            batches = await self._batches(keys, waiting, results, deadline_ns=deadline_ns)
            ends = await asyncio.gather(
                *(self._send(batch, keys, command, deadline_ns=deadline_ns) for batch in batches)
            )
            waiting = {}
            for batch, end in zip(batches, ends, strict=True):
                waiting |= self._settle(batch, end, results)
            if not waiting:
                break
            if None in waiting.values():
                try:
                    await self._router.pause(attempt, deadline_ns=deadline_ns)
                except TroubleError as error:
                    results = [
                        error.trouble if place in waiting else one for place, one in enumerate(results)
                    ]
                    break
        return results

    async def _batches(
        self,
        keys: Sequence[bytes],
        waiting: Mapping[int, Aim | None],
        results: list[Reply | Trouble],
        *,
        deadline_ns: int,
    ) -> list[_Batch]:
        """Keys that wait for an answer by the server that has them, L3_PROBE_RECORDS_MAX in one question at most."""
        found: dict[tuple[int, bool], list[_Batch]] = {}
        for place, known in waiting.items():
            try:
                aim = known or await self._router.aim(keys[place], deadline_ns=deadline_ns)
            except TroubleError as error:
                results[place] = error.trouble
                continue
            batches = found.setdefault((id(aim.shard), aim.asking), [])
            if not batches or len(batches[-1][1]) >= L3_PROBE_RECORDS_MAX:
                batches.append((aim, []))
            batches[-1][1].append(place)
        return [batch for batches in found.values() for batch in batches]

    async def _send(
        self, batch: _Batch, keys: Sequence[bytes], command: Command, *, deadline_ns: int
    ) -> list[Reply] | Trouble | None:
        """Ask one server. A trouble is that of each key; None: it may be asked again."""
        aim, places = batch
        shard, began_ns = aim.shard, self._clock.now_ns()
        commands = [command(keys[place]) for place in places]
        try:
            replies = await self._path.ask(shard.number, commands, deadline_ns=deadline_ns, asking=aim.asking)
        except ClosedError:
            return Trouble.CLOSED
        except Late as error:
            shard.late(f"{shard.address.label}: {error}", began_ns=began_ns)
            return Trouble.LATE
        except Overloaded:
            return Trouble.OVERLOADED
        except TransferError:  # its connection is lost, or the shard is down: they say why
            return None
        shard.answered()
        for asked, reply in zip(commands, replies, strict=True):
            if not isinstance(reply, ServerError):
                shard.carried_out(asked[0].decode())
            elif is_refusal(reply):
                shard.refused(asked[0].decode())
        return replies

    def _settle(
        self, batch: _Batch, end: list[Reply] | Trouble | None, results: list[Reply | Trouble]
    ) -> dict[int, Aim | None]:
        """Enter what is known now; returns the keys that are to be asked about again, and where if that was said."""
        aim, places = batch
        again: dict[int, Aim | None] = {}
        if isinstance(end, Trouble):
            for place in places:
                results[place] = end
            return again
        for place, reply in zip(places, end or [None] * len(places), strict=True):
            if end is None:
                again[place] = None
            elif not isinstance(reply, ServerError):
                results[place] = reply
            else:
                try:
                    again[place] = self._router.react(aim, reply)
                except TroubleError as error:
                    results[place] = error.trouble
        if None in again.values() and not self._router.may_retry(aim.shard):
            again = {place: target for place, target in again.items() if target is not None}
        return again
