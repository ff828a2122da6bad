"""Answers: by hand, against naive loops, at the limits, and inside scikit-learn."""

import copy
import pickle
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import GridSearchCV, KFold, train_test_split
from sklearn.utils import _safe_indexing

import candidly
from candidly import Answers, CandidateSets, Not
from candidly.cells import NO_CLASS_TEXT
from candidly.errors import InputError

CLASSES = ["a", "b", "c"]


def pets():
    return Answers(
        [
            ["cat", "cat|dog", None],
            [None, None, None],
            [{"dog", "bird"}, NO_CLASS_TEXT, "dog"],
            [NO_CLASS_TEXT, None, ""],
        ],
        annotators=["ann", "bob", "cy"],
    )


def test_fields_by_hand():
    answers = pets()
    assert answers.classes.tolist() == ["bird", "cat", "dog"]
    assert answers.annotators.tolist() == ["ann", "bob", "cy"]
    assert answers.row.tolist() == [0, 0, 2, 2, 2, 3]
    assert answers.annotator.tolist() == [0, 1, 0, 1, 2, 0]
    assert answers.indptr.tolist() == [0, 1, 3, 5, 6, 7, 8]
    assert answers.indices.tolist() == [1, 1, 2, 0, 2, 3, 2, 3]
    assert answers.counts.tolist() == [1] * 6
    assert (len(answers), answers.shape, answers.n_rows) == (4, (4, 3), 4)
    assert (answers.n_classes, answers.n_answers, answers.anonymous) == (3, 6, False)
    assert answers.sizes.tolist() == [1, 2, 2, 1, 1, 1]
    assert answers.nbytes == sum(
        getattr(answers, name).nbytes
        for name in ("classes", "annotators", "row", "annotator", "counts", "indptr", "indices")
    )
    assert repr(answers) == (
        "Answers(4 rows, 3 annotators, 6 answers, 3 classes ['bird', 'cat', 'dog'])"
    )


def test_sums_by_hand():
    answers = pets()
    assert answers.votes().toarray().tolist() == [
        [0, 2, 1, 0],
        [0, 0, 0, 0],
        [1, 0, 2, 1],
        [0, 0, 0, 1],
    ]
    assert answers.majority().tolist() == [1, -1, 2, 3]
    everything = ("bird", "cat", "dog")
    assert list(answers.to_sets()) == [("cat", "dog"), everything, ("bird", "dog"), everything]
    assert answers.membership().toarray().tolist() == [
        [0, 1, 0, 0],
        [0, 1, 1, 0],
        [1, 0, 1, 0],
        [0, 0, 0, 1],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
    ]
    assert answers.membership().dtype == np.float64


def test_spans_are_the_answers_of_consecutive_rows():
    answers = pets()
    spans = [answers.span(slice(*rows)) for rows in ((0, 1), (1, 2), (1, 3), (3, 99), (None,))]
    assert [(span.start, span.stop) for span in spans] == [(0, 2), (2, 2), (2, 5), (5, 6), (0, 6)]
    part = answers.membership(slice(1, 3))
    assert (part.toarray() == answers.membership().toarray()[2:5]).all()
    assert answers.membership(slice(1, 2)).shape == (0, 4)
    with pytest.raises(IndexError, match="consecutive"):
        answers.span(slice(0, 4, 2))


def test_one_row_is_a_dict():
    answers = pets()
    assert answers[0] == {"ann": ("cat",), "bob": ("cat", "dog")}
    assert answers[1] == {}
    assert answers[-1] == answers[np.int64(3)] == {"ann": (NO_CLASS_TEXT,)}
    assert [len(row) for row in answers] == [2, 0, 3, 1]
    with pytest.raises(IndexError):
        answers[4]


def test_rows_keep_classes_and_annotators():
    answers = pets()
    part = answers[[2, 2, 0]]
    assert [part[i] for i in range(3)] == [answers[2], answers[2], answers[0]]
    assert part.classes.tolist() == answers.classes.tolist()
    assert part.shape == (3, 3)
    assert answers[np.array([True, False, True, False])] == answers[[0, 2]] == answers[::2]
    assert len(answers[[]]) == 0
    assert answers[:] == answers
    with pytest.raises(IndexError, match="by rows only"):
        answers[0, 1]
    with pytest.raises(IndexError, match="one list or mask"):
        answers[np.zeros((2, 2), dtype=int)]


# ---- every form of a table


def same_table():
    return Answers([[0, 2], [None, 1]], classes=3)


@pytest.mark.parametrize(
    "table",
    [
        np.array([[0, 2], [-1, 1]]),
        np.array([[0, 2], [-7, 1]], dtype=np.int8),
        np.array([[0, 2], [np.nan, 1]]),
        np.ma.masked_array([[0, 2], [1, 1]], mask=[[0, 0], [1, 0]]),
        np.array([[0, 2], [None, 1]], dtype=object),
        [[0, 2], [-1, 1]],
        [(0, {2}), (float("nan"), [1])],
        [[0, 2.0], [pd.NA, np.int64(1)]],
        [[np.array([0]), (2,)], [[], frozenset([1])]],
        pd.DataFrame([[0, 2], [None, 1]]),
        pd.DataFrame([[0, 2], [None, 1]], dtype="Int64"),
    ],
)
def test_forms_of_a_table(table):
    assert Answers(table, classes=3) == same_table()
    assert Answers(table).classes.tolist() == [0, 1, 2]


def test_a_frame_names_its_annotators():
    frame = pd.DataFrame({"ann": ["cat", None], "bob": pd.Categorical(["dog", "cat|dog"])})
    answers = Answers(frame)
    assert answers.annotators.tolist() == ["ann", "bob"]
    assert answers[1] == {"bob": ("cat", "dog")}
    assert Answers(frame, annotators=[7, 8])[1] == {8: ("cat", "dog")}


def test_strings_are_split_as_those_of_candidate_sets():
    assert Answers([["a | b", "b"]])[0] == {0: ("a", "b"), 1: ("b",)}
    assert Answers([["a|b", "b"]], sep=None).classes.tolist() == ["a|b", "b"]
    assert Answers([[["a|b"], "b"]]).classes.tolist() == ["a|b", "b"], "within a list, kept whole"
    assert Answers([["a;b", "b"]], sep=";")[0][0] == ("a", "b")
    assert Answers(np.array([["a|b", " "]]))[0] == {0: ("a", "b")}


def test_integers_are_positions_in_a_class_list_of_names():
    assert Answers(np.array([[0, 2], [-1, 1]]), classes=CLASSES)[0] == {0: ("a",), 1: ("c",)}
    assert Answers(np.array([[0.0, np.nan]]), classes=CLASSES)[0] == {0: ("a",)}


def test_negative_numbers_are_labels_if_the_class_list_says_so():
    table = np.array([[-1, 1], [1, 1]])
    assert Answers(table, classes=[-1, 1])[0] == {0: (-1,), 1: (1,)}
    with pytest.raises(InputError, match="the only class would be 1, since a negative number"):
        Answers(table)
    with pytest.raises(InputError, match="the only class would be 1"):
        Answers(table.tolist())
    assert Answers(table, classes=2)[0] == {1: (1,)}


def test_none_of_the_classes():
    answers = Answers([["a", "nothing fits"], [NO_CLASS_TEXT, "b"]], none="nothing fits")
    assert answers.classes.tolist() == ["a", "b"]
    assert answers.indices.tolist() == [0, 2, 2, 1]
    for table in (np.array([[0, -1], [-2, 1]]), [[0, -1], [-2, 1]]):
        assert Answers(table, none=-1, classes=2)[0] == {0: (0,), 1: (NO_CLASS_TEXT,)}
        assert Answers(table, none=-1, classes=2)[1] == {1: (1,)}
    unsure = Answers([[["a", NO_CLASS_TEXT], "b"]])
    assert unsure[0][0] == ("a", NO_CLASS_TEXT)
    assert list(unsure.to_sets()) == [("a", "b")]


def test_complements():
    table = [[Not("a"), "b"], [Not("a", "c"), None], [Not(NO_CLASS_TEXT), None]]
    answers = Answers(table, classes=CLASSES)
    assert [answers[i][0] for i in range(3)] == [("b", "c"), ("b",), ("a", "b", "c")]
    everywhere = Answers([["a", "b"], ["a|c", None]], complement=True, classes=CLASSES)
    assert everywhere[0] == {0: ("b", "c"), 1: ("a", "c")}
    assert everywhere[1] == {0: ("b",)}
    assert Answers([[Not("b"), "a"]]).classes.tolist() == ["a", "b"], "an excluded label occurs"
    assert Not("a", "b") == Not("b", "a") != Not("a")
    assert len({Not("a", "b"), Not("b", "a")}) == 1
    assert repr(Not("a", 1)) == "Not('a', 1)"


def test_ties_go_to_the_first_class():
    answers = Answers([["b", "a"], ["b|c", "c"], ["a|b|c", "b|c"]], classes=CLASSES)
    assert answers.majority().tolist() == [0, 2, 1]
    sixths = Answers.from_long(
        [0] * 12, range(12), [list("abcdef")] * 6 + list("bacdef"), classes=list("abcdef")
    )
    assert sixths.majority().tolist() == [0], "sums of 1/6 are tied in spite of rounding"


def test_other_classes_and_names():
    answers = pets()
    wider = Answers(answers, classes=["dog", "cow", "cat", "bird"], annotators=[1, 2, 3])
    assert wider[0] == {1: ("cat",), 2: ("dog", "cat")}
    assert wider[3] == {1: (NO_CLASS_TEXT,)}
    assert wider.annotators.tolist() == [1, 2, 3]
    assert Answers(wider, classes=answers.classes, annotators=answers.annotators) == answers
    assert Answers(answers) == answers
    with pytest.raises(InputError, match=r"row 2, annotator 'ann': label 'bird' is not among"):
        Answers(answers, classes=["cat", "dog"])


def test_equality_and_copies():
    answers = pets()
    assert pickle.loads(pickle.dumps(answers)) == copy.deepcopy(answers) == answers
    assert answers != answers[:3]
    assert answers != Answers(answers, annotators=["ann", "bob", "dan"])
    assert answers != "answers"
    with pytest.raises(TypeError):
        hash(answers)
    with pytest.raises(ValueError, match="read-only"):
        answers.counts[0] = 2
    with pytest.raises(AttributeError):
        answers.counts = None


# ---- counts of anonymous people


def test_counts_by_hand():
    counts = [[3, 0, 1], [0, 0, 0], [0, 2, 0]]
    answers = Answers.from_counts(counts, CLASSES, none_counts=[0, 1, 5])
    assert answers.anonymous
    assert answers.annotators.tolist() == ["anyone"]
    assert answers[0] == [(("a",), 3), (("c",), 1)]
    assert answers[1] == [((NO_CLASS_TEXT,), 1)]
    assert answers.n_answers == 12
    assert answers.votes().toarray().tolist() == [[3, 0, 1, 0], [0, 0, 0, 1], [0, 2, 0, 5]]
    assert answers.majority().tolist() == [0, 3, 3]
    assert answers[[2, 0]][0] == [(("b",), 2), ((NO_CLASS_TEXT,), 5)]
    assert answers[[2, 0]].anonymous
    assert repr(answers) == "Answers(3 rows, 12 anonymous answers, 3 classes ['a', 'b', 'c'])"
    assert Answers(answers, classes=["c", "b", "a"])[0] == [(("a",), 3), (("c",), 1)]


def test_counts_in_every_form():
    counts = np.array([[3, 0], [0, 2]])
    expected = Answers.from_counts(counts)
    for other in (counts.tolist(), counts.astype(float), sparse.coo_matrix(counts)):
        assert Answers.from_counts(other) == expected
    frame = pd.DataFrame(counts, columns=["x", "y"])
    assert Answers.from_counts(frame).classes.tolist() == ["x", "y"]
    given = sparse.csr_array(counts)
    Answers.from_counts(given)
    assert given.toarray().tolist() == counts.tolist(), "the caller's matrix stays as it is"


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([[1, -2]], "row 0, column 1: -2 is not a count"),
        ([[1, 0], [0.5, 0]], "row 1, column 0: 0.5 is not a count"),
        ([[1, np.nan]], "nan is not a count"),
        ([["a", "b"]], "expected whole numbers"),
        ([1, 2], r"shape \(2,\): expected a matrix"),
    ],
)
def test_what_is_not_a_count_is_refused(counts, words):
    with pytest.raises(InputError, match=words):
        Answers.from_counts(counts)


def test_counts_must_fit():
    with pytest.raises(InputError, match=r"but there are 3 classes \['a', 'b', 'c'\]"):
        Answers.from_counts([[1, 2]], CLASSES)
    with pytest.raises(InputError, match="expected one number per row, 1"):
        Answers.from_counts([[1, 2]], none_counts=[1, 2])


# ---- long tables


def test_a_long_table_by_hand():
    answers = Answers.from_long(
        [2, 0, 0, 2], ["bob", "bob", "ann", "ann"], ["b", {"a", "c"}, None, Not("b")], n_rows=4
    )
    assert [answers[i] for i in range(4)] == [
        {"bob": ("a", "c")},
        {},
        {"ann": ("a", "c"), "bob": ("b",)},
        {},
    ]
    named = Answers.from_long([0], ["bob"], ["a"], names=["cy", "bob"], classes=CLASSES)
    assert named.annotators.tolist() == ["cy", "bob"]
    assert named.annotator.tolist() == [1]
    none = Answers.from_long([], [], [], n_rows=2, names=["ann"], classes=2)
    assert (len(none), none.n_answers, none.majority().tolist()) == (2, 0, [-1, -1])
    assert list(none.to_sets()) == [(0, 1), (0, 1)]


def test_membership_gives_the_same_answers_again():
    answers = pets()
    again = Answers.from_membership(
        answers.membership()[::-1],
        answers.row[::-1],
        answers.annotator[::-1],
        n_rows=4,
        classes=answers.classes,
        annotators=answers.annotators,
    )
    assert again == answers


# ---- against naive loops

CELL = st.one_of(
    st.none(),
    st.sampled_from([*CLASSES, NO_CLASS_TEXT]),
    st.frozensets(st.sampled_from([*CLASSES, NO_CLASS_TEXT]), min_size=1),
    st.sampled_from([Not("a"), Not("b", "c")]),
)
TABLE = st.integers(1, 4).flatmap(
    lambda k: st.lists(st.lists(CELL, min_size=k, max_size=k), min_size=1, max_size=6)
)


def naive(cell):
    """Return the labels of a cell as a set."""
    if cell is None:
        return set()
    if isinstance(cell, Not):
        return set(CLASSES) - set(cell.labels)
    return {cell} if isinstance(cell, str) else set(cell)


def naive_majority(sets):
    words = [*CLASSES, NO_CLASS_TEXT]
    votes = [sum(1 / len(s) for s in sets if word in s) for word in words]
    return next(i for i, v in enumerate(votes) if v >= max(votes) - 1e-9) if any(votes) else -1


@settings(max_examples=200, deadline=None)
@given(TABLE)
def test_against_naive_loops(table):
    answers = Answers(table, classes=CLASSES)
    sets = [[naive(cell) for cell in row] for row in table]
    for i, row in enumerate(sets):
        assert {k: set(v) for k, v in answers[i].items()} == {
            k: labels for k, labels in enumerate(row) if labels
        }
        union = set().union(*row) - {NO_CLASS_TEXT}
        assert set(answers.to_sets()[i]) == (union or set(CLASSES))
        votes = [sum(word in labels for labels in row) for word in [*CLASSES, NO_CLASS_TEXT]]
        assert answers.votes()[[i]].toarray()[0].tolist() == votes
        assert answers.majority()[i] == naive_majority(row)


@settings(max_examples=200, deadline=None)
@given(TABLE, st.data())
def test_indexing_is_naive_indexing(table, data):
    answers = Answers(table, classes=CLASSES)
    rows = data.draw(st.lists(st.integers(-len(table), len(table) - 1), max_size=8))
    taken = answers[np.array(rows, dtype=int)]
    assert [taken[i] for i in range(len(rows))] == [answers[i] for i in rows]
    if rows:
        assert taken == Answers([table[i] for i in rows], classes=CLASSES)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(table), max_size=len(table))))
    assert answers[mask] == answers[np.flatnonzero(mask)]


@settings(max_examples=200, deadline=None)
@given(TABLE, st.randoms())
def test_a_long_table_is_the_wide_one(table, random):
    lines = [(i, k, cell) for i, row in enumerate(table) for k, cell in enumerate(row)]
    random.shuffle(lines)
    rows, people, labels = map(list, zip(*lines, strict=True))
    assert Answers.from_long(rows, people, labels, classes=CLASSES) == Answers(
        table, classes=CLASSES
    )


# ---- scikit-learn


class Majority(ClassifierMixin, BaseEstimator):
    """Predicts the class with most votes; `shift` makes it wrong."""

    def __init__(self, shift=0):
        self.shift = shift

    def fit(self, X, y):
        assert isinstance(y, Answers)
        assert len(X) == len(y)
        self.classes_ = y.classes
        self.label_ = np.bincount(y.majority(), minlength=y.n_classes).argmax() + self.shift
        return self

    def score(self, X, y):
        return float((y.majority() == self.label_).mean())


def test_scikit_learn_takes_rows():
    rng = np.random.default_rng(0)
    answers = Answers(rng.integers(-1, 3, size=(50, 4)), classes=3)
    rows = np.arange(50)
    for train, test in KFold(5, shuffle=True, random_state=0).split(rows, answers):
        assert len(_safe_indexing(answers, train)) == 40
        assert _safe_indexing(answers, test) == answers[test]
    a, b, part_a, part_b = train_test_split(rows, answers, test_size=0.3, random_state=1)
    assert part_a == answers[a]
    assert part_b == answers[b]
    assert _safe_indexing(answers, np.arange(50) < 3) == answers[:3]


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_grid_search(n_jobs):
    answers = Answers(np.random.default_rng(0).choice(3, p=[0.8, 0.1, 0.1], size=(40, 3)))
    search = GridSearchCV(Majority(), {"shift": [0, 1]}, cv=4, n_jobs=n_jobs)
    search.fit(np.zeros((40, 1)), answers)
    assert search.best_params_ == {"shift": 0}
    assert (np.asarray(answers) == answers.votes().toarray()).all()
    with pytest.raises(ValueError, match="makes a copy"):
        np.array(answers, copy=False)


# ---- size


def test_many_annotators_stay_small():
    rng = np.random.default_rng(0)
    n = 100_000
    rows = np.repeat(np.arange(n), 5)
    people = (rng.integers(1000, size=n)[:, None] + np.array([0, 7, 200, 333, 600])) % 1000
    labels = [f"class {i}" for i in rng.integers(10, size=5 * n)]
    start = time.process_time()
    answers = Answers.from_long(rows, people.ravel(), labels)
    assert answers.shape == (n, 1000)
    answers.to_sets()
    answers.majority()
    answers[rng.permutation(n)]
    assert time.process_time() - start < 3
    assert answers.nbytes < 30e6


def test_pandas_and_torch_are_not_imported():
    code = (
        "import sys, numpy, candidly;"
        "candidly.Answers(numpy.array([[0, 1], [1, -1]])).to_sets();"
        "print('pandas' in sys.modules, 'torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False False\n"


def test_public_names():
    assert candidly.Answers is Answers
    assert candidly.Not is Not
    assert isinstance(pets().to_sets(), CandidateSets)


# ---- errors


@pytest.mark.parametrize(
    ("table", "options", "words"),
    [
        ([["a", "b"], ["a"]], {}, r"row 1 has 1 cells, but row 0 has 2"),
        (["a", "b"], {}, r"row 0 is 'a': expected a list with one cell per annotator"),
        ([], {}, r"shape \(0, 0\): expected one row per example"),
        (np.zeros(3, dtype=int), {}, r"shape \(3,\): expected one row per example"),
        ("a|b", {}, "table is of type str"),
        ([["a", "x"]], {"classes": CLASSES}, r"row 0, annotator 1: label 'x' is not among the 3"),
        ([["a", 3]], {"classes": CLASSES}, r"row 0, annotator 1: position 3 is outside 0\.\.2"),
        ([["a", {"b": 1}]], {}, r"row 0, annotator 1: \{'b': 1\} is not an answer"),
        ([["a", ["b", None]]], {}, r"row 0, annotator 1: None is not a label"),
        ([["a", float("inf")]], {}, r"row 0, annotator 1: inf is not a label"),
        ([["a", True]], {}, r"row 0, annotator 1: True is not read as a label"),
        (np.ones((2, 2), dtype=bool), {}, "For a 0/1 matrix of candidates use CandidateSets"),
        ([["a", Not("a", "b")]], {}, r"Not\('a', 'b'\) excludes all 2 classes"),
        ([["a|b"]], {"complement": True}, r"row 0, annotator 0: 'a\|b' excludes all 2 classes"),
        ([[None, NO_CLASS_TEXT]], {}, "no answer names a class: pass `classes`"),
        ([["a"]], {"classes": ["a", NO_CLASS_TEXT]}, r"classes, entry 1: 'none of the classes'"),
        ([["a"]], {"classes": ["a", "?"], "none": "?"}, r"classes, entry 1: '\?' is the answer"),
        ([["a", "b"]], {"annotators": ["x"]}, "1 names, but the table has 2 columns"),
        ([["a", "b"]], {"annotators": ["x", "x"]}, r"duplicate 'x' \(entries 0 and 1\)"),
        ([["a"]], {"sep": ""}, "sep='': expected a non-empty string"),
    ],
)
def test_bad_tables_are_refused(table, options, words):
    with pytest.raises(InputError, match=words):
        Answers(table, **options)


@pytest.mark.parametrize(
    ("rows", "people", "labels", "options", "words"),
    [
        ([0, 0], ["x", "x"], ["a", "b"], {}, r"row 0, annotator 'x': two answers, \('a',\) and"),
        ([3, 3], [7, 7], ["a", "b"], {}, r"row 3, annotator 7: two answers"),
        ([0, -1], ["x", "y"], ["a", "b"], {}, r"answer 1: row -1 is outside 0\.\.0"),
        ([0, 2], ["x", "y"], ["a", "b"], {"n_rows": 2}, r"answer 1: row 2 is outside 0\.\.1"),
        ([0.5], ["x"], ["a"], {}, "rows of type float64"),
        ([0, 1], ["x"], ["a", "b"], {}, "annotators has 1 entries, but labels has 2"),
        ([0], ["x", "y"], ["a", "b"], {}, r"shape \(1,\): expected 2 whole numbers"),
        ([0], [None], ["a"], {}, "annotators, entry 0: None is not a name"),
        ([0], ["x"], ["a"], {"names": ["y"]}, "annotator 'x' is not among the 1 names"),
        ([0, 1], ["x", "y"], ["a", "?"], {"classes": ["a"]}, "row 1, annotator 'y': label '\\?'"),
        ([], [], [], {}, "there are 0 rows"),
        ([], [], [], {"n_rows": 1}, "there are no answers: pass `names`"),
    ],
)
def test_bad_long_tables_are_refused(rows, people, labels, options, words):
    with pytest.raises(InputError, match=words):
        Answers.from_long(rows, people, labels, **options)


def test_other_errors():
    with pytest.raises(InputError, match="excludes nothing"):
        Not()
    with pytest.raises(InputError, match="expected a table, but these are Answers"):
        Answers(pets(), complement=True)
    common = {"n_rows": 2, "classes": ["a"], "annotators": ["x"]}
    with pytest.raises(InputError, match="the entry is 2, expected 0 or 1"):
        Answers.from_membership(np.array([[2, 0]]), [0], [0], **common)
    with pytest.raises(InputError, match=r"answer 0: annotator 1 is outside 0\.\.0"):
        Answers.from_membership(np.array([[1, 0]]), [0], [1], **common)
