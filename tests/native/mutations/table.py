"""Breaches of the shared-memory rules, as patches, and what finds each: the stress test built from it, or a model of it.

The numbers are those of the list of mutations that docs/invalidation.md explains; those with an R or I are of rules and
invariants that the list has no number for. Number 28 (a worker compares revisions instead of views) is the follower's in
Python, found by the simulation.
"""

from __future__ import annotations

from dataclasses import dataclass

FENCE = "a look-up invoked after the fence got the page"
STAMP = "a look-up got the page under the view that had taken it"
BYTES = "foreign or torn bytes"
MIXED = "a page is of another fill or of two"
RING = "ring: an event is not that of its view"
COUNTERS = "counters: pages requested are not accounted for"
LOADED = "a look-up got a page that was loaded onto another than it was computed from"
PINNED = "FAILED: pin: "
CHAIN = "FAILED: chain: "
TAKEN = "a look-up got a page that an event up to its view had taken"
FOREIGN = "a page of another namespace"
TORN = (MIXED, TAKEN, CHAIN)
"""A page of two fills may have an origin of neither: its head is looked at first. Of a chain that is held, another fill is
told by its nonce."""
LEFT = "an engine serves on below a sidecar that has left"
ENGINE = "an engine served what was hidden after the acknowledgement"


@dataclass(frozen=True)
class Edit:
    """One place of a patch: `old` is there exactly once."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Stress:
    """Found by the stress test, that says one of `messages`: `rebuilt` are the sources that the patch reaches."""

    messages: tuple[str, ...]
    rebuilt: tuple[str, ...]


@dataclass(frozen=True)
class Model:
    """Found by one of the models (header, hazards, hazards reordered, claims), its steps read from the patched sources."""

    message: str
    name: str


@dataclass(frozen=True)
class Mutation:
    """A rule taken away."""

    number: str
    title: str
    edits: tuple[Edit, ...]
    found_by: Stress | Model


_NATIVE = "cache_l2/native/"
_APPLIER = "sidecar/log/applier.py"
_HIDING = """            await self._hide([one.event.selector for one in chunk if isinstance(one.event, Selected)])
"""
_PUBLISHING = """                self._publish(record.event, Stamp(incarnation, record.revision), record.digest)
"""

MUTATIONS = (
    Mutation(
        "15",
        "freshness is published before the view",
        (
            Edit(
                "invalidation/follower.py",
                "        return [Apply(renewal.records)]\n",
                "        return [PublishFreshness(freshness_ns), Apply(renewal.records)]\n",
            ),
        ),
        Model(FENCE, "header"),
    ),
    Mutation(
        "16",
        "the view is published before the pages are hidden",
        (Edit(_APPLIER, _HIDING, ""), Edit(_APPLIER, _PUBLISHING, _PUBLISHING + _HIDING)),
        Model(STAMP, "header"),
    ),
    Mutation(
        "17",
        "what is not hidden yet is acknowledged",
        (
            Edit(
                _APPLIER,
                _HIDING,
                "            self.acknowledged.published(0, chunk[-1].revision)\n" + _HIDING,
            ),
        ),
        Model(FENCE, "header"),
    ),
    Mutation(
        "29",
        "the tag of a record of the ring is not checked after reading",
        (
            Edit(
                _NATIVE + "ring.hpp",
                "if (record.tag.load(std::memory_order_relaxed) != view || bytes > kRingPayloadBytes) return",
                "if (bytes > kRingPayloadBytes) return",
            ),
        ),
        Stress((RING,), ("stress.cpp", "reader.cpp")),
    ),
    Mutation(
        "29, in the model",
        "the tag of a record of the ring is not checked at all",
        (
            Edit(
                _NATIVE + "ring.hpp",
                "  if (record.tag.load(std::memory_order_acquire) != view) return std::nullopt;\n",
                "",
            ),
            Edit(
                _NATIVE + "ring.hpp",
                "if (record.tag.load(std::memory_order_relaxed) != view || bytes > kRingPayloadBytes) return",
                "if (bytes > kRingPayloadBytes) return",
            ),
        ),
        Model(STAMP, "header"),
    ),
    Mutation(
        "30, the reader's fence",
        "no fence between a reader's hazards and its second look at the generations",
        (
            Edit(
                _NATIVE + "reader.cpp",
                "  fence_seq_cst();  // pairs with the fence between hiding and scanning (arena_hide.cpp)\n",
                "",
            ),
        ),
        Model(BYTES, "hazards"),
    ),
    Mutation(
        "30, the sidecar's fence",
        "no fence between hiding pages and looking for hazards",
        (
            Edit(
                _NATIVE + "arena_hide.cpp",
                "  fence_seq_cst();  // pairs with the fence between a reader's hazards and its re-check (reader.cpp)\n",
                "",
            ),
        ),
        Model(BYTES, "hazards"),
    ),
    Mutation(
        "30, the re-check",
        "no second look at the generations behind the hazards",
        (
            Edit(
                _NATIVE + "reader.cpp",
                "    const std::size_t standing = confirm(walk, pages, left);\n",
                "    const std::size_t standing = left;\n",
            ),
        ),
        Stress(TORN, ("reader.cpp",)),
    ),
    Mutation(
        "30, what is left",
        "what still stands is pinned in place of a chain whose end has gone, and not looked at again",
        (
            Edit(
                _NATIVE + "reader.cpp",
                "    left = standing;\n",
                "    result.pages = standing;\n    result.lease = slot;\n    narrow(slot, pages[standing - 1], standing);\n"
                "    return;\n",
            ),
        ),
        Model(BYTES, "hazards"),
    ),
    Mutation(
        "30, a cleared hazard",
        "a hazard is cleared before the last look under it",
        (
            Edit(
                _NATIVE + "reader.cpp",
                ".cover.store(0, std::memory_order_release);",
                ".cover.store(0, std::memory_order_relaxed);",
            ),
        ),
        Model(BYTES, "hazards reordered"),
    ),
    Mutation(
        "30, a smaller cover",
        "a cover shrinks before the last look at what it lets go",
        (
            Edit(
                _NATIVE + "reader.cpp",
                "cover.store(cover_of(kind, pages, deepest.entry), std::memory_order_release);",
                "cover.store(cover_of(kind, pages, deepest.entry), std::memory_order_relaxed);",
            ),
        ),
        Model(BYTES, "hazards reordered"),
    ),
    Mutation(
        "30, the scan's acquire",
        "a slot is filled anew before the scan that finds it free",
        (
            Edit(
                _NATIVE + "arena_leases.hpp",
                "leases[i].cover.load(std::memory_order_acquire);",
                "leases[i].cover.load(std::memory_order_relaxed);",
            ),
        ),
        Model(BYTES, "hazards reordered"),
    ),
    Mutation(
        "30, the walk's acquire",
        "a page is read before the generation that says it is there",
        (
            Edit(
                _NATIVE + "look_up.cpp",
                "out.generation = entry.generation.load(std::memory_order_acquire);",
                "out.generation = entry.generation.load(std::memory_order_relaxed);",
            ),
        ),
        Model(BYTES, "hazards reordered"),
    ),
    Mutation(
        "30, the walk's fence",
        "an entry's generation is loaded again before the fields that it vouches for",
        (
            Edit(
                _NATIVE + "look_up.cpp",
                "  fence_acquire();\n  if (entry.generation.load(std::memory_order_relaxed) != out.generation) "
                "return Match::kNo;\n",
                "  if (entry.generation.load(std::memory_order_relaxed) != out.generation) return Match::kNo;\n",
            ),
        ),
        Model(BYTES, "hazards reordered"),
    ),
    Mutation(
        "30, a copy's fence",
        "the generations of copied pages are checked before they are copied",
        (
            Edit(
                _NATIVE + "reader.cpp",
                "    pause_here();  // copied, not checked\n    fence_acquire();\n",
                "    pause_here();  // copied, not checked\n",
            ),
        ),
        Model(BYTES, "hazards reordered"),
    ),
    Mutation(
        "30, what is published",
        "a page is visible before its bytes are",
        (
            Edit(
                _NATIVE + "arena_commit.cpp",
                "  shared.generation.store(generation, std::memory_order_release);\n",
                "  shared.generation.store(generation, std::memory_order_relaxed);\n",
            ),
        ),
        Model(BYTES, "hazards reordered"),
    ),
    Mutation(
        "30, pins",
        "a single page is pinned by its entry, whatever that holds by now",
        (
            Edit(
                _NATIVE + "reader.cpp",
                "if ((out->generation & 1) != 0 || instance_of(*out) != instance) return result;",
                "if ((out->generation & 1) != 0) return result;",
            ),
        ),
        Stress((PINNED,), ("reader.cpp",)),
    ),
    Mutation(
        "30, the walk",
        "a scan takes a hazard for one of its deepest page alone",
        (
            Edit(
                _NATIVE + "arena_scan.cpp",
                "      if (pages_[entry].state == PageState::kVisible) break;\n",
                "      break;\n",
            ),
        ),
        Stress(TORN, ("arena_scan.cpp",)),
    ),
    Mutation(
        "30, the order of the walks",
        "a walk that ends early hides from a scan what another covers below it",
        (
            Edit(
                _NATIVE + "arena_scan.cpp",
                "return a.lowest < b.lowest;",
                "return a.lowest > b.lowest;",
            ),
        ),
        Stress(TORN, ("arena_scan.cpp",)),
    ),
    Mutation(
        "30, what is kept",
        "a released lease keeps the deepest page that is looked at and none below it",
        (
            Edit(
                _NATIVE + "held_pages.hpp",
                "reader_->narrow(lease_, pages()[end_ - 1], end_ - first_);",
                "reader_->narrow(lease_, pages()[end_ - 1], 1);",
            ),
        ),
        Stress((CHAIN,), ("stress.cpp",)),
    ),
    Mutation(
        "31",
        "two bits of the generation are compared",
        (
            Edit(
                _NATIVE + "look_up.hpp",
                "  return arena.entries[page.entry].generation.load(std::memory_order_relaxed) == page.generation;\n",
                "  return ((arena.entries[page.entry].generation.load(std::memory_order_relaxed) ^ page.generation) & 3)"
                " == 0;\n",
            ),
        ),
        Stress(TORN, ("reader.cpp",)),
    ),
    Mutation(
        "R17, grants",
        "a slot that its client has in its hands is taken back",
        (
            Edit(
                _NATIVE + "arena_grants.cpp",
                "    if (!view_.row(row).posts.grants[at].offer.compare_exchange_strong(offered, 0,"
                " std::memory_order_acq_rel)) continue;\n",
                "    view_.row(row).posts.grants[at].offer.exchange(offered = 0, std::memory_order_acq_rel);\n",
            ),
        ),
        Stress(TORN, ("arena_grants.cpp",)),
    ),
    Mutation(
        "32",
        "the place of a reservation that ran out is given away while its writer may still write",
        (
            Edit(
                _NATIVE + "arena_commit.cpp",
                "  set_state(entry, PageState::kQuarantined);\n",
                "  unlink_reservation(entry);\n  view_.entries[entry].generation.fetch_add(2);\n  free_entry(entry);\n",
            ),
        ),
        Stress(TORN, ("arena_commit.cpp",)),
    ),
    Mutation(
        "32, loads",
        "the place of a load that gives way is given away while its bytes may still arrive",
        (
            Edit(
                _NATIVE + "arena_reserve.cpp",
                "    quarantine(entry);\n    has_gone = true;\n",
                "    end_reservation(entry);\n    has_gone = true;\n",
            ),
        ),
        Stress(TORN, ("arena_reserve.cpp",)),
    ),
    Mutation(
        "34",
        "counters are written in place instead of in the spare copy",
        (
            Edit(
                _NATIVE + "counts.hpp",
                "  PageCounts& spare = counts.copy[(selector + 1) & 1];\n  const auto put",
                "  PageCounts& spare = valid;\n  const auto put",
            ),
            Edit(
                _NATIVE + "counts.hpp",
                "  counts.selector.store(selector + 1, std::memory_order_release);\n",
                "  counts.selector.store(selector, std::memory_order_release);\n",
            ),
        ),
        Stress((COUNTERS,), ("reader.cpp",)),
    ),
    Mutation(
        "R3",
        "a page of unknown lineage is known by its own origin",
        (
            Edit(
                _NATIVE + "selection.hpp",
                "if ((producer & kLineageUnknown) != 0 || !names_origin()) return true;",
                "if (!names_origin()) return true;",
            ),
        ),
        Stress((TAKEN,), ("arena_walk.cpp",)),
    ),
    Mutation(
        "R3, births",
        "a loaded page vouches for its lineage, whatever stands below it",
        (
            Edit(
                _NATIVE + "arena_commit.cpp",
                "  if (line == kNoInstance || line == kUnknownInstance) return line == kNoInstance;\n",
                "  if (line != kUnknownInstance) return true;\n",
            ),
        ),
        Stress((LOADED,), ("arena_commit.cpp",)),
    ),
    Mutation(
        "I5, the namespace",
        "a look-up finds pages of another namespace under their keys",
        (
            Edit(
                _NATIVE + "look_up.cpp",
                "whole = is_of_namespace(t.entries[entry], fields.generation, chain.namespace_slot);",
                "is_of_namespace(t.entries[entry], fields.generation, chain.namespace_slot);",
            ),
        ),
        Stress((FOREIGN,), ("look_up.cpp",)),
    ),
    Mutation(
        "R18, the client's fence",
        "no fence between an engine's claim of freshness and its look at the view",
        (
            Edit(
                _NATIVE + "reader.cpp",
                "  fence_seq_cst();  // pairs with those behind publishing a view and closing the header (arena.cpp)\n",
                "",
            ),
        ),
        Model(ENGINE, "claims"),
    ),
    Mutation(
        "R18, the sidecar's fence",
        "no fence between publishing the view and looking at rows",
        (
            Edit(
                _NATIVE + "arena.cpp",
                "  fence_seq_cst();  // whoever is acknowledged after this finds the new view published (rule R14)\n",
                "",
            ),
        ),
        Model(ENGINE, "claims"),
    ),
    Mutation(
        "R18, a goodbye's fence",
        "no fence between closing the header and looking at what engines claim",
        (
            Edit(
                _NATIVE + "arena.cpp",
                "  fence_seq_cst();  // whoever claims freshness after this finds it closed; who has before is seen (rule R18)\n",
                "",
            ),
        ),
        Model(LEFT, "leaving"),
    ),
    Mutation(
        "R18, a claim below a closed header",
        "who claims freshness does not look whether the header was closed meanwhile",
        (
            Edit(
                _NATIVE + "reader.cpp",
                "  if (!closed()) return {claimed, view};\n",
                "  if (claimed != 0) return {claimed, view};\n",
            ),
        ),
        Model(LEFT, "leaving"),
    ),
)

CAUGHT_BY = {
    mutation.number: (
        f"model {mutation.found_by.name}"
        if isinstance(mutation.found_by, Model)
        else "tests/native/stress.cpp"
    )
    for mutation in MUTATIONS
}
"""What finds each mutation, for documents."""
