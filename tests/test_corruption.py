"""Making benchmark data: exact counts, the right distributions, an order that reveals nothing."""

from __future__ import annotations

import json
import time
from dataclasses import FrozenInstanceError
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from candidly.corruption import corrupt, draw_known_sets, draw_open_sets, misplace
from candidly.errors import InputError
from candidly.kinds import CLOSED, KINDS, NORMAL, OPEN


def labels(n: int, c: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(c, size=n)


shares = st.one_of(st.sampled_from([0.0, 0.1, 0.2, 0.29, 0.3, 0.4, 0.5, 0.6, 1.0]), st.floats(0, 1))


@settings(max_examples=150, deadline=None)
@given(
    n0=st.integers(1, 120),
    c=st.integers(2, 12),
    q=st.floats(0, 0.7),
    tau1=shares,
    tau2=shares,
    seed=st.integers(0, 999),
    open_sets=st.sampled_from(["uniform", "matched"]),
    spare=st.one_of(st.none(), st.integers(0, 50)),
)
def test_laws(*, n0, c, q, tau1, tau2, seed, open_sets, spare):
    y = labels(n0, c, seed)
    n_closed, n_open = int(tau1 * n0 + 1e-9), int(tau2 * n0 + 1e-9)
    pool = None if spare is None else n_open + spare
    make = partial(
        corrupt, y, c, q=q, tau1=tau1, tau2=tau2, seed=seed, open_sets=open_sets, pool=pool
    )
    if n_closed > (~draw_known_sets(y, c, q, np.random.default_rng(seed)).all(axis=1)).sum():
        with pytest.raises(InputError, match=f"{n_closed} sets are to lose"):
            make()
        return
    sets, truth = make()
    n = n0 + n_open
    assert len(sets) == len(truth.labels) == len(truth.kinds) == len(truth.source) == n
    assert np.bincount(truth.kinds, minlength=3).tolist() == [n0 - n_closed, n_closed, n_open]
    assert sets.sizes.min() >= 1
    inside = sets.contains(truth.labels)
    assert np.array_equal(inside, truth.kinds == NORMAL)
    assert np.array_equal(~inside & (truth.labels >= 0), truth.kinds == CLOSED)
    assert np.array_equal(truth.labels == -1, truth.kinds == OPEN)
    known = truth.source < n0
    assert np.array_equal(known, truth.kinds != OPEN)
    assert sorted(truth.source[known]) == list(range(n0))
    assert np.array_equal(truth.labels[known], y[truth.source[known]])
    drawn = truth.source[~known] - n0
    assert len(set(drawn.tolist())) == n_open
    assert drawn.size == 0 or drawn.max() < (n_open if pool is None else pool)
    assert (truth.labels.dtype, truth.kinds.dtype, truth.source.dtype) == (
        np.int64,
        np.uint8,
        np.int64,
    )


def test_exact_counts_of_the_paper():
    y = np.tile(np.arange(10), 500)
    for tau1, tau2 in ((0.2, 0.4), (0.3, 0.6)):
        _, truth = corrupt(y, 10, q=0.5, tau1=tau1, tau2=tau2, seed=1)
        assert truth.manifest["counts"] == {
            "normal": round(5000 * (1 - tau1)),
            "closed": round(5000 * tau1),
            "open": round(5000 * tau2),
        }
    _, truth = corrupt(y[:100], 10, q=0.1, tau1=0.29, seed=1)
    assert truth.manifest["counts"]["closed"] == 29, (
        "0.29 * 100 is 28.999999999999996 in floating point"
    )


def test_manifest():
    y = np.tile(np.arange(10), 500)
    sets, truth = corrupt(y, 10, q=0.1, tau1=0.2, tau2=0.4, seed=7, pool=np.int64(9000))
    manifest = json.loads(json.dumps(truth.manifest))
    means = {kind: sets.sizes[truth.kinds == i].mean() for i, kind in enumerate(KINDS)}
    assert manifest.pop("mean_set_size") == pytest.approx(means)
    assert manifest == {
        "seed": 7,
        "q": 0.1,
        "tau1": 0.2,
        "tau2": 0.4,
        "open_sets": "uniform",
        "pool": 9000,
        "y_sha256": "48d82858561f3ebc6b7196768009aedcfde6976e13a3dff7b9d5778037d1b945",
        "n": 7000,
        "n0": 5000,
        "n_classes": 10,
        "counts": {"normal": 4000, "closed": 1000, "open": 2000},
        "closed_share": 1 / 7,
        "open_share": 2 / 7,
        "tau1_realised": 0.2,
        "tau2_realised": 0.4,
    }
    _, plain = corrupt(y.astype(np.uint8), 10, q=0.1)
    assert plain.manifest["y_sha256"] == manifest["y_sha256"], (
        "the hash is of the values, whatever their type"
    )
    assert plain.manifest["mean_set_size"]["open"] is None
    assert corrupt(y[::-1], 10, q=0.1)[1].manifest["y_sha256"] != manifest["y_sha256"]
    with pytest.raises(FrozenInstanceError):
        truth.labels = y


def test_the_seed_decides_everything():
    y = labels(500, 10)
    settings = {"q": 0.3, "tau1": 0.2, "tau2": 0.4, "pool": 1000}
    sets, truth = corrupt(y, 10, seed=3, **settings)
    again, truth_again = corrupt(y, 10, seed=3, **settings)
    assert sets == again
    assert truth.manifest == truth_again.manifest
    for name in ("labels", "kinds", "source"):
        assert np.array_equal(getattr(truth, name), getattr(truth_again, name))
    other, truth_other = corrupt(y, 10, seed=4, **settings)
    assert sets != other
    assert not np.array_equal(np.sort(truth.source), np.sort(truth_other.source)), (
        "open images are redrawn per seed"
    )


def test_row_order_tells_nothing():
    y = np.sort(labels(6000, 10))
    _, truth = corrupt(y, 10, q=0.1, tau1=0.2, tau2=0.4, seed=0)
    for kind in (NORMAL, CLOSED, OPEN):
        rows = np.flatnonzero(truth.kinds == kind)
        assert abs(rows.mean() / len(truth.kinds) - 0.5) < 4 * (12 * len(rows)) ** -0.5
    correlation = np.corrcoef(np.arange(len(y)), truth.source[truth.source < 6000])[0, 1]
    assert abs(correlation) < 4 * 6000**-0.5


def test_without_noise_sets_are_the_labels():
    y = labels(100, 5)
    sets, truth = corrupt(y, 5, q=0)
    assert sets.indices.tolist() == truth.labels.tolist() == y[truth.source].tolist()
    sets, _ = corrupt(y, 5, q=1)
    assert sets.sizes.tolist() == [5] * 100


def test_marginal_frequency_of_wrong_labels_is_q():
    y = labels(20_000, 10)
    for q in (0.1, 0.3, 0.5):
        mask = draw_known_sets(y, 10, q, np.random.default_rng(1))
        assert mask[np.arange(len(y)), y].all()
        wrong = np.ones_like(mask)
        wrong[np.arange(len(y)), y] = False
        for a in range(10):  # each pair of true and wrong label
            share = (mask & wrong)[y == a].mean(axis=0)[np.arange(10) != a]
            assert np.abs(share - q).max() < 5 * (q * (1 - q) / (y == a).sum()) ** 0.5


def test_misplace_keeps_sizes_and_draws_uniformly():
    n, y = 30_000, np.zeros(30_000, dtype=np.int64)
    mask = np.zeros((n, 6), dtype=bool)
    mask[:, [0, 2]] = True
    before = mask.copy()
    moved, rows = misplace(mask, y, 20_000, np.random.default_rng(0))
    assert np.array_equal(mask, before), "the input is left as it is"
    assert np.array_equal(moved.sum(axis=1), mask.sum(axis=1))
    assert len(np.unique(rows)) == 20_000
    untouched = np.setdiff1d(np.arange(n), rows)
    assert np.array_equal(moved[untouched], mask[untouched])
    assert moved[rows].sum(axis=0)[[0, 2]].tolist() == [0, 20_000]
    counts = moved[rows].sum(axis=0)[[1, 3, 4, 5]]
    assert ((counts - 5000) ** 2 / 5000).sum() < 16.3, "chi-square, 3 degrees of freedom, p = 0.001"


def test_full_sets_are_avoided():
    y = labels(2000, 3)
    rng = np.random.default_rng(0)
    mask = draw_known_sets(y, 3, 0.9, rng)
    full = mask.all(axis=1)
    assert 0.75 < full.mean() < 0.87
    moved, rows = misplace(mask, y, int((~full).sum()), rng)
    assert np.array_equal(np.sort(rows), np.flatnonzero(~full))
    assert not moved[rows, y[rows]].any()
    with pytest.raises(
        InputError, match=r"600 sets .* of 2000 hold every class already.*smaller tau1 or q"
    ):
        corrupt(y, 3, q=0.9, tau1=0.3)


def test_uniform_open_sets_leak_their_size_and_matched_ones_do_not():
    y = labels(40_000, 10)
    _, truth = corrupt(y, 10, q=0.1, tau1=0.2, tau2=1.0)
    sizes = truth.manifest["mean_set_size"]
    assert sizes["normal"] == pytest.approx(1.90, abs=0.02)
    assert sizes["closed"] == pytest.approx(1.90, abs=0.04)
    # 1.35: Bernoulli(0.1) over 10, and 1 if empty
    assert sizes["open"] == pytest.approx(1 + 0.9**10, abs=0.02)
    sets, truth = corrupt(y, 10, q=0.1, tau1=0.2, tau2=1.0, open_sets="matched")
    known, opened = (
        np.bincount(sets.sizes[part], minlength=7)[1:7]
        for part in (truth.kinds != OPEN, truth.kinds == OPEN)
    )
    assert ((known - opened) ** 2 / (known + opened)).sum() < 20.5, (
        "chi-square, 5 degrees of freedom, p = 0.001"
    )
    each = sets.dense(truth.kinds == OPEN).mean(axis=0)
    assert np.abs(each - 0.19).max() < 0.01


def test_matched_sets_are_uniform_subsets():
    mask = draw_open_sets(12_000, 4, 0.5, np.random.default_rng(0), sizes=np.array([2]))
    assert (mask.sum(axis=1) == 2).all()
    counts = np.bincount(mask @ np.array([1, 2, 4, 8]))
    pairs = counts[counts > 0]
    assert len(pairs) == 6
    assert ((pairs - 2000) ** 2 / 2000).sum() < 20.5


def test_matched_sizes_are_drawn_with_replacement():
    """As many as there are: without replacement the counts of both sizes would be those given."""
    sizes = np.repeat([1, 3], 50)
    rng = np.random.default_rng(0)
    drawn = np.array([draw_open_sets(100, 4, 0.5, rng, sizes).sum(axis=1) for _ in range(200)])
    assert set(drawn.ravel().tolist()) == {1, 3}
    wide = (drawn == 3).sum(axis=1)  # binomial: 100 draws, probability 1/2
    assert wide.mean() == pytest.approx(50, abs=4 * 5 / 200**0.5)
    assert wide.std() == pytest.approx(5, abs=1.2)


def test_sets_drawn_in_blocks_have_the_same_law(monkeypatch):
    monkeypatch.setattr("candidly.blocks.ENTRIES", 12)
    drawn = draw_known_sets(np.zeros(5000, dtype=np.int64), 5, 0.3, np.random.default_rng(0))[:, 1:]
    assert drawn[:2500].mean() == pytest.approx(0.3, abs=0.02)
    assert drawn[2500:].mean() == pytest.approx(0.3, abs=0.02)


def test_the_least_random_number_joins_no_label_at_q_zero():
    class Zeros:
        def random(self, shape, dtype):
            return np.zeros(shape, dtype)

    assert draw_known_sets(np.array([1, 0]), 3, 0.0, Zeros()).astype(int).tolist() == [
        [0, 1, 0],
        [1, 0, 0],
    ]


def naive(
    y: np.ndarray, c: int, *, q: float, tau1: float, tau2: float, rng: np.random.Generator
) -> list[tuple[int, set]]:
    """Section 5.1 of the paper, word by word: (kind, set) of each example."""
    sets = [{int(t)} | {j for j in range(c) if j != t and rng.random() < q} for t in y]
    kinds = [NORMAL] * len(y)
    left = int(tau1 * len(y))
    for i in rng.permutation(len(y)):
        if left and len(sets[i]) < c:
            new = rng.choice([j for j in range(c) if j not in sets[i]])
            sets[i] = sets[i] - {int(y[i])} | {int(new)}
            kinds[i], left = CLOSED, left - 1
    for _ in range(int(tau2 * len(y))):
        sets.append({j for j in range(c) if rng.random() < q} or {int(rng.integers(c))})
        kinds.append(OPEN)
    return list(zip(kinds, sets, strict=True))


def test_same_distribution_as_a_naive_loop():
    y, c = np.repeat([0, 1, 1, 2], 1500), 4
    slow = naive(y, c, q=0.4, tau1=0.3, tau2=0.5, rng=np.random.default_rng(0))
    sets, truth = corrupt(y, c, q=0.4, tau1=0.3, tau2=0.5, seed=1)
    fast_codes = sets.dense() @ (1 << np.arange(c)) + 16 * truth.kinds.astype(int)
    slow_codes = [16 * kind + sum(1 << j for j in members) for kind, members in slow]
    a, b = np.bincount(fast_codes, minlength=48), np.bincount(slow_codes, minlength=48)
    assert a.sum() == b.sum() == 9000
    common = a + b > 0
    statistic = ((a - b)[common] ** 2 / (a + b)[common]).sum()
    assert statistic < 85, "chi-square, about 42 degrees of freedom, p < 0.0001 above"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": 1.1}, r"q=1.1: expected a number from 0 to 1"),
        ({"q": float("nan")}, "q=nan"),
        ({"tau1": -0.1}, "tau1=-0.1"),
        ({"tau2": 2}, "tau2=2"),
        ({"n_classes": 1}, "n_classes=1: expected at least 2"),
        ({"seed": -1}, "seed=-1"),
        ({"open_sets": "even"}, "open_sets 'even' is unknown. There are: uniform, matched"),
        ({"y": [0, 1, 3]}, r"y, row 2: class index 3 is outside 0\.\.2"),
        ({"y": [0, -1, 3]}, "y, row 1: class index -1"),
        ({"y": [0.0, 1.0]}, "y is float64"),
        ({"y": [[0, 1]]}, r"shape \(1, 2\)"),
        ({"y": []}, r"shape \(0,\)"),
        ({"tau2": 1.0, "pool": 3}, "pool=3: 4 open images are needed"),
    ],
)
def test_faults_are_named(change, words):
    with pytest.raises(InputError, match=words):
        corrupt(**{"y": [0, 1, 2, 1], "n_classes": 3, "q": 0.1} | change)


@pytest.mark.slow
def test_a_million_rows_take_at_most_ten_times_their_random_numbers():
    y = labels(1_000_000, 100)

    def seconds(run) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    rng = np.random.default_rng(0)
    base = min(seconds(lambda: rng.random((1_000_000, 100), dtype=np.float32)) for _ in range(3))
    assert (
        min(seconds(lambda: corrupt(y, 100, q=0.1, tau1=0.2, tau2=0.4)) for _ in range(2))
        < 10 * base
    )
