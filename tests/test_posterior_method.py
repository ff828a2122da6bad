"""The method `posterior`: its targets, the shared laws, and what several annotators are worth."""

import time

import laws
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from test_methods import LAWS

from candidly import Answers, CandidateSets, PartialLabelClassifier, Rates, fit
from candidly.auditing.evidence import read_answers, read_gold
from candidly.errors import InputError
from candidly.losses import soft_ce
from candidly.methods import METHODS, posterior
from candidly.methods.posterior import Posterior, vote_shares
from candidly.methods.settings import choose_method
from candidly.storage.store import writing
from candidly.tensors.nets import build_net
from candidly.training import estimator

UNKNOWN, NO_CLASS = -2, -1


class Judging(Posterior):
    """It computes the posterior of the few rows of the laws, too."""

    FEW = 10

    def __init__(self, *, warmup=1):
        super().__init__(warmup=warmup)


class Answered(Judging):
    """It has answers, whatever the law."""

    def setup(self, model, candidates, rng, answers=None):
        super().setup(model, candidates, rng, laws.answers_of(candidates.cpu()))


NAMES = ["judging", "answered"]


@pytest.fixture
def names(monkeypatch):
    monkeypatch.setitem(METHODS, "judging", Judging)
    monkeypatch.setitem(METHODS, "answered", Answered)
    return NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("law", [law for law in LAWS if law != laws.law_singletons_are_learnt])
def test_law(law, name, names):
    law(name)


@pytest.mark.parametrize("name", NAMES)
def test_resume_equals_uninterrupted(name, names, tmp_path):
    laws.law_resume_equals_uninterrupted(name, tmp_path)


def test_two_processes_equal_one(names):
    laws.law_two_processes_equal_one(names)


# ---- targets


def started(candidates, answers=None, gold=None, epochs=4):
    """A method after `setup`."""
    method = Judging()
    method.epochs = epochs
    method.gold = gold
    mask = torch.as_tensor(np.asarray(candidates))
    method.setup(build_net("mlp", (laws.D,), laws.C), mask, torch.Generator(), answers)
    return method


def test_the_warm_up_learns_from_the_shares_of_the_votes():
    none = "none of the classes"
    table = [[0, 0, 1], [(0, 1), 0, None], [none, 2, None], [none, None, None], [None] * 3]
    answers = Answers(table, classes=4)
    expected = [
        [2 / 3, 1 / 3, 0, 0, 0],
        [3 / 4, 1 / 4, 0, 0, 0],
        [0, 0, 1 / 2, 0, 1 / 2],
        [0, 0, 0, 0, 1],
        [0, 0, 0, 0, 0],
    ]
    np.testing.assert_allclose(vote_shares(answers, slice(0, 5)), expected)
    np.testing.assert_allclose(vote_shares(answers, slice(1, 3)), expected[1:3])
    targets = np.array(expected)[:, :4]
    targets[3:] = 1 / 4  # nobody named a class
    found = started(answers.to_sets(), answers).confidence
    np.testing.assert_allclose(found, targets, rtol=1e-6)
    narrow = answers.to_sets().dense()
    narrow[4] = [True, False, True, False]
    np.testing.assert_allclose(started(narrow, answers).confidence[4], [0.5, 0, 0.5, 0])


def test_counts_are_votes():
    answers = Answers.from_counts([[3, 1], [0, 0]], none_counts=[0, 2])
    np.testing.assert_allclose(vote_shares(answers, slice(0, 2)), [[0.75, 0.25, 0], [0, 0, 1]])


@pytest.mark.parametrize("answered", [False, True])
def test_the_targets_are_the_posterior_of_unseen_outputs(monkeypatch, answered):
    calls = []
    truth_posterior = posterior.truth_posterior

    def spy(candidates, **given):
        found = truth_posterior(candidates, **given)
        calls.append({**given, "sets": candidates, "found": found})
        calls[-1]["logits"] = given["logits"].copy()  # the next epochs change them
        return found

    monkeypatch.setattr(posterior, "truth_posterior", spy)
    X, sets, _ = laws.table()
    answers = laws.answers_of(sets) if answered else None
    method = Judging(warmup=0.3)
    net = build_net("mlp", (laws.D,), laws.C)
    history = fit(net, X, sets, method, answers=answers, epochs=10, batch_size=8).history
    assert len(calls) == 2  # after 3 and after 6 epochs
    assert not np.array_equal(calls[0]["logits"], calls[1]["logits"])
    np.testing.assert_array_equal(calls[1]["logits"], method.unseen)
    np.testing.assert_array_equal(calls[1]["sets"].dense(), sets.dense())
    assert calls[1]["answers"] == answers
    found = calls[1]["found"]
    np.testing.assert_allclose(method.confidence, found[:, :-1], rtol=1e-6)
    closed = (found[:, :-1] * ~sets.dense()).sum(1).mean()
    assert method.rates.closed == pytest.approx(closed)
    assert method.rates.open == pytest.approx(found[:, -1].mean())
    assert [("rate_open" in row) for row in history] == 3 * [False] + 7 * [True]


def test_outputs_are_of_rows_that_were_not_seen(monkeypatch):
    """Noise can be learnt by heart, but not foretold."""
    seen = []

    def spy(candidates, *, logits, **given):
        seen.append(logits)
        return np.full((len(candidates), 3), 1 / 3)

    monkeypatch.setattr(posterior, "truth_posterior", spy)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 20)), rng.integers(2, size=300)
    answers = Answers(np.stack([y, y], axis=1))
    net = build_net("mlp", (20,), 2)
    fitted = fit(net, X, answers, Posterior(warmup=40), epochs=41, batch_size=32)
    assert np.mean(seen[0].argmax(1) == y) == pytest.approx(0.5, abs=0.1)
    assert len(seen) == 1
    assert np.mean(fitted.predictor.predict(X) == y) > 0.8


def test_mass_on_none_of_the_classes_has_no_gradient(monkeypatch):
    """A row of none of the classes does not move the model; half of that mass, half as much."""
    _, sets, _ = laws.table()
    candidates = torch.as_tensor(sets.dense())
    targets = np.zeros((laws.N, laws.C + 1))
    targets[:, laws.C] = 1
    targets[0, [1, laws.C]] = 0.5
    monkeypatch.setattr(posterior, "truth_posterior", lambda *args, **given: targets)
    method = started(sets, laws.answers_of(sets))
    method.epoch_start(3, None)  # neither the twins nor the posterior are due
    assert not method.learning
    method.epoch_start(1, None)
    method.epoch_start(3, None)
    model = build_net("mlp", (laws.D,), laws.C)
    batch = laws.hand_batch("cc", candidates)
    losses = method.loss(model, batch)
    assert losses[1:].abs().max() == 0
    logits = model(batch.views[0])
    torch.testing.assert_close(losses[0], -0.5 * logits[0].log_softmax(-1)[1])
    losses[1:].sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_the_twins_train_on_the_same_targets():
    _, sets, _ = laws.table()
    method = started(sets, laws.answers_of(sets))
    batch = laws.hand_batch("cc", torch.as_tensor(sets.dense()))
    seen, unseen, features = method.twins(batch)
    first, second = method.twins.first, method.twins.second
    side = method.twins.side[:, None]
    x = batch.views[0]
    assert torch.equal(seen, torch.where(side, first(x), second(x)))
    assert torch.equal(unseen, torch.where(side, second(x), first(x)))
    assert torch.equal(features, torch.where(side, second.features(x), first.features(x)))
    method.epoch = 0
    method.train_twins(batch, method.confidence).sum().backward()
    (found,) = (parameter.grad for parameter in [first.head.bias])
    own = soft_ce(first(x), method.confidence)[side[:, 0]].sum()
    torch.testing.assert_close(found, torch.autograd.grad(own, first.head.bias)[0])


@pytest.mark.parametrize("sets", ["few", "full"])
def test_few_rows_and_full_sets_keep_the_targets_of_the_warm_up(monkeypatch, sets):
    monkeypatch.setattr(posterior, "truth_posterior", None)
    X, known, _ = laws.table()
    method = Posterior(warmup=1) if sets == "few" else Judging()
    given = known if sets == "few" else np.ones(known.shape, dtype=bool)
    nets = [build_net("mlp", (laws.D,), laws.C, seed=1) for _ in range(2)]
    found = fit(nets[0], X, given, method, epochs=4, batch_size=8)
    laws.assert_same(found.model, fit(nets[1], X, given, "proden", epochs=4, batch_size=8).model)
    assert method.rates == Rates(0.0, 0.0)
    assert "rate_open" not in found.history[-1]


def test_few_rows_with_answers_keep_the_votes():
    X, sets, _ = laws.table()
    method = Posterior(warmup=1)
    answers = laws.answers_of(sets)
    fit(build_net("mlp", (laws.D,), laws.C), X, sets, method, answers=answers, epochs=4)
    np.testing.assert_array_equal(method.confidence, started(sets, answers).confidence)


# ---- what is certain


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("cls", [Posterior, Judging])  # without and with the posterior
def test_targets_of_gold_rows_are_one_hot(answered, cls):
    X, sets, _ = laws.table()
    gold = np.full(laws.N, UNKNOWN)
    gold[[2, 3, 4]] = [0, 3, NO_CLASS]
    answers = laws.answers_of(sets) if answered else None
    first = started(sets, answers, gold)
    method = cls(warmup=1)
    net = build_net("mlp", (laws.D,), laws.C)
    fit(net, X, sets, method, answers=answers, gold=gold, epochs=4, batch_size=8)
    for found in (first, method):
        expected = [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
        np.testing.assert_array_equal(found.confidence[2:5], expected)
    others = np.delete(np.arange(laws.N), [2, 3, 4])
    np.testing.assert_array_equal(
        first.confidence[others], started(sets, answers).confidence[others]
    )


def test_gold_is_read():
    classes = np.array(["cat", "dog"])
    gold = ["dog", None, float("nan"), "none of the classes", "cat"]
    assert read_gold(gold, classes, 5).tolist() == [1, UNKNOWN, UNKNOWN, NO_CLASS, 0]
    assert read_gold(np.array([3.0, np.nan]), np.array([3, 5]), 2).tolist() == [0, UNKNOWN]
    with pytest.raises(InputError, match="gold has 5 entries, but there are 4 rows"):
        read_gold(gold, classes, 4)
    with pytest.raises(InputError, match=r"gold, row 1: 'cow' is not among the 2 classes"):
        read_gold(["dog", "cow"], classes, 2)


def test_wrong_gold_and_answers_are_refused():
    X, sets, _ = laws.table()
    net = build_net("mlp", (laws.D,), laws.C)
    answers = laws.answers_of(sets)
    for gold, message in [
        (np.zeros(3, dtype=int), r"gold is int64 of shape \(3,\): expected 26 class indices"),
        (np.full(laws.N, 4), r"gold, row 0: 4 is not in -2\.\.3"),
    ]:
        with pytest.raises(InputError, match=message):
            fit(net, X, sets, "posterior", gold=gold)
    with pytest.raises(InputError, match="not both"):
        fit(net, X, answers, "posterior", answers=answers)
    with pytest.raises(InputError, match="label 'a' is not among the 4 classes"):
        fit(net, X, sets, "posterior", answers=[["a"]])
    with pytest.raises(InputError, match="about 5 rows, but there are 26 candidate sets"):
        fit(net, X, sets, "posterior", answers=answers[:5])
    with pytest.raises(InputError, match="label 2 is not among the 2 classes"):
        read_answers(CandidateSets([[0, 1]] * laws.N), answers)


def test_answers_are_put_in_the_order_of_the_classes():
    answers = Answers([["dog", "cat"], ["dog", "dog"]])
    sets, found = read_answers(CandidateSets([["dog"], ["cat"]], classes=["dog", "cat"]), answers)
    assert found.classes.tolist() == sets.classes.tolist() == ["dog", "cat"]
    assert found[0] == answers[0]


def test_a_run_is_resumed_with_the_same_answers_only(tmp_path):
    _, sets, _ = laws.table()
    answers = laws.answers_of(sets)
    for changed in ({"answers": answers[::-1]}, {"gold": np.full(laws.N, UNKNOWN)}):
        with writing(tmp_path / next(iter(changed)), {}) as run:
            laws.train("posterior", answers=answers, run=run)
            with pytest.raises(InputError, match="data"):
                laws.train("posterior", run=run, **{"answers": answers, **changed})


# ---- several annotators


def labels_of_six(y, rng):
    """Five annotators who take 3 in 10 digits for a neighbour, and one who guesses."""
    wrong = rng.random((len(y), 6)) < 0.3
    shift = rng.choice([-1, 1], size=wrong.shape)
    labels = np.where(wrong, (y[:, None] + shift) % 10, y[:, None])
    labels[:, 5] = rng.integers(10, size=len(y))
    return labels


@pytest.fixture(scope="module")
def digits():
    """For each of three seeds: rows, answers, and test rows."""
    X, y = load_digits(return_X_y=True)
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(y))
        train, test = order[:1000], order[1000:]
        answers = Answers(labels_of_six(y[train], rng), classes=10)
        found.append((X[train], answers, (X[test], y[test])))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_it_is_no_worse_than_the_majority(digits, seed):
    X, answers, test = digits[seed]
    plan = {"seed": seed, "epochs": 60, "batch_size": 64, "test": test}
    nets = [build_net("mlp", (64,), 10, seed=seed) for _ in range(2)]
    majority = fit(nets[0], X, CandidateSets(answers.majority(), classes=10), "cc", **plan)
    began = time.perf_counter()
    found = fit(nets[1], X, answers, "posterior", **plan)
    assert time.perf_counter() - began < 30
    accuracy = found.history[-1]["accuracy"]
    assert accuracy >= majority.history[-1]["accuracy"] - 0.005
    assert accuracy > 0.93


def test_answers_of_one_annotator_are_learnt_as_sets_by_methods_without_answers(digits):
    X, answers, _ = digits[0]
    one = Answers(answers.majority()[:200, None], classes=10)
    options = {"epochs": 4, "calibrate": 0, "random_state": 0}
    first = PartialLabelClassifier("ooc", **options).fit(X[:200], one)
    second = PartialLabelClassifier("ooc", **options).fit(X[:200], one.to_sets())
    np.testing.assert_array_equal(first.predict_proba(X), second.predict_proba(X))


# ---- the classifier


def quick(*args, **settings):
    options = {"epochs": 20, "calibrate": 0, "random_state": 0}
    return PartialLabelClassifier(*args, **{**options, **settings})


@pytest.fixture(scope="module")
def small(digits):
    X, answers, test = digits[0]
    return X[:300], answers[np.arange(300)], test


def test_auto_is_candid(small):
    X, answers, test = small
    found = quick().fit(X, answers)
    assert found.method_ == "candid"
    assert found.rates_.closed < 0.5
    assert found.score(*test) > 0.8
    same = quick("candid").fit(X, answers.to_sets(), answers=answers)
    np.testing.assert_array_equal(found.predict_proba(X), same.predict_proba(X))
    assert quick().fit(X, answers.to_sets()).method_ == "candid"
    assert choose_method("auto") == "candid"
    with pytest.raises(InputError, match="method 'atuo' is unknown"):
        quick("atuo").fit(X, answers)


def test_settings_of_auto_are_those_of_candid(small):
    X, answers, _ = small
    assert quick(longest=0.2).fit(X, answers).method_ == "candid"
    for wrong in ("alhpa", "warmup"):
        with pytest.raises(
            InputError, match=rf"PartialLabelClassifier\('auto'\) '{wrong}' is unkn"
        ):
            quick().set_params(**{wrong: 1})


def test_scikit_learn_splits_searches_and_scores_answers(small):
    X, answers, _ = small
    inputs, held_out, given, unused = train_test_split(X, answers, test_size=0.3, random_state=0)
    assert isinstance(given, Answers)
    assert (len(given), len(unused)) == (210, 90)
    search = GridSearchCV(quick(epochs=5), {"longest": [0.2, 0.4]}, cv=2, error_score="raise")
    search.fit(inputs, given)
    assert search.best_estimator_.method_ == "candid"
    assert not np.isnan(search.cv_results_["mean_test_score"]).any()
    hits = unused.to_sets().contains(search.predict(held_out))
    assert search.score(held_out, unused) == hits.mean()
    beside = quick(epochs=5, longest=search.best_params_["longest"])
    split = GridSearchCV(beside, {"lr": [0.05]}, cv=2, error_score="raise")
    assert split.fit(inputs, given.to_sets(), answers=given).best_estimator_.method_ == "candid"


def test_folds_take_answers_and_gold_with_their_rows(small, monkeypatch):
    X, answers, _ = small
    X, answers = X[:60], answers[:60]
    gold = [None] * 60
    gold[7] = "none of the classes"
    gold[8] = 3
    seen = []
    audits = []

    def spy(model, views, sets, method, *, answers, gold, **options):
        seen.append((sets, answers, gold))
        return fit(model, views, sets, method, answers=answers, gold=gold, **options)

    class Known:
        def __init__(self, sets, **given):
            audits.append({"sets": sets, **given})
            self.table = "table"

    monkeypatch.setattr(estimator.train, "fit", spy)
    monkeypatch.setattr(estimator, "Audit", Known)
    classifier = quick(epochs=2)
    assert classifier.audit(X, answers, cv=2, gold=gold) == "table"
    assert not hasattr(classifier, "method_")
    classifier.fit_audit(X, answers.to_sets(), cv=2, answers=answers, gold=gold)
    assert classifier.method_ == "candid"
    assert len(seen) == 5
    index = read_gold(gold, answers.classes, 60)
    fold = estimator.split(answers.to_sets(), 2, seed=0)
    for part in range(2):
        sets, some, certain = seen[part]
        assert some == answers[fold != part]
        assert list(sets) == list(answers.to_sets()[fold != part])
        np.testing.assert_array_equal(certain, index[fold != part])
    assert seen[4][1] == answers
    for audit in audits:
        assert audit["answers"] == answers
        np.testing.assert_array_equal(read_gold(audit["gold"], answers.classes, 60), index)


def test_gold_changes_what_is_learnt(small):
    X, answers, _ = small
    wrong = np.full(300, 4)
    plain, certain = quick().fit(X, answers), quick().fit(X, answers, gold=wrong)
    assert (certain.predict(X) == 4).mean() > 0.95
    assert (plain.predict(X) == 4).mean() < 0.3


def test_what_is_saved_says_the_method(small, tmp_path):
    X, answers, _ = small
    quick(epochs=2).fit(X, answers).save(tmp_path / "model")
    loaded = PartialLabelClassifier.load(tmp_path / "model")
    assert (loaded.method, loaded.method_) == ("auto", "candid")
