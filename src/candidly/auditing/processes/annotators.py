"""Like `confusion`, with a matrix for each annotator, shrunk towards the shared one.

The prior of an annotator's row is the shared row, rescaled to the annotator's own error rate: an
annotator with few answers is more or less able, but confuses what all confuse.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from candidly.auditing.processes.base import Evidence, Floats, SaidBy
from candidly.auditing.processes.confusion import (
    LEAST,
    Confusion,
    error_rate,
    learnt,
    shrunk,
)

FEWEST = 30  # answers that make a matrix of one's own worthwhile
MOST = 200  # annotators with a matrix of their own
MAX_ENTRIES = 20_000_000  # of all matrices
OWN_STRENGTH = 20.0  # answers per class and label with which the shared matrix counts
OWN_PRIOR = 10.0  # answers with which the shared error rate counts


@dataclass(frozen=True)
class AnnotatorConfusion(Confusion):
    """One confusion matrix for each annotator with enough answers.

    Attributes
    ----------
    own : array of shape (k, c, c + 1)
        Their matrices.
    numbers : int array
        For each annotator, the number of their matrix in `own`, or -1 for the shared one.
    """

    name: ClassVar[str] = "annotators"
    words: ClassVar[str] = "annotators who mix up certain classes, each in their own way"

    own: Floats
    numbers: NDArray[np.int64]

    @classmethod
    def start(cls, evidence: Evidence) -> AnnotatorConfusion:
        shared = Confusion.start(evidence)
        chosen = active_annotators(evidence)
        n_annotators = 1 if evidence.answers is None else len(evidence.answers.annotators)
        numbers = np.full(n_annotators, -1, dtype=np.int64)
        numbers[chosen] = np.arange(len(chosen))
        own = np.tile(shared.matrix, (len(chosen), 1, 1))
        return cls(shared.matrix, shared.error, shared.flat, own, numbers)

    def log_likelihood(self, evidence: Evidence) -> Floats:
        return self._said(evidence).log_likelihood(self._matrices)

    def fitted(self, evidence: Evidence, posterior: Floats) -> AnnotatorConfusion:
        shared = Confusion.fitted(self, evidence, posterior)
        assert isinstance(shared, AnnotatorConfusion)
        posterior = learnt(evidence, posterior, self.flat)
        counted = self._said(evidence).counted(self._matrices, posterior)[1:]
        own = [shrunk(mine, able(shared.matrix, mine), OWN_STRENGTH) for mine in counted]
        return replace(shared, own=np.array(own).reshape(self.own.shape))

    def matrix_of(self, annotator: int) -> Floats:
        """Return the matrix of an annotator.

        Parameters
        ----------
        annotator : int
            Index into `Answers.annotators`.

        Returns
        -------
        array of shape (c, c + 1)
        """
        number = self.numbers[annotator]
        return self.matrix if number < 0 else self.own[number]

    @property
    def _matrices(self) -> Floats:
        """The shared matrix, then those of one's own."""
        return np.concatenate([self.matrix[None], self.own])

    def _said(self, evidence: Evidence) -> SaidBy:
        return evidence.said_by(self.numbers + 1, len(self.own) + 1)


def active_annotators(evidence: Evidence) -> NDArray[np.int64]:
    """Find the annotators with at least FEWEST answers, the most active first.

    Parameters
    ----------
    evidence : Evidence

    Returns
    -------
    int array
        Indices into `Answers.annotators`; none if they are anonymous.
    """
    answers = evidence.answers
    if answers is None or answers.anonymous:
        return np.empty(0, dtype=np.int64)
    counts = np.bincount(answers.annotator, minlength=len(answers.annotators))
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts >= FEWEST)]
    most = min(MOST, max(1, MAX_ENTRIES // evidence.n_classes**2))
    return order[:most]


def able(shared: Floats, counted: Floats) -> Floats:
    """Rescale the errors of the shared matrix to an annotator's own error rate.

    Parameters
    ----------
    shared, counted : arrays of shape (c, c + 1)

    Returns
    -------
    array of shape (c, c + 1)
    """
    c = len(shared)
    right = np.arange(c)
    overall = 1 - float(shared[right, right].mean())
    n = counted.sum()
    own = (error_rate(counted) * n + overall * OWN_PRIOR) / (n + OWN_PRIOR)
    wrong = shared.copy()
    wrong[right, right] = 0
    wrong *= own / max(overall, LEAST)
    wrong *= np.minimum(1, 0.95 / np.maximum(wrong.sum(axis=1, keepdims=True), LEAST))
    wrong[right, right] = 1 - wrong.sum(axis=1)
    return wrong
