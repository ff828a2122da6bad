"""Rates, rankings and the moving ensemble."""

import math

import naive
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from candidly.errors import InputError
from candidly.kinds import Rates
from candidly.scores import LOSSES, log_softmax, wooden_losses
from candidly.selection import MovingEnsemble, _at_rank, score, select

both = pytest.mark.parametrize("make", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])


def rows(mask):
    return set(np.flatnonzero(np.asarray(mask)))


def test_rates_are_shares_of_all_examples():
    rates = Rates.from_tau(0.2, 0.4)
    assert rates.closed == pytest.approx(1 / 7)
    assert rates.open == pytest.approx(2 / 7)
    assert rates.counts(70_000) == (10_000, 20_000)


@pytest.mark.parametrize(("closed", "open_"), [(-0.1, 0.0), (0.0, -0.1), (0.6, 0.5)])
def test_impossible_rates_are_refused_with_their_values(closed, open_):
    with pytest.raises(InputError, match=f"closed={closed}, open={open_}"):
        Rates(closed, open_)


@pytest.mark.parametrize("value", [math.nan, math.inf, "a", None, True])
def test_rates_are_numbers(value):
    with pytest.raises(InputError, match=r"open=.*: expected a number"):
        Rates(0.1, value)


@given(n=st.integers(0, 1000), closed=st.floats(0, 1), share=st.floats(0, 1))
def test_counts_never_exceed_n(n, closed, share):
    n_closed, n_open = Rates(closed, (1 - closed) * share).counts(n)
    assert min(n_closed, n_open) >= 0
    assert n_closed + n_open <= n


@both
def test_partition_by_hand(make):
    margin, open_scores = (
        make(np.array([3.0, -2.0, 1.0, -5.0, 0.5])),
        make(np.array([0.1, 0.2, 9.0, 8.0, 0.0])),
    )
    normal, closed, open_ = select(margin, open_scores, Rates(0.2, 0.4))
    assert (rows(open_), rows(closed), rows(normal)) == ({2, 3}, {1}, {0, 4})


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_scores_of_low_precision_are_ranked(kind):
    margin = torch.tensor([3.0, -2.0, 1.0, -5.0, 0.5], dtype=kind)
    open_scores = torch.tensor([0.1, 0.2, 9.0, 8.0, 0.0], dtype=kind)
    normal, closed, open_ = select(margin, open_scores, Rates(0.2, 0.4))
    assert (rows(open_), rows(closed), rows(normal)) == ({2, 3}, {1}, {0, 4})


@both
def test_the_authors_rankings_overlap(make):
    margin, open_scores = (
        make(np.array([3.0, -2.0, 1.0, -5.0, 0.5])),
        make(np.array([0.1, 0.2, 9.0, 8.0, 0.0])),
    )
    normal, closed, open_ = select(margin, open_scores, Rates(0.2, 0.4), overlap=True)
    assert (rows(open_), rows(closed), rows(normal)) == (
        {2, 3},
        {3},
        {0, 2},
    )  # 1 and 4 are in no set


@both
def test_ties_fall_by_row_and_sizes_stay_exact(make):
    zeros = make(np.zeros(10))
    normal, closed, open_ = select(zeros, zeros, Rates(0.3, 0.2))
    assert (rows(open_), rows(normal), rows(closed)) == ({0, 1}, {2, 3, 4, 5, 6}, {7, 8, 9})
    normal, closed, open_ = select(zeros, zeros, Rates(0.3, 0.2), overlap=True)
    assert (rows(open_), rows(normal), rows(closed)) == ({0, 1}, {0, 1, 2, 3, 4}, {7, 8, 9})


@pytest.mark.parametrize(("window", "momentum"), [(0, 0.9), (5, 7.0), (5, -0.1), (5, math.nan)])
def test_impossible_ensembles_are_refused(window, momentum):
    with pytest.raises(InputError, match=f"(window={window}|momentum={momentum}): expected"):
        MovingEnsemble(window, momentum)


@both
def test_full_sets_are_always_normal(make):
    logits = make(np.random.default_rng(0).normal(size=(20, 3)))
    cand = np.zeros((20, 3), dtype=bool)
    cand[:, 0] = True
    cand[:5] = True
    for overlap in (True, False):
        selection = select(*score(logits, make(cand)), Rates(0.3, 0.4), overlap=overlap)
        assert {0, 1, 2, 3, 4} <= rows(selection.normal)


@both
def test_nan_is_refused_with_its_row(make):
    with pytest.raises(InputError, match="row 1 is NaN"):
        select(make(np.array([0.0, math.nan])), make(np.zeros(2)), Rates(0, 0))


@both
@pytest.mark.parametrize("overlap", [True, False])
@given(data=st.data())
def test_select_equals_the_naive_loop(make, overlap, data):
    n = data.draw(st.integers(1, 30))
    values = st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 2.0, math.inf])  # many ties
    margin, open_scores = (data.draw(hnp.arrays(np.float64, n, elements=values)) for _ in range(2))
    closed = data.draw(st.integers(0, n))
    opened = data.draw(st.integers(0, n - closed))
    got = select(make(margin), make(open_scores), Rates(closed / n, opened / n), overlap=overlap)
    assert tuple(map(rows, got)) == naive.select(margin, open_scores, closed, opened, overlap)


@pytest.mark.parametrize("order", ["random", "sorted", "hidden"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.999])
def test_ranks_of_many_values_are_those_of_a_sort(order, share, monkeypatch):
    monkeypatch.setattr("candidly.selection.SAMPLE", 64)
    values = np.random.default_rng(1).normal(size=5000).round(2).astype(np.float32)  # with ties
    values[::50], values[1::50] = math.inf, -math.inf
    values = np.sort(values) if order == "sorted" else values
    if order == "hidden":  # half of the values are one that a sample of every 78th does not see
        values[1:][np.arange(4999) % 78 < 40] = 9.0
    at = int(share * 5000)
    assert _at_rank(values, at) == np.sort(values)[at]


@both
def test_the_losses_tell_the_confidence(make):
    """Of wooden losses the lesser one is that of the best class; of others it is not."""
    logits, cand = (
        outputs(10).reshape(-1, 3),
        np.tile([[True, False, True], [True, True, True]], (20, 1)),
    )
    for losses in LOSSES:
        found = score(make(logits), make(cand), losses, "doubt")[1]
        np.testing.assert_allclose(found, -log_softmax(logits).max(1))


def test_score_offers_three_open_set_scores():
    logits = np.array([[2.0, 0.0, -1.0]])
    cand = np.array([[True, False, False]])
    log_probs = log_softmax(logits)
    inside, outside = wooden_losses(log_probs, cand)
    for name, expected in {
        "surprise": inside[0] + outside[0],
        "doubt": -log_probs[0, 0],
        "energy": -np.log(np.exp(logits).sum()),
    }.items():
        margin, open_scores = score(logits, cand, open_score=name)
        assert margin[0] == pytest.approx(outside[0] - inside[0])
        assert open_scores[0] == pytest.approx(expected)


def outputs(epochs):
    return np.random.default_rng(0).normal(size=(epochs, 4, 3))


@both
@pytest.mark.parametrize("recursive", [False, True])
@pytest.mark.parametrize(("warmup", "window"), [(6, 3), (2, 5), (1, 1), (5, 5)])
def test_ensemble_equals_the_formula(make, recursive, warmup, window):
    out = outputs(warmup + 4)
    ensemble = MovingEnsemble(window, 0.9, recursive)
    average = make(np.zeros((4, 3)))
    for epoch in range(1, warmup + 1):
        average = ensemble.warm(average, make(out[epoch - 1]), epoch, warmup)
    frozen = out[max(0, warmup - window) : warmup].mean(
        0
    )  # what exists, if the warm-up is shorter than the window
    np.testing.assert_allclose(average, frozen)
    moving = frozen
    for epoch in range(warmup, warmup + 4):
        average, got = ensemble.update(average, make(out[epoch]))
        moving = 0.9 * moving + 0.1 * out[epoch]
        np.testing.assert_allclose(got, moving if recursive else 0.9 * frozen + 0.1 * out[epoch])


@pytest.mark.parametrize("recursive", [False, True])
def test_momentum_zero_is_the_output_and_one_the_warm_up(recursive):
    average, output = outputs(2)
    np.testing.assert_array_equal(
        MovingEnsemble(5, 0.0, recursive).update(average, output)[1], output
    )
    np.testing.assert_array_equal(
        MovingEnsemble(5, 1.0, recursive).update(average, output)[1], average
    )


@both
@pytest.mark.parametrize("block", [1, 7, 12])
def test_scoring_in_blocks_changes_nothing(make, block, monkeypatch):
    logits, cand = (
        make(outputs(10).reshape(-1, 3)),
        make(np.tile([[True, False, True], [False, True, True]], (20, 1))),
    )
    whole = score(logits, cand)
    monkeypatch.setattr("candidly.blocks.ENTRIES", block)
    for part, expected in zip(score(logits, cand), whole, strict=True):
        np.testing.assert_array_equal(part, expected)


@both
def test_a_class_that_is_ruled_out_stays_so(make):
    average, output = make(np.array([[-np.inf, 1.0]])), make(np.array([[-np.inf, 2.0]]))
    _, ensemble = MovingEnsemble(momentum=0.75).update(average, output)
    assert np.asarray(ensemble).tolist() == [[-np.inf, 1.25]]
    assert np.asarray(average).tolist() == [[-np.inf, 1.0]]
