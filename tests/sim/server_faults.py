"""What befalls servers that stand for each other: those of the log, or those that keep pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tests.sim.clockwork import MS, S
from tests.sim.plan import Fault
from tests.sim.redis_server import MAXMEMORY, RedisServer

if TYPE_CHECKING:
    from tests.sim.world import World

_One = TypeVar("_One")
DUMP_EVERY_NS = 700 * MS
RESTARTING = ("restart", "old_dump")


def pick(fault: Fault, of: Sequence[_One]) -> _One:
    """One of them, by the fault's draw."""
    return of[int(fault.pick * len(of))]


class Undoing:
    """Ends what has befallen the fleet: in its time, or all of it at once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._undo: list[Callable[[], None]] = []

    def later(self, fault: Fault, undo: Callable[[], None]) -> None:
        """Undo it when its time is over, or when the world becomes quiet."""
        done: list[bool] = []

        def once() -> None:
            if not done:
                done.append(True)
                undo()

        self._undo.append(once)
        self._world.clockwork.after(fault.length_ns, once)

    def cut(self, fault: Fault, source: str, target: str) -> None:
        """Nothing passes this way until then."""
        network = self._world.network
        network.cut(source, target)
        self.later(fault, lambda: network.heal(source, target))

    def now(self) -> None:
        """Undo everything."""
        for undo in self._undo:
            undo()


class ServerFaults:
    """`has_log`: the log is on them, so that an operator says how many replicas must confirm."""

    def __init__(self, world: World, servers: list[RedisServer], undoing: Undoing, *, has_log: bool) -> None:
        self.servers = servers
        self._world = world
        self._undoing = undoing
        self._has_log = has_log
        self._is_lowered = False
        """Whether an operator has lowered k, after which nobody may promote a replica: what it lacks is not waited for."""
        self._dumps: dict[RedisServer, list[dict[bytes, Any]]] = {}

    def dump(self) -> None:
        """Save what they have now and then."""
        if self._world.is_quiet:
            return
        for server in self.servers:
            self._dumps.setdefault(server, []).append(server.keyspace.snapshot())
        self._world.clockwork.after(DUMP_EVERY_NS, self.dump)

    def heal(self) -> None:
        """Every server lives, and follows the primary."""
        primary = self.primary()
        for server in self.servers:
            if not server.process.alive:
                server.restart(self._latest(server))
            if server is not primary and server.primary is not primary:
                server.follow(primary)

    def primary(self) -> RedisServer:
        """The server that is the primary for everybody who knows."""
        living = [one for one in self.servers if one not in self._world.superseded]
        return next((one for one in living if one.primary is None), living[0])

    def _replicas(self) -> list[RedisServer]:
        return [one for one in self.servers if one.primary is not None and one.process.alive]

    # --- servers ---

    def flush(self, fault: Fault) -> None:
        primary = self.primary()
        if primary.process.alive and primary.primary is None:
            primary.flush()

    def restart(self, fault: Fault) -> None:
        self._restart_with(fault, self._latest)

    def old_dump(self, fault: Fault) -> None:
        self._restart_with(fault, lambda server: self._dumps.get(server, [{}])[int(fault.size * 2) % 2 - 1])

    def _restart_with(self, fault: Fault, dump: Callable[[RedisServer], dict[bytes, Any]]) -> None:
        server = self.primary()
        if server.process.alive:
            server.crash()

            def start() -> None:
                if not server.process.alive:
                    server.restart(RedisServer.copy(dump(server)))

            self._undoing.later(fault, start)

    def _latest(self, server: RedisServer) -> dict[bytes, Any]:
        return RedisServer.copy(self._dumps.get(server, [{}])[-1])

    def stop_server(self, fault: Fault) -> None:
        process = pick(fault, self.servers).process
        self._world.clockwork.stop(process)
        self._undoing.later(fault, lambda: self._world.clockwork.resume(process))

    def full(self, fault: Fault) -> None:
        server = self.primary()
        server.is_full = True
        self._undoing.later(fault, lambda: setattr(server, "is_full", False))
        self.reserve(fault)

    def reserve(self, fault: Fault) -> None:
        """Others have filled it so far that no page may be written, though it takes what is."""
        server = self.primary()
        server.foreign_bytes = MAXMEMORY - MAXMEMORY // 50
        self._undoing.later(fault, lambda: setattr(server, "foreign_bytes", 0))

    def evict(self, fault: Fault) -> None:
        """Some pages go, one by one."""
        server = self.primary()
        for number in range(1 + int(fault.size * 4)):
            at_ns = int(number * fault.length_ns * 0.1)
            self._world.clockwork.after(at_ns, partial(self._evict_one, server))

    def _evict_one(self, server: RedisServer) -> None:
        if server.process.alive and not self._world.is_quiet:
            server.evict(self._world.clockwork.random.random())

    def damage(self, fault: Fault) -> None:
        """Bytes of some pages are not any more what was written."""
        server, random = self.primary(), self._world.clockwork.random
        for _ in range(1 + int(fault.size * 4)):
            self._world.damaged += server.damage(random) if server.process.alive else 0

    def reset(self, fault: Fault) -> None:
        """All connections to a server end."""
        server = pick(fault, self.servers)
        connections, server.connections = server.connections, []
        for connection in connections:
            connection.reset()

    # --- replication ---

    def promote_zombie(self, fault: Fault) -> None:
        """A replica is promoted while the old primary lives on and may still be reached by some; later it is demoted."""
        self._promote_one(fault, kills=False)

    def promote(self, fault: Fault) -> None:
        self._promote_one(fault, kills=True)

    def _promote_one(self, fault: Fault, *, kills: bool) -> None:
        world, old, replicas = self._world, self.primary(), self._replicas()
        if not replicas or self._is_lowered:
            return
        new = pick(fault, replicas)
        if fault.size < 0.7:  # mostly because the two can't see each other
            for one, other in ((old, new), (new, old)):
                world.network.cut(one.node.name, other.node.name)
                self._undoing.later(fault, partial(world.network.heal, one.node.name, other.node.name))
        if kills and old.process.alive:
            old.crash()
        new.promote()
        world.superseded.add(old)
        world.superseded.discard(new)
        for other in replicas:
            if other is not new:
                world.clockwork.after(int(fault.size * S), partial(self._join, other, new))
        if self._has_log and kills and fault.pick < 0.4 and len(self.servers) == 2:
            self._is_lowered = True
            world.clockwork.after(300 * MS, partial(world.operator.set_replicas, 0))
        self._undoing.later(fault, lambda: self._demote(old, new))

    def _join(self, server: RedisServer, primary: RedisServer) -> None:
        if server.process.alive and primary not in self._world.superseded and server is not primary:
            server.follow(primary)

    def _demote(self, old: RedisServer, new: RedisServer) -> None:
        if not old.process.alive:
            old.restart(self._latest(old))
        if old in self._world.superseded and new not in self._world.superseded:
            old.follow(new)
            if self._is_lowered:
                self._world.clockwork.after(500 * MS, partial(self._world.operator.set_replicas, 1))

    def split(self, fault: Fault) -> None:
        """A replica is promoted; some sidecar reaches the old primary alone, all others the new one alone."""
        old = self.primary()
        self._promote_one(fault, kills=False)
        new = self.primary()
        if new is old:
            return
        alone = pick(fault, self._world.sidecars)
        for sidecar in self._world.sidecars:
            hidden = new if sidecar is alone else old
            self._undoing.cut(fault, sidecar.node.name, hidden.node.name)
            self._undoing.cut(fault, hidden.node.name, sidecar.node.name)

    def bounce(self, fault: Fault) -> None:
        """A replica that lacks the newest is promoted, and the old primary again at once: what was lost is lost there too."""
        world, old, replicas = self._world, self.primary(), self._replicas()
        if not replicas or self._is_lowered or not old.process.alive:
            return
        new = pick(fault, replicas)
        new.promote()
        old.follow(new)

        def back() -> None:
            if not old.is_linked:
                world.clockwork.after(1 * MS, back)
                return
            old.promote()
            new.follow(old)

        world.clockwork.after(2 * MS, back)

    def fail_back(self, fault: Fault) -> None:
        self._promote_one(fault, kills=False)

        def again() -> None:
            self._promote_one(fault, kills=False)

        self._world.clockwork.after(
            fault.length_ns + 2 * S, lambda: None if self._world.is_quiet else again()
        )

    def lag(self, fault: Fault) -> None:
        """What replicas get comes late."""
        network, primary = self._world.network, self.primary()
        for replica in self._replicas():
            names = primary.node.name, replica.node.name
            network.slow(*names, least_ns=int(fault.size * S), spread_ns=100 * MS)
            self._undoing.later(fault, partial(network.slow, *names, least_ns=MS // 10, spread_ns=MS))

    def cut_replication(self, fault: Fault) -> None:
        primary = self.primary()
        for replica in self._replicas():
            self._undoing.cut(fault, primary.node.name, replica.node.name)
            if fault.size < 0.5:
                self._undoing.cut(fault, replica.node.name, primary.node.name)
