"""Compiled loops: the same scores as by torch's own operations, up to rounding, whatever the logits and sets."""

import builtins
import math
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import candidly
from candidly import selection
from candidly.kinds import Rates
from candidly.methods.ooc import OOC
from candidly.scores import energy, log_softmax, margin, wooden_losses
from candidly.selection import OPEN_SCORES, score, select

pytest.importorskip("numba", reason="the extra `fast` is not installed")
from candidly import fused

singles = st.floats(width=32, allow_nan=False)


@pytest.fixture
def loops(monkeypatch):
    """Loops for few entries too, in blocks of a few rows; how often they were called."""
    calls, plain = [], fused.wooden_losses
    monkeypatch.setattr(selection, "LARGE", 1)
    monkeypatch.setattr("candidly.blocks.ENTRIES", 64)
    monkeypatch.setattr(
        fused,
        "wooden_losses",
        lambda *arrays: calls.append(threading.get_ident()) or plain(*arrays),
    )
    return calls


def drawn(n, c, seed=0, spread=3.0):
    rng = torch.Generator().manual_seed(seed)
    logits, candidates = (
        spread * torch.randn(n, c, generator=rng),
        torch.rand(n, c, generator=rng) < 0.3,
    )
    candidates[0], candidates[1] = True, False
    return logits, candidates


def test_by_hand():
    logits = torch.tensor([[1.0, 2.0, 4.0, 1.0], [1.0, 2.0, 4.0, 1.0]]).log()
    candidates = torch.tensor([[True, True, False, False], [True, True, True, True]])
    inside, outside, energies = fused.wooden_losses(logits, candidates)
    np.testing.assert_allclose(inside, [math.log(4), math.log(2)], rtol=1e-6)
    np.testing.assert_allclose(outside, [math.log(2), math.inf], rtol=1e-6)
    np.testing.assert_allclose(energies, [-math.log(8), -math.log(8)], rtol=1e-6)


@pytest.mark.parametrize("c", [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 100, 257])
@pytest.mark.parametrize("spread", [0.1, 3.0, 40.0, 1e30])
def test_as_by_torch(c, spread):
    logits, candidates = drawn(300, c, seed=c, spread=spread)
    inside, outside, energies = fused.wooden_losses(logits, candidates)
    expected = wooden_losses(log_softmax(logits.double()), candidates)
    np.testing.assert_allclose(inside, expected[0].float(), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(outside, expected[1].float(), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(energies, energy(logits.double()).float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("offset", [-1e4, 88.0, 1e6])
def test_a_number_added_to_all_logits_of_a_row_changes_no_loss(offset):
    logits, candidates = drawn(300, 20)
    logits = (logits + offset) - offset  # what remains after rounding
    found, moved = (fused.wooden_losses(values, candidates) for values in (logits, logits + offset))
    assert torch.equal(found[0], moved[0])
    assert torch.equal(found[1], moved[1])
    np.testing.assert_allclose(found[2] - offset, moved[2], rtol=1e-6)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, np.copysign(math.nan, -1)])
@pytest.mark.parametrize("where", [[0], [3], [0, 3], range(20)], ids=str)
def test_values_that_are_no_numbers_as_by_torch(value, where):
    logits, candidates = drawn(40, 20)
    logits[::3, list(where)] = torch.from_numpy(np.array([value], np.float32))
    expected = *wooden_losses(log_softmax(logits), candidates), energy(logits)
    for mine, plain in zip(fused.wooden_losses(logits, candidates), expected, strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-5, atol=1e-6)


def test_nan_of_both_signs_is_tried():
    bits = np.array([math.nan, np.copysign(math.nan, -1)], np.float32).view(np.int32)
    assert bits[0] > 0 > bits[1]


@pytest.mark.parametrize("shape", [(39, 20), (40, 19), (41, 20)])
def test_sets_of_other_shapes_are_refused(shape):
    logits, _ = drawn(40, 20)
    with pytest.raises(RuntimeError, match="expanded size"):
        fused.wooden_losses(logits, torch.ones(shape, dtype=torch.bool))


def test_rows_and_columns_of_larger_arrays():
    logits, candidates = drawn(30, 24)
    found = fused.wooden_losses(logits[::2, 1:18], candidates[::2, 1:18])
    expected = fused.wooden_losses(logits[::2, 1:18].clone(), candidates[::2, 1:18].clone())
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@given(singles, singles)
def test_integers_are_in_the_order_of_floats(a, b):
    first, second = np.array([a, b], np.float32)
    bits = np.array([first, second]).view(np.int32)
    places = [fused.in_order(bit) for bit in bits]
    assert (places[0] < places[1]) == (first < second) or first == second == 0
    assert [fused.in_order(np.int32(place)) for place in places] == bits.tolist()


def test_nothing_is_less_than_all_numbers():
    assert np.int32(fused.in_order(fused.NOTHING)).view(np.float32) == -math.inf
    assert fused.in_order(np.float32(-3.4e38).view(np.int32)) > fused.NOTHING


def test_powers_of_two():
    x = np.linspace(-125.9, 0, 20_001, dtype=np.float32)
    found = np.array([fused.power_of_two(value) for value in x])
    np.testing.assert_allclose(found, np.exp2(x.astype(float)), rtol=3e-7)
    assert fused.power_of_two(np.float32(0)) == 1
    assert fused.power_of_two(np.float32(-math.inf)) == 2.0**-126
    assert math.isnan(fused.power_of_two(np.float32(math.nan)))


@pytest.mark.parametrize("open_score", OPEN_SCORES)
def test_score_is_the_same_by_loops(loops, open_score, monkeypatch):
    logits, candidates = drawn(200, 10)
    by_loops = score(logits, candidates, open_score=open_score)
    assert len(loops) == 34  # blocks of six rows
    assert threading.get_ident() not in loops
    monkeypatch.setattr(selection, "LARGE", 1 << 30)
    plain = score(logits, candidates, open_score=open_score)
    assert len(loops) == 34
    for a, b in zip(by_loops, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    rates = Rates(0.14, 0.28)
    for a, b in zip(select(*by_loops, rates), select(*plain, rates), strict=True):
        assert torch.equal(a, b)


def test_other_losses_precisions_arrays_and_gradients_go_without(loops):
    logits, candidates = drawn(50, 10)
    score(logits, candidates, losses="mean")
    score(logits.numpy(), candidates.numpy())
    assert score(logits.double(), candidates)[0].dtype == torch.float64
    differences, _ = score(logits.clone().requires_grad_(), candidates)
    differences[2:].sum().backward()
    assert loops == []


def test_modes_of_torch(loops):
    logits, candidates = drawn(50, 10)
    expected = score(logits, candidates)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            found = score(logits, candidates)
        assert torch.equal(found[0], expected[0])
    assert len(loops) == 3 * 9


def test_a_numba_that_cannot_be_imported_is_told_of(loops, monkeypatch):
    def broken(name, *args):
        if name == "candidly" and "fused" in (args[2] or ()):
            raise SystemError("compiled for another NumPy")
        return plain(name, *args)

    logits, candidates = drawn(50, 10)
    plain = builtins.__import__
    monkeypatch.setattr(selection, "_loops", selection._loops.__wrapped__)
    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.warns(UserWarning, match="numba is installed.* compiled for another NumPy"):
        found = score(logits, candidates)
    assert loops == []
    np.testing.assert_allclose(
        found[0], margin(*wooden_losses(log_softmax(logits), candidates)), rtol=1e-6
    )


def test_no_numba_no_loops(loops, monkeypatch):
    logits, candidates = drawn(50, 10)
    monkeypatch.setitem(sys.modules, "candidly.fused", None)
    monkeypatch.delattr(candidly, "fused")
    monkeypatch.setattr(selection, "_loops", selection._loops.__wrapped__)
    found = score(logits, candidates)
    assert loops == []
    np.testing.assert_allclose(
        found[0], margin(*wooden_losses(log_softmax(logits), candidates)), rtol=1e-6
    )


def test_few_entries_are_not_worth_compiling():
    assert not selection._suits_loops(torch.empty(selection.LARGE - 1))
    assert selection._suits_loops(torch.empty(selection.LARGE))


def test_torch_has_its_threads_again():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert set(fused.in_threads(lambda _: torch.get_num_threads(), range(9))) == {1}
        assert torch.get_num_threads() == 3
        with pytest.raises(ZeroDivisionError):
            fused.in_threads(lambda part: 1 / part, range(3))
        later = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert (torch.get_num_threads(), later) == (3, [3])
    finally:
        torch.set_num_threads(before)


def test_results_come_in_the_order_of_the_parts():
    assert fused.in_threads(lambda part: part**2, range(100)) == [part**2 for part in range(100)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_ooc_selects_as_without_loops(loops, dtype, monkeypatch):
    logits, candidates = drawn(200, 10)
    outputs = [
        logits.to(dtype),
        (logits + drawn(200, 10, seed=1)[0]).to(dtype),
        drawn(200, 10, seed=2)[0].to(dtype),
    ]
    candidates[1] = True
    found = []
    for large in (1, 1 << 30):
        monkeypatch.setattr(selection, "LARGE", large)
        method = OOC(
            rates=Rates(0.14, 0.28), warmup=2, open_score="doubt", overlap=False, recursive=True
        )
        method.epochs = 4
        method.setup(torch.nn.Identity(), candidates, torch.Generator().manual_seed(0))
        for epoch, output in enumerate(outputs, 1):
            method.epoch_start(epoch, lambda output=output: output)
        found.append(method)
    assert len(loops) == 3 * 34
    assert torch.equal(found[0].average, found[1].average)
    assert torch.equal(found[0].groups, found[1].groups)
