"""The methods for sets that may miss the truth: values by hand, naive loops, limiting cases.

Where a method needs no features, the model is the identity: the views are the logits.
"""

import math

import numpy as np
import pytest
import torch
from test_baselines import batch, close, logs, mask, random_sets, softmax, start, unit
from torch import nn

from candidly.errors import InputError
from candidly.kinds import Rates
from candidly.losses import cc, gce, nearest_contrast, smoothed
from candidly.methods import METHODS, Batch
from candidly.methods.mixup import Mixture
from candidly.scores import admit, neighbour_votes
from candidly.selection import admission, keep_lowest, reliable_rows
from candidly.tensors.nets import MLP

ALIM, GCE, PALS, CC, PRODEN, PiCO = (
    METHODS[k] for k in ("alim", "gce", "pals", "cc", "proden", "pico")
)
PiCOPlus, Trimmed = METHODS["pico_plus"], METHODS["trimmed"]
WITH_RATES = ("alim", "pico_plus", "trimmed")

pytestmark = pytest.mark.usefixtures("float64")


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def bare(cls, candidates, *, epoch=1, epochs=10, **settings):
    """A kind of PiCO that embeds an example by its view, normalised."""
    method = start(
        cls(width=candidates.shape[1], **settings), candidates, epoch=epoch, epochs=epochs
    )
    method.projector, method.keys = nn.Identity(), nn.ModuleList([nn.Identity(), nn.Identity()])
    return method


# GCE


def test_gce_by_hand():
    logits = logs([0.5, 0.3, 0.2], [0.1, 0.1, 0.8])
    candidates = mask("100", "110")
    close(gce(logits, candidates, 0.7), [(1 - 0.5**0.7) / 0.7, (1 - 0.2**0.7) / 0.7])
    close(gce(logits, candidates, 1.0), [0.5, 0.8])
    close(gce(logits, mask("111", "111"), 0.7), [0, 0])


def test_gce_tends_to_cc_as_its_exponent_falls():
    logits = 3 * torch.randn(20, 4, generator=rng())
    candidates = random_sets(20, 4, rng(1))
    torch.testing.assert_close(
        gce(logits, candidates, 1e-9), cc(logits, candidates), rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gce_is_bounded_and_has_a_finite_gradient_without_mass(dtype):
    logits = torch.tensor([[-1e4, 1e4, 0.0], [0.0, 200.0, 0.0]], dtype=dtype, requires_grad=True)
    losses = gce(logits, mask("100", "100"), 0.7)
    close(losses, torch.full((2,), 1 / 0.7, dtype=dtype))
    losses.sum().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().max() < 1e-12


def test_gce_takes_the_mean_of_the_views():
    candidates = mask("110")
    views = logs([0.4, 0.1, 0.5]), logs([0.2, 0.1, 0.7])
    got = start(GCE(exponent=0.5), candidates).loss(nn.Identity(), batch([0], views, candidates))
    close(got, [2 - math.sqrt(0.5) - math.sqrt(0.3)])
    with pytest.raises(InputError, match="exponent"):
        GCE(exponent=0.0)


# Pure functions


@pytest.mark.parametrize("seed", range(3))
def test_admit_equals_the_naive_formula(seed):
    s = torch.rand(6, 4, generator=rng(seed)) + 0.1
    candidates = random_sets(6, 4, rng(seed))
    for weight in (0.0, 0.3, 1.0):
        expected = [
            [v * (1.0 if y else weight) for v, y in zip(row, Y, strict=True)]
            for row, Y in zip(s.tolist(), candidates.tolist(), strict=True)
        ]
        close(admit(s.log(), candidates, weight).exp(), expected)


@pytest.mark.parametrize("outside", [0.1, 0.35, 0.8])
def test_with_the_admitted_weight_the_given_share_of_rows_chooses_a_non_candidate(outside):
    s = torch.randn(200, 5, generator=rng()).softmax(-1)
    candidates = torch.rand(200, 5, generator=rng(1)) < 0.2
    candidates[torch.arange(200), torch.randint(5, (200,), generator=rng(2))] = True
    candidates[:3] = True
    inside = (s * candidates).amax(-1)
    beyond = (s * ~candidates).amax(-1)
    weight = admission((inside / beyond).log(), outside)
    assert 0 < weight <= 1
    best = admit(s.log(), candidates, weight).argmax(-1)
    chosen = ~candidates.gather(1, best[:, None])[:, 0]
    free = (beyond > inside).sum()  # with weight 1
    assert abs(chosen.sum() - min(200 * outside, free)) <= 1


def test_the_admitted_weight_at_its_limits():
    assert admission(torch.full((4,), math.inf), 0.5) == 1.0  # full sets alone: no matter
    assert admission(torch.full((4,), -math.inf), 0.5) == 0.0  # not seen yet
    assert admission(torch.tensor([-1.0, 3.0]), 1.0) == 1.0
    with pytest.raises(InputError, match="margin of row 1 is NaN"):
        admission(torch.tensor([0.0, math.nan]), 0.5)


def test_keep_lowest_by_hand():
    values = torch.tensor([3.0, 1.0, 3.0, 0.0])
    assert keep_lowest(values, 0.0).all()
    assert keep_lowest(values, 0.25).tolist() == [False, True, True, True]
    assert keep_lowest(values, 0.5).tolist() == [False, True, False, True]
    assert not keep_lowest(values, 1.0).any()
    with pytest.raises(InputError, match="loss of row 0 is NaN"):
        keep_lowest(torch.tensor([math.nan]), 0.5)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_reliable_rows_equal_a_naive_ranking(seed, share):
    random = np.random.default_rng(seed)
    labels, scores = random.integers(4, size=30), random.integers(9, size=30) / 9
    labels[labels == 2] = 3  # a class without any row
    agreeing = random.random(30) < 0.6
    counts = sorted(n for k in range(4) if (n := sum(agreeing[labels == k])))
    wanted = counts[int(share * (len(counts) - 1))]
    expected = set()
    for k in range(4):
        rows = [i for i in range(30) if labels[i] == k]
        expected |= set(sorted(rows, key=lambda i: (-scores[i], i))[:wanted])
    assert set(np.flatnonzero(reliable_rows(labels, scores, agreeing, share))) == expected
    assert not reliable_rows(labels, scores, np.zeros(30, dtype=bool), share).any()


@pytest.mark.parametrize("count", [1, 3, 50])
def test_votes_of_neighbours_equal_the_naive_loop(count):
    features = nn.functional.normalize(torch.randn(9, 3, generator=rng()), dim=-1)
    sets = (torch.rand(9, 4, generator=rng(1)) < 0.5).double()
    x, y = features.tolist(), sets.tolist()
    for i in range(9):
        near = sorted(
            ((sum(a * b for a, b in zip(x[i], x[k], strict=True)), k) for k in range(9)),
            reverse=True,
        )[:count]
        votes = [sum(max(s, 0) * y[k][j] for s, k in near) for j in range(4)]
        total = sum(votes) or 1
        got = neighbour_votes(features, sets, slice(i, i + 1), count)
        close(got, [[v / total for v in votes]])


@pytest.mark.parametrize("count", [1, 2, 99])
def test_contrast_with_the_nearest_equals_the_naive_loop(count):
    q, k = (nn.functional.normalize(torch.randn(n, 3, generator=rng(n)), dim=-1) for n in (4, 5))
    own = torch.tensor([1, 3])
    anchors = q[own].requires_grad_()
    got = nearest_contrast(anchors, [q, k], own, 0.5, count)
    for i, anchor in enumerate(own.tolist()):
        others = [v for j, v in enumerate([*q, *k]) if j != anchor]
        s = [float(q[anchor] @ v) / 0.5 for v in others]
        top = sorted(s, reverse=True)[:count]
        total = math.log(sum(math.exp(v) for v in s))
        close(got[i], -sum(v - total for v in top) / len(top))
    got.sum().backward()
    assert anchors.grad.isfinite().all()
    close(nearest_contrast(q[:1], [q[:1]], torch.tensor([0]), 0.5, 3), [0.0])


def test_smoothed_targets_by_hand():
    close(smoothed(torch.tensor([0, 2]), 3, 0.3), [[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]])
    close(smoothed(torch.tensor([1]), 2, 0.0), [[0, 1]])


# Mixup


def batch_of(u, views=(), candidates=None, index=None):
    """A batch whose random numbers are given."""
    index = torch.arange(len(u)) if index is None else index
    return Batch(index, tuple(views), candidates, lambda k: u[:, :k])


def test_mixup_by_hand():
    u = torch.tensor([[0.5, 0.2], [0.1, 0.9], [0.3, 0.9]])  # in the order 1, 2, 0
    mix = Mixture(batch_of(u), 1)
    assert mix.share == 0.8  # the larger of 0.2 and 0.8
    close(mix(torch.tensor([10.0, 20.0, 30.0])), [8 + 6, 16 + 2, 24 + 4])
    some = Mixture(batch_of(u), 1, torch.tensor([True, False, True]))
    close(some(torch.tensor([10.0, 20.0, 30.0])), [8 + 6, 20, 24 + 2])
    none = Mixture(batch_of(u), 1, torch.zeros(3, dtype=torch.bool))
    close(none(torch.tensor([10.0, 20.0, 30.0])), [10, 20, 30])


def test_the_weight_of_mixup_is_that_of_beta_4_4():
    draws = rng()
    shares = [Mixture(batch_of(torch.rand(1, 8, generator=draws)), 4).share for _ in range(4000)]
    assert min(shares) >= 0.5
    variance = np.mean((np.array(shares) - 0.5) ** 2)
    assert variance == pytest.approx(1 / 36, rel=0.06)  # of Beta(4, 4)


# Rates


@pytest.mark.parametrize("name", WITH_RATES)
def test_rates_are_given_or_estimated(name, monkeypatch):
    assert METHODS[name]().rates == Rates(0, 0)
    given = METHODS[name](rates=Rates(0.1, 0.25))
    assert (given.rates, given.outside, given.report()) == (
        Rates(0.1, 0.25),
        pytest.approx(0.35),
        {},
    )
    with pytest.raises(InputError, match=r"rates=0\.2: expected 'auto', or Rates"):
        METHODS[name](rates=0.2)
    monkeypatch.setattr(METHODS[name], "FEW", 5)
    monkeypatch.setattr(
        "candidly.methods.twins.estimate_rates", lambda *args, **kwargs: Rates(0.125, 0.25)
    )
    candidates = mask(*["110", "011"] * 4)
    method = METHODS[name](rates="auto", warmup=2)
    model = MLP((4,), 3, width=5, depth=1)
    start(method, candidates, model=model)
    found = []
    for epoch in range(4):
        method.epoch_start(epoch, lambda: torch.zeros(8, 3))
        found.append((method.outside, method.report().get("rate_open")))
    assert found == [(0, None), (0, None), (0.375, 0.25), (0.375, 0.25)]


# Trimmed PRODEN


def test_trimmed_without_a_share_is_proden():
    candidates = random_sets(9, 4, rng())
    methods = [start(cls(), candidates) for cls in (Trimmed, PRODEN)]
    for epoch in range(4):
        for method in methods:
            method.epoch_start(epoch, lambda: torch.randn(9, 4, generator=rng(7)))
        given = batch(range(9), torch.randn(2, 9, 4, generator=rng(epoch)), candidates)
        close(*(method.loss(nn.Identity(), given) for method in methods))
        close(methods[0].confidence, methods[1].confidence)


def test_trimmed_leaves_out_the_rows_with_the_least_mass_on_their_candidates():
    candidates = mask("100", "010", "011", "110")
    method = start(Trimmed(rates=Rates(0.25, 0.25), warmup=1), candidates)
    output = logs([0.6, 0.2, 0.2], [0.5, 0.3, 0.2], [0.1, 0.45, 0.45], [0.3, 0.1, 0.6])
    views = [output]
    plain = start(PRODEN(), candidates).loss(nn.Identity(), batch(range(4), views, candidates))
    # masses 0.6, 0.3, 0.9, 0.4: rows 1 and 3 are left out, after the warm-up
    for epoch, kept in ((0, [1, 1, 1, 1]), (1, [1, 0, 1, 0])):
        method.epoch_start(epoch, lambda: output)
        got = method.loss(nn.Identity(), batch(range(4), views, candidates))
        if epoch == 0:
            close(got, plain)
        assert (got > 0).tolist() == [bool(k) for k in kept]
    close(method.confidence[3], [0.75, 0.25, 0])  # it is updated all the same


# ALIM


def same_settings(seed):
    return {
        "width": 5,
        "queue_size": 6,
        "key_momentum": 0.6,
        "prototype_momentum": 0.7,
        "temperature": 0.3,
        "prototype_start": seed % 2,
    }


def consecutive(methods, candidates, model, epochs=4):
    """Losses and confidences of several methods on the same batches, batch by batch."""
    for epoch in range(epochs):
        for method in methods:
            method.epoch_start(epoch, lambda: None)
        for b, index in enumerate((range(5), range(5, 12))):
            views = torch.randn(2, len(index), 3, generator=rng(10 * epoch + b))
            yield (
                [m.loss(model, batch(index, views, candidates)) for m in methods],
                [m.confidence.clone() for m in methods],
            )


def twins_of_pico(cls, seed, **settings):
    candidates = random_sets(12, 4, rng(seed))
    model = MLP((3,), 4, width=6, depth=1)
    methods = []
    for kind, given in ((cls, settings), (PiCO, {})):
        torch.manual_seed(seed)
        method = kind(**same_settings(seed), **given)
        methods.append(start(method, candidates, model=model, epochs=6))
    return candidates, model, methods


@pytest.mark.parametrize("settings", [{}, {"rates": Rates(0.3, 0.3), "start": 99}])
@pytest.mark.parametrize("seed", range(3))
def test_alim_without_weight_and_mixup_is_pico(seed, settings):
    candidates, model, methods = twins_of_pico(ALIM, seed, mixup=0, **settings)
    for losses, confidences in consecutive(methods, candidates, model):
        close(*losses)
        close(*confidences)


@pytest.mark.parametrize("normalise", ["onehot", "scale"])
def test_alim_moves_the_confidence_by_hand(normalise):
    candidates = mask("100", "110", "001", "111")
    settings = {"rates": Rates(0.25, 0.25), "start": 1, "mixup": 0, "temperature": 0.5}
    method = bare(ALIM, candidates, epoch=1, normalise=normalise, **settings)
    assert method.weight == 0  # no row has been seen yet
    method.prototypes.copy_(torch.eye(3))
    x = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.6, 0.8], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    q = x / x.norm(dim=1, keepdim=True)
    for _ in range(2):
        method.move_confidence(batch(range(4), (), candidates), q)
    # log ratios: (.6 - .8) / .5, (.6 - .8) / .5, (1 - 0) / .5, full
    close(method.margins, [-0.4, -0.4, 2, math.inf])
    method.epoch_start(2, lambda: None)
    assert method.weight == 1.0  # the third smallest ratio is above 1
    method.given = Rates(0.25, 0.0)
    method.epoch_start(2, lambda: None)
    assert method.weight == pytest.approx(math.exp(-0.4))
    method.weight = 0.9
    before = method.confidence.clone()
    method.move_confidence(batch(range(4), (), candidates), q)
    for i, (row, Y) in enumerate(zip(q.tolist(), candidates.tolist(), strict=True)):
        s = [p * (1 if y else 0.9) for p, y in zip(softmax([v / 0.5 for v in row]), Y, strict=True)]
        target = [v / sum(s) for v in s]
        if normalise == "onehot":
            target = [float(v == max(s)) for v in s]
        close(
            method.confidence[i], method.phi * before[i] + (1 - method.phi) * torch.tensor(target)
        )
    if normalise == "onehot":  # exp(.4) * .9 > 1: rows 0 and 1 choose a non-candidate
        moved = method.confidence - method.phi * before
        assert moved.argmax(-1).tolist() == [1, 2, 2, 0]


def test_the_weight_of_alim_starts_at_its_share_of_the_training():
    candidates = mask("10", "01")
    method = start(ALIM(rates=Rates(0.5, 0.0), start=0.3), candidates, epochs=10)
    method.margins.fill_(math.log(0.25))
    weights = []
    for epoch in (0, 2, 3, 9):
        method.epoch_start(epoch, lambda: None)
        weights.append(method.weight)
    assert weights == pytest.approx([0, 0, 0.25, 0.25])


def test_alim_adds_the_mixup_of_the_first_views():
    candidates = mask("110", "011", "101")
    u = torch.tensor([[0.5, 0.2], [0.1, 0.9], [0.3, 0.9]])
    views = torch.randn(2, 3, 3, generator=rng())
    results = []
    for mixup in (0, 0.5):
        method = bare(ALIM, candidates, mixup=mixup, concentration=1)
        results.append(method.loss(nn.Identity(), batch_of(u, views, candidates)))
    x = [0.8 * views[0][i] + 0.2 * views[0][j] for i, j in ((0, 2), (1, 0), (2, 1))]
    w = method.confidence
    t = [0.8 * w[i] + 0.2 * w[j] for i, j in ((0, 2), (1, 0), (2, 1))]
    expected = [-(a * b.log_softmax(0)).sum() for a, b in zip(t, x, strict=True)]
    close(results[1] - results[0], 0.5 * torch.stack(expected))


# PiCO+


@pytest.mark.parametrize("seed", range(3))
def test_pico_plus_without_unreliable_rows_and_additions_is_pico(seed):
    settings = {"mixup": 0, "reliable_weight": 1.0, "unreliable_weight": 0.0, "prot_start": 0}
    candidates, model, methods = twins_of_pico(PiCOPlus, seed, **settings)
    for losses, confidences in consecutive(methods, candidates, model):
        close(*losses)
        close(*confidences)


def test_pico_plus_finds_the_rows_far_from_the_prototypes_of_their_candidates():
    candidates = mask("10", "10", "01", "11")
    method = bare(PiCOPlus, candidates, rates=Rates(0.25, 0.25), prot_start=0)
    assert method.reliable.all()
    method.prototypes.copy_(unit(0, 90))
    scores = unit(10, 80, 80, 45) @ method.prototypes.T
    method.move_confidence(batch(range(4), (), candidates), scores)
    c = [math.cos(math.radians(d)) for d in (10, 80, 10, 45)]
    close(method.distance, [-v for v in c])
    method.epoch_start(2, lambda: None)
    assert method.reliable.tolist() == [True, False, True, False]
    assert method.started


def test_pico_plus_starts_late():
    method = start(PiCOPlus(prot_start=0.3, knn_start=0.5), mask("10", "01"), epochs=10)
    states = []
    for epoch in (2, 3, 4, 5):
        method.epoch_start(epoch, lambda: None)
        states.append((method.started, method.knn))
    assert states == [(False, False), (True, False), (True, False), (True, True)]


@pytest.mark.parametrize("knn", [False, True])
def test_pico_plus_loss_equals_the_naive_loop(knn):
    """One batch with a filled queue; the first views are logits and embeddings at once."""
    T, n = 0.5, 4
    candidates = mask("110", "011", "101", "111")
    method = bare(
        PiCOPlus, candidates, epoch=1, temperature=T, queue_size=5, neighbours=2,
        knn_start=1 if knn else 99, mixup=0, prot_start=0,
    )  # fmt: skip
    first = torch.randn(2, n, 3, generator=rng(1))
    method.loss(nn.Identity(), batch(range(n), first, candidates))
    method.epoch_start(2, lambda: None)
    method.reliable = torch.tensor([True, False, True, True])
    method.queue_reliable[1] = False
    queue, labels = method.queue[:n].tolist(), method.queue_labels[:n].tolist()
    trusted = method.queue_reliable[:n].tolist()
    mu = method.prototypes.tolist()
    views = torch.randn(2, n, 3, generator=rng(2))
    got = method.loss(nn.Identity(), batch(range(n), views, candidates))

    def dot(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True))

    def normal(v):
        return [x / math.sqrt(dot(v, v)) for x in v]

    q, k = ([normal(row) for row in view.tolist()] for view in views)
    pseudo = [
        max((j for j in range(3) if candidates[i, j]), key=lambda j, i=i: views[0][i, j].item())
        for i in range(n)
    ]
    flags = method.reliable.tolist()
    for i in range(n):
        keys = [(q[j], pseudo[j], flags[j]) for j in range(n) if j != i]
        keys += list(zip(k, pseudo, flags, strict=True))
        keys += list(zip(queue, labels, trusted, strict=True))
        s = [dot(q[i], key) / T for key, _, _ in keys]
        total = math.log(sum(math.exp(v) for v in s))
        log_p = [v - total for v in s]
        alike = [label == pseudo[i] for _, label, _ in keys]
        of_all = [v for v, same in zip(log_p, alike, strict=True) if same]
        of_reliable = [
            v for v, same, key in zip(log_p, alike, keys, strict=True) if same and key[2]
        ]
        nearest = sorted(log_p, reverse=True)[:2]
        contrast = -0.1 * sum(of_all) / len(of_all)
        log_y = [math.log(p) for p in softmax(views[0][i].tolist())]
        if flags[i]:
            target, weight = method.confidence[i].tolist(), 2.0
            contrast -= sum(of_reliable) / len(of_reliable)
        else:
            target, weight = softmax([dot(q[i], m) / T for m in mu]), 0.1
            contrast -= 0.1 * sum(nearest) / 2 if knn else 0.0
        close(got[i], -weight * dot(target, log_y) + 0.5 * contrast)
    # The queue has five slots; its newest entries are those of this batch
    assert method.queue_reliable.tolist() == [False, True, True, True, True]


def test_pico_plus_mixes_targets_of_both_kinds():
    candidates = mask("110", "011")
    u = torch.tensor([[0.5, 0.2], [0.1, 0.9]])
    views = torch.randn(2, 2, 3, generator=rng())
    results = []
    for mixup in (0, 1):
        method = bare(PiCOPlus, candidates, epoch=3, mixup=mixup, concentration=1)
        method.prototypes.copy_(torch.eye(3))
        method.reliable = torch.tensor([True, False])
        results.append(method.loss(nn.Identity(), batch_of(u, views, candidates)))
    guess = (nn.functional.normalize(views[0][1], dim=0) / 0.07).softmax(0)
    t, x = [method.confidence[0], guess], views[0]
    expected = [
        -((0.8 * t[i] + 0.2 * t[1 - i]) * (0.8 * x[i] + 0.2 * x[1 - i]).log_softmax(0)).sum()
        for i in (0, 1)
    ]
    close(results[1] - results[0], torch.stack(expected))


# PALS


def test_pals_warms_up_as_cc_does():
    candidates = random_sets(6, 3, rng())
    method = start(PALS(warmup=2), candidates, epoch=1)
    views = torch.randn(2, 6, 3, generator=rng(1))
    got = method.loss(nn.Identity(), batch(range(6), views, candidates))
    close(got, cc(views[0], candidates))
    close(method.features, views[0] / views[0].norm(dim=1, keepdim=True))
    close(method.predicted, views[0].softmax(-1))


def labelled(candidates, features, predicted, epoch=5, **settings):
    """PALS after its pseudo-labels were made from given features and predictions."""
    method = start(PALS(warmup=1, **settings), candidates, epochs=10)
    method.features.copy_(features)
    method.predicted.copy_(torch.as_tensor(predicted))
    method.epoch_start(epoch, lambda: None)
    return method


def test_pals_labels_by_hand():
    candidates = mask("110", "100", "001", "011", "110", "011")
    features = torch.cat([unit(0, 10, 14, 80, 100, 95), torch.zeros(6, 1)], 1)
    even = [[0.34, 0.33, 0.33]] * 6
    method = labelled(candidates, features, even, neighbours=2)
    assert method.voters == 1  # half of the mean number of rows of a class
    # A row is its own nearest; ties go to the most probable class.
    assert method.labels.tolist() == [0, 0, 2, 1, 0, 1]
    method.voters = 2
    method.make_labels()
    # The nearest others of the last three rows are rows 5, 5 and 4.
    assert method.labels.tolist()[3:] == [1, 1, 1]
    sure = [[0.34, 0.33, 0.33]] * 5 + [[0.02, 0.0, 0.98]]
    method = labelled(candidates, features, sure, neighbours=1)
    assert method.labels[5] == 2
    # 0.45 to 0.35 over the training
    assert method.confident == pytest.approx(0.40)


def test_a_confident_prediction_votes_beside_the_candidates():
    candidates = mask("10", "10", "10", "01")
    features = unit(0, 20, 40, 90)
    predicted = [[0.1, 0.9], [0.1, 0.9], [0.9, 0.1], [0.1, 0.9]]
    assert labelled(candidates, features, predicted).labels.tolist() == [1, 1, 0, 1]
    assert labelled(
        candidates, features, predicted, confident_start=1.0, confident_end=1.0
    ).labels.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("augmentation", ["same", "own"])
def test_pals_loss_by_hand(augmentation):
    candidates = mask("110", "011", "101")
    method = start(
        PALS(warmup=1, augmentation=augmentation, concentration=1, smoothing=0.3), candidates
    )
    assert method.views == {"same": ("weak", "weak"), "own": ("weak", "strong")}[augmentation]
    method.epoch_start(3, lambda: None)
    method.labels = torch.tensor([0, 1, 2])
    method.reliable = torch.tensor([True, False, True])
    u = torch.tensor([[0.5, 0.2], [0.1, 0.9], [0.3, 0.9]])
    views = torch.randn(2, 3, 3, generator=rng())
    got = method.loss(nn.Identity(), batch_of(u, views, candidates))
    t = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
    expected = torch.zeros(3)
    for i, j in ((0, 2), (2, 0)):
        target = 0.8 * t[i] + 0.2 * t[j]
        for view in views:
            expected[i] -= (target * (0.8 * view[i] + 0.2 * view[j]).log_softmax(0)).sum() / 2
    close(got, expected)
    close(method.predicted, views[0].softmax(-1))


def test_defaults_are_those_of_the_page():
    alim = ALIM()
    assert (alim.start, alim.mixup, alim.concentration, alim.normalise) == (0.08, 1, 4, "onehot")
    plus = PiCOPlus()
    assert (plus.prot_start, plus.knn_start, plus.neighbours) == (0.1, 0.12, 16)
    assert (plus.reliable_weight, plus.unreliable_weight) == (2, 0.1)
    for method in (alim, plus):
        assert (method.contrast, method.temperature, method.queue_size) == (0.5, 0.07, 8192)
        assert method.views == ("weak", "weak")
    assert GCE().exponent == 0.7
    assert Trimmed().warmup == 0.1


@pytest.mark.parametrize("cls", [ALIM, PiCOPlus])
def test_settings_of_pico_are_settings_here(cls):
    assert cls(augmentation="own", queue_size=3).views == ("resized", "resized_strong")
    assert cls(queue_size=3).settings["queue_size"] == 3
    assert cls().settings["contrast"] == 0.5
