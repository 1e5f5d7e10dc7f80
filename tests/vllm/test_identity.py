"""Identity from the configuration objects of the real engine, made for tiny models in folders; no engine is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

import transformers  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402
from vllm.multimodal.inputs import MultiModalFeatureSpec, MultiModalKwargsItem, PlaceholderRange  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.v1.request import Request  # noqa: E402

from inference_worker.connectors.vllm.file_digests import DigestMemory  # noqa: E402
from inference_worker.connectors.vllm.identity import (  # noqa: E402
    PhysicalLayout,
    RankRange,
    WorkerIdentity,
    identify,
)
from inference_worker.connectors.vllm.naming import RequestNaming  # noqa: E402
from inference_worker.connectors.vllm.plan import Variant  # noqa: E402
from inference_worker.connectors.vllm.settings import ConnectorSettings  # noqa: E402
from kv_types.namespace import AttentionKind, Namespace, Uncacheable, UncacheableReason  # noqa: E402

_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"head_dim": 32}),
    "llama3": (
        "LlamaConfig",
        {
            "head_dim": 32,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            },
        },
    ),
    "qwen2": ("Qwen2Config", {"hidden_size": 128}),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "mistral_window": ("MistralConfig", {"head_dim": 32, "sliding_window": 64}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 32, "sliding_window": 32, "num_hidden_layers": 6}),
    "deepseek_v3": (
        "DeepseekV3Config",
        {
            "first_k_dense_replace": 1,
            "kv_lora_rank": 512,
            "moe_intermediate_size": 32,
            "n_group": 2,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "num_key_value_heads": 4,
            "q_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 64,
            "topk_group": 1,
            "v_head_dim": 32,
        },
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny random model of each kind."""
    made = {}
    for kind, (config_name, changes) in _KINDS.items():
        torch.manual_seed(0)
        config = getattr(transformers, config_name)(**{**_COMMON, **changes}, dtype="float32")
        made[kind] = tmp_path_factory.mktemp(kind)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(made[kind])
    return made


def _config(folder: Path, **arguments: Any) -> Any:
    return EngineArgs(
        model=str(folder),
        **{"dtype": "float32", "enforce_eager": True, "skip_tokenizer_init": True, **arguments},
    ).create_engine_config()


def _layout(config: Any) -> PhysicalLayout:
    """A block as the engine would make it, from what the engine itself says of its sizes."""
    model, block = config.model_config, config.cache_config.block_size
    numbers = model.get_head_size() * (
        1 if model.use_mla else 2 * model.get_num_kv_heads(config.parallel_config)
    )
    item_bytes = model.dtype.itemsize
    layers = model.get_total_num_hidden_layers()
    return PhysicalLayout(
        name="test", block_tokens=block, bytes_per_block=layers * numbers * block * item_bytes
    )


def _identity(config: Any, **settings: Any) -> WorkerIdentity:
    # not the user's own memory, and not by XDG_CACHE_HOME, where the engine remembers what it knows of architectures
    memory = DigestMemory(Path(config.model_config.model) / "digests.json")
    told = ConnectorSettings.of(settings)
    return identify(config, layout=_layout(config), rank=RankRange(), settings=told, memory=memory)


def _base(config: Any, **settings: Any) -> Namespace:
    base = _identity(config, **settings).base
    assert isinstance(base, Namespace), base
    return base


@pytest.mark.parametrize("kind", ["llama", "llama3", "qwen2", "qwen3", "deepseek_v3"])
def test_models_that_are_named(folders: dict[str, Path], kind: str) -> None:
    config = _config(folders[kind])
    identity = _identity(config)
    base = identity.base
    assert isinstance(base, Namespace), base
    assert base.model == f"{folders[kind].name}:{config.model_config.architecture}"
    assert base.weights.digest is not None
    assert base.rope is not None
    assert base.rope.kind == ("llama3" if kind == "llama3" else "default")
    is_mla = kind == "deepseek_v3"
    assert base.geometry.attention is (AttentionKind.MLA if is_mla else AttentionKind.GQA)
    assert (base.geometry.latent_dim, base.geometry.rope_dim) == ((512, 64) if is_mla else (0, 0))
    assert base.geometry.heads == (0 if is_mla else 2)
    assert identity.block_tokens == config.cache_config.block_size


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("mistral_window", UncacheableReason.SLIDING_WINDOW), ("gemma3", UncacheableReason.ROPE_UNKNOWN)],
)
def test_models_that_are_not(folders: dict[str, Path], kind: str, reason: UncacheableReason) -> None:
    base = _identity(_config(folders[kind])).base
    assert isinstance(base, Uncacheable)
    assert base.reason is reason, base


def test_what_shapes_bytes_and_what_does_not(folders: dict[str, Path]) -> None:
    folder = folders["llama"]
    before = _base(_config(folder)).id
    same = {
        "enable_prefix_caching": False,
        "load_format": "safetensors",
        "max_model_len": 100,
        "max_num_seqs": 4,
        "num_gpu_blocks_override": 17,
        "seed": 3,
        "served_model_name": "x",
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2},
    }
    assert _base(_config(folder, **same)).id == before
    other: list[dict[str, Any]] = [
        {"dtype": "bfloat16"},
        {"compilation_config": {"custom_ops": ["-rotary_embedding"]}},
        {"hf_overrides": {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}}},
        {"enable_lora": True},
    ]
    ids = [_base(_config(folder, **arguments)).id for arguments in other]
    assert len({before, *ids}) == len(other) + 1


_PRINT = """
import sys
from pathlib import Path
from tests.vllm.test_identity import _base, _config
print("id", _base(_config(Path(sys.argv[1]))).id.hex())
"""


def test_another_process_gives_the_same_name(folders: dict[str, Path]) -> None:
    folder = folders["deepseek_v3"]
    told = subprocess.run(
        [sys.executable, "-c", _PRINT, str(folder)], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    assert f"id {_base(_config(folder)).id.hex()}" in told.splitlines()


def test_dummy_weights_have_no_name_but_an_explicit_one(folders: dict[str, Path]) -> None:
    config = _config(folders["llama"], load_format="dummy")
    base = _identity(config).base
    assert isinstance(base, Uncacheable)
    assert base.reason is UncacheableReason.WEIGHTS_UNNAMED
    assert _base(config, weights_version="v").weights.version == "v"


def _request(params: SamplingParams | None = None, **more: Any) -> Request:
    return Request("r", [1, 2, 3, 4], params or SamplingParams(max_tokens=1), None, **more)


def test_the_engines_requests(tmp_path: Path) -> None:
    naming = RequestNaming(ConnectorSettings())
    assert naming.variant_of(_request(), None) == Variant()
    assert naming.variant_of(_request(cache_salt="t"), "v") == Variant("v", None, "t")
    assert naming.reads_external(_request())
    assert not naming.reads_external(_request(SamplingParams(max_tokens=1, prompt_logprobs=1)))
    embedded = Request("r", None, SamplingParams(max_tokens=1), None, prompt_embeds=torch.zeros(4, 8))
    assert isinstance(naming.variant_of(embedded, None), Uncacheable)
    adapter = LoRARequest("a", 1, str(tmp_path))
    unnamed = naming.variant_of(_request(lora_request=adapter), None)
    assert isinstance(unnamed, Uncacheable)
    assert unnamed.reason is UncacheableReason.ADAPTER_WITHOUT_DIGEST


def test_the_engines_items() -> None:
    naming = RequestNaming(ConnectorSettings())

    def extras(identifier: str, item: MultiModalKwargsItem) -> Any:
        feature = MultiModalFeatureSpec(
            data=item,
            modality="image",
            identifier=identifier,
            mm_position=PlaceholderRange(offset=1, length=2),
            mm_hash=identifier,
        )
        return naming.extras_of(_request(mm_features=[feature]), 2)

    def item(value: int) -> MultiModalKwargsItem:
        made = MultiModalKwargsItem.dummy(nbytes=4)
        made["dummy"].data.fill_(value)
        return made

    first = extras("a", item(1))
    assert first == extras("b", item(1))
    assert sorted(first) == [0, 1]
    assert extras("c", item(2)) != first
    assert isinstance(extras("a", item(2)), Uncacheable)
