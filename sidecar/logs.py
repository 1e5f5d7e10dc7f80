"""Logging by structlog to standard error: console lines for people, JSON lines for machines."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from typing import Any, Literal

import structlog

from kv_types.clock import Clock
from kv_types.limits import LOG_REPORT_S_MIN, LOG_TOLD_APART_MAX

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "console", "json"]


def configure(*, level: Level, log_format: Format) -> None:
    """Set up structlog for this process. "auto" is console on a terminal, else JSON."""
    to_terminal = sys.stderr.isatty()
    as_json = log_format == "json" or (log_format == "auto" and not to_terminal)
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=to_terminal)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([structlog.processors.format_exc_info] if as_json else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    _bridge(level)


def logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return the logger of one component; it takes up the configuration when it is first used."""
    lazy: structlog.typing.FilteringBoundLogger = structlog.get_logger(component=name)
    return lazy


class SeldomLogger:
    """Logs what somebody else may cause at any pace: the same event at once, then no oftener than every LOG_REPORT_S_MIN.

    `same_before` tells how many were kept back in between. At most LOG_TOLD_APART_MAX are told apart.
    """

    def __init__(self, log: structlog.typing.FilteringBoundLogger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._due_ns: dict[str, int] = {}
        self._kept_back: Counter[str] = Counter()

    def info(self, event: str, *, about: int, **fields: Any) -> None:
        """Log what is said of each process, or whatever `about` is, by itself; keep it back for one that does it again."""
        told = f"{event} {about}"
        if self._is_due(told):
            self._log.info(event, **fields, same_before=self._kept_back.pop(told, 0))

    def warning(self, event: str, **fields: Any) -> None:
        """Log a warning, or keep it back."""
        if self._is_due(event):
            self._log.warning(event, **fields, same_before=self._kept_back.pop(event, 0))

    def error(self, event: str, *, exc_info: BaseException | Literal[True], **fields: Any) -> None:
        """Log an error with its traceback, or keep it back. `exc_info` True: the one that is being handled."""
        if self._is_due(event):
            self._log.error(event, exc_info=exc_info, **fields, same_before=self._kept_back.pop(event, 0))

    def _is_due(self, event: str) -> bool:
        now_ns = self._clock.now_ns()
        is_due = now_ns >= self._due_ns.get(event, 0)
        if is_due:
            if event not in self._due_ns and len(self._due_ns) >= LOG_TOLD_APART_MAX:
                oldest = next(iter(self._due_ns))
                del self._due_ns[oldest]
                self._kept_back.pop(oldest, None)
            self._due_ns[event] = now_ns + int(LOG_REPORT_S_MIN * 1e9)
        else:
            self._kept_back[event] += 1
        return is_due


class _ToStructlog(logging.Handler):
    """Hands records of the standard library's logging (asyncio, grpc) on to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().bind(component=record.name).log(
            record.levelno, record.getMessage(), exc_info=record.exc_info or None
        )


def _bridge(level: Level) -> None:
    root = logging.getLogger()
    root.handlers = [_ToStructlog()]
    # Libraries talk much at their lower levels; what they warn of is what an operator wants.
    root.setLevel(max(logging.WARNING, getattr(logging, level.upper())))
