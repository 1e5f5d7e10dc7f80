"""Identities of imitated engines, and what tests ask of them."""

from __future__ import annotations

from typing import Any

from inference_worker.connectors.vllm.identity import RankRange, WorkerIdentity, identify
from inference_worker.connectors.vllm.settings import ConnectorSettings
from kv_types.namespace import Namespace, Uncacheable, UncacheableReason
from tests.connectors.vllm.engine_objects import MACHINE, layout

VERSION = ConnectorSettings(weights_version="v1")


def named(config: Any, **changes: Any) -> WorkerIdentity:
    told: dict[str, Any] = {
        "layout": layout(),
        "rank": RankRange(),
        "settings": VERSION,
        "machine": MACHINE,
    }
    return identify(config, **{**told, **changes})


def base_of(config: Any, **changes: Any) -> Namespace:
    base = named(config, **changes).base
    assert isinstance(base, Namespace), base
    return base


def reason_of(config: Any, **changes: Any) -> UncacheableReason:
    identity = named(config, **changes)
    assert isinstance(identity.base, Uncacheable), identity.base
    assert identity.page_bytes == 0
    assert identity.base.detail
    return identity.base.reason
