"""Shares of rows whose truth is outside their set, and bounds where the data cannot tell.

Each bound rests on an assumption that no data can test in full:

- several answers per row: errors to one row are neither independent nor copies of each other
  (`crowd.DEPENDENCE`). The interval runs from the one to the other.
- one answer per row: people err at the same rate in all classes, or confuse some classes with
  others. The interval runs from the first, which is too low, to the second, which takes the
  model's own confusions for theirs.
- a sure model that contradicts all people: either may be wrong (`crowd.blamed`).
- open rows at which people guess may be hard rows of known classes (`difficulty`).
- sets that join the answers of unknown people (`union`): wrong by a factor of three at most.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from candidly.auditing.crowd import Explanation, Rows, blamed, fit_explanation, truth_given
from candidly.auditing.hypotheses import Weighed
from candidly.auditing.processes import Evidence
from candidly.auditing.processes.base import Floats
from candidly.auditing.processes.confusion import Confusion
from candidly.auditing.processes.union import Union
from candidly.auditing.rates import FEW

ONE_ANSWER = (0.8, 1.3, 0.015)  # one answer per row: low * first, high * second + third
# Sets that join answers, and nobody knows whose: factors of the ends.
UNKNOWN_PEOPLE = (0.3, 3.0)
SUREST = 0.2  # share of the rows that the model is surest of


def kinds_of(posterior: Floats, mask: NDArray[np.bool_]) -> Floats:
    """Sum a posterior over the candidates, over the other classes, and over none of them.

    Parameters
    ----------
    posterior : array of shape (n, c + 1)
    mask : bool array of shape (n, c)
        The candidates.

    Returns
    -------
    array of shape (n, 3)
        Probabilities of normal, closed and open.

    Examples
    --------
    >>> kinds_of(np.array([[0.5, 0.25, 0.125, 0.125]]), np.array([[True, True, False]]))
    array([[0.75 , 0.125, 0.125]])
    """
    normal = np.where(mask, posterior[:, :-1], 0).sum(axis=1)
    closed = np.where(mask, 0, posterior[:, :-1]).sum(axis=1)
    return np.stack([normal, closed, posterior[:, -1]], axis=1)


class Shares(NamedTuple):
    """Shares of closed and open rows: (low, point, high) of each, and of both together."""

    closed: tuple[float, float, float]
    open: tuple[float, float, float]
    outside: tuple[float, float, float]


def _shares(posterior: Floats, rows: Rows) -> Floats:
    """(3,) shares of closed, open, and both."""
    _, closed, open_ = kinds_of(posterior, rows.evidence.sets.dense()).mean(axis=0)
    return np.array([closed, open_, closed + open_])


def of_several_answers(found: Weighed, rows: Rows) -> Shares:
    """Bound the shares by answers that each count in full, and answers to a row that count as one.

    Where a sure model and all people disagree, it may always be the model, or always people.

    Parameters
    ----------
    found : Weighed
    rows : Rows

    Returns
    -------
    Shares
    """
    point = _shares(found.posterior(rows), rows)
    ends = [
        _shares(truth_given(reading, rows, dependence), rows)
        for explanation in found.believed
        for reading in blamed(explanation)
        for dependence in (0.0, 1.0)
    ]
    least, most = np.min(ends, axis=0), np.max(ends, axis=0)
    # In rows where people err together they are as one annotator, who is judged as generously.
    most = most + (ONE_ANSWER[1] - 1) * conflicts(found.full)
    if isinstance(found.without.process, Union):
        least, most = UNKNOWN_PEOPLE[0] * least, UNKNOWN_PEOPLE[1] * most
    return _as_shares(least, point, most)


def of_single_answers(found: Weighed, rows: Rows) -> tuple[Shares, Weighed]:
    """Bound the shares by one error rate for all classes, and a free confusion matrix.

    Neither is right: the first is too low, the second takes the model's confusions for people's.
    The point estimate is their mean; the error rate is then set so that the rows' probabilities
    have it as their mean. Rows are still ranked by the first, which ranks them better.

    Parameters
    ----------
    found : Weighed
    rows : Rows

    Returns
    -------
    Shares
    Weighed
        With this error rate.
    """
    both = (found.full, found.without)
    flat = [_shares(truth_given(each, rows), rows) for each in both]
    free = [_free_shares(each, rows) for each in both]
    calibrated = [
        _with_closed(each, 0.5 * (low[0] + high[0]), rows)
        for each, low, high in zip(both, flat, free, strict=True)
    ]
    weights = np.array([found.weight, 1 - found.weight])
    point = weights @ [_shares(truth_given(each, rows), rows) for each in calibrated]
    kept = weights > 0.01
    first, second, third = ONE_ANSWER
    low = first * np.min(np.array(flat)[kept], axis=0)
    high = second * np.max(np.array([*flat, *free])[np.r_[kept, kept]], axis=0) + third
    full, without = calibrated
    return _as_shares(low, point, high), Weighed(full, without, found.weight)


def _free_shares(found: Explanation, rows: Rows) -> Floats:
    assert isinstance(found.process, Confusion)
    free = fit_explanation(
        found.process.freed(),
        rows,
        with_open=found.open_weights is not None,
        sharpness=found.sharpness,
    )
    return _shares(truth_given(free, rows), rows)


def _with_closed(found: Explanation, wanted: float, rows: Rows) -> Explanation:
    """Set the error rate that gives the rows this share of closed ones, by bisection."""
    process = found.process
    assert isinstance(process, Confusion)
    low, high = 1e-4, 0.9
    for _ in range(12):
        error = np.sqrt(low * high)
        found = replace(found, process=process.with_error(error, rows.evidence))
        if _shares(truth_given(found, rows), rows)[0] < wanted:
            low = error
        else:
            high = error
    return found


def _as_shares(low: Floats, point: Floats, high: Floats) -> Shares:
    triples = [(float(a), float(b), float(c)) for a, b, c in zip(low, point, high, strict=True)]
    return Shares(*triples)


def conflicts(found: Explanation) -> float:
    """Estimate in how many rows the model is sure of another class than all people name.

    Parameters
    ----------
    found : Explanation

    Returns
    -------
    float
        Share of all rows.
    """
    return blamed(found)[-1].misled


def guessed_open(rows: Rows) -> float:
    """Bound the share of open rows at which people guess.

    Open rows are found by answers that agree with each other and not with the model. Where people
    guess instead, their answers look like those to hard rows of known classes. They disagree, and
    such rows are rare among those that the model is sure of: what people disagree more often than
    there is a bound, if guesses disagree as often as random labels.

    Parameters
    ----------
    rows : Rows

    Returns
    -------
    float
        Share of all rows; 0 if no row has two answers of one label each.
    """
    pairs, several = agreeing_pairs(rows.evidence)
    if len(pairs) < FEW:
        return 0.0
    doubt = rows.scores[several, 0]
    sure = doubt <= np.quantile(doubt, SUREST)
    usual = 1 - float(pairs[sure].mean())
    random = 1 - 1 / rows.evidence.n_classes
    excess = 1 - float(pairs.mean()) - usual
    return float(np.clip(excess / max(random - usual, 1e-6), 0, 1))


def agreeing_pairs(evidence: Evidence) -> tuple[Floats, NDArray[np.int64]]:
    """Compute how often two answers to a row agree.

    Parameters
    ----------
    evidence : Evidence

    Returns
    -------
    pairs : array
        The share of agreeing pairs of each row with at least two answers; empty if an answer has
        several labels.
    rows : int array
        These rows.
    """
    several = np.flatnonzero(evidence.numbers > 1)
    if (np.diff(evidence.membership.indptr) != 1).any():
        return np.empty(0), np.empty(0, dtype=np.int64)
    votes = (evidence.per_row @ evidence.membership)[several]
    k = evidence.numbers[several]
    return (votes.multiply(votes).sum(axis=1) - k) / (k * (k - 1)), several


def certain_shares(rows: Rows) -> Floats:
    """Compute the shares of all rows that gold labels make certain.

    Parameters
    ----------
    rows : Rows

    Returns
    -------
    array of shape (3,)
        Closed, open, and both.
    """
    if rows.gold is None:
        return np.zeros(3)
    is_open = rows.gold == -1
    known = np.flatnonzero(rows.gold >= 0)
    inside = rows.evidence.sets[known].contains(rows.gold[known])
    closed = float((~inside).sum()) / len(rows)
    return np.array([closed, is_open.mean(), closed + is_open.mean()])
