"""How answers arise: each process against a naive reimplementation, and the fit of all of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from sklearn.metrics import average_precision_score

from candidly import Answers, Audit, CandidateSets, Rates, audit, corrupt, estimate_rates
from candidly.auditing.caveats import unanimity
from candidly.auditing.census import rows_of, sample_size, take_census
from candidly.auditing.choice import held_out, make_study
from candidly.auditing.crowd import (
    BLAMED,
    Rows,
    _appearance,
    explained,
    fit_explanation,
    log_joint,
    slip_of,
    truth_given,
)
from candidly.auditing.evidence import observe, read_gold, read_outputs
from candidly.auditing.processes import NAMES, PROCESSES, Evidence
from candidly.auditing.processes.annotators import AnnotatorConfusion, able
from candidly.auditing.processes.base import Said, SaidBy
from candidly.auditing.processes.confusion import (
    Confusion,
    error_rate,
    shrunk,
    with_error,
)
from candidly.auditing.processes.inclusion import Inclusion
from candidly.auditing.processes.union import Union
from candidly.auditing.shares import guessed_open, kinds_of
from candidly.auditing.verdicts import truth_posterior
from candidly.errors import InputError

MATRIX = np.array([[0.7, 0.1, 0.1, 0.1], [0.2, 0.6, 0.1, 0.1], [0.05, 0.15, 0.5, 0.3]])


def people(n=1500, c=5, k=3, error=0.2, seed=0, skill=2.0, slip=0.0, own=None):
    """(answers, logits, truth): k annotators who err, and a model that is not sure enough.

    Its logits are calibrated when they are multiplied by `skill`; a share `slip` is random.
    """
    rng = np.random.default_rng(seed)
    truth = rng.integers(c, size=n)
    rates = np.full(k, error) if own is None else np.asarray(own)
    wrong = (truth[:, None] + rng.integers(1, c, size=(n, k))) % c
    given_ = np.where(rng.random((n, k)) < rates, wrong, truth[:, None])
    seen = np.where(rng.random(n) < slip, rng.integers(c, size=n), truth)
    logits = skill * np.eye(c)[seen] + rng.normal(size=(n, c))
    return Answers(given_, c), logits, truth


def evidence_of(answers):
    return Evidence(answers.to_sets(), answers)


def rows_from(answers, logits, gold=None):
    outputs = read_outputs(answers, None, logits, None, None, gold)
    every = np.arange(len(outputs))
    return rows_of(outputs, every, observe(outputs, every, None))


# ---- the likelihood of each process


def test_confusion_multiplies_the_answers():
    table = [["a", "b"], ["a|c", None], ["none of the classes", "c"]]
    answers = Answers(table, ["a", "b", "c"])
    process = Confusion(MATRIX, 0.4, False)
    expected = [
        [MATRIX[t, 0] * MATRIX[t, 1] for t in range(3)],
        [MATRIX[t, 0] + MATRIX[t, 2] for t in range(3)],
        [MATRIX[t, 3] * MATRIX[t, 2] for t in range(3)],
    ]
    found = process.log_likelihood(evidence_of(answers))
    np.testing.assert_allclose(found, np.log(expected))
    assert process.none_share == pytest.approx((0.1 + 0.1 + 0.3) / 3)


def test_anonymous_votes_count_as_often_as_they_were_given():
    votes = Answers.from_counts([[3, 0, 2]])
    one_by_one = Answers([[0, 0, 0, 2, 2]], 3)
    process = Confusion(MATRIX, 0.4, False)
    np.testing.assert_allclose(
        process.log_likelihood(evidence_of(votes)), process.log_likelihood(evidence_of(one_by_one))
    )
    assert evidence_of(votes).numbers.tolist() == [5]


def test_annotators_use_their_own_matrix():
    rng = np.random.default_rng(0)
    answers = Answers(rng.integers(3, size=(40, 3)), 3)
    own = rng.dirichlet(np.ones(4), size=(2, 3))
    process = AnnotatorConfusion(MATRIX, 0.4, False, own, np.array([1, -1, 0]))
    matrices = [own[1], MATRIX, own[0]]
    dense = np.asarray([[list(answers[i].values())[k][0] for k in range(3)] for i in range(40)])
    expected = sum(np.log(matrices[k][:, dense[:, k]]).T for k in range(3))
    np.testing.assert_allclose(process.log_likelihood(evidence_of(answers)), expected)
    assert process.matrix_of(1) is MATRIX


def brute_union(matrix, k):
    """P(S | t) and expected counts of each label, by all K-tuples of answers."""
    c = len(matrix)
    found = {}
    for draw in product(range(c), repeat=k):
        p = np.prod(matrix[:, list(draw)], axis=1)
        total, counts = found.setdefault(frozenset(draw), [np.zeros(c), np.zeros((c, c))])
        total += p
        for label in draw:
            counts[:, label] += p
    return found


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_union_equals_all_draws(k):
    matrix = MATRIX / MATRIX[:, :3].sum(axis=1, keepdims=True)
    matrix[:, 3] = 0
    brute = brute_union(matrix, k)
    sets = CandidateSets([sorted(s) for s in brute], classes=3)
    process = Union(matrix, k)
    likely = np.exp(process.log_likelihood(Evidence(sets)))
    np.testing.assert_allclose(likely, [total for total, _ in brute.values()], rtol=1e-9)
    np.testing.assert_allclose(likely.sum(axis=0), 1)


def test_union_counts_the_expected_answers(monkeypatch):
    matrix = MATRIX / MATRIX[:, :3].sum(axis=1, keepdims=True)
    matrix[:, 3] = 0
    brute = brute_union(matrix, 3)
    sets = CandidateSets([sorted(s) for s in brute], classes=3)
    posterior = np.random.default_rng(0).dirichlet(np.ones(3), size=len(sets))
    kept = {}
    monkeypatch.setattr(
        "candidly.auditing.processes.union.shrunk",
        lambda counted, prior: kept.update(counted=counted) or counted,
    )
    Union(matrix, 3).fitted(Evidence(sets), posterior)
    expected = sum(
        post[:, None] * counts / total[:, None]
        for post, (total, counts) in zip(posterior, brute.values(), strict=True)
    )
    np.testing.assert_allclose(kept["counted"][:, :3], expected, rtol=1e-9)


def test_a_set_wider_than_the_answers_is_impossible_for_a_union():
    sets = CandidateSets([[0, 1, 2], [0]], classes=3)
    likely = Union(MATRIX, 2).log_likelihood(Evidence(sets))
    assert (likely[0] == -700).all()
    assert (likely[1] > -10).all()


def test_inclusion_multiplies_over_classes():
    matrix = np.array([[0.9, 0.2], [0.3, 0.8]])
    sets = CandidateSets([[0], [0, 1], [1]], classes=2)
    expected = [
        [0.9 * 0.8, 0.3 * 0.2],
        [0.9 * 0.2, 0.3 * 0.8],
        [0.1 * 0.2, 0.7 * 0.8],
    ]
    found = Inclusion(matrix).log_likelihood(Evidence(sets))
    np.testing.assert_allclose(found, np.log(expected))


def test_inclusion_fits_frequencies_and_one_rate_for_the_truth():
    sets = CandidateSets([[0], [0, 1], [1], [0, 1]] * 500, classes=2)
    posterior = np.tile([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], (500, 1))
    found = Inclusion.start(Evidence(sets)).fitted(Evidence(sets), posterior)
    np.testing.assert_allclose(np.diag(found.matrix), (2 + 1) / 4)
    assert found.matrix[0, 1] == pytest.approx(2 / 3, abs=0.01)
    assert found.matrix[1, 0] == pytest.approx(1.0, abs=0.01)


# ---- M-steps


def test_answers_of_several_labels_are_shared_among_them():
    answers = Answers([["a|b"]], ["a", "b", "c"])
    counted = evidence_of(answers).said.counted(MATRIX, np.array([[1.0, 0.0, 0.0]]))
    np.testing.assert_allclose(counted[0], [0.7 / 0.8, 0.1 / 0.8, 0, 0])
    np.testing.assert_allclose(counted[1:], 0)


def test_shrinkage_and_error_rates():
    counted = np.array([[8.0, 2.0, 0.0], [1.0, 9.0, 0.0]])
    assert error_rate(counted) == pytest.approx(0.15)
    prior = with_error(0.2, np.array([0.5, 0.5, 0.0]))
    np.testing.assert_allclose(prior, [[0.8, 0.2, 0], [0.2, 0.8, 0]], atol=1e-8)
    np.testing.assert_allclose(shrunk(counted, prior)[0], [16 / 20, 4 / 20, 0], atol=1e-8)


def test_an_able_annotator_confuses_what_all_confuse():
    shared = np.array([[0.8, 0.2, 0.0], [0.3, 0.7, 0.0]])
    nothing = able(shared, np.zeros((2, 3)))
    np.testing.assert_allclose(nothing, shared)
    half = able(shared, 1e9 * np.array([[0.875, 0.125, 0.0], [0.125, 0.875, 0.0]]))
    np.testing.assert_allclose(half, [[0.9, 0.1, 0], [0.15, 0.85, 0]], rtol=1e-6)


def test_which_labels_are_confused_is_learnt_from_rows_with_two_answers():
    table = [[0, 1]] * 50 + [[2, None]] * 50
    evidence = evidence_of(Answers(table, 3))
    posterior = np.tile([1.0, 0.0, 0.0], (100, 1))
    found = Confusion.start(evidence).fitted(evidence, posterior)
    assert found.matrix[0, 1] > 0.4  # half the answers of rows with two
    assert found.matrix[0, 2] < 0.1  # rows with one answer do not count
    assert found.error == pytest.approx(0.5)


def test_one_answer_per_row_learns_an_error_rate_only():
    evidence = evidence_of(Answers([[0], [1], [1], [2]] * 25, 3))
    posterior = np.eye(3)[[0, 1, 0, 2] * 25]
    found = Confusion.start(evidence).fitted(evidence, posterior)
    assert found.flat
    assert found.error == pytest.approx(0.25)
    np.testing.assert_allclose(np.diag(found.matrix), 0.75)


# ---- the fit


def test_em_never_lowers_the_likelihood():
    answers, logits, _ = people(600)
    rows = rows_from(answers, logits)
    fits = [
        fit_explanation(Confusion.start(rows.evidence), rows, with_open=False, rounds=k).fit
        for k in range(2, 12)
    ]
    # Shrinkage may cost a little; it is constant after the first rounds.
    assert (np.diff(fits) > -0.5).all()


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_sharpness_undoes_a_scale_of_the_logits(scale):
    answers, logits, _ = people(3000, k=5, error=0.1)
    rows = rows_from(answers, scale * logits)
    found = fit_explanation(Confusion.start(rows.evidence), rows, with_open=False)
    usual = rows_from(answers, logits)
    base = fit_explanation(Confusion.start(usual.evidence), usual, with_open=False)
    assert found.sharpness * scale == pytest.approx(base.sharpness, rel=0.02)


def test_a_model_that_is_sure_and_wrong_is_noticed():
    answers, logits, truth = people(3000, k=3, error=0.1, skill=5.0, slip=0.2)
    rows = rows_from(answers, logits)
    found = fit_explanation(Confusion.start(rows.evidence), rows, with_open=False)
    assert found.slip + found.misled == pytest.approx(0.2, abs=0.04)
    outside = (~answers.to_sets().contains(truth)).mean()
    low, high = estimate_rates(answers, logits=logits).outside_interval
    assert low <= outside <= high


def test_matrices_are_recovered():
    own = [0.05, 0.2, 0.35]
    answers, logits, _ = people(4000, own=own)
    rows = rows_from(answers, logits)
    found = fit_explanation(AnnotatorConfusion.start(rows.evidence), rows, with_open=False).process
    errors = [1 - np.diag(found.matrix_of(k)[:, :-1]).mean() for k in range(3)]
    np.testing.assert_allclose(errors, own, atol=0.03)


def test_dependence_softens_and_keeps_the_order():
    answers, logits, _ = people(400)
    rows = rows_from(answers, logits)
    found = fit_explanation(Confusion.start(rows.evidence), rows, with_open=False)
    found = replace(found, slip=0.0, misled=0.0)
    joint = log_joint(found, rows)
    independent = truth_given(found, rows, 0.0)
    np.testing.assert_allclose(
        independent,
        np.exp(joint - joint.max(1, keepdims=True))
        / np.exp(joint - joint.max(1, keepdims=True)).sum(1, keepdims=True),
    )
    half = truth_given(found, rows, 0.5)
    np.testing.assert_array_equal(half.argmax(1), independent.argmax(1))
    softened = independent**0.5  # three answers: 1 / (1 + 2 * 0.5)
    np.testing.assert_allclose(half, softened / softened.sum(1, keepdims=True), atol=1e-12)
    np.testing.assert_allclose(half.sum(axis=1), 1)


def naive_truth(found, rows, power):
    """P(truth | x, answers) by sums over what the row looks like, one row at a time."""
    c = rows.log_probs.shape[1]
    f = found.classes
    looks = found.process.log_likelihood(rows.evidence)
    result = []
    for i in range(len(rows)):
        p = np.exp(found.sharpness * rows.log_probs[i])
        prior = (1 - found.slip) * p / p.sum() + found.slip / c
        turn = np.array([[found.misled * f[j] / (1 - f[t]) for j in range(c)] for t in range(c)])
        np.fill_diagonal(turn, 1 - found.misled)
        shown = prior @ turn
        look = (shown * np.exp(looks[i])) ** power
        look /= look.sum()
        result.append(
            [sum(look[j] * prior[t] * turn[t, j] / shown[j] for j in range(c)) for t in range(c)]
        )
    return np.array(result)


@pytest.mark.parametrize("dependence", [0.0, 0.5, 1.0])
def test_misleading_rows_equal_the_sums_over_what_a_row_looks_like(dependence):
    answers, logits, _ = people(60, slip=0.2, skill=5.0)
    rows = rows_from(answers, logits)
    start = Confusion.start(rows.evidence)
    found = fit_explanation(start, rows, with_open=False, rounds=5)
    found = replace(found, slip=0.05, misled=0.1)
    power = 1 / (1 + 2 * dependence)
    expected = naive_truth(found, rows, power)
    np.testing.assert_allclose(truth_given(found, rows, dependence)[:, :-1], expected, atol=1e-12)
    if not dependence:  # independent answers: the same as the joint probability
        joint = log_joint(found, rows)
        np.testing.assert_allclose(
            np.exp(joint - logsumexp(joint, axis=1)[:, None])[:, :-1], expected, atol=1e-12
        )


@pytest.mark.parametrize("votes", [3, 12, 51])
@pytest.mark.parametrize("misled", [1e-4, 0.05, 0.5])
def test_every_row_looks_like_one_class_however_sure_people_are(votes, misled):
    rng = np.random.default_rng(0)
    y = rng.integers(5, size=200)
    answers = Answers.from_counts(votes * np.eye(5, dtype=int)[y])
    rows = rows_from(answers, 4 * np.eye(5)[y] + rng.normal(size=(200, 5)))
    start = Confusion.start(rows.evidence)
    found = fit_explanation(start, rows, with_open=False, rounds=2)
    found = replace(found, misled=misled)
    terms = explained(found, rows)
    known = np.exp(terms.joint - logsumexp(terms.joint, axis=1)[:, None])[:, :-1]
    looks, fooled = _appearance(found, terms, known)
    np.testing.assert_allclose(looks.sum(axis=1), known.sum(axis=1), rtol=1e-9)
    assert (fooled <= 1).all()
    np.testing.assert_allclose(truth_given(found, rows).sum(axis=1), 1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n_people", [3, 20])
def test_people_who_agree_and_are_right_have_no_errors(seed, n_people):
    rng = np.random.default_rng(seed)
    y = rng.integers(5, size=400)
    answers = Answers(np.repeat(y[:, None], n_people, axis=1), 5)
    logits = 4 * np.eye(5)[y] + rng.normal(size=(400, 5))
    found = estimate_rates(answers, logits=logits, process="confusion")
    assert found.outside < 0.03
    assert (audit(answers, logits=logits).consensus_label == y).all()


def test_a_class_that_is_the_truth_of_all_rows():
    answers = Answers(np.zeros((300, 4), dtype=int), 20)
    logits = np.random.default_rng(0).normal(size=(300, 20)) + 12 * (np.arange(20) == 0)
    truth = truth_posterior(answers, logits=logits)
    np.testing.assert_allclose(truth.sum(axis=1), 1)
    assert (truth[:, 0] > 0.9).all()


def test_none_that_is_said_only_outside_of_the_fitted_rows_is_no_crash():
    table = [["a|b", "b"], ["b", "b"], ["a", "a"], ["c", "c"]] * 100
    table[7] = ["none of the classes", "none of the classes"]
    answers = Answers(table, ["a", "b", "c"])
    evidence = evidence_of(answers)
    without = Confusion(np.c_[MATRIX[:, :3], np.zeros(3)], 0.4, False)
    assert np.isfinite(without.log_likelihood(evidence)).all()
    assert np.isfinite(without.fitted(evidence, np.full((400, 3), 1 / 3)).matrix).all()


def test_groups_of_annotators_are_read_alike_with_one_label_and_with_several():
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=(50, 4))
    single = evidence_of(Answers(labels, 3))
    matrices = rng.dirichlet(np.ones(4), size=(3, 3))
    group = np.array([1, 0, 2, 1])
    posterior = rng.dirichlet(np.ones(3), size=50)
    expected = sum(np.log(matrices[group[k]][:, labels[:, k]]).T for k in range(4))
    counted = np.zeros((3, 3, 4))
    for i, k in product(range(50), range(4)):
        counted[group[k], :, labels[i, k]] += posterior[i]
    short = single.said_by(group, 3)
    assert short is single.said_by(group, 3)
    who = group[single.answers.annotator]
    long = SaidBy(
        [
            Said(single.per_row[:, who == k], single.membership[np.flatnonzero(who == k)])
            for k in range(3)
        ],
        None,
    )
    for said in (short, long):
        np.testing.assert_allclose(said.log_likelihood(matrices), expected)
        np.testing.assert_allclose(said.counted(matrices, posterior), counted)


def misled_together(n=1500, share=0.2, seed=0):
    """(answers, logits, truth): three able people who are all misled in some rows, a good model."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(5, size=n)
    shown = np.where(rng.random(n) < share, (truth + rng.integers(1, 5, size=n)) % 5, truth)
    wrong = (shown[:, None] + rng.integers(1, 5, size=(n, 3))) % 5
    said = np.where(rng.random((n, 3)) < 0.05, wrong, shown[:, None])
    return Answers(said, 5), 4 * np.eye(5)[truth] + rng.normal(size=(n, 5)), truth


def test_rows_that_mislead_everybody_head_the_list_and_shares_hold_them():
    answers, logits, truth = misled_together()
    outside = ~answers.to_sets().contains(truth)
    assert outside.mean() == pytest.approx(0.2, abs=0.03)
    table = audit(answers, logits=logits)
    assert average_precision_score(outside, table.p_outside) > 0.95
    low, high = estimate_rates(answers, logits=logits).outside_interval
    assert low <= outside.mean() <= high


def test_the_consensus_stays_with_people_who_agree():
    answers, logits, truth = people(3000, k=6, error=0.3, skill=5.0, slip=0.2)
    label = audit(answers, logits=logits).consensus_label.cat.codes
    assert (label == truth).mean() > (answers.majority() == truth).mean()


def test_gold_rows_say_whether_people_or_the_model_are_wrong():
    answers, logits, truth = misled_together()
    gold = [int(t) if i % 10 == 0 else None for i, t in enumerate(truth)]
    rows = rows_from(answers, logits, gold)
    start = Confusion.start(rows.evidence)
    found = fit_explanation(start, rows, with_open=False)
    assert found.misled > 0.15
    assert found.slip < 0.1
    without = fit_explanation(start, rows_from(answers, logits), with_open=False)
    wrong = without.slip / slip_of(1.0, 5)
    assert without.misled == pytest.approx(BLAMED * (wrong + without.misled))
    rest = np.arange(len(truth)) % 10 > 0
    label = audit(answers, logits=logits, gold=gold).consensus_label.cat.codes
    assert (label == truth)[rest].mean() > 0.95


def test_gold_is_certain_and_informs_the_process():
    answers, logits, truth = people(800, k=2, error=0.4, skill=0.5)
    gold = [int(t) if i < 400 else None for i, t in enumerate(truth)]
    found = truth_posterior(answers, logits=logits, gold=gold)
    np.testing.assert_array_equal(found[:400].argmax(axis=1), truth[:400])
    np.testing.assert_allclose(found[np.arange(400), truth[:400]], 1)
    error = take_census(read_outputs(answers, None, logits, None, None, gold), Confusion)
    assert error.process.error == pytest.approx(0.4, abs=0.05)
    table = audit(answers, logits=logits, gold=gold)
    assert (table.consensus_label[:400] == truth[:400]).all()
    outside = ~answers.to_sets().contains(truth)[:400]
    np.testing.assert_array_equal(table.p_outside[:400] == 1, outside)


def test_gold_of_no_class():
    answers, logits, _ = people(300)
    gold = ["none of the classes"] + [None] * 299
    table = audit(answers, logits=logits, gold=gold)
    assert table.verdict[0] == "open"
    assert table.p_open[0] == 1
    assert table.consensus_label.isna()[0]


def test_gold_is_checked():
    classes = np.array(["a", "b"])
    assert read_gold([None, float("nan")], classes, 2).tolist() == [-2, -2]
    with pytest.raises(InputError, match="row 1"):
        read_gold([None, "z"], classes, 2)
    with pytest.raises(InputError, match="gold has 1 entries"):
        read_gold(["a"], classes, 2)


# ---- which process


def test_blind_sets_stay_blind():
    y = np.arange(2000) % 6
    sets, truth = corrupt(y, 6, q=0.3, tau1=0.2, seed=0)
    noise = np.random.default_rng(0).normal(size=(2000, 6))
    assert estimate_rates(sets, logits=5 * np.eye(6)[truth.labels] + noise).process == "blind"


def confusing(n, k, seed=0, c=6):
    """Answers that follow a confusion matrix with a few strong confusions."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(c, size=n)
    wrong = np.where(rng.random((n, k)) < 0.8, truth[:, None] ^ 1, rng.integers(c, size=(n, k)))
    answers = np.where(rng.random((n, k)) < 0.25, wrong, truth[:, None])
    logits = 2.0 * np.eye(c)[truth] + 1.0 * np.eye(c)[truth ^ 1] + rng.normal(size=(n, c))
    return Answers(answers, c), logits, truth


@pytest.mark.parametrize("k", [2, 3, 4])
def test_unions_are_recognised_with_their_number_of_answers(k):
    answers, logits, _ = confusing(4000, k)
    study = make_study(read_outputs(answers.to_sets(), None, logits, None))
    assert study.estimate.process == "union"
    assert study.process.k == k


def test_one_label_per_row_is_an_answer():
    answers, logits, _ = people(500, k=1)
    assert estimate_rates(answers, logits=logits).process == "confusion"
    assert estimate_rates(answers.to_sets(), logits=logits).process == "confusion"


def test_annotators_who_differ_get_matrices_of_their_own():
    answers, logits, _ = people(3000, own=[0.02, 0.2, 0.5])
    assert estimate_rates(answers, logits=logits).process == "annotators"
    alike, logits, _ = people(3000)
    rows = rows_from(alike, logits)
    gap = held_out(rows, AnnotatorConfusion.start) - held_out(rows, Confusion.start)
    assert abs(gap) < 50


def test_a_process_can_be_forced():
    answers, logits, _ = people(400, k=2)
    for name in NAMES:
        found = estimate_rates(answers, logits=logits, process=name)
        assert found.process == name
    assert set(PROCESSES) == set(NAMES) - {"blind"}


def test_a_process_that_cannot_explain_the_sets_is_refused():
    answers, logits, _ = people(200, k=3)
    sets = answers.to_sets()
    with pytest.raises(InputError, match="needs to know who said what"):
        estimate_rates(sets, logits=logits, process="confusion")
    with pytest.raises(InputError, match="expected one of auto, blind"):
        estimate_rates(sets, logits=logits, process="guess")
    wide = np.ones((50, 8), dtype=bool)
    with pytest.raises(InputError, match="at most 6 candidates; one has 8"):
        estimate_rates(wide, np.full((50, 8), 1 / 8), process="union")


# ---- shares and consensus


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_intervals_hold_where_errors_are_independent(k, seed):
    answers, logits, truth = people(2000, k=k, seed=seed)
    outside = (~answers.to_sets().contains(truth)).mean()
    low, high = estimate_rates(answers, logits=logits).outside_interval
    assert low <= outside <= high


def test_votes_beat_the_model_and_the_majority():
    answers, logits, truth = people(2000, k=3, error=0.3, skill=1.5)
    table = audit(answers, logits=logits)
    right = (table.consensus_label.cat.codes == truth).mean()
    assert right > (answers.majority() == truth).mean() + 0.02
    assert right > (logits.argmax(axis=1) == truth).mean() + 0.02
    # Dependent errors are assumed, and these are not: the consensus is not sure enough.
    assert right - 0.2 < table.consensus_probability.mean() < right


def test_columns_of_answers():
    answers, logits, _ = people(300)
    table = audit(answers, logits=logits)
    np.testing.assert_allclose(table.p_outside, table.p_closed + table.p_open)
    np.testing.assert_allclose(table[["p_normal", "p_closed", "p_open"]].sum(axis=1), 1)
    np.testing.assert_array_equal(table.majority_label.cat.codes, answers.majority())
    assert table.attrs["process"] == "confusion"
    assert "majority_label" not in audit(answers.to_sets(), logits=logits)


def test_answers_may_come_with_sets_or_alone():
    answers, logits, _ = people(300)
    alone = audit(answers, logits=logits)
    for given_ in (
        {"candidates": answers.to_sets(), "answers": answers},
        {"answers": np.asarray([[v[0] for v in answers[i].values()] for i in range(300)])},
    ):
        np.testing.assert_allclose(
            audit(**given_, logits=logits).p_outside, alone.p_outside, atol=1e-12
        )
    with pytest.raises(InputError, match="not both"):
        audit(answers, logits=logits, answers=answers)
    with pytest.raises(InputError, match="expected candidates, or answers="):
        audit(logits=logits)
    with pytest.raises(InputError, match="about 299 rows"):
        audit(answers.to_sets(), logits=logits, answers=answers[:299])


def test_neither_the_order_of_rows_nor_of_classes_matters():
    answers, logits, _ = people(400)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(400), rng.permutation(5)
    renamed = Answers(answers[rows], columns)
    a = audit(answers, logits=logits)
    b = audit(renamed, logits=logits[rows][:, columns])
    np.testing.assert_allclose(a.p_outside.to_numpy()[rows], b.p_outside, atol=1e-6)
    assert (a.consensus_label.astype(int).to_numpy()[rows] == b.consensus_label.astype(int)).all()


def test_a_sample_is_enough(monkeypatch):
    answers, logits, _ = people(3000)
    whole = audit(answers, logits=logits)
    monkeypatch.setattr("candidly.auditing.census.sample_size", lambda c: 1500)
    part = audit(answers, logits=logits)
    assert np.abs(whole.p_outside - part.p_outside).mean() < 0.02
    assert sample_size(10) == 20000


def test_open_rows_are_found_by_answers_that_agree_against_the_model():
    answers, logits, _ = people(2000, error=0.1, skill=3.0)
    rng = np.random.default_rng(1)
    is_open = rng.random(2000) < 0.2
    logits = np.where(is_open[:, None], rng.normal(size=logits.shape), logits)
    given_ = np.asarray([[v[0] for v in answers[i].values()] for i in range(2000)])
    given_[is_open] = given_[rng.permutation(2000)[: is_open.sum()]]
    found = Audit(Answers(given_, 5), logits=logits)
    low, high = found.estimate.open_interval
    assert low <= is_open.mean() <= high
    assert found.estimate.open == pytest.approx(0.2, abs=0.06)


def test_people_who_say_none_of_the_classes():
    answers, logits, _ = people(1000, error=0.1)
    rng = np.random.default_rng(1)
    given_ = np.asarray([[v[0] for v in answers[i].values()] for i in range(1000)], dtype=object)
    is_open = rng.random(1000) < 0.1
    given_[is_open] = "none of the classes"
    logits = np.where(is_open[:, None], 0.5 * rng.normal(size=logits.shape), logits)
    found = Audit(Answers(given_, 5), logits=logits)
    assert found.estimate.open == pytest.approx(is_open.mean(), abs=0.02)
    assert found.table.consensus_label.isna()[is_open].mean() > 0.95
    assert (found.table.verdict[is_open] == "open").mean() > 0.95


def test_a_model_at_chance_level_gets_no_verdict():
    answers, _, truth = people(1000, k=3)
    noise = np.random.default_rng(3).normal(size=(1000, 5))
    found = Audit(answers, logits=noise)
    assert not found.estimate.reliable
    assert found.table.verdict.isna().all()
    assert found.table[["p_outside", "p_normal", "suggested_probability"]].isna().all(axis=None)
    assert found.table.suggested_label.isna().all()
    # Three answers still agree.
    assert (found.table.consensus_label.cat.codes == truth).mean() > 0.85
    single, _, _ = people(1000, k=1)
    table = audit(single, logits=noise)
    assert table.consensus_label.isna().all()
    assert any("best class is a candidate" in note for note in table.attrs["notes"])


def test_a_poor_model_does_not_overrule_a_single_answer():
    answers, logits, _ = people(1500, k=1, error=0.05, skill=0.6)
    table = audit(answers, logits=logits)
    assert (table.consensus_label.cat.codes == answers.majority()).all()
    good, logits, _ = people(1500, k=1, error=0.15, skill=4.0)
    table = audit(good, logits=logits)
    assert (table.consensus_label.cat.codes != good.majority()).mean() > 0.05


def test_given_rates_hold():
    answers, logits, _ = people(800)
    table = audit(answers, logits=logits, rates=Rates(0.1, 0.05))
    np.testing.assert_allclose(table[["p_closed", "p_open"]].mean(), [0.1, 0.05], atol=0.01)


def test_notes_say_what_is_assumed():
    answers, logits, _ = people(600)
    (first, *_) = estimate_rates(answers, logits=logits).notes
    assert "If they err independently" in first
    single, logits, _ = people(600, k=1)
    assert "one answer per row" in estimate_rates(single, logits=logits).notes[0]
    forced = estimate_rates(answers.to_sets(), logits=logits, process="inclusion")
    assert forced.outside_interval[0] == 0
    assert "bounds" in forced.notes[0]


def test_copied_answers_are_noticed():
    answers, logits, _ = people(2000, k=1, error=0.3)
    copied = Answers([[v[0]] * 3 for v in (answers[i][0] for i in range(2000))], 5)
    rows = rows_from(copied, logits)
    process = Confusion(with_error(0.3, np.r_[np.full(5, 0.2), 0.0]), 0.3, False)
    excess, observed, expected = unanimity(process, rows)
    assert observed == 1
    assert expected == pytest.approx(0.7**2 + 4 * (0.3 / 4) ** 2)
    assert excess > 3.5


def test_disagreement_where_the_model_doubts_bounds_the_open_rows():
    n = 1000
    doubtful = np.arange(n) >= 500
    lines = np.where(doubtful[:, None] & (np.arange(n) % 2 == 0)[:, None], [[0, 1]], [[0, 0]])
    answers = Answers(lines, 2)
    scores = doubtful.astype(float)[:, None]
    rows = Rows(np.log(np.full((n, 2), 0.5)), scores, evidence_of(answers))
    # A quarter of all rows disagree, none of the sure ones; random labels would in a half.
    assert guessed_open(rows) == pytest.approx(0.25 / 0.5)


def test_kinds_sum_the_posterior():
    mask = np.array([[True, False, True]])
    np.testing.assert_allclose(kinds_of(np.array([[0.1, 0.2, 0.3, 0.4]]), mask), [[0.4, 0.2, 0.4]])


@settings(max_examples=20)
@given(st.data())
def test_posteriors_are_sound_whatever_the_answers(data):
    n, c, k = (
        data.draw(st.integers(1, 6)),
        data.draw(st.integers(2, 4)),
        data.draw(st.integers(1, 3)),
    )
    cell = st.one_of(
        st.none(),
        st.just("none of the classes"),
        st.sets(st.integers(0, c - 1), min_size=1).map(sorted),
    )
    table = np.empty((n, k), dtype=object)
    for i, j in product(range(n), range(k)):
        table[i, j] = data.draw(cell)
    value = st.sampled_from([0.0, 1.0, -1.0, 50.0, -800.0, 1e5])
    logits = np.array([[data.draw(value) for _ in range(c)] for _ in range(n)])
    answers = Answers(table, c)
    for process in ("auto", "confusion", "annotators"):
        found = truth_posterior(answers, logits=logits, process=process)
        assert np.isfinite(found).all()
        assert (found >= 0).all()
        np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)
