"""Pages that L2 leases, brought onto the model's device: read by the device itself where it reaches the arena, else staged."""

from __future__ import annotations

from collections.abc import Sequence

import torch

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
    views: Sequence[memoryview], *, page_bytes: int, device: torch.device, reached: RegisteredMemory
) -> torch.Tensor:
    """Copy one buffer of page_bytes a page to the device, on its current stream: uint8 [pages, page_bytes].

    What the buffers lie in may be let go of when this returns.
    """
    room = torch.empty((len(views), page_bytes), dtype=torch.uint8, device=device)
    with reached.held(views) as is_reached:
        if is_reached:
            try:
                _copy_straight(views, room)
            finally:  # what was begun before an error reads the arena too
                if device.type == "cuda":
                    torch.cuda.current_stream(device).synchronize()
            return room
    staged = torch.empty(room.shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
    for view, page in zip(views, staged, strict=True):
        copy_bytes(page.numpy(), view)
    return room.copy_(staged, non_blocking=True)  # torch keeps pinned memory until it is read


def _copy_straight(views: Sequence[memoryview], room: torch.Tensor) -> None:
    for view, page in zip(views, room, strict=True):
        page.copy_(host_tensor(view), non_blocking=True)
