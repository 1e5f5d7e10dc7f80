"""What a request adds to the namespace: tenant, adapter, images; and what takes no pages from outside."""

from __future__ import annotations

import collections
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference_worker.connectors.vllm.items import ItemDigests, extras_of
from inference_worker.connectors.vllm.naming import RequestNaming
from inference_worker.connectors.vllm.plan import Variant
from inference_worker.connectors.vllm.settings import ConnectorSettings
from kv_types.ids import NamespaceId
from kv_types.limits import (
    EXTRA_DIGEST_BYTES_MAX,
    EXTRA_DIGESTS_PER_PAGE_MAX,
    MULTIMODAL_ITEMS_MAX,
    MULTIMODAL_ITEMS_REMEMBERED_MAX,
)
from kv_types.namespace import Uncacheable, UncacheableReason
from kv_types.page_keys import page_keys
from tests.connectors.vllm.engine_objects import lora, request
from tests.connectors.vllm.files import write_model


class Item(collections.UserDict[str, Any]):
    """An item's processed content, as the engine keeps it."""


def _item(value: int = 0, *, size: int = 12) -> Item:
    pixels = SimpleNamespace(data=torch.full((3, size // 3), value, dtype=torch.float32), field=object())
    return Item(pixel_values=pixels)


def _feature(identifier: str = "h", offset: int = 0, length: int = 4, **changes: Any) -> Any:
    told: dict[str, Any] = {
        "data": _item(),
        "identifier": identifier,
        "mm_hash": identifier,
        "modality": "image",
        "mm_position": SimpleNamespace(offset=offset, length=length, is_embed=None),
    }
    return SimpleNamespace(**{**told, **changes})


def _naming(**settings: Any) -> RequestNaming:
    return RequestNaming(ConnectorSettings.of(settings))


def _reason(naming: RequestNaming, asked: Any) -> UncacheableReason:
    variant = naming.variant_of(asked, None)
    assert isinstance(variant, Uncacheable), variant
    return variant.reason


def test_a_plain_request_differs_in_nothing() -> None:
    assert _naming().variant_of(request(), None) == Variant()
    assert _naming().variant_of(request(), "v2") == Variant(weights_version="v2")


@pytest.mark.parametrize(
    ("tenant", "salt", "named"),
    [
        ("cache_salt", None, ""),
        ("cache_salt", "alice", "alice"),
        ("none", "alice", ""),
        ("fixed:team", "alice", "team"),
        ("fixed:team", None, "team"),
    ],
)
def test_tenants(tenant: str, salt: str | None, named: str) -> None:
    assert _naming(tenant=tenant).variant_of(request(cache_salt=salt), None) == Variant(tenant=named)


@pytest.mark.parametrize("salt", ["x" * 2000, "\ud800", 7])
def test_a_tenant_that_cannot_be_named(salt: Any) -> None:
    assert _reason(_naming(), request(cache_salt=salt)) is UncacheableReason.INVALID


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_embeds": object()},
        {"prompt_is_token_ids": [True]},
        {"pooling_params": object(), "sampling_params": None},
        {"resumable": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_input_without_a_name(changes: dict[str, Any]) -> None:
    assert _reason(_naming(), request(**changes)) is UncacheableReason.INPUT_UNNAMED


def test_adapters(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "a")
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"r": 8}')
    naming = _naming()
    variant = naming.variant_of(request(lora_request=lora("a", 1, folder)), None)
    assert isinstance(variant, Variant)
    assert variant.adapter is not None
    assert variant.adapter.name == "a"
    nowhere = request(lora_request=lora("a", 2, tmp_path / "nowhere"))
    assert _reason(naming, nowhere) is UncacheableReason.ADAPTER_WITHOUT_DIGEST


@pytest.mark.parametrize(
    ("changes", "reads"),
    [
        ({}, True),
        ({"skip_reading_prefix_cache": True}, False),
        ({"sampling_params": SimpleNamespace(prompt_logprobs=0)}, False),
        ({"sampling_params": SimpleNamespace(prompt_logprobs=5)}, False),
        ({"sampling_params": None, "pooling_params": object()}, False),
    ],
    ids=["plain", "skips", "prompt_logprobs_0", "prompt_logprobs_5", "pooling"],
)
def test_who_takes_pages_from_outside(changes: dict[str, Any], reads: bool) -> None:
    assert _naming().reads_external(request(**changes)) is reads


def _keys(naming: RequestNaming, asked: Any, *, page_tokens: int = 4, tokens: int = 16) -> bytes:
    extras = naming.extras_of(asked, page_tokens)
    assert not isinstance(extras, Uncacheable), extras
    return page_keys(NamespaceId(b"n" * 32), [7] * tokens, page_tokens=page_tokens, extras=extras)


def _image_keys(**changes: Any) -> bytes:
    return _keys(_naming(), request(mm_features=[_feature(**{"offset": 2, "length": 5, **changes})]))


def test_a_text_has_no_extras() -> None:
    assert _naming().extras_of(request(), 4) == {}


def test_images_are_told_by_their_content() -> None:
    before = _image_keys()
    assert _image_keys() == before
    assert _image_keys(identifier="other", mm_hash="other") == before
    assert _image_keys(data=_item(1)) != before
    assert _image_keys(modality="video") != before
    assert _image_keys(offset=3) != before
    assert _image_keys(length=6) != before
    mask = SimpleNamespace(offset=2, length=5, is_embed=torch.tensor([True, False, True, True, True]))
    assert _image_keys(mm_position=mask) != before


def test_every_page_of_an_image_carries_it_with_its_place() -> None:
    extras = _naming().extras_of(request(mm_features=[_feature(offset=6, length=7)]), 4)
    assert isinstance(extras, dict)
    assert sorted(extras) == [1, 2, 3]
    assert len({extra for page in extras.values() for extra in page}) == 3
    assert all(len(extra) <= EXTRA_DIGEST_BYTES_MAX for page in extras.values() for extra in page)


@given(st.integers(0, 200), st.integers(1, 200), st.integers(1, 64))
def test_exactly_the_pages_that_overlap(offset: int, length: int, page_tokens: int) -> None:
    extras = extras_of([_feature(offset=offset, length=length)], [b"d" * 32], page_tokens)
    assert isinstance(extras, dict)
    expected = {at // page_tokens for at in range(offset, offset + length)}
    assert set(extras) == expected


def test_two_images_that_trade_places_are_another_prompt() -> None:
    first, second = _feature("a", 0, 4), _feature("b", 4, 4, data=_item(1))
    there, back = _feature("b", 0, 4, data=_item(1)), _feature("a", 4, 4)
    one = _keys(_naming(), request(mm_features=[first, second]))
    other = _keys(_naming(), request(mm_features=[there, back]))
    assert one[:32] != other[:32]


def test_an_identifier_of_two_contents_names_nothing() -> None:
    """A client's own uuid for two images: the engine may compute with what it has encoded for the first."""
    naming = _naming()
    first = request(mm_features=[_feature("cat")])
    assert isinstance(naming.variant_of(first, None), Variant)
    second = request(mm_features=[_feature("cat", data=_item(1))])
    assert _reason(naming, second) is UncacheableReason.INPUT_UNNAMED
    assert isinstance(naming.extras_of(second, 4), Uncacheable)
    assert _reason(naming, first) is UncacheableReason.INPUT_UNNAMED


def test_what_cannot_be_cached_is_taken_note_of_all_the_same() -> None:
    naming = _naming()
    assert _reason(naming, request(prompt_embeds=object(), mm_features=[_feature("cat")]))
    assert _reason(naming, request(mm_features=[_feature("cat", data=_item(1))]))


def test_an_identifier_without_content_names_nothing() -> None:
    naming = _naming()
    assert _reason(naming, request(mm_features=[_feature("x", data=None)])) is UncacheableReason.INPUT_UNNAMED
    assert _reason(naming, request(mm_features=[_feature("x")])) is UncacheableReason.INPUT_UNNAMED


def test_an_image_that_an_adapter_encodes_names_nothing() -> None:
    assert _reason(_naming(), request(mm_features=[_feature("lora:h", mm_hash="h")]))


def test_encodings_of_other_engines_name_nothing() -> None:
    naming = RequestNaming(ConnectorSettings(), shares_encodings=True)
    assert _reason(naming, request(mm_features=[_feature()])) is UncacheableReason.INPUT_UNNAMED
    assert naming.variant_of(request(), None) == Variant()


@pytest.mark.parametrize(
    "content",
    [object(), torch.zeros(2, device="meta"), SimpleNamespace(a=1)],
    ids=["object", "meta tensor", "namespace"],
)
def test_content_that_cannot_be_read(content: Any) -> None:
    assert _reason(_naming(), request(mm_features=[_feature(data=Item(x=content))]))


def test_content_nested_without_end() -> None:
    nested: list[Any] = []
    nested.append(nested)
    assert _reason(_naming(), request(mm_features=[_feature(data=Item(x=nested))]))


CONTENTS: list[Any] = [
    None,
    0,
    False,
    0.0,
    "",
    b"",
    "0",
    [],
    [0],
    [[0]],
    {},
    {"a": 0},
    torch.zeros(0),
    torch.zeros(2),
    torch.zeros(2, 1),
    torch.zeros(2, dtype=torch.float16),
    torch.zeros(2, dtype=torch.bfloat16),
    torch.zeros(2, dtype=torch.int32),
    torch.tensor([True, False]),
]


def test_different_contents_have_different_digests() -> None:
    digests = ItemDigests()
    found: list[bytes] = []
    for number, content in enumerate(CONTENTS):
        told = digests.digests_of([_feature(str(number), data=Item(x=content))])
        assert isinstance(told, list)
        found += told
    assert len(set(found)) == len(CONTENTS)


def test_a_content_is_read_once_while_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    digests, data = ItemDigests(), _item()
    before = digests.digests_of([_feature(data=data)])
    data["pixel_values"].data += 1  # an engine doesn't; that it isn't seen shows that nothing was read
    assert digests.digests_of([_feature(data=data)]) == before
    assert len(digests._read) == 1
    del data
    assert len(digests._read) == 0


def test_limits_of_items() -> None:
    naming = _naming()
    many = [_feature(str(at), offset=at, length=1, data=_item(at)) for at in range(MULTIMODAL_ITEMS_MAX + 1)]
    assert _reason(naming, request(mm_features=many)) is UncacheableReason.INPUT_UNNAMED
    crowd = many[: EXTRA_DIGESTS_PER_PAGE_MAX + 1]
    assert isinstance(naming.extras_of(request(mm_features=crowd), 1024), Uncacheable)
    assert not isinstance(naming.extras_of(request(mm_features=crowd[:-1]), 1024), Uncacheable)


def test_identifiers_that_are_remembered_are_bounded() -> None:
    digests, data = ItemDigests(), _item()
    for number in range(MULTIMODAL_ITEMS_REMEMBERED_MAX + 10):
        digests._note(str(number), b"d")
    assert len(digests._contents) == MULTIMODAL_ITEMS_REMEMBERED_MAX
    assert isinstance(digests.digests_of([_feature(data=data)]), list)
