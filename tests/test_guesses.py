"""Hard rows, and guesses at open rows: by hand, their M-steps, and told from each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from candidly import Answers, audit, estimate_rates
from candidly.auditing.census import rows_of, take_census
from candidly.auditing.crowd import explained, fit_explanation
from candidly.auditing.difficulty import MOST_ERROR, Difficulty, harder
from candidly.auditing.evidence import observe, read_outputs
from candidly.auditing.guesses import Guesses
from candidly.auditing.hypotheses import compared_size, explain_guesses
from candidly.auditing.processes import Evidence
from candidly.auditing.processes.confusion import Confusion

MATRIX = np.array([[0.8, 0.15, 0.05, 0.0], [0.1, 0.9, 0.0, 0.0], [0.1, 0.1, 0.7, 0.1]])
LOG_PROBS = np.log([[0.64, 0.32, 0.04], [0.2, 0.2, 0.6]])
FREQUENT = np.array([0.5, 0.3, 0.2])


def evidence_of(table):
    answers = Answers(table, ["a", "b", "c"])
    return Evidence(answers.to_sets(), answers)


def rows_from(answers, logits):
    outputs = read_outputs(answers, None, logits, None, None, None)
    every = np.arange(len(outputs))
    return rows_of(outputs, every, observe(outputs, every, None))


def softmax(values):
    odds = np.exp(values)
    return odds / odds.sum(axis=1, keepdims=True)


# ---- guesses


def test_the_likelihood_of_guesses_by_hand():
    guesses = Guesses(0.5, 0.5, 0.25, concentration=4.0)
    table = [["a", "b", "a"], ["a|c", "none of the classes", "b"]]
    evidence = evidence_of(table)
    follows = 0.75 * softmax(0.5 * LOG_PROBS) + 0.25 * FREQUENT
    a, b = follows[0, :2]
    expected = [
        np.log(a * (4 * b / 5) * ((4 * a + 1) / 6)),  # each answer adds its label to the urn
        # Several labels stand beside the urn; whether it is "none" is counted elsewhere.
        np.log((follows[1, 0] + follows[1, 2]) * follows[1, 1]),
    ]
    found = guesses.log_likelihood(LOG_PROBS, evidence, FREQUENT)
    np.testing.assert_allclose(found, expected)


def test_guesses_are_counted_as_often_as_they_were_given():
    votes = Answers.from_counts([[3, 0, 2], [0, 1, 0]])
    one_by_one = Answers([[0, 0, 0, 2, 2], [1, None, None, None, None]], 3)
    found = [
        Guesses().log_likelihood(LOG_PROBS, Evidence(each.to_sets(), each), FREQUENT)
        for each in (votes, one_by_one)
    ]
    np.testing.assert_allclose(*found)


def drawn_guesses(sharpness, evenly, n=20_000, k=3):
    """(log_probs, evidence, weights): guesses that follow a model's outputs."""
    rng = np.random.default_rng(0)
    log_probs = np.log(softmax(2 * rng.normal(size=(n, 3))))
    p = (1 - evenly) * softmax(sharpness * log_probs) + evenly * FREQUENT
    draws = (rng.random((n, k, 1)) > p.cumsum(axis=1)[:, None, :-1]).sum(axis=2)
    answers = Answers(draws, 3)
    return log_probs, Evidence(answers.to_sets(), answers), np.ones(n)


def test_with_a_large_concentration_guesses_are_independent():
    evidence = evidence_of([["a", "b", "a"], ["c", "c", "c"]])
    guesses = Guesses(0.5, 0.5, 0.25, concentration=1e7)
    follows = 0.75 * softmax(0.5 * LOG_PROBS) + 0.25 * FREQUENT
    expected = [2 * np.log(follows[0, 0]) + np.log(follows[0, 1]), 3 * np.log(follows[1, 2])]
    found = guesses.log_likelihood(LOG_PROBS, evidence, FREQUENT)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_sharpness_and_evenness_are_recovered():
    log_probs, evidence, weights = drawn_guesses(0.7, 0.3)
    guesses = Guesses()
    for _ in range(200):
        guesses = guesses.fitted(log_probs, evidence, FREQUENT, weights, 5.0)
    assert guesses.sharpness == pytest.approx(0.7, abs=0.05)
    assert guesses.evenly == pytest.approx(0.3, abs=0.05)
    assert guesses.concentration > 2 * Guesses().concentration, "it grows: guesses are independent"
    capped = Guesses().fitted(log_probs, evidence, FREQUENT, weights, 0.4)
    assert capped.sharpness <= 0.4


# ---- hard rows


def test_hard_rows_keep_what_is_confused():
    hard = harder(MATRIX, 0.5)
    np.testing.assert_allclose(hard[0], [0.5, 0.375, 0.125, 0.0], atol=1e-6)
    np.testing.assert_allclose(hard[2], [1 / 6, 1 / 6, 0.5, 1 / 6], atol=1e-6)
    np.testing.assert_allclose(np.diag(harder(MATRIX, 0.0)), 1)


def test_the_mixture_of_hard_and_easy_rows_by_hand():
    answers = Answers([["a", "b"], ["c", "c"]] * 60, ["a", "b", "c"])
    rows = rows_from(answers, np.tile(LOG_PROBS, (60, 1)))
    found = fit_explanation(
        Confusion.start(rows.evidence), rows, with_open=False, with_difficulty=True, rounds=3
    )
    terms = explained(found, rows)
    easy = found.process.matrix
    hard = harder(easy, found.difficulty.error)
    said = np.array([[0, 1], [2, 2]])
    X = np.c_[np.ones(120), np.zeros((120, rows.scores.shape[1]))]
    share = np.exp(terms.hard[:2]) / np.prod(hard[:, said], axis=2).T
    assert np.ptp(share, axis=1).max() < 1e-9, "hard or not does not depend on the class"
    expected = (1 - share) * np.prod(easy[:, said], axis=2).T + np.exp(terms.hard[:2])
    np.testing.assert_allclose(np.exp(terms.looks[:2]), expected)
    flat = Difficulty(0.4, np.r_[-1.0, np.zeros(X.shape[1] - 1)])
    np.testing.assert_allclose(flat.shares(X), 1 / (1 + np.e))


def test_the_error_of_hard_rows_is_recovered():
    rng = np.random.default_rng(0)
    n, c = 6000, 6
    y = rng.integers(c, size=n)
    is_hard = rng.random(n) < 0.3
    error = np.where(is_hard, 0.45, 0.03)[:, None]
    wrong = (y[:, None] + rng.integers(1, c, size=(n, 5))) % c
    answers = Answers(np.where(rng.random((n, 5)) < error, wrong, y[:, None]), c)
    logits = np.where(is_hard, 1.0, 4.0)[:, None] * np.eye(c)[y] + rng.normal(size=(n, c))
    rows = rows_from(answers, logits)
    found = fit_explanation(
        Confusion.start(rows.evidence), rows, with_open=False, with_difficulty=True
    )
    assert found.difficulty.error == pytest.approx(0.45, abs=0.05)
    assert found.difficulty.error <= MOST_ERROR
    assert 1 - np.diag(found.process.matrix).mean() == pytest.approx(0.03, abs=0.02)


# ---- told from each other


def crowd(kind, n=3000, c=30, seed=0):
    """(answers, logits, truth): in a fifth of the rows people guess, or err more.

    They guess labels that the model finds likely; where they err, the truth is still the answer
    that is given most.
    """
    rng = np.random.default_rng(seed)
    y = rng.integers(c, size=n)
    odd = rng.random(n) < 0.2
    logits = np.where(odd, 1.5, 4.0)[:, None] * np.eye(c)[y] + rng.normal(size=(n, c))
    near = (y[:, None] + rng.integers(1, 5, size=(n, 3))) % c
    error = np.where(odd, 0.45, 0.1)[:, None]
    said = np.where(rng.random((n, 3)) < error, near, y[:, None])
    truth = y.copy()
    if kind == "guesses":
        logits[odd] = 1.5 * rng.normal(size=(odd.sum(), c))
        likely = np.argsort(-logits, axis=1)[:, :5]
        picked = np.take_along_axis(likely, rng.integers(5, size=(n, 3)), axis=1)
        said[odd] = picked[odd]
        truth[odd] = -1
    return Answers(said, c), logits, truth


def test_guesses_at_open_rows_are_found():
    answers, logits, truth = crowd("guesses")
    rows = rows_from(answers, logits)
    assert explain_guesses(Confusion.start(rows.evidence), rows)
    found = estimate_rates(answers, logits=logits)
    assert found.open_interval[0] <= 0.2 <= found.open_interval[1]
    assert any("as if they guessed" in note for note in found.notes)
    table = audit(answers, logits=logits)
    assert average_precision_score(truth < 0, table.p_open) > 0.9
    assert (table.verdict == "open")[truth < 0].mean() > 0.9


def test_hard_rows_are_not_taken_for_open_ones():
    answers, logits, _ = crowd("hard")
    rows = rows_from(answers, logits)
    assert not explain_guesses(Confusion.start(rows.evidence), rows)
    assert estimate_rates(answers, logits=logits).open < 0.03


def test_gold_rows_of_no_class_make_open_rows_certain_however_hard_others_are():
    answers, logits, _ = crowd("hard", n=600)
    gold = ["none of the classes"] + [None] * 599
    outputs = read_outputs(answers, None, logits, None, None, gold)
    assert take_census(outputs, Confusion).found.weight == 1
    assert take_census(replace(outputs, gold=None), Confusion).found.weight < 0.5


def test_one_answer_per_row_says_nothing_about_guesses():
    answers, logits, _ = crowd("guesses", n=400)
    first = Answers(np.array([[entry[0][0]] for entry in (answers[i] for i in range(400))]), 30)
    rows = rows_from(first, logits)
    assert not explain_guesses(Confusion.start(rows.evidence), rows)


def test_fewer_rows_are_compared_where_there_are_many_classes():
    assert [compared_size(c) for c in (2, 100, 150, 1000)] == [5000, 5000, 3333, 2500]
