"""PiCO: contrastive label disambiguation (Wang et al., ICLR 2022)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from candidly.answers import Answers
from candidly.checks import number, one_of, whole
from candidly.losses import Partition, soft_ce, supcon
from candidly.methods.base import Batch, Method, uniform_confidence
from candidly.tensors.distributed import gather, local_part
from candidly.tensors.nets import embed, feature_width

# The query's view and the key's, by the setting `augmentation`
VIEWS = {
    "same": ("weak", "weak"),
    "own": ("resized", "resized_strong"),
    "mild": ("resized", "resized_mild"),
}


@dataclass(frozen=True)
class Compared:
    """What PiCO computes of a batch: of this process's part, and of all processes (`all_`).

    Attributes
    ----------
    logits, scores : tensors (b, c)
        Of the classifier, and q . mu of the prototypes as they were.
    q, k : tensors (b, width)
        Embeddings of the query view, with gradient, and of the key view.
    pseudo : integer tensor (b,)
        The most probable candidate.
    all_q, all_k : tensors (n, width)
    all_pseudo : integer tensor (n,)
    """

    logits: Tensor
    scores: Tensor
    q: Tensor
    k: Tensor
    pseudo: Tensor
    all_q: Tensor
    all_k: Tensor
    all_pseudo: Tensor

    @property
    def own(self) -> Tensor:
        """Places of this process's part among all."""
        n = len(self.all_q)
        return torch.arange(n, device=self.q.device)[local_part(n)]


class PiCO(Method):
    """Cross-entropy with prototype-based confidence, plus contrast of embeddings.

    Embeddings that share a pseudo-label attract each other. A model without `features` is embedded
    by its logits.

    Parameters
    ----------
    augmentation : {"same", "own", "mild"}
        Two weak views, as the other methods have; or resized crops, the second one strong as
        published ("own"), or with two random operations and no Cutout ("mild").
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
        augmentation: str = "same",
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
        self.augmentation = one_of(augmentation, VIEWS, "augmentation")
        self.views = VIEWS[augmentation]
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
        seen = self.compare(model, batch)
        losses = self.total(batch, seen)
        self.enqueue(self.entries(batch, seen))
        return losses

    def compare(self, model: nn.Module, batch: Batch) -> Compared:
        """Embed both views; move the prototypes, and then the confidence."""
        self.move_keys(model)
        # First, before the other pass fills the memory for its gradient
        with torch.no_grad():
            k = F.normalize(self.keys[1](embed(self.keys[0], batch.views[1])[0]), dim=-1)
        features, logits = embed(model, batch.views[0])
        q = F.normalize(self.projector(features), dim=-1)
        pseudo = logits.detach().masked_fill(~batch.candidates, -torch.inf).argmax(-1)
        scores = q.detach() @ self.prototypes.T  # with the prototypes as they were
        seen = Compared(logits, scores, q, k, pseudo, gather(q), gather(k), gather(pseudo))
        self.prototypes = self.next_prototypes(seen.all_q.detach(), seen.all_pseudo)
        if self.prototypical:
            self.move_confidence(batch, scores)
        return seen

    def total(self, batch: Batch, seen: Compared) -> Tensor:
        """Compute the loss of each example."""
        targets = self.confidence[batch.index]
        return soft_ce(seen.logits, targets) + self.contrast * self.contrast_loss(seen)

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
        self.move_towards(batch, F.one_hot(best, scores.shape[-1]))

    def move_towards(self, batch: Batch, targets: Tensor) -> None:
        """Apply w = phi w + (1 - phi) t."""
        stored = self.confidence[batch.index]
        moved = self.phi * stored + (1 - self.phi) * targets.to(stored)
        self.confidence[batch.index] = moved

    def contrast_loss(self, seen: Compared) -> Tensor:
        """Contrast the queries of this process with those and the keys of all, and the queue."""
        queue, queue_labels = self.filled(self.queue), self.filled(self.queue_labels)
        if not self.prototypical:  # as in MoCo: the example's own key against the queue
            own = (seen.q * seen.k).sum(-1) / self.temperature
            if not len(queue):
                return 0 * own
            return torch.logaddexp(own, Partition.apply(seen.q / self.temperature, queue)) - own
        contrasts = [
            (seen.all_q, seen.all_pseudo),
            (seen.all_k, seen.all_pseudo),
            (queue, queue_labels),
        ]
        return supcon(seen.q, seen.pseudo, contrasts, seen.own, self.temperature)

    def filled(self, stored: Tensor) -> Tensor:
        """Give the filled slots of a buffer of the queue."""
        return stored[: min(int(self.pointer), self.queue_size)]

    def entries(self, batch: Batch, seen: Compared) -> dict[str, Tensor]:
        """Give what the queue stores of a batch, by the name of its buffer."""
        return {"queue": seen.all_k, "queue_labels": seen.all_pseudo}

    def enqueue(self, entries: dict[str, Tensor]) -> None:
        """Store the keys in place of the oldest ones; `Partition` needs no keys backwards."""
        newest = {name: values[-self.queue_size :] for name, values in entries.items()}
        count = len(newest["queue"])
        slots = (self.pointer + torch.arange(count, device=self.pointer.device)) % self.queue_size
        for name, values in newest.items():
            self.get_buffer(name).index_copy_(0, slots, values)
        self.pointer += count
