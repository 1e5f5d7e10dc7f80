"""Breaches of the rules that the simulation must find, as patches, each with the seed that finds it.

The numbers are those of the list that docs/invalidation.md explains; letters are breaches of promises that no rule of that
list stands for. A patch is applied to the product's own text. Where the product has no such code yet (an engine's
connector) or where it is native, the simulation's model of it is patched, and the title says so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from tests.sim.mutations.mutation import LIVENESS, Edit, Mutation
from tests.sim.mutations.of_loads import OF_LOADS

FOUND = Path(__file__).resolve().parent.parent / "found.json"
"""Number of a mutation -> the seed that finds it and the validator that says so; written by `make sim-hunt`."""


_LUA = "invalidation/redis/log.lua"
_FOLLOWER = "invalidation/follower.py"
_REDIS_LOG = "invalidation/redis/log.py"
_VALIDITY = "invalidation/validity.py"
_COMPACTION = "invalidation/compaction.py"
_FENCE = "invalidation/fence.py"
_REQUEST = "inference_worker/request.py"
_JUDGING = "cache_l2/judging.py"
_APPLIER = "sidecar/log/applier.py"
_CONFIRMED = "            confirmed = answer.replicas == replicas and acknowledged >= replicas\n"
_HIDING = (
    "            await self._hide([one.event.selector for one in chunk if isinstance(one.event, Selected)])\n"
)
_PUBLISHING = (
    "                self._publish(record.event, Stamp(incarnation, record.revision), record.digest)\n"
)
_BOOT = 'self._call(self._follow, "boot", [], replies.read_boot, deadline_ns=deadline_ns)\n'

MUTATIONS = (
    Mutation(
        "1", "a page is stamped at its commit",
        (
            Edit(
                "inference_worker/local_puts.py",
                "from kv_types.ids import KEY_BYTES, LifeId, PageKey\n",
                "from kv_types.ids import KEY_BYTES, LifeId, LogIncarnation, PageKey, Stamp\n",
            ),
            Edit(
                "inference_worker/local_puts.py",
                "                stamp=terms.stamp,\n",
                "                stamp=type(terms.stamp)(self._reader.stamp()[1], self._reader.stamp()[2]),\n",
            ),
        ),
    ),
    Mutation(
        "2", "the stamp is read again once the look-up is over, when the pass begins",
        (
            Edit(
                _REQUEST,
                "        return self.namespace.pages.lease(keys, start, deadline, self._reused)\n",
                "        lease = self.namespace.pages.lease(keys, start, deadline, self._reused)\n"
                "        self._begun = self.namespace.pages.begin(Deadline(self._deadline_s))\n"
                "        return lease\n",
            ),
            Edit(
                _REQUEST,
                "        return self.namespace.pages.get(keys, destinations, start, deadline, self._reused)\n",
                "        outcome = self.namespace.pages.get(keys, destinations, start, deadline, self._reused)\n"
                "        self._begun = self.namespace.pages.begin(deadline)\n"
                "        return outcome\n",
            ),
        ),
    ),
    Mutation(
        "3", "a key selects its page alone, not what stands on it",
        (
            Edit(
                _VALIDITY,
                "        return None if keys is None else frozenset(keys)\n",
                "        return None if keys is None else frozenset(keys[-1:])\n",
            ),
        ),
    ),
    Mutation(
        "4", "of a chain only the page's own key is looked at",
        (
            Edit(_JUDGING, "        return (*unpack_keys(packed), PageKey(page.key))\n", "        return (PageKey(page.key),)\n"),
        ),
    ),
    OF_LOADS[0],
    Mutation(
        "6", "an insert into L1 is not checked",
        (
            Edit(
                "cache_l1/cache.py",
                "        return self._follower.admits(chain, view)\n",
                "        return True\n",
            ),
        ),
    ),
    OF_LOADS[1],
    Mutation(
        "8", "a page gets the oldest stamp among its ancestors'",
        (
            Edit(
                _JUDGING,
                "        return self._judge(registered.namespace, terms.stamp, origin, lambda: self._chain(page))\n",
                "        arena = getattr(self, 'arena', None)\n"
                "        below = arena.find(page.parent) if arena and page.parent is not None else None\n"
                "        oldest = min(terms.stamp.revision, below['revision'] if below else terms.stamp.revision)\n"
                "        stamp = Stamp(terms.stamp.incarnation, oldest)\n"
                "        return self._judge(registered.namespace, stamp, origin, lambda: self._chain(page))\n",
            ),
            Edit(
                _JUDGING,
                "chain_of(arena), namespaces, vetted=Vetted())\n\n    def judge_all(",
                "chain_of(arena), namespaces, vetted=Vetted())\n"
                "        self._judging.arena = arena\n\n    def judge_all(",
            ),
        ),
        profile=13,
        breaks=LIVENESS,
    ),
    Mutation(
        "9", "tombstones end without a floor",
        (
            Edit(
                _COMPACTION,
                "        if scope is None:\n            kept.floor = max(kept.floor, revision)\n        else:\n"
                "            kept.floors[scope] = max(kept.floors.get(scope, 0), revision)\n    return selectors\n",
                "    return selectors\n",
            ),
        ),
        profile=4,
    ),
    Mutation(
        "10", "a dropped tombstone raises the floor to one less than its revision",
        (
            Edit(
                _COMPACTION,
                "        if scope is None:\n            kept.floor = max(kept.floor, revision)\n        else:\n"
                "            kept.floors[scope] = max(kept.floors.get(scope, 0), revision)\n    return selectors\n",
                "        if scope is None:\n            kept.floor = max(kept.floor, revision - 1)\n        else:\n"
                "            kept.floors[scope] = max(kept.floors.get(scope, 0), revision - 1)\n    return selectors\n",
            ),
        ),
        profile=4,
    ),
    Mutation(
        "11", "floors are read before tombstones, in another step",
        (
            Edit(
                _REDIS_LOG,
                f"        return await {_BOOT}",
                f"        first = await {_BOOT}        await __import__('asyncio').sleep(0.05)\n        then = await {_BOOT}"
                "        return __import__('dataclasses').replace(then, floors=first.floors)\n",
            ),
        ),
        profile=4,
    ),
    Mutation(
        "12", "a gap is ignored: what is left of the log is applied as if nothing had been before it",
        (
            Edit(_LUA, "    if not records[1] or records[1][1] ~= text(applied + 1) .. '-0' then", "    if not records[1] then"),
            Edit(
                _LUA,
                "    if redis.sha1hex(ARGV[9] .. records[1][2][2]) ~= records[1][2][4] then return refuse('FORK') end\n",
                "",
            ),
            Edit(
                "invalidation/redis/replies.py",
                "        if raw.revision != after or raw.digest != digest:\n            return None\n",
                "",
            ),
            Edit(
                "invalidation/redis/replies.py",
                "    if status is RenewalStatus.OK and not records and answer.tip != applied:\n",
                "    if False:\n",
            ),
            Edit(_FOLLOWER, " or not _is_whole(renewal, before.revision):\n", ":\n"),
            Edit(
                _VALIDITY,
                "        if self.position is None or record.revision != self.position.revision + 1:\n",
                "        if self.position is None:\n",
            ),
        ),
        profile=4,
    ),
    Mutation(
        "13", "freshness counts from the answer to a renewal",
        (
            Edit(
                "sidecar/log/shell.py",
                "        return machine.Renewed(renewal, sent_ns, self._clock.now_ns())\n",
                "        return machine.Renewed(renewal, self._clock.now_ns(), self._clock.now_ns())\n",
            ),
        ),
    ),
    Mutation(
        "14", "freshness is published before the records are applied",
        (
            Edit(
                _FOLLOWER,
                "        return [Apply(renewal.records)]\n",
                "        return [PublishFreshness(freshness_ns), Apply(renewal.records)]\n",
            ),
        ),
        profile=2,
    ),
    Mutation(
        "16", "the view is published before the pages are hidden",
        (Edit(_APPLIER, _HIDING, ""), Edit(_APPLIER, _PUBLISHING, _PUBLISHING + _HIDING)),
        profile=8,
    ),
    Mutation(
        "17", "what is not hidden yet is acknowledged",
        (
            Edit(
                "sidecar/log/shell.py",
                "            case machine.Apply(records):\n                await self._applier.apply(records)\n",
                "            case machine.Apply(records):\n"
                "                self._spawn(self._applier.apply(records), 'applying')\n"
                "                self._applier.acknowledged.reached = records[-1].revision\n",
            ),
        ),
    ),
    Mutation(
        "18", "a fence believes times of Redis, whose wall clock steps",
        (
            Edit(
                _LUA,
                "  local value = number .. ' ' .. ARGV[10] .. ' ' .. ARGV[11] .. ' 0 ' .. ARGV[12]\n",
                "  local value = number .. ' ' .. ARGV[10] .. ' ' .. ARGV[11] .. ' 0 ' .. ARGV[12]\n"
                "  local lease_ms = string.match(ARGV[12], '\"lease_ns\":(%d+)') / 1000000\n"
                "  call('HSET', state, 'until' .. ARGV[5], text(call('TIME')[1] * 1000 + lease_ms))\n",
            ),
            Edit(
                _LUA,
                "  return answer('OK', call('HGETALL', members))\nend\n\n-- 5 incarnation: a new one",
                "  local flat = call('HGETALL', members)\n"
                "  for at = 1, #flat, 2 do\n"
                "    local ends = tonumber(call('HGET', state, 'until' .. flat[at]) or '0')\n"
                "    if call('TIME')[1] * 1000 > ends then\n"
                "      flat[at + 1] = (string.gsub(flat[at + 1], '^(%d+ %d+ %d+) 0 ', '%1 1 '))\n"
                "    end\n"
                "  end\n"
                "  return answer('OK', flat)\nend\n\n-- 5 incarnation: a new one",
            ),
        ),
        profile=7,
    ),
    Mutation(
        "19", "a fence allows for no pause",
        (
            Edit(
                "invalidation/timing.py",
                "        return math.ceil((lease_ns + self.pause_ns) * (1.0 + self.drift))\n",
                "        return math.ceil(lease_ns * (1.0 + self.drift))\n",
            ),
        ),
        profile=2,
    ),
    Mutation(
        "20", "a member keeps its id over its lives",
        (
            Edit(
                "sidecar/log/shell.py",
                "        self.member = os.urandom(MEMBER_BYTES)\n",
                '        self.member = note.host.encode().ljust(MEMBER_BYTES, b"-")\n',
            ),
        ),
        profile=5,
    ),
    Mutation(
        "21", "a fence does not wait for an incarnation to settle",
        (Edit(_FENCE, "        if not state.settled:\n", "        if False:\n"),),
        profile=3,
    ),
    Mutation(
        "22", "a fence that waits ignores a new incarnation",
        (
            Edit(
                _FENCE,
                "        if state.tip.incarnation != self._stamp.incarnation or state.tip.revision < self._stamp.revision:\n",
                "        if False:\n",
            ),
        ),
        profile=1,
    ),
    Mutation(
        "23", "the guard compares run_id alone",
        (
            Edit(
                _LUA,
                "local history = told('replication', 'master_replid:') .. told('server', 'run_id:')\n",
                "local history = told('server', 'run_id:')\n",
            ),
        ),
        profile=11,
    ),
    Mutation(
        "24", "a renewal is not confirmed by replicas",
        (Edit(_REDIS_LOG, _CONFIRMED, _CONFIRMED.replace("= answer", '= verb == "renew" or answer')),),
        profile=1,
    ),
    Mutation(
        "26", "WAIT goes over another connection",
        (
            Edit(
                _REDIS_LOG,
                "            answer, waited = await self._ask(talk, verb, rest, replicas=replicas)\n",
                "            answer, waited = await self._ask(talk, verb, rest)\n"
                "            wait: Command = ('WAIT', str(replicas), '50')\n"
                "            if replicas:\n"
                "                waited = await self._administer.exchange(\n"
                "                    lambda other: other.send([wait]), deadline_ns=deadline_ns\n"
                "                )\n",
            ),
        ),
        profile=10,
    ),
    Mutation(
        "26, k", "k is the number of replicas that are connected",
        (
            Edit(
                _LUA,
                "local incarnation, tip, digest, settled, k = kept[2], tonumber(kept[3]), kept[4], kept[5], kept[6]\n",
                "local incarnation, tip, digest, settled = kept[2], tonumber(kept[3]), kept[4], kept[5]\n"
                "local k = string.match(call('INFO', 'replication'), 'connected_slaves:(%d+)')\n",
            ),
        ),
        profile=1,
    ),
    Mutation(
        "27", "stamps of another incarnation are accepted",
        (
            Edit(
                _VALIDITY,
                "            or stamp.incarnation != position.incarnation\n            or stamp.revision",
                "            or stamp.revision",
            ),
        ),
        profile=3,
    ),
    Mutation(
        "28", "a worker compares counts that are equal in two lives",
        (
            Edit(
                "cache_l1/follower.py",
                "        if observed is None or observed == before:\n",
                "        if observed is None or (before is not None and observed.view == before.view):\n",
            ),
        ),
        profile=5,
    ),
    Mutation(
        "32", "the place of a reservation that ran out is given away while its writer may write (in the model of the arena)",
        (
            Edit(
                "tests/sim/arena_tree.py",
                "        entry.state = QUARANTINED\n",
                "        del self.rows[entry.row].reservations[entry.number]\n        entry.generation += 2\n"
                "        self._release(entry)\n",
            ),
        ),
        profile=12,
    ),
    Mutation(
        "33", "an engine evicts once, and does not mark requests that used what went (in the model of an engine)",
        (
            Edit(
                "tests/sim/engine.py",
                "        return not self._follower.admits(one.keys, one.view)\n",
                "        return False\n",
            ),
        ),
        profile=6,
    ),
    Mutation(
        "A", "what a client that died had begun is not accounted for",
        (Edit("cache_l2/accounts.py", "        if unfinished > 0:\n", "        if False:\n"),),
        profile=8,
    ),
    Mutation(
        "B", "drained overlooks requests in flight",
        (
            Edit(
                "cache_l2/store.py",
                "        return min([self.acknowledged_view(), oldest_view(clients, view=self.view), *hidden])\n",
                "        return min([self.acknowledged_view(), *hidden])\n",
            ),
        ),
    ),
    Mutation(
        "C", "a selector of a tenant takes every page",
        (
            Edit(
                "cache_l2/selecting.py",
                "        if EVERYTHING in unique:\n",
                "        if EVERYTHING in unique or any(selector.tenant is not None for selector in unique):\n",
            ),
        ),
    ),
    Mutation(
        "D", "a goodbye leaves an engine's claim behind",
        (
            Edit(
                "sidecar/log/shell.py",
                "        if await self._engines_serve_on():\n",
                "        if False:\n",
            ),
        ),
        profile=9,
    ),
    Mutation(
        "P", "what an engine that keeps its pages claims holds nothing back",
        (
            Edit(
                "cache_l2/client_rows.py",
                "        return self.engine is not EngineMode.NONE and self.own_freshness_ns > now_ns\n",
                "        return self.engine is EngineMode.DROP and self.own_freshness_ns > now_ns\n",
            ),
        ),
        profile=6,
    ),
    Mutation(
        "Q", "an engine that outlives its sidecar goes on without what was published last",
        (
            Edit(
                "inference_worker/local.py",
                "        return OutlivedHeader(*stamped, freshness_ns, since, self.events_since(since))\n",
                "        return OutlivedHeader(ObservedView(self.life, since), stamped[1], freshness_ns, since, [])\n",
            ),
        ),
        profile=16,
    ),
    Mutation(
        "E", "what an L1 keeps is served on after the header was closed",
        (
            Edit(
                "inference_worker/local.py",
                "            return 0 if self.reader.closed else self.reader.freshness_ns()\n",
                "            return self.reader.freshness_ns()\n",
            ),
        ),
        profile=9,
    ),
    *OF_LOADS[2:],
)  # fmt: skip


class Finding(NamedTuple):
    """The seed that finds a mutation, and the validator."""

    seed: int
    validator: str


def found() -> dict[str, Finding]:
    """What the hunt has found, by number."""
    if not FOUND.exists():
        return {}
    return {number: Finding(*pair) for number, pair in json.loads(FOUND.read_text()).items()}


CAUGHT_BY = {number: f"{finding.validator}, seed {finding.seed}" for number, finding in found().items()}
"""As docs/generate_mutations.py shows it."""
