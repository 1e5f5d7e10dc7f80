"""C19: primary and replica of the pages' server swap roles under load; writes find the new primary by themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import pytest

from kv_types.outcomes import Stored
from tests.fleet.fleet import Fleet, fleet_of
from tests.fleet.station import Station
from tests.fleet.two_nodes import SPACE, Records, fetch
from tests.support.polling import wait_until
from tests.support.redis_servers import RedisServer
from tests.support.timing import timed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

RECOVER_S_MAX = 10.0


class Pair:
    """A primary and its replica, and a fleet that has its pages there and its log elsewhere."""

    def __init__(self) -> None:
        self.servers: list[RedisServer] = []
        self.prompts = 0

    def url(self, fleet: Fleet) -> str:
        primary = fleet.servers.start()
        self.servers = [primary, fleet.servers.start_replica(primary)]
        return ",".join(server.tcp_url for server in self.servers)

    @property
    def primary(self) -> RedisServer:
        return self.servers[0]

    def swap(self) -> None:
        primary, replica = self.servers
        primary.swap_roles(replica)
        self.servers = [replica, primary]

    def store(self, station: Station) -> bytes:
        """One more chain; none of its pages is refused, and the call keeps its deadline."""
        self.prompts += 1
        keys = station.chain([self.prompts] * (4 * SPACE.page_tokens))
        outcomes = timed(partial(station.compute, keys), deadline_s=2.0)
        assert all(isinstance(one, Stored) for one in outcomes), outcomes
        return keys

    def has(self, keys: bytes) -> bool:
        with contextlib.suppress(AssertionError):
            Records(self.primary, SPACE).wait(keys, timeout_s=0.5)
            return True
        return False


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Fleet, Pair]]:
    pair = Pair()
    with fleet_of(sidecars=2, workers=0, l3=pair.url) as fleet:
        yield fleet, pair


def test_c19_roles_are_swapped_under_load_again_and_again(shared: tuple[Fleet, Pair]) -> None:
    fleet, pair = shared
    with (
        Station(fleet.sidecars[0].runtime, SPACE) as first,
        Station(fleet.sidecars[1].runtime, SPACE) as second,
    ):
        wait_until(lambda: pair.has(pair.store(first)), timeout_s=RECOVER_S_MAX, what="writes")
        for swap in range(4):
            under_load = [pair.store(first) for _ in range(10)]
            pair.swap()
            for keys in under_load:
                fetch(second, keys, deadline_s=0.1)
                pair.store(first)
            wait_until(
                lambda: pair.has(pair.store(first)), timeout_s=RECOVER_S_MAX, what=f"writes, swap {swap}"
            )
            keys = pair.store(first)
            Records(pair.primary, SPACE).wait(keys)
            wait_until(
                lambda: fetch(second, keys, deadline_s=0.5).pages == 4,  # noqa: B023 - waited for here
                timeout_s=RECOVER_S_MAX, what=f"reads after swap {swap}",
            )  # fmt: skip
