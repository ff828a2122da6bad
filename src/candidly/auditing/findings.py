"""What an audit found, as plain values of bounded size, for the report, the terminal and `--json`.

Everything is collected in one pass over blocks of rows; of a million rows only the worst ones and a
sample are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.agreement import agreement_facts
from candidly.answers import Answers
from candidly.auditing.annotators import (
    WIDEST,
    AnnotatorTally,
    confused,
    most_confused,
    other_readings,
    stretch_of,
)
from candidly.auditing.census import Census, rows_of
from candidly.auditing.choice import several_answers
from candidly.auditing.evidence import Outputs, observe
from candidly.auditing.posterior import Block, probabilities
from candidly.auditing.processes import PROCESSES
from candidly.auditing.rates import RatesEstimate
from candidly.cells import NO_CLASS_TEXT
from candidly.data.dataset import UNKNOWN
from candidly.kinds import KINDS
from candidly.metrics import audit_quality

if TYPE_CHECKING:
    import pandas as pd

    from candidly.auditing.verdicts import Audit

SUSPECTS = 30  # rows of a list
LEAST = 0.05  # P(open) below which a row is no suspect of being open
POINTS = 3000  # rows that are drawn
CURVE = 150  # points of the curve of a review
FOUND = (0.5, 0.8, 0.95)  # shares of the expected errors; the curve ends at the last one
SHORTEST = 50  # rows that the curve shows at least
CLASSES = 500  # with an entry each: those that are missed most often
LABELS = 30  # that majority and consensus are compared by
LIKELY = 4  # classes whose probabilities a suspect shows
NAMES = 12  # labels of a set, and answers to a row, that are shown
WIDTH = 80  # characters of a name that are shown
BLIND = "wrong candidates that are drawn blindly"


def collect_findings(audit: Audit, *, truth: NDArray[np.int64] | None = None) -> dict[str, Any]:
    """Collect what the report shows, as values that JSON can hold.

    Parameters
    ----------
    audit : Audit
        The verdicts on the rows, with the outputs and the answers behind them.
    truth : array of shape (n,), optional
        Class indices, NO_CLASS or UNKNOWN; adds an evaluation.

    Returns
    -------
    dict
        JSON-serialisable. If the model knows no more than chance, `reliable` is False, `notes` say
        why, and there are no shares, verdicts, suspects, curves or classes.
    """
    facts = _facts(audit)
    return facts | (_judgements(audit, truth) if audit.estimate.reliable else _nothing())


def _facts(audit: Audit) -> dict[str, Any]:
    """What was read, and how it is explained."""
    outputs = audit.outputs
    estimate = audit.estimate
    answers = outputs.answers
    several = several_answers(outputs)
    return {
        "rows": len(outputs),
        "classes": outputs.sets.n_classes,
        "labels": [*map(_shown, outputs.sets.classes[:WIDEST].tolist())],
        "reliable": estimate.reliable,
        "process": {"name": estimate.process, "words": process_words(estimate.process)},
        "notes": list(estimate.notes),
        "answers": None if answers is None else _answers_facts(answers),
        "agreement": _agreement(answers) if several and answers is not None else None,
        "consensus": _consensus(audit.table, answers) if several and answers is not None else None,
    }


def process_words(name: str) -> str:
    """Say in plain words how a process makes sets.

    Parameters
    ----------
    name : str
        A name of `candidly.auditing.processes.NAMES`.

    Returns
    -------
    str

    Examples
    --------
    >>> process_words("union")
    'sets that combine the answers of several people'
    """
    return BLIND if name == "blind" else PROCESSES[name].words


def _answers_facts(answers: Answers) -> dict[str, Any]:
    return {
        "annotators": None if answers.anonymous else len(answers.annotators),
        "answers": answers.n_answers,
        "rows": len(np.unique(answers.row)),
    }


def _agreement(answers: Answers) -> dict[str, Any]:
    facts = agreement_facts(answers)
    for key in ("lowest", "highest"):
        if facts[key] is not None:
            names = {name: _shown(facts[key][name]) for name in ("first", "second")}
            facts[key] = {**facts[key], **names}
    return facts


def _consensus(table: pd.DataFrame, answers: Answers) -> dict[str, Any]:
    """Compare the consensus with the majority vote, by label and row."""
    c = answers.n_classes
    vote = answers.majority()
    given = vote >= 0
    agreed = table["consensus_label"].cat.codes.to_numpy().astype(np.int64)
    agreed = np.where(agreed < 0, c, agreed)
    by_vote = np.bincount(vote[given], minlength=c + 1)
    by_consensus = np.bincount(agreed[given], minlength=c + 1)
    labels = [*answers.classes.tolist(), NO_CLASS_TEXT]
    order = np.argsort(-np.maximum(by_vote, by_consensus), kind="stable")[:LABELS]
    return {
        "rows": int(given.sum()),
        "differ": int((agreed != vote)[given].sum()),
        "labels": [
            {
                "label": _shown(labels[j]),
                "majority": int(by_vote[j]),
                "consensus": int(by_consensus[j]),
            }
            for j in order.tolist()
            if by_vote[j] or by_consensus[j]
        ],
    }


def _nothing() -> dict[str, Any]:
    """What there is to say if the model knows no more than chance."""
    return {
        "shares": None,
        "verdicts": None,
        "class_table": [],
        "confused": [],
        "annotators": None,
        "evaluation": None,
        "suspects": [],
        "open_suspects": [],
        "more": None,
        "points": [],
        "points_of": 0,
        "review": [],
        "review_at": [],
    }


def _judgements(audit: Audit, truth: NDArray[np.int64] | None) -> dict[str, Any]:
    outputs = audit.outputs
    table = audit.table
    outside = table["p_outside"].to_numpy()
    p_open = table["p_open"].to_numpy()
    if (gold := audit.outputs.gold) is not None:  # settled: nobody needs to look
        outside, p_open = (np.where(gold == UNKNOWN, p, 0.0) for p in (outside, p_open))
    tops = {"suspects": _top(outside), "open_suspects": _top(p_open, LEAST)}
    seen = _Pass(audit, truth, np.concatenate([*tops.values()]))
    for block in audit.blocks():
        seen.add(block)
    classes = list(map(_shown, outputs.sets.classes.tolist()))
    drawable = _drawable(table)
    quality = None
    if truth is not None:
        kinds = table[[f"p_{kind}" for kind in KINDS]].to_numpy()
        quality = audit_quality(outputs.sets, kinds, seen.best, table, 1 - seen.mass, truth)
    review, at = _review(outside, outputs, truth)
    return {
        "shares": _shares(audit.estimate),
        "verdicts": {kind: int((table["verdict"] == kind).sum()) for kind in KINDS},
        "class_table": seen.by_class.table(classes),
        "confused": seen.by_class.confused(classes),
        "annotators": None if seen.people is None else _people(seen.people, classes),
        "evaluation": quality,
        **{
            name: [_suspect(audit, row, seen.posterior[row]) for row in rows.tolist()]
            for name, rows in tops.items()
        },
        "more": _more(outside, tops["suspects"]),
        "points": _points(outputs, table, drawable),
        "points_of": len(drawable),
        "review": review,
        "review_at": at,
    }


class _Pass:
    """What one pass over the blocks collects."""

    def __init__(
        self, audit: Audit, truth: NDArray[np.int64] | None, kept: NDArray[np.int64]
    ) -> None:
        self.audit = audit
        outputs = audit.outputs
        c = outputs.sets.n_classes
        self.best = np.empty(len(outputs), dtype=np.int64)
        self.mass = np.empty(len(outputs))
        self.by_class = _ClassTally(c, outputs.answers)
        self.kept = np.unique(kept)
        self.posterior: dict[int, NDArray[Any]] = {}
        self.people: AnnotatorTally | None = None
        if outputs.answers is not None and len(outputs.answers.row):
            self.people = AnnotatorTally(
                outputs.answers,
                c,
                truth,
                readings=other_readings(audit.study),
                stretch=stretch_of(audit.study, audit.estimate),
            )

    def add(self, block: Block) -> None:
        self.best[block.rows] = block.probs.argmax(axis=1)
        self.mass[block.rows] = (block.probs * block.mask).sum(axis=1)
        self.by_class.add(block)
        start, stop, _ = block.rows.indices(len(self.best))
        for row in self.kept[(self.kept >= start) & (self.kept < stop)].tolist():
            self.posterior[row] = block.posterior[row - start].copy()
        if self.people is not None:
            self.people.add(block.rows, block.posterior, self._rows(block))

    def _rows(self, block: Block) -> Any:
        """What the census explains of these rows, if annotators are read in other ways too."""
        study = self.audit.study
        if self.people is None or not self.people.readings or not isinstance(study, Census):
            return None
        outputs = self.audit.outputs
        return rows_of(outputs, block.rows, observe(outputs, block.rows, study.reference, (1.0,)))


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

    def __init__(self, n_classes: int, answers: Answers | None) -> None:
        self.answers = answers
        self.proposed, self.doubted, self.missed, self.total = np.zeros((4, n_classes))
        self.pairs = sparse.csr_array((n_classes, n_classes + 1))

    def add(self, block: Block) -> None:
        """Add a block of rows."""
        missed = np.where(block.mask, 0, block.posterior)
        outside = 1 - np.where(block.mask, block.posterior, 0).sum(axis=1)
        self.proposed += block.mask.sum(axis=0)
        self.doubted += np.clip(outside, 0, 1) @ block.mask
        self.missed += missed.sum(axis=0)
        self.total += block.posterior.sum(axis=0)
        self.pairs += self._pairs(block, missed)

    def _pairs(self, block: Block, missed: NDArray[Any]) -> sparse.csr_array:
        """Count rows by truth and wrong label: of a set, or of the answers to the row."""
        if self.answers is None:
            member = sparse.csr_array(block.mask.astype(np.float64))
            member.resize(len(missed), missed.shape[1] + 1)
            return confused(missed, member, np.ones(len(missed)))
        mine = self.answers.span(block.rows)
        member = self.answers.membership(block.rows)
        at = self.answers.row[mine] - block.rows.start
        counts = self.answers.counts[mine]
        numbers = np.bincount(at, counts, minlength=len(missed))
        wrong = np.where(member[:, :-1].toarray() > 0, 0, block.posterior[at])
        return confused(wrong, member, counts / numbers[at])

    def table(self, classes: list[Any]) -> list[dict[str, Any]]:
        """Make one entry per class, the most often missed first.

        `proposed`: rows that have it as a candidate; `doubted`: the share of them with the truth
        outside their set; `estimated`: rows whose truth it probably is; `missed`: those of them
        where it is not a candidate; `share`: the share of these.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            doubted = np.nan_to_num(self.doubted / self.proposed)
            share = np.nan_to_num(self.missed / self.total)
        return [
            {
                "label": classes[j],
                "proposed": int(self.proposed[j]),
                "doubted": float(doubted[j]),
                "estimated": float(self.total[j]),
                "missed": float(self.missed[j]),
                "share": float(share[j]),
            }
            for j in np.argsort(-self.missed, kind="stable")[:CLASSES].tolist()
        ]

    def confused(self, classes: list[Any]) -> list[dict[str, Any]]:
        """List the pairs of truth and given label with the most rows.

        The row of several answers counts by the share of them that gave the wrong label; a set is
        one answer, which is shared among its candidates.
        """
        return most_confused(self.pairs, self.total, classes)


def _people(tally: AnnotatorTally, classes: list[Any]) -> list[dict[str, Any]]:
    return [{**entry, "name": _shown(entry["name"])} for entry in tally.table(classes)]


def _shown(label: Any) -> Any:
    """Make a label fit for JSON; a long one is cut."""
    label = label.item() if isinstance(label, np.generic) else label
    if isinstance(label, bool | int | float):
        return label
    text = str(label)
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def _describe(outputs: Outputs, table: pd.DataFrame, row: int) -> dict[str, Any]:
    """Describe one row of an audit, with its candidates."""
    entry = table.iloc[row]
    labels = outputs.sets[row]
    suggestion = None if entry["verdict"] == "open" else _shown(entry["suggested_label"])
    return {
        "row": row,
        "id": _shown(entry["id"]),
        "candidates": [
            *map(_shown, labels[:NAMES]),
            *([f"… {len(labels) - NAMES} more"] if len(labels) > NAMES else []),
        ],
        "verdict": entry["verdict"],
        "suggestion": suggestion,
        "probability": round(float(entry["suggested_probability"]), 4),
        **{f"p_{kind}": round(float(entry[f"p_{kind}"]), 4) for kind in KINDS},
    }


# ---- rows to look at


def _top(p: NDArray[Any], least: float | None = None) -> NDArray[np.int64]:
    """The rows with the largest p, above `least` if it is given; of equal ones the first."""
    top = np.argpartition(-p, min(SUSPECTS, len(p)) - 1)[:SUSPECTS]
    tied = np.flatnonzero(p == p[top].min())[:SUSPECTS]
    top = np.union1d(top[p[top] > p[top].min()], tied)
    top = top[np.lexsort((top, -p[top]))][:SUSPECTS]
    return top if least is None else top[p[top] > least]


def _suspect(audit: Audit, row: int, posterior: NDArray[Any]) -> dict[str, Any]:
    """Describe a row with what speaks for and against its candidates.

    A row that was judged normal suggests the most likely class outside its set.
    """
    outputs = audit.outputs
    entry = audit.table.iloc[row]
    found = _describe(outputs, audit.table, row)
    found["p_outside"] = round(float(entry["p_outside"]), 4)
    if found["verdict"] == "normal":
        found |= _best_outside(outputs, row, posterior)
    return found | {
        "consensus": None if entry.isna()["consensus_label"] else _shown(entry["consensus_label"]),
        "consensus_probability": round(float(entry["consensus_probability"]), 4),
        "likely": _likely(outputs, row),
        **_said(outputs.answers, row),
    }


def _best_outside(outputs: Outputs, row: int, posterior: NDArray[Any]) -> dict[str, Any]:
    """The most likely class that is not a candidate; a set of all classes has none."""
    others = np.flatnonzero(~outputs.sets.dense(row)[0])
    if not len(others):
        return {"suggestion": None, "probability": 0.0}
    best = others[posterior[others].argmax()]
    label = outputs.sets.classes.tolist()[best]
    return {"suggestion": _shown(label), "probability": round(float(posterior[best]), 4)}


def _said(answers: Answers | None, row: int) -> dict[str, Any]:
    """Who said what about a row, the votes, and the label with most of them."""
    if answers is None:
        return {}
    one = answers[[row]]
    labels = [*map(_shown, answers.classes.tolist()), NO_CLASS_TEXT]
    votes = one.votes()
    order = np.lexsort((votes.indices, -votes.data))[:NAMES]
    vote = int(one.majority()[0])
    said = []
    if not answers.anonymous:
        given = [*answers[row].items()]
        said = [
            {"name": _shown(name), "labels": [*map(_shown, members[:NAMES])]}
            for name, members in given[:NAMES]
        ]
    return {
        "answers": said,
        "n_answers": one.n_answers,
        "votes": [
            {"label": labels[votes.indices[i]], "votes": int(votes.data[i])} for i in order.tolist()
        ],
        "majority": None if vote < 0 else labels[vote],
    }


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


def _more(outside: NDArray[Any], listed: NDArray[np.int64]) -> dict[str, Any]:
    """How many rows beyond the list may be wrong, and how many probably are."""
    rest = np.delete(outside, listed)
    return {
        "rows": len(rest),
        "likely": int((rest > 0.5).sum()),
        "possible": int((rest > 0.1).sum()),
        "expected": float(rest.sum()),
    }


def _drawable(table: pd.DataFrame) -> NDArray[np.int64]:
    """Rows with two finite losses: a set of all classes has no outside."""
    return np.flatnonzero(np.isfinite(table["inside_loss"]) & np.isfinite(table["outside_loss"]))


def _points(outputs: Outputs, table: pd.DataFrame, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Losses and description of these rows, or of a random sample of them."""
    if len(rows) > POINTS:
        rows = np.sort(np.random.default_rng(0).choice(rows, POINTS, replace=False))
    losses = table[["inside_loss", "outside_loss"]].iloc[rows].to_numpy(np.float64).round(3)
    return [
        {"inside": inside, "outside": outside} | _describe(outputs, table, row)
        for (inside, outside), row in zip(losses.tolist(), rows.tolist(), strict=True)
    ]


def _review(
    outside: NDArray[Any], outputs: Outputs, truth: NDArray[np.int64] | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """How many errors to expect, and if known to find, among the N most suspicious rows.

    Returns the curve, and the rows with half, 80 % and 95 % of the expected errors.
    """
    order = np.argsort(-outside, kind="stable")
    expected = np.cumsum(outside[order])
    found = None
    if truth is not None and (truth >= -1).all():
        found = np.cumsum(~outputs.sets.contains(truth)[order])

    def point(n: int) -> dict[str, Any]:
        entry = {
            "rows": n,
            "expected": float(expected[n - 1]),
            "blind": float(expected[-1] * n / len(order)),
        }
        return entry | ({} if found is None else {"found": int(found[n - 1])})

    ends = np.searchsorted(expected, np.array(FOUND) * expected[-1]) + 1
    ends = np.minimum(ends, len(order)).tolist()
    steps = _steps(min(len(order), max(SHORTEST, ends[-1])))
    marks = [{"share": share, **point(n)} for share, n in zip(FOUND, ends, strict=True)]
    return [point(n) for n in steps], marks


def _steps(most: int) -> list[int]:
    """At most CURVE numbers from 1 to `most`: evenly spread, and closer where the curve is steep.

    Examples
    --------
    >>> _steps(4)
    [1, 2, 3, 4]
    """
    even = np.linspace(1, most, min(CURVE // 2, most))
    closer = np.geomspace(1, most, min(CURVE - CURVE // 2, most))
    return np.unique(np.concatenate([even, closer]).round().astype(int)).tolist()
