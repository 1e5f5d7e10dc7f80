"""Tenants' shares as people write them: a table, a JSON object, or "a=0.3,b=0.2"; parsing and the way back."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from kv_types.operator_limits import TENANT_SHARES_MAX

NOBODY = "none"
_PLAIN = re.compile(r"[^\s,={}\"]+")
_HOW = 'write tenant-a=0.3,tenant-b=0.2, or {"tenant-a": 0.3} for names with other characters'


def parse_shares(value: Any) -> dict[str, float]:
    """Parts of the arena by tenant. Raises ValueError saying what to write."""
    if isinstance(value, str):
        value = _read(value.strip())
    if not isinstance(value, Mapping):
        raise ValueError(f"it takes the shares of tenants, not {type(value).__name__}; {_HOW}")  # noqa: TRY004
    if len(value) > TENANT_SHARES_MAX:
        raise ValueError(f"at most {TENANT_SHARES_MAX} tenants have a share; got {len(value)}")
    shares: dict[str, float] = {}
    for tenant, share in value.items():
        if not isinstance(tenant, str) or not tenant:
            raise ValueError(
                "a share belongs to a tenant with a name; pages of no tenant live in what is left"
            )
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise ValueError(
                f"the share of {tenant!r} is {share!r}; it is a part of the arena, above 0 and 1 at most"
            )
        shares[tenant] = float(share)
    if math.fsum(shares.values()) > 1:
        raise ValueError(
            f"the shares make {math.fsum(shares.values()):g} together; they are parts of one arena"
        )
    return shares


def format_shares(shares: Mapping[str, float]) -> str:
    """Write shares the way `parse_shares` reads them."""
    if not shares:
        return NOBODY
    if all(_PLAIN.fullmatch(tenant) for tenant in shares):
        return ",".join(f"{tenant}={share!r}" for tenant, share in shares.items())
    return json.dumps(dict(shares))


def _read(text: str) -> Any:
    if text.lower() in ("", NOBODY):
        return {}
    if text.startswith("{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is no JSON object: {error}; {_HOW}") from error
    shares: dict[str, float] = {}
    for part in text.split(","):
        tenant, is_given, share = (word.strip() for word in part.rpartition("="))
        try:
            number = float(share)
        except ValueError:
            number = math.nan
        if not is_given or math.isnan(number):
            raise ValueError(f"{part.strip()!r} is not tenant=share; {_HOW}")
        if tenant in shares:
            raise ValueError(f"tenant {tenant!r} has two shares")
        shares[tenant] = number
    return shares
