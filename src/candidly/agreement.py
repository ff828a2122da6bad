"""How well annotators agree: Krippendorff's alpha, and Cohen's kappa of pairs."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.answers import Answers
from candidly.blocks import row_blocks

# Rows that two annotators must both have answered for a kappa.
COMMON_ROWS = 10


def krippendorff_alpha(answers: Answers) -> float:
    """Compute Krippendorff's alpha: agreement beyond chance, over all annotators and rows.

    .. math:: \\alpha = 1 - D_o / D_e

    D_o is the mean distance of two answers to one row, D_e that of any two answers. The distance
    of two label sets is :math:`1 - |A \\cap B| / |A \\cup B|`; of single labels, whether they
    differ. Rows with one answer do not count.

    Parameters
    ----------
    answers : Answers
        Who answered what, named or anonymous. "None of the classes" is a label like any other.

    Returns
    -------
    float
        1 for full agreement, about 0 for chance, negative for less than chance; NaN if no row has
        two answers, or if all answers are the same.

    References
    ----------
    K. Krippendorff, Content Analysis: An Introduction to Its Methodology, 2004, chapter 11.

    Examples
    --------
    >>> round(krippendorff_alpha(Answers([["a", "a"], ["b", "b"], ["a", "b"]])), 3)
    0.444
    """
    given = _pairable(answers)
    total = given.counts.sum()
    if total < 2:
        return math.nan
    in_row = np.bincount(given.row, given.counts)
    alike = np.bincount(given.row, given.counts**2) + 2 * _shared_in_rows(given)
    several = in_row > 1
    observed = ((in_row**2 - alike)[several] / (in_row[several] - 1)).sum() / total
    used = np.bincount(given.kind, given.counts, minlength=given.sets.shape[0])
    expected = (total**2 - _alike_by_chance(given.sets, used)) / (total * (total - 1))
    return 1 - float(observed / expected) if expected > 0 else math.nan


class _Given(NamedTuple):
    """How often each distinct answer was given to each row that has several answers."""

    row: NDArray[np.int64]
    kind: NDArray[np.int64]  # the number of the distinct answer
    counts: NDArray[Any]
    sets: sparse.csr_array  # one row per distinct answer


def _pairable(answers: Answers) -> _Given:
    """Count the distinct answers of each row; leave out rows with one answer."""
    # A set is recognised by the sum of random numbers, one per class.
    codes = np.random.default_rng(0).integers(2**63, size=answers.n_classes + 1, dtype=np.uint64)
    if not len(answers.row):
        empty = np.zeros(0, dtype=np.int64)
        return _Given(empty, empty, np.zeros(0), answers.membership())
    pattern = np.add.reduceat(codes[answers.indices], answers.indptr[:-1])
    _, first, kind = np.unique(pattern, return_index=True, return_inverse=True)
    several = np.bincount(answers.row, answers.counts)[answers.row] > 1
    keys, at = np.unique(answers.row[several] * len(first) + kind[several], return_inverse=True)
    counts = np.bincount(at, answers.counts[several], minlength=len(keys))
    return _Given(keys // len(first), keys % len(first), counts, answers.membership()[first])


def _shared_in_rows(given: _Given) -> NDArray[np.float64]:
    """Add the similarity of all pairs of different answers to a row; that of single labels is 0.

    Each round takes the pairs at one distance in the order of the answers.
    """
    total = np.zeros(int(given.row.max(initial=-1)) + 1)
    sizes = given.sets.sum(axis=1)
    first = np.arange(len(given.row))
    lag = 0
    while len(first) and (sizes > 1).any():
        lag += 1
        first = first[first + lag < len(given.row)]
        first = first[given.row[first] == given.row[first + lag]]
        a, b = given.kind[first], given.kind[first + lag]
        shared = given.sets[a].multiply(given.sets[b]).sum(axis=1)
        weight = given.counts[first] * given.counts[first + lag]
        similarity = shared / (sizes[a] + sizes[b] - shared)
        total += np.bincount(given.row[first], weight * similarity, minlength=len(total))
    return total


def _alike_by_chance(sets: sparse.csr_array, used: NDArray[Any]) -> float:
    """Add the similarity of any two answers, with themselves; `used` counts each distinct one."""
    sizes = sets.sum(axis=1)
    if (sizes <= 1).all():
        return float((used**2).sum())
    total = 0.0
    for block in row_blocks(sets.shape[0], sets.shape[0]):
        shared = (sets[block] @ sets.T).tocoo()
        a, b = shared.coords[0] + block.start, shared.coords[1]
        similarity = shared.data / (sizes[a] + sizes[b] - shared.data)
        total += float((used[a] * used[b] * similarity).sum())
    return total


def pairwise_kappa(answers: Answers, most: int = 12) -> list[dict[str, Any]]:
    """Compute Cohen's kappa of every two of the most active annotators.

    Only rows count that both answered with a single label, or with "none of the classes".

    Parameters
    ----------
    answers : Answers
        Who answered what; anonymous answers have no pairs.
    most : int, default=12
        How many annotators are compared, those with most answers first.

    Returns
    -------
    list of dict
        For each pair with at least 10 common rows: `first` and `second`, the names; `rows`, how
        many they have in common; `agreement`, the share of rows with the same answer; `kappa`,
        which is NaN if both gave the same label to all rows.

    References
    ----------
    J. Cohen, A coefficient of agreement for nominal scales, 1960.

    Examples
    --------
    >>> pairs = pairwise_kappa(Answers([["a", "a"], ["b", "b"], ["a", "b"], ["b", "b"]] * 5))
    >>> pairs[0]["rows"], pairs[0]["agreement"], round(pairs[0]["kappa"], 3)
    (20, 0.75, 0.5)
    """
    if answers.anonymous:
        return []
    given = np.bincount(answers.annotator, minlength=len(answers.annotators))
    chosen = np.argsort(-given, kind="stable")[:most]
    names = answers.annotators[chosen].tolist()
    labels = _single_labels(answers, chosen)
    entries = []
    for i, j in combinations(range(len(names)), 2):
        both = (labels[i] >= 0) & (labels[j] >= 0)
        if both.sum() >= COMMON_ROWS:
            kappa = _kappa(labels[i][both], labels[j][both], answers.n_classes + 1)
            entries.append({"first": names[i], "second": names[j], **kappa})
    return entries


def _single_labels(answers: Answers, chosen: NDArray[Any]) -> NDArray[np.int32]:
    """Return the label of each chosen annotator for each row, -1 if there is no single one."""
    labels = np.full((len(chosen), len(answers)), -1, dtype=np.int32)
    number = np.full(len(answers.annotators), -1)
    number[chosen] = np.arange(len(chosen))
    who = number[answers.annotator]
    is_single = np.flatnonzero((answers.sizes == 1) & (who >= 0))
    labels[who[is_single], answers.row[is_single]] = answers.indices[answers.indptr[is_single]]
    return labels


def _kappa(a: NDArray[Any], b: NDArray[Any], c: int) -> dict[str, Any]:
    """Compare two annotators on the rows that both answered."""
    n = len(a)
    agreement = float((a == b).mean())
    chance = float(np.bincount(a, minlength=c) @ np.bincount(b, minlength=c)) / n**2
    kappa = (agreement - chance) / (1 - chance) if chance < 1 else math.nan
    return {"rows": n, "agreement": agreement, "kappa": kappa}


def agreement_facts(answers: Answers) -> dict[str, Any]:
    """Collect how well annotators agree, as values that JSON can hold.

    Parameters
    ----------
    answers : Answers
        Who answered what.

    Returns
    -------
    dict
        `rows`: how many have several answers; `unanimous`: in which share of them all answers
        are the same; `alpha`: Krippendorff's; `lowest` and `highest`: the pairs of annotators
        with the lowest and highest kappa. None stands for what is not defined.

    Examples
    --------
    >>> facts = agreement_facts(Answers([["a", "a"], ["b", "b"], ["a", "b"], ["b", None]]))
    >>> facts["rows"], round(facts["unanimous"], 3), facts["lowest"]
    (3, 0.667, None)
    """
    given = _pairable(answers)
    _, kinds = np.unique(given.row, return_counts=True)
    alpha = krippendorff_alpha(answers)
    pairs = [pair for pair in pairwise_kappa(answers) if not math.isnan(pair["kappa"])]
    pairs.sort(key=lambda pair: pair["kappa"])
    return {
        "rows": len(kinds),
        "unanimous": float((kinds == 1).mean()) if len(kinds) else None,
        "alpha": None if math.isnan(alpha) else alpha,
        "lowest": pairs[0] if pairs else None,
        "highest": pairs[-1] if pairs else None,
    }
