"""PiCO: contrastive label disambiguation (Wang et al., ICLR 2022)."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from candidly.answers import Answers
from candidly.checks import number, one_of, whole
from candidly.losses import Partition, soft_ce, supcon
from candidly.methods.base import Batch, Method, uniform_confidence
from candidly.tensors.distributed import gather, local_part
from candidly.tensors.nets import embed, feature_width


class PiCO(Method):
    """Cross-entropy with prototype-based confidence, plus contrast of embeddings.

    Embeddings that share a pseudo-label attract each other. A model without `features` is embedded
    by its logits.

    Parameters
    ----------
    augmentation : {"own", "same"}
        Resized crops, the second one strong, or two weak views, as the other methods have.
    contrast : float
        Weight of the contrastive loss.
    temperature : float
        Of the contrastive loss.
    key_momentum, prototype_momentum : float
        Momentum of the key network and of the prototypes.
    prototype_start : int
        First epoch (0, 1, ...) in which prototypes update the confidence.
    confidence_start, confidence_end : float
        Momentum of the confidence at the start and at the end of the training.
    queue_size : int
        Number of stored keys.
    width : int
        Width of an embedding.
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
        self.contrast = number(contrast, "contrast", 0)
        self.temperature = number(temperature, "temperature", 1e-3)
        self.key_momentum = number(key_momentum, "key_momentum", 0, 1)
        self.prototype_momentum = number(prototype_momentum, "prototype_momentum", 0, 1)
        self.prototype_start = whole(prototype_start, "prototype_start")
        self.confidence_start = number(confidence_start, "confidence_start", 0, 1)
        self.confidence_end = number(confidence_end, "confidence_end", 0, 1)
        self.queue_size = whole(queue_size, "queue_size", 1)
        self.width = whole(width, "width", 1)

    def setup(
        self,
        model: nn.Module,
        candidates: Tensor,
        rng: torch.Generator,
        answers: Answers | None = None,
    ) -> None:
        device = candidates.device
        n_classes = candidates.shape[1]
        d = feature_width(model, n_classes)
        self.rows("confidence", uniform_confidence(candidates))
        projector = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, self.width))
        self.projector = projector.to(device)
        copies = [copy.deepcopy(model), copy.deepcopy(self.projector)]
        self.keys = nn.ModuleList(copies).requires_grad_(False)
        self.register_buffer("prototypes", torch.zeros(n_classes, self.width, device=device))
        self.register_buffer("queue", torch.zeros(self.queue_size, self.width, device=device))
        # -1: not filled yet
        self.register_buffer("queue_labels", torch.full((self.queue_size,), -1, device=device))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long, device=device))

    def epoch_start(self, epoch: int, predict_all: Callable[[], Tensor]) -> None:
        self.prototypical = epoch >= self.prototype_start
        change = self.confidence_end - self.confidence_start
        self.phi = self.confidence_start + change * epoch / self.epochs

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        self.move_keys(model)
        # First, before the other pass fills the memory for its gradient
        with torch.no_grad():
            k = F.normalize(self.keys[1](embed(self.keys[0], batch.views[1])[0]), dim=-1)
        features, logits = embed(model, batch.views[0])
        q = F.normalize(self.projector(features), dim=-1)
        pseudo = logits.detach().masked_fill(~batch.candidates, -torch.inf).argmax(-1)
        scores = q.detach() @ self.prototypes.T  # with the prototypes as they were
        all_q, all_k, all_pseudo = gather(q), gather(k), gather(pseudo)
        self.prototypes = self.next_prototypes(all_q.detach(), all_pseudo)
        if self.prototypical:
            self.move_confidence(batch, scores)
        contrast = self.contrast_loss(q, k, pseudo, all_q, all_k, all_pseudo)
        self.enqueue(all_k, all_pseudo)
        return soft_ce(logits, self.confidence[batch.index]) + self.contrast * contrast

    @torch.no_grad()
    def move_keys(self, model: nn.Module) -> None:
        """Move the key network towards the model."""
        queries: list[Tensor] = [*model.parameters(), *self.projector.parameters()]
        if queries:
            torch._foreach_lerp_(list(self.keys.parameters()), queries, 1 - self.key_momentum)

    def next_prototypes(self, q: Tensor, pseudo: Tensor) -> Tensor:
        """Apply mu = m mu + (1 - m) q for each example in turn, then normalise once.

        One product serves all classes.
        """
        members = F.one_hot(pseudo, len(self.prototypes)).to(q)
        # How many examples of the same class follow
        later = members.flip(0).cumsum(0).flip(0) - members
        weights = members * (1 - self.prototype_momentum) * self.prototype_momentum**later
        decay = self.prototype_momentum ** members.sum(0)
        return F.normalize(decay[:, None] * self.prototypes + weights.T @ q, dim=-1)

    def move_confidence(self, batch: Batch, scores: Tensor) -> None:
        """Move the confidence towards the candidate with the closest prototype."""
        best = scores.masked_fill(~batch.candidates, -torch.inf).argmax(-1)
        target = F.one_hot(best, scores.shape[-1]).to(self.confidence)
        stored = self.confidence[batch.index]
        self.confidence[batch.index] = self.phi * stored + (1 - self.phi) * target

    def contrast_loss(
        self,
        q: Tensor,
        k: Tensor,
        pseudo: Tensor,
        all_q: Tensor,
        all_k: Tensor,
        all_pseudo: Tensor,
    ) -> Tensor:
        """Contrast the queries of this process with those and the keys of all, and the queue."""
        filled = min(int(self.pointer), self.queue_size)
        queue = self.queue[:filled]
        queue_labels = self.queue_labels[:filled]
        if not self.prototypical:  # as in MoCo: the example's own key against the queue
            own = (q * k).sum(-1) / self.temperature
            if not filled:
                return 0 * own
            return torch.logaddexp(own, Partition.apply(q / self.temperature, queue)) - own
        own = torch.arange(len(all_q), device=q.device)[local_part(len(all_q))]
        contrasts = [(all_q, all_pseudo), (all_k, all_pseudo), (queue, queue_labels)]
        return supcon(q, pseudo, contrasts, own, self.temperature)

    def enqueue(self, k: Tensor, pseudo: Tensor) -> None:
        """Store the keys in place of the oldest ones; `Partition` needs no keys backwards."""
        k, pseudo = k[-self.queue_size :], pseudo[-self.queue_size :]
        slots = (self.pointer + torch.arange(len(k), device=k.device)) % self.queue_size
        self.queue.index_copy_(0, slots, k)
        self.queue_labels.index_copy_(0, slots, pseudo)
        self.pointer += len(k)
