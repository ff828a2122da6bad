"""What is reported of a training: accuracy and quality of the selection. Only here do truth and kinds enter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import rankdata

from candidly.checks import as_numpy
from candidly.kinds import CLOSED, KINDS, OPEN

if TYPE_CHECKING:
    import pandas as pd

    from candidly.kinds import Selection
    from candidly.sets import CandidateSets


def accuracy(logits: Any, labels: Any) -> float:
    """Share of rows whose largest logit is at the true label."""
    return float((as_numpy(logits).argmax(-1) == labels).mean())


def selection_quality(
    selection: Selection, scores: tuple[Any, Any] | None, kinds: np.ndarray
) -> dict[str, float | None]:
    """Precision and recall of each selected group, and how well the scores (margin, openness) rank: `auroc_closed` of
    closed against normal examples, `auroc_open` of open against all others. None where there is nothing to measure."""
    quality: dict[str, float | None] = {}
    for number, (name, mask) in enumerate(zip(KINDS, selection, strict=True)):
        chosen, true = as_numpy(mask), kinds == number
        quality[f"precision_{name}"] = float(true[chosen].mean()) if chosen.any() else None
        quality[f"recall_{name}"] = float(chosen[true].mean()) if true.any() else None
    if scores is not None:
        margin, openness = map(as_numpy, scores)
        known = kinds != OPEN
        quality["auroc_closed"] = auroc(-margin[known], kinds[known] == CLOSED)
        quality["auroc_open"] = auroc(openness, ~known)
    return quality


def auroc(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """Probability that a positive example scores above a negative one; ties count half, infinite scores are fine."""
    n = int(positive.sum())
    if not 0 < n < len(positive):
        return None
    return float((rankdata(scores)[positive].mean() - (n + 1) / 2) / (len(positive) - n))


def final_score(history: list[dict[str, Any]], key: str = "accuracy") -> float:
    """Mean over the last 10 epochs, or over the last tenth of a training shorter than 100: never the best epoch."""
    last = min(10, max(1, len(history) // 10))
    return float(np.mean([row[key] for row in history[-last:]]))


def audit_quality(
    sets: CandidateSets,
    kinds: np.ndarray,
    best: np.ndarray,
    audit: pd.DataFrame,
    naive: np.ndarray,
    truth: np.ndarray,
) -> dict[str, float | int | None] | None:
    """How well an audit found the rows whose truth is outside their set, where the truth is known; None if nowhere.

    kinds: (n, 3) its probabilities. best: (n,) the model's best class. naive: (n,) the rule to compare with, 1 - the
    mass inside the candidates. truth: (n,) class indices, -1 for no class, less where it is not known. `ap_...` are
    average precisions.
    """
    known = truth >= -1
    if not known.any():
        return None
    inside = sets.contains(np.maximum(truth, -1))
    of_class = truth >= 0
    outside, closed, open_ = known & ~inside, of_class & ~inside, truth == -1
    suggested = audit["suggested_label"].cat.codes.to_numpy()
    return {
        "known": int(known.sum()),
        "outside": float(outside[known].mean()),
        "closed": float(closed[known].mean()),
        "open": float(open_[known].mean()),
        "accuracy": _mean(best == truth, of_class),
        "suggested_right": _mean(
            suggested == truth, closed & (audit["verdict"] == "closed").to_numpy()
        ),
        "ap_outside": average_precision(1 - kinds[known, 0], outside[known]),
        "ap_naive": average_precision(naive[known], outside[known]),
        "ap_closed": average_precision(kinds[known, 1], closed[known]),
        "ap_open": average_precision(kinds[known, 2], open_[known]),
    }


def _mean(values: np.ndarray, where: np.ndarray) -> float | None:
    return float(values[where].mean()) if where.any() else None


def average_precision(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """Mean precision at the positives when rows are taken by falling score, rows of equal score together."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(positive, scores)) if positive.any() else None
