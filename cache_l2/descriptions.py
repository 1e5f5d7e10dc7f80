"""Descriptions of resident pages, as they travel with their bytes; and what a description says of a page to be judged."""

from __future__ import annotations

from collections.abc import Mapping

from cache_l2.checks import unix_ms_of
from cache_l2.inspection import entry_bytes, entry_number
from cache_l2.judging import CommitTerms
from cache_l2.namespaces import NamespaceRegistry
from cache_l2.provenance import ProvenanceTable
from kv_types.ids import Stamp, log_incarnation, page_key
from kv_types.record import PageDescription


def page_description(
    entry: Mapping[str, int | bytes],
    namespaces: NamespaceRegistry,
    provenances: ProvenanceTable,
    *,
    now_ns: int,
    wall_ms: int,
) -> PageDescription:
    """Read an entry of the arena, at a time of the boot clock and what the wall clock says then.

    What a client said that no record can hold is told as unknown, which every selector that asks for it matches: a
    producer whose name ends with a zero byte, and times that run backwards.
    """
    provenance = provenances.provenance(entry_number(entry, "producer"))
    is_unknown = provenance is None or provenance.producer.endswith(b"\0")
    from_ms, until_ms = entry_number(entry, "computed_from_ms"), entry_number(entry, "computed_until_ms")
    parent = entry.get("parent")
    return PageDescription(
        namespace=namespaces.of_number(entry_number(entry, "namespace_slot")).id,
        key=page_key(entry_bytes(entry, "key")),
        parent=page_key(parent) if isinstance(parent, bytes) else None,
        stamp=Stamp(log_incarnation(entry_bytes(entry, "incarnation")), entry_number(entry, "revision")),
        payload_bytes=entry_number(entry, "payload_bytes"),
        birth=entry_number(entry, "birth"),
        rests_on=entry_number(entry, "rests_on"),
        producer=b"" if provenance is None or is_unknown else provenance.producer,
        tags=() if provenance is None or is_unknown else provenance.tags,
        computed_from_ms=from_ms if from_ms <= until_ms else 0,
        computed_until_ms=until_ms if from_ms <= until_ms else 0,
        expires_ms=unix_ms_of(entry_number(entry, "expiry_s"), now_ns, wall_ms),
        origin_unknown=is_unknown,
    )


def terms_of(page: PageDescription) -> CommitTerms:
    """What a page that was computed elsewhere is judged by."""
    return CommitTerms(
        stamp=page.stamp,
        producer=None if page.origin_unknown else page.producer,
        tags=None if page.origin_unknown else page.tags,
        computed_from_ms=page.computed_from_ms,
        computed_until_ms=page.computed_until_ms,
        rests_on=page.rests_on,
    )
