"""`candidly inspect`, as a user runs it, and the facts behind it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from candidly.console.terminal import printable, printable_lines
from candidly.data import read_file
from candidly.data.facts import collect_facts, disjoint_pairs, similar_names
from candidly.sets import CandidateSets

NONE = {"rows": 0, "columns": {}}


def run(*arguments, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "candidly", "inspect", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "id,candidates,x,colour,label\na,cat|dog,1,red,cat\nb,Cat,1,red,fish\n"
        "c,dog|cat|Cat|big dog|bigdog|fish,3,red,\n"
        "d,bigdog,2,blue,none of the classes\ne,dog,2,blue,\nf,big dog|dog,9,red,dog\n"
    )
    (tmp_path / "classes.txt").write_text("cat\nCat\ndog\nbig dog\nbigdog\nfish\nbird\n")
    return path


def test_facts(path):
    facts = collect_facts(read_file(path, classes=path.with_name("classes.txt")))
    assert facts["rows"] == 6
    assert facts["classes"][2] == {"label": "dog", "rows": 4}
    assert facts["set_sizes"] == {1: 3, 2: 2, 6: 1}
    assert facts["mean_set_size"] == pytest.approx(13 / 6)
    assert facts["full_sets"] == facts["empty_sets"] == 0
    assert facts["never_proposed"] == ["bird"]
    assert facts["similar_names"] == [["cat", "Cat"], ["big dog", "bigdog"]]
    assert facts["duplicates"] == {
        "rows": 4,
        "disjoint": 2,
        "disjoint_ids": [["a", "b"], ["d", "e"]],
    }
    assert facts["truth"] == {"known": 4, "outside": 1, "no_class": 1}
    assert facts["inputs"] == {
        "kind": "table",
        "columns": ["x", "colour"],
        "shape": None,
        "missing": NONE,
    }
    assert collect_facts(read_file(path))["full_sets"] == 1, (
        "without a class list there are six classes"
    )


def test_the_command_tells_it(path):
    done = run(path, "--classes", path.with_name("classes.txt"))
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    for words in (
        "a.csv: csv, 6 rows, 7 classes",
        "inputs      table from x, colour",
        "truth       known of 4 rows: 1 outside their sets, 1 of no class",
        "dog      4  66.7%  ████████████████████",
        "nobody proposed 1 of the classes: bird.",
        "these names differ by case or space only: 'cat', 'Cat'.",
        "2 inputs occur again with a set that shares no label; ids",
        f"  candidly fit {path} --classes {path.with_name('classes.txt')} --out run\n",
    ):
        assert words in done.stdout
    facts = json.loads(run(path, "--classes", path.with_name("classes.txt"), "--json").stdout)
    assert facts["rows"] == 6
    assert facts["never_proposed"] == ["bird"]


def test_options_and_annotators(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "key,review,one,two\nx,fine;day,cat,dog\ny,rainy,dog;cat,\n".replace("fine;day", "fine day")
    )
    facts = json.loads(
        run(
            path, "--labels", "one,two", "--id", "key", "--text", "review", "--sep", ";", "--json"
        ).stdout
    )
    assert facts["annotators"] == [{"name": "one", "answers": 2}, {"name": "two", "answers": 1}]
    assert facts["agreement"] == {
        "rows": 1,
        "unanimous": 0.0,
        "alpha": 0.0,
        "lowest": None,
        "highest": None,
    }
    assert facts["inputs"]["columns"] == ["review"]
    assert facts["full_sets"] == 2


def test_gold_rows_are_counted(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("candidates,x,sure\ncat,1,dog\ndog,2,\ncat,3,none of the classes\ndog,4,dog\n")
    text = run(path, "--gold", "sure").stdout
    assert (
        "  gold        3 rows: 1 outside their sets, 1 of no class (taken as certain, not "
        "evaluated)\n"
    ) in text
    assert "inputs      table from x\n" in text
    assert f"  candidly fit {path} --gold sure --out run\n" in text
    facts = json.loads(run(path, "--gold", "sure", "--json").stdout)
    assert facts["gold"] == {"known": 3, "outside": 1, "no_class": 1}
    assert json.loads(run(path, "--json").stdout)["gold"] is None
    assert "  gold  " not in run(path).stdout
    assert "--max-memory 1GB --out run\n" in run(path, "--max-memory", "1GB").stdout
    refused = run(path, "--gold", "x", code=2).stderr
    assert "row 1 (the header not counted), column 'x': the gold label '1' is not among" in refused


def test_agreement_is_shown(tmp_path):
    path = tmp_path / "a.csv"
    rows = ["cat,cat,cat", "dog,dog,cat", "cat,cat,", "dog,,"] * 5
    path.write_text("one,two,thr\x1bee\n" + "\n".join(rows) + "\n")
    labels = ("--labels", "one,two,thr\x1bee")
    text = run(path, *labels).stdout
    assert "  agreement   15 rows have several answers; all agree in 66.7% of them\n" in text
    assert "Krippendorff's alpha 0.35 (1 is full agreement): annotators often disagree" in text
    assert (
        r"Cohen's kappa: lowest 0.00 (one and thr\x1bee, 10 rows), "
        "highest 1.00 (one and two, 15 rows)\n"
    ) in text
    facts = json.loads(run(path, *labels, "--json").stdout)["agreement"]
    assert (facts["rows"], facts["highest"]["kappa"], facts["lowest"]["rows"]) == (15, 1.0, 10)
    path.write_text("one,two\n" + "cat,cat\ndog,dog\n" * 5)
    text = run(path, "--labels", "one,two").stdout
    assert "Krippendorff's alpha 1.00 (1 is full agreement): the answers are reliable\n" in text
    assert "Cohen's kappa: only pair 1.00 (one and two, 10 rows)\n" in text
    path.write_text("candidates,x\ncat,1\ndog|cat,2\n")
    assert "several answers" not in run(path).stdout
    assert json.loads(run(path, "--json").stdout)["agreement"] is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("candidates,x\ncat,1\n,2\n", "row 2 (the header not counted): the candidate set is empty"),
        (
            "id,candidates\na,cat\na,dog\n",
            "row 2 (the header not counted): duplicate id 'a' (first in row 1)",
        ),
        ("a,b\n1,2\n", "has no column 'candidates'"),
        ("file_name,candidates\n../x.png,cat\n", "'../x.png' leads out of"),
    ],
)
def test_faults_end_with_code_2_and_without_a_traceback(tmp_path, content, words):
    path = tmp_path / "a.csv"
    path.write_text(content)
    done = run(path, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith(f"candidly: {path}")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [path]


def test_what_fit_would_refuse_or_fill_is_told(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('candidates,x,colour\n"cat, dog",1,red\ncat,,\ndog,3,blue\n"cat/dog",,red\n')
    facts = collect_facts(read_file(path))
    assert facts["joined_names"] == [
        {"label": "cat, dog", "sep": ","},
        {"label": "cat/dog", "sep": "/"},
    ]
    assert facts["inputs"]["missing"] == {"rows": 2, "columns": {"x": 2, "colour": 1}}
    text = run(path).stdout
    assert (
        "'cat, dog' is one class, but 'cat' and 'dog' are classes, too: if it is several candidates"
        in text
    )
    assert "read the file with --sep ','." in text
    assert (
        "2 rows lack a value (x 2, colour 1): "
        "`fit` takes the mean of a number, and a category of its own"
    ) in text
    assert collect_facts(read_file(path, sep=","))["joined_names"] == [
        {"label": "cat/dog", "sep": "/"}
    ]
    path.write_text("candidates,x\ncat,1\n")
    text = run(path, "--sep", ";", "--labels", "candidates").stdout
    assert "a.csv: csv, 1 row, 1 class\n" in text
    assert "there is only one row: `fit` needs at least two." in text
    assert "there is only one class: `fit` and `audit` need at least two." in text
    assert f"  candidly fit {path} --labels candidates --sep ';' --out run\n" in text


def test_one_set_and_no_truth_are_told_as_such(tmp_path):
    result = [
        {
            "from_name": "t",
            "to_name": "text",
            "type": "choices",
            "value": {"choices": ["cat", "dog"]},
        }
    ]
    tasks = [
        {"id": i, "data": {"text": "w"}, "annotations": [{"completed_by": 1, "result": result}]}
        for i in (1, 2)
    ]
    tasks[1]["annotations"][0]["result"] = [result[0] | {"value": {"choices": ["cat"]}}]
    (tmp_path / "a.json").write_text(json.dumps(tasks))
    text = run(tmp_path / "a.json").stdout
    assert "1 set holds all classes, which says nothing." in text
    assert "truth  " not in text
    assert "annotators  1, who gave 2 answers" in text


EVIL = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202e\x7f"
HARMLESS = r"\x1b]0;pwned\x07\x1b[2J\x9b31m\u202e\x7f"


def unprintable(text):
    return [c for c in text if not c.isprintable() and c != "\n"]


@pytest.fixture
def evil(tmp_path):
    """A file whose name, header, ids and classes hold escape sequences."""
    path = tmp_path / f"{EVIL}.csv"
    path.write_text(
        f"id,candidates,x{EVIL},y\na{EVIL},cat{EVIL}|[red],1,2\nb{EVIL},<b>bold</b>,1,2\n",
        encoding="utf-8",
    )
    return path


def test_names_for_the_terminal():
    assert printable("a\x1b[31mb\u202ec\n") == "a\\x1b[31mb\\u202ec\\n"
    assert printable_lines("a\x1b\nb\r\n") == "a\\x1b\nb\\r\n"
    assert printable("Käse 猫 🐈") == "Käse 猫 🐈"
    assert printable(EVIL) == HARMLESS


def test_names_cannot_command_the_terminal(evil):
    done = run(evil)
    assert not unprintable(done.stdout + done.stderr)
    for words in (
        f"{HARMLESS}.csv: csv, 2 rows",
        f"inputs      table from x{HARMLESS}, y",
        f"  cat{HARMLESS} ",
        "[red]",
        "<b>bold</b>",
        f"ids a{HARMLESS} and b{HARMLESS}.",
    ):
        assert words in done.stdout


def test_names_cannot_command_the_terminal_in_colour(evil):
    pty = pytest.importorskip("pty")
    main, side = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "300"}
    command = [sys.executable, "-m", "candidly", "inspect", str(evil)]
    subprocess.run(command, stdout=side, env=environment, check=True)
    os.close(side)
    shown = os.read(main, 100_000).decode()
    os.close(main)
    assert "\x1b[1m" in shown, "titles are bold"
    assert f"cat{HARMLESS}" in shown
    assert not unprintable(re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r\n", "\n"))


def test_names_cannot_command_the_terminal_in_json(evil):
    done = run(evil, "--json")
    assert not unprintable(done.stdout)
    facts = json.loads(done.stdout)
    assert facts["file"] == str(evil)
    assert {entry["label"] for entry in facts["classes"]} == {f"cat{EVIL}", "[red]", "<b>bold</b>"}
    assert r"cat\u001b]0;pwned\u0007\u001b[2J\u009b31m\u202e\u007f" in done.stdout


def test_json_has_other_names_as_they_are(tmp_path):
    (tmp_path / "a.csv").write_text(
        "candidates,x\nKäse|猫,1\n\U0001f408\U000e0041,2\n", encoding="utf-8"
    )
    text = run(tmp_path / "a.csv", "--json").stdout
    assert "Käse" in text
    assert "猫" in text
    assert r"🐈\udb40\udc41" in text, "an invisible letter, written as a surrogate pair"
    assert "\U0001f408\U000e0041" in [entry["label"] for entry in json.loads(text)["classes"]]


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (f"id,cand{EVIL}\na,cat\n", []),
        (f"id,candidates\na{EVIL},cat\na{EVIL},dog\n", []),
        (f"candidates,image\ncat,{EVIL}.png\n", []),
        (f"candidates,x\ncat{EVIL},1\n", ["--labels", f"no{EVIL}"]),
        ("candidates,x\ncat,1\n", [f"extra{EVIL}"]),
        ("candidates,x\ncat,1\n", [f"--option{EVIL}"]),
    ],
)
def test_errors_cannot_command_the_terminal(tmp_path, content, options):
    path = tmp_path / "a.csv"
    path.write_text(content, encoding="utf-8")
    done = run(path, *options, code=2)
    assert not unprintable(done.stdout + done.stderr)
    assert HARMLESS in done.stderr
    assert "Traceback" not in done.stderr


def test_a_newline_in_a_name_is_no_newline_of_the_message(tmp_path):
    done = run(tmp_path / "a\ncandidly: all is well.csv", code=2)
    assert len(done.stderr.splitlines()) == 1
    assert r"a\ncandidly: all is well.csv is missing" in done.stderr


def test_similar_names():
    assert similar_names(["a b", "AB", 1, "c", " a\tB"]) == [["a b", "AB", " a\tB"]]
    assert similar_names(["straße", "STRASSE"]) == [["straße", "STRASSE"]]
    assert similar_names([1, 2]) == []


def test_duplicates_of_every_kind(tmp_path):
    (tmp_path / "a.csv").write_text(
        "candidates,text\ncat,same words here\ndog,same words here\ncat,other\n"
    )
    expected = {"rows": 2, "disjoint": 1, "disjoint_ids": [[1, 2]]}
    assert collect_facts(read_file(tmp_path / "a.csv"))["duplicates"] == expected
    S = np.array([[1, 0], [0, 1], [1, 0]])
    np.savez(tmp_path / "a.npz", X=[[0.5, 1], [0.5, 1], [1, 0.5]], S=S)
    assert collect_facts(read_file(tmp_path / "a.npz"))["duplicates"] == expected
    images = np.zeros((3, 2, 2), dtype=np.uint8)
    images[2, 0, 0] = 1
    np.savez(tmp_path / "a.npz", X=images, S=S)
    assert collect_facts(read_file(tmp_path / "a.npz"))["duplicates"] == expected
    for name, pixel in (("a", 0), ("b", 0), ("c", 1)):
        Image.new("L", (2, 2), pixel).save(tmp_path / f"{name}.png")
    (tmp_path / "b.csv").write_text("candidates,image\ncat,a.png\ndog,b.png\ncat,c.png\n")
    assert collect_facts(read_file(tmp_path / "b.csv"))["duplicates"] == expected
    (tmp_path / "c.csv").write_text("candidates\ncat\ndog\n")
    assert collect_facts(read_file(tmp_path / "c.csv"))["duplicates"] is None


@pytest.mark.parametrize("classes", [4, 7, 30])
def test_disjoint_pairs_are_those_of_a_naive_search(classes):
    rng = np.random.default_rng(classes)
    mask = rng.random((300, classes)) < rng.random((300, 1))
    mask[~mask.any(axis=1), 0] = True
    group = rng.integers(60, size=300)
    expected = {
        int(group[i])
        for i, j in combinations(range(300), 2)
        if group[i] == group[j] and not (mask[i] & mask[j]).any()
    }
    pairs = disjoint_pairs(CandidateSets(mask), group)
    assert 0 < len(expected) < 60
    assert sorted(group[i] for i, _ in pairs) == sorted(expected), "one pair per group"
    for i, j in pairs:
        assert i < j
        assert group[i] == group[j]
        assert not (mask[i] & mask[j]).any()


def test_disjoint_pairs_need_not_hold_the_smallest_set():
    sets = CandidateSets(["a|b|c", "a|b", "a|c|d", "b|e|f", "a|b"])
    assert disjoint_pairs(sets, np.zeros(5, dtype=int)) == [(2, 3)]
    assert disjoint_pairs(sets, np.array([0, 0, 0, 1, 1])) == []
    assert disjoint_pairs(sets, np.arange(5)) == []


@pytest.mark.parametrize(
    ("cell", "pairs"), [("c{0}", [[1, 2]]), ("z|c{0}", []), ("z|c{1}|d{2}", [])]
)
def test_many_different_sets_of_one_input_take_linear_time(tmp_path, cell, pairs):
    rows = [f"{cell.format(i, i % 300, i // 300)},1\n" for i in range(50_000)]
    (tmp_path / "a.csv").write_text("candidates,x\n" + "".join(rows))
    dataset = read_file(tmp_path / "a.csv")
    assert len(set(dataset.sets)) == 50_000
    began = time.perf_counter()
    duplicates = collect_facts(dataset)["duplicates"]
    assert time.perf_counter() - began < 10  # pairs of 50,000 sets would take minutes
    assert duplicates == {"rows": 50_000, "disjoint": len(pairs), "disjoint_ids": pairs}


def test_help_has_examples():
    assert "candidly inspect photos.csv" in run("--help").stdout
