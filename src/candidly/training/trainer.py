"""Training: `fit`, for all methods, on one process or many (`torchrun`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from candidly.auditing.evidence import read_answers
from candidly.checks import whole
from candidly.console.progress import bar
from candidly.errors import InputError, Interrupted
from candidly.kinds import Selection, Truth
from candidly.methods.base import Method
from candidly.storage.store import Run
from candidly.tensors import distributed
from candidly.tensors.views import Views, make_views
from candidly.training.checks import (
    as_method,
    check_lengths,
    check_outputs,
    find_device,
)
from candidly.training.loop import TOGETHER, Trainer, batches, seeded
from candidly.training.predictor import Predictor, predict
from candidly.training.schemes import SCHEMES, Scheme, make_scheme

# `candidly.train`, an old path, gives these names.
__all__ = [
    "SCHEMES",
    "TOGETHER",
    "Fitted",
    "Predictor",
    "Scheme",
    "Trainer",
    "batches",
    "check_lengths",
    "find_device",
    "fit",
    "make_scheme",
    "predict",
    "seeded",
]


@dataclass
class Fitted:
    """The result of a training.

    Attributes
    ----------
    predictor : Predictor
        The trained net.
    method : Method
        With its state.
    history : list of dict
        One row of metrics per epoch.
    """

    predictor: Predictor
    method: Method
    history: list[dict[str, Any]]

    @property
    def model(self) -> nn.Module:
        """The trained net, as a module."""
        return self.predictor.model

    @property
    def selection(self) -> Selection | None:
        """The last division of the training examples, as NumPy masks, if the method makes one."""
        found = self.method.selection
        return None if found is None else Selection(*(mask.cpu().numpy() for mask in found))


def fit(
    model: nn.Module,
    X: Any,
    candidates: Any,
    method: Method | str,
    *,
    answers: Any = None,
    gold: Any = None,
    scheme: str | Scheme = "fast",
    seed: int = 0,
    device: str = "auto",
    test: tuple[Any, Any] | None = None,
    truth: Truth | None = None,
    run: Run | None = None,
    label: str = "",
    progress: bool | None = None,
    **changes: Any,
) -> Fitted:
    """Train a model on inputs and their candidate sets.

    Parameters
    ----------
    model : nn.Module
        Maps a batch of inputs to a tensor of logits (n, c).
    X : array-like or Views
        Images, uint8 of shape (n, h, w) or (n, h, w, 1 or 3), or a table of numbers (n, d).
    candidates : Answers, CandidateSets, or anything that makes one
        Of Answers, the candidates are the unions of the answers.
    method : Method or str
        The name of a method gives it its default settings.
    answers : Answers, optional
        Who answered what, beside candidate sets; used by `posterior`.
    gold : int array of shape (n,), optional
        What is certain: a class index, -1 for none of the classes, -2 for unknown; used by
        `posterior`.
    scheme : str or Scheme
        A name in `SCHEMES`, or a scheme.
    seed : int
        Decides all randomness.
    device : str
        "auto" is a GPU if there is one.
    test : (inputs, class indices), optional
        Only for the metrics.
    truth : Truth, optional
        Only for the metrics.
    run : Run, optional
        An open run folder of `candidly.storage.store.writing`: each epoch writes a checkpoint, and
        an interrupted training resumes bit for bit (on a CPU).
    label : str
        Shown beside the progress bar.
    progress : bool, optional
        Whether to show a bar; by default one on a terminal, and otherwise a line now and then.
    **changes
        Values of the scheme to change, such as `epochs`.

    Returns
    -------
    Fitted

    Raises
    ------
    InputError
        If the arguments do not fit together.
    TrainingError
        If the training diverged.

    Examples
    --------
    >>> from candidly.tensors.nets import build_net
    >>> X = [[0.0, 1.0], [1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]
    >>> candidates = [["a"], ["b"], ["a", "b"], ["b"]]
    >>> fitted = fit(build_net("linear", (2,), 2), X, candidates, "cc", epochs=3)
    >>> len(fitted.history)
    3
    """
    plan = make_scheme(scheme, **changes)
    sets, answers = read_answers(candidates, answers)
    method = as_method(method)
    views = X if isinstance(X, Views) else make_views(X, device=find_device(device))
    if device != "auto" and views.data.device != find_device(device):
        raise InputError(
            f"the views are on {views.data.device}, not on device={device!r}: make them there."
        )
    trainer = Trainer(
        model, views, sets, method, plan, whole(seed, "seed"), test, truth, run, answers, gold
    )
    try:
        start = trainer.resume()
        shown = progress if distributed.rank() == 0 else False
        with bar(plan.epochs, label or type(method).__name__, done=start, shown=shown) as advance:
            for epoch in range(start, plan.epochs):
                row = trainer.epoch(epoch)
                advance("  ".join(f"{k} {row[k]:.3g}" for k in ("loss", "accuracy") if k in row))
    except KeyboardInterrupt:
        raise Interrupted(trainer.interruption_message()) from None
    finally:
        trainer.close()
    check_outputs(model, views, plan)
    mean, std = (moment.cpu().numpy() for moment in (views.mean, views.std))
    predictor = Predictor(model.eval(), sets.classes, views.shape, mean, std)
    return Fitted(predictor, method, trainer.history)
