"""The version board: what one process writes, another reads, whole and at the cost of a look."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from inference_worker.connectors.vllm.rank_boards import RankBoards
from inference_worker.connectors.vllm.version_board import VersionBoard
from kv_types.errors import ClosedError, ConfigError, InvalidArgumentError, ProtocolError
from tests.support.descriptors import descriptors_since, open_descriptors

_READER = """
import sys
from inference_worker.connectors.vllm.version_board import VersionBoard
board = VersionBoard.open(int(sys.argv[1]), int(sys.argv[2]))
for _ in sys.stdin:
    print(board.read(), flush=True)
"""


def test_another_process_reads_what_is_written() -> None:
    board = VersionBoard.create()
    before = board.is_watched
    pid, descriptor = board.handle
    with subprocess.Popen(
        [sys.executable, "-c", _READER, str(pid), str(descriptor)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as reader:  # fmt: skip
        assert reader.stdin is not None
        assert reader.stdout is not None

        def read() -> str:
            assert reader.stdin is not None
            assert reader.stdout is not None
            reader.stdin.write("\n")
            reader.stdin.flush()
            return reader.stdout.readline().strip()

        assert read() == "(0, None)"
        assert (before, board.is_watched) == (False, True)
        assert board.publish("v1") == 1
        assert read() == "(1, 'v1')"
        assert board.publish("größer") == 2
        assert read() == read() == "(2, 'größer')"
        board.close()
        assert read() == "(2, 'größer')"
        reader.stdin.close()


def test_no_reading_is_a_mix_of_two() -> None:
    board = VersionBoard.create()
    reader = VersionBoard.open(*board.handle)
    ended = threading.Event()

    def write() -> None:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            number = board.read()
            assert number is not None
            board.publish(f"{number[0] + 1}" * (1 + number[0] % 7))
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    last = 0
    while not ended.is_set():
        reading = reader.read()
        if reading is not None and reading[0]:
            number, version = reading
            assert version == str(number) * (1 + (number - 1) % 7)
            assert number >= last
            last = number
    writer.join()
    assert last > 10
    reader.close()
    board.close()


def test_a_version_that_is_half_written_is_none() -> None:
    board = VersionBoard.create()
    board.publish("v1")
    reader = VersionBoard.open(*board.handle)
    board._words[1] += 1
    assert reader.read() is None
    board._words[1] += 1
    assert reader.read() == (1, "v1")
    board._memory[64:66] = b"v9"  # bytes that nobody has checked
    board._words[1] += 2
    assert reader.read() is None
    reader.close()
    board.close()


def test_a_forked_child_does_not_write() -> None:
    board = VersionBoard.create()
    child = os.fork()
    if not child:
        try:
            board.publish("child")
        except ClosedError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert board.read() == (0, None)
    board.close()


def test_what_is_no_board_is_said() -> None:
    with pytest.raises(ConfigError, match="one PID namespace"):
        VersionBoard.open(os.getpid(), 987_654)
    other = os.memfd_create("other")
    with pytest.raises(ProtocolError, match="0 bytes"):
        VersionBoard.open(os.getpid(), other)
    os.ftruncate(other, 4096)
    with pytest.raises(ProtocolError, match="first bytes"):
        VersionBoard.open(os.getpid(), other)
    os.close(other)


def test_arguments_and_ends() -> None:
    before = open_descriptors()
    board = VersionBoard.create()
    reader = VersionBoard.open(*board.handle)
    with pytest.raises(InvalidArgumentError):
        board.publish("")
    with pytest.raises(InvalidArgumentError):
        board.publish("x" * 2000)
    assert board.read() == (0, None)
    with pytest.raises(ClosedError):
        _ = reader.handle
    with pytest.raises(ClosedError):
        reader.publish("v")
    board.publish("x" * 1024)
    assert reader.read() == (1, "x" * 1024)
    assert descriptors_since(before)
    board.close()
    board.close()
    reader.close()
    assert not descriptors_since(before)
    for closed in (board, reader):
        with pytest.raises(ClosedError):
            closed.read()
    with pytest.raises(ClosedError):
        _ = board.handle


def test_a_look_costs_microseconds() -> None:
    board = VersionBoard.create()
    reader = VersionBoard.open(*board.handle)
    board.publish("v1")
    best = float("inf")
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(100):
            reader.read()
        best = min(best, (time.perf_counter() - began) / 100)
    assert best < 20e-6
    reader.close()
    board.close()


def test_ranks_agree_by_the_version_however_often_it_was_set() -> None:
    boards = [VersionBoard.create() for _ in range(2)]
    ranks = RankBoards([board.handle for board in boards])
    assert ranks.read() == (0, "")
    boards[0].publish("v2")
    assert ranks.read() is None
    boards[0].publish("v2")  # a call that failed in the other rank is made again
    boards[1].publish("v2")
    assert ranks.read() == (3, "v2")
    for board in boards:
        board.close()
