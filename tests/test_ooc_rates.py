"""`ooc` with `rates="auto"`: when it estimates, what it logs, and the laws of all methods."""

import types

import laws
import numpy as np
import pytest
from test_methods import LAWS

from candidly import Rates, fit
from candidly.errors import InputError
from candidly.methods import METHODS
from candidly.methods.ooc import OOC
from candidly.methods.settings import make_method, parse_settings
from candidly.tensors.nets import build_net


class Automatic(OOC):
    FEW = 10

    def __init__(self, *, rates="auto", warmup=1):
        super().__init__(rates=rates, warmup=warmup)


@pytest.fixture
def name(monkeypatch):
    monkeypatch.setitem(METHODS, "automatic", Automatic)
    return "automatic"


@pytest.mark.parametrize("law", [law for law in LAWS if law != laws.law_singletons_are_learnt])
def test_law(law, name):
    law(name)


def test_few_rows_are_not_estimated_from(monkeypatch, asked):
    monkeypatch.setattr(Automatic, "FEW", OOC.FEW)
    monkeypatch.setitem(METHODS, "automatic", Automatic)
    laws.law_singletons_are_learnt("automatic")
    assert not asked


def test_resume_and_two_processes(name, tmp_path):
    laws.law_resume_equals_uninterrupted(name, tmp_path)
    laws.law_two_processes_equal_one([name])


@pytest.fixture
def asked(monkeypatch):
    """The logits that estimates were made from; the answer is 0.2 and 0.3."""
    calls = []

    def estimate_rates(candidates, probs=None, *, logits=None, features=None):
        calls.append(logits)
        return types.SimpleNamespace(closed=0.2, open=0.3)

    monkeypatch.setattr("candidly.methods.twins.estimate_rates", estimate_rates)
    return calls


def test_the_rates_are_estimated_when_the_warm_up_ends_refreshed_once_and_logged(monkeypatch):
    answers = iter(
        [types.SimpleNamespace(closed=0.2, open=0.3), types.SimpleNamespace(closed=0.1, open=0.2)]
    )
    monkeypatch.setattr(
        "candidly.methods.twins.estimate_rates", lambda *args, **given: next(answers)
    )
    X, sets, _ = laws.table()
    monkeypatch.setattr(OOC, "FEW", 10)
    method = OOC(rates="auto", warmup=0.3, overlap=False)
    fitted = fit(build_net("mlp", (laws.D,), laws.C), X, sets, method, epochs=10, batch_size=8)
    assert next(answers, None) is None
    assert [row.get("rate_closed") for row in fitted.history] == 3 * [None] + 3 * [0.2] + 4 * [0.1]
    assert [row.get("rate_open") for row in fitted.history] == 3 * [None] + 3 * [0.3] + 4 * [0.2]
    assert method.rates == Rates(0.1, 0.2)
    assert [int(group.sum()) for group in fitted.selection] == [18, 3, 5]


def test_the_estimate_is_made_from_outputs_for_unseen_rows(asked):
    """Noise can be learnt by heart, but not foretold."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 20)), rng.integers(2, size=300)
    fitted = fit(
        build_net("mlp", (20,), 2), X, y, OOC(rates="auto", warmup=40), epochs=41, batch_size=32
    )
    assert np.mean(asked[0].argmax(1) == y) == pytest.approx(0.5, abs=0.1)
    assert np.mean(fitted.predictor.predict(X) == y) > 0.9


def test_the_twins_change_nothing_but_the_rates(monkeypatch):
    """The reported loss is the method's own, and the model trains as with the same rates given."""
    answer = types.SimpleNamespace(closed=0.2, open=0.2)
    monkeypatch.setattr(OOC, "FEW", 10)
    monkeypatch.setattr("candidly.methods.twins.estimate_rates", lambda *args, **given: answer)
    X, sets, _ = laws.table()
    given, found = (
        fit(
            build_net("mlp", (laws.D,), laws.C),
            X,
            sets,
            OOC(rates=rates, warmup=2),
            epochs=5,
            batch_size=8,
        )
        for rates in (Rates(0.2, 0.2), "auto")
    )
    laws.assert_same(given.model, found.model)
    assert [row["loss"] for row in given.history] == pytest.approx(
        [row["loss"] for row in found.history], abs=1e-6
    )


def test_full_sets_have_no_outside(asked, monkeypatch):
    monkeypatch.setattr(OOC, "FEW", 10)
    X, sets, _ = laws.table()
    method = OOC(rates="auto", warmup=1)
    fit(build_net("mlp", (laws.D,), laws.C), X, np.ones(sets.shape, dtype=bool), method, epochs=2)
    assert not asked
    assert method.rates == Rates(0.0, 0.0)


def test_given_rates_are_not_logged():
    assert "rate_closed" not in laws.train("ooc").history[-1]


def test_auto_by_name():
    assert make_method("ooc", "robust", parse_settings("ooc", ["rates=auto"])).given == "auto"
    assert make_method("ooc", None, parse_settings("ooc", ["rates=0.1,0.2"])).rates == Rates(
        0.1, 0.2
    )
    with pytest.raises(InputError, match="rates='automatic': expected 'auto', or Rates"):
        OOC(rates="automatic")
