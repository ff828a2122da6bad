"""Self-injection: make rows of which the kind is known, and see whether an audit finds them. No truth is needed.

Closed rows are made of confidently normal ones: their label leaves the set for a wrong one. Open rows are made by
hiding a class: its column leaves the outputs, its rows stay. What was injected is known, so that each score can be
judged, and shares can be compared with what was added. Only rows that the model is sure of can be injected, so a
rehearsal is easier than the audit: where it fails the audit cannot be relied on, but not the other way round. For that
reason probabilities are not calibrated on injected rows: they would come out too sure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from candidly.auditing.evidence import POWERS, Outputs, read_outputs
from candidly.auditing.rates import Study, sample, study
from candidly.auditing.verdicts import judge_rows, make_judges
from candidly.corruption import misplace
from candidly.metrics import auroc
from candidly.sets import CandidateSets

SURE = 0.9  # probability above which a row is confidently normal, with a label
SHARE = 0.1  # of the rows, made closed
HIDDEN = 5  # classes hidden, one at a time: the most frequent ones

Rows = NDArray[np.int64]


class Injected(NamedTuple):
    """Outputs and sets with rows of known kind among them."""

    outputs: Outputs
    injected: Rows  # rows made closed or open
    untouched: Rows  # rows that were as confidently normal, and still are


class Rehearsal(NamedTuple):
    """What was found of the injected rows: numbers near 1 say that an audit of these data can be relied on."""

    closed_response: float  # rise of the closed share per share injected
    open_response: float  # rise of the open share per share injected, mean over hidden classes
    closed_auroc: float  # of p_closed, injected rows against untouched ones
    open_auroc: float  # of p_open, the same
    scores: dict[
        str, float
    ]  # AUROC of each score alone for hidden classes: which of them sees open rows


def rehearse(
    candidates: Any, probs: Any = None, *, logits: Any = None, features: Any = None, seed: int = 0
) -> Rehearsal:
    """Inject closed rows, then hide classes one at a time, and audit each: arguments as of `audit`."""
    outputs = _sampled(read_outputs(candidates, probs, logits, features))
    found, rng = study(outputs), np.random.default_rng(seed)
    sure, labels = confident(outputs, found)
    closed = _judged(misplaced(outputs, sure, labels, rng), found, kind=1)
    common = np.bincount(labels[sure], minlength=outputs.sets.n_classes)
    hidden = [
        int(k) for k in np.argsort(-common, kind="stable")[:HIDDEN] if 0 < common[k] < len(sure)
    ]
    if outputs.sets.n_classes < 3 or not hidden:
        return Rehearsal(closed[0], np.nan, closed[1], np.nan, {})
    opened = [_judged(hide_class(outputs, sure, labels, k, rng), found, kind=2) for k in hidden]
    names = ("p_open", *outputs.score_names)
    means = np.array([[one[0], *one[1:]] for one in opened]).mean(axis=0)
    return Rehearsal(
        closed[0],
        float(means[0]),
        closed[1],
        float(means[1]),
        dict(zip(names[1:], means[2:].tolist(), strict=True)),
    )


def confident(outputs: Outputs, found: Study) -> tuple[Rows, NDArray[np.int64]]:
    """(rows that are normal with a label that is right, both with a probability above SURE; the labels of all rows)."""
    post, suggestion = judge_rows(make_judges(found), found.seen, POWERS)
    sure = (
        (post[:, 0] > SURE)
        & (suggestion[:, 1] > SURE)
        & (found.seen.sizes < outputs.sets.n_classes)
    )
    return np.flatnonzero(sure), suggestion[:, 0].astype(np.int64)


def misplaced(
    outputs: Outputs, sure: Rows, labels: NDArray[np.int64], rng: np.random.Generator
) -> Injected:
    """A SHARE of all rows, taken from the sure ones, become closed."""
    count = min(len(sure) // 2, int(SHARE * len(outputs)))
    mask = outputs.sets.dense()
    mask[sure], chosen = misplace(mask[sure], labels[sure], count, rng)
    sets = CandidateSets(mask, classes=outputs.sets.classes)
    made = Outputs(sets, outputs.values, outputs.logits, outputs.features)
    return Injected(made, sure[chosen], np.delete(sure, chosen))


def hide_class(
    outputs: Outputs, sure: Rows, labels: NDArray[np.int64], k: int, rng: np.random.Generator
) -> Injected:
    """Without class k, the sure rows of that class are open. Other rows that have no other candidate are left out."""
    mask = np.delete(outputs.sets.dense(), k, axis=1)
    injected = np.zeros(len(mask), dtype=bool)
    injected[sure[labels[sure] == k]] = True
    lonely = np.flatnonzero(injected & ~mask.any(axis=1))
    mask[lonely, rng.integers(mask.shape[1], size=len(lonely))] = True
    kept = np.flatnonzero(mask.any(axis=1))
    values = np.delete(np.asarray(outputs.values, dtype=np.float64), k, axis=1)[kept]
    if not outputs.logits:
        values = np.maximum(values, 1e-12)
        values /= values.sum(axis=1, keepdims=True)
    sets = CandidateSets(mask[kept], classes=np.delete(outputs.sets.classes, k))
    features = None if outputs.features is None else outputs.features[kept]
    new = np.searchsorted(kept, sure)
    untouched = np.setdiff1d(new[labels[sure] != k], np.flatnonzero(injected[kept]))
    return Injected(
        Outputs(sets, values, outputs.logits, features), np.flatnonzero(injected[kept]), untouched
    )


def _judged(made: Injected, before: Study, kind: int) -> list[float]:
    """[rise of the share per share injected, AUROC of the probability, AUROC of each score]."""
    found, n = study(made.outputs), len(made.outputs)
    p = judge_rows(make_judges(found), found.seen, POWERS)[0][:, kind]
    shares = [(s.estimate.closed, s.estimate.open)[kind - 1] for s in (before, found)]
    rows = np.concatenate([made.injected, made.untouched])
    positive = np.arange(len(rows)) < len(made.injected)
    values = [p[rows], *(found.seen.scores[rows].T if kind == 2 else [])]
    return [
        (shares[1] - shares[0]) * n / max(len(made.injected), 1),
        *(auroc(v, positive) or np.nan for v in values),
    ]


def _sampled(outputs: Outputs) -> Outputs:
    rows = sample(len(outputs))
    if len(rows) == len(outputs):
        return outputs
    features = None if outputs.features is None else np.asarray(outputs.features[rows])
    return Outputs(outputs.sets[rows], np.asarray(outputs.values[rows]), outputs.logits, features)
