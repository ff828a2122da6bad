"""The six compared methods: values by hand, and every batch against a loop over examples.

The loops are written from the formulas in docs/methods.md, not from the source. Where a method
needs no features, the model is the identity: the views are the logits.
"""

import copy
import math
from collections import deque

import pytest
import torch
from torch import nn

from candidly.errors import InputError
from candidly.methods import METHODS, Batch
from candidly.tensors.nets import MLP

CC, PRODEN, LWS, CAVL, PiCO, CRDPLL = (
    METHODS[k] for k in ("cc", "proden", "lws", "cavl", "pico", "crdpll")
)
NAMES = ("cc", "proden", "lws", "cavl", "pico", "crdpll")


pytestmark = pytest.mark.usefixtures("float64")


def close(got, expected):
    torch.testing.assert_close(
        torch.as_tensor(got), torch.as_tensor(expected).to(got), rtol=1e-9, atol=1e-12
    )


def mask(*rows):
    return torch.tensor([[ch == "1" for ch in row] for row in rows])


def start(method, candidates, *, model=None, epochs=10, epoch=0):
    method.epochs = epochs
    method.setup(model or nn.Identity(), candidates, torch.Generator().manual_seed(0))
    method.epoch_start(epoch, lambda: None)
    return method


def batch(index, views, candidates):
    index = torch.as_tensor(index)
    return Batch(index, tuple(views), candidates[index], lambda k: torch.rand(len(index), k))


def random_sets(n, c, rng):
    """Non-empty candidate sets, among them a full one and a singleton."""
    candidates = torch.rand(n, c, generator=rng) < 0.5
    candidates[torch.arange(n), torch.randint(c, (n,), generator=rng)] = True
    candidates[0] = True
    candidates[-1] = torch.arange(c) == 0
    return candidates


def softmax(g):
    top = max(g)
    e = [math.exp(v - top) for v in g]
    return [v / sum(e) for v in e]


def mean_over(views):
    return [sum(column) / len(views) for column in zip(*views, strict=True)]


def cross_entropy(w, g):
    return -sum(wj * math.log(pj) for wj, pj in zip(w, softmax(g), strict=True))


def shares(p, labels):
    total = sum(p[j] for j in labels)
    return [p[j] / total if j in labels else 0.0 for j in range(len(p))]


# One example of one batch: (stored w, logits of each view, candidates as indices, epoch) -> its
# loss and its new w.


def naive_cc(w, views, Y, epoch, epochs):
    return sum(-math.log(sum(softmax(g)[j] for j in Y)) for g in views) / len(views), w


def naive_proden(w, views, Y, epoch, epochs):
    loss = sum(cross_entropy(w, g) for g in views) / len(views)
    return loss, shares(mean_over([softmax(g) for g in views]), Y)


def naive_lws(w, views, Y, epoch, epochs):
    loss = 0.0
    for g in views:
        for j, gj in enumerate(g):
            loss += w[j] / (1 + math.exp(gj)) if j in Y else 1.7 * w[j] / (1 + math.exp(-gj))
    others = [j for j in range(len(w)) if j not in Y]
    p = mean_over([softmax(g) for g in views])
    outside = shares(p, others) if others else [0.0] * len(w)
    return loss / len(views), [a + b for a, b in zip(shares(p, Y), outside, strict=True)]


def naive_cavl(w, views, Y, epoch, epochs):
    loss = sum(cross_entropy(w, g) for g in views) / len(views)
    g = mean_over(views)
    best = max(Y, key=lambda j: g[j] * abs(1 - g[j]))
    return loss, [float(j == best) for j in range(len(w))]


def naive_official_cavl(w, views, Y, epoch, epochs):
    g = mean_over(views)
    values = [g[j] * abs(1 - g[j]) * (j in Y) for j in range(len(w))]
    best = values.index(max(values))
    return naive_cavl(w, views, Y, epoch, epochs)[0], [float(j == best) for j in range(len(w))]


def naive_crdpll(w, views, Y, epoch, epochs):
    p = [softmax(g) for g in views]
    negative = -sum(math.log(1 - p[0][j] + 1e-7) for j in range(len(w)) if j not in Y)
    kl = sum(w[j] * math.log(w[j] / pv[j]) for pv in p for j in range(len(w)) if w[j] > 0)
    geometric = [(a * b * c) ** (1 / 3) for a, b, c in zip(*p, strict=True)]
    return negative + min(epoch / (epochs / 2), 1) * kl, shares(geometric, Y)


CASES = {
    "cc": (CC, naive_cc, 2, None),
    "proden": (PRODEN, naive_proden, 2, "confidence"),
    "proden-one-view": (PRODEN, naive_proden, 1, "confidence"),
    "lws": (lambda: LWS(leverage=1.7), naive_lws, 2, "weights"),
    "cavl": (CAVL, naive_cavl, 2, "confidence"),
    "cavl-official": (lambda: CAVL(official_mask=True), naive_official_cavl, 2, "confidence"),
    "crdpll": (CRDPLL, naive_crdpll, 3, "confidence"),
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", CASES)
def test_consecutive_batches_equal_the_naive_loop(name, seed):
    make, step, n_views, state = CASES[name]
    rng = torch.Generator().manual_seed(seed)
    n, c, epochs = 9, 2 + seed, 7
    candidates = random_sets(n, c, rng)
    method = start(make(), candidates, epochs=epochs)
    Y = [[j for j in range(c) if row[j]] for row in candidates.tolist()]
    w = [[1 / c if name == "lws" else (j in Yi) / len(Yi) for j in range(c)] for Yi in Y]
    for epoch in range(4):
        method.epoch_start(epoch, lambda: None)
        for size in (5, 1, 3):
            index = torch.randperm(n, generator=rng)[:size]
            views = [2 * torch.randn(size, c, generator=rng) for _ in range(n_views)]
            got = method.loss(nn.Identity(), batch(index, views, candidates))
            expected = []
            for place, i in enumerate(index.tolist()):
                loss, w[i] = step(w[i], [v[place].tolist() for v in views], Y[i], epoch, epochs)
                expected.append(loss)
            close(got, expected)
            if state:
                close(getattr(method, state), w)  # all rows: those not in the batch stay


@pytest.mark.parametrize("name", CASES)
def test_gradient_is_the_slope_of_the_naive_loss(name):
    """Also: no gradient through the stored weights, and each view has its part."""
    make, step, n_views, state = CASES[name]
    rng = torch.Generator().manual_seed(3)
    candidates = random_sets(3, 4, rng)
    Y = [[j for j in range(4) if row[j]] for row in candidates.tolist()]
    method = start(make(), candidates, epoch=2)
    for _ in range(2):  # the second batch meets weights made by the first
        w = getattr(method, state).tolist() if state else candidates.double().tolist()
        views = [torch.randn(3, 4, generator=rng).requires_grad_() for _ in range(n_views)]
        method.loss(nn.Identity(), batch(range(3), views, candidates)).sum().backward()
        assert not any(b.requires_grad for b in method.buffers())
    for v in range(n_views):
        for i in range(3):
            for j in range(4):
                ends = []
                for h in (1e-5, -1e-5):
                    g = [view[i].tolist() for view in views]
                    g[v][j] += h
                    ends.append(step(w[i], g, Y[i], 2, 10)[0])
                assert views[v].grad[i, j].item() == pytest.approx(
                    (ends[0] - ends[1]) / 2e-5, abs=1e-8
                )


def logs(*rows):
    return torch.tensor(rows).log()


def test_cc_by_hand():
    candidates = mask("110", "111", "001")
    views = (
        logs([0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.5, 0.25, 0.25]),
        logs([0.1, 0.1, 0.8], [1 / 3] * 3, [0.25] * 3),
    )
    got = start(CC(), candidates).loss(nn.Identity(), batch([0, 1, 2], views, candidates))
    close(got, [-(math.log(0.8) + math.log(0.2)) / 2, 0, (math.log(4) + math.log(3)) / 2])


def test_proden_by_hand():
    candidates = mask("110", "011")
    method = start(PRODEN(), candidates)
    close(method.confidence, [[0.5, 0.5, 0], [0, 0.5, 0.5]])
    views = logs([0.4, 0.1, 0.5]), logs([0.2, 0.1, 0.7])
    got = method.loss(nn.Identity(), batch([0], views, candidates))
    close(got, [-(math.log(0.4 * 0.1) + math.log(0.2 * 0.1)) / 4])  # with the weights of before
    close(method.confidence, [[0.75, 0.25, 0], [0, 0.5, 0.5]])  # mean softmax .3, .1
    close(
        method.loss(nn.Identity(), batch([0], views[:1], candidates)),
        [-0.75 * math.log(0.4) - 0.25 * math.log(0.1)],
    )
    close(method.confidence[0], [0.8, 0.2, 0])


def test_lws_by_hand():
    candidates = mask("1100", "1111")
    method = start(LWS(), candidates)
    close(method.weights, torch.full((2, 4), 0.25))
    views = 2 * [logs([0.3, 0.1, 0.2, 0.4], [0.1, 0.2, 0.3, 0.4])]
    got = method.loss(nn.Identity(), batch([0, 1], views, candidates))
    s = {p: p / (1 + p) for p in (0.1, 0.2, 0.3, 0.4)}  # sigmoid(log p)
    close(
        got, [(1 - s[0.3] + 1 - s[0.1] + s[0.2] + s[0.4]) / 4, sum(1 - v for v in s.values()) / 4]
    )
    close(method.weights, [[0.75, 0.25, 1 / 3, 2 / 3], [0.1, 0.2, 0.3, 0.4]])
    method.leverage = 2.0
    got = method.loss(nn.Identity(), batch([0], [v[:1] for v in views], candidates))
    close(got, [0.75 * (1 - s[0.3]) + 0.25 * (1 - s[0.1]) + 2 * (s[0.2] / 3 + s[0.4] * 2 / 3)])


def test_lws_without_non_candidates_has_no_outside_term():
    candidates = mask("11")
    methods = [start(LWS(leverage=b), candidates) for b in (0.0, 5.0)]
    for _ in range(2):
        values = [
            m.loss(nn.Identity(), batch([0], [logs([0.9, 0.1])], candidates)) for m in methods
        ]
        close(*values)
    close(methods[1].weights, [[0.9, 0.1]])


def test_cavl_takes_the_largest_activation_value_not_the_largest_logit():
    candidates = mask("111", "111", "110", "101")
    method = start(CAVL(), candidates)
    close(method.confidence[2:], [[0.5, 0.5, 0], [0.5, 0, 0.5]])
    g = torch.tensor([[0.9, 0.5, -3.0], [1.0, 0.1, -1.0], [0.5, 0.9, 9.0], [-2.0, 3.0, -1.0]])
    got = method.loss(nn.Identity(), batch(range(4), [g], candidates))
    close(got[0], -g[0].log_softmax(0).mean())
    # .25 > .09; .09 > 0; 9 is no candidate
    close(method.confidence, [[0, 1, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]])
    close(
        method.loss(nn.Identity(), batch([0], [g[:1]], candidates)),
        [-g[0].log_softmax(0)[1].item()],
    )


def test_cavl_official_mask_picks_a_non_candidate_when_all_candidates_are_negative():
    candidates = mask("1100", "1100")
    g = torch.tensor([[-1.0, -2.0, -3.0, 4.0], [-1.0, 0.5, 2.0, 4.0]])
    for official, expected in ((False, [1, 0, 0, 0]), (True, [0, 0, 1, 0])):
        method = start(CAVL(official_mask=official), candidates)
        method.loss(nn.Identity(), batch([0, 1], [g], candidates))
        close(method.confidence, [expected, [0, 1, 0, 0]])  # a positive candidate wins either way


def test_cavl_takes_the_mean_logits_of_the_views():
    candidates = mask("11")
    method = start(CAVL(), candidates)
    # Mean 1: value 0; mean value of (6, -2): 2
    views = (torch.tensor([[3.0, 0.5]]), torch.tensor([[-1.0, 0.5]]))
    method.loss(nn.Identity(), batch([0], views, candidates))
    close(method.confidence, [[0, 1]])


def test_crdpll_by_hand():
    candidates = mask("110", "111")
    method = start(CRDPLL(), candidates, epochs=4, epoch=1)  # ramp 2: lambda 1/2
    one = (
        logs([0.5, 0.1, 0.4], [0.5, 0.25, 0.25]),
        logs([0.4, 0.1, 0.5], [1 / 3] * 3),
        logs([0.4, 0.8, 0.1], [1 / 3] * 3),
    )
    p2 = [0.4 / 1.3, 0.8 / 1.3]
    got = method.loss(nn.Identity(), batch([0, 1], one, candidates))
    kl = 3 * math.log(0.5) - math.log(0.5 * 0.1 * 0.4 * 0.1 * p2[0] * p2[1]) / 2
    full = math.log(1 / 3) - math.log(0.5 * 0.25 * 0.25) / 3
    close(got, [-math.log(0.6 + 1e-7) + kl / 2, full / 2])
    root = [(0.5 * 0.4 * 0.4) ** (1 / 3), (0.1 * 0.1 * 0.8) ** (1 / 3)]
    close(method.confidence[0], [root[0] / sum(root), root[1] / sum(root), 0])
    close(method.confidence[1], [2 ** (1 / 3) / (2 ** (1 / 3) + 2), *2 * [1 / (2 ** (1 / 3) + 2)]])


def test_crdpll_consistency_ramps_up_over_half_of_the_training():
    candidates = mask("10")
    weights = []
    for epoch in (0, 1, 3, 6, 11):
        method = start(CRDPLL(), candidates, epochs=12, epoch=epoch)
        loss = method.loss(nn.Identity(), batch([0], 3 * [torch.zeros(1, 2)], candidates))
        weights.append((loss + math.log(0.5 + 1e-7)).item() / (3 * math.log(2)))
    assert weights == pytest.approx([0, 1 / 6, 0.5, 1, 1])
    assert start(CRDPLL(), candidates, epochs=1).weight == 0


def test_views():
    assert [METHODS[k]().views for k in NAMES[:4]] == [None] * 4
    assert CRDPLL().views == ("weak", "weak", "weak")
    assert CRDPLL(augmentation="own").views == ("weak", "strong", "strong")
    assert PiCO().views == ("weak", "weak")
    assert PiCO(augmentation="own").views == ("resized", "resized_strong")
    assert PiCO(augmentation="mild").views == ("resized", "resized_mild")
    for method, known in ((PiCO, "same, own, mild"), (CRDPLL, "same, own")):
        with pytest.raises(
            InputError, match=rf"augmentation 'other' is unknown. There are: {known}"
        ):
            method(augmentation="other")


def test_defaults_are_those_of_the_page():
    assert LWS().leverage == 1
    assert not CAVL().official_mask
    assert CRDPLL().ramp == 0.5
    pico = PiCO()
    assert (pico.contrast, pico.temperature, pico.key_momentum) == (0.5, 0.07, 0.999)
    assert (pico.prototype_momentum, pico.prototype_start, pico.queue_size, pico.width) == (
        0.99,
        1,
        8192,
        128,
    )
    assert (pico.confidence_start, pico.confidence_end) == (0.95, 0.8)


@pytest.mark.parametrize("name", ["cc", "proden", "cavl"])
def test_singletons_reduce_to_cross_entropy(name):
    candidates = torch.eye(4, dtype=torch.bool)
    method = start(METHODS[name](), candidates)
    for _ in range(3):
        views = torch.randn(4, 4), torch.randn(4, 4)
        got = method.loss(nn.Identity(), batch(range(4), views, candidates))
        close(got, -sum(v.log_softmax(-1).diagonal() for v in views) / 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_full_sets_never_give_nan(name, epoch, scale, dtype):
    torch.set_default_dtype(dtype)
    torch.manual_seed(0)
    candidates = torch.ones(6, 3, dtype=torch.bool)
    model = MLP((4,), 3, width=5, depth=1)
    method = start(METHODS[name](), candidates, model=model, epoch=epoch)
    for _ in range(3):
        views = [scale * torch.randn(6, 4) for _ in range(len(method.views or (1, 2)))]
        losses = method.loss(model, batch(range(6), views, candidates))
        assert losses.isfinite().all()
        losses.sum().backward()
        for p in [*model.parameters(), *method.parameters()]:
            assert p.grad is None or p.grad.isfinite().all()
        assert all(b.isfinite().all() for b in method.buffers())


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_leaves_its_inputs_alone_and_gives_one_loss_per_example(name):
    rng = torch.Generator().manual_seed(0)
    candidates, model = random_sets(5, 3, rng), MLP((4,), 3, width=5, depth=1)
    method = start(METHODS[name](), candidates, model=model, epoch=1)
    given = batch(
        [3, 1], [torch.randn(2, 4) for _ in range(len(method.views or (1, 2)))], candidates
    )
    before = copy.deepcopy(
        (given.index, given.views, given.candidates, candidates, model.state_dict())
    )
    assert method.loss(model, given).shape == (2,)
    after = (given.index, given.views, given.candidates, candidates, model.state_dict())
    torch.testing.assert_close(after, before, rtol=0, atol=0)


# PiCO


def bare_pico(candidates, *, epoch=1, epochs=10, **settings):
    """PiCO that embeds an example by its view, normalised: everything can be done by hand."""
    method = start(
        PiCO(width=candidates.shape[1], **settings), candidates, epoch=epoch, epochs=epochs
    )
    method.projector, method.keys = nn.Identity(), nn.ModuleList([nn.Identity(), nn.Identity()])
    return method


def unit(*degrees):
    """Points on the unit circle."""
    return torch.tensor([[math.cos(math.radians(d)), math.sin(math.radians(d))] for d in degrees])


def test_pico_starts_with_no_knowledge():
    method = start(PiCO(), mask("110", "111"), model=MLP((4,), 3, width=7, depth=1))
    close(method.confidence, [[0.5, 0.5, 0], [1 / 3] * 3])
    assert not method.prototypes.any()
    assert (method.queue_labels < 0).all()
    shapes = [tuple(p.shape) for p in method.projector.parameters()]
    assert shapes == [(7, 7), (7,), (128, 7), (128,)]
    assert isinstance(method.projector[1], nn.ReLU)


def test_pico_prototypes_move_example_by_example_and_are_normalised_once():
    candidates = mask("10", "10", "01")
    method = bare_pico(candidates, prototype_momentum=0.5)
    method.loss(nn.Identity(), batch([0, 1], [unit(0, 90)] * 2, candidates))
    r5 = math.sqrt(5)
    # (.25, .5), normalised; an unseen class stays at 0
    close(method.prototypes, [[1 / r5, 2 / r5], [0, 0]])
    method.loss(nn.Identity(), batch([2], [unit(180)] * 2, candidates))
    close(method.prototypes, [[1 / r5, 2 / r5], [-1, 0]])


def test_pico_prototypes_follow_the_first_view_and_the_best_candidate():
    candidates = mask("110")
    method = bare_pico(candidates)
    # Best candidate 1; view 2 would say 0
    views = (torch.tensor([[0.0, 3.0, 4.0]]), torch.tensor([[1.0, 0.0, 0.0]]))
    method.loss(nn.Identity(), batch([0], views, candidates))
    close(method.prototypes, [[0, 0, 0], [0, 0.6, 0.8], [0, 0, 0]])
    assert method.queue_labels[:2].tolist() == [1, -1]
    close(method.queue[0], [1, 0, 0])


def test_pico_confidence_meets_the_old_prototypes_and_the_loss_the_new_confidence():
    candidates = mask("11", "11")
    # phi = .95 - .15 * .4
    method = bare_pico(candidates, contrast=0.0, prototype_momentum=0.0, epoch=4)
    method.prototypes.copy_(unit(90, 0))
    q = unit(10, 80)  # pseudo-labels 0, 1: the new prototypes would give classes 0, 1
    got = method.loss(nn.Identity(), batch([0, 1], [q, q], candidates))
    close(method.prototypes, q)
    high, low = 0.89 * 0.5 + 0.11, 0.89 * 0.5
    close(method.confidence, [[low, high], [high, low]])
    log_p = q.log_softmax(-1)
    close(got, [-low * log_p[0, 0] - high * log_p[0, 1], -high * log_p[1, 0] - low * log_p[1, 1]])


def test_pico_confidence_goes_to_candidates_only():
    candidates = mask("011")
    method = bare_pico(candidates)
    method.prototypes.copy_(torch.tensor([[1.0, 0, 0], [-1.0, 0, 0], [-0.5, 0, 0]]))
    method.loss(nn.Identity(), batch([0], 2 * [torch.tensor([[1.0, 0, 0]])], candidates))
    phi = 0.95 - 0.15 / 10
    close(method.confidence, [[0, phi / 2, phi / 2 + 1 - phi]])


def test_pico_phi_falls_linearly_over_the_training():
    method = start(PiCO(), mask("11"), epochs=10)
    got = []
    for epoch in (0, 1, 5, 9):
        method.epoch_start(epoch, lambda: None)
        got.append(method.phi)
    assert got == pytest.approx([0.95, 0.935, 0.875, 0.815])


def test_pico_before_prototype_start_keeps_the_confidence_but_moves_the_prototypes():
    candidates = mask("11")
    method = bare_pico(candidates, prototype_start=3, epoch=2)
    method.loss(nn.Identity(), batch([0], [unit(30)] * 2, candidates))
    close(method.confidence, [[0.5, 0.5]])
    close(method.prototypes[0], unit(30)[0])
    method.epoch_start(3, lambda: None)
    method.loss(nn.Identity(), batch([0], [unit(30)] * 2, candidates))
    close(method.confidence, [[0.905 * 0.5 + 0.095, 0.905 * 0.5]])


def contrast(method, index, q, k, candidates):
    """The contrastive part alone: loss minus cross-entropy."""
    losses = method.loss(nn.Identity(), batch(index, [q, k], candidates))
    ce = -(method.confidence[torch.as_tensor(index)] * q.log_softmax(-1)).sum(-1)
    return (losses - ce) / method.contrast


def test_pico_moco_by_hand():
    candidates = mask("10", "10", "01")
    method = bare_pico(candidates, epoch=0, queue_size=3, temperature=0.5)
    # An empty queue: nothing to contrast
    close(contrast(method, [0, 1], unit(0, 90), unit(60, 90), candidates), [0, 0])
    got = contrast(method, [2], unit(90), unit(180), candidates)  # own key 0; queue sqrt(3)/2 and 1
    close(got, [math.log(1 + math.exp(math.sqrt(3)) + math.exp(2))])


def test_pico_contrast_by_hand():
    candidates = mask("10", "10", "01")
    method = bare_pico(candidates, queue_size=4, temperature=0.5)
    got = contrast(method, [0, 2], unit(0, 90), unit(60, 90), candidates)
    # Anchor 0: contrasts q1 (0), k0 (1/2), k1 (0), positive k0
    # Anchor 1: contrasts q0 (0), k0 (sqrt(3)/2), k1 (1), positive k1
    r3 = math.sqrt(3)
    first = -1 + math.log(1 + math.e + 1)
    close(got, [first, -2 + math.log(1 + math.exp(r3) + math.exp(2))])
    got = contrast(method, [0, 1], unit(0, 180), unit(0, 90), candidates)
    # both class 0; queue: 60 degrees (class 0), 90 degrees (class 1)
    logits = torch.tensor([[-2.0, 2, 0, 1, 0], [-2.0, -2, 0, -1, 0]])  # the other q, k0, k1, queue
    close(got, -logits.log_softmax(-1)[:, :4].mean(1))


def test_pico_total_loss_weighs_the_contrast_by_half():
    candidates = mask("10", "01")
    method, method0 = bare_pico(candidates), bare_pico(candidates, contrast=0.0)
    q, k = unit(0, 20), unit(10, 90)
    difference = [
        m.loss(nn.Identity(), batch([0, 1], [q, k], candidates)) for m in (method, method0)
    ]
    sims = (
        torch.stack([torch.cat([q[1:] @ q[0], k @ q[0]]), torch.cat([q[:1] @ q[1], k @ q[1]])])
        / 0.07
    )
    expected = -sims.log_softmax(-1)[[0, 1], [1, 2]] / 2
    close(difference[0] - difference[1], expected)


@pytest.mark.parametrize("epoch", [0, 1])
def test_pico_unfilled_slots_change_nothing(epoch):
    candidates = random_sets(6, 3, torch.Generator().manual_seed(1))
    small, large = (bare_pico(candidates, epoch=epoch, queue_size=size) for size in (6, 50))
    for index in ([0, 1, 2], [3, 4, 5]):
        views = torch.randn(2, 3, 3)
        close(*(m.loss(nn.Identity(), batch(index, views, candidates)) for m in (small, large)))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_pico_queue_holds_the_newest_keys_at_any_batch_size(size):
    candidates = mask(*["11"] * 12)
    method, expected, age = bare_pico(candidates, queue_size=size), deque(maxlen=size), 0
    for b in (2, 3, 1, 7, 5, 4, 12, 1):
        angles = [age + i for i in range(b)]
        k, age = unit(*angles), age + b
        method.loss(nn.Identity(), batch(range(b), [k, k], candidates))
        expected.extend(zip(angles, (k[:, 1] > k[:, 0]).long().tolist(), strict=True))
        filled = method.queue_labels >= 0
        angle = torch.atan2(*method.queue[filled].T.flip(0)).rad2deg().round().long().tolist()
        assert sorted(zip(angle, method.queue_labels[filled].tolist(), strict=True)) == sorted(
            expected
        )


def test_pico_keys_move_before_their_forward():
    candidates = mask("11", "11")
    model = MLP((2,), 2, width=3, depth=1)
    method = start(PiCO(width=2, key_momentum=0.75), candidates, model=model, epoch=1)
    old = copy.deepcopy(nn.ModuleList([model, method.projector]))
    with torch.no_grad():
        for p in [*model.parameters(), *method.projector.parameters()]:
            p.add_(torch.randn_like(p))
    new, x = [*model.parameters(), *method.projector.parameters()], torch.randn(2, 2)
    method.loss(model, batch([0, 1], [torch.randn(2, 2), x], candidates))
    for key, a, b in zip(method.keys.parameters(), old.parameters(), new, strict=True):
        close(key, 0.75 * a.detach() + 0.25 * b.detach())
    close(
        method.queue[:2],
        nn.functional.normalize(method.keys[1](method.keys[0].features(x)), dim=-1),
    )


class NaivePiCO:
    """PiCO one example at a time; the queue is a bounded list, without unfilled slots."""

    def __init__(self, method, model, candidates, epochs):
        self.m, self.epochs = method, epochs
        self.keys = copy.deepcopy(nn.ModuleList([model, method.projector]))
        self.Y = [[j for j, y in enumerate(row) if y] for row in candidates.tolist()]
        c = candidates.shape[1]
        self.w = [[(j in Y) / len(Y) for j in range(c)] for Y in self.Y]
        self.mu = [torch.zeros(method.width) for _ in range(c)]
        self.queue = deque(maxlen=method.queue_size)

    def embed(self, net, head, x):
        z = head(net.features(x[None]))[0]
        return z / (z**2).sum().sqrt()

    def batch(self, model, head, index, views, epoch):
        m = self.m
        with torch.no_grad():
            for key, query in zip(
                self.keys.parameters(), [*model.parameters(), *head.parameters()], strict=True
            ):
                key.copy_(m.key_momentum * key + (1 - m.key_momentum) * query)
            k = [self.embed(*self.keys, x) for x in views[1]]
        q = [self.embed(model, head, x) for x in views[0]]
        log_p = [model(x[None])[0].log_softmax(0) for x in views[0]]
        labels = [
            max(self.Y[i], key=lambda j, lp=lp: lp[j].item())
            for i, lp in zip(index, log_p, strict=True)
        ]
        scores = [[(qi.detach() @ mu).item() for mu in self.mu] for qi in q]
        for qi, label in zip(q, labels, strict=True):
            self.mu[label] = (
                m.prototype_momentum * self.mu[label] + (1 - m.prototype_momentum) * qi.detach()
            )
        self.mu = [mu / mu.norm() if mu.any() else mu for mu in self.mu]
        if epoch >= m.prototype_start:
            phi = 0.95 - (0.95 - 0.8) * epoch / self.epochs
            for i, s in zip(index, scores, strict=True):
                best = max(self.Y[i], key=lambda j, s=s: s[j])
                self.w[i] = [phi * wj + (1 - phi) * (j == best) for j, wj in enumerate(self.w[i])]
        losses = []
        for a, i in enumerate(index):
            ce = -sum(wj * lp for wj, lp in zip(self.w[i], log_p[a], strict=True))
            contrasts = [(k[a], True)] + [(kq, False) for kq, _ in self.queue]
            if epoch >= m.prototype_start:
                contrasts = [(q[o], labels[o] == labels[a]) for o in range(len(q)) if o != a]
                contrasts += [(k[o], labels[o] == labels[a]) for o in range(len(k))]
                contrasts += [(kq, label == labels[a]) for kq, label in self.queue]
            s = torch.stack([(q[a] * other).sum() / m.temperature for other, _ in contrasts])
            logs = [
                v - s.exp().sum().log()
                for v, (_, positive) in zip(s, contrasts, strict=True)
                if positive
            ]
            losses.append(ce + m.contrast * -sum(logs) / len(logs))
        self.queue.extend(zip(k, labels, strict=True))
        return torch.stack(losses)


def pico_pair(seed, *, n=12, epochs=6, **settings):
    torch.manual_seed(seed)
    candidates = random_sets(n, 4, torch.Generator().manual_seed(seed))
    model = MLP((3,), 4, width=6, depth=1)
    hyper = {
        "width": 5,
        "queue_size": 6,
        "key_momentum": 0.6,
        "prototype_momentum": 0.7,
        "temperature": 0.3,
    }
    method = start(PiCO(**hyper | settings), candidates, model=model, epochs=epochs)
    return candidates, model, method, NaivePiCO(method, model, candidates, epochs)


@pytest.mark.parametrize("prototype_start", [0, 1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_pico_consecutive_batches_equal_the_naive_loop(seed, prototype_start):
    candidates, model, method, naive = pico_pair(seed, prototype_start=prototype_start)
    for epoch in range(3):
        method.epoch_start(epoch, lambda: None)
        for size in (4, 1, 9, 3):  # 9 is larger than the queue
            index = torch.randperm(12)[:size]
            views = torch.randn(2, size, 3)
            got = method.loss(model, batch(index, views, candidates))
            close(got, naive.batch(model, method.projector, index.tolist(), views, epoch))
            close(method.confidence, naive.w)
            close(method.prototypes, torch.stack(naive.mu))
            with torch.no_grad():
                for p in [*model.parameters(), *method.projector.parameters()]:
                    p.add_(0.3 * torch.randn_like(p))


@pytest.mark.parametrize("epoch", [0, 1], ids=["moco", "prototypes"])
@pytest.mark.parametrize("seed", range(2))
def test_pico_gradients_equal_the_naive_loop_and_never_reach_the_keys(seed, epoch):
    candidates, model, method, naive = pico_pair(seed)
    method.epoch_start(epoch, lambda: None)
    learners = [*model.parameters(), *method.projector.parameters()]
    for index in (range(5), range(5, 9)):
        views = torch.randn(2, len(index), 3)
        naive_loss = naive.batch(model, method.projector, list(index), views, epoch).sum()
        expected = torch.autograd.grad(naive_loss, learners)
        got = torch.autograd.grad(
            method.loss(model, batch(index, views, candidates)).sum(), learners
        )
        for a, b in zip(got, expected, strict=True):
            close(a, b)
    assert all(g.any() for g in got)
    assert not any(p.requires_grad for p in method.keys.parameters())
    assert not any(b.requires_grad for b in method.buffers())


@pytest.mark.parametrize("epoch", [0, 1], ids=["moco", "prototypes"])
def test_pico_has_no_gradient_through_the_keys(epoch):
    candidates = mask("11", "11")
    method = bare_pico(candidates, epoch=epoch)
    q, k = unit(10, 80).requires_grad_(), unit(20, 60).requires_grad_()
    for _ in range(2):
        method.loss(nn.Identity(), batch([0, 1], [q, k], candidates)).sum().backward()
    assert q.grad.all()
    assert k.grad is None


def test_pico_takes_steps_from_the_first_epoch_on():
    candidates, model, method, _ = pico_pair(0)
    optimizer = torch.optim.SGD([*model.parameters(), *method.projector.parameters()], lr=0.1)
    for epoch in range(2):
        method.epoch_start(epoch, lambda: None)
        for index in (range(4), range(4, 12)):
            losses = method.loss(model, batch(index, torch.randn(2, len(index), 3), candidates))
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
            assert losses.isfinite().all()
