"""What following the log writes to the daemon's own log: each change once, a trouble that goes on now and then."""

from __future__ import annotations

from invalidation.follower import Phase
from invalidation.log import LogUnavailableError
from kv_types.clock import Clock
from kv_types.ids import LogIncarnation
from kv_types.limits import LOG_REPORT_S_MIN
from sidecar.log.applier import LogApplier
from sidecar.logs import logger

_SECOND_NS = 1_000_000_000

_log = logger("invalidation log")


class LogReports:
    """Remembers what was said."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._trouble = ""
        self._said_ns = 0
        self._kept_back = 0
        self._incarnation: LogIncarnation | None = None

    def trouble(self, reason: str, detail: str) -> None:
        """The log can't be followed now. Said at once when the reason is new, else every LOG_REPORT_S_MIN."""
        now_ns = self._clock.now_ns()
        if reason == self._trouble and now_ns - self._said_ns < LOG_REPORT_S_MIN * _SECOND_NS:
            self._kept_back += 1
            return
        _log.warning(
            "the invalidation log does not confirm: no hits once freshness is over",
            reason=reason, detail=detail, same_before=self._kept_back,
        )  # fmt: skip
        self._trouble, self._said_ns, self._kept_back = reason, now_ns, 0

    def phase(self, phase: Phase, applier: LogApplier) -> None:
        """Where following stands after a step."""
        if phase is Phase.UNCONFIRMED:
            self.trouble(str(phase), "the log's configured replicas do not answer")
        position = applier.position
        if position is not None and position.incarnation != self._incarnation:
            self._incarnation = position.incarnation
            _log.info(
                "joined the invalidation log: every page from before is void",
                incarnation=position.incarnation.hex(), revision=position.revision, pages_hidden=applier.pages_hidden,
            )  # fmt: skip
        if phase is Phase.FOLLOWING and self._trouble:
            _log.info("the invalidation log confirms again", after=self._trouble)
            self._trouble = ""

    def forking(self, incarnation: LogIncarnation) -> None:
        """The log contradicts what was applied."""
        _log.warning(
            "the invalidation log contradicts what it said before; a new incarnation is started",
            incarnation=incarnation.hex(),
        )

    def goodbye_failed(self, error: LogUnavailableError) -> None:
        """The log does not know that this sidecar has ended."""
        _log.warning(
            "could not say goodbye to the invalidation log: fences wait this member's time out",
            reason=str(error),
        )
