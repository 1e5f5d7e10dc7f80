"""What the arena evicts once it has learned from look-ups: more of what comes back stays, and what is needed more stays whole."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from heapq import merge
from pathlib import Path

import pytest

from kv_policy.trace import Trace, TraceBuilder
from kv_types.limits import POLICY_STATE_BYTES_MAX
from tests.support.native_arena import NativeArena, chain
from tests.support.noting import timed_arena

SECOND_NS = 10**9
BEGIN_NS = 10**12
TRACES = Path(__file__).parents[1] / "data" / "traces"
Request = tuple[int, list[bytes]]


def key_of(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=32).digest()


def chats(users: int, turns: int) -> Iterator[Request]:
    """Conversations whose users think for half a minute between turns, each of which adds four pages."""
    for user in range(users):
        random_s = random.Random(user)
        at_s = random_s.uniform(0, 300)
        for turn in range(turns):
            at_s += random_s.uniform(20, 40)
            yield int(at_s * SECOND_NS), [key_of(f"{user}/{page}") for page in range(4 * turn + 4)]


def documents(seconds: int) -> Iterator[Request]:
    """Four long prompts a second that nobody sends again."""
    for number in range(4 * seconds):
        yield number * SECOND_NS // 4, [key_of(f"document {number}/{page}") for page in range(12)]


def hit_ratio(requests: Iterable[Request], *, pages: int, learns: bool) -> float:
    with timed_arena(pages=pages, learns=learns) as timed:
        last_ns = BEGIN_NS
        for at_ns, keys in requests:
            last_ns = max(last_ns + 1000, BEGIN_NS + at_ns)
            timed.request(keys, at_ns=last_ns)
        timed.world.arena.check_invariants()
        figures = timed.world.arena.statistics()
        assert figures["notes_read"] + figures["notes_lost"] > 100
        return timed.hit_ratio


def test_conversations_outlive_a_stream_of_documents_once_both_are_known() -> None:
    """What was used just now is a document that nobody needs again; the least recently used is a user who thinks."""
    requests = list(merge(sorted(chats(24, 10)), documents(600)))
    lru = hit_ratio(requests, pages=1000, learns=False)
    learned = hit_ratio(requests, pages=1000, learns=True)
    assert learned > lru + 0.05, f"{learned:.4f} against {lru:.4f}"


def read(name: str) -> Trace:
    builder = TraceBuilder(name)
    with gzip.open(TRACES / f"{name}.jsonl.gz") as lines:
        builder.add_lines(lines, file=name)
    return builder.build()


def of_trace(trace: Trace) -> Iterator[Request]:
    blocks, offsets = trace.blocks.tolist(), trace.offsets.tolist()
    for at_ns, begin, end in zip(trace.times_ns.tolist(), offsets, offsets[1:], strict=False):
        yield at_ns, [key_of(str(block)) for block in blocks[begin:end]]


def replayed(trace: Trace, *, share: float, learns: bool, pages_at_once: int = 0) -> float:
    """Prefix-hit ratio of a trace in an arena for a share of its distinct blocks; what is longer than it keeps its head."""
    pages = max(1, int(trace.distinct * share))
    with timed_arena(pages=pages, learns=learns) as timed:
        for at_ns, keys in of_trace(trace):
            timed.request(keys[:pages], at_ns=BEGIN_NS + at_ns, pages_at_once=pages_at_once)
        timed.world.arena.check_invariants()
        return timed.hit / len(trace.blocks)


@pytest.mark.parametrize("pages_at_once", [0, 8, 1])
@pytest.mark.parametrize("learns", [False, True])
def test_c12_a_hundredth_of_an_agents_trace_serves_what_fits_whatever_the_pieces(
    learns: bool, pages_at_once: int
) -> None:
    trace = read("miniswe_c64")
    assert replayed(trace, share=0.01, learns=learns, pages_at_once=pages_at_once) >= 0.23


def test_a_real_trace_through_the_arena_gains_by_what_is_learned() -> None:
    trace = read("mooncake_synthetic")
    lru = replayed(trace, share=0.05, learns=False)
    assert lru == pytest.approx(0.1566, abs=0.0005), "that of independent simulators"
    assert replayed(trace, share=0.05, learns=True, pages_at_once=8) >= lru + 0.01


def test_c12_a_long_prompt_in_eight_calls_keeps_its_head_in_a_full_arena_that_has_learned() -> None:
    with timed_arena(pages=256, learns=True) as timed:
        at_ns = BEGIN_NS
        for number in range(300):
            at_ns += SECOND_NS
            timed.request(chain(f"old{number % 90}", 4), at_ns=at_ns)
        keys = chain("long", 700)
        for begin in range(0, 700, 88):
            timed.put(keys, begin, min(begin + 88, 700), at_ns=at_ns)
            resident = timed.world.resident(keys)
            assert resident >= min(begin + 88, 256) - 1
            assert timed.world.arena.statistics()["entries_visible"] >= resident
            timed.world.arena.check_invariants()


def test_look_ups_of_a_real_client_are_what_is_learned_from() -> None:
    """Its own clock and its own words in the shared memory: both policies hear of them, the plain one's choice is known."""
    for learns in (False, True):
        world = NativeArena(slots=256, learns=learns)
        singles = [chain(f"s{i}", 1) for i in range(256)]
        for one in singles:
            world.put(one)
        for one in singles[:200]:
            world.reader.lease(0, one[0], namespace=1).release()
        for number in range(40):
            world.put(chain(f"new{number}", 1))
        there = [world.resident(one) for one in singles]
        assert sum(there) == 216
        assert learns or there == [1] * 200 + [0] * 40 + [1] * 16
        figures = world.arena.statistics()
        assert (figures["notes_read"], figures["notes_lost"], figures["policy_learned"]) == (200, 0, learns)
        assert figures["policy_requests"] == 200
        world.reader.close()
        world.arena.close()


# --- what it costs to lose a page ---


def evicted_by_turns(*, cost: float, is_lost: bool = False) -> tuple[int, int]:
    """Pages that go of equally warm conversations: of those that L3 holds, every other one, and of the others."""
    with timed_arena(pages=256, learns=True) as timed:
        arena = timed.world.arena
        talks = [[key_of(f"{number}/{page}") for page in range(5)] for number in range(50)]
        for number in range(600):
            timed.request(talks[number % 50], at_ns=BEGIN_NS + number * SECOND_NS)
        for talk in talks:
            timed.request(talk, at_ns=BEGIN_NS + 600 * SECOND_NS)
        arena.set_losing_costs(elsewhere=cost, attention_pages=0)
        for key in (key for talk in talks[::2] for key in talk):
            instance = arena.instance(key)
            assert instance is not None
            assert arena.set_elsewhere(instance, True)
            assert not is_lost or arena.set_elsewhere(instance, False)
        assert arena.statistics()["policy_elsewhere"] == (0 if is_lost else 125)
        for number in range(40):
            timed.request([key_of(f"new {number}")], at_ns=BEGIN_NS + 100_000 * SECOND_NS + number)
        gone = [5 - timed.world.resident(talk) for talk in talks]
        arena.check_invariants()
        assert arena.statistics()["policy_elsewhere"] == (0 if is_lost else 125 - sum(gone[::2]))
        return sum(gone[::2]), sum(gone[1::2])


def test_of_equally_warm_tails_the_ones_that_l3_holds_go_first() -> None:
    there, nowhere = evicted_by_turns(cost=0.5)
    assert (there > 20, nowhere) == (True, 0)


def test_what_l3_has_lost_or_costs_as_much_to_load_is_worth_what_all_are() -> None:
    alike = evicted_by_turns(cost=1.0)
    assert min(alike) > 5, "both go by turns"
    assert evicted_by_turns(cost=0.5, is_lost=True) == alike


def test_pages_that_are_gone_and_costs_that_are_none() -> None:
    world = NativeArena(learns=True)
    for instance in (0, 1, 2**64 - 1, 1 << 40 | 5):
        assert not world.arena.set_elsewhere(instance, True)
    for cost in (0.0, -1.0, 1.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not more than 1"):
            world.arena.set_losing_costs(elsewhere=cost, attention_pages=0)


# --- what outlives a restart ---


def learned_arena() -> tuple[NativeArena, bytes]:
    with timed_arena(pages=512, learns=True) as timed:
        at_ns = BEGIN_NS
        for number in range(400):
            at_ns += SECOND_NS
            timed.request([key_of(f"{number % 120}/{page}") for page in range(8)], at_ns=at_ns)
        return timed.world, timed.world.arena.export_policy()


def test_what_was_learned_goes_on_in_another_arena() -> None:
    _, state = learned_arena()
    with timed_arena(pages=512, learns=True) as timed:
        timed.world.arena.import_policy(state, now_ns=BEGIN_NS)
        assert timed.world.arena.statistics()["policy_requests"] == 400
        returned = sum(
            timed.put([key_of(f"{number}/{page}") for page in range(8)], 0, 8, at_ns=BEGIN_NS + SECOND_NS)
            for number in range(60)
        )
        assert returned == 60
        assert timed.world.arena.statistics()["policy_returns"] > 100, "they were evicted in the life before"
        timed.world.arena.check_invariants()


def test_a_damaged_state_changes_nothing() -> None:
    _, state = learned_arena()
    world = NativeArena(learns=True)
    for damaged in (b"", state[:-1], state + b"x", state[:100] + b"\xff" + state[101:], bytes(len(state))):
        with pytest.raises(ValueError, match="policy state"):
            world.arena.import_policy(damaged, now_ns=BEGIN_NS)
    assert world.arena.statistics()["policy_requests"] == 0
    assert len(state) <= POLICY_STATE_BYTES_MAX
