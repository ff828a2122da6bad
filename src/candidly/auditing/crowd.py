"""The truth of each row from a model's outputs and a process, fitted together by EM.

    P(truth = t | x)     = (1 - slip) * softmax(sharpness * log p(x)) + slip / c:
                           the model, as sure as it deserves to be, and at times wrong at random
    P(looks like j | t)  = 1 - misled for j = t; else misled, in proportion to the classes:
                           a row may mislead everybody who sees it
    P(answers | j)       = the process (`auditing.processes`), in `hard` rows with more errors
    P(none of the classes | x) = w(x), logistic in the signs of open rows, as in `auditing.mixture`
    P(answers | none)    = the answers to some other row: they have nothing to do with x;
                           or guesses (`auditing.guesses`)

Where the model is sure and all people say something else, the answers cannot tell which of the two
is wrong. EM finds how often this happens. People are blamed in a share BLAMED of these rows: enough
to put them at the top of a list for review, and too little to change the consensus. Shares are
bounded by blaming the model alone, and people alone.

EM treats the answers to a row as independent, given what it looks like. People are not: what one
person mistakes, the next one does too, and the model learnt from them. So the posterior of what a
row with K answers looks like is raised to the power

    1 / (1 + (K - 1) * DEPENDENCE)

which keeps its order, and makes it less sure. DEPENDENCE is an assumption, not an estimate: no
number of answers tells an error that all share from the truth. Shares are bounded by
DEPENDENCE = 0, each answer counts in full, and 1, all answers to a row count as one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from candidly.auditing.difficulty import Difficulty
from candidly.auditing.guesses import MOST_SHARP, SHARE, Guesses
from candidly.auditing.mixture import OPEN_SLOPE, newton_step, normal_quantiles, quantile_knots
from candidly.auditing.processes.base import Evidence, Floats, Process
from candidly.auditing.processes.confusion import Confusion, marginal
from candidly.auditing.sharpness import sharpened
from candidly.scores import log_softmax

ROUNDS = 80  # of EM at most
TOLERANCE = 3e-4  # of the log likelihood, times the square root of the rows: when EM ends
DEPENDENCE = 0.5  # of the answers to one row: 0 independent, 1 copies of one another
BLAMED = 0.1  # people's part of the errors where the model is sure and all people disagree
BLAMED_ROWS = 5.0  # gold rows that this assumption is worth
START_AGAINST = 0.04
NEGLIGIBLE = 0.002  # share of the rows
VANISHED = 1e-4  # share of the rows below which EM takes it for zero
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
        Share of rows where the model's output is random, however sure it is. It is 0 with one
        answer per row, from which it cannot be told.
    misled : float
        Share of rows that mislead everybody towards one wrong class; 0 with one answer per row.
    knots : array of shape (KNOTS, d)
        Quantiles of the scores.
    open_weights : array of shape (1 + d,), or None
        Coefficients of w; None if there are no open rows.
    classes : array of shape (c,)
        Shares of the classes among the known rows.
    frequent : array of shape (c,)
        How frequent each label is among the answers.
    none_rate : float
        Probability that an answer to an open row is "none of the classes".
    difficulty : Difficulty or None
        Hard rows; None if all are the same.
    guesses : Guesses or None
        Guesses at open rows; None if people agree on them.
    fit : float
        Log likelihood.
    """

    process: Process
    sharpness: float
    slip: float
    misled: float
    knots: Floats
    open_weights: Floats | None
    classes: Floats
    frequent: Floats
    none_rate: float = 0.0
    difficulty: Difficulty | None = None
    guesses: Guesses | None = None
    fit: float = -np.inf


def fit_explanation(
    start: Process | Explanation,
    rows: Rows,
    *,
    with_open: bool = False,
    with_difficulty: bool = False,
    sharpness: float | None = None,
    rounds: int = ROUNDS,
) -> Explanation:
    """Fit a process together with the model's sharpness and open rows, by EM.

    Parameters
    ----------
    start : Process or Explanation
        A first guess. An explanation, of other rows perhaps, has its own parts; the next two do
        not count then.
    rows : Rows
    with_open, with_difficulty : bool
        As in `first_guess`.
    sharpness : float, optional
        Keep it at this value.
    rounds : int
        The most rounds of EM.

    Returns
    -------
    Explanation
    """
    if isinstance(start, Explanation):
        found = replace(start, knots=quantile_knots(rows.scores))
    else:
        found = first_guess(start, rows, with_open=with_open, with_difficulty=with_difficulty)
    if sharpness is not None:
        found = replace(found, sharpness=sharpness)
    X = normal_quantiles(found.knots, rows.scores)
    before = -np.inf
    for _ in range(rounds):
        terms = explained(found, rows, X)
        total = _log_total(terms.joint)
        found = replace(found, fit=float(total.sum()))
        if abs(found.fit - before) < TOLERANCE * np.sqrt(len(total)):
            break
        before = found.fit
        post = np.exp(terms.joint - total[:, None])
        found = _maximise(found, rows, X, terms, post, sharpness is None)
    return found


def first_guess(
    process: Process,
    rows: Rows,
    *,
    with_open: bool,
    with_difficulty: bool = False,
    with_guesses: bool = False,
) -> Explanation:
    """Make a first guess from which EM starts.

    Parameters
    ----------
    process : Process
        A first guess.
    rows : Rows
        That it will be fitted to.
    with_open : bool
        Whether there may be open rows.
    with_difficulty : bool
        Whether some rows may be harder than others; for confusion matrices only.
    with_guesses : bool
        Whether people may guess at open rows.

    Returns
    -------
    Explanation
    """
    d = rows.scores.shape[1]
    c = rows.log_probs.shape[1]
    several = bool((rows.evidence.numbers > 1).any())
    frequent = marginal(rows.evidence)[:-1]
    return Explanation(
        process,
        1.0,
        (1 - BLAMED) * START_AGAINST if several else 0.0,
        BLAMED * START_AGAINST if several else 0.0,
        quantile_knots(rows.scores),
        np.r_[-2.0, np.full(d, OPEN_SLOPE / d)] if with_open else None,
        np.full(c, 1 / c),
        frequent / frequent.sum(),
        none_rate=0.5 if rows.evidence.none_votes.any() else 0.0,
        difficulty=Difficulty.start(d) if with_difficulty else None,
        guesses=Guesses() if with_guesses else None,
    )


# ---- how likely the answers are


class Terms(NamedTuple):
    """Parts of the likelihood of n rows.

    Attributes
    ----------
    joint : array of shape (n, c + 1)
        log P(truth, answers | x); the last column is "none of the classes".
    known : array of shape (n, 1)
        log P(the row is of a known class | x).
    prior : array of shape (n, c)
        P(truth = t | x) of a row of a known class.
    likely : array of shape (n, c)
        log P(answers | truth = t).
    looks : array of shape (n, c)
        log P(answers | the row looks like class j).
    hard : array of shape (n, c), or None
        The same of hard rows, with the probability that a row is one.
    agreed, guessed : array of shape (n,), or None
        log P(answers, how they arise | none of the classes): people agree on a label, or guess.
    """

    joint: Floats
    known: Floats
    prior: Floats
    likely: Floats
    looks: Floats
    hard: Floats | None
    agreed: Floats | None
    guessed: Floats | None


def explained(found: Explanation, rows: Rows, X: Floats | None = None) -> Terms:
    """Compute how likely the answers to each row are, by truth, with all parts.

    Parameters
    ----------
    found : Explanation
    rows : Rows
    X : array of shape (n, 1 + d), optional
        The scores as normal quantiles, if they are computed already.

    Returns
    -------
    Terms
    """
    X = normal_quantiles(found.knots, rows.scores) if X is None else X
    prior = _prior(found, rows.log_probs)
    looks = found.process.log_likelihood(rows.evidence)
    hard = None
    if found.difficulty is not None:
        assert isinstance(found.process, Confusion)
        share = found.difficulty.shares(X)
        hard = np.log(share) + found.difficulty.log_likelihood(found.process, rows.evidence)
        looks = np.logaddexp(np.log1p(-share) + looks, hard)
    likely = with_misled(looks, found.misled, found.classes)
    known = np.zeros((len(rows), 1))
    none = np.full(len(rows), -np.inf)
    agreed = guessed = None
    if found.open_weights is not None:
        w = np.clip(expit(X @ found.open_weights), 1e-9, 1 - 1e-9)
        agreed = _log_agreed(found, rows, looks)
        none = agreed
        if found.guesses is not None:
            guessed = np.log(found.guesses.share) + _log_guessed(found, rows)
            agreed = np.log1p(-found.guesses.share) + agreed
            none = np.logaddexp(agreed, guessed)
        known = np.log1p(-w)[:, None]
        none = np.log(w) + none
    joint = np.concatenate([np.log(prior) + likely + known, none[:, None]], axis=1)
    if rows.gold is not None:
        joint = _clamped(joint, rows.gold)
    return Terms(joint, known, prior, likely, looks, hard, agreed, guessed)


def log_joint(found: Explanation, rows: Rows) -> Floats:
    """Compute log P(truth, answers | x) of each row.

    Parameters
    ----------
    found : Explanation
    rows : Rows

    Returns
    -------
    array of shape (n, c + 1)
        By class; the last column is "none of the classes".
    """
    return explained(found, rows).joint


def _prior(found: Explanation, log_probs: Floats) -> Floats:
    """P(truth = t | x) of a row of a known class."""
    sure = np.exp(log_softmax(found.sharpness * log_probs))
    return np.maximum((1 - found.slip) * sure + found.slip / log_probs.shape[1], LEAST)


def with_misled(looks: Floats, misled: float, classes: Floats) -> Floats:
    """Compute log P(answers | truth = t) where some rows mislead everybody.

    Parameters
    ----------
    looks : array of shape (n, c)
        log P(answers | the row looks like class j).
    misled : float
        Probability to look like another class than the truth.
    classes : array of shape (c,)
        Shares of the classes, in proportion to which a row looks like another one.

    Returns
    -------
    array of shape (n, c)

    Examples
    --------
    >>> looks = np.log([[0.8, 0.2, 0.1]])
    >>> np.exp(with_misled(looks, 0.5, np.array([0.5, 0.25, 0.25]))).round(4)
    array([[0.475 , 0.3833, 0.35  ]])
    """
    if not misled:
        return looks
    top = looks.max(axis=1, keepdims=True)
    each = np.exp(looks - top)
    others = _others(classes * each) / _rest(classes)
    return top + np.log(np.maximum((1 - misled) * each + misled * others, LEAST))


def _log_total(values: Floats) -> Floats:
    """(n,) log of the sum of exp over the columns."""
    top = values.max(axis=1, keepdims=True)
    return top[:, 0] + np.log(np.exp(values - top).sum(axis=1))


def _others(values: Floats) -> Floats:
    """The sum over all other columns."""
    return np.maximum(values.sum(axis=1, keepdims=True) - values, 0)


def _log_agreed(found: Explanation, rows: Rows, looks: Floats) -> Floats:
    """log P(answers | none of the classes), if people answer as if it were some other row."""
    blind = _log_total(looks + np.log(np.maximum(found.classes, LEAST)))
    if not found.none_rate:
        return blind
    usual = np.clip(found.process.none_share, 1e-6, 1 - 1e-6)
    none = rows.evidence.none_votes
    others = rows.evidence.numbers - none
    said = _log_none(found, rows)
    return blind + said - none * np.log(usual) - others * np.log(1 - usual)


def _log_guessed(found: Explanation, rows: Rows) -> Floats:
    """log P(answers | none of the classes), if people guess."""
    assert found.guesses is not None
    said = found.guesses.log_likelihood(rows.log_probs, rows.evidence, found.frequent)
    return said + _log_none(found, rows)


def _log_none(found: Explanation, rows: Rows) -> Floats:
    """log P(which answers to an open row are "none of the classes")."""
    if not found.none_rate:
        return np.zeros(len(rows))
    none = rows.evidence.none_votes
    rate = np.clip(found.none_rate, 1e-6, 1 - 1e-6)
    return none * np.log(rate) + (rows.evidence.numbers - none) * np.log(1 - rate)


def _clamped(joint: Floats, gold: NDArray[np.int64]) -> Floats:
    """Leave only the certain truth of a row, where there is one."""
    certain = np.flatnonzero(gold != NO_GOLD)
    truth = gold[certain] % joint.shape[1]  # -1 is the last column
    kept = np.maximum(joint[certain, truth], np.log(LEAST))
    joint[certain] = -np.inf
    joint[certain, truth] = kept
    return joint


# ---- the M-step


def _maximise(
    before: Explanation,
    rows: Rows,
    X: Floats,
    terms: Terms,
    post: Floats,
    learns_sharpness: bool,
) -> Explanation:
    """M-step: the process, Newton steps for the sharpness and for w, and shares."""
    known = post[:, :-1]
    found, unslipped, looks = _conflicts(before, rows, terms, known)
    if learns_sharpness:
        sure = (terms.prior - before.slip / known.shape[1]) / (1 - before.slip)
        found = replace(
            found, sharpness=sharpened(found.sharpness, rows.log_probs, unslipped, sure)
        )
    classes = (known.sum(axis=0) + 0.5) / (known.sum() + 0.5 * known.shape[1])
    found = replace(found, classes=classes)
    found = _open_rows(found, rows, X, terms, post[:, -1])
    if terms.hard is None:
        return replace(found, process=found.process.fitted(rows.evidence, looks))
    assert isinstance(found.process, Confusion)
    assert found.difficulty is not None
    hard = looks * np.exp(terms.hard - terms.looks)
    difficulty = found.difficulty.fitted(found.process, rows.evidence, X, hard, looks)
    process = found.process.fitted(rows.evidence, looks - hard)
    return replace(found, process=process, difficulty=difficulty)


def _conflicts(
    found: Explanation, rows: Rows, terms: Terms, known: Floats
) -> tuple[Explanation, Floats, Floats]:
    """Fit how often a sure model contradicts all people.

    Also give (n, c) the part of `known` where the model did not slip, and the probability that the
    row looks like each class.
    """
    if not found.misled:
        return found, known, known
    c = known.shape[1]
    slipped = known * (found.slip / c) / terms.prior
    looks, misled = _appearance(found, terms, known)
    right = np.take_along_axis(slipped, terms.prior.argmax(axis=1)[:, None], axis=1)[:, 0]
    wrong = slipped.sum(axis=1) - right
    against = float(wrong.sum() + misled.sum()) / max(float(known.sum()), 1e-12)
    if against < VANISHED:
        return replace(found, slip=0.0, misled=0.0), known - slipped, looks
    against = min(against, 0.5)
    blame = _blame(wrong, misled, rows.gold)
    found = replace(found, slip=slip_of((1 - blame) * against, c), misled=blame * against)
    return found, known - slipped, looks


def slip_of(wrong: float, c: int) -> float:
    """Compute the share of random outputs with which a share of all outputs is wrong.

    Parameters
    ----------
    wrong : float
    c : int
        Number of classes; a random output is right once in c.

    Returns
    -------
    float

    Examples
    --------
    >>> round(slip_of(0.09, 10), 3)
    0.1
    """
    return wrong * c / (c - 1)


def _blame(slipped: Floats, misled: Floats, gold: NDArray[np.int64] | None) -> float:
    """People's part of the errors against a sure model: BLAMED, unless gold rows say more."""
    if gold is None:
        return BLAMED
    certain = gold != NO_GOLD
    fooled = float(misled[certain].sum())
    total = fooled + float(slipped[certain].sum())
    return (BLAMED * BLAMED_ROWS + fooled) / (BLAMED_ROWS + total)


def _appearance(found: Explanation, terms: Terms, known: Floats) -> tuple[Floats, Floats]:
    """(n, c) probability that the row looks like each class, (n,) that it misleads."""
    top = terms.looks.max(axis=1, keepdims=True)
    each = np.exp(terms.looks - top)
    per_answer = known * np.exp(top - terms.likely)  # P(truth) / P(answers | truth)
    fooled = found.misled * per_answer / _rest(found.classes)
    weighted = found.classes * each
    looks = (1 - found.misled) * per_answer * each + weighted * _others(fooled)
    return looks, (fooled * _others(weighted)).sum(axis=1)


def _open_rows(
    found: Explanation, rows: Rows, X: Floats, terms: Terms, open_: Floats
) -> Explanation:
    """Fit what is said of open rows; `open_` holds the probability of each row to be one."""
    if found.open_weights is None:
        return found
    weights = newton_step(found.open_weights, X, open_, np.ones(len(X)), OPEN_SLOPE)
    weights = np.r_[np.clip(weights[0], -12, 12), np.maximum(weights[1:], 0)]
    rate = found.none_rate
    if rate:
        none = rows.evidence.none_votes
        rate = float((open_ @ none + 0.5) / (open_ @ rows.evidence.numbers + 1))
    found = replace(found, open_weights=weights, none_rate=rate)
    if found.guesses is None:
        return found
    assert terms.guessed is not None
    assert terms.agreed is not None
    guessed = open_ * expit(terms.guessed - terms.agreed)
    share = float(np.clip(guessed.sum() / max(float(open_.sum()), 1e-12), *SHARE))
    guesses = found.guesses.fitted(
        rows.log_probs, rows.evidence, found.frequent, guessed, MOST_SHARP * found.sharpness
    )
    return replace(found, guesses=replace(guesses, share=share))


def blamed(found: Explanation) -> list[Explanation]:
    """List the readings of rows where the model is sure and all people disagree.

    Parameters
    ----------
    found : Explanation

    Returns
    -------
    list of Explanation
        The model alone is wrong; people alone are. Only `found` itself, if there are no such rows.
    """
    c = len(found.classes)
    against = found.slip / slip_of(1.0, c) + found.misled
    if against < NEGLIGIBLE:
        return [found]
    return [
        replace(found, slip=slip_of(against, c), misled=0.0),
        replace(found, slip=0.0, misled=against),
    ]


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
    terms = explained(found, rows)
    joint = terms.joint.copy()
    shown = _shown(found, terms.prior)
    if found.misled:
        joint[:, :-1] = np.log(shown) + terms.looks + terms.known
    numbers = np.maximum(found.process.answers_per_row(rows.evidence), 1)
    power = 1 / (1 + (numbers - 1) * dependence)
    post = np.exp(log_softmax((joint - joint.max(axis=1, keepdims=True)) * power[:, None]))
    if not found.misled:
        return post
    per_look = post[:, :-1] / shown
    true = (1 - found.misled) * per_look
    fooled = found.misled * _others(found.classes * per_look) / _rest(found.classes)
    post[:, :-1] = terms.prior * (true + fooled)
    if rows.gold is not None:
        certain = np.flatnonzero(rows.gold != NO_GOLD)
        post[certain] = np.eye(post.shape[1])[rows.gold[certain]]  # -1 is the last column
    return post


def _shown(found: Explanation, prior: Floats) -> Floats:
    """(n, c): P(the row looks like class j | x, it is of a known class)."""
    fooled = found.classes * _others(prior / _rest(found.classes))
    return np.maximum((1 - found.misled) * prior + found.misled * fooled, LEAST)


def _rest(classes: Floats) -> Floats:
    """Shares of all other classes."""
    return _others(classes[None])[0]
