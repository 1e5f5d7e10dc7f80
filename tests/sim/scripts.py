"""What the simulation knows of the log's script: one Lua for the whole process, and how a renewal looks on the wire."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from invalidation.log import LogLimits
from invalidation.redis.script import script_arguments, script_keys, script_text
from kv_types.ids import INCARNATION_BYTES
from tests.sim.redis_server import RedisServer, Session
from tests.support.lua_redis import LuaScripts

LUA = LuaScripts()


def renewal_of(arguments: tuple[bytes, ...], reply: Any) -> tuple[bytes, bytes, int] | None:
    """(member, incarnation, tip) of a renewal that the log accepted; None of anything else.

    `arguments` are those of EVAL or EVALSHA: text or digest, number of keys, keys, verb and what the verb takes.
    """
    verb = 2 + int(arguments[1])
    if arguments[verb] != b"renew" or not isinstance(reply, list) or reply[0] != b"OK":
        return None
    return arguments[verb + 4], bytes.fromhex(reply[1].decode()), int(reply[3])


def tip_of(server: RedisServer) -> tuple[bytes, int] | None:
    """Where the log on a server ends, its guard having looked at it; None where nobody can be asked."""
    if server.primary is not None or not server.process.alive:
        return None
    # Who looks may be the first to come after a loss: the incarnation that begins then must be like no other.
    looked = f"{server.run_id} {server.replication_id} {server.node.now_ns()}"
    incarnation = blake2b(looked.encode(), digest_size=INCARNATION_BYTES).digest()
    reply = _call(server, "statistics", incarnation=incarnation, replicas=0)
    return bytes.fromhex(reply[1].decode()), int(reply[3])


def settle(server: RedisServer, incarnation: bytes, replicas: int) -> None:
    """Begin a log, and declare it settled as one who has observed it for long enough would."""
    _call(server, "settle", incarnation.hex().encode(), incarnation=incarnation, replicas=replicas)


def _call(server: RedisServer, verb: str, *rest: bytes, incarnation: bytes, replicas: int) -> Any:
    keys = [key.encode() for key in script_keys("fleet")]
    arguments = script_arguments(verb, *rest, incarnation=incarnation, replicas=replicas, limits=LogLimits())
    return server.execute(Session(), b"EVAL", script_text().encode(), b"%d" % len(keys), *keys, *arguments)
