"""Settings of the vLLM connector: what each key takes, and what errors say."""

from __future__ import annotations

import dataclasses

import pytest

from inference_worker.connectors.vllm.settings import (
    ConnectorSettings,
    EngineCache,
    LoadMode,
    OnInvalidation,
    TenantSource,
    WeightsDigest,
)
from kv_types.errors import ConfigError
from kv_types.namespace import StoredAs


def test_nothing_given_is_the_defaults() -> None:
    assert ConnectorSettings.of({}) == ConnectorSettings()


def test_every_key_is_read() -> None:
    settings = ConnectorSettings.of(
        {
            "endpoint": "unix:/run/x.sock",
            "tenant": "fixed:team a",
            "weights_version": "v7",
            "weights_digest": "whole",
            "model_name": "llama",
            "look_up_deadline_s": 0,
            "store_deadline_s": 2.5,
            "scheduler_deadline_s": 1.5,
            "prefill_tokens_per_s": 12_000,
            "load_mode": "layerwise",
            "engine_cache": "drop",
            "on_invalidation": "recompute",
            "follow_weights": True,
            "page_tokens": 256,
            "stored_as": "int8",
            "save_generated": False,
            "require_cacheable": True,
        }
    )
    assert settings == ConnectorSettings(
        endpoint="unix:/run/x.sock",
        tenant_source=TenantSource.FIXED,
        fixed_tenant="team a",
        weights_version="v7",
        weights_digest=WeightsDigest.WHOLE,
        model_name="llama",
        look_up_deadline_s=0.0,
        store_deadline_s=2.5,
        scheduler_deadline_s=1.5,
        prefill_tokens_per_s=12_000.0,
        load_mode=LoadMode.LAYERWISE,
        engine_cache=EngineCache.DROP,
        on_invalidation=OnInvalidation.RECOMPUTE,
        follow_weights=True,
        page_tokens=256,
        stored_as=StoredAs.INT8,
        save_generated=False,
        require_cacheable=True,
    )
    defaults = ConnectorSettings()
    same = [
        f.name for f in dataclasses.fields(settings) if getattr(settings, f.name) == getattr(defaults, f.name)
    ]
    assert same == []


@pytest.mark.parametrize("value", ["cache_salt", "none"])
def test_the_other_tenants(value: str) -> None:
    assert ConnectorSettings.of({"tenant": value}).tenant_source == TenantSource(value)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("endpont", "x", "did you mean 'endpoint'"),
        ("load-mode", "sync", "did you mean 'load_mode'"),
        ("zzz", 1, "Known keys: endpoint, tenant"),
        ("endpoint", 7, "endpoint must be text"),
        ("endpoint", "", "endpoint is empty"),
        ("tenant", "salt", "cache_salt, none or fixed:<name>"),
        ("tenant", "fixed:", "the name in tenant is empty"),
        ("tenant", "fixed", "cache_salt, none or fixed:<name>"),
        ("tenant", None, "cache_salt, none or fixed:<name>"),
        ("weights_version", 3, "weights_version must be text"),
        ("weights_version", "\ud800", "weights version"),
        ("weights_digest", "sample", "nearest: sampled"),
        ("weights_digest", None, "one of sampled, whole"),
        ("load_mode", "SYNC", "one of sync, layerwise, async"),
        ("look_up_deadline_s", -1, "look_up_deadline_s must be between 0 and 60"),
        ("look_up_deadline_s", "1", "look_up_deadline_s must be a number"),
        ("look_up_deadline_s", float("nan"), "look_up_deadline_s must be between"),
        ("store_deadline_s", 0, "store_deadline_s must be above 0"),
        ("store_deadline_s", True, "store_deadline_s must be a number"),
        ("scheduler_deadline_s", 0, "scheduler_deadline_s must be above 0"),
        ("prefill_tokens_per_s", -1, "prefill_tokens_per_s must be a number, 0 or more"),
        ("prefill_tokens_per_s", True, "prefill_tokens_per_s must be a number"),
        ("prefill_tokens_per_s", float("inf"), "prefill_tokens_per_s must be a number"),
        ("page_tokens", 0, "page_tokens must be between 1"),
        ("page_tokens", 64.0, "page_tokens must be an integer"),
        ("page_tokens", True, "page_tokens must be an integer"),
        ("follow_weights", "true", "follow_weights must be true or false"),
        ("follow_weights", 1, "follow_weights must be true or false"),
        ("save_generated", None, "save_generated must be true or false"),
    ],
)
def test_what_is_wrong_is_said(key: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ConnectorSettings.of({key: value})
    assert said.replace("weights version", "weights_version") in str(caught.value)
    assert key in str(caught.value)


def test_no_object_is_no_configuration() -> None:
    with pytest.raises(ConfigError, match="must be an object"):
        ConnectorSettings.of([])  # type: ignore[arg-type]
