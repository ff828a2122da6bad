"""PiCO+: contrastive label disambiguation with unreliable rows (Wang et al., TPAMI 2024)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from candidly.answers import Answers
from candidly.checks import number, whole
from candidly.kinds import Rates
from candidly.losses import nearest_contrast, soft_ce, supcon
from candidly.methods.base import Batch
from candidly.methods.mixup import Mixture
from candidly.methods.pico import Compared, PiCO
from candidly.methods.twins import NO_OOC, WithRates, warmup_epochs
from candidly.selection import keep_lowest
from candidly.tensors.distributed import gather
from candidly.tensors.nets import embed


class PiCOPlus(WithRates, PiCO):
    """PiCO on the rows that are close to a prototype of a candidate; guesses for the others.

    As many rows are reliable as have their truth among their candidates. The others learn from the
    prototypes of all classes and from their neighbours, with a small weight. All settings of PiCO
    are settings here, too.

    Parameters
    ----------
    rates : Rates or "auto"
        Shares of closed-set and open-set examples among all, of which the sum is used; "auto"
        estimates them as `ooc` does.
    warmup : float
        With rates="auto": epochs before the estimate, or a share of the training if below 1.
    prot_start : float
        Before it, this is PiCO: epochs, or a share of the training if below 1.
    knn_start : float
        Before it, the positives of unreliable rows are those of all rows alone.
    neighbours : int
        Number of positives of an unreliable row.
    reliable_weight, unreliable_weight : float
        Weights of the cross-entropy of reliable rows, and of each part for unreliable rows.
    mixup : float
        Weight of the mixup loss; 0 saves its forward pass.
    concentration : int
        a of mixup's Beta(a, a).
    """

    # (n,): -max_Y q . mu
    distance: Tensor
    # (queue_size,): whether the row of a key was reliable
    queue_reliable: Tensor

    def __init__(
        self,
        *,
        rates: Rates | str = NO_OOC,
        warmup: float = 0.1,
        prot_start: float = 0.1,
        knn_start: float = 0.12,
        neighbours: int = 16,
        reliable_weight: float = 2.0,
        unreliable_weight: float = 0.1,
        mixup: float = 1.0,
        concentration: int = 4,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.take_rates(rates)
        self.warmup = number(warmup, "warmup", 0)
        self.prot_start = number(prot_start, "prot_start", 0)
        self.knn_start = number(knn_start, "knn_start", 0)
        self.neighbours = whole(neighbours, "neighbours", 1)
        self.reliable_weight = number(reliable_weight, "reliable_weight", 0)
        self.unreliable_weight = number(unreliable_weight, "unreliable_weight", 0)
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
        device = candidates.device
        self.rows("distance", torch.zeros(len(candidates), device=device))
        flags = torch.ones(self.queue_size, dtype=torch.bool, device=device)
        self.register_buffer("queue_reliable", flags)

    def epoch_start(self, epoch: int, predict_all: Callable[[], Tensor]) -> None:
        super().epoch_start(epoch, predict_all)
        self.follow_rates(epoch)
        # Distances exist one epoch after the prototypes are in use
        first = max(self.prototype_start + 1, warmup_epochs(self.prot_start, self.epochs))
        self.started = epoch >= first
        self.knn = epoch >= warmup_epochs(self.knn_start, self.epochs)
        removed = self.outside if self.started else 0.0
        self.reliable = keep_lowest(self.distance, removed)

    def move_confidence(self, batch: Batch, scores: Tensor) -> None:
        """Move the confidence as PiCO does; store the distances."""
        super().move_confidence(batch, scores)
        closest = scores.masked_fill(~batch.candidates, -torch.inf).amax(-1)
        self.distance[batch.index] = -closest.to(self.distance)

    def entries(self, batch: Batch, seen: Compared) -> dict[str, Tensor]:
        """Give what the queue stores of a batch, the reliability included."""
        flags = gather(self.reliable[batch.index].long()).bool()
        return {**super().entries(batch, seen), "queue_reliable": flags}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        seen = self.compare(model, batch)
        losses = self.total(batch, seen) + self.twin_losses(batch)
        if self.started and self.mixup:
            mix = Mixture(batch, self.concentration)
            targets = mix(self.targets(batch, seen))
            losses = losses + self.mixup * soft_ce(embed(model, mix(batch.views[0]))[1], targets)
        self.enqueue(self.entries(batch, seen))
        return losses

    def targets(self, batch: Batch, seen: Compared) -> Tensor:
        """Give the confidence of reliable rows, and guesses among all classes for the others."""
        guess = (seen.scores / self.temperature).softmax(-1)
        confidence = self.confidence[batch.index].to(guess)
        return torch.where(self.reliable[batch.index, None], confidence, guess)

    def total(self, batch: Batch, seen: Compared) -> Tensor:
        """Compute the loss of each example, without mixup."""
        if not self.started:
            return super().total(batch, seen)
        reliable = self.reliable[batch.index]
        unsure = self.unreliable_weight
        weights = torch.where(reliable, self.reliable_weight, unsure).to(seen.logits)
        near = unsure * self.neighbour_contrast(seen) if self.knn else torch.zeros_like(weights)
        contrast = torch.where(reliable, self.reliable_contrast(seen, reliable), near)
        contrast = contrast + unsure * self.contrast_loss(seen)
        return weights * soft_ce(seen.logits, self.targets(batch, seen)) + self.contrast * contrast

    def reliable_contrast(self, seen: Compared, reliable: Tensor) -> Tensor:
        """Contrast with positives among reliable rows; the others are of a class of their own."""
        n_classes = len(self.prototypes)
        labels = torch.where(reliable, seen.pseudo, n_classes)
        all_labels = gather(labels)
        trusted = self.filled(self.queue_reliable)
        stored = torch.where(trusted, self.filled(self.queue_labels), n_classes)
        contrasts = [
            (seen.all_q, all_labels),
            (seen.all_k, all_labels),
            (self.filled(self.queue), stored),
        ]
        return supcon(seen.q, labels, contrasts, seen.own, self.temperature)

    def neighbour_contrast(self, seen: Compared) -> Tensor:
        """Contrast with the nearest embeddings as positives."""
        keys = [seen.all_q, seen.all_k, self.filled(self.queue)]
        return nearest_contrast(seen.q, keys, seen.own, self.temperature, self.neighbours)
