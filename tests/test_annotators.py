"""Where the truth probably lies, and what that says of annotators: by hand."""

import numpy as np
import pytest

from candidly.answers import Answers
from candidly.auditing.annotators import LISTED, OTHERS, AnnotatorTally, wilson
from candidly.auditing.posterior import class_posterior


def test_the_posterior_shares_out_the_verdict():
    mask = np.array([[True, True, False, False], [True, True, True, True]])
    probs = np.array([[0.3, 0.1, 0.45, 0.15], [0.4, 0.3, 0.2, 0.1]])
    kinds = np.array([[0.5, 0.4, 0.1], [0.9, 0.0, 0.1]])
    expected = [[0.5 * 0.75, 0.5 * 0.25, 0.4 * 0.75, 0.4 * 0.25], [0.36, 0.27, 0.18, 0.09]]
    assert class_posterior(mask, probs, kinds) == pytest.approx(np.array(expected))


def tally(posterior, truth=None, step=1):
    """Row 0: a says x, b says x|y. Row 1: a says z. Row 2: b says y."""
    answers = Answers.from_long(
        [2, 0, 1, 0],
        ["b", "a", "a", "b"],
        ["y", "x", "z", "x|y"],
        n_rows=len(posterior),
        classes=["x", "y", "z"],
        names=["a", "b", "idle"],
    )
    found = AnnotatorTally(answers, 3, truth)
    for start in range(0, len(posterior), step):
        found.add(slice(start, start + step), posterior[start : start + step])
    return found.table(["x", "y", "z"])


@pytest.mark.parametrize("step", [1, 2, 3])
def test_annotators_by_hand(step):
    posterior = np.array([[0.2, 0.7, 0.1], [0.0, 0.9, 0.1], [0.0, 0.5, 0.0]])
    first, second = tally(posterior, np.array([1, 2, -1]), step)
    assert (first["name"], first["answers"], first["width"]) == ("a", 2, 1.0)
    assert first["outside"] == pytest.approx((0.8 + 0.9) / 2)
    assert [entry["label"] for entry in first["missed"]] == ["y"]
    assert first["missed"][0]["rows"] == pytest.approx(0.7 + 0.9)
    assert first["missed"][0]["share"] == pytest.approx(1)
    assert first["true_outside"] == 0.5
    assert (second["name"], second["answers"], second["width"]) == ("b", 2, 1.5)
    assert second["outside"] == pytest.approx((0.1 + 0.5) / 2)
    assert second["missed"] == []
    assert second["true_outside"] == 0.5, "a row of no class is outside any set"


def test_without_truth_nothing_is_said_of_it():
    assert "true_outside" not in tally(np.full((3, 3), 1 / 3))[0]
    assert "true_outside" not in tally(np.full((3, 3), 1 / 3), np.array([-2, -2, -2]))[0]
    assert tally(np.full((3, 3), 1 / 3), np.array([-2, -2, 0]))[0]["true_outside"] in (None, 1.0)


def test_the_least_active_share_a_line():
    n = LISTED + 5
    answers = Answers.from_long(np.arange(n + 1), np.r_[np.arange(n), 0], ["0|1"] * (n + 1))
    tally = AnnotatorTally(answers, 2)
    table = {entry["name"]: entry["answers"] for entry in tally.table([0, 1])}
    assert len(table) == LISTED + 1
    assert table[0] == 2
    assert table[OTHERS] == 5


def test_none_of_the_classes_is_right_where_the_truth_is_no_class():
    answers = Answers([["none of the classes", "x"], ["none of the classes", "y"]], ["x", "y"])
    found = AnnotatorTally(answers, 2, np.array([-1, 1]))
    found.add(slice(0, 2), np.array([[0.1, 0.2], [0.0, 1.0]]))
    entries = {entry["name"]: entry for entry in found.table(["x", "y"])}
    assert entries[0]["outside"] == pytest.approx((0.3 + 1.0) / 2)
    assert entries[1]["outside"] == pytest.approx((0.9 + 0.0) / 2)
    assert entries[0]["true_outside"] == entries[1]["true_outside"] == 0.5
    assert entries[0]["width"] == 1


def test_anonymous_answers_count_as_often_as_they_were_given():
    answers = Answers.from_counts([[3, 1], [0, 2]], ["x", "y"])
    found = AnnotatorTally(answers, 2, np.array([0, -2]))
    found.add(slice(0, 2), np.array([[0.8, 0.2], [0.5, 0.5]]))
    (entry,) = found.table(["x", "y"])
    assert (entry["name"], entry["answers"], entry["width"]) == ("anyone", 6, 1.0)
    assert entry["outside"] == pytest.approx((3 * 0.2 + 0.8 + 2 * 0.5) / 6)
    assert entry["true_outside"] == 0.25


def test_wilson():
    assert wilson(0.5, 100) == pytest.approx((0.4191, 0.5809), abs=1e-3)
    assert wilson(0.0, 10)[0] == 0
    assert wilson(1.0, 1)[1] == 1
