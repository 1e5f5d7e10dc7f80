"""Logging by structlog to standard error: console lines for people, JSON lines for machines."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

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
