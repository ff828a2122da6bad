"""The truth of each row from a model's outputs and a process, fitted together by EM.

    P(truth = t | x)     = (1 - slip) * softmax(sharpness * log p(x)) + slip / c:
                           the model, as sure as it deserves to be, and at times wrong at random
    P(answers | t)       = the process (`auditing.processes`)
    P(none of the classes | x) = w(x), logistic in the signs of open rows, as in `auditing.mixture`
    P(answers | none)    = the answers to some other row: they have nothing to do with x

EM treats the answers to a row as independent, given its truth. People are not: what one person
mistakes, the next one does too, and the model learnt from them. So the posterior of a row with K
answers is raised to the power

    1 / (1 + (K - 1) * DEPENDENCE)

which keeps its order, and makes it less sure. DEPENDENCE is an assumption, not an estimate: no
number of answers tells an error that all share from the truth. Shares are bounded by
DEPENDENCE = 0, each answer counts in full, and 1, all answers to a row count as one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from candidly.auditing.mixture import OPEN_SLOPE, newton_step, normal_quantiles, quantile_knots
from candidly.auditing.processes.base import Evidence, Floats, Process
from candidly.scores import log_softmax

ROUNDS = 80  # of EM at most
TOLERANCE = 3e-4  # of the log likelihood, times the square root of the rows: when EM ends
DEPENDENCE = 0.5  # of the answers to one row: 0 independent, 1 copies of one another
START_SLIP = 0.02
SHARPNESS = (0.02, 20.0)  # least and greatest
NO_GOLD = -2  # the truth is not known; -1: known to be none of the classes
LEAST = 1e-300


@dataclass(frozen=True)
class Rows:
    """Rows that are explained.

    Attributes
    ----------
    log_probs : array of shape (n, c)
        Of the model.
    scores : array of shape (n, d)
        Signs of open rows, as in `Observed`.
    evidence : Evidence
        What people said.
    gold : int array of shape (n,), optional
        Certain truth: a class, -1 for none of the classes, -2 where it is not known.
    """

    log_probs: Floats
    scores: Floats
    evidence: Evidence
    gold: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.log_probs)

    def __getitem__(self, rows: Any) -> Rows:
        gold = None if self.gold is None else self.gold[rows]
        return Rows(self.log_probs[rows], self.scores[rows], self.evidence[rows], gold)


@dataclass(frozen=True)
class Explanation:
    """A fitted process with the model's sharpness and the share of open rows.

    Attributes
    ----------
    process : Process
    sharpness : float
        Power of the model's probabilities: below 1 if the model is too sure.
    slip : float
        Share of rows where the model is wrong however sure it is. It is 0 with one answer per row,
        from which it cannot be told.
    knots : array of shape (KNOTS, d)
        Quantiles of the scores.
    open_weights : array of shape (1 + d,), or None
        Coefficients of w; None if there are no open rows.
    classes : array of shape (c,)
        Shares of the classes among the known rows.
    none_rate : float
        Probability that an answer to an open row is "none of the classes".
    fit : float
        Log likelihood.
    """

    process: Process
    sharpness: float
    slip: float
    knots: Floats
    open_weights: Floats | None
    classes: Floats
    none_rate: float = 0.0
    fit: float = -np.inf


def fit_explanation(
    start: Process,
    rows: Rows,
    *,
    with_open: bool,
    sharpness: float | None = None,
    rounds: int = ROUNDS,
) -> Explanation:
    """Fit a process together with the model's sharpness and open rows, by EM.

    Parameters
    ----------
    start : Process
        A first guess.
    rows : Rows
    with_open : bool
        Whether there may be open rows.
    sharpness : float, optional
        Keep it at this value.
    rounds : int
        The most rounds of EM.

    Returns
    -------
    Explanation
    """
    d = rows.scores.shape[1]
    c = rows.log_probs.shape[1]
    found = Explanation(
        start,
        1.0 if sharpness is None else sharpness,
        START_SLIP if (rows.evidence.numbers > 1).any() else 0.0,
        quantile_knots(rows.scores),
        np.r_[-2.0, np.full(d, OPEN_SLOPE / d)] if with_open else None,
        np.full(c, 1 / c),
        none_rate=0.5 if rows.evidence.none_votes.any() else 0.0,
    )
    X = normal_quantiles(found.knots, rows.scores)
    before = -np.inf
    for _ in range(rounds):
        joint = log_joint(found, rows, X)
        total = logsumexp(joint, axis=1)
        found = replace(found, fit=float(total.sum()))
        if abs(found.fit - before) < TOLERANCE * np.sqrt(len(total)):
            break
        before = found.fit
        found = _maximise(found, rows, X, np.exp(joint - total[:, None]), sharpness is None)
    return found


def log_joint(found: Explanation, rows: Rows, X: Floats | None = None) -> Floats:
    """Compute log P(truth, answers | x) of each row.

    Parameters
    ----------
    found : Explanation
    rows : Rows
    X : array of shape (n, 1 + d), optional
        The scores as normal quantiles, if they are computed already.

    Returns
    -------
    array of shape (n, c + 1)
        By class; the last column is "none of the classes".
    """
    likely = found.process.log_likelihood(rows.evidence)
    known = np.log(_prior(found, rows.log_probs)) + likely
    none = np.full((len(rows), 1), -np.inf)
    if found.open_weights is not None:
        X = normal_quantiles(found.knots, rows.scores) if X is None else X
        w = np.clip(expit(X @ found.open_weights), 1e-9, 1 - 1e-9)
        known = known + np.log1p(-w)[:, None]
        none = (np.log(w) + _log_open(found, rows, likely))[:, None]
    joint = np.concatenate([known, none], axis=1)
    return joint if rows.gold is None else _clamped(joint, rows.gold)


def _prior(found: Explanation, log_probs: Floats) -> Floats:
    """P(truth = t | x) of a row of a known class."""
    sure = np.exp(log_softmax(found.sharpness * log_probs))
    return np.maximum((1 - found.slip) * sure + found.slip / log_probs.shape[1], LEAST)


def _log_open(found: Explanation, rows: Rows, likely: Floats) -> Floats:
    """log P(answers | none of the classes): those to some other row, and more often "none"."""
    blind = logsumexp(likely + np.log(np.maximum(found.classes, LEAST)), axis=1)
    if not found.none_rate:
        return blind
    none = rows.evidence.none_votes
    usual = np.clip(found.process.none_share, 1e-6, 1 - 1e-6)
    rate = np.clip(found.none_rate, 1e-6, 1 - 1e-6)
    others = rows.evidence.numbers - none
    return blind + none * np.log(rate / usual) + others * np.log((1 - rate) / (1 - usual))


def _clamped(joint: Floats, gold: NDArray[np.int64]) -> Floats:
    """Leave only the certain truth of a row, where there is one."""
    certain = np.flatnonzero(gold != NO_GOLD)
    truth = gold[certain] % joint.shape[1]  # -1 is the last column
    kept = np.maximum(joint[certain, truth], np.log(LEAST))
    joint[certain] = -np.inf
    joint[certain, truth] = kept
    return joint


def _maximise(
    found: Explanation, rows: Rows, X: Floats, post: Floats, learns_sharpness: bool
) -> Explanation:
    """M-step: the process, a Newton step for the sharpness and for w, and shares."""
    known = post[:, :-1]
    open_ = post[:, -1]
    weights = found.open_weights
    if weights is not None:
        weights = newton_step(weights, X, open_, np.ones(len(X)), OPEN_SLOPE)
        weights = np.r_[np.clip(weights[0], -12, 12), np.maximum(weights[1:], 0)]
    rate = found.none_rate
    if rate:
        none = rows.evidence.none_votes
        rate = float((open_ @ none + 0.5) / (open_ @ rows.evidence.numbers + 1))
    slipped = known * (found.slip / known.shape[1]) / _prior(found, rows.log_probs)
    sharpness = found.sharpness
    if learns_sharpness:
        sharpness = _sharpen(sharpness, rows.log_probs, known - slipped)
    return replace(
        found,
        process=found.process.fitted(rows.evidence, known),
        sharpness=sharpness,
        slip=float(np.clip(slipped.sum() / max(float(known.sum()), 1e-12), 0, 0.5)),
        open_weights=weights,
        classes=known.sum(axis=0) / max(float(known.sum()), 1e-12),
        none_rate=rate,
    )


def _sharpen(sharpness: float, log_probs: Floats, post: Floats) -> float:
    """Newton step for the sharpness: the expected log likelihood is concave in it."""
    p = np.exp(log_softmax(sharpness * log_probs))
    lp = np.maximum(log_probs, -1e4)
    mean = (p * lp).sum(axis=1)
    weight = post.sum(axis=1)
    slope = float((post * lp).sum() - weight @ mean)
    curve = float(weight @ ((p * lp**2).sum(axis=1) - mean**2)) + 1e-9
    step = np.clip(slope / curve, -0.5 * sharpness, sharpness)
    return float(np.clip(sharpness + step, *SHARPNESS))


def truth_given(found: Explanation, rows: Rows, dependence: float = DEPENDENCE) -> Floats:
    """Compute the posterior of the truth.

    Parameters
    ----------
    found : Explanation
    rows : Rows
    dependence : float
        Of the answers to one row, from 0 (independent) to 1 (they count as one).

    Returns
    -------
    array of shape (n, c + 1)
        P(truth = t | x, answers); the last column is "none of the classes". Rows sum to 1.
    """
    joint = log_joint(found, rows)
    numbers = np.maximum(found.process.answers_per_row(rows.evidence), 1)
    power = 1 / (1 + (numbers - 1) * dependence)
    return np.exp(log_softmax((joint - joint.max(axis=1, keepdims=True)) * power[:, None]))
