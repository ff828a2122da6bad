"""Which process explains the candidate sets? By likelihood on held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from candidly.auditing.census import Census, rows_of, take_census
from candidly.auditing.crowd import Rows, fit_explanation, log_joint
from candidly.auditing.evidence import Observed, Outputs, make_reference, observe
from candidly.auditing.hypotheses import compared_size
from candidly.auditing.mixture import design, explain, fit_mixture
from candidly.auditing.processes import NAMES, PROCESSES, Process
from candidly.auditing.processes.annotators import AnnotatorConfusion, active_annotators
from candidly.auditing.processes.confusion import Confusion
from candidly.auditing.processes.inclusion import Inclusion
from candidly.auditing.processes.union import MOST, Union
from candidly.auditing.rates import FEW, Study, ranking_excess, sample, study
from candidly.errors import InputError

# Standard errors by which wrong candidates may follow the model's ranking before other processes
# are tried: sets drawn blindly are recognised without that cost.
HINT = 2.0
ROUNDS = 30  # of EM for a comparison

Floats = NDArray[np.floating[Any]]


def make_study(outputs: Outputs, process: str = "auto") -> Study | Census:
    """Choose the process and fit it.

    Parameters
    ----------
    outputs : Outputs
        Candidate sets, answers and a model's outputs.
    process : str
        "auto", or a name of `candidly.auditing.processes.NAMES`.

    Returns
    -------
    Study or Census
        The first for blind sets.

    Raises
    ------
    InputError
        If the process is unknown, or cannot explain such sets.
    """
    if process not in ("auto", *NAMES):
        raise InputError(f"process={process!r}: expected one of {', '.join(('auto', *NAMES))}.")
    if process == "blind":
        return study(outputs)
    if process != "auto":
        return take_census(outputs, _forced(outputs, process))
    if several_answers(outputs):
        return take_census(outputs, _of_answers(outputs))
    is_single = bool((outputs.sets.sizes == 1).all())
    if (is_single and len(outputs) >= FEW) or _none_votes(outputs):
        return take_census(outputs, Confusion)
    found = study(outputs)
    other = _better_than_blind(outputs, found)
    return found if other is None else take_census(_without_answers(outputs), other)


def several_answers(outputs: Outputs) -> bool:
    """Check whether any row has more than one answer.

    Parameters
    ----------
    outputs : Outputs

    Returns
    -------
    bool
    """
    answers = outputs.answers
    if answers is None or not len(answers.row):
        return False
    return bool((answers.counts > 1).any() or (np.diff(answers.row) == 0).any())


def _none_votes(outputs: Outputs) -> bool:
    answers = outputs.answers
    return answers is not None and bool((answers.indices == answers.n_classes).any())


def _without_answers(outputs: Outputs) -> Outputs:
    return replace(outputs, answers=None)


def _forced(outputs: Outputs, process: str) -> type[Process]:
    """The process that the user asks for, if it can explain such sets."""
    unnamed = outputs.answers is None and (outputs.sets.sizes > 1).any()
    if process in ("confusion", "annotators") and unnamed:
        raise InputError(
            f"process={process!r} needs to know who said what: pass answers=. For sets that "
            "join several answers, use process='union'."
        )
    if process == "union" and (most := int(outputs.sets.sizes.max())) > MOST:
        raise InputError(
            f"process='union' explains sets of at most {MOST} candidates; one has {most}."
        )
    return PROCESSES[process]


def _of_answers(outputs: Outputs) -> type[Process]:
    """One matrix for all annotators, or one for each?"""
    rows, _ = _compared(outputs)
    if len(active_annotators(rows.evidence)) < 2:
        return Confusion
    both = (Confusion, AnnotatorConfusion)
    fits = [held_out(rows, process.start) for process in both]
    return both[int(np.argmax(fits))]


def _better_than_blind(outputs: Outputs, found: Study) -> Process | type[Process] | None:
    """A process that explains the sets better than blind candidates do, if there is one.

    `inclusion` is the last resort, even where it fits best: it can explain any set with the truth
    inside, and so finds no row whose truth is outside.
    """
    c = outputs.sets.n_classes
    if len(outputs) < FEW or ranking_excess(found.mixture, found.seen) < HINT:
        return None
    rows, seen = _compared(outputs)
    blind = _blind_held_out(seen, c)
    unions: Sequence[Callable[..., Process]] = [partial(Union.start, k=k) for k in _numbers(rows)]
    for starts in (unions, [Inclusion.start]):
        fits = [held_out(rows, start) for start in starts]
        if fits and max(fits) > blind:
            return starts[int(np.argmax(fits))](rows.evidence)
    return None


def _numbers(rows: Rows) -> range:
    """How many answers may be joined in these sets."""
    return range(max(2, int(rows.evidence.sets.sizes.max())), MOST + 1)


def _compared(outputs: Outputs) -> tuple[Rows, Observed]:
    chosen = sample(len(outputs), compared_size(outputs.sets.n_classes))
    seen = observe(outputs, chosen, make_reference(outputs, chosen))
    return rows_of(outputs, chosen, seen), seen


def halves(n: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Split rows into two random halves: fit to one, judge by the other, and the reverse.

    Parameters
    ----------
    n : int

    Returns
    -------
    list of two (rows to fit, rows to judge by)
    """
    order = np.random.default_rng(1).permutation(n)
    first, second = np.sort(order[: n // 2]), np.sort(order[n // 2 :])
    return [(first, second), (second, first)]


def held_out(rows: Rows, start: Callable[..., Process]) -> float:
    """Compute the log likelihood of held-out rows under a process.

    Parameters
    ----------
    rows : Rows
    start : function
        Makes a first guess of the process from `Evidence`.

    Returns
    -------
    float
    """
    total = 0.0
    for train, held in halves(len(rows)):
        part = rows[train]
        found = fit_explanation(start(part.evidence), part, with_open=False, rounds=ROUNDS)
        total += float(logsumexp(log_joint(found, rows[held]), axis=1).sum())
    return total


def _blind_held_out(seen: Observed, c: int) -> float:
    """The same under blind sets: P(S) = P(size) * how likely S is among the sets of its size."""
    total = 0.0
    for train, held in halves(len(seen.sizes)):
        mixture = fit_mixture(_taken(seen, train), c, with_open=False)
        part = _taken(seen, held)
        joint, _, _ = explain(mixture, part, design(mixture, part.scores), part.rest[mixture.power])
        sizes = np.bincount(seen.sizes[train], minlength=c + 1) + 1.0 / c
        log_size = np.log(sizes / sizes.sum())[part.sizes]
        s = part.sizes
        ways = gammaln(c + 1) - gammaln(s + 1) - gammaln(c - s + 1)
        total += float((np.log(np.maximum(joint.sum(axis=0), 1e-300)) + log_size - ways).sum())
    return total


def _taken(seen: Observed, rows: NDArray[np.int64]) -> Observed:
    """The numbers of some rows."""
    return Observed(
        *(
            value[:, rows] if name in ("rest", "spread") else value[rows]
            for name, value in seen._asdict().items()
        )
    )
