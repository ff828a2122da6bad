"""What counts as probabilities: one rule for files of outputs and for audits of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# By how much the probabilities of a row may miss a sum of 1.
TOLERANCE = 0.01
SHOWN_VALUES = 6


def sums_to_one(totals: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Mark the sums of rows that are 1, up to `TOLERANCE`.

    Parameters
    ----------
    totals : ndarray of shape (n,)
        The sum of each row.

    Returns
    -------
    ndarray of bool, of shape (n,)
        False for NaN and infinities.

    Examples
    --------
    >>> sums_to_one(np.array([1.0, 0.995, 1.2, np.nan])).tolist()
    [True, True, False, False]
    """
    return np.abs(totals - 1) <= TOLERANCE


def are_probabilities(values: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Mark the rows that are at least 0 everywhere and sum to 1, up to `TOLERANCE`.

    Parameters
    ----------
    values : ndarray of shape (n, c)
        Outputs of a model.

    Returns
    -------
    ndarray of bool, of shape (n,)

    Examples
    --------
    >>> are_probabilities(np.array([[0.3, 0.7], [1.5, -0.5], [30.0, 70.0]])).tolist()
    [True, False, False]
    """
    return (values.min(axis=1) >= 0) & sums_to_one(values.sum(axis=1))


def describe_row(row: NDArray[np.floating[Any]]) -> str:
    """Say what is in a row of outputs: its first values, their sum, and the least of them.

    Parameters
    ----------
    row : ndarray of shape (c,)
        Outputs of a model for one example.

    Returns
    -------
    str

    Examples
    --------
    >>> describe_row(np.array([0.5, 0.7, -0.1]))
    '[0.5, 0.7, -0.1] sums to 1.1 with a least value of -0.1'
    """
    return f"{show_row(row)} sums to {float(row.sum()):.4g} with a least value of {row.min():.4g}"


def show_row(row: NDArray[np.floating[Any]]) -> str:
    """Write the first values of a row.

    Parameters
    ----------
    row : array of shape (c,)

    Returns
    -------
    str

    Examples
    --------
    >>> show_row(np.arange(10.0))
    '[0, 1, 2, 3, 4, 5, ...]'
    """
    rest = ", ...]" if len(row) > SHOWN_VALUES else "]"
    return "[" + ", ".join(f"{value:.4g}" for value in row[:SHOWN_VALUES]) + rest
