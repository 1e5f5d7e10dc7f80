"""The version boards of all ranks read as one: a version counts when every rank says it."""

from __future__ import annotations

from collections.abc import Sequence

from inference_worker.connectors.vllm.governed import BoardReading
from inference_worker.connectors.vllm.version_board import VersionBoard


class RankBoards:
    """Conforms to governed.VersionBoard. `handles`: (pid, descriptor) of each rank's board; raises StrataError.

    How often a version was set may differ between ranks: a call that reached only some of them was made again.
    """

    def __init__(self, handles: Sequence[tuple[int, int]]) -> None:
        self._boards = [VersionBoard.open(pid, descriptor) for pid, descriptor in handles]

    def read(self) -> BoardReading | None:
        """What all ranks say, and how often they said something; None while they disagree, or one is being written."""
        number, version = 0, ""
        for rank, board in enumerate(self._boards):
            reading = board.read()
            if reading is None or (rank and (reading[1] or "") != version):
                return None
            number, version = number + reading[0], reading[1] or ""
        return BoardReading(number, version)
