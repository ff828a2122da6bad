"""Trimmed PRODEN: the rows of the largest candidate losses are left out, a given share of all."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from candidly.answers import Answers
from candidly.blocks import row_blocks
from candidly.checks import number
from candidly.kinds import Rates
from candidly.losses import cc
from candidly.methods.base import Batch
from candidly.methods.proden import PRODEN
from candidly.methods.twins import NO_OOC, WithRates
from candidly.selection import keep_lowest


class Trimmed(WithRates, PRODEN):
    """PRODEN; after a warm-up, rows whose candidates have the least mass get weight 0.

    They are chosen again in each epoch, as many as have their truth outside of their candidates.
    All rows count in the mean of a batch, and update their confidence.

    Parameters
    ----------
    rates : Rates or "auto"
        Shares of closed-set and open-set examples among all; "auto" estimates them as `ooc` does.
    warmup : float
        Epochs, or a share of the training if below 1.
    """

    kept: Tensor

    def __init__(self, *, rates: Rates | str = NO_OOC, warmup: float = 0.1) -> None:
        super().__init__()
        self.take_rates(rates)
        self.warmup = number(warmup, "warmup", 0)

    def setup(
        self,
        model: nn.Module,
        candidates: Tensor,
        rng: torch.Generator,
        answers: Answers | None = None,
    ) -> None:
        super().setup(model, candidates, rng, answers)
        self.start_rates(model, candidates, rng, self.warmup)
        kept = torch.ones(len(candidates), dtype=torch.bool, device=candidates.device)
        self.register_buffer("kept", kept)

    def epoch_start(self, epoch: int, predict_all: Callable[[], Tensor]) -> None:
        self.follow_rates(epoch)
        if self.warming or epoch == 0 or self.outside == 0:
            return
        output = predict_all()
        losses = torch.empty(len(output), dtype=torch.get_default_dtype(), device=output.device)
        for rows in row_blocks(*output.shape):
            losses[rows] = cc(output[rows].to(losses), self.candidates[rows])
        self.kept = keep_lowest(losses, self.outside)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        losses = super().loss(model, batch)
        return losses * self.kept[batch.index].to(losses) + self.twin_losses(batch)
