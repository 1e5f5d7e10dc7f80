"""The floors of a log that keeps few selectors, by the rule as it is written down and in the plainest way (rule R4)."""

from __future__ import annotations

from collections.abc import Sequence

from kv_types.ids import NamespaceId
from kv_types.selectors import EVERYTHING, Selector


def floors_of(
    records: Sequence[tuple[int, Selector]], per_scope: int, tombstones: int, scopes: int
) -> tuple[int, dict[NamespaceId, int]]:
    """Floor of everything, and of namespaces, after records (revision, selector) in their order.

    Shares nothing with the product's: a floor that stands there and not here takes pages that nothing selects.
    """
    floor, floors, kept = 0, dict[NamespaceId, int](), dict[Selector, int]()

    def drop(old: Sequence[Selector]) -> None:
        nonlocal floor
        for one in old:
            revision = kept.pop(one)
            if one.namespace is None:
                floor = max(floor, revision)
            else:
                floors[one.namespace] = max(floors.get(one.namespace, 0), revision)

    for revision, selector in records:
        if selector == EVERYTHING:
            floor = revision
            floors.clear()
            kept.clear()
            continue
        if selector.namespace is not None and selector == Selector(namespace=selector.namespace):
            floors[selector.namespace] = revision
        else:
            kept.pop(selector, None)
            kept[selector] = revision
        of_scope = [one for one in kept if one.namespace == selector.namespace]
        if len(of_scope) > per_scope:
            drop(of_scope[: len(of_scope) - per_scope // 2])
        if len(kept) > tombstones:
            drop(list(kept)[: len(kept) - tombstones // 2])
        if len(floors) > scopes:
            for scope in sorted(floors, key=floors.__getitem__)[: len(floors) - scopes // 2]:
                floor = max(floor, floors.pop(scope))
    return floor, floors
