"""A candidate set is the union of K answers, each drawn from the truth's row of a matrix.

    P(S | t) = sum over subsets A of S of (-1)^(|S| - |A|) * matrix[t](A)^K

by inclusion and exclusion, where matrix[t](A) is the probability of an answer in A. Who gave which
answer, and how often, is not known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from candidly.auditing.processes.base import Evidence, Floats, Process
from candidly.auditing.processes.confusion import (
    START_ERROR,
    error_rate,
    marginal,
    shrunk,
    with_error,
)

MOST = 6  # answers; a set has 2^K subsets


@dataclass(frozen=True)
class Union(Process):
    """One confusion matrix, and K answers per row.

    Attributes
    ----------
    matrix : array of shape (c, c + 1)
        As in `Confusion`.
    k : int
        The number of answers, at least as many as the widest set has labels.
    """

    name: ClassVar[str] = "union"
    words: ClassVar[str] = "sets that combine the answers of several people"

    matrix: Floats
    k: int

    @classmethod
    def start(cls, evidence: Evidence, k: int | None = None) -> Union:
        most = int(evidence.sets.sizes.max())
        return cls(with_error(START_ERROR, marginal(evidence)), max(most, k or 0))

    def log_likelihood(self, evidence: Evidence) -> Floats:
        found = np.full(evidence.sets.shape, -np.inf)
        for rows, members in by_size(evidence):
            if members.shape[1] <= self.k:
                total = sum(sign * mass**self.k for sign, mass, _ in self._subsets(members))
                found[rows] = np.log(np.maximum(total, 1e-300))
        return np.where(np.isfinite(found), found, -700.0)

    def fitted(self, evidence: Evidence, posterior: Floats) -> Union:
        c = evidence.n_classes
        counted = np.zeros((c, c + 1))
        for rows, members in by_size(evidence):
            if members.shape[1] > self.k:
                continue
            likely = sum(sign * mass**self.k for sign, mass, _ in self._subsets(members))
            weight = posterior[rows] / np.maximum(likely, 1e-300)
            for place in range(members.shape[1]):
                rest = sum(
                    sign * mass ** (self.k - 1)
                    for sign, mass, subset in self._subsets(members)
                    if subset >> place & 1
                )
                drawn = self.k * self.matrix[:, members[:, place]].T * rest * weight
                np.add.at(counted.T, members[:, place], np.maximum(drawn, 0))
        return replace(
            self, matrix=shrunk(counted, with_error(error_rate(counted), marginal(evidence)))
        )

    def _subsets(self, members: NDArray[Any]) -> Any:
        """Yield (sign, (b, c) probability of an answer in the subset, the subset as bits)."""
        size = members.shape[1]
        each = self.matrix[:, members].transpose(1, 2, 0)
        for subset in range(1, 1 << size):
            inside = [place for place in range(size) if subset >> place & 1]
            yield (-1) ** (size - len(inside)), each[:, inside].sum(axis=1), subset

    def answers_per_row(self, evidence: Evidence) -> NDArray[np.int64]:
        return np.full(len(evidence), self.k)


def by_size(evidence: Evidence) -> list[tuple[NDArray[np.int64], NDArray[Any]]]:
    """Group rows by the size of their set.

    Parameters
    ----------
    evidence : Evidence

    Returns
    -------
    list of (rows, members)
        `members` of shape (b, size): the candidates of these rows.
    """
    sets = evidence.sets
    groups = []
    for size in np.unique(sets.sizes).tolist():
        rows = np.flatnonzero(sets.sizes == size)
        members = sets.indices[sets.indptr[rows][:, None] + np.arange(size)]
        groups.append((rows, members.astype(np.int64)))
    return groups
