"""Outputs for rows that a net did not train on: for all rows, from a single training."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from candidly.losses import cc
from candidly.methods.base import Batch


class Twins(nn.Module):
    """Two copies of the model; each trains on one half of the rows and predicts the other half.

    A net soon agrees with the candidates that it trains on, right or wrong. How many are wrong
    shows only on rows that it has not seen.

    Parameters
    ----------
    model : nn.Module
    rows : int
        Number of training examples.
    rng : torch.Generator
        Draws the halves.
    """

    # (n,): whether the first twin trains on the row
    side: Tensor

    def __init__(self, model: nn.Module, rows: int, rng: torch.Generator) -> None:
        super().__init__()
        self.first = copy.deepcopy(model)
        self.second = copy.deepcopy(model)
        self.register_buffer("side", torch.rand(rows, generator=rng) < 0.5)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute the losses of the twins that train on the rows, and the logits of the others.

        Returns
        -------
        losses : tensor (b,)
        unseen : tensor (b, c)
            Without gradient.
        """
        first = self.first(batch.views[0])
        second = self.second(batch.views[0])
        side = self.side[batch.index, None]
        losses = cc(torch.where(side, first, second), batch.candidates)
        return losses, torch.where(side, second, first).detach()
