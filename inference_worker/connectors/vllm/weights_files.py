"""Content digest of a model's weight files: of every tensor's name, dtype, shape and bytes, however they are spread."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from inference_worker.connectors.vllm.file_digests import DigestMemory
from inference_worker.connectors.vllm.safetensors_files import (
    TensorPlace,
    WeightsFilesError,
    parse_json,
    read_header,
)
from inference_worker.connectors.vllm.settings import WeightsDigest
from kv_types.computation import DIGEST_BYTES
from kv_types.limits import WEIGHTS_FILES_MAX, WEIGHTS_JSON_BYTES_MAX, WEIGHTS_THREADS_MAX

_SCHEMA = b"stratakv-weights-1"
_HEAD = struct.Struct("<IIIQ")
_INDEX = "model.safetensors.index.json"
_CONSOLIDATED = "consolidated*.safetensors"
_CONSOLIDATED_INDEX = "consolidated.safetensors.index.json"
_PICKLED = ("*.bin", "*.pt")
_PICKLED_FORMATS = frozenset({"pt", "npcache"})
_READ_BYTES = 4 * 1024 * 1024
_WHOLE_BYTES = 64 * 1024
_END_BYTES = 4096
_SAMPLE_BYTES = 256
_STRIDE_BYTES = 256 * 1024
_SAMPLES_LEAST = 64
_SAMPLES_MOST = 1024
_EMBEDDING_NAMES = ("embed", "wte", "word_embeddings")


def weights_digest(
    folder: Path,
    *,
    how: WeightsDigest = WeightsDigest.SAMPLED,
    memory: DigestMemory | None = None,
    load_format: str = "auto",
) -> bytes:
    """BLAKE2b-256 over the tensors of a model's folder (or single file), in the order of their names.

    It does not depend on file names, on how tensors are spread over files, or on metadata beside them. Files that aren't
    safetensors (.bin, .pt, .gguf) count by the digests of their whole content. `load_format`: the engine's, which says which
    of a folder's files it loads.

    WHOLE reads every byte, about 1 GB/s a core. SAMPLED reads of each tensor above 64 KiB its first and last 4 KiB and,
    at equal distances between, 256 bytes of each 256 KiB, 64 to 1,024 times: 8,000 numbers or more. Embedding tables, in
    which single rows are edited (new tokens), are read whole. So a fine-tune, a merge, a requantisation, or an edit of
    low rank, which change a part of all numbers of a tensor, show: if one number in a thousand of just one tensor
    differs, it is overlooked with a probability of e^-8. What a sample can't see: a change that is confined to a few
    neighbouring rows of a large matrix (single neurons, one head's slice of less than 256 KiB). Who edits so takes WHOLE
    or an explicit version.

    Raises WeightsFilesError when files are missing, malformed or changed meanwhile.
    """
    files = weight_files(folder, load_format=load_format)
    memory = DigestMemory() if memory is None else memory
    return memory.digest(files, f"weights-{how}", lambda: tensors_digest(files, how=how))


def weight_files(folder: Path, *, load_format: str = "auto") -> list[Path]:
    """Files that an engine loads a model from: those of the index if there is one. Raises WeightsFilesError.

    A folder may have the same weights in several formats; "auto" takes Mistral's own before all others.
    """
    if folder.is_file():
        return [folder]
    consolidated = consolidated_files(folder) if load_format in {"auto", "mistral"} else []
    if load_format in _PICKLED_FORMATS:
        files = _matching(folder, _PICKLED)
    elif load_format == "gguf":
        files = _matching(folder, ("*.gguf",))
    elif consolidated or load_format == "mistral":
        files = consolidated
    else:
        files = (
            _indexed(folder, _INDEX)
            or _matching(folder, ("*.safetensors",))
            or _matching(folder, _PICKLED)
            or _matching(folder, ("*.gguf",))
        )
    if not files:
        raise WeightsFilesError(
            f"{folder} has no files of weights for load_format {load_format} (*.safetensors, *.bin, *.pt, *.gguf)"
        )
    if len(files) > WEIGHTS_FILES_MAX:
        raise WeightsFilesError(
            f"{folder} has {len(files)} files of weights; at most {WEIGHTS_FILES_MAX} may be"
        )
    return sorted(files)


def consolidated_files(folder: Path) -> list[Path]:
    """Files in Mistral's own format. Raises WeightsFilesError."""
    found = _matching(folder, (_CONSOLIDATED,))
    return (_indexed(folder, _CONSOLIDATED_INDEX) or found) if found else []


def tensors_digest(files: Sequence[Path], *, how: WeightsDigest) -> bytes:
    """Digest of the content of files, read by several threads. Raises WeightsFilesError."""
    threads = min(WEIGHTS_THREADS_MAX, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, thread_name_prefix="stratakv-digest") as pool:
        opened: list[_Opened] = []
        try:
            for path in files:
                opened.append(_Opened.of(path))  # noqa: PERF401 - those before it must be closed if one fails
            jobs = [job for file in opened for job in file.jobs(how)]
            # Longest first, so that no thread is left alone with the largest.
            jobs.sort(key=lambda job: -job.size_bytes)
            parts = list(pool.map(lambda job: (job.head, job.read()), jobs))
        finally:
            for file in opened:
                os.close(file.descriptor)
    state = blake2b(_SCHEMA + str(how).encode(), digest_size=DIGEST_BYTES)
    # Heads begin with lengths, so the order is no alphabet's, but it is one order whatever file a tensor lies in.
    for head, digest in sorted(parts):
        state.update(head + digest)
    return state.digest()


@dataclass(frozen=True, slots=True)
class _Job:
    """One tensor, or one whole file, to be digested."""

    head: bytes
    size_bytes: int
    read: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class _Opened:
    """A file of weights that is open, and its tensors; None: it is no safetensors file."""

    descriptor: int
    name: str
    tensors: list[TensorPlace] | None

    @classmethod
    def of(cls, path: Path) -> _Opened:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise WeightsFilesError(f"{path} can't be opened: {error}") from error
        try:
            tensors = read_header(descriptor, str(path)) if path.suffix == ".safetensors" else None
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, str(path), tensors)

    def jobs(self, how: WeightsDigest) -> list[_Job]:
        if self.tensors is None:
            size = os.fstat(self.descriptor).st_size
            whole = TensorPlace("", "", (), 0, size)
            return [_Job(_head(whole), size, lambda: self._digest(whole, is_whole=True))]
        return [self._job(place, how) for place in self.tensors]

    def _job(self, place: TensorPlace, how: WeightsDigest) -> _Job:
        is_whole = how is WeightsDigest.WHOLE or is_read_whole(place)
        return _Job(_head(place), place.size_bytes, lambda: self._digest(place, is_whole=is_whole))

    def _digest(self, place: TensorPlace, *, is_whole: bool) -> bytes:
        state = blake2b(digest_size=DIGEST_BYTES)
        runs = _pieces(place.size_bytes) if is_whole else samples(place.size_bytes)
        for begin, size in runs:
            self._absorb(state.update, place.offset + begin, size)
        return state.digest()

    def _absorb(self, update: Callable[[bytes], None], offset: int, size: int) -> None:
        while size:
            try:
                data = os.pread(self.descriptor, size, offset)
            except OSError as error:
                raise WeightsFilesError(f"{self.name} can't be read: {error}") from error
            if not data:
                raise WeightsFilesError(f"{self.name} became shorter while it was read")
            update(data)
            offset, size = offset + len(data), size - len(data)


def is_read_whole(place: TensorPlace) -> bool:
    """Whether a tensor is read whole also where samples were asked for."""
    name = place.name.lower()
    return place.size_bytes <= _WHOLE_BYTES or any(part in name for part in _EMBEDDING_NAMES)


def samples(size_bytes: int) -> list[tuple[int, int]]:
    """(offset, size) of what is read of a tensor above 64 KiB."""
    count = min(max(size_bytes // _STRIDE_BYTES, _SAMPLES_LEAST), _SAMPLES_MOST)
    room = size_bytes - 2 * _END_BYTES - _SAMPLE_BYTES
    between = [(_END_BYTES + room * i // (count - 1), _SAMPLE_BYTES) for i in range(count)]
    return [(0, _END_BYTES), *between, (size_bytes - _END_BYTES, _END_BYTES)]


def _pieces(size_bytes: int) -> list[tuple[int, int]]:
    return [(at, min(_READ_BYTES, size_bytes - at)) for at in range(0, size_bytes, _READ_BYTES)]


def _head(place: TensorPlace) -> bytes:
    name = place.name.encode("utf-8", "surrogatepass")
    dtype = place.dtype.encode("utf-8", "surrogatepass")
    shape = struct.pack(f"<{len(place.shape)}q", *place.shape)
    return _HEAD.pack(len(name), len(dtype), len(shape), place.size_bytes) + name + dtype + shape


def _matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    try:
        return [path for pattern in patterns for path in folder.glob(pattern) if path.is_file()]
    except OSError as error:
        raise WeightsFilesError(f"{folder} can't be listed: {error}") from error


def _indexed(folder: Path, name: str) -> list[Path]:
    """Files that the index names; none when there is no index."""
    index = folder / name
    if not index.is_file():
        return []
    told = parse_json(read_bounded(index), str(index)).get("weight_map")
    if not isinstance(told, dict) or not all(isinstance(file, str) for file in told.values()):
        raise WeightsFilesError(f"{index} has no weight_map that names a file for each tensor")
    files = sorted(set(told.values()))
    for file in files:
        if not file or Path(file).name != file:
            raise WeightsFilesError(f"{index} names {file!r}, which is no file beside it")
    return [folder / file for file in files]


def read_bounded(path: Path) -> bytes:
    """Read a JSON file that lies beside weights. Raises WeightsFilesError when it is too large or can't be read."""
    try:
        with path.open("rb") as file:
            data = file.read(WEIGHTS_JSON_BYTES_MAX + 1)
    except OSError as error:
        raise WeightsFilesError(f"{path} can't be read: {error}") from error
    if len(data) > WEIGHTS_JSON_BYTES_MAX:
        raise WeightsFilesError(f"{path} has more than {WEIGHTS_JSON_BYTES_MAX} bytes")
    return data
