"""Laws of every method, as functions of its name; `test_methods.py` checks the whole registry."""

from __future__ import annotations

import copy
import os
import tempfile
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from candidly.answers import Answers
from candidly.errors import Interrupted
from candidly.kinds import Rates
from candidly.methods import METHODS, Batch
from candidly.sets import CandidateSets
from candidly.storage.store import Run, read_metrics, writing
from candidly.tensors.nets import build_net
from candidly.training.trainer import fit

N, D, C = 26, 5, 4
RATES = Rates(0.2, 0.2)
SETTINGS = {
    "ooc": {"rates": RATES, "warmup": 1},
    "pico": {"queue_size": 40, "width": 8},
    "posterior": {"warmup": 1},
    "alim": {"rates": RATES, "queue_size": 40, "width": 8},
    "pico_plus": {"rates": RATES, "queue_size": 40, "width": 8},
    "pals": {"warmup": 1, "neighbours": 5},
    "trimmed": {"rates": RATES, "warmup": 1},
}
# PALS trains on as many rows of each class as a small class has, even if all sets are singletons.
LEARNT = {"pals": 0.8}


def make(name):
    """A fresh method with settings that reach all of its branches in a few epochs."""
    return METHODS[name](**SETTINGS.get(name, {}))


def table(seed=0):
    """Features and candidate sets of all sizes, singletons and full sets among them."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(C, size=N)
    mask = rng.random((N, C)) < 0.4
    mask[np.arange(N), labels] = True
    mask[0], mask[1] = True, np.arange(C) == labels[1]
    X = rng.normal(size=(N, D)) + 2 * np.eye(C, D)[labels]
    return X.astype(np.float32), CandidateSets(mask), labels


def answers_of(candidates):
    """Answers of two annotators; in another order of the classes, they are only permuted."""
    given = []
    for row, mask in enumerate(np.asarray(candidates)):
        inside, outside = np.flatnonzero(mask).tolist(), np.flatnonzero(~mask).tolist()
        if row % 5:
            given.append((row, "a", inside))
        if row % 3 == 0:
            given.append((row, "b", outside if row % 2 and outside else "none of the classes"))
    rows, annotators, labels = zip(*given, strict=True)
    n, c = np.shape(candidates)
    return Answers.from_long(rows, annotators, labels, n_rows=n, classes=c)


def train(name, *, epochs=3, net="mlp", data=None, **options):
    X, sets, _ = data or table()
    model = build_net(net, (D,), C, seed=1)
    return fit(
        model, X, sets, make(name), epochs=epochs, batch_size=8, seed=3, device="cpu", **options
    )


def started(name, model, candidates, epoch, predict_all=None):
    """A method set up by hand, at the start of an epoch."""
    method = make(name)
    method.epochs = 4
    method.setup(model, candidates, torch.Generator().manual_seed(0))
    method.epoch_start(epoch, predict_all or (lambda: torch.zeros(candidates.shape)))
    return method


def hand_batch(name, candidates, seed=0, columns=None):
    """A batch of all rows; `columns` reorders the classes of what is random."""
    rng = torch.Generator().manual_seed(seed)
    kinds = make(name).views or ("weak",)
    views = tuple(torch.randn(len(candidates), D, generator=rng) for _ in kinds)
    order = torch.arange(C) if columns is None else columns

    def uniform(width):
        u = torch.rand((len(candidates), width), generator=torch.Generator().manual_seed(5))
        return u[:, order] if width == C else u

    return Batch(torch.arange(len(candidates)), views, candidates, uniform)


def law_finite_and_differentiable(name):
    candidates = torch.as_tensor(table()[1].dense())
    for epoch in (0, 2):
        model = build_net("mlp", (D,), C)
        losses = started(name, model, candidates, epoch).loss(model, hand_batch(name, candidates))
        assert losses.shape == (N,)
        assert losses.isfinite().all()
        losses.mean().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        assert any(p.grad.abs().sum() > 0 for p in model.parameters())


def law_inputs_not_mutated(name):
    candidates = torch.as_tensor(table()[1].dense())
    model = build_net("mlp", (D,), C)
    for epoch in (0, 2):
        batch = hand_batch(name, candidates)
        views, sets = copy.deepcopy(batch.views), candidates.clone()
        started(name, model, candidates, epoch).loss(model, batch)
        assert all(torch.equal(a, b) for a, b in zip(batch.views, views, strict=True))
        assert torch.equal(candidates, sets)


def law_answers_are_accepted(name):
    answers = answers_of(table()[1])
    first, second = (train(name, answers=answers) for _ in range(2))
    assert_same(first.model, second.model)
    assert all(np.isfinite(row["loss"]) for row in first.history)
    assert all(p.isfinite().all() for p in first.model.parameters())


def law_same_seed_same_run(name):
    first, second = train(name), train(name)
    assert_same(first.model, second.model)
    assert [row["loss"] for row in first.history] == [row["loss"] for row in second.history]


def law_resume_equals_uninterrupted(name, folder):
    for scheme in ("fast", "paper"):
        straight = train(name, epochs=5, scheme=scheme)
        with writing(folder / f"{name}-{scheme}-whole", {}) as run:
            whole = train(name, epochs=5, scheme=scheme, run=run)
        path = folder / f"{name}-{scheme}"
        for stop in (2, 4):
            interrupt_after(stop, path, name, scheme)
        with writing(path, {}) as run:
            resumed = train(name, epochs=5, scheme=scheme, run=run)
        for fitted in (whole, resumed):
            assert_same(straight.model, fitted.model)
            assert_same(straight.method, fitted.method)
        assert [r["loss"] for r in resumed.history] == [r["loss"] for r in straight.history]


def interrupt_after(epochs, path, name, scheme):
    """Train until `epochs` epochs are saved, then stop as Ctrl-C does."""

    class Impatient(Run):
        def add_metrics(self, row):
            if row["epoch"] > epochs:
                raise KeyboardInterrupt
            super().add_metrics(row)

    with pytest.raises(Interrupted, match="Repeat the same command"), writing(path, {}) as run:
        run.__class__ = Impatient
        train(name, epochs=5, scheme=scheme, run=run)


def law_relabelling_permutes_outputs(name):
    """With the classes and the rows of the head in another order, only the logits are permuted."""
    order = torch.tensor([2, 0, 3, 1])
    results = []
    for columns in (torch.arange(C), order):
        candidates = torch.as_tensor(table()[1].dense())[:, columns]
        model = build_net("mlp", (D,), C, seed=1)
        model.head.weight.data = model.head.weight.data[columns]
        model.head.bias.data = model.head.bias.data[columns]
        torch.manual_seed(0)
        method = make(name)
        method.epochs = 4
        method.setup(model, candidates, torch.Generator().manual_seed(0))
        optimizer = torch.optim.SGD([*model.parameters(), *method.parameters()], lr=0.1)
        for epoch in range(4):
            batch = hand_batch(name, candidates, seed=epoch, columns=columns)
            outputs = model(batch.views[0]).detach()
            method.epoch_start(epoch, lambda outputs=outputs: outputs)
            optimizer.zero_grad()
            method.loss(model, batch).mean().backward()
            optimizer.step()
        results.append(model(torch.linspace(-1, 1, 10 * D).reshape(10, D)).detach())
    torch.testing.assert_close(results[0][:, order], results[1], rtol=1e-3, atol=1e-4)


def law_singletons_are_learnt(name):
    X, _, labels = table()
    model, sets = build_net("mlp", (D,), C, seed=1), CandidateSets(labels, classes=C)
    fitted = fit(model, X, sets, METHODS[name](), epochs=40, batch_size=8, test=(X, labels))
    assert fitted.history[-1]["accuracy"] > LEARNT.get(name, 0.9)


def law_full_sets_never_give_nan(name):
    X, _, labels = table()
    fitted = train(name, epochs=3, data=(X, CandidateSets(np.ones((N, C), dtype=bool)), labels))
    assert all(np.isfinite(row["loss"]) for row in fitted.history)
    assert all(p.isfinite().all() for p in fitted.model.parameters())


def law_two_processes_equal_one(names):
    """In double precision: states, buffers, weights and losses agree with those of one process."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_worker, (names, METHODS, folder), nprocs=2)
        for name in names:
            expected = _trained_double(name)
            assert len(read_metrics(f"{folder}/{name}-fast")) == 3  # one run, by the first process
            for rank in range(2):
                got = torch.load(f"{folder}/{name}-{rank}.pt", weights_only=True)
                assert got.keys() == expected.keys()
                for key in expected:
                    torch.testing.assert_close(
                        got[key], expected[key], rtol=1e-8, atol=1e-10, msg=f"{name}: {key}"
                    )


def _worker(rank, names, methods, folder):
    METHODS.update(methods)
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    for name in names:
        torch.save(_trained_double(name, folder), f"{folder}/{name}-{rank}.pt")
    dist.destroy_process_group()


def _trained_double(name, folder=None):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        result = {}
        for scheme in ("fast", "paper"):
            place = nullcontext() if folder is None else writing(f"{folder}/{name}-{scheme}", {})
            with place as run:
                fitted = train(name, epochs=3, scheme=scheme, run=run)
            states = {"model": fitted.model.state_dict(), "method": fitted.method.state_dict()}
            result |= {
                f"{scheme}.{k}.{key}": v for k, state in states.items() for key, v in state.items()
            }
            result[f"{scheme}.loss"] = torch.tensor([row["loss"] for row in fitted.history])
        return result
    finally:
        torch.set_default_dtype(before)


def assert_same(first, second):
    a, b = first.state_dict(), second.state_dict()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)
