"""Pages that L2 leases, brought onto the model's device: read by the device itself where it reaches the arena, else staged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from cache_l1.transfer import Part, Transfers, batches
from cache_l1.transfer_registration import RegisteredMemory, host_tensor, registered_memory
from cache_l2._native import copy_bytes
from inference_worker.connectors.transformers_store import PageClient


def reach(client: PageClient, device: torch.device) -> RegisteredMemory | None:
    """Have a device with memory of its own reach the client's pages, for as long as that is attached; None for the others."""
    reached = registered_memory(device)
    if reached is not None:
        client.register_memory(reached.register)
    return reached


def bring(
    views: Sequence[memoryview], room: torch.Tensor, *, transfers: Transfers, reached: RegisteredMemory
) -> None:
    """Copy one buffer of page_bytes a page into `room`, uint8 [pages, page_bytes] on the device; returns once they are there."""
    if not views:
        return
    transfers.follow_engine()
    with reached.held(views) as is_reached:
        if is_reached:
            loaded = transfers.load_straight(partial(_copy_straight, views, room))
        else:
            loaded = transfers.load(_staged(views, room))
        loaded.synchronize()


def _copy_straight(views: Sequence[memoryview], room: torch.Tensor) -> None:
    for view, page in zip(views, room, strict=True):
        page.copy_(host_tensor(view), non_blocking=True)


def _staged(views: Sequence[memoryview], room: torch.Tensor) -> Iterator[Part]:
    for turn in batches(len(views), room.shape[1]):
        pages = slice(turn.start, turn.stop)
        yield Part(
            len(turn) * room.shape[1],
            host=partial(_fill, views[pages]),
            device=partial(_move, room[pages]),
        )


def _fill(views: Sequence[memoryview], staging: torch.Tensor) -> None:
    for view, page in zip(views, staging.view(len(views), -1), strict=True):
        copy_bytes(page.numpy(), view)


def _move(room: torch.Tensor, staging: torch.Tensor) -> None:
    room.view(-1).copy_(staging, non_blocking=True)
