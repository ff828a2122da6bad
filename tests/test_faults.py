"""Bad files at the command line, made by hand and at random: exit code 2, a message, no RUN."""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from scipy import sparse
from scipy.io import savemat
from typer.testing import CliRunner

from candidly.cli.app import app
from candidly.data import read_file
from candidly.data.guard import (
    UNLIMITED_BYTES,
    allowed_memory,
    as_bytes,
    available_memory,
    refuse_larger_than_memory,
)
from candidly.data.inputs import fit_inputs
from candidly.errors import InputError
from candidly.storage.atomic import file_hash

HOSTILE = Path(__file__).parent / "hostile"
CANDIDLY = [sys.executable, "-m", "candidly"]
TARGET = np.eye(3)[[0, 1, 2, 0, 1, 2]]


def invoke(*arguments):
    """(exit code, what was said); only the ends that the command line has, no other exception."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    return done.exit_code, done.stderr


def text(content, name="a.csv"):
    return lambda folder: (folder / name).write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )


def parquet(**columns):
    return lambda folder: pq.write_table(pa.table(columns), folder / "a.parquet")


def npz(**arrays):
    return lambda folder: np.savez(folder / "a.npz", **arrays)


def mat(**variables):
    return lambda folder: savemat(folder / "a.mat", variables)


def huge_npz(folder):
    header = (
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 100), }".ljust(117)
        + b"\n"
    )
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        archive.writestr(
            "X.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(80)
        )


def list_bomb(folder):
    """One row with 250 million equal candidates, in a kilobyte."""
    shutil.copy(HOSTILE / "list_bomb.parquet", folder / "a.parquet")


def row_bomb(folder):
    """30 million equal rows, in 50 kilobytes."""
    rows = pa.table({"candidates": pa.array(["cat"]).take(pa.array(np.zeros(10**6, int)))})
    with pq.ParquetWriter(folder / "a.parquet", rows.schema) as writer:
        for _ in range(30):
            writer.write_table(rows)


def text_bomb(folder):
    """A text of a megabyte in 60,000 rows, stored once."""
    texts = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(60_000, np.int32)), pa.array(["y" * 10**6])
    )
    pq.write_table(
        pa.table({"candidates": ["cat", "dog"] * 30_000, "text": texts}), folder / "a.parquet"
    )


def pictures(name, content=b""):
    """metadata.csv with a good image and another."""

    def write(folder):
        Image.new("L", (4, 4)).save(folder / "good.png")
        (folder / "bad.png").write_bytes(content)
        (folder / "metadata.csv").write_text(f"file_name,candidates\ngood.png,cat\n{name},dog\n")

    return write


def tasks(*annotations):
    entries = [{"id": 1, "data": {"text": "a"}, "annotations": list(annotations)}]
    return text(json.dumps(entries), "a.json")


def choice(label, tag="animal", **more):
    result = {"from_name": tag, "to_name": "text", "type": "choices", "value": {"choices": [label]}}
    return {"completed_by": 1, "result": [result], **more}


TRAPS = {
    "quoting": (
        text('id,candidates\nx,cat\ny,"dog\n'),
        "a.csv",
        ["a.csv, row 2", 'a quote " is opened and never'],
    ),
    "cells": (
        text("id,candidates\nx,cat\ny,dog,bird\n"),
        "a.csv",
        ["a.csv, row 2", "3 cells ('y,dog,bird')"],
    ),
    "encoding": (
        text(b"id,candidates\nx,caf\xe9\n"),
        "a.csv",
        ["a.csv, line 2", "the byte 0xe9", "iconv"],
    ),
    "empty cell": (
        text("id,candidates\nx,cat\ny,\n"),
        "a.csv",
        ["a.csv, row 2", "the candidate set is empty"],
    ),
    "duplicate id": (
        text("id,candidates\nx,cat\nx,dog\n"),
        "a.csv",
        ["a.csv, row 2", "duplicate id 'x' (first in row 1)", "--annotator"],
    ),
    "nested JSON": (
        text('id,candidates\nx,"{""choices"": 1}"\n'),
        "a.csv",
        ["a.csv, row 1", '{"choices": 1}'],
    ),
    "null": (
        parquet(candidates=[["cat"], [None]], x=[1, 2]),
        "a.parquet",
        ["a.parquet, row 2", "a missing label"],
    ),
    "ragged": (
        parquet(candidates=[["cat"], ["dog"]], embedding=[[1.0, 2.0], [1.0]]),
        "a.parquet",
        ["a.parquet, row 2", "1 numbers; expected 2"],
    ),
    "pickle": (
        npz(X=TARGET, S=TARGET, classes=np.array([None] * 3)),
        "a.npz",
        ["a.npz: 'classes'", "never loaded"],
    ),
    "declared shape": (huge_npz, "a.npz", ["a.npz: 'X' declares float64 (1000000000000, 100)"]),
    "ambiguous": (
        mat(data=TARGET[:3], partial_target=TARGET[:3]),
        "a.mat",
        ["a.mat: partial_target is (3, 3)"],
    ),
    "mat 7.3": (
        text(b"MATLAB 7.3 MAT-file".ljust(520), "a.mat"),
        "a.mat",
        ["a.mat is", "version 7.3", "'-v7'"],
    ),
    "missing image": (pictures("gone.png"), ".", ["metadata.csv, row 2", "gone.png"]),
    "broken image": (
        pictures("bad.png", b"\x89PNG\r\n\x1a\n broken"),
        ".",
        ["bad.png", "is not an image"],
    ),
    "path outside": (pictures("../x.png"), ".", ["metadata.csv, row 2", "'../x.png' leads out"]),
    "cancelled only": (
        tasks(choice("cat", was_cancelled=True)),
        "a.json",
        ["a.json: no task has an annotation"],
    ),
    "several tags": (
        tasks(choice("cat"), choice("sad", "mood")),
        "a.json",
        ["a.json has several choices: animal, mo"],
    ),
    "list as id": (
        parquet(id=[[1], [2]], candidates=[["cat"], ["dog"]], x=[1, 2]),
        "a.parquet",
        ["a.parquet: the column 'id' (id) holds list<", "expected text or numbers", "--id"],
    ),
    "struct as annotator": (
        parquet(id=[1, 1], annotator=[{"n": 1}, {"n": 2}], candidates=[["cat"], ["dog"]], x=[1, 1]),
        "a.parquet",
        ["a.parquet: the column 'annotator' (annotator) holds struct<"],
    ),
    "struct as label": (
        parquet(candidates=[{"a": 1}, {"a": 2}], x=[1, 2]),
        "a.parquet",
        ["a.parquet, row 1", "column 'candidates': holds struct<"],
    ),
    "list of lists": (
        parquet(candidates=[[["cat"]], [["dog"]]], x=[1, 2]),
        "a.parquet",
        ["a.parquet, row 1", "column 'candidates': holds list<"],
    ),
    "uint64 label": (
        parquet(candidates=pa.array([2**64 - 1, 1], pa.uint64()), x=[1, 2]),
        "a.parquet",
        ["a.parquet, row 1", "18446744073709551615 does not fit into 64 bits"],
    ),
    "column twice": (
        lambda folder: pq.write_table(
            pa.table([[["cat"], ["dog"]], [1, 2], [1, 2]], names=["candidates", "x", "x"]),
            folder / "a.parquet",
        ),
        "a.parquet",
        ["a.parquet: the column 'x' occurs twice"],
    ),
    "text in S": (
        npz(X=TARGET, S=TARGET.astype(str)),
        "a.npz",
        ["a.npz: S holds <U", "expected 0 and 1"],
    ),
    "bytes as classes": (
        npz(X=TARGET, S=TARGET, classes=np.array([b"a", b"b", b"c"])),
        "a.npz",
        ["a.npz: classes holds |S1; expected names or whole numbers"],
    ),
    "dates as truth": (
        npz(X=TARGET, S=TARGET, y=np.zeros(6, "datetime64[s]")),
        "a.npz",
        ["a.npz: y holds datetime64[s]"],
    ),
    "half an emoji": (
        text(
            '{"candidates": ["cat"], "t": "ok"}\n{"candidates": ["dog"], "t": "\\ud83d"}\n',
            "a.jsonl",
        ),
        "a.jsonl",
        ["a.jsonl, line 2", '"\\ud83d" is half a character'],
    ),
    "half an emoji as a name": (
        text('[{"candidates": ["cat"], "\\uDe00": 1}]', "a.json"),
        "a.json",
        ["a.json, object 1", '"\\ude00" is half a character'],
    ),
    "raw surrogate": (
        text(b'{"candidates": ["cat"], "t": "\xed\xa0\xbd"}\n', "a.jsonl"),
        "a.jsonl",
        ["a.jsonl, line 1", "0xed"],
    ),
    "null annotation": (
        tasks(None),
        "a.json",
        ["a.json, task 1", "'annotations' is [null]; expected a list of obj"],
    ),
    "annotations as text": (
        text('[{"id": 1, "data": {}, "annotations": "x"}]', "a.json"),
        "a.json",
        ["a.json, task 1", "'annotations' is \"x\""],
    ),
    "null result": (tasks({"result": [None]}), "a.json", ["a.json, task 1", "'result' is [null]"]),
    "odd tag": (
        tasks(choice("cat", ["x"])),
        "a.json",
        ["a.json, task 1", "'from_name' is [\"x\"]; expected text"],
    ),
    "odd tags": (
        tasks(choice("cat", 1), choice("cat")),
        "a.json",
        ["a.json, task 1", "'from_name' is 1"],
    ),
    "odd choice": (tasks(choice(7)), "a.json", ["a.json, task 1", "the value of 'animal' is"]),
    "list as task id": (
        text(
            json.dumps([{"id": [1], "data": {"text": "a"}, "annotations": [choice("cat")]}]),
            "a.json",
        ),
        "a.json",
        ["a.json: the column 'id' (id) holds list<"],
    ),
    "huge index": (
        npz(X=np.zeros((3, 2)), indptr=np.arange(4), indices=np.array([0, 1, 200_000_000])),
        "a.npz",
        ["a.npz: a class list of 200,000,001 classes needs 8.0 GB", "--max-memory 9GB"],
    ),
    "huge sparse matrix": (
        mat(data=sparse.csc_array((2_000_000_000, 3)), partial_target=np.eye(3)),
        "a.mat",
        ["a.mat: reading data, partial_target needs 48.0 GB of memory"],
    ),
    "list bomb": (
        list_bomb,
        "a.parquet",
        ["a.parquet: reading the table needs 2.0 GB", "--max-memory 3GB"],
    ),
    "row bomb": (
        row_bomb,
        "a.parquet",
        ["a.parquet: reading the table needs 1.3 GB", "--max-memory 2GB"],
    ),
    "text bomb": (
        text_bomb,
        "a.parquet",
        ["a.parquet: the text of a column needs 60.0 GB of memory"],
    ),
    "key bomb": (
        text(
            "\n".join(json.dumps({"candidates": ["cat"], f"k{i}": 1}) for i in range(15_000)),
            "a.jsonl",
        ),
        "a.jsonl",
        ["a.jsonl: a table of 15,001 columns needs 1.8 GB"],
    ),
    "crowd table": (
        text("task,worker,label\n1,ann,cat\n1,,dog\n"),
        "a.csv",
        ["a.csv, row 2", "'worker'"],
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_every_trap_ends_with_code_2_and_without_a_run(tmp_path, monkeypatch, trap):
    write, name, words = TRAPS[trap]
    write(tmp_path)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr("candidly.data.guard.available_memory", lambda: 32 * 10**9)
    for command in (["inspect"], ["fit", "--encoder", "none", "--out", tmp_path / "run"]):
        if command == ["inspect"] and trap == "broken image":
            continue  # nobody looks into the images then
        code, said = invoke(command[0], tmp_path / name, *command[1:])
        assert code == 2, said
        assert all(word in said for word in words), said
    assert sorted(tmp_path.iterdir()) == before


# ---- columns with two parts

TABLE = "id,ann1,ann2,label,worker,x,y\na,cat,dog,cat,w1,1,2\nb,dog,dog,dog,w2,3,4\n"


def test_a_pattern_passes_over_columns_with_another_part(tmp_path):
    (tmp_path / "a.csv").write_text("id,candidates,label,x,y\na,cat,cat,1,2\nb,dog,dog,3,4\n")
    data = read_file(tmp_path / "a.csv", features="*")
    assert list(data.inputs) == ["x", "y"]
    assert data.ids.tolist() == ["a", "b"]
    assert [note for note in data.notes if "'*'" in note] == [
        "--features '*' leaves out 'id', 'candidates', 'label': "
        "labels, ids, truth, gold and columns of an export are not features."
    ]


def test_a_named_column_is_not_guessed_to_be_something_else(tmp_path):
    (tmp_path / "a.csv").write_text("id,label,x\n1,cat,5\n2,dog,6\n")
    data = read_file(tmp_path / "a.csv", labels="id", features="label,x")
    assert list(data.sets) == [(1,), (2,)]
    assert data.ids.tolist() == [1, 2], "rows are counted, for the ids are labels"
    assert data.truth is None
    assert list(data.inputs) == ["label", "x"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--labels", "ann1,ann1"],
            "the column 'ann1' is named twice, by --labels and by --labels",
        ),
        (
            ["--labels", "ann1", "--id", "ann1"],
            "the column 'ann1' is named twice, by --labels and by --id",
        ),
        (
            ["--labels", "ann1,ann2", "--truth", "ann2"],
            "the column 'ann2' is named twice, by --labels and by --truth",
        ),
        (
            ["--labels", "ann1", "--features", "ann1,x"],
            "'ann1' is named twice, by --labels and by --features",
        ),
        (
            ["--labels", "ann1", "--id", "id", "--features", "id"],
            "'id' is named twice, by --id and by --features",
        ),
        (
            ["--labels", "ann1", "--features", "ann1*"],
            "--features ann1* names no column that is free",
        ),
    ],
)
def test_a_column_has_one_part(tmp_path, options, words):
    (tmp_path / "a.csv").write_text(TABLE.replace("worker", "w"))
    code, said = invoke("inspect", tmp_path / "a.csv", *options)
    assert code == 2
    assert words in said


# ---- labels and arrays of odd types that are fine


def test_labels_of_twenty_digits_stay_text(tmp_path):
    (tmp_path / "a.csv").write_text(
        "candidates,x\n12345678901234567890,1\n2,2\n2|12345678901234567890,3\n"
    )
    assert read_file(tmp_path / "a.csv").sets.classes.tolist() == ["12345678901234567890", "2"]
    np.save(tmp_path / "p.npy", np.full((3, 2), 0.5))
    code, said = invoke(
        "audit", tmp_path / "a.csv", "--probs", tmp_path / "p.npy", "--out", tmp_path / "run"
    )
    assert code == 0, said
    (tmp_path / "b.csv").write_text(f"candidates,x\n{2**63 - 1},1\n{-(2**63)},2\n")
    assert read_file(tmp_path / "b.csv").sets.classes.tolist() == [-(2**63), 2**63 - 1]


def test_half_precision_is_read(tmp_path):
    np.savez(
        tmp_path / "a.npz",
        X=TARGET.astype(np.float16),
        S=TARGET.astype(np.float16),
        y=np.arange(6.0) % 3,
    )
    data = read_file(tmp_path / "a.npz")
    assert list(data.sets) == [(0,), (1,), (2,), (0,), (1,), (2,)]
    assert data.inputs.dtype == np.float32
    assert data.truth.tolist() == [0, 1, 2, 0, 1, 2]


def test_a_damaged_column_name_is_refused(tmp_path):
    pq.write_table(
        pa.table({"candidates": [["cat"], ["dog"]], "zebra": [1, 2]}), tmp_path / "a.parquet"
    )
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole.replace(b"zebra", b"zeb\xff\xfe"))
    code, said = invoke("inspect", tmp_path / "a.parquet")
    assert code == 2, said
    assert "a.parquet" in said


def test_a_file_name_that_is_no_text_is_refused(tmp_path):
    path = os.fsencode(tmp_path) + b"/caf\xe9.csv"
    with open(path, "w") as file:
        file.write("candidates,x\ncat,1\ndog,2\n")
    code, said = invoke("inspect", os.fsdecode(path))
    assert code == 2
    assert r"caf\udce9.csv': the name is not UTF-8" in said


# ---- files that crash the reader, limits


@pytest.mark.parametrize("path", sorted(HOSTILE.glob("*.mat")), ids=lambda path: path.name)
def test_files_that_crashed_the_interpreter_are_read_or_refused(path):
    done = subprocess.run([*CANDIDLY, "inspect", path], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2), done.stderr
    assert done.returncode == 0 or done.stderr.startswith(f"candidly: {path}"), done.stderr


def test_there_are_files_that_crashed():
    assert len(list(HOSTILE.glob("*.mat"))) == 5


def test_a_reader_that_dies_is_an_error(tmp_path, monkeypatch):
    mat(data=TARGET, partial_target=TARGET[:, :2].T)(tmp_path)
    monkeypatch.setattr("candidly.data.formats.matlab.sys.executable", "/bin/false")
    with pytest.raises(InputError, match=r"a.mat is a damaged MATLAB file: reading it failed"):
        read_file(tmp_path / "a.mat")


@pytest.mark.parametrize(
    ("size", "count"),
    [("8GB", 8 * 10**9), ("500 MB", 5 * 10**8), ("2GiB", 2 << 30), ("1.5k", 1500), (1000, 1000)],
)
def test_sizes(size, count):
    assert as_bytes(size) == count


@pytest.mark.parametrize("size", ["", "much", "-1GB", "8 PB", "8GBs"])
def test_odd_sizes(size):
    with pytest.raises(InputError, match="expected a size such as 8GB or 500MB"):
        as_bytes(size)


def test_memory_is_unlimited_where_the_system_does_not_tell(monkeypatch):
    """As on Windows, which has neither /proc/meminfo nor os.sysconf."""

    def missing(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr("candidly.data.guard.Path.read_text", missing)
    assert 0 < available_memory() < UNLIMITED_BYTES, "the whole memory of this machine"
    monkeypatch.delattr("candidly.data.guard.os.sysconf")
    assert available_memory() == UNLIMITED_BYTES


def test_the_limit_of_memory_can_be_chosen(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", X=np.zeros((20_000, 100)), S=np.ones((20_000, 2)))
    assert len(read_file(tmp_path / "a.npz", max_memory="20MB")) == 20_000
    code, said = invoke("inspect", tmp_path / "a.npz", "--max-memory", "10MB")
    assert code == 2
    assert "a.npz: reading X, S needs 16.3" in said
    assert "MB of memory; the limit is 10 MB (--max-memory)" in said


def test_a_small_file_may_take_a_gigabyte_and_a_large_one_more(tmp_path, monkeypatch):
    monkeypatch.setattr("candidly.data.guard.available_memory", lambda: 10**12)
    path = tmp_path / "a"
    path.write_bytes(bytes(1000))
    assert allowed_memory(path) == 1 << 30
    refuse_larger_than_memory(1 << 30, "it", path)
    with pytest.raises(
        InputError,
        match=r"it needs 1\.1 GB of memory, 1,073,741 times the size of the file \(1 kB\)",
    ):
        refuse_larger_than_memory((1 << 30) + 1, "it", path)
    path.write_bytes(bytes(10**7))
    assert allowed_memory(path) == 2 * 10**9
    refuse_larger_than_memory(2 * 10**9, "it", path)


# ---- damage at random

ROWS = 12
CAMPAIGN = 150  # damaged versions of each file


def intact(folder):
    """A file of each format, all with three classes and 12 rows."""
    rng, names = np.random.default_rng(0), ["ant", "bee", "cat"]
    y = rng.integers(3, size=ROWS)
    y[:3] = range(3)
    X, S = rng.normal(size=(ROWS, 4)).round(3), np.eye(3)[y]
    lists = [[names[j]] for j in y]
    lines = [json.dumps({"id": i, "candidates": c, "x": X[i, 0]}) for i, c in enumerate(lists)]
    entries = [
        {"id": i, "data": {"text": f"word {i}"}, "annotations": [choice(*c)]}
        for i, c in enumerate(lists)
    ]
    rows = [f"{i},{c[0]},{X[i, 0]},{X[i, 1]}" for i, c in enumerate(lists)]
    (folder / "a.csv").write_text("\n".join(["id,candidates,u,v", *rows]))
    (folder / "a.jsonl").write_text("\n".join(lines))
    (folder / "a.json").write_text(json.dumps(entries))
    np.savez(folder / "a.npz", X=X, S=S, classes=np.array(names))
    savemat(folder / "a.mat", {"data": X, "partial_target": S.T})
    table = pa.table({"embedding": X.tolist(), "candidates": lists, "id": list(range(ROWS))})
    pq.write_table(table, folder / "a.parquet")
    with pa.ipc.new_file(str(folder / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    P = rng.dirichlet(np.ones(3), size=ROWS)
    np.save(folder / "p.npy", P)
    (folder / "p.csv").write_text(
        "\n".join([",".join(names), *(",".join(map(str, row)) for row in P.tolist())])
    )


def damaged(content, rng):
    """The bytes with one to four faults: changed, dropped, repeated, swapped, cut or inserted."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at, length = rng.randrange(len(data) or 1), rng.randint(1, 12)
        fault = rng.choice(["flip", "drop", "repeat", "swap", "cut", "text"])
        if fault == "flip" and data:
            data[at] ^= 1 << rng.randrange(8)
        elif fault == "drop":
            del data[at : at + length]
        elif fault == "repeat":
            data[at:at] = data[at : at + length] * rng.randint(1, 3)
        elif fault == "swap":
            other = rng.randrange(len(data) or 1)
            data[at : at + 4], data[other : other + 4] = data[other : other + 4], data[at : at + 4]
        elif fault == "cut" and rng.random() < 0.3:
            del data[at:]
        else:
            data[at:at] = rng.choice(
                [b'"', b",", b"\n", b"|", b"[", b"{}", b"\0", b"nan", b"-1e999", b"\xff", b"null"]
            )
    return bytes(data)


# ---- damaged RUN folders

COMMANDS = {
    "report": ["report", "{run}"],
    "export": ["export", "{run}", "--out", "{folder}/out.csv"],
    "predict": ["predict", "{run}", "{folder}/a.csv", "--out", "{folder}/predicted.csv"],
}


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    intact(folder)
    code, said = invoke(
        "fit", folder / "a.csv", "--epochs", 1, "--folds", 2, "--out", folder / "run"
    )
    assert code == 0, said
    return folder


def used(folder, command):
    """The exit code of a command on a RUN, and what it said; what it wrote is removed again."""
    said = invoke(*(word.format(run=folder / "run", folder=folder) for word in COMMANDS[command]))
    for name in ("out.csv", "predicted.csv"):
        (folder / name).unlink(missing_ok=True)
    return said


def test_a_whole_run_can_be_used(whole_run):
    assert {command: used(whole_run, command)[0] for command in COMMANDS} == dict.fromkeys(
        COMMANDS, 0
    )


READ = {
    "run.json": {"report", "export", "predict"},
    "SHA256SUMS": {"report", "export", "predict"},
    "findings.json": {"report"},
    "audit.parquet": {"export"},
    "estimator.json": {"predict"},
    "arrays.npz": {"predict"},
    "model/model.json": {"predict"},
    "model/model.safetensors": {"predict"},
    "model/inputs.json": {"predict"},
    "model/inputs.npz": {"predict"},
}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        (name, how)
        for name in READ
        for how in ("gone", "empty", "cut", "other")
        # a wrong hash concerns its own file only
        if (name, how) != ("SHA256SUMS", "other")
    ],
)
def test_damaged_runs_are_refused(whole_run, tmp_path, name, how):
    folder = tmp_path / "copy"
    shutil.copytree(whole_run, folder)
    path = folder / "run" / name
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(content.replace(b"e", b"E", 1))
    for command in COMMANDS:
        code, said = used(folder, command)
        assert code == (2 if command in READ[name] else 0), (command, said)
        assert code == 0 or "run" in said


def test_export_reads_nothing_but_its_input(whole_run, tmp_path):
    """A changed run.json cannot make it parse another file, whatever the hashes say."""
    folder = tmp_path / "copy"
    shutil.copytree(whole_run, folder)
    secret = tmp_path / "secret.csv"
    secret.write_text("candidates\nthe-password\n")
    note = json.loads((folder / "run" / "run.json").read_text())
    note["source"]["path"] = str(secret)
    (folder / "run" / "run.json").write_text(json.dumps(note))
    sums = (folder / "run" / "SHA256SUMS").read_text().splitlines()
    kept = [line for line in sums if not line.endswith("  run.json")]
    (folder / "run" / "SHA256SUMS").write_text(
        "\n".join([*kept, f"{file_hash(folder / 'run' / 'run.json')}  run.json"])
    )
    code, said = used(folder, "export")
    assert code == 2
    assert "secret.csv is not the file that" in said
    assert "--input FILE" in said
    assert "password" not in said


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_runs_damaged_at_random(whole_run, tmp_path, command):
    folder, rng = tmp_path / "copy", random.Random(command)
    shutil.copytree(whole_run, folder)
    names = sorted(READ)
    for _ in range(CAMPAIGN):
        path = folder / "run" / rng.choice(names)
        content = path.read_bytes()
        path.write_bytes(damaged(content, rng))
        code, said = used(folder, command)
        assert code in (0, 2), said
        path.write_bytes(content)
    assert used(folder, command)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["a.csv", "a.jsonl", "a.json", "a.npz", "a.mat", "a.parquet", "a.arrow"]
)
def test_damaged_files_are_read_or_refused(tmp_path, name):
    """Never another exception; a RUN if, and only if, the exit code is 0."""
    intact(tmp_path)
    whole, rng, codes = (tmp_path / name).read_bytes(), random.Random(name), []
    for k in range(CAMPAIGN + 1):
        (tmp_path / name).write_bytes(damaged(whole, rng) if k else whole)
        run = tmp_path / f"run{k}"
        code, said = invoke("audit", tmp_path / name, "--probs", tmp_path / "p.npy", "--out", run)
        assert code in (0, 2), said
        assert run.exists() == (code == 0)
        assert code == 0 or said.startswith("candidly: "), said
        codes.append(code)
        with contextlib.suppress(InputError):
            fit_inputs(read_file(tmp_path / name))
    assert codes[0] == 0
    assert codes.count(2) > 10
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["p.npy", "p.csv"])
def test_damaged_outputs_are_read_or_refused(tmp_path, name):
    intact(tmp_path)
    whole, rng, codes = (tmp_path / name).read_bytes(), random.Random(name), []
    for k in range(CAMPAIGN + 1):
        (tmp_path / name).write_bytes(damaged(whole, rng) if k else whole)
        run = tmp_path / f"run{k}"
        code, said = invoke("audit", tmp_path / "a.csv", "--probs", tmp_path / name, "--out", run)
        assert (code, run.exists()) in ((0, True), (2, False)), said
        codes.append(code)
    assert codes[0] == 0
    assert codes.count(2) > 10
