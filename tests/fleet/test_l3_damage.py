"""C27: records that are flipped, cut, lengthened or swapped where they lie, or on their way, are never served and don't stay."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

import pytest

from kv_types.outcomes import Known, MissReason, Stored
from kv_types.record import header_size
from tests.fleet.two_nodes import TwoNodes, fetch, split, two_nodes
from tests.support.fault_relay import TO_CLIENT
from tests.support.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

_CODECS = {"as it is": ("--l3-codec", "raw"), "compressed": ("--l3-codec", "zstd")}
_DRAW = random.Random(27)


@pytest.fixture(scope="module", params=_CODECS)
def nodes(request: pytest.FixtureRequest) -> Iterator[TwoNodes]:
    with two_nodes(flags=_CODECS[request.param]) as nodes:
        with nodes.stations() as (first, second):
            nodes.heals(first, second)
        yield nodes


def flipped(at: float) -> Callable[[bytes, bytes], bytes]:
    """One bit turned over, at a share of the record's length."""

    def change(record: bytes, other: bytes) -> bytes:
        changed = bytearray(record)
        changed[min(len(record) - 1, int(len(record) * at))] ^= 1 << _DRAW.randrange(8)
        return bytes(changed)

    return change


def in_payload(record: bytes, other: bytes) -> bytes:
    begin = header_size(record)
    changed = bytearray(record)
    changed[_DRAW.randrange(begin, len(record))] ^= 0x80
    return bytes(changed)


DAMAGES: Mapping[str, Callable[[bytes, bytes], bytes]] = {
    "its first bit": flipped(0.0),
    "its last bit": flipped(1.0),
    "a bit of its header": lambda record, other: flipped(0.7 * header_size(record) / len(record))(record, other),
    "a bit of its payload": in_payload,
    "another bit of its payload": in_payload,
    "cut to one byte": lambda record, other: record[:1],
    "cut in its header": lambda record, other: record[: header_size(record) // 2],
    "cut behind its header": lambda record, other: record[: header_size(record)],
    "cut in its payload": lambda record, other: record[: -(len(record) - header_size(record)) // 2],
    "cut by one byte": lambda record, other: record[:-1],
    "one byte longer": lambda record, other: record + b"\0",
    "twice": lambda record, other: record * 2,
    "another page's": lambda record, other: other,
    "another page's payload": lambda record, other: (
        record[: header_size(record)] + other[header_size(other) :]
    ),
    "something else": lambda record, other: b"not a record at all" * 20,
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_c27_a_damaged_record_is_a_miss_is_counted_and_is_removed(nodes: TwoNodes, damage: str) -> None:
    with nodes.stations() as (first, second):
        keys = nodes.share(first, 3)
        records, (root, victim, leaf) = nodes.records(), split(keys)
        before = nodes.corrupt(1)
        records.write(victim, DAMAGES[damage](records.read(victim), records.read(leaf)))
        got = fetch(second, keys, deadline_s=1.0)
        assert (got.pages, got.reason) == (1, MissReason.CORRUPT), got
        assert nodes.corrupt(1) == before + 1
        assert records.lives_s(victim) == -2, "it is removed"
        assert records.read(root)
        again = fetch(second, keys, deadline_s=1.0)
        assert (again.l2, again.l3, again.reason) == (1, 0, MissReason.ABSENT)
        with second.begin().request as request:
            got_before = request.lease(keys)
            with got_before:
                outcomes = request.put(keys, second.pages(keys)[1:], start=1)
        assert len(outcomes) == 2
        records.wait(keys)
        assert fetch(second, keys, deadline_s=1.0).pages == 3, "computed anew, it is as good as ever"


def test_c27_a_record_cut_to_nothing_is_as_good_as_none(nodes: TwoNodes) -> None:
    with nodes.stations() as (first, second):
        keys = nodes.share(first, 2)
        _, victim = split(keys)
        nodes.records().write(victim, b"")
        got = fetch(second, keys, deadline_s=1.0)
        assert (got.pages, got.reason in (MissReason.ABSENT, MissReason.CORRUPT)) == (1, True)
        assert all(isinstance(one, Stored | Known) for one in second.compute(keys))
        wait_until(lambda: nodes.records().read(victim) != b"", what="the record to be written anew")


def test_c27_what_was_damaged_on_its_way_is_not_served_and_the_record_survives_or_is_written_anew(
    nodes: TwoNodes,
) -> None:
    with nodes.stations() as (first, second):
        wrong = 0
        for _ in range(12):
            keys = nodes.share(first, 3)
            nodes.relay.cut_all()  # offsets count from a connection's beginning
            nodes.relay.set(TO_CLIENT, flip_at=_DRAW.randrange(200, 6000))
            got = fetch(second, keys, deadline_s=0.5)
            nodes.relay.set(TO_CLIENT, flip_at=None)
            wrong += got.pages < 3
            nodes.heals(first, second)
        assert wrong, "no flipped bit was noticed"
