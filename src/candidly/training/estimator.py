"""`PartialLabelClassifier`: candidate labels in; a scikit-learn classifier, and the rows it doubts, out."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from candidly.checks import number, one_of, whole
from candidly.errors import InputError
from candidly.kinds import Rates, Selection
from candidly.methods import METHODS, Method
from candidly.methods.base import defaults
from candidly.methods.settings import make_method
from candidly.scores import energy
from candidly.sets import CandidateSets, label_array
from candidly.storage.store import (
    Run,
    read_arrays,
    read_json,
    read_metrics,
    verify,
    write_json,
    writing,
)
from candidly.tensors.nets import build_net
from candidly.tensors.views import make_views
from candidly.training import trainer as train
from candidly.training.predictor import Predictor

if TYPE_CHECKING:
    import pandas as pd

NOTE = "estimator.json"
KEPT = (
    "rates_",
    "reach_",
    "n_features_in_",
    "feature_names_in_",
)  # fitted attributes that the note holds
WARMUP = (
    0.3  # of the training, for `ooc`: its own default, a tenth, is meant for hundreds of epochs
)
STEPS, LONGEST = (
    2000,
    60,
)  # epochs="auto": so many steps, but no more epochs: it would learn wrong sets by heart
FAR = 2.0  # times the distance of any training row: of no known class
PIXEL_BATCH = 32  # of few images, larger batches are too few to learn anything
FOLDS = 5  # of the calibration


class PartialLabelClassifier(ClassifierMixin, BaseEstimator):
    """A scikit-learn classifier that learns from candidate labels, even when the truth is not among them.

    X: a table (n, d), dense, sparse (made dense) or a DataFrame of numbers, which is standardised; or images, uint8
    of shape (n, h, w) or (n, h, w, 1 or 3). y: whatever makes `CandidateSets`, such as lists of labels, "cat|dog"
    strings, a 0/1 matrix, a DataFrame whose columns are the classes; one label a row is a set of one.

    method: one of `METHODS`, whose own settings are further arguments: `PartialLabelClassifier("ooc", alpha=0.5)`, and
        names for `GridSearchCV`: `{"alpha": [0.5, 1]}`. `ooc` warms up for 0.3 of the training unless told.
    preset: of the method's settings; "auto": `robust`, if the method has it.
    rates: `Rates(closed, open)`, or "auto": estimated from the outputs; for `ooc`, and for `audit`.
    net: a name of `tensors.nets.NETS`; "auto": `mlp` for tables, `fastconv` for images; or a function of (shape,
        number of classes) that gives a module.
    scheme, epochs, batch_size, lr, weight_decay: see `training.trainer.SCHEMES`; None is the scheme's own value.
        epochs="auto": the scheme's, or more on few rows: up to 60, or 2,000 steps.
    calibrate: for `predict(X, reject=...)`, so many fifths of the rows (0 to 5) are scored by nets that never saw them;
        each costs 0.8 of a training. With 0 it cannot reject.
    unknown_label: what `predict(X, reject=...)` gives for inputs of no known class.

    Fitted: `classes_`; `selection_`, masks of the normal, closed-set and open-set training rows, and `rates_`, their
    shares (None for methods that do not divide them); `history_`, one row of metrics an epoch; `predictor_`, the net;
    `n_features_in_` and `feature_names_in_` of tables; `known_energies_`, of unseen rows judged normal; `reach_`, the
    distance of the outmost training row of a table.
    """

    classes_: np.ndarray
    predictor_: Predictor
    selection_: Selection | None
    rates_: Rates | None
    history_: list[dict[str, Any]]
    known_energies_: np.ndarray
    reach_: float

    def __init__(
        self,
        method: str = "ooc",
        *,
        preset: str | None = "auto",
        rates: Rates | str = "auto",
        net: str | Callable[..., nn.Module] = "auto",
        scheme: str = "fast",
        epochs: int | str = "auto",
        batch_size: int | None = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        calibrate: int = 1,
        unknown_label: Any = None,
        random_state: Any = None,
        device: str = "auto",
        verbose: bool = False,
        **settings: Any,
    ) -> None:
        self.method = method
        self.preset = preset
        self.rates = rates
        self.net = net
        self.scheme = scheme
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.calibrate = calibrate
        self.unknown_label = unknown_label
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        self._settings = settings

    # ---- parameters

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters, and those settings of the method that were given."""
        return {**super().get_params(deep), **self._settings}

    def set_params(self, **params: Any) -> PartialLabelClassifier:
        """Set parameters and settings of the method by name."""
        own = self._get_param_names()
        super().set_params(**{name: value for name, value in params.items() if name in own})
        settings = {name: value for name, value in params.items() if name not in own}
        self._check_names(settings.keys() - self._settings.keys())
        self._settings = {**self._settings, **settings}
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.three_d_array = True
        return tags

    def _check_names(self, names: Iterable[str]) -> None:
        """Refuse what is neither a parameter of ours nor a setting of the method."""
        for name in names:
            allowed = [
                *self._get_param_names(),
                *defaults(METHODS[one_of(self.method, METHODS, "method")]),
            ]
            one_of(name, allowed, f"parameter of PartialLabelClassifier({self.method!r})")

    def _make_method(self, rates: Any) -> Method:
        cls = METHODS[one_of(self.method, METHODS, "method")]
        self._check_names(self._settings)
        ours = {
            name: value
            for name, value in {"rates": rates, "warmup": WARMUP}.items()
            if name in defaults(cls)
        }
        robust = "robust" if "robust" in cls.PRESETS else None
        return make_method(
            self.method,
            robust if self.preset == "auto" else self.preset,
            {**ours, **self._settings},
        )

    def _make_scheme(self, shape: tuple[int, ...]) -> train.Scheme:
        given = {name: getattr(self, name) for name in ("batch_size", "lr", "weight_decay")}
        if self.batch_size is None and self.scheme == "fast" and len(shape) > 2:
            given["batch_size"] = PIXEL_BATCH
        plan = train.make_scheme(
            self.scheme, **{name: value for name, value in given.items() if value is not None}
        )
        n = shape[0]
        if self.epochs != "auto":
            return train.make_scheme(plan, epochs=self.epochs)
        enough = math.ceil(STEPS * plan.batch_size / max(n, plan.batch_size))
        return train.make_scheme(plan, epochs=max(plan.epochs, min(LONGEST, enough)))

    def _make_net(self, shape: tuple[int, ...], n_classes: int, seed: int) -> nn.Module:
        if isinstance(self.net, str):
            return build_net(self._net_name(shape), shape, n_classes, seed=seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.net(shape, n_classes)

    def _net_name(self, shape: tuple[int, ...]) -> Any:
        return self.net if self.net != "auto" else "fastconv" if len(shape) == 3 else "mlp"

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral):
            return int(whole(self.random_state, "random_state"))
        return int(check_random_state(self.random_state).randint(2**31))

    # ---- fitting

    def fit(self, X: Any, y: Any) -> PartialLabelClassifier:
        """Learn from inputs `X` and their candidate labels `y`."""
        whole(self.calibrate, "calibrate")
        sets, X, seed = read_candidates(y), self._read(X, reset=True), self._seed()
        fitted = self._train(X, sets, seed, self.rates)
        self.classes_, self.predictor_ = sets.classes, fitted.predictor
        self.history_, self.selection_ = fitted.history, fitted.selection
        self.rates_ = fitted.method.rates
        self.known_energies_ = self._calibration(X, sets, seed)
        self.reach_ = float(self._distances(X).max())
        return self

    def _train(
        self, X: np.ndarray, sets: CandidateSets, seed: int, rates: Any, label: str = ""
    ) -> train.Fitted:
        train.check_lengths(len(X), sets, None)
        views = make_views(X, device=train.find_device(self.device))
        net, method = self._make_net(views.shape, sets.n_classes, seed), self._make_method(rates)
        plan, name = self._make_scheme(X.shape), label or self.method
        return train.fit(
            net,
            views,
            sets,
            method,
            scheme=plan,
            seed=seed,
            label=name,
            progress=bool(self.verbose),
        )

    def _unseen(
        self, X: np.ndarray, sets: CandidateSets, seed: int, rates: Any, cv: int, parts: int
    ) -> np.ndarray:
        """Logits of the rows of the first `parts` of `cv` folds by nets that did not see them; NaN for the others."""
        fold, logits = split(sets, cv, seed), np.full(sets.shape, np.nan, dtype=np.float32)
        for part in range(parts):
            mine = fold == part
            fitted = self._train(
                X[~mine], sets[~mine], seed, rates, f"{self.method}, fold {part + 1} of {parts}"
            )
            logits[mine] = fitted.predictor.logits(X[mine])
        return logits

    def _calibration(self, X: np.ndarray, sets: CandidateSets, seed: int) -> np.ndarray:
        """Energies of rows judged normal, largest first; of unseen ones, unless there are too few to set some apart."""
        if not self.calibrate:
            return np.empty(0, dtype=np.float32)
        if len(X) < 2 * FOLDS:
            logits = self.predictor_.logits(X)
        else:
            logits = self._unseen(X, sets, seed, self.rates_, FOLDS, min(self.calibrate, FOLDS))
        normal = np.ones(len(X), dtype=bool) if self.selection_ is None else self.selection_.normal
        return -np.sort(-energy(logits[normal & ~np.isnan(logits[:, 0])]))

    def _read(self, X: Any, *, reset: bool = False) -> np.ndarray:
        """Images as they are; tables checked by scikit-learn, and dense."""
        if getattr(X, "ndim", 2) > 2:
            images = np.asarray(X)
            if images.dtype != np.uint8:
                given = f"X has {images.ndim} dimensions, as images have, and is of {images.dtype}"
                raise InputError(f"{given}: expected uint8, 0 to 255.")
            for name in (
                "n_features_in_",
                "feature_names_in_",
            ):  # of a table that it was fitted to before
                self.__dict__.pop(name, None)
            return images
        with told():
            table = validate_data(self, X, reset=reset, accept_sparse="csr", dtype="numeric")
        return table.toarray() if sparse.issparse(table) else table

    # ---- using

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, c) probabilities of the classes."""
        check_is_fitted(self, "predictor_")
        return self.predictor_.predict_proba(self._read(X))

    def predict(self, X: Any, reject: float | None = None) -> np.ndarray:
        """(n,) labels; with `reject`, inputs that look least like any known class become `unknown_label`.

        reject: the share of the inputs of known classes that may be lost to it, such as 0.05. Inputs are ranked by
        their energy, and compared with training rows judged normal (see `calibrate`). Far away from all training rows
        a net is sure of anything: rows of a table that are FAR times as far out as any of those are unknown, too.
        """
        check_is_fitted(self, "predictor_")
        X = self._read(X)
        logits = self.predictor_.logits(X)
        index = logits.argmax(-1)
        if reject is None:
            return self.classes_[index]
        if self.unknown_label in self.classes_.tolist():
            raise InputError(
                f"unknown_label={self.unknown_label!r} is one of the classes: choose another label."
            )
        doubtful = energy(logits) > self._threshold(number(reject, "reject", 0, 1))
        index[doubtful | (self._distances(X) > FAR * self.reach_)] = len(self.classes_)
        return label_array([*self.classes_.tolist(), self.unknown_label])[index]

    def _distances(self, X: np.ndarray) -> np.ndarray:
        """(n,) how far rows of a table are from the mean of the training rows, in standard deviations; 0 for images."""
        if X.ndim > 2:
            return np.zeros(len(X))
        mean, std = self.predictor_.mean, self.predictor_.std
        blocks = np.array_split(
            X, len(X) // 4096 + 1
        )  # of all rows at once, the differences take much memory
        return np.concatenate([np.linalg.norm((rows - mean) / std, axis=1) for rows in blocks])

    def _threshold(self, reject: float) -> float:
        """The k-th largest known energy, of m: one more row of their kind exceeds it with probability k / (m + 1)."""
        known = self.known_energies_
        if not len(known):
            raise InputError(
                "fitted with calibrate=0, this classifier cannot reject: fit it with calibrate=1 or more."
            )
        return float(
            np.concatenate([[math.inf], known, [-math.inf]])[math.floor(reject * (len(known) + 1))]
        )

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of rows whose predicted label is in the set of `y`: accuracy, if `y` is one true label a row."""
        check_is_fitted(self, "predictor_")
        sets, index = read_candidates(y, self.classes_), self.predict_proba(X).argmax(-1)
        where = {label: i for i, label in enumerate(sets.classes.tolist())}
        predicted = np.array([where.get(label, -1) for label in self.classes_.tolist()])[index]
        return float(np.average(sets.contains(predicted), weights=sample_weight))

    def audit(self, X: Any, candidates: Any, *, cv: int = 5, ids: Any = None) -> pd.DataFrame:
        """`candidly.audit` of these rows, each judged by a net that did not see it; there is no need to `fit` before.

        It costs `cv` trainings: together with `fit`, about cv + 1.
        """
        sets, X = read_candidates(candidates), clone(self)._read(X, reset=True)
        if len(sets) < whole(cv, "cv", 2):
            raise InputError(f"cv={cv}: expected at most {len(sets)}, the number of rows.")
        from candidly.auditing.verdicts import audit

        features = (
            make_views(X).data.numpy() if X.ndim == 2 else None
        )  # standardised: neighbours are evidence too
        logits = self._unseen(X, sets, self._seed(), self.rates, cv, cv)
        return audit(sets, logits=logits, features=features, rates=self.rates, ids=ids)

    # ---- keeping

    def save(self, path: str | Path, *, replace: bool = False) -> None:
        """A folder with all of it, complete or absent, without pickle. `replace`: an earlier one there gives way."""
        check_is_fitted(self, "predictor_")
        with writing(path, {"estimator": type(self).__name__}, replace=replace) as run:
            self.write(run)

    def write(self, run: Run) -> None:
        """Save into a RUN folder that `candidly.storage.store.writing` has opened."""
        shape, groups = self.predictor_.shape, self.selection_
        net = {"name": self._net_name(shape), "shape": list(shape), "n_classes": len(self.classes_)}
        run.save_model(self.predictor_, net if isinstance(self.net, str) else None)
        run.save_arrays(
            known_energies=self.known_energies_, **({} if groups is None else groups._asdict())
        )
        run.write_metrics(self.history_)
        fitted = {name: getattr(self, name) for name in KEPT if hasattr(self, name)}
        write_json(
            run.folder / NOTE,
            {"params": as_json(self.get_params(deep=False)), "fitted": as_json(fitted)},
        )

    @classmethod
    def load(
        cls, path: str | Path, *, net: Callable[..., nn.Module] | None = None, device: str = "auto"
    ) -> PartialLabelClassifier:
        """What `save` wrote. `net`: the function that made the net, if it is none of `NETS`."""
        path = Path(path)
        verify(
            path, NOTE, "arrays.npz", "metrics.jsonl", "model/model.json", "model/model.safetensors"
        )
        note, arrays = read_json(path / NOTE), read_arrays(path)
        made = {} if net is None else {"net": net}
        classifier = cls(**{**from_json(note["params"]), **made, "device": device})
        facts = read_json(path / "model" / "model.json")
        model = None if net is None else net(tuple(facts["shape"]), len(facts["classes"]))
        classifier.predictor_ = Predictor.load(path, model)
        classifier.predictor_.model.to(train.find_device(device))
        classifier.classes_, classifier.history_ = classifier.predictor_.classes, read_metrics(path)
        classifier.known_energies_ = arrays["known_energies"]
        classifier.selection_ = (
            Selection(*map(arrays.get, Selection._fields)) if "normal" in arrays else None
        )
        for name, value in from_json(note["fitted"]).items():
            setattr(
                classifier,
                name,
                np.array(value, dtype=object) if name == "feature_names_in_" else value,
            )
        return classifier


def read_candidates(y: Any, columns: Any = None) -> CandidateSets:
    """Candidate sets from all that `CandidateSets` takes; `columns`: classes of a matrix that does not name them."""
    if y is None:
        message = "PartialLabelClassifier requires y to be passed, but the target y is None"
        raise InputError(f"{message}: pass candidate sets, such as [['cat', 'dog'], ['dog']].")
    if isinstance(y, CandidateSets):
        return y
    ndim = getattr(y, "ndim", 1)
    if ndim == 2 and y.shape[1] == 1 and not sparse.issparse(y):
        text = "A column-vector y was passed when a 1d array was expected: its rows are taken for candidate sets."
        warnings.warn(text, DataConversionWarning, stacklevel=3)
        y, ndim = np.asarray(y)[:, 0], 1
    if ndim == 1 and getattr(y, "dtype", None) is not None:
        refuse_fractions(np.asarray(y))
    return CandidateSets(y, columns if ndim == 2 and not hasattr(y, "columns") else None)


def refuse_fractions(y: np.ndarray) -> None:
    if y.dtype.kind == "f" and (wrong := np.isinf(y) | (np.floor(y) != y) & ~np.isnan(y)).any():
        row = int(wrong.argmax())
        raise InputError(
            f"Unknown label type: row {row} of y is {y[row].item()!r}. Expected classes, named by whole numbers or "
            "strings; to predict quantities take a regressor."
        )


def split(sets: CandidateSets, k: int, seed: int) -> np.ndarray:
    """(n,) number of each row's fold.

    Rows are dealt out in turn, ordered by their rarest candidate and the size of their set: each fold gets its share of
    every class, of the certain rows and of the vague ones.
    """
    rank = (
        np.bincount(sets.indices, minlength=sets.n_classes)
        .argsort(kind="stable")
        .argsort(kind="stable")
    )
    rarest = np.minimum.reduceat(rank[sets.indices], sets.indptr[:-1])
    order = np.lexsort((np.random.default_rng(seed).random(len(sets)), sets.sizes, rarest))
    fold = np.empty(len(sets), dtype=np.int64)
    fold[order] = np.arange(len(sets)) % k
    return fold


@contextmanager
def told() -> Iterator[None]:
    """scikit-learn's complaints about inputs as ours, so that the command line shows them without a traceback."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from error


def as_json(values: dict[str, Any]) -> dict[str, Any]:
    """What JSON can hold of some values; functions and random states are left out."""
    kept = {
        k: v for k, v in values.items() if not (callable(v) or isinstance(v, np.random.RandomState))
    }
    return {
        k: {"rates": dataclasses.astuple(v)} if isinstance(v, Rates) else plain(v)
        for k, v in kept.items()
    }


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def from_json(values: dict[str, Any]) -> dict[str, Any]:
    return {k: Rates(*v["rates"]) if isinstance(v, dict) else v for k, v in values.items()}
