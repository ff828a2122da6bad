"""Writing corrected sets: in the same format, read again the same, and never over another file."""

from __future__ import annotations

import csv
import json
import os
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import sparse
from scipy.io import loadmat, savemat

from candidly import CandidateSets
from candidly.data import read_file
from candidly.data.export import free_names, harmless, write_csv, write_sets
from candidly.errors import InputError

NAMES = ["bird", "cat", "dog"]
KEEP = np.array([True, False, True])
NEW = CandidateSets([["bird"], ["dog"], ["cat", "dog"]], NAMES)


def rewritten(path, name, **options):
    """The file with NEW in place of its sets, without the second row."""
    data = read_file(path, **options)
    before = path.read_bytes()
    out = write_sets(data, NEW, path.parent / "out" / name, keep=KEEP)
    assert path.read_bytes() == before
    return out


def test_csv(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(
        '\ufeffid;candidates;note;x\r\n007;cat|dog;"a;b";-1.50\r\nb;bird;é\r\nc;dog;;+2\r\n'.replace(
            "é", "é;1"
        ).encode()
    )
    out = rewritten(path, "b.csv")
    assert (
        out.read_text(encoding="utf-8")
        == '\ufeffid;candidates;note;x\n007;bird;"a;b";-1.50\nc;cat|dog;;+2\n'
    )
    assert list(read_file(out, classes=NAMES).sets) == [("bird",), ("cat", "dog")]
    path.write_bytes("id\tcandidates\na\tcat\nb\tbird\nc\tdog\n".encode("utf-16"))
    assert (
        rewritten(path, "c.csv").read_text(encoding="utf-16")
        == "id\tcandidates\na\tbird\nc\tcat|dog\n"
    )


def test_annotators_make_room_for_one_column(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,ann1,ann2,x\na,cat,dog,1\nb,bird,,2\nc,dog,dog,3\n")
    out = rewritten(path, "b.csv", labels="ann1,ann2")
    assert out.read_text() == "id,x,candidates\na,1,bird\nc,3,cat|dog\n"
    path.write_text("task,worker,label\n1,w1,cat\n2,w1,dog\n1,w2,dog\n3,w2,bird\n")
    out = rewritten(path, "c.csv")
    assert out.read_text() == "task,candidates\n1,bird\n3,cat|dog\n"
    assert list(read_file(out).sets) == [("bird",), ("cat", "dog")]


@pytest.mark.parametrize("cell", ["p\r=1+1", "\r", "a\r", "a\nb", "a\r\n=b", 'say "\r"', "a\r,b"])
@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_line_breaks_in_cells_stay_in_their_cell(tmp_path, cell, delimiter):
    frame = pd.DataFrame({"id": ["x", "y"], "text": [cell, "plain"]})
    write_csv(frame, tmp_path / "a.csv", delimiter)
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.reader(file, delimiter=delimiter))
    assert rows == [["id", "text"], ["x", harmless(cell)], ["y", "plain"]]
    assert (tmp_path / "a.csv").read_bytes().endswith(b"y" + delimiter.encode() + b"plain\n")


def test_formulas_are_harmless(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        'id,candidates,note,=x\n@a,=cmd()|cat,=1+1,-1\nb,cat,-2.5e3,+3\n\'=c,dog,"\t=1",-x\n',
        encoding="utf-8",
    )
    data = read_file(path)
    assert data.sets.classes.tolist() == ["=cmd()", "cat", "dog"]
    out = write_sets(data, data.sets, tmp_path / "b.csv")
    rows = list(csv.reader(out.open(newline="")))
    for cell in (cell for row in rows for cell in row):
        assert cell[:1] not in "=+-@\t\r" or not cell or re.fullmatch(r"[+-][\d.e]+", cell), cell
    assert rows[1] == ["'@a", '["=cmd()", "cat"]', "'=1+1", "-1"]
    assert rows[2] == ["b", "cat", "-2.5e3", "+3"], "numbers stay numbers"
    again = read_file(out)
    assert again.sets == data.sets
    assert again.ids.tolist() == data.ids.tolist() == ["@a", "b", "=c"]
    assert list(again.inputs) == list(data.inputs) == ["note", "=x"]
    assert again.inputs["note"].tolist() == ["=1+1", "-2.5e3", "\t=1"]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("=1", "'=1"),
        ("@x", "'@x"),
        ("-", "'-"),
        ("-3", "-3"),
        ("+1e5", "+1e5"),
        ("'=1", "''=1"),
        ("a=1", "a=1"),
        (-3, -3),
    ],
)
def test_harmless(cell, expected):
    assert harmless(cell) == expected


@pytest.mark.parametrize("block", [1, 2, 9])
def test_tables_of_our_own_are_harmless_too(tmp_path, monkeypatch, block):
    monkeypatch.setattr("candidly.data.formats.delimited.ROWS_AT_ONCE", block)
    frame = pd.DataFrame({"id": ["=1", "b"], "p": [-0.5, np.nan], "n": [1, 2]})
    write_csv(frame, tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == "id,p,n\n'=1,-0.5,1\nb,,2\n"


label = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6
).filter(lambda text: text == text.strip() and text)


@example([["p\r=1+1"]], "|")
@example([["a\rb", "c"], ["d\n=e"], ["f\r\n+g"]], ",")
@example([["'\rx"], ['"\r"']], "; ")
@given(
    st.lists(st.lists(label, min_size=1, max_size=4, unique=True), min_size=1, max_size=6),
    st.sampled_from(["|", ",", "; "]),
)
def test_any_label_comes_back_from_csv(tmp_path_factory, rows, sep):
    folder = tmp_path_factory.mktemp("csv")
    (folder / "a.csv").write_text("candidates,x\n" + "a,1\n" * len(rows))
    sets = CandidateSets(rows)
    write_sets(read_file(folder / "a.csv", sep=sep), sets, folder / "b.csv")
    again = read_file(folder / "b.csv", sep=sep)
    assert [{*map(str, row)} for row in again.sets] == [{*row} for row in rows]


@given(
    st.lists(st.lists(label, min_size=1, max_size=4, unique=True), min_size=1, max_size=6),
    st.sampled_from(["parquet", "jsonl"]),
)
def test_any_label_comes_back_from_typed_files(tmp_path_factory, rows, form):
    folder = tmp_path_factory.mktemp("typed")
    path = folder / f"a.{form}"
    if form == "parquet":
        pq.write_table(pa.table({"candidates": [["a"]] * len(rows)}), path)
    else:
        path.write_text('{"candidates": ["a"]}\n' * len(rows))
    write_sets(read_file(path), CandidateSets(rows), folder / f"b.{form}")
    assert read_file(folder / f"b.{form}").sets == CandidateSets(rows)


@pytest.mark.parametrize(
    "candidates",
    [
        pa.array([["cat", "dog"], ["bird"], ["dog"]]),
        pa.array([["cat", "dog"], ["bird", "cat"], ["dog", "cat"]], pa.list_(pa.string(), 2)),
        pa.array([["cat"], ["bird"], ["dog"]], pa.large_list(pa.large_string())),
        pa.array(["cat|dog", "bird", "dog"]),
        pa.array(["cat", "bird", "dog"]).dictionary_encode(),
        pa.array([[1, 2], [0], [2]]),
        pa.array([1, 0, 2]),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_columnar_files(tmp_path, candidates, form):
    table = pa.table({"id": [1, 2, 3], "candidates": candidates, "note": ["a", None, "=c"]})
    path = tmp_path / f"a.{form}"
    if form == "parquet":
        pq.write_table(table, path, row_group_size=2)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table, 2)
    out = rewritten(path, f"b.{form}", classes=NAMES)
    again = read_file(out, classes=NAMES)
    assert list(again.sets) == [("bird",), ("cat", "dog")]
    assert again.ids.tolist() == [1, 3]
    written = pq.read_table(out) if form == "parquet" else pa.ipc.open_file(str(out)).read_all()
    assert written.column("note").to_pylist() == ["a", "=c"]


def test_scores_of_old_candidates_are_dropped(tmp_path):
    pq.write_table(
        pa.table({"candidates": [["cat"], ["dog"], ["bird"]], "scores": [[0.5]] * 3}),
        tmp_path / "a.parquet",
    )
    assert read_file(tmp_path / "a.parquet").scores is not None
    out = rewritten(tmp_path / "a.parquet", "b.parquet")
    assert pq.read_table(out).to_pylist() == [
        {"candidates": ["bird"]},
        {"candidates": ["cat", "dog"]},
    ]


def test_annotators_of_a_parquet(tmp_path):
    table = pa.table(
        {
            "id": [1, 2, 1, 3],
            "annotator": list("abba"),
            "candidates": [["cat"], ["dog"], ["dog"], ["bird"]],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    out = rewritten(tmp_path / "a.parquet", "b.parquet")
    assert pq.read_table(out).to_pylist() == [
        {"id": 1, "candidates": ["bird"]},
        {"id": 3, "candidates": ["cat", "dog"]},
    ]


@pytest.mark.parametrize("sparse_sets", [False, True])
def test_npz(tmp_path, sparse_sets):
    S = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 1]], dtype=np.int8)
    csr = sparse.csr_array(S)
    layout = {"indptr": csr.indptr, "indices": csr.indices} if sparse_sets else {"S": S}
    np.savez(
        tmp_path / "a.npz",
        X=np.arange(6).reshape(3, 2),
        y=[1, 0, 2],
        classes=NAMES,
        more=np.ones(5),
        **layout,
    )
    out = rewritten(tmp_path / "a.npz", "b.npz")
    again = read_file(out)
    assert list(again.sets) == [("bird",), ("cat", "dog")]
    assert again.inputs.tolist() == [[0, 1], [4, 5]]
    assert again.truth.tolist() == [1, 2]
    with np.load(out) as file:
        assert file["more"].tolist() == [1] * 5
        assert sparse_sets or file["S"].dtype == np.int8


@pytest.mark.parametrize("lying", [False, True])
@pytest.mark.parametrize("pack", [np.asarray, sparse.csc_array], ids=["dense", "sparse"])
def test_mat(tmp_path, lying, pack):
    matrix = np.array([[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 1, 0]])
    stored = pack((matrix.T if lying else matrix).astype(float))
    variables = {
        "data": np.arange(6.0).reshape(3, 2),
        "partial_target": stored,
        "target": stored * 0,
        "more": "kept",
    }
    savemat(tmp_path / "a.mat", variables)
    names = [*NAMES, "fish"]
    data = read_file(tmp_path / "a.mat", classes=names)
    new = CandidateSets([["bird"], ["dog"], ["cat", "dog"]], names)
    out = write_sets(data, new, tmp_path / "b.mat", keep=np.array([True, True, True]))
    again = read_file(out, classes=names)
    assert again.sets == new
    assert again.inputs.tolist() == data.inputs.tolist()
    found = loadmat(out)
    assert found["partial_target"].shape == stored.shape
    assert sparse.issparse(found["partial_target"]) == sparse.issparse(stored)
    assert found["more"].tolist() == ["kept"]
    fewer = read_file(
        write_sets(data, new, tmp_path / "c.mat", keep=np.array([True, False, True])), classes=names
    )
    assert list(fewer.sets) == [("bird",), ("cat", "dog")]


def test_json_lines(tmp_path):
    path = tmp_path / "metadata.jsonl"
    rows = [
        {"x": 1, "candidates": ["cat"]},
        {"x": 2, "candidates": "dog"},
        {"x": 3, "candidates": "bird|dog"},
    ]
    path.write_text(
        "".join(
            json.dumps(row) + "\n" for row in [rows[0], {**rows[0], "x": 2}, {**rows[0], "x": 3}]
        )
    )
    out = rewritten(path, "b.jsonl")
    assert (
        out.read_text()
        == '{"x": 1, "candidates": ["bird"]}\n{"x": 3, "candidates": ["cat", "dog"]}\n'
    )
    path.write_text(json.dumps([{**row, "candidates": "cat|bird"} for row in rows]))
    out = rewritten(path, "b.json")
    assert json.loads(out.read_text()) == [
        {"x": 1, "candidates": "bird"},
        {"x": 3, "candidates": "cat|dog"},
    ]


def test_label_studio_gets_predictions(tmp_path):
    def task(number, *names, **more):
        result = {
            "from_name": "animal",
            "to_name": "img",
            "type": "choices",
            "value": {"choices": list(names)},
        }
        entry = {"completed_by": 1, "result": [result] if names else [], "was_cancelled": not names}
        return {"id": number, "data": {"text": "a"}, "annotations": [entry], **more}

    old = {"score": 0.1, "result": []}
    tasks = [task(5, "cat"), task(6), task(7, "dog"), task(8, "bird", "cat", predictions=[old])]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(tasks))
    data = read_file(path)
    out = write_sets(data, NEW, tmp_path / "b.json", keep=KEEP, scores=np.array([0.9, 0.8, 0.7]))
    written = json.loads(out.read_text())
    assert [task["annotations"] for task in written] == [task["annotations"] for task in tasks]
    assert "predictions" not in written[1]
    assert "predictions" not in written[2]
    (first,) = written[0]["predictions"]
    assert first == {
        "model_version": "candidly",
        "score": 0.9,
        "result": [
            {
                "from_name": "animal",
                "to_name": "img",
                "type": "choices",
                "value": {"choices": ["bird"]},
            }
        ],
    }
    assert written[3]["predictions"][0] == old
    assert written[3]["predictions"][1]["score"] == 0.7
    assert written[3]["predictions"][1]["result"][0]["value"] == {"choices": ["cat", "dog"]}
    assert read_file(out).sets == data.sets


def test_nothing_is_overwritten(tmp_path):
    path, other = tmp_path / "a.csv", tmp_path / "b.csv"
    path.write_text("candidates\ncat\nbird\ndog\n")
    data = read_file(path)
    (tmp_path / "link.csv").symlink_to(path)
    os.link(path, tmp_path / "hard.csv")
    for name in ("a.csv", "link.csv", "hard.csv", "../" + tmp_path.name + "/a.csv"):
        with pytest.raises(InputError, match="is the input, which is never overwritten"):
            write_sets(data, NEW, tmp_path / name)
    other.write_text("precious")
    with pytest.raises(InputError, match=r"b.csv exists already"):
        write_sets(data, NEW, other)
    assert other.read_text() == "precious"
    with pytest.raises(InputError, match="2 sets for the 3 rows"):
        write_sets(data, NEW[:2], tmp_path / "c.csv")
    with pytest.raises(InputError, match="keep is of shape"):
        write_sets(data, NEW, tmp_path / "c.csv", keep=[True])
    path.write_text("candidates\ncat\nbird\ncat\n")
    with pytest.raises(InputError, match="has changed since it was read"):
        write_sets(data, NEW, tmp_path / "c.csv")
    path.unlink()
    with pytest.raises(InputError, match="is missing"):
        write_sets(data, NEW, tmp_path / "c.csv")
    assert not (tmp_path / "c.csv").exists()


# ---- new columns

CONSENSUS = {
    "consensus_label": ["bird", None, "cat"],
    "consensus_probability": [0.75, 0.5, 1.0],
}


def with_columns(path, name, **options):
    data = read_file(path, **options)
    return write_sets(data, NEW, path.parent / name, columns=CONSENSUS)


def test_new_columns_of_csv_and_tsv(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,candidates,x\na,cat,1\nb,bird,2\nc,dog,3\n")
    assert with_columns(path, "b.csv").read_text() == (
        "id,candidates,x,consensus_label,consensus_probability\n"
        "a,bird,1,bird,0.75\nb,dog,2,,0.5\nc,cat|dog,3,cat,1.0\n"
    )
    again = read_file(tmp_path / "b.csv")
    assert list(again.inputs) == ["x"]
    assert again.truth is None
    path = tmp_path / "a.tsv"
    path.write_text("who\tkey\tsaid\nx\t1\tcat\ny\t1\tdog\nx\t2\tbird\ny\t3\tdog\n")
    out = with_columns(path, "b.tsv", labels="said", annotator="who", id="key")
    assert out.read_text() == (
        "key\tcandidates\tconsensus_label\tconsensus_probability\n"
        "1\tbird\tbird\t0.75\n2\tdog\t\t0.5\n3\tcat|dog\tcat\t1.0\n"
    ), "one row per example"


def test_new_columns_of_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    lists = [["cat"], ["bird"], ["dog"]]
    pq.write_table(pa.table({"x": [1, 2, 3], "candidates": lists}), path)
    table = pq.read_table(with_columns(path, "b.parquet"))
    assert table.schema.names == ["x", "candidates", *CONSENSUS]
    assert table.select([*CONSENSUS]).to_pydict() == CONSENSUS
    assert str(table.schema.field("consensus_label").type) == "string"
    data = read_file(path)
    kept = write_sets(data, NEW, tmp_path / "c.parquet", keep=KEEP, columns=CONSENSUS)
    assert pq.read_table(kept)["consensus_probability"].to_pylist() == [0.75, 1.0]


@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_new_columns_of_json(tmp_path, form):
    path = tmp_path / f"a.{form}"
    rows = [{"x": 1, "candidates": ["cat"]}, {"x": 2, "candidates": ["bird"]}]
    rows.append({"x": 3, "candidates": ["dog"]})
    lines = "\n".join(map(json.dumps, rows))
    path.write_text(lines if form == "jsonl" else json.dumps(rows))
    text = with_columns(path, f"b.{form}").read_text()
    found = json.loads(text) if form == "json" else [*map(json.loads, text.splitlines())]
    assert found[1] == {
        "x": 2,
        "candidates": ["dog"],
        "consensus_label": None,
        "consensus_probability": 0.5,
    }
    assert [row["consensus_label"] for row in found] == ["bird", None, "cat"]


def test_new_columns_do_not_replace_old_ones(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("candidates,consensus_label,consensus_label_2\ncat,x,1\nbird,y,2\ndog,z,3\n")
    assert with_columns(path, "b.csv").read_text() == (
        "candidates,consensus_label,consensus_label_2,consensus_label_3,consensus_probability\n"
        "bird,x,1,bird,0.75\ndog,y,2,,0.5\ncat|dog,z,3,cat,1.0\n"
    )
    assert list(free_names(["x", "consensus_label"], read_file(path)).values()) == [
        "x",
        "consensus_label_3",
    ]
    assert read_file(tmp_path / "b.csv").kind == "none", "none of them is a feature"


def test_gold_labels_are_written_back(tmp_path):
    path = tmp_path / "a.npz"
    sure = np.array([1, -1, 2])
    np.savez(path, X=np.ones((3, 2)), S=np.eye(3, dtype=int), classes=NAMES, sure=sure)
    data = read_file(path, gold="sure")
    out = write_sets(data, NEW, tmp_path / "b.npz", keep=KEEP, columns=CONSENSUS)
    again = read_file(out, gold="sure")
    assert again.gold.tolist() == [1, 2]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_gold_of_a_later_row_is_not_lost(tmp_path, form):
    rows = [("a", "x", "cat", ""), ("b", "x", "bird", ""), ("a", "y", "dog", "dog")]
    rows.append(("c", "x", "dog", "cat"))
    names = ("id", "annotator", "candidates", "sure")
    path = tmp_path / f"a.{form}"
    if form == "csv":
        path.write_text("\n".join(",".join(row) for row in [names, *rows]) + "\n")
    else:
        path.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    data = read_file(path, gold="sure")
    assert list(data.gold_labels()) == ["dog", None, "cat"]
    again = read_file(write_sets(data, NEW, tmp_path / f"b.{form}"), gold="sure")
    assert again.ids.tolist() == ["a", "b", "c"]
    assert list(again.gold_labels()) == ["dog", None, "cat"]
