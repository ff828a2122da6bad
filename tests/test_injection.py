"""Rows of known kind that the benchmark of the audit injects."""

import numpy as np
import pytest
from scripts import load_script

from candidly.auditing.evidence import read_outputs
from candidly.auditing.rates import study
from candidly.corruption import corrupt
from candidly.kinds import NORMAL, OPEN

injection = load_script("benchmarks/audit_injection.py")


def made(n_known, c=6, tau1=0.1, tau2=0.2, sharp=6.0):
    """(sets, logits, truth): a model that is right on most known rows and unsure on open ones."""
    rng = np.random.default_rng(0)
    labels = rng.integers(c, size=n_known)
    sets, truth = corrupt(labels, c, q=0.2, tau1=tau1, tau2=tau2, seed=0)
    logits = rng.normal(size=sets.shape)
    known = np.flatnonzero(truth.kinds != OPEN)
    logits[known, truth.labels[known]] += sharp
    return sets, logits, truth


def test_injected_rows_have_the_kind_that_they_are_meant_to_have():
    sets, logits, truth = made(1500)
    outputs = read_outputs(sets, None, logits, None)
    sure, labels = injection.confident(outputs, study(outputs))
    assert (truth.kinds[sure] == NORMAL).mean() > 0.97
    assert (labels == truth.labels)[sure].mean() > 0.97
    rng = np.random.default_rng(0)
    closed = injection.misplaced(outputs, sure, labels, rng)
    assert len(closed.injected) == min(len(sure) // 2, len(sets) // 10)
    assert not closed.outputs.sets.contains(labels)[closed.injected].any()
    np.testing.assert_array_equal(closed.outputs.sets.sizes, sets.sizes)
    np.testing.assert_array_equal(np.sort(np.r_[closed.injected, closed.untouched]), sure)
    opened = injection.hide_class(outputs, sure, labels, 2, rng)
    assert opened.outputs.sets.classes.tolist() == [0, 1, 3, 4, 5]
    assert len(opened.injected) == (labels[sure] == 2).sum()
    assert opened.outputs.values.shape == opened.outputs.sets.shape
    assert not set(opened.injected) & set(opened.untouched)


def test_on_easy_data_injected_and_real_rows_are_found():
    sets, logits, truth = made(2000, c=8, sharp=8.0)
    case = injection.Case(sets.dense(), logits, logits, truth.kinds, truth.labels)
    found = injection.measure(case)
    assert list(found) == ["closed", "open"]
    for kind in found.values():
        assert min(kind["auroc"]) > 0.99
        assert kind["error"][0] < 0.02


def test_the_calibration_error_by_hand():
    p = np.array([0.1, 0.1, 0.9, 0.9])
    true = np.array([False, True, True, True])
    assert injection.calibration_error(p, true, bins=2) == pytest.approx((0.4 + 0.1) / 2)
