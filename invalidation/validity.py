"""Validity: what the log says at one position, and whether a page of a stamp may be published or served (rules R2–R5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from invalidation.log import Boot
from invalidation.records import LogRecord
from kv_types.ids import PageKey, Stamp
from kv_types.namespace import Namespace
from kv_types.outcomes import RefuseReason
from kv_types.selectors import Origin, Selector
