"""What befalls a fleet: servers, their replication, machines, processes and the network between them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from tests.sim.clockwork import MS, S
from tests.sim.engine import Engine
from tests.sim.plan import PAGE, Fault
from tests.sim.redis_server import RedisServer
from tests.sim.server_faults import RESTARTING, ServerFaults, Undoing, pick
from tests.sim.worker import Worker

if TYPE_CHECKING:
    from tests.sim.sidecar import SimulatedSidecar
    from tests.sim.world import World


class Faults:
    """Carries faults out, and ends them all when the world becomes quiet."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._undoing = Undoing(world)
        self._log = ServerFaults(world, world.servers, self._undoing, has_log=True)
        self._pages = self._log
        if world.page_servers and world.page_servers is not world.servers:
            self._pages = ServerFaults(world, world.page_servers, self._undoing, has_log=False)

    def schedule(self, faults: Sequence[Fault]) -> None:
        """Have all of them happen in their time."""
        clockwork = self._world.clockwork
        for fault in faults:
            clockwork.at(clockwork.now_ns + fault.at_ns, partial(self._happen, fault))
        for servers in dict.fromkeys(
            self._servers(fault) for fault in faults if fault.kind.endswith(RESTARTING)
        ):
            servers.dump()

    def _servers(self, fault: Fault) -> ServerFaults:
        return self._pages if fault.kind.startswith(PAGE) else self._log

    def _happen(self, fault: Fault) -> None:
        if self._world.is_quiet:
            return
        self._world.note("fault", f"{fault.kind} for {fault.length_ns / S:.2f} s")
        kind = fault.kind.removeprefix(PAGE)
        own = getattr(self, f"_{kind}", None)
        if own is not None:
            own(fault)
        else:
            getattr(self._servers(fault), kind)(fault)

    def heal(self) -> None:
        """Undo everything that is under way; afterwards every part is there and reaches every other."""
        self._undoing.now()
        self._world.network.restore()
        for servers in dict.fromkeys((self._log, self._pages)):
            servers.heal()
        for sidecar in self._world.sidecars:
            sidecar.start()

    def primary(self) -> RedisServer:
        """The log's primary."""
        return self._log.primary()

    def _sidecar(self, fault: Fault) -> SimulatedSidecar:
        return pick(fault, self._world.sidecars)

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
        self._undoing.later(Fault(fault.at_ns, fault.kind, length_ns, fault.pick, fault.size), node.unpause)

    def _stop_sidecar(self, fault: Fault) -> None:
        life = self._sidecar(fault).life
        if life is not None:
            self._world.clockwork.stop(life.process)
            self._undoing.later(fault, lambda: self._world.clockwork.resume(life.process))

    def _stop_worker(self, fault: Fault) -> None:
        living = [one for one in self._world.workers if one.process.alive]
        if living:
            process = pick(fault, living).process
            self._world.clockwork.stop(process)
            self._undoing.later(fault, lambda: self._world.clockwork.resume(process))

    def _crash(self, fault: Fault) -> None:
        sidecar = self._sidecar(fault)
        sidecar.kill()
        self._undoing.later(fault, sidecar.start)

    def _goodbye(self, fault: Fault) -> None:
        sidecar = self._sidecar(fault)
        life = sidecar.life
        if life is not None and not life.process.stops:
            life.spawn(life.goodbye())

            def restart() -> None:
                if sidecar.life is life:
                    sidecar.kill()
                sidecar.start()

            self._undoing.later(fault, restart)

    def _kill_worker(self, fault: Fault) -> None:
        world = self._world
        clients: list[Worker | Engine] = [*world.workers, *world.engines]
        living = [one for one in clients if one.process.alive]
        if living:
            client = pick(fault, living)
            client.kill()
            add = world.add_worker if isinstance(client, Worker) else world.add_engine
            world.clockwork.after(fault.length_ns, lambda: None if world.is_quiet else add(client.sidecar, 9))

    def _wall_step(self, fault: Fault) -> None:
        """Wall clocks of servers step by hours; those of producers stay within the bound that selectors are told."""
        step_ns = int((fault.size - 0.5) * 7200 * S)
        for server in dict.fromkeys((*self._world.servers, *self._world.page_servers)):
            server.node.wall_offset_ns += step_ns

    # --- the network ---

    def _partition(self, fault: Fault) -> None:
        self._partition_replies(fault)
        self._partition_requests(fault)

    def _partition_replies(self, fault: Fault) -> None:
        for server in self._unreachable(fault):
            self._undoing.cut(fault, server.node.name, self._sidecar(fault).node.name)

    def _partition_requests(self, fault: Fault) -> None:
        for server in self._unreachable(fault):
            self._undoing.cut(fault, self._sidecar(fault).node.name, server.node.name)

    def _slow(self, fault: Fault) -> None:
        network = self._world.network
        for server in self._unreachable(fault):
            for names in (
                (server.node.name, self._sidecar(fault).node.name),
                (self._sidecar(fault).node.name, server.node.name),
            ):
                network.slow(*names, least_ns=int(fault.size * 200 * MS), spread_ns=100 * MS)
                self._undoing.later(fault, partial(network.slow, *names, least_ns=MS // 10, spread_ns=MS))

    def _unreachable(self, fault: Fault) -> list[RedisServer]:
        """All servers, or the primary alone."""
        of = self._servers(fault)
        return list(of.servers) if fault.size < 0.6 else [of.primary()]
