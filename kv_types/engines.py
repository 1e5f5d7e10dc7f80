"""What an attached process is to the validity protocol: whether an engine below it keeps pages of its own."""

from __future__ import annotations

from enum import IntEnum


class EngineMode(IntEnum):
    """Numbers are part of the attach protocol and of a row's words, and never reused."""

    NONE = 0
    """Applies what it missed before each look-up, so nobody waits for it."""
    KEEP = 1
    """Goes on using its own pages while the sidecar is out of reach: acknowledgements wait for it (rule R18)."""
    DROP = 2
    """Uses no page of its own once its own freshness has run out: acknowledgements wait for it until then."""
