"""Identity: what two models must share to exchange pages, what sets them apart, and what is refused with a reason."""

from __future__ import annotations

import copy
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from inference_worker.connectors.transformers import TransformersConnector, UnsupportedModelError
from inference_worker.connectors.transformers_identity import (
    Declared,
    base_model,
    identify_model,
)
from inference_worker.connectors.transformers_weights import weights_digest
from kv_types.namespace import (
    Adapter,
    AttentionKind,
    KvDtype,
    Namespace,
    Uncacheable,
    UncacheableReason,
    Weights,
)
from tests.connectors.fakes import FakeClient, FakeSidecar
from tests.connectors.models import (
    largest_difference,
    pad_rows,
    plain_cache,
    shared_model,
    tiny_config,
    tiny_model,
    tokens,
)


def name(model: Any, **said: Any) -> Namespace | Uncacheable:
    """Identify a model of which the caller says nothing but `said`."""
    declared = {"model_name": None, "weights": None, "adapter": None, "page_tokens": 16, "tenant": ""}
    return identify_model(model, Declared(**{**declared, **said}))


def named(model: Any, **said: Any) -> Namespace:
    namespace = name(model, **said)
    assert isinstance(namespace, Namespace), namespace
    return namespace


def refused(model: Any, **said: Any) -> Uncacheable:
    uncacheable = name(model, **said)
    assert isinstance(uncacheable, Uncacheable), uncacheable
    assert uncacheable.detail
    return uncacheable


def test_equal_models_have_one_name_whoever_built_them() -> None:
    assert named(tiny_model("llama")).id == named(tiny_model("llama")).id


def test_gqa_and_mla_geometry_are_read_from_the_configuration() -> None:
    gqa = named(shared_model("qwen3")).geometry
    assert (gqa.attention, gqa.layers_total, gqa.kv_heads_total, gqa.head_dim) == (
        AttentionKind.GQA,
        3,
        2,
        16,
    )
    mla = named(shared_model("deepseek_v3")).geometry
    assert (mla.attention, mla.layers_total, mla.latent_dim, mla.rope_dim) == (AttentionKind.MLA, 3, 32, 8)


def test_deepseek_caches_512_latent_and_64_rotated_numbers_a_token() -> None:
    model = tiny_model("deepseek_v3", kv_lora_rank=512, qk_rope_head_dim=64)
    geometry = named(model).geometry
    assert (geometry.latent_dim, geometry.rope_dim) == (512, 64)
    worker = TransformersConnector(model, FakeClient(FakeSidecar()), page_tokens=4, require_cacheable=True)
    layer = worker.prefill(tokens(9)[None]).past_key_values.layers[0]
    assert (layer.keys.shape, layer.values.shape) == ((1, 1, 9, 512), (1, 1, 9, 64))
    assert worker.prefill(tokens(9)[None]).report.reused == 8


@pytest.mark.parametrize(
    "changes",
    [
        {"rms_norm_eps": 1e-3},
        {"hidden_act": "gelu"},
        {"num_hidden_layers": 2},
        {"num_key_value_heads": 4},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}},
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 2.0,
                "attention_factor": 1.5,
                "original_max_position_embeddings": 256,
            }
        },
    ],
    ids=lambda changes: "-".join(str(value) for value in changes.values())[:40],
)
def test_c33_another_configuration_is_another_namespace_though_version_and_name_agree(
    changes: dict[str, Any],
) -> None:
    said = {"weights": Weights(version="v1"), "model_name": "m"}
    assert named(tiny_model("llama", **changes), **said).id != named(tiny_model("llama"), **said).id


def test_attention_scaling_of_yarn_is_part_of_the_name() -> None:
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 256}
    namespace = named(tiny_model("llama", rope_parameters=rope))
    assert namespace.rope is not None
    scaling = dict(namespace.rope.scaling)["attention_scaling"]
    assert isinstance(scaling, tuple)
    assert scaling[0] > 1.0


def test_what_shapes_no_kv_is_no_part_of_the_name() -> None:
    other = tiny_model("llama", use_cache=False, max_position_embeddings=1024, initializer_range=0.5)
    other.load_state_dict(tiny_model("llama").state_dict())
    other.config._name_or_path = "/somewhere/else"
    said = {"weights": Weights(version="v1")}
    assert named(other, **said).id == named(tiny_model("llama"), **said).id


def test_arithmetic_is_part_of_the_name() -> None:
    said = {"weights": Weights(version="v1")}
    model = tiny_model("llama")
    sdpa = named(model, **said)
    model.set_attn_implementation("eager")
    eager = named(model, **said)
    half = named(tiny_model("llama", dtype=torch.bfloat16), **said)
    assert len({sdpa.id, eager.id, half.id}) == 3
    assert half.kv_dtype is KvDtype.BF16


def test_one_changed_weight_is_another_namespace() -> None:
    model = tiny_model("llama")
    before = named(model)
    with torch.no_grad():
        model.model.layers[2].mlp.up_proj.weight[3, 5] += 1e-3
    assert named(model).id != before.id
    assert (
        named(model, weights=Weights(version="v1")).id
        == named(tiny_model("llama"), weights=Weights(version="v1")).id
    )


def test_the_digest_sees_buffers_shapes_and_types() -> None:
    model = torch.nn.Module()
    model.register_buffer("b", torch.arange(6, dtype=torch.int32))
    digests = [weights_digest(model)]
    for tensor in (
        torch.arange(6, dtype=torch.int32).reshape(2, 3),
        torch.arange(6, dtype=torch.int32).view(torch.float32),
        torch.arange(6, dtype=torch.int32).flip(0),
        torch.tensor(0),
        torch.empty(0),
    ):
        model.b = tensor
        digests.append(weights_digest(model))
    assert len(set(digests)) == len(digests)


def test_the_digest_is_remembered_until_weights_change() -> None:
    model = tiny_model("llama")
    first = weights_digest(model)
    model.lm_head.weight.data.add_(1.0)  # leaves no trace in PyTorch
    assert weights_digest(model) == first
    with torch.no_grad():
        model.lm_head.weight.add_(1.0)
    assert weights_digest(model) != first


def test_tenants_and_page_sizes_are_apart_c37() -> None:
    model = shared_model("llama")
    ids = {named(model, tenant=tenant, page_tokens=size).id for tenant in ("", "a", "b") for size in (8, 16)}
    assert len(ids) == 6


def test_c37_tenant_b_never_gets_tenant_as_page() -> None:
    sidecar, model, row = FakeSidecar(), shared_model("llama"), tokens(40)[None]
    workers = {
        tenant: TransformersConnector(model, FakeClient(sidecar), tenant=tenant, page_tokens=8)
        for tenant in ("a", "b")
    }
    workers["a"].prefill(row)
    assert workers["a"].prefill(row).report.reused == 39
    assert workers["b"].prefill(row).report.reused == 0


# refusals


def test_models_whose_kv_is_not_kept_whole_are_refused_with_the_reason() -> None:
    sliding = AutoModelForCausalLM.from_config(tiny_config("mistral", sliding_window=16)).eval()
    assert refused(sliding).reason is UncacheableReason.SLIDING_WINDOW
    some = tiny_config("qwen2", use_sliding_window=True, sliding_window=16, max_window_layers=1)
    assert refused(AutoModelForCausalLM.from_config(some)).reason is UncacheableReason.SLIDING_WINDOW
    hybrid = CONFIG_MAPPING["mamba"](vocab_size=96, hidden_size=32, num_hidden_layers=2, state_size=4)
    assert refused(AutoModelForCausalLM.from_config(hybrid)).reason is UncacheableReason.LAYER_KIND


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
        {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "factor": 2.0,
            "short_factor": [1.0] * 8,
            "long_factor": [2.0] * 8,
            "original_max_position_embeddings": 256,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_rotation_that_depends_on_the_length_is_refused(rope: dict[str, Any]) -> None:
    assert refused(tiny_model("llama", rope_parameters=rope)).reason is UncacheableReason.ROPE_DYNAMIC


def test_other_ways_of_positions_and_unknown_kinds_are_refused() -> None:
    gpt2 = CONFIG_MAPPING["gpt2"](vocab_size=96, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    assert refused(AutoModelForCausalLM.from_config(gpt2)).reason is UncacheableReason.POSITION_UNNAMED
    bloom = CONFIG_MAPPING["bloom"](vocab_size=96, hidden_size=32, n_layer=2, n_head=2)
    assert refused(AutoModelForCausalLM.from_config(bloom)).reason is UncacheableReason.POSITION_UNNAMED
    unknown = refused(AutoModelForCausalLM.from_config(tiny_config("gpt_neox")))
    assert unknown.reason is UncacheableReason.MODEL_UNSUPPORTED
    assert "llama" in unknown.detail, "it says what is supported"
    t5 = CONFIG_MAPPING["t5"](vocab_size=96, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    assert refused(AutoModelForSeq2SeqLM.from_config(t5)).reason is UncacheableReason.LAYER_KIND


def test_weights_that_are_not_in_memory_need_a_version() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(tiny_config("llama"))
    assert refused(model).reason is UncacheableReason.WEIGHTS_UNNAMED
    assert "Weights(version" in refused(model).detail
    assert named(model, weights=Weights(version="v1"))


def test_a_model_on_several_devices_is_refused() -> None:
    model = tiny_model("llama")
    model.model.layers[2].to("meta")
    uncacheable = refused(model, weights=Weights(version="v1"))
    assert uncacheable.reason is UncacheableReason.MODEL_UNSUPPORTED
    assert "meta" in uncacheable.detail


class AdapterLayer(torch.nn.Linear):
    """What PEFT's layers say of themselves; PEFT is not among our dependencies."""

    _disable_adapters = False
    active_adapters: tuple[str, ...] = ()
    merged_adapters: tuple[str, ...] = ()


def with_adapter(*names: str) -> Any:
    """A model with adapters in one layer, which change nothing."""
    model = tiny_model("llama")
    attention = model.model.layers[1].self_attn
    layer = AdapterLayer(attention.q_proj.in_features, attention.q_proj.out_features, bias=False).eval()
    layer.load_state_dict(attention.q_proj.state_dict())
    layer.active_adapters = names
    attention.q_proj = layer
    return model


def adapter_layer(model: Any) -> Any:
    return model.model.layers[1].self_attn.q_proj


def test_c05_an_adapter_needs_a_digest_and_its_content_is_part_of_the_name() -> None:
    model = with_adapter("poet")
    assert refused(model).reason is UncacheableReason.ADAPTER_WITHOUT_DIGEST
    one = named(model, adapter=Adapter("poet", b"1" * 32))
    two = named(model, adapter=Adapter("poet", b"2" * 32))
    none = named(tiny_model("llama"))
    assert len({one.id, two.id, none.id}) == 3
    assert refused(model, adapter=Adapter("other", b"1" * 32)).reason is UncacheableReason.INVALID
    several = with_adapter("poet", "clerk")
    assert refused(several, adapter=Adapter("poet", b"1" * 32)).reason is UncacheableReason.INVALID


def test_c05_two_workers_with_one_adapter_name_and_other_content_share_nothing() -> None:
    sidecar, row = FakeSidecar(), tokens(40)[None]
    workers = [
        TransformersConnector(
            with_adapter("poet"), FakeClient(sidecar), adapter=Adapter("poet", digest), page_tokens=8
        )
        for digest in (b"1" * 32, b"2" * 32)
    ]
    assert workers[0].prefill(row).report.pages_stored == 5
    assert workers[1].prefill(row).report.reused == 0


def test_a_compiled_model_is_seen_through_and_named_apart() -> None:
    model = shared_model("llama")
    said: dict[str, Any] = {"weights": Weights(version="v1")}
    compiled = torch.compile(model)  # compiles at its first call, which does not come
    assert base_model(compiled) is model
    assert named(compiled, **said).model == named(model, **said).model
    assert named(compiled, **said).id != named(model, **said).id


class Wrapped(torch.nn.Module):
    """What PEFT makes of a model, as far as its own forward hides the arguments."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def get_base_model(self) -> Any:
        return self.inner

    def __getattr__(self, name_: str) -> Any:
        try:
            return super().__getattr__(name_)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name_)

    def forward(self, *arguments: Any, **named_: Any) -> Any:
        return self.inner(*arguments, **named_)


def test_a_wrapped_model_gets_positions_and_cache_all_the_same() -> None:
    model = shared_model("llama")
    worker = TransformersConnector(Wrapped(model).eval(), FakeClient(FakeSidecar()), page_tokens=8)
    assert worker.namespace is not None
    assert worker.namespace.model == "LlamaForCausalLM"
    rows = [tokens(40), tokens(21, seed=2)]
    ids, mask = pad_rows(rows, "left")
    worker.prefill(ids, mask)
    done = worker.prefill(ids, mask)
    assert done.report.reused > 0
    for index, row in enumerate(rows):
        assert largest_difference(done.logits[index], plain_cache(model, row)[1][-1]) <= 1e-5


# what a user sees


def test_an_uncacheable_model_is_served_without_reuse_and_says_why_once(caplog: Any) -> None:
    model = AutoModelForCausalLM.from_config(tiny_config("mistral", sliding_window=16)).eval()
    with caplog.at_level(logging.WARNING, "stratakv.transformers"):
        worker = TransformersConnector(model, FakeClient(FakeSidecar()))
        row = tokens(30)[None]
        for _ in range(2):
            done = worker.prefill(row)
            assert (done.report.reused, done.report.pages_stored) == (0, 0)
            assert "sliding window" in done.report.off
        with torch.no_grad():
            assert largest_difference(done.logits, model(row).logits[:, -1]) <= 1e-5
        text = worker.generate(row, max_new_tokens=4, do_sample=False).sequences
        assert torch.equal(text, model.generate(row, max_new_tokens=4, do_sample=False))
    assert worker.uncacheable is not None
    assert worker.namespace is None
    assert [record.message.count("sliding_window") for record in caplog.records] == [1]


def test_require_cacheable_raises_with_the_reason() -> None:
    model = AutoModelForCausalLM.from_config(tiny_config("mistral", sliding_window=16))
    with pytest.raises(UnsupportedModelError, match="sliding_window") as caught:
        TransformersConnector(model, FakeClient(FakeSidecar()), require_cacheable=True)
    assert caught.value.uncacheable.reason is UncacheableReason.SLIDING_WINDOW


def test_edited_weights_are_noticed_before_the_next_request() -> None:
    model, sidecar, row = tiny_model("llama"), FakeSidecar(), tokens(40)[None]
    worker = TransformersConnector(model, FakeClient(sidecar), page_tokens=8)
    worker.prefill(row)
    assert worker.prefill(row).report.reused == 39
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(1.5)
    done = worker.prefill(row)
    assert done.report.reused == 0
    with torch.no_grad():
        assert largest_difference(done.logits, model(row).logits[:, -1]) <= 1e-5
    model.model.embed_tokens.weight.data.mul_(1.5)
    worker.refresh()
    assert worker.prefill(row).report.reused == 0, "after refresh(), also what PyTorch does not count"


def test_a_call_that_spans_a_change_of_weights_stores_nothing() -> None:
    model, sidecar, row = tiny_model("llama"), FakeSidecar(), tokens(40)[None]
    worker = TransformersConnector(model, FakeClient(sidecar), page_tokens=8)

    def edit(module: Any, arguments: Any) -> None:
        with torch.no_grad():
            model.lm_head.weight.mul_(1.01)

    handle = model.register_forward_pre_hook(edit)
    report = worker.prefill(row).report
    handle.remove()
    assert "changed" in report.off
    assert not sidecar.pages
    assert worker.prefill(row).report.pages_stored == 5


def test_weights_version_spares_the_digest() -> None:
    model = tiny_model("llama")
    worker = TransformersConnector(model, FakeClient(FakeSidecar()), weights=Weights(version="step-7"))
    assert worker.namespace is not None
    assert worker.namespace.weights == Weights(version="step-7")


def test_switching_an_adapter_on_ends_reuse_at_once() -> None:
    model, row = with_adapter("poet"), tokens(40)[None]
    adapter_layer(model)._disable_adapters = True
    worker = TransformersConnector(model, FakeClient(FakeSidecar()), page_tokens=8)
    worker.prefill(row)
    assert worker.prefill(row).report.reused == 39
    adapter_layer(model)._disable_adapters = False
    report = worker.prefill(row).report
    assert (report.reused, report.pages_stored) == (0, 0)
    assert "poet" in report.off
    assert worker.uncacheable is not None
    adapter_layer(model)._disable_adapters = True
    assert worker.prefill(row).report.reused == 39
    assert worker.uncacheable is None, "and it comes back when the adapter is off again"


def test_c05_pages_of_an_adapter_are_not_served_while_it_is_disabled() -> None:
    sidecar, row = FakeSidecar(), tokens(40)[None]
    model = with_adapter("poet")
    worker = TransformersConnector(
        model, FakeClient(sidecar), adapter=Adapter("poet", b"1" * 32), page_tokens=8
    )
    worker.prefill(row)
    adapter_layer(model)._disable_adapters = True  # what PEFT's disable_adapter() does, and all that it does
    report = worker.prefill(row).report
    assert report.reused == 0
    assert "poet" in report.off
    adapter_layer(model)._disable_adapters = False
    assert worker.prefill(row).report.reused == 39


def test_merging_an_adapter_is_noticed_though_it_edits_tensor_data() -> None:
    model = with_adapter("poet")
    said: dict[str, Any] = {"adapter": Adapter("poet", b"1" * 32)}
    before = named(model, **said)
    layer = adapter_layer(model)
    layer.weight.data.add_(1.0)
    layer.merged_adapters = ("poet",)
    after = named(model, **said)
    assert (after.weights, after.id) != (before.weights, before.id)
    assert after.weights != before.weights


def test_a_learned_prompt_is_refused() -> None:
    model = tiny_model("llama")
    model.peft_config = {"default": SimpleNamespace(is_prompt_learning=True)}
    assert refused(model).reason is UncacheableReason.POSITION_UNNAMED


def test_training_mode_turns_reuse_off_for_the_call() -> None:
    model = copy.deepcopy(shared_model("llama"))
    worker = TransformersConnector(model, FakeClient(FakeSidecar()), page_tokens=8)
    model.train()
    assert "training" in worker.prefill(tokens(40)[None]).report.off
    model.eval()
    assert worker.prefill(tokens(40)[None]).report.pages_stored == 5
