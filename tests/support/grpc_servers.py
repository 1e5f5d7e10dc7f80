"""Ending a gRPC server of a test's own loop wholly, before the loop ends."""

from __future__ import annotations

import asyncio

import grpc

_END_S = 10.0


async def end_server(server: grpc.aio.Server) -> None:
    """Stop the server, and wait for what else runs on this loop, which is its calls.

    gRPC tells of the end before the tasks of its calls are over. A loop that ends then cancels them, which gRPC logs as
    an error, and drops those that have not begun, which the collector reports some time later, to some other test.
    """
    await server.stop(None)
    calls = asyncio.all_tasks() - {asyncio.current_task()}
    if calls:
        _, running = await asyncio.wait(calls, timeout=_END_S)
        assert not running, f"these did not end with their server: {running}"
