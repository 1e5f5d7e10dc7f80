"""Content digests of files, remembered by the files' identity: nothing that didn't change is read twice."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from inference_worker.connectors.vllm.safetensors_files import WeightsFilesError, parse_json
from kv_types.computation import DIGEST_BYTES
from kv_types.limits import DIGESTS_FILE_BYTES_MAX, DIGESTS_REMEMBERED_MAX

_FORMAT = "stratakv-digests-1"
_SETTLED_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class FileState:
    """What tells a file and its content apart from others without reading it.

    The time of the last change of its inode (ctime) moves with every write and can't be set by users, unlike mtime.
    """

    path: str
    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: Path) -> FileState:
        """Look at a file, through links. Raises WeightsFilesError."""
        try:
            stat = path.stat()
        except OSError as error:
            raise WeightsFilesError(f"{path} can't be looked at: {error}") from error
        return cls(str(path), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


States = tuple[FileState, ...]


def states_of(paths: Sequence[Path]) -> States:
    """States of files in the order of their paths. Raises WeightsFilesError."""
    return tuple(FileState.of(path) for path in sorted(paths))


def are_settled(states: States, now_ns: int) -> bool:
    """Whether a later change would show in the files' times: clocks of file systems are coarse."""
    newest_ns = max(max(state.mtime_ns, state.ctime_ns) for state in states)
    return newest_ns + _SETTLED_NS < now_ns


def home_cache() -> Path:
    """The cache folder of this process's user; where no file can be, for one who has no home."""
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return Path(os.devnull) / "cache"


def default_cache_file() -> Path:
    """Where digests are kept by default: in the user's cache folder."""
    told = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(told) if told and Path(told).is_absolute() else home_cache()
    return base / "stratakv" / "file-digests.json"


class DigestMemory:
    """Digests of sets of files, kept in one small JSON file. A file that can't be read or written is as an empty one."""

    def __init__(self, cache_file: Path | None = None, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._cache_file = default_cache_file() if cache_file is None else cache_file
        self._now_ns = now_ns

    def digest(self, paths: Sequence[Path], kind: str, compute: Callable[[], bytes]) -> bytes:
        """Digest of some files' content: remembered, or computed and then remembered.

        `kind` says how it is computed. Raises WeightsFilesError, also when a file was changed while it was read, and
        whatever `compute` raises.
        """
        began_ns = self._now_ns()
        before = states_of(paths)
        key = _key(before, kind)
        known = self._read().get(key)
        if known is not None:
            return bytes.fromhex(known)
        digest = compute()
        if states_of(paths) != before:
            raise WeightsFilesError(f"{paths[0].parent}: files were changed while their content was read")
        # By the time before: a write since then, within one tick of the file system's clock, would not show.
        if are_settled(before, began_ns):
            self._write(key, digest)
        return digest

    def _read(self) -> dict[str, str]:
        try:
            with self._cache_file.open("rb") as file:
                data = file.read(DIGESTS_FILE_BYTES_MAX + 1)
            if len(data) > DIGESTS_FILE_BYTES_MAX:
                return {}
            told = parse_json(data, str(self._cache_file))
        except (OSError, WeightsFilesError):
            return {}
        entries = told.get("digests")
        if told.get("format") != _FORMAT or not isinstance(entries, dict):
            return {}
        if told.get("check") != _check(entries) or not all(map(_is_hex, [*entries, *entries.values()])):
            return {}
        return entries

    def _write(self, key: str, digest: bytes) -> None:
        entries = self._read()
        entries.pop(key, None)
        while len(entries) >= DIGESTS_REMEMBERED_MAX:
            entries.pop(next(iter(entries)))  # JSON keeps the order: the one that was written first
        entries[key] = digest.hex()
        text = json.dumps({"format": _FORMAT, "check": _check(entries), "digests": entries})
        # Not being able to remember costs time at the next start, and nothing else.
        with contextlib.suppress(OSError):
            self._cache_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self._cache_file.parent, prefix=".digests-")
            try:
                with os.fdopen(descriptor, "w") as file:
                    file.write(text)
                Path(name).replace(self._cache_file)
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise


def _key(states: States, kind: str) -> str:
    told = [kind, *([s.path, s.device, s.inode, s.size_bytes, s.mtime_ns, s.ctime_ns] for s in states)]
    return blake2b(json.dumps(told).encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).hexdigest()


def _check(entries: dict[str, Any]) -> str:
    return blake2b(json.dumps(entries).encode(), digest_size=DIGEST_BYTES).hexdigest()


def _is_hex(value: object) -> bool:
    if not isinstance(value, str) or len(value) != 2 * DIGEST_BYTES:
        return False
    return not set(value) - set("0123456789abcdef")
