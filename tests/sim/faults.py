"""What befalls a fleet: servers, their replication, machines, processes and the network between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tests.sim.clockwork import MS, S
from tests.sim.engine import Engine
from tests.sim.plan import Fault
from tests.sim.redis_server import RedisServer
from tests.sim.worker import Worker

if TYPE_CHECKING:
    from tests.sim.sidecar import SimulatedSidecar
    from tests.sim.world import World

_One = TypeVar("_One")
DUMP_EVERY_NS = 700 * MS


class Faults:
    """Carries faults out, and ends them all when the world becomes quiet."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._undo: list[Callable[[], None]] = []
        self._is_lowered = False
        """Whether an operator has lowered k, after which nobody may promote a replica: what it lacks is not waited for."""
        self._dumps: dict[RedisServer, list[dict[bytes, Any]]] = {}

    def schedule(self, faults: Sequence[Fault]) -> None:
        """Have all of them happen in their time."""
        clockwork = self._world.clockwork
        for fault in faults:
            clockwork.at(clockwork.now_ns + fault.at_ns, partial(self._happen, fault))
        if any(fault.kind in ("old_dump", "restart") for fault in faults):
            self._dump()

    def _dump(self) -> None:
        """Servers save what they have now and then."""
        if self._world.is_quiet:
            return
        for server in self._world.servers:
            self._dumps.setdefault(server, []).append(server.keyspace.snapshot())
        self._world.clockwork.after(DUMP_EVERY_NS, self._dump)

    def _happen(self, fault: Fault) -> None:
        if not self._world.is_quiet:
            self._world.note("fault", f"{fault.kind} for {fault.length_ns / S:.2f} s")
            getattr(self, f"_{fault.kind}")(fault)

    def _for(self, fault: Fault, undo: Callable[[], None]) -> None:
        """Undo it when its time is over, or when the world becomes quiet."""
        done: list[bool] = []

        def once() -> None:
            if not done:
                done.append(True)
                undo()

        self._undo.append(once)
        self._world.clockwork.after(fault.length_ns, once)

    def heal(self) -> None:
        """Undo everything that is under way; afterwards every part is there and reaches every other."""
        for undo in self._undo:
            undo()
        world = self._world
        world.network.restore()
        primary = self.primary()
        for server in world.servers:
            if not server.process.alive:
                server.restart(self._latest(server))
            if server is not primary and server.primary is not primary:
                server.follow(primary)
        for sidecar in world.sidecars:
            sidecar.start()

    # --- picking ---

    def _pick(self, fault: Fault, of: Sequence[_One]) -> _One:
        return of[int(fault.pick * len(of))]

    def primary(self) -> RedisServer:
        """The server that is the primary for everybody who knows."""
        living = [one for one in self._world.servers if one not in self._world.superseded]
        return next((one for one in living if one.primary is None), living[0])

    def _replicas(self) -> list[RedisServer]:
        return [one for one in self._world.servers if one.primary is not None and one.process.alive]

    def _sidecar(self, fault: Fault) -> SimulatedSidecar:
        return self._pick(fault, self._world.sidecars)

    # --- servers ---

    def _flush(self, fault: Fault) -> None:
        primary = self.primary()
        if primary.process.alive and primary.primary is None:
            primary.flush()

    def _restart(self, fault: Fault) -> None:
        self._restart_with(fault, self._latest)

    def _old_dump(self, fault: Fault) -> None:
        self._restart_with(fault, lambda server: self._dumps.get(server, [{}])[int(fault.size * 2) % 2 - 1])

    def _restart_with(self, fault: Fault, dump: Callable[[RedisServer], dict[bytes, Any]]) -> None:
        server = self.primary()
        if server.process.alive:
            server.crash()

            def start() -> None:
                if not server.process.alive:
                    server.restart(RedisServer.copy(dump(server)))

            self._for(fault, start)

    def _latest(self, server: RedisServer) -> dict[bytes, Any]:
        return RedisServer.copy(self._dumps.get(server, [{}])[-1])

    def _stop_server(self, fault: Fault) -> None:
        process = self._pick(fault, self._world.servers).process
        self._world.clockwork.stop(process)
        self._for(fault, lambda: self._world.clockwork.resume(process))

    def _full(self, fault: Fault) -> None:
        server = self.primary()
        server.is_full = True
        self._for(fault, lambda: setattr(server, "is_full", False))

    # --- replication ---

    def _promote_zombie(self, fault: Fault) -> None:
        """A replica is promoted while the old primary lives on and may still be reached by some; later it is demoted."""
        self._promote_one(fault, kills=False)

    def _promote(self, fault: Fault) -> None:
        self._promote_one(fault, kills=True)

    def _promote_one(self, fault: Fault, *, kills: bool) -> None:
        world, old, replicas = self._world, self.primary(), self._replicas()
        if not replicas or self._is_lowered:
            return
        new = self._pick(fault, replicas)
        if fault.size < 0.7:  # mostly because the two can't see each other
            for one, other in ((old, new), (new, old)):
                world.network.cut(one.node.name, other.node.name)
                self._for(fault, partial(world.network.heal, one.node.name, other.node.name))
        if kills and old.process.alive:
            old.crash()
        new.promote()
        world.superseded.add(old)
        world.superseded.discard(new)
        for other in replicas:
            if other is not new:
                world.clockwork.after(int(fault.size * S), partial(self._join, other, new))
        if kills and fault.pick < 0.4 and len(world.servers) == 2:
            self._is_lowered = True
            world.clockwork.after(300 * MS, partial(world.operator.set_replicas, 0))
        self._for(fault, lambda: self._demote(old, new))

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

    def _split(self, fault: Fault) -> None:
        """A replica is promoted; some sidecar reaches the old primary alone, all others the new one alone."""
        old = self.primary()
        self._promote_one(fault, kills=False)
        new = self.primary()
        if new is old:
            return
        alone = self._sidecar(fault)
        for sidecar in self._world.sidecars:
            hidden = new if sidecar is alone else old
            self._cut(fault, sidecar.node.name, hidden.node.name)
            self._cut(fault, hidden.node.name, sidecar.node.name)

    def _bounce(self, fault: Fault) -> None:
        """A replica that lacks the newest is promoted, and the old primary again at once: what was lost is lost there too."""
        world, old, replicas = self._world, self.primary(), self._replicas()
        if not replicas or self._is_lowered or not old.process.alive:
            return
        new = self._pick(fault, replicas)
        new.promote()
        old.follow(new)

        def back() -> None:
            if not old.is_linked:
                world.clockwork.after(1 * MS, back)
                return
            old.promote()
            new.follow(old)

        world.clockwork.after(2 * MS, back)

    def _fail_back(self, fault: Fault) -> None:
        self._promote_one(fault, kills=False)

        def again() -> None:
            self._promote_one(fault, kills=False)

        self._world.clockwork.after(
            fault.length_ns + 2 * S, lambda: None if self._world.is_quiet else again()
        )

    def _lag(self, fault: Fault) -> None:
        """What replicas get comes late."""
        network, primary = self._world.network, self.primary()
        for replica in self._replicas():
            names = primary.node.name, replica.node.name
            network.slow(*names, least_ns=int(fault.size * S), spread_ns=100 * MS)
            self._for(fault, partial(network.slow, *names, least_ns=MS // 10, spread_ns=MS))

    def _cut_replication(self, fault: Fault) -> None:
        network, primary = self._world.network, self.primary()
        for replica in self._replicas():
            self._cut(fault, primary.node.name, replica.node.name)
            if fault.size < 0.5:
                self._cut(fault, replica.node.name, primary.node.name)
        assert network

    # --- machines and processes ---

    def _stand_still(self, fault: Fault) -> None:
        """A machine is paused and its clock doesn't notice: no longer than the bound that the fleet is told."""
        self._pause(fault, min(fault.length_ns, self._world.plan.pause_ns - 1), stands_still=True)

    def _suspend(self, fault: Fault) -> None:
        self._pause(fault, fault.length_ns, stands_still=False)

    def _pause(self, fault: Fault, length_ns: int, *, stands_still: bool) -> None:
        node = self._sidecar(fault).node
        if node.is_paused or (stands_still and node.stood_still):
            return
        node.pause(clock_stands_still=stands_still)
        self._for(Fault(fault.at_ns, fault.kind, length_ns, fault.pick, fault.size), node.unpause)

    def _stop_sidecar(self, fault: Fault) -> None:
        life = self._sidecar(fault).life
        if life is not None:
            self._world.clockwork.stop(life.process)
            self._for(fault, lambda: self._world.clockwork.resume(life.process))

    def _stop_worker(self, fault: Fault) -> None:
        living = [one for one in self._world.workers if one.process.alive]
        if living:
            process = self._pick(fault, living).process
            self._world.clockwork.stop(process)
            self._for(fault, lambda: self._world.clockwork.resume(process))

    def _crash(self, fault: Fault) -> None:
        sidecar = self._sidecar(fault)
        sidecar.kill()
        self._for(fault, sidecar.start)

    def _goodbye(self, fault: Fault) -> None:
        sidecar = self._sidecar(fault)
        life = sidecar.life
        if life is not None and not life.process.stops:
            life.spawn(life.goodbye())

            def restart() -> None:
                if sidecar.life is life:
                    sidecar.kill()
                sidecar.start()

            self._for(fault, restart)

    def _kill_worker(self, fault: Fault) -> None:
        world = self._world
        clients: list[Worker | Engine] = [*world.workers, *world.engines]
        living = [one for one in clients if one.process.alive]
        if living:
            client = self._pick(fault, living)
            client.kill()
            add = world.add_worker if isinstance(client, Worker) else world.add_engine
            world.clockwork.after(fault.length_ns, lambda: None if world.is_quiet else add(client.sidecar, 9))

    def _wall_step(self, fault: Fault) -> None:
        """Wall clocks of servers step by hours; those of producers stay within the bound that selectors are told."""
        step_ns = int((fault.size - 0.5) * 7200 * S)
        for server in self._world.servers:
            server.node.wall_offset_ns += step_ns

    # --- the network ---

    def _partition(self, fault: Fault) -> None:
        self._partition_replies(fault)
        self._partition_requests(fault)

    def _partition_replies(self, fault: Fault) -> None:
        for server in self._unreachable(fault):
            self._cut(fault, server.node.name, self._sidecar(fault).node.name)

    def _partition_requests(self, fault: Fault) -> None:
        for server in self._unreachable(fault):
            self._cut(fault, self._sidecar(fault).node.name, server.node.name)

    def _slow(self, fault: Fault) -> None:
        network = self._world.network
        for server in self._unreachable(fault):
            for names in (
                (server.node.name, self._sidecar(fault).node.name),
                (self._sidecar(fault).node.name, server.node.name),
            ):
                network.slow(*names, least_ns=int(fault.size * 200 * MS), spread_ns=100 * MS)
                self._for(fault, partial(network.slow, *names, least_ns=MS // 10, spread_ns=MS))

    def _unreachable(self, fault: Fault) -> list[RedisServer]:
        """All servers, or the primary alone."""
        return list(self._world.servers) if fault.size < 0.6 else [self.primary()]

    def _cut(self, fault: Fault, source: str, target: str) -> None:
        network = self._world.network
        network.cut(source, target)
        self._for(fault, lambda: network.heal(source, target))
