"""Notes on an estimate: what is assumed, and where the data cannot tell."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from candidly.auditing.crowd import NO_GOLD, Explanation, Rows
from candidly.auditing.hypotheses import Weighed
from candidly.auditing.processes import Process
from candidly.auditing.processes.confusion import Confusion
from candidly.auditing.processes.inclusion import Inclusion
from candidly.auditing.processes.union import Union
from candidly.auditing.rates import MENTION_OPEN
from candidly.auditing.shares import Shares, agreeing_pairs, certain_shares, conflicts
from candidly.scores import log_softmax

MENTION_CONFLICTS = 0.02  # share of rows where a sure model contradicts all people
UNANIMITY_LIMIT = 3.5  # standard errors by which answers may agree more than expected


def caveats(shares: Shares, found: Weighed, rows: Rows, guessed: float) -> Iterator[str]:
    """Say what is assumed, and where the data cannot tell.

    Parameters
    ----------
    shares : Shares
    found : Weighed
    rows : Rows
    guessed : float
        Bound of the open rows at which people guess.

    Yields
    ------
    str
    """
    process = found.without.process
    yield from _gold_note(rows)
    if isinstance(process, Confusion) and process.flat:
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
        if found.full.guesses is not None:
            yield (
                "At some rows people disagree as if they guessed. They are counted as rows of no "
                "class; if they are just difficult, the low end applies."
            )
            return
        yield from _conflict_note(found.full)
        yield from _unanimity_note(rows, process)
        if guessed > MENTION_OPEN:
            yield (
                "If people guess at rows that fit no class, such rows look like difficult ones. "
                f"Up to {guessed:.0%} of the rows could be open, since people disagree more where "
                "the model is in doubt."
            )
    if MENTION_OPEN < found.weight <= 0.99:
        yield (
            "The data cannot tell open rows from difficult rows of known classes: it is "
            f"{found.weight:.0%} likely that there are open rows."
        )


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
