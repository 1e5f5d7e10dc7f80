"""The version boards of all ranks read as one: a version counts when every rank says it."""

from __future__ import annotations

from collections.abc import Sequence

from inference_worker.connectors.vllm.governed import BoardReading
from inference_worker.connectors.vllm.version_board import VersionBoard


class RankBoards:
    """Conforms to governed.VersionBoard. `handles`: (pid, descriptor) of each rank's board; raises StrataError."""

    def __init__(self, handles: Sequence[tuple[int, int]]) -> None:
        self._boards = [VersionBoard.open(pid, descriptor) for pid, descriptor in handles]

    def read(self) -> BoardReading | None:
        """What all ranks say; None while they disagree, or one is being written."""
        readings = {board.read() for board in self._boards}
        if len(readings) != 1:
            return None
        reading = readings.pop()
        return None if reading is None else BoardReading(reading[0], reading[1] or "")
