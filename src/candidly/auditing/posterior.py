"""Where the truth of each row probably lies: a verdict's probabilities spread over the classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from candidly.auditing.evidence import Outputs
from candidly.scores import disambiguate, log_softmax


class Block(NamedTuple):
    """b consecutive rows.

    Attributes
    ----------
    rows : slice
    mask : bool array of shape (b, c)
        The candidates.
    probs : array of shape (b, c)
        The model's probabilities.
    posterior : array of shape (b, c)
        Probability of each class to be the truth; rows sum to 1 - p_open.
    """

    rows: slice
    mask: NDArray[np.bool_]
    probs: NDArray[Any]
    posterior: NDArray[Any]


def class_posterior(
    mask: NDArray[np.bool_], probs: NDArray[Any], kinds: NDArray[Any]
) -> NDArray[Any]:
    """Compute the probability of each class to be the truth.

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

    Returns
    -------
    array of shape (b, c)
        Rows sum to 1 - p_open.

    Examples
    --------
    >>> mask = np.array([[True, True, False]])
    >>> class_posterior(mask, np.array([[0.3, 0.1, 0.6]]), np.array([[0.8, 0.2, 0.0]])).round(2)
    array([[0.6, 0.2, 0.2]])
    """
    return kinds[:, :1] * disambiguate(probs, mask) + kinds[:, 1:2] * disambiguate(probs, ~mask)


def blocks(outputs: Outputs, kinds: NDArray[Any]) -> Iterator[Block]:
    """Iterate over all rows in order, without an array of the size of the outputs.

    Parameters
    ----------
    outputs : Outputs
        Candidate sets and a model's outputs for n rows.
    kinds : array of shape (n, 3)
        Probabilities of normal, closed and open.

    Yields
    ------
    Block
    """
    for rows in outputs.blocks():
        mask = outputs.sets.dense(rows)
        probs = probabilities(outputs, rows)
        yield Block(rows, mask, probs, class_posterior(mask, probs, kinds[rows]))


def probabilities(outputs: Outputs, rows: Any) -> NDArray[Any]:
    """Give the model's probabilities of some rows, whether its outputs are logits or not.

    Parameters
    ----------
    outputs : Outputs
    rows : slice or sequence of int

    Returns
    -------
    array of shape (b, c)
        Rows sum to 1.
    """
    values = np.asarray(outputs.values[rows], dtype=np.float64)
    if outputs.logits:
        return np.exp(log_softmax(values))
    return values / values.sum(axis=1, keepdims=True)
