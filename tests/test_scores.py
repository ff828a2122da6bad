"""Each equation by hand, against a naive loop, and at its limits, in NumPy and in torch."""

import math

import naive
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from candidly import scores

NUMPY, TORCH = np.asarray, torch.as_tensor
both = pytest.mark.parametrize("make", [NUMPY, TORCH], ids=["numpy", "torch"])
P = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.25, 0.25, 0.5]])
Y = np.array([[True, False, True], [True, True, False], [True, True, True]])


@st.composite
def outputs(draw):
    """Logits and non-empty candidate sets of a few examples."""
    n, c = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    logits = draw(hnp.arrays(np.float64, (n, c), elements=st.floats(-20, 20)))
    cand = draw(hnp.arrays(bool, (n, c)))
    cand[np.arange(n), draw(hnp.arrays(np.int64, n, elements=st.integers(0, c - 1)))] = True
    return logits, cand


@both
def test_wooden_losses_by_hand(make):
    inside, outside = scores.wooden_losses(make(np.log(P)), make(Y))
    np.testing.assert_allclose(inside, -np.log([0.5, 0.1, 0.5]))
    np.testing.assert_allclose(outside, [-math.log(0.3), -math.log(0.8), math.inf])


def test_wooden_losses_have_a_gradient_at_the_best_class_of_each_side():
    log_probs = torch.tensor([[-1.0, -2.0, -0.5, -3.0]], requires_grad=True)
    inside, outside = scores.wooden_losses(log_probs, torch.tensor([[True, True, False, False]]))
    (inside + 3 * outside).sum().backward()
    assert log_probs.grad.tolist() == [[-1.0, 0.0, -3.0, 0.0]]


@both
def test_mean_losses_by_hand(make):
    inside, outside = scores.mean_losses(make(np.log(P)), make(Y))
    expected = [-math.log(0.5 * 0.2) / 2, -math.log(0.1), -math.log(0.25 * 0.25 * 0.5) / 3]
    np.testing.assert_allclose(inside, expected)
    np.testing.assert_allclose(outside, [-math.log(0.3), -math.log(0.8), math.inf])


@both
def test_entropy_losses_by_hand(make):
    inside, outside = scores.entropy_losses(make(np.log(P)), make(Y))
    first = -(5 / 7 * math.log(5 / 7) + 2 / 7 * math.log(2 / 7))
    np.testing.assert_allclose(inside, [first, math.log(2), 1.5 * math.log(2)])
    np.testing.assert_allclose(outside, [0, 0, math.inf], atol=1e-15)  # a singleton has no entropy


@both
def test_margin_and_surprise_by_hand(make):
    inside, outside = make(np.array([0.5, 2.0, 0.7])), make(np.array([1.5, 0.25, math.inf]))
    np.testing.assert_allclose(scores.margin(inside, outside), [1.0, -1.75, math.inf])
    np.testing.assert_allclose(scores.surprise(inside, outside), [2.0, 2.25, -math.inf])


@both
def test_all_mass_on_one_side_is_no_surprise(make):
    log_probs = make(np.array([[0.0, -math.inf], [0.0, -math.inf]]))
    cand = make(np.array([[True, False], [False, True]]))
    inside, outside = scores.wooden_losses(log_probs, cand)
    np.testing.assert_array_equal(scores.margin(inside, outside), [math.inf, -math.inf])
    np.testing.assert_array_equal(scores.surprise(inside, outside), [-math.inf, -math.inf])


@both
def test_open_set_scores_by_hand(make):
    logits = make(np.array([[1.0, 2.0, 3.0], [0.0, 0.0, -math.inf]]))
    np.testing.assert_allclose(scores.doubt(make(np.log(P))), -np.log([0.5, 0.8, 0.5]))
    np.testing.assert_allclose(
        scores.energy(logits), [-math.log(math.e + math.e**2 + math.e**3), -math.log(2)]
    )


@both
def test_disambiguate_by_hand(make):
    ordinary = scores.disambiguate(make(P), make(Y))
    np.testing.assert_allclose(ordinary, [[5 / 7, 0, 2 / 7], [0.5, 0.5, 0], [0.25, 0.25, 0.5]])
    sharp = scores.disambiguate(make(P), make(Y), 0.5)
    np.testing.assert_allclose(sharp[0], [25 / 29, 0, 4 / 29])
    reversed_ = scores.disambiguate(make(P), ~make(Y))
    # A full set has no reverse
    np.testing.assert_allclose(reversed_, [[0, 1, 0], [0, 0, 1], [0, 0, 0]])


@both
def test_disambiguate_without_mass_shares_equally(make):
    p = make(np.array([[0.0, 0.0, 1.0]], dtype=np.float16))
    cand = make(np.array([[True, True, False]]))
    np.testing.assert_array_equal(scores.disambiguate(p, cand, 0.5), [[0.5, 0.5, 0]])


@both
def test_disambiguate_survives_underflow_in_half_precision(make):
    p = make(np.array([[6e-8, 6e-8, 1.0]], dtype=np.float16))
    cand = make(np.array([[True, True, False]]))
    np.testing.assert_array_equal(scores.disambiguate(p, cand, 0.1), [[0.5, 0.5, 0]])


@both
@pytest.mark.parametrize("name", ["wooden_losses", "mean_losses", "entropy_losses"])
def test_half_precision_stays_half_and_close(make, name):
    log_probs = make(np.log(P).astype(np.float16))
    for low, high in zip(
        getattr(scores, name)(log_probs, make(Y)), getattr(scores, name)(np.log(P), Y), strict=True
    ):
        assert "float16" in str(low.dtype)
        np.testing.assert_allclose(np.asarray(low, dtype=float), high, rtol=5e-3)


@both
def test_log_softmax_of_extreme_logits(make):
    result = scores.log_softmax(make(np.array([[1000.0, 1000.0], [0.0, -math.inf]])))
    np.testing.assert_allclose(result, [[-math.log(2), -math.log(2)], [0, -math.inf]])


@both
def test_one_class_only(make):
    log_probs, cand = make(np.zeros((1, 1))), make(np.ones((1, 1), dtype=bool))
    assert [float(v[0]) for v in scores.wooden_losses(log_probs, cand)] == [0.0, math.inf]
    np.testing.assert_array_equal(scores.disambiguate(make(np.ones((1, 1))), cand), [[1.0]])


@both
def test_random_targets_by_hand(make):
    uniform = make(np.array([[0.1, 0.9, 0.4], [0.8, 0.7, 0.9], [0.1, 0.6, 0.2]]))
    allowed = make(np.array([[True, True, True], [True, True, True], [False, True, True]]))
    np.testing.assert_allclose(
        scores.random_targets(uniform, allowed), [[0.5, 0, 0.5], [0, 1, 0], [0, 0, 1]]
    )


def test_random_targets_draw_each_label_half_the_time():
    targets = scores.random_targets(
        np.random.default_rng(0).random((40_000, 4)), np.ones((40_000, 4), dtype=bool)
    )
    np.testing.assert_allclose(targets.sum(1), 1)
    expected = 0.5 + 0.5**4 / 4  # an empty draw gets one label
    np.testing.assert_allclose((targets > 0).mean(0), expected, atol=0.01)


@both
@pytest.mark.parametrize("name", ["wooden", "mean", "entropy"])
@given(case=outputs())
def test_losses_equal_the_naive_loop(make, name, case):
    logits, cand = case
    log_probs = scores.log_softmax(logits)
    got = scores.LOSSES[name](make(log_probs), make(cand))
    expected = [getattr(naive, name)(p, y) for p, y in zip(log_probs, cand, strict=True)]
    np.testing.assert_allclose(
        np.stack([np.asarray(g) for g in got], 1), expected, rtol=1e-6, atol=1e-9
    )


@both
@given(case=outputs(), temperature=st.sampled_from([0.5, 1.0, 2.0]))
def test_disambiguate_equals_the_naive_loop(make, case, temperature):
    logits, cand = case
    probs = np.exp(scores.log_softmax(logits))
    expected = [naive.disambiguate(p, y, temperature) for p, y in zip(probs, cand, strict=True)]
    got = np.asarray(scores.disambiguate(make(probs), make(cand), temperature))
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(got.sum(1), 1)


@given(case=outputs())
def test_masking_equals_removing(case):
    """A label of no probability, outside the set, changes nothing but an infinite outside."""
    logits, cand = case
    more = np.concatenate([logits, np.full((len(logits), 1), -math.inf)], 1)
    wide = np.concatenate([cand, np.zeros((len(cand), 1), dtype=bool)], 1)
    for name in ("wooden", "entropy"):
        narrow = scores.LOSSES[name](scores.log_softmax(logits), cand)[0]
        np.testing.assert_allclose(scores.LOSSES[name](scores.log_softmax(more), wide)[0], narrow)


@given(case=outputs())
def test_the_least_wooden_loss_is_the_doubt(case):
    logits, cand = case
    log_probs = scores.log_softmax(logits)
    np.testing.assert_allclose(
        np.minimum(*scores.wooden_losses(log_probs, cand)), scores.doubt(log_probs)
    )


def score_of(name, make, logits, cand, losses="wooden"):
    """An open-set score of `OPEN_SCORES`, from logits and candidates."""
    logits, cand = make(logits), make(cand)
    log_probs = scores.log_softmax(logits)
    inside, outside = scores.LOSSES[losses](log_probs, cand)
    outputs = scores.Scored(logits, log_probs, cand, inside, outside)
    return np.asarray(scores.OPEN_SCORES[name](outputs))


@pytest.mark.parametrize("losses", scores.LOSSES)
@pytest.mark.parametrize("name", scores.OPEN_SCORES)
@given(case=outputs(), data=st.data())
def test_every_open_score_keeps_the_laws(name, losses, case, data):
    """One number per row, by the row alone; the same in torch, and in any order of the classes."""
    logits, cand = case
    found = score_of(name, NUMPY, logits, cand, losses)
    assert found.shape == (len(logits),)
    assert not np.isnan(found).any()
    np.testing.assert_allclose(
        score_of(name, TORCH, logits, cand, losses), found, rtol=1e-6, atol=1e-9
    )
    row = data.draw(st.integers(0, len(logits) - 1))
    alone = score_of(name, NUMPY, logits[row : row + 1], cand[row : row + 1], losses)
    np.testing.assert_allclose(alone, found[row : row + 1], rtol=1e-6, atol=1e-9)
    order = data.draw(st.permutations(range(logits.shape[1])))
    permuted = score_of(name, NUMPY, logits[:, order], cand[:, order], losses)
    np.testing.assert_allclose(permuted, found, rtol=1e-6, atol=1e-9)
