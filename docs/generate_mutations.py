"""Writes the table of mutations in docs/invalidation.md from what finds them in tests.

`python docs/generate_mutations.py [--check]`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from docs.generated import bring_up_to_date  # noqa: E402 - after the path that finds our packages

TARGET = ROOT / "docs" / "invalidation.md"
BEGIN = "<!-- mutations: written by docs/generate_mutations.py -->"
END = "<!-- mutations: end -->"

MUTATIONS: Mapping[int, tuple[str, str]] = {
    1: ("R1", "a page is stamped at its commit"),
    2: ("R1", "the stamp is read again at each pass, or each chunk of a prefill"),
    3: ("R3", "a key selects its page alone, not what stands on it"),
    4: ("R2", "a prefix is looked for without the chain: only the page's own key is compared"),
    5: ("R2", "a promotion is checked when it is fetched, not when it is published"),
    6: ("R2", "an insert into L1 is not checked"),
    7: ("R4", "a page that is known, though invalid, is not sent again: it is never served again"),
    8: ("R1", "a page gets the oldest stamp among its ancestors': it is never served again"),
    9: ("R4", "tombstones end by time"),
    10: ("R4", "a dropped tombstone raises the floor to one less than its revision"),
    11: ("R9", "floors are read before tombstones, not in one step"),
    12: ("R8", "a gap is ignored"),
    13: ("R14", "freshness counts from the answer to a renewal"),
    14: ("R14", "freshness is published before the records are applied"),
    15: ("R14", "freshness is published before the view"),
    16: ("R14", "the view is published before the pages are hidden"),
    17: ("R14", "what is not hidden yet is acknowledged"),
    18: ("R11", "a fence believes the time to live of a key in Redis, whose wall clock steps"),
    19: ("R11", "a fence allows for no pause"),
    20: ("R13", "a member keeps its id over its lives"),
    21: ("R12", "a fence does not wait for an incarnation to settle"),
    22: ("R12", "a fence that waits ignores a new incarnation"),
    23: ("R6", "the guard compares run_id alone"),
    24: ("R10", "a renewal is not confirmed by replicas"),
    25: ("R10", "a fence is not confirmed by replicas"),
    26: ("R10", "WAIT on another connection, or k from the replicas that are connected"),
    27: ("R5", "stamps of another incarnation are accepted"),
    28: ("R16", "a worker compares revisions, which are equal across lives"),
    29: ("R16", "the tag of a record in the ring is not checked"),
    30: (
        "R17",
        "a hazard without one of its fences, orders or second looks, or a scan that takes it for less than it covers",
    ),
    31: ("R17", "two bits of a generation are compared"),
    32: ("R17", "the place of a reservation that ran out is used again while its writer may live"),
    33: ("R18", "an engine evicts once, and does not mark requests that used what went"),
    34: ("R20", "counters are written in place, not in the spare copy"),
}
"""By their numbers: which rule is taken away, and how."""

TABLES = ("tests.native.mutations.table", "tests.sim.mutations.table", "tests.invalidation.redis_mutations")
"""Modules with CAUGHT_BY: number, or number and a comma and what is special about it → what finds it."""

BROKEN_TWINS: Mapping[int, str] = {
    12: "test_a_broken_follower_is_found_out[IgnoresGaps]",
    13: "test_a_broken_follower_is_found_out[CountsFromTheAnswer]",
    14: "test_a_broken_follower_is_found_out[VouchesBeforeItApplies]",
    19: "test_without_any_of_the_rules_one_is[no margin for a pause]",
    21: "test_without_any_of_the_rules_one_is[no settling]",
    24: "test_a_broken_follower_is_found_out[NeedsNoConfirmation]",
}
"""Tests that run a broken twin of a state machine and demand that it is found out."""


def found_by() -> dict[int, list[str]]:
    """What finds each mutation, by its number."""
    found: dict[int, list[str]] = {number: [] for number in MUTATIONS}
    for name in TABLES:
        if not _exists(name):
            continue
        for number, finder in import_module(name).CAUGHT_BY.items():
            plain, _, special = number.partition(",")
            if plain.isdigit():
                found[int(plain)].append(f"`{finder}` ({special.strip()})" if special else f"`{finder}`")
    for one, test in BROKEN_TWINS.items():
        found[one].append(f"`{test}`")
    return found


def lettered() -> Iterator[tuple[str, str, str]]:
    """Mutations of the simulation that have a letter: it, what is taken away, and what finds it."""
    if _exists("tests.sim.mutations.table"):
        table = import_module("tests.sim.mutations.table")
        for mutation in table.MUTATIONS:
            if not mutation.number[0].isdigit():
                yield mutation.number, mutation.title, table.CAUGHT_BY.get(mutation.number, "")


def rows() -> Iterator[str]:
    """The table, line by line."""
    yield "| | rule | taken away | found by |"
    yield "|---|---|---|---|"
    for number, finders in found_by().items():
        rule, text = MUTATIONS[number]
        yield f"| {number} | {rule} | {text} | {'; '.join(finders)} |"
    for letter, text, finder in lettered():
        yield f"| {letter} | | {text} | {f'`{finder}`' if finder else ''} |"


def render(page: str) -> str:
    """The page with its table brought up to date."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{TARGET} lacks the lines {BEGIN!r} and {END!r}")
    return "\n".join([head + BEGIN, "", *rows(), "", END + tail])


def _exists(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its package is not there
        return False


if __name__ == "__main__":
    raise SystemExit(bring_up_to_date(TARGET, render(TARGET.read_text(encoding="utf-8")), sys.argv[1:]))
