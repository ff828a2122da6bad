"""The paper's figures: their numbers, and the command that draws them."""

import dataclasses
import json
import types

import numpy as np
import pytest

from candidly.bench import commands, figures, scales
from candidly.bench.grid import SWEEPS, Cell, Job, Row, sweep_rows, table_jobs
from candidly.bench.problems import digits, make_problem, reduced
from candidly.bench.results import export
from candidly.bench.runner import method_of, problem_of, run_jobs
from candidly.bench.scales import SCALES
from candidly.errors import InputError

TINY = dataclasses.replace(SCALES["digits"], name="tiny", changes={"epochs": 3}, seeds=1)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(scales.SCALES, "tiny", TINY)


def test_histograms_by_hand():
    logits = np.log([[0.5, 0.25, 0.25], [0.2, 0.4, 0.4]])
    candidates = np.array([[True, True, False], [True, True, True]])
    found = figures.loss_histograms(logits, candidates, np.array([0, 2]))
    wooden = found["wooden"]
    # Candidates of both rows, non-candidates of the first; a full set has none.
    finite = [np.log(2), np.log(2.5), np.log(4)]
    assert wooden["top"] == pytest.approx(np.quantile(finite, 0.99), abs=1e-4)
    assert wooden["normal"]["inside"][int(np.log(2) / wooden["top"] * 40)] == 1
    assert wooden["normal"]["outside"][-1] == 1  # what is beyond the last edge goes to the last bin
    assert sum(wooden["open"]["inside"]) == 1
    assert sum(wooden["open"]["outside"]) == sum(wooden["closed"]["inside"]) == 0
    mean = (np.log(2) + np.log(4)) / 2
    assert found["mean"]["normal"]["inside"][int(mean / found["mean"]["top"] * 40)] == 1


def test_examples_are_the_first_that_were_recognised():
    kinds = np.array([0, 1, 2, 0, 1, 2, 0])
    truth = types.SimpleNamespace(
        kinds=kinds, source=np.arange(7) + 10, labels=np.array([0, 1, -1, 1, 0, -1, 1])
    )
    groups = [
        np.array(mask, bool)
        for mask in ([0, 0, 0, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0])
    ]
    candidates = np.ones((7, 2), bool)
    candidates[3] = [True, False]
    found = figures.typical_examples(truth, candidates, groups, each=1)
    assert found == [
        {"kind": "normal", "row": 3, "source": 13, "label": 1, "candidates": [0]},
        {"kind": "closed", "row": 1, "source": 11, "label": 1, "candidates": [0, 1]},
    ]


def test_sweeps_hold_the_defaults_and_share_their_run():
    rows = sweep_rows(SCALES["paper"])
    assert list(rows) == ["alpha", "beta", "phi", "eta", "gamma"]
    assert [value for value, _ in rows["phi"]] == [1, 5, 10, 20, 30]
    assert [value for value, _ in rows["eta"]] == list(SWEEPS["eta"])
    cell = Cell("svhn", 0.1, 0.2, 0.4)
    default = Job(SCALES["paper"], cell, Row("ooc", "ooc"), 0).key
    for letter, entries in rows.items():
        keys = [Job(SCALES["paper"], cell, row, 0).key for _, row in entries]
        assert keys.count(default) == 1, letter
        assert len(set(keys)) == len(keys)


def test_gamma_is_a_multiple_of_the_true_shares():
    (half,) = [row for value, row in sweep_rows(TINY)["gamma"] if value == 0.5]
    job = Job(TINY, Cell("digits", 0.1, 0.2, 0.4), half, 0)
    problem = problem_of(job, None)
    rates = method_of(job, problem).settings["rates"]
    assert rates.open == pytest.approx(problem.rates.open / 2)
    assert rates.closed == pytest.approx(problem.rates.closed / 2)


def test_a_reduction_keeps_the_distances_and_is_fitted_without_the_test_rows():
    problem = make_problem(digits(0), q=0.1, tau1=0.2, tau2=0.4, seed=0)
    small = reduced(problem, 64)
    assert small.X.shape == (len(problem.X), 64)
    a, b = problem.X[:50] - problem.X[50:100], small.X[:50] - small.X[50:100]
    np.testing.assert_allclose((b**2).sum(1), (a**2).sum(1), rtol=1e-3)
    variances = small.X.var(0)
    assert (np.diff(variances) <= 1e-2).all()
    few = reduced(problem, 3)
    np.testing.assert_allclose(np.abs(few.X), np.abs(small.X[:, :3]), atol=1e-3)
    other = dataclasses.replace(problem, test=(problem.test[0] * 5, problem.test[1]))
    np.testing.assert_array_equal(reduced(other, 3).X, few.X)
    versions = dataclasses.replace(
        problem, X=np.stack([problem.X, problem.X + 1, problem.X - 1], axis=1)
    )
    np.testing.assert_allclose(reduced(versions, 3).X[:, 0], few.X, atol=1e-3)


def test_a_reduction_is_the_projection_on_the_eigenvectors_of_the_covariance():
    problem = make_problem(digits(0), q=0.1, tau1=0.2, tau2=0.4, seed=0)
    X = problem.X.astype(np.float64)
    centred = X - X.mean(0)
    axes = np.linalg.eigh(centred.T @ centred)[1][:, :-11:-1]
    found = reduced(problem, 10)
    for projected, rows in ((found.X, X), (found.test[0], problem.test[0])):
        expected = (rows - X.mean(0)) @ axes
        signs = np.sign((expected * projected).sum(0))
        np.testing.assert_allclose(projected, expected * signs, atol=1e-3)
    assert found.X.dtype == found.test[0].dtype == np.float32


@pytest.mark.parametrize(
    ("name", "suffix", "start"),
    [
        ("losses", "png", b"\x89PNG"),
        ("precision", "svg", b"<?xml"),
        ("params", "pdf", b"%PDF"),
        ("examples", "png", b"\x89PNG"),
    ],
)
def test_every_figure_is_drawn_from_runs_or_from_exported_results(tmp_path, name, suffix, start):
    file, runs = tmp_path / f"new/{name}.{suffix}", tmp_path / "runs"
    with pytest.raises(
        InputError, match=r"needs runs that are not there \(.* seed 0\): `--run` trains them first"
    ):
        commands.figure(name, "tiny", None, runs, None, None, file)
    commands.figure(name, "tiny", None, runs, None, None, file, train=True)
    assert file.read_bytes().startswith(start)
    file.unlink()
    export(tmp_path / "results.jsonl", runs)
    commands.figure(
        name, "tiny", None, tmp_path / "nothing", tmp_path / "results.jsonl", None, file
    )
    assert file.read_bytes().startswith(start)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_wrong_figures_are_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="figure 'x' is unknown"):
        commands.figure("x", "tiny", None, tmp_path, None, None, tmp_path / "x.png")
    with pytest.raises(InputError, match=r"ends in '\.bmp': expected one of \.png"):
        commands.figure("losses", "tiny", None, tmp_path, None, None, tmp_path / "x.bmp")
    many = dataclasses.replace(TINY, name="many", opens=("digits", "letters"))
    monkeypatch.setitem(scales.SCALES, "many", many)
    with pytest.raises(
        InputError, match="--open letters: at this scale, params are swept with digits alone"
    ):
        commands.figure("params", "many", "letters", tmp_path, None, None, tmp_path / "x.PNG")
    with pytest.raises(InputError, match="open set of this scale 'svhn' is unknown"):
        commands.figure("losses", "tiny", "svhn", tmp_path, None, None, tmp_path / "x.png")


def test_results_hold_what_figures_need(tmp_path):
    (job,) = table_jobs("table1", TINY, cells=["*q=0.3 tau=0.2*"], rows=["ooc, robust"])
    run_jobs([job], tmp_path, None)
    found = json.loads((tmp_path / job.key / "result.json").read_text())["figures"]
    assert {example["kind"] for example in found["examples"]} == {"normal", "closed", "open"}
    assert all(abs(sum(example["probs"]) - 1) < 1e-2 for example in found["examples"])
    assert len(found["losses"]["wooden"]["closed"]["outside"]) == figures.BINS
