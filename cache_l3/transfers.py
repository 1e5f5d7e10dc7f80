"""Transfer: the future of a data path, which is done only when the bytes have stopped; and who waits for which."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

Cancel = Callable[[int], None]


class Transfer(asyncio.Future[Any]):
    """Completes when the data path says so, and not before: cancelling it, or a task that awaits it, only asks for the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, cancel: Cancel) -> None:
        super().__init__(loop=loop)
        self.number = 0
        """Under which the data path knows it; 0: not yet."""
        self._cancel = cancel
        self._is_abandoned = False

    def cancel(self, msg: Any | None = None) -> bool:
        """Ask for the end; CancelledError comes with it. False when it has ended already."""
        del msg
        if self.done():
            return False
        if not self._is_abandoned:
            self._is_abandoned = True
            self._cancel(self.number)
        return True

    def complete(self, value: object) -> None:
        """It has ended, with this or (if it is an exception) because of this."""
        if self.done():
            return
        if self._is_abandoned:
            super().cancel()
        elif isinstance(value, BaseException):
            self.set_exception(value)
        else:
            self.set_result(value)
