"""The method `candid`: the shared laws, its warm-up, its targets, and what it is worth."""

import laws
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from test_methods import LAWS

from candidly import Answers, CandidateSets, corrupt, fit
from candidly.auditing.opinions import OUTSIDE, surprise, weigh
from candidly.auditing.verdicts import truth_posterior
from candidly.methods import METHODS
from candidly.methods.base import Batch
from candidly.methods.candid import PATIENCE, Candid
from candidly.tensors.nets import build_net
from candidly.tensors.similar import similar_votes


class Hasty(Candid):
    """It judges the few rows of the laws, after one epoch."""

    FEW = 10

    def __init__(self, *, neighbours=3):
        super().__init__(neighbours=neighbours, longest=0.4)


class HastyAnswered(Hasty):
    """It has answers, whatever the law."""

    def setup(self, model, candidates, rng, answers=None):
        super().setup(model, candidates, rng, laws.answers_of(candidates.cpu()))


NAMES = ["hasty", "hasty_answered"]


@pytest.fixture
def names(monkeypatch):
    monkeypatch.setitem(METHODS, "hasty", Hasty)
    monkeypatch.setitem(METHODS, "hasty_answered", HastyAnswered)
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


# ---- opinions


def test_surprise_by_hand():
    logits = np.log([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    mask = np.array([[True, False, True], [True, False, False]])
    expected = -np.mean(np.log(OUTSIDE + (1 - OUTSIDE) * np.array([0.7, 0.1])))
    assert surprise(logits, mask) == pytest.approx(expected)


def test_a_sure_output_costs_no_more_than_outside_allows():
    logits = np.array([[1e4, 0.0]])
    assert surprise(logits, np.array([[False, True]])) == pytest.approx(-np.log(OUTSIDE))


def test_weights_maximise_the_likelihood_of_the_candidates():
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=400)
    mask = (np.eye(4, dtype=bool)[y]) | (rng.random((400, 4)) < 0.3)
    opinions = np.stack([np.eye(4)[y] + rng.normal(size=(400, 4)) for _ in range(2)])
    best = weigh(opinions, mask)

    def cost(weights):
        return surprise(np.einsum("k,kic->ic", weights, opinions), mask)

    for k in (0, 1):
        for step in (-0.05, 0.05):
            assert cost(best) < cost(best + step * np.eye(2)[k])


# ---- neighbours


def test_similar_votes_equal_a_naive_loop():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(60, 5))
    candidates = rng.random((60, 3)) < 0.4
    found = similar_votes(torch.as_tensor(features), torch.as_tensor(candidates), 4)
    for i in range(60):
        cosines = [
            -np.inf if j == i else f @ features[i] / np.linalg.norm(f)
            for j, f in enumerate(features)
        ]
        nearest = np.argsort(cosines)[-4:]
        expected = (candidates[nearest] - candidates.mean(axis=0)).sum(axis=0) / 2
        np.testing.assert_allclose(found[i], expected, atol=1e-6)


def test_few_rows_have_few_neighbours_or_none(monkeypatch):
    features, candidates = torch.randn(30, 4), torch.rand(30, 3) < 0.5
    assert torch.equal(
        similar_votes(features, candidates, 50), similar_votes(features, candidates, 5)
    )
    assert not similar_votes(features[:5], candidates[:5], 50).any()
    monkeypatch.setattr("candidly.tensors.similar.POOL", 20)
    centred = candidates[:20].double() - candidates[:20].double().mean(0)
    unit = torch.nn.functional.normalize(features, dim=-1)
    nearest = int((unit[25] @ unit[:20].T).argmax())
    found = similar_votes(features, candidates, 1)[25]
    np.testing.assert_allclose(found, centred[nearest], atol=1e-6)


# ---- the warm-up


def started(candidates, epochs=40, method=None, answers=None, gold=None):
    method = method or Candid()
    method.epochs = epochs
    method.gold = gold
    mask = torch.as_tensor(np.asarray(candidates))
    method.setup(build_net("mlp", (4,), mask.shape[1]), mask, torch.Generator(), answers)
    return method


def some_sets(n=200, c=4, q=0.3):
    rng = np.random.default_rng(2)
    y = rng.integers(c, size=n)
    return np.eye(c, dtype=bool)[y] | (rng.random((n, c)) < q), y


def test_it_ends_when_the_candidates_are_explained_less_and_less_well():
    mask, y = some_sets()
    method = started(mask)
    right = torch.as_tensor(np.eye(4)[y])
    best = None
    for epoch in range(1, 40):
        sureness = epoch if epoch <= 8 else 8 - 2 * (epoch - 8)
        method.unseen.copy_(0.5 * sureness * right)
        if epoch == 8:
            best = method.unseen.clone()
        method.epoch_start(epoch, None)
        if not method.warming:
            break
    assert epoch == int(method.ended) == 8 + PATIENCE
    assert torch.equal(method.best, best)
    assert method.record[1] == 8


def test_it_ends_after_its_longest_share():
    mask, y = some_sets()
    method = started(mask, epochs=10)
    for epoch in range(1, 10):
        method.unseen.copy_(torch.as_tensor(epoch * np.eye(4)[y]))
        method.epoch_start(epoch, None)
        assert method.warming == (epoch < 6)


def test_each_twin_learns_from_its_half_alone():
    mask, _ = some_sets()
    method = started(mask)
    model = build_net("mlp", (4,), 4)
    method.epoch_start(0, None)
    first, second = method.twins.first, method.twins.second
    rows = torch.nonzero(method.twins.side)[:6, 0]
    batch = Batch(rows, (torch.randn(6, 4),), torch.as_tensor(mask)[rows], None)
    losses = method.loss(model, batch)
    losses.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in first.parameters())
    assert all(p.grad is None or not p.grad.any() for p in second.parameters())
    np.testing.assert_allclose(method.unseen[rows], second(batch.views[0]).detach())
    # The loss is PRODEN's, and that of a twin has twice the weight.
    targets = torch.as_tensor(mask[rows] / mask[rows].sum(1, keepdims=True)).float()
    own = -(targets * model(batch.views[0]).log_softmax(-1)).sum(-1)
    torch.testing.assert_close(losses, own)
    twins = -2 * (targets * first(batch.views[0]).log_softmax(-1)).sum(-1)
    gradients = torch.autograd.grad(twins.sum(), list(first.parameters()))
    for parameter, gradient in zip(first.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_the_net_goes_back_to_where_the_candidates_were_explained_best():
    mask, y = some_sets()
    method = started(mask, epochs=100)
    model = method.main[0]
    right = torch.as_tensor(np.eye(4)[y])
    for epoch in range(1, 100):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(epoch)
        method.unseen.copy_((epoch if epoch <= 4 else 8 - epoch) * right)
        method.epoch_start(epoch, None)
        if not method.warming:
            break
    assert epoch == 4 + PATIENCE
    assert all((parameter == 4).all() for parameter in model.parameters())


def test_afterwards_the_net_says_which_class_and_the_kinds_stay():
    mask, y = some_sets()
    method = started(mask, method=Candid(longest=0.0))
    method.unseen.copy_(torch.as_tensor(3 * np.eye(4)[y]))
    method.epoch_start(1, None)
    kinds = method.kinds.clone()
    rows = torch.arange(8)
    x = torch.randn(8, 4)
    method.loss(method.main[0], Batch(rows, (x,), torch.as_tensor(mask)[rows], None))
    probs = method.main[0](x).softmax(-1).detach()
    for i in range(8):
        for j in range(4):
            kind = kinds[i, 0] if mask[i, j] else kinds[i, 1]
            among = mask[i] == mask[i, j]
            expected = kind * probs[i, j] / probs[i, among].sum() + 0.1 * kinds[i, 2] / 4
            assert method.confidence[i, j] == pytest.approx(float(expected), abs=1e-5)
    assert torch.equal(method.kinds, kinds)


def test_targets_are_the_posterior_of_the_best_outputs():
    mask, y = some_sets()
    method = started(mask, method=Candid(neighbours=0, longest=0.0))
    logits = 3 * np.eye(4)[y] + np.random.default_rng(3).normal(size=(200, 4))
    method.unseen.copy_(torch.as_tensor(logits))
    method.epoch_start(1, None)
    expected = truth_posterior(CandidateSets(mask), logits=method.best.numpy())
    np.testing.assert_allclose(method.confidence, expected[:, :-1], atol=1e-6)
    kinds = np.stack(
        [
            (expected[:, :-1] * mask).sum(1),
            (expected[:, :-1] * ~mask).sum(1),
            expected[:, -1],
        ]
    )
    likeliest = np.eye(3, dtype=bool)[kinds.argmax(axis=0)].T
    np.testing.assert_array_equal(np.stack(method.selection), likeliest)
    assert method.rates.closed == pytest.approx(kinds[1].mean())


def test_few_rows_and_full_sets_are_learnt_as_by_proden():
    X = np.random.default_rng(4).normal(size=(120, 4)).astype(np.float32)
    sets, _ = some_sets(120)
    full = np.ones((120, 4), dtype=bool)
    for rows, labels in ((slice(0, 90), sets), (slice(None), full)):
        found, expected = (
            fit(
                build_net("mlp", (4,), 4), X[rows], labels[rows], name, epochs=4, progress=False
            ).predictor.logits(X)
            for name in ("candid", "proden")
        )
        np.testing.assert_array_equal(found, expected)


# ---- what it is worth


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(y))
    return X[order], y[order]


def accuracy(method, X, sets, test, **options):
    options = {"epochs": 30, "batch_size": 64, "seed": 0, "progress": False, **options}
    net = build_net("mlp", (64,), 10, seed=0)
    fitted = fit(net, X, sets, method, **options)
    return (fitted.predictor.logits(test[0]).argmax(axis=1) == test[1]).mean(), fitted


def test_it_learns_digits_where_proden_learns_wrong_sets(digits):
    X, y = digits
    sets, truth = corrupt(y[:1200], 10, q=0.2, tau1=0.3, seed=0)
    rows, test = X[truth.source], (X[1200:], y[1200:])
    ours, fitted = accuracy("candid", rows, sets, test)
    proden, _ = accuracy("proden", rows, sets, test)
    assert ours > proden + 0.05
    assert ours > 0.9
    assert fitted.method.rates.closed == pytest.approx(0.3, abs=0.07)
    chosen = fitted.selection.closed
    assert (truth.kinds[chosen] == 1).mean() > 0.85
    long, _ = accuracy("candid", rows, sets, test, epochs=90)
    assert long > ours - 0.02


def test_it_loses_nothing_on_right_sets(digits):
    X, y = digits
    sets, truth = corrupt(y[:1200], 10, q=0.2, seed=0)
    test = X[1200:], y[1200:]
    assert accuracy("candid", X[truth.source], sets, test)[0] > 0.95


def test_one_label_per_row_and_two_classes(digits):
    X, y = digits
    rng = np.random.default_rng(1)
    wrong = rng.random(1200) < 0.3
    labels = np.where(wrong, (y[:1200] + rng.integers(1, 10, 1200)) % 10, y[:1200])
    test = X[1200:], y[1200:]
    single = np.eye(10, dtype=bool)[labels]
    assert (
        accuracy("candid", X[:1200], single, test)[0]
        > accuracy("proden", X[:1200], single, test)[0]
    )
    odd = np.eye(2, dtype=bool)[np.where(rng.random(1200) < 0.2, 1 - y[:1200] % 2, y[:1200] % 2)]
    net = build_net("mlp", (64,), 2, seed=0)
    fitted = fit(net, X[:1200], odd, "candid", epochs=30, batch_size=64, progress=False)
    assert (fitted.predictor.logits(test[0]).argmax(axis=1) == test[1] % 2).mean() > 0.9


def test_a_thousand_classes():
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(1000, 16))
    y = rng.integers(1000, size=3000)
    X = (centres[y] + 0.1 * rng.normal(size=(3000, 16))).astype(np.float32)
    sets, truth = corrupt(y, 1000, q=0.002, tau1=0.1, seed=0)
    X = X[truth.source]
    net = build_net("mlp", (16,), 1000, seed=0)
    fitted = fit(net, X, sets, "candid", epochs=12, progress=False)
    assert np.isfinite(fitted.predictor.logits(X)).all()
    assert not fitted.method.warming


def test_certain_rows_keep_their_class(digits):
    X, y = digits
    sets, truth = corrupt(y[:400], 10, q=0.2, tau1=0.3, seed=0)
    X, y = X[truth.source], truth.labels
    gold = np.full(400, -2)
    gold[:50] = y[:50]
    gold[50:60] = -1
    method = Candid()
    net = build_net("mlp", (64,), 10, seed=0)
    fit(net, X, sets, method, gold=gold, epochs=20, batch_size=64, progress=False)
    np.testing.assert_allclose(method.confidence[:50], np.eye(10)[y[:50]], atol=1e-6)
    np.testing.assert_allclose(method.confidence[50:60], 0, atol=1e-6)


def test_votes_count(digits):
    X, y = digits
    rng = np.random.default_rng(6)
    near = (y[:800, None] + rng.choice([-1, 1], size=(800, 6))) % 10
    given = np.where(rng.random((800, 6)) < 0.4, near, y[:800, None])
    answers = Answers(given, 10)
    test = X[800:], y[800:]
    majority = np.eye(10, dtype=bool)[answers.majority()]
    ours, fitted = accuracy("candid", X[:800], answers, test)
    assert ours >= accuracy("proden", X[:800], majority, test)[0]
    consensus = fitted.method.confidence.numpy().argmax(axis=1)
    assert (consensus == y[:800]).mean() > (answers.majority() == y[:800]).mean()
