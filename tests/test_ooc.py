"""OOC against the method as docs/method.md states it (`naive.out_of_candidate`), by hand, and against PRODEN."""

from itertools import count

import naive
import numpy as np
import pytest
import torch
from torch import nn

from candidly.bench.oracle import Oracle
from candidly.errors import InputError
from candidly.kinds import Rates, Selection
from candidly.methods.base import Batch
from candidly.methods.ooc import OOC
from candidly.methods.proden import PRODEN
from candidly.sets import CandidateSets
from candidly.training.trainer import fit

N, C, EPOCHS = (
    40,
    4,
    12,
)  # driven by hand, of a training of 80 epochs: its warm-up of 0.1 is 8 epochs
COUNTS = CLOSED, OPEN = 9, 12
RATES = Rates(CLOSED / N, OPEN / N)

PRESETS = {  # the words of docs/method.md, to be compared with those of the source
    "paper": {"recursive": True, "overlap": False, "T": 1.0, "random_from": "candidates"},
    "robust": {"overlap": False, "open_score": "doubt"},
    "gradual": {
        "overlap": False,
        "open_score": "doubt",
        "ramp": 50,
        "eta": 0.5,
        "recursive": True,
        "T": 1.0,
    },
}
ABLATIONS = {
    "w/o LD": {"LD": False},
    "w/o WCE": {"losses": naive.mean},
    "w/o Warm up": {"warmup": 0},
    "w/o RCG": {"RCG": False},
    "w/o RLD": {"RLD": False},
    "discard": {"alpha": 0.0, "beta": 0.0, "overlap": False},
}
OTHERS = [  # settings of OOC, and the same in the words of the naive version
    ({"momentum": 0.0}, {"eta": 0.0}),
    ({"momentum": 1.0}, {"eta": 1.0}),
    ({"momentum": 0.5, "recursive": True}, {"eta": 0.5, "recursive": True}),
    ({"window": 20}, {"window": 20}),
    ({"ramp": 0.04, "warmup": 4}, {"ramp": 3, "warmup": 4}),
    ({"warmup": 1, "window": 1}, {"warmup": 1, "window": 1}),
    ({"losses": "entropy", "overlap": False}, {"losses": naive.entropy, "overlap": False}),
    ({"open_score": "energy"}, {"open_score": "energy"}),
    ({"temperature": 0.25, "alpha": 0.3, "beta": 2.0}, {"T": 0.25, "alpha": 0.3, "beta": 2.0}),
    ({"random_from": "candidates", "beta": 5.0}, {"random_from": "candidates", "beta": 5.0}),
]


@pytest.fixture(autouse=True)
def _double_precision(request):
    """All but the real trainings compute in double precision, so that rankings and losses can be compared closely."""
    torch.set_default_dtype(
        torch.float32 if "single_precision" in request.fixturenames else torch.float64
    )
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def single_precision():
    """As users train."""


class Script(nn.Module):
    """A model that answers as it is told: its input is (view, row), and the epoch is set from outside."""

    def __init__(self, logits):
        super().__init__()
        self.logits, self.epoch = (
            nn.Parameter(torch.tensor(logits)),
            0,
        )  # (epochs, views, rows, classes)

    def forward(self, x):
        return self.logits[self.epoch, x[:, 0], x[:, 1]]


class Story:
    """Everything that a training depends on, made up: candidates, outputs, batches and random numbers."""

    def __init__(self, views=2, seed=0):
        rng = np.random.default_rng(seed)
        self.cand = rng.random((N, C)) < 0.4
        self.cand[np.arange(N), rng.integers(C, size=N)] = True
        self.cand[self.cand.all(1), 0] = False
        self.cand[[3, 17]] = True  # two full sets, of which the model is sure
        drift = rng.normal(scale=2.0, size=(N, C))
        self.plain = drift + rng.normal(scale=1.5, size=(EPOCHS, N, C))
        self.plain[:, [3, 17], 0] += 12
        self.logits = rng.normal(scale=2.0, size=(EPOCHS, views, N, C))
        self.batches = [np.array_split(rng.permutation(N), [15, 30]) for _ in range(EPOCHS)]
        self.uniforms = rng.random((EPOCHS, N, C))
        self.model = Script(self.logits)

    def batch(self, epoch, rows):
        numbers = iter(
            [torch.tensor(self.uniforms[epoch][rows])]
        )  # one draw: a second one would fail

        def uniform(width):
            assert width == C
            return next(numbers)

        views = tuple(torch.tensor([(v, i) for i in rows]) for v in range(self.logits.shape[1]))
        return Batch(
            index=torch.tensor(rows),
            views=views,
            candidates=torch.tensor(self.cand[rows]),
            uniform=uniform,
        )

    def tell(self, method, epochs=range(EPOCHS), predict_all=None):
        """Drive a method as the trainer does: yields (losses of each batch, gradient by the logits) of each epoch."""
        for epoch in epochs:
            self.model.epoch, self.model.logits.grad = epoch, None
            method.epoch_start(epoch, predict_all or (lambda e=epoch: torch.tensor(self.plain[e])))
            losses = [
                method.loss(self.model, self.batch(epoch, rows)) for rows in self.batches[epoch]
            ]
            torch.cat(losses).sum().backward()
            yield losses, self.model.logits.grad[epoch]

    def naive(self, **settings):
        parts = (self.cand, self.plain, self.logits, self.batches, self.uniforms)
        return naive.out_of_candidate(
            *(part.tolist() if hasattr(part, "tolist") else part for part in parts),
            COUNTS,
            **settings,
        )

    def gradient(self, epoch, targets):
        """Of the sum of losses, the targets being constants: (sum(t) p - t) / views."""
        t, views = np.array([targets[i] for i in range(N)]), self.logits[epoch]
        p = np.exp(views) / np.exp(views).sum(-1, keepdims=True)
        return (t.sum(-1, keepdims=True) * p - t) / len(views)


def started(method, story, epochs=80):
    method.epochs = epochs
    method.setup(story.model, torch.tensor(story.cand), torch.Generator())
    return method


def groups(selection):
    return tuple(set(np.flatnonzero(mask).tolist()) for mask in selection)


def agree(method, story, **settings):
    """Losses, gradients, confidences, averages and selections of all epochs are those of the naive version."""
    told = story.tell(started(method, story))
    warmup = settings.get("warmup", naive.AUTHORS["warmup"])
    for epoch, got, expected in zip(count(), told, story.naive(**settings), strict=False):
        average, selection, losses, targets, confidence = expected
        for a, b in zip(got[0], losses, strict=True):
            np.testing.assert_allclose(a.detach(), b, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(got[1], story.gradient(epoch, targets), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(method.confidence, confidence, rtol=1e-9)
        if not settings.get("LD", True):
            assert method.selection is None
            continue
        if epoch >= warmup and "told" not in settings:
            np.testing.assert_allclose(method.average, average, rtol=1e-9)
        if epoch > 0 or warmup == 0:  # before a warm-up there is nothing to select by
            assert groups(method.selection) == selection
    assert epoch == EPOCHS - 1


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_presets_are_the_methods_of_the_page(preset, views):
    agree(OOC(rates=RATES, **OOC.PRESETS.get(preset, {})), Story(views), **PRESETS.get(preset, {}))


@pytest.mark.parametrize("preset", [None, "paper"])
@pytest.mark.parametrize("name", ABLATIONS)
def test_ablations_are_those_of_the_page(name, preset):
    ours = {**OOC.PRESETS.get(preset, {}), **OOC.ABLATIONS[name]}
    agree(OOC(rates=RATES, **ours), Story(seed=1), **{**PRESETS.get(preset, {}), **ABLATIONS[name]})


@pytest.mark.parametrize(("ours", "pages"), OTHERS, ids=lambda s: " ".join(map(str, s)))
def test_other_settings_agree_too(ours, pages):
    agree(OOC(rates=RATES, **ours), Story(seed=2), **pages)


def test_there_are_no_other_presets_and_ablations():
    assert set(OOC.PRESETS) == set(PRESETS)
    assert set(OOC.ABLATIONS) == set(ABLATIONS)


def test_the_story_visits_every_case():
    """The comparison above is worth something only if each rule has examples."""
    story = Story()
    *_, (_, (normal, closed, opened), *_) = story.naive()
    full = {3, 17}
    assert full <= normal - opened
    assert normal & opened
    assert closed & opened
    assert set(range(N)) - normal - closed - opened
    recursive, robust, mean = (
        [*story.naive(**s)][-1][1]
        for s in (PRESETS["paper"], PRESETS["robust"], ABLATIONS["w/o WCE"])
    )
    assert len({*map(str, (recursive, robust, mean, (normal, closed, opened)))}) == 4
    assert any(
        min(u[y]) >= 0.5 for u, y in zip(story.uniforms[-1], story.cand, strict=True)
    )  # nothing drawn


def test_without_label_disambiguation_nothing_is_evaluated():
    story = Story()
    method = started(OOC(rates=RATES, **OOC.ABLATIONS["w/o LD"]), story)
    for _ in story.tell(
        method, predict_all=lambda: pytest.fail("evaluated for an unused selection")
    ):
        assert method.selection is None


def test_the_confidence_rests_after_the_warm_up():
    story = Story()
    method = started(OOC(rates=RATES), story)
    kept = [method.confidence.clone() for _ in story.tell(method)]
    assert not torch.equal(kept[6], kept[7])
    assert all(torch.equal(kept[7], later) for later in kept[8:])


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_a_method_goes_on_from_its_state(preset):
    story, settings = Story(), OOC.PRESETS.get(preset, {})
    first, second = (started(OOC(rates=RATES, **settings), story) for _ in range(2))
    *_, (whole, _) = story.tell(first)
    stopped = started(OOC(rates=RATES, **settings), story)
    list(story.tell(stopped, range(10)))
    second.load_state_dict(stopped.state_dict())
    *_, (resumed, _) = story.tell(second, range(10, EPOCHS))
    assert torch.equal(torch.cat(whole), torch.cat(resumed))


# By hand: four examples, four classes. In brackets the candidates.
#   row 0 [0 1]  p = .7  .1  .1  .1    margin  ln(.7/.1) =  1.95   surprise -ln(.7 * .1)   = 2.66
#   row 1 [0]    p = .1  .7  .1  .1    margin  ln(.1/.7) = -1.95   surprise -ln(.1 * .7)   = 2.66
#   row 2 [0 1]  p = .25 .25 .25 .25   margin  0                   surprise -ln(.25 * .25) = 2.77
#   row 3 [0 1]  p = .3  .1  .4  .2    margin  ln(.3/.4) = -0.29   surprise -ln(.3 * .4)   = 2.12
PROBS = [[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.25] * 4, [0.3, 0.1, 0.4, 0.2]]
BY_HAND = {
    # One closed, one open, two normal. Authors: normal 0 and 2, closed 1, open 2, and 3 in no set. T = 1/2: squares.
    #   row 0: targets .49, .01 over .50:        .98 * -ln .7 + .02 * -ln .1                       = 0.395593
    #   row 1: .49, .01, .01 over .51:           (.49 * -ln .7 + .02 * -ln .1) / .51               = 0.432985
    #   row 2: halves on {0, 1}, and on {1, 3}, drawn as .4 and .1 are below 1/2: 1.1 * (ln 4 + ln 4) = 3.049848
    None: ({0, 2}, {1}, {2}, [0.395593, 0.432985, 3.049848, 0.0], 0.969607),
    # Paper: open 2, then closed 1, the rest normal. T = 1.
    #   row 0: .7, .1 over .8:                   (.7 * -ln .7 + .1 * -ln .1) / .8                  = 0.599914
    #   row 1: .7, .1, .1 over .9:               (.7 * -ln .7 + .2 * -ln .1) / .9                  = 0.789100
    #   row 2: {1}, the one candidate drawn:     .1 * ln 4                                         = 0.138629
    #   row 3: .3, .1 over .4:                   .75 * -ln .3 + .25 * -ln .1                       = 1.478626
    "paper": ({0, 3}, {1}, {2}, [0.599914, 0.789100, 0.138629, 1.478626], 0.751567),
}


def four_examples(method, cand=((0, 1), (0,), (0, 1), (0, 1))):
    """Losses of the table above in the first epoch, without warm-up."""
    logits, mask = (
        torch.tensor(PROBS).log(),
        torch.tensor([[j in row for j in range(4)] for row in cand]),
    )
    model = nn.Identity()
    method.setup(model, mask, torch.Generator())
    method.epoch_start(0, lambda: logits)
    uniform = torch.tensor([[0.6, 0.4, 0.9, 0.1]] * 4)
    return method.loss(
        model,
        Batch(index=torch.arange(4), views=(logits,), candidates=mask, uniform=lambda _: uniform),
    )


@pytest.mark.parametrize("preset", BY_HAND)
def test_total_loss_by_hand(preset):
    *expected, losses, total = BY_HAND[preset]
    method = OOC(rates=Rates(0.25, 0.25), warmup=0, **OOC.PRESETS.get(preset, {}))
    got = four_examples(method)
    assert groups(method.selection) == tuple(expected)
    assert got.tolist() == pytest.approx(losses, abs=1e-6)
    assert got.mean().item() == pytest.approx(total, abs=1e-6)


def test_a_full_set_has_no_reversed_target():
    losses = four_examples(
        OOC(rates=Rates(1.0, 0.0), warmup=0), cand=((0, 1, 2, 3), (0,), (0, 1), (0, 1))
    )
    assert losses[0] == 0
    assert (losses[1:] > 0).all()


@pytest.mark.parametrize("preset", [None, "paper"])
def test_a_full_set_is_normal_however_flat_its_output(preset):
    method = OOC(rates=Rates(0.25, 0.25), warmup=0, **OOC.PRESETS.get(preset, {}))
    four_examples(method, cand=((0, 1), (0,), (0, 1, 2, 3), (0, 1)))
    assert method.selection.normal[2]
    assert not method.selection.open[2]


def test_a_full_set_is_normal_by_surprise_but_may_be_open_by_confidence():
    """Not always normal: a row of no known class may have a full set, and its flat output shows it."""
    for preset, group in (("paper", "normal"), ("robust", "open")):
        method = OOC(rates=Rates(0.25, 0.25), warmup=0, **OOC.PRESETS[preset])
        four_examples(method, cand=((0, 1), (0,), (0, 1, 2, 3), (0, 1)))
        assert getattr(method.selection, group)[2]


@pytest.mark.parametrize(
    ("name", "value"),
    [("warmup", -3), ("temperature", 0.0), ("alpha", -1.0), ("beta", float("nan"))],
)
def test_impossible_numbers_are_refused(name, value):
    with pytest.raises(InputError, match=f"{name}={value}: expected a number of at least"):
        OOC(**{name: value})


def small_table():
    rng = np.random.default_rng(0)
    cand = rng.random((70, 5)) < 0.4
    cand[np.arange(70), rng.integers(5, size=70)] = True
    return rng.normal(size=(70, 6)).astype(np.float32), CandidateSets(cand)


def trained(method, scheme, epochs=4):
    """State after a real training; batch norm and dropout would show any pass or draw too many."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 5)
    )
    X, cand = small_table()
    fitted = fit(
        model,
        X,
        cand,
        method,
        scheme=scheme,
        seed=3,
        device="cpu",
        epochs=epochs,
        batch_size=16,
        progress=False,
    )
    return {**fitted.model.state_dict(), "confidence": method.confidence}, [
        row["loss"] for row in fitted.history
    ]


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize("scheme", ["fast", "paper"])
@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_the_warm_up_is_proden_bit_for_bit(scheme, preset):
    state, losses = trained(PRODEN(), scheme)
    settings = {"rates": Rates(0.2, 0.3), **OOC.PRESETS.get(preset, {})}
    warm = OOC(warmup=4, **settings)
    warm_state, warm_losses = trained(warm, scheme)
    assert warm_losses == losses
    assert all(torch.equal(state[name], warm_state[name]) for name in state)
    assert warm.selection is not None  # it was evaluated and selected from, without a trace
    shorter_state, shorter_losses = trained(OOC(warmup=3, **settings), scheme)
    assert shorter_losses[:3] == losses[:3]
    assert not torch.equal(shorter_state["4.weight"], state["4.weight"])


@pytest.mark.parametrize(
    ("warmup", "epochs", "expected"),
    [
        (0.1, 300, 30),
        (30, 300, 30),
        (50, 300, 50),
        (0.1, 20, 2),
        (0.5, 7, 4),
        (1, 300, 1),
        (0, 300, 0),
        (400, 300, 400),
    ],
)
def test_a_warm_up_below_one_is_a_share_of_the_training(warmup, epochs, expected):
    story = Story()
    method = started(OOC(warmup=warmup), story, epochs)
    warming = []
    for epoch in range(epochs):
        method.epoch_start(epoch, lambda: torch.zeros(N, C))
        warming.append(method.warming)
    assert warming == [epoch < expected for epoch in range(epochs)]


@pytest.mark.parametrize("overlap", [True, False])
def test_sizes_follow_the_rates(overlap):
    story = Story()
    method = started(OOC(rates=Rates.from_tau(0.2, 0.4), warmup=0, overlap=overlap), story)
    method.epoch_start(0, lambda: torch.tensor(story.plain[0]))
    assert [int(mask.sum()) for mask in method.selection] == [
        40 - 6 - 11,
        6,
        11,
    ]  # 40/7 = 5.7 and 80/7 = 11.4


def test_without_rates_all_examples_are_normal():
    story = Story()
    method = started(OOC(warmup=0), story)
    method.epoch_start(0, lambda: torch.tensor(story.plain[0]))
    assert [int(mask.sum()) for mask in method.selection] == [N, 0, 0]


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("losses", ["wooden", "mean", "entropy"]),
        ("open_score", ["surprise", "doubt", "energy"]),
        ("random_from", ["all", "candidates"]),
    ],
)
def test_a_bad_choice_is_refused_with_the_good_ones(name, choices):
    with pytest.raises(
        InputError, match=f"^{name} 'wodden' is unknown.*There are: {', '.join(choices)}"
    ):
        OOC(**{name: "wodden"})
    for choice in choices:
        OOC(**{name: choice})


TOLD = (
    set(range(0, 40, 2)) - {8},
    {1, 5, 9, 21},
    {3, 8, 13, 17, 20},
)  # as no ranking would; 20 twice, 7 nowhere


@pytest.mark.parametrize("preset", [None, "paper"])
@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_the_oracle_trains_with_the_selection_it_is_told(make, preset):
    masks = Selection(*(make([i in group for i in range(N)]) for group in TOLD))
    agree(
        Oracle(masks, rates=RATES, **OOC.PRESETS.get(preset, {})),
        Story(),
        told=TOLD,
        **PRESETS.get(preset, {}),
    )


def test_the_oracle_needs_no_outputs():
    masks = Selection(*(np.isin(np.arange(N), list(group)) for group in TOLD))
    story = Story()
    oracle = started(Oracle(masks), story)
    for losses, _ in story.tell(oracle, predict_all=lambda: pytest.fail("evaluated")):
        assert groups(oracle.selection) == TOLD
        assert torch.cat(losses).isfinite().all()
