"""Where the truth of each row probably lies: a verdict's probabilities spread over the classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from candidly.answers import Answers
from candidly.auditing.evidence import Outputs, read_outputs
from candidly.data.dataset import UNKNOWN
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


# Stand-in for the fitted model of annotators: what each answer that includes a class is worth, and
# the prior probability of none of the classes.
VOTE = 10.0
NO_CLASS_PRIOR = 0.02


def truth_posterior(
    candidates: Any,
    probs: Any = None,
    *,
    logits: Any = None,
    answers: Answers | None = None,
    features: Any = None,
    process: str = "auto",
    gold: NDArray[np.int64] | None = None,
) -> NDArray[Any]:
    """Compute the probability of each class, and of none of them, to be the truth of each row.

    Parameters
    ----------
    candidates : CandidateSets or whatever makes one
        The candidates of n rows.
    probs, logits : array of shape (n, c)
        A model's outputs for rows that it did not train on; one of the two.
    answers : Answers, optional
        Who answered what, over the same classes. Without them each set is one answer.
    features : array of shape (n, d), optional
        Inputs in which near rows are alike.
    process : str
        How answers come about.
    gold : int array of shape (n,), optional
        What is certain: a class index, -1 for none of the classes, -2 for unknown.

    Returns
    -------
    array of shape (n, c + 1)
        Rows sum to 1; the last column stands for none of the classes. Rows of `gold` are one-hot.

    Examples
    --------
    >>> truth_posterior([["a"], ["b"]], [[0.5, 0.5], [0.9, 0.1]]).round(2)
    array([[0.91, 0.09, 0.  ],
           [0.47, 0.52, 0.01]])
    """
    outputs = read_outputs(candidates, probs, logits, features)
    if answers is None:
        votes = np.hstack([outputs.sets.dense(), np.zeros((len(outputs), 1))])
    else:
        votes = answers.votes().toarray()
    shares = probabilities(outputs, slice(None))
    prior = np.hstack([shares, np.full((len(shares), 1), NO_CLASS_PRIOR)])
    weights = prior * VOTE ** (votes - votes.max(axis=1, keepdims=True))
    posterior = weights / weights.sum(axis=1, keepdims=True)
    if gold is not None:
        known = gold > UNKNOWN
        posterior[known] = np.eye(posterior.shape[1])[gold[known]]
    return posterior
