"""Training losses by hand, against a loop over examples and classes, and at their limits."""

import math

import pytest
import torch

from candidly import losses

P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.25, 0.25, 0.5]], dtype=torch.float64)
Y = torch.tensor([[True, False, True], [True, True, False], [True, True, True]])
SEEDS = range(6)


pytestmark = pytest.mark.usefixtures("float64")


def close(got, expected):
    torch.testing.assert_close(got, torch.as_tensor(expected).to(got), rtol=1e-9, atol=1e-12)


def random_case(seed):
    """Logits (b, c), non-empty candidate sets and non-negative weights; the last set is full."""
    rng = torch.Generator().manual_seed(seed)
    b, c = 2 + seed % 5, 2 + seed % 4
    candidates = torch.rand(b, c, generator=rng) < 0.5
    candidates[torch.arange(b), torch.randint(c, (b,), generator=rng)] = True
    candidates[-1] = True
    return 3 * torch.randn(b, c, generator=rng), candidates, torch.rand(b, c, generator=rng)


def log_p(g):
    top = max(g)
    total = top + math.log(sum(math.exp(v - top) for v in g))
    return [v - total for v in g]


def by_loop(formula, *arrays):
    """`formula` of one example at a time, on lists."""
    return [formula(*rows) for rows in zip(*(a.tolist() for a in arrays), strict=True)]


def test_soft_ce_by_hand():
    # The last one sums to 3
    targets = torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [2.0, 0.0, 1.0]])
    close(
        losses.soft_ce(P.log() + 7, targets), [-math.log(0.1) / 2, -math.log(0.1), 5 * math.log(2)]
    )


def test_cc_by_hand():
    close(losses.cc(P.log() - 3, Y), [-math.log(0.7), -math.log(0.2), 0])


def test_leveraged_by_hand():
    logits = torch.tensor([[0.0, math.log(3), -math.log(3)]])  # sigmoids 1/2, 3/4, 1/4
    weights = torch.tensor([[0.2, 0.3, 0.5]])
    inside, outside = 0.2 * 0.5 + 0.5 * 0.75, 0.3 * 0.75
    for leverage in (0.0, 1.0, 2.0):
        close(losses.leveraged(logits, weights, Y[:1], leverage), [inside + leverage * outside])
    close(
        losses.leveraged(logits, weights, ~Y[:1], 2.0), [0.3 * 0.25 + 2 * (0.2 * 0.5 + 0.5 * 0.25)]
    )


def test_negative_ce_by_hand():
    close(losses.negative_ce(P.log(), Y), [-math.log(0.7 + 1e-7), -math.log(0.2 + 1e-7), 0])
    close(losses.negative_ce(P.log(), ~Y)[0], -math.log(0.5 + 1e-7) - math.log(0.8 + 1e-7))


def test_kl_by_hand():
    targets = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    close(losses.kl(targets, P.log() + 1), [0, math.log(10), math.log(2)])


def test_supcon_by_hand():
    q = torch.tensor([[1.0, 0.0]])
    keys = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    labels, own = torch.tensor([7]), torch.tensor([0])
    # Cosines 0, -1 and 0 at temperature 0.5; the anchor itself does not count
    total = math.log(1 + math.exp(-2) + 1)
    close(
        losses.supcon(q, labels, [(keys, torch.tensor([7, 7, 7, 0]))], own, 0.5),
        [(total + (total + 2)) / 2],
    )
    # No positives
    close(losses.supcon(q, labels, [(keys, torch.tensor([7, 1, 2, 0]))], own, 0.5), [0])


@pytest.mark.parametrize("seed", SEEDS)
def test_losses_equal_the_naive_loop(seed):
    g, y, w = random_case(seed)
    close(
        losses.soft_ce(g, w),
        by_loop(lambda g, w: -sum(wj * v for wj, v in zip(w, log_p(g), strict=True)), g, w),
    )
    mass = by_loop(
        lambda g, y: sum(math.exp(v) for v, yj in zip(log_p(g), y, strict=True) if yj), g, y
    )
    close(losses.cc(g, y), [-math.log(m) for m in mass])

    def leveraged(g, w, y):
        return sum(
            wj / (1 + math.exp(gj)) if yj else 1.7 * wj / (1 + math.exp(-gj))
            for gj, wj, yj in zip(g, w, y, strict=True)
        )

    close(losses.leveraged(g, w, y, 1.7), by_loop(leveraged, g, w, y))

    def negative(g, y):
        return -sum(
            math.log(1 - math.exp(v) + 1e-7) for v, yj in zip(log_p(g), y, strict=True) if not yj
        )

    close(losses.negative_ce(g, y), by_loop(negative, g, y))
    t = w * y / (w * y).sum(-1, keepdim=True)

    def kl(t, g):
        return sum(tj * (math.log(tj) - v) for tj, v in zip(t, log_p(g), strict=True) if tj > 0)

    close(losses.kl(t, g), by_loop(kl, t, g))


@pytest.mark.parametrize("seed", SEEDS)
def test_supcon_equals_the_naive_loop(seed):
    rng = torch.Generator().manual_seed(seed)
    keys = torch.nn.functional.normalize(
        torch.randn(9, 4, generator=rng, dtype=torch.float64), dim=-1
    )
    key_labels = torch.randint(0, 3, (9,), generator=rng)
    own = torch.tensor([2, 5, 0])
    q, labels = keys[own].clone().requires_grad_(), key_labels[own]

    def naive(i):
        scores = [float(q[i].detach() @ keys[j]) / 0.3 for j in range(9)]
        total = sum(math.exp(scores[j]) for j in range(9) if j != own[i])
        logs = [
            scores[j] - math.log(total)
            for j in range(9)
            if j != own[i] and key_labels[j] == labels[i]
        ]
        return -sum(logs) / len(logs) if logs else 0.0

    for cut in (9, 6):  # the contrasts in one group or in two
        contrasts = [(keys[:cut], key_labels[:cut]), (keys[cut:], key_labels[cut:])]
        found = losses.supcon(q, labels, contrasts, own, 0.3)
        close(found, [naive(i) for i in range(3)])
    found.sum().backward()
    assert q.grad.isfinite().all()


def test_supcon_of_one_anchor_alone_in_its_group():
    q = torch.tensor([[1.0, 0.0]], requires_grad=True)
    keys = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    same = torch.tensor([3])
    other = torch.tensor([3, 4])
    loss = losses.supcon(
        q, same, [(q, same), (keys, other), (keys[:0], other[:0])], torch.tensor([0]), 0.5
    )
    close(loss.detach(), [math.log(1 + math.exp(2))])
    loss.sum().backward()
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_in_closed_form(seed):
    """cc: p minus p renormalised on Y; soft_ce and kl: p sum(t) - t."""
    g, y, w = random_case(seed)
    p = g.softmax(-1)

    def gradient(loss):
        leaf = g.clone().requires_grad_()
        loss(leaf).sum().backward()
        return leaf.grad

    close(gradient(lambda g: losses.cc(g, y)), p - p * y / (p * y).sum(-1, keepdim=True))
    close(gradient(lambda g: losses.soft_ce(g, w)), p * w.sum(-1, keepdim=True) - w)
    close(gradient(lambda g: losses.kl(w, g)), p * w.sum(-1, keepdim=True) - w)
    s = torch.where(y, -1.0, 3.0) * w * torch.sigmoid(g) * torch.sigmoid(-g)
    close(gradient(lambda g: losses.leveraged(g, w, y, 3.0)), s)


def test_singletons_reduce_to_cross_entropy():
    g, _, _ = random_case(3)
    labels = torch.arange(len(g)) % g.shape[1]
    one = torch.nn.functional.one_hot(labels, g.shape[1])
    expected = torch.nn.functional.cross_entropy(g, labels, reduction="none")
    for got in (losses.cc(g, one.bool()), losses.soft_ce(g, one), losses.kl(one.double(), g)):
        close(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_stay_finite(dtype):
    torch.set_default_dtype(dtype)
    base = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [0.0, 0.0, -1e4]])
    w = torch.full((3, 3), 1 / 3)
    calls = [
        lambda g: losses.cc(g, Y),
        lambda g: losses.soft_ce(g, w),
        lambda g: losses.leveraged(g, w, Y, 1.0),
        lambda g: losses.negative_ce(g, Y),
        lambda g: losses.kl(w * Y, g),
    ]
    for call in calls:
        g = base.clone().requires_grad_()
        value = call(g)
        value.sum().backward()
        assert value.dtype == dtype
        assert value.isfinite().all()
        assert g.grad.isfinite().all()


def test_negative_ce_of_a_certain_non_candidate_is_capped():
    g = torch.tensor([[-100.0, 100.0]])
    close(losses.negative_ce(g, torch.tensor([[True, False]])), [-math.log(1e-7)])


def test_partition_is_the_logsumexp_of_all_products_and_so_is_its_gradient():
    q, keys = (
        torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
        for n in (4, 7)
    )
    q.requires_grad_()
    expected = (q @ keys.T).logsumexp(-1)
    torch.testing.assert_close(losses.Partition.apply(q, keys), expected)
    assert torch.autograd.gradcheck(lambda q: losses.Partition.apply(q, keys), q)
    far = losses.Partition.apply(1e4 * q, keys)  # no overflow: about the largest product
    torch.testing.assert_close(far, (1e4 * q @ keys.T).amax(-1), rtol=1e-3, atol=0)
