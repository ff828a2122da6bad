"""PALS: pseudo-labels of weighted nearest neighbours (Saravanan et al., arXiv 2402.04835)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from candidly.answers import Answers
from candidly.blocks import row_blocks
from candidly.checks import number, one_of, whole
from candidly.losses import cc, smoothed, soft_ce
from candidly.methods.base import Batch, Method, state_dtype, uniform_confidence
from candidly.methods.mixup import Mixture
from candidly.methods.twins import warmup_epochs
from candidly.scores import neighbour_votes
from candidly.selection import reliable_rows
from candidly.tensors.bits import Bits
from candidly.tensors.nets import embed, feature_width

VIEWS = {"same": ("weak", "weak"), "own": ("weak", "strong")}


class PALS(Method):
    """Nearest neighbours vote by their sets; the surest rows of each class train the classifier.

    After a warm-up with the loss of CC, each epoch makes pseudo-labels from the features and the
    predictions of the last one. docs/methods.md lists what the paper leaves open.

    Parameters
    ----------
    augmentation : {"same", "own"}
        Two weak views, as the other methods have, or a weak and a strong one.
    warmup : float
        Epochs, or a share of the training if below 1.
    neighbours : int
        Number of rows that vote, the row itself included; at most half as many as there are rows
        per class.
    share : float
        Which quantile of the numbers of agreeing rows per class is the number of reliable ones.
    confident_start, confident_end : float
        A predicted probability above this adds the class to the row's set for the vote; at the
        start and at the end of the training.
    smoothing : float
        Weight of the uniform distribution in the targets.
    concentration : int
        a of mixup's Beta(a, a).
    """

    candidates: Bits
    # (n, d): features of length 1, and (n, c): predicted probabilities, of the last epoch
    features: Tensor
    predicted: Tensor
    # (n,): pseudo-labels, and whether they are reliable
    labels: Tensor
    reliable: Tensor

    def __init__(
        self,
        *,
        augmentation: str = "same",
        warmup: float = 0.1,
        neighbours: int = 15,
        share: float = 0.25,
        confident_start: float = 0.45,
        confident_end: float = 0.35,
        smoothing: float = 0.5,
        concentration: int = 4,
    ) -> None:
        super().__init__()
        self.augmentation = one_of(augmentation, VIEWS, "augmentation")
        self.views = VIEWS[augmentation]
        self.warmup = number(warmup, "warmup", 0)
        self.neighbours = whole(neighbours, "neighbours", 1)
        self.share = number(share, "share", 0, 1)
        self.confident_start = number(confident_start, "confident_start", 0, 1)
        self.confident_end = number(confident_end, "confident_end", 0, 1)
        self.smoothing = number(smoothing, "smoothing", 0, 1)
        self.concentration = whole(concentration, "concentration", 1)

    def setup(
        self,
        model: nn.Module,
        candidates: Tensor,
        rng: torch.Generator,
        answers: Answers | None = None,
    ) -> None:
        n, c = candidates.shape
        device = candidates.device
        self.candidates = Bits(candidates)
        self.voters = max(1, min(self.neighbours, n // (2 * c)))
        width = feature_width(model, c)
        self.rows("features", torch.zeros((n, width), dtype=state_dtype((n, width)), device=device))
        self.rows("predicted", uniform_confidence(candidates))
        self.labels = torch.zeros(n, dtype=torch.long, device=device)
        self.reliable = torch.zeros(n, dtype=torch.bool, device=device)

    def epoch_start(self, epoch: int, predict_all: Callable[[], Tensor]) -> None:
        self.warming = epoch < max(1, warmup_epochs(self.warmup, self.epochs))
        change = self.confident_end - self.confident_start
        self.confident = self.confident_start + change * epoch / self.epochs
        if not self.warming:
            self.make_labels()

    def make_labels(self) -> None:
        """Make pseudo-labels of all rows, and choose the reliable ones of each class."""
        candidates = self.candidates[:]
        features = self.features.to(torch.get_default_dtype())
        sets = (candidates | (self.predicted > self.confident)).to(features)
        scores = torch.empty(len(features), dtype=features.dtype, device=features.device)
        for rows in row_blocks(len(features), len(features)):
            votes = neighbour_votes(features, sets, rows, self.voters)
            scores[rows] = votes.amax(-1)
            # Of equal votes, the class of the largest predicted probability wins.
            tied = votes >= scores[rows, None] * (1 - 1e-5)
            likely = self.predicted[rows].masked_fill(~tied, -torch.inf)
            self.labels[rows] = likely.argmax(-1)
        agreeing = candidates.gather(1, self.labels[:, None])[:, 0]
        chosen = reliable_rows(
            self.labels.cpu().numpy(), scores.cpu().numpy(), agreeing.cpu().numpy(), self.share
        )
        self.reliable = torch.as_tensor(chosen, device=features.device)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if self.warming:
            features, logits = embed(model, batch.views[0])
            self.store(batch, features, logits)
            return cc(logits, batch.candidates)
        with torch.no_grad():
            self.store(batch, *embed(model, batch.views[0]))
        reliable = self.reliable[batch.index]
        mix = Mixture(batch, self.concentration, reliable)
        n_classes = self.predicted.shape[1]
        targets = mix(smoothed(self.labels[batch.index], n_classes, self.smoothing))
        logits = torch.stack([embed(model, mix(view))[1] for view in batch.views])
        return soft_ce(logits, targets).mean(0) * reliable.to(targets)

    def store(self, batch: Batch, features: Tensor, logits: Tensor) -> None:
        """Store features and predictions of the rows of a batch."""
        unit = F.normalize(features.detach().flatten(1), dim=-1)
        self.features[batch.index] = unit.to(self.features)
        self.predicted[batch.index] = logits.detach().softmax(-1).to(self.predicted)
