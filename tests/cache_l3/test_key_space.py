"""Keys of records: one for each fleet, namespace and page, spread over a Cluster's slots."""

from __future__ import annotations

import pytest

from cache_l3.key_space import KeySpace, slot_of
from cache_l3.record_store import RecordName
from kv_types.errors import InvalidArgumentError
from kv_types.ids import NamespaceId, PageKey
from kv_types.limits import FLEET_NAME_BYTES_MAX, L3_KEY_BYTES_MAX
from tests.support.records import name


def test_a_key_names_fleet_namespace_and_page() -> None:
    found = KeySpace("prod-1").key(RecordName(NamespaceId(b"\x01" * 32), PageKey(b"\xab" * 32)))
    assert found == b"stratakv:prod-1:page:" + b"01" * 32 + b":" + b"ab" * 32
    assert len(KeySpace("f" * FLEET_NAME_BYTES_MAX).key(name(1))) <= L3_KEY_BYTES_MAX


def test_keys_of_one_chain_lie_in_many_slots() -> None:
    space = KeySpace("f")
    slots = {slot_of(space.key(name(number))) for number in range(1000)}
    assert len(slots) > 900
    assert all(0 <= slot < 16384 for slot in slots)
    assert slot_of(b"foo") == 12182  # as CLUSTER KEYSLOT says


@pytest.mark.parametrize("fleet", ["", "a:b", "a{b}", "a b", "*", ".", "x" * (FLEET_NAME_BYTES_MAX + 1)])
def test_a_fleet_whose_name_could_mean_something_else_is_refused(fleet: str) -> None:
    with pytest.raises(InvalidArgumentError):
        KeySpace(fleet)
