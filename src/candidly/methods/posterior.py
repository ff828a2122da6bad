"""Posterior: learning from where the truth probably lies, given all answers and unseen outputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from candidly.answers import Answers
from candidly.auditing.evidence import gold_labels
from candidly.auditing.shares import kinds_of
from candidly.auditing.verdicts import truth_posterior
from candidly.blocks import row_blocks
from candidly.checks import number
from candidly.data.dataset import NO_CLASS, UNKNOWN
from candidly.kinds import Selection
from candidly.losses import soft_ce
from candidly.methods.base import Batch, forward_views, mean_softmax
from candidly.methods.proden import PRODEN
from candidly.methods.twins import Estimating, WithTwins, warmup_epochs
from candidly.scores import disambiguate
from candidly.selection import MovingEnsemble
from candidly.sets import CandidateSets
from candidly.tensors.bits import Bits

OPEN_WEIGHT = 0.1  # of open rows, as beta of `ooc`


class TruthTargets(Estimating, PRODEN):
    """PRODEN, votes or certain labels first, and the posterior of the truth later, as targets.

    A subclass calls `start_targets` in `setup`, and `judge` with outputs for unseen rows.
    """

    candidates: Bits
    answers: Answers | None
    # (n,): whether the truth is known
    certain: Tensor
    # (n, 3): probabilities of normal, closed and open; zeros before the first posterior
    kinds: Tensor

    def start_targets(self, candidates: Tensor, answers: Answers | None) -> None:
        """Store candidates and answers; make the first targets."""
        self.candidates = Bits(candidates)
        self.answers = answers
        self.register_buffer("kinds", torch.zeros((len(candidates), 3), device=candidates.device))
        # Full sets alone say nothing.
        informed = answers is not None or not bool(candidates.all())
        self.judging = informed and len(candidates) >= self.FEW
        if answers is not None:
            self.count_votes(answers)
        self.fill_in_gold()

    def count_votes(self, answers: Answers) -> None:
        """Store the shares of the votes as targets; rows without a vote for a class keep theirs."""
        for rows in row_blocks(*self.confidence.shape):
            shares = torch.as_tensor(vote_shares(answers, rows)[:, :-1]).to(self.confidence)
            voted = shares.sum(-1, keepdim=True) > 0
            self.confidence[rows] = torch.where(voted, shares, self.confidence[rows])

    def fill_in_gold(self) -> None:
        """Store what is certain as targets: a class, or zeros for none of the classes."""
        n, c = self.confidence.shape
        gold = torch.full((n,), UNKNOWN) if self.gold is None else torch.as_tensor(self.gold)
        gold = gold.to(self.confidence.device)
        self.register_buffer("certain", gold != UNKNOWN, persistent=False)
        index = gold[self.certain]
        index[index == NO_CLASS] = c
        self.confidence[self.certain] = F.one_hot(index, c + 1)[:, :-1].to(self.confidence)

    def judge(self, logits: Tensor) -> None:
        """Make the posterior of all rows the targets."""
        mask = self.candidates[:].cpu().numpy()
        classes = None if self.answers is None else self.answers.classes
        sets = CandidateSets(mask, classes)
        posterior = truth_posterior(
            sets,
            logits=logits.cpu().numpy(),
            answers=self.answers,
            gold=gold_labels(self.gold, sets.classes),
        )
        self.confidence.copy_(torch.as_tensor(posterior[:, :-1]))
        kinds = kinds_of(posterior, mask)
        self.store_rates(*kinds[:, 1:].mean(axis=0))
        self.kinds.copy_(torch.as_tensor(kinds))

    def refine(self, batch: Batch, probs: Tensor) -> None:
        """Keep the probabilities of the kinds, and let the net say which class of each.

        Open rows have equal targets on all classes, with the weight of the paper's beta: the net
        grows less sure of inputs of no class.
        """
        normal, closed, open_ = self.kinds[batch.index].to(probs).split(1, dim=-1)
        inside = disambiguate(probs, batch.candidates)
        outside = disambiguate(probs, ~batch.candidates)
        targets = self.confidence[batch.index]
        uniform = OPEN_WEIGHT * open_ / probs.shape[1]
        found = (normal * inside + closed * outside + uniform).to(targets)
        certain = self.certain[batch.index, None]
        self.confidence[batch.index] = torch.where(certain, targets, found)

    @property
    def selection(self) -> Selection | None:
        """The most likely kind of each row; None before the first posterior."""
        if "kinds" not in self._buffers or not self.kinds.any():
            return None
        likeliest = self.kinds.argmax(-1)
        return Selection(*(likeliest == kind for kind in range(3)))

    def follow(self, confidence: Tensor, batch: Batch, probs: Tensor) -> None:
        """Update targets as PRODEN does, unless there are votes; certain ones stay."""
        if self.answers is not None:
            return
        targets = confidence[batch.index]
        found = disambiguate(probs, batch.candidates).to(targets)
        certain = self.certain[batch.index, None]
        confidence[batch.index] = torch.where(certain, targets, found)

    def report(self) -> dict[str, float]:
        if self.warming or not self.judging:
            return {}
        return {"rate_closed": self.rates.closed, "rate_open": self.rates.open}


class Posterior(WithTwins, TruthTargets):
    """Cross-entropy with the posterior of the truth, from all answers and outputs for unseen rows.

    During the warm-up the targets are the shares of the votes or, if only sets are known, PRODEN's
    confidence. Then they are the posterior, which is computed again after as many epochs. What it
    gives to none of the classes has no gradient. `gold` rows have their class from the start.

    Parameters
    ----------
    warmup : float
        Epochs, or a share of the training if below 1.
    """

    def __init__(self, *, warmup: float = 0.3) -> None:
        super().__init__()
        self.warmup = number(warmup, "warmup", 0)
        self.ensemble = MovingEnsemble()

    def setup(
        self,
        model: nn.Module,
        candidates: Tensor,
        rng: torch.Generator,
        answers: Answers | None = None,
    ) -> None:
        super().setup(model, candidates, rng, answers)
        self.warmup_epochs = warmup_epochs(self.warmup, self.epochs)
        self.add_twins(model, candidates, rng)
        self.start_targets(candidates, answers)

    def epoch_start(self, epoch: int, predict_all: Callable[[], Tensor]) -> None:
        self.epoch = epoch
        self.warming = epoch < self.warmup_epochs
        if self.judging and self.due:
            self.judge(self.unseen)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = forward_views(model, batch)
        targets = self.confidence[batch.index]
        losses = soft_ce(logits, targets).mean(0)
        moving = self.warming or not self.judging
        if moving:
            self.follow(self.confidence, batch, mean_softmax(logits))
        if not self.learning:
            return losses
        learns_sets = moving and self.answers is None
        return losses + self.train_twins(batch, None if learns_sets else targets)


def vote_shares(answers: Answers, rows: slice) -> NDArray[np.float64]:
    """Compute the shares of the votes of some rows; an answer of s labels gives each 1/s vote.

    Parameters
    ----------
    answers : Answers
    rows : slice
        Consecutive rows.

    Returns
    -------
    array of shape (b, c + 1)
        The last column stands for none of the classes. Rows without an answer are zero.

    Examples
    --------
    >>> answers = Answers([["cat", "cat|dog"], ["dog", None]])
    >>> vote_shares(answers, slice(0, 2))
    array([[0.75, 0.25, 0.  ],
           [0.  , 1.  , 0.  ]])
    """
    mine = answers.span(rows)
    place = (answers.row[mine] - rows.start, np.arange(mine.stop - mine.start))
    weights = answers.counts[mine] / answers.sizes[mine]
    shape = (rows.stop - rows.start, len(weights))
    votes = (sparse.csr_array((weights, place), shape) @ answers.membership(rows)).toarray()
    return votes / np.maximum(votes.sum(axis=1, keepdims=True), 1e-300)
