"""`PartialLabelClassifier`: candidate labels in; a classifier, and an audit of the rows, out."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from candidly.answers import Answers
from candidly.auditing.evidence import gold_labels, read_answers, read_gold
from candidly.auditing.verdicts import Audit
from candidly.blocks import row_blocks
from candidly.checks import number, one_of, whole
from candidly.console.progress import bar
from candidly.errors import InputError
from candidly.kinds import Rates, Selection
from candidly.labels import label_array
from candidly.methods import METHODS, Method
from candidly.methods.base import defaults
from candidly.methods.settings import AUTO, choose_method, make_method
from candidly.methods.twins import check_rates
from candidly.scores import energy
from candidly.sets import CandidateSets
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
MODEL_FILES = ("model/model.json", "model/model.safetensors")
# Fitted attributes that the note holds.
SAVED_ATTRIBUTES = ("method_", "rates_", "reach_", "n_features_in_", "feature_names_in_")
# Warm-up as a share of the training: a tenth, the default of `ooc`, is for hundreds of epochs.
WARMUP = 0.3
# epochs="auto" trains this many steps, but no longer than this many epochs: a longer training
# learns wrong sets by heart.
STEPS = 2000
MAX_EPOCHS = 60
FAR = 2.0  # times the distance of any training row: beyond it a row is of no known class
PIXEL_BATCH = 32  # with few images, larger batches give too few steps
CALIBRATION_FOLDS = 5


class Labels(NamedTuple):
    """What is known of the truth of n rows, and the method that learns from it.

    Attributes
    ----------
    sets : CandidateSets
    answers : Answers or None
        Over the classes of the sets.
    gold : int array of shape (n,) or None
        Class indices; -1 for none of the classes, -2 for unknown.
    method : str
        A name of `METHODS`.
    """

    sets: CandidateSets
    answers: Answers | None
    gold: NDArray[np.int64] | None
    method: str

    def take(self, rows: NDArray[np.bool_]) -> Labels:
        """Give what is known of some rows.

        Parameters
        ----------
        rows : bool array of shape (n,)

        Returns
        -------
        Labels
        """
        answers = None if self.answers is None else self.answers[rows]
        gold = None if self.gold is None else self.gold[rows]
        return Labels(self.sets[rows], answers, gold, self.method)


class PartialLabelClassifier(ClassifierMixin, BaseEstimator):
    """Classifier that learns from candidate labels, even when the truth is not among them.

    It follows scikit-learn's conventions.

    Parameters
    ----------
    method : str, default="auto"
        One of `candidly.methods.METHODS`; "auto" is `candid`. Its own settings are further
        arguments, as in ``PartialLabelClassifier("ooc", alpha=0.5)``, and parameter names for
        `GridSearchCV`. `ooc` and `posterior` warm up for 0.3 of the training unless `warmup` is
        given.
    preset : str or None, default="auto"
        Preset of the method's settings. "auto" is `robust`, if the method has it.
    rates : Rates or "auto", default="auto"
        Shares of closed and open rows, for methods that use them and for `audit`. "auto"
        estimates them from outputs.
    net : str or callable, default="auto"
        A name of `candidly.tensors.nets.NETS`, or a function of (shape, number of classes) that
        returns a module. "auto" is `mlp` for tables and `fastconv` for images.
    scheme : str, default="fast"
        A name of `candidly.training.trainer.SCHEMES`.
    epochs : int or "auto", default="auto"
        "auto" is the scheme's number, or more with few rows: up to 60 epochs or 2,000 steps.
    batch_size, lr, weight_decay : optional
        None is the scheme's own value; for images the batch size is 32.
    calibrate : int, default=1
        For ``predict(X, reject=...)``, this many fifths of the rows (0 to 5) are scored by nets
        that did not see them. Each costs 0.8 of a training. With 0 the classifier cannot reject.
    unknown_label : optional
        What ``predict(X, reject=...)`` gives for inputs of no known class.
    random_state : int, RandomState or None
        Decides folds and training.
    device : str, default="auto"
        Such as "cpu" or "cuda:1"; "auto" takes a GPU if there is one.
    verbose : bool or None, default=False
        Show progress. None shows a bar on a terminal, and otherwise a line now and then.
    **settings
        Settings of the method.

    Attributes
    ----------
    classes_ : ndarray of shape (c,)
        The class labels.
    method_ : str
        Name of the method that was used.
    selection_ : Selection or None
        Masks of the normal, closed and open training rows; None for methods that select none.
    rates_ : Rates or None
        The shares in use; None for methods that know none.
    history_ : list of dict
        One row of metrics per epoch.
    predictor_ : Predictor
        The net with its normalisation and class list.
    known_energies_ : ndarray
        Energies of unseen rows that were judged normal, largest first.
    reach_ : float
        Distance of the outermost training row of a table.
    n_features_in_, feature_names_in_
        Of tables, as in scikit-learn.

    Notes
    -----
    `X` is a table (n, d), dense, sparse or a DataFrame of numbers, which is standardised; or
    images, uint8 of shape (n, h, w) or (n, h, w, 1 or 3). `y` is whatever makes `CandidateSets`:
    lists of labels, "cat|dog" strings, a 0/1 matrix, a DataFrame whose columns are the classes.
    One label per row is a set of one. It may also be `Answers`: who answered what.

    Examples
    --------
    >>> import numpy as np
    >>> from candidly import PartialLabelClassifier
    >>> X = np.repeat([[0.0, 0.0], [4.0, 4.0]], 50, axis=0)
    >>> y = [["a"], ["a", "b"]] * 25 + [["b"], ["a", "b"]] * 25
    >>> model = PartialLabelClassifier("proden", epochs=5, random_state=0).fit(X, y)
    >>> model.predict([[0.0, 0.0], [4.0, 4.0]]).tolist()
    ['a', 'b']
    """

    classes_: np.ndarray
    method_: str
    predictor_: Predictor
    selection_: Selection | None
    rates_: Rates | None
    history_: list[dict[str, Any]]
    known_energies_: np.ndarray
    reach_: float

    def __init__(
        self,
        method: str = AUTO,
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
        verbose: bool | None = False,
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
        """Return all parameters, and those settings of the method that were given.

        Parameters
        ----------
        deep : bool, default=True
            As in scikit-learn.

        Returns
        -------
        dict
        """
        return {**super().get_params(deep), **self._settings}

    def set_params(self, **params: Any) -> PartialLabelClassifier:
        """Set parameters, and settings of the method.

        Parameters
        ----------
        **params
            Values by name.

        Returns
        -------
        PartialLabelClassifier
            Itself.
        """
        own = self._get_param_names()
        super().set_params(**{name: value for name, value in params.items() if name in own})
        settings = {name: value for name, value in params.items() if name not in own}
        if new := settings.keys() - self._settings.keys():
            self._check_names(new, self.method)
        self._settings = {**self._settings, **settings}
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.three_d_array = True
        return tags

    def _check_names(self, names: Iterable[str], method: str) -> None:
        """Refuse what is neither a parameter of ours nor a setting of the method."""
        settings = defaults(METHODS[choose_method(method)])
        for name in names:
            allowed = [*self._get_param_names(), *settings]
            one_of(name, allowed, f"parameter of PartialLabelClassifier({method!r})")

    def _make_method(self, rates: Any, name: str) -> Method:
        cls = METHODS[name]
        self._check_names(self._settings, name)
        check_rates(self.rates)
        ours = {"rates": rates, "warmup": WARMUP}
        known = {name: value for name, value in ours.items() if name in defaults(cls)}
        preset = self.preset
        if preset == "auto":
            preset = "robust" if "robust" in cls.PRESETS else None
        return make_method(name, preset, {**known, **self._settings})

    def _make_scheme(self, shape: tuple[int, ...]) -> train.Scheme:
        given = {name: getattr(self, name) for name in ("batch_size", "lr", "weight_decay")}
        if self.batch_size is None and self.scheme == "fast" and len(shape) > 2:
            given["batch_size"] = PIXEL_BATCH
        changes = {name: value for name, value in given.items() if value is not None}
        plan = train.make_scheme(self.scheme, **changes)
        if self.epochs != "auto":
            return train.make_scheme(plan, epochs=self.epochs)
        enough = math.ceil(STEPS * plan.batch_size / max(shape[0], plan.batch_size))
        return train.make_scheme(plan, epochs=max(plan.epochs, min(MAX_EPOCHS, enough)))

    def _make_net(self, shape: tuple[int, ...], n_classes: int, seed: int) -> nn.Module:
        if isinstance(self.net, str):
            return build_net(self._net_name(shape), shape, n_classes, seed=seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.net(shape, n_classes)

    def _net_name(self, shape: tuple[int, ...]) -> Any:
        if self.net != "auto":
            return self.net
        return "fastconv" if len(shape) == 3 else "mlp"

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral):
            return int(whole(self.random_state, "random_state"))
        return int(check_random_state(self.random_state).randint(2**31))

    # ---- fitting

    def fit(
        self, X: Any, y: Any, *, answers: Any = None, gold: Any = None
    ) -> PartialLabelClassifier:
        """Learn from inputs `X` and their candidate labels `y`.

        Parameters
        ----------
        X : array of shape (n, d), or images
            See the notes of the class.
        y : Answers, CandidateSets or whatever makes one
            The candidate labels of each row; of Answers, the union of the answers to it.
        answers : Answers, optional
            Who answered what, if `y` holds the candidate sets.
        gold : sequence of length n, optional
            The truth where it is certain: a class label, or "none of the classes"; None or NaN
            elsewhere. `candid` and `posterior` learn from it, and so does the audit.

        Returns
        -------
        PartialLabelClassifier
            The fitted classifier itself.
        """
        whole(self.calibrate, "calibrate")
        labels = self._labels(y, answers, gold)
        table = self._read(X, reset=True)
        seed = self._seed()
        self._fit(table, labels, seed)
        self.known_energies_ = self._known_energies(self._calibration_logits(table, labels, seed))
        return self

    def fit_audit(
        self,
        X: Any,
        y: Any,
        *,
        cv: int = 5,
        ids: Any = None,
        answers: Any = None,
        gold: Any = None,
    ) -> Audit:
        """Fit to all rows, and audit each row by a net that did not see it.

        The nets of the audit also calibrate ``predict(X, reject=...)``. It costs cv + 1 trainings.

        Parameters
        ----------
        X, y
            As for `fit`.
        cv : int, default=5
            Number of folds.
        ids : sequence, optional
            Names of the rows in the audit.
        answers, gold
            As for `fit`.

        Returns
        -------
        Audit
            Its `table` is what `audit` returns.
        """
        labels = self._labels(y, answers, gold)
        table = self._read(X, reset=True)
        train.check_lengths(len(table), labels.sets, None)
        check_folds(cv, len(labels.sets))
        features = self._neighbour_features(X, table)
        seed = self._seed()
        with bar(cv + 1, "training", shown=self.verbose) as advance:
            logits = self._unseen(table, labels, seed, self.rates, cv, cv, advance)
            self._fit(table, labels, seed)
            advance("all rows")
        self.known_energies_ = self._known_energies(logits)
        return self._judge(labels, logits, features, ids)

    def audit(
        self,
        X: Any,
        candidates: Any,
        *,
        cv: int = 5,
        ids: Any = None,
        answers: Any = None,
        gold: Any = None,
    ) -> pd.DataFrame:
        """Audit rows, each by a net that did not see it. Needs no `fit`, and costs `cv` trainings.

        Parameters
        ----------
        X, candidates
            As `X` and `y` of `fit`.
        cv : int, default=5
            Number of folds.
        ids : sequence, optional
            Names of the rows.
        answers, gold
            As for `fit`.

        Returns
        -------
        pandas.DataFrame
            As `candidly.audit` returns it.
        """
        labels = self._labels(candidates, answers, gold)
        table = clone(self)._read(X, reset=True)
        train.check_lengths(len(table), labels.sets, None)
        check_folds(cv, len(labels.sets))
        features = self._neighbour_features(X, table)
        logits = self._unseen(table, labels, self._seed(), self.rates, cv, cv)
        return self._judge(labels, logits, features, ids).table

    def _labels(self, y: Any, answers: Any, gold: Any) -> Labels:
        """Read what is known of the truth, and choose the method."""
        given = y if isinstance(y, Answers) else read_candidates(y)
        sets, answers = read_answers(given, answers)
        certain = None if gold is None else read_gold(gold, sets.classes, len(sets))
        return Labels(sets, answers, certain, choose_method(self.method))

    def _judge(self, labels: Labels, logits: np.ndarray, features: Any, ids: Any) -> Audit:
        """Audit rows by logits of nets that did not see them."""
        return Audit(
            labels.sets,
            logits=logits,
            features=features,
            answers=labels.answers,
            gold=gold_labels(labels.gold, labels.sets.classes),
            rates=self.rates,
            ids=ids,
        )

    def _fit(self, X: np.ndarray, labels: Labels, seed: int) -> None:
        """Train on all rows."""
        fitted = self._train(X, labels, seed, self.rates)
        self.method_ = labels.method
        self.classes_ = labels.sets.classes
        self.predictor_ = fitted.predictor
        self.history_ = fitted.history
        self.selection_ = fitted.selection
        self.rates_ = fitted.method.rates
        self.reach_ = float(self._distances(X).max())

    def _train(
        self,
        X: np.ndarray,
        labels: Labels,
        seed: int,
        rates: Any,
        title: str = "",
        rows: np.ndarray | None = None,
    ) -> train.Fitted:
        """Train on all rows, or on those of a mask, which are not copied if X is a memory map."""
        views = make_views(X, rows=rows, device=train.find_device(self.device))
        train.check_lengths(len(views), labels.sets, None)
        return train.fit(
            self._make_net(views.shape, labels.sets.n_classes, seed),
            views,
            labels.sets,
            self._make_method(rates, labels.method),
            answers=labels.answers,
            gold=labels.gold,
            scheme=self._make_scheme((len(views), *X.shape[1:])),
            seed=seed,
            label=title or labels.method,
            progress=self.verbose,
        )

    def _unseen(
        self,
        X: np.ndarray,
        labels: Labels,
        seed: int,
        rates: Any,
        cv: int,
        parts: int,
        advance: Callable[[str], None] = lambda note: None,
    ) -> np.ndarray:
        """Logits of the first `parts` of `cv` folds by nets that did not see them, else NaN."""
        fold = split(labels.sets, cv, seed)
        logits = np.full(labels.sets.shape, np.nan, dtype=np.float32)
        for part in range(parts):
            title = f"{labels.method}, fold {part + 1} of {parts}"
            held_out = fold == part
            fitted = self._train(X, labels.take(~held_out), seed, rates, title, rows=~held_out)
            logits[held_out] = fitted.predictor.logits(X, rows=held_out)
            advance(f"{part + 1} of {parts} folds")
        return logits

    def _neighbour_features(self, X: Any, table: np.ndarray) -> Any:
        """The standardised table, in which near rows are evidence; None where nearness says little.

        Sparse tables count words, as a rule, and near in words is not near in meaning. Nor are
        pixels.
        """
        if table.ndim > 2 or sparse.issparse(X):
            return None
        rows = make_views(table).data
        return rows.numpy() if isinstance(rows, torch.Tensor) else rows

    def _calibration_logits(self, X: np.ndarray, labels: Labels, seed: int) -> np.ndarray:
        """Logits of unseen rows, NaN for the others; of all rows if there are too few to split."""
        if not self.calibrate:
            return np.full(labels.sets.shape, np.nan, dtype=np.float32)
        if len(X) < 2 * CALIBRATION_FOLDS:
            return self.predictor_.logits(X)
        parts = min(self.calibrate, CALIBRATION_FOLDS)
        return self._unseen(X, labels, seed, self.rates_, CALIBRATION_FOLDS, parts)

    def _known_energies(self, logits: np.ndarray) -> np.ndarray:
        """Energies of the rows judged normal, largest first; rows of NaN are left out."""
        usable = ~np.isnan(logits[:, 0])
        if self.selection_ is not None:
            usable &= self.selection_.normal
        return -np.sort(-energy(logits[usable]))

    def _read(self, X: Any, *, reset: bool = False) -> np.ndarray:
        """Return images as they are, and tables dense, checked by scikit-learn."""
        if getattr(X, "ndim", 2) > 2:
            images = np.asarray(X)
            if images.dtype != np.uint8:
                raise InputError(
                    f"X has {images.ndim} dimensions, as images have, but is {images.dtype}: "
                    "expected uint8, 0 to 255, or a table (n, d)."
                )
            for name in ("n_features_in_", "feature_names_in_"):  # of an earlier table
                self.__dict__.pop(name, None)
            return images
        with _input_errors():
            table = validate_data(self, X, reset=reset, accept_sparse="csr", dtype="numeric")
        return table.toarray() if sparse.issparse(table) else table

    # ---- using

    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict probabilities.

        Parameters
        ----------
        X : array of shape (n, d), or images

        Returns
        -------
        ndarray of shape (n, c)
            In the order of `classes_`.
        """
        check_is_fitted(self, "predictor_")
        return self.predictor_.predict_proba(self._read(X))

    def predict(self, X: Any, reject: float | None = None) -> np.ndarray:
        """Predict labels.

        Parameters
        ----------
        X : array of shape (n, d), or images
        reject : float, optional
            Give inputs that look least like any known class the label `unknown_label`. About this
            share of the inputs of known classes is rejected too, such as 0.05.

        Returns
        -------
        ndarray of shape (n,)

        Notes
        -----
        Inputs are ranked by their energy, and compared with training rows judged normal (see
        `calibrate`). Far from all training rows a net is sure of anything: rows of a table that are
        FAR times as far out as any training row are rejected too.
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
        """(n,) distances of rows from the training mean, in standard deviations; 0 for images."""
        if X.ndim > 2:
            return np.zeros(len(X))
        mean, std = self.predictor_.mean, self.predictor_.std
        distances = [
            np.linalg.norm((X[rows] - mean) / std, axis=1) for rows in row_blocks(*X.shape)
        ]
        return np.concatenate(distances)

    def _threshold(self, reject: float) -> float:
        """The k-th largest of m known energies: another exceeds it with probability k / (m + 1)."""
        known = self.known_energies_
        if not len(known):
            raise InputError(
                "fitted with calibrate=0, this classifier cannot reject: fit it with calibrate=1 "
                "or more."
            )
        thresholds = np.concatenate([[math.inf], known, [-math.inf]])
        return float(thresholds[math.floor(reject * (len(known) + 1))])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Compute the share of rows whose predicted label is in the set of `y`.

        With one true label per row this is accuracy. Of `Answers`, the set is the union of the
        answers; a row for which nobody named a class has all classes.

        Parameters
        ----------
        X : array of shape (n, d), or images
            See the notes of the class.
        y : Answers, CandidateSets or whatever makes one
            The candidate labels, or the true label, of each row.
        sample_weight : array of shape (n,), optional
            Weights of the rows.

        Returns
        -------
        float
        """
        check_is_fitted(self, "predictor_")
        sets = read_candidates(y, self.classes_)
        index = self.predict_proba(X).argmax(-1)
        where = {label: i for i, label in enumerate(sets.classes.tolist())}
        predicted = np.array([where.get(label, -1) for label in self.classes_.tolist()])[index]
        return float(np.average(sets.contains(predicted), weights=sample_weight))

    # ---- keeping

    def save(self, path: str | Path, *, replace: bool = False) -> None:
        """Write the classifier into a new folder, complete or not at all, without pickle.

        Parameters
        ----------
        path : str or Path
            The folder.
        replace : bool, default=False
            Replace an earlier classifier there.
        """
        check_is_fitted(self, "predictor_")
        with writing(path, {"estimator": type(self).__name__}, replace=replace) as run:
            self.write(run)

    def write(self, run: Run) -> None:
        """Save into an open RUN folder.

        Parameters
        ----------
        run : Run
            What `candidly.storage.store.writing` has opened.
        """
        shape = self.predictor_.shape
        groups = {} if self.selection_ is None else self.selection_._asdict()
        net = {"name": self._net_name(shape), "shape": list(shape), "n_classes": len(self.classes_)}
        run.save_model(self.predictor_, net if isinstance(self.net, str) else None)
        run.save_arrays(known_energies=self.known_energies_, **groups)
        run.write_metrics(self.history_)
        fitted = {name: getattr(self, name) for name in SAVED_ATTRIBUTES if hasattr(self, name)}
        params = self.get_params(deep=False)
        write_json(run.folder / NOTE, {"params": _as_json(params), "fitted": _as_json(fitted)})

    @classmethod
    def load(
        cls, path: str | Path, *, net: Callable[..., nn.Module] | None = None, device: str = "auto"
    ) -> PartialLabelClassifier:
        """Read a classifier that `save` wrote.

        Parameters
        ----------
        path : str or Path
            The folder.
        net : callable, optional
            The function that made the net, if it is not one of `NETS`.
        device : str, default="auto"
            Where to put the net.

        Returns
        -------
        PartialLabelClassifier
        """
        path = Path(path)
        verify(path, NOTE, "arrays.npz", "metrics.jsonl", *MODEL_FILES)
        note = read_json(path / NOTE)
        arrays = read_arrays(path)
        made = {} if net is None else {"net": net}
        classifier = cls(**{**_from_json(note["params"]), **made, "device": device})
        facts = read_json(path / "model" / "model.json")
        model = None if net is None else net(tuple(facts["shape"]), len(facts["classes"]))
        classifier.predictor_ = Predictor.load(path, model)
        classifier.predictor_.model.to(train.find_device(device))
        classifier.classes_ = classifier.predictor_.classes
        classifier.history_ = read_metrics(path)
        classifier.known_energies_ = arrays["known_energies"]
        classifier.selection_ = None
        if "normal" in arrays:
            classifier.selection_ = Selection(*map(arrays.get, Selection._fields))
        for name, value in _from_json(note["fitted"]).items():
            is_names = name == "feature_names_in_"
            setattr(classifier, name, np.array(value, dtype=object) if is_names else value)
        return classifier


def read_candidates(y: Any, columns: Any = None) -> CandidateSets:
    """Read candidate sets in any form that `CandidateSets` takes.

    Parameters
    ----------
    y : Answers, CandidateSets or whatever makes one
    columns : sequence, optional
        Classes of a matrix that does not name them.

    Returns
    -------
    CandidateSets

    Raises
    ------
    InputError
        If `y` is None, or holds fractions.

    Examples
    --------
    >>> sets = read_candidates(np.array([[1, 1], [0, 1]]), ["cat", "dog"])
    >>> sets[0], sets[1]
    (('cat', 'dog'), ('dog',))
    """
    if y is None:
        raise InputError(
            "PartialLabelClassifier requires y to be passed, but the target y is None: pass "
            "candidate sets, such as [['cat', 'dog'], ['dog']]."
        )
    if isinstance(y, CandidateSets):
        return y
    if isinstance(y, Answers):
        return y.to_sets()
    ndim = getattr(y, "ndim", 1)
    if ndim == 2 and y.shape[1] == 1 and not sparse.issparse(y):
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected: its rows are taken as "
            "candidate sets.",
            DataConversionWarning,
            stacklevel=3,
        )
        y = np.asarray(y)[:, 0]
        ndim = 1
    if ndim == 1 and getattr(y, "dtype", None) is not None:
        _refuse_fractions(np.asarray(y))
    return CandidateSets(y, columns if ndim == 2 and not hasattr(y, "columns") else None)


def _refuse_fractions(y: np.ndarray) -> None:
    if y.dtype.kind == "f" and (wrong := np.isinf(y) | (np.floor(y) != y) & ~np.isnan(y)).any():
        row = int(wrong.argmax())
        raise InputError(
            f"Unknown label type: row {row} of y is {y[row].item()!r}. Expected classes, named by "
            "whole numbers or strings; to predict quantities use a regressor."
        )


def check_folds(cv: Any, n: int) -> None:
    """Refuse a number of folds that leaves one without a row.

    Parameters
    ----------
    cv : int
        Number of folds, at least 2.
    n : int
        Number of rows.

    Raises
    ------
    InputError
        If `cv` is not a whole number from 2 to n.
    """
    if n < whole(cv, "cv", 2):
        raise InputError(f"cv={cv}: expected at most {n}, the number of rows.")


def split(sets: CandidateSets, k: int, seed: int) -> np.ndarray:
    """Assign each row to one of k folds.

    Rows are dealt out in turn, ordered by their rarest candidate and the size of their set: each
    fold gets its share of every class, of the certain rows and of the vague ones.

    Parameters
    ----------
    sets : CandidateSets
        The candidates of n rows.
    k : int
        Number of folds.
    seed : int
        Decides the order of rows that are alike.

    Returns
    -------
    int array of shape (n,)
        The fold of each row, 0 to k - 1.

    Examples
    --------
    >>> fold = split(CandidateSets([["a"], ["a"], ["b"], ["b"]]), 2, seed=0)
    >>> sorted(fold[:2].tolist()), sorted(fold[2:].tolist())
    ([0, 1], [0, 1])
    """
    counts = np.bincount(sets.indices, minlength=sets.n_classes)
    rank = counts.argsort(kind="stable").argsort(kind="stable")
    rarest = np.minimum.reduceat(rank[sets.indices], sets.indptr[:-1])
    order = np.lexsort((np.random.default_rng(seed).random(len(sets)), sets.sizes, rarest))
    fold = np.empty(len(sets), dtype=np.int64)
    fold[order] = np.arange(len(sets)) % k
    return fold


@contextmanager
def _input_errors() -> Iterator[None]:
    """Turn scikit-learn's errors about inputs into ours, which commands print as a sentence."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from error


def _as_json(values: dict[str, Any]) -> dict[str, Any]:
    """Values that JSON can hold; functions and random states are left out."""
    return {
        name: _json_value(value)
        for name, value in values.items()
        if not (callable(value) or isinstance(value, np.random.RandomState))
    }


def _json_value(value: Any) -> Any:
    if isinstance(value, Rates):
        return {"rates": dataclasses.astuple(value)}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _from_json(values: dict[str, Any]) -> dict[str, Any]:
    return {k: Rates(*v["rates"]) if isinstance(v, dict) else v for k, v in values.items()}
