"""The version boards of all ranks read as one: a version counts when every rank says it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from inference_worker.client import Client
from inference_worker.connectors.vllm.governed import BoardReading
from inference_worker.connectors.vllm.governed import VersionBoard as Board
from inference_worker.connectors.vllm.identity import WorkerIdentity
from inference_worker.connectors.vllm.running_weights import EngineWeights
from inference_worker.connectors.vllm.version_board import VersionBoard
from kv_types.errors import StrataError
from kv_types.namespace import Namespace

_log = logging.getLogger("stratakv.vllm")


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


def weights_of(ranks: Sequence[WorkerIdentity], client: Client, *, follow: bool) -> EngineWeights:
    """What the weights are called, and where it is heard that they are called otherwise."""
    base = ranks[0].base
    assert isinstance(base, Namespace), "only what has a name is learnt"
    boards = [rank.board for rank in ranks]
    board: Board | None = None
    if all(boards):
        try:
            board = RankBoards([handle for handle in boards if handle is not None])
        except StrataError as error:
            _log.warning("weights can't be renamed at a look-up, only a step later: %s", error)
    announced = (lambda: client.announced(base.model)) if follow else None
    loaded = base.weights.version or (base.weights.digest or b"").hex()
    return EngineWeights(loaded, board=board, announced=announced)
