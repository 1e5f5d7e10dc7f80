"""Looking chains up on a site with an L3: every byte is checked, and what is counted is at hand."""

from __future__ import annotations

from inference_worker.client import Client, RegisteredNamespace
from kv_types.ids import KEY_BYTES
from kv_types.outcomes import STORED, Hit, Miss, MissReason, Tier
from tests.inference_worker.worlds import namespace, pages_under, room_for
from tests.support.l3_site import L3Site

SPACE = namespace("loads")


class Looking:
    """Looks chains up, by lease and by get, and holds what is counted against what was served."""

    def __init__(self, site: L3Site, client: Client, ns: RegisteredNamespace) -> None:
        self.site, self.client, self.ns = site, client, ns

    def shelve(self, keys: bytes, *, start: int = 0) -> None:
        self.site.shelve(SPACE, keys, pages_under(keys, self.ns.page_bytes), start=start)

    def store(self, keys: bytes) -> None:
        with self.client.begin(self.ns) as request:
            outcomes = request.put(keys, pages_under(keys, self.ns.page_bytes))
        assert outcomes == [STORED] * len(outcomes)
        self.settle()

    def settle(self) -> None:
        """Have carried out what was put: a look-up waits for that 20 ms at most, which a busy machine may take."""
        self.site.call(lambda store: store.settle_posts())

    def counted(self) -> dict[str, int]:
        told = self.client.statistics()
        names = ("look_ups", "requested_pages", "l1_pages", "l2_pages", "l3_pages")
        missed = [name for name in told if name.startswith("missed_pages_") and told[name]]
        return {name: int(told[name]) for name in (*names, *missed)}

    def look(
        self, how: str, keys: bytes, *, start: int = 0, deadline_s: float | None = None
    ) -> tuple[int, int, MissReason]:
        """Pages of L2, pages of L3, and why no more; checks every byte."""
        sources = pages_under(keys[start * KEY_BYTES :], self.ns.page_bytes)
        if how == "lease":
            with self.client.lease(self.ns, keys, start=start, deadline_s=deadline_s) as lease:
                assert [bytes(page) for page in lease] == sources[: lease.pages]
                return lease.pages - lease.pages_l3, lease.pages_l3, lease.reason
        room = room_for(keys[start * KEY_BYTES :], self.ns.page_bytes)
        outcome = self.client.get(self.ns, keys, room, start=start, deadline_s=deadline_s)
        if isinstance(outcome, Miss):
            return 0, 0, outcome.reason
        assert isinstance(outcome, Hit)
        assert [bytes(page) for page in room[: outcome.pages]] == sources[: outcome.pages]
        assert (outcome.tier is Tier.L3) == (outcome.pages_l3 > 0)
        return outcome.pages - outcome.pages_l3, outcome.pages_l3, outcome.ended_by
