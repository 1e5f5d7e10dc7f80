"""LogServer: the server that the log is on: judged when it is joined, looked at now and then, asked for its replicas."""

from __future__ import annotations

from invalidation.redis.facts import RedisFacts
from invalidation.redis.log import RedisLog
from kv_types.clock import Clock
from kv_types.errors import InvalidArgumentError
from sidecar.logs import logger

_log = logger("invalidation log")


class LogServer:
    """Judges whichever server the log is on now. Every verb raises LogUnavailableError when that does not answer."""

    def __init__(self, log: RedisLog, *, clock: Clock, call_ns: int) -> None:
        self._log = log
        self._clock = clock
        self._call_ns = call_ns
        self._facts: RedisFacts | None = None

    @property
    def label(self) -> str:
        """The server that is in use, or is tried, now: one of the candidates, or of a Cluster's primaries."""
        return self._log.server

    @property
    def errors(self) -> tuple[str, ...]:
        """What the log can't live with, as it was found last."""
        return () if self._facts is None else self._facts.errors

    @property
    def warnings(self) -> tuple[str, ...]:
        """What will hurt, as it was found last."""
        return () if self._facts is None else self._facts.warnings

    async def admit(self) -> None:
        """Judge a server that is to be joined; raises ConfigError with the remedy when it must not be."""
        await self.look()
        assert self._facts is not None, "it was just looked at"
        self._facts.demand()

    async def look(self) -> None:
        """Look at it, and say what has changed.

        What is wrong with a server that is followed already ends nothing: whatever it loses of the log, the next call
        notices (rule R6), and then it is judged again, by `admit`.
        """
        before, self._facts = self._facts, await self._check()
        facts = self._facts
        if before is not None and _told_of(before) == _told_of(facts):
            return
        _log.info(
            "the invalidation log's server", server=facts.server, software=facts.software, version=facts.version,
            eviction=facts.policy, persistence=facts.persistence, replicas=facts.connected_replicas,
        )  # fmt: skip
        told = () if before is None or before.server != facts.server else (*before.errors, *before.warnings)
        for error in facts.errors:
            if error not in told:
                _log.error(
                    "the invalidation log's server must not be joined", server=facts.server, error=error
                )
        for warning in facts.warnings:
            if warning not in told:
                _log.warning("the invalidation log's server", server=facts.server, warning=warning)

    async def admit_replicas(self, replicas: int) -> None:
        """Raise InvalidArgumentError, with the remedy, unless so many replicas could answer now."""
        facts = await self._check()
        if replicas > facts.synced_replicas:
            raise InvalidArgumentError(
                f"{replicas} replicas would have to answer, and {facts.synced_replicas} of {facts.server} are in sync: nothing "
                "would be fresh and no fence reached until they are. Attach them first, or insist with --force"
            )

    async def _check(self) -> RedisFacts:
        return await self._log.check(deadline_ns=self._clock.now_ns() + self._call_ns)


def _told_of(facts: RedisFacts) -> tuple[object, ...]:
    return facts.server, facts.policy, facts.persistence, facts.errors, facts.warnings
