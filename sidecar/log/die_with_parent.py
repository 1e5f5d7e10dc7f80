"""A program that becomes another one which is killed when its parent ends, however the parent ends. For `python -I -S`.

Usage: die_with_parent.py PARENT_PID PROGRAM ARGUMENT…

It stands between fork and exec as a program of its own, since Python code between the two may deadlock in a process with
threads. PR_SET_PDEATHSIG survives the exec. It is armed late if the parent has ended already: so its pid is compared
afterwards. SIGKILL, which ends a program that is stopped too; files that it would have removed are left to its next start.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Arm the signal, check that it is not too late, and become the program; raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(arguments[0]):
        return
    os.execv(arguments[1], arguments[1:])  # noqa: S606 - the very purpose


if __name__ == "__main__":
    main(sys.argv[1:])
