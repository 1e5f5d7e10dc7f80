"""The process behind an attach connection, by its pidfd: whether it has ended, which a broken connection doesn't say."""

from __future__ import annotations

import os
import select
import socket
import struct

_CREDENTIALS = struct.Struct("3i")
_HANGUP = select.POLLHUP | select.POLLERR | select.POLLRDHUP


class AttachPeer:
    """Of one connection that has been answered. Where the process can't be named, it is never seen to end."""

    def __init__(self, connection: socket.socket) -> None:
        self._pidfd = -1
        pid, _, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if pid <= 0:
            return
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            return
        poll = select.poll()
        poll.register(connection, select.POLLRDHUP)
        if any(flags & _HANGUP for _, flags in poll.poll(0)):
            self.close()  # it may have ended before, and the number be another's by now

    def has_ended(self, *, within_s: float) -> bool:
        """Whether the process ends in that time; its connections break a moment before."""
        if self._pidfd < 0:
            return False
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return any(flags & select.POLLIN for _, flags in poll.poll(max(0, round(within_s * 1000))))

    def close(self) -> None:
        """Give the descriptor back; nothing is seen any more."""
        descriptor, self._pidfd = self._pidfd, -1
        if descriptor >= 0:
            os.close(descriptor)
