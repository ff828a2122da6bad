"""How reliable each annotator is, from the answers and from where the truth probably lies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.answers import Answers
from candidly.auditing.rates import NORMAL_90
from candidly.data.dataset import NO_CLASS, UNKNOWN

LISTED = 200  # annotators with the most answers have a line each; the others share one
OTHERS = "(all others)"
MISSED = 3  # classes that are named for each


class AnnotatorTally:
    """Sums over the answers of each annotator; `add` takes the rows block by block, in order.

    Parameters
    ----------
    answers : Answers
        Who answered what. Anonymous answers are those of one annotator, "anyone".
    n_classes : int
    truth : int array of shape (n,), optional
        Class indices, NO_CLASS or UNKNOWN; adds the true share of wrong answers.
    """

    def __init__(
        self, answers: Answers, n_classes: int, truth: NDArray[np.int64] | None = None
    ) -> None:
        self.answers = answers
        self.names, self.who = _most_active(answers)
        self.outside = np.zeros(len(self.names))
        self.missed = np.zeros((len(self.names), n_classes))
        self.due = np.zeros((len(self.names), n_classes))
        self.truth = truth

    def add(self, block: slice, posterior: NDArray[Any]) -> None:
        """Add a block of rows.

        Parameters
        ----------
        block : slice
            Consecutive rows.
        posterior : array of shape (b, c)
            Probability of each class to be their truth; see `auditing.posterior`.
        """
        mine = self.answers.span(block)
        if mine.start == mine.stop:
            return
        given = self.answers.membership(block).toarray().astype(bool)
        q = posterior[self.answers.row[mine] - block.start]
        each = sparse.csr_array(
            (self.answers.counts[mine], (self.who[mine], np.arange(len(q)))),
            (len(self.names), len(q)),
        )
        # An answer of none of the classes is right if the truth is no class.
        no_class = np.maximum(0, 1 - q.sum(axis=1, keepdims=True))
        right = np.where(given, np.hstack([q, no_class]), 0).sum(axis=1)
        self.outside += each @ (1 - right)
        self.missed += each @ np.where(given[:, :-1], 0, q)
        self.due += each @ q

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
            the classes most often omitted; and `true_outside`, if any truth is known.
        """
        counts = self._summed(self.answers.counts)
        widths = self._summed(self.answers.counts * self.answers.sizes) / counts
        true_shares = self._true_shares()
        entries = []
        for k, name in enumerate(self.names):
            share = float(np.clip(self.outside[k] / counts[k], 0, 1))
            low, high = wilson(share, int(counts[k]))
            entry = {"name": name, "answers": int(counts[k]), "width": float(widths[k])}
            entry |= {"outside": share, "low": low, "high": high, "missed": self._worst(k, classes)}
            if true_shares is not None:
                entry["true_outside"] = true_shares[k]
            entries.append(entry)
        return sorted(entries, key=lambda entry: -entry["outside"])

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


def _most_active(answers: Answers) -> tuple[list[Any], NDArray[np.int64]]:
    """(names, number of each answer's annotator among them); those beyond LISTED are one."""
    counts = np.bincount(answers.annotator, answers.counts, minlength=len(answers.annotators))
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    number = np.full(len(counts), min(len(order), LISTED), dtype=np.int64)
    number[order[:LISTED]] = np.arange(min(len(order), LISTED))
    names = answers.annotators[order[:LISTED]].tolist()
    return [*names, *([OTHERS] if len(order) > LISTED else [])], number[answers.annotator]


def wilson(share: float, n: int, z: float = NORMAL_90) -> tuple[float, float]:
    """Compute Wilson's score interval of an observed share.

    Parameters
    ----------
    share : float
    n : int
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
