"""How many rows have the truth outside their set, if people's answers follow a process?

The estimate rests on assumptions that no data can test in full; each is stated, and shares come
with the bounds between which it may fail:

- several answers per row: errors to one row are neither independent nor copies of each other
  (`crowd.DEPENDENCE`). The interval runs from the one to the other.
- one answer per row: people err at the same rate in all classes, or confuse some classes with
  others. The interval runs from the first, which is too low, to the second, which takes the
  model's own confusions for theirs.
- a sure model that contradicts all people: either may be wrong (`crowd.blamed`).
- open rows at which people guess may be hard rows of known classes (`difficulty`).
- sets that join the answers of unknown people (`union`): wrong by a factor of three at most.
- sets whose wrong candidates depend on the truth (`inclusion`): there are only bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from candidly.auditing import urn
from candidly.auditing.crowd import (
    DEPENDENCE,
    NO_GOLD,
    Explanation,
    Rows,
    blamed,
    first_guess,
    fit_explanation,
    truth_given,
)
from candidly.auditing.evidence import (
    Observed,
    Outputs,
    Reference,
    make_reference,
    observe,
)
from candidly.auditing.processes import Evidence, Process
from candidly.auditing.processes.confusion import Confusion
from candidly.auditing.processes.inclusion import Inclusion
from candidly.auditing.processes.union import Union
from candidly.auditing.rates import (
    FEW,
    INTERVAL_FACTOR,
    MENTION_OPEN,
    NORMAL_90,
    PRIOR_ROWS,
    RatesEstimate,
    best_misses,
    chance_note,
    few_note,
    sample,
)
from candidly.scores import log_softmax

Floats = NDArray[np.floating[Any]]

SAMPLED_ENTRIES = 2_000_000  # rows times classes that a process is fitted to
MOST_SAMPLED = 20_000  # rows
COMPARED_ENTRIES = 500_000  # rows times classes that explanations are compared on
MODEL_ERROR = 0.005  # added to both ends of an interval: models err
ONE_ANSWER = (0.8, 1.3, 0.015)  # one answer per row: low * first, high * second + third
# Sets that join answers, and nobody knows whose: factors of the ends.
UNKNOWN_PEOPLE = (0.3, 3.0)
# A model whose best class is the answer less often than this does not overrule a single answer.
OVERRULES = 0.5
SUREST = 0.2  # share of the rows that the model is surest of
N_GUESSES = 4  # parameters of `Guesses`
GUESS_ROUNDS = 40  # of EM, to find out whether people guess
SURE_OF_GUESSES = 0.99
BELIEVED = 0.01  # probability above which an explanation counts
MENTION_CONFLICTS = 0.02  # share of rows where a sure model contradicts all people
UNANIMITY_LIMIT = 3.5  # standard errors by which answers may agree more than expected


@dataclass(frozen=True)
class Census:
    """Fitted explanations of a sample of rows, and the shares that follow.

    Attributes
    ----------
    estimate : RatesEstimate
    full, without : Explanation
        Fitted with and without open rows or, if people guess at some, with and without guesses.
    weight : float
        Probability of the first, against the second.
    reference : Reference or None
        Rows that others are compared with, if there are features.
    overrules : bool
        Whether the model may overrule what all answers to a row say.
    rows : Rows
        The sample.
    """

    estimate: RatesEstimate
    full: Explanation
    without: Explanation
    weight: float
    reference: Reference | None
    overrules: bool
    rows: Rows

    @property
    def process(self) -> Process:
        """The fitted process that annotators and verdicts are read from."""
        return self.full.process if self.weight > 0.5 else self.without.process

    def posterior(self, rows: Rows, dependence: float = DEPENDENCE) -> Floats:
        """Compute P(truth | outputs, answers) of rows.

        Parameters
        ----------
        rows : Rows
        dependence : float
            Of the answers to one row.

        Returns
        -------
        array of shape (n, c + 1)
            The last column is "none of the classes".
        """
        return _blended(self.full, self.without, self.weight, rows, dependence)


def take_census(outputs: Outputs, start: Process | type[Process]) -> Census:
    """Fit a process to a sample of rows, with and without open rows, and estimate the shares.

    Parameters
    ----------
    outputs : Outputs
        Candidate sets, answers and a model's outputs.
    start : Process or a subclass
        The process, or a first guess.

    Returns
    -------
    Census
    """
    chosen = sample(len(outputs), sample_size(outputs.sets.n_classes))
    reference = make_reference(outputs, sample(len(outputs)))
    seen = observe(outputs, chosen, reference)
    rows = rows_of(outputs, chosen, seen)
    first = start.start(rows.evidence) if isinstance(start, type) else start
    full, without, weight = _fitted(first, rows)
    single = isinstance(without.process, Confusion) and without.process.flat
    if single:
        shares, full, without = _single_answers(full, without, weight, rows)
    else:
        shares = _several_answers(full, without, weight, rows)
    overrules = not single or float(seen.hit.mean()) >= OVERRULES
    estimate = _estimate(shares, full, without.process, weight, rows, seen, single)
    return Census(estimate, full, without, weight, reference, overrules, rows)


def _fitted(first: Process, rows: Rows) -> tuple[Explanation, Explanation, float]:
    """(with open rows, without them, probability of the first against the second).

    Open rows, agreed on or guessed at, must explain the answers better than hard rows of known
    classes do. If people guess, the second has open rows that they agree on.
    """
    if (guessed := explain_guesses(first, rows)) is not None:
        full, without = (fit_explanation(_independent(found), rows) for found in guessed)
        return full, without, _weight(full, without, N_GUESSES, rows)
    without = fit_explanation(first, rows, with_open=False)
    full = fit_explanation(first, rows, with_open=True)
    weight = _weight_of_open(full, without, rows)
    if weight > BELIEVED and _has_matrix(first) and not _has_open_gold(rows):
        without = fit_explanation(first, rows, with_open=False, with_difficulty=True)
        weight = min(weight, _weight(full, without, 0, rows))
    return full, without, weight


def _independent(found: Explanation) -> Explanation:
    """Take the answers to hard rows for independent: `DEPENDENCE` counts copies, once."""
    assert found.difficulty is not None
    return replace(found, difficulty=replace(found.difficulty, concentration=None))


def _has_matrix(process: Process) -> bool:
    """Whether there are confusions to learn, from several answers per row."""
    return isinstance(process, Confusion) and not process.flat


def _has_open_gold(rows: Rows) -> bool:
    """Whether some rows are known to be of no class."""
    return rows.gold is not None and bool((rows.gold == -1).any())


def explain_guesses(first: Process, rows: Rows) -> tuple[Explanation, Explanation] | None:
    """Check whether people guess at rows of no class, rather than err more at hard rows.

    Both leave rows at which people disagree. At a hard row the truth is still the most likely
    answer; guesses follow what the row resembles. Either way people may copy or share errors.

    Parameters
    ----------
    first : Process
        A first guess.
    rows : Rows

    Returns
    -------
    (Explanation, Explanation) or None
        Fitted to some of the rows with and without guesses. None if people do not guess, for
        processes other than confusion matrices, and with one answer per row.
    """
    all_full = (rows.evidence.sets.sizes == rows.evidence.n_classes).all()
    if not _has_matrix(first) or len(rows) < FEW or all_full:
        return None
    few = rows[sample(len(rows), compared_size(rows.evidence.n_classes))]
    without, full = (
        fit_explanation(_with_copies(first, few, with_guesses), few, rounds=GUESS_ROUNDS)
        for with_guesses in (False, True)
    )
    if _weight(full, without, N_GUESSES, few) <= SURE_OF_GUESSES:
        return None
    return full, without


def _with_copies(first: Process, rows: Rows, with_guesses: bool) -> Explanation:
    """A first guess with open rows and hard rows, at which people may share errors."""
    found = first_guess(
        first, rows, with_open=True, with_difficulty=True, with_guesses=with_guesses
    )
    assert found.difficulty is not None
    return replace(found, difficulty=replace(found.difficulty, concentration=urn.START))


def sample_size(n_classes: int) -> int:
    """Decide how many rows a process is fitted to.

    Parameters
    ----------
    n_classes : int

    Returns
    -------
    int

    Examples
    --------
    >>> sample_size(10), sample_size(1000)
    (20000, 5000)
    """
    return int(np.clip(SAMPLED_ENTRIES // n_classes, 5000, MOST_SAMPLED))


def compared_size(n_classes: int) -> int:
    """Decide how many rows explanations are compared on.

    Parameters
    ----------
    n_classes : int

    Returns
    -------
    int

    Examples
    --------
    >>> compared_size(10), compared_size(150)
    (5000, 3333)
    """
    return int(np.clip(COMPARED_ENTRIES // n_classes, 2500, 5000))


def rows_of(outputs: Outputs, chosen: Any, seen: Observed) -> Rows:
    """Collect what a process explains about some rows.

    Parameters
    ----------
    outputs : Outputs
    chosen : slice or int array
    seen : Observed
        Their numbers.

    Returns
    -------
    Rows
    """
    values = np.asarray(outputs.values[chosen], dtype=np.float64)
    if not outputs.logits:
        values = np.log(np.maximum(values, 1e-12))
    answers = None if outputs.answers is None else outputs.answers[chosen]
    gold = None if outputs.gold is None else outputs.gold[chosen]
    evidence = Evidence(outputs.sets[chosen], answers)
    return Rows(log_softmax(values), seen.scores.astype(np.float64), evidence, gold)


def _weight_of_open(full: Explanation, without: Explanation, rows: Rows) -> float:
    """How much more likely open rows are than none, by the Bayesian information criterion."""
    if (rows.evidence.sets.sizes == rows.evidence.n_classes).all():
        return 0.0
    if _has_open_gold(rows):
        return 1.0
    assert full.open_weights is not None
    return _weight(full, without, len(full.open_weights), rows)


def _weight(full: Explanation, without: Explanation, parameters: int, rows: Rows) -> float:
    """Probability of the first explanation, which has some parameters more."""
    penalty = 0.5 * parameters * np.log(len(rows))
    return float(expit((full.fit - without.fit - penalty) / INTERVAL_FACTOR**2))


def _blended(
    full: Explanation, without: Explanation, weight: float, rows: Rows, dependence: float
) -> Floats:
    if weight > 0.999:
        return truth_given(full, rows, dependence)
    if weight < 0.001:
        return truth_given(without, rows, dependence)
    parts = [truth_given(found, rows, dependence) for found in (full, without)]
    return weight * parts[0] + (1 - weight) * parts[1]


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


# ---- shares


class Shares(NamedTuple):
    """Shares of closed and open rows: (low, point, high) of each, and of both together."""

    closed: tuple[float, float, float]
    open: tuple[float, float, float]
    outside: tuple[float, float, float]


def _shares(posterior: Floats, rows: Rows) -> Floats:
    """(3,) shares of closed, open, and both."""
    _, closed, open_ = kinds_of(posterior, rows.evidence.sets.dense()).mean(axis=0)
    return np.array([closed, open_, closed + open_])


def _several_answers(full: Explanation, without: Explanation, weight: float, rows: Rows) -> Shares:
    """From answers that each count in full, to answers to a row that count as one.

    Where a sure model and all people disagree, it may always be the model, or always people.
    """
    point = _shares(_blended(full, without, weight, rows, DEPENDENCE), rows)
    ends = [
        _shares(truth_given(reading, rows, dependence), rows)
        for found in _believed(full, without, weight)
        for reading in blamed(found)
        for dependence in (0.0, 1.0)
    ]
    least, most = np.min(ends, axis=0), np.max(ends, axis=0)
    # In rows where people err together they are as one annotator, who is judged as generously.
    most = most + (ONE_ANSWER[1] - 1) * conflicts(full)
    if isinstance(without.process, Union):
        least, most = UNKNOWN_PEOPLE[0] * least, UNKNOWN_PEOPLE[1] * most
    return _as_shares(least, point, most)


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


def _believed(full: Explanation, without: Explanation, weight: float) -> list[Explanation]:
    """The explanations that an interval must hold: guesses may always be errors at hard rows."""
    chances = ((full, weight), (without, 1 - weight))
    return [found for found, chance in chances if chance > BELIEVED or full.guesses is not None]


def _single_answers(
    full: Explanation, without: Explanation, weight: float, rows: Rows
) -> tuple[Shares, Explanation, Explanation]:
    """From one error rate for all classes, to a free confusion matrix at the same sharpness.

    Neither is right: the first is too low, the second takes the model's confusions for people's.
    The point estimate is their mean; the error rate is then set so that the rows' probabilities
    have it as their mean. Rows are still ranked by the first, which ranks them better.
    """
    flat = [_shares(truth_given(found, rows), rows) for found in (full, without)]
    free = [_free_shares(found, rows) for found in (full, without)]
    calibrated = [
        _with_closed(found, 0.5 * (low[0] + high[0]), rows)
        for found, low, high in zip((full, without), flat, free, strict=True)
    ]
    weights = np.array([weight, 1 - weight])
    point = weights @ [_shares(truth_given(found, rows), rows) for found in calibrated]
    kept = weights > 0.01
    first, second, third = ONE_ANSWER
    low = first * np.min(np.array(flat)[kept], axis=0)
    high = second * np.max(np.array([*flat, *free])[np.r_[kept, kept]], axis=0) + third
    return _as_shares(low, point, high), calibrated[0], calibrated[1]


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


def _estimate(
    shares: Shares,
    full: Explanation,
    process: Process,
    weight: float,
    rows: Rows,
    seen: Observed,
    single: bool,
) -> RatesEstimate:
    n = len(rows)
    c = rows.evidence.n_classes
    found = np.array(shares)  # (3, 3): closed, open, outside; low, point, high
    point = found[:, 1].copy()
    guessed = 0.0 if full.guesses is not None else guessed_open(rows)
    found[1:, 2] = np.maximum(found[1:, 2], [guessed, point[2] + guessed])
    errors = NORMAL_90 * INTERVAL_FACTOR * np.sqrt(np.maximum(found * (1 - found), 0) / n)
    low = found[:, 0] - errors[:, 0] - MODEL_ERROR
    high = found[:, 2] + errors[:, 2] + MODEL_ERROR
    if isinstance(process, Inclusion):
        low = np.zeros(3)
        high = np.maximum(high, best_misses(seen, c))
    if isinstance(process, Union):
        high = np.minimum(high, np.maximum(found[:, 1], best_misses(seen, c)))
    low = np.maximum(low, certain_shares(rows))
    if n < FEW:
        point = point * n / (n + PRIOR_ROWS)
        low, high = np.zeros(3), np.ones(3)
    low = np.clip(np.minimum(low, point), 0, 1)
    high = np.clip(np.maximum(high, point), 0, 1)
    intervals = [(float(a), float(b)) for a, b in zip(low, high, strict=True)]
    chance = chance_note(seen, c)
    notes = (*_notes(shares, full, process, weight, rows, single, guessed), *few_note(n))
    return RatesEstimate(
        float(point[0]),
        float(point[1]),
        float(min(point[0] + point[1], 1.0)),
        intervals[0],
        intervals[1],
        intervals[2],
        notes=notes if chance is None else (chance,),  # the other notes name shares
        process=process.name,
        reliable=chance is None,
    )


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


def _gold_note(rows: Rows) -> Iterator[str]:
    """Report the share among the gold rows: a direct estimate if they were drawn at random."""
    if rows.gold is None:
        return
    checked = int((rows.gold != NO_GOLD).sum())
    wrong = round(certain_shares(rows)[2] * len(rows))
    if checked:
        yield (
            f"Of {checked:,} rows with a certain label, {wrong:,} ({wrong / checked:.1%}) have it "
            "outside their candidates. If these rows were picked at random, trust this share more "
            "than the estimate."
        )


def _notes(
    shares: Shares,
    full: Explanation,
    process: Process,
    weight: float,
    rows: Rows,
    single: bool,
    guessed: float,
) -> Iterator[str]:
    """Say what is assumed, and where the data cannot tell."""
    yield from _gold_note(rows)
    if single:
        yield (
            "With one answer per row, errors of the annotators and errors of the model look alike. "
            "At the low end of the interval most disagreements are errors of the model, at the "
            "high end most are errors of the annotators."
        )
    elif isinstance(process, Inclusion):
        yield (
            "Wrong candidates depend on the true class, so a set says little about its row. The "
            "intervals are bounds; the shares may be far too small."
        )
    elif isinstance(process, Union):
        yield (
            "The sets seem to combine the answers of several people, but who said what is not "
            "known. The shares may be wrong by a factor of three. Pass the answers one by one if "
            "you have them."
        )
    else:
        yield (
            "People often make the same mistake on the same row. If they err independently, "
            f"{shares.outside[0]:.1%} of the rows are outside; if all answers to a row count as "
            f"one, {shares.outside[2]:.1%}."
        )
        if full.guesses is not None:
            yield (
                "At some rows people disagree as if they guessed. They are counted as rows of no "
                "class; if they are just difficult, the low end applies."
            )
            return
        yield from _conflict_note(full)
        yield from _unanimity_note(rows, process)
        if guessed > MENTION_OPEN:
            yield (
                "If people guess at rows that fit no class, such rows look like difficult ones. "
                f"Up to {guessed:.0%} of the rows could be open, since people disagree more where "
                "the model is in doubt."
            )
    if MENTION_OPEN < weight <= 0.99:
        yield (
            "The data cannot tell open rows from difficult rows of known classes: it is "
            f"{weight:.0%} likely that there are open rows."
        )


def _conflict_note(found: Explanation) -> Iterator[str]:
    """Report if the model is often sure of another class than all people."""
    if (share := conflicts(found)) > MENTION_CONFLICTS:
        yield (
            f"In about {share:.0%} of the rows the model is sure of another class than all people "
            "name. The consensus sides with people; the high end of the interval sides with the "
            "model. Check a few of these rows: they head the list. To see the model's view, use "
            'process="blind" (--process blind).'
        )


def _unanimity_note(rows: Rows, process: Process) -> Iterator[str]:
    """Report if people agree more often than the process predicts: copies, or shared errors."""
    if not isinstance(process, Confusion):
        return
    excess, observed, expected = unanimity(process, rows)
    if excess > UNANIMITY_LIMIT:
        yield (
            f"Two answers to a row agree in {observed:.1%}; independent annotators would agree in "
            f"{expected:.1%}. People share errors or copy answers: trust the high end more."
        )


def unanimity(process: Confusion, rows: Rows) -> tuple[float, float, float]:
    """Compare how often two answers to a row agree with what the process predicts.

    Parameters
    ----------
    process : Confusion
        Fitted.
    rows : Rows
        The rows that it was fitted to.

    Returns
    -------
    excess : float
        The difference in standard errors.
    observed, expected : float
        Shares of agreeing pairs.
    """
    evidence = rows.evidence
    pairs, several = agreeing_pairs(evidence)
    if not len(pairs):
        return 0.0, 1.0, 1.0
    likely = process.log_likelihood(evidence)[several] + rows.log_probs[several]
    truth = np.exp(log_softmax(likely))
    expected = truth @ (process.matrix**2).sum(axis=1)
    gap = pairs - expected
    error = gap.std() / np.sqrt(len(gap)) if len(gap) > 1 else np.inf
    return float(gap.mean() / max(error, 1e-12)), float(pairs.mean()), float(expected.mean())
