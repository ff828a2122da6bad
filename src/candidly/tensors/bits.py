"""A packed boolean matrix, eight entries per byte: candidates as they are stored in a training."""

from __future__ import annotations

import torch
from torch import Tensor

from candidly.blocks import row_blocks

# Entries packed together
PACKED_TOGETHER = 1 << 22


class Bits:
    """A packed boolean matrix (n, c); an index or a slice gives rows as a boolean tensor.

    Parameters
    ----------
    dense : bool tensor (n, c)

    Examples
    --------
    >>> import torch
    >>> bits = Bits(torch.tensor([[True, False, True], [False, True, False]]))
    >>> bits.packed
    tensor([[5],
            [2]], dtype=torch.uint8)
    >>> bits[torch.tensor([1])]
    tensor([[False,  True, False]])
    """

    def __init__(self, dense: Tensor) -> None:
        n, c = dense.shape
        self.shape = dense.shape
        self.device = dense.device
        self.shift = torch.arange(8, dtype=torch.uint8, device=dense.device)
        # The eight entries of each byte, as one number of eight bytes
        bytes_ = torch.arange(256, device=dense.device)[:, None]
        self.table = (bytes_ >> self.shift & 1).byte().view(torch.int64)[:, 0]
        self.packed = torch.empty((n, -(-c // 8)), dtype=torch.uint8, device=dense.device)
        for rows in row_blocks(n, c, PACKED_TOGETHER):
            self.packed[rows] = self._pack(dense[rows])

    def _pack(self, rows: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(rows.byte(), (0, -rows.shape[1] % 8))
        return (padded.view(len(rows), -1, 8) << self.shift).sum(-1, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        packed = self.packed[rows]
        eights = self.table.index_select(0, packed.flatten().int())
        return eights.view(torch.bool).view(len(packed), 8 * packed.shape[1])[:, : self.shape[1]]
