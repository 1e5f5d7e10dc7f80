"""The script's compaction against the written rule: after any records, with any limits, both keep the same (rule R4)."""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from invalidation.compaction import CompactionLimits, Kept, floors_of, keep
from invalidation.log import Boot, LogLimits
from invalidation.records import LogEntry
from invalidation.redis.replies import Answer, read_answer, read_boot, read_sizes
from invalidation.redis.requests import append_arguments
from invalidation.redis.script import KEY_NAMES, script_arguments, script_keys, script_text
from kv_types.events import Selected
from kv_types.ids import NamespaceId, PageKey
from kv_types.selectors import EVERYTHING, Selector
from tests.support.redis_servers import RedisServer
from tests.support.turns import finish

_fleets = itertools.count()

spaces = st.integers(0, 7).map(lambda number: NamespaceId(bytes([number]) * 32))
keys = st.integers(0, 12).map(lambda number: PageKey(bytes([number]) * 32))
selectors = st.one_of(
    st.builds(lambda space, key: Selector(namespace=space, key=key), spaces, keys),
    st.builds(lambda space, key: Selector(namespace=space, key=key), spaces, keys),
    st.builds(lambda space: Selector(namespace=space), spaces),
    st.builds(lambda key: Selector(key=key), keys),
    st.builds(lambda tenant: Selector(tenant=str(tenant)), st.integers(0, 5)),
    st.builds(lambda space: Selector(namespace=space, tag=b"t"), spaces),
    st.just(EVERYTHING),
)
bounds = st.builds(
    lambda per_scope, tombstones, scopes: replace(
        LogLimits(), per_scope=per_scope, tombstones=tombstones, scopes=scopes
    ),
    st.integers(1, 5),
    st.integers(1, 12),
    st.integers(1, 4),
)


class Script:
    """One fleet's log by bare calls of the script."""

    def __init__(self, server: RedisServer, limits: LogLimits) -> None:
        self._script = server.client.register_script(script_text())
        self._keys = script_keys(f"fleet-{next(_fleets)}")
        self._limits = limits
        self.server = server

    def call(self, verb: str, *rest: bytes) -> Answer:
        arguments = script_arguments(verb, *rest, incarnation=os.urandom(16), replicas=0, limits=self._limits)
        answer = read_answer(self._script(keys=self._keys, args=arguments))
        assert isinstance(answer, Answer)
        return answer

    def append(self, selector: Selector) -> None:
        entry = LogEntry(event=Selected(selector))
        self.call("append", *append_arguments(entry, request_id=os.urandom(16)))

    def boot(self) -> Boot:
        return finish(read_boot(self.call("boot")))

    def scopes(self) -> dict[bytes, int]:
        """How many tombstones the script thinks each scope has."""
        counts = self.server.client.hgetall(self._keys[KEY_NAMES.index("scopes")])
        return {scope: int(count) for scope, count in counts.items() if isinstance(scope, bytes)}


def kept_of(limits: LogLimits) -> Kept:
    return Kept(
        limits=CompactionLimits(
            tombstones_per_scope=limits.per_scope, tombstones=limits.tombstones, scopes=limits.scopes
        )
    )


def assert_same(script: Script, kept: Kept) -> None:
    boot = script.boot()
    assert boot.tombstones == kept.tombstones
    assert boot.floors == floors_of(kept)
    counts: dict[bytes, int] = {}
    for selector in kept.tombstones:
        scope = b"-" if selector.namespace is None else b"n" + selector.namespace
        counts[scope] = counts.get(scope, 0) + 1
    assert script.scopes() == counts


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(selectors, max_size=60), limits=bounds)
def test_the_script_keeps_what_the_rule_keeps(
    each_redis: RedisServer, records: list[Selector], limits: LogLimits
) -> None:
    script, kept = Script(each_redis, limits), kept_of(limits)
    for revision, selector in enumerate(records, start=1):
        script.append(selector)
        keep(kept, selector, revision)
        if revision % 7 == 0:
            assert_same(script, kept)
    assert_same(script, kept)


@pytest.mark.parametrize("kind", ["one namespace", "the fleet", "many namespaces", "namespaces whole"])
def test_the_products_limits_hold(shared_redis: RedisServer, kind: str) -> None:
    """As many records as overflow each limit of the product, with their sizes looked at on the way."""
    limits = LogLimits()
    script, kept, draw = Script(shared_redis, limits), kept_of(limits), random.Random(7)
    for revision in range(1, 2600):
        key = PageKey(draw.randbytes(32))
        space = NamespaceId(draw.randbytes(32))
        selector = {
            "one namespace": Selector(namespace=NamespaceId(bytes(32)), key=key),
            "the fleet": Selector(key=key),
            "many namespaces": Selector(namespace=space, key=key),
            "namespaces whole": Selector(namespace=space),
        }[kind]
        script.append(selector)
        keep(kept, selector, revision)
    assert_same(script, kept)
    sizes = finish(read_sizes(script.call("statistics")))
    assert sizes["tombstones"] <= limits.tombstones
    assert sizes["floors"] <= limits.scopes + 1
    assert sizes["records"] == 2599


def test_all_tombstones_together_are_bounded(shared_redis: RedisServer) -> None:
    """More namespaces than one with few tombstones each; the product's own limit, lowered only for this."""
    limits = replace(LogLimits(), tombstones=300)
    script, kept = Script(shared_redis, limits), kept_of(limits)
    for revision in range(1, 1000):
        selector = Selector(namespace=NamespaceId(bytes([revision % 40]) * 32), tag=b"%d" % revision)
        script.append(selector)
        keep(kept, selector, revision)
        if revision % 100 == 0:
            assert_same(script, kept)
            assert len(kept.tombstones) <= limits.tombstones
    assert kept.floors
