"""What rows of known kind, made without any truth, would do for an audit; a part of audit_find.py.

Closed rows are made of confidently normal ones: their label leaves the set, and a wrong one takes
its place. Open rows are made by hiding a class: its column leaves the outputs, its rows stay. Only
rows that the model is sure of can be injected, so that they are easier to find than real ones.

Two uses are measured. Calibration: an isotonic map from the probabilities of injected and untouched
rows, weighted to the estimated shares, to what they are. Choice: the score that separates rows of
hidden classes best replaces `p_open`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression

from audit_data import Case
from candidly.auditing.evidence import POWERS, Outputs, read_outputs
from candidly.auditing.rates import Study, study
from candidly.auditing.verdicts import judge_rows, make_judges
from candidly.corruption import misplace
from candidly.kinds import CLOSED, NORMAL, OPEN
from candidly.metrics import auroc, average_precision
from candidly.sets import CandidateSets

SURE = 0.9  # probability above which a row is confidently normal, with a label
SHARE = 0.1  # of the rows, made closed
BINS = 15

Rows = NDArray[np.int64]


class Injected(NamedTuple):
    """Outputs and sets with rows of known kind among them.

    `injected` rows were made closed or open; `untouched` ones were as confidently normal, and
    still are.
    """

    outputs: Outputs
    injected: Rows
    untouched: Rows


class Rehearsed(NamedTuple):
    """Injected and untouched rows: which are injected, their probability of it, their scores."""

    is_injected: np.ndarray
    p: np.ndarray
    scores: np.ndarray


def confident(outputs: Outputs, found: Study) -> tuple[Rows, NDArray[np.int64]]:
    """Return (rows that are surely normal and have a sure label, the labels of all rows)."""
    post, suggestion = judge_rows(make_judges(found), found.seen, POWERS)
    is_normal = post[:, 0] > SURE
    is_labelled = suggestion[:, 1] > SURE
    is_partial = found.seen.sizes < outputs.sets.n_classes
    return np.flatnonzero(is_normal & is_labelled & is_partial), suggestion[:, 0].astype(np.int64)


def misplaced(
    outputs: Outputs, sure: Rows, labels: NDArray[np.int64], rng: np.random.Generator
) -> Injected:
    """Make a SHARE of all rows closed, taken from the sure ones."""
    count = min(len(sure) // 2, int(SHARE * len(outputs)))
    mask = outputs.sets.dense()
    mask[sure], chosen = misplace(mask[sure], labels[sure], count, rng)
    sets = CandidateSets(mask, classes=outputs.sets.classes)
    made = Outputs(sets, outputs.values, outputs.logits, outputs.features)
    return Injected(made, sure[chosen], np.delete(sure, chosen))


def hide_class(
    outputs: Outputs, sure: Rows, labels: NDArray[np.int64], k: int, rng: np.random.Generator
) -> Injected:
    """Hide class k, so that its sure rows are open; drop other rows without another candidate."""
    mask = np.delete(outputs.sets.dense(), k, axis=1)
    injected = np.zeros(len(mask), dtype=bool)
    injected[sure[labels[sure] == k]] = True
    empty = np.flatnonzero(injected & ~mask.any(axis=1))
    mask[empty, rng.integers(mask.shape[1], size=len(empty))] = True
    rows = np.flatnonzero(mask.any(axis=1))
    values = np.delete(np.asarray(outputs.values, dtype=np.float64), k, axis=1)[rows]
    if not outputs.logits:
        values = np.maximum(values, 1e-12)
        values /= values.sum(axis=1, keepdims=True)
    sets = CandidateSets(mask[rows], classes=np.delete(outputs.sets.classes, k))
    features = None if outputs.features is None else outputs.features[rows]
    made = Outputs(sets, values, outputs.logits, features)
    opened = np.flatnonzero(injected[rows])
    others = np.searchsorted(rows, sure)[labels[sure] != k]
    return Injected(made, opened, np.setdiff1d(others, opened))


def calibration_error(p: np.ndarray, true: np.ndarray, bins: int = BINS) -> float:
    """Average the distance between stated and true frequency over bins of equal count."""
    parts = np.array_split(np.argsort(p, kind="stable"), bins)
    distances = [abs(p[part].mean() - true[part].mean()) * len(part) for part in parts]
    return float(sum(distances) / len(p))


def measure(chosen: Case, seed: int = 0) -> dict[str, Any]:
    """Compare an audit with what injected rows would make of it, for closed and open rows.

    Returns
    -------
    dict
        By kind: "auroc" against normal rows [injected, real], calibration "error" [as it is,
        calibrated], and average precision ("found") [as it is, after calibration and choice].
    """
    outputs = read_outputs(chosen.candidates, None, chosen.logits, None)
    rng = np.random.default_rng(seed)
    found = study(outputs)
    sure, labels = confident(outputs, found)
    counts = np.bincount(labels[sure], minlength=outputs.sets.n_classes)
    common = np.argsort(-counts, kind="stable")[:2]
    closed = [_rehearse(misplaced(outputs, sure, labels, rng), CLOSED)]
    opened = [_rehearse(hide_class(outputs, sure, labels, int(k), rng), OPEN) for k in common]
    post = judge_rows(make_judges(found), found.seen, POWERS)[0]
    estimate = found.estimate
    result = {}
    for kind, name, share, made in (
        (CLOSED, "closed", estimate.closed, closed),
        (OPEN, "open", estimate.open, opened),
    ):
        parts = [part for part in made if 0 < part.is_injected.sum() < len(part.p)]
        if not parts:
            continue
        true = chosen.kinds == kind
        rows = true | (chosen.kinds == NORMAL)
        p = post[:, kind]
        calibrated = _calibrated(parts, p, share)
        ranks = calibrated if kind == CLOSED else _best_score(parts, p, found.seen.scores)
        injected = np.mean([auroc(part.p, part.is_injected) for part in parts])
        result[name] = {
            "auroc": [float(injected), auroc(p[rows], true[rows])],
            "error": [calibration_error(p, true), calibration_error(calibrated, true)],
            "found": [average_precision(p, true), average_precision(ranks, true)],
        }
    return result


def _rehearse(made: Injected, kind: int) -> Rehearsed:
    found = study(made.outputs)
    rows = np.concatenate([made.injected, made.untouched])
    p = judge_rows(make_judges(found), found.seen, POWERS)[0][rows, kind]
    return Rehearsed(np.arange(len(rows)) < len(made.injected), p, found.seen.scores[rows])


def _calibrated(parts: list[Rehearsed], p: np.ndarray, share: float) -> np.ndarray:
    is_injected = np.concatenate([part.is_injected for part in parts])
    stated = np.concatenate([part.p for part in parts])
    weights = np.where(is_injected, share / is_injected.sum(), (1 - share) / (~is_injected).sum())
    isotonic = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
    return isotonic.fit(stated, is_injected, sample_weight=weights).predict(p)


def _best_score(parts: list[Rehearsed], p: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Take `p_open` or one of the scores: whichever separates rows of hidden classes best."""
    columns = [np.column_stack([part.p, part.scores]) for part in parts]
    means = []
    for k in range(columns[0].shape[1]):
        values = [auroc(c[:, k], part.is_injected) for c, part in zip(columns, parts, strict=True)]
        means.append(np.mean(values))
    return np.column_stack([p, scores])[:, int(np.argmax(means))]
