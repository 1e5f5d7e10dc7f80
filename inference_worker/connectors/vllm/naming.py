"""What a request adds to its workers' namespace: tenant, adapter, images, and whether it may take pages from outside."""

from __future__ import annotations

from typing import Any

from inference_worker.connectors.vllm.adapters import AdapterDigests
from inference_worker.connectors.vllm.items import ItemDigests, extras_of
from inference_worker.connectors.vllm.plan import Variant
from inference_worker.connectors.vllm.settings import ConnectorSettings, TenantSource
from kv_types.canonical import encode_text
from kv_types.computation import Adapter
from kv_types.errors import InvalidArgumentError
from kv_types.namespace import Uncacheable, UncacheableReason
from kv_types.page_keys import Extras


class RequestNaming:
    """Names requests of one engine. Thread-safe.

    Call `variant_of` for every request before the engine runs it, also where nothing is cached: it takes note of what the
    engine's own identifiers of images stand for.
    """

    def __init__(
        self,
        settings: ConnectorSettings,
        adapters: AdapterDigests | None = None,
        *,
        shares_encodings: bool = False,
    ) -> None:
        """`shares_encodings`: engines pass encoded images to one another, so that not all of them came by here."""
        self._settings = settings
        self._adapters = AdapterDigests() if adapters is None else adapters
        self._items = ItemDigests()
        self._shares_encodings = shares_encodings

    def variant_of(self, request: Any, weights_version: str | None) -> Variant | Uncacheable:
        """How a request's computation differs from the base namespace, or why nothing of it may be stored or reused."""
        items = self._items.digests_of(request.mm_features or ())
        problem = self._unnamed_input(request) or (items if isinstance(items, Uncacheable) else None)
        if problem is not None:
            return problem
        tenant = self._tenant_of(request)
        if isinstance(tenant, Uncacheable):
            return tenant
        adapter: Adapter | Uncacheable | None = None
        if request.lora_request is not None:
            adapter = self._adapters.adapter_of(request.lora_request)
            if isinstance(adapter, Uncacheable):
                return adapter
        return Variant(weights_version=weights_version, adapter=adapter, tenant=tenant)

    def extras_of(self, request: Any, page_tokens: int) -> Extras | Uncacheable:
        """What the keys of a request's pages hold beside its tokens: each image that a page overlaps."""
        features = request.mm_features or ()
        digests = self._items.digests_of(features)
        return digests if isinstance(digests, Uncacheable) else extras_of(features, digests, page_tokens)

    def reads_external(self, request: Any) -> bool:
        """Whether a request may take pages from outside: not when it needs something of every prompt position."""
        sampling = request.sampling_params
        if request.skip_reading_prefix_cache or sampling is None:
            return False
        return getattr(sampling, "prompt_logprobs", None) is None

    def _unnamed_input(self, request: Any) -> Uncacheable | None:
        why = ""
        if request.prompt_embeds is not None or getattr(request, "prompt_is_token_ids", None) is not None:
            why = "its prompt has embeddings, of which no content is at hand that tokens would tell"
        elif request.pooling_params is not None:
            why = "it is a pooling request"
        elif getattr(request, "resumable", False):
            why = "its prompt grows while it runs (streaming input)"
        elif request.mm_features and self._shares_encodings:
            why = "encoded images come from other engines, and nobody here has seen their content"
        return Uncacheable(UncacheableReason.INPUT_UNNAMED, why) if why else None

    def _tenant_of(self, request: Any) -> str | Uncacheable:
        if self._settings.tenant_source is not TenantSource.CACHE_SALT:
            return self._settings.fixed_tenant
        salt = request.cache_salt
        if salt is None:
            return ""
        try:
            encode_text(salt, "cache_salt")
        except InvalidArgumentError as error:
            return Uncacheable(UncacheableReason.INVALID, str(error))
        return str(salt)
