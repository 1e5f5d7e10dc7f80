"""Which data path moves the bytes of an L3: the native one, or where TLS stands between, the one that Python reads."""

from __future__ import annotations

from cache_l3.address import RedisServers
from cache_l3.data_path import DataPath
from cache_l3.native_path import NativePath
from cache_l3.tls_path import TlsPath
from cache_l3.verification import SHAPE
from kv_types.limits import L3_WINDOW_DEFAULT


def open_data_path(servers: RedisServers, *, window: int = L3_WINDOW_DEFAULT) -> DataPath:
    """A data path for records on these servers; its owner closes it after the store. Made in the event loop that uses it.

    Raises OSError when the kernel gives no descriptor or thread.
    """
    if any(address.is_encrypted for address in servers.addresses):
        return TlsPath(SHAPE)
    return NativePath(SHAPE, window=window)
