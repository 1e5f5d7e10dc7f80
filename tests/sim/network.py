"""The network between nodes: latency, slow links, partitions in one or both directions, messages late and twice.

A channel keeps its messages in order, as a TCP connection does. What is sent into a cut link waits for it to heal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.sim.clockwork import MS, US, Clockwork, Process


@dataclass(slots=True)
class Link:
    """One direction between two nodes."""

    least_ns: int = 100 * US
    spread_ns: int = 400 * US
    cuts: int = 0
    waiting: list[Callable[[], None]] = field(default_factory=list)


class Channel:
    """One direction of one connection: what is sent first arrives first."""

    __slots__ = ("_last_ns", "_link", "_network")

    def __init__(self, network: Network, link: Link) -> None:
        self._network = network
        self._link = link
        self._last_ns = 0

    def send(self, arrive: Callable[[], None], process: Process | None) -> None:
        """Have `arrive` called at the other end, in the time of the process there."""
        if self._link.cuts:
            self._link.waiting.append(lambda: self.send(arrive, process))
            return
        clockwork = self._network.clockwork
        self._last_ns = max(clockwork.now_ns + self._network.latency_ns(self._link), self._last_ns)
        clockwork.at(self._last_ns, arrive, process)


class Network:
    """All links; those nobody has touched are quick."""

    def __init__(self, clockwork: Clockwork) -> None:
        self.clockwork = clockwork
        self._links: dict[tuple[str, str], Link] = {}

    def link(self, source: str, target: str) -> Link:
        """The direction from one node to another."""
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link()
        return found

    def channel(self, source: str, target: str) -> Channel:
        """Open one direction of a connection."""
        return Channel(self, self.link(source, target))

    def latency_ns(self, link: Link) -> int:
        """Draw how long a message takes."""
        return link.least_ns + int(self.clockwork.random.random() * link.spread_ns)

    def cut(self, source: str, target: str) -> None:
        """Nothing passes this way any more; cuts nest."""
        self.link(source, target).cuts += 1

    def heal(self, source: str, target: str) -> None:
        """End one cut; after the last, what waited goes on its way."""
        link = self.link(source, target)
        link.cuts -= 1
        if not link.cuts:
            waiting, link.waiting = link.waiting, []
            for send in waiting:
                send()

    def slow(self, source: str, target: str, *, least_ns: int, spread_ns: int) -> None:
        """Make a direction slow, or quick again."""
        link = self.link(source, target)
        link.least_ns, link.spread_ns = least_ns, spread_ns

    def restore(self) -> None:
        """Heal everything."""
        for (source, target), link in list(self._links.items()):
            while link.cuts:
                self.heal(source, target)
            link.least_ns, link.spread_ns = 100 * US, 1 * MS
