"""RedisLog: the fleet's log on a Redis or Valkey server, every verb one call of its script (rules R6 to R12)."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from redis.exceptions import NoScriptError

from cache_l3.address import RedisAddress, RedisServers
from cache_l3.connections import Command
from invalidation.log import (
    Appended,
    Boot,
    Directory,
    FenceState,
    InvalidationLog,
    LogLimits,
    LogStatistics,
    LogUnavailableError,
    Member,
    Renewal,
    checked_number,
)
from invalidation.records import LogEntry, LogRecord
from invalidation.redis import replies, requests
from invalidation.redis.connections import Line, Talk
from invalidation.redis.errors import unavailable
from invalidation.redis.facts import RedisFacts, facts_commands, read_facts
from invalidation.redis.primary import open_primary
from invalidation.redis.replies import Answer, MalformedReplyError, Refusal
from invalidation.redis.script import script_arguments, script_keys, script_text
from invalidation.turns import Turns, in_turns
from kv_types.clock import Clock
from kv_types.ids import INCARNATION_BYTES, LogIncarnation, Stamp
from kv_types.limits import LOG_BATCH_RECORDS_MAX, LOG_NAMESPACES_BATCH_MAX

_Result = TypeVar("_Result")

_TICK_MS = 150
"""A server looks at what waits in it ten times a second, when nothing else wakes it."""

_REFUSALS = {
    "members": "the fleet has as many members as it may have, and none of them is gone: the next `stratakv invalidate` "
    "gives up those that are silent, `stratakv members --forget ID` one that is known to be",
    "revisions": "the log has as many records as it can count; invalidate nothing more, and start a new incarnation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisLogSettings:
    """Where the log is and whose it is. `addresses` are servers any of which may be its primary, or those of a Cluster.

    `replicas` is the least k with which a new incarnation begins (rule R10). Tests make `limits` smaller.
    """

    addresses: Sequence[RedisAddress]
    fleet: str
    is_cluster: bool = False
    replicas: int = 0
    limits: LogLimits = field(default_factory=LogLimits)


class RedisLog(InvalidationLog):
    """One fleet's log. Renewals, fences, waiting and the rest have a connection each, so that none waits for another.

    Raises InvalidArgumentError on a bad fleet name or number of replicas.
    """

    def __init__(
        self, settings: RedisLogSettings, *, clock: Clock, random: Callable[[int], bytes] = os.urandom
    ) -> None:
        requests.replicas_arguments(settings.replicas)
        self._settings = settings
        self._random = random
        self._clock = clock
        self._keys = script_keys(settings.fleet)
        self._text = script_text()
        self._sha = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()
        self._replicas = settings.replicas
        servers = RedisServers(tuple(settings.addresses), is_cluster=settings.is_cluster)
        self._primary = open_primary(servers, key=self._keys[0])
        self._follow, self._fences, self._administer, self._wait = (
            Line(self._primary, clock) for _ in range(4)
        )
        self._counters: Counter[str] = Counter()

    @property
    def server(self) -> str:
        """The server that is taken for the primary now, for people."""
        return self._primary.label

    async def append(self, entry: LogEntry, *, request_id: bytes, deadline_ns: int) -> Appended:
        """See InvalidationLog."""
        rest = requests.append_arguments(entry, request_id=request_id)
        return await self._call(
            self._administer, "append", rest, replies.read_appended, deadline_ns=deadline_ns
        )

    async def renew(self, member: Member, *, number: int, deadline_ns: int) -> Renewal:
        """See InvalidationLog."""
        rest = requests.renew_arguments(member, number=number)

        def read(answer: Answer, confirmed: bool) -> Turns[Renewal]:
            return replies.read_renewal(
                answer,
                number=number,
                applied=member.applied.revision,
                digest=member.digest,
                confirmed=confirmed,
            )

        return await self._call_confirmed(self._follow, "renew", rest, read, deadline_ns=deadline_ns)

    async def boot(self, *, deadline_ns: int) -> Boot:
        """See InvalidationLog."""
        return await self._call(self._follow, "boot", [], replies.read_boot, deadline_ns=deadline_ns)

    async def fence(self, *, deadline_ns: int) -> FenceState:
        """See InvalidationLog."""

        def read(answer: Answer, confirmed: bool) -> Turns[FenceState]:
            return replies.read_fence(answer, confirmed=confirmed)

        return await self._call_confirmed(self._fences, "fence", [], read, deadline_ns=deadline_ns)

    async def fork(self, incarnation: LogIncarnation, *, deadline_ns: int) -> None:
        """See InvalidationLog."""
        rest = [requests.incarnation_text(incarnation)]
        await self._call(self._follow, "fork", rest, replies.read_nothing, deadline_ns=deadline_ns)

    async def settle(self, incarnation: LogIncarnation, *, deadline_ns: int) -> bool:
        """See InvalidationLog."""
        rest = [requests.incarnation_text(incarnation)]
        return await self._call(self._follow, "settle", rest, replies.read_flag, deadline_ns=deadline_ns)

    async def leave(self, member: bytes, *, number: int, drained: bool, deadline_ns: int) -> bool:
        """See InvalidationLog."""
        rest = requests.leave_arguments(member, number=number, drained=drained)
        return await self._call(self._administer, "leave", rest, replies.read_flag, deadline_ns=deadline_ns)

    async def set_replicas(self, replicas: int, *, deadline_ns: int) -> None:
        """See InvalidationLog. Raises LimitExceededError on more than REPLICAS_MAX."""
        rest = requests.replicas_arguments(replicas)
        await self._call(
            self._administer, "set_replicas", rest, replies.read_nothing, deadline_ns=deadline_ns
        )

    async def read(self, after: int, *, count: int, deadline_ns: int) -> tuple[Stamp, Sequence[LogRecord]]:
        """See InvalidationLog. At most LOG_BATCH_RECORDS_MAX records come at once."""
        rest = requests.read_arguments(after, count=min(count, LOG_BATCH_RECORDS_MAX))
        return await self._call(self._administer, "read", rest, replies.read_read, deadline_ns=deadline_ns)

    async def know(self, canonicals: Sequence[bytes], *, deadline_ns: int) -> Stamp:
        """See InvalidationLog."""
        rest = requests.know_arguments(canonicals)
        tip: Stamp | None = None
        for batch in list(_batches(rest)) or [[]]:
            told = await self._call(
                self._administer, "know", batch, replies.read_tip, deadline_ns=deadline_ns
            )
            tip = _same_incarnation(tip, told)
        assert tip is not None, "at least one call was made"
        return tip

    async def namespaces(self, *, deadline_ns: int) -> Directory:
        """See InvalidationLog. Which there are is read in one step, and then what they are."""
        tip, ids = await self._call(
            self._administer, "namespaces", [], replies.read_namespace_ids, deadline_ns=deadline_ns
        )
        found: list[bytes] = []
        for batch in _batches(ids):
            later, canonicals = await self._call(
                self._administer, "namespaces", batch, replies.read_namespaces, deadline_ns=deadline_ns
            )
            _same_incarnation(tip, later)
            found += canonicals
        return Directory(tip, found)

    async def woken(self, after: int, *, digest: bytes, deadline_ns: int) -> Sequence[LogRecord] | None:
        """See InvalidationLog. A quiet wait ends by what the server says, which comes up to _TICK_MS late."""
        count = str(self._settings.limits.batch)
        checked_number(after, "a revision")

        async def wait(talk: Talk) -> Sequence[LogRecord] | None:
            wait_ms = str(max(1, talk.remaining_ms - _TICK_MS))  # 0 would be without end
            stream = ("STREAMS", self._keys[1], f"{after}-0")
            (reply,) = await talk.send([("XREAD", "COUNT", count, "BLOCK", wait_ms, *stream)])
            if isinstance(reply, Exception):
                raise unavailable(reply, server=talk.address.label)
            return await in_turns(replies.read_news(reply, after=after, digest=digest))

        late_ns = deadline_ns + _TICK_MS * 1_000_000
        return await self._counted("woken", self._wait.exchange(wait, deadline_ns=late_ns))

    async def statistics(self, *, deadline_ns: int) -> LogStatistics:
        """See InvalidationLog."""
        sizes = await self._call(
            self._administer, "statistics", [], replies.read_sizes, deadline_ns=deadline_ns
        )
        return LogStatistics(
            records=sizes["records"],
            tombstones=sizes["tombstones"],
            floors=sizes["floors"],
            members=sizes["members"],
            requests=sizes["requests"],
            counters=dict(self._counters),
        )

    async def check(self, *, deadline_ns: int) -> RedisFacts:
        """Look at the server before it is relied on: what it is, and what of it the log can't live with.

        Raises LogUnavailableError. What is wrong with the server itself is in the facts.
        """

        async def look(talk: Talk) -> RedisFacts:
            told = await talk.send(facts_commands(self._keys[1]))

            def judge() -> RedisFacts:
                return read_facts(
                    told,
                    server=talk.address.label,
                    replicas=self._replicas,
                    candidates=1 if self._settings.is_cluster else len(self._settings.addresses),
                    promised=self._settings.replicas if self._settings.is_cluster else None,
                )

            facts = judge()
            if facts.errors:  # a server that is none the log can live with may not even run its script
                return facts
            await self._ask(talk, "statistics", [])
            return judge()  # k is known by now

        return await self._counted("check", self._administer.exchange(look, deadline_ns=deadline_ns))

    async def close(self) -> None:
        """See InvalidationLog."""
        for line in (self._follow, self._fences, self._administer, self._wait):
            await line.close()
        await self._primary.close()

    async def _call(
        self,
        line: Line,
        verb: str,
        rest: Sequence[bytes],
        read: Callable[[Answer], Turns[_Result]],
        *,
        deadline_ns: int,
    ) -> _Result:
        async def talk(talk: Talk) -> _Result | Refusal:
            answer, _ = await self._ask(talk, verb, rest)
            return answer if isinstance(answer, Refusal) else await in_turns(read(answer))

        return self._granted(await self._counted(verb, line.exchange(talk, deadline_ns=deadline_ns)))

    async def _call_confirmed(
        self,
        line: Line,
        verb: str,
        rest: Sequence[bytes],
        read: Callable[[Answer, bool], Turns[_Result]],
        *,
        deadline_ns: int,
    ) -> _Result:
        """Call, and ask on the same connection whether the replicas have it too (rule R10).

        Confirmed by as many as the log says are configured, and never when that number has just changed.
        """

        async def talk(talk: Talk) -> _Result | Refusal:
            replicas = self._replicas
            answer, waited = await self._ask(talk, verb, rest, replicas=replicas)
            if isinstance(answer, Refusal):
                return answer
            acknowledged = waited[0] if waited else 0
            if isinstance(acknowledged, Exception):
                raise unavailable(acknowledged, server=talk.address.label)
            if not isinstance(acknowledged, int):
                raise MalformedReplyError(f"WAIT was answered with {type(acknowledged).__name__}")
            confirmed = answer.replicas == replicas and acknowledged >= replicas
            if verb == "renew":
                self._primary.answered(talk.address, confirmed=confirmed)
            return await in_turns(read(answer, confirmed))

        return self._granted(await self._counted(verb, line.exchange(talk, deadline_ns=deadline_ns)))

    async def _ask(
        self, talk: Talk, verb: str, rest: Sequence[bytes], *, replicas: int = 0
    ) -> tuple[Answer | Refusal, Sequence[object]]:
        """Call the script, and WAIT for so many replicas in the same breath; return its answer and WAIT's reply."""
        arguments = script_arguments(
            verb,
            *rest,
            incarnation=self._random(INCARNATION_BYTES),
            replicas=max(self._settings.replicas, self._replicas),
            limits=self._settings.limits,
        )
        call: Command = (str(len(self._keys)), *self._keys, *arguments)

        def wait() -> list[Command]:
            wait_ms = max(1, talk.remaining_ms - _answer_ms(talk.remaining_ms))  # 0 would be without end
            return [("WAIT", str(replicas), str(wait_ms))] if replicas else []

        # The first call of a connection brings the text along: who asks for an unknown script waits for nothing.
        by_name = not talk.is_first
        first: Command = ("EVALSHA", self._sha, *call) if by_name else ("EVAL", self._text, *call)
        reply, *waited = await talk.send([first, *wait()])
        if isinstance(reply, NoScriptError):
            reply, *waited = await talk.send([("EVAL", self._text, *call), *wait()])
        if isinstance(reply, Exception):
            raise unavailable(reply, server=talk.address.label)
        answer = replies.read_answer(reply)
        if isinstance(answer, Answer):
            self._replicas = answer.replicas
        return answer, waited

    async def _counted(self, verb: str, call: Awaitable[_Result]) -> _Result:
        self._counters[verb] += 1
        try:
            return await call
        except LogUnavailableError as error:
            self._counters[error.reason] += 1
            raise

    def _granted(self, result: _Result | Refusal) -> _Result:
        if isinstance(result, Refusal):
            self._counters[result.word] += 1
            raise LogUnavailableError(result.word, _REFUSALS.get(result.word, "the log's script refused"))
        return result


def _answer_ms(remaining_ms: int) -> int:
    """Time kept for the answer to come in, so that a wait for replicas ends before its caller gives up."""
    return min(_TICK_MS, remaining_ms // 2)


def _same_incarnation(before: Stamp | None, tip: Stamp) -> Stamp:
    if before is not None and before.incarnation != tip.incarnation:
        raise LogUnavailableError("incarnation", "the log began anew between two calls that belong together")
    return tip


def _batches(items: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """So many at a time that no call keeps the server, or a message, for long."""
    for first in range(0, len(items), LOG_NAMESPACES_BATCH_MAX):
        yield items[first : first + LOG_NAMESPACES_BATCH_MAX]
