"""Run as a program: forbids itself the calls that place memory, as containers do, then makes an arena bound to a node."""

from __future__ import annotations

import ctypes
import platform
import struct

from cache_l2.arena_start import ArenaConfig, create_arena
from kv_types.ids import new_life_id

_CALLS = {"x86_64": (238, 239), "aarch64": (237, 236)}
"""set_mempolicy and get_mempolicy."""
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2


def forbid() -> None:
    """Have these calls answer EPERM from now on."""
    first, second = _CALLS[platform.machine()]
    steps = [
        (_LOAD, 0, 0, 0),
        (_EQUAL, 2, 0, first),
        (_EQUAL, 1, 0, second),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _EPERM),
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    wanted = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(program)))
    library = ctypes.CDLL(None, use_errno=True)
    for call in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _FILTER, wanted, 0, 0)):
        if library.prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), "no filter")


def main() -> None:
    """Say what became of it."""
    forbid()
    arena, memory = create_arena(ArenaConfig(arena_bytes=4 << 20, numa_node="0"), new_life_id())
    print(f"made: {memory.placement!r}, {memory.placement_note}")
    arena.close()


if __name__ == "__main__":
    main()
