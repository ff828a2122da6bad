"""`candidly fit`, `audit`, `report`, `predict` and `export`, each run as its own process."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from children import ended
from PIL import Image
from sklearn.datasets import load_digits

import candidly
from candidly.bench.problems import digits, make_problem
from candidly.data import read_file
from candidly.data.inputs import fit_inputs
from candidly.sets import CandidateSets
from candidly.storage.atomic import file_hash
from candidly.storage.store import writing
from candidly.workspace.jobs import Training, audit_file, corrected

CLASSES = ["ant", "bee", "cat", "<b>dog</b>", "emu", "fox"]
TABLES = ["SHA256SUMS", "audit.csv", "audit.parquet", "findings.json", "report.html", "run.json"]
FILES = sorted([*TABLES, "probs.npz"])


def run(*arguments, cwd=None, code=0):
    command = [sys.executable, "-m", "candidly", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def clusters(n, seed):
    """(features, classes): six round clusters, well apart."""
    rng = np.random.default_rng(seed)
    y = rng.integers(6, size=n)
    return 4 * np.eye(6)[y] + rng.normal(size=(n, 6)), y


def annotated(path, n=500):
    """Write the labels of three annotators: good, wide (two labels) and bad.

    The bad one takes half the cats for bees, and a fifth of the rows mislead all three.
    Returns the true classes, and in which rows the truth is outside.
    """
    X, y = clusters(n, 0)
    rng = np.random.default_rng(1)
    told = np.where(rng.random(n) < 0.2, (y + rng.integers(1, 6, size=n)) % 6, y)
    also = (told + rng.integers(1, 6, size=n)) % 6
    mixed_up = (told == 2) & (np.arange(n) % 2 == 1)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "good", "wide", "bad", "label", *(f"f{j}" for j in range(6))])
        for i in range(n):
            good, second = CLASSES[told[i]], CLASSES[also[i]]
            bad = CLASSES[1] if mixed_up[i] else good
            cells = [good if i % 5 else "", f"{good}|{second}", bad, CLASSES[y[i]]]
            writer.writerow([f"=row-{i}", *cells, *X[i].round(3)])
    return y, (told != y) & (also != y) & ~(mixed_up & (y == 1))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    y, outside = annotated(folder / "a.csv")
    # All three are misled together: `blind`, which counts no votes, believes the model.
    options = ("--labels", "good,wide,bad", "--folds", "3", "--process", "blind")
    done = run("fit", "a.csv", *options, "--out", "run", cwd=folder)
    return folder, done, y, outside


def test_fit_leaves_a_whole_run(fitted):
    folder, done, _, _ = fitted
    names = [*FILES, "arrays.npz", "estimator.json", "metrics.jsonl", "model"]
    assert sorted(path.name for path in (folder / "run").iterdir()) == sorted(names)
    assert sorted(path.name for path in folder.iterdir()) == ["a.csv", "run"]
    note = json.loads((folder / "run" / "run.json").read_text())
    assert note["config"]["method"] == "auto"
    estimator = json.loads((folder / "run" / "estimator.json").read_text())
    assert estimator["fitted"]["method_"] == "candid"
    assert note["source"]["sha256"] == file_hash(folder / "a.csv")
    assert {"candidly", "torch", "numpy"} <= note["versions"].keys()
    assert note["finished"] > note["started"]
    assert all(line.startswith("candidly: training: ") for line in done.stderr.splitlines())
    assert "\x1b" not in done.stdout


def test_fit_finds_the_rows_and_tells(fitted):
    folder, done, _, outside = fitted
    findings = json.loads((folder / "run" / "findings.json").read_text())
    quality = findings["evaluation"]
    assert quality["outside"] == pytest.approx(outside.mean())
    assert quality["accuracy"] > 0.9
    assert quality["ap_outside"] > 0.8
    assert (
        findings["shares"]["outside"]["low"]
        <= outside.mean()
        <= findings["shares"]["outside"]["high"]
    )
    assert "truth outside the candidates" in done.stdout
    assert f"average precision of finding them: {quality['ap_outside']:.3f}" in done.stdout
    assert "candidly export run --out FILE" in done.stdout
    worst = findings["suspects"][0]
    assert worst["preview"]["values"][0].keys() == {"name", "value", "z"}
    assert f"  {worst['id']}  " in done.stdout


def test_annotators_are_told_apart(fitted):
    folder, done, _, _ = fitted
    people = {
        entry["name"]: entry
        for entry in json.loads((folder / "run" / "findings.json").read_text())["annotators"]
    }
    assert people["good"]["answers"] == 400
    assert people["wide"]["width"] == 2
    assert people["bad"]["missed"][0]["label"] == "cat"
    # Of 70 cats, 47 are not called so: half of those that mislead nobody, and all that do.
    assert people["bad"]["missed"][0]["share"] == pytest.approx(47 / 70, abs=0.1)
    for entry in people.values():
        assert entry["outside"] == pytest.approx(entry["true_outside"], abs=0.07)
    assert "misses cat" in done.stdout


def test_people_who_are_misled_together_head_the_list(fitted):
    """The consensus sides with them, and the interval says that the model may be right."""
    folder, _, _, outside = fitted
    options = ("--labels", "good,wide,bad", "--truth", "label", "--json", "--out", "votes")
    done = run("audit", "a.csv", "--probs", "run/probs.npz", *options, cwd=folder)
    found = json.loads(done.stdout)
    shutil.rmtree(folder / "votes")
    assert found["evaluation"]["ap_outside"] > 0.95
    share = found["shares"]["outside"]
    assert share["low"] <= outside.mean() <= share["high"]
    assert any("sure of another class than all people name" in note for note in found["notes"])


def test_tables_hold_all_rows(fitted):
    folder = fitted[0]
    audit = pd.read_parquet(folder / "run" / "audit.parquet")
    columns = [
        "id",
        "verdict",
        "p_outside",
        "p_normal",
        "p_closed",
        "p_open",
        "suggested_label",
        "suggested_probability",
        "consensus_label",
        "consensus_probability",
        "majority_label",
    ]
    assert list(audit) == [*columns, "inside_loss", "outside_loss", "candidates"]
    assert len(audit) == 500
    assert audit[["p_normal", "p_closed", "p_open"]].sum(axis=1).tolist() == pytest.approx(
        [1] * 500
    )
    sets = read_file(folder / "a.csv", labels="good,wide,bad").sets
    assert [tuple(row) for row in audit["candidates"]] == list(sets)
    written = pd.read_csv(folder / "run" / "audit.csv")
    assert written["id"][3] == "'=row-3", "a spreadsheet does not run it"
    assert written["p_closed"].tolist() == pytest.approx(audit["p_closed"].tolist(), abs=1e-6)
    assert written["candidates"][0] == "|".join(sets[0])


def test_few_pixels_are_learnt():
    X, y = load_digits(n_class=6, return_X_y=True)
    images = (15.9 * X).astype(np.uint8).reshape(-1, 8, 8)
    sets, truth = candidly.corrupt(y[:400], 6, q=0.1, tau1=0.0, tau2=0.0, seed=0)
    model = Training(epochs=20).model().fit(images[truth.source], sets)
    assert len(model.history_) == 20
    assert model.score(images[400:], y[400:]) > 0.8


@pytest.mark.parametrize("method", ["ooc", "proden"])
def test_the_command_and_the_library_give_the_same_numbers(tmp_path, method):
    """Folds, epochs, neighbours and calibration have one owner, the estimator."""
    problem = make_problem(digits(0), q=0.3, tau1=0.2, tau2=0.4, seed=0)
    X = problem.X[:300] * np.linspace(1, 50, 64, dtype=np.float32)  # columns of different scales
    sets = problem.candidates[np.arange(300)]
    np.savez(tmp_path / "a.npz", X=X, S=sets.dense())
    run("fit", "a.npz", "--method", method, "--seed", 3, "--folds", 3, "--out", "run", cwd=tmp_path)
    model = candidly.PartialLabelClassifier(method, random_state=3)
    audit = model.fit_audit(X, sets, cv=3, ids=np.arange(1, 301))
    written = pd.read_parquet(tmp_path / "run" / "audit.parquet").drop(columns="candidates")
    assert written["verdict"].tolist() == audit.table["verdict"].tolist()
    for name in audit.table.columns.drop("verdict"):
        np.testing.assert_array_equal(
            written[name].astype(float), audit.table[name].astype(float), err_msg=name
        )
    findings = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert findings["shares"]["outside"]["share"] == audit.estimate.outside
    loaded = candidly.PartialLabelClassifier.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.known_energies_, model.known_energies_)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    alone = candidly.PartialLabelClassifier(method, random_state=3, calibrate=0)
    pd.testing.assert_frame_equal(
        alone.audit(X, sets, cv=3, ids=np.arange(1, 301)), audit.table, check_exact=True
    )
    np.testing.assert_array_equal(alone.fit(X, sets).predict_proba(X), model.predict_proba(X))


def test_the_command_and_the_library_learn_the_same_from_annotators(fitted):
    folder = fitted[0]
    _, X = fit_inputs(read_file(folder / "a.csv", labels="good,wide,bad"), encoder="none")
    table = pd.read_csv(folder / "a.csv")[["good", "wide", "bad"]]
    answers = candidly.Answers(table, classes=sorted(CLASSES))
    model = candidly.PartialLabelClassifier(random_state=0, calibrate=0).fit(X, answers)
    loaded = candidly.PartialLabelClassifier.load(folder / "run")
    assert (model.method_, loaded.method_) == ("candid", "candid")
    assert model.rates_ == loaded.rates_
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert "method candid" in (folder / "run" / "report.html").read_text()


def test_the_model_predicts_and_rejects(fitted):
    folder = fitted[0]
    X, y = clusters(200, 7)
    X[150:] = np.random.default_rng(0).normal(1, 1, size=(50, 6))  # like no class
    frame = pd.DataFrame(X, columns=[f"f{j}" for j in range(6)])
    frame.to_csv(folder / "new.csv", index=False)
    run("predict", "run", "new.csv", "--out", "plain.csv", cwd=folder)
    plain = pd.read_csv(folder / "plain.csv")
    assert list(plain) == ["id", "label", "probability"]
    assert (plain["label"][:150] == np.array(CLASSES)[y[:150]]).mean() > 0.9
    done = json.loads(
        run(
            "predict",
            "run",
            "new.csv",
            "--out",
            "p.parquet",
            "--reject",
            "0.1",
            "--json",
            cwd=folder,
        ).stdout
    )
    rejected = pd.read_parquet(folder / "p.parquet")["label"] == "none of the classes"
    assert done["labels"]["none of the classes"] == rejected.sum()
    assert rejected[150:].mean() > rejected[:150].mean()
    assert (
        "exists already"
        in run("predict", "run", "new.csv", "--out", "plain.csv", cwd=folder, code=2).stderr
    )
    frame.drop(columns="f2").to_csv(folder / "less.csv", index=False)
    message = run("predict", "run", "less.csv", "--out", "x.csv", cwd=folder, code=2).stderr
    assert message.startswith("candidly: less.csv: column 'f2' is unknown.")
    assert "model of run was trained with the column 'f2'" in message


def test_a_model_of_annotators_rows_predicts_such_rows(tmp_path):
    X, y = clusters(90, 0)
    names = ["ant", "bee", "cat", "dog", "emu", "fox"]
    rows = [
        f"{i},{who},{names[y[i]]},{','.join(map(str, X[i].round(3)))}"
        for i in range(90)
        for who in ("ann", "bob")
    ]
    (tmp_path / "long.csv").write_text("\n".join(["key,who,said,a,b,c,d,e,f", *rows]) + "\n")
    options = [
        "--labels",
        "said",
        "--annotator",
        "who",
        "--id",
        "key",
        "--folds",
        "2",
        "--epochs",
        "15",
    ]
    run("fit", "long.csv", *options, "--out", "run", cwd=tmp_path)
    done = json.loads(
        run("predict", "run", "long.csv", "--out", "p.csv", "--json", cwd=tmp_path).stdout
    )
    assert done["rows"] == 90
    found = pd.read_csv(tmp_path / "p.csv")
    assert found["id"].tolist() == list(range(90))
    assert (found["label"] == np.array(names)[y]).mean() > 0.9


def test_export_corrects_the_sets(fitted):
    folder, _, y, _ = fitted
    before = (folder / "a.csv").read_bytes()
    audit = pd.read_parquet(folder / "run" / "audit.parquet")
    closed, gone = audit["verdict"] == "closed", audit["verdict"] == "open"
    assert closed.sum() > 10
    told = run("export", "run", "--out", "better.csv", cwd=folder).stdout
    assert f"{closed.sum()} of them corrected, {gone.sum()} left out" in told
    better = read_file(folder / "better.csv").sets
    old = read_file(folder / "a.csv", labels="good,wide,bad").sets
    assert len(better) == 500 - gone.sum()
    kept = np.flatnonzero(~gone)
    for labels, row in zip(better, kept, strict=True):
        extra = {audit["suggested_label"][row]} if closed[row] else set()
        assert {*labels} == {*old[int(row)]} | extra
    written = pd.read_csv(folder / "better.csv")
    assert list(written)[-3:] == ["candidates", "consensus_label", "consensus_probability"]
    kept_rows = audit[~gone]
    labels = kept_rows["consensus_label"].astype(object).fillna("").tolist()
    assert written["consensus_label"].fillna("").tolist() == labels
    assert written["consensus_probability"].tolist() == pytest.approx(
        kept_rows["consensus_probability"].tolist(), abs=1e-6
    )
    again = read_file(folder / "better.csv")
    assert list(again.inputs) == [f"f{j}" for j in range(6)]
    truth = np.array(CLASSES)[y]
    hits = [truth[row] in labels for labels, row in zip(better, kept, strict=True)]
    hits_before = [label in labels for label, labels in zip(truth, old, strict=True)]
    assert np.mean(hits) > np.mean(hits_before) + 0.05
    assert (folder / "a.csv").read_bytes() == before
    assert "never overwritten" in run("export", "run", "--out", "a.csv", cwd=folder, code=2).stderr


def test_export_refuses_another_input(fitted, tmp_path):
    folder = fitted[0]
    (tmp_path / "b.csv").write_text((folder / "a.csv").read_text().replace("ant", "aunt", 1))
    message = run(
        "export", folder / "run", "--input", tmp_path / "b.csv", "--out", tmp_path / "c.csv", code=2
    ).stderr
    assert "b.csv is not the file that" in message
    assert "--input FILE" in message
    wrong = run("export", folder / "run", "--out", tmp_path / "c.npz", code=2).stderr
    assert "c.npz" in wrong
    assert "is of the format csv" in wrong
    assert "Call it 'c.csv'" in wrong
    assert not (tmp_path / "c.npz").exists()
    assert not (tmp_path / "c.csv").exists()


def test_corrected_sets():
    sets = CandidateSets([["a"], ["a", "b"], ["c"]], classes=["a", "b", "c"])
    suggested, where = np.array([2, -1, 0]), np.array([True, False, True])
    assert list(corrected(sets, suggested, where)) == [("a", "c"), ("a", "b"), ("a", "c")]
    assert list(corrected(sets, suggested, where, replace=True)) == [("c",), ("a", "b"), ("a",)]


# ---- audit


def probs_for(folder, n=1500):
    """A file, and probabilities of a model that is surer of the rows that it gets right."""
    y, outside = annotated(folder / "a.csv", n)
    logits = 6 * np.eye(6)[y] + 2 * np.random.default_rng(2).normal(size=(n, 6))
    P = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.save(folder / "p.npy", P[:, np.argsort(CLASSES)])
    return outside


def test_audit_needs_no_training_and_no_torch(tmp_path):
    outside = probs_for(tmp_path)
    code = (
        "import sys; from candidly.cli.app import app\n"
        "try: app(sys.argv[1:])\n"
        "except SystemExit as end: print('torch' in sys.modules, end.code, file=sys.stderr)"
    )
    # All three are misled together: processes that take answers one by one believe them.
    options = ["--labels", "good,wide,bad", "--process", "blind", "--fail-above", "0.02", "--json"]
    files = ["a.csv", "--probs", "p.npy", "--out", "run"]
    command = [sys.executable, "-c", code, "audit", *files, *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stderr.splitlines()[-1] == "False 1"
    assert "of the rows have their truth outside their candidates, more than 2.0%" in done.stderr
    found = json.loads(done.stdout)
    data = read_file(tmp_path / "a.csv", labels="good,wide,bad")
    expected = candidly.audit(
        data.sets, np.load(tmp_path / "p.npy"), answers=data.answers, process="blind"
    )
    written = pd.read_parquet(tmp_path / "run" / "audit.parquet")
    assert written["p_closed"].tolist() == expected["p_closed"].tolist(), (
        "the audit is that of the library"
    )
    assert found["evaluation"]["ap_outside"] > 0.7
    assert found["shares"]["outside"]["low"] <= outside.mean() <= found["shares"]["outside"]["high"]
    assert found["run"] == "run"
    assert "points" not in found
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == FILES
    assert (
        "has no model"
        in run("predict", "run", "a.csv", "--out", "x.csv", cwd=tmp_path, code=2).stderr
    )
    page = (tmp_path / "run" / "report.html").read_text()
    assert str(run("report", "run", "--no-rows", cwd=tmp_path).stdout).strip() == "run/report.html"
    private = (tmp_path / "run" / "report.html").read_text()
    assert "=row-1" in page
    assert "=row-1" not in private
    assert ">good<" in page
    assert ">good<" not in private
    assert run("report", "run", cwd=tmp_path, code=0).stdout == "run/report.html\n"
    assert (tmp_path / "run" / "report.html").read_text() == page, "the findings were kept"
    assert "<dt>Outputs</dt><dd>p.npy of another model, read as probabilities</dd>" in page
    told = json.loads(run("report", "run", "--json", cwd=tmp_path).stdout)
    assert told == {"run": "run", "report": "run/report.html"}
    again = run(*command[3:], cwd=tmp_path, code=2).stderr
    assert "run exists already" in again


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_no_rows_holds_for_everything_but_the_tables(tmp_path, form):
    probs_for(tmp_path, 200)
    options = ["--labels", "good,wide,bad", "--probs", "p.npy", "--no-rows", "--out", "run", *form]
    told = run("audit", "a.csv", *options, cwd=tmp_path).stdout
    assert ("p.npy of another model, read as probabilities" in told) == (not form)
    run("report", "run", cwd=tmp_path)
    written = [(tmp_path / "run" / name).read_text() for name in ("findings.json", "report.html")]
    for text in (told, *written):
        assert "row-1" not in text
        assert "good" not in text
        assert "annotator 1" in text
    assert "Rows to look at" not in written[1]
    findings = json.loads(written[0])
    assert findings["suspects"] == findings["open_suspects"] == []
    assert findings["points"][0].keys() == {
        "inside",
        "outside",
        "verdict",
        "probability",
        "p_normal",
        "p_closed",
        "p_open",
    }
    assert "row-1" in (tmp_path / "run" / "audit.csv").read_text(), "the results stay"
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == TABLES


def test_the_probabilities_of_a_run_can_be_audited(fitted):
    """They are those of the nets that did not see the row, so that anyone can check."""
    folder = fitted[0]
    with np.load(folder / "run" / "probs.npz", allow_pickle=False) as file:
        probs, classes, ids = file["probs"], file["classes"], file["ids"]
    assert (probs.dtype, probs.shape) == (np.float16, (500, 6))
    assert classes.tolist() == sorted(CLASSES)
    assert ids.tolist()[:2] == ["=row-0", "=row-1"]
    data = read_file(folder / "a.csv", labels="good,wide,bad")
    first = pd.read_parquet(folder / "run" / "audit.parquet")
    best = np.take_along_axis(probs, data.sets.indices[data.sets.indptr[:-1]][:, None], axis=1)
    assert (best <= np.exp(-first["inside_loss"].to_numpy()[:, None]) + 2e-3).all()
    options = ("--labels", "good,wide,bad", "--process", "blind", "--out", "checked")
    run("audit", "a.csv", "--probs", "run/probs.npz", *options, cwd=folder)
    second = pd.read_parquet(folder / "checked" / "audit.parquet")
    assert (first["verdict"] == second["verdict"]).mean() > 0.97, "energy and neighbours differ"
    exact = candidly.Audit(data.sets, probs.astype(float), process="blind").table
    assert second["verdict"].tolist() == exact["verdict"].tolist()
    finite = np.isfinite(second["inside_loss"]) & (second["inside_loss"] < 5)
    np.testing.assert_allclose(
        second["inside_loss"][finite], first["inside_loss"][finite], atol=1e-2
    )
    sums = (folder / "run" / "SHA256SUMS").read_text()
    assert f"{file_hash(folder / 'run' / 'probs.npz')}  probs.npz\n" in sums


def test_large_probabilities_are_cut_with_a_remark(tmp_path, monkeypatch):
    monkeypatch.setattr("candidly.data.outputs.MAX_BYTES", 2000)
    probs_for(tmp_path, 200)
    reader = {"labels": "good,wide,bad"}
    found = audit_file(tmp_path / "a.csv", tmp_path / "p.npy", tmp_path / "run", reader=reader)
    assert found["remarks"] == [
        "probs.npz has no ids, which are too long: rows are in order and holds the 2 most likely "
        "of 6 classes per row, to save space."
    ]
    with np.load(tmp_path / "run" / "probs.npz") as file:
        assert file["labels"].shape == file["probs"].shape == (200, 2)
        best = np.load(tmp_path / "p.npy").argmax(axis=1)
        assert file["labels"][:, 0].tolist() == best.tolist()


def test_an_export_keeps_columns_of_an_earlier_one(tmp_path):
    probs_for(tmp_path, 200)
    options = ["--labels", "good,wide,bad", "--probs", "p.npy", "--out", "run"]
    run("audit", "a.csv", *options, cwd=tmp_path)
    run("export", "run", "--out", "b.csv", "--keep-open", cwd=tmp_path)
    told = run("audit", "b.csv", "--probs", "p.npy", "--out", "run2", "--json", cwd=tmp_path)
    assert json.loads(told.stdout)["remarks"][0].startswith("left out: 'consensus_label', ")
    done = run("export", "run2", "--out", "c.csv", "--keep-open", cwd=tmp_path).stdout
    assert (
        "b.csv has a column 'consensus_label' already: the new one is 'consensus_label_2'." in done
    )
    written = pd.read_csv(tmp_path / "c.csv")
    earlier = pd.read_csv(tmp_path / "b.csv")
    assert written["consensus_label"].equals(earlier["consensus_label"])
    audit = pd.read_parquet(tmp_path / "run2" / "audit.parquet")
    labels = audit["consensus_label"].astype(object).fillna("").tolist()
    assert written["consensus_label_2"].fillna("").tolist() == labels


def test_an_audit_without_the_new_columns_is_refused(tmp_path):
    probs_for(tmp_path, 120)
    run("audit", "a.csv", "--labels", "wide", "--probs", "p.npy", "--out", "run", cwd=tmp_path)
    path = tmp_path / "run" / "audit.parquet"
    old = file_hash(path)
    pd.read_parquet(path).drop(columns="consensus_label").to_parquet(path)
    sums = tmp_path / "run" / "SHA256SUMS"
    sums.write_text(sums.read_text().replace(old, file_hash(path)))
    message = run("export", "run", "--out", "b.csv", cwd=tmp_path, code=2).stderr
    assert "audit.parquet has no column 'consensus_label'" in message
    assert "Make the run again." in message


# ---- processes and gold


def test_the_process_can_be_chosen(tmp_path):
    probs_for(tmp_path, 300)
    files = ["a.csv", "--labels", "good,wide,bad", "--probs", "p.npy", "--json"]
    data = read_file(tmp_path / "a.csv", labels="good,wide,bad")
    for process in ("blind", "annotators"):
        options = ("--process", process, "--out", process)
        found = json.loads(run("audit", *files, *options, cwd=tmp_path).stdout)
        assert found["process"]["name"] == process
        expected = candidly.audit(
            data.sets, np.load(tmp_path / "p.npy"), answers=data.answers, process=process
        )
        written = pd.read_parquet(tmp_path / process / "audit.parquet")
        assert written["p_outside"].tolist() == expected["p_outside"].tolist()
        note = json.loads((tmp_path / process / "run.json").read_text())
        assert note["config"]["process"] == process


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--process", "confuson"], "--process 'confuson' is unknown. Did you mean 'confusion'?"),
        (
            ["--labels", "wide", "--process", "annotators"],
            "--process annotators needs to know who said what, but a.csv has one column of "
            "candidates and no annotators: name the columns of several annotators by --labels A,B",
        ),
        (
            ["--labels", "all", "--process", "union"],
            "--process union explains sets of at most 6 candidates, but a.csv has one of 7: use "
            "--process auto.",
        ),
    ],
)
@pytest.mark.parametrize("command", ["fit", "audit"])
def test_a_process_that_cannot_be_is_refused_at_once(tmp_path, command, options, words):
    annotated(tmp_path / "a.csv", 120)
    table = pd.read_csv(tmp_path / "a.csv").assign(all="|".join([*CLASSES, "gnu"]))
    table.to_csv(tmp_path / "a.csv", index=False)
    probs = [] if command == "fit" else ["--probs", "p.npy"]
    np.save(tmp_path / "p.npy", np.full((120, 6), 1 / 6))
    done = run(command, "a.csv", *probs, *options, "--out", "run", cwd=tmp_path, code=2)
    assert words in done.stderr
    assert not (tmp_path / "run").exists()


def test_gold_rows_are_certain_and_not_evaluated(tmp_path):
    probs_for(tmp_path, 300)
    table = pd.read_csv(tmp_path / "a.csv")
    table["checked"] = table["label"].where(table.index < 50)
    table.loc[50:59, "checked"] = "none of the classes"
    table.to_csv(tmp_path / "a.csv", index=False)
    files = ["a.csv", "--labels", "good,wide,bad", "--gold", "checked", "--probs", "p.npy"]
    found = json.loads(run("audit", *files, "--out", "run", "--json", cwd=tmp_path).stdout)
    assert found["evaluation"]["known"] == 240
    assert (
        "60 row(s) have a gold label: it is taken as certain, and not evaluated."
        in (found["remarks"])
    )
    audit = pd.read_parquet(tmp_path / "run" / "audit.parquet")
    assert audit["consensus_label"][:50].tolist() == table["label"][:50].tolist()
    assert (audit["consensus_probability"][:60] == 1).all()
    assert (audit["verdict"][50:60] == "open").all()
    inside = [
        label in row for label, row in zip(table["label"][:50], audit["candidates"], strict=False)
    ]
    assert (audit["verdict"][:50] == np.where(inside, "normal", "closed")).all()
    done = run("export", "run", "--out", "b.csv", cwd=tmp_path)
    assert "checked" in pd.read_csv(tmp_path / "b.csv"), done.stdout


def test_gold_labels_may_be_numbers(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=200)
    said = np.where(rng.random(200) < 0.1, (y + 1) % 3, y)
    sure = [str(7 + label) if i < 20 else "-1" if i < 25 else "" for i, label in enumerate(y)]
    rows = [f"{7 + a},{b},{i}" for i, (a, b) in enumerate(zip(said, sure, strict=True))]
    (tmp_path / "a.csv").write_text("candidates,sure,x\n" + "\n".join(rows) + "\n")
    np.save(tmp_path / "p.npy", 0.85 * np.eye(3)[y] + 0.05)
    run("audit", "a.csv", "--gold", "sure", "--probs", "p.npy", "--out", "run", cwd=tmp_path)
    audit = pd.read_parquet(tmp_path / "run" / "audit.parquet")
    assert audit["consensus_label"][:20].tolist() == (7 + y[:20]).tolist()
    assert (audit["verdict"][20:25] == "open").all()


def test_fit_takes_gold_labels_and_a_process(tmp_path):
    y, _ = annotated(tmp_path / "a.csv", 150)
    table = pd.read_csv(tmp_path / "a.csv")
    table["checked"] = table["label"].where(table.index < 30)
    table.to_csv(tmp_path / "a.csv", index=False)
    options = ["--labels", "good,wide,bad", "--gold", "checked", "--process", "confusion"]
    brief = ["--epochs", "8", "--folds", "2", "--out", "run", "--json"]
    found = json.loads(run("fit", "a.csv", *options, *brief, cwd=tmp_path).stdout)
    assert found["process"]["name"] == "confusion"
    assert found["evaluation"]["known"] == 120
    audit = pd.read_parquet(tmp_path / "run" / "audit.parquet")
    assert audit["consensus_label"][:30].tolist() == [CLASSES[label] for label in y[:30]]
    assert (audit["consensus_probability"][:30] == 1).all()
    note = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "checked" not in note["source"]["options"]["features"]


# ---- a model at chance level


def test_a_model_that_knows_nothing_gives_no_verdicts(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.choice(["ant", "bee", "cat", "dog"], size=300)
    lines = [f"r{i},{label},{i}" for i, label in enumerate(labels)]
    (tmp_path / "a.csv").write_text("id,candidates,x\n" + "\n".join(lines) + "\n")
    np.save(tmp_path / "p.npy", rng.dirichlet(np.ones(4), size=300))
    files = ["a.csv", "--probs", "p.npy"]
    told = run("audit", *files, "--out", "run", cwd=tmp_path).stdout
    assert "The model knows no more than chance: nothing can be said about single rows." in told
    reason = "The model's best class is a candidate in 24% of the rows; any class would be in 25%"
    assert reason in " ".join(told.split())
    assert "truth outside the candidates" not in told
    assert "candidly export" not in told
    audit = pd.read_parquet(tmp_path / "run" / "audit.parquet")
    assert len(audit) == 300
    assert audit[["verdict", "p_outside", "suggested_label", "consensus_label"]].isna().all().all()
    assert pd.read_csv(tmp_path / "run" / "audit.csv")["verdict"].isna().all()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == FILES
    refused = run("export", "run", "--out", "b.csv", cwd=tmp_path, code=2).stderr
    assert "run has nothing to export. The model knows no more than chance, so there are no " in (
        refused
    )
    assert reason in refused
    assert "run `candidly audit` again" in refused
    assert not (tmp_path / "b.csv").exists()
    gate = ["--out", "run2", "--fail-above", "0.5", "--json"]
    failed = run("audit", *files, *gate, cwd=tmp_path, code=2)
    assert "--fail-above cannot be checked. The model knows no more than chance" in failed.stderr
    assert reason in failed.stderr
    found = json.loads(failed.stdout)
    assert (found["reliable"], found["shares"]) == (False, None)
    assert reason in found["explanation"]


def test_export_says_where_images_are_found(tmp_path):
    for name in "ab":
        Image.new("L", (4, 4), ord(name)).save(tmp_path / f"{name}.png")
    (tmp_path / "a.csv").write_text("image,candidates\na.png,cat\nb.png,dog\n")
    np.save(tmp_path / "p.npy", [[0.9, 0.1], [0.1, 0.9]])
    run("audit", "a.csv", "--probs", "p.npy", "--out", "run", cwd=tmp_path)
    (tmp_path / "sub").mkdir()
    told = run("export", "run", "--out", "sub/b.csv", "--keep-open", cwd=tmp_path).stdout
    assert (
        f"b.csv names its images relative to {tmp_path}: move the file there to read it again."
        in told
    )
    (tmp_path / "sub" / "b.csv").rename(tmp_path / "moved.csv")
    assert list(read_file(tmp_path / "moved.csv").sets) == [("cat",), ("dog",)]
    done = json.loads(
        run("export", "run", "--out", "b.csv", "--keep-open", "--json", cwd=tmp_path).stdout
    )
    assert (done["rows"], done["notes"]) == (2, [])


def label_studio(path, n=120):
    """Tasks with text and three annotators; the second and third err in every fifth task.

    Both err in other tasks: of two who make the same errors, an audit believes both.
    """
    words = {
        "sun": "bright warm summer beach",
        "rain": "wet grey umbrella cloud",
        "snow": "cold white ski winter",
    }
    names, rng, tasks = [*words], np.random.default_rng(0), []
    for i in range(n):
        y = i % 3
        text = " ".join(rng.choice(words[names[y]].split(), 6))
        said = [
            names[y],
            names[(y + 1) % 3] if i % 5 == 0 else names[y],
            names[(y + 1) % 3] if i % 5 == 1 else names[y],
        ]
        if i % 15 == 0:
            said = [said[1]] * 3  # the truth is outside
        annotations = [
            {"completed_by": k, "result": [_choice(label)]} for k, label in enumerate(said, 1)
        ]
        tasks.append({"id": 1000 + i, "data": {"text": text}, "annotations": annotations})
    path.write_text(json.dumps(tasks))


def _choice(label):
    return {
        "from_name": "weather",
        "to_name": "text",
        "type": "choices",
        "value": {"choices": [label]},
    }


def test_label_studio_gets_predictions_with_scores(tmp_path):
    label_studio(tmp_path / "tasks.json")
    run("fit", "tasks.json", "--out", "run", "--epochs", "10", "--folds", "2", cwd=tmp_path)
    run("export", "run", "--out", "better.json", cwd=tmp_path)
    audit = pd.read_parquet(tmp_path / "run" / "audit.parquet").set_index("id")
    tasks = json.loads((tmp_path / "better.json").read_text())
    assert len(tasks) == 120
    for task in tasks:
        entry = audit.loc[str(task["id"]) if audit.index.dtype == object else task["id"]]
        if pd.isna(entry["consensus_label"]):
            assert "predictions" not in task
            continue
        (prediction,) = task["predictions"]
        assert prediction["score"] == pytest.approx(entry["consensus_probability"], abs=1e-5)
        assert prediction["result"][0]["value"]["choices"] == [entry["consensus_label"]]
        assert len(task["annotations"]) == 3
    people = json.loads((tmp_path / "run" / "findings.json").read_text())["annotators"]
    assert [entry["name"] for entry in people][-1] == "1"


# ---- what goes wrong


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (
            "candidates,x\ncat,1\n,2\n",
            [],
            "a.csv, row 2 (the header not counted): the candidate set is empty",
        ),
        ("candidates,x\ncat,1\ncat,2\n", [], "a.csv: the only class is 'cat'"),
        ("candidates\ncat\ndog\n", [], "holds labels but nothing to learn from"),
        (
            "candidates,x\ncat,1\ndog,2\n",
            [],
            "a.csv holds 2 rows, too few for 5 folds: use --folds 2",
        ),
        ("candidates,x\ncat|dog,1\n", [], "a.csv holds 1 row: expected at least 2"),
        (
            "candidates,x\ncat,1\ndog,2\n",
            ["--folds", "2", "--encoder", "resnet"],
            "encoder 'resnet' is unknown",
        ),
        ("candidates,x\ncat,1\ndog,2\n", ["--method", "podren"], "Did you mean 'proden'?"),
        ("candidates,x\ncat,1\ndog,2\n", ["--set", "longset=1"], "Did you mean 'longest'?"),
        (
            "candidates,x\ncat,1\ndog,2\n",
            ["--epochs", "many"],
            "'many' is neither a number nor auto",
        ),
        ("candidates,image\ncat,../x.png\ndog,y.png\n", [], "'../x.png' leads out of"),
        (
            "candidates,image\ncat,a.csv\ndog,a.csv\n",
            ["--folds", "2"],
            "a.csv, row 1 (the header not counted): "
            "{folder}/a.csv is not an image that can be read",
        ),
    ],
)
def test_bad_input_leaves_nothing(tmp_path, content, options, words):
    (tmp_path / "a.csv").write_text(content)
    done = run("fit", "a.csv", "--out", "run", *options, cwd=tmp_path, code=2)
    assert words.format(folder=tmp_path.resolve()) in done.stderr
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_bad_outputs_leave_nothing(tmp_path):
    probs_for(tmp_path)
    P = np.load(tmp_path / "p.npy")
    P[7, 2] = np.nan
    np.save(tmp_path / "p.npy", P)
    files = ["a.csv", "--labels", "good,wide,bad", "--probs", "p.npy"]
    done = run("audit", *files, "--out", "run", cwd=tmp_path, code=2)
    assert "p.npy, row 8 (counting from 1), column 3: nan is not a finite float32" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "p.npy"]


def test_ctrl_c_leaves_nothing(tmp_path):
    annotated(tmp_path / "a.csv")
    command = [
        sys.executable,
        "-m",
        "candidly",
        "fit",
        "a.csv",
        "--labels",
        "wide",
        "--epochs",
        "100000",
        "--out",
        "run",
    ]
    child = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    maps = Path(f"/proc/{child.pid}/maps")
    deadline = time.time() + 60
    while time.time() < deadline and "libtorch" not in maps.read_text() and child.poll() is None:
        time.sleep(0.05)
    time.sleep(8)  # a signal in the middle of an import may get lost in a library
    child.send_signal(signal.SIGINT)
    said = ended(child)[1]
    assert child.returncode == 130, said
    assert said == "candidly: stopped; the same command starts it again.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_what_is_no_run_is_not_taken_for_one(tmp_path):
    assert "SHA256SUMS cannot be read" in run("report", tmp_path, code=2).stderr
    with writing(tmp_path / "other", {"job": "bench"}):
        pass
    assert (
        "was not written by `candidly fit`"
        in run("export", tmp_path / "other", "--out", "x.csv", code=2).stderr
    )


@pytest.mark.parametrize("command", ["fit", "audit", "report", "predict", "export"])
def test_help_has_examples(command):
    assert f"  candidly {command} " in run(command, "--help").stdout
