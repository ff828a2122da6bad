"""Quality of a model, a selection and an audit. Only here do truth and kinds enter."""

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
    """Compute the share of rows whose largest logit is at the true label.

    Parameters
    ----------
    logits : array or tensor of shape (n, c)
    labels : int array of shape (n,)
        Class indices.

    Returns
    -------
    float

    Examples
    --------
    >>> import numpy as np
    >>> accuracy([[2.0, 1.0], [0.0, 3.0]], np.array([0, 0]))
    0.5
    """
    return float((as_numpy(logits).argmax(-1) == labels).mean())


def selection_quality(
    selection: Selection, scores: tuple[Any, Any] | None, kinds: np.ndarray
) -> dict[str, float | None]:
    """Measure a selection against the true kinds.

    Parameters
    ----------
    selection : Selection
        Masks of the normal, closed and open examples.
    scores : tuple of arrays, optional
        (margin, open score) of each example, by which they were selected.
    kinds : array of shape (n,)
        The true kinds.

    Returns
    -------
    dict
        Precision and recall of each group; `auroc_closed` of the margin, closed against normal
        examples; `auroc_open` of the open score, open against all others. None where there is
        nothing to measure.
    """
    quality: dict[str, float | None] = {}
    for number, (name, mask) in enumerate(zip(KINDS, selection, strict=True)):
        chosen = as_numpy(mask)
        true = kinds == number
        quality[f"precision_{name}"] = float(true[chosen].mean()) if chosen.any() else None
        quality[f"recall_{name}"] = float(chosen[true].mean()) if true.any() else None
    if scores is not None:
        margin, open_score = map(as_numpy, scores)
        known = kinds != OPEN
        quality["auroc_closed"] = auroc(-margin[known], kinds[known] == CLOSED)
        quality["auroc_open"] = auroc(open_score, ~known)
    return quality


def auroc(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """Compute the probability that a positive example scores above a negative one.

    Parameters
    ----------
    scores : array of shape (n,)
        They may be infinite. Ties count half.
    positive : bool array of shape (n,)

    Returns
    -------
    float or None
        None if there are only positives or only negatives.

    Examples
    --------
    >>> import numpy as np
    >>> auroc(np.array([3.0, 2.0, 1.0, 2.0]), np.array([True, False, False, True]))
    0.875
    """
    n = int(positive.sum())
    if not 0 < n < len(positive):
        return None
    return float((rankdata(scores)[positive].mean() - (n + 1) / 2) / (len(positive) - n))


def final_score(history: list[dict[str, Any]], key: str = "accuracy") -> float:
    """Average a metric over the last 10 epochs, or the last tenth of a training shorter than 100.

    It is never the best epoch, which only the test set could choose.

    Parameters
    ----------
    history : list of dict
        One row of metrics per epoch.
    key : str, default="accuracy"
        Name of the metric.

    Returns
    -------
    float

    Examples
    --------
    >>> final_score([{"accuracy": epoch / 20} for epoch in range(20)])
    0.925
    """
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
    """Measure how well an audit found the rows whose truth is outside their set.

    Parameters
    ----------
    sets : CandidateSets
    kinds : array of shape (n, 3)
        The audit's probabilities of the kinds.
    best : array of shape (n,)
        The model's best class.
    audit : pandas.DataFrame
        What `candidly.audit` returned.
    naive : array of shape (n,)
        The rule to compare with: the model's mass outside the candidates.
    truth : array of shape (n,)
        Class indices; -1 for no class, less where the truth is not known.

    Returns
    -------
    dict or None
        Shares, accuracies, and average precisions (`ap_...`); None if no truth is known.
    """
    known = truth >= -1
    if not known.any():
        return None
    covered = sets.contains(np.maximum(truth, -1))
    of_class = truth >= 0
    outside = known & ~covered
    closed = of_class & ~covered
    open_ = truth == -1
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
    """Compute the average precision of ranking rows by their scores.

    Parameters
    ----------
    scores : array of shape (n,)
    positive : bool array of shape (n,)

    Returns
    -------
    float or None
        None without positives.

    Examples
    --------
    >>> import numpy as np
    >>> average_precision(np.array([3.0, 2.0, 1.0, 0.0]), np.array([True, False, False, True]))
    0.75
    """
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(positive, scores)) if positive.any() else None
