"""A padded batch packed to the left: real tokens at each row's right end, positions counted over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kv_types.errors import InvalidArgumentError
from kv_types.pad_masks import RowTokens, real_tokens


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """B rows of one width W: row r's tokens stand in columns pads[r]…W−1, in order, without holes.

    `input_ids`, `attention_mask` and `position_ids` are int64 [B, W] on the model's device. The width is the
    caller's, so that lengths in tokens mean the same before and after packing.
    """

    rows: tuple[RowTokens, ...]
    width: int
    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    position_ids: torch.Tensor

    @property
    def pads(self) -> list[int]:
        """Columns before each row's first token."""
        return [self.width - len(row) for row in self.rows]

    @property
    def padded(self) -> bool:
        """Whether any row has a pad."""
        return any(self.pads)

    def to_columns(self, packed: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Lay `packed` [B, W − first, …] out in the caller's columns.

        Returns ([B, W, …], bool [B, W]): values, zero where there are none, and where there are some.
        """
        values = packed.new_zeros((packed.shape[0], self.width, *packed.shape[2:]))
        there = torch.zeros((packed.shape[0], self.width), dtype=torch.bool, device=packed.device)
        for index, (row, pad) in enumerate(zip(self.rows, self.pads, strict=True)):
            begin = max(first, pad)
            columns = torch.from_numpy(row.columns[begin - pad :]).to(packed.device)
            values[index, columns] = packed[index, begin - first :]
            there[index, columns] = True
        return values, there


def pack_rows(
    input_ids: torch.Tensor, attention_mask: torch.Tensor | None, *, device: torch.device, pad_id: int
) -> PackedRows:
    """Pack [B, S] token ids whose mask may hold pads left, right or in between.

    Raises InvalidArgumentError for other shapes and types, and for a row without a real token.
    """
    _check(input_ids, attention_mask)
    given = input_ids.detach().cpu().numpy()
    rows = real_tokens(given, None if attention_mask is None else attention_mask.detach().cpu().numpy())
    for index, row in enumerate(rows):
        if len(row) == 0:
            raise InvalidArgumentError(f"row {index} has no real token: its attention mask is all zero")
    width = int(input_ids.shape[1])
    return PackedRows(tuple(rows), width, *_tensors(given, rows, device=device, pad_id=pad_id))


def _tensors(
    given: NDArray[Any], rows: Sequence[RowTokens], *, device: torch.device, pad_id: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    width = given.shape[1]
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    positions = np.zeros((len(rows), width), dtype=np.int64)
    for index, row in enumerate(rows):
        begin = width - len(row)
        if row.columns[0] == begin:  # packed already: what stands under its pads is the caller's business
            ids[index, :begin] = given[index, :begin]
        ids[index, begin:] = row.token_ids
        mask[index, begin:] = 1
        positions[index, begin:] = row.positions
    tensors = [torch.from_numpy(array).to(device) for array in (ids, mask, positions)]
    return tensors[0], tensors[1], tensors[2]


def _check(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> None:
    if not isinstance(input_ids, torch.Tensor) or input_ids.dim() != 2 or input_ids.is_floating_point():
        raise InvalidArgumentError("input_ids must be an integer tensor of shape [batch, columns]")
    if input_ids.numel() == 0:
        raise InvalidArgumentError(f"input_ids of shape {tuple(input_ids.shape)} hold no token")
    if attention_mask is None:
        return
    if not isinstance(attention_mask, torch.Tensor) or attention_mask.shape != input_ids.shape:
        got = getattr(attention_mask, "shape", type(attention_mask).__name__)
        raise InvalidArgumentError(
            f"attention_mask must be a tensor of input_ids' shape {tuple(input_ids.shape)}; got {got}"
        )
