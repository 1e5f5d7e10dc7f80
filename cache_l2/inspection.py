"""What is known of one resident page, for people who ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cache_l2.namespaces import NamespaceRecord, NamespaceRegistry
from cache_l2.provenance import ProvenanceTable
from kv_types.ids import PageKey, Stamp, log_incarnation, page_key
from kv_types.selectors import Origin

_NS = 1_000_000_000
_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFacts:
    """One visible page. `producer` and `tags` of its `origin` are None where they were not kept apart.

    `parent` None: a root page. `expires_in_ms` and `last_access_ms_ago` are None for a page that never expires, or that
    was not read yet.
    """

    key: PageKey
    parent: PageKey | None
    namespace: NamespaceRecord
    stamp: Stamp
    origin: Origin
    payload_bytes: int
    leases: int
    expires_in_ms: int | None
    last_access_ms_ago: int | None


def page_facts(
    entry: Mapping[str, int | bytes],
    namespaces: NamespaceRegistry,
    provenances: ProvenanceTable,
    *,
    now_ns: int,
) -> PageFacts:
    """Read an entry of the arena."""
    provenance = provenances.provenance(entry_number(entry, "producer"))
    parent = entry.get("parent")
    revision = entry_number(entry, "revision")
    expiry_s, last_access_ns = entry_number(entry, "expiry_s"), entry_number(entry, "last_access_ns")
    return PageFacts(
        key=page_key(entry_bytes(entry, "key")),
        parent=page_key(parent) if isinstance(parent, bytes) else None,
        namespace=namespaces.of_number(entry_number(entry, "namespace_slot")),
        stamp=Stamp(log_incarnation(entry_bytes(entry, "incarnation")), revision),
        origin=Origin(
            producer=None if provenance is None else provenance.producer,
            tags=None if provenance is None else provenance.tags,
            from_ms=entry_number(entry, "computed_from_ms"),
            until_ms=entry_number(entry, "computed_until_ms"),
            revision=revision,
            lineage_known=not entry_number(entry, "lineage_unknown"),
        ),
        payload_bytes=entry_number(entry, "payload_bytes"),
        leases=entry_number(entry, "leases"),
        expires_in_ms=max(0, expiry_s * _NS - now_ns) // _NS_PER_MS if expiry_s else None,
        last_access_ms_ago=max(0, now_ns - last_access_ns) // _NS_PER_MS if last_access_ns else None,
    )


def entry_number(entry: Mapping[str, int | bytes], name: str) -> int:
    """Read a number of an entry."""
    value = entry[name]
    assert isinstance(value, int)
    return value


def entry_bytes(entry: Mapping[str, int | bytes], name: str) -> bytes:
    """Read bytes of an entry."""
    value = entry[name]
    assert isinstance(value, bytes)
    return value
