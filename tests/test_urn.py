"""The urn: by hand, answer by answer, at its limits, and fitted to draws from it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from candidly.auditing import urn

MATRIX = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]])
VOTES = np.array([[2, 1, 0], [0, 0, 3], [1, 1, 1], [0, 0, 0]])


def one_by_one(votes, q, concentration):
    """P(answers), each given the earlier ones, in one order."""
    seen = np.zeros(len(q))
    total = 1.0
    for label in np.repeat(np.arange(len(q)), votes):
        total *= (concentration * q[label] + seen[label]) / (concentration + seen.sum())
        seen[label] += 1
    return total


@pytest.mark.parametrize("concentration", [0.5, 3.0, 40.0])
def test_the_likelihood_is_that_of_answers_one_by_one(concentration):
    found = urn.log_likelihood(sparse.csr_array(VOTES * 1.0), MATRIX, concentration)
    expected = [[one_by_one(row, q, concentration) for q in MATRIX] for row in VOTES]
    np.testing.assert_allclose(np.exp(found), expected)


def test_a_large_concentration_makes_answers_independent_and_a_small_one_copies():
    votes = sparse.csr_array(VOTES * 1.0)
    many = urn.log_likelihood(votes, MATRIX, 1e7)
    np.testing.assert_allclose(many, VOTES @ np.log(MATRIX).T, atol=1e-5)
    few = np.exp(urn.log_likelihood(votes, MATRIX, 1e-9))
    np.testing.assert_allclose(few, [[0, 0], [0.1, 0.3], [0, 0], [1, 1]], atol=1e-8)


def test_drawn_answers_are_counted_by_enumeration():
    q, concentration = 0.3, 2.0
    a = concentration * q
    # The second of two equal answers is drawn with a / (a + 1), the third with a / (a + 2).
    expected = 1 + a / (a + 1) + a / (a + 2)
    assert urn.drawn(np.array([a]), np.array([3.0]))[0] == pytest.approx(expected)
    found = urn.counted(sparse.csr_array([[0.0, 3.0]]), np.array([[0.7, q]]), 2.0, np.ones((1, 1)))
    np.testing.assert_allclose(found, [[0, expected]])


def drawn_answers(n, k, q, concentration, rng):
    """(n, labels) votes of k answers per row, drawn or copied one by one."""
    votes = np.zeros((n, len(q)))
    for step in range(k):
        p = (concentration * q + votes) / (concentration + step)
        label = (rng.random((n, 1)) > p.cumsum(axis=1)[:, :-1]).sum(axis=1)
        votes[np.arange(n), label] += 1
    return votes


@pytest.mark.parametrize("concentration", [2.0, 20.0])
def test_matrix_and_concentration_are_recovered(concentration):
    q = np.array([0.5, 0.3, 0.2])
    votes = drawn_answers(20_000, 5, q, concentration, np.random.default_rng(0))
    sparse_votes = sparse.csr_array(votes)
    found, a = np.full((1, 3), 1 / 3), urn.START
    certain = np.ones((len(votes), 1))
    likelihoods = []
    for _ in range(300):
        likelihoods.append(urn.log_likelihood(sparse_votes, found, a).sum())
        counts = urn.counted(sparse_votes, found, a, certain)
        a = urn.concentration(a, counts.sum(), votes.sum(axis=1), certain[:, 0])
        found = counts / counts.sum()
    assert (np.diff(likelihoods) > -1e-6).all(), "EM never loses"
    np.testing.assert_allclose(found[0], q, atol=0.01)
    assert a == pytest.approx(concentration, rel=0.15)


def test_the_concentration_by_hand_and_within_its_bounds():
    totals, weights = np.full(10, 3.0), np.ones(10)
    # Each row expects 1 + 10/11 + 10/12 drawn answers at A = 10.
    expected = 10 * (1 + 10 / 11 + 10 / 12)
    assert urn.concentration(10.0, expected, totals, weights) == pytest.approx(10)
    assert urn.concentration(10.0, expected / 2, totals, weights) == pytest.approx(5)
    assert urn.concentration(10.0, 1e9, totals, weights) == urn.CONCENTRATION[1]
    assert urn.concentration(10.0, 1e-9, totals, weights) == urn.CONCENTRATION[0]
