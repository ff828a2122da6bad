"""Candid: where the truth of each row lies, by nets that did not see the row; nothing is given.

1. Warm-up. The net learns as PRODEN does. Two more nets learn from one half of the rows each, until
   what they say of the other half explains the candidates there less and less well: they begin to
   learn wrong candidates by heart.
2. What they said at their best, and the candidates of similar rows, are weighed by how well they
   explain the candidates (`auditing.opinions`). The process behind the sets, fitted to this, gives
   the posterior of the truth of each row (`auditing.processes`).
3. The net goes back to where it was then, with the posterior as targets. If only sets are known,
   the kinds keep their probabilities, and the net says which class of each, as PRODEN does.
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
from candidly.methods.base import Batch, forward_views, mean_softmax, state_dtype
from candidly.methods.posterior import TruthTargets
from candidly.methods.twins import Twins
from candidly.tensors.nets import feature_width
from candidly.tensors.similar import similar_votes

WINDOW = 5  # the newest output has weight 1/WINDOW in the moving mean
# Epochs without a better explanation that end the warm-up; or this share of those so far, if more
PATIENCE, PATIENT_SHARE = 2, 0.15


class Candid(TruthTargets):
    """Cross-entropy with the posterior of the truth, from outputs for unseen rows.

    It uses votes and certain labels, too. Of few rows, or full sets alone, it learns as PRODEN.

    Parameters
    ----------
    neighbours : int
        Number of similar rows whose candidates count, at most half as many as there are rows per
        class; 0 for none.
    longest : float
        The warm-up is at most this share of the training.
    """

    # Of twins that did not train on the row: (n, c) mean logits, those that explained the
    # candidates best, and (n, d) features
    unseen: Tensor
    best: Tensor
    features: Tensor
    # (n, c): PRODEN's confidence of the twin that trains on the row
    halves: Tensor
    # (2,): how badly the best ones explained them, and after how many epochs
    record: Tensor
    # (): epochs of the warm-up, 0 until it ends
    ended: Tensor

    def __init__(self, *, neighbours: int = 50, longest: float = 0.6) -> None:
        super().__init__()
        self.neighbours = whole(neighbours, "neighbours", 0)
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
        self.main = (model,)  # in a tuple, it is no part of this module
        self.kept = copy.deepcopy(model).requires_grad_(False)
        self.twins = Twins(model, len(candidates), rng)
        n, c = candidates.shape
        width = feature_width(model, c) if self.neighbours else 1
        for name, shape in (("unseen", (n, c)), ("best", (n, c)), ("features", (n, width))):
            self.rows(name, torch.zeros(shape, dtype=state_dtype(shape), device=candidates.device))
        self.rows("halves", self.confidence.clone())
        self.register_buffer("record", torch.tensor([torch.inf, 0.0], dtype=torch.float64))
        self.register_buffer("ended", torch.tensor(0))

    @property
    def learns_halves(self) -> bool:
        """Whether each net learns from one half of the rows."""
        return self.judging and not self.ended

    @property
    def ensemble_logits(self) -> Tensor | None:
        """The best outputs for unseen rows; None before the warm-up has ended."""
        return self.best if "ended" in self._buffers and self.ended else None

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
            self.kept.load_state_dict(self.main[0].state_dict())
        patience = max(PATIENCE, PATIENT_SHARE * epoch)
        if epoch - when >= patience or epoch >= self.longest * self.epochs:
            self.ended.fill_(epoch)
            self.main[0].load_state_dict(self.kept.state_dict())
            self.judge(self.best if self.neighbours == 0 else self.with_neighbours())

    def with_neighbours(self) -> Tensor:
        """Weigh the best outputs and the candidates of similar rows."""
        log_probs = self.best.to(torch.get_default_dtype()).log_softmax(-1)
        opinions = torch.stack([log_probs, torch.zeros_like(log_probs)])
        candidates = self.candidates[:]
        for side in (self.twins.side, ~self.twins.side):
            votes = similar_votes(self.features[side], candidates[side], self.neighbours)
            opinions[1, side] = votes
        weights = weigh(opinions.cpu().numpy(), candidates.cpu().numpy())
        return torch.einsum("k,kic->ic", torch.as_tensor(weights).to(opinions), opinions)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = forward_views(model, batch)
        losses = soft_ce(logits, self.confidence[batch.index]).mean(0)
        probs = mean_softmax(logits)
        if self.warming or not self.judging:
            self.follow(self.confidence, batch, probs)
        elif self.answers is None:
            self.refine(batch, probs)
        return losses + self.train_twins(batch) if self.learns_halves else losses

    def train_twins(self, batch: Batch) -> Tensor:
        """Compute a loss of value 0 with their gradients; store what they say of unseen rows."""
        seen, unseen, features = self.twins(batch)
        # Half of a batch is each twin's batch: twice the weight gives steps of the usual size.
        losses = 2 * soft_ce(seen, self.halves[batch.index])
        self.follow(self.halves, batch, seen.detach().softmax(-1))
        average = self.unseen[batch.index].to(unseen)
        average = average + (unseen - average) / min(self.epoch + 1, WINDOW)
        self.unseen[batch.index] = average.to(self.unseen)
        if self.neighbours:
            self.features[batch.index] = features.to(self.features)
        return losses - losses.detach()
