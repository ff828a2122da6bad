"""PiCO: contrastive label disambiguation (Wang et al., ICLR 2022)."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from candidly.checks import number, one_of, whole
from candidly.losses import Partition, soft_ce, supcon
from candidly.methods.base import Batch, Method, uniform_confidence
from candidly.tensors.distributed import gather, local_part
from candidly.tensors.nets import embed, feature_width


class PiCO(Method):
    """Cross-entropy with prototype-based confidence, plus contrast of embeddings that share a pseudo-label.

    `augmentation`: "own" (resized crops, the second one strong) or "same" (two weak views, as the other methods have).
    A model without `features` is embedded by its logits.
    """

    confidence: Tensor
    prototypes: Tensor
    queue: Tensor
    queue_labels: Tensor
    pointer: Tensor

    def __init__(
        self,
        *,
        augmentation: str = "own",
        contrast: float = 0.5,
        temperature: float = 0.07,
        key_momentum: float = 0.999,
        prototype_momentum: float = 0.99,
        prototype_start: int = 1,
        confidence_start: float = 0.95,
        confidence_end: float = 0.8,
        queue_size: int = 8192,
        width: int = 128,
    ) -> None:
        super().__init__()
        self.augmentation = one_of(augmentation, ("own", "same"), "augmentation")
        self.views = ("resized", "resized_strong") if augmentation == "own" else ("weak", "weak")
        self.contrast, self.temperature = (
            number(contrast, "contrast", 0),
            number(temperature, "temperature", 1e-3),
        )
        self.key_momentum = number(key_momentum, "key_momentum", 0, 1)
        self.prototype_momentum = number(prototype_momentum, "prototype_momentum", 0, 1)
        self.prototype_start = whole(prototype_start, "prototype_start")
        self.confidence_start = number(confidence_start, "confidence_start", 0, 1)
        self.confidence_end = number(confidence_end, "confidence_end", 0, 1)
        self.queue_size, self.width = whole(queue_size, "queue_size", 1), whole(width, "width", 1)

    def setup(self, model: nn.Module, candidates: Tensor, rng: torch.Generator) -> None:
        n_classes, d = candidates.shape[1], feature_width(model, candidates.shape[1])
        self.rows("confidence", uniform_confidence(candidates))
        self.projector = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, self.width)).to(
            candidates.device
        )
        self.keys = nn.ModuleList(
            [copy.deepcopy(model), copy.deepcopy(self.projector)]
        ).requires_grad_(False)
        device = candidates.device
        self.register_buffer("prototypes", torch.zeros(n_classes, self.width, device=device))
        self.register_buffer("queue", torch.zeros(self.queue_size, self.width, device=device))
        self.register_buffer(
            "queue_labels", torch.full((self.queue_size,), -1, device=device)
        )  # -1: not filled yet
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long, device=device))

    def epoch_start(self, epoch, predict_all) -> None:
        self.prototypical = epoch >= self.prototype_start
        self.phi = (
            self.confidence_start
            + (self.confidence_end - self.confidence_start) * epoch / self.epochs
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        self.move_keys(model)
        with torch.no_grad():  # before the other pass fills the memory for its gradient
            k = F.normalize(self.keys[1](embed(self.keys[0], batch.views[1])[0]), dim=-1)
        features, logits = embed(model, batch.views[0])
        q = F.normalize(self.projector(features), dim=-1)
        pseudo = logits.detach().masked_fill(~batch.candidates, -torch.inf).argmax(-1)
        scores = q.detach() @ self.prototypes.T  # with the prototypes as they were
        all_q, all_k, all_pseudo = gather(q), gather(k), gather(pseudo)
        self.prototypes = self.moved_prototypes(all_q.detach(), all_pseudo)
        if self.prototypical:
            self.move_confidence(batch, scores)
        contrast = self.contrast_loss(q, k, pseudo, all_q, all_k, all_pseudo)
        self.enqueue(all_k, all_pseudo)
        return soft_ce(logits, self.confidence[batch.index]) + self.contrast * contrast

    @torch.no_grad()
    def move_keys(self, model: nn.Module) -> None:
        queries: list[Tensor] = [*model.parameters(), *self.projector.parameters()]
        if queries:
            torch._foreach_lerp_(list(self.keys.parameters()), queries, 1 - self.key_momentum)

    def moved_prototypes(self, q: Tensor, pseudo: Tensor) -> Tensor:
        """mu = m mu + (1 - m) q for each example in turn, then normalised once; all classes in one product."""
        members = F.one_hot(pseudo, len(self.prototypes)).to(q)
        later = (
            members.flip(0).cumsum(0).flip(0) - members
        )  # examples of the same class that come after
        weights = members * (1 - self.prototype_momentum) * self.prototype_momentum**later
        kept = self.prototype_momentum ** members.sum(0)
        return F.normalize(kept[:, None] * self.prototypes + weights.T @ q, dim=-1)

    def move_confidence(self, batch: Batch, scores: Tensor) -> None:
        best = scores.masked_fill(~batch.candidates, -torch.inf).argmax(-1)
        target = F.one_hot(best, scores.shape[-1]).to(self.confidence)
        self.confidence[batch.index] = (
            self.phi * self.confidence[batch.index] + (1 - self.phi) * target
        )

    def contrast_loss(self, q, k, pseudo, all_q, all_k, all_pseudo) -> Tensor:
        filled = min(int(self.pointer), self.queue_size)
        queue, queue_labels = self.queue[:filled], self.queue_labels[:filled]
        if not self.prototypical:  # plain MoCo: the own key against the queue
            own = (q * k).sum(-1) / self.temperature
            return (
                torch.logaddexp(own, Partition.apply(q / self.temperature, queue)) - own
                if filled
                else 0 * own
            )
        own = torch.arange(len(all_q), device=q.device)[local_part(len(all_q))]
        contrasts = [(all_q, all_pseudo), (all_k, all_pseudo), (queue, queue_labels)]
        return supcon(q, pseudo, contrasts, own, self.temperature)

    def enqueue(self, k: Tensor, pseudo: Tensor) -> None:
        k, pseudo = k[-self.queue_size :], pseudo[-self.queue_size :]
        slots = (self.pointer + torch.arange(len(k), device=k.device)) % self.queue_size
        self.queue.index_copy_(0, slots, k)  # `Partition` needs no keys to go back
        self.queue_labels.index_copy_(0, slots, pseudo)
        self.pointer += len(k)
