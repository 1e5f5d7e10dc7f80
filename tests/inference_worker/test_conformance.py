"""The PageStore suite on a client of each transport, against a real daemon."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from inference_worker.client import Client, RegisteredNamespace
from kv_types.errors import UnknownNamespaceError
from kv_types.ids import NamespaceId, PageKey, Stamp
from kv_types.namespace import Namespace
from kv_types.outcomes import LookUpOutcome, PutOutcome
from tests.conformance.harness import StoreHarness
from tests.conformance.page_store import PageStoreConformance
from tests.inference_worker.conftest import FLAGS, MakeClient
from tests.support.redis_servers import redis_servers
from tests.support.sidecar_process import SidecarProcess, sidecar_process


class ClientPageStore:
    """A client as a PageStore: namespaces by id instead of by handle."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._handles: dict[NamespaceId, RegisteredNamespace] = {}

    def register(self, namespace: Namespace) -> NamespaceId:
        handle = self._client.register(namespace)
        self._handles[handle.id] = handle
        return handle.id

    def look_up(self, namespace: NamespaceId, keys: Sequence[PageKey]) -> LookUpOutcome:
        return self._client.match(self._handle(namespace), keys)

    def get(
        self, namespace: NamespaceId, keys: Sequence[PageKey], destinations: Sequence[memoryview]
    ) -> LookUpOutcome:
        return self._client.get(self._handle(namespace), keys, destinations)

    def put(
        self,
        namespace: NamespaceId,
        keys: Sequence[PageKey],
        sources: Sequence[memoryview],
        *,
        stamp: Stamp | None,
        start: int = 0,
    ) -> list[PutOutcome]:
        return self._client.put(self._handle(namespace), keys, sources, start=start, stamp=stamp)

    def stamp(self) -> Stamp | None:
        return self._client.stamp()

    def statistics(self) -> Mapping[str, int]:
        return {name: value for name, value in self._client.statistics().items() if isinstance(value, int)}

    def _handle(self, namespace: NamespaceId) -> RegisteredNamespace:
        if namespace not in self._handles:
            raise UnknownNamespaceError(f"namespace {namespace.hex()} was not registered with this client")
        return self._handles[namespace]


@pytest.fixture(scope="module")
def l3_sidecar() -> Iterator[SidecarProcess]:
    """One daemon that shares pages through a Redis."""
    with redis_servers() as servers:
        flags = (*FLAGS, "--l3-url", servers.start().url)
        with sidecar_process(flags=flags) as started:
            yield started


class TestSharedMemoryClient(PageStoreConformance):
    @pytest.fixture
    def harness(self, shared_sidecar: SidecarProcess, connect: MakeClient) -> StoreHarness:
        client = connect(shared_sidecar.runtime, deadline_s=10.0)
        assert client.statistics()["transport"] == "shared_memory"
        store = ClientPageStore(client)
        return StoreHarness(store, store.register)


class TestGrpcClient(PageStoreConformance):
    machine_examples = 8

    @pytest.fixture
    def harness(self, shared_sidecar: SidecarProcess, connect: MakeClient) -> StoreHarness:
        store = ClientPageStore(connect(shared_sidecar.runtime, shared_memory=False, deadline_s=10.0))
        return StoreHarness(store, store.register)


class TestSharedMemoryClientWithL3(PageStoreConformance):
    """What is absent here is asked of an L3 that has none of it, or has stored it meanwhile: nothing else changes."""

    machine_examples = 8

    @pytest.fixture
    def harness(self, l3_sidecar: SidecarProcess, connect: MakeClient) -> StoreHarness:
        client = connect(l3_sidecar.runtime, deadline_s=10.0)
        assert client._link.arena is not None
        assert client._link.arena.loader is not None, "this sidecar has an L3"
        store = ClientPageStore(client)
        return StoreHarness(store, store.register)


class TestReadOnlyClientWithL3(PageStoreConformance):
    machine_examples = 4

    @pytest.fixture
    def harness(self, l3_sidecar: SidecarProcess, connect: MakeClient) -> StoreHarness:
        store = ClientPageStore(connect(l3_sidecar.runtime, writable=False, deadline_s=10.0))
        return StoreHarness(store, store.register)


class TestGrpcClientWithL3(PageStoreConformance):
    machine_examples = 4

    @pytest.fixture
    def harness(self, l3_sidecar: SidecarProcess, connect: MakeClient) -> StoreHarness:
        store = ClientPageStore(connect(l3_sidecar.runtime, shared_memory=False, deadline_s=10.0))
        return StoreHarness(store, store.register)
