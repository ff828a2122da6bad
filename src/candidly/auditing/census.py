"""How many rows have the truth outside their set, if people's answers follow a process?

A process is fitted with and without open rows (`hypotheses`); the shares that follow have bounds
where the data cannot tell (`shares`), and notes say what is assumed (`caveats`). Where wrong
candidates depend on the truth (`inclusion`), there are only bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from candidly.auditing.caveats import caveats
from candidly.auditing.crowd import DEPENDENCE, Rows
from candidly.auditing.evidence import Observed, Outputs, Reference, make_reference, observe
from candidly.auditing.hypotheses import Weighed, explain
from candidly.auditing.processes import Evidence, Process
from candidly.auditing.processes.base import Floats
from candidly.auditing.processes.confusion import Confusion
from candidly.auditing.processes.inclusion import Inclusion
from candidly.auditing.processes.union import Union
from candidly.auditing.rates import (
    FEW,
    INTERVAL_FACTOR,
    NORMAL_90,
    PRIOR_ROWS,
    RatesEstimate,
    best_misses,
    chance_note,
    few_note,
    sample,
)
from candidly.auditing.shares import (
    Shares,
    certain_shares,
    guessed_open,
    of_several_answers,
    of_single_answers,
)
from candidly.scores import log_softmax

SAMPLED_ENTRIES = 2_000_000  # rows times classes that a process is fitted to
MOST_SAMPLED = 20_000  # rows
MODEL_ERROR = 0.005  # added to both ends of an interval: models err
# A model whose best class is the answer less often than this does not overrule a single answer.
OVERRULES = 0.5


@dataclass(frozen=True)
class Census:
    """Fitted explanations of a sample of rows, and the shares that follow.

    Attributes
    ----------
    estimate : RatesEstimate
    found : Weighed
        Explanations with and without open rows.
    reference : Reference or None
        Rows that others are compared with, if there are features.
    overrules : bool
        Whether the model may overrule what all answers to a row say.
    rows : Rows
        The sample.
    """

    estimate: RatesEstimate
    found: Weighed
    reference: Reference | None
    overrules: bool
    rows: Rows

    @property
    def process(self) -> Process:
        """The fitted process that annotators and verdicts are read from."""
        return self.found.process

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
        return self.found.posterior(rows, dependence)


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
    found = explain(first, rows)
    single = isinstance(found.without.process, Confusion) and found.without.process.flat
    if single:
        shares, found = of_single_answers(found, rows)
    else:
        shares = of_several_answers(found, rows)
    overrules = not single or float(seen.hit.mean()) >= OVERRULES
    estimate = _estimate(shares, found, rows, seen)
    return Census(estimate, found, reference, overrules, rows)


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


def _estimate(shares: Shares, found: Weighed, rows: Rows, seen: Observed) -> RatesEstimate:
    n = len(rows)
    c = rows.evidence.n_classes
    process = found.without.process
    ends = np.array(shares)  # (3, 3): closed, open, outside; low, point, high
    point = ends[:, 1].copy()
    guessed = 0.0 if found.full.guesses is not None else guessed_open(rows)
    ends[1:, 2] = np.maximum(ends[1:, 2], [guessed, point[2] + guessed])
    errors = NORMAL_90 * INTERVAL_FACTOR * np.sqrt(np.maximum(ends * (1 - ends), 0) / n)
    low = ends[:, 0] - errors[:, 0] - MODEL_ERROR
    high = ends[:, 2] + errors[:, 2] + MODEL_ERROR
    if isinstance(process, Inclusion):
        low = np.zeros(3)
        high = np.maximum(high, best_misses(seen, c))
    if isinstance(process, Union):
        high = np.minimum(high, np.maximum(ends[:, 1], best_misses(seen, c)))
    low = np.maximum(low, certain_shares(rows))
    if n < FEW:
        point = point * n / (n + PRIOR_ROWS)
        low, high = np.zeros(3), np.ones(3)
    low = np.clip(np.minimum(low, point), 0, 1)
    high = np.clip(np.maximum(high, point), 0, 1)
    intervals = [(float(a), float(b)) for a, b in zip(low, high, strict=True)]
    chance = chance_note(seen, c)
    notes = (*caveats(shares, found, rows, guessed), *few_note(n))
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
