"""How sure a model's probabilities deserve to be: softmax(sharpness * log p)."""

from __future__ import annotations

import numpy as np

from candidly.auditing.processes.base import Floats
from candidly.scores import log_softmax

SHARPNESS = (0.02, 20.0)  # least and greatest


def sharpened(
    sharpness: float, log_probs: Floats, expected: Floats, p: Floats | None = None
) -> float:
    """Take a Newton step for the sharpness: the expected log likelihood is concave in it.

    Parameters
    ----------
    sharpness : float
        The current value.
    log_probs : array of shape (n, c)
        Of the model.
    expected : array of shape (n, c)
        Expected number of draws of each class.
    p : array of shape (n, c), optional
        softmax(sharpness * log p), if it is computed already.

    Returns
    -------
    float
    """
    p = np.exp(log_softmax(sharpness * log_probs)) if p is None else p
    lp = np.maximum(log_probs, -1e4)
    weight = expected.sum(axis=1)
    mean = np.einsum("ij,ij->i", p, lp)
    square = np.einsum("ij,ij,ij->i", p, lp, lp)
    slope = float(np.einsum("ij,ij->", expected, lp) - weight @ mean)
    curve = float(weight @ (square - mean**2)) + 1e-9
    step = np.clip(slope / curve, -0.5 * sharpness, sharpness)
    return float(np.clip(sharpness + step, *SHARPNESS))
