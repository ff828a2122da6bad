"""What an audit found, as plain values: sums by hand, bounded size."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import candidly
from candidly.answers import Answers
from candidly.auditing.evidence import Outputs
from candidly.auditing.findings import (
    CLASSES,
    CURVE,
    NAMES,
    POINTS,
    SUSPECTS,
    collect_findings,
    process_words,
)
from candidly.auditing.posterior import blocks
from candidly.auditing.processes import NAMES as PROCESS_NAMES
from candidly.auditing.rates import RatesEstimate
from candidly.cli.summary import render_summary, summary
from candidly.metrics import audit_quality
from candidly.sets import CandidateSets

ESTIMATE = RatesEstimate(0.2, 0.1, 0.3, (0.1, 0.3), (0.0, 0.2), (0.2, 0.4), ("a note",))


def table(sets, kinds, suggested, ids=None):
    kinds = np.asarray(kinds, dtype=float)
    classes = sets.classes.tolist()
    return pd.DataFrame(
        {
            "id": np.arange(len(kinds)) if ids is None else ids,
            "verdict": pd.Categorical.from_codes(
                kinds.argmax(1), categories=["normal", "closed", "open"]
            ),
            "p_outside": 1 - kinds[:, 0],
            "p_normal": kinds[:, 0],
            "p_closed": kinds[:, 1],
            "p_open": kinds[:, 2],
            "suggested_label": pd.Categorical.from_codes(suggested, categories=classes),
            "suggested_probability": kinds.max(1),
            "consensus_label": pd.Categorical.from_codes(suggested, categories=classes),
            "consensus_probability": kinds.max(1),
            "inside_loss": np.linspace(0, 3, len(kinds)),
            "outside_loss": np.linspace(3, 0, len(kinds)),
        }
    )


def made(sets, values, kinds, suggested, *, logits=False, answers=None, ids=None):
    """Stand in for an Audit whose verdicts are given."""
    outputs = Outputs(sets, values, logits=logits, answers=answers)
    kinds = np.asarray(kinds, dtype=float)
    return SimpleNamespace(
        outputs=outputs,
        table=table(sets, kinds, suggested, ids),
        estimate=ESTIMATE,
        study=None,
        blocks=lambda: blocks(outputs, kinds),
    )


@pytest.fixture
def small():
    sets = CandidateSets([["a"], ["a", "b"], ["c"], ["b"]], classes=["a", "b", "c"])
    probs = np.array([[0.8, 0.1, 0.1], [0.5, 0.25, 0.25], [0.6, 0.2, 0.2], [0.4, 0.3, 0.3]])
    kinds = [[1, 0, 0], [0.8, 0.2, 0], [0.1, 0.8, 0.1], [0.3, 0.0, 0.7]]
    return sets, probs, kinds, [0, 0, 0, -1]


def test_facts_by_hand(small):
    facts = collect_findings(made(*small), truth=np.array([0, 0, 0, -1]))
    assert facts["shares"]["outside"] == {"share": 0.3, "low": 0.2, "high": 0.4}
    assert facts["notes"] == ["a note"]
    assert facts["process"] == {
        "name": "blind",
        "words": "wrong candidates that are drawn blindly",
    }
    assert facts["reliable"]
    assert facts["answers"] is facts["agreement"] is facts["consensus"] is None
    assert facts["verdicts"] == {"normal": 2, "closed": 1, "open": 1}
    classes = {entry["label"]: entry for entry in facts["class_table"]}
    assert classes["a"]["proposed"] == 2
    assert classes["a"]["doubted"] == pytest.approx((0 + 0.2) / 2)
    assert classes["a"]["missed"] == pytest.approx(0.8 * 0.6 / 0.8)
    assert classes["a"]["estimated"] == pytest.approx(1 + 0.8 * 0.5 / 0.75 + 0.6)
    assert classes["a"]["share"] == pytest.approx(0.6 / (1.6 + 0.8 * 0.5 / 0.75))
    assert classes["c"]["missed"] == pytest.approx(0.2)
    (pair,) = facts["confused"]
    assert (pair["truth"], pair["given"], pair["rows"]) == ("a", "c", pytest.approx(0.6))
    assert pair["share"] == pytest.approx(classes["a"]["share"])
    review = facts["review"]
    assert [point["rows"] for point in review] == [1, 2, 3, 4]
    assert [point["expected"] for point in review] == pytest.approx([0.9, 1.6, 1.8, 1.8])
    assert [point["found"] for point in review] == [1, 2, 2, 2]
    assert review[1]["blind"] == pytest.approx(0.9)
    assert [(at["share"], at["rows"]) for at in facts["review_at"][1:]] == [(0.8, 2), (0.95, 3)]
    json.dumps(facts, allow_nan=False)


def test_all_rows_are_in_one_list_however_unlikely(small):
    facts = collect_findings(made(*small))
    assert [entry["id"] for entry in facts["suspects"]] == [2, 3, 1, 0]
    assert [entry["p_outside"] for entry in facts["suspects"]] == [0.9, 0.7, 0.2, 0.0]
    assert facts["suspects"][0]["likely"][0] == {"label": "a", "p": 0.6, "candidate": False}
    assert [entry["id"] for entry in facts["open_suspects"]] == [3, 2]
    assert facts["open_suspects"][0]["suggestion"] is None
    assert facts["more"] == {"rows": 0, "likely": 0, "possible": 0, "expected": 0.0}
    assert "answers" not in facts["suspects"][0]


def test_what_is_beyond_the_list_is_counted():
    n = SUSPECTS + 6
    sets = CandidateSets([["a"]] * n, classes=["a", "b"])
    outside = np.r_[[0.9] * SUSPECTS, 0.6, 0.6, 0.3, 0.2, 0.05, 0.0]
    kinds = np.stack([1 - outside, outside, 0 * outside], axis=1)
    facts = collect_findings(made(sets, np.full((n, 2), 0.5), kinds, [0] * n))
    assert [entry["row"] for entry in facts["suspects"]] == [*range(SUSPECTS)]
    more = facts["more"]
    assert (more["rows"], more["likely"], more["possible"]) == (6, 2, 4)
    assert more["expected"] == pytest.approx(1.75)


def test_the_review_ends_where_nearly_all_errors_are_found():
    n = 1000
    sets = CandidateSets([["a"]] * n, classes=["a", "b"])
    kinds = np.tile([0.9, 0.1, 0.0], (n, 1))
    facts = collect_findings(made(sets, np.full((n, 2), 0.5), kinds, [0] * n))
    assert len(facts["review"]) <= CURVE
    assert facts["review"][-1]["rows"] == pytest.approx(950, abs=1)
    assert facts["review"][-1]["expected"] == pytest.approx(95, abs=0.1)
    assert facts["review_at"][2]["rows"] == facts["review"][-1]["rows"]


def test_a_row_that_may_be_closed_suggests_a_label_outside_its_set():
    sets = CandidateSets([["a"], ["a"]], classes=["a", "b", "c"])
    probs = np.array([[0.4, 0.2, 0.4], [0.9, 0.1, 0.0]])
    facts = collect_findings(made(sets, probs, [[0.6, 0.3, 0.1], [0.9, 0.1, 0]], [0, 0]))
    entry, unlikely = facts["suspects"]
    assert (unlikely["id"], unlikely["p_closed"]) == (1, 0.1)
    assert (entry["verdict"], entry["suggestion"], entry["candidates"]) == ("normal", "c", ["a"])
    assert entry["probability"] == pytest.approx(0.3 * 2 / 3, abs=1e-4)


def test_a_set_of_all_classes_suggests_none():
    sets = CandidateSets([["a", "b"], ["a"]], classes=["a", "b"])
    kinds = [[0.9, 0.0, 0.1], [1, 0, 0]]
    facts = collect_findings(made(sets, np.full((2, 2), 0.5), kinds, [0, 0]))
    assert facts["suspects"][0]["row"] == 0
    assert facts["suspects"][0]["suggestion"] is None


# ---- answers


def answered(small):
    sets, probs, kinds, suggested = small
    cells = [["a", "a", "a"], ["a", "b", "b"], ["c", "c", "none of the classes"], ["b", None, None]]
    answers = Answers(cells, classes=sets.classes, annotators=["ann", "bob", "zoe"])
    return made(sets, probs, kinds, suggested, answers=answers)


def test_suspects_show_who_said_what(small):
    facts = collect_findings(answered(small))
    assert facts["answers"] == {"annotators": 3, "answers": 10, "rows": 4}
    first, _, third, _ = facts["suspects"]
    assert first["answers"] == [
        {"name": "ann", "labels": ["c"]},
        {"name": "bob", "labels": ["c"]},
        {"name": "zoe", "labels": ["none of the classes"]},
    ]
    assert first["votes"] == [
        {"label": "c", "votes": 2},
        {"label": "none of the classes", "votes": 1},
    ]
    assert (first["majority"], first["consensus"], first["n_answers"]) == ("c", "a", 3)
    assert (third["majority"], third["consensus"]) == ("b", "a")
    assert facts["consensus"]["rows"] == 4
    assert facts["consensus"]["differ"] == 3, "rows 1 and 2, and the open row 3"
    labels = {entry["label"]: entry for entry in facts["consensus"]["labels"]}
    assert labels["b"] == {"label": "b", "majority": 2, "consensus": 0}
    assert labels["none of the classes"]["consensus"] == 1
    assert facts["agreement"]["rows"] == 3
    assert facts["agreement"]["unanimous"] == pytest.approx(1 / 3)
    json.dumps(facts, allow_nan=False)


def test_wrong_answers_are_counted_by_their_share(small):
    """Row 1 counts for a with 0.8 * 2 / 3; two of three answers to it say b."""
    pairs = collect_findings(answered(small))["confused"]
    assert pairs == []  # all are below half a row: see the same rows ten times
    sets, probs, kinds, suggested = small
    cells = [["a", "a"], ["a", "b"], ["c", "none of the classes"], ["b", None]] * 10
    answers = Answers(cells, classes=sets.classes)
    rows = np.tile(np.arange(4), 10)
    many = made(sets[rows], probs[rows], np.array(kinds)[rows], suggested * 10, answers=answers)
    found = {(pair["truth"], pair["given"]): pair for pair in collect_findings(many)["confused"]}
    assert found["a", "b"]["rows"] == pytest.approx(10 * 0.8 * 2 / 3 / 2)
    assert found["b", "a"]["rows"] == pytest.approx(10 * 0.8 / 3 / 2)
    assert found["a", "c"]["rows"] == pytest.approx(10 * 0.6 / 2)
    assert found["a", "none of the classes"]["rows"] == pytest.approx(10 * 0.6 / 2)
    assert found["c", "a"]["rows"] == pytest.approx(10 * 0.2 / 2)
    total = 10 * (1 + 0.8 * 2 / 3 + 0.6)
    assert found["a", "b"]["share"] == pytest.approx(10 * 0.8 / 3 / total)


def test_many_answers_are_cut():
    n = NAMES + 3
    answers = Answers([["a"] * n], classes=["a", "b"])
    facts = collect_findings(
        made(answers.to_sets(), np.full((1, 2), 0.5), [[1, 0, 0]], [0], answers=answers)
    )
    (entry,) = facts["suspects"]
    assert len(entry["answers"]) == NAMES
    assert entry["n_answers"] == n


def test_anonymous_votes_name_nobody():
    answers = Answers.from_counts([[3, 1], [0, 2]], ["a", "b"])
    audit = made(answers.to_sets(), np.full((2, 2), 0.5), [[1, 0, 0]] * 2, [0, 1], answers=answers)
    facts = collect_findings(audit)
    assert facts["answers"]["annotators"] is None
    entry = facts["suspects"][0]
    assert entry["answers"] == []
    assert entry["votes"] == [{"label": "a", "votes": 3}, {"label": "b", "votes": 1}]


@pytest.mark.parametrize("several", [True, False])
def test_a_model_at_chance_has_no_findings(several):
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=400)
    probs = rng.dirichlet(np.ones(4), size=400)
    answers = Answers(np.stack([y, y], axis=1) if several else y[:, None], classes=4)
    facts = collect_findings(candidly.Audit(answers=answers, probs=probs), truth=y)
    assert not facts["reliable"]
    assert facts["shares"] is facts["verdicts"] is facts["more"] is facts["annotators"] is None
    empty = ("suspects", "open_suspects", "review", "review_at", "class_table", "confused")
    assert [facts[name] for name in empty] == [[]] * 6
    (note,) = facts["notes"]
    assert "any class would be" in note
    assert (facts["agreement"] is not None) == (facts["consensus"] is not None) == several
    json.dumps(facts, allow_nan=False)
    text = " ".join(summary_of(facts).split())
    assert "nothing can be said about single rows" in text
    assert "any class would be" in text
    assert "truth outside" not in text
    assert ("Krippendorff's alpha of the annotators: 1.00" in text) == several
    assert summary(Path("run"), {**facts, "made": {}})["shares"] is None


def test_every_process_has_words():
    assert all(process_words(name) for name in PROCESS_NAMES)


# ---- the terminal


def test_the_terminal_shows_the_most_suspicious_rows():
    sets = CandidateSets([["a"]] * 9, classes=["a", "b"])
    kinds = [[0.1, 0.9, 0]] * 7 + [[0.6, 0.3, 0.1], [0.2, 0.1, 0.7]]
    facts = collect_findings(made(sets, np.full((9, 2), 0.5), kinds, [1] * 9))
    text = summary_of(facts)
    assert "Most suspicious rows: 5 of 9\n" in text
    assert "how sets arise: wrong candidates that are drawn blindly\n" in text
    assert "Probably none of the classes: 1 of 1\n" in text
    assert text.count("P(outside) = 0.90") == 5
    assert text.count("P(open) = 0.70") == 1


def summary_of(facts):
    console = Console(record=True, file=io.StringIO())
    console.print(render_summary(Path("run"), {"file": "x", "history": [], "made": {}, **facts}))
    return console.export_text()


def test_logits_say_the_same_as_their_probabilities(small):
    sets, probs, kinds, suggested = small
    by_probs = collect_findings(made(*small))
    by_logits = collect_findings(made(sets, np.log(probs) + 7, kinds, suggested, logits=True))
    assert by_logits["suspects"] == by_probs["suspects"]
    assert by_logits["class_table"][0]["missed"] == pytest.approx(
        by_probs["class_table"][0]["missed"]
    )
    assert by_probs["evaluation"] is None


def test_quality_by_hand(small):
    sets, probs, kinds, suggested = small
    audit = table(sets, kinds, suggested)
    naive = 1 - (probs * sets.dense()).sum(axis=1)
    quality = audit_quality(
        sets, np.array(kinds), probs.argmax(1), audit, naive, np.array([0, 1, 0, -1])
    )
    assert quality["known"] == 4
    assert quality["outside"] == 0.5
    assert quality["closed"] == quality["open"] == 0.25
    assert quality["accuracy"] == pytest.approx(2 / 3)
    assert quality["suggested_right"] == 1
    assert quality["ap_outside"] == 1
    assert quality["ap_naive"] == 1
    unknown = audit_quality(
        sets, np.array(kinds), probs.argmax(1), audit, naive, np.array([-2, 1, -2, -2])
    )
    assert unknown["known"] == 1
    assert unknown["ap_outside"] is None
    assert (
        audit_quality(sets, np.array(kinds), probs.argmax(1), audit, naive, np.full(4, -2)) is None
    )


def test_nothing_grows_with_the_rows():
    n, c = 20_000, 600
    rng = np.random.default_rng(0)
    sets = CandidateSets(rng.integers(c, size=n), classes=c)
    kinds = rng.dirichlet((3, 1, 1), size=n)
    ids = [f"a very long name {i:090}" for i in range(n)]
    values = rng.normal(size=(n, c)).astype(np.float32)
    answers = Answers.from_long(np.arange(n), np.arange(n) % 300, sets.indices, classes=c)
    suggested = rng.integers(c, size=n)
    audit = made(sets, values, kinds, suggested, logits=True, ids=ids, answers=answers)
    facts = collect_findings(audit)
    assert len(facts["points"]) == POINTS
    assert len(facts["suspects"]) == len(facts["open_suspects"]) == SUSPECTS
    assert len(facts["class_table"]) == CLASSES
    assert len(facts["review"]) <= CURVE
    assert len(facts["annotators"]) == 201
    assert len(json.dumps(facts)) < 2e6
    best = np.sort(kinds[:, 2])[::-1][:SUSPECTS]
    assert [entry["p_open"] for entry in facts["open_suspects"]] == pytest.approx(best, abs=1e-4)
    least = np.sort(kinds[:, 0])[:SUSPECTS]
    assert [entry["p_normal"] for entry in facts["suspects"]] == pytest.approx(least, abs=1e-4)


def test_the_order_of_blocks_and_rows_is_kept(monkeypatch):
    """A pass over several blocks finds the same as one over a single block."""
    rng = np.random.default_rng(3)
    y = rng.integers(5, size=300)
    wrong = rng.random((300, 3)) < 0.2
    cells = np.where(wrong, (y[:, None] + rng.integers(1, 5, size=(300, 3))) % 5, y[:, None])
    logits = 2 * np.eye(5)[y] + rng.normal(size=(300, 5))
    answers = Answers(cells, classes=5)
    whole = collect_findings(candidly.Audit(answers=answers, logits=logits), truth=y)
    monkeypatch.setattr("candidly.blocks.ENTRIES", 100)
    parts = collect_findings(candidly.Audit(answers=answers, logits=logits), truth=y)
    assert _rounded(parts) == _rounded(whole)


def _rounded(value):
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return round(value, 5) if isinstance(value, float) else value
