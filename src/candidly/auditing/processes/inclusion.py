"""Each class joins the set by itself, with a probability that depends on the truth.

    P(S | t) = product of matrix[t, j] over j in S, and of 1 - matrix[t, j] over the others

The truth is left out at one rate for all classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from candidly.auditing.processes.base import Evidence, Floats, Process

PRIOR_ROWS = 10.0  # per class, with which the overall frequency counts
LEAST = 1e-4


@dataclass(frozen=True)
class Inclusion(Process):
    """Probabilities of each class to be a candidate, by truth.

    Attributes
    ----------
    matrix : array of shape (c, c)
        matrix[t, j]: probability that j is a candidate where t is the truth.
    """

    name: ClassVar[str] = "inclusion"
    words: ClassVar[str] = "wrong candidates that depend on the true class"

    matrix: Floats

    @classmethod
    def start(cls, evidence: Evidence) -> Inclusion:
        overall = _frequency(evidence)
        matrix = np.tile(overall, (evidence.n_classes, 1))
        np.fill_diagonal(matrix, 0.9)
        return cls(matrix)

    def log_likelihood(self, evidence: Evidence) -> Floats:
        odds = np.log(self.matrix / (1 - self.matrix))
        return _dense(evidence) @ odds.T + np.log1p(-self.matrix).sum(axis=1)

    def fitted(self, evidence: Evidence, posterior: Floats) -> Inclusion:
        total = posterior.sum(axis=0)[:, None]
        included = posterior.T @ _dense(evidence)
        matrix = (included + PRIOR_ROWS * _frequency(evidence)) / (total + PRIOR_ROWS)
        held = np.trace(included) / max(float(total.sum()), 1e-12)
        np.fill_diagonal(matrix, held)
        return Inclusion(np.clip(matrix, LEAST, 1 - LEAST))


def _dense(evidence: Evidence) -> Floats:
    return evidence.sets.dense().astype(np.float64)


def _frequency(evidence: Evidence) -> Floats:
    """(c,) how often each class is a candidate."""
    counts = np.bincount(evidence.sets.indices, minlength=evidence.n_classes)
    return np.clip((counts + 1) / (len(evidence) + 2), LEAST, 1 - LEAST)
