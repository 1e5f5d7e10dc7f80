"""What workers say of how their pages may be stored is part of their namespace, and nonsense is told at start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inference_worker.connectors.transformers import TransformersConnector
from inference_worker.connectors.vllm.identity import namespace_of
from inference_worker.connectors.vllm.plan import Variant
from inference_worker.connectors.vllm.settings import ConnectorSettings
from kv_types.errors import ConfigError, InvalidArgumentError
from kv_types.namespace import Namespace, StoredAs
from kv_types.scale_groups import check_stored_as
from tests.connectors.fakes import FakeClient, FakeSidecar
from tests.connectors.models import PAGE_TOKENS, shared_model
from tests.connectors.vllm.engine_objects import vllm_config
from tests.connectors.vllm.identities import VERSION, named


def transformers_space(**said: Any) -> Namespace:
    client = FakeClient(FakeSidecar())
    made = TransformersConnector(
        shared_model("llama"), client, page_tokens=PAGE_TOKENS, require_cacheable=True, **said
    ).namespace
    assert made is not None
    return made


@pytest.mark.parametrize("stored_as", StoredAs)
def test_a_transformers_worker_says_it_by_name_or_by_member(stored_as: StoredAs) -> None:
    plain, lossy = transformers_space(), transformers_space(stored_as=str(stored_as))
    assert plain.stored_as is None
    assert lossy == transformers_space(stored_as=stored_as)
    assert (lossy.stored_as, replace(lossy, stored_as=None)) == (stored_as, plain)
    assert lossy.id != plain.id


@pytest.mark.parametrize("value", ["fp8", "int4", "", 8], ids=str)
def test_what_is_no_codec_is_refused_with_those_that_are(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="'fp8_e4m3', 'int8'"):
        transformers_space(stored_as=value)
    with pytest.raises(ConfigError, match="fp8_e4m3, int8"):
        ConnectorSettings.of({"stored_as": value})


@pytest.mark.parametrize("stored_as", StoredAs)
def test_an_engines_workers_say_it_for_every_request(stored_as: StoredAs) -> None:
    plain, identity = (
        named(vllm_config()),
        named(vllm_config(), settings=replace(VERSION, stored_as=stored_as)),
    )
    assert isinstance(plain.base, Namespace)
    assert isinstance(identity.base, Namespace)
    assert (identity.base.stored_as, replace(identity.base, stored_as=None)) == (stored_as, plain.base)
    check_stored_as(identity.base, identity.page_bytes)
    assert namespace_of(identity.base, Variant(tenant="t", weights_version="2")).stored_as is stored_as
