"""Candid: where the truth of each row lies, from rows that a net did not see; nothing is given.

1. Warm-up. Two nets learn from one half of the rows each. It ends when what they say of the other
   half explains the candidates there less and less well: they begin to learn wrong candidates by
   heart.
2. What they said at their best, and the candidates of similar rows, are weighed by how well they
   explain the candidates (`auditing.opinions`). The process behind the sets, fitted to this, gives
   the posterior of the truth of each row (`auditing.processes`), wrong candidates, other classes
   and none of the classes included.
3. One of the nets goes on, on all rows, with mixup and the posterior as targets.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from candidly.answers import Answers
from candidly.auditing.opinions import surprise, weigh
from candidly.checks import number, whole
from candidly.losses import soft_ce
from candidly.methods.base import Batch, forward_views, state_dtype
from candidly.methods.mixup import Mixture
from candidly.methods.posterior import TruthTargets
from candidly.tensors.nets import embed, feature_width
from candidly.tensors.similar import similar_votes

WINDOW = 5  # epochs over which outputs are averaged
PATIENCE = 5  # epochs without a better explanation after which the warm-up ends...
PATIENT_SHARE = 0.3  # ... or this share of those so far, if it is more


class Candid(TruthTargets):
    """Cross-entropy with the posterior of the truth, from outputs for unseen rows; with mixup.

    It uses votes and certain labels, too. Of few rows, or full sets alone, it learns as PRODEN.

    Parameters
    ----------
    neighbours : int
        Number of similar rows whose candidates count, at most half as many as there are rows per
        class; 0 for none.
    mixup : int
        a of mixup's Beta(a, a); 0 for no mixup.
    longest : float
        The warm-up is at most this share of the training.
    """

    # Of the net that did not train on the row: (n, c) mean logits, those that explained the
    # candidates best, and (n, d) features
    unseen: Tensor
    best: Tensor
    features: Tensor
    # (n,): whether the first net trains on the row in the warm-up
    side: Tensor
    # (2,): how badly the best ones explained them, and after how many epochs
    record: Tensor
    # (): epochs of the warm-up, 0 until it ends
    ended: Tensor

    def __init__(self, *, neighbours: int = 50, mixup: int = 4, longest: float = 0.6) -> None:
        super().__init__()
        self.neighbours = whole(neighbours, "neighbours", 0)
        self.mixup = whole(mixup, "mixup", 0)
        self.longest = number(longest, "longest", 0, 1)

    def setup(
        self,
        model: nn.Module,
        candidates: Tensor,
        rng: torch.Generator,
        answers: Answers | None = None,
    ) -> None:
        super().setup(model, candidates, rng, answers)
        self.start_shares(candidates.device)
        self.start_targets(candidates, answers)
        self.other = copy.deepcopy(model)
        n, c = candidates.shape
        width = feature_width(model, c) if self.neighbours else 1
        for name, columns in (("unseen", c), ("best", c), ("features", width)):
            state = torch.zeros((n, columns), dtype=state_dtype((n, columns)))
            self.rows(name, state.to(candidates.device))
        self.register_buffer("side", torch.rand(n, generator=rng) < 0.5)
        self.register_buffer("record", torch.tensor([torch.inf, 0.0], dtype=torch.float64))
        self.register_buffer("ended", torch.tensor(0))

    @property
    def learns_halves(self) -> bool:
        """Whether each net learns from one half of the rows."""
        return self.judging and not self.ended

    def epoch_start(self, epoch: int, predict_all: Callable[[], Tensor]) -> None:
        self.epoch = epoch
        if epoch and self.learns_halves:
            self.compare(epoch)
        self.warming = self.learns_halves

    def compare(self, epoch: int) -> None:
        """Keep the outputs that explain the candidates best; end the warm-up if they get worse."""
        now = surprise(self.unseen.cpu().numpy(), self.candidates[:].cpu().numpy())
        least, when = self.record.tolist()
        if now < least:
            self.best.copy_(self.unseen)
            self.record.copy_(torch.tensor([now, epoch]))
            when = epoch
        patience = max(PATIENCE, PATIENT_SHARE * epoch)
        if epoch - when >= patience or epoch >= self.longest * self.epochs:
            self.ended.fill_(epoch)
            self.judge(self.best if self.neighbours == 0 else self.with_neighbours())

    def with_neighbours(self) -> Tensor:
        """Weigh the best outputs and the candidates of similar rows."""
        log_probs = self.best.to(torch.get_default_dtype()).log_softmax(-1)
        opinions = torch.stack([log_probs, torch.zeros_like(log_probs)])
        candidates = self.candidates[:]
        for side in (self.side, ~self.side):
            rows = self.features[side], candidates[side]
            opinions[1, side] = similar_votes(*rows, self.neighbours)
        weights = weigh(opinions.cpu().numpy(), candidates.cpu().numpy())
        return torch.einsum("k,kic->ic", torch.as_tensor(weights).to(opinions), opinions)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if self.learns_halves:
            return self.learn_halves(model, batch)
        if not self.judging:
            return super().loss(model, batch)
        targets = self.confidence[batch.index]
        if self.mixup == 0:
            return soft_ce(forward_views(model, batch), targets).mean(0)
        mix = Mixture(batch, self.mixup)
        logits = torch.stack([model(mix(view)) for view in batch.views])
        return soft_ce(logits, mix(targets)).mean(0)

    def learn_halves(self, model: nn.Module, batch: Batch) -> Tensor:
        """Train each net on its half; store what it says of the other half."""
        first_features, first = embed(model, batch.views[0])
        second_features, second = embed(self.other, batch.views[0])
        side = self.side[batch.index, None]
        seen = torch.where(side, first, second)
        logits = torch.where(side, second, first).detach()
        features = torch.where(side, second_features.flatten(1), first_features.flatten(1))
        # Half of a batch is each net's batch: twice the weight gives steps of the usual size.
        losses = 2 * soft_ce(seen, self.confidence[batch.index])
        self.follow(batch, seen.detach().softmax(-1))
        average = self.unseen[batch.index].to(logits)
        average = average + (logits - average) / min(self.epoch + 1, WINDOW)
        self.unseen[batch.index] = average.to(self.unseen)
        if self.neighbours:
            self.features[batch.index] = features.detach().to(self.features)
        return losses
