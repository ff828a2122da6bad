"""CandidateSets: all forms of input give the same object; errors name the row and the value."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import tracemalloc
from dataclasses import FrozenInstanceError

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.model_selection import KFold, train_test_split
from sklearn.utils import _safe_indexing

from candidly.errors import InputError
from candidly.sets import CandidateSets

NAMES = ["cat", "dog", "bird"]
ROWS = [["cat", "dog"], ["bird"], ["cat", "dog", "bird"], ["dog"]]
MATRIX = np.array([[1, 1, 0], [0, 0, 1], [1, 1, 1], [0, 1, 0]])


@pytest.fixture
def sets() -> CandidateSets:
    return CandidateSets(ROWS, NAMES)


class ArrayLike:
    """Stands for a tensor: nothing but `__array__`."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def __array__(self, dtype=None, copy=None):
        return self.values


def with_explicit_zero() -> sparse.csr_matrix:
    matrix = sparse.csr_matrix(MATRIX + (np.arange(12).reshape(4, 3) == 2))
    matrix[0, 2] = 0
    assert matrix.nnz == 8
    return matrix


def unsorted_csr() -> sparse.csr_array:
    indices = np.array([1, 0, 2, 2, 1, 0, 1])
    return sparse.csr_array((np.ones(7), indices, np.array([0, 2, 3, 6, 7])), shape=(4, 3))


@pytest.mark.parametrize(
    "given_sets",
    [
        ROWS,
        [tuple(row) for row in ROWS],
        [set(row) for row in ROWS],
        [frozenset(row) for row in ROWS],
        [np.array(row) for row in ROWS],
        tuple(ROWS),
        (row for row in ROWS),
        [["dog", "cat", "dog"], ["bird"] * 4, ["bird", "dog", "cat"], "dog"],
        [[0, 1], [2], [0, 1, 2], [1]],
        [[1, np.int64(0)], 2, np.array([2, 1, 0]), ArrayLike([1])],
        MATRIX,
        MATRIX.astype(bool),
        MATRIX.astype(float),
        MATRIX.astype(object),
        np.asfortranarray(MATRIX),
        ArrayLike(MATRIX),
        sparse.csr_matrix(MATRIX),
        sparse.csr_array(MATRIX.astype(bool)),
        sparse.csc_array(MATRIX),
        sparse.coo_matrix(MATRIX),
        sparse.lil_matrix(MATRIX),
        with_explicit_zero(),
        unsorted_csr(),
        pd.DataFrame(MATRIX, columns=NAMES),
        pd.DataFrame(MATRIX, columns=NAMES)[["bird", "cat", "dog"]],
        pd.DataFrame(MATRIX, columns=NAMES).astype({"cat": bool}),
        pd.DataFrame(MATRIX, columns=NAMES).astype("Int64"),
        pd.DataFrame(MATRIX),
        pd.Series(ROWS, index=[9, 9, 7, 1]),
        pd.Series(["cat|dog", "bird", " cat | dog|bird", "dog|"]),
        pd.Series(["cat|dog", "bird", "cat|dog|bird", "dog"], dtype="category"),
        ["cat|dog", "bird", "cat||dog|bird", "dog"],
        np.array(["cat|dog", "bird", "cat|dog|bird", "dog"]),
        CandidateSets(ROWS),
        CandidateSets(ROWS, [*NAMES, "fish"]),
    ],
)
def test_every_form_gives_the_same_object(given_sets, sets):
    built = CandidateSets(given_sets, NAMES)
    assert built == sets
    assert list(built) == [("cat", "dog"), ("bird",), ("cat", "dog", "bird"), ("dog",)]
    assert built.indptr.tolist() == [0, 2, 3, 6, 7]
    assert built.indices.tolist() == [0, 1, 2, 0, 1, 2, 1]
    assert (built.indptr.dtype, built.indices.dtype) == (np.int64, np.uint8)
    assert built.shape == (4, 3)
    assert built.sizes.tolist() == [2, 1, 3, 1]


@pytest.mark.parametrize("form", [list, np.array, pd.Series, ArrayLike])
def test_one_label_per_row_is_a_set_of_one(form):
    assert list(CandidateSets(form([5, 3, 5]))) == [(5,), (3,), (5,)]
    assert list(CandidateSets(form(["b", "a"]))) == [("b",), ("a",)]
    assert list(CandidateSets(form([1.0, 2.0]))) == [(1,), (2,)]
    assert CandidateSets(form([0, 2]), NAMES) == CandidateSets(["cat", "bird"], NAMES)


def test_sep():
    assert list(CandidateSets(["a;b", "c"], sep=";")) == [("a", "b"), ("c",)]
    assert list(CandidateSets(["a|b", "c "], sep=None)) == [("a|b",), ("c ",)]
    assert list(CandidateSets([["a|b"], ["c"]])) == [("a|b",), ("c",)], (
        "labels inside a list are never split"
    )


@pytest.mark.parametrize(
    ("given_sets", "classes", "expected", "kind"),
    [
        ([["b"], ["a", "c"]], None, ["a", "b", "c"], "U"),
        ([[10, 2], [3]], None, [2, 3, 10], "i"),
        ([["x", 10, 2]], None, [2, 10, "x"], "O"),
        ([[1.5, 2]], None, [1.5, 2], "O"),
        ([0.5, 1.5], None, [0.5, 1.5], "f"),
        ([2**70, 1], None, [1, 2**70], "O"),
        ([[("a", 1)], [("b",)]], None, [("a", 1), ("b",)], "O"),
        (["a\0", "b"], None, ["a\0", "b"], "O"),
        (MATRIX, None, [0, 1, 2], "i"),
        ([[0], [2]], 4, [0, 1, 2, 3], "i"),
        ([[0], [2]], np.int64(4), [0, 1, 2, 3], "i"),
        ([["a"]], ("b", "a"), ["b", "a"], "U"),
        ([["a"]], pd.Series(["b", "a"]), ["b", "a"], "U"),
        ([7], np.array([9, 7]), [9, 7], "i"),
        ([7], [9.0, 7.0], [9, 7], "i"),
        (pd.DataFrame({"z": [1], "a": [True]}), None, ["z", "a"], "U"),
        ([True], [False, True], [False, True], "b"),
    ],
)
def test_class_list(given_sets, classes, expected, kind):
    built = CandidateSets(given_sets, classes)
    assert built.classes.tolist() == expected
    assert [type(label) for label in built.classes.tolist()] == [type(label) for label in expected]
    assert built.classes.dtype.kind == kind


def test_integers_are_positions_only_if_the_class_list_holds_none():
    assert CandidateSets([[0, 2]], NAMES)[0] == ("cat", "bird")
    assert CandidateSets([[0, 2]], [2, 1, 0])[0] == (2, 0)
    assert CandidateSets([[0, "a"]], ["a", 0])[0] == ("a", 0)


@pytest.mark.parametrize(
    ("c", "dtype"), [(256, np.uint8), (257, np.uint16), (65536, np.uint16), (65537, np.int32)]
)
def test_smallest_index_type(c, dtype):
    built = CandidateSets([[0, c - 1], [c // 2]], c)
    assert built.indices.dtype == dtype
    assert list(built) == [(0, c - 1), (c // 2,)]


NAN = float("nan")


@pytest.mark.parametrize(
    ("given_sets", "classes", "words"),
    [
        ([], None, "no examples"),
        (np.zeros((0, 3)), None, "no examples"),
        (sparse.csr_matrix((0, 3)), None, "no examples"),
        ([["cat"], []], NAMES, r"row 1: the candidate set is empty \(1 such"),
        ([[], []], None, r"row 0: the candidate set is empty \(2 such"),
        (["cat", " "], NAMES, "row 1: the candidate set is empty"),
        (MATRIX * [[1], [0], [1], [1]], None, "row 1: the candidate set is empty"),
        (
            sparse.csr_matrix(MATRIX * [[1], [1], [0], [1]]),
            None,
            "row 2: the candidate set is empty",
        ),
        (pd.DataFrame(MATRIX * 0, columns=NAMES), None, "row 0: the candidate set is empty"),
        (
            [["cat"], ["dog", "fish"]],
            NAMES,
            r"row 1: label 'fish' .* 3 classes \['cat', 'dog', 'bird'\]",
        ),
        (["cat", "dog|fish"], NAMES, "row 1: label 'fish'"),
        (np.array([0, 1, 7]), 3, "row 2: label 7"),
        ([[0], [1, -1]], 3, "row 1: label -1"),
        ([[0], [1, 3]], NAMES, r"row 1: position 3 is outside 0\.\.2"),
        ([[-1]], NAMES, "row 0: position -1"),
        (["3|4"], 10, "row 0: label '3' .* convert its type"),
        (CandidateSets(ROWS), ["cat", "dog"], "row 1: label 'bird'"),
        (pd.DataFrame(MATRIX, columns=NAMES), ["cat", "dog", "fish"], "row 1: label 'bird'"),
        (MATRIX, ["cat", "dog"], r"shape \(4, 3\).* 2 classes \['cat', 'dog'\]"),
        (sparse.csr_matrix(MATRIX), 4, r"shape \(4, 3\).* 4 classes"),
        (np.zeros((2, 3, 4)), None, r"shape \(2, 3, 4\)"),
        (np.zeros((2, 0)), None, r"shape \(2, 0\)"),
        (np.array(1), None, r"shape \(\)"),
        ([["cat"], ["dog", None]], None, "row 1: missing label .None"),
        ([["cat"], ["dog", NAN]], NAMES, "row 1: missing label .nan"),
        (np.array([1.0, NAN]), None, "row 1: missing label .nan"),
        (pd.Series(["cat", None]), None, "row 1: missing label"),
        (pd.Series([["cat"], None]), None, "row 1: missing label"),
        (pd.Series([["cat"], ["dog", pd.NA]]), None, "row 1: missing label .<NA>"),
        (pd.Series([1, None], dtype="Int64"), 2, "row 1: missing label"),
        ([["cat"], [pd.NaT]], None, "row 1: missing label .NaT"),
        ([["cat"], [["dog"]]], None, r"row 1: \['dog'\] is not a label"),
        ([["cat"], {"dog": 1}], None, "row 1: {'dog': 1} is not a label"),
        ([["cat"], [True]], NAMES, "row 1: True is not read as a label"),
        ([[True, False]], None, r"row 0: True .* np\.array\(sets\)"),
        ([[1, 0, 1], [0, 1, 0]], NAMES, r"lists of 3 entries .* np\.array\(sets\)"),
        (np.array([[0, 1], [1, 2]]), None, r"row 1, column 1 \(class 1\): the entry is 2,"),
        (
            np.array([[0, 1], [0.5, 1]]),
            ["a", "b"],
            r"row 1, column 0 \(class 'a'\): the entry is 0.5",
        ),
        (np.array([[0, 1], [NAN, 1]]), None, "row 1, column 0 .*: the entry is nan"),
        (np.array([[0, 1], [-1, 1]]), None, "row 1, column 0 .*: the entry is -1"),
        (
            sparse.csr_matrix(MATRIX * [[1], [1], [3], [1]]),
            NAMES,
            r"row 2, column 0 \(class 'cat'\): the entry is 3",
        ),
        (
            sparse.coo_array(([1, 1], ([0, 0], [1, 1])), shape=(1, 2)),
            None,
            "row 0, column 1 .*: the entry is 2",
        ),
        (
            pd.DataFrame({"a": [1, 1], "b": ["x", "y"]}),
            None,
            r"row 0, column 1 \(class 'b'\): the entry is 'x'",
        ),
        (
            pd.DataFrame({"a": [1, 1], "b": [True, pd.NA]}),
            None,
            "row 1, column 1 .*: the entry is <NA>",
        ),
        (pd.DataFrame({"a": ["0", "1"]}), None, "row 0, column 0 .*: the entry is '0'"),
        (["a"], ["a", "b", "a"], r"classes: duplicate 'a' \(entries 0 and 2\)"),
        ([1], np.array([3, 1, 3]), r"classes: duplicate 3 \(entries 0 and 2\)"),
        (["a"], ["a", None], "classes, entry 1: missing"),
        (["a"], [], "classes is empty"),
        (["a"], 0, "classes=0"),
        (["a"], "abc", "classes is of type str, 'abc'"),
        (["a"], {"a", "b"}, "classes is of type set"),
        ("cat", None, "sets is of type str, 'cat'"),
        (5, None, "sets is of type int, 5"),
        ({"a": [1]}, None, "sets is of type dict"),
    ],
)
def test_faults_are_named(given_sets, classes, words):
    with pytest.raises(InputError, match=words):
        CandidateSets(given_sets, classes)


def test_wrong_sep():
    with pytest.raises(InputError, match="sep=''"):
        CandidateSets(["a"], sep="")


def test_a_bad_entry_is_found_beyond_the_first_block(monkeypatch):
    monkeypatch.setattr("candidly.blocks.ENTRIES", 6)
    assert CandidateSets(MATRIX, NAMES) == CandidateSets(ROWS, NAMES)
    wrong = MATRIX.copy()
    wrong[3, 2] = 9
    with pytest.raises(InputError, match=r"row 3, column 2 .*: the entry is 9"):
        CandidateSets(wrong)


def test_indexing(sets):
    assert sets[0] == ("cat", "dog")
    assert sets[-1] == sets[np.int64(3)] == ("dog",)
    for key in (
        slice(1, 3),
        [1, 2],
        np.array([1, 2]),
        np.array([False, True, True, False]),
        [-3, -2],
        range(1, 3),
    ):
        part = sets[key]
        assert list(part) == [("bird",), ("cat", "dog", "bird")]
        assert part == sets[key, ...]
        assert part.classes is sets.classes
    assert list(sets[[3, 0, 3]]) == [("dog",), ("cat", "dog"), ("dog",)]
    assert list(sets[::-2]) == [("dog",), ("bird",)]
    for wrong in (4, -5, [4], [[0, 1]], np.array([True]), (0, 1), None, "cat"):
        with pytest.raises((IndexError, TypeError)):
            sets[wrong]


def test_an_empty_slice_works(sets):
    for none in (sets[:0], sets[[]], sets[np.zeros(4, dtype=bool)]):
        assert len(none) == 0
        assert none.shape == (0, 3)
        assert none.dense().shape == none.to_csr().shape == (0, 3)
        assert none.contains(np.zeros(0, dtype=int)).shape == (0,)
        assert CandidateSets(none, NAMES) == none == copy.deepcopy(none)
        assert repr(none) == "CandidateSets(0 examples, 3 classes ['cat', 'dog', 'bird'])"


def test_conversions(sets):
    mask = MATRIX.astype(bool)
    for made in (
        sets.dense(),
        np.asarray(sets),
        np.array(sets, copy=True),
        sets.to_csr().toarray(),
    ):
        assert made.dtype == bool
        assert np.array_equal(made, mask)
    assert np.array_equal(sets.dense([2, 0]), mask[[2, 0]])
    assert np.array_equal(sets.dense(slice(1, 3)), mask[1:3])
    assert np.array_equal(sets.dense(2), mask[2:3])
    assert sets.dense([]).shape == (0, 3)
    assert np.asarray(sets, dtype=np.float32).tolist() == MATRIX.tolist()
    with pytest.raises(ValueError, match="copy"):
        sets.__array__(copy=False)
    csr = sets.to_csr()
    csr.data[0] = False
    csr.eliminate_zeros()
    assert csr.nnz == len(sets.indices) - 1 == 6, "the caller may change what to_csr gives"
    assert repr(sets) == (
        "CandidateSets(4 examples, 3 classes ['cat', 'dog', 'bird'], 1.75 candidates each (1 to 3))"
    )


def test_contains(sets):
    assert sets.contains([0, 0, 2, -1]).tolist() == [True, False, True, False]
    assert sets.contains(np.array([2, 2, 2, 2], dtype=np.uint8)).tolist() == [
        False,
        True,
        True,
        False,
    ]
    with pytest.raises(InputError, match="row 2: class index 3 is outside"):
        sets.contains([0, 0, 3, 0])
    with pytest.raises(InputError, match="row 0: class index -2"):
        sets.contains([-2, 0, 3, 0])
    with pytest.raises(InputError, match=r"shape \(2,\): expected 4"):
        sets.contains([0, 0])
    with pytest.raises(InputError, match="index_of"):
        sets.contains(["cat"] * 4)


def test_index_of(sets):
    assert sets.index_of(["bird", "cat", "bird"]).tolist() == [2, 0, 2]
    assert sets.index_of(pd.Series(["dog"])).tolist() == [1]
    assert sets.index_of(np.array([2, 0])).tolist() == [2, 0]
    assert sets.index_of([]).tolist() == []
    assert CandidateSets([[30, 10]]).index_of([30]).tolist() == [1]
    with pytest.raises(InputError, match="row 1: label 'fish'"):
        sets.index_of(["cat", "fish"])
    with pytest.raises(InputError, match="of type str"):
        sets.index_of("cat")


def test_immutable_and_apart_from_its_source():
    matrix = sparse.csr_array(np.ones((2, 70_000), dtype=bool))
    before = matrix.indices.copy()
    built = CandidateSets(matrix)
    matrix.indices[:] = 0
    assert np.array_equal(built.indices[:70_000], before[:70_000])
    for array in (built.indptr, built.indices, built.classes):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(FrozenInstanceError):
        built.classes = np.arange(3)
    with pytest.raises(TypeError):
        hash(built)


def test_the_callers_sparse_matrix_and_class_array_stay_as_they_are():
    matrix, classes = unsorted_csr(), np.array(NAMES)
    matrix.data[0] = 0
    CandidateSets(matrix, classes)
    assert matrix.indices.tolist() == [1, 0, 2, 2, 1, 0, 1]
    assert matrix.nnz == 7
    assert classes.flags.writeable


def test_equality_and_pickle(sets):
    assert pickle.loads(pickle.dumps(sets)) == sets
    assert sets != CandidateSets(ROWS)
    assert sets != CandidateSets(ROWS[:3], NAMES)
    assert sets != CandidateSets([*ROWS[:3], ["cat"]], NAMES)
    assert sets != ROWS


def test_scikit_learn_slices_rows():
    built = CandidateSets(np.random.default_rng(0).random((50, 7)) < 0.9)
    mask = built.dense()
    for train, test in KFold(5, shuffle=True, random_state=0).split(np.zeros(50), built):
        assert np.array_equal(_safe_indexing(built, train).dense(), mask[train])
        assert np.array_equal(_safe_indexing(built, test.tolist()).dense(), mask[test])
    rows = np.arange(50)
    rows_a, rows_b, part_a, part_b = train_test_split(rows, built, test_size=0.3, random_state=1)
    assert isinstance(part_a, CandidateSets)
    assert np.array_equal(part_a.dense(), mask[rows_a])
    assert np.array_equal(part_b.dense(), mask[rows_b])
    assert np.array_equal(_safe_indexing(built, rows < 5).dense(), mask[:5])


masks = st.tuples(st.integers(1, 12), st.integers(1, 9), st.integers(0, 2**32 - 1)).map(
    lambda t: np.random.default_rng(t[2]).random((t[0], t[1])) < 0.5
)


def nonempty(mask: np.ndarray) -> np.ndarray:
    return mask | (np.arange(mask.shape[1]) == 0) & ~mask.any(axis=1, keepdims=True)


@given(masks.map(nonempty), st.randoms(use_true_random=False))
def test_round_trips_and_naive_loops(mask, random):
    n, c = mask.shape
    built = CandidateSets(mask)
    rows = [[j for j in range(c) if mask[i, j]] for i in range(n)]
    shuffled = [
        random.sample(row, len(row)) + random.choices(row, k=random.randrange(3)) for row in rows
    ]
    assert [list(row) for row in built] == rows
    assert np.array_equal(built.dense(), mask)
    assert built.sizes.tolist() == [len(row) for row in rows]
    texts = ["|".join(f"c{j}" for j in row) for row in shuffled]
    assert (
        CandidateSets(texts, [f"c{j}" for j in range(c)]).indices.tolist() == built.indices.tolist()
    )
    for same in (
        sparse.csr_array(mask),
        built.to_csr(),
        built,
        sparse.csc_matrix(mask),
        mask.astype(np.int8),
    ):
        assert CandidateSets(same, c) == built
    if not all(len(row) == len(shuffled[0]) > 2 and {*row} <= {0, 1} for row in shuffled):
        assert CandidateSets(shuffled, c) == built
    labels = [random.randrange(-1, c) for _ in range(n)]
    assert built.contains(labels).tolist() == [
        label in row for label, row in zip(labels, rows, strict=True)
    ]
    key = [random.randrange(-n, n) for _ in range(random.randrange(6))]
    assert np.array_equal(built[key].dense(), mask[key])
    assert np.array_equal(built.dense(slice(None, None, -1)), mask[::-1])


@settings(max_examples=50)
@given(
    st.lists(
        st.lists(st.one_of(st.integers(), st.text(max_size=3)), min_size=1, max_size=5),
        min_size=1,
        max_size=8,
    )
)
def test_any_labels_come_back(rows):
    if all(len(row) == len(rows[0]) > 2 and {*row} <= {0, 1} for row in rows):
        return
    built = CandidateSets(rows)
    assert [set(row) for row in built] == [set(row) for row in rows]
    labels = [label for row in rows for label in row]
    assert [built.classes.tolist()[i] for i in built.index_of(labels)] == labels


def test_a_million_rows_from_csr_stay_small():
    n, k, c = 1_000_000, 5, 1000
    start = np.random.default_rng(0).integers(c - 4 * k, size=(n, 1), dtype=np.int32)
    indices = (start + np.arange(0, 4 * k, 4, dtype=np.int32)).ravel()
    matrix = sparse.csr_array(
        (np.ones(n * k, dtype=bool), indices, np.arange(0, n * k + 1, k)), shape=(n, c)
    )
    tracemalloc.start()
    built = CandidateSets(matrix)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert built.nbytes == 8 * (n + 1) + 2 * n * k + 8 * c
    assert built.nbytes < 20e6
    assert peak < 60e6, "the dense matrix would take 1000 MB"
    assert built[123_456] == tuple((start[123_456, 0] + np.arange(0, 4 * k, 4)).tolist())
    assert np.array_equal(built.indices, indices)


def test_pandas_and_torch_are_not_imported():
    code = (
        "import sys, candidly.sets, candidly.corruption;"
        "print([m for m in ('pandas', 'torch') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
