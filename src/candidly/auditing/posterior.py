"""Where the truth of each row probably lies: a verdict's probabilities spread over the classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from candidly.auditing.evidence import Outputs
from candidly.scores import disambiguate, log_softmax


class Block(NamedTuple):
    """b consecutive rows."""

    rows: slice
    mask: NDArray[np.bool_]  # (b, c) candidates
    probs: NDArray[Any]  # (b, c) of the model
    posterior: NDArray[Any]  # (b, c) of each class to be the truth; sums to 1 - p_open


def class_posterior(
    mask: NDArray[np.bool_], probs: NDArray[Any], kinds: NDArray[Any]
) -> NDArray[Any]:
    """Probability of each class to be the truth, (b, c); rows sum to 1 - p_open.

    The candidates share p_normal, and the other classes p_closed, each in proportion to the model's
    probabilities.

    Parameters
    ----------
    mask : bool array of shape (b, c)
        The candidates.
    probs : array of shape (b, c)
        The model's probabilities.
    kinds : array of shape (b, 3)
        Probabilities of normal, closed and open.
    """
    return kinds[:, :1] * disambiguate(probs, mask) + kinds[:, 1:2] * disambiguate(probs, ~mask)


def blocks(outputs: Outputs, kinds: NDArray[Any]) -> Iterator[Block]:
    """Iterate over all rows in order, without an array of the size of the outputs."""
    for rows in outputs.blocks():
        mask = outputs.sets.dense(rows)
        probs = probabilities(outputs, rows)
        yield Block(rows, mask, probs, class_posterior(mask, probs, kinds[rows]))


def probabilities(outputs: Outputs, rows: Any) -> NDArray[Any]:
    """(b, c) of these rows, whatever the outputs are."""
    values = np.asarray(outputs.values[rows], dtype=np.float64)
    if outputs.logits:
        return np.exp(log_softmax(values))
    return values / values.sum(axis=1, keepdims=True)
