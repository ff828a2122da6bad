"""What injected rows, whose kind is known without any truth, would do for an audit; a part of audit_find.py.

Two uses are tried. Calibration: an isotonic map from the probabilities of injected and untouched rows, weighted to the
estimated shares, to what they are. Choice: the score that tells rows of hidden classes best
takes the place of `p_open`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.isotonic import IsotonicRegression

from audit_data import Case
from candidly.auditing.evidence import POWERS, read_outputs
from candidly.auditing.rates import study
from candidly.auditing.verdicts import judge_rows, make_judges
from candidly.injection import Injected, confident, hide_class, misplaced
from candidly.kinds import CLOSED, NORMAL, OPEN
from candidly.metrics import auroc, average_precision

BINS = 15


class Rehearsed(NamedTuple):
    """Injected and untouched rows: which are injected, their probability of that kind, and their scores."""

    is_injected: np.ndarray
    p: np.ndarray
    scores: np.ndarray


def calibration_error(p: np.ndarray, true: np.ndarray, bins: int = BINS) -> float:
    """Mean distance between stated and true frequency, over bins of equal count."""
    parts = np.array_split(np.argsort(p, kind="stable"), bins)
    return float(
        sum(abs(p[part].mean() - true[part].mean()) * len(part) for part in parts) / len(p)
    )


def measure(chosen: Case, seed: int = 0) -> dict[str, Any]:
    """Of p_closed and p_open: AUROC against normal rows [injected, real], calibration error [as it is, calibrated], and
    average precision [as it is, after calibration and choice]."""
    outputs, rng = (
        read_outputs(chosen.candidates, None, chosen.logits, None),
        np.random.default_rng(seed),
    )
    found = study(outputs)
    sure, labels = confident(outputs, found)
    common = np.argsort(
        -np.bincount(labels[sure], minlength=outputs.sets.n_classes), kind="stable"
    )[:2]
    made = {
        CLOSED: [_rehearse(misplaced(outputs, sure, labels, rng), CLOSED)],
        OPEN: [_rehearse(hide_class(outputs, sure, labels, int(k), rng), OPEN) for k in common],
    }
    post, result = judge_rows(make_judges(found), found.seen, POWERS)[0], {}
    for kind, name, share in (
        (CLOSED, "closed", found.estimate.closed),
        (OPEN, "open", found.estimate.open),
    ):
        parts = [part for part in made[kind] if 0 < part.is_injected.sum() < len(part.p)]
        true, p, rows = (
            chosen.kinds == kind,
            post[:, kind],
            (chosen.kinds == kind) | (chosen.kinds == NORMAL),
        )
        if not parts:
            continue
        new = _calibrated(parts, p, share)
        ranks = new if kind == CLOSED else _best_score(parts, p, found.seen.scores)
        result[name] = {
            "auroc": [
                float(np.mean([auroc(q.p, q.is_injected) for q in parts])),
                auroc(p[rows], true[rows]),
            ],
            "error": [calibration_error(p, true), calibration_error(new, true)],
            "found": [average_precision(p, true), average_precision(ranks, true)],
        }
    return result


def _rehearse(made: Injected, kind: int) -> Rehearsed:
    found = study(made.outputs)
    rows = np.concatenate([made.injected, made.untouched])
    p = judge_rows(make_judges(found), found.seen, POWERS)[0][rows, kind]
    return Rehearsed(np.arange(len(rows)) < len(made.injected), p, found.seen.scores[rows])


def _calibrated(parts: list[Rehearsed], p: np.ndarray, share: float) -> np.ndarray:
    y, x = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("is_injected", "p")
    )
    weights = np.where(y, share / y.sum(), (1 - share) / (~y).sum())
    return (
        IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
        .fit(x, y, sample_weight=weights)
        .predict(p)
    )


def _best_score(parts: list[Rehearsed], p: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """`p_open` or one of the scores: whichever tells rows of hidden classes best."""
    every = [np.column_stack([part.p, part.scores]) for part in parts]
    means = [
        np.mean([auroc(e[:, k], q.is_injected) for e, q in zip(every, parts, strict=True)])
        for k in range(every[0].shape[1])
    ]
    return np.column_stack([p, scores])[:, int(np.argmax(means))]
