"""Each answer is drawn from the truth's row of a confusion matrix (Dawid and Skene, 1979).

    P(A | t) = sum of matrix[t, j] over the labels j of the answer A, up to a constant:

the annotator means one label, and fills the answer up blindly if it has several. Rows of the
matrix are shrunk towards one error rate for all classes, with wrong labels as frequent as they are
overall. Which labels are confused is learnt from rows with at least two answers only: from one
answer per row, people's confusions cannot be told from the model's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from candidly.auditing.processes.base import Evidence, Floats, Process

START_ERROR = 0.2
LEAST = 1e-9  # probability of any answer


@dataclass(frozen=True)
class Confusion(Process):
    """One confusion matrix for all annotators.

    Attributes
    ----------
    matrix : array of shape (c, c + 1)
        Row t: probabilities of the answers where t is the truth; the last column is "none of the
        classes".
    error : float
        Overall share of wrong answers.
    flat : bool
        Whether only the error rate is learnt, as from one answer per row.
    """

    name: ClassVar[str] = "confusion"
    words: ClassVar[str] = "annotators who mix up certain classes, all in the same way"

    matrix: Floats
    error: float
    flat: bool

    @classmethod
    def start(cls, evidence: Evidence) -> Confusion:
        flat = not (evidence.numbers > 1).any()
        return cls(with_error(START_ERROR, marginal(evidence)), START_ERROR, flat)

    def log_likelihood(self, evidence: Evidence) -> Floats:
        return evidence.said.log_likelihood(self.matrix)

    def fitted(self, evidence: Evidence, posterior: Floats) -> Confusion:
        counted = evidence.said.counted(self.matrix, learnt(evidence, posterior, self.flat))
        error = error_rate(counted)
        prior = with_error(error, marginal(evidence))
        if self.flat:
            return replace(self, matrix=prior, error=error)
        return replace(self, matrix=shrunk(counted, prior), error=error)

    def with_error(self, error: float, evidence: Evidence) -> Confusion:
        """Return the flat process with another error rate.

        Parameters
        ----------
        error : float
        evidence : Evidence

        Returns
        -------
        Confusion
        """
        return replace(self, matrix=with_error(error, marginal(evidence)), error=error)

    def freed(self) -> Confusion:
        """Return the process, allowed to learn which labels are confused.

        Returns
        -------
        Confusion
        """
        return replace(self, flat=False)

    @property
    def none_share(self) -> float:
        return float(self.matrix[:, -1].mean())


def marginal(evidence: Evidence) -> Floats:
    """Compute how frequent each answer is.

    Parameters
    ----------
    evidence : Evidence

    Returns
    -------
    array of shape (c + 1,)
        They sum to 1. None but "none of the classes" is 0.
    """
    sizes = np.diff(evidence.membership.indptr)
    votes = (evidence.counts / np.maximum(sizes, 1)) @ evidence.membership
    votes[:-1] += 1
    return votes / votes.sum()


def with_error(error: float, frequent: Floats) -> Floats:
    """Make the matrix of annotators who err at one rate, towards frequent answers.

    Parameters
    ----------
    error : float
    frequent : array of shape (c + 1,)
        How frequent each answer is.

    Returns
    -------
    array of shape (c, c + 1)

    Examples
    --------
    >>> with_error(0.2, np.array([0.5, 0.25, 0.25, 0.0])).round(2)
    array([[0.8 , 0.1 , 0.1 , 0.  ],
           [0.13, 0.8 , 0.07, 0.  ],
           [0.13, 0.07, 0.8 , 0.  ]])
    """
    c = len(frequent) - 1
    wrong = np.tile(frequent, (c, 1))
    wrong[np.arange(c), np.arange(c)] = 0
    wrong /= wrong.sum(axis=1, keepdims=True)
    matrix = error * wrong
    matrix[np.arange(c), np.arange(c)] = 1 - error
    return np.maximum(matrix, np.r_[np.full(c, LEAST), LEAST * (frequent[-1] > 0)])


def learnt(evidence: Evidence, posterior: Floats, flat: bool) -> Floats:
    """Leave only the rows that confusions are learnt from: those with at least two answers.

    Parameters
    ----------
    evidence : Evidence
    posterior : array of shape (n, c)
    flat : bool
        Whether rows with one answer count too.

    Returns
    -------
    array of shape (n, c)
        The others are 0, unless there are no others.
    """
    several = evidence.numbers > 1
    if flat or several.all() or not several.any():
        return posterior
    return posterior * several[:, None]


def error_rate(counted: Floats) -> float:
    """Compute the share of answers that are not the truth.

    Parameters
    ----------
    counted : array of shape (c, c + 1)

    Returns
    -------
    float
        Between 0.0001 and 0.9.
    """
    right = np.trace(counted[:, :-1])
    return float(np.clip(1 - right / max(counted.sum(), 1e-12), 1e-4, 0.9))


def shrunk(counted: Floats, prior: Floats, strength: float = 1.0) -> Floats:
    """Add some answers of the prior to each row, and normalise.

    Parameters
    ----------
    counted, prior : arrays of shape (c, c + 1)
    strength : float
        How many answers per class and label: a row of many classes has more to learn.

    Returns
    -------
    array of shape (c, c + 1)
    """
    total = counted + strength * len(prior) * prior
    return total / total.sum(axis=1, keepdims=True)
