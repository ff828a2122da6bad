"""The scikit-learn estimator: its checks, all forms of input, rejection, audit and saving."""

import dataclasses
import math
import pickle
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.decomposition import PCA
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from candidly import CandidateSets, PartialLabelClassifier, Rates, corrupt
from candidly.bench.problems import digits, make_problem
from candidly.errors import InputError
from candidly.methods import METHODS
from candidly.methods.base import defaults
from candidly.tensors.mapped import MappedRows
from candidly.tensors.nets import Linear
from candidly.training import estimator


@parametrize_with_checks([PartialLabelClassifier(epochs=30)])  # none is expected to fail
def test_scikit_learn_checks(estimator, check):
    check(estimator)


# ---- digits: 0-5 known, a fifth of them closed-set
# Half of 6-9 is among the training rows; the other half is to be rejected.


@pytest.fixture(scope="module")
def problem():
    source = digits(seed=0)
    rng = np.random.default_rng(0).permutation(len(source.pool))
    unknown, pool = source.pool[rng[: len(rng) // 2]], source.pool[rng[len(rng) // 2 :]]
    source = dataclasses.replace(source, pool=pool)
    return make_problem(source, q=0.1, tau1=0.2, tau2=0.4, seed=0), unknown


@pytest.fixture(scope="module")
def fitted(problem):
    return PartialLabelClassifier(random_state=0, calibrate=3).fit(
        problem[0].X, problem[0].candidates
    )


def test_it_learns_digits_where_proden_learns_wrong_sets(problem, fitted):
    data = problem[0]
    proden = PartialLabelClassifier("proden", random_state=0, calibrate=0).fit(
        data.X, data.candidates
    )
    assert fitted.score(*data.test) > 0.93
    assert proden.score(*data.test) < 0.90
    assert proden.selection_ is None
    assert proden.rates_ is None


def test_the_rates_and_the_rows_are_found(problem, fitted):
    data = problem[0]
    assert fitted.rates_.closed == pytest.approx(data.rates.closed, abs=0.06)
    assert fitted.rates_.open == pytest.approx(data.rates.open, abs=0.06)
    closed, opened = (data.truth.kinds == kind for kind in (1, 2))
    assert closed[fitted.selection_.closed].mean() > 0.75
    assert opened[fitted.selection_.open].mean() > 0.7
    last = fitted.history_[-1]
    assert (last["rate_closed"], last["rate_open"]) == (fitted.rates_.closed, fitted.rates_.open)
    assert "rate_closed" not in fitted.history_[0]  # the warm-up


@pytest.mark.parametrize("reject", [0.02, 0.05, 0.1])
def test_it_rejects_about_as_many_known_inputs_as_it_was_asked_to(problem, fitted, reject):
    (X, _), unknown = problem[0].test, problem[1]
    lost = np.mean([label is None for label in fitted.predict(X, reject=reject)])
    spread = 2 * math.sqrt(reject * (1 - reject) / len(X))
    assert reject / 2 - spread < lost < 1.5 * reject + spread
    assert (
        np.mean([label is None for label in fitted.predict(unknown, reject=reject)])
        > 0.5 + 3 * reject
    )


def test_the_limits_of_rejection(problem, fitted):
    X = problem[0].test[0]
    assert fitted.predict(X, reject=0).tolist() == fitted.predict(X).tolist()
    assert set(fitted.predict(X, reject=1)) == {None}
    kept = [label is not None for label in fitted.predict(X, reject=0.05)]
    assert fitted.predict(X, reject=0.05)[kept].tolist() == fitted.predict(X)[kept].tolist()


@pytest.mark.parametrize(("unknown", "kind"), [(-1, "i"), ("?", "O"), (None, "O")])
def test_the_unknown_label_keeps_integers_integers(problem, fitted, unknown, kind):
    labels = clone(fitted).set_params(unknown_label=unknown)
    vars(labels).update({k: v for k, v in vars(fitted).items() if k.endswith("_")})
    found = labels.predict(problem[1], reject=0.05)
    assert found.dtype.kind == kind
    assert set(found.tolist()) <= {0, 1, 2, 3, 4, 5, unknown}


def test_what_is_saved_comes_back(problem, fitted, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = PartialLabelClassifier.load(tmp_path / "model")
    X = problem[0].test[0]
    np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    np.testing.assert_array_equal(loaded.predict(X, reject=0.05), fitted.predict(X, reject=0.05))
    np.testing.assert_array_equal(loaded.selection_, fitted.selection_)
    assert loaded.get_params() == fitted.get_params()
    assert (loaded.rates_, loaded.history_) == (fitted.rates_, fitted.history_)
    assert loaded.n_features_in_ == 64
    files = {path.name for path in (tmp_path / "model").rglob("*") if path.is_file()}
    assert files == {
        "SHA256SUMS",
        "run.json",
        "metrics.jsonl",
        "arrays.npz",
        "estimator.json",
        "model.json",
        "model.safetensors",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["model"]  # nothing temporary is left


def test_a_training_that_is_saved_is_not_written_over_by_mistake(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    with pytest.raises(InputError, match="exists already"):
        fitted.save(tmp_path / "model")
    fitted.save(tmp_path / "model", replace=True)
    with pytest.raises(InputError, match=r"SHA256SUMS cannot be read: .* is not a finished run"):
        PartialLabelClassifier.load(tmp_path)


# ---- iris: small and quick


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])
    sets, truth = corrupt(y, 3, q=0.3, tau1=0.1, seed=0)
    return X[truth.source], CandidateSets(sets, classes=names), names[truth.labels]


def quick(*args, **settings):
    options = {"epochs": 20, "calibrate": 0, "random_state": 0, "rates": Rates(0.1, 0.0)}
    return PartialLabelClassifier(*args, **{**options, **settings})


def test_candidates_in_any_form_give_the_same_model(iris):
    X, sets, _ = iris
    expected = quick().fit(X, sets)
    frame = pd.DataFrame(sets.dense(), columns=sets.classes)
    for form in (
        list(sets),
        frame,
        frame.astype(int),
        ["|".join(row) for row in sets],
        pd.Series(list(sets)),
    ):
        found = quick().fit(X, form)
        assert found.classes_.tolist() == expected.classes_.tolist()
        np.testing.assert_array_equal(found.predict(X), expected.predict(X))
    for matrix in (sets.dense(), sets.to_csr(), sets.dense().astype(int)):
        found = quick().fit(X, matrix)
        assert found.classes_.tolist() == [0, 1, 2]
        np.testing.assert_array_equal(expected.classes_[found.predict(X)], expected.predict(X))


def test_one_label_a_row_is_a_set_of_one(iris):
    X, _, y = iris
    plain = quick().fit(X, y)
    assert plain.score(X, y) > 0.85
    np.testing.assert_array_equal(
        plain.predict_proba(X), quick().fit(X, [[label] for label in y]).predict_proba(X)
    )
    with pytest.warns(DataConversionWarning, match="column-vector"):
        column = quick().fit(X, y[:, None])
    np.testing.assert_array_equal(plain.predict_proba(X), column.predict_proba(X))


def test_sparse_tables_equal_dense_ones(iris):
    X, sets, _ = iris
    dense = quick().fit(X, sets).predict_proba(X)
    for make in (sparse.csr_matrix, sparse.coo_array):
        np.testing.assert_array_equal(quick().fit(make(X), sets).predict_proba(make(X)), dense)


def test_data_frames_keep_their_names(iris, tmp_path):
    X, sets, _ = iris
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    found = quick().fit(frame, sets)
    assert found.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    found.save(tmp_path / "model")
    loaded = PartialLabelClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(frame), quick().fit(X, sets).predict(X))
    with pytest.raises(InputError, match="feature names should match"):
        loaded.predict(frame[["b", "a", "c", "d"]])


def test_images_train_a_convolutional_net(tmp_path):
    X, y = load_digits(return_X_y=True)
    images = (X.reshape(-1, 8, 8) * 15).astype(np.uint8)
    sets, truth = corrupt(y[:500], 10, q=0.1, seed=0)
    found = quick(epochs=12, rates=Rates(0.0, 0.0)).fit(images[truth.source], sets)
    assert found.score(images[500:900], y[500:900]) > 0.8
    assert not hasattr(found, "n_features_in_")
    np.testing.assert_array_equal(found.predict(images[:9, :, :, None]), found.predict(images[:9]))
    found.save(tmp_path / "model")
    np.testing.assert_array_equal(
        PartialLabelClassifier.load(tmp_path / "model").predict_proba(images[:9]),
        found.predict_proba(images[:9]),
    )
    with pytest.raises(InputError, match=r"shape \(8, 7\); the model was trained on \(8, 8, 1\)"):
        found.predict(images[:9, :, 1:])
    with pytest.raises(InputError, match="float64: expected uint8"):
        quick().fit(images[:9] / 255, y[:9])


@pytest.mark.parametrize("name", METHODS)
def test_all_methods_fit_with_their_own_settings(name, iris):
    X, sets, y = iris
    settings = {"ooc": {"alpha": 0.5}, "pico": {"queue_size": 40}, "lws": {"leverage": 2.0}}.get(
        name, {}
    )
    found = quick(name, **settings).fit(X, sets)
    assert found.score(X, y) > 0.6
    assert clone(found).get_params() == found.get_params()


def test_settings_of_methods_have_names_of_their_own():
    own = PartialLabelClassifier._get_param_names()
    assert {name for method in METHODS.values() for name in defaults(method) if name in own} == {
        "rates"
    }


def test_parameters():
    classifier = PartialLabelClassifier("ooc", alpha=0.5, epochs=3)
    assert repr(classifier) == "PartialLabelClassifier(alpha=0.5, epochs=3, method='ooc')"
    assert classifier.get_params()["alpha"] == 0.5
    assert "warmup" not in classifier.get_params()
    assert classifier.set_params(warmup=0.2, lr=0.1).get_params()["warmup"] == 0.2
    assert clone(classifier).get_params() == classifier.get_params()
    assert "alpha" in classifier._repr_html_()
    with pytest.raises(
        InputError,
        match=r"parameter of PartialLabelClassifier\('ooc'\) 'alhpa'.*Did you mean 'alpha'",
    ):
        classifier.set_params(alhpa=1)
    with pytest.raises(InputError, match=r"'epoch' is unknown. Did you mean 'epochs'"):
        PartialLabelClassifier(epoch=3).fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(
        InputError, match=r"parameter of PartialLabelClassifier\('cc'\) 'alpha' is unknown"
    ):
        classifier.set_params(method="cc").fit([[0.0], [1.0]], [0, 1])


def test_presets():
    def made(*args, **settings):
        classifier = PartialLabelClassifier(*args, **settings)
        return classifier._make_method("auto", args[0] if args else "ooc")

    assert made().open_score == "doubt"
    assert made(preset=None).open_score == "surprise"
    assert made(preset="paper", warmup=0.1).settings["warmup"] == 0.1
    assert made("cc").settings == {}
    assert made("posterior").settings == {"warmup": 0.3}
    with pytest.raises(InputError, match=r"preset of cc 'robust' is unknown. There are: none"):
        made("cc", preset="robust")


def test_grid_search_through_a_pipeline(iris):
    X, sets, y = iris
    pipeline = make_pipeline(PCA(2, random_state=0), quick(epochs=8))
    grid = {
        "partiallabelclassifier__longest": [0.3, 0.6],
        "partiallabelclassifier__net": ["linear", "mlp"],
    }
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, sets)
    assert len(search.cv_results_["params"]) == 4
    assert not np.isnan(search.cv_results_["mean_test_score"]).any()
    assert search.score(X, y) > 0.7
    assert cross_val_score(quick(), X, sets.dense(), cv=2).min() > 0.7


def test_score_is_accuracy_for_labels_and_coverage_for_sets(iris):
    X, sets, y = iris
    found = quick().fit(X, sets)
    hits = found.predict(X) == y
    assert found.score(X, y) == hits.mean()
    covered = sets.contains(sets.index_of(found.predict(X)))
    assert (
        found.score(X, sets)
        == found.score(X, list(sets))
        == found.score(X, sets.dense())
        == covered.mean()
    )
    unknown_and_all = ["moss", "|".join(found.classes_)]
    assert found.score(X[:2], unknown_and_all) == 0.5
    weights = np.arange(len(X))
    assert found.score(X, y, sample_weight=weights) == pytest.approx(
        np.average(hits, weights=weights)
    )


def test_the_same_seed_gives_the_same_model(iris):
    X, sets, _ = iris
    first, second, other = (quick(random_state=s).fit(X, sets).predict_proba(X) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)
    state = np.random.RandomState(0)
    assert quick(random_state=state)._seed() != quick(random_state=state)._seed()


def test_a_net_of_ones_own(iris, tmp_path):
    X, sets, _ = iris
    found = quick(net=Linear).fit(X, sets)
    np.testing.assert_array_equal(
        found.predict_proba(X), quick(net="linear").fit(X, sets).predict_proba(X)
    )
    found.save(tmp_path / "model")
    with pytest.raises(InputError, match="without a description of its net"):
        PartialLabelClassifier.load(tmp_path / "model")
    loaded = PartialLabelClassifier.load(tmp_path / "model", net=Linear)
    np.testing.assert_array_equal(loaded.predict(X), found.predict(X))


def test_a_pickled_model_predicts_the_same(iris):
    X, sets, _ = iris
    found = quick().fit(X, sets)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(found)).predict(X), found.predict(X))


@pytest.mark.parametrize(
    ("n", "batch_size", "epochs"),
    [(10, None, 60), (1000, None, 60), (8000, None, 32), (50000, None, 20), (50, 8, 60)],
)
def test_few_rows_train_for_more_epochs(n, batch_size, epochs):
    assert PartialLabelClassifier(batch_size=batch_size)._make_scheme((n, 4)).epochs == epochs
    assert PartialLabelClassifier(scheme="paper")._make_scheme((n, 4)).epochs == 300
    assert PartialLabelClassifier(epochs=7, lr=0.2)._make_scheme((n, 4)).lr == 0.2
    # few images learn by small batches
    assert PartialLabelClassifier()._make_scheme((n, 8, 8)).batch_size == 32
    assert PartialLabelClassifier(batch_size=64)._make_scheme((n, 8, 8)).batch_size == 64


def test_folds_share_out_every_class():
    rng = np.random.default_rng(0)
    mask = rng.random((200, 4)) < [0.5, 0.5, 0.5, 0.05]
    mask[np.arange(200), rng.choice(4, size=200, p=[0.4, 0.3, 0.25, 0.05])] = True
    sets = CandidateSets(mask)
    fold = estimator.split(sets, 5, seed=0)
    assert np.bincount(fold).tolist() == [40] * 5
    rare = np.bincount(fold[mask[:, 3]], minlength=5)
    assert rare.max() - rare.min() <= 1
    assert np.array_equal(fold, estimator.split(sets, 5, seed=0))


# ---- audit


def test_each_row_is_judged_by_a_net_that_did_not_see_it(monkeypatch):
    """Noise can be learnt by heart, but not foretold."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 20)), rng.integers(2, size=200)
    seen = {}

    def spy(sets, **given):
        seen.update(given, sets=sets)
        return SimpleNamespace(table="table")

    monkeypatch.setattr(estimator, "Audit", spy)
    classifier = quick("cc", epochs=40, rates=Rates(0.1, 0.2))
    assert classifier.audit(X, y, cv=4, ids=range(200)) == "table"
    assert not hasattr(classifier, "n_features_in_")  # it is still not fitted
    assert seen["rates"] == Rates(0.1, 0.2)
    assert list(seen["ids"]) == list(range(200))
    np.testing.assert_allclose(seen["features"], (X - X.mean(0)) / X.std(0), atol=1e-5)
    assert np.mean(seen["logits"].argmax(1) == y) == pytest.approx(0.5, abs=0.12)
    assert classifier.fit(X, y).score(X, y) > 0.95


def test_the_audit_finds_rows_on_digits(problem):
    data = problem[0]
    table = PartialLabelClassifier(random_state=0, epochs=40).audit(data.X, data.candidates, cv=2)
    assert len(table) == len(data.X)
    kinds = np.array(["normal", "closed", "open"])[data.truth.kinds]
    assert (table["verdict"].to_numpy() == kinds).mean() > 0.8


@pytest.mark.parametrize("cv", [1, 11, 2.5])
def test_impossible_numbers_of_folds_are_told(cv):
    with pytest.raises(InputError, match=f"cv={cv}: expected"):
        quick().audit(np.eye(10), np.arange(10), cv=cv)


# ---- errors


@pytest.mark.parametrize(
    ("changes", "X", "y", "message"),
    [
        ({"method": "oco"}, None, None, "method 'oco' is unknown. Did you mean 'ooc'"),
        ({"net": "mpl"}, None, None, "net 'mpl' is unknown. Did you mean 'mlp'"),
        ({"net": "fastconv"}, None, None, r"net 'fastconv' takes images"),
        ({"epochs": 0}, None, None, "epochs=0: expected a whole number of at least 1"),
        ({"calibrate": -1}, None, None, "calibrate=-1: expected a whole number"),
        ({"random_state": -1}, None, None, "random_state=-1"),
        ({"rates": 0.1}, None, None, "rates=0.1: expected 'auto', or Rates"),
        ({"device": "gpu"}, None, None, "device 'gpu' cannot be used here"),
        ({}, None, [0.5, 1.5, 0.5, 1.5], "Unknown label type: row 0 of y is 0.5"),
        ({}, None, [0, 1, 0], "X has 4 rows, but there are 3 candidate sets"),
        ({}, None, [["a"], [], ["b"], ["a"]], "row 1: the candidate set is empty"),
        ({}, [[0.0], [np.nan], [1.0], [2.0]], None, "contains NaN"),
        ({}, [["x"], ["y"], ["z"], ["w"]], None, "Convert your data to numeric values"),
    ],
)
def test_wrong_inputs_are_told(changes, X, y, message):
    X = [[0.0], [0.1], [0.9], [1.0]] if X is None else X
    y = [0, 0, 1, 1] if y is None else np.array(y) if np.ndim(y[0]) == 0 else y
    with pytest.raises(InputError, match=message):
        quick(**changes).fit(X, y)


def test_wrong_questions_are_told(iris):
    X, sets, _ = iris
    with pytest.raises(NotFittedError):
        PartialLabelClassifier().predict(X)
    found = quick(unknown_label="setosa").fit(X, sets)
    with pytest.raises(InputError, match="unknown_label='setosa' is one of the classes"):
        found.predict(X, reject=0.05)
    with pytest.raises(InputError, match="cannot reject: fit it with calibrate=1 or more"):
        found.set_params(unknown_label=None).predict(X, reject=0.05)
    with pytest.raises(InputError, match="3 features, but PartialLabelClassifier is expecting 4"):
        found.predict(X[:, :3])


@pytest.mark.parametrize("scale", [1e-100, 1e19, 1e37])
def test_the_unit_of_a_table_does_not_matter(iris, scale):
    X, sets, _ = iris
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        scaled = quick(calibrate=1).fit(scale * X, sets)
        found = scaled.predict(scale * X, reject=0.1)
        table = quick(epochs=3).audit(scale * X, sets, cv=2)
    np.testing.assert_array_equal(found, quick(calibrate=1).fit(X, sets).predict(X, reject=0.1))
    assert np.isfinite(table["inside_loss"]).all()


def test_inputs_too_large_for_float32_are_told_with_their_row(iris):
    X, sets, _ = iris
    X = X.copy()
    found = quick(calibrate=1).fit(X, sets)
    X[140, 2] = 1e300
    for ask in (
        found.predict_proba,
        found.predict,
        lambda X: found.predict(X, reject=0.1),
        lambda X: quick().fit(X, sets),
        lambda X: quick().audit(X, sets, cv=2),
    ):
        with pytest.raises(InputError, match=r"X holds 1e\+300 at row 140, column 2"):
            ask(X)


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_a_few_rows_are_enough(n):
    X, y = np.arange(2.0 * n).reshape(n, 2), np.arange(n) % 2
    found = PartialLabelClassifier(random_state=0, epochs=3).fit(X, y)
    assert found.predict(X, reject=0.5).shape == (n,)


def test_torch_waits_until_it_is_needed():
    code = (
        "import sys, candidly; assert 'PartialLabelClassifier' in dir(candidly);"
        "print('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_inputs_far_from_all_training_rows_are_rejected():
    X, y = load_iris(return_X_y=True)
    found = quick(epochs=10, calibrate=1, unknown_label=-1).fit(X, y)
    far = X.mean(axis=0) + np.outer([1, -1], [1e3, -5e2, 3e2, 1e3])
    assert (found.predict(far) >= 0).all()
    assert (found.predict(far, reject=0.05) == -1).all()
    assert (found.predict(X, reject=0) >= 0).all()


@pytest.mark.parametrize("shape", [(40, 27, 27), (40, 8, 8), (40, 8, 8, 3)])
def test_images_of_floats_are_refused(shape):
    with pytest.raises(InputError, match=r"X has [34] dimensions, .*float64: expected uint8"):
        quick().fit(np.zeros(shape), [0, 1] * 20)


def test_a_memory_map_gives_the_same_numbers_and_is_not_read_at_once(tmp_path, monkeypatch):
    """Folds, training, prediction and the audit's neighbours read a map batch by batch."""
    rng = np.random.default_rng(0)
    y = np.arange(12_000) % 3
    X = (4 * np.eye(3)[y] + rng.normal(size=(12_000, 3))).astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    read = []
    whole = MappedRows.__getitem__

    def spy(rows, key):
        read.append(len(found := whole(rows, key)))
        return found

    monkeypatch.setattr(MappedRows, "__getitem__", spy)
    monkeypatch.setattr("candidly.blocks.ENTRIES", 3 * 4000)
    monkeypatch.setattr("candidly.training.loop.TOGETHER", 3 * 1000)
    a, b = (quick("proden", epochs=1, batch_size=256) for _ in range(2))
    in_memory, from_disk = a.fit_audit(X, y, cv=2), b.fit_audit(mapped, y, cv=2)
    pd.testing.assert_frame_equal(in_memory.table, from_disk.table, check_exact=True)
    np.testing.assert_array_equal(a.predict_proba(X), b.predict_proba(mapped))
    assert read
    assert max(read) <= 5000  # the sample that the mixture is fitted to
