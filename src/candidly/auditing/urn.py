"""Answers to one row that agree more often than independent ones: Polya's urn.

    P(the k-th answer = j | earlier ones) = (A q_j + how many of them are j) / (A + k - 1)

What one person sees in a row, the next one tends to see, too. The concentration A says how
independent the answers are: each is drawn from q if A is infinite, all are copies if it is 0.
With v_j answers j among K, in any order:

    P = Gamma(A) / Gamma(A + K) * product of Gamma(A q_j + v_j) / Gamma(A q_j)

and A q_j (digamma(A q_j + v_j) - digamma(A q_j)) of the v_j are expected to be drawn from q rather
than copied (Minka, Estimating a Dirichlet distribution, 2000). EM for q and A follows from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import digamma, gammaln

from candidly.auditing.processes.base import Floats

Counts = NDArray[Any]  # whole numbers

CONCENTRATION = (1.0, 1e4)  # least and greatest
START = 10.0
LEAST = 1e-300


def log_rising(colours: Floats, votes: Counts | float) -> Floats:
    """Compute log (Gamma(a + v) / Gamma(a)).

    Parameters
    ----------
    colours, votes : arrays
        a = A q_j, and v.

    Returns
    -------
    array

    Examples
    --------
    >>> np.exp(log_rising(np.array([0.5, 2.0]), np.array([2.0, 3.0]))).round(3)
    array([ 0.75, 24.  ])
    """
    colours = np.maximum(colours, LEAST)
    return gammaln(colours + votes) - gammaln(colours)


def drawn(colours: Floats, votes: Counts | float) -> Floats:
    """Compute how many of v equal answers are expected to be drawn rather than copied.

    Parameters
    ----------
    colours, votes : arrays
        A q_j, and v.

    Returns
    -------
    array
        Between 1 and v.

    Examples
    --------
    >>> drawn(np.array([0.5, 1e6]), np.array([2.0, 2.0])).round(3)
    array([1.333, 2.   ])
    """
    colours = np.maximum(colours, LEAST)
    return colours * (digamma(colours + votes) - digamma(colours))


def concentration(old: float, n_drawn: float, totals: Counts, weights: Floats) -> float:
    """Fit the concentration (an M-step).

    Parameters
    ----------
    old : float
        The current value.
    n_drawn : float
        Number of answers that are expected to be drawn, over all rows.
    totals : array of shape (n,)
        Answers per row.
    weights : array of shape (n,)
        Of each row.

    Returns
    -------
    float
    """
    steps = float(weights @ (drawn(np.full(len(totals), old), totals) / old))
    return float(np.clip(n_drawn / max(steps, 1e-12), *CONCENTRATION))


def log_likelihood(votes: sparse.csr_array, matrix: Floats, concentration: float) -> Floats:
    """Compute log P(answers | truth = t), if answers are drawn from a row of a matrix or copied.

    Parameters
    ----------
    votes : sparse array of shape (n, labels)
    matrix : array of shape (c, labels)
        q by truth.
    concentration : float

    Returns
    -------
    array of shape (n, c)
    """
    totals = votes.sum(axis=1)
    copied = log_rising(np.full(len(totals), concentration), totals)
    total = np.zeros((votes.shape[0], len(matrix)))
    for number, places in _by_number(votes):
        total += places @ log_rising(concentration * matrix, number).T
    return total - copied[:, None]


def counted(
    votes: sparse.csr_array, matrix: Floats, concentration: float, posterior: Floats
) -> Floats:
    """Count the answers that are expected to be drawn, by truth and label.

    Parameters
    ----------
    votes : sparse array of shape (n, labels)
    matrix : array of shape (c, labels)
        q by truth, the current guess.
    concentration : float
    posterior : array of shape (n, c)
        P(truth = t) of each row.

    Returns
    -------
    array of shape (c, labels)
    """
    total = np.zeros(matrix.shape)
    for number, places in _by_number(votes):
        total += drawn(concentration * matrix, number) * (places.T @ posterior).T
    return total


def _by_number(votes: sparse.csr_array) -> list[tuple[float, sparse.csr_array]]:
    """Each number of votes, and a 0/1 array of where it is."""
    found = []
    for number in np.unique(votes.data).tolist():
        places = votes.copy()
        places.data = (votes.data == number).astype(np.float64)
        places.eliminate_zeros()
        found.append((number, places))
    return found
