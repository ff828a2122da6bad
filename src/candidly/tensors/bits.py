"""A boolean matrix with eight entries a byte: what the candidates of every example cost while a training lasts."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 1 << 22  # entries packed together


class Bits:
    """Packs a boolean matrix (n, c); rows come out as boolean tensors, by an index or a slice."""

    def __init__(self, dense: Tensor) -> None:
        self.shape, self.device = dense.shape, dense.device
        self.shift = torch.arange(8, dtype=torch.uint8, device=dense.device)
        bytes_ = torch.arange(256, device=dense.device)[:, None]
        self.table = (
            (bytes_ >> self.shift & 1).byte().view(torch.int64)[:, 0]
        )  # a byte's eight entries as one number
        n, c = dense.shape
        self.packed = torch.empty((n, -(-c // 8)), dtype=torch.uint8, device=dense.device)
        step = max(1, BLOCK // c)
        for packed, rows in zip(self.packed.split(step), dense.split(step), strict=True):
            packed.copy_(self._pack(rows))

    def _pack(self, rows: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(rows.byte(), (0, -rows.shape[1] % 8))
        return (padded.view(len(rows), -1, 8) << self.shift).sum(-1, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        packed = self.packed[rows]
        eights = self.table.index_select(0, packed.flatten().int())
        return eights.view(torch.bool).view(len(packed), 8 * packed.shape[1])[:, : self.shape[1]]
