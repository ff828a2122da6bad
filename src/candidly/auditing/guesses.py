"""Open rows at which people guess: each names a label that the row resembles.

    q_j = (1 - evenly) * softmax(sharpness * log p(x))_j + evenly * frequency_j

People see likenesses that the model misses, and see them together: guesses at one row are draws
from an urn (`auditing.urn`). Answers of several labels count as independent.

People see what the model sees, but less sharply, by MOST_SHARP at most: otherwise rows of known
classes on which the model and all people agree would pass for guesses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.auditing import urn
from candidly.auditing.processes.base import Evidence, Floats
from candidly.auditing.sharpness import sharpened
from candidly.scores import log_softmax

SHARE = (0.01, 0.99)  # least and greatest share of each kind of open rows
EVENLY = (0.01, 0.99)
MOST_SHARP = 0.5  # of guesses, as a share of the model's sharpness at rows of known classes
LEAST = 1e-300


@dataclass(frozen=True)
class Guesses:
    """How people guess.

    Attributes
    ----------
    share : float
        Of the open rows: at the others, people agree on a label.
    sharpness : float
        Power of the model's probabilities that guesses follow.
    evenly : float
        Share of the guesses that have nothing to do with the row.
    concentration : float
        How independent the guesses at one row are.
    """

    share: float = 0.5
    sharpness: float = 0.5
    evenly: float = 0.3
    concentration: float = urn.START

    def log_likelihood(self, log_probs: Floats, evidence: Evidence, frequent: Floats) -> Floats:
        """Compute log P(answers | people guess); "none of the classes" does not count.

        Parameters
        ----------
        log_probs : array of shape (n, c)
            Of the model.
        evidence : Evidence
        frequent : array of shape (c,)
            How frequent each label is.

        Returns
        -------
        array of shape (n,)
        """
        row, label, votes = _entries(evidence)
        follows = np.exp(log_softmax(self.sharpness * log_probs))
        q = (1 - self.evenly) * follows[row, label] + self.evenly * frequent[label]
        each = urn.log_rising(self.concentration * q, votes)
        totals = np.bincount(row, votes, minlength=len(log_probs))
        any_labels = urn.log_rising(np.full(len(totals), self.concentration), totals)
        alone = np.log(np.maximum(self._of_several(follows, evidence, frequent), LEAST))
        independent = evidence.per_row[:, evidence.several_labels] @ alone
        return np.bincount(row, each, minlength=len(log_probs)) - any_labels + independent

    def _of_several(self, follows: Floats, evidence: Evidence, frequent: Floats) -> Floats:
        """The probability of any label of each answer that has several."""
        answers = evidence.several_labels
        labels = evidence.membership[answers, :-1].tocsr()
        row = np.repeat(evidence.row[answers], np.diff(labels.indptr))
        q = (1 - self.evenly) * follows[row, labels.indices]
        q += self.evenly * frequent[labels.indices]
        return sparse.csr_array((q, labels.indices, labels.indptr), labels.shape).sum(axis=1)

    def fitted(
        self, log_probs: Floats, evidence: Evidence, frequent: Floats, weights: Floats, most: float
    ) -> Guesses:
        """Fit to rows that are guessed at (an M-step).

        Parameters
        ----------
        log_probs : array of shape (n, c)
        evidence : Evidence
        frequent : array of shape (c,)
        weights : array of shape (n,)
            Probability of each row to be guessed at.
        most : float
            Greatest sharpness.

        Returns
        -------
        Guesses
        """
        row, label, votes = _entries(evidence)
        if not len(row):
            return self
        follows = (1 - self.evenly) * np.exp(log_softmax(self.sharpness * log_probs))[row, label]
        q = np.maximum(follows + self.evenly * frequent[label], LEAST)
        drawn = weights[row] * urn.drawn(self.concentration * q, votes)
        expected = sparse.csr_array((drawn * follows / q, (row, label)), log_probs.shape).toarray()
        evenly = 1 - float(expected.sum()) / max(float(drawn.sum()), 1e-12)
        totals = np.bincount(row, votes, minlength=len(log_probs))
        return replace(
            self,
            sharpness=min(sharpened(self.sharpness, log_probs, expected), most),
            evenly=float(np.clip(evenly, *EVENLY)),
            concentration=urn.concentration(
                self.concentration, float(drawn.sum()), totals, weights
            ),
        )


def _entries(
    evidence: Evidence,
) -> tuple[NDArray[np.int64], NDArray[np.int32], Floats]:
    """(row, label, votes) of the answers of one label, those that agree counted together."""
    votes = evidence.single_votes
    row = np.repeat(np.arange(len(evidence)), np.diff(votes.indptr))
    return row, votes.indices, votes.data
