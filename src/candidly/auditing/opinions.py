"""Several opinions on the truth of each row, weighed by how well they explain the candidates.

    p_i(t) is proportional to exp(sum over k of w_k a_kit)

for opinions a_k, such as log probabilities of a model. The weights w_k >= 0 maximise the likelihood
of the candidate sets,

    sum over i of log(OUTSIDE + (1 - OUTSIDE) p_i(S_i)),

where p_i(S_i) is the sum over the candidates. No truth is needed. Opinions must not have seen the
sets that they are judged by.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from candidly.auditing.processes.base import Floats
from candidly.auditing.rates import sample
from candidly.blocks import row_blocks
from candidly.scores import log_softmax

OUTSIDE = 0.02  # keeps rows whose truth is outside from deciding
MOST = 5.0  # greatest weight


def weigh(opinions: Floats, mask: NDArray[np.bool_]) -> Floats:
    """Find the weights of opinions; those of many rows are found on a sample.

    Parameters
    ----------
    opinions : array of shape (k, n, c)
    mask : bool array of shape (n, c)
        The candidates.

    Returns
    -------
    array of shape (k,)

    Examples
    --------
    >>> right, noise = np.eye(3)[np.arange(300) % 3], np.random.default_rng(0).normal(size=(300, 3))
    >>> weights = weigh(np.array([3 * right, noise]), right + (noise > 1) > 0)
    >>> bool(weights[0] > 10 * weights[1])
    True
    """
    chosen = sample(len(mask))
    a = np.asarray(opinions[:, chosen], dtype=np.float64)
    candidates = mask[chosen]

    def cost(weights: Floats) -> tuple[float, Floats]:
        p = np.exp(log_softmax(np.einsum("k,kic->ic", weights, a)))
        inside = p * candidates
        mass = inside.sum(axis=1, keepdims=True)
        explained = OUTSIDE + (1 - OUTSIDE) * mass
        slope = (1 - OUTSIDE) * (inside - p * mass) / explained
        return -float(np.log(explained).mean()), -np.einsum("kic,ic->k", a, slope) / len(p)

    start = np.ones(len(a)) / len(a)
    found: Any = minimize(cost, start, jac=True, method="L-BFGS-B", bounds=[(0, MOST)] * len(a))
    return found.x


def surprise(logits: Floats, mask: NDArray[np.bool_]) -> float:
    """Compute the mean of -log p(S), in which no row counts for more than OUTSIDE allows.

    Parameters
    ----------
    logits : array of shape (n, c)
    mask : bool array of shape (n, c)
        The candidates.

    Returns
    -------
    float

    Examples
    --------
    >>> round(surprise(np.zeros((1, 4)), np.array([[True, True, False, False]])), 3)
    0.673
    """
    total = 0.0
    for rows in row_blocks(*mask.shape):
        mass = (np.exp(log_softmax(logits[rows].astype(np.float64))) * mask[rows]).sum(axis=1)
        total += float(np.log(OUTSIDE + (1 - OUTSIDE) * mass).sum())
    return -total / len(mask)
