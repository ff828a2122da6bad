"""The trainer: schedules, batches, metrics, checkpoints, and what it says when things go wrong."""

import json
import math
import signal
import subprocess
import sys
import time
import types

import laws
import numpy as np
import pytest
import torch
from children import ended
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from candidly import CandidateSets, corrupt, fit
from candidly.bench.problems import digits, make_problem
from candidly.errors import InputError, TrainingError
from candidly.kinds import Rates, Selection
from candidly.methods import METHODS, base
from candidly.methods.settings import make_method
from candidly.metrics import accuracy, auroc, final_score, selection_quality
from candidly.storage.store import read_metrics, writing
from candidly.tensors.nets import build_net
from candidly.tensors.views import ImageViews, make_views
from candidly.training.predictor import Predictor, predict
from candidly.training.trainer import SCHEMES, batches, find_device, make_scheme, seeded


def images(n=24, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, size=(n, 8, 8, 3), dtype=np.uint8), rng.integers(3, size=n)


def test_the_papers_scheme_by_hand():
    scheme = SCHEMES["paper"]
    assert (scheme.epochs, scheme.batch_size, scheme.views, scheme.record) == (
        300,
        128,
        ("weak", "weak"),
        False,
    )
    assert (scheme.momentum, scheme.weight_decay) == (0.9, 1e-3)
    assert scheme.rate(0) == pytest.approx(0.01)
    assert scheme.rate(150) == pytest.approx(1e-5 + (0.01 - 1e-5) / 2)
    assert scheme.rate(299) == pytest.approx(
        1e-5 + (0.01 - 1e-5) * (1 + math.cos(math.pi * 299 / 300)) / 2
    )
    assert scheme.rate(150.9) == scheme.rate(150)  # constant within an epoch


def test_the_fast_scheme_rises_and_falls():
    scheme = make_scheme("fast", epochs=20, lr=0.1)
    rates = [scheme.rate(e / 10) for e in range(201)]
    assert np.argmax(rates) == 50
    assert rates[50] == pytest.approx(0.1)
    assert rates[0] == rates[-1] == pytest.approx(1e-5)


def test_scheme_settings_are_checked():
    with pytest.raises(
        InputError, match=r"setting of a scheme 'epoch' is unknown. Did you mean 'epochs'"
    ):
        make_scheme("paper", epoch=3)
    with pytest.raises(InputError, match=r"scheme 'slow' is unknown. There are: paper, fast"):
        make_scheme("slow")


@pytest.mark.parametrize(
    ("n", "size", "expected"),
    [(10, 4, [4, 4, 2]), (9, 4, [4, 5]), (129, 128, [129]), (300, 128, [128, 128, 44])],
)
def test_batches_cover_every_row_once(n, size, expected):
    parts = list(batches(torch.arange(n), size))
    assert [len(rows) for rows, _ in parts] == expected
    assert torch.cat([rows for rows, _ in parts]).tolist() == list(range(n))
    assert [done for _, done in parts] == [start * size / n for start in range(len(expected))]


def test_views_of_several_batches_are_made_together(monkeypatch):
    """As many as TOGETHER allows, and at least one; weak views are those of single batches."""
    X, y = images()
    made, found = [], []
    whole = ImageViews.__call__

    def counted(self, index, kind, *rest):
        if kind != "plain":  # such as those that the trainer looks at first and last
            made.append(len(index))
        return whole(self, index, kind, *rest)

    monkeypatch.setattr(ImageViews, "__call__", counted)
    for together in (0, 3 * 4 * X[0].size, 1 << 21):
        monkeypatch.setattr("candidly.training.loop.TOGETHER", together)
        made.clear()
        model = build_net("fastconv", (3, 8, 8), 3)
        fit(
            model,
            X,
            CandidateSets([[label] for label in y], classes=range(3)),
            "cc",
            epochs=1,
            batch_size=4,
        )
        found.append((model, list(made)))
    assert found[0][1] == [4] * 6
    assert found[1][1] == [12, 12]
    assert found[2][1] == [24]
    for model, _ in found[1:]:
        laws.assert_same(model, found[0][0])


@pytest.mark.parametrize("net", ["fastconv", "resnet18"])
@pytest.mark.parametrize("scheme", ["fast", "paper"])
def test_images_train_in_both_schemes(net, scheme):
    X, y = images()
    sets, truth = corrupt(y[:16], 3, q=0.3, tau1=0.2, tau2=0.4, seed=0, pool=8)
    method = METHODS["ooc"](rates=Rates.from_tau(0.2, 0.4), warmup=1)
    model = build_net(net, (3, 8, 8), 3)
    plan = {"scheme": scheme, "epochs": 2, "batch_size": 8}
    fitted = fit(model, X[truth.source], sets, method, test=(X[:5], y[:5]), truth=truth, **plan)
    first, last = fitted.history
    assert {"epoch", "lr", "loss", "accuracy", "seconds"} <= set(first)
    assert {"precision_normal", "precision_closed", "precision_open"} <= set(last)
    weights = next(p for p in fitted.model.parameters() if p.ndim == 4 and p.shape[-1] == 3)
    assert weights.is_contiguous(memory_format=torch.channels_last)


def test_recorded_outputs_are_those_of_the_training_passes():
    """Without augmentation, momentum or learning, the recorded outputs are the model's outputs."""
    X, sets, _ = laws.table()
    seen = []

    class Watch(METHODS["cc"]):
        views = ("plain",)

        def epoch_start(self, epoch, predict_all):
            seen.append(predict_all())

    model = build_net("mlp", (laws.D,), laws.C)
    fit(model, X, sets, Watch(), epochs=3, lr=0.0, lr_min=0.0, batch_size=8)
    expected = predict(model, make_views(X))
    for output in seen:
        torch.testing.assert_close(output, expected)


def test_training_leaves_no_hook_behind():
    model = laws.train("ooc").model
    assert not model._forward_hooks


def test_predict_is_unaugmented_and_in_evaluation_mode():
    X, _ = images()
    views, model = make_views(X), build_net("fastconv", (3, 8, 8), 3).train()
    whole = predict(model, views, batch_size=24)
    torch.testing.assert_close(predict(model, views, batch_size=5), whole)
    assert model.training


def test_a_loss_that_is_no_number_stops_with_advice():
    X, sets, _ = laws.table()
    with pytest.raises(
        TrainingError,
        match=r"loss of epoch 2 is (nan|inf): training diverged. Try an lr below 1e\+30",
    ):
        fit(
            build_net("mlp", (laws.D,), laws.C),
            X,
            sets,
            METHODS["cc"](),
            scheme="paper",
            lr=1e30,
            epochs=3,
        )


def test_a_last_step_that_diverges_is_an_error():
    """The loss of the one batch is finite; the weights after its step are not."""
    X, sets, _ = laws.table()
    net = build_net("mlp", (laws.D,), laws.C)
    with pytest.raises(TrainingError, match=r"outputs of the trained model .* an lr below 1e\+30"):
        fit(net, X, sets, METHODS["cc"](), scheme="paper", lr=1e30, epochs=1)


def test_a_model_with_broken_weights_does_not_predict():
    X = laws.table()[0]
    predictor = laws.train("cc").predictor
    assert np.isfinite(predictor.predict_proba(X)).all()
    with torch.no_grad():
        next(predictor.model.parameters()).fill_(math.nan)
    for ask in (predictor.logits, predictor.predict, predictor.predict_proba):
        with pytest.raises(TrainingError, match="weights are not finite: training diverged"):
            ask(X)


def test_inputs_that_overflow_the_net_are_named():
    X = laws.table()[0]
    predictor = laws.train("cc", net="linear").predictor
    with torch.no_grad():
        next(predictor.model.parameters()).fill_(1e10)
    extreme = X.copy()
    extreme[3] = 1e35
    with pytest.raises(
        InputError, match=r"X, row 3: the model's outputs, inf, .* no probabilities"
    ):
        predictor.predict_proba(extreme)


@pytest.fixture(scope="module")
def linear():
    return laws.train("cc", net="linear").predictor


@given(X=hnp.arrays(np.float64, (2, laws.D), elements=st.floats(allow_nan=True, width=64)))
def test_any_input_gives_probabilities_or_is_refused(linear, X):
    if (np.abs(X) < 1e30).all():
        probs = linear.predict_proba(X)
        np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-5)
        assert (probs >= 0).all()
    elif not (np.abs(X) < 3.5e38).all():  # NaN, too
        with pytest.raises(InputError, match=r"row [01]"):
            linear.predict_proba(X)


def test_a_class_ruled_out_by_an_infinite_logit_has_probability_zero():
    class Never(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = torch.nn.Parameter(torch.tensor([0.0, -math.inf, math.log(3)]))

        def forward(self, x):
            return x[:, :1] * 0 + self.shift

    predictor = Predictor(Never(), np.arange(3), (2,), np.zeros(2), np.ones(2))
    np.testing.assert_allclose(predictor.predict_proba(np.ones((1, 2))), [[0.25, 0, 0.75]])


def test_seeds_of_streams_by_hand():
    """64 bits of NumPy's seed sequence, halved: torch takes 63."""
    rng = torch.Generator()
    with seeded(3, 1, rng):
        value = int(np.random.SeedSequence([3, 1]).generate_state(1, np.uint64)[0]) // 2
        assert rng.initial_seed() == torch.initial_seed() == value


def test_rows_must_match():
    X, sets, _ = laws.table()
    with pytest.raises(InputError, match="X has 25 rows, but there are 26 candidate sets"):
        fit(build_net("mlp", (laws.D,), laws.C), X[:-1], sets, METHODS["cc"]())


def test_the_global_random_state_is_left_alone():
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    laws.train("ooc")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_metrics_by_hand():
    assert accuracy(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 0])) == 0.5
    selection = Selection(
        np.array([1, 1, 0, 0], bool), np.array([0, 0, 1, 0], bool), np.zeros(4, bool)
    )
    kinds = np.array([0, 1, 1, 2])
    precision = {"precision_normal": 0.5, "precision_closed": 1.0, "precision_open": None}
    recall = {"recall_normal": 1.0, "recall_closed": 0.5, "recall_open": 0.0}
    assert selection_quality(selection, None, kinds) == precision | recall
    scores = np.array([2.0, -1.0, 3.0, 0.0]), np.array([0.0, 1.0, 2.0, 1.0])
    quality = selection_quality(selection, scores, kinds)
    # Of the two closed rows one has a smaller margin than the normal row
    assert quality["auroc_closed"] == 0.5
    assert quality["auroc_open"] == pytest.approx((1 + 0.5) / 3)
    history = [{"accuracy": v} for v in range(200)]
    assert final_score(history) == pytest.approx(np.mean(range(190, 200)))
    assert final_score(history[:50]) == pytest.approx(np.mean(range(45, 50)))
    assert final_score(history[:3]) == 2


def test_the_method_never_sees_truth():
    """Training with and without truth and test data gives the same model, bit for bit."""
    X, _, labels = laws.table()
    clean, truth = corrupt(labels, laws.C, q=0.3, seed=0)
    with_truth = laws.train("ooc", data=(X, clean, labels), truth=truth, test=(X, labels))
    laws.assert_same(with_truth.model, laws.train("ooc", data=(X, clean, labels)).model)


CHILD = """
import sys, time, numpy as np
sys.path.insert(0, {tests!r})
import laws
from candidly.storage.store import writing
from candidly.errors import Interrupted
laws.METHODS["cc"].epoch_start = lambda self, epoch, predict_all: time.sleep(0.05)
try:
    with writing({out!r}, {{}}) as run:
        laws.train("cc", epochs=100, run=run)
except Interrupted as stopped:
    print(stopped)
    sys.exit(130)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_a_stopped_process_leaves_a_checkpoint_that_goes_on(how, tmp_path):
    out = tmp_path / "run"
    code = CHILD.format(tests=str(laws.__file__).rsplit("/", 1)[0], out=str(out))
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    metrics = tmp_path / "run.partial" / "metrics.jsonl"
    deadline = time.time() + 60
    while time.time() < deadline and not (
        metrics.exists() and metrics.read_text().count("\n") >= 3
    ):
        time.sleep(0.02)
    child.send_signal(how)
    said = ended(child)[0]
    if how == signal.SIGINT:
        assert child.returncode == 130
        assert "finished epochs are in" in said
    assert not out.exists()
    done = len(read_metrics(tmp_path / "run.partial"))
    assert 3 <= done < 100
    with writing(out, {}) as run:
        resumed = laws.train("cc", epochs=100, run=run)
    assert [row["epoch"] for row in resumed.history] == list(range(1, 101))
    assert [row["epoch"] for row in read_metrics(out)] == list(range(1, 101))
    laws.assert_same(resumed.model, laws.train("cc", epochs=100).model)


def test_a_user_table_of_integers_and_lists_trains():
    X = [[0, 1], [1, 0], [0, 2], [3, 0]]
    sets = CandidateSets([["a"], ["b"], ["a", "b"], ["b"]])
    fitted = fit(build_net("linear", (2,), 2), X, sets, METHODS["proden"](), epochs=1)
    assert math.isfinite(fitted.history[0]["loss"])


def test_a_loaded_model_predicts_raw_inputs_like_the_fitted_one(tmp_path):
    X, sets, labels = laws.table()
    named = CandidateSets(sets, classes=["ant", "bee", "cat", "dog"])
    net = {"name": "mlp", "shape": [laws.D], "n_classes": laws.C}
    with writing(tmp_path / "run", {}) as run:
        fitted = fit(
            build_net(**net),
            100 * X + 7,
            named,
            "proden",
            epochs=20,
            test=(100 * X + 7, labels),
            run=run,
        )
        run.save_model(fitted.predictor, net)
    loaded = Predictor.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.logits(100 * X + 7), fitted.predictor.logits(100 * X + 7))
    hits = loaded.predict(100 * X + 7) == named.classes[labels]
    assert hits.mean() == pytest.approx(fitted.history[-1]["accuracy"])


def test_resuming_a_training_whose_epochs_are_all_done_keeps_the_selection(tmp_path):
    with pytest.raises(KeyboardInterrupt), writing(tmp_path / "run", {}) as run:
        first = laws.train("ooc", run=run)
        raise KeyboardInterrupt
    with writing(tmp_path / "run", {}) as run:
        again = laws.train("ooc", run=run)
    assert len(again.history) == 3
    for a, b in zip(first.selection, again.selection, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("change", [{"seed": 4}, {"batch_size": 9}, {"method": "proden"}, {"X": 1}])
def test_a_training_is_not_taken_up_with_other_data_or_settings(change, tmp_path):
    sets = laws.table()[1]
    options = {"seed": 3, "batch_size": 8, "method": "cc", "X": 0}

    def train(run, seed, batch_size, method, X):
        model = build_net("mlp", (laws.D,), laws.C)
        return fit(
            model,
            laws.table(X)[0],
            sets,
            method,
            epochs=2,
            seed=seed,
            batch_size=batch_size,
            run=run,
        )

    with pytest.raises(KeyboardInterrupt), writing(tmp_path / "run", {}) as run:
        train(run, **options)
        raise KeyboardInterrupt
    with (
        pytest.raises(InputError, match="unfinished run with other settings"),
        writing(tmp_path / "run", {}) as run,
    ):
        train(run, **{**options, **change})


def test_a_run_records_what_decided_it(tmp_path):
    with writing(tmp_path / "run", {"purpose": "test"}) as run:
        laws.train("ooc", run=run)
    note = json.loads((tmp_path / "run" / "run.json").read_text())
    assert note["training"]["seed"] == 3
    assert note["training"]["scheme"]["batch_size"] == 8
    assert note["training"]["method"] == "OOC"
    assert note["training"]["settings"]["rates"] == "Rates(closed=0.2, open=0.2)"
    assert note["training"]["settings"]["alpha"] == 1.0


def test_a_method_can_be_used_again_on_other_data():
    X, sets, labels = laws.table()
    method = laws.make("ooc")
    fit(build_net("mlp", (laws.D,), laws.C), X, sets, method, epochs=3, batch_size=8)
    fewer, truth = corrupt(labels[:9], laws.C, q=0.3, seed=0)
    fitted = fit(
        build_net("mlp", (laws.D,), laws.C), X[truth.source], fewer, method, epochs=3, truth=truth
    )
    assert "precision_normal" not in fitted.history[0]  # nothing is left of the old selection
    assert len(fitted.selection.normal) == 9


def test_selection_quality_of_tensors():
    masks = Selection(*torch.tensor([[1, 0], [0, 1], [0, 0]], dtype=torch.bool))
    assert selection_quality(masks, None, np.array([0, 0]))["precision_closed"] == 0.0


def fit_table(**changes):
    X, sets, _ = laws.table()
    options = {
        "model": build_net("mlp", (laws.D,), laws.C),
        "X": X,
        "candidates": sets,
        "method": "cc",
        "epochs": 1,
    }
    return fit(**{**options, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "podren"}, "method 'podren' is unknown. Did you mean 'proden'"),
        ({"method": METHODS["cc"]}, "expected a Method, such as"),
        ({"epochs": 2.5}, "epochs=2.5: expected a whole number of at least 1"),
        ({"epochs": 0}, "epochs=0: expected a whole number of at least 1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"schedule": "linear"}, "schedule 'linear' is unknown. There are: cosine, onecycle"),
        ({"seed": -1}, "seed=-1"),
        ({"device": "gpu"}, "device 'gpu' cannot be used here"),
        (
            {"model": torch.nn.Linear(laws.D, 1)},
            r"turns 2 inputs into \(2, 1\): expected 4 logits each",
        ),
        (
            {"model": torch.nn.Unflatten(1, (laws.D, 1))},
            r"turns 2 inputs into \(2, 5, 1\): expected a tensor of logits \(2, c\)",
        ),
        ({"test": (laws.table()[0], ["a"] * laws.N)}, "expected 26 class indices"),
        ({"test": (laws.table()[0], [9] * laws.N)}, r"reach from 9 to 9: expected 0\.\.3"),
        ({"test": (laws.table()[0], [0])}, r"of shape \(1,\): expected 26 class indices"),
        ({"truth": corrupt([0, 1], 2, q=0.1)[1]}, "X has 26 rows, but truth has 2"),
    ],
)
def test_wrong_arguments_of_fit_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        fit_table(**changes)


class Returning(torch.nn.Module):
    """A net that packs its logits, as those of some libraries do."""

    def __init__(self, pack):
        super().__init__()
        self.net = torch.nn.Linear(laws.D, laws.C)
        self.pack = pack

    def forward(self, x):
        return self.pack(self.net(x))


class ClassifierOutput(types.SimpleNamespace):
    pass


PACKED = {
    "tuple": (lambda logits: (logits, None), r"returns tuple.*self.model\(x\)\[0\]"),
    "object": (
        lambda logits: ClassifierOutput(logits=logits),
        r"returns ClassifierOutput.*self.model\(x\)\.logits",
    ),
    "dict": (lambda logits: {"logits": logits}, r"returns dict.*self.model\(x\)\[.logits.\]"),
    "nothing": (lambda logits: None, "returns NoneType: expected a tensor of logits"),
}


@pytest.mark.parametrize("name", PACKED)
def test_models_that_return_no_tensor_are_named_with_advice(name):
    """Before any training, and before any prediction."""
    pack, message = PACKED[name]
    model = Returning(pack).train()
    start = model.net.weight.detach().clone()
    with pytest.raises(InputError, match=message):
        fit_table(model=model)
    assert torch.equal(model.net.weight, start)
    assert model.training
    predictor = Predictor(model, np.arange(laws.C), (laws.D,), np.zeros(laws.D), np.ones(laws.D))
    with pytest.raises(InputError, match=message):
        predictor.predict(laws.table()[0])


class Auxiliary(torch.nn.Module):
    """A net that returns auxiliary logits too, in training mode only."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(laws.D, laws.C)

    def forward(self, x):
        return (self.net(x), self.net(x)) if self.training else self.net(x)


@pytest.mark.parametrize("scheme", ["fast", "paper"])
def test_a_model_that_returns_a_tuple_in_training_mode_only_is_named_with_advice(scheme):
    model = Auxiliary()
    advice = r"self\.model\(x\)\[0\] if self\.training else self\.model\(x\)"
    with pytest.raises(InputError, match=rf"returns tuple in training mode.*{advice}"):
        fit_table(model=model, scheme=scheme)
    assert not model._forward_hooks

    class Logits(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x)[0] if self.training else self.model(x)

    wrapped = Logits(model)
    assert len(fit_table(model=wrapped, scheme=scheme).history) == 1
    assert not wrapped._forward_hooks


def test_the_advice_for_packed_logits_works():
    class Logits(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x).logits

    model = Logits(Returning(PACKED["object"][0]))
    assert len(fit_table(model=model).history) == 1


def save_mapped(folder, X):
    np.save(folder / "X.npy", X)
    return np.load(folder / "X.npy", mmap_mode="r")


@pytest.mark.parametrize("kind", ["table", "images"])
def test_a_memory_map_trains_and_predicts_bit_for_bit_as_in_memory(kind, tmp_path):
    X, y = images() if kind == "images" else (laws.table()[0], laws.table()[2])
    source = save_mapped(tmp_path, X)
    shape, net = ((3, 8, 8), "fastconv") if kind == "images" else ((laws.D,), "mlp")
    sets = CandidateSets(y, classes=laws.C)
    fitted = [
        fit(build_net(net, shape, laws.C), data, sets, "proden", epochs=2, test=(data, y))
        for data in (X, source)
    ]
    laws.assert_same(fitted[0].model, fitted[1].model)
    assert [row["loss"] for row in fitted[0].history] == [row["loss"] for row in fitted[1].history]
    assert fitted[0].history[-1]["accuracy"] == fitted[1].history[-1]["accuracy"]
    for rows in (None, np.array([5, 0, 7])):
        expected = fitted[0].predictor.logits(X if rows is None else X[rows])
        for data in (X, source):
            np.testing.assert_array_equal(fitted[1].predictor.logits(data, rows), expected)


def test_rows_of_a_map_train_as_a_copy_of_them(tmp_path):
    X, sets, _ = laws.table()
    source = save_mapped(tmp_path, X)
    mask = np.arange(laws.N) % 3 > 0
    models = [build_net("mlp", (laws.D,), laws.C) for _ in range(2)]
    fit(models[0], X[mask], sets[mask], "ooc", epochs=2)
    fit(models[1], make_views(source, rows=mask), sets[mask], "ooc", epochs=2)
    laws.assert_same(*models)


def test_a_run_on_a_map_resumes_and_refuses_other_rows(tmp_path):
    X, sets, _ = laws.table()
    source = save_mapped(tmp_path, X)

    def train(rows, epochs=2):
        with writing(tmp_path / "run", {}) as run:
            views = make_views(source, rows=rows)
            model = build_net("mlp", (laws.D,), laws.C)
            fit(model, views, sets[:20], "cc", epochs=epochs, run=run)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(np.arange(20))
    with pytest.raises(InputError, match="unfinished run with other settings"):
        train(np.arange(1, 21))
    with pytest.raises(KeyboardInterrupt):
        train(np.arange(20))


def test_fit_takes_names_and_lists():
    assert len(fit_table(candidates=[[0, 1, 2, 3]] * laws.N).history) == 1
    assert find_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ooc", {"rates": (0.1, 0.1)}),
        ("ooc", {"alpha": "1"}),
        ("pico", {"queue_size": 0}),
        ("pico", {"temperature": 0.0}),
        ("crdpll", {"ramp": -1.0}),
        ("lws", {"leverage": -1.0}),
    ],
)
def test_impossible_settings_of_methods_are_refused(name, settings):
    (key,) = settings
    with pytest.raises(InputError, match=f"{key}="):
        METHODS[name](**settings)


def test_auroc_equals_the_naive_count_and_bears_infinities():
    rng = np.random.default_rng(0)
    scores, positive = rng.choice([-np.inf, 0.0, 1.0, 2.0, np.inf], size=60), rng.random(60) < 0.3
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[positive] for b in scores[~positive]]
    assert auroc(scores, positive) == pytest.approx(np.mean(pairs))
    assert auroc(scores, np.zeros(60, dtype=bool)) is None


@pytest.mark.parametrize(("scheme", "views", "extra"), [("fast", 1, 0), ("paper", 2, 1)])
def test_flops_by_hand(scheme, views, extra):
    """A linear model: 2 d c per row forward, as much for the weights' gradient; none for inputs."""
    X, sets, _ = laws.table()
    history = fit(
        build_net("linear", (laws.D,), laws.C), X, sets, laws.make("ooc"), scheme=scheme, epochs=3
    ).history
    row = 2 * laws.D * laws.C
    # No selection before the first epoch
    passes = [views * 2 + (extra if epoch else 0) for epoch in range(3)]
    assert [entry["flops"] for entry in history] == [laws.N * row * n for n in np.cumsum(passes)]


@pytest.mark.parametrize("name", ["proden", "lws", "cavl", "crdpll", "pico", "ooc"])
def test_half_precision_of_large_state_changes_results_little(name, monkeypatch):
    """Beyond 2^28 entries per-example state has half precision; here, beyond none."""
    problem = make_problem(digits(0), q=0.3, tau1=0.2, tau2=0.4, seed=0)
    settings = (
        {"rates": problem.rates, "warmup": 0.3, "open_score": "doubt"} if name == "ooc" else {}
    )
    found = {}
    for limit in (base.HALF_BEYOND, 0):
        monkeypatch.setattr(base, "HALF_BEYOND", limit)
        net = build_net("mlp", (64,), 6)
        fitted = fit(
            net,
            problem.X,
            problem.candidates,
            make_method(name, None, settings),
            epochs=15,
            progress=False,
        )
        found[limit] = fitted
    whole, half = found.values()
    states = [half.method.get_buffer(row) for row in half.method.row_names]
    assert all(state.dtype == torch.float16 for state in states)
    agree = (
        whole.predictor.predict(problem.test[0]) == half.predictor.predict(problem.test[0])
    ).mean()
    assert agree > 0.97
    if name == "ooc":
        assert half.method.average.dtype == torch.float16
        same = np.mean([a == b for a, b in zip(whole.selection, half.selection, strict=True)])
        assert same > 0.97


def test_half_precision_of_large_state_with_estimated_rates(monkeypatch):
    problem = make_problem(digits(0), q=0.3, tau1=0.2, tau2=0.4, seed=0)
    monkeypatch.setattr(base, "HALF_BEYOND", 0)
    method = make_method("ooc", None, {"rates": "auto", "warmup": 3})
    fit(build_net("mlp", (64,), 6), problem.X, problem.candidates, method, epochs=7, progress=False)
    assert method.unseen.dtype == torch.float16
    assert 0 < method.rates.closed + method.rates.open < 1
