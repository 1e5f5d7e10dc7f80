"""MemberNote: what a member tells the fleet about itself beside its position: for people, and for whoever fences."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeGuard

from kv_types.limits import MEMBER_NOTE_BYTES_MAX

_UINT64_MAX = (1 << 64) - 1
_HELD_TOLD_MAX = MEMBER_NOTE_BYTES_MAX // len('"pid 1: …",')
"""More of those that hold a member back are not tried to fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberNote:
    """One member's note.

    A fence reads two things: `lease_ns`, the member's freshness lease, and `engines_keep`, how many clients of it have a
    cache of their own that goes on without the sidecar (rule R18): a member with such clients is never given up for gone.
    All else is for people; `held_back_by` names what its acknowledgement waits for, or draining.
    """

    lease_ns: int
    engines_keep: int
    host: str = ""
    pid: int = 0
    version: str = ""
    held_back_by: tuple[str, ...] = ()

    def encode(self) -> str:
        """One JSON object of at most MEMBER_NOTE_BYTES_MAX bytes; what is for people is cut to fit."""
        told: dict[str, object] = {"lease_ns": self.lease_ns, "engines_keep": self.engines_keep}
        optional = {"pid": self.pid, "host": self.host, "version": self.version}
        optional |= {"held_back_by": list(self.held_back_by)}
        for name, value in optional.items():
            if value and len(_dump(told | {name: value})) <= MEMBER_NOTE_BYTES_MAX:
                told[name] = value
        held = self.held_back_by
        fewer = (
            range(min(len(held) - 1, _HELD_TOLD_MAX), 0, -1) if held and "held_back_by" not in told else ()
        )
        for count in fewer:
            shorter = told | {"held_back_by": [*held[:count], f"and {len(held) - count} more"]}
            if len(_dump(shorter)) <= MEMBER_NOTE_BYTES_MAX:
                return _dump(shorter)
        return _dump(told)

    @classmethod
    def decode(cls, text: str) -> MemberNote | None:
        """Read a note; None where it can't be understood, so that nothing may be concluded from it."""
        try:
            told = json.loads(text) if len(text.encode()) <= MEMBER_NOTE_BYTES_MAX else None
        except (ValueError, RecursionError):
            return None
        if not isinstance(told, dict):
            return None
        lease_ns, keep = (told.get(name) for name in ("lease_ns", "engines_keep"))
        if not _whole(lease_ns) or not _whole(keep) or not lease_ns:
            return None
        pid, host, version = (told.get(name) for name in ("pid", "host", "version"))
        held = told.get("held_back_by")
        return cls(
            lease_ns=lease_ns,
            engines_keep=keep,
            host=host if isinstance(host, str) else "",
            pid=pid if _whole(pid) else 0,
            version=version if isinstance(version, str) else "",
            held_back_by=tuple(what for what in held if isinstance(what, str))
            if isinstance(held, list)
            else (),
        )


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _UINT64_MAX


def _dump(told: dict[str, object]) -> str:
    return json.dumps(told, separators=(",", ":"))
