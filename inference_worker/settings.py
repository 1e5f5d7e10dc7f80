"""A client's settings: every choice a worker may make, with defaults that serve, checked when made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kv_types.errors import ConfigError
from kv_types.limits import (
    ATTACH_DEADLINE_S_DEFAULT,
    CALL_DEADLINE_S_DEFAULT,
    CALL_S_MAX,
    CLIENT_NAME_BYTES_MAX,
    COPY_LEASE_S_DEFAULT,
    PREFETCHES_IN_FLIGHT_MAX,
    REATTACH_S_DEFAULT,
)
from kv_types.numbers import check_integer, check_rate, check_seconds
from kv_types.validity import EngineMode

RegisterMemory = Callable[[int, int], Callable[[], None]]
"""Is told address and bytes of memory that is mapped now; returns what to call before it is unmapped. Raises nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Raises InvalidArgumentError naming the setting when a number is none or out of range, ConfigError for all else.

    name: what `stratakv status` shows this client as, and the producer of what it stores (at most 64 bytes).
    shared_memory: False uses gRPC alone, even on the sidecar's own node. writable: False attaches read-only; puts
    then go over gRPC. prefault: map the arena's pages in right after the attach, in the background, not at first use.
    deadline_s: for calls that name none. attach_deadline_s: for one attempt to attach, and how long `connect` waits for
    the first.
    wait_for_reconnect: let calls wait, within their own deadline, for a reconnection; False answers unreachable at
    once. reattach_s: how often a client that was refused shared memory, and uses gRPC instead, asks again.
    copy_lease_s: how long one copying get may take before its pages may be taken away. prefetches_in_flight_max:
    more are dropped and counted. prefill_tokens_per_s: how many tokens of a prompt this worker computes in a second, by
    which pages of L3 are loaded or left to be computed; 0: as its connector measures it, and all are loaded while that is
    unknown. engine: what this client is if it has an index of its own that serves without asking the header each time:
    invalidations are acknowledged only when it has applied them (KEEP: or has ended; DROP: or its own freshness has run
    out). It uses shared memory alone, since over gRPC no invalidation would reach it.
    register_memory: lets a device reach the arena's pages by itself, for as long as this client is attached.
    """

    name: str = ""
    shared_memory: bool = True
    writable: bool = True
    prefault: bool = True
    deadline_s: float = CALL_DEADLINE_S_DEFAULT
    attach_deadline_s: float = ATTACH_DEADLINE_S_DEFAULT
    wait_for_reconnect: bool = False
    reattach_s: float = REATTACH_S_DEFAULT
    copy_lease_s: float = COPY_LEASE_S_DEFAULT
    prefetches_in_flight_max: int = 8
    prefill_tokens_per_s: float = 0.0
    engine: EngineMode = EngineMode.NONE
    register_memory: RegisterMemory | None = None

    def __post_init__(self) -> None:
        if len(self.name.encode()) > CLIENT_NAME_BYTES_MAX:
            raise ConfigError(
                f"name has {len(self.name.encode())} bytes; at most {CLIENT_NAME_BYTES_MAX} are allowed"
            )
        for setting in ("deadline_s", "attach_deadline_s", "reattach_s", "copy_lease_s"):
            check_seconds(getattr(self, setting), setting, most=CALL_S_MAX)
        check_integer(
            self.prefetches_in_flight_max, "prefetches_in_flight_max", low=0, high=PREFETCHES_IN_FLIGHT_MAX
        )
        check_rate(self.prefill_tokens_per_s, "prefill_tokens_per_s")
        if not isinstance(self.engine, EngineMode):
            raise ConfigError(f"engine is an EngineMode; got {self.engine!r}")
        if self.engine is not EngineMode.NONE and not self.shared_memory:
            raise ConfigError(
                f"engine is {self.engine.name} and shared_memory is off: invalidations reach an engine's own index "
                "through shared memory alone"
            )
