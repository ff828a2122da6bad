"""Where the truth probably lies, and what that says of annotators: by hand."""

import numpy as np
import pytest

import candidly
from candidly.answers import Answers
from candidly.auditing.annotators import (
    LISTED,
    MATRICES,
    ODDS,
    OTHERS,
    PAIRS,
    WIDEST,
    AnnotatorTally,
    other_readings,
    own_rates,
    stretch_of,
    wilson,
)
from candidly.auditing.findings import collect_findings
from candidly.auditing.posterior import class_posterior
from candidly.auditing.rates import INTERVAL_FACTOR, NORMAL_90, RatesEstimate


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


# ---- confusion matrices


@pytest.mark.parametrize("step", [1, 2, 3])
def test_confusion_matrices_by_hand(step):
    posterior = np.array([[0.2, 0.7, 0.1], [0.0, 0.9, 0.1], [0.0, 0.5, 0.0]])
    first, second = tally(posterior, step=step)
    assert first["confusion"] == [[0.2, 0, 0, 0], [0.7, 0, 0.9, 0], [0.1, 0, 0.1, 0]]
    # b says x|y, of which x has 0.2 and y 0.7; z is missed, half by x and half by y.
    assert second["confusion"] == [[0.2, 0, 0, 0], [0, 0.7 + 0.5, 0, 0], [0.05, 0.05, 0, 0]]
    assert first["pairs"] == [
        {"truth": "y", "given": "z", "rows": pytest.approx(0.9), "share": pytest.approx(0.9 / 1.6)},
        {"truth": "y", "given": "x", "rows": pytest.approx(0.7), "share": pytest.approx(0.7 / 1.6)},
    ]
    assert second["pairs"] == []


def test_none_of_the_classes_is_the_last_column():
    answers = Answers([["none of the classes"], ["none of the classes"]], ["x", "y"])
    found = AnnotatorTally(answers, 2)
    found.add(slice(0, 2), np.array([[0.1, 0.2], [0.0, 1.0]]))
    (entry,) = found.table(["x", "y"])
    assert entry["confusion"] == [[0, 0, 0.1], [0, 0, 1.2]]
    assert entry["pairs"][0]["given"] == "none of the classes"


def test_only_few_matrices_are_stored_and_never_large_ones():
    n = MATRICES + 3
    answers = Answers(np.zeros((50, n), dtype=int), classes=3)
    found = AnnotatorTally(answers, 3)
    found.add(slice(0, 50), np.tile([0.4, 0.6, 0.0], (50, 1)))
    entries = found.table([0, 1, 2])
    assert sum(entry["confusion"] is not None for entry in entries) == MATRICES
    assert all(entry["pairs"][0]["rows"] == pytest.approx(30) for entry in entries)
    c = WIDEST + 1
    answers = Answers(np.arange(c)[:, None] % c, classes=c)
    found = AnnotatorTally(answers, c)
    found.add(slice(0, c), np.roll(np.eye(c), 1, axis=1))
    (entry,) = found.table([*range(c)])
    assert entry["confusion"] is None
    assert len(entry["pairs"]) == PAIRS
    assert entry["pairs"][0] == {"truth": 0, "given": c - 1, "rows": 1.0, "share": 1.0}


# ---- intervals


def test_the_own_rate_undoes_a_shared_one():
    """Answers that the model cannot judge keep the odds of the assumed rate: any rate explains."""
    odds = np.zeros((3, len(ODDS)))
    odds[0, [0, -1]] = 30, 70
    odds[1, len(ODDS) // 2] = 100  # even odds at a rate of 0.5
    odds[2, -1] = 100  # all are right
    rates, worth = own_rates(odds, np.array([0.1, 0.5, 0.2]))
    assert rates == pytest.approx([30.5 / 101, 0.5, 0.5 / 101], abs=1e-3)
    assert worth == pytest.approx([100, 1, 100], abs=0.1)


def test_open_rows_do_not_count_as_a_high_error_rate():
    """All three are misled alike in a fifth of the rows, which look open: the rest is right."""
    rng = np.random.default_rng(1)
    y = rng.integers(6, size=500)
    said = np.where(rng.random(500) < 0.2, (y + rng.integers(1, 6, size=500)) % 6, y)
    answers = Answers(np.stack([said] * 3, axis=1), classes=6)
    logits = 4 * (4 * np.eye(6)[y] + rng.normal(size=(500, 6)))
    for entry in collect_findings(candidly.Audit(answers=answers, logits=logits))["annotators"]:
        assert entry["high"] < 0.4


def test_annotators_without_errors_have_a_narrow_interval():
    y = np.arange(600) % 6
    answers = Answers(np.stack([y, y, y], axis=1), classes=6)
    logits = 6 * np.eye(6)[y] + np.random.default_rng(0).normal(size=(600, 6))
    for entry in collect_findings(candidly.Audit(answers=answers, logits=logits))["annotators"]:
        assert entry["outside"] < 0.01
        assert entry["high"] < 0.05


def test_without_other_readings_the_interval_is_that_of_sampling_stretched():
    posterior = np.array([[0.2, 0.7, 0.1], [0.0, 0.9, 0.1], [0.0, 0.5, 0.0]])
    first, _ = tally(posterior)
    z = NORMAL_90 * INTERVAL_FACTOR
    assert (first["low"], first["high"]) == pytest.approx(wilson(0.85, 2, z))
    answers = Answers([["x"], ["x"]] * 50, ["x", "y"])
    found = AnnotatorTally(answers, 2, stretch=(0.5, 2.0))
    found.add(slice(0, 100), np.tile([0.8, 0.2], (100, 1)))
    (entry,) = found.table(["x", "y"])
    assert entry["outside"] == pytest.approx(0.2)
    assert entry["low"] == pytest.approx(wilson(0.1, 100, z)[0])
    assert entry["high"] == pytest.approx(wilson(0.4, 100, z)[1])


def test_tiny_shares_are_not_stretched_without_bound():
    tiny = RatesEstimate(0.0, 0.0, 0.0, (0.0, 0.02), (0.0, 0.0), (0.0, 0.02))
    assert stretch_of(None, tiny) == (0.0, 2.0)


def simulate(seed, rates, n=1000, c=8, accuracy=0.75):
    """Return (logits, answers, truth) of a model and of annotators who err independently."""
    rng = np.random.default_rng(seed)
    y = rng.integers(c, size=n)
    best = np.where(rng.random(n) < accuracy, y, (y + rng.integers(1, c, size=n)) % c)
    logits = 0.5 * rng.normal(size=(n, c)) + 3 * np.eye(c)[best]
    wrong = rng.random((n, len(rates))) < rates
    other = (y[:, None] + rng.integers(1, c, size=wrong.shape)) % c
    return logits, Answers(np.where(wrong, other, y[:, None]), classes=c), y


def test_intervals_hold_the_error_rates_of_annotators():
    rates = np.array([0.05, 0.07, 0.09, 0.15, 0.25, 0.35])
    held = []
    charged = []
    for seed in range(20):
        logits, answers, y = simulate(seed, rates)
        assert abs((logits.argmax(axis=1) == y).mean() - 0.75) < 0.05
        found = collect_findings(candidly.Audit(answers=answers, logits=logits))["annotators"]
        people = sorted(found, key=lambda entry: entry["name"])
        held.append([e["low"] <= rate <= e["high"] for e, rate in zip(people, rates, strict=True)])
        charged.append([entry["outside"] for entry in people])
    assert np.mean(held) >= 0.85
    assert np.max(charged, axis=0)[1:3].max() < 0.18, "7 and 9 % are not taken for 28 %"
    assert (np.diff(np.mean(charged, axis=0)) > 0).all()


def test_the_readings_of_an_audit():
    logits, answers, _ = simulate(0, np.array([0.1, 0.2, 0.3]))
    several = candidly.Audit(answers=answers, logits=logits)
    assert len(other_readings(several.study)) in (1, 2, 4)  # the model is wrong, or people are
    assert stretch_of(several.study, several.estimate) == (1.0, 1.0)
    _, single, _ = simulate(0, np.array([0.1]))
    one = candidly.Audit(answers=single, logits=logits)
    low, high = stretch_of(one.study, one.estimate)
    assert low < 1 < high
    blind = candidly.Audit(answers=answers, logits=logits, process="blind")
    assert other_readings(blind.study) == []
