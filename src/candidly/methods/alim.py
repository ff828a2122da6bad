"""ALIM: adjusting label importance for noisy partial labels (Xu et al., NeurIPS 2023)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from candidly.answers import Answers
from candidly.checks import number, one_of, whole
from candidly.kinds import Rates
from candidly.losses import soft_ce
from candidly.methods.base import Batch
from candidly.methods.mixup import Mixture
from candidly.methods.pico import PiCO
from candidly.methods.twins import NO_OOC, WithRates, warmup_epochs
from candidly.scores import admit
from candidly.selection import admission
from candidly.tensors.nets import embed


class ALIM(WithRates, PiCO):
    """PiCO whose confidence may move to a non-candidate, and mixup.

    The weight of non-candidates lets as many rows choose one as have their truth outside. All
    settings of PiCO are settings here, too.

    Parameters
    ----------
    rates : Rates or "auto"
        Shares of closed-set and open-set examples among all, of which the sum is used; "auto"
        estimates them as `ooc` does.
    warmup : float
        With rates="auto": epochs before the estimate, or a share of the training if below 1.
    start : float
        Before it, the weight is 0: epochs, or a share of the training if below 1.
    normalise : {"onehot", "scale"}
        Move to the best class alone, or to the normalised scores.
    mixup : float
        Weight of the mixup loss; 0 saves its forward pass.
    concentration : int
        a of mixup's Beta(a, a).
    """

    # (n,): log(max_Y s / max_{not Y} s)
    margins: Tensor

    def __init__(
        self,
        *,
        rates: Rates | str = NO_OOC,
        warmup: float = 0.1,
        start: float = 0.08,
        normalise: str = "onehot",
        mixup: float = 1.0,
        concentration: int = 4,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.take_rates(rates)
        self.warmup = number(warmup, "warmup", 0)
        self.start = number(start, "start", 0)
        self.normalise = one_of(normalise, ("onehot", "scale"), "normalise")
        self.mixup = number(mixup, "mixup", 0)
        self.concentration = whole(concentration, "concentration", 1)

    def setup(
        self,
        model: nn.Module,
        candidates: Tensor,
        rng: torch.Generator,
        answers: Answers | None = None,
    ) -> None:
        super().setup(model, candidates, rng, answers)
        self.start_rates(model, candidates, rng, self.warmup)
        # -inf: not seen yet, so that the weight stays 0
        unseen = torch.full((len(candidates),), -torch.inf, device=candidates.device)
        self.rows("margins", unseen)

    def epoch_start(self, epoch: int, predict_all: Callable[[], Tensor]) -> None:
        super().epoch_start(epoch, predict_all)
        self.follow_rates(epoch)
        started = epoch >= warmup_epochs(self.start, self.epochs)
        # lambda of the paper; 0 until the shares are estimated
        self.weight = admission(self.margins, self.outside) if started and self.outside else 0.0

    def move_confidence(self, batch: Batch, scores: Tensor) -> None:
        """Move the confidence towards the best class, where non-candidates have a weight."""
        log_s = (scores / self.temperature).log_softmax(-1)
        inside = log_s.masked_fill(~batch.candidates, -torch.inf).amax(-1)
        outside = log_s.masked_fill(batch.candidates, -torch.inf).amax(-1)
        self.margins[batch.index] = (inside - outside).to(self.margins)
        adjusted = admit(log_s, batch.candidates, self.weight)
        if self.normalise == "scale":
            self.move_towards(batch, adjusted.softmax(-1))
        else:
            self.move_towards(batch, F.one_hot(adjusted.argmax(-1), adjusted.shape[-1]))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        losses = super().loss(model, batch) + self.twin_losses(batch)
        if not self.mixup:
            return losses
        mix = Mixture(batch, self.concentration)
        targets = mix(self.confidence[batch.index])
        return losses + self.mixup * soft_ce(embed(model, mix(batch.views[0]))[1], targets)
