"""How sure a model's probabilities deserve to be: softmax(sharpness * log p)."""

from __future__ import annotations

import numpy as np

from candidly.auditing.processes.base import Floats
from candidly.scores import log_softmax

SHARPNESS = (0.02, 20.0)  # least and greatest


def sharpened(sharpness: float, log_probs: Floats, expected: Floats) -> float:
    """Take a Newton step for the sharpness: the expected log likelihood is concave in it.

    Parameters
    ----------
    sharpness : float
        The current value.
    log_probs : array of shape (n, c)
        Of the model.
    expected : array of shape (n, c)
        Expected number of draws of each class.

    Returns
    -------
    float
    """
    p = np.exp(log_softmax(sharpness * log_probs))
    lp = np.maximum(log_probs, -1e4)
    mean = (p * lp).sum(axis=1)
    weight = expected.sum(axis=1)
    slope = float((expected * lp).sum() - weight @ mean)
    curve = float(weight @ ((p * lp**2).sum(axis=1) - mean**2)) + 1e-9
    step = np.clip(slope / curve, -0.5 * sharpness, sharpness)
    return float(np.clip(sharpness + step, *SHARPNESS))
