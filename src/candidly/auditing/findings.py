"""What an audit found, as plain values of bounded size, for the report, the terminal and `--json`.

Everything is collected in one pass over blocks of rows; of a million rows only the worst ones and a
sample are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from candidly.answers import Answers
from candidly.auditing.annotators import AnnotatorTally
from candidly.auditing.evidence import Outputs
from candidly.auditing.posterior import Block, blocks, probabilities
from candidly.auditing.rates import RatesEstimate
from candidly.kinds import KINDS
from candidly.metrics import audit_quality

if TYPE_CHECKING:
    import pandas as pd

SUSPECTS = 30  # of each kind
LEAST = 0.05  # probability of the kind below which a row is no suspect
POINTS = 3000  # rows that are drawn
CURVE = 150  # points of the curve of a review
CLASSES = 500  # with an entry each: those that are missed most often
LIKELY = 4  # classes whose probabilities a suspect shows
NAMES = 12  # labels of a set that are shown
WIDTH = 80  # characters of a name that are shown


def collect_findings(
    outputs: Outputs,
    audit: pd.DataFrame,
    estimate: RatesEstimate,
    *,
    answers: Answers | None = None,
    truth: NDArray[np.int64] | None = None,
) -> dict[str, Any]:
    """Collect what the report shows, as values that JSON can hold.

    Parameters
    ----------
    outputs : Outputs
        Candidate sets and a model's outputs.
    audit : pandas.DataFrame
        What `audit` returned for them.
    estimate : RatesEstimate
        What `estimate_rates` returned for them.
    answers : Answers, optional
        Who proposed what; adds a table of annotators.
    truth : array of shape (n,), optional
        Class indices, NO_CLASS or UNKNOWN; adds an evaluation.

    Returns
    -------
    dict
        JSON-serialisable.
    """
    kinds = audit[[f"p_{kind}" for kind in KINDS]].to_numpy()
    classes = outputs.sets.classes.tolist()
    by_class = _ClassTally(len(classes))
    best = np.empty(len(audit), dtype=np.int64)
    mass = np.empty(len(audit))
    by_annotator = None if answers is None else AnnotatorTally(answers, len(classes), truth)
    for block in blocks(outputs, kinds):
        best[block.rows] = block.probs.argmax(axis=1)
        mass[block.rows] = (block.probs * block.mask).sum(axis=1)
        by_class.add(block, 1 - kinds[block.rows, 0])
        if by_annotator is not None:
            by_annotator.add(block.rows, block.posterior)
    quality = None
    if truth is not None:
        quality = audit_quality(outputs.sets, kinds, best, audit, 1 - mass, truth)
    drawable = _drawable(audit)
    return {
        "rows": len(audit),
        "classes": len(classes),
        "shares": _shares(estimate),
        "notes": list(estimate.notes),
        "verdicts": {kind: int((audit["verdict"] == kind).sum()) for kind in KINDS},
        "class_table": by_class.table(classes),
        "annotators": None if by_annotator is None else by_annotator.table(classes),
        "evaluation": quality,
        "suspects": {
            kind: _suspects(outputs, audit, kinds, k) for k, kind in enumerate(KINDS) if k
        },
        "points": _points(outputs, audit, drawable),
        "points_of": len(drawable),
        "review": _review(1 - kinds[:, 0], outputs, truth),
    }


def _shares(estimate: RatesEstimate) -> dict[str, dict[str, float]]:
    """Collect the estimated shares with their intervals."""
    found = {}
    for name in ("outside", "closed", "open"):
        low, high = getattr(estimate, f"{name}_interval")
        found[name] = {
            "share": float(getattr(estimate, name)),
            "low": float(low),
            "high": float(high),
        }
    return found


class _ClassTally:
    """Sums over the rows for each class."""

    def __init__(self, n_classes: int) -> None:
        self.proposed, self.doubted, self.missed, self.total = np.zeros((4, n_classes))

    def add(self, block: Block, outside: NDArray[Any]) -> None:
        """Add a block of rows; `outside` (b,) is the probability of each that its set is wrong."""
        self.proposed += block.mask.sum(axis=0)
        self.doubted += outside @ block.mask
        self.missed += np.where(block.mask, 0, block.posterior).sum(axis=0)
        self.total += block.posterior.sum(axis=0)

    def table(self, classes: list[Any]) -> list[dict[str, Any]]:
        """Make one entry per class, the most often missed first.

        `proposed`: rows that have it as a candidate; `doubted`: the share of them with the truth
        outside their set; `estimated`: rows whose truth it probably is; `missed`: those of them
        where it is not a candidate.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            doubted = np.nan_to_num(self.doubted / self.proposed)
        return [
            {
                "label": _shown(classes[j]),
                "proposed": int(self.proposed[j]),
                "doubted": float(doubted[j]),
                "estimated": float(self.total[j]),
                "missed": float(self.missed[j]),
            }
            for j in np.argsort(-self.missed, kind="stable")[:CLASSES].tolist()
        ]


def _shown(label: Any) -> Any:
    """Make a label fit for JSON; a long one is cut."""
    if isinstance(label, bool | int | float):
        return label
    text = str(label)
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def _describe(outputs: Outputs, audit: pd.DataFrame, row: int) -> dict[str, Any]:
    """Describe one row of an audit, with its candidates."""
    entry = audit.iloc[row]
    labels = outputs.sets[row]
    name = entry["id"].item() if isinstance(entry["id"], np.generic) else entry["id"]
    suggestion = None if entry["verdict"] == "open" else _shown(entry["suggested_label"])
    return {
        "row": row,
        "id": _shown(name),
        "candidates": [
            *map(_shown, labels[:NAMES]),
            *([f"… {len(labels) - NAMES} more"] if len(labels) > NAMES else []),
        ],
        "verdict": entry["verdict"],
        "suggestion": suggestion,
        "probability": round(float(entry["suggested_probability"]), 4),
        **{f"p_{kind}": round(float(entry[f"p_{kind}"]), 4) for kind in KINDS},
    }


def _suspects(
    outputs: Outputs, audit: pd.DataFrame, kinds: NDArray[Any], kind: int
) -> list[dict[str, Any]]:
    """The rows that are most probably of this kind, the most probable first."""
    p = kinds[:, kind]
    top = np.argpartition(-p, min(SUSPECTS, len(p)) - 1)[:SUSPECTS]
    top = top[np.lexsort((top, kinds[top, 0], -p[top]))]
    return [_suspect(outputs, audit, row, kind) for row in top.tolist() if p[row] > LEAST]


def _suspect(outputs: Outputs, audit: pd.DataFrame, row: int, kind: int) -> dict[str, Any]:
    """Describe a row with the model's best classes.

    A row that may be closed suggests a class outside its set, even if it was judged normal.
    """
    entry = _describe(outputs, audit, row)
    likely = _likely(outputs, row)
    if KINDS[kind] == "closed" and entry["verdict"] == "normal":
        entry["suggestion"] = next(
            (best["label"] for best in likely if not best["candidate"]), None
        )
    return entry | {"likely": likely}


def _likely(outputs: Outputs, row: int) -> list[dict[str, Any]]:
    """The model's best classes."""
    p = probabilities(outputs, [row])[0]
    members = outputs.sets.dense(row)[0]
    best = np.argsort(-p, kind="stable")[:LIKELY].tolist()
    classes = outputs.sets.classes.tolist()
    return [
        {"label": _shown(classes[j]), "p": round(float(p[j]), 4), "candidate": bool(members[j])}
        for j in best
    ]


def _drawable(audit: pd.DataFrame) -> NDArray[np.int64]:
    """Rows with two finite losses: a set of all classes has no outside."""
    return np.flatnonzero(np.isfinite(audit["inside_loss"]) & np.isfinite(audit["outside_loss"]))


def _points(outputs: Outputs, audit: pd.DataFrame, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Losses and description of these rows, or of a random sample of them."""
    if len(rows) > POINTS:
        rows = np.sort(np.random.default_rng(0).choice(rows, POINTS, replace=False))
    losses = audit[["inside_loss", "outside_loss"]].iloc[rows].to_numpy(np.float64).round(3)
    return [
        {"inside": inside, "outside": outside} | _describe(outputs, audit, row)
        for (inside, outside), row in zip(losses.tolist(), rows.tolist(), strict=True)
    ]


def _review(
    outside: NDArray[Any], outputs: Outputs, truth: NDArray[np.int64] | None
) -> list[dict[str, Any]]:
    """How many errors to expect, and if known to find, among the N most suspicious rows."""
    order = np.argsort(-outside, kind="stable")
    expected = np.cumsum(outside[order])
    most = min(len(order), max(50, round(2 * float(expected[-1]))))
    found = None
    if truth is not None and (truth >= -1).all():
        found = np.cumsum(~outputs.sets.contains(truth)[order])
    steps = np.unique(np.linspace(1, most, min(CURVE, most)).round().astype(int))
    return [
        {
            "rows": int(n),
            "expected": float(expected[n - 1]),
            "blind": float(expected[-1] * n / len(order)),
        }
        | ({} if found is None else {"found": int(found[n - 1])})
        for n in steps.tolist()
    ]
