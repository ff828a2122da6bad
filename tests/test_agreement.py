"""Agreement of annotators: published values, naive loops over all pairs, scikit-learn."""

import math
import warnings
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from candidly import Answers
from candidly.agreement import agreement_facts, krippendorff_alpha, pairwise_kappa

# Four observers and twelve units, from Krippendorff, "Computing Krippendorff's
# Alpha-Reliability" (2011), section C; his value for nominal data is 0.743.
PUBLISHED = [
    [1, 1, None, 1],
    [2, 2, 3, 2],
    [3, 3, 3, 3],
    [3, 3, 3, 3],
    [2, 2, 2, 2],
    [1, 2, 3, 4],
    [4, 4, 4, 4],
    [1, 1, 2, 1],
    [2, 2, 2, 2],
    [None, 5, 5, 5],
    [None, None, 1, 1],
    [None, None, 3, None],
]


def naive_alpha(rows):
    """Compare all pairs of answers (sets), one by one."""
    rows = [row for row in rows if len(row) > 1]
    values = [answer for row in rows for answer in row]
    n = len(values)

    def distance(a, b):
        return 1 - len(a & b) / len(a | b)

    observed = sum(distance(a, b) / (len(row) - 1) for row in rows for a, b in permutations(row, 2))
    expected = sum(distance(a, b) for a, b in permutations(values, 2)) / max(1, n - 1)
    return 1 - observed / expected if expected > 0 else math.nan


def rows_of(answers):
    return [[set(labels) for labels in answers[i].values()] for i in range(len(answers))]


def test_the_published_example():
    answers = Answers(PUBLISHED)
    assert krippendorff_alpha(answers) == pytest.approx(0.743, abs=5e-4)
    assert krippendorff_alpha(answers) == pytest.approx(naive_alpha(rows_of(answers)))


CELL = st.one_of(st.none(), st.sampled_from("abc"), st.frozensets(st.sampled_from("abcd")))
TABLE = st.lists(st.lists(CELL, min_size=4, max_size=4), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(TABLE)
def test_alpha_of_sets_is_that_of_all_pairs(table):
    answers = Answers(table, classes=list("abcd"))
    expected = naive_alpha(rows_of(answers))
    assert krippendorff_alpha(answers) == pytest.approx(expected, nan_ok=True)


def test_alpha_at_the_limits():
    assert krippendorff_alpha(Answers([["a", "a"], ["b", "b"]])) == 1
    assert krippendorff_alpha(Answers([["a", "b"], ["b", "a"]])) == pytest.approx(-0.5)
    assert math.isnan(krippendorff_alpha(Answers([["a", "a"], ["a", "a"]])))
    assert math.isnan(krippendorff_alpha(Answers([["a", None], [None, "b"]])))
    nobody = Answers.from_long([], [], [], n_rows=2, names=["x"], classes=2)
    assert math.isnan(krippendorff_alpha(nobody))
    noise = Answers(np.random.default_rng(0).integers(3, size=(20_000, 3)))
    assert abs(krippendorff_alpha(noise)) < 0.01


def test_alpha_of_counts_is_that_of_the_people():
    answers = Answers(PUBLISHED)
    counts = answers.votes().toarray()[:, :-1]
    assert krippendorff_alpha(Answers.from_counts(counts)) == pytest.approx(
        krippendorff_alpha(answers)
    )


def test_none_of_the_classes_is_a_label():
    words = [["a", "none of the classes"], ["b", "b"], ["none of the classes"] * 2]
    plain = [["a", "z"], ["b", "b"], ["z", "z"]]
    assert krippendorff_alpha(Answers(words)) == krippendorff_alpha(Answers(plain))


def test_kappa_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    truth = rng.integers(4, size=(300, 1))
    table = np.where(rng.random((300, 5)) < 0.3, rng.integers(4, size=(300, 5)), truth)
    table[rng.random((300, 5)) < 0.2] = -1
    pairs = pairwise_kappa(Answers(table, annotators=list("vwxyz")))
    assert len(pairs) == 10
    for pair in pairs:
        i, j = ("vwxyz".index(pair[name]) for name in ("first", "second"))
        both = (table[:, i] >= 0) & (table[:, j] >= 0)
        assert pair["rows"] == both.sum()
        assert pair["agreement"] == pytest.approx((table[both, i] == table[both, j]).mean())
        assert pair["kappa"] == pytest.approx(cohen_kappa_score(table[both, i], table[both, j]))


def test_which_pairs_have_a_kappa():
    table = [["a", "a", "a|b", None]] * 9 + [["b", "a", "b", "a"]]
    assert pairwise_kappa(Answers(table)) == pairwise_kappa(Answers(table), most=12)
    assert [(p["first"], p["second"], p["rows"]) for p in pairwise_kappa(Answers(table))] == [
        (0, 1, 10)
    ], "sets of several labels, and fewer than ten rows, do not count"
    assert pairwise_kappa(Answers(table), most=1) == []
    assert pairwise_kappa(Answers.from_counts(np.ones((20, 2), dtype=int))) == []
    same = pairwise_kappa(Answers([["a", "a"]] * 10, classes=["a", "b"]))
    assert same[0]["agreement"] == 1
    assert math.isnan(same[0]["kappa"])


def test_facts():
    facts = agreement_facts(Answers([["a", "a"], ["b", "b"], ["a", "b"], ["a", None]] * 5))
    assert (facts["rows"], facts["unanimous"]) == (15, pytest.approx(2 / 3))
    assert facts["alpha"] == pytest.approx(1 - (1 / 3) / (2 * 15 * 15 / (30 * 29)))
    assert facts["lowest"] == facts["highest"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lonely = agreement_facts(Answers([["a", None], [None, "b"]]))
    assert lonely == dict.fromkeys(("unanimous", "alpha", "lowest", "highest")) | {"rows": 0}
