"""A process with the product's client in it, attached to its node's sidecar, over all of that sidecar's lives."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

from cache_l2.attach_messages import Welcome
from cache_l2.reader import AttachedArena
from inference_worker.absent import AbsentPages
from inference_worker.client import Client
from inference_worker.deadlines import Deadline
from inference_worker.lease import Home
from inference_worker.link import Link
from inference_worker.loading import LoadCounts
from inference_worker.local import LocalArena
from inference_worker.namespaces import RegisteredNamespace
from inference_worker.outlived import OutlivedHeader
from inference_worker.prefetch import Prefetches
from inference_worker.prefill_speed import PrefillSpeed
from inference_worker.settings import ClientSettings
from inference_worker.validity import ClientValidity, Header
from inference_worker.weights import Announced, Versions, WeightsWatch
from kv_types.errors import ClosedError, DeadlineExceededError, SidecarUnreachableError
from kv_types.loading import ComputeCost
from kv_types.namespace import Namespace
from kv_types.outcomes import MissReason
from kv_types.validity import EngineMode
from tests.sim.clockwork import MS
from tests.sim.environment import PAGE_BYTES
from tests.sim.sidecar import Attachment, SimulatedSidecar

if TYPE_CHECKING:
    from tests.sim.world import World

DEADLINE_S = 0.5


class Invoked(NamedTuple):
    """When a look-up was invoked, by the boot clock of its machine, and what its process was attached to then."""

    own_ns: int
    attachment: Attachment | None


class _NoRemote:
    """Calls over gRPC, of which there are none; what is prefetched over the attach connection is counted here."""

    def __init__(self) -> None:
        self.prefetches = Prefetches(in_flight_max=4)

    def prefetch(self, *_: object) -> None:
        """Nothing is asked."""


class _Speed(PrefillSpeed):
    """What a worker says of its speed, until all is quiet: then it is looked whether everything can be had."""

    def __init__(self, world: World, name: str) -> None:
        speeds = world.plan.speeds
        super().__init__(random.Random(f"{world.plan.seed} {name}").choice(speeds) if speeds else 0.0)
        self._world = world

    def cost(self, page_tokens: int, first: int) -> ComputeCost | None:
        """See PrefillSpeed."""
        return None if self._world.is_quiet else super().cost(page_tokens, first)


class _Peer:
    """Stands for cache_l2.attach_peer.AttachPeer."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

    def has_ended(self, *, within_s: float) -> bool:
        """Whether the sidecar's process has ended."""
        return not self._attachment.life.process.alive

    def close(self) -> None:
        """There is no descriptor."""


class SimulatedLink:
    """A client's connection; stands for inference_worker.link.Link, whose threads a simulation has no use for."""

    wants_shared_memory = False
    prefetch, stage_group = Link.prefetch, Link.stage_group
    _remote_serves = False

    def __init__(self, owner: ClientProcess, name: str, engine: EngineMode) -> None:
        self.settings = ClientSettings(name=name, deadline_s=DEADLINE_S, engine=engine)
        self.closed = False
        self.home = Home()
        self.arena: LocalArena | None = None
        self.outlived: OutlivedHeader | None = None
        self.was_attached = False
        self.namespaces: dict[Namespace, RegisteredNamespace] = {}
        self._owner = owner
        self._weights = WeightsWatch(ClientValidity(self), self._read_versions, wake=self._wake)
        self._is_awake = False
        self.remote = _NoRemote()

    @property
    def header(self) -> Header | None:
        """See Link.header."""
        return self.arena or self.outlived

    def close(self) -> None:
        """Nothing here outlives the simulation."""

    def register(self, identity: Namespace) -> RegisteredNamespace:
        """Return the one object of this identity."""
        known = self.namespaces.get(identity)
        if known is None:
            known = self.namespaces[identity] = RegisteredNamespace(self, identity, page_bytes=PAGE_BYTES)
            known.absent = AbsentPages(known, lambda *_: MissReason.UNREACHABLE, deadline_s=DEADLINE_S)
            known.pages = known.absent
        return known

    def acquire(self, namespace: RegisteredNamespace, deadline: Deadline) -> MissReason | None:
        """Bind a namespace to the present life, if that can be had in time."""
        self._owner.registered(namespace.identified)
        return MissReason.UNREACHABLE if namespace.pages is namespace.absent else None

    def announced(self, model: str, deadline: Deadline | None) -> Announced | None:
        """What weights are announced for a model."""
        return self._weights.look(model)

    def _read_versions(self) -> Versions | None:
        """What the sidecar's Status says, asked by the client's background thread."""
        attachment = self._owner.attachment
        if attachment is None or self.arena is None:
            return None
        told: Versions | None = attachment.ask(
            lambda life: Versions(life.id, life.store.view, dict(life.validity.weights)),
            deadline_s=DEADLINE_S,
        )
        return told

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._owner.world.clockwork.spawn(self._owner.process, self._refresh, delay_ns=1 * MS)

    def _refresh(self) -> None:
        self._is_awake = False
        self._weights.refresh()


class ClientProcess:
    """What a worker and an engine have in common."""

    def __init__(
        self, world: World, sidecar: SimulatedSidecar, name: str, *, engine: EngineMode = EngineMode.NONE
    ) -> None:
        self.world = world
        self.sidecar = sidecar
        self.node = sidecar.node
        self.name = name
        self.producer = name.encode()
        self.process = sidecar.node.process(name)
        self.link = SimulatedLink(self, name, engine)
        self.client = Client(self.link)  # type: ignore[arg-type]
        self.attachment: Attachment | None = None
        self.engine = engine
        self._speed = _Speed(world, name)

    def connect(self) -> bool:
        """Attach, if a sidecar listens."""
        if self.link.arena is not None:
            return True
        attachment = self.sidecar.attach(self.process, engine=self.engine)
        if attachment is None:
            return False
        welcome: Any = Welcome(
            version=1, layout_version=1, row=attachment.client.row, life=attachment.life.id, control_bytes=0,
            clients_bytes=0, data_bytes=0, batch_pages_max=64, reservation_ms=1000, time_namespace=0, boot_now_ns=0,
            attachment=1, has_l3=attachment.life.pages.is_available,
        )  # fmt: skip
        channel: Any = attachment
        reader: Any = attachment.reader
        peer: Any = _Peer(attachment) if self.engine is EngineMode.KEEP else None
        attached = AttachedArena("", channel, welcome, reader, writable=True, peer=peer)
        arena = LocalArena(attached, self.link.settings, None, LoadCounts(self._speed))
        attachment.on_hang_up = lambda: self._withdraw(arena)
        self.attachment, self.link.arena, self.link.outlived = attachment, arena, None
        self.link.was_attached = True
        return True

    def _withdraw(self, arena: LocalArena) -> None:
        """As the client's supervisor does when the sidecar is gone."""
        if self.link.arena is arena:
            self.link.outlived = arena.outlived()
            self.link.arena = None
            for namespace in self.link.namespaces.values():
                namespace.pages = namespace.absent
            arena.reader.close()

    def registered(self, space: Namespace) -> RegisteredNamespace:
        """The namespace, bound to the present life where that can be had."""
        registered = self.link.register(space)
        arena = self.link.arena
        if arena is not None and registered.pages is registered.absent:
            try:
                pages = arena.bind(registered, Deadline(DEADLINE_S))
            except (DeadlineExceededError, SidecarUnreachableError, ClosedError):
                return registered  # stays absent, and the next request asks again
            if self.link.arena is arena:
                registered.pages = pages
        return registered

    def invoked(self) -> Invoked:
        """A look-up begins."""
        return Invoked(self.node.now_ns(), self.attachment)

    def kill(self) -> None:
        """End as by SIGKILL."""
        self.world.note(self.name, "dies")
        self.world.clockwork.kill(self.process)
        if self.attachment is not None and not self.attachment.is_hung_up:
            self.sidecar.client_died(self.attachment)
