"""Are there open rows, and do people guess at them? Two explanations, weighed by likelihood."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit

from candidly.auditing import urn
from candidly.auditing.crowd import (
    DEPENDENCE,
    Explanation,
    Rows,
    first_guess,
    fit_explanation,
    truth_given,
)
from candidly.auditing.processes import Process
from candidly.auditing.processes.base import Floats
from candidly.auditing.processes.confusion import Confusion
from candidly.auditing.rates import FEW, INTERVAL_FACTOR, sample

COMPARED_ENTRIES = 500_000  # rows times classes that explanations are compared on
N_GUESSES = 4  # parameters of `Guesses`
GUESS_ROUNDS = 40  # of EM, to find out whether people guess
SURE_OF_GUESSES = 0.99
BELIEVED = 0.01  # probability above which an explanation counts


@dataclass(frozen=True)
class Weighed:
    """Two explanations of the same rows, and how likely they are.

    Attributes
    ----------
    full, without : Explanation
        With and without open rows or, if people guess at some, with and without guesses.
    weight : float
        Probability of the first, against the second.
    """

    full: Explanation
    without: Explanation
    weight: float

    @property
    def process(self) -> Process:
        """The process of the likelier one."""
        return self.full.process if self.weight > 0.5 else self.without.process

    @property
    def believed(self) -> list[Explanation]:
        """Those that an interval must hold: guesses may always be errors at hard rows."""
        chances = ((self.full, self.weight), (self.without, 1 - self.weight))
        guessing = self.full.guesses is not None
        return [found for found, chance in chances if chance > BELIEVED or guessing]

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
        if self.weight > 0.999:
            return truth_given(self.full, rows, dependence)
        if self.weight < 0.001:
            return truth_given(self.without, rows, dependence)
        parts = [truth_given(found, rows, dependence) for found in (self.full, self.without)]
        return self.weight * parts[0] + (1 - self.weight) * parts[1]


def explain(first: Process, rows: Rows) -> Weighed:
    """Fit a process with and without open rows, and weigh the two.

    Open rows, agreed on or guessed at, must explain the answers better than hard rows of known
    classes do. If people guess, the second has open rows that they agree on.

    Parameters
    ----------
    first : Process
        A first guess.
    rows : Rows

    Returns
    -------
    Weighed
    """
    if (guessed := explain_guesses(first, rows)) is not None:
        full, without = (fit_explanation(_independent(found), rows) for found in guessed)
        return Weighed(full, without, _weight(full, without, N_GUESSES, rows))
    without = fit_explanation(first, rows, with_open=False)
    full = fit_explanation(first, rows, with_open=True)
    weight = _weight_of_open(full, without, rows)
    if weight > BELIEVED and has_matrix(first) and not _has_open_gold(rows):
        without = fit_explanation(first, rows, with_open=False, with_difficulty=True)
        weight = min(weight, _weight(full, without, 0, rows))
    return Weighed(full, without, weight)


def _independent(found: Explanation) -> Explanation:
    """Take the answers to hard rows for independent: `DEPENDENCE` counts copies, once."""
    assert found.difficulty is not None
    return replace(found, difficulty=replace(found.difficulty, concentration=None))


def has_matrix(process: Process) -> bool:
    """Check whether there are confusions to learn, from several answers per row.

    Parameters
    ----------
    process : Process

    Returns
    -------
    bool
    """
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
    if not has_matrix(first) or len(rows) < FEW or all_full:
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
