"""Outputs for rows that a net did not train on, of all rows, from a single training."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from candidly.losses import cc
from candidly.methods.base import Batch


class Twins(nn.Module):
    """Two copies of the model, each trained on one half of the rows: what one says of the other's half is unbiased.

    A net soon agrees with the candidates it trains on, right or wrong; how many are wrong only shows on other rows.
    """

    side: Tensor  # (n,): does the first train on the row?

    def __init__(self, model: nn.Module, rows: int, rng: torch.Generator) -> None:
        super().__init__()
        self.first, self.second = copy.deepcopy(model), copy.deepcopy(model)
        self.register_buffer("side", torch.rand(rows, generator=rng) < 0.5)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(losses, unseen): for each row the loss of the twin that trains on it, and the logits of the other one."""
        first, second, mine = (
            self.first(batch.views[0]),
            self.second(batch.views[0]),
            self.side[batch.index, None],
        )
        return cc(torch.where(mine, first, second), batch.candidates), torch.where(
            mine, second, first
        ).detach()
