"""A process with a private Redis and nothing else: says where it is, then lives until it is killed or told to end."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from sidecar.log.private_redis import PrivateRedis, find_redis_server


async def main(runtime_dir: Path, end: str) -> None:
    binary = find_redis_server()
    assert binary is not None
    redis = PrivateRedis(binary, runtime_dir, memory_bytes=8 * 1024 * 1024)
    await redis.start()
    print(redis.pid, redis.socket_path, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    if end == "stop":
        await redis.stop()
    elif end == "exit":
        os._exit(3)
    elif end == "error":
        raise RuntimeError("ends by an error, its server not stopped")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
