"""The audit: evidence, mixture, rates and verdicts."""

import math
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import candidly
from candidly import CandidateSets, Rates, audit, corrupt, estimate_rates
from candidly.auditing.evidence import POWERS, make_reference, observe, read_outputs
from candidly.auditing.mixture import (
    Mixture,
    design,
    explain,
    fit_mixture,
    shares,
    sizes_mislead,
    standard_errors,
    support,
)
from candidly.auditing.rates import (
    RatesEstimate,
    _estimate,
    _weight_of_open,
    best_misses,
    chance_note,
    ranking_excess,
    sample,
    study,
)
from candidly.auditing.verdicts import Judge, _opinion, judge_rows, make_judges
from candidly.errors import InputError
from candidly.kinds import CLOSED, NORMAL, OPEN
from candidly.metrics import average_precision
from candidly.scores import log_softmax, wooden_losses

COLUMNS = [
    "id", "verdict", "p_outside", "p_normal", "p_closed", "p_open",
    "suggested_label", "suggested_probability", "consensus_label", "consensus_probability",
    "inside_loss", "outside_loss",
]  # fmt: skip


def made(n0=1500, c=6, q=0.2, tau1=0.0, tau2=0.0, sharp=4.0, noise=1.0, seed=0, **options):
    """(sets, logits, truth): a model that is right on most known rows and unsure on open ones."""
    rng = np.random.default_rng(seed)
    sets, truth = corrupt(
        rng.integers(c, size=n0), c, q=q, tau1=tau1, tau2=tau2, seed=seed, **options
    )
    logits = noise * rng.normal(size=sets.shape)
    known = np.flatnonzero(truth.kinds != OPEN)
    logits[known, truth.labels[known]] += sharp
    return sets, logits, truth


def probabilities(logits):
    return np.exp(log_softmax(logits))


# ---- evidence


def seen_of(rows):
    """Observed numbers of (probabilities, candidates) by row."""
    probs = np.array([p for p, _ in rows])
    sets = CandidateSets([members for _, members in rows], classes=probs.shape[1])
    return observe(read_outputs(sets, probs, None, None), slice(0, len(rows)), None)


def naive_row(p, members, power):
    """(hit, rest, chance, best candidate, best other) of one row, by loops."""
    c = len(p)
    inside = max(p[j] for j in members)
    outside = max((p[j] for j in range(c) if j not in members), default=0.0)
    hit = 0.5 if inside == outside else float(inside > outside)
    r = [x / max(p) for x in p]
    spread = sum(x**power for x in r) - 1
    chance = (len(members) - hit) / (c - 1)
    rest = (sum(r[j] ** power for j in members) - hit) / spread if spread > 0 else chance
    first = min(j for j in members if p[j] == inside)
    other = min((j for j in range(c) if j not in members and p[j] == outside), default=None)
    return hit, min(max(rest, 0), 1), chance, first, other


@given(data=st.data())
def test_observed_equals_the_naive_loop(data):
    n, c = data.draw(st.integers(1, 6)), data.draw(st.integers(2, 5))
    weights = data.draw(
        st.lists(st.lists(st.integers(1, 4), min_size=c, max_size=c), min_size=n, max_size=n)
    )
    members = [sorted(data.draw(st.sets(st.integers(0, c - 1), min_size=1))) for _ in range(n)]
    probs = np.array([np.array(row) / sum(row) for row in weights])
    seen = observe(
        read_outputs(CandidateSets(members, classes=c), probs, None, None), slice(0, n), None
    )
    for i, row in enumerate(probs):
        for k, power in enumerate(POWERS):
            hit, rest, chance, first, other = naive_row(row.tolist(), members[i], power)
            assert seen.hit[i] == hit
            assert seen.rest[k, i] == pytest.approx(rest, abs=1e-9)
            assert seen.chance[i] == pytest.approx(chance)
            assert seen.label_in[i] == first
            assert other is None or seen.label_out[i] == other
        assert seen.doubt[i] == pytest.approx(-math.log(row.max()))


def test_logits_and_probabilities_say_the_same():
    sets, logits, _ = made(200)
    rows = slice(0, 200)
    a = observe(read_outputs(sets, None, logits + 7, None), rows, None)
    b = observe(read_outputs(sets, probabilities(logits), None, None), rows, None)
    for name in ("hit", "rest", "best_in", "best_out", "label_in", "label_out", "doubt", "spread"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), atol=1e-9)
    energy = -np.log(np.exp(logits + 7).sum(axis=1))
    np.testing.assert_allclose(a.scores, np.stack([b.doubt, energy], axis=1))


def test_neighbours_vote_and_a_row_is_not_its_own():
    X = np.array([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]])
    sets = CandidateSets([[0], [0], [0, 1], [1], [1], [0, 1]], classes=2)
    outputs = read_outputs(sets, np.full((6, 2), 0.5), None, X)
    assert outputs.score_names == ("doubt", "votes")
    seen = observe(outputs, np.arange(6), make_reference(outputs, np.arange(6)))
    # all five others vote: of row 0 they are {0}, {0,1}, {1}, {1}, {0,1}
    assert seen.scores[0, 1] == pytest.approx(-math.log(3 / 5))


def test_scratch_changes_nothing():
    sets, logits, _ = made(100)
    outputs = read_outputs(sets, None, logits, None)
    for a, b in zip(
        observe(outputs, slice(10, 60), None, (0.5,), outputs.scratch()),
        observe(outputs, np.arange(10, 60), None, (0.5,)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


# ---- mixture


def test_explain_by_hand():
    """Two classes, certain model (a = 0.5 by coefficients of zero), no open rows."""
    sets = CandidateSets([[0], [1], [0, 1]], classes=2)
    outputs = read_outputs(sets, np.array([[0.8, 0.2]] * 3), None, None)
    seen = observe(outputs, slice(0, 3), None)
    mixture = Mixture(2, np.zeros((51, 1)), 0, 0.0, np.zeros(2), None, 0.25, np.ones(3))
    joint, a, inside = explain(mixture, seen, design(mixture, seen.scores), seen.rest[0])
    np.testing.assert_allclose(a, 0.5)
    np.testing.assert_allclose(inside, [0.5, 0.5, 1.0])  # the other class is the only other guess
    # normal: 0.75 * inside * 2/1; closed: 0.25 * (1 - inside) * 2/1; a full set is never closed
    np.testing.assert_allclose(joint.T, [[0.75, 0.25, 0], [0.75, 0.25, 0], [0.75, 0, 0]])


def test_open_rows_enter_by_their_sizes():
    sets = CandidateSets([[0], [0, 1]], classes=2)
    seen = observe(read_outputs(sets, np.array([[0.8, 0.2]] * 2), None, None), slice(0, 2), None)
    mixture = Mixture(
        2, np.zeros((51, 1)), 0, 0.0, np.zeros(2), np.zeros(2), 0.0, np.array([1, 1.5, 0.5])
    )
    joint, _, inside = explain(mixture, seen, design(mixture, seen.scores), seen.rest[0])
    np.testing.assert_allclose(joint[2], [0.75, 0.25])
    np.testing.assert_allclose(joint[0], 0.5 * inside * [2, 1])


def test_em_never_makes_the_fit_worse_than_the_truth():
    """A mixture fitted to sets drawn from known shares finds them, within three standard errors."""
    sets, logits, truth = made(4000, tau1=0.2, tau2=0.3)
    seen = observe(read_outputs(sets, None, logits, None), np.arange(len(sets)), None)
    mixture = fit_mixture(seen, sets.n_classes)
    found, errors = shares(mixture, seen), standard_errors(mixture, seen)
    for kind, error in ((CLOSED, errors[0]), (OPEN, errors[1])):
        assert abs(found[kind] - (truth.kinds == kind).mean()) < 3 * error + 0.01
    assert 0.001 < errors[0] < 0.05
    assert mixture.fit > fit_mixture(seen, sets.n_classes, with_open=False).fit


def voted(n=600, c=6, seed=0):
    """(sets, logits, wrong): wrong sets are narrower, and the model is nearly always right."""
    rng = np.random.default_rng(seed)
    y, mask = rng.integers(c, size=n), np.zeros((n, c), dtype=bool)
    wrong = rng.random(n) < 0.11
    seen = np.where(wrong, (y + rng.integers(1, c, size=n)) % c, y)
    mask[np.arange(n), seen] = True
    for _ in range(2):  # second and third opinions, of which wrong rows have fewer
        rows = np.flatnonzero(rng.random(n) < np.where(wrong, 0.1, 0.3))
        mask[rows, rng.integers(c, size=len(rows))] = True
    logits = rng.normal(size=(n, c))
    logits[np.arange(n), y] += rng.uniform(4, 9, size=n)
    return CandidateSets(mask, classes=c), logits, ~mask[np.arange(n), y]


@pytest.mark.parametrize("seed", range(3))
def test_narrow_wrong_sets_of_sure_rows_are_no_errors_of_the_model(seed):
    """The fitted accuracy never falls as the model gets surer.

    Otherwise closed rows would count as errors of the model, and doubtful rows as closed.
    """
    sets, logits, wrong = voted(seed=seed)
    found = study(read_outputs(sets, None, logits, None))
    for mixture in (found.mixture, found.without):
        assert mixture.accuracy[1:].sum() < -0.9
    assert found.estimate.outside == pytest.approx(wrong.mean(), abs=0.03)
    table = audit(sets, logits=logits)
    assert average_precision(1 - table.p_normal.to_numpy(), wrong) > 0.97


# ---- rates


def test_a_perfect_model_gives_exact_shares():
    sets, logits, truth = made(3000, tau1=0.2, sharp=40.0)
    found = estimate_rates(sets, logits=logits)
    assert found.closed == pytest.approx((truth.kinds == CLOSED).mean(), abs=0.01)
    assert found.open == pytest.approx(0, abs=3e-3)
    assert found.outside == pytest.approx(found.closed + found.open)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("q", [0.1, 0.5])
def test_without_out_of_candidate_rows_the_intervals_hold_zero(q, seed):
    sets, logits, _ = made(1500, c=10, q=q, sharp=3.0, seed=seed)
    found = estimate_rates(sets, logits=logits)
    assert found.closed < 0.02
    assert found.open < 0.03
    assert found.closed_interval[0] == found.open_interval[0] == found.outside_interval[0] == 0


@pytest.mark.parametrize(("tau1", "tau2"), [(0.1, 0.1), (0.2, 0.4), (0.3, 0.0), (0.0, 0.6)])
def test_shares_are_found_and_covered(tau1, tau2):
    sets, logits, truth = made(3000, c=10, q=0.3, tau1=tau1, tau2=tau2, sharp=5.0)
    found = estimate_rates(sets, logits=logits)
    for name, kind in (("closed", CLOSED), ("open", OPEN)):
        true = (truth.kinds == kind).mean()
        low, high = getattr(found, f"{name}_interval")
        assert abs(getattr(found, name) - true) < 0.04
        assert low <= true <= high


def test_matched_sizes_do_not_mislead():
    sets, logits, truth = made(
        3000, c=10, q=0.1, tau1=0.1, tau2=0.4, sharp=5.0, open_sets="matched"
    )
    found = estimate_rates(sets, logits=logits)
    for name, kind in (("closed", CLOSED), ("open", OPEN)):
        low, high = getattr(found, f"{name}_interval")
        assert low <= (truth.kinds == kind).mean() <= high


def doubtful_and_wide(wider, n=2000, c=6, seed=0, unlike=0.0):
    """(mask, probs): truths drawn from the outputs; doubtful rows have more wrong labels.

    Which labels are wrong does not depend on the outputs.
    A share `unlike` of the rows has sets that have nothing to do with the outputs.
    """
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(c, 0.25), size=n)
    y = (rng.random(n)[:, None] < probs.cumsum(axis=1)).argmax(axis=1)
    mask = rng.random((n, c)) < wider(1 - probs.max(axis=1))[:, None]
    mask[np.arange(n), y] = True
    others = rng.random(n) < unlike
    mask[others] = rng.random((others.sum(), c)) < 0.3
    mask[others, rng.integers(c, size=others.sum())] = True
    return mask, probs


WIDER = {
    "the more doubt": lambda doubt: doubt,
    "and always some": lambda doubt: 0.5 + doubt / 2,
    "only in much doubt": lambda doubt: 0.5 * (doubt > 0.4),
    "narrower": lambda doubt: 0.6 * (1 - doubt),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("wider", WIDER)
def test_sets_that_are_wide_in_doubtful_rows_are_not_open(wider, seed):
    mask, probs = doubtful_and_wide(WIDER[wider], seed=seed)
    found = estimate_rates(mask, probs)
    assert found.open < 0.02
    assert found.closed < 0.02
    assert found.open_interval[0] == found.outside_interval[0] == 0
    assert any("sizes do not count" in note for note in found.notes)
    assert audit(mask, probs).p_open.mean() < 0.02


def test_open_rows_are_possible_among_wide_sets():
    mask, probs = doubtful_and_wide(WIDER["the more doubt"], unlike=0.2)
    found = estimate_rates(mask, probs)
    assert found.open_interval[0] <= 0.2 <= found.open_interval[1]


def test_what_only_sizes_say_is_told():
    mask, probs = doubtful_and_wide(lambda doubt: 0.4 + 0.5 * (doubt > 0.5))
    found = estimate_rates(mask, probs)
    assert any("Only the sizes of sets" in note for note in found.notes)
    assert found.open_interval[0] == 0 < found.open < found.open_interval[1]


def test_sizes_count_where_they_do_not_depend_on_doubt():
    sets, logits, _ = made(3000, c=10, q=0.1, tau1=0.2, tau2=0.4)
    found = study(read_outputs(sets, None, logits, None))
    assert found.mixture.size_odds is not None
    assert not sizes_mislead(found.mixture, found.without, found.seen)
    assert support(found.mixture, found.without, found.seen) > 0
    assert not any("sizes" in note for note in found.estimate.notes)


def test_support_is_the_likelihood_of_contents_given_sizes():
    """A set's probability, open or not, over that of its size."""
    sets, logits, _ = made(200, tau2=0.3)
    found = study(read_outputs(sets, None, logits, None))
    mixture, seen = found.mixture, found.seen
    X = design(mixture, seen.scores)
    joint, _, _ = explain(mixture, seen, X, seen.rest[mixture.power])
    total = 0.0
    for i, size in enumerate(seen.sizes):
        w = 1 / (1 + math.exp(-X[i] @ mixture.open_weights))
        total += math.log(joint[:, i].sum()) - math.log((1 - w) + w * mixture.size_odds[size])
    assert support(mixture, found.without, seen) == pytest.approx(total - found.without.fit)


def test_candidates_that_follow_the_ranking_are_told_and_bounded():
    rng = np.random.default_rng(0)
    n, c = 2000, 8
    y = rng.integers(c, size=n)
    logits = 1.5 * rng.normal(size=(n, c))
    logits[np.arange(n), y] += 3
    second = np.where(np.arange(c) == y[:, None], -np.inf, logits).argmax(axis=1)
    mask = np.zeros((n, c), dtype=bool)
    mask[np.arange(n), y] = mask[np.arange(n), second] = (
        True  # the wrong candidate is what resembles the row most
    )
    found = estimate_rates(mask, logits=logits)
    assert any("follow the model's ranking" in note for note in found.notes)
    assert found.closed_interval[0] == found.open_interval[0] == 0
    blind, logits, _ = made(2000, tau1=0.1, tau2=0.1)
    around = study(read_outputs(blind, None, logits, None))
    assert abs(ranking_excess(around.mixture, around.seen)) < 3.5
    assert not any("ranking" in note for note in around.estimate.notes)


def test_the_order_of_rows_and_classes_changes_little():
    sets, logits, _ = made(1200, tau1=0.2, tau2=0.2)
    mask, rng = sets.dense(), np.random.default_rng(1)
    rows, columns = rng.permutation(len(mask)), rng.permutation(mask.shape[1])
    a = estimate_rates(mask, logits=logits)
    b = estimate_rates(mask[rows][:, columns], logits=logits[rows][:, columns])
    assert a.closed == pytest.approx(b.closed, abs=1e-6)
    assert a.open == pytest.approx(b.open, abs=1e-6)


def test_the_sample_is_constant_and_the_same_each_time():
    assert len(sample(10)) == 10
    many = sample(1_000_000)
    assert len(many) == 5000 == len(np.unique(many))
    np.testing.assert_array_equal(many, sample(1_000_000))


def test_an_estimate_prints_itself_and_gives_rates():
    found = RatesEstimate(0.1, 0.2, 0.3, (0.05, 0.15), (0.1, 0.3), (0.2, 0.4), ("Beware.",))
    assert found.rates == Rates(0.1, 0.2)
    assert str(found).splitlines() == [
        "closed: 10.0% (5.0% to 15.0%)",
        "open: 20.0% (10.0% to 30.0%)",
        "outside: 30.0% (20.0% to 40.0%)",
        "Beware.",
    ]


@pytest.fixture(scope="module")
def mixed():
    """A study with open rows beyond doubt: (study, number of classes)."""
    sets, logits, _ = made(1500, tau1=0.2, tau2=0.3)
    found = study(read_outputs(sets, None, logits, None))
    assert found.weight > 0.999
    return found, sets.n_classes


def intervals(found):
    return np.array([found.closed_interval, found.open_interval, found.outside_interval]).T


def limits(mixture, seen):
    """(low, high) of closed, open and outside: 1.5 times a normal 90 % interval, plus 0.015."""
    _, closed, open_ = shares(mixture, seen)
    reach = 0.015 + 1.645 * 1.5 * np.array(standard_errors(mixture, seen))
    point = np.array([closed, open_, closed + open_])
    return np.array([point - reach, point + reach])


@pytest.mark.parametrize("weight", [1.0, 0.991])
def test_intervals_are_of_the_mixture_with_open_rows_if_it_is_sure(mixed, weight):
    found, c = mixed
    estimate = _estimate([found.mixture, found.without], weight, found.seen, c)
    expected = limits(found.mixture, found.seen)
    np.testing.assert_allclose(intervals(estimate), np.clip(expected, 0, 1))


@pytest.mark.parametrize(
    ("weight", "alone"), [(0.98, False), (0.5, False), (0.0, False), (1.0, True)]
)
def test_intervals_span_both_mixtures_if_either_may_hold(mixed, weight, alone, monkeypatch):
    """Also if only sizes speak for open rows (`support` is negative)."""
    monkeypatch.setattr("candidly.auditing.rates.support", lambda *args: -1.0 if alone else 1.0)
    found, c = mixed
    fits = [found.mixture, found.without]
    estimate = _estimate(fits, weight, found.seen, c)
    lows, highs = zip(*(limits(mixture, found.seen) for mixture in fits), strict=True)
    expected = [np.min(lows, axis=0), np.max(highs, axis=0)]
    np.testing.assert_allclose(intervals(estimate), np.clip(expected, 0, 1))
    points = [shares(mixture, found.seen)[1:] for mixture in fits]
    expected = weight * points[0] + (1 - weight) * points[1]
    assert [estimate.closed, estimate.open] == pytest.approx(expected.tolist())


def test_without_the_evidence_of_sizes_the_contents_are_believed(mixed, monkeypatch):
    monkeypatch.setattr("candidly.auditing.rates.support", lambda *args: -1.0)
    found, c = mixed
    sizeless = replace(found.mixture, size_odds=None)
    estimate = _estimate([sizeless, found.without], 1.0, found.seen, c)
    np.testing.assert_allclose(intervals(estimate), np.clip(limits(sizeless, found.seen), 0, 1))
    assert not any("Only the sizes" in note for note in estimate.notes)


def test_an_interval_holds_its_point(mixed, monkeypatch):
    """Even one without width, when the mixture without open rows has a say in the point."""
    found, c = mixed
    monkeypatch.setattr("candidly.auditing.rates.standard_errors", lambda *args: [0.0, 0.0, 0.0])
    monkeypatch.setattr("candidly.auditing.rates.MODEL_ERROR", 0.0)
    estimate = _estimate([found.mixture, found.without], 0.995, found.seen, c)
    full, without = (shares(mixture, found.seen) for mixture in (found.mixture, found.without))
    assert without[1] > full[1]
    assert estimate.closed_interval == pytest.approx((full[1], estimate.closed))
    assert estimate.open_interval == pytest.approx((estimate.open, full[2]))


def test_notes_say_what_cannot_be_told(mixed, monkeypatch):
    found, c = mixed

    def notes(weight, support):
        monkeypatch.setattr("candidly.auditing.rates.support", lambda *args: support)
        return " ".join(_estimate([found.mixture, found.without], weight, found.seen, c).notes)

    assert "cannot tell open rows" in notes(0.98, 1.0)
    assert "cannot tell open rows" not in notes(0.995, 1.0) + notes(0.04, 1.0)
    assert "Only the sizes" in notes(0.06, -1.0)
    assert "Only the sizes" not in notes(0.04, -1.0) + notes(0.06, 1.0)


def test_bounds_where_candidates_follow_the_ranking(mixed, monkeypatch):
    """The larger of interval and bound: rows without the best class, and hidden open ones."""
    found, c = mixed
    seen = found.seen
    missed = [1 - hit for hit in seen.hit]
    share = sum(missed) / len(missed)
    spread = (sum((miss - share) ** 2 for miss in missed) / len(missed)) ** 0.5
    most = share + 1.645 * spread / len(missed) ** 0.5 + 0.015
    hidden = most / (1 - sum(seen.sizes) / len(seen.sizes) / c)
    np.testing.assert_allclose(best_misses(seen, c), [most, hidden, hidden])
    monkeypatch.setattr("candidly.auditing.rates.ranking_excess", lambda *args: 3.6)
    bounded = intervals(_estimate([found.mixture, found.without], 1.0, seen, c))
    high = np.maximum(limits(found.mixture, seen)[1], [most, hidden, hidden])
    np.testing.assert_allclose(bounded, [np.zeros(3), np.clip(high, 0, 1)])
    monkeypatch.setattr("candidly.auditing.rates.best_misses", lambda *args: np.zeros(3))
    bounded = intervals(_estimate([found.mixture, found.without], 1.0, seen, c))
    np.testing.assert_allclose(bounded[1], np.clip(limits(found.mixture, seen)[1], 0, 1))
    monkeypatch.setattr("candidly.auditing.rates.ranking_excess", lambda *args: 3.4)
    assert intervals(_estimate([found.mixture, found.without], 1.0, seen, c))[0].min() > 0


def test_lured_equals_the_naive_loop(mixed):
    found, _ = mixed
    mixture, seen = found.mixture, found.seen
    X = design(mixture, seen.scores)
    joint, a, inside = explain(mixture, seen, X, seen.rest[mixture.power])
    excess = []
    for i in range(len(seen.sizes)):
        right = joint[0, i] / sum(joint[:, i]) * (a[i] / inside[i] if seen.hit[i] == 1 else 0)
        excess.append(right * (seen.rest[POWERS.index(1.0), i] - seen.chance[i]))
    expected = sum(excess) / math.sqrt(sum(x * x for x in excess))
    assert ranking_excess(mixture, seen) == pytest.approx(expected)


@pytest.mark.parametrize("gain", [0.0, 3.0, 9.0, 20.0])
def test_the_weight_of_open_rows_by_hand(mixed, gain):
    """BIC: log n / 2 for each coefficient of w (one, doubt, energy); all of it over 1.5^2."""
    found, c = mixed
    n = len(found.seen.sizes)
    full = replace(found.mixture, fit=found.without.fit + gain)
    expected = 1 / (1 + math.exp(-(gain - 1.5 * math.log(n)) / 2.25))
    assert _weight_of_open(full, found.without, found.seen, c) == pytest.approx(expected)


def test_sizes_are_left_out_only_where_open_rows_are_possible(monkeypatch):
    sets, logits, _ = made(300)
    monkeypatch.setattr("candidly.auditing.rates.sizes_mislead", lambda *args: True)
    for weight, counts in ((0.04, True), (0.06, False)):
        monkeypatch.setattr(
            "candidly.auditing.rates._weight_of_open", lambda *args, weight=weight: weight
        )
        found = study(read_outputs(sets, None, logits, None))
        assert (found.mixture.size_odds is not None) == counts


def test_the_model_is_astray_if_it_hits_no_more_often_than_chance():
    """Of 100 singletons over 4 classes 25 +- 4.3 hold any class: at 1.645 times that, up to 32."""

    def hits(n_hits, n=100, size=1):
        hit = np.repeat([1.0, 0.0], [n_hits, n - n_hits])
        return seen_of([([0.5, 0.5], [0])])._replace(hit=hit, sizes=np.full(n, size))

    assert "in 32% of the rows; any class would be in 25%" in chance_note(hits(32), 4)
    assert chance_note(hits(33), 4) is None
    assert chance_note(hits(20, n=99), 4) is None  # too few rows
    assert chance_note(hits(90, size=19), 20) is None  # hardly any class is left out


def test_shares_of_few_rows_are_drawn_towards_none():
    """By ten rows that count as normal."""
    sets, logits, _ = made(99, tau1=0.3)
    few = study(read_outputs(sets, None, logits, None))
    full, without = shares(few.mixture, few.seen), shares(few.without, few.seen)
    point = few.weight * full + (1 - few.weight) * without
    assert few.estimate.closed == pytest.approx(point[1] * 99 / 109)
    assert intervals(few.estimate).tolist() == [[0, 0, 0], [1, 1, 1]]


def test_a_sample_of_all_rows_is_all_rows(monkeypatch):
    monkeypatch.setattr("candidly.auditing.rates.SAMPLE", 50)
    np.testing.assert_array_equal(sample(50), np.arange(50))
    assert len(sample(51)) == 50
    spread = sample(5000)
    assert spread.min() < 1000
    assert spread.max() > 4000
    assert (np.diff(spread) > 0).all()


# ---- verdicts


def test_columns_and_sums():
    sets, logits, _ = made(800, tau1=0.2, tau2=0.3)
    table = audit(sets, logits=logits)
    assert table.columns.tolist() == COLUMNS
    np.testing.assert_allclose(table[["p_normal", "p_closed", "p_open"]].sum(axis=1), 1)
    np.testing.assert_array_equal(table.id, np.arange(len(sets)))
    best = table[["p_normal", "p_closed", "p_open"]].to_numpy().argmax(axis=1)
    np.testing.assert_array_equal(table.verdict, np.array(["normal", "closed", "open"])[best])
    inside, outside = wooden_losses(log_softmax(logits), sets.dense())
    np.testing.assert_allclose(table.inside_loss, inside, rtol=1e-5)
    np.testing.assert_allclose(table.outside_loss, outside, rtol=1e-5)


def test_it_finds_the_rows_and_the_labels():
    sets, logits, truth = made(3000, c=10, q=0.1, tau1=0.2, tau2=0.3, sharp=6.0)
    table = audit(sets, logits=logits)
    verdict = table.verdict.cat.codes.to_numpy()
    for kind in (NORMAL, CLOSED, OPEN):
        assert (verdict == kind)[truth.kinds == kind].mean() > 0.85
    closed = (truth.kinds == CLOSED) & (verdict == CLOSED)
    assert (table.suggested_label.astype(float) == truth.labels)[closed].mean() > 0.95
    assert table.suggested_label[verdict == OPEN].isna().all()
    assert not table.suggested_label[verdict != OPEN].isna().any()
    np.testing.assert_array_equal(
        table.suggested_probability[verdict == OPEN], table.p_open[verdict == OPEN]
    )


def test_suggestions_are_candidates_of_normal_rows_and_others_of_closed_ones():
    sets, logits, _ = made(1000, tau1=0.3)
    table = audit(sets, logits=logits, rates=Rates(0.3, 0.0))
    assert (table.p_open == 0).all()
    assert (table.verdict != "open").all()
    is_candidate = sets.contains(table.suggested_label.astype(int).to_numpy())
    sure = table.suggested_probability > 0.5
    assert is_candidate[sure & (table.verdict == "normal")].all()
    assert not is_candidate[sure & (table.verdict == "closed")].any()
    assert (table.suggested_probability <= table[["p_normal", "p_closed"]].max(axis=1) + 1e-9).all()


@pytest.mark.parametrize(
    "rates", [Rates(0.1, 0.3), Rates(0.0, 0.2), Rates(0.4, 0.0), Rates(0.0, 0.0)]
)
def test_given_rates_are_the_mean_probabilities(rates):
    sets, logits, _ = made(1500, tau1=0.2, tau2=0.3)
    table = audit(sets, logits=logits, rates=rates)
    assert table.p_closed.mean() == pytest.approx(rates.closed, abs=2e-3)
    assert table.p_open.mean() == pytest.approx(rates.open, abs=2e-3)


def test_an_estimate_can_be_passed_on():
    sets, logits, _ = made(600, tau1=0.2, tau2=0.3)
    found = estimate_rates(sets, logits=logits)
    pd.testing.assert_frame_equal(
        audit(sets, logits=logits, rates=found.rates), audit(sets, logits=logits, rates=found)
    )


def naive_opinion(p, members, mixture, odds):
    """(normal, closed, open, right_in, right_out) of one row by loops; a and w are constant."""
    c, power = len(p), POWERS[mixture.power]
    a, w = (1 / (1 + math.exp(-theta[0])) for theta in (mixture.accuracy, mixture.open_weights))
    best = max(range(c), key=lambda j: (p[j], j in members))
    rest = sum(p[j] ** power for j in range(c) if j != best)
    truth = []  # P(truth = j) of a known row
    for j in range(c):
        share = p[j] ** power / rest if rest else 1 / (c - 1)
        lesser = (1 - mixture.floor) * share + mixture.floor / (c - 1)
        truth.append(a if j == best else (1 - a) * lesser)
    inside, s = sum(truth[j] for j in members), len(members)
    normal = odds[0] * (1 - w) * (1 - mixture.closed) * inside * c / s
    closed = odds[1] * (1 - w) * mixture.closed * (1 - inside) * c / (c - s) if s < c else 0
    open_ = odds[2] * w * mixture.size_odds[s]
    total = normal + closed + open_
    right_in = normal / total * max(truth[j] for j in members) / inside
    others = [truth[j] for j in range(c) if j not in members]
    right_out = closed / total * max(others) / (1 - inside) if others else 0
    return [normal / total, closed / total, open_ / total, right_in, right_out]


ROWS = [
    ([0.6, 0.3, 0.1], [0]),  # the best class is a candidate
    ([0.6, 0.3, 0.1], [1]),  # it is not
    ([0.6, 0.3, 0.1], [1, 2]),
    ([0.6, 0.3, 0.1], [0, 2]),
    ([0.2, 0.5, 0.3], [0, 1, 2]),  # a full set
    ([0.9, 0.1, 0.0], [2]),  # an impossible candidate
    ([1.0, 0.0, 0.0], [1]),  # a certain model
    ([1.0, 0.0, 0.0], [0, 1]),
]


def even_handed(c, power, **changes):
    """A mixture that judges all rows alike, whatever their scores."""
    start = Mixture(c, np.zeros((51, 1)), power, 0.0, np.zeros(2), None, 0.5, np.ones(c + 1))
    return replace(start, **changes)


@pytest.mark.parametrize("power", range(len(POWERS)))
@pytest.mark.parametrize("odds", [[1.0, 1.0, 1.0], [0.5, 2.0, 0.1]])
def test_opinions_equal_the_naive_loop(power, odds):
    theta = {"accuracy": np.array([1.2, 0]), "open_weights": np.array([-0.7, 0])}
    sizes = np.array([1.0, 1.3, 0.8, 0.6])
    mixture = even_handed(3, power, floor=0.1, closed=0.25, size_odds=sizes, **theta)
    seen, judge = seen_of(ROWS), Judge(mixture, 1.0, np.array(odds))
    opinion = _opinion(judge, seen, design(mixture, seen.scores), power)
    expected = [naive_opinion(p, members, mixture, odds) for p, members in ROWS]
    np.testing.assert_allclose(opinion.T, expected, atol=1e-9)


def test_a_suggestion_is_of_the_likelier_side_and_has_its_chance_to_be_right():
    theta = {"accuracy": np.array([1.2, 0]), "open_weights": np.array([-0.7, 0])}
    mixture = even_handed(3, 1, floor=0.1, **theta)
    kinds, suggestion = judge_rows([Judge(mixture, 1.0, np.ones(3))], seen_of(ROWS), POWERS)
    for i, (p, members) in enumerate(ROWS):
        normal, closed, open_, right_in, right_out = naive_opinion(p, members, mixture, [1, 1, 1])
        assert kinds[i].tolist() == pytest.approx([normal, closed, open_])
        others = [j for j in range(3) if j not in members]
        side, right = (members, right_in) if normal >= closed else (others, right_out)
        assert suggestion[i].tolist() == pytest.approx([max(side, key=lambda j: p[j]), right])
    assert suggestion[:2, 0].tolist() == [0, 0]  # a candidate in row 0, another class in row 1


def test_plain_opinions_are_blended_in():
    seen = seen_of([([0.6, 0.4], [0]), ([0.8, 0.2], [1])])
    judges = [Judge(even_handed(2, 2), 1.0, np.ones(3))]
    np.testing.assert_allclose(judge_rows(judges, seen, POWERS)[0], [[0.5, 0.5, 0], [0.5, 0.5, 0]])
    kinds, suggestion = judge_rows(judges, seen, POWERS, raw_weight=0.25)
    np.testing.assert_allclose(kinds, [[0.525, 0.475, 0], [0.425, 0.575, 0]])
    np.testing.assert_allclose(suggestion, [[0, 0.525], [0, 0.575]])  # each side is one class


def test_of_equal_sides_the_candidate_is_suggested():
    """The best candidate is a best class, too: if the truth is inside, it is that one."""
    judges = [Judge(even_handed(2, 2, accuracy=np.array([1.2, 0])), 1.0, np.ones(3))]
    kinds, suggestion = judge_rows(judges, seen_of([([0.5, 0.5], [1])]), POWERS)
    assert kinds.tolist() == [[0.5, 0.5, 0]]
    assert suggestion.tolist() == [[1, 0.5]]


@pytest.mark.parametrize(("kind", "row"), [(0, [1]), (1, [0]), (2, [0])])
def test_rounding_rules_no_kind_out(kind, row):
    """Not even of a model that never errs and an open share of 0, to the last bit."""
    never = {"accuracy": np.array([800.0, 0]), "open_weights": np.array([-800.0, 0])}
    judge = Judge(even_handed(2, 2, **never), 1.0, np.eye(3)[kind])  # all rows are of this kind
    kinds, _ = judge_rows([judge], seen_of([([1.0, 0.0], row)]), POWERS)
    np.testing.assert_array_equal(kinds, np.eye(3)[[kind]])


@pytest.mark.parametrize("closed", [0.0, 0.999999, 1.0])
def test_given_rates_replace_the_share_of_the_mixture(mixed, closed):
    found, _ = mixed
    other = found._replace(without=replace(found.without, closed=closed))
    expected, _ = judge_rows(make_judges(found, Rates(0.2, 0)), found.seen, POWERS)
    kinds, _ = judge_rows(make_judges(other, Rates(0.2, 0)), found.seen, POWERS)
    np.testing.assert_allclose(kinds, expected, atol=2e-3)


def test_given_rates_choose_the_mixture_that_can_have_them(mixed):
    found, _ = mixed
    for rates, mixture in ((Rates(0.2, 0.0), found.without), (Rates(0.2, 0.1), found.mixture)):
        (judge,) = make_judges(found, rates)
        assert judge.weight == 1
        assert (judge.mixture.open_weights is None) == (mixture.open_weights is None)
        assert judge.mixture.accuracy is mixture.accuracy


def test_a_mixture_counts_by_its_weight(mixed):
    found, _ = mixed
    judges = make_judges(found._replace(weight=0.9))
    assert [judge.weight for judge in judges] == pytest.approx([0.9, 0.1])
    assert len(make_judges(found._replace(weight=0.998))) == 2
    assert len(make_judges(found._replace(weight=0.9995))) == 1


@pytest.mark.parametrize(("n", "raw_weight"), [(99, 10 / 109), (100, 0.0)])
def test_raw_outputs_count_for_ten_rows_among_few(n, raw_weight):
    sets, logits, _ = made(n, tau1=0.3)
    found = study(read_outputs(sets, None, logits, None))
    expected, _ = judge_rows(make_judges(found), found.seen, POWERS, raw_weight)
    table = audit(sets, logits=logits)
    np.testing.assert_allclose(table[["p_normal", "p_closed", "p_open"]], expected)


def test_two_mixtures_are_weighed():
    sets, logits, _ = made(400, tau1=0.2, tau2=0.1)
    found = study(read_outputs(sets, None, logits, None))
    full, without = (make_judges(found._replace(weight=w)) for w in (1.0, 0.0))
    assert (len(full), len(without)) == (1, 2)
    a, b = (judge_rows(judges, found.seen, POWERS)[0] for judges in (full, without))
    assert (b[:, 2] == 0).all()
    half = judge_rows(make_judges(found._replace(weight=0.5)), found.seen, POWERS)[0]
    np.testing.assert_allclose(half, (a + b) / 2)


@pytest.mark.parametrize("block", [7, 64, 1 << 20])
def test_blocks_and_memory_maps_change_nothing(block, tmp_path, monkeypatch):
    sets, logits, _ = made(500, tau1=0.2, tau2=0.2)
    X = np.random.default_rng(0).normal(size=(len(sets), 3))
    monkeypatch.setattr("candidly.auditing.rates.SAMPLE", 400)
    whole = audit(sets, logits=logits, features=X)
    np.save(tmp_path / "logits.npy", logits)
    monkeypatch.setattr("candidly.blocks.ENTRIES", block)
    mapped = np.load(tmp_path / "logits.npy", mmap_mode="r")
    pd.testing.assert_frame_equal(audit(sets, logits=mapped, features=X), whole)


def test_rows_beyond_the_sample_are_judged_too(monkeypatch):
    sets, logits, truth = made(2000, c=10, tau1=0.2, sharp=6.0)
    monkeypatch.setattr("candidly.auditing.rates.SAMPLE", 600)
    table = audit(sets, logits=logits)
    assert (table.verdict == "closed")[truth.kinds == CLOSED].mean() > 0.9


def test_names_of_rows_and_classes():
    sets = CandidateSets([["cat"], ["dog", "cat"], ["cow"]] * 50)
    probs = np.tile([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1]], (50, 1))
    table = audit(sets, probs, ids=[f"row{i}" for i in range(150)])
    assert table.id.tolist()[:2] == ["row0", "row1"]
    assert table.suggested_label.tolist()[:3] == ["cat", "dog", "cow"]
    assert table.suggested_label.cat.categories.tolist() == ["cat", "cow", "dog"]


def test_torch_is_never_imported():
    code = (
        "import sys, numpy as np, candidly\n"
        "assert 'pandas' not in sys.modules and 'sklearn' not in sys.modules\n"
        "candidly.audit(np.eye(3, dtype=bool), np.eye(3))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


# ---- bad and odd input: a clear error, or a sound answer without a warning


GOOD = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]])


@pytest.mark.parametrize(
    ("probs", "told"),
    [
        (
            np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.4]]),
            r"probs, row 1: \[0.1, 0.8, 0.4\] sums to 1.3",
        ),
        (np.array([[0.7, 0.2, 0.1], [0.1, np.nan, 0.1]]), "probs, row 1: .* are not all finite"),
        (np.array([[0.7, 0.2, 0.1], [-0.2, 1.1, 0.1]]), "probs, row 1: .* least value of -0.2"),
        (np.array([[0.0, 0.0, 0.0], [0.1, 0.8, 0.1]]), r"probs, row 0: \[0, 0, 0\] sums to 0 "),
        (
            np.log(GOOD),
            r"probs, row 0: .* expected probabilities that sum to 1. Pass raw scores as logits=",
        ),
        (GOOD[:1], r"probs has shape \(1, 3\)"),
        (GOOD[:, :2], r"probs has shape \(2, 2\), but there are 2 candidate sets over 3 classes"),
        (GOOD[0], r"probs has shape \(3,\)"),
        (np.array([["a"] * 3] * 2), "expected numbers"),
    ],
)
def test_outputs_that_are_no_probabilities_are_refused(probs, told):
    for call in (audit, estimate_rates):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(InputError, match=told):
                call(CandidateSets([[0], [1, 2]], classes=3), probs)


def test_other_bad_arguments_are_refused():
    sets = CandidateSets([[0], [1, 2]], classes=3)
    with pytest.raises(InputError, match="either probs or logits"):
        audit(sets)
    with pytest.raises(InputError, match="and not both"):
        audit(sets, GOOD, logits=GOOD)
    with pytest.raises(InputError, match=r"logits, row 0: .* are not all finite"):
        audit(sets, logits=np.array([[np.inf, 0, 0], [0, 0, 0]]))
    with pytest.raises(InputError, match=r"features has shape \(3, 1\)"):
        audit(sets, GOOD, features=np.ones((3, 1)))
    with pytest.raises(InputError, match="features, row 1"):
        audit(sets, GOOD, features=np.array([[1.0], [np.nan]]))
    with pytest.raises(InputError, match="rates='many'"):
        audit(sets, GOOD, rates="many")
    with pytest.raises(InputError, match=r"ids has shape \(3,\)"):
        audit(sets, GOOD, ids=[1, 2, 3])
    with pytest.raises(InputError, match="only the class"):
        audit(CandidateSets([["cat"], ["cat"]]), np.ones((2, 1)))


def quietly(candidates, probs, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = audit(candidates, probs, **options)
        found = estimate_rates(candidates, probs, **options)
    numbers = table[["p_normal", "p_closed", "p_open", "suggested_probability"]]
    assert np.isfinite(numbers).all(axis=None)
    np.testing.assert_allclose(table[["p_normal", "p_closed", "p_open"]].sum(axis=1), 1)
    shares_are_sound(found)
    return table, found


def shares_are_sound(found):
    for name in ("closed", "open", "outside"):
        low, high = getattr(found, f"{name}_interval")
        assert 0 <= low <= getattr(found, name) <= high <= 1


def test_two_rows():
    table, found = quietly(CandidateSets([[0], [1, 2]], classes=3), GOOD)
    assert len(table) == 2
    assert found.closed_interval == (0, 1)
    assert any("2 rows are too few" in note for note in found.notes)


def test_one_row_with_features():
    quietly(CandidateSets([[0]], classes=3), GOOD[:1], features=np.ones((1, 2)))


def test_all_sets_full():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(4), size=300)
    table, found = quietly(np.ones((300, 4), dtype=bool), probs)
    assert found.closed == 0 == found.closed_interval[1]
    assert found.open < 0.01
    assert any("Every set holds every class" in note for note in found.notes)
    assert (table.verdict == "normal").all()
    assert np.isinf(table.outside_loss).all()


def test_all_singletons_are_label_noise():
    sets, logits, truth = made(2000, q=0.0, tau1=0.15, sharp=8.0)
    table, found = quietly(sets, probabilities(logits))
    assert found.closed == pytest.approx(0.15, abs=0.04)  # errors of the model look the same
    assert found.closed_interval[0] <= 0.15 <= found.closed_interval[1]
    assert (table.verdict == "closed")[truth.kinds == CLOSED].mean() > 0.95


def test_a_class_that_nobody_proposed_can_be_the_truth():
    sets, logits, truth = made(1000, c=5, q=0.0, tau1=0.0, sharp=8.0)
    mask = sets.dense()
    lost = truth.labels == 4
    mask[lost] = [True, False, False, False, False]
    table, _ = quietly(CandidateSets(mask, classes=5), probabilities(logits))
    assert (table.suggested_label.astype(float)[lost] == 4).mean() > 0.95


def test_certain_and_flat_outputs():
    rng = np.random.default_rng(0)
    quietly(
        CandidateSets(rng.integers(3, size=200), classes=3), np.eye(3)[rng.integers(3, size=200)]
    )
    quietly(CandidateSets(rng.integers(3, size=200), classes=3), np.full((200, 3), 1 / 3))


@given(data=st.data())
def test_any_small_data_give_a_sound_answer(data):
    n, c = data.draw(st.integers(1, 12)), data.draw(st.integers(2, 4))
    members = [data.draw(st.sets(st.integers(0, c - 1), min_size=1)) for _ in range(n)]
    weights = data.draw(
        st.lists(
            st.lists(st.sampled_from([0, 1, 5]), min_size=c, max_size=c), min_size=n, max_size=n
        )
    )
    probs = np.array(
        [np.array(row) / sum(row) if sum(row) else np.full(c, 1 / c) for row in weights]
    )
    quietly(CandidateSets(members, classes=c), probs)


KINDS = ["p_normal", "p_closed", "p_open"]
EXTREME = [
    "auto", Rates(0, 0), Rates(1, 0), Rates(0, 1), Rates(0.5, 0.5), Rates(1 - 1e-12, 0),
    Rates(1e-300, 0), Rates(0, 1e-300), Rates(0, 1 - 1e-9),
]  # fmt: skip
LOGITS = st.sampled_from([0.0, 1.0, -1.0, 1e-300, 50.0, -800.0, 1e5, 3e38, -3e38, -math.inf])


@given(data=st.data())
def test_probabilities_are_finite_whatever_the_rates_and_the_outputs(data):
    n, c = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 3))
    members = [data.draw(st.sets(st.integers(0, c - 1), min_size=1)) for _ in range(n)]
    logits = np.array([[data.draw(LOGITS) for _ in range(c)] for _ in range(n)])
    logits[:, 0] = np.maximum(logits[:, 0], -3e38)  # no row is all -inf
    sets = CandidateSets(members, classes=c)
    shares_are_sound(estimate_rates(sets, logits=logits))
    for rates in EXTREME:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            table = audit(sets, logits=logits, rates=rates)
        kinds = table[KINDS].to_numpy()
        assert (kinds >= 0).all()
        np.testing.assert_allclose(kinds.sum(axis=1), 1)
        assert (kinds[sets.sizes == c, 1] == 0).all()
        assert table.suggested_probability.between(0, 1 + 1e-9).all()


def test_full_sets_are_normal_where_all_rows_are_to_be_closed():
    probs = np.random.default_rng(0).dirichlet(np.ones(4), 200)
    table = audit(np.ones((200, 4), dtype=bool), probs, rates=Rates(1, 0))
    np.testing.assert_array_equal(table[KINDS], np.tile([1.0, 0.0, 0.0], (200, 1)))


@pytest.mark.parametrize("rows", [5000, 150])  # sampled; others are judged in single precision
def test_rows_share_what_full_sets_cannot_be(rows, monkeypatch):
    monkeypatch.setattr("candidly.auditing.rates.SAMPLE", rows)
    sets, logits, _ = made(300, c=4, tau1=0.3)
    logits = logits.astype(np.float32)
    mask = sets.dense()
    mask[:150] = True
    partial = ~mask.all(axis=1)
    all_closed = audit(mask, logits=logits, rates=Rates(1, 0))
    assert (all_closed.p_normal[~partial] == 1).all()
    assert (all_closed.p_closed[partial] == 1).all()
    some_open = audit(mask, logits=logits, rates=Rates(0.9, 0.05))
    assert (some_open.p_closed[partial] > 0.999).all()
    assert some_open.p_open[~partial].mean() == pytest.approx(0.5, abs=0.02)  # 0.05 to 0.05
    full = audit(np.ones_like(mask), logits=logits, rates=Rates(0.3, 0.2))
    assert full.p_open.mean() == pytest.approx(0.2 / 0.7, abs=0.05)


def test_a_full_set_beyond_the_sample_is_normal(monkeypatch):
    sets, logits, _ = made(400, c=4)
    mask = sets.dense() & (np.arange(4) < 3) | np.eye(4, dtype=bool)[sets.indices[sets.indptr[:-1]]]
    monkeypatch.setattr("candidly.auditing.rates.SAMPLE", 100)
    row = int(np.setdiff1d(np.arange(400), sample(400))[0])
    mask[row] = True
    mask[np.setdiff1d(np.arange(400), row), 3] = False
    mask[~mask.any(axis=1), 0] = True
    table = audit(mask, logits=logits, rates=Rates(1, 0))
    assert table.loc[row, KINDS].tolist() == [1, 0, 0]
    assert (table.p_closed.drop(row) == 1).all()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_wrong_rows_means_none_however_wrong_few_rows_look(n):
    table = audit(np.eye(3, dtype=bool)[[0] * n], np.eye(3)[[1] * n], rates=Rates(0, 0))
    np.testing.assert_array_equal(table[KINDS], np.tile([1.0, 0.0, 0.0], (n, 1)))


def test_the_outside_share_never_exceeds_one(monkeypatch):
    """Means of probabilities that sum to 1 in each row may sum to a little more."""
    closed, open_ = 0.1, np.nextafter(0.9, 1)
    assert closed + open_ > 1
    found = np.array([0.0, closed, open_])
    monkeypatch.setattr("candidly.auditing.rates.shares", lambda mixture, seen: found)
    sets, logits, _ = made(200, tau1=0.3)
    found = estimate_rates(sets, logits=logits)
    assert found.outside == found.outside_interval[1] == 1


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_tensors_of_low_precision_are_read(kind):
    sets, logits, _ = made(400, tau1=0.2)
    low = torch.tensor(logits, requires_grad=True).to(kind)
    for name, values in (("logits", low), ("probs", low.softmax(-1))):
        tensor, array = {name: values}, {name: values.detach().double().numpy()}
        pd.testing.assert_frame_equal(audit(sets, **tensor), audit(sets, **array), rtol=1e-3)
        found, expected = estimate_rates(sets, **tensor), estimate_rates(sets, **array)
        assert found.closed == pytest.approx(expected.closed, abs=1e-3)
    features = torch.tensor(np.random.default_rng(0).normal(size=(len(sets), 3))).to(kind)
    found = estimate_rates(sets, logits=logits, features=features)
    assert found == estimate_rates(sets, logits=logits, features=features.double().numpy())


@pytest.mark.parametrize("scale", [1e-30, 1e19, 1e38])
def test_the_unit_of_features_does_not_matter(scale):
    sets, logits, _ = made(300, tau1=0.2, tau2=0.2)
    features = np.clip(np.random.default_rng(0).normal(size=(len(sets), 3)), -3, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled = audit(sets, logits=logits, features=scale * features)
    pd.testing.assert_frame_equal(scaled, audit(sets, logits=logits, features=features), rtol=1e-3)


def test_numbers_beyond_float32_are_refused_with_their_row():
    sets = CandidateSets([[0], [1, 2]], classes=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match=r"features, row 1: -1e\+39 is not a finite float32"):
            audit(sets, GOOD, features=np.array([[1.0, 2.0], [3.0, -1e39]]))
        with pytest.raises(InputError, match=r"logits, row 1: \[0, 1e\+300, 0\] .* at most 3.4e38"):
            audit(sets, logits=np.array([[0.0, 0, 0], [0, 1e300, 0]]))


def test_public_names():
    for name in ("audit", "estimate_rates", "RatesEstimate"):
        assert name in candidly.__all__
        assert getattr(candidly, name).__name__ == name


def test_columns_of_a_frame_are_matched_by_name():
    sets = [["a"], ["b", "c"], ["c"]] * 60
    probs = np.tile([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.2, 0.1, 0.7]], (60, 1))
    expected = audit(sets, probs)
    frame = pd.DataFrame(probs, columns=["a", "b", "c"])[["c", "a", "b"]]
    pd.testing.assert_frame_equal(audit(sets, frame), expected)
    without_names = pd.DataFrame(probs)
    pd.testing.assert_frame_equal(audit(sets, without_names), expected)
    with pytest.raises(
        InputError,
        match=r"probs has the columns \['a', 'b', 'd'\], but the classes are \['a', 'b', 'c'\]",
    ):
        audit(sets, frame.set_axis(["a", "b", "d"], axis=1))


def test_suggestions_agree_with_verdicts():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(4, 0.4), size=600)
    mask = rng.random((600, 4)) < 0.4
    likely = np.where(rng.random(600) < 0.5, probs.argmax(axis=1), rng.integers(4, size=600))
    mask[np.arange(600), likely] = True
    table = audit(mask, probs, rates=Rates(0.4, 0.1))
    inside = mask[np.arange(600), np.maximum(table["suggested_label"].cat.codes, 0)]
    assert inside[table["verdict"] == "normal"].all()
    assert not inside[table["verdict"] == "closed"].any()
    assert {"normal", "closed"} <= set(table["verdict"])
    assert table["suggested_label"].isna().equals(table["verdict"] == "open")


def test_outputs_in_another_order_are_doubted():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=300)
    probs = np.full((300, 3), 0.05)
    probs[np.arange(300), y] = 0.9
    sets = np.eye(3, dtype=bool)[y]
    assert not any(
        "best class is a candidate" in note for note in audit(sets, probs).attrs["notes"]
    )
    (note,) = [
        note for note in audit(sets, probs[:, [1, 2, 0]]).attrs["notes"] if "best class" in note
    ]
    assert note.startswith(
        "The model's best class is a candidate in 0% of the rows; any class would be in 33%"
    )


def test_of_few_rows_little_is_believed():
    table = audit([[0], [1]], [[0.1, 0.9], [0.8, 0.2]])
    assert table["p_closed"].tolist() == pytest.approx(
        [2 / 12 + 10 / 12 * 0.9, 2 / 12 + 10 / 12 * 0.8], abs=1e-3
    )
    assert table.attrs["notes"][-1].startswith("2 rows are too few")
    estimate = estimate_rates([[0], [1]], [[0.1, 0.9], [0.8, 0.2]])
    assert estimate.outside <= 2 / 12
    assert estimate.outside_interval == (0, 1)


def test_given_rates_hold_for_few_rows():
    rng = np.random.default_rng(0)
    table = audit(
        np.eye(4, dtype=bool)[rng.integers(4, size=60)],
        rng.dirichlet(np.ones(4), size=60),
        rates=Rates(0.3, 0.1),
    )
    assert table[["p_closed", "p_open"]].mean().tolist() == pytest.approx([0.3, 0.1], abs=0.01)
