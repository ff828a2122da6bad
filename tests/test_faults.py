"""Bad files at the command line: each trap of each format, and damage at random; exit code 2, a sentence, no RUN."""

import contextlib
import json
import random
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from scipy.io import savemat
from typer.testing import CliRunner

from candidly.cli import app
from candidly.data import read_file
from candidly.data.inputs import fit_inputs
from candidly.errors import InputError

TARGET = np.eye(3)[[0, 1, 2, 0, 1, 2]]


def invoke(*arguments):
    """(exit code, what was said); only the ends that the command line has, no other exception."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    return done.exit_code, done.stderr


def text(content, name="a.csv"):
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def parquet(**columns):
    return lambda folder: pq.write_table(pa.table(columns), folder / "a.parquet")


def npz(**arrays):
    return lambda folder: np.savez(folder / "a.npz", **arrays)


def mat(**variables):
    return lambda folder: savemat(folder / "a.mat", variables)


def huge_npz(folder):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 100), }".ljust(117) + b"\n"
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        archive.writestr("X.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(80))


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
    "quoting": (text('id,candidates\nx,cat\ny,"dog\n'), "a.csv", ["a.csv, row 2", 'a quote " is opened and never']),
    "cells": (text("id,candidates\nx,cat\ny,dog,bird\n"), "a.csv", ["a.csv, row 2", "3 cells ('y,dog,bird')"]),
    "encoding": (text(b"id,candidates\nx,caf\xe9\n"), "a.csv", ["a.csv, line 2", "the byte 0xe9", "iconv"]),
    "empty cell": (text("id,candidates\nx,cat\ny,\n"), "a.csv", ["a.csv, row 2", "the candidate set is empty"]),
    "duplicate id": (text("id,candidates\nx,cat\nx,dog\n"), "a.csv", ["a.csv, row 2", "the id 'x'", "--annotator"]),
    "nested JSON": (text('id,candidates\nx,"{""choices"": 1}"\n'), "a.csv", ["a.csv, row 1", '{"choices": 1}']),
    "null": (parquet(candidates=[["cat"], [None]], x=[1, 2]), "a.parquet", ["a.parquet, row 2", "a missing label"]),
    "ragged": (
        parquet(candidates=[["cat"], ["dog"]], embedding=[[1.0, 2.0], [1.0]]),
        "a.parquet",
        ["a.parquet, row 2", "1 numbers; expected 2"],
    ),
    "pickle": (npz(X=TARGET, S=TARGET, classes=np.array([None] * 3)), "a.npz", ["a.npz: 'classes'", "never loaded"]),
    "declared shape": (huge_npz, "a.npz", ["a.npz: 'X' declares float64 (1000000000000, 100)"]),
    "ambiguous": (mat(data=TARGET[:3], partial_target=TARGET[:3]), "a.mat", ["a.mat: partial_target is (3, 3)"]),
    "mat 7.3": (text(b"MATLAB 7.3 MAT-file".ljust(520), "a.mat"), "a.mat", ["a.mat is", "version 7.3", "'-v7'"]),
    "missing image": (pictures("gone.png"), ".", ["metadata.csv, row 2", "gone.png"]),
    "broken image": (pictures("bad.png", b"\x89PNG\r\n\x1a\n broken"), ".", ["bad.png", "is not an image"]),
    "path outside": (pictures("../x.png"), ".", ["metadata.csv, row 2", "'../x.png' leads out"]),
    "cancelled only": (tasks(choice("cat", was_cancelled=True)), "a.json", ["a.json: no task has an annotation"]),
    "several tags": (tasks(choice("cat"), choice("sad", "mood")), "a.json", ["a.json has several choices: animal, mo"]),
    "crowd table": (text("task,worker,label\n1,ann,cat\n1,,dog\n"), "a.csv", ["a.csv, row 2", "'worker'"]),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_every_trap_ends_with_code_2_and_without_a_run(tmp_path, trap):
    write, name, words = TRAPS[trap]
    write(tmp_path)
    before = sorted(tmp_path.iterdir())
    for command in (["inspect"], ["fit", "--encoder", "none", "--out", tmp_path / "run"]):
        if command == ["inspect"] and trap == "broken image":
            continue  # nobody looks into the images then
        code, said = invoke(command[0], tmp_path / name, *command[1:])
        assert code == 2, said
        assert all(word in said for word in words), said
    assert sorted(tmp_path.iterdir()) == before


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
    entries = [{"id": i, "data": {"text": f"word {i}"}, "annotations": [choice(*c)]} for i, c in enumerate(lists)]
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
    (folder / "p.csv").write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in P.tolist())]))


def damaged(content, rng):
    """The bytes with one to four faults: other bytes, some left out, repeated, or the end cut off."""
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
            data[at:at] = rng.choice([b'"', b",", b"\n", b"|", b"[", b"{}", b"\0", b"nan", b"-1e999", b"\xff", b"null"])
    return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json", "a.npz", "a.mat", "a.parquet", "a.arrow"])
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
