"""What names the weights that an engine has loaded, and its model: version, hub commit, or content of the files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from inference_worker.connectors.vllm.file_digests import DigestMemory, home_cache
from inference_worker.connectors.vllm.safetensors_files import WeightsFilesError
from inference_worker.connectors.vllm.settings import ConnectorSettings
from inference_worker.connectors.vllm.weights_files import weights_digest
from kv_types.namespace import Uncacheable, UncacheableReason, Weights

_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_FOLDER = re.compile(r"models--(.+)")
_DUMMY = "dummy"
_SAFETENSORS_FORMATS = frozenset(
    {"hf", "safetensors", "fastsafetensors", "instanttensor", "runai_streamer", "bitsandbytes"}
)
_FILE_FORMATS = _SAFETENSORS_FORMATS | {"auto", "gguf", "mistral", "npcache", "pt", "sharded_state"}
"""Formats whose weights are those of the files in the model's folder; of others nobody here knows where they come from."""

_WEIGHTS_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".gguf"})


def model_name(model_config: Any, settings: ConnectorSettings) -> str | None:
    """Name of the model: the operator's, else its id on the hub, else its folder's name and its architecture."""
    if settings.model_name is not None:
        return settings.model_name
    model = str(getattr(model_config, "model", "") or "")
    hub = hub_snapshot(Path(model))
    if hub is not None:
        return hub[0]
    path = Path(model)
    if not exists(path):
        return model or None
    architecture = str(getattr(model_config, "architecture", "") or "")
    return f"{path.resolve().name}:{architecture}"


def exists(path: Path) -> bool:
    """Whether something is there; a path that no file system takes is nowhere."""
    try:
        return path.exists()
    except OSError:  # too long a name, for one
        return False


def weights_of(
    model_config: Any, load_config: Any, settings: ConnectorSettings, memory: DigestMemory | None = None
) -> Weights | Uncacheable:
    """Name the weights: explicit version, else the hub's commit, else a digest of the files, else not at all.

    Call it after they were loaded. A commit of the hub names the files of a snapshot, unless weights there are no links to
    the files that the hub's client has fetched: those count by their content. A branch's name names nothing. Where the hub's
    reference has moved since the configuration was read, it can't be told which of both commits was loaded.
    """
    if settings.weights_version is not None:
        return Weights(version=settings.weights_version)
    load_format = str(getattr(load_config, "load_format", "auto"))
    problem = _unknown_source(model_config, load_format)
    if problem:
        return _unnamed(f"{problem}; give weights_version")
    path = Path(str(model_config.model))
    hub = hub_snapshot(path)
    if hub is not None and not is_edited(path):
        return _of_commit(hub[1], path, load_format)
    if exists(path):
        return _of_content(path, settings, memory, load_format)
    found = _hub_weights(model_config, load_config, load_format)
    if isinstance(found, Path):
        return _of_content(found, settings, memory, load_format)
    return found


def is_edited(snapshot: Path) -> bool:
    """Whether weights in a snapshot may be others than its commit's: the hub's client links to files named by their content.

    Where a file system has no links, files are copied there; then nothing tells them from files that somebody has put there.
    """
    try:
        files = [path for path in snapshot.iterdir() if path.suffix in _WEIGHTS_SUFFIXES]
        return not all(path.is_symlink() and path.resolve().parent.name == "blobs" for path in files)
    except OSError:
        return True


def _of_content(
    path: Path, settings: ConnectorSettings, memory: DigestMemory | None, load_format: str
) -> Weights | Uncacheable:
    try:
        digest = weights_digest(path, how=settings.weights_digest, memory=memory, load_format=load_format)
    except (WeightsFilesError, OSError) as error:
        return _unnamed(f"{error}; or give weights_version")
    return Weights(digest=digest)


def hub_snapshot(path: Path) -> tuple[str, str] | None:
    """(id, commit) of a snapshot folder as the hub's client keeps them: models--<owner>--<name>/snapshots/<commit>."""
    absolute = path.absolute()
    if len(absolute.parts) < 4 or absolute.parent.name != "snapshots" or not _COMMIT.fullmatch(absolute.name):
        return None
    folder = _HUB_FOLDER.fullmatch(absolute.parent.parent.name)
    return None if folder is None else (folder.group(1).replace("--", "/"), absolute.name)


def local_snapshot(repository: str, *, revision: str | None = None, cache: Path | None = None) -> Path | None:
    """Folder of a hub repository's snapshot that is on this machine; None when there is none."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", repository) or ".." in repository:
        return None
    base = (cache or hub_cache()) / f"models--{repository.replace('/', '--')}"
    commit = revision if revision and _COMMIT.fullmatch(revision) else _reference(base, revision or "main")
    if commit is None:
        return None
    folder = base / "snapshots" / commit
    return folder if folder.is_dir() else None


def hub_cache() -> Path:
    """Where the hub's client keeps what it has downloaded."""
    if told := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(told)
    if told := os.environ.get("HF_HOME"):
        return Path(told) / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or home_cache()) / "huggingface" / "hub"


def _reference(base: Path, name: str) -> str | None:
    if not re.fullmatch(r"[\w./-]+", name) or ".." in name:
        return None
    try:
        with (base / "refs" / name).open("rb") as file:
            commit = file.read(64).decode("ascii", "replace").strip()
    except OSError:
        return None
    return commit if _COMMIT.fullmatch(commit) else None


def _unknown_source(model_config: Any, load_format: str) -> str:
    if load_format == _DUMMY:
        return "load_format is dummy: random weights have no name"
    if load_format not in _FILE_FORMATS:
        return f"load_format {load_format!r} takes weights from elsewhere"
    return "the weights come from an object store" if getattr(model_config, "model_weights", "") else ""


def _of_commit(commit: str, snapshot: Path | None, load_format: str) -> Weights:
    """A commit and, where it has weights in several formats, the one that was loaded."""
    is_only = snapshot is not None and not list(snapshot.glob("consolidated*.safetensors"))
    if load_format == "auto" or (load_format in _SAFETENSORS_FORMATS and is_only):
        return Weights(version=f"hf:{commit}")
    return Weights(version=f"hf:{commit}:{load_format}")


def _hub_weights(model_config: Any, load_config: Any, load_format: str) -> Weights | Path | Uncacheable:
    """Named by the commit; a folder: by the content there."""
    model, revision = str(model_config.model), getattr(model_config, "revision", None)
    if os.environ.get("VLLM_USE_MODELSCOPE", "0").lower() in {"1", "true"}:
        return _unnamed(
            f"{model} comes from ModelScope, whose commits aren't known here; give weights_version"
        )
    read = getattr(getattr(model_config, "hf_config", None), "_commit_hash", None)
    download_dir = getattr(load_config, "download_dir", None)
    cache = Path(download_dir) if download_dir else None
    snapshot = local_snapshot(model, revision=revision, cache=cache)
    commits = {commit for commit in (read, snapshot.name if snapshot else None) if commit}
    if revision and _COMMIT.fullmatch(str(revision)):
        commits = {str(revision)}
    if len(commits) == 1 and _COMMIT.fullmatch(commit := str(next(iter(commits)))):
        if snapshot is not None and is_edited(snapshot):
            return snapshot
        return _of_commit(commit, snapshot, load_format)
    moved = f"{model} moved from commit to commit while it was loaded"
    return _unnamed(
        f"{moved if commits else f'the commit of {model} on the hub is not known'}: "
        "give --revision with a commit of 40 digits, or weights_version"
    )


def _unnamed(detail: str) -> Uncacheable:
    return Uncacheable(UncacheableReason.WEIGHTS_UNNAMED, detail)
