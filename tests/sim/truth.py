"""What really happened, kept beside the product and told by nothing that it computes: appends, computations, confirmations.

Every append that any server carried out has a global number; every computed page knows how many appends there were when
its computation truly began, and all that it was derived from. Validators compare what was served with that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kv_types.ids import PageKey
from kv_types.namespace import Namespace
from kv_types.selectors import Selector
from tests.sim.floors import floors_of


@dataclass(slots=True, eq=False)
class Append:
    """A record that a server appended. `number` counts all of them, 1 the first."""

    number: int
    true_ns: int
    server: str
    incarnation: bytes
    revision: int
    selector: Selector | None


@dataclass(slots=True, eq=False)
class Instance:
    """One page as one computation made it. `begun`: appends there were when the computation of its bytes began."""

    number: int
    namespace: Namespace
    chain: tuple[PageKey, ...]
    begun: int
    incarnation: bytes
    revision: int
    producer: bytes
    tags: tuple[bytes, ...]
    from_ms: int
    weights: str
    until_ms: int = 0
    derived_from: frozenset[Instance] = frozenset()
    """All that its computation used, this one among it."""
    begun_least: int = 0

    @property
    def key(self) -> PageKey:
        return self.chain[-1]

    def __repr__(self) -> str:
        return f"#{self.number}"


@dataclass(slots=True)
class Grant:
    """A renewal that the log's true primary carried out: until when its member may vouch for what."""

    until_ns: int
    incarnation: bytes
    tip: int


class BrokenPromiseError(AssertionError):
    """A guarantee was broken; `name` is that of the validator."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name}: {what}")
        self.name = name


def selects(selector: Selector, page: Instance, incarnation: bytes) -> bool:
    """Whether a selector means this page by itself: what its words say, nothing widened."""
    space = page.namespace
    return (
        (selector.namespace is None or selector.namespace == space.id)
        and (selector.model is None or selector.model == space.model)
        and (selector.weights_version is None or selector.weights_version == space.weights.version)
        and (selector.other_weights_than is None or selector.other_weights_than != space.weights.version)
        and (selector.adapter is None or selector.adapter == (space.adapter.name if space.adapter else ""))
        and (selector.tenant is None or selector.tenant == space.tenant)
        and (selector.key is None or selector.key in page.chain)
        and (selector.producer is None or selector.producer == page.producer)
        and (selector.tag is None or selector.tag in page.tags)
        and (selector.since_ms is None or page.until_ms >= selector.since_ms)
        and (selector.until_ms is None or page.from_ms <= selector.until_ms)
        and (selector.since_revision is None or _stamped(page, incarnation, least=selector.since_revision))
        and (selector.until_revision is None or _stamped(page, incarnation, most=selector.until_revision))
    )


def _stamped(page: Instance, incarnation: bytes, *, least: int = 0, most: int = 1 << 64) -> bool:
    return page.incarnation == incarnation and least <= page.revision <= most


_NO_ORIGIN = dict.fromkeys(("producer", "tag", "since_ms", "until_ms", "since_revision", "until_revision"))


@dataclass
class Truth:
    """The record of it."""

    appends: list[Append] = field(default_factory=list)
    instances: dict[int, Instance] = field(default_factory=dict)
    fenced: list[Append] = field(default_factory=list)
    """Records whose fence has returned with the promise `hidden`, in that order."""
    grants: dict[bytes, list[Grant]] = field(default_factory=dict)
    """By member."""
    births: dict[int, Instance] = field(default_factory=dict)
    joined: dict[tuple[bytes, bytes], int] = field(default_factory=dict)
    """True time at which a member's first renewal in an incarnation was carried out: from then on the log lists it."""
    of_position: dict[tuple[bytes, int], list[Append]] = field(default_factory=dict)
    of_incarnation: dict[bytes, list[Append]] = field(default_factory=dict)

    def appended(
        self, server: str, incarnation: bytes, revision: int, selector: Selector | None, *, true_ns: int
    ) -> Append:
        """A server appended a record."""
        number = len(self.appends) + 1
        append = Append(number, true_ns, server, incarnation, revision, selector)
        self.appends.append(append)
        self.of_position.setdefault((incarnation, revision), []).append(append)
        self.of_incarnation.setdefault(incarnation, []).append(append)
        return append

    def computed(self, page: Instance, used: frozenset[Instance]) -> Instance:
        """A computation of a page began, on top of others."""
        page.derived_from = used.union((page,), *(one.derived_from for one in used))
        page.begun_least = min(one.begun for one in page.derived_from)
        self.instances[page.number] = page
        return page

    def born(self, birth: int, page: Instance) -> None:
        """A page was committed for the first time anywhere, or loaded: its birth is that of one computation (I6)."""
        known = self.births.setdefault(birth, page)
        if known is not page:
            raise BrokenPromiseError("BrokeWhole", f"{page} was published under the birth of {known}")

    def check_bytes(self, birth: int, words: tuple[int, int], who: str) -> None:
        """I5: what stands in a visible page's place is what its birth says, as long as it is there."""
        page = self.births.get(birth)
        if page is not None and words != (page.number, page.number):
            raise BrokenPromiseError(
                "BrokeWhole", f"{page} of {who} has other bytes now than when it was published: {words}"
            )

    def renewed(self, member: bytes, incarnation: bytes, *, true_ns: int) -> None:
        """A server renewed a member."""
        self.joined.setdefault((member, incarnation), true_ns)

    def is_listed(self, member: bytes, incarnation: bytes, *, by_ns: int) -> bool:
        """Whether the log knew of a member before a time."""
        return self.joined.get((member, incarnation), by_ns) < by_ns

    def granted(self, member: bytes, grant: Grant) -> None:
        """The true primary renewed a member."""
        grants = self.grants.setdefault(member, [])
        grants.append(grant)
        del grants[:-8]

    def fence_returned(
        self, stamps: Sequence[tuple[bytes, int]], selectors: Sequence[Selector]
    ) -> list[Append]:
        """An invalidation returned with its promise kept; returns the records of it."""
        found = []
        for stamp, selector in zip(stamps, selectors, strict=True):
            own = [one for one in self.of_position.get(stamp, ()) if one.selector == selector]
            if not own:
                raise BrokenPromiseError(
                    "BrokeFence", f"a fence returned for {stamp[1]}, which nobody appended"
                )
            found.append(own[0])
        self.fenced += found
        return found

    # --- validators ---

    def check_fence(self, pages: list[Instance], fences: int, who: str) -> None:
        """I1: a look-up that was invoked after `fences` fences had returned was served these pages."""
        for fence in self.fenced[:fences]:
            for page in pages:
                guilty = self.selected_by(fence, page)
                if guilty is not None:
                    raise BrokenPromiseError(
                        "BrokeFence",
                        f"{who} was served page {page} after the fence of append {fence.number} "
                        f"({fence.selector.describe() if fence.selector else ''}) had returned; "
                        f"{guilty} of its derivation was begun after append {guilty.begun}",
                    )

    def selected_by(self, record: Append, page: Instance) -> Instance | None:
        """The page of a derivation that a record selects and that was begun before it; None: none is."""
        selector = record.selector
        if selector is None or page.begun_least >= record.number:
            return None
        for one in page.derived_from:
            if one.begun < record.number and selects(selector, one, record.incarnation):
                return one
        return None

    def check_freshness(
        self, members: Sequence[tuple[bytes, Mapping[bytes, int]]], *, invoked_ns: int, who: str
    ) -> None:
        """I2: a hit needs a renewal by the true log that is not over yet, and all that it brought published.

        `members` are those that may have served it: each with the newest revision of each incarnation that it has published.
        """
        for member, published in members:
            for grant in self.grants.get(member, ()):
                if grant.until_ns > invoked_ns and grant.tip <= published.get(grant.incarnation, -1):
                    return
        raise BrokenPromiseError(
            "BrokeFailClosed", f"{who} was served without a renewal of its sidecar that covers it"
        )

    def check_published(self, page: Instance, incarnation: bytes, revision: int, who: str) -> None:
        """I3: a page became visible at a sidecar that has published this position."""
        for one in page.derived_from:
            if one.incarnation != incarnation:
                raise BrokenPromiseError(
                    "BrokeInFlight",
                    f"{who} published {page}, which rests on {one} of another incarnation of the log",
                )
        for record in self.of_incarnation.get(incarnation, ()):
            if record.revision <= revision:
                guilty = self.selected_by(record, page)
                if guilty is not None:
                    raise BrokenPromiseError(
                        "BrokeInFlight",
                        f"{who} published {page} at revision {revision}, though append {record.number} "
                        f"(revision {record.revision}) selects {guilty}, begun after append {guilty.begun}",
                    )

    def check_spared(
        self,
        chain: list[tuple[Instance, bool, int, int]],
        incarnation: bytes,
        revision: int,
        *,
        limits: tuple[int, int, int],
        skew_ms: int,
        who: str,
    ) -> None:
        """Sparing: a page goes only if what its sidecar has read of the log selects it, or a page that it stands on.

        `chain`: each page up to the root, whether its lineage is unknown, and its times as they were told. `revision`: how
        far the log was read. Selectors by time are widened by the skew; one by origin takes whatever is of unknown lineage.
        Who lost the thread of a log that keeps few reads a floor in place of what was dropped: see `floors_of`.
        """
        read = [one for one in self.of_incarnation.get(incarnation, ()) if one.revision <= revision]
        floor, floors = floors_of(
            [(one.revision, one.selector) for one in read if one.selector is not None], *limits
        )
        for page, unknown, from_ms, until_ms in chain:
            if page.revision < max(floor, floors.get(page.namespace.id, 0)):
                return
            told = replace(page, from_ms=from_ms - skew_ms, until_ms=until_ms + skew_ms)
            for record in read:
                if record.selector is None or page.revision >= record.revision:
                    continue
                selector = replace(record.selector, **_NO_ORIGIN) if unknown else record.selector
                if selects(selector, told, incarnation):
                    return
        raise BrokenPromiseError("BrokeSparing", f"{who} hid {chain[0][0]}, which no record selects")

    def space_of(self, number: int) -> Namespace:
        """Namespace of what a page's bytes say that they are."""
        page = self.instances.get(number)
        if page is None:
            raise BrokenPromiseError("BrokeWhole", f"bytes that nobody computed: {number}")
        return page.namespace

    def check_whole(
        self, words: tuple[int, int], chain: tuple[PageKey, ...], space: Namespace, who: str
    ) -> Instance:
        """I5: the bytes that were served are one page's, and that of the key; returns it."""
        page = self.instances.get(words[0])
        if words[0] != words[1] or page is None:
            raise BrokenPromiseError("BrokeWhole", f"{who} was served a torn page: {words}")
        if page.namespace.id != space.id:
            raise BrokenPromiseError("BrokeWhole", f"{who} was served {page}, which is of another namespace")
        if page.chain != chain:
            raise BrokenPromiseError(
                "BrokePrefix", f"{who} was served {page} in the place of another of its chain"
            )
        if page.weights != space.weights.version and space.weights.version != "1":
            # under the old name new weights compute as well, from when they are loaded until that is announced
            raise BrokenPromiseError(
                "BrokeWhole",
                f"{who} was served {page}, computed by weights {page.weights} under the name of {space.weights.version}",
            )
        return page
