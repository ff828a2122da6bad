"""The shared laws, over the registry; and a new method of ten lines that keeps them."""

import inspect
import os
import subprocess
import sys
from importlib.metadata import EntryPoint

import laws
import pytest
import torch
import torch.nn.functional as F
from recipes import RECIPES

from candidly.errors import InputError
from candidly.losses import cc
from candidly.methods import METHODS, Method
from candidly.methods.base import RESERVED, check_settings, defaults, forward_views
from candidly.methods.registry import GROUP, add_methods
from candidly.methods.settings import make_method, parse_settings
from candidly.sets import CandidateSets
from candidly.tensors.nets import build_net
from candidly.training.estimator import PartialLabelClassifier

LAWS = [
    laws.law_finite_and_differentiable,
    laws.law_inputs_not_mutated,
    laws.law_answers_are_accepted,
    laws.law_same_seed_same_run,
    laws.law_relabelling_permutes_outputs,
    laws.law_singletons_are_learnt,
    laws.law_full_sets_never_give_nan,
]


class Tempered(Method):
    """The mass on the candidates, at a temperature that falls during training."""

    def __init__(self, *, start: float = 2.0) -> None:
        super().__init__()
        self.start = start

    def epoch_start(self, epoch, predict_all):
        self.temperature = self.start + (1 - self.start) * epoch / self.epochs

    def loss(self, model, batch):
        return cc(forward_views(model, batch) / self.temperature, batch.candidates).mean(0)


def test_the_method_of_the_recipe_is_the_one_tested_here():
    assert inspect.getsource(Tempered) in RECIPES["Add a method"]


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


@pytest.mark.parametrize("name", ["cc", "proden", "cavl", "ooc", "posterior"])
def test_singletons_reduce_to_cross_entropy(name):
    labels = torch.as_tensor(laws.table()[2])
    candidates = torch.as_tensor(CandidateSets(labels.numpy(), classes=laws.C).dense())
    model = build_net("mlp", (laws.D,), laws.C)
    batch = laws.hand_batch(name, candidates)
    losses = laws.started(name, model, candidates, epoch=0).loss(model, batch)
    torch.testing.assert_close(
        losses, F.cross_entropy(model(batch.views[0]), labels, reduction="none")
    )


@pytest.mark.parametrize("name", METHODS)
def test_a_plain_module_without_features_trains(name):
    X, sets, _ = laws.table()
    model = torch.nn.Sequential(
        torch.nn.Linear(laws.D, 8), torch.nn.ReLU(), torch.nn.Linear(8, laws.C)
    )
    history = laws.fit(model, X, sets, laws.make(name), epochs=2, batch_size=8).history
    assert len(history) == 2


# ---- methods of other packages


class Warmer(METHODS["ooc"]):
    """A subclass with a setting of its own."""

    def __init__(self, *, heat: float = 2.0, warmup: float = 0.5, **settings) -> None:
        super().__init__(warmup=warmup, **settings)
        self.heat = heat


def test_a_subclass_has_the_settings_of_its_parent():
    inherited = defaults(METHODS["ooc"])
    assert defaults(Warmer) == {**inherited, "heat": 2.0, "warmup": 0.5}
    method = Warmer(alpha=0.25)
    assert method.settings == {**inherited, "heat": 2.0, "warmup": 0.5, "alpha": 0.25}
    assert (method.warmup, method.alpha) == (0.5, 0.25)


def test_a_method_without_anything_declares_nothing():
    method = Tempered()
    assert method.selection is None
    assert method.scores is None
    assert method.ensemble_logits is None
    assert method.rates is None
    assert method.candidates is None
    assert (method.warming, method.row_names, method.views) == (False, (), None)


class Bare(METHODS["ooc"]):
    """`ooc` without its settings, but with its presets."""

    def __init__(self):
        super().__init__()


def test_a_preset_that_a_subclass_does_not_accept_is_refused(monkeypatch):
    monkeypatch.setitem(METHODS, "bare", Bare)
    message = "preset 'robust' of bare .* not accept: overlap, open_score.*Bare pass \\*\\*settings"
    with pytest.raises(InputError, match=message):
        make_method("bare", "robust")
    model = PartialLabelClassifier("bare", epochs=1, calibrate=0)
    X, y = [[0.0], [1.0]] * 10, ["a", "b"] * 10
    with pytest.raises(InputError, match=message):
        model.fit(X, y)
    assert model.set_params(preset=None).fit(X, y).predict(X).shape == (20,)


class Older(Tempered):
    """A method that was written before `setup` got the answers."""

    def setup(self, model, candidates, rng):
        self.seen = candidates.shape


class Any(Tempered):
    """A method whose `setup` takes whatever there is."""

    def setup(self, model, candidates, rng, **known):
        self.known = known


@pytest.mark.parametrize("answered", [False, True])
def test_a_method_gets_the_answers_only_if_it_takes_them(answered):
    X, sets, _ = laws.table()
    answers = laws.answers_of(sets) if answered else None
    for method in (Older(), Any()):
        net = build_net("mlp", (laws.D,), laws.C)
        assert len(laws.fit(net, X, sets, method, answers=answers, epochs=1).history) == 1
        assert getattr(method, "seen", sets.shape) == sets.shape
        assert getattr(method, "known", {"answers": answers})["answers"] == answers


class Positional(Tempered):
    """Settings that may also be given by position."""

    def __init__(self, start=2.0, stop=1.0, **settings):
        super().__init__(start=start, **settings)
        self.stop = stop


def test_settings_may_be_positional():
    assert defaults(Positional) == {"start": 2.0, "stop": 1.0}
    assert Positional().settings == {"start": 2.0, "stop": 1.0}
    method = Positional(3.0, stop=0.5)
    assert method.settings == {"start": 3.0, "stop": 0.5}
    assert (method.start, method.stop) == (3.0, 0.5)
    with pytest.raises(TypeError, match="positional"):
        Positional(3.0, 0.5, 1.0)


class Various(Tempered):
    """Settings of types that text can be read as, and of others."""

    def __init__(
        self,
        *,
        count=3,
        share=0.5,
        mode="soft",
        sharp=False,
        limit=None,
        sizes=(1, 2),
        weights=[1.0],  # noqa: B006
        names={},  # noqa: B006
    ):
        super().__init__()


def test_only_text_that_can_be_read_as_the_type_of_the_default_is_set(monkeypatch):
    monkeypatch.setitem(METHODS, "various", Various)
    given = ["count=4", "share=1", "mode=(1, 2)", "sharp=on"]
    parsed = parse_settings("various", given)
    assert parsed == {"count": 4, "share": 1.0, "mode": "(1, 2)", "sharp": True}
    assert isinstance(parsed["share"], float)
    for name, text, default in [
        ("limit", "3", "None"),
        ("sizes", "3,4", r"\(1, 2\)"),
        ("weights", "3", r"\[1\.0\]"),
        ("names", "a", r"\{\}"),
    ]:
        expected = rf"--set {name}={text}: its default is {default},.*Set it in Python"
        with pytest.raises(InputError, match=expected):
            parse_settings("various", [f"{name}={text}"])


class Colliding(Tempered):
    """Settings that the classifier would not pass on."""

    def __init__(self, *, lr=0.1, epochs=3, rates="auto"):
        super().__init__()


class Demanding(Tempered):
    """A setting without a default."""

    def __init__(self, *, strength, start=2.0):
        super().__init__(start=start)


def test_reserved_names_are_the_parameters_of_the_classifier():
    assert RESERVED | {"rates"} == set(PartialLabelClassifier._get_param_names())
    for cls in METHODS.values():
        check_settings(cls)


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        (
            EntryPoint("cc", "candidly.methods.proden:PRODEN", GROUP),
            "there is already a method of this name",
        ),
        (EntryPoint("gone", "no_such_package:Method", GROUP), "No module named 'no_such_package'"),
        (
            EntryPoint("odd", "math:pi", GROUP),
            "3.14.* is not a subclass of candidly.methods.base.Method",
        ),
        (
            EntryPoint("colliding", f"{__name__}:Colliding", GROUP),
            "its settings epochs, lr are parameters of PartialLabelClassifier",
        ),
        (
            EntryPoint("demanding", f"{__name__}:Demanding", GROUP),
            "its settings strength have no default",
        ),
    ],
)
def test_methods_that_cannot_be_used_are_left_out(point, reason):
    before = dict(METHODS)
    with pytest.warns(UserWarning, match=f"the method {point.name!r} .* is left out: {reason}"):
        add_methods([point])
    assert before == METHODS


PLUGIN = '''"""Halves: the mass on the candidates, at half the weight."""
from candidly.losses import cc
from candidly.methods import Method
from candidly.methods.base import forward_views

class Halves(Method):
    """Half the loss of CC."""

    def __init__(self, *, weight: float = 0.5) -> None:
        super().__init__()
        self.weight = weight

    def loss(self, model, batch):
        return self.weight * cc(forward_views(model, batch), batch.candidates).mean(0)
'''


@pytest.fixture
def other_package(tmp_path):
    """An installed package with a method; returns the environment in which Python finds it."""
    (tmp_path / "halves.py").write_text(PLUGIN)
    info = tmp_path / "halves-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: halves\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[candidly.methods]\nhalves = halves:Halves\n")
    inherited = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{inherited}"}


def test_a_method_of_another_package_works_everywhere(other_package, tmp_path):
    def python(*arguments):
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=other_package, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = python("-m", "candidly", "methods", "halves")
    assert "Halves: the mass on the candidates" in listed
    assert "weight=0.5" in listed
    rows = [f"{i},{'ab'[i % 2]},{i % 2},{i}" for i in range(20)]
    (tmp_path / "a.csv").write_text("\n".join(["id,candidates,x,y", *rows]))
    options = (
        "--method",
        "halves",
        "--set",
        "weight=0.25",
        "--epochs",
        1,
        "--folds",
        2,
        "--out",
        "run",
    )
    python("-m", "candidly", "fit", "a.csv", *options)
    assert "method halves" in (tmp_path / "run" / "report.html").read_text()
    cells = ("--cells", "digits q=0.1 tau=0.2*", "--seeds", 1)
    table = python(
        "-m",
        "candidly",
        "bench",
        "run",
        "table1",
        "--scale",
        "digits",
        *cells,
        "--methods",
        "halves",
    )
    assert "| halves | nothing |" in table
    code = (
        "from candidly import PartialLabelClassifier as C;"
        "m = C('halves', weight=0.75, epochs=1, calibrate=0);"
        "print(m.fit([[0.0], [1.0]] * 10, ['a', 'b'] * 10).get_params()['weight'])"
    )
    assert python("-c", code) == "0.75\n"
