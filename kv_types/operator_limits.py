"""Limits of what an operator sets apart in an arena: pins and tenants' shares. Part of kv_types.limits, in a file of its own."""

from __future__ import annotations

# Pins
PINS_MAX = 1024
"""Pins of one sidecar at a time."""
PIN_NAME_BYTES_MAX = 256
PIN_CHAINS_MAX = 256
"""Namespaces in which one pin names a chain."""
PIN_PAGES_MAX = 65_536
"""Pages of one pin, of all its chains; the longest chain is one."""
PINNED_PAGES_MAX = 262_144
"""Pages of all pins of one sidecar, those that several name counted for each: some 30 MiB of bookkeeping."""
PIN_S_MIN = 1.0
PIN_S_MAX = 30 * 86_400.0
"""How long a pin lasts at most; whoever wants it longer pins again."""
PIN_QUOTA_DEFAULT = 0.25
"""The part of an arena that pins may hold."""
PIN_STEP_KEYS = 4096
"""Keys that are pinned, counted or let go without letting others run: a ms or so."""
PIN_LOAD_S_DEFAULT = 30.0
"""How long a pin's load of what the node lacks may take."""
PIN_FILE_BYTES_MAX = 48 * 1024 * 1024
"""What is read of a file of pins: all that may be pinned, written down, in chains as short as may be."""

# Tenants' shares
TENANT_SHARES_MAX = 32
"""Tenants with a share of their own; all others live in what is left."""

assert PIN_PAGES_MAX <= PINNED_PAGES_MAX, "the longest pin must fit"
