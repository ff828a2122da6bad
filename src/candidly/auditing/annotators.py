"""How reliable each annotator is, from the answers and from where the truth probably lies.

The share of an annotator's wrong answers is read from the audit's posterior. That posterior holds
the annotator's own answer, and assumes how much answers to one row depend. So the interval holds
what all other readings say:

- each answer counts in full, or all answers to a row count as one;
- there are open rows, or there are none, or none at which people guess: a model that errs with
  confidence looks like open rows;
- where the model is sure and all people disagree, the model is wrong, or people are;
- the annotator's error rate is not the shared one, but their own (`own_rates`).

The sampling error is added at both ends, by as many answers as the data are worth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit, logit

from candidly.answers import Answers
from candidly.auditing.census import Census
from candidly.auditing.crowd import Explanation, Rows, blamed, truth_given
from candidly.auditing.processes.annotators import AnnotatorConfusion
from candidly.auditing.processes.confusion import Confusion
from candidly.auditing.rates import INTERVAL_FACTOR, NORMAL_90, RatesEstimate, Study
from candidly.cells import NO_CLASS_TEXT
from candidly.data.dataset import NO_CLASS, UNKNOWN

Floats = NDArray[np.floating[Any]]

LISTED = 200  # annotators with the most answers have a line each; the others share one
OTHERS = "(all others)"
MISSED = 3  # classes that are named for each
MATRICES = 12  # annotators with a confusion matrix, those with most answers
WIDEST = 30  # classes of a confusion matrix that is stored
PAIRS = 20  # confused pairs that are listed
MAX_ENTRIES = 5_000_000  # of all matrices; else only those of MATRICES annotators are counted
NEGLIGIBLE = 0.02  # probability of a class that is not counted where there are many classes

LEAST_SHARE = 0.01  # outside share that an interval is divided by
ODDS = np.linspace(-15, 15, 241)  # log odds that answers are right, as they are counted
ROUNDS = 100  # of EM for the own rates
RATE = (1e-4, 0.9)  # least and greatest own rate


class AnnotatorTally:
    """Sums over the answers of each annotator; `add` takes the rows block by block, in order.

    Parameters
    ----------
    answers : Answers
        Who answered what. Anonymous answers are those of one annotator, "anyone".
    n_classes : int
    truth : int array of shape (n,), optional
        Class indices, NO_CLASS or UNKNOWN; adds the true share of wrong answers.
    readings : sequence of Explanation
        Other ways to read the same answers, which the intervals must hold; see `other_readings`.
    stretch : (float, float)
        Factors of the ends of the intervals; see `stretch_of`.
    """

    def __init__(
        self,
        answers: Answers,
        n_classes: int,
        truth: NDArray[np.int64] | None = None,
        *,
        readings: Sequence[Explanation] = (),
        stretch: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        self.answers = answers
        self.names, self.who = _most_active(answers)
        k = len(self.names)
        self.outside = np.zeros(k)
        self.missed = np.zeros((k, n_classes))
        self.due = np.zeros((k, n_classes))
        self.truth = truth
        self.stretch = stretch
        self.readings = [_Reading(found, answers, k) for found in readings]
        self.detailed = k if k * n_classes**2 <= MAX_ENTRIES else min(k, MATRICES)
        self.wrong = sparse.csr_array((self.detailed * n_classes, n_classes + 1))

    def add(self, block: slice, posterior: Floats, rows: Rows | None = None) -> None:
        """Add a block of rows.

        Parameters
        ----------
        block : slice
            Consecutive rows.
        posterior : array of shape (b, c)
            Probability of each class to be their truth; see `auditing.posterior`.
        rows : Rows, optional
            The same rows, for the other readings.
        """
        mine = self.answers.span(block)
        if mine.start == mine.stop:
            return
        member = self.answers.membership(block)
        at = self.answers.row[mine] - block.start
        who = self.who[mine]
        counts = self.answers.counts[mine]
        q = posterior[at]
        missed = np.where(member[:, :-1].toarray() > 0, 0, q)
        place = (who, np.arange(len(q)))
        each = sparse.csr_array((counts, place), (len(self.names), len(q)))
        self.outside += each @ (1 - _right(member, with_none(posterior), at))
        self.missed += each @ missed
        self.due += each @ q
        listed = who < self.detailed
        group = np.where(listed, who, 0)
        self.wrong += confused(missed, member, counts * listed, group, self.detailed)
        for reading in self.readings:
            assert rows is not None
            reading.add(rows, member, at, who, counts)

    def table(self, classes: list[Any]) -> list[dict[str, Any]]:
        """Make one entry per annotator, the least reliable first.

        Parameters
        ----------
        classes : list
            The class labels.

        Returns
        -------
        list of dict
            `name`; `answers`: their number; `width`: their mean size; `outside`: the estimated
            share without the truth, with its interval from `low` to `high`; `missed`:
            the classes most often omitted; `confusion`: expected answers by truth (row) and label
            (column; the last one is none of the classes), or None; `pairs`: the labels most often
            confused; and `true_outside`, if any truth is known.
        """
        counts = self._summed(self.answers.counts)
        widths = self._summed(self.answers.counts * self.answers.sizes) / counts
        true_shares = self._true_shares()
        shares = np.clip(self.outside / counts, 0, 1)
        low, high = self._intervals(shares, counts)
        entries = []
        for k, name in enumerate(self.names):
            entry = {
                "name": name,
                "answers": int(counts[k]),
                "width": float(widths[k]),
                "outside": float(shares[k]),
                "low": float(low[k]),
                "high": float(high[k]),
                "missed": self._worst(k, classes),
                "confusion": self._matrix(k),
                "pairs": self._pairs(k, classes),
            }
            if true_shares is not None:
                entry["true_outside"] = true_shares[k]
            entries.append(entry)
        return sorted(entries, key=lambda entry: -entry["outside"])

    def _intervals(self, shares: Floats, counts: Floats) -> tuple[Floats, Floats]:
        """From the least to the greatest share of all readings, and the sampling error."""
        readings = [reading.shares(counts) for reading in self.readings]
        ends = np.array([shares, *(share for found, _ in readings for share in found)])
        worth = np.min([counts, *(number for _, number in readings)], axis=0)
        least = ends.min(axis=0) * self.stretch[0]
        most = np.minimum(ends.max(axis=0) * self.stretch[1], 1)
        z = NORMAL_90 * INTERVAL_FACTOR
        low = [wilson(share, n, z)[0] for share, n in zip(least, worth, strict=True)]
        high = [wilson(share, n, z)[1] for share, n in zip(most, worth, strict=True)]
        return np.array(low), np.array(high)

    def _worst(self, k: int, classes: list[Any]) -> list[dict[str, Any]]:
        """The classes that this annotator most often omits although they are likely the truth."""
        top = np.argsort(-self.missed[k], kind="stable")[:MISSED]
        return [
            {
                "label": classes[j],
                "rows": float(self.missed[k, j]),
                "share": float(self.missed[k, j] / self.due[k, j]),
            }
            for j in top.tolist()
            if self.missed[k, j] >= 0.5
        ]

    def _matrix(self, k: int) -> list[list[float]] | None:
        """Expected answers by truth and label."""
        c = self.missed.shape[1]
        if k >= min(MATRICES, self.detailed) or c > WIDEST:
            return None
        counted = self._wrong(k).toarray()
        counted[np.arange(c), np.arange(c)] = self.due[k] - self.missed[k]
        return [[round(value, 2) for value in row] for row in counted.tolist()]

    def _pairs(self, k: int, classes: list[Any]) -> list[dict[str, Any]]:
        """The labels that this annotator most often confuses."""
        if k >= self.detailed:
            return []
        return most_confused(self._wrong(k), self.due[k], classes)

    def _wrong(self, k: int) -> sparse.csr_array:
        c = self.missed.shape[1]
        return self.wrong[k * c : (k + 1) * c]

    def _true_shares(self) -> list[float | None] | None:
        """The share of each one's answers without the truth, if any truth is known."""
        if self.truth is None or not (self.truth != UNKNOWN).any():
            return None
        truth = self.truth[self.answers.row]
        known = truth != UNKNOWN
        index = np.where(truth == NO_CLASS, self.answers.n_classes, truth)
        is_truth = self.answers.indices == np.repeat(index, self.answers.sizes)
        wrong = known & ~np.logical_or.reduceat(is_truth, self.answers.indptr[:-1])
        counts = self._summed(known * self.answers.counts)
        wrongs = self._summed(wrong * self.answers.counts)
        return [float(w / n) if n else None for w, n in zip(wrongs, counts, strict=True)]

    def _summed(self, weights: NDArray[Any]) -> NDArray[Any]:
        """Add one weight per answer, by annotator."""
        return np.bincount(self.who, weights, minlength=len(self.names))


class _Reading:
    """The answers of each annotator, read by one explanation."""

    def __init__(self, found: Explanation, answers: Answers, k: int) -> None:
        self.found = found
        self.fitted = _fitted_rates(found, answers, k)
        self.independent = np.zeros(k)
        self.as_one = np.zeros(k)
        self.odds = np.zeros((k, len(ODDS)))
        self.at_open = np.zeros(k)

    def add(
        self,
        rows: Rows,
        member: sparse.csr_array,
        at: NDArray[np.int64],
        who: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> None:
        k = len(self.independent)
        truth = truth_given(self.found, rows, 0.0)
        right = _right(member, truth, at)
        self.independent += np.bincount(who, counts * (1 - right), minlength=k)
        self._add_odds(member, truth, at, who, counts)
        if (rows.evidence.numbers > 1).any():
            right = _right(member, truth_given(self.found, rows, 1.0), at)
        self.as_one += np.bincount(who, counts * (1 - right), minlength=k)

    def _add_odds(
        self,
        member: sparse.csr_array,
        truth: Floats,
        at: NDArray[np.int64],
        who: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> None:
        """Count answers by their odds to be right, if the row is of a known class.

        Answers to open rows are wrong whatever the annotator's error rate, unless they say so.
        """
        known = 1 - truth[at, -1]
        of_class = np.concatenate([truth[:, :-1], np.zeros((len(truth), 1))], axis=1)
        right = _right(member, of_class, at)
        odds = np.clip(logit(np.clip(right / np.maximum(known, 1e-12), 0, 1)), ODDS[0], ODDS[-1])
        place = np.rint((odds - ODDS[0]) / (ODDS[1] - ODDS[0])).astype(np.int64)
        cells = np.bincount(who * len(ODDS) + place, counts * known, minlength=self.odds.size)
        self.odds += cells.reshape(self.odds.shape)
        says_none = member[:, [member.shape[1] - 1]].toarray()[:, 0]
        at_open = counts * (1 - known) * (1 - says_none)
        self.at_open += np.bincount(who, at_open, minlength=len(self.at_open))

    def shares(self, counts: Floats) -> tuple[list[Floats], Floats]:
        """(shares by all assumptions, number of answers that they are worth)."""
        own, worth = own_rates(self.odds, self.fitted)
        own = (own * self.odds.sum(axis=1) + self.at_open) / counts
        return [self.independent / counts, self.as_one / counts, own], worth


def own_rates(odds: Floats, fitted: Floats) -> tuple[Floats, Floats]:
    """Estimate each annotator's own error rate, where a shared one was assumed.

    By EM, as class shares are corrected in a classifier's outputs: an answer that was right with
    odds o at the error rate r is right with odds o * (1 - e) / e * r / (1 - r) at the rate e, and
    e is the mean probability of the answers to be wrong, with half an answer added to either side.

    Parameters
    ----------
    odds : array of shape (k, len(ODDS))
        How many answers of each annotator have the log odds `ODDS` to be right.
    fitted : array of shape (k,)
        The error rates that were assumed.

    Returns
    -------
    rates : array of shape (k,)
    worth : array of shape (k,)
        How many answers with known truth would say as much: the information of all answers, less
        what is missing because it is not known which of them are wrong (Louis, 1982).

    References
    ----------
    M. Saerens et al., Adjusting the outputs of a classifier to new a priori probabilities, 2002.
    T. A. Louis, Finding the observed information matrix when using the EM algorithm, 1982.

    Examples
    --------
    >>> sure = np.zeros((1, len(ODDS)))
    >>> sure[0, 0] = 10  # answers that are wrong for certain
    >>> sure[0, -1] = 90
    >>> rates, worth = own_rates(sure, np.array([0.3]))
    >>> rates.round(3), worth.round()
    (array([0.104]), array([100.]))
    """
    total = odds.sum(axis=1)
    rates = fitted
    wrong = np.zeros_like(odds)
    for _ in range(ROUNDS):
        shift = logit(fitted) - logit(rates)
        wrong = expit(-(ODDS + shift[:, None]))
        rates = np.minimum(((odds * wrong).sum(axis=1) + 0.5) / (total + 1), RATE[1])
    missing = (odds * wrong * (1 - wrong)).sum(axis=1) / (rates * (1 - rates))
    return rates, np.maximum(total - missing, 1)


def _fitted_rates(found: Explanation, answers: Answers, k: int) -> Floats:
    """(k,) the error rate that an explanation assumes of each annotator; the last may be others."""
    process = found.process
    assert isinstance(process, Confusion)
    rates = np.full(k, _error(process.matrix, found))
    if isinstance(process, AnnotatorConfusion):
        for number, annotator in enumerate(_by_activity(answers)[:LISTED].tolist()):
            rates[number] = _error(process.matrix_of(annotator), found)
    return np.clip(rates, *RATE)


def _error(matrix: Floats, found: Explanation) -> float:
    """How often answers are wrong: the row misleads, it is hard, or the annotator errs."""
    right = float(found.classes @ np.diag(matrix))
    if (hard := found.difficulty) is not None:
        right = (1 - hard.share) * right + hard.share * (1 - hard.error)
    return 1 - (1 - found.misled) * right


def other_readings(study: Study | Census) -> list[Explanation]:
    """List the explanations of answers that an interval must hold.

    Parameters
    ----------
    study : Study or Census

    Returns
    -------
    list of Explanation
        None unless people's answers were explained by confusion matrices.
    """
    if not isinstance(study, Census) or not isinstance(study.process, Confusion):
        return []
    return [reading for found in study.found.believed for reading in blamed(found)]


def stretch_of(study: Study | Census, estimate: RatesEstimate) -> tuple[float, float]:
    """Compute how far below and above an estimated share the truth may be.

    Parameters
    ----------
    study : Study or Census
    estimate : RatesEstimate

    Returns
    -------
    low, high : float
        The ends of the interval of the outside share, divided by the share; (1, 1) if several
        answers to a row say more.

    Examples
    --------
    >>> found = RatesEstimate(0.1, 0.0, 0.1, (0.05, 0.2), (0.0, 0.1), (0.05, 0.2))
    >>> stretch_of(None, found)
    (0.5, 2.0)
    """
    if other_readings(study) and not _is_flat(study):
        return 1.0, 1.0
    point = max(estimate.outside, LEAST_SHARE)
    low, high = estimate.outside_interval
    return min(low / point, 1.0), max(high / point, 1.0)


def _is_flat(study: Study | Census) -> bool:
    """Whether there is one answer per row."""
    process = study.process if isinstance(study, Census) else None
    return isinstance(process, Confusion) and process.flat


def with_none(posterior: Floats) -> Floats:
    """Add the probability of none of the classes as a last column.

    Parameters
    ----------
    posterior : array of shape (b, c)

    Returns
    -------
    array of shape (b, c + 1)
    """
    none = np.maximum(0, 1 - posterior.sum(axis=1, keepdims=True))
    return np.concatenate([posterior, none], axis=1)


def _right(member: sparse.csr_array, truth: Floats, at: NDArray[np.int64]) -> Floats:
    """(m,) probability of each answer to be right; `truth` (b, c + 1), `at` the answers' rows."""
    entries = truth[np.repeat(at, np.diff(member.indptr)), member.indices]
    return np.minimum(np.add.reduceat(entries, member.indptr[:-1]), 1)


# ---- confused labels


def confused(
    missed: Floats,
    member: sparse.csr_array,
    weights: NDArray[Any],
    group: NDArray[np.int64] | None = None,
    n_groups: int = 1,
) -> sparse.csr_array:
    """Count wrong answers by truth and given label; one of several labels is shared among them.

    Parameters
    ----------
    missed : array of shape (m, c)
        Probability of each class to be the truth of the answer's row; 0 for the answer's labels.
    member : sparse array of shape (m, c + 1)
        The labels of each answer; the last column is none of the classes.
    weights : array of shape (m,)
        How often each answer counts.
    group : int array of shape (m,), optional
        Whose answer it is.
    n_groups : int

    Returns
    -------
    sparse array of shape (n_groups * c, c + 1)
        Expected numbers: the matrix of group g starts at row g * c. Where there are more than
        WIDEST classes, those with a probability below NEGLIGIBLE are not counted.

    Examples
    --------
    >>> member = sparse.csr_array(np.array([[0.0, 1, 1, 0]]))
    >>> confused(np.array([[0.8, 0, 0]]), member, np.ones(1)).toarray()[0]
    array([0. , 0.4, 0.4, 0. ])
    """
    c = missed.shape[1]
    answer, truth = np.nonzero(missed > (NEGLIGIBLE if c > WIDEST else 0))
    row = truth if group is None else group[answer] * c + truth
    place = (row, answer)
    expected = sparse.csr_array((missed[answer, truth], place), (n_groups * c, len(missed)))
    each = weights / np.maximum(np.diff(member.indptr), 1)
    return expected @ (sparse.diags_array(each.astype(np.float64)) @ member)


def most_confused(
    counted: sparse.csr_array, total: Floats, classes: list[Any], least: float = 0.5
) -> list[dict[str, Any]]:
    """List the pairs of labels that are confused most often.

    Parameters
    ----------
    counted : sparse array of shape (c, c + 1)
        Expected numbers by truth and given label.
    total : array of shape (c,)
        All expected numbers by truth.
    classes : list
        The class labels.
    least : float
        Smaller expected numbers are left out.

    Returns
    -------
    list of dict
        `truth` and `given`, labels; `rows`: the expected number; `share`: of all of that truth.

    Examples
    --------
    >>> counted = sparse.csr_array(np.array([[0, 2.0, 0], [0.25, 0, 0]]))
    >>> most_confused(counted, np.array([8.0, 5.0]), ["a", "b"])
    [{'truth': 'a', 'given': 'b', 'rows': 2.0, 'share': 0.25}]
    """
    entries = counted.tocoo()
    truth, given = entries.coords
    labels = [*classes, NO_CLASS_TEXT]
    order = np.lexsort((given, truth, -entries.data))[:PAIRS]
    return [
        {
            "truth": labels[truth[i]],
            "given": labels[given[i]],
            "rows": float(entries.data[i]),
            "share": float(entries.data[i] / max(total[truth[i]], 1e-12)),
        }
        for i in order.tolist()
        if entries.data[i] >= least
    ]


def _by_activity(answers: Answers) -> NDArray[np.int64]:
    """Annotators with any answer, those with most answers first."""
    counts = np.bincount(answers.annotator, answers.counts, minlength=len(answers.annotators))
    return np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]


def _most_active(answers: Answers) -> tuple[list[Any], NDArray[np.int64]]:
    """(names, number of each answer's annotator among them); those beyond LISTED are one."""
    order = _by_activity(answers)
    listed = min(len(order), LISTED)
    number = np.full(len(answers.annotators), listed, dtype=np.int64)
    number[order[:listed]] = np.arange(listed)
    names = answers.annotators[order[:listed]].tolist()
    return [*names, *([OTHERS] if len(order) > LISTED else [])], number[answers.annotator]


def wilson(share: float, n: float, z: float = NORMAL_90) -> tuple[float, float]:
    """Compute Wilson's score interval of an observed share.

    Parameters
    ----------
    share : float
    n : float
        Number of observations.
    z : float
        Half the width in standard errors; 90 % by default.

    Returns
    -------
    low, high : float

    Examples
    --------
    >>> low, high = wilson(0.5, 100)
    >>> round(low, 3), round(high, 3)
    (0.419, 0.581)
    """
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, middle - reach), min(1.0, middle + reach)
