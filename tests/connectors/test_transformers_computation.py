"""Whatever shapes KV beside weights and architecture: named apart, noticed at the next call, or refused."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import PaliGemmaConfig, PaliGemmaForConditionalGeneration

from inference_worker.connectors.transformers import TransformersConnector
from inference_worker.connectors.transformers_identity import identify_model
from inference_worker.connectors.transformers_weights import weights_digest
from kv_types.namespace import Adapter, Namespace, Uncacheable, UncacheableReason, Weights
from tests.connectors.fakes import FakeClient, FakeSidecar
from tests.connectors.models import largest_difference, plain_cache, tiny_config, tiny_model, tokens
from tests.connectors.test_transformers_identity import adapter_layer, named, refused, with_adapter

ROW = tokens(40)[None]
VERSION = Weights(version="v1")
MATMUL: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def connect(model: Any, sidecar: FakeSidecar | None = None, **said: Any) -> TransformersConnector:
    return TransformersConnector(model, FakeClient(sidecar or FakeSidecar()), page_tokens=8, **said)


@pytest.fixture(autouse=True)
def _precision() -> Iterator[None]:
    yield
    MATMUL.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")


# KV of a prefix that depends on what follows


def test_attention_that_sees_later_tokens_is_refused() -> None:
    model = tiny_model("llama", is_causal=False)
    alone, longer = plain_cache(model, ROW[0, :16])[0], plain_cache(model, ROW[0])[0]
    assert largest_difference(alone.layers[2].keys, longer.layers[2].keys[:, :, :16]) > 1e-3
    assert refused(model).reason is UncacheableReason.MODEL_UNSUPPORTED


@pytest.mark.parametrize("where", ["config", "module"])
def test_attention_switched_to_see_later_tokens_is_noticed_before_the_next_call(where: str) -> None:
    model = tiny_model("llama")
    worker = connect(model)
    worker.prefill(ROW)
    (model.config if where == "config" else model.model.layers[1].self_attn).is_causal = False
    report = worker.prefill(ROW).report
    assert (report.reused, report.pages_stored) == (0, 0)
    assert "is_causal" in report.off


def test_a_model_around_a_supported_decoder_is_refused() -> None:
    """PaliGemma's prompt attends both ways, and its text configuration says gemma."""
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = PaliGemmaConfig(
        text_config=tiny_config("gemma").to_dict(),
        vision_config={"model_type": "siglip_vision_model", **vision, "image_size": 28, "patch_size": 14},
        projection_dim=64,
        image_token_index=95,
    )
    uncacheable = refused(PaliGemmaForConditionalGeneration(config).eval())
    assert uncacheable.reason is UncacheableReason.MODEL_UNSUPPORTED
    assert "paligemma" in uncacheable.detail


# weights that a digest of plain tensors does not tell


def quantised(model: Any) -> Any:
    quantise: Any = torch.ao.quantization.quantize_dynamic
    return quantise(model, {torch.nn.Linear})


@pytest.mark.filterwarnings("ignore")
def test_c05_quantised_layers_need_a_version_and_are_named_apart() -> None:
    one, other = tiny_model("llama"), tiny_model("llama")
    with torch.no_grad():
        other.model.layers[0].self_attn.k_proj.weight.mul_(3.0)
    for model in (quantised(one), quantised(other)):
        assert refused(model).reason is UncacheableReason.WEIGHTS_UNNAMED
    assert named(quantised(one), weights=VERSION).id != named(one, weights=VERSION).id


class Wrapped(torch.Tensor):
    """A tensor that may hold more than its bytes, as those of quantisation and sharding libraries do."""


@pytest.mark.parametrize("kind", ["subclass", "sparse"])
def test_weights_in_unusual_tensors_are_refused_and_not_raised(kind: str) -> None:
    model = tiny_model("llama")
    weight = model.model.norm.weight.detach()
    odd = weight.as_subclass(Wrapped) if kind == "subclass" else weight.to_sparse()
    model.model.norm.weight = torch.nn.Parameter(odd, requires_grad=False)
    worker = connect(model)
    assert worker.uncacheable is not None
    assert worker.uncacheable.reason is UncacheableReason.WEIGHTS_UNNAMED


@pytest.mark.parametrize("way", ["parameter", "data"])
def test_weights_that_take_the_place_of_freed_ones_are_noticed(way: str) -> None:
    model = torch.nn.Linear(
        2048, 2048, bias=False
    )  # as large as malloc takes from the kernel, and gives back
    seen = {weights_digest(model)}
    for fill in range(6):
        if way == "parameter":
            model.weight = None  # type: ignore[assignment]
            model.weight = torch.nn.Parameter(torch.full((2048, 2048), float(fill)))
        else:
            model.weight.data = torch.empty(0)
            model.weight.data = torch.full((2048, 2048), float(fill))
        digest = weights_digest(model)
        assert digest not in seen, f"replacement {fill}"
        seen.add(digest)


def test_which_weight_is_shared_is_part_of_the_digest() -> None:
    ids = set()
    for source in ("k_proj", "q_proj"):
        model = tiny_model("llama", num_key_value_heads=4)
        below = model.model.layers[0].self_attn
        model.model.layers[1].self_attn.k_proj.weight = getattr(below, source).weight
        ids.add(named(model).id)
    assert len(ids) == 2


# adapters


def test_c05_a_merged_adapter_is_noticed_though_the_weights_have_a_version() -> None:
    model = with_adapter("poet")
    worker = connect(model, weights=VERSION, adapter=Adapter("poet", b"1" * 32))
    worker.prefill(ROW)
    adapter_layer(model).merged_adapters = ("poet",)
    assert worker.prefill(ROW).report.reused == 0


def test_c05_one_adapter_at_another_scale_is_another_namespace() -> None:
    model, poet = with_adapter("poet"), Adapter("poet", b"1" * 32)
    ids = set()
    for scale in (1.0, 2.0):
        adapter_layer(model).scaling = {"poet": scale, "clerk": 7.0}
        ids.add(named(model, adapter=poet).id)
    adapter_layer(model).scaling["clerk"] = 8.0
    assert named(model, adapter=poet).id in ids, "another adapter's scale says nothing"
    assert len(ids) == 2


# arithmetic and settings


def test_under_autocast_nothing_is_reused_or_stored() -> None:
    """KV that was computed in bfloat16 is appended to a float32 cache without a trace."""
    sidecar = FakeSidecar()
    worker = connect(tiny_model("llama"), sidecar)
    worker.prefill(ROW[:, :17])
    before = dict(sidecar.pages)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for report in (worker.prefill(ROW).report, worker.generate(ROW, max_new_tokens=9).report):
            assert "autocast" in report.off
    assert sidecar.pages == before
    assert worker.prefill(ROW).report.pages_stored == 3, "afterwards as before"


def test_matmul_precision_is_part_of_the_name_whenever_and_however_it_is_set() -> None:
    model = tiny_model("llama")
    worker = connect(model)
    names = [worker.namespace]
    torch.set_float32_matmul_precision("medium")
    worker.prefill(ROW)
    names.append(worker.namespace)
    torch.set_float32_matmul_precision("highest")
    MATMUL.fp32_precision = "tf32"  # PyTorch names no single precision after this
    assert worker.prefill(ROW).report.reused == 0
    names.append(worker.namespace)
    assert all(isinstance(name, Namespace) for name in names)
    assert len(set(names)) == 3


def test_a_part_in_training_mode_turns_reuse_off() -> None:
    """As the dropout of an adapter that was added to a model after its eval()."""
    model = tiny_model("llama")
    mlp = model.model.layers[0].mlp
    mlp.up_proj = torch.nn.Sequential(mlp.up_proj, torch.nn.Dropout(0.5))
    assert not model.training
    report = connect(model).prefill(ROW).report
    assert "training mode" in report.off
    assert report.pages_stored == 0


def test_c33_settings_that_are_changed_after_construction_are_noticed() -> None:
    model = tiny_model("deepseek_v3")
    worker = connect(model, weights=VERSION)
    keys = worker.prefill(ROW).past_key_values.layers[2].values
    model.config.rope_interleave = not model.config.rope_interleave
    done = worker.prefill(ROW)
    assert largest_difference(done.past_key_values.layers[2].values, keys) > 1e-3
    assert done.report.reused == 0


def test_the_way_experts_are_computed_is_part_of_the_name() -> None:
    model = tiny_model("mixtral")
    worker = connect(model)
    worker.prefill(ROW)
    model.set_experts_implementation("eager")
    assert worker.prefill(ROW).report.reused == 0


# several threads


def test_no_call_takes_the_old_name_while_another_thread_names_the_changed_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, sidecar = tiny_model("llama"), FakeSidecar()
    worker = connect(model, sidecar)
    worker.prefill(ROW)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(1.5)
    naming, go_on = threading.Event(), threading.Event()
    module = sys.modules[TransformersConnector.__module__]
    identify = identify_model

    def slow(*arguments: Any) -> Namespace | Uncacheable:
        naming.set()
        assert go_on.wait(10)
        return identify(*arguments)

    monkeypatch.setattr(module, "identify_model", slow)
    reused: list[int] = []
    threads = [
        threading.Thread(target=lambda: reused.append(worker.prefill(ROW).report.reused)) for _ in range(2)
    ]
    threads[0].start()
    assert naming.wait(10)
    threads[1].start()
    threads[1].join(0.3)  # with the old name it would be done by now
    assert not reused
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert len(reused) == 2
    with torch.no_grad():
        assert largest_difference(worker.prefill(ROW).logits, model(ROW).logits[:, -1]) <= 1e-4
