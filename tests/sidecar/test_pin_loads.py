"""What a pin lacks is loaded in portions, parents first, however much of it there is."""

from __future__ import annotations

from collections import defaultdict

import pytest

from cache_l2.pins import PinnedChain
from kv_types.ids import KEY_BYTES, NamespaceId
from kv_types.limits import LOAD_KEYS_MAX, LOAD_ROWS_MAX
from kv_types.operator_limits import PIN_CHAINS_MAX, PIN_PAGES_MAX
from sidecar.admin.pins import loads_of


def chain(number: int, pages: int) -> PinnedChain:
    keys = b"".join(number.to_bytes(16, "big") + page.to_bytes(16, "big") for page in range(pages))
    return PinnedChain(NamespaceId(number.to_bytes(32, "big")), keys, 4096)


@pytest.mark.parametrize(
    "pages",
    [
        [1],
        [LOAD_KEYS_MAX],
        [LOAD_KEYS_MAX + 1],
        [PIN_PAGES_MAX],
        [1] * PIN_CHAINS_MAX,
        [1] * LOAD_ROWS_MAX,
        [LOAD_KEYS_MAX - 1, 2, 1],
        [5, 3 * LOAD_KEYS_MAX, 7],
    ],
    ids=lambda pages: f"{len(pages)} chains of {sum(pages)} pages",
)
def test_all_of_it_in_order_and_none_larger_than_a_clients_may_be(pages: list[int]) -> None:
    chains = [chain(number, count) for number, count in enumerate(pages)]
    loaded: dict[NamespaceId, bytes] = defaultdict(bytes)
    for rows in loads_of(chains):
        assert 1 <= len(rows) <= LOAD_ROWS_MAX
        assert sum(len(row.keys) for row in rows) <= LOAD_KEYS_MAX * KEY_BYTES
        assert len({row.namespace for row in rows}) == len(rows), "a row stands on one of a load that is over"
        for row in rows:
            before = loaded[row.namespace]
            assert row.parent == (before[-KEY_BYTES:] or None)
            loaded[row.namespace] = before + row.keys
    assert dict(loaded) == {one.namespace: one.keys for one in chains}
