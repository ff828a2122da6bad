"""What is reported of a training: accuracy and precision of the selection. Only here do truth and kinds enter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from candidly.corruption import KINDS

if TYPE_CHECKING:
    from candidly.selection import Selection


def accuracy(logits: Any, labels: Any) -> float:
    """Share of rows whose largest logit is at the true label."""
    return float((as_numpy(logits).argmax(-1) == labels).mean())


def selection_precision(selection: Selection, kinds: np.ndarray) -> dict[str, float | None]:
    """Precision of each selected group: the share of its members that are truly of that kind; None if it is empty."""
    groups = zip(KINDS, selection, strict=True)
    members = {name: kinds[as_numpy(group)] == number for number, (name, group) in enumerate(groups)}
    return {f"precision_{name}": float(hits.mean()) if len(hits) else None for name, hits in members.items()}


def as_numpy(values: Any) -> np.ndarray:
    """An array, or a tensor on any device, as a NumPy array."""
    return np.asarray(values.cpu() if hasattr(values, "cpu") else values)


def final_score(history: list[dict[str, Any]], key: str = "accuracy") -> float:
    """Mean over the last 10 epochs, or over the last tenth of a training shorter than 100: never the best epoch."""
    last = min(10, max(1, len(history) // 10))
    return float(np.mean([row[key] for row in history[-last:]]))
