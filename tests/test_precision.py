"""Training in bfloat16: what it changes, what it does not, and where it cannot be used."""

import laws
import pytest
import torch
from torch import nn

from candidly.bench.grid import ROWS, Cell, Job
from candidly.bench.scales import SCALES
from candidly.errors import InputError
from candidly.methods import METHODS
from candidly.storage.store import writing
from candidly.tensors import precision
from candidly.tensors.nets import build_net
from candidly.tensors.precision import Bfloat16Passes, require_bfloat16
from candidly.training.trainer import fit, make_scheme

works = pytest.mark.skipif(
    bool(precision._ended_by()), reason="bfloat16 ends the process on this processor"
)


class Spy(nn.Module):
    """Passes its input on, and keeps its type."""

    def forward(self, x):
        self.seen = x.dtype
        return x


def net_with_spies():
    net = build_net("fastconv", (3, 8, 8), 3, widths=(16, 16, 16))
    inside, outside = Spy(), Spy()
    net.features.append(inside)
    net.head = nn.Linear(16, 3)
    net.head.register_forward_pre_hook(lambda module, inputs: (outside(inputs[0]),))
    return net, inside, outside


@works
def test_features_are_lowered_in_training_alone():
    net, inside, outside = net_with_spies()
    x = torch.randn(4, 3, 8, 8)
    plain = net.eval()(x)
    lowered = Bfloat16Passes(net)
    assert torch.equal(net.eval()(x), plain)
    assert net.train()(x).dtype is torch.float32
    assert (inside.seen, outside.seen) == (torch.bfloat16, torch.float32)
    assert not torch.is_autocast_enabled("cpu")
    lowered.close()
    net.train()(x)
    assert inside.seen is torch.float32


@works
def test_a_net_without_features_is_lowered_as_a_whole():
    net, x = nn.Sequential(nn.Flatten(), nn.Linear(12, 5, bias=False)), torch.randn(4, 3, 2, 2)
    Bfloat16Passes(net)
    expected = x.flatten(1).bfloat16() @ net[1].weight.bfloat16().T
    assert torch.equal(net.train()(x), expected.float())


def test_other_outputs_than_tensors_are_left_to_the_check_of_the_trainer():
    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    net = Pair()
    Bfloat16Passes(net)
    x = torch.ones(2, 3)
    first, second = net.train()(x)
    assert first is second is x
    assert not torch.is_autocast_enabled("cpu")


@works
def test_a_pass_that_fails_leaves_no_trace():
    net = build_net("mlp", (4,), 3)
    Bfloat16Passes(net)
    with pytest.raises(RuntimeError):
        net.train()(torch.ones(2, 5))
    assert not torch.is_autocast_enabled("cpu")
    assert net(torch.ones(2, 4)).dtype is torch.float32


@works
def test_gradients_are_those_of_full_precision_but_for_rounding():
    torch.manual_seed(0)
    net, x = build_net("mlp", (20,), 5).train(), torch.randn(32, 20)
    gradients = []
    for low in (False, True):
        lowered = Bfloat16Passes(net) if low else None
        net.zero_grad()
        nn.functional.cross_entropy(net(x), torch.arange(32) % 5).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in net.parameters() if p.requires_grad]))
        if lowered:
            lowered.close()
    full, low = gradients
    assert low.dtype is torch.float32
    assert 0 < (low - full).norm() < 0.06 * full.norm()


@works
@pytest.mark.parametrize("name", METHODS)
def test_methods_lose_about_the_same_as_in_full_precision(name):
    full, low = laws.train(name), laws.train(name, scheme=make_scheme("fast", precision="bfloat16"))
    losses = [[row["loss"] for row in fitted.history] for fitted in (full, low)]
    assert losses[0] != losses[1]
    # PALS chooses the rows that count: rounding may change which, once the warm-up is over.
    compared = slice(2) if name == "pals" else slice(None)
    assert losses[1][compared] == pytest.approx(losses[0][compared], rel=0.02)
    assert all(p.dtype is torch.float32 for p in low.model.parameters())
    assert not low.model.features._forward_hooks
    assert not low.model.features._forward_pre_hooks


@works
def test_a_stopped_training_in_bfloat16_goes_on_bit_for_bit(tmp_path):
    plan = make_scheme("fast", precision="bfloat16")
    straight = laws.train("pico", epochs=5, scheme=plan)
    laws.interrupt_after(2, tmp_path / "run", "pico", plan)
    with writing(tmp_path / "run", {}) as run:
        resumed = laws.train("pico", epochs=5, scheme=plan, run=run)
    laws.assert_same(straight.model, resumed.model)
    laws.assert_same(straight.method, resumed.method)


@works
@pytest.mark.parametrize("trouble", ["method", "optimizer"])
def test_a_training_that_cannot_start_leaves_no_hook(trouble):
    class Choosy(METHODS["cc"]):
        def setup(self, model, candidates, rng):
            raise ValueError("not these")

    X, sets, _ = laws.table()
    model = build_net("mlp", (laws.D,), laws.C)
    # Nesterov's momentum cannot be 0
    method, changes = (Choosy(), {}) if trouble == "method" else ("cc", {"momentum": 0.0})
    with pytest.raises(ValueError, match=r"not these|[Nn]esterov"):
        fit(model, X, sets, method, precision="bfloat16", **changes)
    assert not model.features._forward_hooks
    assert not model.features._forward_pre_hooks


def test_a_processor_that_refuses_is_told_instead_of_a_crash(monkeypatch):
    monkeypatch.setattr(
        precision, "TRIAL", "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    )
    precision._ended_by.cache_clear()
    try:
        with pytest.raises(
            InputError,
            match=r"precision='bfloat16' cannot be used .* ended with SIGILL. Use 'float32'",
        ):
            require_bfloat16(torch.device("cpu"))
        require_bfloat16(torch.device("meta"))  # no processor, no trial
    finally:
        precision._ended_by.cache_clear()


def test_unknown_precisions_are_refused():
    with pytest.raises(
        InputError, match=r"precision 'float16' is unknown. .* There are: float32, bfloat16"
    ):
        make_scheme("fast", precision="float16")


def test_runs_of_full_precision_keep_their_keys():
    job = Job(SCALES["digits"], Cell("digits", 0.1, 0.2, 0.4), ROWS[0], 0)
    assert "precision" not in job.config["scheme"]
