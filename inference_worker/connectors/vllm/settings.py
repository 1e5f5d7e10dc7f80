"""The connector's settings, as they stand in `kv_connector_extra_config`: each checked, each error says what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kv_types.computation import check_name
from kv_types.errors import ConfigError, InvalidArgumentError
from kv_types.limits import (
    CALL_S_MAX,
    ENGINE_LOOK_UP_S_MAX,
    PAGE_TOKENS_MAX,
    VLLM_SCHEDULER_DEADLINE_S_DEFAULT,
)
from kv_types.namespace import StoredAs
from kv_types.numbers import check_integer, check_rate, check_seconds


class TenantSource(StrEnum):
    """Where a request's tenant comes from."""

    CACHE_SALT = "cache_salt"
    NONE = "none"
    FIXED = "fixed"


class WeightsDigest(StrEnum):
    """How much of the weights' files a content digest reads."""

    SAMPLED = "sampled"
    WHOLE = "whole"


class LoadMode(StrEnum):
    """When pages come into the engine's blocks."""

    SYNC = "sync"
    LAYERWISE = "layerwise"
    ASYNC = "async"


class EngineCache(StrEnum):
    """What the engine's own prefix cache does without freshness."""

    KEEP = "keep"
    DROP = "drop"


class OnInvalidation(StrEnum):
    """What becomes of running requests that used what was invalidated."""

    FINISH = "finish"
    RECOMPUTE = "recompute"


_FIXED_PREFIX = "fixed:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSettings:
    """What an operator may choose; made by `of`.

    endpoint: the sidecar's; None is the client's default. tenant_source: a request's `cache_salt` by default;
    `fixed_tenant` is its name where one was given as `fixed:<name>`. weights_version: names the weights, instead of
    the hub's commit or a digest of their files. model_name: None is the served model's own. look_up_deadline_s: how
    long a request may wait for pages of L3 before it is scheduled without. store_deadline_s: how long one save may
    take. scheduler_deadline_s: how long the whole engine may wait for a sidecar that has to be told of a tenant.
    prefill_tokens_per_s: how many tokens of prompts the engine computes in a second; pages of L3 that it would sooner
    compute are not loaded. 0: it is measured. follow_weights: take announced versions of weights for this engine's own.
    page_tokens: a multiple of the engine's block size; None lets the connector choose. stored_as: pages may come back from
    L3 as this lossy codec leaves them; None: bit for bit. save_generated: store pages of generated tokens too.
    require_cacheable: refuse to start where the model can't be named.
    """

    endpoint: str | None = None
    tenant_source: TenantSource = TenantSource.CACHE_SALT
    fixed_tenant: str = ""
    weights_version: str | None = None
    weights_digest: WeightsDigest = WeightsDigest.SAMPLED
    model_name: str | None = None
    look_up_deadline_s: float = 0.5
    store_deadline_s: float = 5.0
    scheduler_deadline_s: float = VLLM_SCHEDULER_DEADLINE_S_DEFAULT
    prefill_tokens_per_s: float = 0.0
    load_mode: LoadMode = LoadMode.SYNC
    engine_cache: EngineCache = EngineCache.KEEP
    on_invalidation: OnInvalidation = OnInvalidation.FINISH
    follow_weights: bool = False
    page_tokens: int | None = None
    stored_as: StoredAs | None = None
    save_generated: bool = True
    require_cacheable: bool = False

    @classmethod
    def of(cls, extra_config: Mapping[str, object]) -> ConnectorSettings:
        """Read them from JSON values. Raises ConfigError naming the key, what is allowed, and the nearest known key."""
        if not isinstance(extra_config, Mapping):
            raise ConfigError(
                f"kv_connector_extra_config must be an object; got {type(extra_config).__name__}"
            )
        values: dict[str, Any] = {}
        for key, value in extra_config.items():
            if key not in _READERS:
                raise ConfigError(_unknown(key))
            try:
                values |= _READERS[key](key, value)
            except InvalidArgumentError as error:
                raise ConfigError(f"kv_connector_extra_config: {error}") from error
        return cls(**values)


Reader = Callable[[str, object], dict[str, Any]]


def _unknown(key: object) -> str:
    near = difflib.get_close_matches(str(key), _READERS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"kv_connector_extra_config has no key {key!r}{hint} Known keys: {', '.join(_READERS)}"


def _wrong(key: str, allowed: str, value: object) -> ConfigError:
    return ConfigError(f"kv_connector_extra_config: {key} must be {allowed}; got {value!r}")


def _text_or_null(key: str, value: object) -> dict[str, Any]:
    if value is None:
        return {key: None}
    if not isinstance(value, str):
        raise _wrong(key, "text, or null", value)
    check_name(value, key)
    return {key: value}


def _switch(key: str, value: object) -> dict[str, Any]:
    if not isinstance(value, bool):
        raise _wrong(key, "true or false", value)
    return {key: value}


def _choice(kind: type[StrEnum]) -> Reader:
    def read(key: str, value: object) -> dict[str, Any]:
        names = [str(member) for member in kind]
        if not isinstance(value, str) or value not in names:
            near = difflib.get_close_matches(value, names, n=1) if isinstance(value, str) else []
            hint = f" (nearest: {near[0]})" if near else ""
            raise _wrong(key, f"one of {', '.join(names)}{hint}", value)
        return {key: kind(value)}

    return read


def _seconds(most: float, *, may_be_0: bool = False) -> Reader:
    def read(key: str, value: object) -> dict[str, Any]:
        check_seconds(value, key, most=most, may_be_0=may_be_0)  # type: ignore[arg-type]
        return {key: float(value)}  # type: ignore[arg-type]

    return read


def _stored_as(key: str, value: object) -> dict[str, Any]:
    return {key: None} if value is None else _choice(StoredAs)(key, value)


def _rate(key: str, value: object) -> dict[str, Any]:
    check_rate(value, key)  # type: ignore[arg-type]
    return {key: float(value)}  # type: ignore[arg-type]


def _page_tokens(key: str, value: object) -> dict[str, Any]:
    if value is not None:
        check_integer(value, key, low=1, high=PAGE_TOKENS_MAX)  # type: ignore[arg-type]
    return {key: value}


def _tenant(key: str, value: object) -> dict[str, Any]:
    if value in (TenantSource.CACHE_SALT.value, TenantSource.NONE.value):
        return {"tenant_source": TenantSource(str(value))}
    if isinstance(value, str) and value.startswith(_FIXED_PREFIX):
        name = value.removeprefix(_FIXED_PREFIX)
        check_name(name, f"the name in {key}")
        return {"tenant_source": TenantSource.FIXED, "fixed_tenant": name}
    raise _wrong(key, "cache_salt, none or fixed:<name>", value)


_READERS: dict[str, Reader] = {
    "endpoint": _text_or_null,
    "tenant": _tenant,
    "weights_version": _text_or_null,
    "weights_digest": _choice(WeightsDigest),
    "model_name": _text_or_null,
    "look_up_deadline_s": _seconds(ENGINE_LOOK_UP_S_MAX, may_be_0=True),
    "store_deadline_s": _seconds(CALL_S_MAX),
    "scheduler_deadline_s": _seconds(CALL_S_MAX),
    "prefill_tokens_per_s": _rate,
    "load_mode": _choice(LoadMode),
    "engine_cache": _choice(EngineCache),
    "on_invalidation": _choice(OnInvalidation),
    "follow_weights": _switch,
    "page_tokens": _page_tokens,
    "stored_as": _stored_as,
    "save_generated": _switch,
    "require_cacheable": _switch,
}
