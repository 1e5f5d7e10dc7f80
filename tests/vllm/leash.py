"""A program whose whole process group is killed when whoever holds the other end of its standard input is gone.

Usage: leash.py PROGRAM ARGUMENT…, as the first process of a group. SIGTERM is handed on. Unlike a death signal of the
parent it also reaches what the program has started.
"""

import os
import signal
import subprocess
import sys
import threading


def main(arguments: list[str]) -> int:
    """Run the program to its end; returns its exit code."""
    child = subprocess.Popen(arguments, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    threading.Thread(target=_kill_at_end_of_input, daemon=True).start()
    return child.wait()


def _kill_at_end_of_input() -> None:
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
