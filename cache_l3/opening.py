"""Which data path moves the bytes of an L3: the native one, or where TLS stands between, the one that Python reads."""

from __future__ import annotations

from cache_l3.address import RedisServers
from cache_l3.data_path import DataPath
from cache_l3.verification import SHAPE


def open_data_path(servers: RedisServers) -> DataPath:
    """A data path for records on these servers; its owner closes it after the store. Made in the event loop that uses it.

    Raises OSError when the kernel gives no descriptor or thread.
    """
    if any(address.is_encrypted for address in servers.addresses):
        from cache_l3.tls_path import TlsPath  # noqa: PLC0415 - only whoever encrypts needs it

        return TlsPath(SHAPE)
    from cache_l3.native_path import NativePath  # noqa: PLC0415 - a sidecar without L3 starts no engine

    return NativePath(SHAPE)
