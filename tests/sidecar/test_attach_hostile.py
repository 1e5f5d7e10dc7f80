"""What strangers and broken clients send to the attach socket: the server closes them, counts them, and serves on."""

from __future__ import annotations

import mmap
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cache_l2 import attach_wire as wire
from cache_l2.attach_messages import (
    Abort,
    ClientMessage,
    Commit,
    Detach,
    Ping,
    Register,
    Reserve,
)
from cache_l2.attach_socket import close_all, send_datagram
from cache_l2.reader import Reserved
from kv_types.clock import BoottimeClock
from kv_types.errors import (
    InvalidArgumentError,
    LayoutConflictError,
    LimitExceededError,
    ProtocolError,
)
from kv_types.ids import Stamp, new_log_incarnation
from kv_types.limits import ATTACH_MESSAGE_BYTES_MAX, LOG_REPORT_S_MIN, NAMESPACES_PER_CLIENT_MAX
from kv_types.outcomes import STORED, RefuseReason
from kv_types.outcomes import Refused as PutRefused
from sidecar.arena_memory import MemoryPicture
from sidecar.status_report import Addresses, StatusReport
from tests.support.attach_raw import (
    attach_raw,
    descriptors_of,
    dial,
    expect_closed,
    greet,
    hear,
    hello,
)
from tests.support.attach_site import AttachSite, register
from tests.support.attach_worker import Worker, check, put
from tests.support.log_pictures import log_picture, no_l3
from tests.support.pages import buffers, chain, namespace_of, packed, page_of
from tests.support.polling import wait_until


def _garbage(draw: random.Random) -> bytes:
    header = struct.pack("<4sHHII", wire.MAGIC, 1, draw.randint(0, 20), draw.getrandbits(32), 0)
    shapes: list[Callable[[], bytes]] = [
        lambda: draw.randbytes(draw.randint(1, 300)),
        lambda: draw.randbytes(ATTACH_MESSAGE_BYTES_MAX),
        lambda: header + draw.randbytes(draw.randint(0, 50)),
        lambda: header[:12] + struct.pack("<I", 40) + draw.randbytes(40),
        lambda: wire.encode_message(Ping(), 1)[: draw.randint(1, 15)],
    ]
    return draw.choice(shapes)()


@pytest.mark.parametrize("attached", [False, True], ids=["strangers", "clients"])
def test_garbage_closes_its_sender_and_nobody_else_notices(site: AttachSite, attached: bool) -> None:
    draw = random.Random(20_261_129)
    began_s = time.monotonic()
    with site.attach() as bystander, capture_logs() as logs:
        registration = register(bystander, namespace_of())
        keys = chain(3)
        put(bystander, registration, keys)
        before = descriptors_of(site)
        for round_number in range(40):
            with (attach_raw if attached else dial)(site) as connection:
                extra = tuple(os.open("/dev/null", os.O_RDONLY) for _ in range(round_number % 4))
                try:
                    send_datagram(connection, _garbage(draw), extra)
                except OSError as error:
                    assert error.errno == 90, "only a message too long for the socket may fail"  # noqa: PT017
                for descriptor in extra:
                    os.close(descriptor)
                connection.shutdown(socket.SHUT_WR)
                while hear(connection) is not None:
                    pass
            if attached and round_number % 6 == 5:
                break  # rows of this living process come back only when it ends
            assert check(bystander, registration, keys) == 3
            assert bystander.ping(deadline_s=5.0)
        assert site.statistic("server.garbage") > 0
        assert site.statistic("server.handler_errors") == 0
        wait_until(lambda: site.statistic("server.connections") == 1, what="senders of garbage to be closed")
        # their pidfds and doorbells, watched until this process ends
        kept = 2 * (site.statistic("server.processes") - 1)
        expect_closed(site, before, kept=kept)
    told = [entry for entry in logs if entry["event"].startswith("garbage")]
    assert all(entry["pid"] == os.getpid() for entry in told)
    assert 1 <= len(told) <= 1 + (time.monotonic() - began_s) / LOG_REPORT_S_MIN, (
        "whoever sends it fills no log"
    )


def test_descriptors_in_too_great_a_number_are_closed(site: AttachSite) -> None:
    before = descriptors_of(site)
    many = tuple(os.open("/dev/null", os.O_RDONLY) for _ in range(40))
    with dial(site) as connection:
        send_datagram(connection, wire.encode_message(hello(), 0), many)
        assert hear(connection) is None
    for descriptor in many:
        os.close(descriptor)
    wait_until(lambda: site.statistic("server.connections") == 0, what="the sender to be closed")
    expect_closed(site, before)
    assert site.statistic("server.garbage") == 1


def test_a_message_before_or_a_second_handshake_is_garbage(site: AttachSite) -> None:
    with dial(site) as connection:
        send_datagram(connection, wire.encode_message(Ping(), 5))
        assert hear(connection) is None
    with attach_raw(site) as connection:
        greet(connection, hello(), ())
        assert hear(connection) is None
    assert site.statistic("server.garbage") == 2


def test_requests_that_make_no_sense_are_answered_not_obeyed(site: AttachSite) -> None:
    with site.attach() as arena:
        namespace = namespace_of()
        with pytest.raises(ProtocolError):
            arena.register(b"not canonical", 4096, deadline_s=5.0)
        with pytest.raises(LayoutConflictError):
            arena.register(namespace.canonical, 8192, deadline_s=5.0)
        with pytest.raises(LimitExceededError):
            arena.register(bytes(20_000), 4096, deadline_s=5.0)
        registration = register(arena, namespace)
        assert register(arena, namespace) == registration
        unknown = type(registration)(registration.namespace_id, 77, 0, 4096)
        refused = [PutRefused(RefuseReason.UNKNOWN_NAMESPACE)] * 2
        assert arena.reserve(unknown, None, packed(chain(2)), deadline_s=5.0) == refused
        with pytest.raises(LimitExceededError, match="split"):
            arena.reserve(registration, None, bytes(32 * 2000), deadline_s=5.0)
        with pytest.raises(InvalidArgumentError, match="32"):
            arena.reserve(registration, None, bytes(31), deadline_s=5.0)
        assert arena.reserve(registration, None, b"", deadline_s=5.0) == []
        stamp = Stamp(new_log_incarnation(), 0)
        assert arena.commit([], stamp=stamp, deadline_s=5.0) == []
        assert arena.commit([1, 2], stamp=stamp, deadline_s=5.0) == [PutRefused(RefuseReason.EXPIRED)] * 2
        arena.abort([1, 2**64 - 1])
        assert arena.alive
        for number in range(NAMESPACES_PER_CLIENT_MAX - 1):
            register(arena, namespace_of(f"m{number}"))
        with pytest.raises(LimitExceededError, match="namespaces"):
            register(arena, namespace_of("one too many"))
        assert arena.ping(deadline_s=5.0)


def test_a_read_only_client_can_read_and_nothing_else(site: AttachSite) -> None:
    with site.attach() as writer, site.attach(writable=False) as reader:
        keys = chain(2)
        put(writer, register(writer, namespace_of()), keys)
        registration = register(reader, namespace_of())
        assert check(reader, registration, keys) == 2
        with pytest.raises(InvalidArgumentError, match="read-only"):
            reader.reserve(registration, None, packed(chain(1)), deadline_s=5.0)
        reader._writable = True  # a client that lies about itself
        with pytest.raises(InvalidArgumentError, match="read-only"):
            reader.reserve(registration, None, packed(chain(1)), deadline_s=5.0)


def test_fuzzed_requests_of_an_attached_client_never_raise_in_the_server(site: AttachSite) -> None:
    draw = random.Random(7)
    namespace = namespace_of()
    with attach_raw(site) as connection, site.attach() as bystander:
        registration = register(bystander, namespace)
        keys = chain(3)
        put(bystander, registration, keys)
        send_datagram(connection, wire.encode_message(Register(namespace.canonical, 4096), 1))
        assert hear(connection) is not None
        for request in range(2, 400):
            ids = tuple(
                draw.choice([draw.getrandbits(64), draw.randint(0, 50)]) for _ in range(draw.randint(0, 5))
            )
            messages: list[ClientMessage] = [
                    Reserve(
                        namespace_number=draw.choice([0, 0, 9]), parent=draw.choice([None, keys[0], chain(1)[0]]),
                        keys=packed(chain(draw.randint(0, 3))) + draw.choice([b"", keys[1] * 2]),
                        ttl_s=draw.choice([None, 0, 5, 2**63 - 1]),
                    ),
                    Commit(reservations=ids, stamp=Stamp(new_log_incarnation(), 0), tags=(b"", b"x")),
                    Commit(reservations=ids, stamp=site.store.stamp(), computed_from_ms=2**64 - 1),
                    Abort(ids),
                    Register(draw.randbytes(40), draw.getrandbits(32)),
                    Ping(),
            ]  # fmt: skip
            message = draw.choice(messages)
            send_datagram(connection, wire.encode_message(message, request))
            assert hear(connection) is not None, message
        assert check(bystander, registration, keys) == 3
        site.call(lambda store: store.check_invariants())
    assert site.statistic("server.handler_errors") == 0
    assert site.statistic("server.garbage") == 0


def test_what_is_written_after_the_commit_changes_that_page_alone(site: AttachSite) -> None:
    """See docs/shared-memory.md, Trust."""
    with site.attach() as late, site.attach() as honest:
        theirs, ours = register(late, namespace_of()), register(honest, namespace_of())
        first, between, last = chain(2), chain(3), chain(2)
        put(late, theirs, first)
        (place,) = late.reserve(theirs, None, packed(between[:1]), deadline_s=5.0)
        assert isinstance(place, Reserved)
        slot = memoryview(late.reader.slot(place.offset, 4096)).cast("B")
        slot[:] = page_of(between[0], 4096)
        assert late.commit([place.id], stamp=site.store.stamp(), deadline_s=5.0) == [STORED]
        put(honest, ours, last)
        assert check(honest, ours, between) == 1

        slot[:] = b"late" * 1024
        room = buffers(1, 4096)
        got = honest.reader.get(
            ours.counter, packed(between[:1]), room, page_bytes=4096, namespace=ours.number
        )
        assert (got[0], bytes(room[0])) == (1, b"late" * 1024), "nothing here can tell"
        assert (check(honest, ours, first), check(honest, ours, last)) == (2, 2)
        site.call(lambda store: store.check_invariants())

        site.call(lambda store: store.hide_all())
        put(honest, ours, between)
        assert check(honest, ours, between) == 3, "what is computed anew is right"
        del slot


# --- slow and leaking clients ---


def test_a_client_that_never_reads_is_dropped_and_others_go_on(site: AttachSite) -> None:
    with site.attach() as bystander, attach_raw(site) as lazy:
        lazy.settimeout(0.05)
        ping = wire.encode_message(Ping(), 1)

        def pester() -> bool:
            try:
                for _ in range(100):
                    lazy.send(ping)
            except TimeoutError:
                pass
            except (BrokenPipeError, ConnectionResetError):
                return True
            assert bystander.ping(deadline_s=5.0)
            return site.statistic("server.dropped_slow") == 1

        wait_until(pester, what="the client that never reads to be dropped")
        wait_until(lambda: site.statistic("server.dropped_slow") == 1, what="the drop to be counted")
        assert bystander.ping(deadline_s=5.0)


def test_attaching_and_leaving_leaks_no_descriptor_on_either_side(site: AttachSite) -> None:
    site.attach().close()
    wait_until(lambda: site.statistic("server.connections") == 0, what="the first client to be gone")
    before = descriptors_of(site)
    for _ in range(25):
        site.attach().close()
    wait_until(lambda: site.statistic("server.connections") == 0, what="every client to be gone")
    expect_closed(site, before)
    for _ in range(3):
        with Worker("gets", site.path, os.urandom(32).hex(), 1) as worker:
            worker.hear()
            worker.kill()
    wait_until(lambda: site.statistic("server.processes") == 0, what="every worker to be gone")
    expect_closed(site, before)


def test_running_out_of_descriptors_is_survived(tmp_path: Path) -> None:
    code = (
        "import resource, sys, socket, os\n"
        "from pathlib import Path\n"
        "from tests.support.attach_site import AttachSite\n"
        "from kv_types.errors import StrataError\n"
        "with AttachSite(Path(sys.argv[1])) as site:\n"
        "    used = len(os.listdir('/proc/self/fd'))\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 6, 4096))\n"
        "    refused = 0\n"
        "    for _ in range(5):\n"
        "        try:\n"
        "            site.attach(deadline_s=1.0)\n"
        "        except (StrataError, OSError):\n"
        "            refused += 1\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))\n"
        "    site.attach().close()\n"
        "    print('survived', refused)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split("survived ")[1]) > 0


def test_garbage_in_clients_counters_keeps_nobody_from_reading_the_figures(site: AttachSite) -> None:
    report = StatusReport(
        site.store, log_picture, no_l3, MemoryPicture(site.store).message, version="1", clock=BoottimeClock(),
        addresses=Addresses(),
    )  # fmt: skip
    namespace = namespace_of()
    liars = [attach_raw(site) for _ in range(2)]
    with site.attach() as honest:
        registration = register(honest, namespace)
        keys = chain(3)
        put(honest, registration, keys)
        assert check(honest, registration, keys) == 3
        for liar in liars:
            send_datagram(liar, wire.encode_message(Register(namespace.canonical, 4096), 1))
            assert hear(liar) is not None
        geometry = site.call(lambda store: dict(store.geometry))
        size = geometry["clients_bytes"]
        begin, stride = geometry["row_offset"], geometry["row_bytes"]
        descriptors = site.call(lambda store: store.descriptors(writable=False))
        with mmap.mmap(descriptors[1], size) as clients:
            for row in (1, 2):
                clients[begin + row * stride : begin + (row + 1) * stride] = b"\xff" * stride
        close_all(descriptors)

        def figures_are_right() -> None:
            answer = site.call(lambda _: report.message(attach={}, names={}, speeds={}))
            assert answer.namespaces[0].requested_pages == answer.namespaces[0].l2_pages == 3
            assert all(client.pid == os.getpid() for client in answer.clients)

        figures_are_right()
        for liar in liars:
            send_datagram(liar, wire.encode_message(Detach(), 2))
            liar.close()
        wait_until(lambda: site.statistic("server.processes") == 1, what="the liars' rows to be folded in")
        figures_are_right()
