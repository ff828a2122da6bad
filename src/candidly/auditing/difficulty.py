"""Hard rows: where people err more often than usual, in the ways in which they always err.

What misleads one person at a hard row may mislead the next one, too. Then answers that name one
label are draws from an urn (`auditing.urn`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit, logit

from candidly.auditing import urn
from candidly.auditing.mixture import newton_step
from candidly.auditing.processes.base import Evidence, Floats
from candidly.auditing.processes.confusion import (
    LEAST,
    Confusion,
    error_rate,
    learnt,
)

START_ERROR = 0.4
START_SHARE = 0.1
MOST_ERROR = 0.5  # the truth of a hard row is still the answer that people give most
SLOPE = 1.0  # prior: rows that are hard for the model are hard for people, by this slope


@dataclass(frozen=True)
class Difficulty:
    """How many rows are hard, and how often people err there.

    Attributes
    ----------
    error : float
        Share of wrong answers to hard rows.
    weights : array of shape (1 + d,)
        Coefficients of the logistic probability that a row is hard, as for open rows.
    share : float
        Share of hard rows among those of known classes.
    concentration : float or None
        How independent the answers to a hard row are; None if they are taken for independent.
    """

    error: float
    weights: Floats
    share: float = START_SHARE
    concentration: float | None = None

    @classmethod
    def start(cls, d: int) -> Difficulty:
        """Make a first guess.

        Parameters
        ----------
        d : int
            Number of scores.

        Returns
        -------
        Difficulty
        """
        return cls(START_ERROR, np.r_[logit(START_SHARE), np.full(d, SLOPE / d)])

    def shares(self, X: Floats) -> Floats:
        """Compute the probability of each row to be hard.

        Parameters
        ----------
        X : array of shape (n, 1 + d)
            Scores as normal quantiles.

        Returns
        -------
        array of shape (n, 1)
        """
        return np.clip(expit(X @ self.weights), 1e-9, 1 - 1e-9)[:, None]

    def log_likelihood(self, process: Confusion, evidence: Evidence) -> Floats:
        """Compute log P(answers | truth = t) of hard rows.

        Parameters
        ----------
        process : Confusion
            Its shared matrix says which labels are confused.
        evidence : Evidence

        Returns
        -------
        array of shape (n, c)
        """
        matrix = harder(process.matrix, self.error)
        votes = evidence.said.votes
        if votes is None or self.concentration is None:
            return evidence.said.log_likelihood(matrix)
        return urn.log_likelihood(votes, matrix, self.concentration)

    def fitted(
        self, process: Confusion, evidence: Evidence, X: Floats, hard: Floats, known: Floats
    ) -> Difficulty:
        """Fit to rows whose truth and difficulty are known up to probabilities (an M-step).

        Parameters
        ----------
        process : Confusion
        evidence : Evidence
        X : array of shape (n, 1 + d)
        hard : array of shape (n, c)
            P(hard, looks like t) of each row.
        known : array of shape (n, c)
            P(looks like t) of each row, hard or not.

        Returns
        -------
        Difficulty
        """
        weights = newton_step(self.weights, X, hard.sum(axis=1), known.sum(axis=1), SLOPE)
        weights = np.r_[np.clip(weights[0], -12, 12), np.maximum(weights[1:], 0)]
        matrix = harder(process.matrix, self.error)
        share = float(hard.sum() / max(known.sum(), 1e-12))
        found = replace(self, weights=weights, share=share)
        several = learnt(evidence, hard, False)
        votes = evidence.said.votes
        if votes is None or self.concentration is None:
            counted = evidence.said.counted(matrix, several)
        else:
            counted = urn.counted(votes, matrix, self.concentration, several)
            concentration = urn.concentration(
                self.concentration, float(counted.sum()), evidence.numbers, several.sum(axis=1)
            )
            found = replace(found, concentration=concentration)
        return replace(found, error=float(np.clip(error_rate(counted), 0.05, MOST_ERROR)))


def harder(matrix: Floats, error: float) -> Floats:
    """Rescale the errors of a confusion matrix to one rate for all classes.

    Parameters
    ----------
    matrix : array of shape (c, c + 1)
    error : float

    Returns
    -------
    array of shape (c, c + 1)

    Examples
    --------
    >>> harder(np.array([[0.9, 0.1, 0.0], [0.3, 0.6, 0.1]]), 0.4).round(2)
    array([[0.6, 0.4, 0. ],
           [0.3, 0.6, 0.1]])
    """
    right = np.arange(len(matrix))
    wrong = matrix.copy()
    wrong[right, right] = 0
    wrong *= error / np.maximum(wrong.sum(axis=1, keepdims=True), LEAST)
    wrong[right, right] = 1 - error
    return np.maximum(wrong, np.where(matrix > 0, LEAST, 0))
