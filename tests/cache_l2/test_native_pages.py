"""The native arena through one process: reserving, publishing, hiding and expiring pages."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from cache_l2 import _native
from kv_types import limits, operator_limits
from kv_types.outcomes import MissReason, PutStatus, RefuseReason
from tests.support.native_arena import PAGE, NativeArena, chain, now_ns, payload, selection

STORED = (PutStatus.STORED, RefuseReason.NONE)
NATIVE = Path(__file__).resolve().parents[2] / "cache_l2" / "native"
KNOWN = (PutStatus.KNOWN, RefuseReason.NONE)


def refused(reason: RefuseReason) -> tuple[int, int]:
    return (PutStatus.REFUSED, reason)


def test_a_page_is_seen_only_after_its_commit() -> None:
    world = NativeArena()
    keys = chain("a", 6)
    answers = world.reserve(keys)
    assert [answer.status for answer in answers] == [PutStatus.STORED] * 6
    assert world.reader.match(b"".join(keys), namespace=1) == (0, MissReason.ABSENT)
    assert world.commit([answer.reservation for answer in answers[:3]]) == [STORED] * 3
    assert world.reader.match(b"".join(keys), namespace=1) == (3, MissReason.ABSENT)
    assert world.commit([answer.reservation for answer in answers[3:]]) == [STORED] * 3
    assert world.reader.match(b"".join(keys), namespace=1) == (6, MissReason.NONE)
    assert world.reader.match(b"".join(keys), start=4, namespace=1) == (2, MissReason.NONE)
    assert world.reader.match(b"", start=0, namespace=1) == (0, MissReason.NONE)
    world.arena.check_invariants()


def test_known_pages_are_not_stored_twice_and_busy_ones_not_reserved_twice() -> None:
    world = NativeArena()
    keys = chain("a", 5)
    assert world.put(keys[:3]) == [STORED] * 3
    assert world.put(keys) == [KNOWN] * 3 + [STORED] * 2
    other = chain("b", 3)
    other_row = world.arena.open_row(2)
    held = world.reserve(other[:2], row=other_row)
    assert [tuple(a[:2]) for a in world.reserve(other)] == [refused(RefuseReason.BUSY)] * 3
    assert [tuple(a[:2]) for a in world.reserve(other, row=other_row)] == [refused(RefuseReason.BUSY)] * 3
    world.arena.abort(row=other_row, reservations=[answer.reservation for answer in held])
    assert world.put(other) == [STORED] * 3


def test_a_page_needs_its_parent() -> None:
    world = NativeArena()
    keys = chain("a", 4)
    assert world.put(keys[2:], parent=keys[1]) == [refused(RefuseReason.PARENT_ABSENT)] * 2
    assert world.put(keys[:2]) == [STORED] * 2
    assert world.put(keys[2:], parent=keys[1]) == [STORED] * 2
    stranger = chain("b", 2)
    assert world.put([stranger[0]]) == [STORED]
    wrong = world.reserve([keys[1]], parent=stranger[0])
    assert tuple(wrong[0][:2]) == refused(RefuseReason.PARENT_ABSENT)
    assert world.reader.match(keys[1], namespace=1) == (0, MissReason.ABSENT), "no look-up by a bare key"
    assert world.reader.match(stranger[0] + keys[1], namespace=1) == (1, MissReason.ABSENT)
    assert world.reader.match(stranger[0] + keys[1], start=1, namespace=1) == (0, MissReason.ABSENT)


def test_a_chain_lies_in_one_namespace_and_is_found_in_no_other() -> None:
    world = NativeArena()
    keys = chain("a", 4)
    packed = b"".join(keys)
    assert world.put(keys) == [STORED] * 4
    absent = (0, MissReason.ABSENT)
    for start in (0, 2):
        into = bytearray((4 - start) * PAGE)
        assert world.reader.match(packed, namespace=2, start=start) == absent
        with world.reader.lease(0, packed, namespace=2, start=start, may_load=True) as first:
            assert (first.pages, first.reason, first.stands_on) == (*absent, 0)
        with world.reader.complete_lease(0, packed, namespace=2, start=start) as lease:
            assert (lease.pages, lease.reason) == absent
        got = world.reader.get(0, packed, into, namespace=2, page_bytes=PAGE, start=start, may_load=True)
        assert got == (*absent, 0)
        done = world.reader.complete_get(0, packed, into, namespace=2, page_bytes=PAGE, start=start)
        assert done == (*absent, 0)
        assert not any(into)
    refused_pages = [refused(RefuseReason.PARENT_ABSENT)] * 2
    assert world.put(keys[:2], namespace=2) == refused_pages, "its keys are taken, by none of its own pages"
    assert world.put(chain("b", 2), parent=keys[3], namespace=2) == refused_pages
    assert world.reader.match(packed, namespace=1) == (4, MissReason.NONE)
    assert world.reader.held() == 0


def test_a_commit_out_of_order_is_refused_with_all_that_stands_on_it() -> None:
    world = NativeArena()
    keys = chain("a", 3)
    first, second, third = (answer.reservation for answer in world.reserve(keys))
    assert world.commit([second]) == [refused(RefuseReason.PARENT_ABSENT)]
    assert world.commit([first, third]) == [STORED, refused(RefuseReason.PARENT_ABSENT)]
    assert world.resident(keys) == 1
    assert world.arena.statistics()["entries_reserved"] == 0
    world.arena.check_invariants()


def test_aborting_a_reservation_cuts_off_its_children() -> None:
    world = NativeArena()
    keys = chain("a", 4)
    answers = world.reserve(keys)
    world.arena.abort(row=world.row, reservations=[answers[1].reservation])
    assert world.commit([answers[0].reservation]) == [STORED]
    assert world.put(keys) == [KNOWN] + [STORED] * 3, "others may put the page at once"
    late = world.commit([answer.reservation for answer in answers[1:]])
    assert late == [refused(RefuseReason.EXPIRED)] + [refused(RefuseReason.PARENT_ABSENT)] * 2
    assert world.resident(keys) == 4
    world.arena.check_invariants()


def test_hiding_takes_the_subtree_and_nothing_else() -> None:
    world = NativeArena()
    left, right = chain("a/left", 8), chain("a/right", 8)
    assert world.put(left) == [STORED] * 8
    assert world.put(right) == [KNOWN] * 4 + [STORED] * 4
    assert world.hide(left[5]) == 3
    assert (world.resident(left), world.resident(right)) == (5, 8)
    assert world.hide(left[2] + left[1]) == 8
    assert (world.resident(left), world.resident(right)) == (1, 1)
    assert world.put(left) == [KNOWN] + [STORED] * 7, "what was hidden can be computed again at once"
    assert world.arena.statistics()["evictions_invalidated"] == 11
    world.arena.check_invariants()


def test_namespaces_are_hidden_and_counted_apart() -> None:
    world = NativeArena()
    a, b = chain("a", 3), chain("b", 2)
    world.put(a, namespace=1)
    world.put(b, namespace=2)
    assert world.arena.namespace_statistics() == {1: (3, 3 * PAGE), 2: (2, 2 * PAGE)}
    reserved = world.reserve(chain("c", 1), namespace=1)
    assert sum(world.hiding(selection(namespaces=[1]))) == 3
    assert world.arena.namespace_statistics() == {2: (2, 2 * PAGE)}
    assert world.commit([reserved[0].reservation]) == [refused(RefuseReason.INVALIDATED)]
    assert sum(world.hiding(selection())) == 2
    assert world.arena.namespace_statistics() == {}
    assert world.arena.statistics()["entries_visible"] == 0


def test_invalidation_reaches_puts_in_flight() -> None:
    world = NativeArena()
    keys = chain("a", 5)
    world.put(keys[:2])
    answers = world.reserve(keys)
    world.hide(keys[1])
    assert world.put(keys) == [KNOWN] + [STORED] * 4
    late = world.commit([answer.reservation for answer in answers[2:]])
    assert late == [refused(RefuseReason.INVALIDATED)] * 3
    assert world.resident(keys) == 5
    world.arena.check_invariants()


def test_a_late_commit_is_refused_and_its_slot_reused_only_afterwards() -> None:
    world = NativeArena(slots=256)
    keys = chain("a", 2)
    now = now_ns()
    answers = world.reserve(keys, deadline_ns=now + 100, now=now)
    assert world.arena.expire(now + 200) == 0
    statistics = world.arena.statistics()
    assert (statistics["entries_quarantined"], statistics["entries_reserved"]) == (2, 0)
    others = [chain(f"other{i}", 1) for i in range(300)]
    places = {world.reserve(one)[0].offset for one in others[:100]}
    assert not places & {answer.offset for answer in answers}
    assert world.put(keys) == [STORED] * 2
    assert (
        world.commit([answer.reservation for answer in answers], now=now + 300)
        == [refused(RefuseReason.EXPIRED)] * 2
    )
    assert world.arena.statistics()["entries_quarantined"] == 0
    assert world.commit([answers[0].reservation]) == [refused(RefuseReason.EXPIRED)], "ended ids stay ended"
    assert world.resident(keys) == 2
    world.arena.check_invariants()


def test_a_late_reservation_does_not_keep_its_key_from_others() -> None:
    world = NativeArena()
    keys = chain("a", 2)
    now = now_ns()
    world.reserve(keys, deadline_ns=now + 100, now=now)
    again = world.reserve(keys, now=now + 101)
    assert [answer.status for answer in again] == [PutStatus.STORED] * 2
    world.arena.check_invariants()


def test_an_orphans_reservations_are_kept_until_its_process_ends() -> None:
    world = NativeArena()
    row = world.arena.open_row(77)
    keys = chain("a", 3)
    world.reserve(keys, row=row)
    world.arena.orphan_row(row)
    statistics = world.arena.row_statistics(row)
    assert (statistics["state"], statistics["pid"], statistics["reservations"]) == (2, 77, 3)
    assert world.arena.statistics()["entries_quarantined"] + world.arena.statistics()["entries_reserved"] == 3
    assert world.put(keys) == [STORED] * 3
    world.arena.end_row(row)
    assert world.arena.statistics()["entries_quarantined"] == 0
    world.arena.check_invariants()


def test_time_to_live_ends_a_page_with_what_stands_on_it() -> None:
    world = NativeArena()
    keys = chain("a", 4)
    second = now_ns() // 10**9
    world.put(keys[:2])
    world.put(keys[2:3], parent=keys[1], expiry_s=second + 1000)
    world.put(keys[3:], parent=keys[2])
    assert world.resident(keys) == 4
    assert world.arena.expire((second + 999) * 10**9) == 0
    assert world.arena.expire((second + 1000) * 10**9) == 2
    assert world.resident(keys) == 2
    assert world.arena.statistics()["evictions_ttl"] == 2


def test_pages_expire_in_the_order_of_their_times_whatever_went_before() -> None:
    world, draw = NativeArena(slots=2048), random.Random(3)
    base_s = now_ns() // 10**9 + 1000
    times = {chain(f"mortal{number}", 1)[0]: draw.randrange(200) for number in range(2000)}
    for number, (key, time_s) in enumerate(times.items()):
        world.put([key], expiry_s=base_s + time_s)
        if number % 3 == 0:
            world.hide(key)
    left = {key for number, key in enumerate(times) if number % 3}
    for time_s in range(0, 200, 10):
        world.arena.expire((base_s + time_s) * 10**9)
        left = {key for key in left if times[key] > time_s}
        assert {key for key in times if world.arena.find(key)} == left
    world.arena.check_invariants()


def test_much_that_stands_on_an_expired_page_goes_in_bounded_steps_and_never_with_a_hole() -> None:
    step, chains = 8192, 20
    world = NativeArena(slots=chains * 1024, entries=chains * 1024, segment_bytes=1 << 20)
    (root,) = chain("root", 1)
    second = now_ns() // 10**9 + 1000
    world.put([root], expiry_s=second)
    branches = [chain(f"branch{number}", 1000) for number in range(chains)]
    for branch in branches:
        assert world.put(branch, parent=root) == [STORED] * 1000
    resident = chains * 1000 + 1
    late = (second + 1) * 10**9
    assert world.reserve([root], now=late)[0][:2] == (PutStatus.REFUSED, RefuseReason.BUSY)
    resident -= step
    while resident:
        hidden = world.arena.expire(late)
        assert hidden == min(resident, step)
        resident -= hidden
        assert world.arena.statistics()["entries_visible"] == resident
        if resident:
            assert sum(world.resident([root, *branch]) for branch in branches) == resident - 1 + chains
    world.arena.check_invariants()
    assert world.put([root]) == [STORED]


def test_readers_do_not_serve_a_page_past_its_time_even_before_it_is_hidden() -> None:
    world = NativeArena()
    keys = chain("a", 3)
    world.put(keys[:1])
    world.put(keys[1:2], parent=keys[0], expiry_s=1)
    world.put(keys[2:], parent=keys[0])
    packed = b"".join(keys[:2])
    assert world.reader.match(packed, namespace=1) == (1, MissReason.EXPIRED)
    lease = world.reader.lease(0, packed, namespace=1)
    assert (lease.pages, lease.reason) == (1, MissReason.EXPIRED)
    lease.release()
    assert world.put(keys[:2]) == [KNOWN, STORED], "an expired page counts as absent"
    assert world.reader.match(packed, namespace=1) == (2, MissReason.NONE)
    assert world.reader.held() == 0


def test_what_inspect_shows() -> None:
    world = NativeArena()
    keys = chain("a", 2)
    world.put(keys)
    found = world.arena.find(keys[1])
    assert found is not None
    assert found["key"] == keys[1]
    assert found["parent"] == keys[0]
    assert (found["payload_bytes"], found["namespace_slot"], found["leases"]) == (PAGE, 1, 0)
    with world.reader.lease(0, b"".join(keys), namespace=1):
        leased = world.arena.find(keys[1])
    assert leased is not None
    assert leased["leases"] == 1
    assert isinstance(leased["last_access_ns"], int)
    assert leased["last_access_ns"] > 0
    assert world.arena.find(bytes(32)) is None


def test_a_page_larger_than_a_segment_is_refused() -> None:
    world = NativeArena()
    answers = world.reserve(chain("a", 2), page_bytes=world.segment_bytes + 1)
    assert [tuple(a[:2]) for a in answers] == [refused(RefuseReason.TOO_LARGE)] * 2


def test_a_client_reserves_at_most_its_quota() -> None:
    world = NativeArena(slots=limits.RESERVATIONS_PER_CLIENT_MAX + 64, entries=8192)
    for number in range(limits.RESERVATIONS_PER_CLIENT_MAX):
        assert world.reserve([number.to_bytes(32, "big")])[0].status == PutStatus.STORED
    last = world.reserve([b"q" * 32])[0]
    assert tuple(last[:2]) == refused(RefuseReason.QUOTA)
    world.arena.end_row(world.row)
    assert world.arena.statistics()["entries_reserved"] == 0


def test_c04_forced_collisions_are_misses_and_counted() -> None:
    world = NativeArena(index_hash_bits=8, slots=512)
    present = [chain(f"p{i}", 1)[0] for i in range(300)]
    absent = [chain(f"q{i}", 1)[0] for i in range(300)]
    for key in present:
        assert world.put([key]) == [STORED]
    for key in present:
        with world.reader.lease(0, key, namespace=1) as lease:
            assert lease.pages == 1
            assert bytes(lease[0]) == payload(key)
    for key in absent:
        with world.reader.lease(1, key, namespace=1) as lease:
            assert (lease.pages, lease.reason) == (0, MissReason.ABSENT)
    assert world.counts(counter=1)["collisions"] > 100
    assert world.counts(counter=1)["miss_1"] == 300
    world.arena.check_invariants()


def test_a_full_index_refuses_and_says_so() -> None:
    world = NativeArena(index_hash_bits=1, slots=64)
    outcomes = [world.put([chain(f"p{i}", 1)[0]])[0] for i in range(40)]
    assert outcomes.count(refused(RefuseReason.FULL)) >= 8
    assert world.arena.statistics()["index_full"] == outcomes.count(refused(RefuseReason.FULL))
    world.arena.check_invariants()


def test_the_ladder_of_sizes() -> None:
    assert _native.size_class(1) == 4096
    assert _native.size_class(65536) == 65536
    assert _native.size_class((1 << 20) + 1) == (1 << 20) + (1 << 16)
    for size in range(1, 1 << 22, 40_009):
        slot = _native.size_class(size)
        assert slot >= size
        assert slot % 4096 == 0
        assert slot <= size + max(4096, size // 16 + 4096)
    with pytest.raises(ValueError, match="64 MiB"):
        _native.size_class(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segment_bytes": 1000}, "segment_bytes"),
        ({"segment_bytes": 65536 + 1}, "multiple of 4096"),
        ({"arena_bytes": 4096}, "arena_bytes"),
        ({"entries": 0}, "entries"),
        ({"rows": 5000}, "rows"),
        ({"ring_records": 1}, "ring_records"),
        ({"leases_per_row": 0}, "leases_per_row"),
        ({"index_hash_bits": 65}, "index_hash_bits"),
        ({"life": b"short"}, "life"),
        ({"copy_kernel": 99}, "copy_kernel"),
    ],
)
def test_bad_settings_are_named(change: dict[str, int | bytes], message: str) -> None:
    settings: dict[str, int | bytes] = {
        "arena_bytes": 1 << 20, "segment_bytes": 65536, "entries": 16, "rows": 2,
        "leases_per_row": 16, "ring_records": 4, "life": bytes(16),
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        _native.Arena(**(settings | change))  # type: ignore[arg-type]


def test_bad_arguments_leave_the_arena_alone() -> None:
    world = NativeArena()
    with pytest.raises(ValueError, match="n × 32 bytes"):
        world.reserve([b"short"])
    with pytest.raises(ValueError, match="parent"):
        world.reserve(chain("a", 1), parent=b"short")
    with pytest.raises(ValueError, match="not open"):
        world.reserve(chain("a", 1), row=world.rows - 1)
    with pytest.raises(ValueError, match="beyond"):
        world.arena.end_row(world.rows)
    with pytest.raises(ValueError, match="counter"):
        world.arena.row_counts(0, 32)
    with pytest.raises(ValueError, match="32 bytes"):
        world.arena.find(b"")
    with pytest.raises(ValueError, match="key is exactly 32"):
        world.hide(b"x")
    with pytest.raises(ValueError, match="namespace_slot"):
        world.reserve(chain("a", 1), namespace=limits.NAMESPACES_MAX)
    with pytest.raises(ValueError, match="producer"):
        world.commit([], producer=1 << 32)
    with pytest.raises(ValueError, match="work_max"):
        world.count(selection(), work_max=0)
    with pytest.raises(ValueError, match="cursor"):
        world.arena.hide_step(**selection(), cursor=-1, work_max=1)
    with pytest.raises(ValueError, match="pages_max"):
        world.arena.chain(bytes(32), pages_max=0)
    with pytest.raises(ValueError, match="engine"):
        world.arena.open_row(5, engine=3)
    assert world.commit([0, 1, 1 << 63, (1 << 64) - 1]) == [refused(RefuseReason.EXPIRED)] * 4
    world.arena.check_invariants()
    world.arena.close()
    with pytest.raises(ValueError, match="closed"):
        world.arena.statistics()


def test_rows_run_out_and_come_back_cleared() -> None:
    world = NativeArena(rows=2)
    second = world.arena.open_row(5)
    reader = world.attach(second)
    reader.count_outcome(3, requested=4, l1=1, reason=MissReason.DEADLINE)
    reader.set_applied_view(9)
    assert world.counts(second, 3)["miss_8"] == 3
    with pytest.raises(RuntimeError, match="rows"):
        world.arena.open_row(6)
    world.arena.end_row(second)
    assert world.counts(second, 3)["requested"] == 4, "an ended row keeps its counts until it is given again"
    assert world.arena.open_row(7) == second
    assert world.counts(second, 3)["requested"] == 0
    assert world.arena.row_statistics(second)["applied_view"] == 0


def test_an_arena_beyond_the_machine_is_refused_at_start() -> None:
    with pytest.raises(MemoryError, match="does not fit"):
        NativeArena(slots=1 << 31)


def test_limits_and_numbers_are_those_of_kv_types() -> None:
    """What the C++ headers repeat must not drift from the Python they were taken from."""
    text = (NATIVE / "limits.hpp").read_text()
    for name, value in {
        "kSegmentBytesMin": limits.SEGMENT_BYTES_MIN,
        "kSegmentBytesMax": limits.SEGMENT_BYTES_MAX,
        "kArenaBytesMin": limits.ARENA_BYTES_MIN,
        "kEntriesMax": limits.ARENA_PAGES_MAX,
        "kRowsMax": limits.CLIENT_ROWS_MAX,
        "kLeasesPerRowMax": limits.LEASES_PER_CLIENT_MAX,
        "kReservationsPerRowMax": limits.RESERVATIONS_PER_CLIENT_MAX,
        "kRingRecordsMax": limits.RING_RECORDS_MAX,
        "kChainPagesMax": limits.CHAIN_PAGES_MAX,
        "kNamespacesMax": limits.NAMESPACES_MAX,
        "kAncestorsWalkedMax": limits.ANCESTORS_WALKED_MAX,
        "kTenantSharesMax": operator_limits.TENANT_SHARES_MAX,
        "kPolicyStateBytesMax": limits.POLICY_STATE_BYTES_MAX,
    }.items():
        assert _constant(text, name) == value, name
    assert _constant((NATIVE / "layout.hpp").read_text(), "kGrantsPerRow") == limits.GRANTS_PER_CLIENT_MAX
    outcomes = (NATIVE / "outcomes.hpp").read_text()
    for miss in MissReason:
        name = "kMiss" + miss.name.title().replace("_", "")
        assert name not in outcomes or _constant(outcomes, name) == miss
    for reason in RefuseReason:
        name = "kRefuse" + reason.name.title().replace("_", "")
        assert name not in outcomes or _constant(outcomes, name) == reason


def _constant(text: str, name: str) -> int:
    found = re.search(rf"\b{name} = ([^;,]+)[;,]", text)
    assert found is not None, name
    value, _, shift = found.group(1).replace("'", "").replace("ULL", "").partition("<<")
    return int(value) << int(shift or 0)


def test_readers_see_whether_look_ups_are_recorded() -> None:
    native = NativeArena()
    readers = [native.attach(1), native.attach(2)]

    def seen() -> list[bool]:
        return [reader.recording for reader in readers]

    assert seen() == [False, False]
    native.arena.record(True)
    assert seen() == [True, True]
    assert readers[0].close()
    assert seen() == [False, True], "a closed one has nobody to tell"
    native.arena.record(False)
    assert seen() == [False, False]
