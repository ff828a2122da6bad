"""Three kinds of rows as a mixture, fitted to candidate sets and a model's outputs by EM.

For a row with outputs x and a set S of size s out of c classes:

    known row:   its truth is the model's best class with probability a(x), else another class j in
                 proportion to p_j^power; so S covers it with probability
                     covered = a hit + (1 - a) rest
    P(S | x, normal) = covered * c/s            each set of size s that holds the truth is as likely
    P(S | x, closed) = (1 - covered) * c/(c-s)  the same for the sets that do not hold it
    P(S | x, open)   = P(s | open)/P(s | known) a set that has nothing to do with x
                     (all three in units of one set of size s drawn blindly; the sizes of known
                     rows' sets do not depend on x, or none count: `sizes_mislead`)
    P(open | x) = w(x),  P(closed | x, known) = a constant

a and w are logistic in the scores of the row (doubt; energy; votes of neighbours), each turned into
normal quantiles. One by one, open rows look like rows of a known class whose outputs are flat. What
tells them apart is that the candidates of the latter still follow the model's lesser guesses
(`rest`), and those of open rows do not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtri

from candidly.auditing.evidence import POWERS, Observed

Floats = NDArray[np.floating[Any]]

ROUNDS = 300  # of EM at most
TOLERANCE = 1e-4  # of the log likelihood, times the square root of the rows: when EM ends
FLOORS = (0.01, 0.1, 0.3)  # no class is ever ruled out
KNOTS = 51  # quantiles that a score is compared with
# Prior of w: open rows are more frequent among doubtful ones, by this slope over all scores.
OPEN_SLOPE = 2.0
# Prior of a: so are the model's errors, or closed rows that it is sure of would pass for errors.
ERROR_SLOPE = 1.0
# Prior of the open rows' set sizes, in rows: as the known ones'.
SIZE_PRIOR_ROWS = 20.0
# The most that a size may speak for or against open rows: sets of one class may be wide for other
# reasons.
MAX_SIZE_ODDS = 3.0
# The log likelihood by which the contents of sets may speak against open rows that sizes speak for.
AGAINST_OPEN = 10.0
# Standard errors by which sizes may change with the doubt among sure rows.
SIZE_DRIFT_LIMIT = 4.5


@dataclass(frozen=True, eq=False)
class Mixture:
    """A fitted mixture: what `explain` needs, and how well it fits.

    Attributes
    ----------
    n_classes : int
        c of the formulas.
    knots : array of shape (KNOTS, d)
        Quantiles of the d scores.
    power : int
        Index into POWERS of the power that the lesser guesses follow.
    floor : float
        Share of the lesser guesses that is spread evenly.
    accuracy : array of shape (1 + d,)
        Coefficients of a.
    open_weights : array of shape (1 + d,), or None
        Coefficients of w; None if there are no open rows.
    closed : float
        Share of closed rows among the known ones.
    size_odds : array of shape (1 + c,), or None
        P(s | open) / P(s | known) by size; None if sizes do not count.
    fit : float
        Log likelihood.
    """

    n_classes: int
    knots: Floats
    power: int
    floor: float
    accuracy: Floats
    open_weights: Floats | None
    closed: float
    size_odds: Floats | None
    fit: float = -np.inf


def design(mixture: Mixture, scores: Floats) -> Floats:
    """Make the inputs of the logistic parts: a one, and each score as a normal quantile.

    Parameters
    ----------
    mixture : Mixture
        Its knots are the quantiles that the scores are compared with.
    scores : array of shape (n, d)
        As in `Observed`.

    Returns
    -------
    array of shape (n, 1 + d)
    """
    return normal_quantiles(mixture.knots, scores)


def quantile_knots(scores: Floats) -> Floats:
    """Compute the quantiles that scores are compared with.

    Parameters
    ----------
    scores : array of shape (n, d)

    Returns
    -------
    array of shape (KNOTS, d)
    """
    return np.quantile(scores, (np.arange(KNOTS) + 0.5) / KNOTS, axis=0)


def normal_quantiles(knots: Floats, scores: Floats) -> Floats:
    """Turn scores into normal quantiles.

    Parameters
    ----------
    knots : array of shape (KNOTS, d)
    scores : array of shape (n, d)

    Returns
    -------
    array of shape (n, 1 + d)
        A one, and each score.
    """
    grid = ndtri((np.arange(KNOTS) + 0.5) / KNOTS)
    columns = [np.interp(scores[:, k], knots[:, k], grid) for k in range(scores.shape[1])]
    return np.stack([np.ones(len(scores)), *columns], axis=1).astype(scores.dtype)


def explain(
    mixture: Mixture, seen: Observed, X: Floats, rest: Floats
) -> tuple[Floats, Floats, Floats]:
    """Compute how likely each row's candidate set is, by kind.

    Parameters
    ----------
    mixture : Mixture
    seen : Observed
        Numbers of n rows.
    X : array of shape (n, 1 + d)
        What `design` made of their scores.
    rest : array of shape (n,)
        The row of ``seen.rest`` for the power of the mixture.

    Returns
    -------
    joint : array of shape (3, n)
        P(kind, S | x) of normal, closed and open, in units of one set of size s drawn blindly.
    a : array of shape (n,)
        Probability that a known row's truth is the model's best class.
    covered : array of shape (n,)
        Probability that a known row's truth is in S.
    """
    c = mixture.n_classes
    s = seen.sizes
    a = expit(X @ mixture.accuracy.astype(X.dtype))
    w = _open_prior(mixture, X)
    covered = a * seen.hit + (1 - a) * blend(rest, seen.chance, mixture.floor)
    holding = c / np.arange(1, c + 1, dtype=X.dtype)  # c/s, by size
    missing = np.r_[holding[::-1], 0].astype(X.dtype)  # c/(c - s); a full set is never closed
    normal = (1 - w) * (1 - mixture.closed) * covered * holding[s - 1]
    closed = (1 - w) * mixture.closed * (1 - covered) * missing[s]
    return np.stack([normal, closed, w * _size_odds(mixture, s, X.dtype)]), a, covered


def _open_prior(mixture: Mixture, X: Floats) -> Any:
    """Compute w of each row."""
    if mixture.open_weights is None:
        return X.dtype.type(0)
    return expit(X @ mixture.open_weights.astype(X.dtype))


def _size_odds(mixture: Mixture, sizes: NDArray[np.int64], kind: Any = np.float64) -> Floats:
    """Look up P(s | open) / P(s | known) of each row."""
    if mixture.size_odds is None:
        return np.ones(len(sizes), kind)
    return mixture.size_odds.astype(kind)[sizes]


def blend(rest: Floats, chance: Any, floor: float) -> Floats:
    """Spread a share of the lesser guesses evenly.

    Parameters
    ----------
    rest : array
        What the lesser guesses are by the model.
    chance : float or array of the same shape
        What they are if all classes weigh the same.
    floor : float
        The share that is spread.

    Returns
    -------
    array
        ``(1 - floor) * rest + floor * chance``
    """
    return (1 - floor) * rest + floor * chance


def fit_mixture(
    seen: Observed, n_classes: int, *, with_open: bool = True, with_sizes: bool = True
) -> Mixture:
    """Fit a mixture by EM.

    Parameters
    ----------
    seen : Observed
        Numbers of n rows, with all POWERS.
    n_classes : int
    with_open : bool, default=True
        Whether there may be open rows.
    with_sizes : bool, default=True
        Whether the sizes of sets are evidence of open rows.

    Returns
    -------
    Mixture
    """
    mixture = _start(seen, n_classes, with_open, with_sizes)
    shapes = _shapes(seen)
    X = design(mixture, seen.scores)
    before = -np.inf
    for _ in range(ROUNDS):
        joint, a, covered = explain(mixture, seen, X, seen.rest[mixture.power])
        total = joint.sum(axis=0)
        mixture = replace(mixture, fit=float(np.log(total).sum()))
        if abs(mixture.fit - before) < TOLERANCE * np.sqrt(len(total)):
            break
        before = mixture.fit
        mixture = _maximise(mixture, seen, X, joint / total, a, covered, shapes)
    return mixture


def support(full: Mixture, without: Mixture, seen: Observed) -> float:
    """Compare open rows with none, by the contents of sets given their sizes.

    Parameters
    ----------
    full, without : Mixture
        Fitted with and without open rows.
    seen : Observed
        The rows that they were fitted to.

    Returns
    -------
    float
        Difference of the log likelihoods; positive if contents speak for open rows.
    """
    X = design(full, seen.scores)
    joint, _, _ = explain(full, seen, X, seen.rest[full.power])
    w = _open_prior(full, X)
    by_sizes = 1 - w + w * _size_odds(full, seen.sizes)
    return float(np.log(joint.sum(axis=0) / by_sizes).sum() - without.fit)


def sizes_mislead(full: Mixture, without: Mixture, seen: Observed) -> bool:
    """Check whether sets are wide, or narrow, in doubtful rows that are not open.

    Two signs: the contents of sets speak against the open rows that sizes speak for; or sizes
    change with the doubt among the surer half of the rows, where open ones are few. (Among those
    whose set holds the best class: wide ones do so more often.)

    Parameters
    ----------
    full, without : Mixture
        Fitted with and without open rows.
    seen : Observed
        The rows that they were fitted to.

    Returns
    -------
    bool
    """
    sure = (seen.doubt <= np.median(seen.doubt)) & (seen.hit == 1)
    drift = abs(_drift(seen.sizes[sure], seen.doubt[sure]))
    return support(full, without, seen) < -AGAINST_OPEN or drift > SIZE_DRIFT_LIMIT


def _drift(sizes: NDArray[np.int64], doubt: Floats) -> float:
    """Correlate sizes with the rank of the doubt, in standard errors; 0 where neither varies."""
    if len(sizes) < 10 or np.ptp(sizes) == 0 or np.ptp(doubt) == 0:
        return 0.0
    rank = np.unique(doubt, return_inverse=True)[1]
    return float(np.corrcoef(sizes, rank)[0, 1] * np.sqrt(len(sizes)))


def shares(mixture: Mixture, seen: Observed) -> Floats:
    """Compute the shares of the kinds.

    Parameters
    ----------
    mixture : Mixture
    seen : Observed
        Numbers of n rows, with all POWERS.

    Returns
    -------
    array of shape (3,)
        Mean probabilities of normal, closed and open.
    """
    joint, _, _ = explain(mixture, seen, design(mixture, seen.scores), seen.rest[mixture.power])
    return (joint / joint.sum(axis=0)).mean(axis=1)


def standard_errors(mixture: Mixture, seen: Observed) -> list[float]:
    """Compute standard errors of the shares, from gradients of the log likelihood.

    Delta method: closed = k mean(1 - w), open = mean(w). The power, the floor and the sizes count
    as known.

    Parameters
    ----------
    mixture : Mixture
    seen : Observed
        The rows that it was fitted to.

    Returns
    -------
    list of float
        Those of closed, open, and both together.
    """
    X = design(mixture, seen.scores)
    joint, a, covered = explain(mixture, seen, X, seen.rest[mixture.power])
    normal, closed, open_ = joint / joint.sum(axis=0)
    k = min(max(mixture.closed, 1e-3), 1 - 1e-3)
    right = normal * a * seen.hit / np.maximum(covered, 1e-12)
    right += closed * a * (1 - seen.hit) / np.maximum(1 - covered, 1e-12)
    gradients = [
        (closed / k - normal / (1 - k))[:, None],
        (right - (normal + closed) * a)[:, None] * X,
    ]
    of_closed = np.zeros(1 + X.shape[1])
    of_open = np.zeros(1 + X.shape[1])
    of_closed[0] = 1.0
    if mixture.open_weights is not None:
        w = expit(X @ mixture.open_weights)
        gradients.append((open_ - w)[:, None] * X)
        slope = (w * (1 - w)) @ X / len(X)
        of_closed = np.r_[of_closed * (1 - w).mean(), -k * slope]
        of_open = np.r_[of_open, slope]
    G = np.concatenate(gradients, axis=1)
    covariance = np.linalg.inv(G.T @ G + np.eye(G.shape[1]))
    return [float(np.sqrt(g @ covariance @ g)) for g in (of_closed, of_open, of_closed + of_open)]


def _start(seen: Observed, n_classes: int, with_open: bool, with_sizes: bool) -> Mixture:
    """A model as accurate as it claims to be.

    Errors that are spread evenly over the classes look like closed rows, up to the sizes of sets:
    where EM cannot tell the two apart, it stays near its start.
    """
    d = seen.scores.shape[1]
    knots = quantile_knots(seen.scores)
    claim = np.clip(logit(min(np.exp(-seen.doubt).mean(), 1 - 1e-9)), 2, 6)
    return Mixture(
        n_classes,
        knots,
        power=POWERS.index(0.5),
        floor=FLOORS[0],
        accuracy=np.r_[claim, np.full(d, -1 / d)],
        open_weights=np.r_[-2.0, np.full(d, OPEN_SLOPE / d)] if with_open else None,
        closed=0.2,
        size_odds=np.ones(n_classes + 1) if with_sizes else None,
    )


def _maximise(
    mixture: Mixture,
    seen: Observed,
    X: Floats,
    post: Floats,
    a: Floats,
    covered: Floats,
    shapes: Floats,
) -> Mixture:
    """M-step: shares in closed form, a Newton step for each logistic part, the best power."""
    normal, closed, open_ = post
    known = normal + closed
    # Normal, or closed, and the truth is the best class.
    right_in = normal * a * seen.hit / np.maximum(covered, 1e-12)
    right_out = closed * a * (1 - seen.hit) / np.maximum(1 - covered, 1e-12)
    by_shape = shapes[0] @ (normal - right_in) + shapes[1] @ (closed - right_out)
    power, floor = divmod(int(by_shape.argmax()), len(FLOORS))
    open_weights = mixture.open_weights
    if open_weights is not None:
        open_weights = newton_step(open_weights, X, open_, np.ones(len(X)), OPEN_SLOPE)
        open_weights = np.r_[np.clip(open_weights[0], -12, 12), np.maximum(open_weights[1:], 0)]
    odds = mixture.size_odds
    if odds is not None:
        odds = _fit_odds(seen.sizes, known, open_, mixture.n_classes)
    return replace(
        mixture,
        closed=float(closed.sum() / max(known.sum(), 1e-12)),
        accuracy=-newton_step(
            -mixture.accuracy, X, known - right_in - right_out, known, ERROR_SLOPE
        ),
        open_weights=open_weights,
        power=power,
        floor=FLOORS[floor],
        size_odds=odds,
    )


def _shapes(seen: Observed) -> Floats:
    """(2, powers x floors, n): log P(a truth after the best class is in S), and of the opposite."""
    rest = np.stack([blend(share, seen.chance, floor) for share in seen.rest for floor in FLOORS])
    return np.log(np.maximum([rest, 1 - rest], 1e-9))


def newton_step(
    theta: Floats, X: Floats, positives: Floats, weights: Floats, min_slope: float
) -> Floats:
    """Take a damped Newton step of a weighted logistic regression, with a prior on the slopes.

    Slopes that sum to less than `min_slope` are pulled up, more strongly than data of any size can
    pull them down.

    Parameters
    ----------
    theta : array of shape (1 + d,)
        Intercept and slopes.
    X : array of shape (n, 1 + d)
    positives : array of shape (n,)
        Expected number of positives of each row, at most its weight.
    weights : array of shape (n,)
    min_slope : float

    Returns
    -------
    array of shape (1 + d,)
    """
    slopes = np.r_[0.0, np.ones(X.shape[1] - 1)]
    pull = 0.2 * len(X) * (theta @ slopes < min_slope)
    p = expit(X @ theta)
    gradient = X.T @ (positives - weights * p) - slopes * theta
    hessian = (X * (weights * p * (1 - p))[:, None]).T @ X + np.diag(np.maximum(slopes, 1e-6))
    if pull:
        gradient += pull * (min_slope - theta @ slopes) * slopes
        hessian += pull * np.outer(slopes, slopes)
    step = np.linalg.solve(hessian, gradient)
    return theta + step * min(1.0, 2 / max(float(np.abs(step).max()), 1e-12))


def _fit_odds(sizes: NDArray[np.int64], known: Floats, open_: Floats, c: int) -> Floats:
    """P(s | open) / P(s | known), drawn towards 1 by SIZE_PRIOR_ROWS rows, and bounded."""
    known_sizes = np.bincount(sizes, known, c + 1) + 1e-3 * len(sizes) / c
    known_sizes /= known_sizes.sum()
    open_sizes = np.bincount(sizes, open_, c + 1)
    odds = (open_sizes / known_sizes + SIZE_PRIOR_ROWS) / (open_.sum() + SIZE_PRIOR_ROWS)
    return np.clip(odds, 1 / MAX_SIZE_ODDS, MAX_SIZE_ODDS)
