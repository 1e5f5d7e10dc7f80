"""A model of redis-server: identity, scripts, replication with a lag, promotion, demotion, restarts, INFO and WAIT.

What it mirrors is compared with real servers by test_redis_model.py. Replication is by the effects of commands.
"""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Callable
from random import Random
from typing import Any

from tests.sim.clockwork import Clockwork, Process
from tests.sim.network import Channel, Network
from tests.sim.nodes import Node
from tests.sim.redis_data import OK, SHRINKING, Keyspace, Text
from tests.support.lua_redis import ErrorReply, LuaScripts, Reply

Effect = tuple[bytes, tuple[bytes, ...]]
Watcher = Callable[["RedisServer", bytes, tuple[bytes, ...]], None]
READ_ONLY = "READONLY You can't write against a read only replica."
VERSION = "7.0.15"
MAXMEMORY, POLICY = 1 << 30, "noeviction"
RECONNECT_NS = 500_000_000
TIMEOUT_NS = 10_000_000_000
"""After how long without a word a primary forgets a replica (repl-timeout)."""


class Session:
    """What a server keeps of one connection. `offset` is the replication offset after its last command."""

    __slots__ = ("offset", "open")

    def __init__(self) -> None:
        self.offset = 0
        self.open = True


class Replica:
    """A primary's end of a replication link."""

    __slots__ = ("acknowledged", "back", "forth", "is_sending", "server")

    def __init__(self, server: RedisServer, forth: Channel, back: Channel, offset: int) -> None:
        self.server = server
        self.forth = forth
        self.back = back
        self.acknowledged = offset
        self.is_sending = False


class RedisServer:
    """One server process on a node. A primary unless `follow` makes it a replica."""

    def __init__(
        self, clockwork: Clockwork, network: Network, node: Node, scripts: LuaScripts, *, on_write: Watcher
    ) -> None:
        self.node = node
        self.keyspace = Keyspace(self._wall_ms)
        self.process: Process = node.process("redis")
        self.primary: RedisServer | None = None
        self.is_linked = False
        self.is_full = False
        self.foreign_bytes = 0
        """What others than the product fill of its memory."""
        self.offset = 0
        self.connections: list[Any] = []
        self.repeat_ns: Callable[[], int] = lambda: 0
        self.is_calm = False
        """No page is written by a command that is carried out again."""
        """After how long a message that arrives now arrives a second time; 0: it does not."""
        self.on_script: Callable[[RedisServer, tuple[bytes, ...], Reply, int], None] | None = None
        """Told of each script that was run: arguments, reply, and when its client sent it, by the client's boot clock."""
        self._clockwork = clockwork
        self._network = network
        self._scripts = scripts
        self._on_write = on_write
        self._loaded: dict[bytes, bytes] = {}
        self._effects: list[Effect] = []
        self._effects_since = 0
        self._replicas: list[Replica] = []
        self._attaching: list[RedisServer] = []
        """Replicas that have all data, and of which this server is still to hear that they have."""
        self._has_backlog = False
        self._is_connecting = False
        self._is_in_script = False
        self._at_primary: Replica | None = None
        self._waits: list[tuple[int, int, Callable[[Reply], None]]] = []
        self._readers: list[tuple[bytes, bytes, int, Callable[[Reply], None]]] = []
        self.run_id = self._identifier()
        self.replication_id = self._identifier()

    def __repr__(self) -> str:
        role = "primary" if self.primary is None else f"replica of {self.primary.node.name}"
        return f"{self.node.name} ({role})"

    def _wall_ms(self) -> int:
        return self.node.wall_ns() // 1_000_000

    def _identifier(self) -> str:
        return f"{self._clockwork.random.getrandbits(160):040x}"

    # --- commands ---

    def execute(self, session: Session, *command: bytes) -> Reply:
        """Run one command that answers at once; raises ErrorReply."""
        name, *arguments = command
        name = name.upper()
        try:
            special = _SPECIAL.get(name)
            if special is not None:
                return special(self, *arguments)
            return self._run(name, tuple(arguments))
        finally:
            session.offset = self.offset

    def _run(self, name: bytes, arguments: tuple[bytes, ...]) -> Reply:
        run = self.keyspace.reads.get(name)
        if run is not None:
            return run(*arguments)
        run = self.keyspace.writes.get(name)
        if run is not None:
            return self._write(name, arguments, run)
        if name == b"INFO":
            return self._info(*arguments)
        if name == b"TIME":
            wall_us = self.node.wall_ns() // 1000
            return [b"%d" % (wall_us // 1_000_000), b"%d" % (wall_us % 1_000_000)]
        raise ErrorReply(f"ERR unknown command '{name.decode()}'")

    def _write(self, name: bytes, arguments: tuple[bytes, ...], run: Callable[..., Reply]) -> Reply:
        if self.primary is not None:
            raise ErrorReply(READ_ONLY)
        if self.is_full and name not in SHRINKING:
            raise ErrorReply("OOM command not allowed when used memory > 'maxmemory'.")
        before = self.keyspace.dirty
        reply = run(*arguments)
        if self._is_in_script and name in SHRINKING:
            self.is_full = (
                False  # a script that has written once may write on: it can't be stopped in its middle
            )
        if self.keyspace.dirty != before:
            self.offset += 1
            self._effects.append(self.keyspace.as_sent_on(name, arguments))
            if name == b"XADD":
                self._on_write(self, name, arguments)
            if not self._is_in_script:
                self._propagate()
        return reply

    def _propagate(self) -> None:
        """Send on what was written: a script's effects together, so that no replica ever has half of one."""
        if self._replicas:
            self._replicate()
        if self._readers:
            self._wake_readers()

    def _eval(self, text: bytes, count: bytes, *rest: bytes) -> Reply:
        self._loaded[_sha(text)] = text
        return self._script(text, count, *rest)

    def _evalsha(self, sha: bytes, count: bytes, *rest: bytes) -> Reply:
        text = self._loaded.get(sha.lower())
        if text is None:
            raise ErrorReply("NOSCRIPT No matching script. Please use EVAL.")
        return self._script(text, count, *rest)

    def _script(self, text: bytes, count: bytes, *rest: bytes) -> Reply:
        keys, full = int(count), self.is_full
        self._is_in_script = True
        try:
            return self._scripts.run(text, rest[:keys], rest[keys:], self._command)
        finally:
            self._is_in_script, self.is_full = False, full
            self._propagate()

    def _command(self, name: bytes, *arguments: Any) -> Reply:
        for one in arguments:
            if one.__class__ is not bytes:
                return self._run(name.upper(), tuple(_argument(one) for one in arguments))
        return self._run(name, arguments)

    def _script_load(self, verb: bytes, *rest: bytes) -> Reply:
        if verb.upper() != b"LOAD":
            raise ErrorReply("ERR this model loads scripts only")
        sha = _sha(rest[0])
        self._loaded[sha] = rest[0]
        return sha

    def _info(self, *sections: bytes) -> bytes:
        role = "master" if self.primary is None else "slave"
        told = _info(sections, self.run_id, self.replication_id, role, len(self._replicas))
        if any(section.lower() == b"memory" for section in sections):
            used = self.foreign_bytes + sum(map(_size, self.keyspace.values.values()))
            lines = "# Memory", f"used_memory:{used}", f"maxmemory:{MAXMEMORY}", f"maxmemory_policy:{POLICY}"
            told += "".join(f"{line}\r\n" for line in lines).encode()
        return told

    # --- what answers later ---

    def wait(self, session: Session, replicas: int, timeout_ms: int, answer: Callable[[Reply], None]) -> None:
        """WAIT: tell how many replicas have what this connection wrote, once they are enough or the time is over."""
        if self.primary is not None:
            answer(ErrorReply("ERR WAIT cannot be used with replica instances."))
            return
        offset, session.offset = session.offset, self.offset
        if self._acknowledged(offset) >= replicas:
            answer(self._acknowledged(offset))
            return
        waiting = (offset, replicas, answer)
        self._waits.append(waiting)

        def give_up() -> None:
            if waiting in self._waits:
                self._waits.remove(waiting)
                answer(self._acknowledged(offset))

        if timeout_ms:
            self._clockwork.after(timeout_ms * 1_000_000, give_up, self.process)

    def read_stream(
        self, key: bytes, after: bytes, timeout_ms: int, count: int, answer: Callable[[Reply], None]
    ) -> None:
        """XREAD COUNT BLOCK of one stream."""
        found = self._read(key, after, count)
        if found is not None:
            answer(found)
            return
        reader = key, after, count, answer
        self._readers.append(reader)

        def give_up() -> None:
            if reader in self._readers:
                self._readers.remove(reader)
                answer(None)

        if timeout_ms:
            self._clockwork.after(timeout_ms * 1_000_000, give_up, self.process)

    def _read(self, key: bytes, after: bytes, count: int) -> Reply:
        milliseconds, _, sequence = after.partition(b"-")
        start = b"%d-%d" % (int(milliseconds), int(sequence or b"0") + 1)
        entries = self.keyspace.xrange(key, start, b"+", b"COUNT", b"%d" % count)
        return [[key, entries]] if entries else None

    def _wake_readers(self) -> None:
        for reader in list(self._readers):
            found = self._read(*reader[:3])
            if found is not None:
                self._readers.remove(reader)
                reader[3](found)

    # --- replication, the primary's end ---

    def _acknowledged(self, offset: int) -> int:
        return sum(replica.acknowledged >= offset for replica in self._replicas)

    def _replicate(self) -> None:
        for replica in self._replicas:
            if not replica.is_sending and replica.server.offset < self.offset:
                self._send(replica)

    def _send(self, replica: Replica) -> None:
        replica.is_sending = True
        upto = self.offset
        effects = self._effects[replica.server.offset - self._effects_since : upto - self._effects_since]
        server = replica.server

        def arrive() -> None:
            if server.primary is self and replica in self._replicas:
                server._take_over(effects, upto)
                replica.back.send(acknowledge, self.process)

        def acknowledge() -> None:
            replica.is_sending = False
            if replica not in self._replicas:
                return
            replica.acknowledged = max(replica.acknowledged, upto)
            self._answer_waits()
            if server.offset < self.offset:
                self._send(replica)

        replica.forth.send(arrive, server.process)

    def _answer_waits(self) -> None:
        for waiting in list(self._waits):
            offset, replicas, answer = waiting
            if self._acknowledged(offset) >= replicas:
                self._waits.remove(waiting)
                answer(self._acknowledged(offset))

    # --- replication, the replica's end ---

    def _take_over(self, effects: list[Effect], upto: int) -> None:
        for name, arguments in effects:
            self.keyspace.execute(name, arguments)
        self._effects += effects
        self.offset = upto
        if self._readers:
            self._wake_readers()

    def follow(self, primary: RedisServer) -> None:
        """REPLICAOF: drop what one has and take over all of the primary's, once the link stands."""
        self._leave_primary()
        self.primary = primary
        self._drop_replicas()
        self._connect()

    def _connect(self) -> None:
        """Begin to synchronise, and go on trying as long as the primary can't be reached."""
        if not self._is_connecting:
            self._is_connecting = True
            self._attempt()

    def _attempt(self) -> None:
        primary = self.primary
        if primary is None or self.is_linked:
            self._is_connecting = False
            return
        forth = self._network.channel(primary.node.name, self.node.name)
        back = self._network.channel(self.node.name, primary.node.name)
        back.send(lambda: primary._accept(self, forth, back), primary.process)
        self._clockwork.after(RECONNECT_NS, self._attempt, self.process)

    def _accept(self, server: RedisServer, forth: Channel, back: Channel) -> None:
        if server.primary is not self or server.is_linked or self.primary is not None:
            return
        if not self._has_backlog:  # a backlog begins, and with it another history
            self._has_backlog = True
            self.replication_id = self._identifier()
        data, identifier, offset = self.keyspace.snapshot(), self.replication_id, self.offset
        process = self.process

        def synchronise() -> None:
            if server.primary is not self or server.is_linked or not process.alive:
                return  # a connection ends with the process at its other end
            server.is_linked = True
            server.keyspace.values = data
            server.replication_id, server.offset = identifier, offset
            server._effects, server._effects_since = [], offset
            self._attaching.append(server)
            back.send(lambda: self._attach(server, forth, back), process)

        forth.send(synchronise, server.process)

    def _attach(self, server: RedisServer, forth: Channel, back: Channel) -> None:
        if server in self._attaching:
            self._attaching.remove(server)
        if server.primary is not self or not server.is_linked or self.primary is not None:
            return
        replica = Replica(server, forth, back, server.offset)
        self._replicas = [one for one in self._replicas if one.server is not server] + [replica]
        server._at_primary = replica
        self._answer_waits()
        if server.offset < self.offset:
            self._send(replica)

    def _leave_primary(self) -> None:
        """Close the link to the primary, which learns of it when that arrives, or when nothing has come for long."""
        primary, replica = self.primary, self._at_primary
        self.is_linked = False
        self._at_primary = None
        if primary is not None and replica is not None:

            def forget() -> None:
                if replica in primary._replicas:
                    primary._replicas.remove(replica)

            replica.back.send(forget, primary.process)
            self._clockwork.after(TIMEOUT_NS, forget, primary.process)

    def _drop_replicas(self) -> None:
        """Replicas of a server that is none any more for them begin anew."""
        servers = [*self._attaching, *(replica.server for replica in self._replicas)]
        self._attaching, self._replicas = [], []
        for server in servers:
            if server.primary is self:
                server.is_linked = False
                server._at_primary = None
                server._connect()

    # --- what befalls a server ---

    def promote(self) -> None:
        """REPLICAOF NO ONE: what had not arrived is lost, and a new replication id begins."""
        if self.primary is not None:
            self._leave_primary()
            self.primary = None
            self.replication_id = self._identifier()
            self._has_backlog = True  # a replica keeps one

    def flush(self) -> None:
        """FLUSHALL, by somebody who did not think of the log."""
        self._run(b"FLUSHALL", ())

    def evict(self, picked: float) -> bytes | None:
        """One page goes, as under a policy that lets it; returns its key."""
        pages = [key for key, value in self.keyspace.values.items() if isinstance(value, Text)]
        if not pages or self.primary is not None:
            return None
        key = pages[int(picked * len(pages))]
        self._run(b"UNLINK", (key,))
        return key

    def damage(self, random: Random) -> bool:
        """A page's bytes change here: one bit, its end, or all of them, which are another page's then."""
        pages = [
            key for key, value in self.keyspace.values.items() if isinstance(value, Text) and value.value
        ]
        if not pages:
            return False
        key = random.choice(pages)
        value, ends_ms = self.keyspace.values[key]
        at = random.randrange(len(value))
        flipped = value[:at] + bytes([value[at] ^ 1 << random.randrange(8)]) + value[at + 1 :]
        other = self.keyspace.values[random.choice(pages)].value
        made = random.choice((flipped, flipped, value[:at], value + b"x", other))
        self.keyspace.values[key] = Text(made, ends_ms)
        return bool(made != value)

    @staticmethod
    def copy(dump: dict[bytes, Any]) -> dict[bytes, Any]:
        """A dump to start from, so that what it held stays as it was."""
        return copy.deepcopy(dump)

    def crash(self) -> None:
        """End the process: connections, replication links and what it had in memory."""
        self._clockwork.kill(self.process)
        self._leave_primary()
        self._is_connecting = False
        self._waits.clear()
        self._readers.clear()
        connections, self.connections = self.connections, []
        for connection in connections:
            connection.reset()
        self._drop_replicas()

    def restart(self, dump: dict[bytes, Any]) -> None:
        """Start again with what a dump held: another run, another history."""
        self.process = self.node.process("redis")
        self.keyspace = Keyspace(self._wall_ms)
        self.keyspace.values = dump
        self._loaded.clear()
        self._effects, self._effects_since = [], self.offset
        self.run_id, self.replication_id = self._identifier(), self._identifier()
        self._has_backlog = False
        if self.primary is not None:
            self._connect()


@functools.lru_cache(64)
def _info(sections: tuple[bytes, ...], run_id: str, replication_id: str, role: str, replicas: int) -> bytes:
    everything = {b"server", b"replication"}  # and b"memory", which is told apart
    wanted = {section.lower() for section in sections} or everything
    lines = []
    if b"server" in wanted:
        lines += ["# Server", f"redis_version:{VERSION}", f"run_id:{run_id}"]
    if b"replication" in wanted:
        lines += [
            "# Replication",
            f"role:{role}",
            f"connected_slaves:{replicas}",
            f"master_replid:{replication_id}",
        ]
    return "".join(f"{line}\r\n" for line in lines).encode()


@functools.lru_cache(8)
def _sha(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()


def _size(value: Any) -> int:
    """Of strings alone: what else is there is little."""
    if isinstance(value, Text):
        value = value.value
    return len(value) if isinstance(value, bytes) else 0


def _argument(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, int | float):
        return b"%.17g" % value
    raise ErrorReply("ERR Lua redis lib command arguments must be strings or integers")


_SPECIAL: dict[bytes, Callable[..., Reply]] = {
    b"EVAL": RedisServer._eval,
    b"EVALSHA": RedisServer._evalsha,
    b"SCRIPT": RedisServer._script_load,
    b"PING": lambda _, *text: text[0] if text else b"PONG",
    b"CLIENT": lambda _, *__: OK,
    b"SELECT": lambda _, *__: OK,
    b"ROLE": lambda server: [b"master" if server.primary is None else b"slave"],
}
