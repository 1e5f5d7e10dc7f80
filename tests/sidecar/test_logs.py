"""Log lines: JSON for machines, text for people, levels kept, libraries' warnings among them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from kv_types.clock import ManualClock
from kv_types.limits import LOG_REPORT_S_MIN, LOG_TOLD_APART_MAX
from sidecar.logs import SeldomLogger, configure, logger


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    handlers, level = logging.getLogger().handlers, logging.getLogger().level
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers = handlers
    logging.getLogger().setLevel(level)


def test_a_logger_made_before_the_configuration_obeys_it(capsys: pytest.CaptureFixture[str]) -> None:
    early = logger("early")
    configure(level="warning", log_format="json")
    early.info("hidden")
    early.warning("shown", number=7)
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["component"], entry["level"], entry["number"]) == (
        "shown",
        "early",
        "warning",
        7,
    )
    assert entry["timestamp"].endswith("Z")


def test_errors_bring_their_traceback_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure(level="info", log_format="json")
    try:
        int("what happened")
    except ValueError:
        logger("x").exception("it failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: invalid literal" in json.loads(line)["exception"]


def test_console_lines_are_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure(level="info", log_format="console")
    logger("x").info("hello", n=1)
    text = capsys.readouterr().err
    assert "hello" in text
    assert not text.startswith("{")


def test_without_a_terminal_auto_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure(level="info", log_format="auto")
    logger("x").info("hello")
    assert json.loads(capsys.readouterr().err)["event"] == "hello"


def test_warnings_of_libraries_come_as_our_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure(level="info", log_format="json")
    logging.getLogger("asyncio").info("chatter")
    logging.getLogger("asyncio").warning("took %d s", 3)
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["component"], entry["event"], entry["level"]) == ("asyncio", "took 3 s", "warning")


def test_what_each_process_does_is_said_of_each_once_in_a_while() -> None:
    clock = ManualClock()
    with capture_logs() as lines:
        seldom = SeldomLogger(logger("x"), clock)
        for pid in (1, 2, 1, 1):
            seldom.info("came", about=pid, pid=pid)
        clock.advance(int(LOG_REPORT_S_MIN * 1e9))
        seldom.info("came", about=1, pid=1)
        for pid in range(3, LOG_TOLD_APART_MAX + 3):
            seldom.info("came", about=pid, pid=pid)
        assert len(seldom._due_ns) == LOG_TOLD_APART_MAX
    told = [(line["pid"], line["same_before"]) for line in lines]
    assert told[:4] == [(1, 0), (2, 0), (1, 2), (3, 0)]
    assert len(told) == LOG_TOLD_APART_MAX + 3


def test_what_anybody_may_cause_is_said_now_and_then_with_how_often_it_was_kept_back() -> None:
    clock = ManualClock()
    with capture_logs() as lines:
        seldom = SeldomLogger(logger("x"), clock)
        for number in range(5):
            seldom.warning("garbage", number=number)
        seldom.error("bug", exc_info=ValueError("once"))
        clock.advance(int(LOG_REPORT_S_MIN * 1e9) - 1)
        seldom.warning("garbage", number=5)
        clock.advance(1)
        seldom.warning("garbage", number=6)
        seldom.warning("garbage", number=7)
    told = [(line["log_level"], line["event"], line.get("number"), line["same_before"]) for line in lines]
    assert told == [("warning", "garbage", 0, 0), ("error", "bug", None, 0), ("warning", "garbage", 6, 5)]
