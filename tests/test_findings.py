"""What an audit found, as plain values: sums by hand, bounded size."""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from candidly.auditing.evidence import Outputs
from candidly.auditing.findings import CLASSES, CURVE, POINTS, SUSPECTS, collect_findings
from candidly.auditing.rates import RatesEstimate
from candidly.cli.summary import render_summary
from candidly.metrics import audit_quality
from candidly.sets import CandidateSets

ESTIMATE = RatesEstimate(0.2, 0.1, 0.3, (0.1, 0.3), (0.0, 0.2), (0.2, 0.4), ("a note",))


def table(sets, kinds, suggested, ids=None):
    kinds = np.asarray(kinds, dtype=float)
    return pd.DataFrame(
        {
            "id": np.arange(len(kinds)) if ids is None else ids,
            "verdict": pd.Categorical.from_codes(
                kinds.argmax(1), categories=["normal", "closed", "open"]
            ),
            "p_normal": kinds[:, 0],
            "p_closed": kinds[:, 1],
            "p_open": kinds[:, 2],
            "suggested_label": pd.Categorical.from_codes(
                suggested, categories=sets.classes.tolist()
            ),
            "suggested_probability": kinds.max(1),
            "inside_loss": np.linspace(0, 3, len(kinds)),
            "outside_loss": np.linspace(3, 0, len(kinds)),
        }
    )


@pytest.fixture
def small():
    sets = CandidateSets([["a"], ["a", "b"], ["c"], ["b"]], classes=["a", "b", "c"])
    probs = np.array([[0.8, 0.1, 0.1], [0.5, 0.25, 0.25], [0.6, 0.2, 0.2], [0.4, 0.3, 0.3]])
    kinds = [[1, 0, 0], [0.8, 0.2, 0], [0.1, 0.8, 0.1], [0.3, 0.0, 0.7]]
    return sets, probs, kinds, table(sets, kinds, [0, 0, 0, -1])


def test_facts_by_hand(small):
    sets, probs, _, audit = small
    facts = collect_findings(
        Outputs(sets, probs, logits=False), audit, ESTIMATE, truth=np.array([0, 0, 0, -1])
    )
    assert facts["shares"]["outside"] == {"share": 0.3, "low": 0.2, "high": 0.4}
    assert facts["notes"] == ["a note"]
    assert facts["verdicts"] == {"normal": 2, "closed": 1, "open": 1}
    classes = {entry["label"]: entry for entry in facts["class_table"]}
    assert classes["a"]["proposed"] == 2
    assert classes["a"]["doubted"] == pytest.approx((0 + 0.2) / 2)
    assert classes["a"]["missed"] == pytest.approx(0.8 * 0.6 / 0.8)
    assert classes["a"]["estimated"] == pytest.approx(1 + 0.8 * 0.5 / 0.75 + 0.6)
    assert classes["c"]["missed"] == pytest.approx(0.2)
    assert [entry["id"] for entry in facts["suspects"]["closed"]] == [2, 1]
    assert facts["suspects"]["closed"][0]["likely"][0] == {
        "label": "a",
        "p": 0.6,
        "candidate": False,
    }
    assert facts["suspects"]["open"][0]["suggestion"] is None
    review = facts["review"]
    assert [point["rows"] for point in review] == [1, 2, 3, 4]
    assert [point["expected"] for point in review] == pytest.approx([0.9, 1.6, 1.8, 1.8])
    assert [point["found"] for point in review] == [1, 2, 2, 2]
    assert review[1]["blind"] == pytest.approx(0.9)
    json.dumps(facts, allow_nan=False)


def test_a_row_that_may_be_closed_suggests_a_label_outside_its_set():
    sets = CandidateSets([["a"], ["a"]], classes=["a", "b"])
    audit = table(sets, [[0.6, 0.4, 0], [0.9, 0.1, 0]], [0, 0])
    facts = collect_findings(
        Outputs(sets, np.array([[0.5, 0.5], [0.9, 0.1]]), logits=False), audit, ESTIMATE
    )
    entry, unlikely = facts["suspects"]["closed"]
    assert (unlikely["id"], unlikely["p_closed"]) == (1, 0.1)
    assert (entry["verdict"], entry["suggestion"], entry["candidates"]) == ("normal", "b", ["a"])
    assert "probably" not in summary_of(
        facts
    )  # the page shows it; a short list has likelier rows only


def test_the_terminal_says_how_many_rows_there_are():
    sets = CandidateSets([["a"]] * 9, classes=["a", "b"])
    audit = table(sets, [[0.1, 0.9, 0]] * 7 + [[0.6, 0.3, 0.1], [0.2, 0.1, 0.7]], [1] * 9)
    text = summary_of(
        collect_findings(Outputs(sets, np.full((9, 2), 0.5), logits=False), audit, ESTIMATE)
    )
    assert "The truth is probably another class: 5 of 7\n" in text
    assert "Probably none of the classes: 1 of 1\n" in text
    assert text.count("P(closed) = 0.90") == 5


def summary_of(facts):
    console = Console(record=True, file=io.StringIO())
    console.print(
        render_summary(
            Path("run"),
            {
                "file": "x.csv",
                "classes": 2,
                "rows": 2,
                "annotators": [],
                "history": [],
                "made": {},
                **facts,
            },
        )
    )
    return console.export_text()


def test_logits_say_the_same_as_their_probabilities(small):
    sets, probs, _, audit = small
    by_probs = collect_findings(Outputs(sets, probs, logits=False), audit, ESTIMATE)
    by_logits = collect_findings(Outputs(sets, np.log(probs) + 7, logits=True), audit, ESTIMATE)
    assert by_logits["suspects"] == by_probs["suspects"]
    assert by_logits["class_table"][0]["missed"] == pytest.approx(
        by_probs["class_table"][0]["missed"]
    )
    assert by_probs["evaluation"] is None


def test_quality_by_hand(small):
    sets, probs, kinds, audit = small
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
    audit = table(
        sets, kinds, rng.integers(c, size=n), ids=[f"a very long name {i:090}" for i in range(n)]
    )
    facts = collect_findings(
        Outputs(sets, rng.normal(size=(n, c)).astype(np.float32), logits=True), audit, ESTIMATE
    )
    assert len(facts["points"]) == POINTS
    assert len(facts["suspects"]["open"]) == SUSPECTS
    assert len(facts["class_table"]) == CLASSES
    assert len(facts["review"]) == CURVE
    assert len(json.dumps(facts)) < 1.5e6
    best = np.sort(kinds[:, 2])[::-1][:SUSPECTS]
    assert [entry["p_open"] for entry in facts["suspects"]["open"]] == pytest.approx(best, abs=1e-4)
