"""Open rows at which people guess: each names a label that the row resembles, by themselves.

    P(answer = j | x) = (1 - evenly) * softmax(sharpness * log p(x))_j + evenly * frequency_j

People see what the model sees, less sharply than the model does: otherwise rows of known classes
on which all agree would pass for guesses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.auditing.processes.base import Evidence, Floats
from candidly.auditing.sharpness import sharpened
from candidly.scores import log_softmax

SHARE = (0.01, 0.99)  # least and greatest share of each kind of open rows
EVENLY = (0.01, 0.99)
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
    """

    share: float = 0.5
    sharpness: float = 0.5
    evenly: float = 0.3

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
        followed, even, any_label = self._parts(log_probs, evidence, frequent)
        total = np.where(any_label, followed + even, 1.0)
        return evidence.per_row @ np.log(np.maximum(total, LEAST))

    def fitted(
        self, log_probs: Floats, evidence: Evidence, frequent: Floats, weights: Floats, most: float
    ) -> Guesses:
        """Fit sharpness and evenness to rows that are guessed at (an M-step).

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
        followed, even, any_label = self._parts(log_probs, evidence, frequent)
        total = np.maximum(followed + even, LEAST)
        answers = weights[evidence.row] * evidence.counts * any_label
        of_even = float(answers @ (even / total))
        evenly = float(np.clip(of_even / max(float(answers.sum()), 1e-12), *EVENLY))
        drawn = self._entries(log_probs, evidence) * (1 - self.evenly)
        drawn = sparse.diags_array(weights[evidence.row] * any_label / total) @ drawn
        expected = (evidence.per_row @ drawn).toarray()
        sharpness = min(sharpened(self.sharpness, log_probs, expected), most)
        return replace(self, sharpness=sharpness, evenly=evenly)

    def _entries(self, log_probs: Floats, evidence: Evidence) -> sparse.csr_array:
        """(m, c): how likely a guess that follows the row is each label of the answer."""
        follows = np.exp(log_softmax(self.sharpness * log_probs))
        labels = evidence.membership[:, :-1].tocsr()
        row = np.repeat(evidence.row, np.diff(labels.indptr))
        return sparse.csr_array(
            (follows[row, labels.indices], labels.indices, labels.indptr), labels.shape
        )

    def _parts(
        self, log_probs: Floats, evidence: Evidence, frequent: Floats
    ) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """(m,) probability by guesses that follow the row, by the others; has it any label?"""
        labels = evidence.membership[:, :-1]
        followed = (1 - self.evenly) * self._entries(log_probs, evidence).sum(axis=1)
        return followed, self.evenly * (labels @ frequent), labels.sum(axis=1) > 0
