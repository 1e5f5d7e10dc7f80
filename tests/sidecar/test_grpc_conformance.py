"""The PageStore conformance suite, run over gRPC against a real daemon."""

from __future__ import annotations

import grpc
import pytest

from tests.conformance.harness import StoreHarness
from tests.conformance.page_store import PageStoreConformance
from tests.support.remote_store import RemoteStore


class TestOverGrpc(PageStoreConformance):
    machine_examples = 8

    @pytest.fixture
    def harness(self, store: RemoteStore) -> StoreHarness:
        return StoreHarness(store=store, register=store.register)


class TestOverGrpcInOneMessage(PageStoreConformance):
    """Short answers by GetWhole, as workers ask for them."""

    machine_examples = 8

    @pytest.fixture
    def harness(self, channel: grpc.Channel) -> StoreHarness:
        store = RemoteStore(channel, whole=True)
        return StoreHarness(store=store, register=store.register)
