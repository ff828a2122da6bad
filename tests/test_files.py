"""Reading candidate labels: all formats give the same object; errors name the file and the row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse
from scipy.io import savemat

from candidly.data import read_examples, read_file
from candidly.data.dataset import NO_CLASS, UNKNOWN
from candidly.errors import InputError

SETS = [("cat", "dog"), ("dog",), ("bird", "cat")]


@pytest.fixture
def write(tmp_path):
    """Write text or bytes into a file, and give its path."""

    def write(content, name="data.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def parquet(path: Path, **columns) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


# ---- CSV


def test_csv_with_features_and_truth(write):
    content = (
        "id,candidates,x,colour,label\n"
        "007,cat|dog,1.5,red,cat\n"
        'b,"[""dog""]",2,blue,\n'
        "c,bird| cat ,,red,dog\n"
    )
    data = read_file(write(content))
    assert data.ids.tolist() == ["007", "b", "c"], "ids stay as they are written"
    assert list(data.sets) == SETS
    assert data.sets.classes.tolist() == ["bird", "cat", "dog"]
    assert data.truth.tolist() == [1, UNKNOWN, 2]
    assert list(data.truth_labels()) == ["cat", None, "dog"]
    assert data.kind == "table"
    assert data.inputs["x"].tolist()[:2] == [1.5, 2.0]
    assert np.isnan(data.inputs["x"][2])
    assert data.inputs["colour"].tolist() == ["red", "blue", "red"]
    assert data.answers is data.scores is None
    assert (len(data), data.source.format) == (3, "csv")
    again = read_file(data.source.path, **data.source.options)
    assert again.sets == data.sets
    assert json.loads(json.dumps(data.source.options)) == data.source.options


def test_none_of_the_classes_is_a_value_of_its_own(write):
    text = (
        "candidates,label\ncat|dog,none of the classes\ndog,None Of The  Classes\ncat,\ndog,fish\n"
    )
    data = read_file(write(text))
    assert data.truth.tolist() == [NO_CLASS, NO_CLASS, UNKNOWN, NO_CLASS]
    assert data.sets.classes.tolist() == ["cat", "dog"], "the truth decides nothing that is learnt"
    assert data.notes[0].startswith(
        "1 true label(s) that nobody proposed ('fish') count as none of the classes"
    )
    named = read_file(write(text), classes=["cat", "dog", "fish"])
    assert (named.truth.tolist(), named.notes) == ([NO_CLASS, NO_CLASS, UNKNOWN, 2], ())
    numbers = read_file(write("candidates,label\n1|2,-1\n2,1\n"))
    assert numbers.truth.tolist() == [NO_CLASS, 0]
    signs = read_file(write("candidates,label\n-1|1,-1\n1,1\n"))
    assert signs.sets.classes.tolist() == [-1, 1]
    assert signs.truth.tolist() == [0, 1], "-1 is a class if it is proposed"


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("cat|dog", {"cat", "dog"}),
        (" cat |dog| ", {"cat", "dog"}),
        ('"[""cat"", ""big dog, old""]"', {"cat", "big dog, old"}),
        ("\"['cat', 'dog']\"", {"cat", "dog"}),
        ('"{""choices"": [""cat"", ""dog""]}"', {"cat", "dog"}),
        ('"cat, brown|dog"', {"cat, brown", "dog"}),
        ('"said ""cat"""', {'said "cat"'}),
        ("NA|null", {"NA", "null"}),
        ("cat|cat", {"cat"}),
        ("<script>alert(1)</script>", {"<script>alert(1)</script>"}),
        ("=cmd()", {"=cmd()"}),
        ("'=cmd()", {"=cmd()"}),
        ('"two\nlines"', {"two\nlines"}),
    ],
)
def test_cells(write, cell, expected):
    (found, *_) = read_file(write(f"candidates,x\n{cell},1\nother,2\n")).sets
    assert set(found) == expected


def test_sep(write):
    path = write("candidates\ncat;dog|big\ncat\n")
    assert set(read_file(path, sep=";").sets[0]) == {"cat", "dog|big"}
    assert set(read_file(path, sep=None).sets[0]) == {"cat;dog|big"}
    with pytest.raises(InputError, match="sep=''"):
        read_file(path, sep="")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", b"id\tcandidates\nx\tcat|dog\ny\tdog\n"),
        ("a.csv", b"id\tcandidates\nx\tcat|dog\ny\tdog\n"),
        ("a.csv", b"id;candidates\nx;cat|dog\ny;dog\n"),
        ("a.csv", b"\xef\xbb\xbfid,candidates\r\nx,cat|dog\r\ny,dog\r\n"),
        ("a.csv", "id,candidates\nx,cat|dog\ny,dog\n".encode("utf-16")),
        ("a.txt", b"id,candidates\n\nx,cat|dog\n\ny,dog"),
    ],
)
def test_dialects_and_encodings(write, name, content):
    data = read_file(write(content, name))
    assert data.ids.tolist() == ["x", "y"]
    assert list(data.sets) == [("cat", "dog"), ("dog",)]


def test_numbers_as_labels(write):
    data = read_file(write("candidates,label\n10|2,2\n3,\n"))
    assert data.sets.classes.tolist() == [2, 3, 10]
    assert data.truth.tolist() == [0, UNKNOWN]
    zeros = read_file(write("candidates\n01|2\n3\n"))
    assert zeros.sets.classes.tolist() == ["01", "2", "3"], "01 is a name"
    listed = read_file(write('candidates\n"[10, 2]"\n3\n'))
    assert listed.sets.classes.tolist() == [2, 3, 10]


def test_class_list(write):
    path, names = write("candidates\ncat|dog\ndog\n"), write("dog\ncat\n\nbird \n", "classes.txt")
    data = read_file(path, classes=names)
    assert data.sets.classes.tolist() == ["dog", "cat", "bird"]
    assert read_file(path, classes=["dog", "cat", "bird"]).sets == data.sets
    assert read_file(path, classes=write('["dog", "cat", "bird"]', "c.json")).sets == data.sets
    positions = read_file(write("candidates\n0|2\n1\n"), classes=names)
    assert list(positions.sets) == [("dog", "bird"), ("cat",)], (
        "whole numbers are positions if no class is a number"
    )
    numbers = read_file(write("candidates\n10|2\n3\n"), classes=write("1\n2\n3\n10\n", "n.txt"))
    assert numbers.sets.classes.tolist() == [1, 2, 3, 10]


def test_annotators_in_columns(write):
    path = write('id,text,ann1,ann2,ann3\n1,hello,cat,dog,\n2,world,cat,cat,"[""bird"",""dog""]"\n')
    data = read_file(path, labels="ann1,ann2,ann3")
    assert list(data.sets) == [("cat", "dog"), ("bird", "cat", "dog")]
    assert data.answers.votes().toarray().tolist() == [[0, 1, 1, 0], [1, 2, 1, 0]]
    assert data.answers.annotators.tolist() == ["ann1", "ann2", "ann3"]
    assert data.answers.row.tolist() == [0, 0, 1, 1, 1]
    assert data.answers.annotator.tolist() == [0, 1, 0, 1, 2]
    assert data.answers[0] == {"ann1": ("cat",), "ann2": ("dog",)}
    assert data.answers[1] == {"ann1": ("cat",), "ann2": ("cat",), "ann3": ("bird", "dog")}
    assert (data.kind, data.inputs.to_pylist()) == ("text", ["hello", "world"])


def test_annotators_in_rows(write):
    path = write(
        "id,annotator,candidates,x,label\n"
        "b,ann,cat,1,cat\na,bob,dog,2,\nb,bob,dog|cat,1,\na,ann,,2,\nb,ann,bird,1,\na,bob,dog,2,dog\n"
    )
    data = read_file(path)
    assert data.ids.tolist() == ["b", "a"], "in the order of their first rows"
    assert list(data.sets) == [("bird", "cat", "dog"), ("dog",)]
    assert data.answers.votes().toarray().tolist() == [[1, 2, 1, 0], [0, 0, 1, 0]], (
        "an annotator has one vote for a label"
    )
    assert data.answers.row.tolist() == [0, 0, 1]
    assert [data.answers.annotators[i] for i in data.answers.annotator] == ["ann", "bob", "bob"]
    assert data.answers[0] == {"ann": ("bird", "cat"), "bob": ("cat", "dog")}
    assert data.answers[1] == {"bob": ("dog",)}
    assert data.truth.tolist() == [1, 2]
    assert data.inputs["x"].tolist() == [1.0, 2.0]


def test_annotators_may_say_none_of_the_classes(write):
    path = write("x,one,two\n1,cat,None of the  Classes\n2,none of the classes,\n3,dog,cat|dog\n")
    data = read_file(path, labels="one,two")
    assert data.sets.classes.tolist() == ["cat", "dog"]
    assert list(data.sets) == [("cat",), ("cat", "dog"), ("cat", "dog")]
    assert data.answers.votes().toarray().tolist() == [[1, 0, 1], [0, 0, 1], [1, 2, 0]]
    assert data.answers[1] == {"one": ("none of the classes",)}
    assert data.notes == (
        "1 row(s) have no other answer than 'none of the classes': their candidate set is all "
        "classes.",
    )
    named = read_file(path, labels="one,two", classes=["dog", "bird", "cat"])
    assert named.sets[1] == ("dog", "bird", "cat")
    numbers = read_file(write("task,worker,label\n1,v,3\n1,w,none of the classes\n2,v,4\n"))
    assert numbers.answers[0] == {"v": (3,), "w": ("none of the classes",)}
    assert numbers.notes == ()


def test_answers_need_a_class_and_every_row_an_answer(write):
    nothing = write("one,two\nnone of the classes,\nnone of the classes,none of the classes\n")
    with pytest.raises(InputError, match="all answers are 'none of the classes', so no class"):
        read_file(nothing, labels="one,two")
    assert list(read_file(nothing, labels="one,two", classes=["a", "b"]).sets) == [("a", "b")] * 2
    with pytest.raises(InputError, match="entry 1: 'none of the classes' is the answer"):
        read_file(nothing, labels="one,two", classes=["a", "none of the classes"])
    empty = write("one,two\nnone of the classes,cat\n,\n")
    with pytest.raises(InputError, match=r"row 2 .*: the candidate set is empty\."):
        read_file(empty, labels="one,two")


def test_crowd_table(write):
    data = read_file(write('task,worker,label\n1,w1,3\n1,w2,"[4, 3]"\n2,w1,10\n'))
    assert list(data.sets) == [(3, 4), (10,)]
    assert data.answers.votes().toarray().tolist() == [[2, 1, 0, 0], [0, 0, 1, 0]]
    assert data.truth is None
    assert data.kind == "none"


def test_label_studio_csv(write):
    data = read_file(
        write(
            "annotation_id,annotator,created_at,id,lead_time,mood,text,updated_at\n"
            "1,ann,2024-01-01,7,1.5,good,fine day,x\n"
            '2,bob,2024-01-01,7,2.5,"{""choices"":[""bad"",""good""]}",fine day,x\n'
            "3,ann,2024-01-01,8,1.0,bad,rain,x\n"
        )
    )
    assert data.ids.tolist() == ["7", "8"]
    assert list(data.sets) == [("bad", "good"), ("bad",)]
    assert data.answers.votes().toarray().tolist() == [[1, 2, 0], [1, 0, 0]]
    assert (data.kind, data.inputs.to_pylist()) == ("text", ["fine day", "rain"])


def test_inputs_are_found(write):
    assert read_file(write("candidates,a,b\ncat,1,x\n")).source.options["features"] == ["a", "b"]
    reviews = write("candidates,review\ncat,what a nice day\ndog,it rained all night\n")
    assert read_file(reviews).kind == "text"
    assert read_file(write("candidates,n,review\ncat,1,what a nice day\n")).kind == "table"
    chosen = read_file(write("candidates,f1,f2,g\ncat,1,2,3\n"), features="f*")
    assert list(chosen.inputs) == ["f1", "f2"]
    dates = read_file(write("candidates,day,hour,yes\ncat,1970-01-02,00:00:01,true\n"))
    assert dates.inputs.to_numpy().tolist() == [[86400, 1_000_000, 1]]
    with pytest.raises(InputError, match="text and features are given: expected one kind"):
        read_file(write("candidates,a,b\ncat,1,x\n"), text="b", features="a")


FAULTS = [
    ("", {}, "is empty"),
    ("\n\n", {}, "is empty"),
    ("candidates,x\n", {}, "holds no rows"),
    ("a,b\n1,2\n", {},
     "has no column 'candidates'. Its columns: 'a', 'b'. Name the one .* --labels"),
    ("a,b\n1,2\n", {"labels": "bb"}, "column 'bb' is unknown. Did you mean 'b'"),
    ("candidates,x\ncat,1\n,2\n", {},
     r"data.csv, row 2 \(the header not counted\): the candidate set is empty\. "),
    ("candidates,x\n,1\ncat,1\n | ,2\n", {},
     r"row 1 .*: the candidate set is empty \(2 such rows\)"),
    ("candidates\ncat\n\ndog\n", {}, r"row 2 .*: the candidate set is empty"),
    ("id,a,b\nx,cat,\ny,,\n", {"labels": "a,b"}, r"row 2 .*: the candidate set is empty"),
    ("id,annotator,candidates\nx,ann,cat\ny,ann,\n", {}, r"row 2 .*: the candidate set is empty"),
    ("candidates,x\ncat|fish,1\n", {"classes": ["cat"]},
     r"row 1 .*: label 'fish' is not among the 1 classes \(cat\)"),
    ("candidates,label\ncat,fish\n", {"classes": ["cat"]},
     r"row 1 .*: the true label 'fish' .* 'none of the classes'"),
    ("candidates\n0|3\n", {"classes": ["cat"]}, "row 1 .*: label 3 is not among"),
    ('candidates,x\ncat,1\n"[1, null]",2\n', {},
     "row 2 .*, column 'candidates': None is not a label"),
    ('candidates,x\n"[true]",2\n', {}, "row 1 .*: True is not a label"),
    ('candidates,x\n"[[1]]",2\n', {}, r"row 1 .*: \[1\] is not a label"),
    ("candidates,x\ncat,1\n[cat dog],2\n", {},
     r"row 2 .*: '\[cat dog\]' looks like a list.*JSON array"),
    ("candidates,x\n" + "[" * 5000 + "]" * 5000 + ",1\n", {}, "row 1 .* looks like a list"),
    ("candidates,x\n[" + "1," * 60_000 + "1],1\n", {}, "row 1 .*expected .* as in the header"),
    ("id,candidates\na,cat\nb,dog\na,cat\n", {},
     r"row 3 .*: duplicate id 'a' .first in row 1.*--annotator"),
    ("id,candidates\na,cat\n ,dog\n", {}, "row 2 .*, column 'id': there is no id"),
    ("id,candidates,x\na,cat,1\nb,dog,1,2\n", {},
     r"row 2 .*: 4 cells \('b,dog,1,2'\), expected 3 as in the header"),
    ("id,candidates,x\na,cat\n", {}, r"row 1 .*: 2 cells"),
    ('id,candidates\na,cat\nb,"dog\nc,bird\n', {}, "row 2 .*a quote \" is opened and never closed"),
    ("id,id,candidates\na,b,cat\n", {}, "the column 'id' occurs twice"),
    (b"id,candidates\na,cat\nb,caf\xe9\n", {}, "line 3: the byte 0xe9 is not UTF-8.*iconv"),
    (b"\xef\xbb\xbfid,candidates\na,caf\xe9\n", {},
     r"line 2: the byte 0xe9 is not UTF-8\. Save the file"),
    ("id,annotator,candidates\na,ann,cat\na,,dog\n", {},
     "row 2 .*, column 'annotator': no annotator is named"),
    ("annotator,candidates\nann,cat\n", {}, "names annotators, but .*--id"),
    ("id,annotator,candidates,x\na,ann,cat,1\na,bob,dog,2\n", {},
     "row 2 .*, column 'x': 2, but row 1 .* says 1"),
    ("id,annotator,candidates,label\na,ann,cat,cat\na,bob,dog,dog\n", {},
     "row 2 .*: its true label is 'dog', but an earlier row of the same id says 'cat'"),
    ("candidates,text\ncat,hello\ndog,\n", {}, "row 2 .*, column 'text': .*empty"),
    ("candidates,label\ncat,cat|dog\n", {"classes": ["cat", "dog"]},
     "the true label 'cat|dog' is not"),
    ("candidates,x\ncat,1\n", {"classes": "nowhere.txt"}, "class list nowhere.txt cannot be read"),
    ("candidates,x\ncat,1\n", {"features": "z*"}, r"column 'z\*' is unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "options", "words"), FAULTS)
def test_faults_of_csv_are_named(write, content, options, words):
    path = write(content)
    with pytest.raises(InputError, match=words) as caught:
        read_file(path, **options)
    assert "data.csv" in str(caught.value) or "class list" in str(caught.value)


# ---- Parquet and Arrow

COLUMNS = {
    "embedding": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(6, dtype=np.float32)), 2),
    "candidates": pa.array([["cat", "dog"], ["dog"], ["bird", "cat"]]),
    "label": pa.array(["cat", None, "none of the classes"]),
    "scores": pa.array([[0.7, 0.3], [1.0], [0.1, 0.9]]),
    "id": pa.array([7, 8, 9]),
    "comment": pa.array(["never", "read", None]),
}


def write_arrow(path: Path, table: pa.Table, new) -> Path:
    with new(str(path), table.schema) as writer:
        writer.write_table(table)
    return path


@pytest.mark.parametrize("form", ["parquet", "file", "stream"])
def test_columnar_files(tmp_path, form):
    table = pa.table(COLUMNS)
    if form == "parquet":
        path = parquet(tmp_path / "a.parquet", **COLUMNS)
    else:
        path = write_arrow(
            tmp_path / "a.arrow", table, pa.ipc.new_file if form == "file" else pa.ipc.new_stream
        )
    data = read_file(path)
    assert list(data.sets) == SETS
    assert data.kind == "vectors"
    assert data.inputs.dtype == np.float32
    assert data.inputs.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert data.ids.tolist() == [7, 8, 9]
    assert data.truth.tolist() == [1, UNKNOWN, NO_CLASS]
    assert np.allclose(data.scores.toarray(), [[0, 0.7, 0.3], [0, 0, 1], [0.1, 0.9, 0]])
    assert read_examples(path, **data.source.options).inputs.tolist() == data.inputs.tolist()


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        (pa.array([[3, 10], [2], [3]]), [(3, 10), (2,), (3,)]),
        (pa.array([[3.0, 10.0], [2.0], [3.0]]), [(3, 10), (2,), (3,)]),
        (pa.array(["cat|dog", "dog", "bird|cat"]), [("cat", "dog"), ("dog",), ("bird", "cat")]),
        (pa.array(["cat", "dog", "cat"]).dictionary_encode(), [("cat",), ("dog",), ("cat",)]),
        (pa.array([3, 2, 3]), [(3,), (2,), (3,)]),
        (
            pa.array([["a", "b"], ["b", "c"], ["a", "c"]], pa.list_(pa.string(), 2)),
            [("a", "b"), ("b", "c"), ("a", "c")],
        ),
        (
            pa.array([["x"], ["x", "x"], ["y"]], pa.large_list(pa.large_string())),
            [("x",), ("x",), ("y",)],
        ),
    ],
)
def test_types_of_candidates(tmp_path, candidates, expected):
    path = parquet(tmp_path / "a.parquet", candidates=candidates, x=[1, 2, 3])
    assert list(read_file(path).sets) == expected


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"candidates": pa.array([["cat"], None])},
            r"row 2 \(counting from 1\): the candidate set is empty",
        ),
        ({"candidates": pa.array([["cat"], []])}, "row 2 .*: the candidate set is empty"),
        ({"candidates": pa.array([["cat"], ["dog", None]])}, "row 2 .*: a missing label"),
        ({"candidates": pa.array([["cat"], [" "]])}, "row 2 .*: a blank label"),
        ({"candidates": pa.array([[1.0], [1.5]])}, "row 2 .*: 1.5 is not a label"),
        ({"candidates": pa.array([[True], [False]])}, "row 1 .*: True is not a label"),
        (
            {"embedding": pa.array([[1.0, 2.0], None])},
            "row 2 .*, column 'embedding': there is no vector",
        ),
        (
            {"embedding": pa.array([[1.0, 2.0], [1.0]])},
            "row 2 .*: 1 numbers; expected 2, as in the first row",
        ),
        (
            {"embedding": pa.array([[1.0, 2.0], [1.0, None]])},
            "row 2 .*: entry 2 is missing or not a finite",
        ),
        (
            {"embedding": pa.array([[1.0, 2.0], [1.0, float("inf")]])},
            "row 2 .*: entry 2 is missing or not a finite",
        ),
        ({"embedding": pa.array([["a"], ["b"]])}, "row 1 .*: a list of string; expected numbers"),
        ({"scores": pa.array([[0.5], [0.5, 0.5]])}, "row 2 .*: 2 scores for 1 candidates"),
        ({"id": pa.array(["a", None])}, "row 2 .*: there is no id"),
        ({"id": pa.array([5, 5])}, "row 2 .*: duplicate id 5 .first in row 1"),
    ],
)
def test_faults_of_columns_are_named(tmp_path, columns, words):
    given = {"candidates": pa.array([["cat"], ["dog"]]), "x": pa.array([1, 2])} | columns
    path = parquet(tmp_path / "a.parquet", **given)
    with pytest.raises(InputError, match=f"a.parquet, {words}"):
        read_file(path)


def test_batches_join_seamlessly(tmp_path, monkeypatch):
    monkeypatch.setattr("candidly.data.formats.columnar.ROWS_PER_BATCH", 3)
    rng = np.random.default_rng(0)
    rows = [
        rng.choice(list("abcdefgh"), size=rng.integers(1, 4), replace=False).tolist()
        for _ in range(20)
    ]
    vectors = rng.normal(size=(20, 4)).astype(np.float32)
    path = parquet(tmp_path / "a.parquet", candidates=rows, embedding=list(vectors))
    data = read_file(path)
    assert [set(row) for row in data.sets] == [set(row) for row in rows]
    assert np.array_equal(data.inputs, vectors)
    rows[13] = []
    with pytest.raises(InputError, match=r"row 14 .*: the candidate set is empty"):
        read_file(parquet(path, candidates=rows))
    rows[13] = ["a", " "]
    with pytest.raises(InputError, match=r"row 14 .*: a blank label"):
        read_file(parquet(path, candidates=rows))


# ---- NPZ


def npz(path: Path, **arrays) -> Path:
    np.savez_compressed(path, **arrays)
    return path


def test_npz(tmp_path):
    S = np.array([[0, 1, 1], [0, 0, 1], [1, 1, 0]])
    X = np.arange(6.0).reshape(3, 2)
    names = np.array(["bird", "cat", "dog"])
    path = npz(
        tmp_path / "a.npz",
        X=X,
        S=S,
        classes=names,
        y=[1, -1, 0],
        id=["x", "y", "z"],
        other=np.ones(9),
    )
    data = read_file(path)
    assert list(data.sets) == SETS
    assert (data.kind, data.inputs.tolist()) == ("vectors", X.tolist())
    assert data.ids.tolist() == ["x", "y", "z"]
    assert data.truth.tolist() == [1, NO_CLASS, 0]
    csr = sparse.csr_array(S)
    images = np.zeros((3, 4, 5, 3), dtype=np.uint8)
    path = npz(
        tmp_path / "b.npz",
        X=images,
        indptr=csr.indptr,
        indices=csr.indices,
        classes=names,
        y=["cat", "", "dog"],
    )
    data = read_file(path)
    assert list(data.sets) == SETS
    assert (data.kind, data.inputs.shape) == ("images", (3, 4, 5, 3))
    assert data.truth.tolist() == [1, UNKNOWN, 2]
    path = npz(tmp_path / "c.npz", X=X, S=S, y=[0.0, np.nan, 2.0])
    assert read_file(path).truth.tolist() == [0, UNKNOWN, 2]
    assert read_examples(npz(tmp_path / "d.npz", X=X)).inputs.tolist() == X.tolist()


ONES, TWO = np.ones((3, 2)), np.ones((3, 2), dtype=int)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"S": TWO}, "has no 'X'; it holds S"),
        ({"X": ONES}, "has neither 'S' .* nor 'indptr' and 'indices'; it holds X"),
        ({"X": ONES, "S": TWO[:2]}, r"S is of shape \(2, 2\), but there are 3 rows"),
        ({"X": ONES, "S": TWO * 2},
         r"S in row 1 \(counting from 1\), column 1 is 2; expected 0 or 1"),
        ({"X": ONES, "S": TWO * [[1], [0], [1]]}, "row 2 .*: the candidate set is empty"),
        ({"X": ONES, "S": TWO, "classes": np.array(["a"])},
         "S has 2 columns, but the class list has 1 names"),
        ({"X": ONES, "S": TWO, "y": np.array([0, 5, 1])},
         "y in row 2 .* is 5, which is not among the 2 classes"),
        ({"X": ONES, "S": TWO, "y": np.array([0])}, r"y is of shape \(1,\)"),
        ({"X": ONES, "S": TWO, "id": np.array([1, 2, 1])},
         "row 3 .*: duplicate id 1 .first in row 1"),
        ({"X": ONES[0], "S": TWO}, r"X is float64 \(2,\); expected numbers"),
        ({"X": ONES * [[1], [np.nan], [1]], "S": TWO}, "X in row 2 .*, column 1: nan"),
        ({"X": ONES, "indptr": [0, 1, 2], "indices": [0, 1]}, "are not a CSR layout of 3 rows"),
        ({"X": ONES, "indptr": [0, 2, 1, 2], "indices": [0, 1]}, "are not a CSR layout"),
        ({"X": ONES, "indptr": [0, 1, 2, 3], "indices": [0, 1, 7], "classes": np.arange(2)},
         "row 3 .*: index 7 is"),
        ({"X": ONES, "indptr": [0, 0, 2, 3], "indices": [0, 1, 1]},
         "row 1 .*: the candidate set is empty"),
    ],
)  # fmt: skip
def test_faults_of_npz_are_named(tmp_path, arrays, words):
    with pytest.raises(InputError, match=words):
        read_file(npz(tmp_path / "a.npz", **arrays))


def test_npz_never_loads_objects(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    path = npz(tmp_path / "a.npz", X=ONES, S=TWO, classes=np.array([Evil(), Evil()], dtype=object))
    with pytest.raises(InputError, match="'classes' holds Python objects, which are never loaded"):
        read_file(path)
    assert not (tmp_path / "ran").exists()


def test_npz_zip_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = npz(
        tmp_path / "bomb.npz", X=np.zeros((100_000, 20)), S=np.ones((100_000, 2), dtype=np.uint8)
    )
    assert path.stat().st_size < 50_000
    monkeypatch.setattr("candidly.data.guard.available_memory", lambda: 10_000_000)
    monkeypatch.setattr(np, "load", lambda *a, **k: pytest.fail("it was unpacked"))
    with pytest.raises(
        InputError, match=r"bomb.npz: reading X, S needs 16.2 MB of memory, but only 10 MB"
    ):
        read_file(path)


def test_npz_whose_header_lies_is_refused(tmp_path):
    path = tmp_path / "lie.npz"
    header = (
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 100), }".ljust(117)
        + b"\n"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "X.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(80)
        )
    with pytest.raises(
        InputError,
        match=r"declares float64 \(1000000000000, 100\), 800,000,000,000,000 bytes, but .* has 80",
    ):
        read_file(path)


# ---- .mat

DATA = np.arange(8.0).reshape(4, 2)
TARGET = np.array([[1, 1, 0], [0, 1, 0], [0, 1, 1], [1, 0, 1]], dtype=float)
TRUE = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]], dtype=float)


def mat(path: Path, **variables) -> Path:
    savemat(path, variables)
    return path


@pytest.mark.parametrize("turn", [False, True])
@pytest.mark.parametrize("pack", [np.asarray, sparse.csc_array], ids=["dense", "sparse"])
def test_mat(tmp_path, turn, pack):
    target, true = (pack(m if turn else m.T) for m in (TARGET, TRUE))
    data = read_file(mat(tmp_path / "a.mat", data=DATA, partial_target=target, target=true))
    assert data.sets.dense().tolist() == TARGET.astype(bool).tolist()
    assert data.truth.tolist() == [0, 1, NO_CLASS, 2]
    assert data.inputs.tolist() == DATA.tolist()
    assert data.ids.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"partial_target": TARGET.T}, "has no 'data'"),
        ({"data": DATA}, "has no 'partial_target'"),
        (
            {"data": DATA, "partial_target": np.ones((4, 4))},
            r"\(4, 4\), as many classes as rows.*NPZ",
        ),
        ({"data": DATA, "partial_target": np.ones((5, 3))}, r"\(5, 3\), but data has 4 rows"),
        (
            {"data": DATA, "partial_target": TARGET.T * 2},
            "partial_target in row 1 .*, column 1 is 2.0",
        ),
        (
            {"data": DATA, "partial_target": TARGET.T * [0, 1, 1, 1]},
            "row 1 .*: the candidate set is empty",
        ),
        (
            {"data": DATA, "partial_target": TARGET.T, "target": TARGET.T},
            "row 1 .*: target names 2 classes",
        ),
        (
            {"data": DATA, "partial_target": TARGET.T, "target": TRUE.T[:2]},
            "target has 2 classes, partial_target 3",
        ),
    ],
)
def test_faults_of_mat_are_named(tmp_path, variables, words):
    with pytest.raises(InputError, match=f"a.mat.*{words}"):
        read_file(mat(tmp_path / "a.mat", **variables))


def test_mat_of_version_7_3_and_damaged_ones(tmp_path):
    path = tmp_path / "a.mat"
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(512) + b"\x89HDF\r\n\x1a\n")
    with pytest.raises(InputError, match=r"version 7.3 .*'-v7'"):
        read_file(path)
    whole = mat(tmp_path / "b.mat", data=DATA, partial_target=TARGET).read_bytes()
    path.write_bytes(whole[:200])
    with pytest.raises(InputError, match="cannot be read as a MATLAB file"):
        read_file(path)


TABLES = Path(os.environ.get("CANDIDLY_DATA", "")) / "tables"


@pytest.mark.data
@pytest.mark.skipif(
    not (TABLES / "lost.mat").is_file(), reason="CANDIDLY_DATA names no folder with tables/lost.mat"
)
@pytest.mark.parametrize(
    ("name", "shape", "width", "mean"),
    [("lost", (1122, 16), 108, 2504 / 1122), ("MSRCv2", (1758, 23), 48, 5549 / 1758)],
)
def test_real_tables(name, shape, width, mean):
    data = read_file(TABLES / f"{name}.mat")
    assert data.sets.shape == shape
    assert data.inputs.shape == (shape[0], width)
    assert data.sets.sizes.mean() == pytest.approx(mean)
    assert data.sets.contains(data.truth).all()


# ---- JSON


def test_json_lines_and_arrays(write):
    rows = [
        {"id": 1, "candidates": ["cat", "dog"], "x": 1.5, "label": "cat"},
        {"id": 2, "candidates": ["dog"], "x": None},
        {"id": 3, "candidates": ["bird", "cat"], "x": 2, "extra": {"a": 1}},
    ]
    for path in (
        write("\n".join(map(json.dumps, rows)) + "\n\n", "a.jsonl"),
        write(json.dumps(rows), "a.json"),
    ):
        data = read_file(path)
        assert list(data.sets) == SETS
        assert data.truth.tolist() == [1, UNKNOWN, UNKNOWN]
        assert data.source.options["features"] == ["x"]
        assert len(data.notes) == 1
        assert data.notes[0].startswith("column 'extra' is left out: it holds struct<")
    mixed = read_file(write('{"candidates": ["a", 1]}\n{"candidates": ["b"]}\n', "a.jsonl"))
    assert list(mixed.sets) == [("1", "a"), ("b",)]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"candidates": ["a"]}\n\n{"candidates": \n', "line 3: "),
        ("a.jsonl", '{"candidates": ["a"]}\n[1]\n', "line 2: not an object"),
        ("a.jsonl", b'{"candidates": ["a"]}\n{"candidates": ["\xe9"]}\n', "line 2: "),
        (
            "a.jsonl",
            '{"candidates": ["a"]}\n{"candidates": []}\n',
            r"object 2 \(counting from 1\): the candidate set is empty",
        ),
        ("a.jsonl", '{"candidates": ["a"]}\n{}\n', "object 2 .*: the candidate set is empty"),
        ("a.json", "[1, 2]", "expected an array of objects"),
        ("a.json", '[{"candidates": ["a"]}', "is not JSON"),
        ("a.json", "[" * 100_000, "is not JSON"),
        ("a.json", "[]", "holds no rows"),
    ],
)
def test_faults_of_json_are_named(write, name, content, words):
    with pytest.raises(InputError, match=words):
        read_file(write(content, name))


def choices(*names, tag="animal"):
    return {
        "from_name": tag,
        "to_name": "img",
        "type": "choices",
        "value": {"choices": list(names)},
    }


def annotation(who, *names, **more):
    return {"completed_by": who, "result": [choices(*names)], **more}


def tasks():
    return [
        {
            "id": 11,
            "data": {"text": "one", "id": 5},
            "annotations": [annotation(1, "cat"), annotation(2, "dog", "cat")],
        },
        {
            "id": 12,
            "data": {"text": "two"},
            "annotations": [
                annotation({"id": 2, "email": "b@x.org"}, "dog"),
                annotation(3, "bird", was_cancelled=True),
                annotation(1, "bird", ground_truth=True),
            ],
            "predictions": [{"score": 0.5, "result": [choices("fish")]}],
        },
        {
            "id": 13,
            "data": {"text": "three"},
            "annotations": [annotation(1, "cat", ground_truth=True)],
        },
        {
            "id": 14,
            "data": {"text": "four"},
            "annotations": [annotation(1, "cat", was_cancelled=True)],
        },
    ]


def test_label_studio(write):
    data = read_file(write(json.dumps(tasks()), "export.json"))
    assert data.ids.tolist() == [11, 12, 13]
    assert list(data.sets) == [("cat", "dog"), ("dog",), ("cat",)]
    assert data.sets.classes.tolist() == ["cat", "dog"]
    assert list(data.truth_labels()) == [None, "none of the classes", "cat"]
    assert data.answers.annotators.tolist() == ["1", "2", "b@x.org"]
    assert data.answers.votes().toarray().tolist() == [[2, 1, 0], [0, 1, 0], [1, 0, 0]]
    assert (data.kind, data.inputs.to_pylist()) == ("text", ["one", "two", "three"])
    assert data.notes[0] == "2 cancelled annotation(s) are left out."
    assert data.notes[1] == "1 task(s) without a choice are left out."
    again = read_file(data.source.path, **data.source.options)
    assert again.sets == data.sets
    unlabelled = read_examples(data.source.path, **data.source.options)
    assert (unlabelled.ids.tolist(), unlabelled.kind) == ([11, 12, 13, 14], "text")


def test_label_studio_with_several_tags_asks_which(write):
    both = [annotation(1, "cat")]
    both[0]["result"].append(choices("happy", tag="mood"))
    path = write(json.dumps([{"id": 1, "data": {"text": "a"}, "annotations": both}]), "export.json")
    with pytest.raises(InputError, match=r"has several choices: animal, mood\..* --labels animal"):
        read_file(path)
    assert list(read_file(path, labels="mood").sets) == [("happy",)]
    with pytest.raises(InputError, match=r"'moood' is unknown\. Did you mean 'mood'"):
        read_file(path, labels="moood")


def test_label_studio_with_predictions_only(write):
    task = {
        "data": {"text": "a"},
        "predictions": [{"model_version": "v1", "result": [choices("cat", "dog")]}],
    }
    data = read_file(write(json.dumps([task]), "export.json"))
    assert list(data.sets) == [("cat", "dog")]
    assert data.answers.annotators.tolist() == ["v1"]
    assert "the candidates are the predictions" in data.notes[-1]


def test_label_studio_without_labels(write):
    with pytest.raises(InputError, match="no annotation holds choices"):
        read_file(
            write(json.dumps([{"id": 1, "data": {"text": "a"}, "annotations": []}]), "e.json")
        )
    cancelled = [{"id": 1, "data": {}, "annotations": [annotation(1, "cat", was_cancelled=True)]}]
    with pytest.raises(InputError, match="no task has an annotation with a choice"):
        read_file(write(json.dumps(cancelled), "e.json"))
    broken = [
        {
            "id": 1,
            "data": {},
            "annotations": [{"result": [{"from_name": "animal", "type": "choices"}]}],
        }
    ]
    with pytest.raises(
        InputError, match=r"task 1 \(counting from 1\): the value of 'animal' is null"
    ):
        read_file(write(json.dumps(broken), "e.json"))


# ---- any file


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x1f\x8b\x08\x00", "compressed by gzip"),
        (b"\x80\x04\x95", "looks like a pickle.*never loaded"),
        (b"\xd0\xcf\x11\xe0\xa1", "old Office file"),
        (b"\x93NUMPY", "is a single array"),
        (b"PAR1 and no more", "cannot be read as Parquet"),
        (b"ARROW1\0\0 and no more", "cannot be read as an Arrow file"),
        (b"PK\x03\x04 and no more", "cannot be read as an NPZ file"),
    ],
)
def test_other_and_damaged_files_are_refused(write, content, words):
    with pytest.raises(InputError, match=words):
        read_file(write(content, "data.csv"))


def test_workbooks_and_missing_files(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as archive:
        archive.writestr("[Content_Types].xml", "<x/>")
    with pytest.raises(InputError, match=r"is a workbook.*CSV UTF-8"):
        read_file(tmp_path / "a.xlsx")
    with pytest.raises(InputError, match="there is no such file"):
        read_file(tmp_path / "nothing.csv")
    with pytest.raises(
        InputError,
        match=r"is a folder: expected one of metadata.csv or metadata.jsonl in it, found 0",
    ):
        read_file(tmp_path)


def test_unlabelled_files_need_the_same_inputs(write):
    options = read_file(write("id,candidates,x,y\na,cat,1,2\n")).source.options
    plain = read_examples(write("x,id,y\n1,a,2\n", "new.csv"), **options)
    assert plain.inputs.to_numpy().tolist() == [[1, 2]]
    with pytest.raises(InputError, match="column 'y' is unknown"):
        read_examples(write("x,id\n1,a\n", "new.csv"), **options)


def test_rows_of_several_annotators_are_one_example_to_classify_too(write):
    long = "id,annotator,candidates,x\na,ann,cat,1\nb,ann,dog,2\na,bob,dog,1\n"
    data = read_file(write(long))
    again = read_examples(data.source.path, **data.source.options)
    assert (again.ids.tolist(), again.inputs["x"].tolist()) == (["a", "b"], [1, 2])
    assert data.place(1) == again.place(1) == f"{data.source.path}, row 2 (the header not counted)"
    plain = read_examples(write("id,x\nc,3\nd,4\n", "new.csv"), **data.source.options)
    assert plain.ids.tolist() == ["c", "d"], "there are no annotators"
    unnamed = read_examples(
        write("annotator,x\nann,3\nann,4\n", "new.csv"), **data.source.options | {"id": None}
    )
    assert unnamed.ids.tolist() == [1, 2]
    with pytest.raises(
        InputError, match=r"row 2 .*, column 'x': 5, but row 1 of the same id says 1"
    ):
        read_examples(write("id,annotator,x\na,ann,1\na,bob,5\n", "new.csv"), **data.source.options)


def test_heavy_libraries_are_imported_late():
    code = (
        "import sys, candidly.data.files, candidly.data.facts, candidly.data.export;"
        "print([m for m in ('pandas', 'pyarrow', 'sklearn', 'torch', 'PIL') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


GROWTH = """
import re, sys
import pyarrow, pyarrow.parquet, pyarrow.compute, pandas
from candidly.data import read_file
# of this process alone
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = peak()
data = read_file(sys.argv[1])
print(peak() - before, data.sets.nbytes + data.inputs.nbytes + data.ids.memory_usage())
"""


@pytest.mark.slow
def test_memory_of_a_large_parquet_is_that_of_candidates_and_features(tmp_path):
    """Per row: 3 of 100 classes (11 bytes), an id (20) and 16 features (64).

    The text of 1,000 characters per row is not read.
    """
    needs = {}
    for n in (250_000, 1_000_000):
        path = tmp_path / f"{n}.parquet"
        rng = np.random.default_rng(0)
        names = pa.array([f"a class with a long name, number {i}" for i in range(100)])
        values = names.take(pa.array((rng.integers(97, size=(n, 1)) + np.arange(3)).ravel()))
        table = pa.table(
            {
                "id": pa.array([f"example-{i}" for i in range(n)]),
                "candidates": pa.ListArray.from_arrays(
                    pa.array(np.arange(0, 3 * n + 1, 3), pa.int32()), values
                ),
                "embedding": pa.FixedSizeListArray.from_arrays(
                    pa.array(rng.random(16 * n, dtype=np.float32)), 16
                ),
                "text": pa.array(["x" * 1000]).take(pa.array(np.zeros(n, dtype=np.int64))),
            }
        )
        pq.write_table(table, path, row_group_size=50_000)
        grown, kept = map(
            int, subprocess.check_output([sys.executable, "-c", GROWTH, path], text=True).split()
        )
        needs[n] = grown, kept / n
    per_row = (needs[1_000_000][0] - needs[250_000][0]) / 750_000
    assert needs[1_000_000][1] < 120
    assert per_row > needs[1_000_000][1], "the measurement is sound"
    assert per_row < 3.5 * needs[1_000_000][1], f"{per_row:.0f} bytes per row at the peak"


def test_ids_are_an_index_of_pandas(write):
    data = read_file(write("id,candidates\na,cat\nb,dog\n"))
    assert isinstance(data.ids, pd.Index)
    assert isinstance(read_file(write("candidates\ncat\ndog\n")).ids, pd.RangeIndex)
    assert read_file(write("candidates\ncat\ndog\n")).ids.tolist() == [1, 2], (
        "rows are counted from 1"
    )


# ---- gold

GOLD = (
    "id,candidates,x,label,checked\na,cat|dog,1,cat,\nb,dog,2,cat,cat\n"
    "c,cat,3,,None of the classes\nd,bird,4,bird,bird\n"
)


def test_gold_labels_are_read_and_are_no_features(write):
    data = read_file(write(GOLD, "a.csv"), gold="checked")
    assert data.sets.classes.tolist() == ["bird", "cat", "dog"]
    assert data.gold.tolist() == [-2, 1, -1, 0]
    assert list(data.gold_labels()) == [None, "cat", "none of the classes", "bird"]
    assert data.truth.tolist() == [1, 1, -2, 0]
    assert data.unseen_truth().tolist() == [1, -2, -2, -2], "gold rows are not evaluated"
    assert list(data.inputs) == ["x"]
    assert data.source.options["gold"] == "checked"
    again = read_file(data.source.path, **data.source.options)
    assert again.gold.tolist() == data.gold.tolist()
    assert list(read_examples(data.source.path, gold="checked", truth="label").inputs) == ["x"]
    without = read_file(data.source.path)
    assert without.gold is None
    assert without.unseen_truth() is without.truth
    assert list(without.inputs) == ["x", "checked"], "a column is gold only if it is named"


def test_the_usual_column_of_the_truth_may_be_gold(write):
    data = read_file(write(GOLD, "a.csv"), gold="label")
    assert (data.truth, data.gold.tolist()) == (None, [1, 1, -2, 0])
    with pytest.raises(InputError, match=r"'label' is named twice, by --truth and by --gold"):
        read_file(data.source.path, gold="label", truth="label")
    with pytest.raises(InputError, match=r"column 'chekced' is unknown. Did you mean 'checked'\?"):
        read_file(data.source.path, gold="chekced")


def test_gold_numbers_are_read_like_candidates(write):
    text = "candidates,checked\n3|5,5\n5,\n3,-1\n"
    data = read_file(write(text, "a.csv"), gold="checked")
    assert data.sets.classes.tolist() == [3, 5]
    assert data.gold.tolist() == [1, -2, -1]
    positions = read_file(
        write("candidates,checked\n0|1,2\n1,\n", "b.csv"), gold="checked", classes=["x", "y", "z"]
    )
    assert positions.gold.tolist() == [2, -2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "candidates,checked\ncat,\ndog,cow\n",
            r"a\.csv, row 2 \(the header not counted\), column 'checked': the gold label 'cow' is "
            r"not among the 2 classes \(cat, dog\)\. Add it to the class list \(--classes\), or "
            r"write 'none of the classes'",
        ),
        (
            'candidates,checked\ncat,"[""cat"", ""dog""]"\ndog,\n',
            r"row 1 .*, column 'checked': 2 gold labels; expected one, or an empty cell",
        ),
        (
            "id,annotator,candidates,checked\na,x,cat,cat\na,y,dog,dog\n",
            r"row 2 .*: its gold label is 'dog', but an earlier row of the same id says 'cat'\. ",
        ),
    ],
)
def test_faults_of_gold_are_named(write, text, words):
    with pytest.raises(InputError, match=words):
        read_file(write(text, "a.csv"), gold="checked")


def test_gold_of_several_rows_per_example(write):
    text = "id,annotator,candidates,checked\na,x,cat,\nb,x,cat,\na,y,dog,dog\na,z,cat,dog\n"
    data = read_file(write(text, "a.csv"), gold="checked")
    assert data.gold.tolist() == [1, -2]


def test_gold_in_npz(tmp_path):
    path = tmp_path / "a.npz"
    arrays = {"X": np.ones((3, 2)), "S": np.eye(3), "y": np.arange(3), "sure": [-1, 2, np.nan]}
    np.savez(path, **arrays)
    data = read_file(path, gold="sure")
    assert data.gold.tolist() == [-1, 2, -2]
    assert data.unseen_truth().tolist() == [-2, -2, 2]
    of_y = read_file(path, gold="y")
    assert (of_y.gold.tolist(), of_y.truth) == ([0, 1, 2], None)
    with pytest.raises(InputError, match="has no 'sur'"):
        read_file(path, gold="sur")
    with pytest.raises(InputError, match="--gold S: this array has another part"):
        read_file(path, gold="S")
    np.savez(path, **(arrays | {"sure": [0, 7, 1]}))
    with pytest.raises(InputError, match=r"sure in row 2 \(counting from 1\) is 7, which is not"):
        read_file(path, gold="sure")


def test_gold_in_mat_is_refused(tmp_path):
    savemat(tmp_path / "a.mat", {"data": np.ones((3, 2)), "partial_target": np.ones((2, 3))})
    with pytest.raises(InputError, match=r"--gold sure names a column, and \.mat files have none"):
        read_file(tmp_path / "a.mat", gold="sure")


def test_verified_labels_of_label_studio_are_gold(write):
    data = read_file(write(json.dumps(tasks()), "export.json"))
    assert data.gold.tolist() == [-2, -2, 0]
    assert "verified labels are gold" in " ".join(data.notes)
    assert (
        "1 verified label(s) that nobody proposed ('bird') are not used as gold" in (data.notes[-1])
    )
    assert data.truth.tolist() == [-2, -1, 0]
    assert data.unseen_truth().tolist() == [-2, -1, -2]
    assert data.kind == "text"
    again = read_file(data.source.path, **data.source.options)
    assert again.gold.tolist() == data.gold.tolist()
    every = read_file(data.source.path, classes=["bird", "cat", "dog"])
    assert every.gold.tolist() == [-2, 0, 1]
    assert every.unseen_truth() is None
    only_truth = read_file(data.source.path, truth="label")
    assert only_truth.gold is None
    assert only_truth.truth.tolist() == data.truth.tolist()
    assert not [note for note in only_truth.notes if "gold" in note]


def test_columns_of_label_studio_are_no_features(write):
    given = [
        {
            "id": i,
            "data": {"x": i, "checked": "cat"},
            "annotations": [annotation(1, "cat", "dog"), annotation(2, "cat", ground_truth=True)],
        }
        for i in range(3)
    ]
    path = write(json.dumps(given), "export.json")
    assert list(read_file(path).inputs) == ["x", "checked"]
    named = read_file(path, gold="checked")
    assert list(named.inputs) == ["x"]
    assert named.gold.tolist() == [0, 0, 0]
    other = read_file(path, truth="checked")
    assert list(other.inputs) == ["x"]
    assert other.gold.tolist() == [0, 0, 0]


def test_columns_of_an_export_are_no_features(write):
    text = (
        "candidates,x,consensus_label,consensus_probability,consensus_label_2\n"
        "cat,1,cat,0.5,dog\ndog,2,cat,0.75,\n"
    )
    data = read_file(write(text, "a.csv"))
    assert list(data.inputs) == ["x"]
    assert data.notes == (
        "left out: 'consensus_label', 'consensus_probability', 'consensus_label_2'. `candidly "
        "export` writes columns of such names; name one by an option, such as --truth, to use it.",
    )
    assert list(read_examples(data.source.path).inputs) == ["x"]
    used = read_file(data.source.path, truth="consensus_label", features="x,consensus_probability")
    assert used.truth.tolist() == [0, 0]
    assert list(used.inputs) == ["x", "consensus_probability"]
    assert used.notes == (
        "left out: 'consensus_label_2'. `candidly export` writes columns of such names; name one "
        "by an option, such as --truth, to use it.",
    )
    assert list(read_file(data.source.path, labels="consensus_label").sets) == [("cat",), ("cat",)]
