"""The public face: what users import, and the command that gathers the verbs.

`import stratakv` stays cheap: names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from stratakv.version import __version__

if TYPE_CHECKING:
    from inference_worker.client import Announced, Client, RegisteredNamespace, Request
    from inference_worker.settings import ClientSettings
    from kv_types.errors import StrataError
    from kv_types.ids import NamespaceId, PageKey, Stamp
    from kv_types.namespace import (
        Adapter,
        AttentionKind,
        Geometry,
        KvDtype,
        Namespace,
        Rope,
        StoredAs,
        Uncacheable,
        Weights,
    )
    from kv_types.outcomes import Hit, Known, Miss, MissReason, Pending, Refused, RefuseReason, Stored, Tier
    from kv_types.page_keys import KeyChain, page_keys
    from kv_types.page_layout import PageLayout
    from kv_types.validity import EngineMode, Instances

_HOMES = {
    "inference_worker.client": ("Announced", "Client", "RegisteredNamespace", "Request"),
    "inference_worker.settings": ("ClientSettings",),
    "kv_types.errors": ("StrataError",),
    "kv_types.ids": ("NamespaceId", "PageKey", "Stamp"),
    "kv_types.namespace": (
        "Adapter", "AttentionKind", "Geometry", "KvDtype", "Namespace", "Rope", "StoredAs", "Uncacheable",
        "Weights",
    ),
    "kv_types.outcomes": (
        "Hit", "Known", "Miss", "MissReason", "Pending", "Refused", "RefuseReason", "Stored", "Tier",
    ),
    "kv_types.page_keys": ("KeyChain", "page_keys"),
    "kv_types.page_layout": ("PageLayout",),
    "kv_types.validity": ("EngineMode", "Instances"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Adapter",
    "Announced",
    "AttentionKind",
    "Client",
    "ClientSettings",
    "EngineMode",
    "Geometry",
    "Hit",
    "Instances",
    "KeyChain",
    "Known",
    "KvDtype",
    "Miss",
    "MissReason",
    "Namespace",
    "NamespaceId",
    "PageKey",
    "PageLayout",
    "Pending",
    "RefuseReason",
    "Refused",
    "RegisteredNamespace",
    "Request",
    "Rope",
    "Stamp",
    "Stored",
    "StoredAs",
    "StrataError",
    "Tier",
    "Uncacheable",
    "Weights",
    "__version__",
    "page_keys",
]  # fmt: skip


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'stratakv' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
