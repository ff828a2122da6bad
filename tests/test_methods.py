"""The shared laws, over the registry; and a new method of ten lines that keeps them without any other change."""

import laws
import pytest
import torch
import torch.nn.functional as F

from candidly.losses import cc
from candidly.methods import METHODS, Method
from candidly.methods.base import forward_views
from candidly.sets import CandidateSets
from candidly.tensors.nets import build_net

LAWS = [
    laws.law_finite_and_differentiable,
    laws.law_inputs_not_mutated,
    laws.law_same_seed_same_run,
    laws.law_relabelling_permutes_outputs,
    laws.law_singletons_are_learnt,
    laws.law_full_sets_never_give_nan,
]


class Tempered(Method):
    """A new method in ten lines: the mass on the candidates, at a temperature that falls during training."""

    def __init__(self, *, start: float = 2.0) -> None:
        super().__init__()
        self.start = start

    def epoch_start(self, epoch, predict_all):
        self.temperature = self.start + (1 - self.start) * epoch / self.epochs

    def loss(self, model, batch):
        return cc(forward_views(model, batch) / self.temperature, batch.candidates).mean(0)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__[4:])
def test_law(law, name):
    law(name)


@pytest.mark.parametrize("name", METHODS)
def test_resume_equals_uninterrupted(name, tmp_path):
    laws.law_resume_equals_uninterrupted(name, tmp_path)


def test_two_processes_equal_one():
    laws.law_two_processes_equal_one(list(METHODS))


def test_a_new_method_keeps_all_laws(monkeypatch, tmp_path):
    monkeypatch.setitem(METHODS, "tempered", Tempered)
    for law in LAWS:
        law("tempered")
    laws.law_resume_equals_uninterrupted("tempered", tmp_path)
    laws.law_two_processes_equal_one(["tempered"])


def test_laws_can_fail(monkeypatch):
    class Forgetful(Tempered):
        def loss(self, model, batch):
            batch.views[0].add_(1.0)
            return super().loss(model, batch) / 0

    monkeypatch.setitem(METHODS, "forgetful", Forgetful)
    for law in (laws.law_finite_and_differentiable, laws.law_inputs_not_mutated):
        with pytest.raises(AssertionError):
            law("forgetful")


@pytest.mark.parametrize("name", ["cc", "proden", "cavl", "ooc"])
def test_singletons_reduce_to_cross_entropy(name):
    labels = torch.as_tensor(laws.table()[2])
    candidates = torch.as_tensor(CandidateSets(labels.numpy(), classes=laws.C).dense())
    model = build_net("mlp", (laws.D,), laws.C)
    batch = laws.hand_batch(name, candidates)
    losses = laws.started(name, model, candidates, epoch=0).loss(model, batch)
    torch.testing.assert_close(losses, F.cross_entropy(model(batch.views[0]), labels, reduction="none"))


@pytest.mark.parametrize("name", METHODS)
def test_a_plain_module_without_features_trains(name):
    X, sets, _ = laws.table()
    model = torch.nn.Sequential(torch.nn.Linear(laws.D, 8), torch.nn.ReLU(), torch.nn.Linear(8, laws.C))
    history = laws.fit(model, X, sets, laws.make(name), epochs=2, batch_size=8).history
    assert len(history) == 2
