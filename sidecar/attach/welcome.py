"""The sidecar's half of the attach handshake: whom to let in, and what to hand over."""

from __future__ import annotations

import os
from typing import NamedTuple

from cache_l2._native import LAYOUT_VERSION
from cache_l2.attach_messages import Hello, Refusal, Welcome
from cache_l2.attach_socket import Peer, close_all, pid_of_pidfd, time_namespace
from cache_l2.attach_wire import HELLO_DESCRIPTORS, PROTOCOL_VERSION, PROTOCOL_VERSION_MIN
from cache_l2.store import ArenaStore
from kv_types.clock import Clock
from kv_types.limits import BATCH_PAGES_MAX
from sidecar.attach.connection import AttachedProcess, Connection

_ROOT = 0


class Refusing(NamedTuple):
    """Why a handshake is refused, for programs and for people."""

    code: Refusal
    text: str


def judge_hello(hello: Hello, peer: Peer, descriptors: list[int], *, now_ns: int) -> Refusing | None:
    """Say why this client may not attach, or None. `now_ns` is the sidecar's CLOCK_BOOTTIME."""
    return (
        _judge_user(peer)
        or _judge_versions(hello)
        or _judge_clock(hello, now_ns)
        or _judge_process(peer, descriptors)
    )


def welcome(
    store: ArenaStore,
    clock: Clock,
    connection: Connection,
    request: int,
    process: AttachedProcess,
    *,
    has_l3: bool,
) -> None:
    """Send the welcome with the arena's descriptors. Raises ReceiverTooSlowError, OSError."""
    geometry = store.geometry
    message = Welcome(
        version=PROTOCOL_VERSION, layout_version=LAYOUT_VERSION, row=process.row, life=store.life,
        control_bytes=geometry["control_bytes"], clients_bytes=geometry["clients_bytes"],
        data_bytes=geometry["data_bytes"], batch_pages_max=BATCH_PAGES_MAX,
        reservation_ms=int(store.config.reservation_s * 1000), time_namespace=time_namespace(),
        boot_now_ns=clock.now_ns(), attachment=process.attachment, has_l3=has_l3,
    )  # fmt: skip
    descriptors = store.descriptors(writable=process.writable)
    try:
        connection.send(
            message, request, descriptors=(*descriptors, process.doorbell), version=PROTOCOL_VERSION
        )
    finally:
        close_all(descriptors)


def _judge_user(peer: Peer) -> Refusing | None:
    if peer.uid in (os.geteuid(), _ROOT):
        return None
    return Refusing(
        Refusal.FOREIGN_USER, f"this sidecar serves user {os.geteuid()}; user {peer.uid} may not attach"
    )


def _judge_versions(hello: Hello) -> Refusing | None:
    if not hello.version_min <= PROTOCOL_VERSION <= hello.version_max:
        return Refusing(
            Refusal.VERSION,
            f"this sidecar speaks attach protocol {PROTOCOL_VERSION_MIN}–{PROTOCOL_VERSION}, the worker "
            f"{hello.version_min}–{hello.version_max}",
        )
    if hello.layout_version != LAYOUT_VERSION:
        return Refusing(
            Refusal.LAYOUT,
            f"this sidecar's memory layout is version {LAYOUT_VERSION}, the worker's {hello.layout_version}",
        )
    return None


def _judge_clock(hello: Hello, now_ns: int) -> Refusing | None:
    """Freshness is compared across processes, so that their clocks must be one (rule R16); the worker checks closer."""
    own = time_namespace()
    if own and hello.time_namespace and own != hello.time_namespace:
        return Refusing(
            Refusal.FOREIGN_CLOCK,
            f"this sidecar lives in time namespace {own}, the worker in {hello.time_namespace}",
        )
    if hello.boot_now_ns > now_ns:
        return Refusing(
            Refusal.FOREIGN_CLOCK,
            f"the worker's boot clock is {hello.boot_now_ns - now_ns} ns ahead of the sidecar's",
        )
    return None


def _judge_process(peer: Peer, descriptors: list[int]) -> Refusing | None:
    if len(descriptors) != HELLO_DESCRIPTORS:
        return Refusing(Refusal.MALFORMED, "the handshake came without the worker's pidfd")
    pid = pid_of_pidfd(descriptors[0])
    if pid is None:
        return Refusing(Refusal.MALFORMED, "the descriptor in the handshake is no pidfd")
    if pid < 0:
        return Refusing(Refusal.FOREIGN_PROCESS, "the process behind the pidfd has ended already")
    if pid and peer.pid and pid != peer.pid:
        return Refusing(
            Refusal.FOREIGN_PROCESS,
            f"process {peer.pid} opened the connection, but the pidfd is of process {pid}",
        )
    return None
