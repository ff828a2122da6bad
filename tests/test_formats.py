"""The registry of formats: own formats by content and name, formats of other packages."""

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint

import numpy as np
import pandas as pd
import pytest
from recipes import RECIPES

from candidly.data.formats import FORMATS, Format, TableFormat, find_format
from candidly.data.formats.registry import OWN_FORMATS, load_formats
from candidly.errors import InputError

ENTRY_POINTS = """
[candidly.formats]
column-json = column_json:ColumnJson
"""
COLUMNS = {
    "id": [f"r{i}" for i in range(40)],
    "candidates": [["cat", "dog"] if i % 2 else ["bird"] for i in range(40)],
    "weight": [float(i % 2) + i / 1000 for i in range(40)],
}


@pytest.fixture
def python(tmp_path):
    """Run Python where a package with the format of CONTRIBUTING.md is installed."""
    packages = tmp_path / "packages"
    info = packages / "column_json-1.0.dist-info"
    info.mkdir(parents=True)
    (packages / "column_json.py").write_text(RECIPES["Add a format"])
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: column-json\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    paths = [str(packages), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def run(*arguments, code=0):
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_a_format_of_another_package_works_at_the_command_line(python, tmp_path):
    (tmp_path / "pets.cjson").write_text(json.dumps(COLUMNS))
    facts = json.loads(python("-m", "candidly", "inspect", "pets.cjson", "--json"))
    assert facts["format"] == "column-json"
    assert facts["rows"] == 40
    assert facts["set_sizes"] == {"1": 20, "2": 20}
    assert facts["inputs"]["columns"] == ["weight"]
    assert "pets.cjson: column-json, 40 rows" in python("-m", "candidly", "inspect", "pets.cjson")

    # The model is sure of "bird" in row r1, which is not a candidate.
    sure = {"bird": [0.9, 0.05, 0.05], "cat": [0.05, 0.9, 0.05]}
    probs = np.array([sure["cat"] if i % 2 else sure["bird"] for i in range(40)])
    probs[1] = [0.998, 0.001, 0.001]
    outputs = dict(zip(("bird", "cat", "dog"), probs.T.tolist(), strict=True))
    (tmp_path / "probs.cjson").write_text(json.dumps({"id": COLUMNS["id"], **outputs}))
    python("-m", "candidly", "audit", "pets.cjson", "--probs", "probs.cjson", "--out", "run")
    audit = pd.read_csv(tmp_path / "run" / "audit.csv")
    assert audit["id"].tolist() == COLUMNS["id"]

    python("-m", "candidly", "export", "run", "--keep-open", "--out", "new.cjson")
    written = json.loads((tmp_path / "new.cjson").read_text())
    assert written["id"] == COLUMNS["id"]
    assert written["weight"] == COLUMNS["weight"]
    assert written["candidates"][1] == ["bird", "cat", "dog"], "the suggestion is added"
    assert written["candidates"][2:] == COLUMNS["candidates"][2:]


def test_a_format_of_another_package_works_from_python(python, tmp_path):
    (tmp_path / "pets.cjson").write_text(json.dumps(COLUMNS))
    code = """
from candidly import CandidateSets
from candidly.data import read_examples, read_file
from candidly.export import write_sets

data = read_file("pets.cjson")
assert data.source.format == "column-json"
assert data.sets[1] == ("cat", "dog")
assert data.inputs["weight"].tolist()[1] == 1.001
assert read_examples("pets.cjson", **data.source.options).ids.tolist() == data.ids.tolist()
sets = CandidateSets([["dog"]] * 40, classes=data.sets.classes)
keep = [i < 2 for i in range(40)]
write_sets(data, sets, "new.cjson", keep=keep)
write_sets(data, sets, "new.json", keep=keep)
"""
    said = python("-c", code, code=1)
    assert "InputError" in said
    assert "column-json" in said.splitlines()[-1]
    assert "'new.cjson'" in said.splitlines()[-1], "an ending of the format is proposed"
    assert json.loads((tmp_path / "new.cjson").read_text()) == {
        "id": ["r0", "r1"],
        "candidates": [["dog"], ["dog"]],
        "weight": [0.0, 1.001],
    }


def test_damaged_files_of_another_format_are_refused(python, tmp_path):
    (tmp_path / "pets.cjson").write_text("{")
    said = python("-m", "candidly", "inspect", "pets.cjson", code=2)
    assert "pets.cjson is not an object of columns" in said
    assert "Traceback" not in said


class Upside(Format):
    name = "upside"
    suffixes = (".up",)

    def recognise(self, path, head):
        return head.startswith(b"UP")

    def read(self, path, options, labelled):
        raise NotImplementedError

    def write(self, correction, path):
        raise NotImplementedError


class Misnamed(Upside):
    name = "other"


def point(name, value):
    return EntryPoint(name, value, "candidly.formats")


def test_formats_that_cannot_be_used_are_left_out_with_a_warning():
    here = __name__
    assert list(load_formats([point("upside", f"{here}:Upside")])) == ["upside"]
    unusable = {
        "csv": (f"{here}:Upside", "already a format of this name"),
        "function": (f"{here}:point", "not a subclass"),
        "wrong": (f"{here}:Misnamed", "its name is 'other'"),
        "absent": ("no_such_module_at_all:X", "no_such_module_at_all"),
        "abstract": ("candidly.data.formats:TableFormat", "abstract"),
    }
    for name, (value, reason) in unusable.items():
        with pytest.warns(UserWarning, match=f"the format '{name}' .*left out: .*{reason}"):
            assert load_formats([point(name, value)]) == {}
    twice = [point("upside", f"{here}:Upside")] * 2
    with pytest.warns(UserWarning, match="already a format of this name"):
        assert list(load_formats(twice)) == ["upside"]


def test_formats_of_other_packages_are_asked_first(tmp_path, monkeypatch):
    ordered = {"upside": Upside()} | OWN_FORMATS
    monkeypatch.setattr("candidly.data.formats.registry.FORMATS", ordered)
    (tmp_path / "a.csv").write_bytes(b"UP,candidates\n1,cat\n")
    assert find_format(tmp_path / "a.csv").name == "upside"
    (tmp_path / "b.csv").write_bytes(b"x,candidates\n1,cat\n")
    assert find_format(tmp_path / "b.csv").name == "csv"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", b"PAR1", "parquet"),
        ("a.csv", b"ARROW1", "arrow"),
        ("a", b"\xff\xff\xff\xff", "arrow"),
        ("a.txt", b"PK\x03\x04", "npz"),
        ("a.dat", b"MATLAB 5.0", "mat"),
        ("a.mat", b"anything", "mat"),
        ("a.dat", b" " * 512 + b"\x89HDF", "mat"),
        ("a.txt", b'\xef\xbb\xbf {"id": 1}', "jsonl"),
        ("a.ndjson", b"what?", "jsonl"),
        ("a.txt", b'[{"id": 1}]', "json"),
        ("a.json", b'[{"id": 1, "data": 2}, {"data": {}}]', "json"),
        ("a.json", b'[{"id": 1, "data": {}}, {"data": {}}]', "label-studio"),
        ("a.csv", b'[{"id": 1}]', "csv"),
        ("a.tsv", b'{"id": 1}', "tsv"),
        ("a.tab", b"x\ty", "tsv"),
        ("a.txt", b"x\ty", "csv"),
        ("a.mat", b"\x1f\x8b", "gzip"),
        ("a.json", b"\x80\x04", "pickle"),
        ("a.csv", b"\xd0\xcf\x11\xe0", "office"),
        ("a.npz", b"\x93NUMPY", "npy"),
    ],
)
def test_a_format_is_found_by_content_then_by_name(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content)
    assert find_format(tmp_path / name).name == expected


def test_a_task_is_found_far_behind_the_head(tmp_path):
    tasks = [{"annotations": ["x" * 10_000], "data": {"text": "fine"}}]
    (tmp_path / "a.json").write_text(json.dumps(tasks))
    assert find_format(tmp_path / "a.json").name == "label-studio"


def test_formats_are_registered_under_their_names():
    assert all(form.name == name for name, form in FORMATS.items())
    readable = [form for form in FORMATS.values() if form.suffixes]
    assert [form.name for form in readable if isinstance(form, TableFormat)] == [
        "parquet",
        "arrow",
        "tsv",
        "csv",
    ]
    assert {suffix for form in readable for suffix in form.suffixes} == {
        *(".parquet", ".arrow", ".feather", ".npz", ".mat", ".json", ".jsonl", ".ndjson"),
        *(".tsv", ".tab", ".csv"),
    }


def test_an_empty_or_missing_file_has_no_format(tmp_path):
    (tmp_path / "a.csv").write_text(" \n")
    with pytest.raises(InputError, match=r"a\.csv is empty"):
        find_format(tmp_path / "a.csv")
    with pytest.raises(InputError, match=r"b\.csv cannot be opened"):
        find_format(tmp_path / "b.csv")
