"""What is reported of a training: accuracy and quality of the selection. Only here do truth and kinds enter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import rankdata

from candidly.corruption import CLOSED, KINDS, OPEN

if TYPE_CHECKING:
    from candidly.selection import Selection


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


def as_numpy(values: Any) -> np.ndarray:
    """An array, or a tensor on any device, as a NumPy array."""
    return np.asarray(values.cpu() if hasattr(values, "cpu") else values)


def final_score(history: list[dict[str, Any]], key: str = "accuracy") -> float:
    """Mean over the last 10 epochs, or over the last tenth of a training shorter than 100: never the best epoch."""
    last = min(10, max(1, len(history) // 10))
    return float(np.mean([row[key] for row in history[-last:]]))
