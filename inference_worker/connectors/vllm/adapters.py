"""LoRA adapters by their content: digests of their files, held against what a running engine may have loaded."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from inference_worker.connectors.vllm.engine_numerics import digest_text
from inference_worker.connectors.vllm.engine_weights import local_snapshot
from inference_worker.connectors.vllm.file_digests import States, are_settled, states_of
from inference_worker.connectors.vllm.safetensors_files import WeightsFilesError, parse_json
from inference_worker.connectors.vllm.settings import WeightsDigest
from inference_worker.connectors.vllm.weights_files import read_bounded, tensors_digest
from kv_types.computation import DIGEST_BYTES, Adapter
from kv_types.errors import InvalidArgumentError
from kv_types.limits import ADAPTERS_REMEMBERED_MAX
from kv_types.namespace import Uncacheable, UncacheableReason

_SCHEMA = b"stratakv-adapter-1"
_CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
# What a configuration says about where it comes from and how it is trained or used; the rest counts.
_CONFIG_IGNORED = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "inference_mode",
        "lora_dropout",
        "peft_version",
        "revision",
        "task_type",
    }
)


@dataclass(slots=True)
class _Known:
    """What the files of one adapter id held when it was first seen; `problem`: why it has no name any more."""

    states: States = ()
    digest: bytes = b""
    is_settled: bool = False
    problem: str = ""


class AdapterDigests:
    """Names adapters for requests. Thread-safe; the first request of an adapter reads its files, later ones look at them.

    An engine loads an adapter once for an id (`lora_int_id`) and keeps its tensors, whatever becomes of the files, until
    it needs the room; then it loads them again from the files as they are by then. So what was read first is what an id
    means, and once its files have changed nobody can tell which content the engine has: requests of that id have no name
    from then on, until the adapter is loaded under a new id, as engines do for each load. An id that is loaded in place
    (`load_inplace`), over what it had, has none either. The digest is taken when the first request comes: files
    must not be changed between loading an adapter and its first request.
    """

    def __init__(self, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._known: OrderedDict[int, _Known] = OrderedDict()

    def adapter_of(self, lora_request: Any) -> Adapter | Uncacheable:
        """Adapter of a request's `lora_request`, by its name and the content that its id stands for."""
        name = str(lora_request.lora_name)
        with self._lock:
            try:
                digest = self._digest_of(lora_request)
                return Adapter(name, digest)
            except (WeightsFilesError, InvalidArgumentError) as error:
                return Uncacheable(
                    UncacheableReason.ADAPTER_WITHOUT_DIGEST, f"adapter {name!r:.200}: {error}"
                )

    def _digest_of(self, lora_request: Any) -> bytes:
        number = int(lora_request.lora_int_id)
        known = self._known.get(number)
        if known is None:
            known = self._known[number] = _Known()
            while len(self._known) > ADAPTERS_REMEMBERED_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(number)
        if getattr(lora_request, "load_inplace", False):
            known.problem = (
                "it was loaded in place, over what its id stood for before: load it under an id of its own"
            )
        if known.problem:
            raise WeightsFilesError(known.problem)
        self._look(known, lora_request)
        return known.digest

    def _look(self, known: _Known, lora_request: Any) -> None:
        """Read the files, unless they are as they were; a change makes the id nameless."""
        files = adapter_files(str(lora_request.lora_path))
        states = states_of(files)
        if known.is_settled and known.states == states:
            return
        now_ns = self._now_ns()
        content = adapter_digest(files)
        flag = b"\1" if getattr(lora_request, "is_3d_lora_weight", False) else b"\0"
        digest = blake2b(content + flag, digest_size=DIGEST_BYTES).digest()
        if states_of(files) != states:
            raise WeightsFilesError("its files were changed while they were read")
        if known.digest and (known.states != states or known.digest != digest):
            known.problem = (
                "its files have changed since it was first used, and which content the engine has can't be told: "
                "load it under another id"
            )
            raise WeightsFilesError(known.problem)
        known.states, known.digest, known.is_settled = states, digest, are_settled(states, now_ns)


def adapter_files(lora_path: str) -> list[Path]:
    """Files that an engine loads an adapter from, in order. Raises WeightsFilesError when there are none."""
    folder = _folder(lora_path)
    files = [folder / name for name in (_CONFIG, *_WEIGHTS)]
    found = [path for path in files if path.is_file()]
    if len(found) < 2 or found[0] != files[0]:
        raise WeightsFilesError(f"{folder} has no {_CONFIG} with one of {', '.join(_WEIGHTS)} beside it")
    return found


def adapter_digest(files: list[Path]) -> bytes:
    """Digest of an adapter's configuration and, whole, of its weights. Raises WeightsFilesError."""
    config = parse_json(read_bounded(files[0]), str(files[0]))
    meant = {name: value for name, value in config.items() if name not in _CONFIG_IGNORED}
    weights = tensors_digest(files[1:], how=WeightsDigest.WHOLE)
    return blake2b(_SCHEMA + digest_text(meant).encode() + weights, digest_size=DIGEST_BYTES).digest()


def _folder(lora_path: str) -> Path:
    """The folder that an engine takes for a path: as it stands, or the snapshot of a repository of the hub."""
    path = Path(lora_path)
    if lora_path.startswith("~"):
        path = path.expanduser()
    if path.is_absolute() or path.exists():
        return path.absolute()
    snapshot = local_snapshot(lora_path)
    if snapshot is None:
        raise WeightsFilesError(
            f"{lora_path!r:.200} is neither a folder nor a repository that was downloaded here"
        )
    return snapshot
